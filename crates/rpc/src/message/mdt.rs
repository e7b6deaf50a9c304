//! Requests to a metadata target.

use layout::{ComponentId, ComponentSpec, Layout, LayoutSpec};
use lock::InodeBits;
pub use lock::{HeldLock, LockFamily, LockMode, LockRange, WaitTicket};
use serde::{Deserialize, Serialize};
use types::{
    Credentials, DataChanges, DirectoryDefault, DirectoryMap, FileKind, Generation, InodeNumber, LockHandle, NodeKind,
    OstIndex, SetAttributes, SpaceUsage, Timestamp,
};
use xxhash_rust::xxh3::xxh3_64;

pub use super::entry::Entry;
use super::{
    Compound, CompoundReply, LeaveFullOst, OstReply, OstRequest, Removed,
    mdt_peer::{
        Above, Ancestry, Decided, Decisions, Join, Joined, MakeDirectory, OperationId, Prepare, Prepared, RemoteNames,
        RemoteNamesAfter, SplitDirectory,
    },
    moved_inode::GivenInode,
    name_repair::NameRepair,
};

/// How a file is opened. Bits of [`OpenFlags`].
pub mod open_flag {
    /// Reading is allowed.
    pub const READ: u32 = 1;
    /// Writing is allowed.
    pub const WRITE: u32 = 2;
    /// Every write goes to the end.
    pub const APPEND: u32 = 4;
    /// Truncate to nothing (O_TRUNC).
    pub const TRUNCATE: u32 = 8;
    /// Creation fails if the name exists (O_EXCL).
    pub const EXCLUSIVE: u32 = 16;
    /// Opened for execution: needs execute permission instead of read.
    pub const EXECUTE: u32 = 32;
    /// The access time stays as it is (O_NOATIME), also when names of a directory are read.
    pub const NO_ACCESS_TIME: u32 = 64;
    /// The file system's own reading: it does not count when the MDT decides by how files are read.
    pub const UNCOUNTED: u32 = 128;
    /// Of an open for reading: if the client gets the lock on opens with the reply, the open is not
    /// registered. The client registers it before it gives the lock back, if it is still open.
    pub const UNREGISTERED: u32 = 256;

    /// What an open may have that the MDT need not register: one for reading that changes nothing.
    pub const UNASKED: u32 = READ | EXECUTE | NO_ACCESS_TIME | UNCOUNTED;
}

/// Set of [`open_flag`] bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct OpenFlags(pub u32);

impl OpenFlags {
    /// Whether all bits of `flag` are set.
    pub fn has(self, flag: u32) -> bool {
        self.0 & flag == flag
    }
}

/// Names one open file of one client; chosen by the client, unique within its session, so that a
/// repeated open is recognised and an open can be reclaimed after the server restarted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct OpenId(pub u64);

/// What an open gives the client.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Opened {
    /// The inode, after the open's effects (O_TRUNC has not punched any object yet: see
    /// `truncate`).
    pub entry: Entry,
    /// The layout; `None` for anything but regular files.
    pub layout: Option<Layout>,
    /// The file's write epoch: changes whenever another open for writing, a truncation or a report
    /// of the size intervenes. A size the client computed under this epoch is exact at close if the
    /// epoch still holds.
    pub epoch: u64,
    /// O_TRUNC on a file that may have objects: the MDT holds the file's exclusive data lock for
    /// this open; the client truncates all objects to 0, then sends [`ExclusiveEnd`].
    pub truncate: bool,
    /// For an open for writing: the file has capabilities, which its first write must remove,
    /// whichever user writes (`security.capability`; set-id bits are seen in the mode).
    #[serde(default)]
    pub capabilities: bool,
}

/// Look a name up.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lookup {
    /// Directory; with `.`, any inode.
    pub parent: InodeNumber,
    /// Name within it; `.` and `..` are accepted, and need no permission.
    pub name: Vec<u8>,
}

/// Create a node; with `open`, open it in the same step (O_CREAT).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Create {
    /// Directory.
    pub parent: InodeNumber,
    /// New name.
    pub name: Vec<u8>,
    /// What to create.
    pub kind: NodeKind,
    /// Requested permission bits (12 bits), before the umask.
    pub mode: u32,
    /// Bits to clear, unless the directory has a default access list.
    pub umask: u32,
    /// Requested layout; `None` inherits. Regular files only.
    pub layout: Option<LayoutSpec>,
    /// Open the file too. If the name exists and [`open_flag::EXCLUSIVE`] is not set, that file is
    /// opened instead, with the permission checks of an open. Without `open`, an existing name is
    /// always `Exists`.
    pub open: Option<(OpenId, OpenFlags)>,
}

