//! Merging the pieces of objects on the device that are read
//! ([docs/decisions/0060](../../../../docs/decisions/0060-defragmentation.md)).
//!
//! Reads of 64 KiB and more note in how many pieces they found their blocks. When the readers of a
//! section have lost as much as moving it costs, the pieces that are worth it become one.
//!
//! A round moves blocks of one section: (1) look at its records, and get a free run; (2) read the
//! pieces, and compare their checksums; (3) write the run, and flush it; (4) under the range lock,
//! record the new places of the blocks that did not change meanwhile, as flushed. Requests continue
//! during 1-3. Their changes are noted in `copying`, and what they free is not given out, because a
//! round and a commit exclude each other.
//!
//! A crash before the records leaves free blocks; after them, the former places are intact until
//! the records are durable.
//!
//! A turn ends when its interval has passed, or when write-back is due: the next one commits and
//! writes back before it moves on.
//!
//! Downside: a commit waits for a round, of which reading takes 250 ms at most.

use std::time::Duration;

use blocks::{Merge, Piece, Pieces, Section, choose_merge};
use bytes::Bytes;
use kv::Loading;
use rpc::checksum::crc32c;
use rt::Instant;
use types::{FsError, FsResult, ObjectId};

use super::{
    BLOCK, DirectoryStore,
    defrag_state::Left,
    device::{DEVICE_FILE, InProgress},
    device_space::DeviceSpace,
    device_statistics::NO_DEVICE,
    overwrite::tables_bytes,
    records::Records,
    transaction::{Transaction, device::RUN_BYTES},
    write_back::moved_part,
};
use crate::{
    chunk_record::{BlockState, DEVICE_CHUNK_RECORD_BYTES_MAX},
    options::IN_PLACE_BYTES_MIN,
};

/// Readings of at least so many blocks are those of which pieces matter: smaller ones need one
/// positioning wherever their blocks are.
const READ_BLOCKS_MIN: usize = IN_PLACE_BYTES_MIN as usize / BLOCK;

/// How long a round reads: a commit may wait for it.
const READ_TIME: Duration = Duration::from_millis(250);

/// Sections that are looked at in one turn, at most.
const LOOKS_MAX: usize = 256;

/// What a moved block adds to a batch besides the record of its chunk, at most: its old place and
/// its new one.
const MOVED_BLOCK_BYTES: usize = 2 * RUN_BYTES;

/// What became of a section.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    /// These pieces are one, but for blocks that changed meanwhile, for so much of what was lost.
    Merged {
        pieces: u64,
        moved: u64,
        changed: u64,
        price: u64,
    },
    /// Readers have to lose more for it to be moved.
    NotPaid {
        price: u64,
    },
    Left(Left),
}

/// A section, as it was found.
struct Found {
    section: Section,
    states: Vec<BlockState>,
    pieces: Pieces,
    /// Where the block before it is.
    address_before: Option<u64>,
}

/// A block that was copied.
#[derive(Clone, Copy)]
struct Copied {
    block: u64,
    checksum: u32,
    from: u64,
}

impl DirectoryStore {
    /// A request read these blocks, the first of which is given.
    pub(super) fn note_pieces(&self, object: ObjectId, first: u64, states: &[BlockState]) {
        if states.len() < READ_BLOCKS_MIN || !self.has_device() {
            return;
        }
        let is_in_pieces =
            states.windows(2).any(|pair| pair[0].address().is_some() && !pair[0].is_followed_by(&pair[1]));
        if is_in_pieces && self.options.lock().defrag_bytes_per_second > 0 {
            self.defrag.lock().note_read(object, first, states);
        }
    }

    /// What was moved and what was left alone, a line for each number.
    pub fn defrag_stats(&self) -> String {
        if self.has_device() { self.defrag.lock().describe() } else { NO_DEVICE.to_owned() }
    }

    /// Counts from 0 again.
    pub fn reset_defrag_stats(&self) {
        self.defrag.lock().counts = Default::default();
    }

