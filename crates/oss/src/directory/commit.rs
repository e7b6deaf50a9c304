//! Making changes durable: the commit, `sync` of single objects, and the changes of host files
//! after a commit.
//!
//! A commit ends the epoch, flushes every file written in it, applies the mark, makes the journal
//! durable, and only then frees the space of blocks that were removed before it started.
//!
//! On a device there is one flush for all of them, and the blocks that were freed before the commit
//! started become free, or wait for their discard.
//!
//! Records that the mark makes obsolete are deleted after it, in batches of bounded size: keys that
//! a crash leaves name files that are flushed already.
//!
//! A commit waits for each file that was written before it started, [`FLUSHES_MAX`] at a time;
//! writers do not wait for it. So an acknowledged change is durable after no more than the interval
//! (or the duration of the commit in progress, if that is longer) plus the duration of the next
//! commit. [`DirectoryStore::undurable_age`] returns the age.
//!
//! After a failed flush no more changes are accepted: the kernel may have dropped the data and
//! forgotten the error, so a second flush could succeed falsely. Space for the mark comes from the
//! journal's reserve.

use std::{
    collections::BTreeMap,
    io,
    ops::Range,
    sync::{Arc, Weak, atomic::Ordering},
};

use bytes::Bytes;
use kv::{Batch, Lsn};
use types::{FsError, FsResult, ObjectId, limits::BLOCK_BYTES};

use super::{
    DirectoryStore,
    device::DEVICE_FILE,
    host_file,
    host_file_state::{DirtyFile, HostFileState, HostWork},
    overlap::overlap,
};
use crate::{
    superblock::{MARK_KEY, Mark},
    tables::{DIRTY, FLUSHED, META, PENDING, object_key, part_key},
    throughput::Direction,
};

/// Keys deleted by one batch: 200 KiB, far below what a batch may have.
pub(super) const DELETES_PER_BATCH: usize = 4096;

/// Host files that are flushed at a time. Measured on ext4 with 500 files of 128 KiB, fdatasync one
/// after the other takes 0.7 to 1.5 s, 8 at a time 0.13 to 0.19 s, 32 at a time 0.05 to 0.18 s, one
/// syncfs 0.06 to 0.08 s, which also waits for whatever else the file system holds.
pub const FLUSHES_MAX: usize = 32;
/// Host files whose space is given back at a time: few, since these are jobs of the threads that
/// serve requests.
const REMOVALS_MAX: usize = 4;

/// What a commit has to do, decided under the mutex.
struct Plan {
    epoch: u64,
    files: Vec<ObjectId>,
}

impl DirectoryStore {
    /// Everything acknowledged before this is durable when it returns.
    pub(super) async fn commit(&self) -> FsResult<()> {
        let _turn = self.committing.lock().await;
        let (plan, lsn, areas) = {
            let mut open = self.areas.stop_writes().await;
            let mut volatile = self.volatile.lock();
            self.check_usable(&volatile)?;
            volatile.age_synced();
            let plan = plan_commit(&mut volatile);
            let areas = if plan.is_some() { self.areas.close(&mut open) } else { 0 };
            (plan, volatile.last_lsn, areas)
        };
        let Some(Plan { epoch, files }) = plan else {
            return self.durable(lsn).await;
        };
        self.flush_files(files, areas > 0).await?;
        let marked = self.mark(epoch).await?;
        self.durable(marked).await?;
        self.release_freed(lsn);
        self.areas.flushed(areas);
        self.finish_removals(epoch).await
    }

    /// Flushes host files, several at a time: a commit takes no longer than the device needs,
    /// however many they are. A device is flushed for areas that are closed, too: what was written
    /// there may belong to objects that are removed.
    async fn flush_files(&self, objects: Vec<ObjectId>, has_areas: bool) -> FsResult<()> {
        if objects.is_empty() && !has_areas {
            return Ok(());
        }
        let _busy = self.throughput.begin(Direction::Write, &*self.seams.clock);
        if self.has_device() {
            let flushed = self.device.flush(DEVICE_FILE).await;
            return flushed.map_err(|error| self.poison("flushing the device", &error));
        }
        let flushes = objects.into_iter().map(|object| self.device.flush(&host_file(object)));
        overlap(flushes, FLUSHES_MAX).await.map_err(|error| self.poison("flushing an object", &error))
    }

