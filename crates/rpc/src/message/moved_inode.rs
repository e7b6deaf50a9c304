//! An inode moves to another MDT, with its names, and with a new number
//! (docs/decisions/0066-inodes-that-move.md). The MDT that gets it decides.

use serde::{Deserialize, Serialize};
use types::{FileKind, InodeNumber};

/// A name, and to what it leads.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GivenName {
    /// The name.
    pub name: Vec<u8>,
    /// The inode.
    pub inode: InodeNumber,
    /// What it is.
    pub kind: FileKind,
}

/// An inode that its MDT gives away if that is decided, with all that it has there, as in its
/// tables (docs/disk_format.md). At most [`GIVEN_BYTES_MAX`].
/// [`GIVEN_BYTES_MAX`]: types::limits::GIVEN_BYTES_MAX
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GivenInode {
    /// The start of the MDT that gives it.
    pub start: u64,
    /// Value of INODES.
    pub record: Vec<u8>,
    /// Names and values of its extended attributes.
    pub xattrs: Vec<(Vec<u8>, Vec<u8>)>,
    /// Its names but the first, which is in the record: directory and name.
    pub links: Vec<(InodeNumber, Vec<u8>)>,
    /// Its data on the MDT: keys of DATA without the number, and values.
    pub data: Vec<(Vec<u8>, Vec<u8>)>,
    /// The names of a directory.
    pub names: Vec<GivenName>,
}

/// Names in a directory lead to the inode where it is now.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeadNames {
    /// The directory.
    pub parent: InodeNumber,
    /// The names.
    pub names: Vec<Vec<u8>>,
    /// To what they lead until then.
    pub inode: InodeNumber,
}
