//! Write-back: inline blocks of large objects move to their host files when there are many of them
//! or the target is idle. Small objects stay inline.
//!
//! A hand goes over all objects and their chunks in order, round and round, like that of a clock:
//! blocks that are written again and again, or cannot be moved, do not delay others.
//!
//! A round copies a few megabytes of one object: (1) collect inline blocks outside of tainted
//! ranges; (2) make their records durable; (3) write them to the host file; (4) flush it; (5) under
//! the range lock, record those that did not change meanwhile as in place. Requests continue during
//! 1-4: they never write such blocks in place (rule 1), and their changes are noted in
//! `copying`. Nothing is punched meanwhile, because a round and a commit exclude each other.
//! Between rounds, commits are made in time.
//!
//! On a device, the blocks get places that nothing refers to in step 3.
//!
//! A round that fails does no harm: the blocks stay inline, and the hand goes on to the next
//! object. (The host's file system may not support files as long as the object; a record may be
//! damaged.) A full device ends the turn.

use std::{ops::Bound, time::Duration};

use bytes::Bytes;
use kv::Loading;
use types::{FsError, FsResult, ObjectId, limits::BLOCK_BYTES};

use super::{
    BLOCK, DirectoryStore,
    device::{DEVICE_FILE, InProgress, Unplaced},
    device_space::DeviceSpace,
    host_file,
    host_file_state::HostFileState,
    records::Records,
    transaction::Transaction,
};
use crate::{
    chunk_record::{CHUNK_BLOCKS, CHUNK_RECORD_BYTES_MAX, ChunkRecord, DEVICE_CHUNK_RECORD_BYTES_MAX},
    tables::{INLINE, part_key},
};

/// Blocks copied in one round: 16 MiB, so that a commit waits for one flush of that at most.
const ROUND_BLOCKS_MAX: usize = 4096;
/// What moving a block adds to a batch besides the record of its chunk: a key of INLINE to delete.
const MOVED_BLOCK_BYTES: usize = 64;

/// Runs of an object from which on a round looks for one place for all of them.
const SCATTERED_RUNS_MIN: usize = 8;
/// Blocks of a run of the device that is long enough for some of them: 1 MiB.
const LONG_RUN_BLOCKS: usize = 256;
/// Runs of fewer blocks than this, on average, do: 64 KiB.
const SHORT_RUN_BLOCKS: usize = 16;

/// Inline blocks whose chunks are loaded together: about as many as a load has of them.
const BLOCKS_AHEAD: usize = 256;

/// The part of what may wait that may wait when a checkpoint is near.
const CHECKPOINT_PARTS: u64 = 8;

/// Rounds that fail are logged this often at most.
const COMPLAINT_INTERVAL: Duration = Duration::from_secs(60);

static ZEROS: [u8; BLOCK] = [0; BLOCK];

struct Copied {
    block: u64,
    checksum: u32,
    data: Bytes,
}

/// What a round did.
struct Round {
    /// Blocks that are in place now.
    moved: usize,
    /// The chunk at which to continue; `None`: the object has no more.
    next: Option<u64>,
}

impl DirectoryStore {
    /// Writes back until the backlog is within its budget; when idle, all of it.
    pub(super) async fn write_back_due(&self) -> FsResult<()> {
        let mut committed = self.seams.clock.now();
        let mut fruitless = 0;
        while let Some(place) = self.next_to_write_back(fruitless) {
            fruitless = self.write_back_at(place, fruitless).await?;
            let (now, interval) = (self.seams.clock.now(), self.options.lock().commit_interval);
            if now.since(committed) >= interval {
                self.commit_due().await;
                committed = now;
            }
        }
        Ok(())
    }

    /// A round failed: its object stays as it is. Said once in a while only, for it will be tried
    /// again and again.
    fn note_fruitless(&self, object: ObjectId, error: &FsError) -> Round {
        // If the tables or the device are done for, so is write-back.
        self.note_table_failure();
        if self.may_complain() {
            tracing::warn!(target = %self.target, %object, %error, "cannot write back an object");
        }
        Round { moved: 0, next: None }
    }

