//! Requests to single objects, and what a data path needs around them: checksums, repetition of
//! requests whose data were damaged in transit, and the fence after an eviction.
//!
//! An OST that evicted this client refuses its outstanding requests. If only that session was lost
//! (the network between them was cut), the request may be tried again in a new session: it is
//! idempotent. If the OST evicted the client on behalf of an MDT, locks are gone and a late write
//! must not happen. So the MDT is pinged before a repetition: if it has evicted this client, the
//! file is stale by the time it answers.

use std::sync::Arc;

use bytes::Bytes;
use layout::{Coverage, Layout, Location, ObjectRange};
use rpc::{
    Answered, Question, checksum,
    message::{
        MdtRequest, OstReply, OstRequest,
        mgs::TargetRole,
        ost::{Changed, EXTENTS_MAX, ExtentsQuery, FoundExtents, Read, ReadDone, SpaceChange, Write},
    },
};
use rt::{CpuKind, trace};
use types::{FsError, FsResult, InodeNumber, ObjectId, Owner, ProtocolError, limits::BULK_BYTES_MAX};

use crate::{
    FileSystem,
    open_state::open_inode::OpenInode,
    targets::{
        awaited_mdts::{Pauses, awaited_mdt},
        connection::{TargetConnection, done, unexpected},
    },
};

/// How often data that arrive damaged, or a session lost on the way, are tried again.
const ATTEMPTS: usize = 4;

/// An object of a file, and what this client has open of that file.
#[derive(Clone, Copy)]
pub(crate) struct Object<'a> {
    /// The file.
    pub inode: InodeNumber,
    /// The object's name.
    pub id: ObjectId,
    pub location: Location,
    pub open: Option<&'a OpenInode>,
    /// The incarnation of the mount with which the right to this request ends, if it rests on a
    /// lock and not on an open file.
    pub incarnation: Option<u64>,
    /// Owner of the file, if it is not the one that the open file knows.
    pub owner: Option<Owner>,
}

impl<'a> Object<'a> {
    /// The object of `slot` of the file `inode`, which has this layout.
    pub fn new(
        inode: InodeNumber,
        layout: &Layout,
        (slot, location): (u32, Location),
        open: Option<&'a OpenInode>,
    ) -> Self {
        debug_assert_eq!(layout.location(slot), Some(location), "an object is where its layout says");
        Self { inode, id: layout.object(inode, slot), location, open, incarnation: None, owner: None }
    }

    /// Requests to it are made in this incarnation of the mount or not at all.
    pub fn within(self, incarnation: u64) -> Self {
        Self { incarnation: Some(incarnation), ..self }
    }

    /// The file belongs to this owner.
    pub fn owned_by(self, owner: Owner) -> Self {
        Self { owner: Some(owner), ..self }
    }

    /// Whom a new object's space is to be accounted to.
    fn owner(&self) -> Owner {
        let by_open = || self.open.map_or_else(Owner::default, |open| open.state().owner);
        self.owner.unwrap_or_else(by_open)
    }
}

/// The requests of a transfer of `bytes` from `offset` of a file, by the layout: one per object, or
/// several if that is more than requests to its target may have (`bytes_max`). Bytes without
/// objects are in none of them.
fn split(layout: &Layout, offset: u64, bytes: u64, bytes_max: impl Fn(Location) -> usize) -> Vec<ObjectRange> {
    let parts = layout.ranges(offset, bytes).flat_map(|range| range.chunks(bytes_max(range.location) as u64));
    let parts: Vec<ObjectRange> = parts.collect();
    let covered: u64 = parts.iter().map(|part| part.bytes).sum();
    assert!(covered <= bytes, "requests for {covered} bytes overlap in a transfer of {bytes}");
    let is_complete = || layout.coverage(offset, bytes) == Coverage::Complete;
    assert!(covered == bytes || !is_complete(), "requests for {covered} bytes leave out some of {bytes}");
    parts
}

/// The target that holds an object of a file.
pub(crate) fn holder_of(inode: InodeNumber, location: Location) -> TargetRole {
    match location {
        Location::Ost(ost) => TargetRole::Ost(ost),
        Location::Mdt => TargetRole::Mdt(inode.mdt()),
    }
}

/// What a read of one object gave.
#[derive(Clone, Debug, Default)]
pub(crate) struct ObjectData {
    /// Fewer than asked for only at the object's end.
    pub data: Bytes,
    /// The object's size at that time.
    pub size: u64,
}

