//! Scrub: reads all data in the background and compares them with their checksums
//! ([docs/decisions/0063](../../../../docs/decisions/0063-scrub.md)).
//!
//! A task goes through table CHUNKS in the order of its keys. Of each chunk it reads all blocks
//! without a lock. What is not as recorded may have changed meanwhile: it is read once more under
//! the shared range lock, with which readers exclude changes. What is still not as recorded is
//! damage. What cannot be read is then read block by block: a disk may try each for seconds, so
//! the lock is held for one block at a time, and the scrub ends between two of them if it is to.
//!
//! Nothing is changed but the record of the scrub itself.
//!
//! Downside: the order is that of the objects, not of the device, so that small objects cost a
//! positioning each. In host files, what the host has in memory is compared, not what its disk has.

use std::{
    ops::Range,
    sync::{Arc, Weak},
    time::Duration,
};

use bytes::Bytes;
use kv::{Batch, Loading};
use rpc::checksum::crc32c;
use types::{FsError, FsResult, ObjectId, Timestamp, limits::BLOCK_BYTES};

use super::{BLOCK, DirectoryStore, records::Records, scrub_state::Turn};
use crate::{
    chunk_record::{BlockState, CHUNK_BLOCKS, CHUNK_MAX},
    scrub_record::{ScrubRecord, ScrubStatus},
    superblock::SCRUB_KEY,
    tables::{CHUNKS, META, parse_part_key},
};

/// Between two turns, so that other tasks of the core run.
const TURN_PAUSE: Duration = Duration::from_micros(100);
/// What is said of a target that was never scrubbed.
const NEVER: &str = "init";

/// A chunk, or a part of one, that was looked at.
struct Checked {
    blocks: u64,
    /// Blocks of the object, in order.
    damaged: Vec<u64>,
}

/// States of blocks, and what table INLINE has of each.
type Held = (Vec<BlockState>, Vec<Bytes>);

impl DirectoryStore {
    /// Begins a scrub, or goes on with one; `anew`: from the beginning in any case.
    pub fn start_scrub(store: &Arc<Self>, anew: bool) {
        if store.is_stopping() {
            return;
        }
        let now = store.wall();
        {
            let mut state = store.scrub.lock();
            if state.is_running() && !anew {
                return;
            }
            state.start(anew, now);
        }
        Self::ensure_scrub_task(store);
    }

    /// Stops a scrub, which can go on later.
    pub fn stop_scrub(&self) {
        self.scrub.lock().stop(self.wall());
        self.scrub_wanted.notify_one();
    }