    /// Whether nothing was said of write-back for a while. The caller says something.
    pub(super) fn may_complain(&self) -> bool {
        let now = self.seams.clock.now();
        let mut volatile = self.volatile.lock();
        let due = volatile.write_back_told.is_none_or(|told| now.since(told) >= COMPLAINT_INTERVAL);
        if due {
            volatile.write_back_told = Some(now);
        }
        due
    }

    /// Writes back all that can be, due or not.
    pub(super) async fn write_back_all(&self) -> FsResult<()> {
        let mut fruitless = 0;
        loop {
            let place = self.hand(&self.volatile.lock(), fruitless);
            let Some(place) = place else { return Ok(()) };
            fruitless = self.write_back_at(place, fruitless).await?;
        }
    }

    /// One round; how many in a row have moved nothing then.
    async fn write_back_at(&self, (object, chunk): (ObjectId, u64), fruitless: usize) -> FsResult<usize> {
        let round = self.write_back(object, chunk, ROUND_BLOCKS_MAX).await;
        let next = round.as_ref().map_or(None, |round| round.next);
        self.volatile.lock().write_back_hand = (object, next);
        let round = match round {
            Err(FsError::NoSpace) => return Err(FsError::NoSpace),
            Err(error) => self.note_fruitless(object, &error),
            Ok(round) => round,
        };
        Ok(if round.moved > 0 { 0 } else { fruitless + 1 })
    }

    /// Whether a round is due, and possible.
    pub(super) fn is_write_back_due(&self) -> bool {
        self.next_to_write_back(0).is_some()
    }

    /// Where the next round is to be; `None` if none is due, or possible.
    fn next_to_write_back(&self, fruitless: usize) -> Option<(ObjectId, u64)> {
        let volatile = self.volatile.lock();
        let options = self.options.lock();
        let idle = self.seams.clock.now().since(volatile.last_change) >= options.write_back_idle;
        if idle || self.is_backlog_over(&volatile, options.write_back_bytes) {
            self.hand(&volatile, fruitless)
        } else {
            None
        }
    }

    /// Whether more waits than may. Less may when a checkpoint is near, which would write it to the
    /// cold store.
    fn is_backlog_over(&self, volatile: &HostFileState, bytes_max: u64) -> bool {
        let bytes = volatile.backlog_blocks.saturating_mul(BLOCK_BYTES);
        bytes > bytes_max || (bytes > bytes_max / CHECKPOINT_PARTS && self.kv.is_checkpoint_near())
    }

    /// Lets the task write back if more waits than may.
    pub(super) fn want_write_back(&self) {
        let bytes_max = self.options.lock().write_back_bytes;
        if self.is_backlog_over(&self.volatile.lock(), bytes_max) {
            self.wanted.notify_one();
        }
    }

    /// Where the hand is; `None` if nothing waits, or if so many rounds moved nothing that all
    /// objects had one.
    fn hand(&self, volatile: &HostFileState, fruitless: usize) -> Option<(ObjectId, u64)> {
        if volatile.failure.is_some() || self.is_stopping() || fruitless > volatile.backlog.len() {
            return None;
        }
        match volatile.write_back_hand {
            (object, Some(chunk)) if volatile.backlog.contains_key(&object) => Some((object, chunk)),
            (last, _) => {
                let following = volatile.backlog.range((Bound::Excluded(last), Bound::Unbounded)).next();
                following.or_else(|| volatile.backlog.iter().next()).map(|(object, _)| (*object, 0))
            }
        }
    }

    /// One round for one object, from this chunk on.
    async fn write_back(&self, object: ObjectId, chunk: u64, blocks_max: usize) -> FsResult<Round> {
        let _turn = self.committing.lock().await;
        let loading = &mut Loading::default();
        if self.look(loading, |records| records.object(object)).await?.is_none() {
            return Ok(Round { moved: 0, next: None });
        }
        if !self.has_device() {
            // First, so that from now on removed blocks are tainted.
            self.update(loading, object, |transaction| {
                transaction.in_background();
                if transaction.exists() {
                    transaction.note_host_file();
                }
                Ok(())
            })
            .await?;
        }
        self.volatile.lock().copying = Some((object, Default::default()));
        let round = self.write_back_round(object, chunk, blocks_max).await;
        self.volatile.lock().copying = None;
        let is_ahead = |round: &Round| round.next.is_none_or(|next| next > chunk);
        assert!(round.as_ref().ok().is_none_or(is_ahead), "a round of write-back goes ahead in its object");
        round
    }

