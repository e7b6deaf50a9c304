//! What a change of this client makes stale.

use types::InodeNumber;

/// A part of what is cached. One that is wider includes the narrower ones.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Subject {
    /// Attributes of inodes that cannot be named: a name is removed that this client does not know.
    AllAttributes,
    /// Everything of an inode but the names that lead to it.
    Inode(InodeNumber),
    /// Attributes of an inode that its permissions do not depend on: times, size, links.
    Times(InodeNumber),
    /// The layout of a file.
    Layout(InodeNumber),
    /// Data of a file on the MDT.
    Data(InodeNumber),
    /// Which directory is above a directory.
    Above(InodeNumber),
    /// Where a name in a directory leads.
    Name(InodeNumber, Vec<u8>),
    /// The names of a directory, as a whole.
    Names(InodeNumber),
}
