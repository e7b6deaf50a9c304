//! How requests read from the tables: load first, then lock
//! ([docs/decisions/0015](../../../../docs/decisions/0015-load-first.md)).
//!
//! A request never waits for the cold store while it holds the mutex, or on a core that other
//! requests need. It looks at records in attempts ([`DirectoryStore::look`],
//! [`DirectoryStore::lock_and_look`], [`DirectoryStore::update`]), which read memory and the
//! entries loaded for the request. An attempt that misses an entry ends; mutex and range lock are
//! released, the missing entries are loaded, and the attempt is repeated.
//!
//! Invariants: an attempt that is given up has changed nothing: changes are collected in a
//! transaction, which is dropped with it. Records that a request has seen under its range lock do
//! not change, because changes of the range take the lock: so entries that it reads later, under
//! the mutex, are seldom missing. Only in that case does a load delay requests on the same range,
//! and so do the later parts of long walks over the chunks of an object.
//!
//! Downside: cold entries are looked up several times. Absent keys are always cold, unless all
//! tables are in memory: a new object costs a load.

use std::{ops::Range, sync::Arc};

use blocks::BITMAP_BYTES;
use bytes::Bytes;
use kv::{Loading, Reads, Table};
use types::{Damage, FsError, FsResult, ObjectId, RecordDamage, limits::BLOCK_BYTES};

use super::{BLOCK, DirectoryStore, blocks_of};
use crate::{
    chunk_record::{BlockState, CHUNK_MAX, ChunkRecord},
    group_record::{PIECE_BYTES, decode_piece},
    object_record::ObjectRecord,
    range_lock::RangeGuard,
    tables::{BITMAPS, CHUNKS, INLINE, OBJECTS, object_key, parse_part_key, parse_piece_key, part_key, piece_key},
};

/// The records of a store, as an attempt reads them.
#[derive(Clone, Copy)]
pub(super) struct Records<'a> {
    store: &'a DirectoryStore,
    reads: Reads<'a>,
}

/// How a range is locked.
#[derive(Clone, Copy, Debug)]
pub(super) enum Access {
    /// For reading.
    Shared,
    /// For changes.
    Exclusive,
}

/// A block of which a part is changed, as it is.
#[derive(Clone, Debug)]
pub(super) struct Edge {
    pub block: u64,
    /// The bytes within the block.
    pub bytes: Range<usize>,
    pub state: BlockState,
    /// See [`Records::inline`].
    pub stored: Bytes,
}

/// Whether a request by a layout of this generation may continue; asked under the lock of its
/// range, so that a fence waits for those that may.
fn check_fence(record: Option<&ObjectRecord>, layout_generation: u64) -> FsResult<()> {
    let fence = record.map_or(0, |record| record.fence);
    if layout_generation < fence { Err(FsError::LayoutChanged) } else { Ok(()) }
}

/// All results of an attempt that notes everything it misses; the first error.
pub(super) fn all<T>(results: impl Iterator<Item = FsResult<T>>) -> FsResult<Vec<T>> {
    let (mut values, mut failure) = (Vec::with_capacity(results.size_hint().0), None);
    for result in results {
        match result {
            Ok(value) => values.push(value),
            Err(error) => failure = failure.or(Some(error)),
        }
    }
    failure.map_or(Ok(values), Err)
}

impl<'a> Records<'a> {
    /// Value of a key.
    pub fn get(&self, table: Table, key: &[u8]) -> FsResult<Option<Bytes>> {
        self.reads.get(table, key).map_err(|error| self.store.kv_error(error))
    }

    /// As [`kv::Store::scan`].
    pub fn scan(
        &self,
        table: Table,
        from: &[u8],
        to: Option<&[u8]>,
        visit: &mut dyn FnMut(&[u8], &Bytes) -> bool,
    ) -> FsResult<()> {
        self.reads.scan(table, from, to, visit).map_err(|error| self.store.kv_error(error))
    }

    /// An object's record.
    pub fn object(&self, object: ObjectId) -> FsResult<Option<ObjectRecord>> {
        let decode =
            |bytes: Bytes| ObjectRecord::decode(&bytes).map_err(|error| self.store.damaged(object, error.damage));
        self.get(OBJECTS, &object_key(object))?.map(decode).transpose()
    }

