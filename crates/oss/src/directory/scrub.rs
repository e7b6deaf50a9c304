//! Scrub: reads all data in the background and compares them with their checksums
//! ([docs/decisions/0063](../../../../docs/decisions/0063-scrub.md)).
//!
//! A task goes through table CHUNKS in the order of its keys. Of each chunk it reads all blocks
//! without a lock. What is not as recorded may have changed meanwhile: it is read once more under
//! the shared range lock, with which readers exclude changes, block by block. What is still not as
//! recorded is damage.
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
use types::{FsResult, ObjectId, Timestamp, limits::BLOCK_BYTES};

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

/// A chunk that was looked at.
struct Checked {
    blocks: u64,
    /// Blocks of the object, in order.
    damaged: Vec<u64>,
}

impl DirectoryStore {
    /// Begins a scrub, or goes on with one; `anew`: from the beginning in any case.
    pub fn start_scrub(store: &Arc<Self>, anew: bool) {
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

    /// How far the scrub is, and what it found: a line each.
    pub fn scrub_report(&self) -> String {
        let total = self.volatile.lock().totals.blocks;
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
        let (is_busy, is_stopping) = (self.throughput.is_running(), self.is_stopping());
        let begun = self.seams.clock.now();
        let due_record = self.scrub.lock().due_record(begun, is_stopping);
        if let Some(bytes) = due_record {
            self.save_scrub(&bytes).await;
        }
        let turn = self.scrub.lock().turn(begun, is_busy, is_stopping);
        match turn {
            Turn::End => {
                // What changed while it was written down: the next task does it, or nobody.
                let late = self.scrub.lock().due_record(begun, false);
                if let Some(bytes) = late {
                    self.save_scrub(&bytes).await;
                }
                None
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
            Err(error) => {
                tracing::error!(target = %self.target, %error, "the scrub cannot read the tables");
                return self.end_scrub(run, ScrubStatus::Failed);
            }
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
            checked = self.check_chunk(object, chunk).await;
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
        if state.of_run(run).is_some_and(|record| record.status == ScrubStatus::Running) {
            state.end(status, now);
        }
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

    /// Compares all blocks of a chunk with their checksums.
    async fn check_chunk(&self, object: ObjectId, chunk: u64) -> Checked {
        let blocks = chunk * CHUNK_BLOCKS..(chunk + 1) * CHUNK_BLOCKS;
        if let Ok(checked) = self.compare_chunk(object, &blocks, 1).await
            && checked.damaged.is_empty()
        {
            return checked;
        }
        // Perhaps it changed meanwhile: now it cannot.
        let _guard = self.locks.shared(object, blocks.clone()).await;
        match self.compare_chunk(object, &blocks, usize::MAX).await {
            Ok(checked) => checked,
            // Its records cannot be read, so none of it can.
            Err(_) => Checked { blocks: CHUNK_BLOCKS, damaged: blocks.collect() },
        }
    }

    /// The same, as it is found now; it ends with so many damaged blocks.
    async fn compare_chunk(&self, object: ObjectId, blocks: &Range<u64>, damaged_max: usize) -> FsResult<Checked> {
        let look = |records: &Records<'_>| {
            let states = records.block_states(object, blocks.clone())?;
            let inline = records.inlines(object, blocks.start, &states)?;
            Ok((states, inline))
        };
        let (states, inline) = self.look(&mut Loading::default(), look).await?;
        let held = states.iter().filter(|state| **state != BlockState::Absent).count() as u64;
        let (mut damaged, mut at) = (Vec::new(), 0);
        for run in states.chunk_by(BlockState::is_followed_by) {
            let first = blocks.start + at as u64;
            self.compare_run(object, first, (run, &inline[at..at + run.len()]), &mut damaged).await;
            at += run.len();
            if damaged.len() >= damaged_max {
                break;
            }
        }
        Ok(Checked { blocks: held, damaged })
    }

    /// Compares blocks that follow each other, of which the first is given.
    async fn compare_run(
        &self,
        object: ObjectId,
        first: u64,
        (run, inline): (&[BlockState], &[Bytes]),
        damaged: &mut Vec<u64>,
    ) {
        match run[0] {
            BlockState::Absent => {}
            BlockState::Inline { .. } => {
                let differs = |(state, stored): (&BlockState, &Bytes)| {
                    let mut contents = [0; BLOCK];
                    let Some(part) = contents.get_mut(..stored.len()) else { return true };
                    part.copy_from_slice(stored);
                    state.checksum() != Some(crc32c(&contents))
                };
                let blocks = (first..).zip(run.iter().zip(inline));
                damaged.extend(blocks.filter_map(|(block, held)| differs(held).then_some(block)));
            }
            BlockState::InPlace { .. } | BlockState::OnDevice { .. } => {
                if let Ok(differing) = self.compare_outside_tables(object, first, run).await {
                    damaged.extend(differing);
                    return;
                }
                // Some of them cannot be read.
                for (block, state) in (first..).zip(run) {
                    match self.compare_outside_tables(object, block, std::slice::from_ref(state)).await {
                        Ok(differing) => damaged.extend(differing),
                        Err(_) => damaged.push(block),
                    }
                }
            }
        }
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
