//! Repairs of names and inodes on different MDTs that contradict each other. The MDT of the name
//! decides, as with every operation on names (docs/decisions/0068-repairs-over-several-mdts.md).

use serde::{Deserialize, Serialize};
use types::InodeNumber;

use super::mdt_peer::RemoteName;

/// In the words of a finding: an inode that fsck moves to `lost+found`.
pub const NAMELESS: &str = "no name refers to it";
/// The last words of a finding: a name that fsck moves to another shard.
pub const MISPLACED: &str = "is in a shard to which it does not belong";

/// What fsck asks an MDT to repair.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum NameRepair {
    /// A name that the asked MDT has, or should have, and an inode on another MDT contradict each
    /// other. The kind in the request is ignored.
    Settle(RemoteName),
    /// An inode on another MDT that has no name gets one in `lost+found`. MDT 0 is asked.
    Rescue(InodeNumber),
}

/// What is true of a name, according to the MDT that has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum NameState {
    /// It exists and refers to the inode.
    Exists,
    /// It does not exist, or refers to something else.
    Absent,
    /// It is made if the inode has no name at all.
    Rescues,
}

/// See [`Part::CorrectLink`](super::mdt_peer::Part::CorrectLink).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CorrectLink {
    /// The inode.
    pub inode: InodeNumber,
    /// The directory of the name.
    pub parent: InodeNumber,
    /// The name.
    pub name: Vec<u8>,
    /// What is true of it.
    pub state: NameState,
}