    /// The records of several objects, which are loaded together.
    pub fn objects(&self, objects: &[ObjectId]) -> FsResult<Vec<Option<ObjectRecord>>> {
        all(objects.iter().map(|object| self.object(*object)))
    }

    /// The bitmap of an allocation group of the device.
    pub fn bitmap(&self, group: u32) -> FsResult<Box<[u8; BITMAP_BYTES]>> {
        let mut bitmap = Box::new([0; BITMAP_BYTES]);
        let mut wrong = None;
        self.scan(BITMAPS, &piece_key(group, 0), Some(&piece_key(group, u8::MAX)), &mut |key, value| {
            let place = parse_piece_key(key)
                .and_then(|(_, piece)| bitmap.as_chunks_mut::<PIECE_BYTES>().0.get_mut(usize::from(piece)));
            match (place, decode_piece(value)) {
                (Some(place), Ok(piece)) => *place = piece,
                (None, _) => wrong = Some(RecordDamage::Key(key.to_vec())),
                (_, Err(error)) => wrong = Some(error.damage),
            }
            wrong.is_none()
        })?;
        match wrong {
            None => Ok(bitmap),
            Some(damage) => {
                Err(Damage::new(format!("bitmap of group {group} of the device of {}", self.store.target), damage)
                    .into())
            }
        }
    }

    /// As [`Records::object`], for a request that needs the states of these blocks as well: they
    /// are loaded together.
    pub fn object_with(&self, object: ObjectId, blocks: &Range<u64>) -> FsResult<Option<ObjectRecord>> {
        let record = self.object(object);
        if record.is_err() {
            let chunks = ChunkRecord::of_block(blocks.start)..=ChunkRecord::of_block(blocks.end.saturating_sub(1));
            // The record's error says it already.
            let _ = self.need_chunks(object, chunks);
        }
        record
    }

    /// The object's record, if a layout of this generation may use it.
    pub fn permitted(
        &self,
        object: ObjectId,
        blocks: &Range<u64>,
        layout_generation: u64,
    ) -> FsResult<Option<ObjectRecord>> {
        let record = self.object_with(object, blocks)?;
        check_fence(record.as_ref(), layout_generation)?;
        Ok(record)
    }

    /// Whether a change by a layout of this generation may be made: see [`check_fence`], and it
    /// must not make an object that is gone. Asked under the lock of the change's range, for which
    /// the removal of the object waits. `record`: the object's.
    pub fn check_change(
        &self,
        object: ObjectId,
        record: Option<&ObjectRecord>,
        layout_generation: u64,
    ) -> FsResult<()> {
        check_fence(record, layout_generation)?;
        if self.is_gone(object, record) { Err(FsError::Stale) } else { Ok(()) }
    }

    /// Whether the object is gone, and not only missing.
    pub fn is_gone(&self, object: ObjectId, record: Option<&ObjectRecord>) -> bool {
        record.is_none() && self.store.volatile.lock().retired.contains(object)
    }

    /// The record of a chunk, to be looked at.
    fn known_chunk(&self, object: ObjectId, chunk: u64) -> FsResult<Arc<ChunkRecord>> {
        let Some(bytes) = self.get(CHUNKS, &part_key(object, chunk))? else { return Ok(Arc::default()) };
        if let Some(known) = self.store.chunk_cache.get(object, chunk, &bytes) {
            return Ok(known);
        }
        let record = Arc::new(self.decode_chunk(object, &bytes)?);
        self.store.chunk_cache.put(object, chunk, bytes, record.clone());
        Ok(record)
    }

    /// The record of a chunk, to be changed.
    pub fn taken_chunk(&self, object: ObjectId, chunk: u64) -> FsResult<Option<ChunkRecord>> {
        let Some(bytes) = self.get(CHUNKS, &part_key(object, chunk))? else { return Ok(None) };
        let known = self.store.chunk_cache.take(object, chunk, &bytes);
        known.map_or_else(|| self.decode_chunk(object, &bytes), Ok).map(Some)
    }

