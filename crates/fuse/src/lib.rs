//! The FUSE server, between the kernel and the client: mounts a file system, and serves the
//! kernel's requests from a [`client::FileSystem`]. No other crate knows the FUSE protocol.
//!
//! ```text
//!  program --system call--> kernel --/dev/fuse--> session --Operation--> adapter --> client::FileSystem
//!                                                   |                       |
//!                                 workers, buffers, answers      one function per operation
//! ```
//! - [`mount`] mounts the file system and unmounts it;
//! - [`session`] reads requests and writes answers, one worker per core; [`protocol`] is their
//!   encoding;
//! - [`Adapter`] translates each operation to the client's API and back, and `host::errno` its
//!   errors. `lfs` talks to a mount through `host::ioctl`.
//!
//! Use: build a `FileSystem` on its [`Cores`](rt::real::Cores), then [`Mount::new`], wait for
//! [`Mount::ended`] or a signal, [`Mount::unmount`], and only then unmount the `FileSystem` itself.

mod adapter;
mod kernel_cache;
pub mod mount;
pub mod protocol;
pub mod session;

pub use adapter::Adapter;
pub use kernel_cache::{Count as KernelCacheCount, KernelCache, Statistics as KernelCacheStatistics};
pub use mount::{Mount, MountError, MountOptions, MountSource, Unmounted};
