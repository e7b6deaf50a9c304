//! The client: the file system as an API on inodes. The FUSE mount, the benchmarks and the lab are its users.
//!
//! [`FileSystem`] is the API: asynchronous, POSIX semantics, no kernel. It keeps one connection to each target of the
//! cluster map, splits data by the layout into requests to the objects, and caches nothing that another client could
//! make stale: no attributes, no names, no data. The price is a request for every operation; it goes when locks with
//! callbacks come.

mod advisory;
mod closed_unsynced;
pub mod control;
mod copy;
pub mod courtesy;
mod elsewhere;
mod exclusive;
mod file_system;
mod finish;
mod given_up;
mod glimpse;
mod held_locks;
mod interruption;
mod join;
mod layouts;
mod leave_out;
pub mod migrate;
mod namespace;
mod objects;
mod open_close;
mod open_file;
mod open_inode;
mod options;
mod read;
mod recovery;
mod requests;
mod size_tracker;
mod space;
mod statfs;
mod statistics;
mod swap;
mod sync;
mod target;
mod targets;
mod truncate;
mod uncommitted;
mod whole_file;
mod write;

pub use file_system::FileSystem;
pub use interruption::Interruption;
pub use open_file::OpenFile;
pub use options::{MountOptions, Resolver};
pub use requests::{
    AllocateMode, CreatedFile, DirectoryItem, DirectoryPage, LockRequest, NewFile, NewNode, ReadData, SeekTarget,
    WriteOptions,
};
pub use statistics::{Count, Operation, Statistics};
pub use whole_file::WHOLE_FILE_BYTES_MAX;