    /// Why pieces cannot be merged, if they cannot.
    pub fn refuses_defrag(&self) -> Option<&'static str> {
        (!self.has_device()).then_some(NO_DEVICE)
    }

    /// The rest of a turn that began then: merges what is due, as far as the budget and the load
    /// allow. A turn that has no time left looks at one section.
    pub(super) async fn defragment_due(&self, begun: Instant) {
        if !self.has_device() || self.is_too_busy() {
            return;
        }
        // What write-back has left could not be moved, or is being written.
        let left_behind = self.is_write_back_due();
        for _ in 0..LOOKS_MAX {
            let Some((section, lost)) = self.next_section() else { return };
            if self.waits_for_space() {
                self.commit_due().await;
            }
            let outcome = match self.merge_section(section, lost).await {
                Ok(outcome) => outcome,
                Err(FsError::NoSpace) => Outcome::Left(Left::NoRun),
                Err(error) => self.note_unmerged(section.object, &error),
            };
            self.note_outcome(section, lost, outcome);
            if self.seams.clock.now().since(begun) >= self.options.lock().commit_interval {
                return;
            }
            if !left_behind && self.is_write_back_due() {
                // Now, not when the interval ends.
                self.wanted.notify_one();
                return;
            }
        }
    }

    /// The most blocks that the next move may take.
    fn room_for_move(&self) -> u64 {
        let volatile = self.volatile.lock();
        volatile.device.as_ref().map_or(0, |device| device.room_for_move(volatile.backlog_blocks))
    }

    /// Whether there would be more room after a commit, as on a small or full device.
    fn waits_for_space(&self) -> bool {
        let volatile = self.volatile.lock();
        volatile.device.as_ref().is_some_and(|device| device.move_waits_for_commit(volatile.backlog_blocks))
    }

    /// A section could not be merged, and stays as it is.
    fn note_unmerged(&self, object: ObjectId, error: &FsError) -> Outcome {
        // If the tables or the device are done for, this was the last attempt.
        self.note_table_failure();
        if self.may_complain() {
            tracing::warn!(target = %self.target, %object, %error, "cannot merge pieces of an object");
        }
        Outcome::Left(Left::Failed)
    }

    fn note_outcome(&self, section: Section, lost: u64, outcome: Outcome) {
        let mut state = self.defrag.lock();
        match outcome {
            Outcome::Left(why) => state.leave(why),
            Outcome::NotPaid { price } => state.put_back(section, lost, price),
            Outcome::Merged { pieces, moved, changed, price } => {
                // With the rest, other pieces of the section are paid for.
                state.give_back(section, lost.saturating_sub(price));
                state.counts.blocks_moved += moved;
                state.counts.blocks_changed += changed;
                if changed > 0 {
                    state.leave(Left::Changing);
                } else {
                    state.counts.merges += 1;
                    state.counts.pieces_before += pieces;
                }
            }
        }
    }

    /// Whether requests kept the device so busy since the last turn that nothing is to be moved.
    fn is_too_busy(&self) -> bool {
        let now = self.seams.clock.now();
        let percent_max = self.options.lock().defrag_busy_percent;
        let mut state = self.defrag.lock();
        let percent = state.load_percent(now, self.throughput.busy(now));
        let is_too_busy = percent > percent_max && percent_max < 100;
        if is_too_busy && state.is_due() {
            state.counts.turns_busy += 1;
        }
        is_too_busy
    }

    /// The next section to be looked at, and what its readers have lost.
    fn next_section(&self) -> Option<(Section, u64)> {
        let (rate, percent_max, interval) = {
            let options = self.options.lock();
            (options.defrag_bytes_per_second, options.defrag_busy_percent, options.commit_interval)
        };
        let mut state = self.defrag.lock();
        if rate == 0 {
            state.forget();
            return None;
        }
        let yields = percent_max < 100 && self.throughput.is_running();
        if yields || self.is_stopping() || self.volatile.lock().failure.is_some() {
            return None;
        }
        state.next(self.seams.clock.now(), rate, interval)
    }

    /// One round for one section.
    async fn merge_section(&self, section: Section, lost: u64) -> FsResult<Outcome> {
        let _turn = self.committing.lock().await;
        self.volatile.lock().copying = Some((section.object, Default::default()));
        let outcome = self.merge_in_turn(section, lost).await;
        self.volatile.lock().copying = None;
        outcome
    }

    async fn merge_in_turn(&self, section: Section, lost: u64) -> FsResult<Outcome> {
        let loading = &mut Loading::default();
        let found = match self.look(loading, |records| self.find_section(records, section)).await? {
            Ok(found) => found,
            Err(why) => return Ok(Outcome::Left(why)),
        };
        let pieces = found.pieces.as_slice();
        let Some(wanted) = choose_merge(pieces, u64::MAX) else { return Ok(Outcome::Left(Left::NoGain)) };
        let Some(merge) = choose_merge(pieces, wanted.blocks.min(self.room_for_move())) else {
            return Ok(Outcome::Left(Left::NoRun));
        };
        if lost < merge.price() {
            return Ok(Outcome::NotPaid { price: merge.price() });
        }
        let _grant = self.reserve(tables_bytes(&(0..merge.blocks), true)).await?;
        let mut in_progress = InProgress::new(self);
        let before = merge.pieces.start.checked_sub(1).map(|number| pieces[number].device.end - 1);
        let goal = before.or(found.address_before).map(|before| before + 1);
        let ask = |device: &mut DeviceSpace| device.allocate_run(merge.blocks as u32, goal);
        let Some(run) = self.ask_allocator(loading, ask).await? else { return Ok(Outcome::Left(Left::NoRun)) };
        in_progress.add(run.clone());
        self.move_pieces(&found, &merge, run.start, &mut in_progress).await
    }

    /// A section, if it may be moved.
    fn find_section(&self, records: &Records<'_>, section: Section) -> FsResult<Result<Found, Left>> {
        // Under the mutex, so that states and epochs belong together.
        let volatile = self.volatile.lock();
        let (object, blocks) = (section.object, section.blocks());
        if records.object_with(object, &blocks)?.is_none() {
            return Ok(Err(Left::NoGain));
        }
        let (address_before, states) = self.states_with_address_before(records, object, &blocks)?;
        let flushed = volatile.flushed_epoch(object);
        let mut pieces = Pieces::default();
        for (block, state) in blocks.zip(&states) {
            match *state {
                BlockState::Absent => {}
                BlockState::OnDevice { epoch, address, .. } if epoch <= flushed => pieces.push(block, address),
                BlockState::OnDevice { .. } | BlockState::InPlace { .. } | BlockState::Inline { .. } => {
                    return Ok(Err(Left::Changing));
                }
            }
        }
        Ok(Ok(Found { section, states, pieces, address_before }))
    }

    /// Steps 2 to 4, to the run that begins with `to`.
    async fn move_pieces(
        &self,
        found: &Found,
        merge: &Merge,
        to: u64,
        in_progress: &mut InProgress,
    ) -> FsResult<Outcome> {
        let object = found.section.object;
        let (mut copied, mut contents, mut pieces): (Vec<Copied>, Vec<Bytes>, u64) = Default::default();
        let end = self.seams.clock.now() + READ_TIME;
        for piece in &found.pieces.as_slice()[merge.pieces.clone()] {
            if pieces > 0 && self.seams.clock.now() >= end {
                break;
            }
            // Also if it turns out to be damaged, or is not moved for another reason.
            self.defrag.lock().spend(piece.device.end - piece.device.start);
            contents.push(self.read_piece(found, piece, &mut copied).await?);
            pieces += 1;
        }
        let (Some(first), Some(last)) = (copied.first(), copied.last()) else { return Ok(Outcome::Left(Left::NoGain)) };
        if pieces < 2 {
            return Ok(Outcome::Left(Left::Slow));
        }
        let blocks = first.block..last.block + 1;
        self.write_to_device(in_progress, to, contents).await?;
        self.device.flush(DEVICE_FILE).await.map_err(|error| self.poison("flushing the device", &error))?;
        self.load_groups(copied.iter().map(|copy| copy.from)).await?;
        let _guard = self.locks.exclusive(object, blocks).await;
        let moved = self.record_places(object, &copied, to, in_progress).await?;
        Ok(Outcome::Merged { pieces, moved, changed: copied.len() as u64 - moved, price: merge.price() })
    }

    /// Reads a piece, and notes its blocks, which have their checksums.
    async fn read_piece(&self, found: &Found, piece: &Piece, copied: &mut Vec<Copied>) -> FsResult<Bytes> {
        let (object, first) = (found.section.object, found.section.blocks().start);
        let data = self.read_device(piece.device.start, (piece.device.end - piece.device.start) as usize).await?;
        let state = |block: u64| &found.states[(block - first) as usize];
        let held = piece.logical.clone().filter_map(|block| Some((block, state(block).checksum()?)));
        for (((block, checksum), from), bytes) in held.zip(piece.device.clone()).zip(data.chunks_exact(BLOCK)) {
            if checksum != crc32c(bytes) {
                return Err(self.corrupt(object, block));
            }
            copied.push(Copied { block, checksum, from });
        }
        Ok(data)
    }

    /// Records the new places, from `to` on, of the blocks that did not change; returns how many.
    async fn record_places(
        &self,
        object: ObjectId,
        copied: &[Copied],
        to: u64,
        in_progress: &mut InProgress,
    ) -> FsResult<u64> {
        let (loading, mut moved, mut at) = (&mut Loading::default(), 0, 0);
        while at < copied.len() {
            let blocks = copied[at..].iter().map(|copy| copy.block);
            let sizes = (MOVED_BLOCK_BYTES, DEVICE_CHUNK_RECORD_BYTES_MAX);
            let part = &copied[at..at + moved_part(blocks, self.batch_bytes, sizes)];
            let to = to + at as u64;
            at += part.len();
            let mut named: Vec<u64> = Vec::new();
            let record = |transaction: &mut Transaction<'_>| {
                transaction.in_background();
                named.clear();
                transaction.need(part.iter().map(|copy| copy.block))?;
                for (copy, to) in part.iter().zip(to..) {
                    if !transaction.changed_since_copied(copy.block) {
                        transaction.move_on_device(copy.block, copy.checksum, (copy.from, to))?;
                        named.push(to);
                    }
                }
                Ok(())
            };
            self.update(loading, object, record).await?;
            moved += named.len() as u64;
            in_progress.recorded(named.into_iter());
        }
        Ok(moved)
    }
}

