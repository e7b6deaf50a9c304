//! Attributes of an inode, as stat(2) shows them, and requests to change them.

use serde::{Deserialize, Serialize};

use crate::{FileKind, InodeNumber, SeenChanges, Timestamp};

/// Flags of files and directories that only root sets.
pub mod file_flag {
    /// Of a directory: what is made in it gets its project id, and directories this flag too
    /// (chattr +P).
    pub const PROJECT_INHERIT: u32 = 4;
    /// Nothing of it can be changed (chattr +i).
    pub const IMMUTABLE: u32 = 1;
    /// It can only be appended to (chattr +a).
    pub const APPEND_ONLY: u32 = 2;
    /// All of them.
    pub const ALL: u32 = IMMUTABLE | APPEND_ONLY | PROJECT_INHERIT;
}

/// All that stat(2) reports of an inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attributes {
    /// The inode.
    pub inode: InodeNumber,
    /// What it is.
    pub kind: FileKind,
    /// Permission bits, set-id and sticky bits: 12 bits, without the kind.
    pub mode: u32,
    /// Hard links; of a directory 2 + its subdirectories.
    pub links: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Device number of a device file, else 0.
    pub device: u32,
    /// Size in bytes.
    pub size: u64,
    /// Space used, in blocks of 512 bytes.
    pub blocks: u64,
    /// Last access.
    pub atime: Timestamp,
    /// Last change of contents.
    pub mtime: Timestamp,
    /// Last change of the inode.
    pub ctime: Timestamp,
    /// Creation.
    pub btime: Timestamp,
    /// Bits of [`file_flag`].
    #[serde(default)]
    pub flags: u32,
    /// Project that the space is accounted to, besides user and group; 0: none.
    #[serde(default)]
    pub project: u32,
}

impl Attributes {
    /// Those of an inode of which only the number and the kind are known: all others are zero.
    pub fn zeroed(inode: InodeNumber, kind: FileKind) -> Self {
        let never = Timestamp::default();
        Self {
            inode,
            kind,
            mode: 0,
            links: 0,
            uid: 0,
            gid: 0,
            device: 0,
            size: 0,
            blocks: 0,
            atime: never,
            mtime: never,
            ctime: never,
            btime: never,
            flags: 0,
            project: 0,
        }
    }

    /// Whose space it takes.
    pub fn owner(&self) -> Owner {
        Owner { uid: self.uid, gid: self.gid, project: self.project }
    }
}

/// Whom the space of a file is accounted to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Owner {
    /// User.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Project; 0: none.
    pub project: u32,
}

/// A time to set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum SetTime {
    /// The server's present time (utimensat's UTIME_NOW): write permission suffices.
    Now,
    /// A given time: only the owner or root.
    To(Timestamp),
}

/// Attributes to change; `None` leaves one as it is. Sizes change through truncation, not here.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SetAttributes {
    /// Permission bits, 12 bits.
    pub mode: Option<u32>,
    /// Owner.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// Last access.
    pub atime: Option<SetTime>,
    /// Last change of contents.
    pub mtime: Option<SetTime>,
    /// With `mtime`, of a file whose size the MDT does not know: what its objects said, filled in
    /// by the client. The times that are set account for these changes and no others.
    #[serde(default)]
    pub seen: Option<SeenChanges>,
    /// Bits of [`file_flag`]: these and no others.
    #[serde(default)]
    pub flags: Option<u32>,
    /// Project id.
    #[serde(default)]
    pub project: Option<u32>,
}
