//! What this client may answer without asking an MDT: names, attributes, symbolic links, data of
//! small files and a few extended attributes, under locks that the MDT grants along with its
//! replies and withdraws before it makes another client's change visible.
//!
//! `inode_cache` is the cache of one MDT, pure: what is known, and what may be served.
//! `target_cache` connects it to the calls and callbacks of the MDT's connection; `cancels` has the
//! locks that are being given back, `leaving` those that may be taken back. `question` is the table
//! of all requests: what each of them asks and changes, and which locks it wants.

pub(crate) mod accesses;
pub(crate) mod cached_inode;
pub(crate) mod cancels;
mod compound_changes;
pub(crate) mod connection_id;
mod early_cancels;
pub(crate) mod inode_cache;
mod keeper;
pub(crate) mod leaving;
pub(crate) mod listings;
mod name_index;
mod name_table;
mod own_changes;
mod own_versions;
mod queries;
mod question;
mod recency;
pub(crate) mod released;
pub(crate) mod served;
pub(crate) mod small_files;
pub(crate) mod statahead;
mod subject;
pub(crate) mod target_cache;
