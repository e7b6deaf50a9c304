//! The cold store of real deployments: fjall, an LSM tree.
//!
//! Two keyspaces: `data`, whose keys are the table's number followed by the key, and `meta` with
//! the checkpoint. Writes go through one thread of this store, so that neither inserting nor
//! syncing blocks a core; their order is that of the calls. The block cache and the write buffer
//! are bounded, see [`FjallOptions`].
//!
//! The checkpoint is a record of its own (module `checkpoint`).
//!
//! A full device: fjall accepts no more writes after one has failed, or after its background work
//! has failed, and cannot be told to try again. If the cause was a lack of space, it is closed and
//! opened again before the next write, which recovers what it had accepted: every batch has been
//! written to the kernel when it is acknowledged. Reads wait while it is opened. A failed sync is
//! final until the store is opened again: it is unknown what was not written (module `journals`).
//!
//! fjall syncs its journal in the background, too, and reports a failure of that a moment after it
//! has released the journal: a commit may sync in between and find nothing to write. So a commit
//! checks once more after its sync.
//!
//! This store merges tables itself, on a thread of its own. fjall does not, because its merges fail
//! permanently if there is no space (module `levels`). Space of deleted entries is freed by
//! rewriting the tree on the same thread, see [`super::reclaim`]. Old versions are never read: a
//! read takes the newest value, and a scan holds the tables with which it started. So a merge
//! removes everything that was deleted or replaced before it started. Reopening and closing wait
//! for its end. If it fails, fjall is opened again, which removes the files that it left.
//!
//! The space that fjall takes by itself must be available on a full device as well, or removals
//! would fail: a store keeps it free ([`ColdStore::growth_bytes`]). Its journal grows to 64 MiB
//! whatever is in tables already; then the next one is started, and the old one is deleted as soon
//! as both buffers have been written, which is done after each commit. A compaction writes all of
//! its tables before it frees any, so tables are small on small devices, and the amount of unmerged
//! data is kept small while a device is nearly full (module `levels`).
//!
//! fjall keeps each table that a compaction replaced until a buffer is full the next time (then it
//! releases versions, up to the number of a write before the last compaction), which never happens
//! on a full device. So after every compaction all versions before the newest are released.
//!
//! Life cycle: [`FjallCold::open`] (two threads here and those of module `readers`, one of fjall's)
//! -> use -> [`ColdStore::close`], by the writing thread after all that was queued; or the handle's
//! drop, which does the same and waits for it.
//!
//! Downside: while the tree is rewritten, fjall writes no other tables: checkpoints wait when its
//! buffers are full. fjall has a journal of its own, so checkpoints are written twice. It does not
//! say why its background work failed; a lack of space is assumed if the device is nearly full. A
//! failure of its background sync goes unnoticed if it is reported after the commit that follows it
//! has checked, which is possible only for the moment that fjall's thread takes between the two.

mod checkpoint;
mod compactor;
mod descriptors;
mod fault;
mod journals;
mod keyspaces;
mod levels;
mod options;
mod reopenings;
mod shared;
mod wakes;
mod writer;

use std::{
    io,
    ops::Bound,
    path::Path,
    sync::{Arc, atomic::Ordering, mpsc},
    thread::JoinHandle,
};

use bytes::Bytes;
use rt::BoxFuture;
use tokio::sync::oneshot;

pub use self::options::FjallOptions;
use self::{
    compactor::Compactor,
    keyspaces::{data_key, failed},
    shared::Shared,
    wakes::Wakes,
    writer::{Job, Order, Writer},
};
use super::{Checkpoint, ColdStore, readers::Readers};
use crate::batch::{Operation, Table};

/// A cold store on fjall.
pub struct FjallCold {
    shared: Arc<Shared>,
    /// `None` only while it is dropped.
    jobs: Option<mpsc::Sender<Job>>,
    /// Likewise.
    writer: Option<JoinHandle<()>>,
    readers: Readers,
}

impl FjallCold {
    /// Opens or creates the store in a directory.
    pub fn open(directory: &Path, options: FjallOptions) -> io::Result<FjallCold> {
        let (shared, woken) = FjallCold::opened(directory, options)?;
        let compactor = Compactor::new(shared.clone());
        let thread = std::thread::Builder::new().name("kv_compact".to_owned());
        let compactor = thread.spawn(move || compactor.work(&woken))?;
        // What a store had to merge when it was closed.
        shared.wakes.wake();
        FjallCold::start(shared, Some(compactor))
    }

    fn opened(directory: &Path, options: FjallOptions) -> io::Result<(Arc<Shared>, mpsc::Receiver<()>)> {
        let (wake, woken) = mpsc::sync_channel(1);
        Ok((Arc::new(Shared::open(directory.to_owned(), options, Wakes::new(wake))?), woken))
    }