#[cfg(test)]
mod tests {
    use std::{
        collections::BTreeSet,
        pin::pin,
        task::{Context, Waker},
    };

    use rpc::message::ost::{Read, SpaceChange};

    use super::*;
    use crate::{
        Engine, OstOptions,
        directory::test_store::{OBJECT, TestStore, quiet},
        store::ObjectStore,
        throughput::Direction,
    };

    const KIB: u64 = 1 << 10;
    const MIB: u64 = 1 << 20;
    const OTHER: ObjectId = ObjectId::new(types::InodeNumber(10), 0);
    /// 512 MiB.
    const DEVICE: Engine = Engine::on_device(1 << 17);
    const PIECE: u64 = 64 * KIB;

    /// A store whose only object is in pieces of 64 KiB, in so many sections.
    async fn in_pieces(options: OstOptions, sections: u64) -> TestStore {
        let test = TestStore::with_engine(DEVICE, options).await;
        write_in_pieces(&test, sections).await;
        read_all(&test, sections).await;
        test
    }

    async fn write_in_pieces(test: &TestStore, sections: u64) {
        fill(test, OBJECT, sections * 8 * MIB).await;
        test.store().commit().await.unwrap();
        for offset in (0..sections * 8 * MIB).step_by(2 * PIECE as usize) {
            test.write(OBJECT, offset, vec![7; PIECE as usize]).await;
        }
        test.store().commit().await.unwrap();
    }

