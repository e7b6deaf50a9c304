//! One atomic change of an object's records: the only code that writes the tables OBJECTS, CHUNKS,
//! INLINE, DIRTY, PENDING and BACKLOG while objects change, so that their relations hold by
//! construction:
//!
//! - an object's counts of blocks are the sums over its chunks, the totals are the sums over the
//!   objects;
//! - the count of reserved blocks without data is the number of absent blocks in the reserved
//!   ranges;
//! - INLINE has exactly the blocks whose state is inline;
//! - a chunk with in-place blocks of an unflushed epoch has a key in DIRTY;
//! - blocks removed from an object that has a host file are tainted, and pending if their space is
//!   to be freed;
//! - BACKLOG has exactly the large objects with inline blocks.
//!
//! Tests and simulations check this after each change (module `audit`).
//!
//! Life cycle: begin (takes the store's short mutex) -> changes -> commit (applies the batch, then
//! the volatile state) or drop (nothing happened). Never lives across an await. It reads as an
//! attempt does (module `records`): if an entry is missing, it is dropped, and started again with
//! the loaded entries. After the changes nothing is read any more.
//!
//! Downside: records are decoded under the mutex; if ranges are reserved over data, this applies to
//! all their chunks.

pub(super) mod device;

use std::{
    collections::{BTreeMap, btree_map::Entry},
    ops::Range,
    sync::Arc,
};

use bytes::Bytes;
use kv::{Batch, Loading, Lsn};
use parking_lot::MutexGuard;
use rpc::message::ost::Changed;
use types::{FsResult, ObjectId, Timestamp, limits::BLOCK_BYTES, limits::FILE_BYTES_MAX};

use super::{
    DirectoryStore,
    audit::Audit,
    device_space::BlockChanges,
    host_file_state::{HostFileState, HostWork, Taint},
    records::Records,
};
use crate::{
    chunk_record::{BlockState, CHUNK_BLOCKS, ChunkRecord},
    object_record::{ObjectOrigin, ObjectRecord},
    options::INLINE_OBJECT_BYTES_MAX,
    pending_record::PendingRecord,
    replies::Origin,
    reserved::{self, Reserved},
    superblock::TOTALS_KEY,
    tables::{BACKLOG, CHUNKS, DIRTY, INLINE, META, OBJECTS, PENDING, object_key, part_key},
};

/// What changing a chunk adds to a batch where most of it is removed.
const CHUNK_ENTRY_BYTES: usize = 64;

#[derive(Default)]
struct OpenChunk {
    record: ChunkRecord,
    changed: bool,
}

/// The request that a change is the last one for.
struct Answers {
    origin: Origin,
    /// The object before the request's first change.
    before: ObjectRecord,
    /// It is the first one, too.
    is_first: bool,
    /// The range of the blocks that the request wrote in place.
    in_place: Option<Range<u64>>,
}

/// A change under construction.
pub(super) struct Transaction<'a> {
    store: &'a DirectoryStore,
    records: Records<'a>,
    loading: &'a Loading,
    volatile: MutexGuard<'a, HostFileState>,
    object: ObjectId,
    before: Option<ObjectRecord>,
    record: ObjectRecord,
    destroyed: bool,
    /// Chunks read so far; a chunk is read once, so that every change of it is in one record.
    chunks: BTreeMap<u64, OpenChunk>,
    batch: Batch,
    batch_bytes: usize,
    fresh_chunks: Vec<u64>,
    touched: Vec<Range<u64>>,
    taint: Option<(Range<u64>, HostWork)>,
    /// Blocks of the device that records begin or cease to name.
    device: BlockChanges,
    /// Deletes and marks may use the journal's reserve.
    reserved: bool,
    /// No client asked for it.
    background: bool,
    answers: Option<Answers>,
}

/// A change that happened.
#[derive(Clone, Copy, Debug)]
pub(super) struct Applied {
    pub lsn: Lsn,
    pub before: ObjectRecord,
    pub after: ObjectRecord,
}

