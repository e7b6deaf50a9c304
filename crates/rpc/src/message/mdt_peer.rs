//! Requests of metadata targets to each other: operations on a name here and an inode there
//! (docs/decisions/0049-namespace-over-several-mdts.md). The MDT that has the name coordinates: it
//! has others prepare their parts, decides by a batch of its own, and sends the decisions when that
//! is durable. A part is identified as an operation of its own.
//!
//! All of them may be repeated: an operation is identified permanently, and decisions have sequence
//! numbers. But a `Prepare` is executed once in a session, so that none is executed after its
//! operation has ended: its coordinator ends it when the answer is there.

use layout::Layout;
use serde::{Deserialize, Serialize};
use types::{Attributes, Credentials, DirectoryMap, FileKind, InodeNumber, MdtIndex, Stripes};

use super::{entry::Entry, moved_inode::LeadNames, name_repair::CorrectLink};

/// An operation on names and inodes of several MDTs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct OperationId {
    /// The MDT that decides.
    pub coordinator: MdtIndex,
    /// Its start: greater than all before.
    pub start: u64,
    /// Counted in this start.
    pub number: u64,
}

/// What another MDT is to prepare. Until the decision nobody sees or changes the inodes of a part.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Part {
    /// A number for a new directory. Nothing but its inode will have it, and until the decision
    /// requests for it wait. Forgotten in a restart.
    MakeDirectory,
    /// The end of a name of an inode; a directory must be empty. Kept, also after a restart.
    DropLink(DropLink),
    /// Another name for an inode, instead of one that it has. Kept, also after a restart.
    MoveLink(MoveLink),
    /// One more name for a file. Kept, also after a restart.
    AddLink(AddLink),
    /// The old name of a rename, or the other one of an exchange, in a directory here. What it
    /// leads to, and what it is to lead to, get their other names with it if they are here, too.
    /// Kept, also after a restart.
    MoveName(MoveName),
    /// No other operation gives a directory another parent; of MDT 0. Forgotten in a restart, after
    /// which nobody gets it before all MDTs have answered.
    Tree,
    /// A number for a new shard of a striped directory, as for a new directory.
    MakeShard,
    /// Owner, permissions, flags and defaults of a shard become those of its directory. Kept, also
    /// after a restart.
    CopyAttributes(CopyAttributes),
    /// The name of an inode is in a shard from now on, and was in the directory itself; or the
    /// other way round. Kept, also after a restart.
    FollowName(FollowName),
    /// This inode is given away, with all that it has, and names here lead to it where it is then.
    /// Answered [`Given`](super::MdtReply::Given). Kept, also after a restart.
    GiveInode(InodeNumber),
    /// Names in a directory here lead to another inode. Kept, also after a restart.
    LeadNames(LeadNames),
    /// A shard is to give its names back to its directory. Kept, also after a restart.
    GiveNames(GiveNames),
    /// As `GiveInode`, also of a striped directory: the coordinator sees to it that all its shards
    /// follow.
    GiveStriped(InodeNumber),
    /// An inode gets or loses a name because of damage, so that it agrees with the directory. Kept,
    /// also after a restart, if the inode has to change.
    CorrectLink(CorrectLink),
}

/// See [`Part::GiveNames`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GiveNames {
    /// The shard.
    pub shard: InodeNumber,
    /// Its directory.
    pub master: InodeNumber,
    /// It must not have more names.
    pub names_max: u64,
}

/// See [`Part::FollowName`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FollowName {
    /// The inode.
    pub inode: InodeNumber,
    /// The directory that has the name.
    pub parent: InodeNumber,
    /// The name.
    pub name: Vec<u8>,
    /// The shard that is to have it; or, of a shard, the directory.
    pub shard: InodeNumber,
}

/// See [`Part::CopyAttributes`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CopyAttributes {
    /// The shard.
    pub shard: InodeNumber,
    /// Its directory.
    pub master: InodeNumber,
}

/// See [`Part::DropLink`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DropLink {
    /// What loses a name.
    pub inode: InodeNumber,
    /// The directory that has the name.
    pub parent: Attributes,
    /// The name.
    pub name: Vec<u8>,
    /// Whether it has to be a directory. Else it must not be one.
    pub directory: bool,
    /// The caller.
    pub who: Credentials,
}

/// See [`Part::MoveLink`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MoveLink {
    /// What gets another name.
    pub inode: InodeNumber,
    /// The directory that has its name.
    pub parent: Attributes,
    /// The name.
    pub name: Vec<u8>,
    /// The directory that is to have it.
    pub new_parent: InodeNumber,
    /// The new name.
    pub new_name: Vec<u8>,
    /// The caller.
    pub who: Credentials,
    /// Both directories are shards of one: it keeps its parent.
    #[serde(default)]
    pub same_directory: bool,
}

/// See [`Part::AddLink`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AddLink {
    /// What gets a name.
    pub inode: InodeNumber,
    /// The directory that is to have it.
    pub parent: InodeNumber,
    /// The name.
    pub name: Vec<u8>,
}

