//! The client: the file system as an API on inodes. The FUSE mount, the benchmarks and the lab are
//! its users.
//!
//! [`FileSystem`] is the API: asynchronous, POSIX semantics, no kernel. It keeps one connection to
//! each target of the cluster map and splits data by the layout into requests to the objects. It
//! caches names and attributes under locks that the MDT withdraws before another client's change is
//! visible (`cache`), and the data of small files on the MDT likewise.
//!
//! ```
//! # mod cluster { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/doc/cluster.rs")); }
//! # use cluster::with_file_system;
//! use std::sync::Arc;
//!
//! use client::{FileSystem, WriteOptions};
//! use rpc::message::mdt::{OpenFlags, open_flag};
//! use types::{Credentials, FsResult, InodeNumber};
//!
//! /// Writes a file of the root directory, makes it durable, and reads it.
//! async fn write_and_read(file_system: &Arc<FileSystem>) -> FsResult<()> {
//!     let root = Credentials::root();
//!     let flags = OpenFlags(open_flag::READ | open_flag::WRITE);
//!     let made = file_system.create_open(&root, InodeNumber::ROOT, b"greeting", 0o644, 0o022, flags).await?;
//!     let written = file_system.write(&made.file, 0, "hello".into(), WriteOptions::default()).await?;
//!     file_system.fsync(&made.file, false).await?;
//!     let data = file_system.read(&made.file, 0, written).await?;
//!     assert_eq!(data.into_bytes(), "hello");
//!     file_system.close(made.file, None).await
//! }
//! # with_file_system(async |file_system| write_and_read(&file_system).await);
//! ```
//!
//! The folders, in the order in which an operation uses them: `operations` has one file for each
//! family of system calls; `open_state` has what this client knows about its open files;
//! `placement` keeps their layouts and finds other space for data that a full OST refuses;
//! `objects` sends requests to single objects; `targets` sends the requests and recovers after a
//! restart; `cache` answers without a request where it can.

mod cache;
mod cancellation;
mod client_state;
pub mod control;
mod directory_maps;
mod entry_attributes;
mod file_system;
mod job_ids;
mod join;
mod keepable;
mod locks;
pub mod migration;
mod name_places;
mod names_elsewhere;
mod objects;
mod open_state;
mod operations;
mod options;
mod placement;
mod recently_used;
mod requests;
mod statistics;
mod targets;
mod upper_cache;

pub use cache::cached_inode::CAPABILITIES_NAME;
pub use cache::served::{Served, ServedLock};
pub use cancellation::interruption::Interruption;
pub use entry_attributes::EntryAttributes;
pub use file_system::FileSystem;
pub use job_ids::{JobIds, JobSource};
pub use locks::lock_request::LockRequest;
pub use open_state::open_file::OpenFile;
pub use operations::whole_file::WHOLE_FILE_BYTES_MAX;
pub use options::{MountOptions, Resolver};
pub use requests::{
    AllocateMode, CreatedFile, DirectoryItem, DirectoryPage, NewFile, NewNode, ReadData, SeekTarget, WriteOptions,
};
pub use statistics::{Count, Operation, StataheadStatistics, Statistics};
pub use upper_cache::{Keepable, LockSpan, SpanNumber, UpperCache};
