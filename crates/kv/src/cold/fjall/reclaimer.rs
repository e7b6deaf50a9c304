//! The thread that gives back the space of a fjall store: of replaced tables behind every compaction, of deleted keys when asked.
//! Why both are needed, and how, see the module above.
//!
//! Downside: it cannot be interrupted while it rewrites the tree. Opening again and closing wait for it.

use std::{
    io,
    sync::{Arc, atomic::Ordering, mpsc},
};

use fjall::{AbstractTree, PersistMode};
use parking_lot::RwLockWriteGuard;

use super::{
    super::reclaim::Estimate,
    journals,
    keyspaces::{Keyspaces, failed},
    shared::{FLUSH_POLL, Rewriting, Shared},
};

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

impl Reclaimed {
    /// What it means that nothing was done.
    fn nothing(estimate: &Estimate) -> Reclaimed {
        if estimate.is_worth_it() { Reclaimed::NoRoom } else { Reclaimed::Nothing }
    }
}

/// See the module documentation.
pub(super) struct Reclaimer {
    shared: Arc<Shared>,
}

impl Reclaimer {
    pub fn new(shared: Arc<Shared>) -> Reclaimer {
        Reclaimer { shared }
    }

    /// Lets go of replaced tables whenever there may be some, and gives space back when asked to, until the store is closed.
    pub fn work(&self, woken: &mpsc::Receiver<()>) {
        let mut is_wanted = false;
        while woken.recv().is_ok() && !self.shared.is_stopping() {
            self.forget_replaced().unwrap_or_else(|error| tracing::warn!(%error, "cannot remove replaced tables"));
            is_wanted |= self.shared.reclaim_asked.swap(false, Ordering::AcqRel);
            if is_wanted {
                // What compactions give back may be the room that is missing.
                is_wanted = self.reclaim_while_due() == Reclaimed::NoRoom;
            }
        }
    }

    /// Lets go of the tables that compactions replace, until none is under way.
    fn forget_replaced(&self) -> io::Result<()> {
        loop {
            let is_compacting = self.shared.keyspaces()?.database.active_compactions() > 0;
            self.forget_versions()?;
            if !is_compacting || self.shared.is_stopping() {
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
                    tracing::warn!(%error, "cannot free the space of deleted keys");
                    return Reclaimed::Nothing;
                }
            }
        }
    }

    /// At least as many tombstones as there are; as many as there are behind a flush.
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

    /// Opens fjall again if background work failed: what it left takes space until then, so that there may be too little for
    /// the next write, which would open it as well.
    fn clear_failure(&self) -> io::Result<()> {
        let is_poisoned =
            matches!(self.shared.keyspaces()?.database.persist(PersistMode::Buffer), Err(fjall::Error::Poisoned));
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
            // While nobody else is here, nobody reads, so that nobody who reads later reads the past.
            let open = self.shared.open.write();
            let Some(keyspaces) = open.as_ref() else { return Ok(Reclaimed::Nothing) };
            let present = keyspaces.database.visible_seqno().saturating_sub(1);
            // From here on others may read and write, but not close it.
            let open = RwLockWriteGuard::downgrade(open);
            let Some(keyspaces) = open.as_ref() else { return Ok(Reclaimed::Nothing) };
            let first_table = keyspaces.data.tree.next_table_id();
            *self.shared.rewriting.lock() = Some(Rewriting { bytes: before.rewritten_bytes(), first_table });
            let compacted = keyspaces.data.tree.major_compact(keyspaces.table_bytes, present);
            *self.shared.rewriting.lock() = None;
            compacted
        };
        if let Err(error) = compacted {
            // The files that it left go when it is opened.
            self.shared.open_again()?;
            return Err(failed(error.into()));
        }
        self.forget_versions()?;
        let after = self.estimate()?;
        tracing::info!(?before, ?after, "freed the space of deleted keys");
        Ok(if after.tables_bytes < before.tables_bytes { Reclaimed::Some } else { Reclaimed::Nothing })
    }

    /// Lets go of the versions of the tree before the newest, and with them of their files.
    fn forget_versions(&self) -> io::Result<()> {
        let keyspaces = self.shared.keyspaces()?;
        let Keyspaces { database, data, .. } = &*keyspaces;
        if data.tree.version_free_list_len() == 0 {
            return Ok(());
        }
        let mut versions = data.tree.get_version_history_lock();
        // No version is made without the lock, and each has a number below what is visible from then on.
        let newest = database.visible_seqno();
        versions.maintenance(data.path(), newest).map_err(|error| failed(error.into()))
    }
}