    /// The states of a chunk's blocks.
    pub fn chunk(&self, object: ObjectId, chunk: u64) -> FsResult<Option<ChunkRecord>> {
        let bytes = self.get(CHUNKS, &part_key(object, chunk))?;
        bytes.map(|bytes| self.decode_chunk(object, &bytes)).transpose()
    }

    fn decode_chunk(&self, object: ObjectId, bytes: &[u8]) -> FsResult<ChunkRecord> {
        ChunkRecord::decode(bytes).map_err(|error| self.store.damaged(object, error.damage))
    }

    /// The first chunk at or after `from` that has a record.
    pub fn next_chunk(&self, object: ObjectId, from: u64) -> FsResult<Option<(u64, ChunkRecord)>> {
        let mut found = None;
        let (from, to) = (part_key(object, from), part_key(object, u64::MAX));
        self.scan(CHUNKS, &from, Some(&to), &mut |key, value| {
            found = Some((parse_part_key(key).map_or(u64::MAX, |(_, chunk)| chunk), value.clone()));
            false
        })?;
        match found {
            None => Ok(None),
            Some((chunk, _)) if chunk > CHUNK_MAX => {
                Err(self.store.damaged(object, RecordDamage::OutOfRange("number of a chunk")))
            }
            Some((chunk, bytes)) => Ok(Some((chunk, self.decode_chunk(object, &bytes)?))),
        }
    }

    /// States of blocks, in order.
    pub fn block_states(&self, object: ObjectId, blocks: Range<u64>) -> FsResult<Vec<BlockState>> {
        if blocks.is_empty() {
            return Ok(Vec::new());
        }
        let numbers = ChunkRecord::of_block(blocks.start)..ChunkRecord::of_block(blocks.end - 1) + 1;
        let chunks = all(numbers.clone().map(|chunk| self.known_chunk(object, chunk)))?;
        Ok(blocks.map(|block| chunks[(ChunkRecord::of_block(block) - numbers.start) as usize].state(block)).collect())
    }

    /// Whether all these blocks hold data.
    pub fn hold_data(&self, object: ObjectId, blocks: &Range<u64>) -> FsResult<bool> {
        Ok(self.block_states(object, blocks.clone())?.iter().all(|state| *state != BlockState::Absent))
    }

    /// What table INLINE has of a block whose state is given, unverified; nothing if it is not
    /// inline.
    pub fn inline(&self, object: ObjectId, block: u64, state: BlockState) -> FsResult<Bytes> {
        if !state.is_inline() {
            return Ok(Bytes::new());
        }
        Ok(self.get(INLINE, &part_key(object, block))?.unwrap_or_default())
    }

    /// The same of several blocks.
    pub fn inlines(&self, object: ObjectId, first: u64, states: &[BlockState]) -> FsResult<Vec<Bytes>> {
        all((first..).zip(states).map(|(block, state)| self.inline(object, block, *state)))
    }

    /// Makes sure that these chunks can be read: they are loaded together.
    pub fn need_chunks(&self, object: ObjectId, chunks: impl Iterator<Item = u64>) -> FsResult<()> {
        let need = |chunk| self.reads.need(CHUNKS, &part_key(object, chunk));
        all(chunks.map(|chunk| need(chunk).map_err(|error| self.store.kv_error(error)))).map(drop)
    }

    /// The chunks of up to `blocks_max` inline blocks, the first at or after `from`, in order.
    pub fn inline_chunks(&self, object: ObjectId, from: u64, blocks_max: usize) -> FsResult<Vec<u64>> {
        let (mut chunks, mut blocks) = (Vec::new(), 0);
        let (from, to) = (part_key(object, from), part_key(object, u64::MAX));
        self.scan(INLINE, &from, Some(&to), &mut |key, _| {
            let block = parse_part_key(key).map_or(u64::MAX, |(_, block)| block);
            chunks.push(ChunkRecord::of_block(block));
            blocks += 1;
            blocks < blocks_max
        })?;
        chunks.dedup();
        match chunks.last() {
            Some(chunk) if *chunk > CHUNK_MAX => {
                Err(self.store.damaged(object, RecordDamage::OutOfRange("number of a block")))
            }
            _ => Ok(chunks),
        }
    }

