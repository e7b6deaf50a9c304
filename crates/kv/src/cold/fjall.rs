//! The cold store of real deployments: fjall, an LSM tree.
//!
//! Two keyspaces: `data`, whose keys are the table's number followed by the key, and `meta` with the checkpoint. Writes go
//! through one thread of this store, so that neither inserting nor syncing blocks a core; their order is that of the calls.
//! The block cache and the write buffer are bounded, see [`FjallOptions`].
//!
//! The `meta` value `checkpoint`:
//!
//! | offset | bytes | content |
//! |---|---|---|
//! | 0 | 4 | format version, 1 |
//! | 4 | 4 | 0 |
//! | 8 | 8 | store id |
//! | 16 | 8 | number of the last batch contained |
//!
//! A full device: fjall takes no more writes after one that failed, nor after its background work failed, and cannot be
//! told to try again. If space is what was missing, it is closed and opened again before the next write, which recovers
//! what it had taken: every batch is with the kernel when it is acknowledged. Reads wait meanwhile, which is as long as
//! opening takes. A failed sync is final, until the store is opened again: nobody knows what it left out (module `journals`).
//!
//! fjall syncs its journal in the background, too, and tells of a failure there a moment after it let go of the journal: a
//! commit may sync in between, which finds nothing to write. So a commit asks once more behind its sync.
//!
//! Space of what was deleted comes back by rewriting the tree, see [`super::reclaim`], on a thread of its own. It needs to know
//! that nobody reads the past: it starts where no scan is under way, and everything deleted until then goes. Opening again
//! waits for its end. If it fails, fjall is opened again, which removes the files it left.
//!
//! fjall keeps each table that a compaction replaced until a buffer is full the next time (its versions are let go of there, up
//! to the number of a write before the last compaction), which on a full device is never. Nobody asks it for the past: reads
//! are of the newest version, and a scan holds the one it began with by itself. So behind every compaction all versions
//! before the newest are let go of. fjall tells when a compaction begins (it makes a filter) and whether any is under way.
//!
//! Downside: while the tree is rewritten, fjall puts nothing else into tables: checkpoints wait when its buffers are full.
//! fjall has a journal of its own, so that checkpoints are written twice. Why its background work failed it does
//! not tell; it is taken to be the lack of space if the device is nearly full. A failure of its background sync that is told later than
//! the commit behind it has asked goes unseen, for as long as a thread takes from the one to the other.

mod journals;
mod wakes;

use std::{
    io,
    ops::{Bound, Deref},
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
        mpsc,
    },
    thread::JoinHandle,
    time::Duration,
};

use bytes::Bytes;
use fjall::{
    AbstractTree, Database, Keyspace, KeyspaceCreateOptions, PersistMode,
    compaction::{Leveled, filter::Factory},
};
use parking_lot::{RwLock, RwLockReadGuard, RwLockWriteGuard};
use rt::BoxFuture;
use tokio::sync::oneshot;

use self::wakes::Wakes;
use super::{Checkpoint, ColdStore, reclaim::Estimate};
use crate::{
    batch::{Lsn, Operation, Table},
    error::is_no_space,
    journal::format::{read_u32, read_u64},
};

const META_VERSION: u32 = 1;
const META_BYTES: usize = 24;
/// Size of a table file: a quarter of fjall's default, since a compaction's memory grows with it.
const TABLE_BYTES: u64 = 16 << 20;
const DATA: &str = "data";
/// Table files kept open, 1.5 GiB of them: the process has other uses for its descriptors, and several stores.
const FILES_OPEN_MAX: usize = 96;
const CHECKPOINT_KEY: &str = "checkpoint";
/// Free space below which background work is taken to have failed for want of it: more than any compaction of tables of
/// [`TABLE_BYTES`] gives back when it fails.
const NEARLY_FULL_BYTES: u64 = 1 << 30;
/// How often the end of fjall's background work is looked for, which does not tell, and how many times.
const FLUSH_POLL: Duration = Duration::from_millis(20);
const FLUSH_POLLS_MAX: u32 = 1500;

/// Memory of a fjall store.
#[derive(Clone, Copy, Debug)]
pub struct FjallOptions {
    /// Cache of blocks.
    pub cache_bytes: u64,
    /// Size at which what was written goes to a table file. A few such buffers may exist at a time.
    pub write_buffer_bytes: u64,
}

