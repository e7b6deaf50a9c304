//! The client: the file system as an API on inodes. The FUSE mount, the benchmarks and the lab are its users.

pub mod control;
