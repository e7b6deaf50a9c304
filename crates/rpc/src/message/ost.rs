//! Requests to an object storage target.
//!
//! Checksums: CRC-32C (Castagnoli) of each piece of the bulk data, which is split at multiples of
//! 4096 bytes of the *object's* offset. So a request of 10000 bytes at object offset 4000 carries
//! pieces of 96, 4096, 4096 and 1712 bytes.

use serde::{Deserialize, Serialize};
use types::{ClientId, MdtIndex, ObjectId, Owner, SpaceUsage, Timestamp, limits::BODY_BYTES_MAX};

/// What an OST knows about an object. A missing object is all zeros.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ObjectAttributes {
    /// Bytes up to the last one written or set by truncation.
    pub size: u64,
    /// Space used, in 512-byte blocks.
    pub blocks: u64,
    /// Time of the last change, by the OST's clock.
    pub mtime: Timestamp,
    /// Changes of the object's data and size so far; they decide which changes came after a time
    /// was set ([`types::Accounted`]).
    #[serde(default)]
    pub changes: u64,
}

/// Write. With bulk data, at most 4 MiB.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Write {
    /// The object; created if missing.
    pub object: ObjectId,
    /// Byte offset within the object.
    pub offset: u64,
    /// CRC-32C per piece (module documentation).
    pub checksums: Vec<u32>,
    /// Reply only when the data are durable (O_SYNC, O_DSYNC).
    pub sync: bool,
    /// Generation of the layout that the client uses; `LayoutChanged` if the object was fenced at a
    /// newer one. A new object keeps it, with the owner.
    pub layout_generation: u64,
    /// Of the file, as far as the client knows; an object that has none yet gets it. A later change
    /// of the file's owner is not passed on to its objects yet.
    #[serde(default)]
    pub owner: Owner,
}

/// Answer to everything that changes an object. `changes` before and after differ by those of this
/// request only.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Changed {
    /// Attributes before this request.
    pub before: ObjectAttributes,
    /// Attributes after it.
    pub after: ObjectAttributes,
}

/// Read up to `bytes` (at most 4 MiB) from `offset`. Bulk data in the reply; short only at the
/// object's end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Read {
    /// The object; a missing one reads as empty.
    pub object: ObjectId,
    /// Byte offset within the object.
    pub offset: u64,
    /// Bytes wanted.
    pub bytes: u32,
    /// As in [`Write`].
    pub layout_generation: u64,
}

/// Answer to [`Read`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReadDone {
    /// CRC-32C per piece of the bulk data.
    pub checksums: Vec<u32>,
    /// The object's size at the time of the read, so that a short read can be distinguished from a
    /// hole.
    pub size: u64,
}

/// Changes of an object's space.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum SpaceChange {
    /// Set the size; data beyond it are removed, new ranges read as zeros.
    Truncate {
        /// New size in bytes.
        size: u64,
    },
    /// Reserve space for a range; with `extend`, the size covers it afterwards.
    Allocate {
        /// Byte offset.
        offset: u64,
        /// Length in bytes.
        bytes: u64,
        /// Grow the size.
        extend: bool,
    },
    /// Make a range read as zeros and free its space; the size does not change.
    Punch {
        /// Byte offset.
        offset: u64,
        /// Length in bytes.
        bytes: u64,
    },
    /// Make a range read as zeros; with `extend`, the size covers it afterwards.
    Zero {
        /// Byte offset.
        offset: u64,
        /// Length in bytes.
        bytes: u64,
        /// Grow the size.
        extend: bool,
    },
}

/// Where deferred operations come from: their places in the log of an MDT, by which an OST tells
/// those that it has executed from new ones, across restarts of either.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeferredOrigin {
    /// The MDT whose log it is.
    pub source: MdtIndex,
    /// Sequence number of the first operation of the request; the others follow without a gap.
    pub first: u64,
    /// Power-loss era of the MDT.
    pub era: u64,
}

/// The largest number of objects in one [`OstRequest::Check`].
pub const CHECK_OBJECTS_MAX: u32 = 1024;
/// The largest number of bytes about one object in [`OstReply::Damage`].
pub const DAMAGE_BYTES_MAX: usize = 512;
/// An object's name and the length of a text, encoded.
const DAMAGE_HEAD_BYTES_MAX: usize = 32;

const _: () = assert!(
    CHECK_OBJECTS_MAX as usize * (DAMAGE_BYTES_MAX + DAMAGE_HEAD_BYTES_MAX) < BODY_BYTES_MAX,
    "what is said of all objects of a request fits the answer"
);

/// The largest number of extents in one [`FoundExtents`].
pub const EXTENTS_MAX: u32 = 1024;
/// An extent, encoded.
const EXTENT_BYTES_MAX: usize = 40;

const _: () = assert!(EXTENTS_MAX as usize * EXTENT_BYTES_MAX < BODY_BYTES_MAX, "a page of extents fits the answer");

/// Where are the data of a range of an object?
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExtentsQuery {
    /// The object; a missing one has none.
    pub object: ObjectId,
    /// Byte offset within the object.
    pub offset: u64,
    /// Length in bytes.
    pub bytes: u64,
    /// Extents wanted, at least one and at most [`EXTENTS_MAX`]; other numbers count as the nearest
    /// of these.
    pub extents_max: u32,
}

