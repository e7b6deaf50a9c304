//! The thread that merges the tables of a fjall store, and frees the space of deleted keys on
//! request. The parent module explains why both are needed, and how they work.
//!
//! Downside: it cannot be interrupted while it rewrites the tree. Reopening and closing wait for
//! it.

use std::{
    io,
    sync::{
        Arc,
        atomic::Ordering,
        mpsc::{self, RecvTimeoutError},
    },
    time::Duration,
};

use fjall::AbstractTree;

use super::{
    super::reclaim::Estimate,
    journals,
    keyspaces::failed,
    levels::Merge,
    shared::{FLUSH_POLL, Rewriting, Shared},
};

/// It looks at least that often: a flush ends after the write that was the last to wake it.
const LOOK_INTERVAL: Duration = Duration::from_secs(5);

/// How an attempt to give space back ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reclaimed {
    /// Something was given back.
    Some,
    /// Nothing is worth it.
    Nothing,
    /// It would be worth it, but there is no room to write down what is left.
    NoSpace,
}

impl Reclaimed {
    /// What it means that nothing was done.
    fn nothing(estimate: &Estimate) -> Reclaimed {
        if estimate.is_worth_it() { Reclaimed::NoSpace } else { Reclaimed::Nothing }
    }
}

/// See the module documentation.
pub(super) struct Compactor {
    shared: Arc<Shared>,
}

impl Compactor {
    pub fn new(shared: Arc<Shared>) -> Compactor {
        Compactor { shared }
    }

    /// Merges whenever something may be due, and gives space back when asked to, until the store is
    /// closed.
    pub fn work(&self, woken: &mpsc::Receiver<()>) {
        let mut is_wanted = false;
        let mut has_failed = false;
        while !matches!(woken.recv_timeout(LOOK_INTERVAL), Err(RecvTimeoutError::Disconnected)) {
            if self.shared.is_stopping() {
                return;
            }
            let merged = self.reopened().and_then(|()| self.merge_all());
            if let Err(error) = &merged
                && !has_failed
            {
                tracing::warn!(%error, "cannot merge tables");
            }
            has_failed = merged.is_err();
            is_wanted |= self.shared.reclaim_asked.swap(false, Ordering::AcqRel);
            if is_wanted {
                // What merges give back may be the room that is missing.
                is_wanted = self.reclaim_while_due() == Reclaimed::NoSpace;
            }
        }
    }

    /// Opens fjall if it could not be opened again before.
    fn reopened(&self) -> io::Result<()> {
        if self.shared.is_missing() { self.shared.open_again() } else { Ok(()) }
    }

    /// Merges until nothing is due, or there is no room, and nothing is about to be flushed; or
    /// until space is to be given back, which may help more.
    fn merge_all(&self) -> io::Result<()> {
        while !self.shared.is_stopping() && !self.shared.reclaim_asked.load(Ordering::Acquire) {
            let is_flushing = {
                let keyspaces = self.shared.keyspaces()?;
                keyspaces.data.tree.sealed_memtable_count() > 0 && !keyspaces.is_poisoned()
            };
            match self.shared.merge()? {
                Merge::Done => {}
                Merge::NotDue | Merge::NoSpace if !is_flushing => return Ok(()),
                // fjall does not tell the end.
                Merge::NotDue | Merge::NoSpace | Merge::Busy => std::thread::sleep(FLUSH_POLL),
            }
        }
        Ok(())
    }

    /// Gives space back until there is nothing worth it, or no room, or a failure.
    fn reclaim_while_due(&self) -> Reclaimed {
        loop {
            match self.reclaim() {
                Ok(Reclaimed::Some) => {}
                Ok(end) => return end,
                Err(error) => {
                    tracing::warn!(%error, "cannot free the space of deleted keys");
                    return Reclaimed::Nothing;
                }
            }
        }
    }

    /// At least as many tombstones as there are; exact just after a flush.
    fn estimate(&self) -> io::Result<Estimate> {
        let free_bytes = self.shared.free_bytes()?;
        let keyspaces = self.shared.keyspaces()?;
        let tree = &keyspaces.data.tree;
        Ok(Estimate {
            tables_bytes: tree.disk_space(),
            entries: tree.approximate_len() as u64,
            tombstones: tree.tombstone_count() + self.shared.deleted.load(Ordering::Relaxed),
            free_bytes,
            growth_bytes: journals::growth_bytes(&self.shared.directory)?,
        })
    }

    /// Opens fjall again if background work failed: what it left takes space until then, so that
    /// there may be too little for the next write, which would open it as well.
    fn clear_failure(&self) -> io::Result<()> {
        let is_poisoned = self.shared.keyspaces()?.is_poisoned();
        if is_poisoned && self.shared.is_nearly_full()? { self.shared.open_again() } else { Ok(()) }
    }

    /// Rewrites the tree if that is due.
    fn reclaim(&self) -> io::Result<Reclaimed> {
        self.clear_failure()?;
        let early = self.estimate()?;
        if !early.is_due() || !self.shared.flush_buffers()? {
            tracing::debug!(?early, "not freeing the space of deleted keys");
            return Ok(Reclaimed::nothing(&early));
        }
        let before = self.estimate()?;
        if !before.is_due() {
            tracing::debug!(?before, "not freeing the space of deleted keys");
            return Ok(Reclaimed::nothing(&before));
        }
        let compacted = {
            let _merging = self.shared.merging.lock();
            let keyspaces = self.shared.keyspaces()?;
            let tree = &keyspaces.data.tree;
            // Past values are never read: what is deleted may go at once.
            let present = keyspaces.database.visible_seqno().saturating_sub(1);
            let first_table = tree.next_table_id();
            *self.shared.rewriting.lock() = Some(Rewriting { bytes: before.rewritten_bytes(), first_table });
            let compacted = tree.major_compact(keyspaces.table_bytes, present);
            *self.shared.rewriting.lock() = None;
            compacted
        };
        if let Err(error) = compacted {
            // The files that it left go when it is opened.
            self.shared.open_again()?;
            return Err(failed(error.into()));
        }
        self.shared.forget_versions()?;
        let after = self.estimate()?;
        tracing::info!(?before, ?after, "freed the space of deleted keys");
        Ok(if after.tables_bytes < before.tables_bytes { Reclaimed::Some } else { Reclaimed::Nothing })
    }
}
