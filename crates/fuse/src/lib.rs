//! Between the kernel and the client: mounts, and serves what the kernel asks for from a [`client::FileSystem`]. Nothing
//! else in the workspace names FUSE.
//!
//! ```text
//!  program --system call--> kernel --/dev/fuse--> session --Operation--> adapter --> client::FileSystem
//!                                                   |                       |
//!                                 workers, buffers, answers      one function per operation
//! ```
//! - [`mount`] puts the file system into the name space and takes it out again;
//! - [`session`] reads requests and writes answers, one worker per core; [`protocol`] is their encoding;
//! - [`Adapter`] translates each operation to the client's API and back; `host::errno` its errors. `host::ioctl` is how `lfs` talks to a mount.
//!
//! Use: build a `FileSystem` on its [`Cores`](rt::real::Cores), then [`Mount::new`], wait for [`Mount::ended`] or a signal,
//! [`Mount::unmount`], and only then unmount the `FileSystem` itself.

mod adapter;
pub mod mount;
pub mod protocol;
pub mod session;

pub use adapter::Adapter;
pub use mount::{Mount, MountError, MountOptions, MountSource, Unmounted};