impl Default for FjallOptions {
    fn default() -> FjallOptions {
        FjallOptions { cache_bytes: 32 << 20, write_buffer_bytes: 8 << 20 }
    }
}

impl FjallOptions {
    /// For a store with [`crate::Config::for_budget`] of the same number. Little for blocks: the kernel caches them too.
    pub fn for_budget(bytes: u64) -> FjallOptions {
        FjallOptions { cache_bytes: bytes / 16, write_buffer_bytes: (bytes / 64).max(1 << 20) }
    }
}

enum Order {
    Write(Vec<Operation>),
    Commit(Checkpoint),
}

struct Job {
    order: Order,
    reply: oneshot::Sender<io::Result<()>>,
}

struct Keyspaces {
    database: Database,
    data: Keyspace,
    meta: Keyspace,
}

/// What readers and the writer share.
struct Shared {
    directory: PathBuf,
    options: FjallOptions,
    wakes: Wakes,
    /// Space is to be given back, if it should.
    reclaim_asked: AtomicBool,
    /// `None` while it is opened again, or if that failed.
    open: RwLock<Option<Keyspaces>>,
    /// Keys deleted since the buffers were last flushed on purpose: at least as many tombstones as they have.
    deleted: AtomicU64,
    stopping: AtomicBool,
}

/// The thread that writes.
struct Worker {
    shared: Arc<Shared>,
    /// A write failed: fjall is to be opened again before the next.
    failed: bool,
}

/// Why a write failed.
enum Fault {
    /// Background work failed before, for want of space as it seems: nothing was tried.
    Background,
    /// The write itself.
    Now(io::Error),
}

impl Estimate {
    /// What it means that nothing was done.
    fn undone(&self) -> Reclaimed {
        if self.is_worth_it() { Reclaimed::NoRoom } else { Reclaimed::Nothing }
    }
}

impl Fault {
    /// `StorageFull` if it may be tried again later.
    fn into_error(self) -> io::Error {
        match self {
            Fault::Background => {
                let text = "background work of the cold store failed, and its device is nearly full";
                io::Error::new(io::ErrorKind::StorageFull, text)
            }
            Fault::Now(error) => error,
        }
    }
}

/// How an attempt to give space back ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reclaimed {
    /// Something was given back.
    Some,
    /// Nothing is worth it.
    Nothing,
    /// It would be worth it, but there is no room to write down what is left.
    NoRoom,
}

/// A cold store on fjall.
pub struct FjallCold {
    shared: Arc<Shared>,
    /// `None` only while it is dropped.
    jobs: Option<mpsc::Sender<Job>>,
    threads: Vec<JoinHandle<()>>,
}

fn failed(error: fjall::Error) -> io::Error {
    match error {
        fjall::Error::Io(error) => error,
        fjall::Error::Storage(fjall::LsmError::Io(error)) => error,
        other => io::Error::other(other),
    }
}

