//! Making things durable: the commit, `sync` of single objects, and what follows a commit in the host files.
//!
//! A commit ends the epoch, flushes every file written in it, applies the mark, makes the journal durable, and only then
//! gives back the space of what was removed before it began.
//!
//! A failed flush ends all changes: the kernel may have dropped the data and forgotten the error, so flushing again would
//! lie. Space for the mark comes from the journal's reserve.

use std::{
    collections::BTreeMap,
    io,
    ops::Range,
    sync::{Arc, Weak},
};

use bytes::Bytes;
use kv::{Batch, Lsn};
use types::{FsResult, ObjectId, limits::BLOCK_BYTES};

use super::{
    DirectoryStore, host_file,
    volatile::{DirtyFile, HostWork, Volatile},
};
use crate::{
    superblock::{MARK_KEY, Mark},
    tables::{DIRTY, FLUSHED, META, PENDING, object_key, part_key},
};

/// What a commit has to do, decided under the mutex.
struct Plan {
    epoch: u64,
    files: Vec<ObjectId>,
}

impl DirectoryStore {
    /// Everything acknowledged before this is durable when it returns.
    pub(super) async fn commit(&self) -> FsResult<()> {
        let _turn = self.committing.lock().await;
        let (plan, lsn) = {
            let mut volatile = self.volatile.lock();
            self.check_usable(&volatile)?;
            (plan_commit(&mut volatile), volatile.last_lsn)
        };
        let Some(Plan { epoch, files }) = plan else {
            return self.durable(lsn).await;
        };
        for object in files {
            let flushed = self.device.flush(&host_file(object)).await;
            flushed.map_err(|error| self.poison("flushing an object", &error))?;
        }
        let marked = self.apply_marked(|volatile| mark_batch(volatile, epoch)).await;
        self.end_commit(epoch, marked.is_ok());
        self.durable(marked?).await?;
        self.finish_removals(epoch).await
    }

    /// Takes over whether the mark was made; without it the files of the epoch stay dirty.
    fn end_commit(&self, epoch: u64, marked: bool) {
        let mut volatile = self.volatile.lock();
        let flushing = std::mem::take(&mut volatile.flushing);
        if marked {
            volatile.marked = epoch;
            volatile.flushed.retain(|_, flushed| *flushed > epoch);
        } else {
            merge_dirty(&mut volatile.dirty, flushing);
        }
    }

    /// Everything acknowledged for these objects is durable when it returns.
    pub(super) async fn sync_objects(&self, objects: &[ObjectId]) -> FsResult<()> {
        for &object in objects {
            let epoch = {
                let mut volatile = self.volatile.lock();
                self.check_usable(&volatile)?;
                if !volatile.is_unflushed(object) {
                    continue;
                }
                volatile.end_epoch()
            };
            let flushed = self.device.flush(&host_file(object)).await;
            flushed.map_err(|error| self.poison("flushing an object", &error))?;
            self.note_flushed(object, epoch);
        }
        let lsn = self.volatile.lock().last_lsn;
        self.durable(lsn).await
    }

    /// Remembers that a file was flushed by itself. Without room in the journal it is only flushed once more.
    fn note_flushed(&self, object: ObjectId, epoch: u64) {
        let mut volatile = self.volatile.lock();
        if volatile.flushed_epoch(object) >= epoch {
            return;
        }
        let mut batch = Batch::default();
        batch.put(FLUSHED, Bytes::copy_from_slice(&object_key(object)), epoch.to_be_bytes().to_vec());
        if let Ok(lsn) = self.kv.apply(batch) {
            volatile.last_lsn = lsn;
            volatile.flushed.insert(object, epoch);
        }
    }

    pub(super) async fn durable(&self, lsn: Lsn) -> FsResult<()> {
        self.kv.durable(lsn).await.map_err(|error| self.kv_error(error))
    }