    async fn write_back_round(&self, object: ObjectId, chunk: u64, blocks_max: usize) -> FsResult<Round> {
        let (copied, next) = self.collect_inline(object, chunk, blocks_max).await?;
        if copied.is_empty() {
            return Ok(Round { moved: 0, next });
        }
        let lsn = self.volatile.lock().last_lsn;
        self.durable(lsn).await?;
        Ok(Round { moved: self.move_copied(object, copied).await?, next })
    }

    /// Writes copies, whose records are durable, to their places, and records them; how many.
    async fn move_copied(&self, object: ObjectId, mut copied: Vec<Copied>) -> FsResult<usize> {
        let (Some(first), Some(last)) = (copied.first(), copied.last()) else { return Ok(0) };
        let blocks = first.block..last.block + 1;
        assert!(first.block <= last.block, "blocks are copied in order");
        let mut in_progress = InProgress::new(self);
        let addresses = if self.has_device() {
            self.copy_to_device(object, &mut copied, &mut in_progress).await?
        } else {
            self.copy_to_file(object, &copied).await?;
            Vec::new()
        };
        let _guard = self.locks.exclusive(object, blocks).await;
        let moved = self.record_moved(object, &copied, &addresses, &mut in_progress).await?;
        if moved < copied.len() {
            self.drop_windows_if_removed(object).await?;
        }
        Ok(moved)
    }

    /// Writes copies to the host file, and flushes it.
    async fn copy_to_file(&self, object: ObjectId, copied: &[Copied]) -> FsResult<()> {
        let file = host_file(object);
        for run in copied.chunk_by(|a, b| a.block + 1 == b.block) {
            let written = self.device.write(&file, run[0].block * BLOCK_BYTES, padded(run)).await;
            written.map_err(|error| self.device_error("writing an object back", &error))?;
        }
        self.device.flush(&file).await.map_err(|error| self.poison("flushing an object", &error))
    }

    /// Writes copies to new places on the device, which are returned, and flushes it. Those for
    /// which there are no free blocks are left out: a later round has them.
    async fn copy_to_device(
        &self,
        object: ObjectId,
        copied: &mut Vec<Copied>,
        in_progress: &mut InProgress,
    ) -> FsResult<Vec<u64>> {
        let loading = &mut Loading::default();
        let size = self.look(loading, |records| records.object(object)).await?.map_or(0, |record| record.size);
        let mut addresses = self.long_runs_for(loading, copied, in_progress).await?;
        let unplaced = &copied[addresses.len()..];
        let follows = |block: u64, next: u64| block + 1 == next && !next.is_multiple_of(CHUNK_BLOCKS);
        for run in unplaced.chunk_by(|a, b| follows(a.block, b.block)) {
            let blocks = run[0].block..run[0].block + run.len() as u64;
            let unplaced = Unplaced { object, blocks, size, after: addresses.last().copied() };
            match self.allocate_on_device(loading, &unplaced, in_progress).await {
                Ok(places) => addresses.extend(places),
                Err(FsError::NoSpace) if !addresses.is_empty() => break,
                Err(error) => return Err(error),
            }
        }
        copied.truncate(addresses.len());
        let mut at = 0;
        for run in addresses.chunk_by(|a, b| a + 1 == *b) {
            self.write_to_device(in_progress, run[0], padded(&copied[at..at + run.len()])).await?;
            at += run.len();
        }
        self.device.flush(DEVICE_FILE).await.map_err(|error| self.poison("flushing the device", &error))?;
        Ok(addresses)
    }