/// A change of an object on its way: unless its outcome is reported, its data attributes are
/// unknown from then on.
struct InFlight<'a> {
    open: Option<&'a OpenInode>,
}

impl<'a> InFlight<'a> {
    fn begin(open: Option<&'a OpenInode>) -> Self {
        if let Some(open) = open {
            open.state().tracker.begin();
        }
        Self { open }
    }

    /// The change was acknowledged; unless `whole`, it says only what the last part of it changed.
    fn done(mut self, layout: &Layout, slot: u32, change: &Changed, unsynced_since: Option<u64>, whole: bool) {
        let Some(open) = self.open.take() else { return };
        let mut state = open.state();
        state.tracker.changed(layout.file_size(slot, change.after.size), change);
        state.tracker.end(whole);
        if let (Some(era), Some(location)) = (unsynced_since, layout.location(slot)) {
            state.dirty((slot, location), era);
        }
    }
}

impl InFlight<'_> {
    /// The OST refused the change as a whole.
    fn refused(mut self) {
        if let Some(open) = self.open.take() {
            open.state().tracker.end(true);
        }
    }
}

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        if let Some(open) = self.open {
            open.state().tracker.end(false);
        }
    }
}

impl FileSystem {
    /// The requests of a transfer of `bytes` from `offset` of a file.
    pub(crate) fn requests_of(&self, inode: InodeNumber, layout: &Layout, offset: u64, bytes: u64) -> Vec<ObjectRange> {
        split(layout, offset, bytes, |location| self.targets.bulk_bytes_max(holder_of(inode, location)))
    }

    /// The target that holds an object.
    fn holder(&self, object: Object<'_>) -> FsResult<Arc<TargetConnection>> {
        self.targets.get(holder_of(object.inode, object.location))
    }

    /// One request to an object; `make` builds it for each attempt, `take` judges the answer.
    async fn object_call<T: Send>(
        &self,
        object: Object<'_>,
        bulk: &Bytes,
        make: impl Fn() -> OstRequest + Send + Sync,
        take: impl Fn(Answered<OstReply>) -> FsResult<T> + Send + Sync,
    ) -> FsResult<T> {
        trace::in_project(object.owner().project, self.object_call_again(object, bulk, make, take)).await
    }

    /// The same, until its outcome is known.
    async fn object_call_again<T: Send>(
        &self,
        object: Object<'_>,
        bulk: &Bytes,
        make: impl Fn() -> OstRequest + Send + Sync,
        take: impl Fn(Answered<OstReply>) -> FsResult<T> + Send + Sync,
    ) -> FsResult<T> {
        let target = self.holder(object)?;
        let mut outcome = Err(FsError::Transfer);
        let (mut attempts, mut pauses) = (0, Pauses::default());
        while attempts < ATTEMPTS {
            attempts += 1;
            // Before the check: the connection of a later incarnation would carry the request under
            // an id that no OST refuses.
            let import = target.import();
            object.open.map_or(Ok(()), OpenInode::check)?;
            if object.incarnation.is_some_and(|incarnation| incarnation != self.client_state.opens.incarnation()) {
                return Err(FsError::Stale);
            }
            let answered = match object.location {
                Location::Ost(_) => target.call_by(&import, Question::with_bulk(make(), bulk.clone())).await,
                Location::Mdt => {
                    let opens = &self.client_state.opens;
                    target.ask_for_data(&self.seams, opens, import, (make(), bulk.clone())).await
                }
            };
            outcome = answered.and_then(&take);
            if let Some(mdt) = awaited_mdt(&outcome) {
                self.pause(&mut pauses, mdt).await;
                attempts -= 1;
            }
            match &outcome {
                Err(FsError::AwaitsMdt(_)) => {}
                Err(FsError::Transfer) => tracing::warn!(object = %object.id, "data were damaged in transit; retrying"),
                Err(FsError::Evicted) => {
                    let Some(open) = object.open else { return Err(FsError::Stale) };
                    // What it did is unknown, whatever comes of its repetition.
                    open.state().tracker.forget();
                    self.call(object.inode, MdtRequest::Ping).await.and_then(done)?;
                }
                _ => return outcome,
            }
        }
        outcome
    }