    async fn fill(test: &TestStore, object: ObjectId, bytes: u64) {
        for offset in (0..bytes).step_by(MIB as usize) {
            test.write(object, offset, vec![7; MIB.min(bytes - offset) as usize]).await;
        }
    }

    /// Where the blocks of a section of the object are.
    async fn addresses(test: &TestStore, section: u64) -> Vec<u64> {
        let blocks = Section { object: OBJECT, number: section }.blocks();
        let look = |records: &Records<'_>| records.block_states(OBJECT, blocks.clone());
        let states = test.store().look(&mut Loading::default(), look).await.unwrap();
        states.iter().filter_map(BlockState::address).collect()
    }

    async fn read_all(test: &TestStore, sections: u64) {
        for offset in (0..sections * 8 * MIB).step_by(4 << 20) {
            let read = Read { object: OBJECT, offset, bytes: 4 << 20, layout_generation: 0 };
            test.store().read(read).await.unwrap();
        }
    }

    fn moved(test: &TestStore) -> u64 {
        test.store().defrag.lock().counts.blocks_moved * 4096
    }

    /// On average: a move is never cut for it.
    #[tokio::test]
    async fn the_budget_is_kept_over_time() {
        let rate = 2 * MIB;
        let options = OstOptions { defrag_bytes_per_second: rate, commit_interval: Duration::from_secs(1), ..quiet() };
        let test = in_pieces(options, 4).await;
        let begun = test.store().seams.clock.now();
        for second in 0..11 {
            let before = moved(&test);
            test.ost.work().await;
            let (moved, passed) = (moved(&test), test.store().seams.clock.now().since(begun));
            // A second is saved at the beginning, and a move may begin while a byte is left.
            let allowed = (passed.as_millis() as u64 + 1000) * rate / 1000 + 8 * MIB;
            assert!(moved - before <= 8 * MIB && moved <= allowed, "{moved} after {passed:?}");
            assert!(moved >= second * rate, "{moved} after {second} s");
            test.pass(Duration::from_secs(1));
        }
    }

