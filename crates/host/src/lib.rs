//! What the programs on one host share: a mount, the daemons, and the tools that ask them. It stands below the FUSE server and the
//! tools of users, so that neither needs the other.
//!
//! - [`ioctl`] is the control channel by which `lfs` talks to a mount, both ends;
//! - [`errno`] are the numbers of errors, for the kernel and for tools that print what a system call would say;
//! - [`mount_table`] finds mounts;
//! - [`accounts`] are the names of users and groups;
//! - [`progress`] shows on a terminal how far long work is.
//!
//! Downside: it touches the system directly (ioctl, `/proc`, the C library), not through the seams of `rt`; nothing that the lab
//! runs may use it.

pub mod accounts;
pub mod errno;
pub mod ioctl;
pub mod mount_table;
pub mod progress;
