//! The parts of an inode that can be cached, each under a lock of its own: the bits of Lustre's
//! inode bit locks.

use std::{
    fmt,
    ops::{BitAnd, BitOr, BitOrAssign, Not},
};

use serde::{Deserialize, Serialize};

/// What can be cached of an inode. Bits of [`InodeBits`].
pub mod inode_bit {
    /// A name that led to the inode still does. Revoked when any name of it is removed, renamed or
    /// replaced.
    pub const LOOKUP: u32 = 1;
    /// Attributes, access lists, the target of a symbolic link.
    pub const ATTRIBUTES: u32 = 2;
    /// The file may be opened again without a request.
    pub const OPEN: u32 = 4;
    /// The layout.
    pub const LAYOUT: u32 = 8;
    /// The names in a directory, and that others do not exist.
    pub const DIRECTORY: u32 = 16;
    /// Extended attributes, and that others do not exist.
    pub const XATTRS: u32 = 32;
    /// Data on the MDT.
    pub const DATA: u32 = 64;
}

/// Set of [`inode_bit`] bits.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct InodeBits(pub u32);

impl InodeBits {
    /// No bit.
    pub const NONE: InodeBits = InodeBits(0);
    /// All that exist.
    pub const ALL: InodeBits = InodeBits(127);

    /// Whether no bit is set.
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Whether both have a bit in common.
    pub fn meets(self, other: InodeBits) -> bool {
        self.0 & other.0 != 0
    }
}

impl BitAnd for InodeBits {
    type Output = InodeBits;

    fn bitand(self, other: InodeBits) -> InodeBits {
        InodeBits(self.0 & other.0)
    }
}

impl BitOr for InodeBits {
    type Output = InodeBits;

    fn bitor(self, other: InodeBits) -> InodeBits {
        InodeBits(self.0 | other.0)
    }
}

impl BitOrAssign for InodeBits {
    fn bitor_assign(&mut self, other: InodeBits) {
        self.0 |= other.0;
    }
}

/// The bits that exist and are not set.
impl Not for InodeBits {
    type Output = InodeBits;

    fn not(self) -> InodeBits {
        InodeBits(!self.0) & InodeBits::ALL
    }
}

/// Names of the bits, in order.
const NAMES: [(u32, &str); 7] = [
    (inode_bit::LOOKUP, "lookup"),
    (inode_bit::ATTRIBUTES, "attributes"),
    (inode_bit::OPEN, "open"),
    (inode_bit::LAYOUT, "layout"),
    (inode_bit::DIRECTORY, "directory"),
    (inode_bit::XATTRS, "xattrs"),
    (inode_bit::DATA, "data"),
];

/// The names of the bits, with `|` between them.
impl fmt::Display for InodeBits {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let set = NAMES.iter().filter(|(bit, _)| self.0 & bit != 0).map(|(_, name)| *name);
        formatter.write_str(&set.collect::<Vec<_>>().join("|"))
    }
}

impl fmt::Debug for InodeBits {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "InodeBits({:#x})", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits_are_shown_by_their_names() {
        assert_eq!(InodeBits(inode_bit::LOOKUP | inode_bit::DATA).to_string(), "lookup|data");
        assert_eq!(InodeBits::ALL.to_string().split('|').count(), 7);
        assert_eq!(NAMES.iter().fold(0, |all, (bit, _)| all | bit), InodeBits::ALL.0);
    }
}