    #[tokio::test]
    async fn nothing_is_moved_while_requests_keep_the_device_busy() {
        let options = OstOptions { defrag_bytes_per_second: 1 << 30, defrag_busy_percent: 50, ..quiet() };
        let test = in_pieces(options, 1).await;
        let store = test.store();
        let clock = &*store.seams.clock;
        store.defrag.lock().load_percent(clock.now(), store.throughput.busy(clock.now()));
        // Two seconds of three, and nothing at this moment.
        let busy = store.throughput.begin(Direction::Read, clock);
        test.pass(Duration::from_secs(2));
        drop(busy);
        test.pass(Duration::from_secs(1));
        test.ost.work().await;
        assert_eq!((moved(&test), store.defrag.lock().counts.turns_busy), (0, 1));
        // A third, and one request at this moment.
        let busy = store.throughput.begin(Direction::Write, clock);
        test.pass(Duration::from_secs(1));
        drop(busy);
        test.pass(Duration::from_secs(2));
        let busy = store.throughput.begin(Direction::Read, clock);
        test.ost.work().await;
        assert_eq!(moved(&test), 0);
        drop(busy);
        test.pass(Duration::from_secs(1));
        test.ost.work().await;
        assert_eq!((moved(&test), store.defrag.lock().counts.turns_busy), (8 * MIB, 1));
        // Whatever the load is.
        let options = OstOptions { defrag_busy_percent: 100, ..store.options.lock().clone() };
        let test = in_pieces(options, 1).await;
        let _busy = test.store().throughput.begin(Direction::Read, &*test.store().seams.clock);
        test.pass(Duration::from_secs(1));
        test.ost.work().await;
        assert_eq!(moved(&test), 8 * MIB);
    }
    /// Else commits, write-back and discards would wait for minutes for a slow device.
    #[tokio::test]
    async fn a_turn_ends_with_its_interval() {
        let interval = Duration::from_secs(1);
        let options = OstOptions { defrag_bytes_per_second: 1 << 30, commit_interval: interval, ..quiet() };
        let test = in_pieces(options, 4).await;
        let clock = &*test.store().seams.clock;
        test.slow_down(Duration::from_millis(20));
        let begun = clock.now();
        test.ost.work().await;
        let passed = clock.now().since(begun);
        assert!(passed >= interval && passed < interval + 2 * READ_TIME, "{passed:?}");
        assert!(moved(&test) > MIB && moved(&test) < 8 * MIB, "{}", moved(&test));
        // No time is left: one look.
        let merges = || test.store().defrag.lock().counts.merges;
        let before = merges();
        test.store().defragment_due(begun).await;
        assert_eq!(merges() - before, 1);
    }

    #[tokio::test]
    async fn a_turn_ends_when_write_back_is_due() {
        let idle = Duration::from_secs(2);
        let options = OstOptions { defrag_bytes_per_second: 1 << 30, write_back_idle: idle, ..quiet() };
        // All that is short is inline.
        let options = OstOptions { overwrite_bytes_min: IN_PLACE_BYTES_MIN, ..options };
        let test = in_pieces(options, 4).await;
        let store = test.store();
        test.write_inline(OTHER, MIB).await;
        test.slow_down(Duration::from_millis(20));
        let begun = store.seams.clock.now();
        test.ost.work().await;
        let passed = store.seams.clock.now().since(begun);
        assert!(passed < idle + 2 * READ_TIME && moved(&test) > MIB, "{passed:?}: {}", moved(&test));
        assert_eq!(store.volatile.lock().backlog.len(), 1);
        // It has woken the task.
        for _ in 0..1000 {
            tokio::task::yield_now().await;
        }
        assert_eq!(store.volatile.lock().backlog.len(), 0);
        // What cannot be written back does not keep pieces from being merged.
        test.slow_down(Duration::ZERO);
        test.write_inline(OTHER, MIB).await;
        test.pass(idle);
        read_all(&test, 4).await;
        store.defragment_due(store.seams.clock.now()).await;
        assert!(store.is_write_back_due() && !store.defrag.lock().is_due(), "all of it is merged");
    }