/// See [`Part::MoveName`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MoveName {
    /// The directory that has the name.
    pub parent: InodeNumber,
    /// The name.
    pub name: Vec<u8>,
    /// The directory that is to have what it leads to.
    pub new_parent: Attributes,
    /// The name there.
    pub new_name: Vec<u8>,
    /// What that name leads to now.
    pub target: Option<(InodeNumber, FileKind)>,
    /// Both names are exchanged: this one is to lead to `target`.
    pub exchange: bool,
    /// How often this MDT had lost power when the client asked, as far as it knew.
    pub era: Option<u64>,
    /// The caller.
    pub who: Credentials,
    /// Both directories are shards of one: what is moved keeps its parent.
    #[serde(default)]
    pub same_directory: bool,
}

/// Prepare a part of an operation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Prepare {
    /// The operation.
    pub operation: OperationId,
    /// Its part here.
    pub part: Part,
}

/// A part is prepared.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Prepared {
    /// The inode. Of [`Part::MoveName`]: to which the name leads. Of [`Part::CorrectLink`]: 0 if
    /// the name must be removed, because no inode can have it.
    pub inode: InodeNumber,
    /// The start of the MDT that has prepared it. What only this start knows, a later one does not.
    pub start: u64,
    /// What the inode is.
    pub kind: FileKind,
    /// Layout of a file with objects on OSTs, which may not be durable.
    pub undurable: Option<Layout>,
    /// Of [`Part::MoveName`]: the directory that has the name.
    pub parent: Option<Attributes>,
    /// Of a striped directory: its map. Of [`Part::MoveName`] in a shard: its directory, and no
    /// shards.
    #[serde(default)]
    pub map: Option<DirectoryMap>,
    /// Of [`Part::AddLink`]: the inode, as it is now. Of [`Part::CorrectLink`]: the same, if it has
    /// to change; nothing is promised otherwise.
    #[serde(default)]
    pub entry: Option<Box<Entry>>,
}

/// Whether a directory is another one or above it, on the way to the root. (Not recorded: the tree
/// is held.)
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Above {
    /// The directory that may be above.
    pub directory: InodeNumber,
    /// Where the way begins, on the MDT that is asked.
    pub from: InodeNumber,
}

/// Answer to [`Above`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Ancestry {
    /// It is that directory, or above it.
    Above,
    /// It is not.
    NotAbove,
    /// Not up to here; the way goes on at this directory of another MDT.
    GoesOn(InodeNumber),
}

/// Decisions of an MDT that change something here, in the order of their sequence numbers, without
/// a gap.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Decisions {
    /// The MDT that has decided.
    pub source: MdtIndex,
    /// Sequence number of the first.
    pub first: u64,
    /// Values of its table DECISIONS, at most [`DECISIONS_PER_MESSAGE_MAX`].
    ///
    /// [`DECISIONS_PER_MESSAGE_MAX`]: types::limits::DECISIONS_PER_MESSAGE_MAX
    pub records: Vec<Vec<u8>>,
}

/// An MDT has started. All decisions of its former starts were delivered before.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Join {
    /// The MDT.
    pub source: MdtIndex,
    /// Its start.
    pub start: u64,
    /// Operations of the receiver for which it has prepared something that lasts, at most
    /// [`PREPARED_PER_MDT_MAX`].
    ///
    /// [`PREPARED_PER_MDT_MAX`]: types::limits::PREPARED_PER_MDT_MAX
    pub promised: Vec<OperationId>,
}

/// Answer to [`Join`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Joined {
    /// The start of the MDT that answers.
    pub start: u64,
    /// Sequence number of the last decision for the MDT that has joined; 0: none is on its way.
    pub last: u64,
    /// Those of the promised operations that do not exist any more, once the decisions up to `last`
    /// are applied.
    pub ended: Vec<OperationId>,
}

/// Make a directory, on an MDT of the caller's choice.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MakeDirectory {
    /// Directory.
    pub parent: InodeNumber,
    /// New name.
    pub name: Vec<u8>,
    /// Requested permission bits (12 bits), before the umask.
    pub mode: u32,
    /// Bits to clear, unless the directory has a default access list.
    pub umask: u32,
    /// Where; of a striped directory: itself.
    pub mdt: MdtIndex,
    /// The MDTs over which its names are spread.
    #[serde(default)]
    pub stripes: Stripes,
}

/// A directory gets shards, to which its names move; or its names go back to it from its shards.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SplitDirectory {
    /// The directory.
    pub directory: InodeNumber,
    /// The MDTs over which its names are spread. Its own one alone: it has no shards any more.
    pub stripes: Stripes,
}

/// An inode as an operation has decided that it is. What another MDT has of it may have to be
/// carried out there yet. No lock goes with it: nothing of it can be cached.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Decided {
    /// The inode. Its MDT may give it a later ctime.
    pub entry: Entry,
    /// Of a striped directory: its map.
    pub map: Option<DirectoryMap>,
}

/// A name and an inode on different MDTs, as one of both has it, for fsck.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct RemoteName {
    /// The inode.
    pub inode: InodeNumber,
    /// The directory that has the name.
    pub parent: InodeNumber,
    /// The name.
    pub name: Vec<u8>,
    /// What the inode is.
    pub kind: FileKind,
}

/// Where [`RemoteNames`] go on.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RemoteNamesAfter {
    /// Names that lead to other MDTs, rather than inodes with names on other MDTs.
    pub of_names: bool,
    /// The last key of the answer before; `None` at the beginning.
    pub key: Option<Vec<u8>>,
}

/// Names and inodes on different MDTs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RemoteNames {
    /// Those found.
    pub found: Vec<RemoteName>,
    /// The key to go on after; `None`: there are no more.
    pub next: Option<Vec<u8>>,
}
