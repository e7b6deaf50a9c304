//! Identifiers. Each is a newtype, so that an OST index can never be passed where an MDT index is
//! meant.
//!
//! Each identifier has one form for people, in messages and in logs, with `{}` and with `{:?}`:
//!
//! | id | form |
//! |---|---|
//! | target | `OST000a`, `MDT0000`; with its file system `stria-OST000a` |
//! | inode | its FID, `[0x200000400:0x100:0x0]`, which `lfs fid2path` takes |
//! | object | FID and stripe slot, `[0x200000400:0x100:0x0]:1`; of a mirror after the first also its index, `[0x200000400:0x100:0x0]:1.2` |
//! | client | 16 hexadecimal digits, as in the names of its parameters (`llite.stria-...`) |

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::Fid;

/// Bits of an inode number below the MDT index: the counter local to that MDT.
const COUNTER_BITS: u32 = 48;

/// Index of a metadata target (MDT) in the cluster map, as in `lustre-MDT0003`.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct MdtIndex(pub u16);

/// Index of an object storage target (OST) in the cluster map, as in `lustre-OST0003`.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct OstIndex(pub u16);

impl fmt::Display for MdtIndex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MDT{:04x}", self.0)
    }
}

impl fmt::Display for OstIndex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "OST{:04x}", self.0)
    }
}

/// Number of an inode: the index of its home MDT (upper 16 bits), whether it is a shard of a
/// striped directory (1 bit), and that MDT's counter (lower 47 bits). Never reused. The root
/// directory is number 1 of MDT 0, which is also what FUSE calls its root.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct InodeNumber(pub u64);

impl InodeNumber {
    /// The root directory.
    pub const ROOT: InodeNumber = InodeNumber(1);
    /// The first counter that files get on every MDT; smaller ones are reserved.
    pub const FIRST_FREE_COUNTER: u64 = 0x100;

    /// The bit of shards.
    const SHARD: u64 = 1 << (COUNTER_BITS - 1);

    /// The inode `counter` of `mdt`. `counter` must be below 2^48; its highest bit makes it a
    /// shard.
    pub fn new(mdt: MdtIndex, counter: u64) -> Self {
        assert!(counter < 1 << COUNTER_BITS, "inode counter {counter} exceeds 48 bits");
        Self(u64::from(mdt.0) << COUNTER_BITS | counter)
    }

    /// The MDT that holds this inode.
    pub fn mdt(self) -> MdtIndex {
        MdtIndex((self.0 >> COUNTER_BITS) as u16)
    }

    /// The number local to its MDT, which no other inode has there, shard or not.
    pub fn counter(self) -> u64 {
        self.local() & !Self::SHARD
    }

    /// All that tells it from other inodes of its MDT.
    pub fn local(self) -> u64 {
        self.0 & ((1 << COUNTER_BITS) - 1)
    }

    /// Whether it is a shard of a striped directory: it has a part of the names of that, and no
    /// name of its own.
    pub fn is_shard(self) -> bool {
        self.0 & Self::SHARD != 0
    }

    /// The shard of the same counter.
    #[must_use]
    pub fn as_shard(self) -> Self {
        Self(self.0 | Self::SHARD)
    }
}

impl fmt::Display for InodeNumber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&Fid::from(*self), f)
    }
}

/// Name of an object: the file it was made for and the stripe slot within that file's layout.
/// Another file has it after their layouts were swapped.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ObjectId {
    /// The file it was made for.
    pub inode: InodeNumber,
    /// The stripe slot; unique within the file for its whole life, never given to another OST
    /// (unless the MDT loses power and forgets that it gave it away; then the object is not the
    /// file's, and `stria fsck` removes it).
    pub slot: u32,
    /// Which copy of the stripe's data this is. 0, the first one, is the only one today: mirrors
    /// are reserved.
    pub mirror: u8,
}

impl ObjectId {
    /// The first copy of a stripe's data.
    pub const fn new(inode: InodeNumber, slot: u32) -> Self {
        Self { inode, slot, mirror: 0 }
    }

    /// The last possible name that sorts before this one; the first name of all is its own.
    pub fn predecessor(self) -> Self {
        let (of_slot, last) = (self.slot.checked_sub(1), u8::MAX);
        let of_inode = self.inode.0.checked_sub(1).map(InodeNumber);
        match (self.mirror.checked_sub(1), of_slot, of_inode) {
            (Some(mirror), ..) => Self { mirror, ..self },
            (None, Some(slot), _) => Self { slot, mirror: last, ..self },
            (None, None, Some(inode)) => Self { inode, slot: u32::MAX, mirror: last },
            (None, None, None) => self,
        }
    }
}

impl fmt::Display for ObjectId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.inode, self.slot)?;
        if self.mirror > 0 { write!(f, ".{}", self.mirror) } else { Ok(()) }
    }
}

/// One mount, or one server acting as a client of another; random, never reused.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ClientId(pub u64);

impl fmt::Display for ClientId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

/// Also where something holds an id and is logged as a whole.
macro_rules! debug_as_displayed {
    ($($id:ty),*) => {$(
        impl fmt::Debug for $id {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(self, f)
            }
        }
    )*};
}

debug_as_displayed!(MdtIndex, OstIndex, InodeNumber, ObjectId, ClientId);

/// Position in a session's table of outstanding requests. A slot carries one request at a time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Slot(pub u16);

/// Transaction number of a request: strictly increasing within one (client, slot).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Xid(pub u64);

/// Log sequence number: the number of the batch, in the journal of one target, that holds a change.
/// Grows with each change; what is replayed after a power loss is replayed in this order. 0: no
/// change.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Lsn(pub u64);

/// Names one lock of one client at one target; chosen by the target, and never reused.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct LockHandle(pub u64);

/// A counter that fences what is older: of a layout, a session's connection, or a server's
/// incarnation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Generation(pub u64);

impl Generation {
    /// The next generation.
    pub fn next(self) -> Self {
        Self(self.0 + 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_looks_the_same_wherever_it_is_shown() {
        let inode = InodeNumber::new(MdtIndex(0), 0x100);
        let (object, copy) = (ObjectId::new(inode, 1), ObjectId { mirror: 2, ..ObjectId::new(inode, 1) });
        let shown: [(&str, &dyn fmt::Display, &dyn fmt::Debug); 6] = [
            ("OST000a", &OstIndex(10), &OstIndex(10)),
            ("MDT0000", &MdtIndex(0), &MdtIndex(0)),
            ("[0x200000400:0x100:0x0]", &inode, &inode),
            ("[0x200000400:0x100:0x0]:1", &object, &object),
            ("[0x200000400:0x100:0x0]:1.2", &copy, &copy),
            ("00000000000000ff", &ClientId(255), &ClientId(255)),
        ];
        for (expected, displayed, debugged) in shown {
            assert_eq!((displayed.to_string(), format!("{debugged:?}")), (expected.to_owned(), expected.to_owned()));
        }
    }

    #[test]
    fn nothing_is_between_an_object_and_its_predecessor() {
        let object = |inode, slot, mirror| ObjectId { inode: InodeNumber(inode), slot, mirror };
        assert_eq!(object(5, 3, 2).predecessor(), object(5, 3, 1));
        assert_eq!(object(5, 3, 0).predecessor(), object(5, 2, u8::MAX));
        assert_eq!(object(5, 0, 0).predecessor(), object(4, u32::MAX, u8::MAX));
        assert_eq!(object(0, 0, 0).predecessor(), object(0, 0, 0));
    }
}