    fn start(shared: Arc<Shared>, compactor: Option<JoinHandle<()>>) -> io::Result<FjallCold> {
        let (jobs, queue) = mpsc::channel();
        let writer = Writer::new(shared.clone(), compactor, queue);
        let thread = std::thread::Builder::new().name("kv_cold".to_owned());
        let writer = thread.spawn(move || writer.work())?;
        Ok(FjallCold { shared, jobs: Some(jobs), writer: Some(writer), readers: Readers::start()? })
    }

    /// Opens a copy of the store in `directory`, made below `scratch`, which the caller removes
    /// afterwards: fjall cannot be opened without changing files. For inspecting a store that no
    /// process has open; needs as much space again, and no more: nothing is merged there.
    pub fn open_copy(directory: &Path, scratch: &Path, options: FjallOptions) -> io::Result<FjallCold> {
        if !directory.is_dir() {
            let text = format!("{} is not a directory", directory.display());
            return Err(io::Error::new(io::ErrorKind::NotFound, text));
        }
        copy_directory(directory, scratch)?;
        let (shared, _) = FjallCold::opened(scratch, options)?;
        FjallCold::start(shared, None)
    }

    fn send(&self, job: Job) {
        // If the thread has ended, the job is dropped here, and the task that waits for its reply
        // is told.
        let _ = self.jobs.as_ref().expect("present until the drop").send(job);
    }

    fn submit(&self, order: Order) -> BoxFuture<'static, io::Result<()>> {
        let (reply, answer) = oneshot::channel();
        self.send(Job::Write(order, reply));
        Box::pin(async move { answer.await.map_err(|_| io::Error::other("the cold store is closed"))? })
    }
}

impl Drop for FjallCold {
    /// Lets queued writes finish, and closes, so that the directory can be opened again afterwards.
    fn drop(&mut self) {
        self.jobs = None;
        if let Some(writer) = self.writer.take() {
            // A panic of the thread has been reported where it happened.
            let _ = writer.join();
        }
    }
}

impl ColdStore for FjallCold {
    fn get(&self, table: Table, key: &[u8]) -> io::Result<Option<Bytes>> {
        let value = self.shared.keyspaces()?.data.get(data_key(table, key)).map_err(failed)?;
        Ok(value.map(|value| Bytes::copy_from_slice(&value)))
    }

    fn scan(
        &self,
        table: Table,
        from: &[u8],
        to: Option<&[u8]>,
        visit: &mut dyn FnMut(&[u8], &[u8]) -> bool,
    ) -> io::Result<()> {
        let start = Bound::Included(data_key(table, from));
        let end = match (to, table.0.checked_add(1)) {
            (Some(to), _) if to <= from => return Ok(()),
            (Some(to), _) => Bound::Excluded(data_key(table, to)),
            (None, Some(next)) => Bound::Excluded(vec![next]),
            (None, None) => Bound::Unbounded,
        };
        for entry in self.shared.keyspaces()?.data.range((start, end)) {
            let (key, value) = entry.into_inner().map_err(failed)?;
            if !visit(&key[1..], &value) {
                break;
            }
        }
        Ok(())
    }

    fn write(&self, operations: Vec<Operation>) -> BoxFuture<'static, io::Result<()>> {
        self.submit(Order::Write(operations))
    }

    fn commit(&self, checkpoint: Checkpoint) -> BoxFuture<'static, io::Result<()>> {
        self.submit(Order::Commit(checkpoint))
    }

    fn reclaim(&self) {
        self.shared.reclaim_asked.store(true, Ordering::Release);
        self.shared.wakes.wake();
    }

    fn run_blocking(&self, work: Box<dyn FnOnce() + Send>) {
        self.readers.run(work);
    }

    fn growth_bytes(&self) -> u64 {
        self.shared.growth_bytes().unwrap_or_else(|error| {
            tracing::warn!(%error, "cannot determine how much the cold store may grow");
            0
        })
    }

    fn close(&self) -> BoxFuture<'static, ()> {
        let (closing, closed) = oneshot::channel::<()>();
        self.send(Job::Close(closing));
        Box::pin(async move {
            // Dropped by the thread once fjall is closed, or because it was before: there is
            // nothing to be told.
            let _ = closed.await;
        })
    }

    fn checkpoint(&self) -> io::Result<Option<Checkpoint>> {
        let value = self.shared.keyspaces()?.meta.get(checkpoint::KEY).map_err(failed)?;
        value.map(|value| checkpoint::decode(&value)).transpose()
    }
}

fn copy_directory(from: &Path, to: &Path) -> io::Result<()> {
    std::fs::create_dir_all(to)?;
    for entry in std::fs::read_dir(from)? {
        let entry = entry?;
        let target = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            copy_directory(&entry.path(), &target)?;
        } else {
            std::fs::copy(entry.path(), target)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
