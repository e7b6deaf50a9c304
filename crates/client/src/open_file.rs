//! One open file or directory of this client.

use rpc::message::mdt::{OpenFlags, OpenId};
use types::{FileKind, InodeNumber};

/// An open file or directory. Ends with [`FileSystem::close`](crate::FileSystem::close); one that is dropped without it
/// is closed in the background.
#[derive(Debug)]
pub struct OpenFile {
    inode: InodeNumber,
    kind: FileKind,
    id: OpenId,
    flags: OpenFlags,
}

impl OpenFile {
    /// The inode.
    pub fn inode(&self) -> InodeNumber {
        self.inode
    }

    /// What it is.
    pub fn kind(&self) -> FileKind {
        self.kind
    }

    /// The client's name for this open.
    pub fn id(&self) -> OpenId {
        self.id
    }

    /// How it was opened.
    pub fn flags(&self) -> OpenFlags {
        self.flags
    }
}