impl Applied {
    /// This and a later change as one, of one request: what others changed between them is not its
    /// doing.
    pub fn and(self, later: Applied) -> Applied {
        Applied { before: self.before_as_of(&later.before), ..later }
    }

    /// The object before this change, as if what others changed between it and `next` had been
    /// there before.
    fn before_as_of(&self, next: &ObjectRecord) -> ObjectRecord {
        let others = next.changes.saturating_sub(self.after.changes);
        ObjectRecord { changes: self.before.changes.saturating_add(others), ..self.before }
    }

    /// What a client is told.
    pub fn changed(&self) -> Changed {
        Changed { before: self.before.attributes(), after: self.after.attributes() }
    }
}

impl<'a> Transaction<'a> {
    /// Begins a change of one object, which need not exist. Fails if the store takes no changes.
    pub fn begin(store: &'a DirectoryStore, object: ObjectId, loading: &'a Loading) -> FsResult<Self> {
        let records = store.records(Some(loading));
        let volatile = store.volatile.lock();
        store.check_usable(&volatile)?;
        let before = records.object(object)?;
        Ok(Self {
            store,
            records,
            loading,
            volatile,
            object,
            before,
            record: before.unwrap_or_default(),
            destroyed: false,
            chunks: BTreeMap::new(),
            batch: Batch::default(),
            batch_bytes: 0,
            fresh_chunks: Vec::new(),
            touched: Vec::new(),
            taint: None,
            device: BlockChanges::default(),
            reserved: false,
            background: false,
            answers: None,
        })
    }

    /// Whether the object existed.
    pub fn exists(&self) -> bool {
        self.before.is_some()
    }

    /// The object as it will be.
    pub fn record(&self) -> &ObjectRecord {
        &self.record
    }

    /// Sets the size.
    pub fn set_size(&mut self, size: u64) {
        assert!(size <= FILE_BYTES_MAX, "the caller has checked the size");
        self.record.size = size;
    }

    /// Grows the size to at least this.
    pub fn extend_size(&mut self, size: u64) {
        assert!(size <= FILE_BYTES_MAX, "the caller has checked the size");
        self.record.size = self.record.size.max(size);
    }

    /// The object's data or size change: to be called in each part of it.
    pub fn change(&mut self, now: Timestamp) {
        self.record.change(now);
    }

    /// As [`Transaction::change`], by a request that may be the object's first one.
    pub fn change_by(&mut self, origin: ObjectOrigin, now: Timestamp) {
        self.originate(origin);
        self.change(now);
    }

    /// The object is made or changed by a request, which may be its first one.
    pub fn originate(&mut self, origin: ObjectOrigin) {
        self.record.originate(origin);
    }

    /// Gives an object that has nothing else yet a time, by which it is told from a missing one.
    /// That is no change.
    pub fn make(&mut self, now: Timestamp) {
        if self.record == ObjectRecord::default() {
            self.record.mtime = now;
        }
    }

    /// Raises the fence; makes the object if it is missing.
    pub fn fence(&mut self, generation: u64, now: Timestamp) {
        self.make(now);
        self.record.fence = self.record.fence.max(generation);
    }

    /// Notes that the object has, or is about to have, a host file.
    pub fn note_host_file(&mut self) {
        self.record.host_file = true;
    }

    /// Lets the change use the journal's reserve: it gives space back.
    pub fn use_reserve(&mut self) {
        self.reserved = true;
    }

    /// The change is the store's own: it does not keep others from being taken for the last.
    pub fn in_background(&mut self) {
        self.background = true;
    }

    /// Whether a block changed since the copy of it was begun.
    pub fn changed_since_copied(&self, block: u64) -> bool {
        let (object, touched) = self.volatile.copying.as_ref().expect("asked by what copies blocks");
        *object != self.object || touched.contains(&block)
    }

