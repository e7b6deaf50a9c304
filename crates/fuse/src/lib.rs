//! Between the kernel and the client.

pub mod errno;
pub mod protocol;
pub mod session;