/// Answer to [`Create`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Created {
    /// The node.
    pub entry: Entry,
    /// False if an existing file was opened.
    pub created: bool,
    /// The open, if requested.
    pub opened: Option<Opened>,
}

/// Create an unnamed file in `parent`'s file system and open it (O_TMPFILE). [`Link`] can name it
/// later unless `exclusive`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CreateUnnamed {
    /// Directory whose rules (layout, setgid, access list) apply.
    pub parent: InodeNumber,
    /// Permission bits.
    pub mode: u32,
    /// Bits to clear.
    pub umask: u32,
    /// The open.
    pub open: (OpenId, OpenFlags),
}

/// Open an inode.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Open {
    /// The file or directory.
    pub inode: InodeNumber,
    /// The client's name for this open.
    pub open: OpenId,
    /// How.
    pub flags: OpenFlags,
}

/// What a writer knows about a file's data when it closes the file or reports its size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SizeUpdate {
    /// The epoch under which this was computed; the MDT ignores the update if it no longer holds.
    pub epoch: u64,
    /// File size in bytes.
    pub size: u64,
    /// Space used by all objects, in 512-byte blocks.
    pub blocks: u64,
    /// Time of the last change; `None` if nothing was changed.
    pub mtime: Option<Timestamp>,
    /// Changes of all objects.
    #[serde(default)]
    pub changes: u64,
}

impl SizeUpdate {
    /// Its count and time of changes.
    pub fn data_changes(&self) -> DataChanges {
        DataChanges { count: self.changes, last: self.mtime.unwrap_or_default() }
    }
}

/// Close an open.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Close {
    /// The inode.
    pub inode: InodeNumber,
    /// Which open.
    pub open: OpenId,
    /// For an open for writing that was the only writer throughout (epoch unchanged as far as the
    /// client knows): the final attributes. `None` from readers, and from writers that need a
    /// glimpse to know them.
    pub update: Option<SizeUpdate>,
    /// Lock owner whose flock (BSD) locks end with this close, if any.
    pub flock_owner: Option<u64>,
}

/// Answer to [`Close`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Closed {
    /// The last writer is gone but the size is not known: glimpse the objects of this layout and
    /// send [`ReportSize`] under this epoch. (If the client dies first, the size stays unknown and
    /// any client may report it.)
    pub size_wanted: Option<(u64, Layout)>,
}

/// Report the size of a file of unknown size without writers, found by a glimpse that was started
/// under `update.epoch`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReportSize {
    /// The file.
    pub inode: InodeNumber,
    /// The data attributes.
    pub update: SizeUpdate,
}

/// Why a client takes a file's exclusive data lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ExclusivePurpose {
    /// An O_APPEND write: find the end, write there.
    Append,
    /// A truncation to this size. With an open id the open must be for writing; without, write
    /// permission is checked. The MDT marks the size as unknown, sets mtime and ctime and clears
    /// set-id bits as POSIX requires.
    Truncate(u64),
}

/// Take the exclusive data lock of a file: appends and truncations of all clients happen one after
/// the other. Granted in order of arrival. Ends with [`ExclusiveEnd`], or with the session. A
/// client holds it at most once per file: it serialises its own users, or asks again when it is
/// told to. If it does not want the lock any more, it sends [`ExclusiveEnd`], too.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExclusiveBegin {
    /// The file.
    pub inode: InodeNumber,
    /// The open through which it happens, if any.
    pub open: Option<OpenId>,
    /// Why.
    pub purpose: ExclusivePurpose,
}

/// Answer to [`ExclusiveBegin`] when the lock is granted; while another client holds it the answer
/// is [`MdtReply::Waiting`], and the client keeps its place in the queue. When the lock is free it
/// is told to ask again, and loses its place if it does not do so within a few seconds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExclusiveGranted {
    /// The inode as of now.
    pub entry: Entry,
    /// Its layout.
    pub layout: Layout,
    /// The write epoch as of now. For [`ExclusivePurpose::Append`], if it equals the epoch of the
    /// caller's own open, no other client has written since, and the size that the caller knows is
    /// exact: no glimpse is needed.
    pub epoch: u64,
}

/// Release the exclusive data lock, or give up the place in its queue.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExclusiveEnd {
    /// The file.
    pub inode: InodeNumber,
    /// After a truncation of a file that no other client has open for writing: its new attributes,
    /// so that its size is known at once.
    pub update: Option<SizeUpdate>,
}