    /// Makes the mark, and deletes what it makes obsolete.
    async fn mark(&self, epoch: u64) -> FsResult<Lsn> {
        let obsolete = Obsolete::by_mark(&self.volatile.lock(), epoch);
        let (first, rest) = obsolete.split_at(obsolete.len().min(DELETES_PER_BATCH));
        let marked = self
            .apply_marked(|volatile| {
                let mut batch = Batch::default();
                batch.put(META, Bytes::from_static(MARK_KEY), Mark { epoch }.encode());
                Obsolete::delete(first, volatile, epoch, &mut batch);
                batch
            })
            .await;
        self.end_commit(epoch, marked.is_ok());
        let mut lsn = marked?;
        for part in rest.chunks(DELETES_PER_BATCH) {
            lsn = self
                .apply_marked(|volatile| {
                    let mut batch = Batch::default();
                    Obsolete::delete(part, volatile, epoch, &mut batch);
                    batch
                })
                .await?;
        }
        Ok(lsn)
    }

    /// Takes over whether the mark was made; without it the files of the epoch stay dirty.
    fn end_commit(&self, epoch: u64, marked: bool) {
        let mut volatile = self.volatile.lock();
        let flushing = std::mem::take(&mut volatile.flushing);
        let since = volatile.flushing_since.take();
        if marked {
            volatile.note_marked(epoch);
        } else {
            merge_dirty(&mut volatile.dirty, flushing);
            volatile.unmarked_since = since.or(volatile.unmarked_since);
        }
    }

    /// Everything acknowledged for these objects is durable when it returns.
    pub(super) async fn sync_objects(&self, objects: &[ObjectId]) -> FsResult<()> {
        let (unflushed, epoch) = {
            let mut volatile = self.volatile.lock();
            self.check_usable(&volatile)?;
            volatile.synced[0].extend(objects);
            let unflushed = objects.iter().copied().filter(|object| volatile.is_unflushed(*object));
            let unflushed: Vec<ObjectId> = unflushed.collect();
            let epoch = if unflushed.is_empty() { 0 } else { volatile.end_epoch() };
            (unflushed, epoch)
        };
        self.flush_files(unflushed.clone(), false).await?;
        unflushed.iter().for_each(|object| self.note_flushed(*object, epoch));
        let lsn = self.volatile.lock().last_lsn;
        self.durable(lsn).await
    }

    /// Remembers that a file was flushed by itself. Without room in the journal it is only flushed
    /// once more.
    fn note_flushed(&self, object: ObjectId, epoch: u64) {
        let mut volatile = self.volatile.lock();
        if volatile.flushed_epoch(object) >= epoch {
            return;
        }
        let mut batch = Batch::default();
        batch.put(FLUSHED, Bytes::copy_from_slice(&object_key(object)), epoch.to_be_bytes().to_vec());
        if let Ok(lsn) = self.kv.apply(batch) {
            volatile.note_applied(lsn);
            volatile.note_flushed(object, epoch);
        }
    }

    pub(super) async fn durable(&self, lsn: Lsn) -> FsResult<()> {
        self.kv.durable(lsn).await.map_err(|error| self.kv_error(error))
    }

    /// Applies a batch that gives space back or makes things durable, built under the mutex.
    pub(super) async fn apply_marked(&self, build: impl Fn(&HostFileState) -> Batch + Send) -> FsResult<Lsn> {
        loop {
            let outcome = {
                let mut volatile = self.volatile.lock();
                let applied = self.kv.apply_reserved(build(&volatile));
                if let Ok(lsn) = &applied {
                    volatile.note_applied(*lsn);
                }
                applied
            };
            match outcome {
                Ok(lsn) => return Ok(lsn),
                Err(kv::Error::Overloaded) => self.kv.ready().await.map_err(|error| self.kv_error(error))?,
                Err(error) => return Err(self.kv_error(error)),
            }
        }
    }

    /// The removals of `epoch` and before are durable: the host files follow, then their ranges may
    /// be written again.
    async fn finish_removals(&self, epoch: u64) -> FsResult<()> {
        let removals = {
            let volatile = self.volatile.lock();
            assert!(epoch <= volatile.marked, "space is given back after the mark of its removal");
            volatile.taints_through(epoch)
        };
        let due = removals.into_iter().filter(|(_, _, taint)| taint.work == HostWork::GiveBack);
        let work = due.map(|(object, blocks, _)| async move {
            if let Err(error) = self.give_back(object, blocks.clone()).await {
                if blocks == (0..u64::MAX) {
                    // The next start looks for it.
                    self.has_unreferenced.store(true, Ordering::Release);
                }
                tracing::warn!(target = %self.target, %object, ?blocks, %error, "cannot free space");
            }
            Ok::<(), FsError>(())
        });
        overlap(work, REMOVALS_MAX).await?;
        let done = |(number, removed): (&u64, &u64)| (*removed <= epoch).then_some(*number);
        let numbers: Vec<u64> = self.volatile.lock().pending.iter().filter_map(done).collect();
        for part in numbers.chunks(DELETES_PER_BATCH) {
            self.apply_marked(|_| {
                let mut batch = Batch::default();
                part.iter().for_each(|number| batch.delete(PENDING, Bytes::copy_from_slice(&number.to_be_bytes())));
                batch
            })
            .await?;
        }
        let mut volatile = self.volatile.lock();
        volatile.pending.retain(|_, removed| *removed > epoch);
        volatile.lift_taints(epoch);
        self.space.forget();
        Ok(())
    }