    /// All free runs have 1 MiB: there are none for a section, before a commit and after it.
    #[tokio::test]
    async fn commits_do_not_help_where_free_runs_are_short() {
        let device = Engine::on_device(96 * 256);
        let options = OstOptions { defrag_bytes_per_second: 1 << 30, ..quiet() };
        let test = TestStore::with_engine(device, options).await;
        let store = test.store();
        write_in_pieces(&test, 1).await;
        let rest = store.volatile.lock().device.as_ref().unwrap().available(0) * BLOCK as u64;
        fill(&test, OTHER, rest).await;
        for mib in (0..80).step_by(2) {
            let change = SpaceChange::Punch { offset: mib * MIB, bytes: MIB };
            store.change_object(OTHER, change, Default::default(), None).await.unwrap();
        }
        store.commit().await.unwrap();
        read_all(&test, 1).await;
        let marked = || store.volatile.lock().marked;
        let before = marked();
        store.defragment_due(store.seams.clock.now()).await;
        let (commits, merges) = (marked() - before, store.defrag.lock().counts.merges);
        assert!(merges >= 7 && commits == 0, "{commits} commits for {merges} merges");
    }

    /// A device that is read without an end would be the busier the more of it is damaged.
    #[tokio::test]
    async fn what_is_read_in_vain_is_paid_for() {
        let options = OstOptions { defrag_bytes_per_second: 4 * MIB, ..quiet() };
        let test = in_pieces(options, 2).await;
        let last = *addresses(&test, 0).await.last().unwrap();
        test.objects.flip_bit(DEVICE_FILE, last * BLOCK as u64 + 17, 3);
        test.ost.work().await;
        assert_eq!(moved(&test), 0);
        assert!(test.store().defrag.lock().is_due(), "the other section has to wait");
        test.pass(Duration::from_secs(2));
        test.ost.work().await;
        assert_eq!(moved(&test), 8 * MIB);
    }

    /// Writes to the section wait for the range lock.
    #[tokio::test]
    async fn groups_are_loaded_before_the_range_lock() {
        let options = OstOptions { defrag_bytes_per_second: 1 << 30, ..quiet() };
        let test = TestStore::with_engine(DEVICE, options).await;
        let store = test.store();
        let device = |act: &mut dyn FnMut(&mut DeviceSpace)| act(store.volatile.lock().device.as_mut().unwrap());
        fill(&test, OBJECT, 8 * MIB).await;
        store.commit().await.unwrap();
        // A piece whose blocks are overwritten cannot follow the one before it.
        for group in [3, 2, 1] {
            device(&mut |device| device.set_last_group(group).unwrap());
            for offset in (group * PIECE..8 * MIB).step_by(4 * PIECE as usize) {
                test.write(OBJECT, offset, vec![7; PIECE as usize]).await;
            }
        }
        device(&mut |device| device.drop_windows(OBJECT).unwrap());
        store.commit().await.unwrap();
        read_all(&test, 1).await;
        let addresses = addresses(&test, 0).await;
        let groups: BTreeSet<u32> = addresses.iter().map(|address| (address >> 15) as u32).collect();
        let loaded = || {
            let mut loaded = 0;
            device(&mut |device| loaded = groups.iter().filter(|group| device.is_loaded(**group)).count());
            loaded
        };
        device(&mut DeviceSpace::unload);
        assert_eq!((groups.len(), loaded()), (4, 0));
        let reader = store.locks.shared(OBJECT, 0..1).await;
        let mut turn = pin!(store.defragment_due(store.seams.clock.now()));
        assert!(turn.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending(), "it waits for the reader");
        assert_eq!(loaded(), 4);
        drop(reader);
        turn.await;
        assert_eq!(moved(&test), 8 * MIB);
    }
}
