//! Kinds of files and the bits of `st_mode`.

use serde::{Deserialize, Serialize};

/// Set-user-id bit of a mode.
pub const S_ISUID: u32 = 0o4000;
/// Set-group-id bit of a mode.
pub const S_ISGID: u32 = 0o2000;
/// Sticky bit of a mode.
pub const S_ISVTX: u32 = 0o1000;
/// The permission bits that chmod(2) can set.
pub const PERMISSIONS: u32 = 0o7777;

/// What an inode is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum FileKind {
    /// Regular file: the only kind with objects.
    Regular,
    /// Directory.
    Directory,
    /// Symbolic link.
    Symlink,
    /// Named pipe.
    Fifo,
    /// Unix-domain socket.
    Socket,
    /// Character device.
    CharacterDevice,
    /// Block device.
    BlockDevice,
}

/// What to create: a kind with what that kind needs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum NodeKind {
    /// Empty regular file.
    Regular,
    /// Empty directory.
    Directory,
    /// Symbolic link to this target (bytes, no NUL, 1..=4095).
    Symlink(Vec<u8>),
    /// Named pipe.
    Fifo,
    /// Unix-domain socket.
    Socket,
    /// Character device with this device number (Linux `dev_t`, 32 bits as FUSE carries it).
    CharacterDevice(u32),
    /// Block device with this device number.
    BlockDevice(u32),
}

impl NodeKind {
    /// The kind without its contents.
    pub fn file_kind(&self) -> FileKind {
        match self {
            NodeKind::Regular => FileKind::Regular,
            NodeKind::Directory => FileKind::Directory,
            NodeKind::Symlink(_) => FileKind::Symlink,
            NodeKind::Fifo => FileKind::Fifo,
            NodeKind::Socket => FileKind::Socket,
            NodeKind::CharacterDevice(_) => FileKind::CharacterDevice,
            NodeKind::BlockDevice(_) => FileKind::BlockDevice,
        }
    }
}
