//! The client: the file system as an API on inodes. The FUSE mount, the benchmarks and the lab are its users.
//!
//! [`FileSystem`] is the API: asynchronous, POSIX semantics, no kernel. It keeps one connection to each target of the
//! cluster map, splits data by the layout into requests to the objects, and caches nothing that another client could
//! make stale: no attributes, no names, no data. The price is a request for every operation; it goes when locks with
//! callbacks come.

pub mod control;
mod file_system;
mod open_file;
mod requests;

pub use file_system::FileSystem;
pub use open_file::OpenFile;
pub use requests::{
    AllocateMode, CreatedFile, DirectoryItem, DirectoryPage, LockRequest, NewNode, ReadData, SeekTarget, WriteOptions,
};
