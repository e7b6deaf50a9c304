//! What this client knows of the files it has open: handles, layouts, sizes, and what is still to be synced.

pub(crate) mod closed_unsynced;
pub(crate) mod open_file;
pub(crate) mod open_inode;
pub(crate) mod open_table;
pub(crate) mod record_changes;
pub(crate) mod size_tracker;
