//! The protocol of `/dev/fuse`: what the kernel writes, and what it accepts as an answer.
//!
//! Source: `include/uapi/linux/fuse.h` of Linux 6.18, protocol 7.45; names follow it, in full
//! words, and every item gives its name in the kernel. Only features that this file system
//! negotiates are included. Integers are in the host's byte order, and structures have no implicit
//! padding (the derives check it).
//!
//! The oldest supported kernel protocol is 7.31 (Linux 5.4), so the compatibility sizes of older
//! protocols are not included. Decoding copies structures out of the buffer, needs no alignment and
//! never panics: input that is too short or lacks its NUL is a [`RequestDecodeError`]. Nothing here
//! does I/O: both transports (`/dev/fuse`, io_uring) use all of it.

pub mod decode;
pub mod directory;
pub mod flags;
pub mod notify;
pub mod opcode;
pub mod reply;
pub mod request;
pub mod ring;

pub use decode::{Incoming, Operation, RequestDecodeError, decode};
pub use opcode::Opcode;

/// Major version of the protocol (FUSE_KERNEL_VERSION).
pub const MAJOR: u32 = 7;
/// Oldest minor version spoken: Linux 5.4.
pub const MINOR_MIN: u32 = 31;
/// Newest minor version spoken: Linux 6.18.
pub const MINOR_MAX: u32 = 45;
/// Node id of the root directory (FUSE_ROOT_ID); the root's inode number is the same.
pub const ROOT_NODE: u64 = 1;
