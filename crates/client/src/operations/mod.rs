//! The operations: each file has one family of system calls, as methods of
//! [`FileSystem`](crate::FileSystem).
//!
//! An operation decides what to ask which target, and in what order; it keeps no state of its own.
//! State that outlives it is in `open_state`, `locks` and `targets`.

pub(crate) mod advisory_locks;
pub(crate) mod allocate;
pub(crate) mod close;
pub(crate) mod compound;
pub(crate) mod copy_range;
pub(crate) mod layout_changes;
pub(crate) mod moving_names;
mod namespace;
pub(crate) mod open;
mod open_unasked;
mod paths;
pub(crate) mod read;
pub(crate) mod read_directory;
pub(crate) mod seek;
mod statahead;
pub(crate) mod statfs;
mod striped_directory;
pub(crate) mod sync;
pub(crate) mod truncate;
pub(crate) mod whole_file;
pub(crate) mod write;