    /// The change is the last one made for a request, whose reply it takes along. `earlier`: the
    /// request's changes before this one, if there were any.
    pub fn answer(&mut self, origin: Option<Origin>, earlier: Option<&Applied>) {
        let own = self.before.unwrap_or_default();
        let before = earlier.map_or(own, |earlier| earlier.before_as_of(&own));
        self.answers = origin.map(|origin| Answers { origin, before, is_first: earlier.is_none(), in_place: None });
    }

    /// As [`Transaction::answer`]; the request wrote blocks in place, and none outside of these.
    pub fn answer_write(&mut self, origin: Option<Origin>, earlier: Option<&Applied>, in_place: Option<Range<u64>>) {
        self.answer(origin, earlier);
        if let Some(answers) = &mut self.answers {
            answers.in_place = in_place;
        }
    }

    /// These blocks, in order, are to be changed: what is missing of their chunks is loaded
    /// together.
    pub fn need(&self, blocks: impl Iterator<Item = u64>) -> FsResult<()> {
        let mut chunks: Vec<u64> = blocks.map(ChunkRecord::of_block).collect();
        chunks.dedup();
        self.records.need_chunks(self.object, chunks.into_iter())
    }

    /// State of a block.
    pub fn state(&mut self, block: u64) -> FsResult<BlockState> {
        Ok(self.open_chunk(ChunkRecord::of_block(block))?.record.state(block))
    }

    /// The block's bytes were written to the host file in this epoch.
    pub fn put_in_place(&mut self, block: u64, checksum: u32) -> FsResult<()> {
        let epoch = self.volatile.epoch;
        debug_assert!(
            !self.volatile.is_tainted(self.object, &(block..block + 1)),
            "no block is written in place where it is tainted"
        );
        let old = self.set_state(block, BlockState::InPlace { checksum, epoch })?;
        assert_eq!(old, BlockState::Absent, "only absent blocks are written in place");
        self.record.host_file = true;
        self.note_fresh(ChunkRecord::of_block(block));
        Ok(())
    }

    /// The chunk has blocks of the present epoch.
    fn note_fresh(&mut self, chunk: u64) {
        if self.fresh_chunks.last() != Some(&chunk) {
            self.fresh_chunks.push(chunk);
        }
    }

    /// The block's bytes go into the table.
    pub fn put_inline(&mut self, block: u64, checksum: u32, bytes: Bytes) -> FsResult<()> {
        assert!(bytes.len() as u64 <= BLOCK_BYTES, "the bytes of a block fit it");
        self.set_state(block, BlockState::Inline { checksum })?;
        self.put(INLINE, Bytes::copy_from_slice(&part_key(self.object, block)), bytes);
        Ok(())
    }

    /// The bytes of an inline block are in the host file, and flushed.
    pub fn move_in_place(&mut self, block: u64, checksum: u32) -> FsResult<()> {
        let old = self.set_state(block, BlockState::InPlace { checksum, epoch: 0 })?;
        assert_eq!(old, BlockState::Inline { checksum }, "only an unchanged inline block is moved");
        Ok(())
    }

    /// The block is as it was when its object was flushed last. Only for blocks whose bytes never
    /// arrived: it taints nothing.
    pub fn reset(&mut self, block: u64) -> FsResult<()> {
        let old = self.state(block)?;
        assert!(old.epoch() > 0, "only bytes that were not flushed can be missing");
        if old.address().is_some() {
            return self.reset_on_device(block);
        }
        self.set_state(block, BlockState::Absent).map(drop)
    }

