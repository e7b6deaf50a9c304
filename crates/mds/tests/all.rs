//! All tests of this crate, in one program: each program would compile what it uses of the crates
//! again.

mod cache_locks;
mod check;
mod common;
mod compounds;
mod data;
mod deferred_log;
mod full_osts;
mod growing_layouts;
mod growth;
mod hostile;
mod layout_changes;
mod leave_out;
mod load_first;
mod model;
mod namespace;
mod panics;
mod permissions;
mod removal;
mod replacement;
mod services;
mod sessions;
mod size_model;
mod sizes;
mod swap;
mod versions;
