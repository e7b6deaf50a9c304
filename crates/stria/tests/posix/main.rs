//! POSIX on mounts, in areas that pjdfstest does not cover: many names and large files, locks, open
//! files, mappings, several clients.
//!
//! One file per area; each test has a file system of its own, which is checked at the end.

#[path = "../common/mod.rs"]
mod common;

mod calls;
mod clients;
mod files;
mod locks;
mod mappings;
mod names;
mod protection;
mod special;