    /// Gives the space of a range of the host file back. A host that cannot punch keeps it.
    async fn give_back(&self, object: ObjectId, blocks: Range<u64>) -> io::Result<()> {
        assert!(blocks.start < blocks.end, "the space of a range is given back, not that of nothing");
        let file = host_file(object);
        let start = blocks.start.saturating_mul(BLOCK_BYTES);
        let done = if blocks == (0..u64::MAX) {
            self.device.remove(&file).await
        } else if blocks.end == u64::MAX {
            // A write below the cut may make the file longer between the look and the cut, and
            // would be cut off.
            let _guard = self.locks.exclusive(object, 0..u64::MAX).await;
            match self.device.length(&file).await? {
                Some(length) => self.device.truncate(&file, length.min(start)).await,
                None => Ok(()),
            }
        } else {
            self.device.punch(&file, start, (blocks.end - blocks.start) * BLOCK_BYTES).await
        };
        match done {
            Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::Unsupported) => Ok(()),
            done => done,
        }
    }

    /// The task: commits at every interval, or when asked; writes back. Ends with the store.
    pub(super) fn start_task(store: &Arc<Self>) {
        let (clock, wanted) = (store.seams.clock.clone(), store.wanted.clone());
        let weak: Weak<Self> = Arc::downgrade(store);
        let running = store.tasks.subscribe();
        let task = async move {
            let _running = running;
            // A turn begins an interval after the one before began: else the time that a turn takes
            // would add to the age of what waits for the next.
            let mut begun = clock.now();
            loop {
                let Some(store) = weak.upgrade() else { return };
                let due = begun + store.options.lock().commit_interval;
                drop(store);
                tokio::select! {
                    biased;
                    () = wanted.notified() => {}
                    () = clock.sleep_until(due) => {}
                }
                begun = clock.now();
                let Some(store) = weak.upgrade() else { return };
                if store.is_stopping() {
                    return;
                }
                store.work().await;
                Self::start_due_scrub(&store);
            }
        };
        store.seams.spawn.spawn("ost-commit", Box::pin(task));
    }

    /// Commits if there is anything to be marked, and the store takes changes.
    pub(super) async fn commit_due(&self) {
        let due = {
            let volatile = self.volatile.lock();
            volatile.failure.is_none() && volatile.has_unmarked()
        };
        if due && let Err(error) = self.commit().await {
            tracing::warn!(target = %self.target, %error, "commit failed");
        }
    }

    /// One turn of the task: what it does at every interval, and whenever it is woken. Failures
    /// have been recorded where they happened; what can be repeated is, next time.
    pub async fn work(&self) {
        let begun = self.seams.clock.now();
        self.note_table_failure();
        self.commit_due().await;
        if let Err(error) = self.write_back_due().await
            && self.may_complain()
        {
            tracing::warn!(target = %self.target, %error, "write-back failed");
        }
        self.defragment_due(begun).await;
        self.note_out_of_use().await;
        self.give_back_idle_windows();
        self.discard_due().await;
        if let Err(error) = self.space_usage().await {
            tracing::warn!(target = %self.target, %error, "cannot determine the free space");
        }
    }
}

/// Ends the epoch and takes its files; `None` if only the journal needs flushing.
fn plan_commit(volatile: &mut HostFileState) -> Option<Plan> {
    if !volatile.has_unmarked() {
        return None;
    }
    let epoch = volatile.end_epoch();
    // Left over only if an earlier commit was abandoned half way.
    let abandoned = std::mem::take(&mut volatile.flushing);
    merge_dirty(&mut volatile.dirty, abandoned);
    volatile.flushing = std::mem::take(&mut volatile.dirty);
    let is_of_ended = |file: &DirtyFile| file.written <= epoch;
    assert!(volatile.flushing.values().all(is_of_ended), "a commit flushes what was written in epochs that have ended");
    volatile.flushing_since = volatile.flushing_since.or(volatile.unmarked_since);
    volatile.unmarked_since = None;
    let needs_flush =
        |(object, file): (&ObjectId, &DirtyFile)| (file.written > volatile.flushed_epoch(*object)).then_some(*object);
    let files = volatile.flushing.iter().filter_map(needs_flush).collect();
    Some(Plan { epoch, files })
}