/// Get the write epoch of a file that is not being written: as long as the epoch is the same, the
/// data have not changed. `Busy` if a client has the file open for writing or a truncation is in
/// progress, or if its size is not known (stat it, and ask again); `WouldBlock` if writers were to
/// be held off and another open already does that: its owner waits for the end of this one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DataVersion {
    /// The file.
    pub inode: InodeNumber,
    /// Until this open of the caller ends, or the layout is swapped, opens of the file for writing
    /// and truncations wait. But if such a request comes from a client that also has the file open,
    /// it ends the hold, because the client would wait for itself.
    pub hold_writers: Option<OpenId>,
}

/// One of two files whose layouts are swapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SwapSide {
    /// The file.
    pub inode: InodeNumber,
    /// The only open of it that may exist: the caller's.
    pub open: Option<OpenId>,
    /// The epoch that the file must still have; and, for a file that only the caller writes, its
    /// data attributes.
    pub known: SizeUpdate,
}

/// Swap the layouts of two files, and so their data. `Busy` if the data of one may have changed
/// since its epoch was learned, or if another client has it open.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SwapLayouts {
    /// One.
    pub first: SwapSide,
    /// The other.
    pub second: SwapSide,
}

/// Set or release an advisory lock.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SetLock {
    /// The file.
    pub inode: InodeNumber,
    /// Family.
    pub family: LockFamily,
    /// Owner within the client (the kernel's lock owner).
    pub owner: u64,
    /// Process, reported to others by F_GETLK.
    pub pid: u32,
    /// Range.
    pub range: LockRange,
    /// Wanted state.
    pub mode: LockMode,
    /// Queue under this name if it conflicts: the answer is then [`MdtReply::Queued`], and the
    /// outcome comes as a callback ([`ClientRequest::LockCompleted`]). The request keeps its place
    /// until then, until [`CancelLock`], or until the session ends. A request that is queued
    /// already is answered in the same way. `None`: do not wait.
    ///
    /// [`ClientRequest::LockCompleted`]: super::ClientRequest::LockCompleted
    pub ticket: Option<WaitTicket>,
}

impl SetLock {
    /// Whether it waits for others if it conflicts. A release never conflicts.
    pub fn queues(&self) -> bool {
        self.ticket.is_some() && self.mode != LockMode::Unlock
    }
}

/// Give up a queued request for a lock: it is not granted any more. `NotFound` if it is not in the
/// queue: it was completed, and the client is told so, or its answer was another one than
/// [`MdtReply::Queued`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CancelLock {
    /// The file.
    pub inode: InodeNumber,
    /// Family.
    pub family: LockFamily,
    /// The request's name.
    pub ticket: WaitTicket,
}

/// Ask which lock would conflict (F_GETLK).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GetLock {
    /// The file.
    pub inode: InodeNumber,
    /// Owner.
    pub owner: u64,
    /// Range.
    pub range: LockRange,
    /// Shared or Exclusive.
    pub mode: LockMode,
}

/// Remove a name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Unlink {
    /// Directory.
    pub parent: InodeNumber,
    /// Name.
    pub name: Vec<u8>,
    /// True: rmdir (the name must be an empty directory). False: unlink (it must not be a
    /// directory).
    pub directory: bool,
}

/// What a rename does with an existing target.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum RenameMode {
    /// Replace it.
    Replace,
    /// Fail with `Exists` (RENAME_NOREPLACE).
    NoReplace,
    /// Swap both (RENAME_EXCHANGE); the target must exist.
    Exchange,
}

/// What the sender of a [`Rename`] does about data of the source that a power loss could take, if
/// the rename replaces a file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum SourceData {
    /// Nothing: it does not know [`MdtReply::SyncFirst`].
    #[default]
    AsIs,
    /// It makes them durable if the MDT asks for it.
    SyncIfAsked,
    /// It has made those of this inode durable.
    Synced(InodeNumber),
}

/// Rename.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rename {
    /// Directory of the old name.
    pub parent: InodeNumber,
    /// Old name.
    pub name: Vec<u8>,
    /// Directory of the new name.
    pub new_parent: InodeNumber,
    /// New name.
    pub new_name: Vec<u8>,
    /// What to do with an existing target.
    pub mode: RenameMode,
    /// What the sender does about the source's data.
    #[serde(default)]
    pub source_data: SourceData,
    /// The power-loss era of the MDT that the sender knew when the rename started. If the era is a
    /// later one, data of the source on this MDT may be lost, and it replaces no file.
    #[serde(default)]
    pub mdt_era: Option<u64>,
    /// Both directories are shards of one, which programs see: what is renamed keeps its parent.
    #[serde(default)]
    pub same_directory: bool,
}

