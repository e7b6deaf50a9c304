//! State shared by the threads of a fjall store and its readers: fjall, which may be closed and
//! opened again meanwhile.
//!
//! Readers and writers hold the lock in shared mode while they use fjall. A thread that reopens it,
//! or closes it permanently, holds the lock exclusively. Only the two threads reopen it, and it is
//! closed when neither does so any more: so it stays closed.

use std::{
    io,
    ops::Deref,
    path::PathBuf,
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    time::{Duration, Instant},
};

use fjall::AbstractTree;
use parking_lot::{Mutex, RwLock, RwLockReadGuard};

use super::{
    journals,
    keyspaces::{Keyspaces, compaction_bytes, failed},
    levels::{Merging, Pile},
    options::FjallOptions,
    reopenings::Reopenings,
    wakes::Wakes,
};

/// Free space below which background work is taken to have failed for lack of it: more than any
/// compaction of tables of the larger size gives back when it fails.
const NEARLY_FULL_BYTES: u64 = 1 << 30;
/// So large a merge has room in what a store keeps free anyway
/// ([`crate::Config::device_reserve_bytes`]).
const MERGED_IN_RESERVE_BYTES: u64 = 24 << 20;
/// How often the end of fjall's background work is looked for, which does not tell, and how many
/// times.
pub(super) const FLUSH_POLL: Duration = Duration::from_millis(20);
const FLUSH_POLLS_MAX: u32 = 1500;

/// The tree is being rewritten.
pub(super) struct Rewriting {
    /// What that writes, at most, by an estimate.
    pub bytes: u64,
    /// Number of the first table that it may have written.
    pub first_table: u64,
}

impl Rewriting {
    /// What is still to be written.
    fn left_bytes(&self, keyspaces: &Keyspaces) -> u64 {
        // The last table is incomplete.
        let tables = keyspaces.data.tree.next_table_id().saturating_sub(self.first_table).saturating_sub(1);
        self.bytes.saturating_sub(tables.saturating_mul(keyspaces.table_bytes))
    }
}

/// See the module documentation.
pub(super) struct Shared {
    pub directory: PathBuf,
    options: FjallOptions,
    pub wakes: Wakes,
    /// Space is to be given back, if it should.
    pub reclaim_asked: AtomicBool,
    /// `None` while it is opened again, if that failed, and once it is closed.
    pub open: RwLock<Option<Keyspaces>>,
    /// Keys deleted since the buffers were last flushed on purpose: at least as many tombstones as
    /// they have.
    pub deleted: AtomicU64,
    pub rewriting: Mutex<Option<Rewriting>>,
    /// Held by the thread that merges, or rewrites the tree: one at a time, so that what it takes
    /// is known.
    pub merging: Mutex<Merging>,
    stopping: AtomicBool,
    reopenings: Mutex<Reopenings>,
}

impl Shared {
    /// Opens fjall.
    pub fn open(directory: PathBuf, options: FjallOptions, wakes: Wakes) -> io::Result<Shared> {
        let keyspaces = Keyspaces::open(&directory, &options)?;
        Ok(Shared {
            directory,
            options,
            wakes,
            reclaim_asked: AtomicBool::new(false),
            open: RwLock::new(Some(keyspaces)),
            deleted: AtomicU64::new(0),
            rewriting: Mutex::new(None),
            merging: Mutex::default(),
            stopping: AtomicBool::new(false),
            reopenings: Mutex::default(),
        })
    }

    /// A reader may read again while it reads.
    pub fn keyspaces(&self) -> io::Result<impl Deref<Target = Keyspaces> + '_> {
        let missing = |_| {
            io::Error::other(match self.is_stopping() {
                true => "the cold store is closed",
                false => "cannot reopen the cold store after its device was full",
            })
        };
        RwLockReadGuard::try_map(self.open.read_recursive(), Option::as_ref).map_err(missing)
    }

    /// Tells the thread that looks after space to end, with what it does at the moment.
    pub fn stop(&self) {
        self.stopping.store(true, Ordering::Release);
        self.wakes.wake();
    }

    pub fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Acquire)
    }

    /// Closes fjall permanently, after the reads in progress.
    pub fn close(&self) {
        // Outside the lock: readers are told at once.
        let keyspaces = self.open.write().take();
        if let Some(keyspaces) = keyspaces {
            keyspaces.close(&self.directory);
        }
    }

    /// It could not be opened again.
    pub fn is_missing(&self) -> bool {
        self.open.read_recursive().is_none()
    }

    /// Size at which a buffer is to be flushed.
    pub fn write_buffer_bytes(&self) -> u64 {
        self.options.write_buffer_bytes
    }

    pub fn free_bytes(&self) -> io::Result<u64> {
        let space = rustix::fs::statvfs(&self.directory)?;
        Ok(space.f_bavail.saturating_mul(space.f_frsize))
    }

    /// What fjall may take by itself: its journals until the next one begins, and compactions and
    /// rewriting until they end.
    pub fn growth_bytes(&self) -> io::Result<u64> {
        let space = rustix::fs::statvfs(&self.directory)?;
        let compactions = compaction_bytes(space.f_blocks.saturating_mul(space.f_frsize));
        let pile_bytes = self.merge_bytes().saturating_sub(MERGED_IN_RESERVE_BYTES);
        Ok(journals::growth_bytes(&self.directory)?.saturating_add(compactions.max(pile_bytes)))
    }

    /// What merging, or rewriting, takes for a time. 0 while fjall is opened again: callers must
    /// not wait for that.
    fn merge_bytes(&self) -> u64 {
        let open = self.open.try_read_recursive();
        let Some(keyspaces) = open.as_ref().and_then(|open| open.as_ref()) else { return 0 };
        let rewriting = self.rewriting.lock();
        let rewriting_bytes = rewriting.as_ref().map_or(0, |rewriting| rewriting.left_bytes(keyspaces));
        Pile::of(keyspaces).merge_bytes().max(rewriting_bytes)
    }

    pub fn is_nearly_full(&self) -> io::Result<bool> {
        Ok(self.free_bytes()? < NEARLY_FULL_BYTES)
    }

    /// Closes fjall and opens it again.
    pub fn open_again(&self) -> io::Result<()> {
        let mut open = self.open.write();
        // Two at a time cannot have the directory.
        if let Some(keyspaces) = open.take() {
            keyspaces.close(&self.directory);
        }
        *open = Some(Keyspaces::open(&self.directory, &self.options)?);
        if let Some(times) = self.reopenings.lock().note(Instant::now()) {
            let directory = self.directory.display();
            tracing::info!(%directory, times, "reopened the cold store after a failure");
        }
        Ok(())
    }

    /// Sends what is buffered to tables, so that tombstones meet what they hide, and fjall's
    /// journals may end. Whether all of it is there.
    pub fn flush_buffers(&self) -> io::Result<bool> {
        self.deleted.store(0, Ordering::Relaxed);
        {
            let keyspaces = self.keyspaces()?;
            keyspaces.data.rotate_memtable().map_err(failed)?;
            keyspaces.meta.rotate_memtable().map_err(failed)?;
        }
        self.wakes.wake();
        for _ in 0..FLUSH_POLLS_MAX {
            if self.is_stopping() {
                return Ok(false);
            }
            let keyspaces = self.keyspaces()?;
            if keyspaces.data.tree.sealed_memtable_count() == 0 {
                return Ok(true);
            }
            if keyspaces.is_poisoned() {
                return Ok(false);
            }
            drop(keyspaces);
            // fjall tells neither its end nor its failure.
            std::thread::sleep(FLUSH_POLL);
        }
        Ok(false)
    }
}