/// A key that a mark makes obsolete.
enum Obsolete {
    /// Of DIRTY.
    Chunk(ObjectId, u64),
    /// Of FLUSHED.
    Flushed(ObjectId),
}

impl Obsolete {
    /// What the mark of `epoch` makes obsolete.
    fn by_mark(volatile: &HostFileState, epoch: u64) -> Vec<Self> {
        let chunks =
            volatile.flushing.iter().flat_map(|(object, file)| file.chunks.iter().map(|chunk| (*object, *chunk)));
        let flushed = volatile.flushed.iter().filter(|(_, flushed)| **flushed <= epoch).map(|(object, _)| *object);
        chunks.map(|(object, chunk)| Self::Chunk(object, chunk)).chain(flushed.map(Self::Flushed)).collect()
    }

    /// Deletes these keys, but for those that say something new by now.
    fn delete(keys: &[Self], volatile: &HostFileState, epoch: u64, batch: &mut Batch) {
        for key in keys {
            match *key {
                Self::Chunk(object, chunk) => {
                    if volatile.dirty.get(&object).is_none_or(|again| !again.chunks.contains(&chunk)) {
                        batch.delete(DIRTY, Bytes::copy_from_slice(&part_key(object, chunk)));
                    }
                }
                Self::Flushed(object) => {
                    if volatile.flushed.get(&object).is_none_or(|flushed| *flushed <= epoch) {
                        batch.delete(FLUSHED, Bytes::copy_from_slice(&object_key(object)));
                    }
                }
            }
        }
    }
}

fn merge_dirty(dirty: &mut BTreeMap<ObjectId, DirtyFile>, flushing: BTreeMap<ObjectId, DirtyFile>) {
    for (object, file) in flushing {
        let merged = dirty.entry(object).or_default();
        merged.chunks.extend(file.chunks);
        merged.written = merged.written.max(file.written);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::directory::test_store::{OBJECT, TestStore, quiet};

    /// More than one batch of the journal takes, at the small sizes of tests.
    const MANY: u64 = 20_000;

    fn keys(store: &DirectoryStore, table: kv::Table) -> usize {
        let mut count = 0;
        let visit = &mut |_: &[u8], _: &Bytes| {
            count += 1;
            true
        };
        store.kv.scan(table, &[], None, visit).unwrap();
        count
    }

    /// Puts keys into a table, in batches that fit.
    async fn fill(store: &DirectoryStore, table: kv::Table, key: impl Fn(u64) -> Bytes + Send + Sync) {
        for part in (0..MANY).collect::<Vec<_>>().chunks(1000) {
            let put = |_: &HostFileState| {
                let mut batch = Batch::default();
                part.iter().for_each(|number| batch.put(table, key(*number), Vec::new()));
                batch
            };
            store.apply_marked(put).await.unwrap();
        }
    }

    #[tokio::test]
    async fn a_mark_that_makes_very_much_obsolete_fits_the_journal() {
        let test = TestStore::new(quiet()).await;
        let store = test.store();
        test.write(OBJECT, 0, vec![7; 64 << 10]).await;
        fill(store, DIRTY, |chunk| Bytes::copy_from_slice(&part_key(OBJECT, chunk))).await;
        let dirty = DirtyFile { chunks: (0..MANY).collect(), written: 1 };
        store.volatile.lock().dirty.insert(OBJECT, dirty);
        store.commit().await.unwrap();
        assert_eq!((keys(store, DIRTY), store.dirty_files()), (0, 0));
    }

    #[tokio::test]
    async fn very_many_removals_end_in_one_commit() {
        let test = TestStore::new(quiet()).await;
        let store = test.store();
        fill(store, PENDING, |number| Bytes::copy_from_slice(&number.to_be_bytes())).await;
        {
            let mut volatile = store.volatile.lock();
            let epoch = volatile.epoch;
            volatile.pending = (0..MANY).map(|number| (number, epoch)).collect();
        }
        store.commit().await.unwrap();
        assert_eq!((keys(store, PENDING), store.volatile.lock().pending.len()), (0, 0));
    }

    #[tokio::test]
    async fn what_is_written_again_during_a_commit_keeps_its_keys() {
        let test = TestStore::new(quiet()).await;
        let store = test.store();
        test.write(OBJECT, 0, vec![7; 64 << 10]).await;
        let plan = plan_commit(&mut store.volatile.lock()).unwrap();
        test.write(OBJECT, 64 << 10, vec![7; 64 << 10]).await;
        store.mark(plan.epoch).await.unwrap();
        assert_eq!((keys(store, DIRTY), store.dirty_files()), (1, 1), "the same chunk");
        store.commit().await.unwrap();
        assert_eq!((keys(store, DIRTY), store.dirty_files()), (0, 0));
    }
}