    /// Reads up to `bytes` from `offset` of an object and verifies them. Without a request if they
    /// are cached under a lock of the MDT.
    pub(crate) async fn read_object(
        &self,
        object: Object<'_>,
        layout: &Layout,
        offset: u64,
        bytes: u64,
    ) -> FsResult<ObjectData> {
        assert!(bytes > 0 && bytes <= BULK_BYTES_MAX as u64, "a read of {bytes} bytes fits one request");
        object.open.map_or(Ok(()), OpenInode::check)?;
        if object.location == Location::Mdt
            && let Some((data, size)) = self.cached(object.inode, |cache, _| cache.data(object.id, offset, bytes))
        {
            return Ok(ObjectData { data, size });
        }
        let layout_generation = layout.generation.0;
        let request = Read { object: object.id, offset, bytes: bytes as u32, layout_generation };
        let take = |Answered { reply, bulk: data, .. }: Answered<OstReply>| match reply {
            OstReply::Read(ReadDone { checksums, size }) => {
                let (found, expected) = (data.len() as u64, bytes.min(size.saturating_sub(offset)));
                if found != expected {
                    return Err(ProtocolError::DataBytes { found, expected }.into());
                }
                checksum::verify(offset, &data, &checksums)?;
                Ok(ObjectData { data, size })
            }
            reply => Err(unexpected(reply)),
        };
        let read = self.object_call(object, &Bytes::new(), || OstRequest::Read(request), take).await?;
        self.seams.cpu.spend(CpuKind::Checksum, read.data.len() as u64).await;
        Ok(read)
    }

    /// Writes to an object.
    pub(crate) async fn write_object(
        &self,
        object: Object<'_>,
        layout: &Layout,
        offset: u64,
        data: Bytes,
        sync: bool,
    ) -> FsResult<Changed> {
        assert!(!data.is_empty() && data.len() <= BULK_BYTES_MAX, "a write of {} bytes fits one request", data.len());
        self.seams.cpu.spend(CpuKind::Checksum, data.len() as u64).await;
        let checksums = checksum::checksums(offset, &data);
        let make = || {
            OstRequest::Write(Write {
                object: object.id,
                offset,
                checksums: checksums.clone(),
                sync,
                layout_generation: layout.generation.0,
                owner: object.owner(),
            })
        };
        self.change_object(object, layout, &data, sync, make).await
    }

    /// Changes the space of an object.
    pub(crate) async fn space_object(
        &self,
        object: Object<'_>,
        layout: &Layout,
        change: SpaceChange,
    ) -> FsResult<Changed> {
        let make = || OstRequest::Space(object.id, change, layout.generation.0, object.owner());
        self.change_object(object, layout, &Bytes::new(), false, make).await
    }

    /// Changes an object and notes the change in what this client has open of the file.
    async fn change_object(
        &self,
        object: Object<'_>,
        layout: &Layout,
        bulk: &Bytes,
        sync: bool,
        make: impl Fn() -> OstRequest + Send + Sync,
    ) -> FsResult<Changed> {
        let target = self.holder(object)?;
        let restarts = target.restarts();
        let in_flight = InFlight::begin(object.open);
        let take = |Answered { reply, era, .. }: Answered<OstReply>| match reply {
            OstReply::Changed(changed) => Ok((changed, era)),
            reply => Err(unexpected(reply)),
        };
        let outcome = self.object_call(object, bulk, make, take).await;
        // A start of the target that ended may have done a part, of which what its next start
        // answers tells nothing.
        let whole = target.restarts() == restarts;
        match &outcome {
            Ok((changed, era)) => in_flight.done(layout, object.id.slot, changed, (!sync).then_some(*era), whole),
            Err(FsError::NoSpace | FsError::LayoutChanged) if whole => in_flight.refused(),
            Err(_) => {}
        }
        outcome.map(|(changed, _)| changed)
    }

    /// Next data (or hole) of an object at or after `offset`.
    pub(crate) async fn seek_object(&self, object: Object<'_>, offset: u64, data: bool) -> FsResult<Option<u64>> {
        let take = |answered: Answered<OstReply>| match answered.reply {
            OstReply::Found(found) => Ok(found),
            reply => Err(unexpected(reply)),
        };
        self.object_call(object, &Bytes::new(), || OstRequest::Seek(object.id, offset, data), take).await
    }

    /// Where the data of an object are from `offset` on, as its OST says: a page of extents.
    pub(crate) async fn object_extents(&self, object: Object<'_>, offset: u64) -> FsResult<FoundExtents> {
        let query = ExtentsQuery { object: object.id, offset, bytes: u64::MAX, extents_max: EXTENTS_MAX };
        let take = |answered: Answered<OstReply>| match answered.reply {
            OstReply::Extents(found) => Ok(found),
            reply => Err(unexpected(reply)),
        };
        self.object_call(object, &Bytes::new(), || OstRequest::Extents(query), take).await
    }
}