/// The objects of this file must be durable before it replaces another one: nothing has been
/// renamed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SyncFirst {
    /// The source of the rename.
    pub inode: InodeNumber,
    /// Its layout.
    pub layout: Layout,
}

/// Make a hard link, or name an unnamed file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Link {
    /// The file.
    pub inode: InodeNumber,
    /// Directory.
    pub parent: InodeNumber,
    /// New name.
    pub name: Vec<u8>,
}

/// Read a directory from a position on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReadDirectory {
    /// The directory; it must be open (`open`): permission was checked at the open.
    pub inode: InodeNumber,
    /// The open.
    pub open: OpenId,
    /// Start after this cookie; 0 at the beginning. Cookies are stable: they are never reused for
    /// another name while the directory is read, and survive restarts.
    pub cookie: u64,
    /// At most this many entries.
    pub entries_max: u32,
    /// With attributes (readdirplus).
    pub attributes: bool,
    /// The client made the open without a request, with these flags, under the lock on the
    /// directory's opens.
    #[serde(default)]
    pub unasked: Option<OpenFlags>,
}

/// One name of a directory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DirectoryEntry {
    /// The name; `.` and `..` come first.
    pub name: Vec<u8>,
    /// Its inode.
    pub inode: InodeNumber,
    /// Its kind.
    pub kind: FileKind,
    /// Position after it.
    pub cookie: u64,
    /// The inode, if requested (never for `.` and `..`, nor for one on another MDT).
    pub entry: Option<Entry>,
    /// Locks on these parts of the inode, which the client holds from now on: one, or of a
    /// directory two.
    #[serde(default)]
    pub locks: Vec<(LockHandle, InodeBits)>,
    /// With `entry`: version of the inode.
    #[serde(default)]
    pub version: u64,
}

/// Cookie of `.` in every directory.
pub const COOKIE_SELF: u64 = 1;
/// Cookie of `..` in every directory.
pub const COOKIE_PARENT: u64 = 2;
/// Bits of the hash of a name in a cookie; the lower 7 separate names with equal hashes.
pub const COOKIE_HASH_BITS: u32 = 56;

/// The first cookie that a name can have in a directory that is no shard, with so many bits of its
/// hash ([`COOKIE_HASH_BITS`]; in a shard there are fewer).
pub fn first_cookie(name: &[u8], hash_bits: u32) -> u64 {
    (xxh3_64(name) >> (u64::BITS - hash_bits)).max(1) << 7
}

/// A page of a directory whose names move to its shards, or of such a shard: names after the cookie
/// that are there.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MovingNames {
    /// The names. No locks come with them.
    pub entries: Vec<DirectoryEntry>,
    /// No more are there.
    pub end: bool,
    /// Names up to this position in the directory have moved, or have come to the shard.
    pub place: u64,
}

/// A page of a directory to which names go back from its shards, or of such a shard: names after
/// the cookie that are there.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReturningNames {
    /// The names. No locks come with them.
    pub entries: Vec<DirectoryEntry>,
    /// No more are there.
    pub end: bool,
    /// Of a shard: itself, and the position, as one in the directory, up to which names have gone.
    /// Of the directory: each shard, and the position up to which names have come back from it.
    pub places: Vec<(InodeNumber, u64)>,
}

/// How [`SetXattr`] treats an existing attribute.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum XattrMode {
    /// Create or replace.
    Any,
    /// XATTR_CREATE: it must not exist.
    Create,
    /// XATTR_REPLACE: it must exist.
    Replace,
}

/// Set an extended attribute; `system.posix_acl_access` and `_default` are interpreted as access
/// lists.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SetXattr {
    /// The inode.
    pub inode: InodeNumber,
    /// Full name with its prefix.
    pub name: Vec<u8>,
    /// Value.
    pub value: Vec<u8>,
    /// Existing attribute.
    pub mode: XattrMode,
}

/// Layout of an inode.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LayoutInfo {
    /// Of a regular file: its layout.
    pub layout: Option<Layout>,
    /// Of a directory: the default set on itself.
    pub own_default: Option<Box<LayoutSpec>>,
    /// Of a directory: the layout of a new file in it, after inheritance and the file system's
    /// default.
    pub effective_default: Option<Box<LayoutSpec>>,
    /// Of a striped directory: where its names are.
    #[serde(default)]
    pub map: Option<DirectoryMap>,
    /// Of a directory: the default for new directories that it has.
    #[serde(default)]
    pub directory_default: Option<DirectoryDefault>,
}