    /// Places for copies many of which are short runs of the object, in long runs of the device:
    /// one if there is such a one, else more, and none for the last copies if all that are left
    /// are short. Each run of the object by itself would get its place in a window of the object,
    /// at a distance from the next, and be a request of its own.
    async fn long_runs_for(
        &self,
        loading: &mut Loading,
        copied: &[Copied],
        in_progress: &mut InProgress,
    ) -> FsResult<Vec<u64>> {
        let runs = copied.chunk_by(|a, b| a.block + 1 == b.block).count();
        if runs < SCATTERED_RUNS_MIN || copied.len() / runs >= SHORT_RUN_BLOCKS {
            return Ok(Vec::new());
        }
        let (mut places, mut length) = (Vec::with_capacity(copied.len()), copied.len());
        while places.len() < copied.len() {
            length = length.min(copied.len() - places.len());
            let ask = |device: &mut DeviceSpace| device.allocate_run(length as u32, None);
            match self.ask_allocator(loading, ask).await {
                Ok(Some(run)) => {
                    in_progress.add(run.clone());
                    places.extend(run);
                }
                Ok(None) | Err(FsError::NoSpace) if length / 2 >= LONG_RUN_BLOCKS => length /= 2,
                Ok(None) | Err(FsError::NoSpace) => break,
                Err(error) => return Err(error),
            }
        }
        Ok(places)
    }

    /// Contents of inline blocks that may be written to the host file, in order, and the chunk at
    /// which to continue. Damaged ones stay where they are: reading them names them.
    async fn collect_inline(
        &self,
        object: ObjectId,
        from: u64,
        blocks_max: usize,
    ) -> FsResult<(Vec<Copied>, Option<u64>)> {
        let loading = &mut Loading::default();
        let mut copied = Vec::new();
        let mut next = from.saturating_mul(CHUNK_BLOCKS);
        loop {
            loading.forget_before(INLINE, &part_key(object, next));
            let find = |records: &Records<'_>| {
                let chunks = records.inline_chunks(object, next, BLOCKS_AHEAD)?;
                records.need_chunks(object, chunks.iter().copied())?;
                Ok(chunks)
            };
            let chunks = self.look(loading, find).await?;
            let Some(last) = chunks.last().copied() else { return Ok((copied, None)) };
            for chunk in chunks {
                if copied.len() >= blocks_max {
                    return Ok((copied, Some(chunk)));
                }
                copied.extend(self.look(loading, |records| self.copy_chunk(records, object, chunk)).await?);
            }
            next = (last + 1) * CHUNK_BLOCKS;
        }
    }

    /// What [`DirectoryStore::collect_inline`] takes of one chunk.
    fn copy_chunk(&self, records: &Records<'_>, object: ObjectId, chunk: u64) -> FsResult<Vec<Copied>> {
        // Under the mutex, so that states and contents belong together.
        let volatile = self.volatile.lock();
        let record = records.chunk(object, chunk)?.unwrap_or_default();
        let first = chunk * CHUNK_BLOCKS;
        let inline = records.inlines(object, first, record.states())?;
        let mut copied = Vec::new();
        for ((block, state), stored) in (first..).zip(record.states()).zip(&inline) {
            let Some(checksum) = state.checksum().filter(|_| state.is_inline()) else { continue };
            if volatile.is_tainted(object, &(block..block + 1)) {
                continue;
            }
            let mut contents = vec![0; BLOCK];
            if self.fill_inline(object, block, (*state, stored), &mut contents).is_ok() {
                copied.push(Copied { block, checksum, data: contents.into() });
            }
        }
        Ok(copied)
    }

    /// Records the copies whose blocks did not change; returns how many. `addresses`: their places
    /// on the device, if there is one.
    async fn record_moved(
        &self,
        object: ObjectId,
        copied: &[Copied],
        addresses: &[u64],
        in_progress: &mut InProgress,
    ) -> FsResult<usize> {
        let loading = &mut Loading::default();
        let mut moved = 0;
        let mut at = 0;
        while at < copied.len() {
            let chunk_bytes = if self.has_device() { DEVICE_CHUNK_RECORD_BYTES_MAX } else { CHUNK_RECORD_BYTES_MAX };
            let blocks = copied[at..].iter().map(|copy| copy.block);
            let part = &copied[at..at + moved_part(blocks, self.batch_bytes, (MOVED_BLOCK_BYTES, chunk_bytes))];
            let places = addresses.get(at..at + part.len()).unwrap_or_default();
            at += part.len();
            let (mut moved_now, mut named) = (0, Vec::new());
            let record = |transaction: &mut Transaction<'_>| {
                transaction.in_background();
                // The table gets smaller by it.
                transaction.use_reserve();
                (moved_now, named) = (0, Vec::new());
                transaction.need(part.iter().map(|copy| copy.block))?;
                for (index, copy) in part.iter().enumerate() {
                    if transaction.changed_since_copied(copy.block) {
                        continue;
                    }
                    match places.get(index) {
                        Some(address) => {
                            transaction.move_to_device(copy.block, copy.checksum, *address)?;
                            named.push(*address);
                        }
                        None => transaction.move_in_place(copy.block, copy.checksum)?,
                    }
                    moved_now += 1;
                }
                Ok(())
            };
            self.update(loading, object, record).await?;
            in_progress.recorded(named.into_iter());
            moved += moved_now;
        }
        assert!(moved <= copied.len(), "only copied blocks are moved");
        Ok(moved)
    }
}

