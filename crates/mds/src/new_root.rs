//! The root directory of a new file system.

use types::{Accounted, Attributes, Credentials, DirectoryDefault, FileKind, InodeNumber, Timestamp};

use crate::{
    tables::inode::{Inode, InodeData},
    transaction::creation::DIRECTORY_BYTES,
};

/// See the module documentation. Its mode is 0755.
#[derive(Clone, Debug)]
pub struct NewRoot {
    /// Who owns it.
    pub owner: Credentials,
    /// On which MDTs directories in it are; `None`: on that of their name.
    pub default: Option<DirectoryDefault>,
}

impl NewRoot {
    /// Without a default.
    pub fn of(owner: Credentials) -> Self {
        Self { owner, default: None }
    }

    pub(crate) fn inode(&self, now: Timestamp) -> Inode {
        Inode {
            attributes: Attributes {
                mode: 0o755,
                links: 2,
                uid: self.owner.uid,
                gid: self.owner.gid,
                size: DIRECTORY_BYTES,
                blocks: DIRECTORY_BYTES / 512,
                atime: now,
                mtime: now,
                ctime: now,
                btime: now,
                ..Attributes::zeroed(InodeNumber::ROOT, FileKind::Directory)
            },
            version: 1,
            size_known: true,
            epoch: 0,
            map_version: 0,
            striping: Default::default(),
            accounted: Accounted { time: now, ..Accounted::default() },
            access_list: false,
            default_list: false,
            xattrs: false,
            not_linkable: false,
            directory_default: self.default,
            first_link: None,
            data: InodeData::Directory(None),
        }
    }
}