/// Give the components in a range their objects, so that it can be written (the watermark). The
/// first request decides; the others get the same result.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Instantiate {
    /// The file.
    pub inode: InodeNumber,
    /// An open for writing of the caller.
    pub open: OpenId,
    /// First byte.
    pub start: u64,
    /// The byte after the last one.
    pub end: u64,
}

/// A change of a file's layout by request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum LayoutChange {
    /// Components after the last one.
    Add(Vec<ComponentSpec>),
    /// Delete these components, which must be the last ones, with the data in them. `WouldBlock` if
    /// the layout no longer has this generation; `Busy` if there may be data in them and another
    /// client has the file open.
    Delete {
        /// Their numbers.
        components: Vec<ComponentId>,
        /// The layout they were chosen from.
        generation: Generation,
    },
    /// Another layout for a file that was never opened for writing. `Exists` if it was, `Busy` if
    /// it is open.
    Replace(LayoutSpec),
    /// Another layout for an unnamed file that only the caller has open, once, and in which it has
    /// not changed anything. `Busy` otherwise.
    Begin {
        /// The epoch that the caller got with the open.
        epoch: u64,
        /// The layout.
        spec: LayoutSpec,
        /// Fields that the request does not specify are taken from the directory of this file.
        like: InodeNumber,
    },
}

/// What a client had open and locked, told to a restarted MDT before anything else.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reclaim {
    /// Open files.
    pub opens: Vec<(InodeNumber, OpenId, OpenFlags)>,
    /// Locks.
    pub locks: Vec<HeldLock>,
    /// Last batch: the MDT ends this client's part of the recovery.
    pub done: bool,
    /// Exclusive data locks the client holds (an append or truncation in progress), each with the
    /// open it goes through.
    pub exclusives: Vec<(InodeNumber, Option<OpenId>)>,
    /// Layouts of files that it has open or locked, if growth in them may not be durable: the MDT
    /// adopts them where it knows an older one. After the opens.
    pub layouts: Vec<(InodeNumber, Layout)>,
}

/// The parts of a [`Reclaim`] that were not accepted, because the MDT lost the underlying state in
/// a power loss.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NotReclaimed {
    /// Files and directories that were reclaimed as open, and are unknown: their creation was lost.
    /// Nothing that is done through these opens can last.
    pub lost: Vec<InodeNumber>,
    /// Files that have another layout than the reclaimed one, which cannot result from it by
    /// growth. If the MDT lost power, a change of the layout was lost, and it may be impossible to
    /// find data written under it; otherwise another client has given the file another layout
    /// meanwhile, and nothing is lost.
    pub undone: Vec<InodeNumber>,
}

/// Opens for reading that a client made without a request, under locks on the opens of their inodes
/// ([`inode_bit::OPEN`](super::lock::inode_bit::OPEN)): from now on the MDT knows of them. A client
/// sends this before it gives such a lock back, and when it has connected again. Permission was
/// checked by the client. Opens that the MDT already knows stay as they are.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RegisterOpens {
    /// Inodes, names and flags, at most [`OPENS_PER_MESSAGE_MAX`]; none is for writing.
    ///
    /// [`OPENS_PER_MESSAGE_MAX`]: types::limits::OPENS_PER_MESSAGE_MAX
    pub opens: Vec<(InodeNumber, OpenId, OpenFlags)>,
    /// All opens under locks that ended with an earlier connection are registered now.
    pub complete: bool,
}

/// Locks under which a client cached what it read through an earlier connection, and which ended
/// with that connection. The MDT grants those again whose inode has not changed, each under a new
/// handle. Before any other request of a connection; after a restart before the last [`Reclaim`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClaimLocks {
    /// The power-loss era of the MDT from which the versions are
    /// ([`Connected::era`](super::session::Connected::era)). In another era they have no meaning.
    pub era: u64,
    /// At most [`LOCKS_PER_MESSAGE_MAX`].
    ///
    /// [`LOCKS_PER_MESSAGE_MAX`]: types::limits::LOCKS_PER_MESSAGE_MAX
    pub locks: Vec<LockClaim>,
}

/// One lock of [`ClaimLocks`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LockClaim {
    /// Its handle on the earlier connection.
    pub handle: LockHandle,
    /// The inode.
    pub inode: InodeNumber,
    /// The parts that it covers.
    pub bits: InodeBits,
    /// Version of the inode for which everything that the client has cached under the lock is
    /// valid.
    pub version: u64,
}

