//! Code shared by the programs on one host: a mount, the daemons, and the tools that query them. It
//! is below the FUSE server and the users' tools, so that neither needs the other.
//!
//! - [`ioctl`] is the control channel by which `lfs` talks to a mount, both ends;
//! - [`errno`] has the numbers of errors, for the kernel and for tools that print errors like those
//!   of system calls;
//! - [`mount_table`] finds mounts;
//! - [`accounts`] has the names of users and groups;
//! - [`project`] reads the project id of a file;
//! - [`progress`] shows the progress of long work on a terminal.
//!
//! Downside: it uses the system directly (ioctl, `/proc`, the C library), not through the seams of
//! `rt`; code that the lab runs must not use it.

pub mod accounts;
pub mod errno;
pub mod ioctl;
pub mod mount_table;
pub mod progress;
pub mod project;
