//! Between the kernel and the client.

pub mod protocol;