    /// Makes blocks absent, in order, until the batch has `bytes_max` or the next chunk is to be
    /// loaded; returns where to continue. Tainted is what was removed, and nothing after it: there
    /// the records still name the host file's bytes. One range per transaction.
    pub fn remove(&mut self, blocks: Range<u64>, work: HostWork, bytes_max: usize) -> FsResult<Option<u64>> {
        assert!(self.taint.is_none(), "one removal per transaction");
        if blocks.is_empty() {
            return Ok(None);
        }
        let mut next = blocks.start;
        loop {
            let found = self.records.next_chunk(self.object, ChunkRecord::of_block(next));
            if found.is_err() && self.loading.is_given_up() && next > blocks.start {
                self.loading.do_without();
                self.vacate(blocks.start..next, work)?;
                return Ok(Some(next));
            }
            let Some((chunk, record)) = found? else { break };
            let start = next.max(chunk * CHUNK_BLOCKS);
            let end = blocks.end.min((chunk + 1) * CHUNK_BLOCKS);
            if start >= end {
                break;
            }
            if self.batch_bytes >= bytes_max {
                self.vacate(blocks.start..start, work)?;
                return Ok(Some(start));
            }
            self.open_found(chunk, record);
            for block in start..end {
                if self.state(block)? != BlockState::Absent {
                    self.set_state(block, BlockState::Absent)?;
                }
            }
            next = end;
        }
        self.vacate(blocks.clone(), work)?;
        self.touched.push(blocks);
        Ok(None)
    }

    /// The host file has space for these blocks.
    pub fn reserve(&mut self, blocks: &Range<u64>) -> FsResult<()> {
        self.change_reserved(&self.record.reserved.with(blocks))
    }

    /// The host file gives back its space for these blocks, or has done so. None of them holds
    /// data.
    pub fn no_longer_reserved(&mut self, blocks: &Range<u64>) -> FsResult<()> {
        self.change_reserved(&self.record.reserved.without(blocks))
    }

    fn change_reserved(&mut self, change: &reserved::Change) -> FsResult<()> {
        let (mut gained, mut forgotten) = (0, 0);
        for range in &change.gained {
            gained += self.absent_in(range)?;
        }
        if let Some(range) = &change.forgotten {
            forgotten = self.absent_in(range)?;
        }
        self.record.reserved = self.record.reserved.after(change, gained, forgotten);
        Ok(())
    }

    /// How many of these blocks hold no data.
    fn absent_in(&self, blocks: &Range<u64>) -> FsResult<u64> {
        let within = |(block, state): (u64, &BlockState)| blocks.contains(&block) && *state != BlockState::Absent;
        let held_of = |number: u64, record: &ChunkRecord| {
            (number * CHUNK_BLOCKS..).zip(record.states()).filter(|item| within(*item)).count() as u64
        };
        let chunks = ChunkRecord::of_block(blocks.start)..ChunkRecord::of_block(blocks.end - 1) + 1;
        let open = self.chunks.range(chunks.clone());
        let mut held: u64 = open.map(|(number, chunk)| held_of(*number, &chunk.record)).sum();
        let mut next = chunks.start;
        while let Some((number, record)) = self.records.next_chunk(self.object, next)?
            && number < chunks.end
        {
            if !self.chunks.contains_key(&number) {
                held += held_of(number, &record);
            }
            next = number + 1;
        }
        Ok((blocks.end - blocks.start).saturating_sub(held))
    }

    /// The blocks were made absent. What is given back is not reserved any more.
    fn vacate(&mut self, blocks: Range<u64>, work: HostWork) -> FsResult<()> {
        if work == HostWork::GiveBack {
            self.no_longer_reserved(&blocks)?;
        }
        self.taint(blocks, work);
        Ok(())
    }

    fn taint(&mut self, blocks: Range<u64>, work: HostWork) {
        if self.record.host_file && !blocks.is_empty() {
            self.taint = Some((blocks, work));
        }
    }

    /// Removes the object's record, after its blocks; the host file goes as a whole. (A count that
    /// disagrees with the chunks ends here.)
    pub fn destroy(&mut self) {
        assert!(self.before.is_some(), "what is destroyed exists");
        self.taint(0..u64::MAX, HostWork::GiveBack);
        self.record.blocks = 0;
        self.record.inline_blocks = 0;
        self.record.reserved = Reserved::default();
        self.destroyed = true;
    }

