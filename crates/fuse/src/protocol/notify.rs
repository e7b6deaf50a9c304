//! Notifications: what this side tells the kernel without being asked. An [`OutHeader`] with
//! `unique` 0 and the code in place of the errno comes first.
//!
//! [`OutHeader`]: super::reply::OutHeader

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// `FUSE_NOTIFY_INVAL_INODE`.
pub const INVALIDATE_INODE: i32 = 2;
/// `FUSE_NOTIFY_INVAL_ENTRY`.
pub const INVALIDATE_ENTRY: i32 = 3;
/// `FUSE_NOTIFY_INC_EPOCH`, protocol 7.44.
pub const INCREMENT_EPOCH: i32 = 8;
/// `FUSE_EXPIRE_ONLY`: the entry stays, and is looked up again when it is used (a LOOKUP in flight
/// may make it valid again).
pub const EXPIRE_ONLY: u32 = 1;
/// First minor version of the protocol with [`INCREMENT_EPOCH`] (Linux 6.16).
pub const MINOR_OF_EPOCHS: u32 = 44;

/// `fuse_notify_inval_inode_out`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct InvalidateInode {
    /// The inode.
    pub node: u64,
    /// Offset of the pages that are dropped, too; negative: attributes only.
    pub offset: i64,
    /// Bytes from there on; 0: all.
    pub length: i64,
}

/// `fuse_notify_inval_entry_out`; the name follows, with a NUL.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct InvalidateEntry {
    /// The directory.
    pub parent: u64,
    /// Bytes of the name, without its NUL.
    pub name_bytes: u32,
    /// 0: the entry is dropped; or [`EXPIRE_ONLY`].
    pub flags: u32,
}
