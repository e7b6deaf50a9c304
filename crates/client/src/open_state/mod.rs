//! What this client knows about its open files: handles, layouts, sizes, and the changes that still
//! have to be synced.

pub(crate) mod closed_unsynced;
pub(crate) mod listing_place;
pub(crate) mod open_file;
pub(crate) mod open_inode;
pub(crate) mod open_table;
pub(crate) mod record_changes;
pub(crate) mod registered_open;
pub(crate) mod size_tracker;
