//! The client: the file system as an API on inodes. The FUSE mount, the benchmarks and the lab are its users.
//!
//! [`FileSystem`] is the API: asynchronous, POSIX semantics, no kernel. It keeps one connection to
//! each target of the cluster map, splits data by the layout into requests to the objects, and
//! caches nothing that another client could make stale: no attributes, no names, no data. The price
//! is a request for every operation, until there are locks with callbacks.
//!
//! The folders, in the order in which an operation uses them: `operations` has one file for each
//! family of system calls; `open_state` has what this client knows about its open files;
//! `placement` keeps their layouts and finds other space for data that a full OST refuses;
//! `objects` sends requests to single objects; `targets` sends the requests and recovers after a
//! restart.

mod cancellation;
mod client_state;
pub mod control;
mod file_system;
mod join;
mod locks;
pub mod migration;
mod objects;
mod open_state;
mod operations;
mod options;
mod placement;
mod requests;
mod statistics;
mod targets;

pub use cancellation::interruption::Interruption;
pub use file_system::FileSystem;
pub use open_state::open_file::OpenFile;
pub use operations::{whole_file::WHOLE_FILE_BYTES_MAX, write::CAPABILITIES_NAME};
pub use options::{MountOptions, Resolver};
pub use requests::{
    AllocateMode, CreatedFile, DirectoryItem, DirectoryPage, LockRequest, NewFile, NewNode, ReadData, SeekTarget,
    WriteOptions,
};
pub use statistics::{Count, Operation, Statistics};