    /// The block in which a range of bytes begins, if the range begins within it, or ends in it.
    pub fn edge(&self, object: ObjectId, range: Range<u64>) -> FsResult<Option<Edge>> {
        assert!(range.start <= range.end, "an edge is one of a range");
        let block = range.start / BLOCK_BYTES;
        let start = (range.start % BLOCK_BYTES) as usize;
        let end = (range.end - block * BLOCK_BYTES).min(BLOCK_BYTES) as usize;
        if (start == 0 && end == BLOCK) || start == end {
            return Ok(None);
        }
        let state = self.block_states(object, block..block + 1)?[0];
        Ok(Some(Edge { block, bytes: start..end, state, stored: self.inline(object, block, state)? }))
    }

    /// What a removal of blocks begins with: the edges of these ranges of bytes, which are in the
    /// blocks beside, and the first chunk of which it removes some, which is for the removal to
    /// find it loaded.
    pub fn removal(&self, object: ObjectId, blocks: &Range<u64>, edges: &[Range<u64>]) -> FsResult<Vec<Edge>> {
        let edges = all(edges.iter().map(|range| self.edge(object, range.clone())));
        if !blocks.is_empty() {
            self.next_chunk(object, ChunkRecord::of_block(blocks.start))?;
        }
        Ok(edges?.into_iter().flatten().collect())
    }

    /// The blocks that a write changes in part, at most its first and last.
    pub fn written_in_part(&self, object: ObjectId, offset: u64, bytes: u64) -> FsResult<Vec<Edge>> {
        assert!(bytes > 0, "an empty write changes no block");
        let (end, blocks) = (offset + bytes, blocks_of(offset, bytes));
        let last = (blocks.end - 1) * BLOCK_BYTES;
        let first = self.edge(object, offset..end);
        let second = if last > offset { self.edge(object, last..end) } else { Ok(None) };
        Ok(first?.into_iter().chain(second?).collect())
    }
}

impl DirectoryStore {
    /// The records for an attempt; without `loading`, all reads are made at once.
    pub(super) fn records<'a>(&'a self, loading: Option<&'a Loading>) -> Records<'a> {
        Records { store: self, reads: self.kv.reads(loading) }
    }

    /// Loads what an attempt missed.
    pub(super) async fn load_missed(&self, loading: &mut Loading) -> FsResult<()> {
        self.kv.load_missed(loading).await.map_err(|error| self.kv_error(error))
    }

    /// Looks at records.
    pub(super) async fn look<T>(
        &self,
        loading: &mut Loading,
        look: impl Fn(&Records<'_>) -> FsResult<T>,
    ) -> FsResult<T> {
        loop {
            let outcome = look(&self.records(Some(loading)));
            if !loading.is_given_up() {
                return outcome;
            }
            self.load_missed(loading).await?;
        }
    }

    /// Locks blocks and looks at records under the lock, for which no request has to wait while
    /// they are loaded. A request of `service` that waits for the lock gives its service thread
    /// back meanwhile.
    pub(super) async fn lock_and_look<T>(
        &self,
        (service, access): (&'static str, Access),
        (object, blocks): (ObjectId, Range<u64>),
        loading: &mut Loading,
        look: impl Fn(&Records<'_>) -> FsResult<T>,
    ) -> FsResult<(RangeGuard<'_>, T)> {
        loop {
            let request = match access {
                Access::Shared => self.locks.shared(object, blocks.clone()),
                Access::Exclusive => self.locks.exclusive(object, blocks.clone()),
            };
            let parked = if request.waits_without_thread() { self.service_threads.park(service) } else { None };
            let guard = request.await;
            drop(parked);
            let outcome = look(&self.records(Some(loading)));
            if !loading.is_given_up() {
                return outcome.map(|found| (guard, found));
            }
            drop(guard);
            self.load_missed(loading).await?;
        }
    }

    /// As [`Records::next_chunk`], for walks over the chunks of an object: those before `from` are
    /// done with.
    pub(super) async fn next_chunk(
        &self,
        loading: &mut Loading,
        object: ObjectId,
        from: u64,
    ) -> FsResult<Option<(u64, ChunkRecord)>> {
        loading.forget_before(CHUNKS, &part_key(object, from));
        self.look(loading, |records| records.next_chunk(object, from)).await
    }
}