    /// Applies the change, which was prepared ([`Transaction::prepared`]). `Err` of the store means
    /// that nothing was applied.
    pub fn commit(mut self) -> Result<Applied, kv::Error> {
        self.put_chunks();
        let existed = self.before.is_some();
        let before = self.before.unwrap_or_default();
        // What changes nothing makes no object: it may have been destroyed since its caller looked.
        let exists = !self.destroyed && (existed || self.record != before);
        if self.destroyed {
            self.delete(OBJECTS, &object_key(self.object));
        } else if self.record != before {
            self.put(OBJECTS, Bytes::copy_from_slice(&object_key(self.object)), self.record.encode().into());
        }
        if exists && before != ObjectRecord::default() {
            self.record.assert_follows(&before);
        }
        let mut totals = self.volatile.totals;
        totals.objects = (totals.objects + u64::from(exists)).saturating_sub(u64::from(existed));
        totals.blocks = totals.blocks.saturating_add(self.record.blocks).saturating_sub(before.blocks);
        if totals != self.volatile.totals {
            self.put(META, Bytes::from_static(TOTALS_KEY), totals.encode().into());
        }
        let reserved_on_device = self.put_reserved_on_device(&before);
        let backlog = self.update_backlog();
        self.note_dirty_chunks();
        self.note_pending();
        let after = if self.destroyed { ObjectRecord::default() } else { self.record };
        // Nothing is kept for what changed nothing.
        if self.batch.is_empty() && self.answers.as_ref().is_none_or(|answers| answers.is_first) {
            return Ok(Applied { lsn: self.volatile.last_lsn, before, after });
        }
        let mut batch = std::mem::take(&mut self.batch);
        if let Some(Answers { origin, before, in_place, .. }) = self.answers.take() {
            let changed = Changed { before: before.attributes(), after: after.attributes() };
            origin.keep(changed, in_place.map(|blocks| (self.object, blocks)), &mut batch);
        }
        let lsn = if self.reserved { self.store.kv.apply_reserved(batch)? } else { self.store.kv.apply(batch)? };
        self.volatile.totals = totals;
        self.volatile.set_backlog(self.object, backlog);
        self.applied_on_device(reserved_on_device, lsn);
        self.applied(lsn);
        if self.store.audits {
            let DirectoryStore { kv, target, .. } = self.store;
            Audit::new(kv, target, &self.volatile, self.object).assert_sound(&after);
        }
        Ok(Applied { lsn, before, after })
    }

    /// Takes over into the volatile state what the batch made true.
    fn applied(&mut self, lsn: Lsn) {
        let (object, epoch) = (self.object, self.volatile.epoch);
        let volatile = &mut *self.volatile;
        volatile.note_applied(lsn);
        let now = self.store.seams.clock.now();
        if !self.background {
            volatile.last_change = now;
        }
        if !self.fresh_chunks.is_empty() || self.taint.is_some() {
            volatile.unmarked_since.get_or_insert(now);
        }
        if !self.fresh_chunks.is_empty() {
            let dirty = volatile.dirty.entry(object).or_default();
            dirty.chunks.extend(self.fresh_chunks.drain(..));
            dirty.written = epoch;
        }
        if let Some((blocks, work)) = self.taint.take() {
            if work == HostWork::GiveBack {
                volatile.pending.insert(volatile.pending_next, epoch);
                volatile.pending_next += 1;
            }
            volatile.taints.entry(object).or_default().insert(blocks, Taint { epoch, work });
        }
        for blocks in self.touched.drain(..) {
            volatile.touch(object, blocks);
        }
    }

    /// Keys of DIRTY for chunks that get in-place blocks; those that have theirs already are left
    /// out.
    fn note_dirty_chunks(&mut self) {
        for chunk in std::mem::take(&mut self.fresh_chunks) {
            let known = self.volatile.dirty.get(&self.object).is_some_and(|file| file.chunks.contains(&chunk));
            if !known {
                self.put(DIRTY, Bytes::copy_from_slice(&part_key(self.object, chunk)), Bytes::new());
            }
            self.fresh_chunks.push(chunk);
        }
    }