/// An access that the MDT was not asked for ([`MdtRequest::NoteAccesses`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Access {
    /// What was read: a file or directory that was opened for reading, or a symbolic link.
    pub inode: InodeNumber,
    /// The client's lock on its attributes, under which the access was decided.
    pub lock: LockHandle,
    /// By the client's clock, but later than the last change of the inode.
    pub time: Timestamp,
}

/// An inode after an access to it was noted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NotedAccess {
    /// Its version.
    pub version: u64,
    /// Its access time.
    pub time: Timestamp,
}

/// Kinds of damage a check finds in a namespace.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finding {
    /// The inode concerned.
    pub inode: InodeNumber,
    /// In words: what is wrong, with numbers.
    pub problem: String,
    /// Whether it was repaired.
    pub repaired: bool,
}

/// One inode with all that a check of data against metadata needs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ScannedInode {
    /// Attributes, and whether the size is known.
    pub entry: Entry,
    /// Layout of a regular file.
    pub layout: Option<Layout>,
    /// Open somewhere, waiting for the destruction of its objects, or damaged: not to be checked.
    pub busy: bool,
    /// The record does not decode: only the inode's number is valid.
    pub damaged: bool,
}

/// Requests to a metadata target. `Credentials` come first wherever permission is checked.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum MdtRequest {
    /// Name to inode. Search permission on the parent. -> Entry; Remote
    Lookup(Credentials, Lookup),
    /// -> Entry
    GetAttributes(InodeNumber),
    /// -> Entry; AskObjects if mtime is to be set and the MDT does not know which changes it
    /// includes
    SetAttributes(Credentials, InodeNumber, SetAttributes),
    /// access(2): mask of 4 read, 2 write, 1 execute. -> Done
    Access(Credentials, InodeNumber, u32),
    /// -> Created; Waiting like `Open`, and while the MDT does not know yet where it can place new
    /// files (ask again); Decided, of a directory on other MDTs; Remote, if the name leads to a
    /// file on another MDT that is to be opened there
    Create(Credentials, Create),
    /// -> Created
    CreateUnnamed(Credentials, CreateUnnamed),
    /// -> Opened; with TRUNCATE, Waiting while another client holds the exclusive data lock; for
    /// writing, while another open holds writers off ([`DataVersion`]) (ask again)
    Open(Credentials, Open),
    /// -> Closed
    Close(Close),
    /// -> Done (also when the epoch no longer holds)
    ReportSize(ReportSize),
    /// -> ExclusiveGranted or Waiting
    ExclusiveBegin(Credentials, ExclusiveBegin),
    /// -> Done
    ExclusiveEnd(ExclusiveEnd),
    /// A write by an unprivileged user: clear set-id bits (file_remove_privs). -> Done
    ClearPrivileges(InodeNumber),
    /// -> Done
    Unlink(Credentials, Unlink),
    /// -> Done, or SyncFirst (make the source's objects durable, then ask again)
    Rename(Credentials, Rename),
    /// -> Entry; Decided, if the inode is on another MDT
    Link(Credentials, Link),
    /// -> Target
    ReadLink(InodeNumber),
    /// -> Directory
    ReadDirectory(ReadDirectory),
    /// -> Value
    GetXattr(Credentials, InodeNumber, Vec<u8>),
    /// -> Names
    ListXattr(Credentials, InodeNumber),
    /// -> Done
    SetXattr(Credentials, SetXattr),
    /// -> Done
    RemoveXattr(Credentials, InodeNumber, Vec<u8>),
    /// -> Layout; Waiting while another client changes it because an OST is full
    GetLayout(InodeNumber),
    /// Set or clear a directory's default layout (owner or root). -> Done
    SetDefaultLayout(Credentials, InodeNumber, Option<LayoutSpec>),
    /// All paths of an inode, relative to the root, without a leading slash (root or search
    /// permission). -> Paths; PathsBelow if one of them goes on at another MDT
    InodePaths(Credentials, InodeNumber),
    /// -> Done, Queued, or Waiting (the MDT recovers)
    SetLock(SetLock),
    /// -> Done
    CancelLock(CancelLock),
    /// -> Lock or Waiting (the MDT recovers)
    GetLock(GetLock),
    /// -> Space
    StatFs,
    /// Everything acknowledged before this is durable when it returns (fsync of metadata). -> Done
    Commit,
    /// -> Done, or NotReclaimed if parts of it were not accepted
    Reclaim(Reclaim),
    /// Keep the session's lease. -> Done
    Ping,
    /// Check (and repair) the namespace of this MDT. Root only. -> Findings
    Check(Credentials, bool),
    /// Inodes after this one, in order. Root only. -> Scanned
    ScanInodes(Credentials, InodeNumber, u32),
    /// Correct a known size, as found by fsck, under the epoch from a scan. Root only. -> Done, or
    /// `Busy` if the file changed
    RepairSize(Credentials, InodeNumber, SizeUpdate),
    /// End the session: closes all opens, releases all locks. -> Done
    Disconnect,
    /// `NoData` beyond the last component. -> Layout
    Instantiate(Instantiate),
    /// Change data on this MDT: `Write` (with bulk data) or `Space`; anything else is refused. ->
    /// Data
    ChangeData(OstRequest),
    /// Ask for data on this MDT: `Read` (bulk data in the reply), `Seek`, `Glimpse`, `ListObjects`
    /// or `Verify`; anything else is refused. -> Data
    ReadData(OstRequest),
    /// Several operations; with the bulk data of those that write or read. Waiting while the MDT
    /// does not know yet where it can place new files (ask again). -> Compound
    Compound(Compound),
    /// Write permission. -> Done; Waiting while the MDT does not know yet where it can place
    /// objects (ask again)
    ChangeLayout(Credentials, InodeNumber, LayoutChange),
    /// This OST refused a write for lack of space: the MDT asks it at once, so that new files avoid
    /// it. -> Done
    ReportFull(OstIndex),
    /// Removed.
    PlaceElsewhere(Removed),
    /// Write permission. -> Version; Waiting while the MDT recovers
    DataVersion(Credentials, DataVersion),
    /// Read and write permission on both, and search permission along a path to each file that has
    /// a name. -> Done, durable; Waiting while the MDT recovers
    SwapLayouts(Credentials, SwapLayouts),
    /// Removed.
    RenewLayout(Removed),
    /// Removed.
    LeaveOut(Removed),
    /// A change of data through an open for writing of the caller's client, by this user: remove
    /// the privileges that do not survive it (setattr_should_drop_suidgid of Linux). -> Entry
    DropPrivileges(Credentials, InodeNumber),
    /// Locks that the client gives back, at most [`LOCKS_PER_MESSAGE_MAX`]; those that it has not
    /// got are ignored. -> Done
    ///
    /// [`LOCKS_PER_MESSAGE_MAX`]: types::limits::LOCKS_PER_MESSAGE_MAX
    CancelLocks(Vec<LockHandle>),
    /// -> Done; NotReclaimed, with what cannot be open
    RegisterOpens(RegisterOpens),
    /// -> LocksClaimed
    ClaimLocks(ClaimLocks),
    /// -> Layout, durable; Waiting while the MDT recovers; `NoSpace` if the layout stays as it is
    LeaveFullOst(LeaveFullOst),
    /// Accesses under locks on the attributes and opens of their inodes, at most
    /// [`ACCESSES_PER_MESSAGE_MAX`]. The MDT decides whether they change the access times, which
    /// become neither earlier nor later than the present. -> AccessesNoted
    ///
    /// [`ACCESSES_PER_MESSAGE_MAX`]: types::limits::ACCESSES_PER_MESSAGE_MAX
    NoteAccesses(Vec<Access>),
    /// -> Created
    MakeDirectory(Credentials, MakeDirectory),
    /// Of another MDT. -> Prepared, durable if it is a promise
    Prepare(Prepare),
    /// Of another MDT: an operation will not be decided. -> Done
    Abort(OperationId),
    /// Of another MDT. -> Done, durable
    Decisions(Decisions),
    /// Of another MDT. -> Joined
    Join(Join),
    /// Root only. -> RemoteNames
    RemoteNames(Credentials, RemoteNamesAfter),
    /// Of another MDT. -> Ancestry
    Above(Above),
    /// Set or clear what new directories in a directory get (root only). -> Done
    SetDirectoryDefault(Credentials, InodeNumber, Option<DirectoryDefault>),
    /// Give a directory shards (root only). -> Waiting if it begins to: the caller asks again;
    /// `AwaitsMdt` as long as its names move; Done when all have
    SplitDirectory(Credentials, SplitDirectory),
    /// The inode, of another MDT, moves to this one, with its names and with a new number (root
    /// only). -> Done; `Busy` if it is open
    MoveInode(Credentials, InodeNumber),
    /// Repair a contradiction between this MDT and another one (root only). -> Findings: what was
    /// repaired, nothing if both agree; `Busy` while names of the directory move
    RepairName(Credentials, NameRepair),
}