    /// Applies a batch that gives space back or makes things durable, built under the mutex.
    pub(super) async fn apply_marked(&self, build: impl Fn(&Volatile) -> Batch + Send) -> FsResult<Lsn> {
        loop {
            let outcome = {
                let mut volatile = self.volatile.lock();
                let applied = self.kv.apply_reserved(build(&volatile));
                if let Ok(lsn) = &applied {
                    volatile.last_lsn = *lsn;
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

    /// The removals of `epoch` and before are durable: the host files follow, then their ranges may be written again.
    async fn finish_removals(&self, epoch: u64) -> FsResult<()> {
        let removals = self.volatile.lock().taints_through(epoch);
        for (object, blocks, taint) in removals {
            if taint.work == HostWork::GiveBack
                && let Err(error) = self.give_back(object, blocks.clone()).await
            {
                tracing::warn!(target = %self.target, %object, ?blocks, %error, "space could not be given back");
            }
        }
        let pending = self.volatile.lock().pending.values().any(|removed| *removed <= epoch);
        if pending {
            self.apply_marked(|volatile| {
                let mut batch = Batch::default();
                for (number, _) in volatile.pending.iter().filter(|(_, removed)| **removed <= epoch) {
                    batch.delete(PENDING, Bytes::copy_from_slice(&number.to_be_bytes()));
                }
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
        let file = host_file(object);
        let start = blocks.start.saturating_mul(BLOCK_BYTES);
        let done = if blocks == (0..u64::MAX) {
            self.device.remove(&file).await
        } else if blocks.end == u64::MAX {
            // A write below the cut may make the file longer between the look and the cut, and would be cut off.
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
        let task = async move {
            loop {
                let Some(store) = weak.upgrade() else { return };
                let interval = store.options.lock().commit_interval;
                drop(store);
                tokio::select! {
                    biased;
                    () = wanted.notified() => {}
                    () = rt::clock::sleep(&*clock, interval) => {}
                }
                let Some(store) = weak.upgrade() else { return };
                if store.is_stopping() {
                    return;
                }
                store.work().await;
            }
        };
        store.seams.spawn.spawn("ost-commit", Box::pin(task));
    }

    /// One turn of the task: what it does at every interval, and whenever it is woken. Failures have been recorded where
    /// they happened; what can be repeated is, next time.
    pub async fn work(&self) {
        self.note_table_failure();
        let (failed, due) = {
            let volatile = self.volatile.lock();
            (volatile.failure.is_some(), volatile.has_unmarked())
        };
        if !failed
            && due
            && let Err(error) = self.commit().await
        {
            tracing::warn!(target = %self.target, %error, "commit failed");
        }
        if !failed && let Err(error) = self.write_back_due().await {
            tracing::warn!(target = %self.target, %error, "write-back failed");
        }
        if let Err(error) = self.space_usage().await {
            tracing::warn!(target = %self.target, %error, "space unknown");
        }
    }
}

/// Ends the epoch and takes its files; `None` if only the journal needs flushing.
fn plan_commit(volatile: &mut Volatile) -> Option<Plan> {
    if !volatile.has_unmarked() {
        return None;
    }
    let epoch = volatile.end_epoch();
    // Left over only if an earlier commit was abandoned half way.
    let abandoned = std::mem::take(&mut volatile.flushing);
    merge_dirty(&mut volatile.dirty, abandoned);
    volatile.flushing = std::mem::take(&mut volatile.dirty);
    let needs_flush =
        |(object, file): (&ObjectId, &DirtyFile)| (file.written > volatile.flushed_epoch(*object)).then_some(*object);
    let files = volatile.flushing.iter().filter_map(needs_flush).collect();
    Some(Plan { epoch, files })
}

/// The mark, and the end of what it makes obsolete. Chunks written since the epoch ended keep their keys.
fn mark_batch(volatile: &Volatile, epoch: u64) -> Batch {
    let mut batch = Batch::default();
    batch.put(META, Bytes::from_static(MARK_KEY), Mark { epoch }.encode());
    for (object, file) in &volatile.flushing {
        let again = volatile.dirty.get(object);
        for chunk in file.chunks.iter().filter(|chunk| again.is_none_or(|file| !file.chunks.contains(chunk))) {
            batch.delete(DIRTY, Bytes::copy_from_slice(&part_key(*object, *chunk)));
        }
    }
    for (object, _) in volatile.flushed.iter().filter(|(_, flushed)| **flushed <= epoch) {
        batch.delete(FLUSHED, Bytes::copy_from_slice(&object_key(*object)));
    }
    batch
}

fn merge_dirty(dirty: &mut BTreeMap<ObjectId, DirtyFile>, flushing: BTreeMap<ObjectId, DirtyFile>) {
    for (object, file) in flushing {
        let merged = dirty.entry(object).or_default();
        merged.chunks.extend(file.chunks);
        merged.written = merged.written.max(file.written);
    }
}
