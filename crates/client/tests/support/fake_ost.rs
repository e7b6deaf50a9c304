//! An OST in a few lines: objects in memory, blocks of 4 KiB as data or hole, and faults on demand.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use bytes::Bytes;
use parking_lot::Mutex;
use rpc::{
    Answer, Call, Handler, SessionEvent, checksum,
    message::{
        OstReply, OstRequest, Reply, Request,
        ost::{Changed, ObjectAttributes, ReadDone, SpaceChange, TargetCondition},
    },
};
use rt::BoxFuture;
use tokio::sync::Notify;
use types::{
    ClientId, FsError, FsResult, ObjectId, ProtocolError, Slot, SpaceUsage, Timestamp, Xid, limits::BLOCK_BYTES,
};

#[derive(Clone, Default)]
struct Object {
    data: Vec<u8>,
    blocks: BTreeSet<u64>,
    mtime: Timestamp,
    changes: u64,
}

impl Object {
    fn attributes(&self) -> ObjectAttributes {
        let (size, blocks) = (self.data.len() as u64, self.blocks.len() as u64 * 8);
        ObjectAttributes { size, blocks, mtime: self.mtime, changes: self.changes }
    }

    fn fill(&mut self, offset: u64, data: &[u8]) {
        let end = offset as usize + data.len();
        if self.data.len() < end {
            self.data.resize(end, 0);
        }
        self.data[offset as usize..end].copy_from_slice(data);
        self.blocks.extend(offset / BLOCK_BYTES..(end as u64).div_ceil(BLOCK_BYTES));
    }

    fn clear(&mut self, offset: u64, bytes: u64) {
        let end = (offset + bytes).min(self.data.len() as u64);
        if offset < end {
            self.data[offset as usize..end as usize].fill(0);
        }
        let whole = offset.div_ceil(BLOCK_BYTES)..(offset + bytes) / BLOCK_BYTES;
        self.blocks.retain(|block| !whole.contains(block));
    }

    fn change(&mut self, change: SpaceChange) {
        let grow = |object: &mut Object, end: u64| {
            if (object.data.len() as u64) < end {
                object.data.resize(end as usize, 0);
            }
        };
        match change {
            SpaceChange::Truncate { size } => {
                self.data.resize(size as usize, 0);
                self.blocks.retain(|block| block * BLOCK_BYTES < size);
            }
            SpaceChange::Allocate { offset, bytes, extend } => {
                self.blocks.extend(offset / BLOCK_BYTES..(offset + bytes).div_ceil(BLOCK_BYTES));
                if extend {
                    grow(self, offset + bytes);
                }
            }
            SpaceChange::Punch { offset, bytes } => self.clear(offset, bytes),
            SpaceChange::Zero { offset, bytes, extend } => {
                self.clear(offset, bytes);
                if extend {
                    grow(self, offset + bytes);
                }
            }
        }
    }

    fn seek(&self, offset: u64, data: bool) -> Option<u64> {
        let size = self.data.len() as u64;
        let found = (offset..size).find(|byte| self.blocks.contains(&(byte / BLOCK_BYTES)) == data);
        if data { found } else { found.or((offset <= size).then_some(size)) }
    }
}

#[derive(Default)]
struct State {
    era: u64,
    objects: BTreeMap<ObjectId, Object>,
    now: i64,
    counts: BTreeMap<&'static str, usize>,
    damaged_reads: usize,
    refused: BTreeMap<u32, FsError>,
    refused_next: Option<FsError>,
    held: Option<&'static str>,
    waiting: usize,
}

/// See the module documentation.
#[derive(Default)]
pub struct FakeOst {
    state: Mutex<State>,
    released: Notify,
}