/// Where the bytes of an extent are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ExtentPlace {
    /// In the target's tables.
    Tables,
    /// In the object's host file, at the same offset. The host's file system knows where that is.
    HostFile,
    /// On the target's device, from this byte.
    Device(u64),
}

/// A part of an object that is in one piece, in whole blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Extent {
    /// Byte offset within the object.
    pub offset: u64,
    /// Length in bytes.
    pub bytes: u64,
    /// Where it is.
    pub place: ExtentPlace,
}

impl Extent {
    /// Whether `next` goes on where this one ends, in the object and in its place.
    pub fn is_followed_by(&self, next: &Self) -> bool {
        let place = match (self.place, next.place) {
            (ExtentPlace::Device(start), ExtentPlace::Device(next)) => start.checked_add(self.bytes) == Some(next),
            (one, other) => one == other,
        };
        place && self.offset.checked_add(self.bytes) == Some(next.offset)
    }
}

/// A page of extents, in the order of the object. Holes are not in it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FoundExtents {
    /// At most as many as were asked for.
    pub extents: Vec<Extent>,
    /// Offset from which to ask for more; `None`: there are no more in the range. The page may have
    /// room left: an answer takes a bounded amount of work.
    pub next: Option<u64>,
}

/// Requests to an object storage target.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum OstRequest {
    /// -> Changed
    Write(Write),
    /// -> Read
    Read(Read),
    /// Then the layout generation and the owner, as in [`Write`]. -> Changed
    Space(ObjectId, SpaceChange, u64, Owner),
    /// Next data (true) or hole (false) at or after an offset; the object's end counts as a hole.
    /// -> Found
    Seek(ObjectId, u64, bool),
    /// Attributes of objects, in the requested order. -> Attributes
    Glimpse(Vec<ObjectId>),
    /// Everything acknowledged for these objects is durable when it returns; empty: for all. ->
    /// Done
    Sync(Vec<ObjectId>),
    /// Remove objects; missing ones are fine. From MDTs, with their places in the log, one after
    /// the other; from fsck without. -> Done
    Destroy(Vec<ObjectId>, Option<DeferredOrigin>),
    /// -> Space
    StatFs,
    /// Objects after this one in order, at most this many. From fsck. -> Objects
    ListObjects(Option<ObjectId>, u32),
    /// Read everything of an object and compare checksums; answers `Corrupt` if damaged. From fsck.
    /// -> Done
    Verify(ObjectId),
    /// Refuse this client from now on; its lease expired at an MDT, which has this in its log. ->
    /// Done
    Evict(ClientId, Option<DeferredOrigin>),
    /// Keep the session. -> Done
    Ping,
    /// End the session. -> Done
    Disconnect,
    /// From now on nothing is read from or changed in these objects under layouts older than this
    /// generation, and requests that were started before are finished. Missing objects are created.
    /// Durable. -> Done
    Fence(Vec<ObjectId>, u64),
    /// Which of these objects (at most [`CHECK_OBJECTS_MAX`]) have missing parts, as far as this
    /// can be found without reading them. From fsck. -> Damage
    Check(Vec<ObjectId>),
    /// Where the data of an object are, for administrators. -> Extents
    Extents(ExtentsQuery),
}

/// Answers of an object storage target.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum OstReply {
    /// Success without data.
    Done,
    /// An object changed.
    Changed(Changed),
    /// With bulk data.
    Read(ReadDone),
    /// Offset found by a seek; `None`: nothing there up to the object's end.
    Found(Option<u64>),
    /// Attributes in the requested order.
    Attributes(Vec<ObjectAttributes>),
    /// Space of the target, and its state.
    Space(SpaceUsage, TargetCondition),
    /// Objects in order; empty at the end.
    Objects(Vec<(ObjectId, ObjectAttributes)>),
    /// Objects that are damaged, and how, in words: at most [`DAMAGE_BYTES_MAX`] for each.
    Damage(Vec<(ObjectId, String)>),
    /// Where data are, and how to continue.
    Extents(FoundExtents),
}

/// An OST's report of its condition for new objects (the letters of `lfs df`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TargetCondition {
    /// D: works, but a device below it is degraded.
    pub degraded: bool,
    /// N: creates no new objects.
    pub no_create: bool,
    /// R: refuses writes.
    pub read_only: bool,
    /// Transfers in progress, summed over time since the target started, in microseconds. 0 if not
    /// requested (`StatFs` requests it).
    #[serde(default)]
    pub work_us: u64,
    /// What targets of its process recently read from its device. Nothing if not requested, as
    /// above.
    #[serde(default)]
    pub read: Moved,
    /// The same for writes.
    #[serde(default)]
    pub written: Moved,
}

/// Bytes that a device moved, and for how long it was busy with that.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Moved {
    /// Bytes.
    pub bytes: u64,
    /// Microseconds.
    pub busy_us: u64,
}

impl Moved {
    /// Fewer bytes say nothing about a device.
    const BYTES_MIN: u64 = 8 << 20;

    /// Bytes per second; `None` if there were too few.
    pub fn bytes_per_second(&self) -> Option<u64> {
        let is_enough = self.bytes >= Self::BYTES_MIN && self.busy_us > 0;
        let speed = || u128::from(self.bytes) * 1_000_000 / u128::from(self.busy_us);
        is_enough.then(|| u64::try_from(speed()).unwrap_or(u64::MAX).max(1))
    }
}