/// Answers of a metadata target. It is moved a dozen times on its way, so what is larger than an
/// inode is in a box. (An inode is the most frequent one: a box would cost each an allocation.)
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum MdtReply {
    /// Success without data.
    Done,
    /// An inode.
    Entry(Entry),
    /// A new node.
    Created(Box<Created>),
    /// An open file.
    Opened(Box<Opened>),
    /// A closed file.
    Closed(Closed),
    /// The exclusive data lock.
    ExclusiveGranted(Box<ExclusiveGranted>),
    /// Not possible yet: because of another client, because the MDT recovers, or because it does
    /// not know the OSTs yet. Nothing has happened. The client asks again after the next callback
    /// [`ClientRequest::AskAgain`](super::ClientRequest::AskAgain) that concerns the inode.
    Waiting,
    /// Target of a symbolic link.
    Target(Vec<u8>),
    /// Entries in order, and whether the directory ends after them.
    Directory(Vec<DirectoryEntry>, bool),
    /// Value of an extended attribute.
    Value(Vec<u8>),
    /// Names of extended attributes.
    Names(Vec<Vec<u8>>),
    /// A layout.
    Layout(LayoutInfo),
    /// Paths.
    Paths(Vec<Vec<u8>>),
    /// A conflicting lock, if there is one.
    Lock(Option<HeldLock>),
    /// Space of the target.
    Space(SpaceUsage),
    /// What a check found.
    Findings(Vec<Finding>),
    /// Inodes in order; empty at the end.
    Scanned(Vec<ScannedInode>),
    /// What an OST would answer, for an object on this MDT.
    Data(OstReply),
    /// What became of a compound.
    Compound(CompoundReply),
    /// A write epoch.
    Version(u64),
    /// The parts of a reclaim that were not accepted.
    NotReclaimed(NotReclaimed),
    /// What a rename needs first.
    SyncFirst(SyncFirst),
    /// Nothing was done yet: the objects of this layout are to be asked first
    /// ([`SetAttributes::seen`]).
    AskObjects(Layout),
    /// What was looked up does not exist: the name ([`Lookup`]; for the caller
    /// [`NotFound`](types::FsError::NotFound)), or the extended attribute
    /// ([`NoData`](types::FsError::NoData)). No error, because errors grant no locks.
    Absent,
    /// For each lock that was claimed, in order: its handle from now on; `None`: the client has not
    /// got it any more.
    LocksClaimed(Vec<Option<LockHandle>>),
    /// A request for an advisory lock has a place in the queue ([`SetLock::ticket`]).
    Queued,
    /// For each access, in order: its inode; `None`: the client has no such lock, and the access
    /// was ignored.
    AccessesNoted(Vec<Option<NotedAccess>>),
    /// The name leads to this inode on another MDT, which knows its attributes.
    Remote(InodeNumber),
    /// Paths, each below a directory on another MDT: the directory's own path comes before it.
    PathsBelow(Vec<(InodeNumber, Vec<u8>)>),
    /// A part of an operation is prepared.
    Prepared(Box<Prepared>),
    /// An MDT has joined.
    Joined(Joined),
    /// Names and inodes on different MDTs.
    RemoteNames(RemoteNames),
    /// What is known of the way to the root.
    Ancestry(Ancestry),
    /// The directory is striped: nothing has happened, and the client asks the shard that has the
    /// name. Without shards, from a shard: the name is still in the directory itself. To clients
    /// with [`MOVING_NAMES`](super::session::feature::MOVING_NAMES); of a rename it is the new
    /// name.
    Striped(DirectoryMap),
    /// A new directory that is not, or not only, on this MDT; or a file on another MDT that got a
    /// name here. To clients with
    /// [`DECIDED_INODES`](super::session::feature::DECIDED_INODES).
    Decided(Box<Decided>),
    /// Names of a directory whose names move to shards, or of such a shard. To clients with
    /// [`MOVING_NAMES`](super::session::feature::MOVING_NAMES).
    MovingNames(MovingNames),
    /// An inode can be given away.
    Given(Box<GivenInode>),
    /// Names of a directory to which names go back from its shards, or of such a shard. To clients
    /// with [`RETURNING_NAMES`](super::session::feature::RETURNING_NAMES).
    ReturningNames(ReturningNames),
}

impl MdtReply {
    /// Whether it grants locks by itself, besides those that go with it.
    pub fn grants_locks(&self) -> bool {
        matches!(self, MdtReply::Directory(page, _) if page.iter().any(|found| !found.locks.is_empty()))
    }

    /// Removes these locks.
    pub fn take_locks(&mut self) {
        if let MdtReply::Directory(page, _) = self {
            page.iter_mut().for_each(|found| found.locks.clear());
        }
    }
}