impl FakeOst {
    /// Requests handled so far, by name.
    pub fn counts(&self) -> BTreeMap<&'static str, usize> {
        self.state.lock().counts.clone()
    }

    /// The next reads arrive damaged.
    pub fn damage_reads(&self, count: usize) {
        self.state.lock().damaged_reads = count;
    }

    /// Changes of objects in this slot fail from now on.
    pub fn refuse(&self, slot: u32, error: FsError) {
        self.state.lock().refused.insert(slot, error);
    }

    /// The next change of an object fails.
    pub fn refuse_next(&self, error: FsError) {
        self.state.lock().refused_next = Some(error);
    }

    /// Requests that wait to be released.
    pub fn waiting(&self) -> usize {
        self.state.lock().waiting
    }

    /// Requests of this name wait from now on, before they do anything, until they are released.
    pub fn hold(&self, name: &'static str) {
        self.state.lock().held = Some(name);
    }

    /// All requests continue.
    pub fn release(&self) {
        self.state.lock().held = None;
        self.released.notify_waiters();
    }

    async fn pass(&self, name: &'static str) {
        loop {
            let mut released = std::pin::pin!(self.released.notified());
            released.as_mut().enable();
            if self.state.lock().held != Some(name) {
                return;
            }
            self.state.lock().waiting += 1;
            released.await;
            self.state.lock().waiting -= 1;
        }
    }

    /// A power loss, to be followed by a restart: everything is what it was before anything was
    /// written.
    pub fn lose_power(&self) {
        let mut state = self.state.lock();
        state.objects.clear();
        state.era += 1;
    }

    fn execute(&self, request: OstRequest, bulk: &Bytes) -> FsResult<(OstReply, Bytes)> {
        let mut state = self.state.lock();
        *state.counts.entry(name(&request)).or_default() += 1;
        let nothing = Bytes::new();
        match request {
            OstRequest::Write(write) => {
                checksum::verify(write.offset, bulk, &write.checksums)?;
                let changed = state.change(write.object, |object| object.fill(write.offset, bulk))?;
                Ok((OstReply::Changed(changed), nothing))
            }
            OstRequest::Space(id, change, ..) => {
                let changed = state.change(id, |object| object.change(change))?;
                Ok((OstReply::Changed(changed), nothing))
            }
            OstRequest::Read(read) => {
                let object = state.objects.get(&read.object).cloned().unwrap_or_default();
                let size = object.data.len() as u64;
                let (start, end) = (read.offset.min(size), (read.offset + u64::from(read.bytes)).min(size));
                let mut data = object.data[start as usize..end as usize].to_vec();
                let checksums = checksum::checksums(read.offset, &data);
                if state.damaged_reads > 0 && !data.is_empty() {
                    state.damaged_reads -= 1;
                    data[0] ^= 1;
                }
                Ok((OstReply::Read(ReadDone { checksums, size }), data.into()))
            }
            OstRequest::Seek(id, offset, data) => {
                let object = state.objects.get(&id).cloned().unwrap_or_default();
                Ok((OstReply::Found(object.seek(offset, data)), nothing))
            }
            OstRequest::Glimpse(ids) => {
                let attributes = |id| state.objects.get(id).map(Object::attributes).unwrap_or_default();
                Ok((OstReply::Attributes(ids.iter().map(attributes).collect()), nothing))
            }
            OstRequest::StatFs => {
                let space = SpaceUsage { bytes_total: 1000, bytes_free: 100, ..SpaceUsage::default() };
                Ok((OstReply::Space(space, TargetCondition::default()), nothing))
            }
            OstRequest::Sync(_) | OstRequest::Ping | OstRequest::Disconnect => Ok((OstReply::Done, nothing)),
            request => Err(ProtocolError::Told(format!("not for clients: {request:?}")).into()),
        }
    }
}

impl State {
    fn change(&mut self, id: ObjectId, change: impl FnOnce(&mut Object)) -> FsResult<Changed> {
        if let Some(error) = self.refused_next.take().or_else(|| self.refused.get(&id.slot).cloned()) {
            return Err(error);
        }
        self.now += 1;
        let object = self.objects.entry(id).or_default();
        let before = object.attributes();
        change(object);
        object.mtime = Timestamp { seconds: self.now, nanoseconds: 0 };
        object.changes += 1;
        Ok(Changed { before, after: object.attributes() })
    }
}

fn name(request: &OstRequest) -> &'static str {
    match request {
        OstRequest::Write(_) => "write",
        OstRequest::Read(_) => "read",
        OstRequest::Space(..) => "space",
        OstRequest::Seek(..) => "seek",
        OstRequest::Glimpse(_) => "glimpse",
        OstRequest::Sync(_) => "sync",
        _ => "other",
    }
}

impl Handler for FakeOst {
    fn handle(self: Arc<Self>, call: Call) -> BoxFuture<'static, Answer> {
        Box::pin(async move {
            let Request::Ost(request) = call.request else {
                return Answer::new(Err(ProtocolError::misdirected("the fake", "requests to OSTs").into()));
            };
            self.pass(name(&request)).await;
            match self.execute(request, &call.bulk) {
                Ok((reply, bulk)) => Answer::with_bulk(Ok(Reply::Ost(reply)), bulk),
                Err(error) => Answer::new(Err(error)),
            }
        })
    }

    fn service(&self, _request: &Request) -> &'static str {
        "ost"
    }

    fn persistent_reply(&self, _client: ClientId, _slot: Slot) -> Option<(Xid, Reply)> {
        None
    }

    fn era(&self) -> u64 {
        self.state.lock().era
    }

    fn session_event(self: Arc<Self>, _event: SessionEvent) -> BoxFuture<'static, ()> {
        Box::pin(std::future::ready(()))
    }
}