    fn note_pending(&mut self) {
        let Some((blocks, HostWork::GiveBack)) = self.taint.clone() else { return };
        let entry = PendingRecord { object: self.object, blocks };
        let key = self.volatile.pending_next.to_be_bytes();
        self.put(PENDING, Bytes::copy_from_slice(&key), entry.encode().into());
    }

    /// The inline blocks to be written back, `None` if there are none or the object is small.
    fn update_backlog(&mut self) -> Option<u64> {
        let large = !self.destroyed && self.record.size > INLINE_OBJECT_BYTES_MAX;
        let backlog = (large && self.record.inline_blocks > 0).then_some(self.record.inline_blocks);
        let known = self.volatile.backlog.contains_key(&self.object);
        let key = object_key(self.object);
        match (known, backlog.is_some()) {
            (false, true) => self.put(BACKLOG, Bytes::copy_from_slice(&key), Bytes::new()),
            (true, false) => self.delete(BACKLOG, &key),
            (true, true) | (false, false) => {}
        }
        backlog
    }

    /// Changes a state and everything counted from it.
    fn set_state(&mut self, block: u64, state: BlockState) -> FsResult<BlockState> {
        let old = self.open_chunk(ChunkRecord::of_block(block))?.record.state(block);
        if let Some(address) = old.address() {
            self.free_on_device(address)?;
        }
        let chunk = self.open_chunk(ChunkRecord::of_block(block))?;
        chunk.record.set(block, state);
        let first_change = !std::mem::replace(&mut chunk.changed, true);
        self.batch_bytes += if first_change { CHUNK_ENTRY_BYTES } else { 0 };
        let count = |held: bool| u64::from(held);
        let held = (count(state != BlockState::Absent), count(old != BlockState::Absent));
        let inline = (count(state.is_inline()), count(old.is_inline()));
        // A record that says less than its chunks is damaged; the difference shows in `verify`, not
        // in a panic.
        self.record.blocks = (self.record.blocks + held.0).saturating_sub(held.1);
        self.record.inline_blocks = (self.record.inline_blocks + inline.0).saturating_sub(inline.1);
        self.record.reserved.note(block, old != BlockState::Absent, state != BlockState::Absent);
        if old.is_inline() && !state.is_inline() {
            self.delete(INLINE, &part_key(self.object, block));
        }
        match self.touched.last_mut() {
            Some(range) if range.end == block => range.end = block + 1,
            _ => self.touched.push(block..block + 1),
        }
        Ok(old)
    }

    fn open_chunk(&mut self, number: u64) -> FsResult<&mut OpenChunk> {
        if !self.chunks.contains_key(&number) {
            let record = self.records.taken_chunk(self.object, number)?.unwrap_or_default();
            self.open_found(number, record);
        }
        Ok(self.chunks.entry(number).or_default())
    }

    /// Opens a chunk by its record, unless it is open.
    fn open_found(&mut self, number: u64, mut record: ChunkRecord) {
        if let Entry::Vacant(place) = self.chunks.entry(number) {
            record.forget_flushed(self.volatile.flushed_epoch(self.object));
            place.insert(OpenChunk { record, changed: false });
        }
    }

    fn put_chunks(&mut self) {
        for (number, chunk) in std::mem::take(&mut self.chunks) {
            let key = part_key(self.object, number);
            if !chunk.changed {
                continue;
            } else if chunk.record.is_absent() {
                self.delete(CHUNKS, &key);
            } else {
                let bytes = Bytes::from(chunk.record.encode());
                self.put(CHUNKS, Bytes::copy_from_slice(&key), bytes.clone());
                self.store.chunk_cache.put(self.object, number, bytes, Arc::new(chunk.record));
            }
        }
    }

    fn put(&mut self, table: kv::Table, key: Bytes, value: Bytes) {
        self.batch_bytes += key.len() + value.len() + 16;
        self.batch.put(table, key, value);
    }

    fn delete(&mut self, table: kv::Table, key: &[u8]) {
        self.batch_bytes += key.len() + 16;
        self.batch.delete(table, Bytes::copy_from_slice(key));
    }
}
