//! The object store: the interface between an OST and the storage of its objects. The
//! implementation is [`crate::directory`], with host files or on a device.
//!
//! Contract of every implementation:
//! - Changes of overlapping ranges of one object happen one after the other, in order of arrival,
//!   except that others may pass a change that has to wait for records; a read sees each of them
//!   whole or not at all.
//! - When a change returns, it survives the death of the process; after `sync` (or with
//!   `Write::sync`) it survives a power loss. Unsynced changes survive a power loss in whole blocks
//!   of 4096 bytes or not at all.
//! - Data that do not match their checksum are never returned, nor used to compute new data.
//! - A full device refuses a change as a whole (`NoSpace`: the object is unchanged, or still
//!   missing). It still accepts truncations, punches, destroys, fences, data that continue the
//!   block in which the object ends, and (in the reserve) changes of blocks that all hold data.
//! - Requests under a layout older than an object's fence have no effect (`LayoutChanged`).

use bytes::Bytes;
use rpc::message::ost::{Changed, ExtentsQuery, FoundExtents, ObjectAttributes, Read, ReadDone, SpaceChange, Write};
use rt::BoxFuture;
use types::{FsResult, ObjectId, SpaceUsage};

use crate::{object_record::ObjectOrigin, replies::Origin};

/// Of so many objects it is known that they must not be made again.
pub const RETIRED_MAX: usize = 65_536;

/// Keeps objects. The reply to a change that is made for an [`Origin`] is stored with the change.
pub trait ObjectStore: Send + Sync + 'static {
    /// Writes `data`, whose checksums have been verified. `data` is not empty.
    fn write<'a>(&'a self, write: &'a Write, data: Bytes, origin: Option<Origin>) -> BoxFuture<'a, FsResult<Changed>>;
    /// Reads, with checksums per piece.
    fn read(&self, read: Read) -> BoxFuture<'_, FsResult<(ReadDone, Bytes)>>;
    /// Truncates, allocates, punches or zeroes, by the layout of a file.
    fn change_space(
        &self,
        object: ObjectId,
        change: SpaceChange,
        file: ObjectOrigin,
        origin: Option<Origin>,
    ) -> BoxFuture<'_, FsResult<Changed>>;
    /// From now on refuses requests under layouts older than this; earlier requests are finished.
    /// Durable when it returns.
    fn fence<'a>(&'a self, objects: &'a [ObjectId], generation: u64) -> BoxFuture<'a, FsResult<()>>;
    /// Next data (true) or hole (false) at or after an offset.
    fn seek(&self, object: ObjectId, offset: u64, data: bool) -> BoxFuture<'_, FsResult<Option<u64>>>;
    /// Where the data of a range are: a page of extents. Places may change at once.
    fn extents(&self, query: ExtentsQuery) -> BoxFuture<'_, FsResult<FoundExtents>>;
    /// Attributes of objects; zeros for one that does not exist.
    fn attributes<'a>(&'a self, objects: &'a [ObjectId]) -> BoxFuture<'a, FsResult<Vec<ObjectAttributes>>>;
    /// Makes everything acknowledged for these objects durable; empty: for all.
    fn sync<'a>(&'a self, objects: &'a [ObjectId]) -> BoxFuture<'a, FsResult<()>>;
    /// From now on none of these objects is made: requests that would make one are refused
    /// (`Stale`). Known until the target stops, and of the last [`RETIRED_MAX`] objects.
    fn retire(&self, objects: &[ObjectId]);
    /// Removes objects; missing ones are fine. Durable when it returns.
    fn destroy<'a>(&'a self, objects: &'a [ObjectId]) -> BoxFuture<'a, FsResult<()>>;
    /// Objects after this one, in order.
    fn list(
        &self,
        after: Option<ObjectId>,
        objects_max: usize,
    ) -> BoxFuture<'_, FsResult<Vec<(ObjectId, ObjectAttributes)>>>;
    /// Reads everything of an object and compares checksums.
    fn verify(&self, object: ObjectId) -> BoxFuture<'_, FsResult<()>>;
    /// Missing parts of objects, as far as this can be found without reading them: each in words.
    fn check<'a>(&'a self, objects: &'a [ObjectId]) -> BoxFuture<'a, FsResult<Vec<(ObjectId, String)>>>;
    /// Space and objects.
    fn space(&self) -> BoxFuture<'_, FsResult<SpaceUsage>>;
    /// Why the store accepts no more changes, if it does not.
    fn failure(&self) -> Option<String>;
    /// Makes everything durable and ends the store's tasks.
    fn stop(&self) -> BoxFuture<'_, FsResult<()>>;
}