/// Contents of whole blocks.
fn padded(copied: &[Copied]) -> Vec<Bytes> {
    let pieces = copied.iter().flat_map(|copy| {
        let padding = Bytes::from_static(&ZEROS[copy.data.len()..]);
        [copy.data.clone(), padding].into_iter().filter(|piece| !piece.is_empty())
    });
    pieces.collect()
}

/// How many of these blocks are recorded by one batch, at least one: each of them adds so many
/// bytes at most, and each chunk among them has its record written again, of so many bytes at most.
pub(super) fn moved_part(
    blocks: impl Iterator<Item = u64>,
    bytes_max: usize,
    (block_bytes, chunk_bytes_max): (usize, usize),
) -> usize {
    let (mut bytes, mut chunk) = (0, None);
    let fits = blocks.take_while(|block| {
        let of_block = Some(ChunkRecord::of_block(*block));
        bytes += block_bytes + if chunk == of_block { 0 } else { chunk_bytes_max };
        chunk = of_block;
        bytes <= bytes_max
    });
    fits.count().max(1)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use types::InodeNumber;

    use super::*;
    use crate::{
        Engine, OstOptions,
        directory::test_store::{OBJECT, TestStore, quiet},
    };

    const CHUNK_BYTES: u64 = CHUNK_BLOCKS * BLOCK_BYTES;
    const OTHER: ObjectId = ObjectId::new(InodeNumber(10), 3);

    /// One block in each chunk of a large object is as much for the journal as whole chunks.
    #[test]
    fn parts_fit_a_batch_however_sparse_the_blocks() {
        const BATCH: usize = 1 << 20;
        let sparse = || (0..4096).map(|chunk| chunk * CHUNK_BLOCKS);
        let sizes = (MOVED_BLOCK_BYTES, CHUNK_RECORD_BYTES_MAX);
        let part = moved_part(sparse(), BATCH, sizes);
        assert!(part > 200 && part * (CHUNK_RECORD_BYTES_MAX + MOVED_BLOCK_BYTES) <= BATCH, "{part}");
        assert_eq!(moved_part(0..4096, BATCH, sizes), 4096);
        assert_eq!(moved_part(sparse(), 1, sizes), 1);
    }

    #[tokio::test]
    async fn the_hand_goes_round_and_on_where_it_was() {
        let test = TestStore::new(OstOptions { write_back_idle: Duration::ZERO, ..quiet() }).await;
        let store = test.store();
        for chunk in 0..3 {
            test.write_inline(OBJECT, chunk * CHUNK_BYTES).await;
        }
        test.write_inline(OTHER, CHUNK_BYTES).await;
        let at = |hand| {
            store.volatile.lock().write_back_hand = hand;
            store.next_to_write_back(0)
        };
        assert_eq!(at((OBJECT, None)), Some((OTHER, 0)));
        assert_eq!(at((OTHER, None)), Some((OBJECT, 0)), "around");
        assert_eq!(at((OBJECT, Some(2))), Some((OBJECT, 2)));
        assert_eq!(store.next_to_write_back(3), None, "nothing moved in a whole turn");
        for (chunk, next) in [(0, Some(1)), (1, Some(2)), (2, None)] {
            let round = store.write_back(OBJECT, chunk, 1).await.unwrap();
            assert_eq!((round.moved, round.next), (8, next));
        }
        assert_eq!(at((OBJECT, Some(2))), Some((OTHER, 0)), "done with");
    }

    /// Write-back is not a change whose end others wait for.
    #[tokio::test]
    async fn an_idle_store_writes_back_everything_at_once() {
        let test = TestStore::new(OstOptions { write_back_idle: Duration::from_secs(5), ..quiet() }).await;
        for object in [OBJECT, OTHER] {
            test.write_inline(object, CHUNK_BYTES).await;
        }
        test.store().write_back_due().await.unwrap();
        assert_eq!(test.store().volatile.lock().backlog.len(), 2, "not idle yet");
        test.pass(Duration::from_secs(5));
        test.store().write_back_due().await.unwrap();
        assert_eq!(test.store().volatile.lock().backlog.len(), 0);
    }

    /// They would be kept for 30 s, and be as large as the object was.
    #[tokio::test]
    async fn an_object_that_is_removed_while_it_is_written_back_has_no_windows() {
        let test = TestStore::with_engine(Engine::on_device(1 << 15), quiet()).await;
        let store = test.store();
        let in_windows = || store.volatile.lock().device.as_ref().unwrap().counts().in_windows;
        test.write_inline(OBJECT, CHUNK_BYTES).await;
        let (copied, _) = store.collect_inline(OBJECT, 0, ROUND_BLOCKS_MAX).await.unwrap();
        assert_eq!(copied.len(), 8);
        store.volatile.lock().copying = Some((OBJECT, Default::default()));
        // While it waits for the journal.
        store.destroy_objects(&[OBJECT]).await.unwrap();
        assert_eq!(store.move_copied(OBJECT, copied).await, Ok(0));
        assert_eq!(in_windows(), 0);
        // One that exists keeps its window.
        test.write_inline(OTHER, CHUNK_BYTES).await;
        assert_eq!(store.write_back(OTHER, 0, ROUND_BLOCKS_MAX).await.unwrap().moved, 8);
        assert!(in_windows() > 0);
    }

    /// Else any user could stop it for all, with one block far out.
    #[tokio::test]
    async fn an_object_that_cannot_be_written_back_holds_up_no_other() {
        let test = TestStore::new(OstOptions { audits: false, write_back_idle: Duration::ZERO, ..quiet() }).await;
        let store = test.store();
        for object in [OBJECT, OTHER] {
            test.write_inline(object, CHUNK_BYTES).await;
        }
        let damage = |_: &super::super::HostFileState| {
            let mut batch = kv::Batch::default();
            batch.put(crate::tables::CHUNKS, Bytes::copy_from_slice(&part_key(OBJECT, 1)), vec![0xff; 3]);
            batch
        };
        store.apply_marked(damage).await.unwrap();
        for _ in 0..2 {
            store.write_back_due().await.unwrap();
            assert_eq!(store.volatile.lock().backlog.keys().collect::<Vec<_>>(), [&OBJECT]);
        }
        let too_large = store.device_error("writing an object back", &std::io::ErrorKind::FileTooLarge.into());
        assert_eq!(too_large, FsError::FileTooLarge);
    }

    #[tokio::test]
    async fn commits_come_in_time_while_much_is_written_back() {
        let options =
            OstOptions { write_back_idle: Duration::ZERO, commit_interval: Duration::from_nanos(1), ..quiet() };
        let test = TestStore::new(options).await;
        test.write_inline(OBJECT, CHUNK_BYTES).await;
        test.write(OTHER, 0, vec![7; 64 << 10]).await;
        assert_eq!(test.store().dirty_files(), 1);
        test.store().write_back_due().await.unwrap();
        assert_eq!(test.store().dirty_files(), 0, "what was written in place is flushed");
    }
}