fn data_key(table: Table, key: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(1 + key.len());
    bytes.push(table.0);
    bytes.extend_from_slice(key);
    bytes
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

impl Keyspaces {
    fn open(directory: &Path, options: &FjallOptions, wakes: &Wakes) -> io::Result<Keyspaces> {
        let factory: Arc<dyn Factory> = Arc::new(wakes.share());
        let database = Database::builder(directory)
            .with_compaction_filter_factories(Arc::new(move |keyspace| (keyspace == DATA).then(|| factory.clone())))
            .cache_size(options.cache_bytes)
            .max_cached_files(Some(FILES_OPEN_MAX))
            .max_journaling_size((4 * options.write_buffer_bytes).max(64 << 20))
            .worker_threads(1)
            .open()
            .map_err(failed)?;
        let write_buffer_bytes = options.write_buffer_bytes;
        let data = database
            .keyspace(DATA, || {
                let strategy = Leveled::default().with_table_target_size(TABLE_BYTES);
                KeyspaceCreateOptions::default()
                    .max_memtable_size(write_buffer_bytes)
                    .compaction_strategy(Arc::new(strategy))
            })
            .map_err(failed)?;
        let meta = database
            .keyspace("meta", || KeyspaceCreateOptions::default().max_memtable_size(1 << 20))
            .map_err(failed)?;
        // Behind fjall's lock.
        journals::write_again(directory)?;
        Ok(Keyspaces { database, data, meta })
    }
}

impl FjallCold {
    /// Opens or creates the store in a directory.
    pub fn open(directory: &Path, options: FjallOptions) -> io::Result<FjallCold> {
        let (wake, woken) = mpsc::sync_channel(1);
        let wakes = Wakes::new(wake);
        let keyspaces = Keyspaces::open(directory, &options, &wakes)?;
        let shared = Arc::new(Shared {
            directory: directory.to_owned(),
            options,
            wakes,
            reclaim_asked: AtomicBool::new(false),
            open: RwLock::new(Some(keyspaces)),
            deleted: AtomicU64::new(0),
            stopping: AtomicBool::new(false),
        });
        let (jobs, queue) = mpsc::channel();
        let mut worker = Worker { shared: shared.clone(), failed: false };
        let writer = std::thread::Builder::new().name("kv_cold".to_owned()).spawn(move || worker.work(&queue))?;
        let mut cold = FjallCold { shared, jobs: Some(jobs), threads: vec![writer] };
        let shared = cold.shared.clone();
        let reclaimer = std::thread::Builder::new().name("kv_reclaim".to_owned());
        cold.threads.push(reclaimer.spawn(move || shared.look_after_space(&woken))?);
        Ok(cold)
    }

    /// Opens a copy of the store in `directory`, made below `scratch`, which the caller removes afterwards: fjall cannot
    /// be opened without changing files. For inspecting a store that no process has open; needs as much space again.
    pub fn open_copy(directory: &Path, scratch: &Path, options: FjallOptions) -> io::Result<FjallCold> {
        if !directory.is_dir() {
            let text = format!("{} is not a directory", directory.display());
            return Err(io::Error::new(io::ErrorKind::NotFound, text));
        }
        copy_directory(directory, scratch)?;
        FjallCold::open(scratch, options)
    }

    fn submit(&self, order: Order) -> BoxFuture<'static, io::Result<()>> {
        let (reply, answer) = oneshot::channel();
        let jobs = self.jobs.as_ref().expect("present until the drop");
        // If the thread ended, the reply's sender is dropped here, which the answer tells.
        let _ = jobs.send(Job { order, reply });
        Box::pin(async move { answer.await.map_err(|_| io::Error::other("the cold store's writer ended"))? })
    }
}

impl Drop for FjallCold {
    /// Lets queued writes finish, so that the directory can be opened again afterwards.
    fn drop(&mut self) {
        self.jobs = None;
        self.shared.stopping.store(true, Ordering::Release);
        self.shared.wakes.wake();
        for thread in self.threads.drain(..) {
            // A panic of the thread has been reported where it happened.
            let _ = thread.join();
        }
    }
}