    /// What the scrub does, in a word.
    pub fn scrub_status(&self) -> &'static str {
        self.scrub.lock().record().map_or(NEVER, |record| record.status.name())
    }

    pub(crate) fn blocks_with_data(&self) -> u64 {
        self.volatile.lock().totals.blocks
    }

    /// The present scrub, or the last one.
    pub(crate) fn last_scrub(&self) -> Option<ScrubRecord> {
        self.scrub.lock().record().cloned()
    }

    /// How far the scrub is, and what it found: a line each.
    pub fn scrub_report(&self) -> String {
        let total = self.blocks_with_data();
        let state = self.scrub.lock();
        state.record().map_or_else(|| format!("{:<17}{NEVER}", "status"), |record| record.describe(total))
    }

    /// At the opening: goes on with what ran.
    pub(super) fn resume_scrub(store: &Arc<Self>) -> FsResult<()> {
        match store.meta(SCRUB_KEY)?.map(|bytes| ScrubRecord::decode(&bytes)) {
            None => return Ok(()),
            Some(Ok(record)) => store.scrub.lock().set(record),
            // Nothing depends on it.
            Some(Err(error)) => tracing::error!(target = %store.target, %error, "forgetting the last scrub"),
        }
        Self::ensure_scrub_task(store);
        Ok(())
    }

    /// Begins a scrub if one is due by itself.
    pub(super) fn start_due_scrub(store: &Arc<Self>) {
        let interval = store.options.lock().auto_scrub;
        let is_due = store.scrub.lock().is_due(interval, store.wall());
        if is_due {
            Self::start_scrub(store, false);
        }
    }

    fn ensure_scrub_task(store: &Arc<Self>) {
        if !store.scrub.lock().takes_task() {
            store.scrub_wanted.notify_one();
            return;
        }
        let (clock, wanted) = (store.seams.clock.clone(), store.scrub_wanted.clone());
        let weak: Weak<Self> = Arc::downgrade(store);
        let running = store.tasks.subscribe();
        let task = async move {
            let _running = running;
            loop {
                let Some(store) = weak.upgrade() else { return };
                let Some(wait) = store.scrub_turn().await else { return };
                drop(store);
                let until = clock.now() + wait.max(TURN_PAUSE);
                tokio::select! {
                    biased;
                    () = wanted.notified() => {}
                    () = clock.sleep_until(until) => {}
                }
            }
        };
        store.seams.spawn.spawn("ost-scrub", Box::pin(task));
    }

    /// One turn of the task; how long to wait for the next, or that there is none.
    async fn scrub_turn(&self) -> Option<Duration> {
        let is_busy = self.throughput.is_running();
        let turn = self.scrub.lock().turn(self.seams.clock.now(), is_busy, self.is_stopping());
        match turn {
            Turn::End => None,
            Turn::Save(bytes) => {
                self.save_scrub(&bytes).await;
                Some(Duration::ZERO)
            }
            Turn::Wait(time) => Some(time),
            Turn::Read(after, run) => {
                self.scrub_next(after, run).await;
                Some(Duration::ZERO)
            }
        }
    }

    /// Looks at the chunk after this key.
    async fn scrub_next(&self, after: Vec<u8>, run: u64) {
        let begun = self.seams.clock.now();
        let key = match self.chunk_after(&after).await {
            Ok(key) => key,
            Err(error) => return self.fail_scrub(run, &error),
        };
        let Some(key) = key else {
            self.end_scrub(run, ScrubStatus::Completed);
            let report = self.scrub_report().replace('\n', ", ");
            tracing::info!(target = %self.target, report, "scrub completed");
            return;
        };
        // Whose key it is nobody knows: `stria fsck` tells of it.
        let place = parse_part_key(&key).filter(|(_, chunk)| *chunk <= CHUNK_MAX);
        let mut checked = Checked { blocks: 0, damaged: Vec::new() };
        if let Some((object, chunk)) = place {
            checked = match self.check_chunk(object, chunk, run).await {
                Ok(Some(checked)) => checked,
                // It is looked at again when the scrub goes on.
                Ok(None) => return,
                Err(error) => return self.fail_scrub(run, &error),
            };
        }
        let rate = self.options.lock().scrub_bytes_per_second;
        let mut state = self.scrub.lock();
        state.spend(begun, checked.blocks.max(1) * BLOCK_BYTES, rate);
        let Some(record) = state.of_run(run) else { return };
        record.position = key;
        record.blocks += checked.blocks;
        let Some((object, _)) = place else { return };
        for blocks in checked.damaged.chunk_by(|one, next| one + 1 == *next) {
            let range = blocks[0]..blocks[0] + blocks.len() as u64;
            if record.note_damage(object, range.clone()) {
                let [start, end] = [range.start, range.end].map(|block| block * BLOCK_BYTES);
                tracing::error!(target = %self.target, %object, start, end, "the scrub found damaged data");
            }
        }
        if !checked.damaged.is_empty() {
            state.save_soon();
        }
    }

    fn end_scrub(&self, run: u64, status: ScrubStatus) {
        let now = self.wall();
        let mut state = self.scrub.lock();
        if state.goes_on(run) {
            state.end(status, now);
        }
    }

    /// The tables cannot be read. That says nothing about the data.
    fn fail_scrub(&self, run: u64, error: &FsError) {
        if !self.is_stopping() {
            tracing::error!(target = %self.target, %error, "the scrub cannot read the tables");
            self.end_scrub(run, ScrubStatus::Failed);
        }
    }

    /// Whether what is read for a run is still wanted.
    fn scrub_goes_on(&self, run: u64) -> bool {
        !self.is_stopping() && self.scrub.lock().goes_on(run)
    }

    /// The first key of table CHUNKS after this one.
    async fn chunk_after(&self, after: &[u8]) -> FsResult<Option<Vec<u8>>> {
        let mut from = after.to_vec();
        if !from.is_empty() {
            from.push(0);
        }
        let find = |records: &Records<'_>| {
            let mut found = None;
            records.scan(CHUNKS, &from, None, &mut |key, _| {
                found = Some(key.to_vec());
                false
            })?;
            Ok(found)
        };
        self.look(&mut Loading::default(), find).await
    }

    /// Compares all blocks of a chunk with their checksums. `None`: the scrub is not to go on.
    async fn check_chunk(&self, object: ObjectId, chunk: u64, run: u64) -> FsResult<Option<Checked>> {
        let blocks = chunk * CHUNK_BLOCKS..(chunk + 1) * CHUNK_BLOCKS;
        let Ok(held) = self.look_at_blocks(object, &blocks).await else {
            // Perhaps it was removed meanwhile.
            return self.check_locked(object, blocks, run).await;
        };
        let Some((mut suspects, unreadable)) = self.compare(object, blocks.start, &held, run).await else {
            return Ok(None);
        };
        suspects.extend(unreadable);
        let mut checked = Checked { blocks: count_of_held(&held.0), damaged: Vec::new() };
        for blocks in suspects {
            // Perhaps they changed meanwhile: now they cannot.
            let Some(found) = self.check_locked(object, blocks, run).await? else { return Ok(None) };
            checked.damaged.extend(found.damaged);
        }
        checked.damaged.sort_unstable();
        Ok(Some(checked))
    }

    /// The same of some blocks of a chunk, as readers would find them.
    async fn check_locked(&self, object: ObjectId, blocks: Range<u64>, run: u64) -> FsResult<Option<Checked>> {
        let guard = self.locks.shared(object, blocks.clone()).await;
        let held = match self.look_at_blocks(object, &blocks).await {
            Ok(held) => held,
            // Their records cannot be decoded, so none of them can be read.
            Err(FsError::Damaged(_)) => {
                return Ok(Some(Checked { blocks: blocks.end - blocks.start, damaged: blocks.collect() }));
            }
            Err(error) => return Err(error),
        };
        let Some((differing, unreadable)) = self.compare(object, blocks.start, &held, run).await else {
            return Ok(None);
        };
        drop(guard);
        let mut damaged: Vec<u64> = differing.into_iter().flatten().collect();
        for block in unreadable.into_iter().flatten() {
            if blocks.end - blocks.start == 1 {
                damaged.push(block);
                continue;
            }
            let one = Box::pin(self.check_locked(object, block..block + 1, run));
            let Some(found) = one.await? else { return Ok(None) };
            damaged.extend(found.damaged);
        }
        damaged.sort_unstable();
        Ok(Some(Checked { blocks: count_of_held(&held.0), damaged }))
    }

    /// What the tables have of blocks.
    async fn look_at_blocks(&self, object: ObjectId, blocks: &Range<u64>) -> FsResult<Held> {
        let look = |records: &Records<'_>| {
            let states = records.block_states(object, blocks.clone())?;
            let inline = records.inlines(object, blocks.start, &states)?;
            Ok((states, inline))
        };
        self.look(&mut Loading::default(), look).await
    }

    /// Those of the blocks from this one on that do not have their checksums, and runs that cannot
    /// be read. `None`: the scrub is not to go on.
    async fn compare(
        &self,
        object: ObjectId,
        first: u64,
        (states, inline): &Held,
        run: u64,
    ) -> Option<(Vec<Range<u64>>, Vec<Range<u64>>)> {
        let (mut differing, mut unreadable, mut at) = (Vec::new(), Vec::new(), 0);
        for states in states.chunk_by(BlockState::is_followed_by) {
            let blocks = first + at as u64..first + (at + states.len()) as u64;
            let inline = &inline[at..at + states.len()];
            at += states.len();
            if states[0] == BlockState::Absent {
                continue;
            }
            if !self.scrub_goes_on(run) {
                return None;
            }
            match self.compare_run(object, blocks.clone(), (states, inline)).await {
                Ok(found) => differing.extend(found.chunk_by(|a, b| a + 1 == *b).map(|part| {
                    let start = part[0];
                    start..start + part.len() as u64
                })),
                Err(_) => unreadable.push(blocks),
            }
        }
        Some((differing, unreadable))
    }

    /// Those of blocks that follow each other in one place that do not have their checksums.
    async fn compare_run(
        &self,
        object: ObjectId,
        blocks: Range<u64>,
        (states, inline): (&[BlockState], &[Bytes]),
    ) -> FsResult<Vec<u64>> {
        if !states[0].is_inline() {
            return self.compare_outside_tables(object, blocks.start, states).await;
        }
        let differs = |(state, stored): (&BlockState, &Bytes)| {
            let mut contents = [0; BLOCK];
            let Some(part) = contents.get_mut(..stored.len()) else { return true };
            part.copy_from_slice(stored);
            state.checksum() != Some(crc32c(&contents))
        };
        let differing = blocks.zip(states.iter().zip(inline));
        Ok(differing.filter_map(|(block, held)| differs(held).then_some(block)).collect())
    }

    /// Those of these blocks that do not have their checksums.
    async fn compare_outside_tables(&self, object: ObjectId, first: u64, run: &[BlockState]) -> FsResult<Vec<u64>> {
        let blocks = first..first + run.len() as u64;
        let data = self.read_outside_tables(object, blocks.clone(), run).await?;
        let contents = blocks.zip(run).zip(data.chunks_exact(BLOCK));
        let differs = contents.filter(|((_, state), contents)| state.checksum() != Some(crc32c(contents)));
        Ok(differs.map(|((block, _), _)| block).collect())
    }

    /// Writes down how far it is. Without it, a restart goes on from where it was before.
    async fn save_scrub(&self, bytes: &[u8]) {
        if self.volatile.lock().failure.is_some() {
            return;
        }
        let put = |_: &_| {
            let mut batch = Batch::default();
            batch.put(META, Bytes::from_static(SCRUB_KEY), bytes.to_vec());
            batch
        };
        if let Err(error) = self.apply_marked(put).await
            && self.may_complain()
        {
            tracing::warn!(target = %self.target, %error, "cannot write down how far the scrub is");
        }
    }

    fn wall(&self) -> Timestamp {
        self.seams.clock.wall()
    }
}

/// How many of these blocks hold data.
fn count_of_held(states: &[BlockState]) -> u64 {
    states.iter().filter(|state| **state != BlockState::Absent).count() as u64
}
