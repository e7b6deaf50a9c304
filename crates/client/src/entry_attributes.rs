//! What is read of a directory besides names.

use types::FileKind;

/// The attributes that are wanted with the names of a directory. Others may come, too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EntryAttributes {
    /// None.
    None,
    /// Those of directories.
    OfDirectories,
    /// Those of everything.
    OfAll,
}

impl EntryAttributes {
    /// Whether those of such an inode are wanted.
    pub fn includes(self, kind: FileKind) -> bool {
        match self {
            Self::None => false,
            Self::OfDirectories => kind == FileKind::Directory,
            Self::OfAll => true,
        }
    }
}