impl Shared {
    /// A reader may read again while it reads.
    fn keyspaces(&self) -> io::Result<impl Deref<Target = Keyspaces> + '_> {
        let closed = |_| io::Error::other("the cold store could not be opened again after its device was full");
        RwLockReadGuard::try_map(self.open.read_recursive(), Option::as_ref).map_err(closed)
    }

    fn free_bytes(&self) -> io::Result<u64> {
        let space = rustix::fs::statvfs(&self.directory)?;
        Ok(space.f_bavail.saturating_mul(space.f_frsize))
    }

    fn is_nearly_full(&self) -> io::Result<bool> {
        Ok(self.free_bytes()? < NEARLY_FULL_BYTES)
    }

    /// Closes fjall and opens it again.
    fn open_again(&self) -> io::Result<()> {
        let mut open = self.open.write();
        // Two at a time cannot have the directory.
        *open = None;
        *open = Some(Keyspaces::open(&self.directory, &self.options, &self.wakes)?);
        tracing::info!(directory = %self.directory.display(), "the cold store was opened again after its device was full");
        Ok(())
    }

    /// At least as many tombstones as there are; as many as there are behind a flush.
    fn estimate(&self) -> io::Result<Estimate> {
        let free_bytes = self.free_bytes()?;
        let keyspaces = self.keyspaces()?;
        let tree = &keyspaces.data.tree;
        Ok(Estimate {
            tables_bytes: tree.disk_space(),
            entries: tree.approximate_len() as u64,
            tombstones: tree.tombstone_count() + self.deleted.load(Ordering::Relaxed),
            free_bytes,
        })
    }

    /// Lets go of replaced tables whenever there may be some, and gives space back when asked to, until the store is dropped.
    fn look_after_space(&self, woken: &mpsc::Receiver<()>) {
        let mut is_wanted = false;
        while woken.recv().is_ok() && !self.stopping.load(Ordering::Acquire) {
            self.forget_replaced()
                .unwrap_or_else(|error| tracing::warn!(%error, "replaced tables could not be removed"));
            is_wanted |= self.reclaim_asked.swap(false, Ordering::AcqRel);
            if is_wanted {
                // What compactions give back may be the room that is missing.
                is_wanted = self.reclaim_while_due() == Reclaimed::NoRoom;
            }
        }
    }

    /// Lets go of the tables that compactions replace, until none is under way.
    fn forget_replaced(&self) -> io::Result<()> {
        loop {
            let is_compacting = self.keyspaces()?.database.active_compactions() > 0;
            self.forget_versions()?;
            if !is_compacting || self.stopping.load(Ordering::Acquire) {
                return Ok(());
            }
            // fjall does not tell the end.
            std::thread::sleep(FLUSH_POLL);
        }
    }

    /// Gives space back until there is nothing worth it, or no room, or a failure.
    fn reclaim_while_due(&self) -> Reclaimed {
        loop {
            match self.reclaim() {
                Ok(Reclaimed::Some) => {}
                Ok(end) => return end,
                Err(error) => {
                    tracing::warn!(%error, "space of deleted keys could not be given back");
                    return Reclaimed::Nothing;
                }
            }
        }
    }

    /// Opens fjall again if background work failed: what it left takes space until then, so that there may be too little for
    /// the next write, which would open it as well.
    fn clear_failure(&self) -> io::Result<()> {
        let is_poisoned =
            matches!(self.keyspaces()?.database.persist(PersistMode::Buffer), Err(fjall::Error::Poisoned));
        if is_poisoned && self.is_nearly_full()? { self.open_again() } else { Ok(()) }
    }

    /// Rewrites the tree if that is due.
    fn reclaim(&self) -> io::Result<Reclaimed> {
        self.clear_failure()?;
        let early = self.estimate()?;
        if !early.is_due() || !self.flush_buffers()? {
            tracing::debug!(?early, "space of deleted keys is not given back");
            return Ok(early.undone());
        }
        let before = self.estimate()?;
        if !before.is_due() {
            tracing::debug!(?before, "space of deleted keys is not given back");
            return Ok(before.undone());
        }
        let compacted = {
            // While nobody else is here, nobody reads, so that nobody who reads later reads the past.
            let open = self.open.write();
            let Some(keyspaces) = open.as_ref() else { return Ok(Reclaimed::Nothing) };
            let present = keyspaces.database.visible_seqno().saturating_sub(1);
            // From here on others may read and write, but not close it.
            let open = RwLockWriteGuard::downgrade(open);
            let Some(keyspaces) = open.as_ref() else { return Ok(Reclaimed::Nothing) };
            keyspaces.data.tree.major_compact(TABLE_BYTES, present)
        };
        if let Err(error) = compacted {
            // The files that it left go when it is opened.
            self.open_again()?;
            return Err(failed(error.into()));
        }
        self.forget_versions()?;
        let after = self.estimate()?;
        tracing::info!(?before, ?after, "space of deleted keys was given back");
        Ok(if after.tables_bytes < before.tables_bytes { Reclaimed::Some } else { Reclaimed::Nothing })
    }

    /// Lets go of the versions of the tree before the newest, and with them of their files.
    fn forget_versions(&self) -> io::Result<()> {
        let keyspaces = self.keyspaces()?;
        let Keyspaces { database, data, .. } = &*keyspaces;
        if data.tree.version_free_list_len() == 0 {
            return Ok(());
        }
        let mut versions = data.tree.get_version_history_lock();
        // No version is made without the lock, and each has a number below what is visible from then on.
        let newest = database.visible_seqno();
        versions.maintenance(data.path(), newest).map_err(|error| failed(error.into()))
    }

    /// Sends what is buffered to tables, so that tombstones meet what they hide, and fjall's journals may end. Whether all of
    /// it is there.
    fn flush_buffers(&self) -> io::Result<bool> {
        self.deleted.store(0, Ordering::Relaxed);
        {
            let keyspaces = self.keyspaces()?;
            keyspaces.data.rotate_memtable().map_err(failed)?;
            keyspaces.meta.rotate_memtable().map_err(failed)?;
        }
        for _ in 0..FLUSH_POLLS_MAX {
            if self.stopping.load(Ordering::Acquire) {
                return Ok(false);
            }
            if self.keyspaces()?.data.tree.sealed_memtable_count() == 0 {
                return Ok(true);
            }
            // fjall tells neither its end nor its failure.
            std::thread::sleep(FLUSH_POLL);
        }
        Ok(false)
    }
}

impl Worker {
    /// Does what is queued until the store is dropped.
    fn work(&mut self, queue: &mpsc::Receiver<Job>) {
        while let Ok(job) = queue.recv() {
            let result = self.perform(&job.order);
            // Nobody waits any more after a cancelled checkpoint.
            let _ = job.reply.send(result);
        }
    }

    fn perform(&mut self, order: &Order) -> io::Result<()> {
        let outcome = self.attempt(order);
        match outcome {
            Err(Fault::Background) => self.attempt(order),
            outcome => outcome,
        }
        .map_err(Fault::into_error)
    }

    /// Opens fjall again if that is needed first.
    fn attempt(&mut self, order: &Order) -> Result<(), Fault> {
        if self.failed {
            self.shared.open_again().map_err(Fault::Now)?;
            self.failed = false;
        }
        let outcome = match order {
            Order::Write(operations) => self.write(operations),
            Order::Commit(checkpoint) => self.commit(*checkpoint),
        };
        self.failed = match &outcome {
            Ok(()) => false,
            Err(Fault::Background) => true,
            Err(Fault::Now(error)) => is_no_space(error),
        };
        outcome
    }

    /// What an error of fjall means.
    fn judge(&self, error: fjall::Error) -> Fault {
        match error {
            fjall::Error::Poisoned if self.shared.is_nearly_full().unwrap_or(false) => Fault::Background,
            error => Fault::Now(failed(error)),
        }
    }

    fn write(&self, operations: &[Operation]) -> Result<(), Fault> {
        let keyspaces = self.shared.keyspaces().map_err(Fault::Now)?;
        let mut batch = keyspaces.database.batch().durability(Some(PersistMode::Buffer));
        let mut deleted = 0;
        for operation in operations {
            match operation {
                Operation::Put(table, key, value) => {
                    batch.insert(&keyspaces.data, data_key(*table, key), value.as_ref());
                }
                Operation::Delete(table, key) => {
                    batch.remove(&keyspaces.data, data_key(*table, key));
                    deleted += 1;
                }
            }
        }
        self.shared.deleted.fetch_add(deleted, Ordering::Relaxed);
        batch.commit().map_err(|error| self.judge(error))
    }

    fn commit(&self, checkpoint: Checkpoint) -> Result<(), Fault> {
        let mut value = [0; META_BYTES];
        value[..4].copy_from_slice(&META_VERSION.to_le_bytes());
        value[8..16].copy_from_slice(&checkpoint.store.to_le_bytes());
        value[16..].copy_from_slice(&checkpoint.lsn.0.to_le_bytes());
        let keyspaces = self.shared.keyspaces().map_err(Fault::Now)?;
        keyspaces.meta.insert(CHECKPOINT_KEY, value).map_err(|error| self.judge(error))?;
        let persist = |mode| {
            keyspaces.database.persist(mode).map_err(|error| match error {
                // Background work failed before: who knows what was synced.
                error @ fjall::Error::Poisoned => self.judge(error),
                // Never tried again, whatever was missing: what a failed sync left out is not known.
                error => Fault::Now(io::Error::other(format!("sync: {}", failed(error)))),
            })
        };
        persist(PersistMode::SyncAll)?;
        // A sync that failed in the background while this one waited for the journal.
        persist(PersistMode::Buffer)
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

    fn checkpoint(&self) -> io::Result<Option<Checkpoint>> {
        let Some(value) = self.shared.keyspaces()?.meta.get(CHECKPOINT_KEY).map_err(failed)? else { return Ok(None) };
        if value.len() != META_BYTES || read_u32(&value, 0) != META_VERSION {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                "the cold store was written by another version of this program",
            ));
        }
        Ok(Some(Checkpoint { store: read_u64(&value, 8), lsn: Lsn(read_u64(&value, 16)) }))
    }
}

#[cfg(test)]
mod tests;
