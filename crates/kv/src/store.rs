//! The store: journal, tables and cold store put together.
//!
//! Order of events of a batch: checked against limits and space -> numbered, encoded into the
//! journal's buffer and applied to the tables, all under one short lock -> written (one writer at a
//! time, which writes the batches of all waiting tasks) -> flushed (likewise) -> in the cold store
//! with a checkpoint -> its journal segment is reused.
//!
//! Invariants: the tables show exactly the batches that the journal accepted; no batch reaches the
//! cold store before it is durable in the journal; after the first failed write or flush nothing
//! changes any more. No lock is held across an await, and none while the cold store is read.
//!
//! Life cycle: [`Store::open`] (recovery, four background tasks) -> use -> [`Store::close`]
//! (checkpoint, tasks ended, cold store closed). Dropping a store without closing it is equivalent
//! to a crash of the process, except that a write in progress may be cut off.
//!
//! Downside: one lock per store for changes; its users are expected to be one state machine each. A
//! read that misses memory blocks the core while the cold store looks it up, and also all tasks
//! that wait for a lock of its caller; callers that hold a lock read with [`Store::reads`].

mod age;
mod attempt;
mod checkpoint;
mod loading;
mod opening;
mod reading;
mod room;
mod shared;
mod space;
mod tasks;

use std::sync::{Arc, atomic::Ordering};

use bytes::Bytes;
use rt::{BoxFuture, Device, Instant, Seams};

use self::shared::Shared;
pub use self::{
    attempt::{Loading, Reads},
    shared::Statistics,
};
use crate::{
    batch::{Batch, Lsn, Table},
    cold::ColdStore,
    config::Config,
    error::Result,
    supply::Supply,
};

/// A store. Share it in an `Arc`.
pub struct Store {
    shared: Arc<Shared>,
}

impl Store {
    /// Opens the store on `device` and `cold`, creates it if both are empty. Calls `replay` with
    /// every batch that is newer than the last checkpoint, in order; they are durable when this
    /// returns. Damage is an error, see [`Error::Corrupt`]; nothing is changed in that case.
    pub fn open<'a>(
        seams: Seams,
        device: Arc<dyn Device>,
        cold: Arc<dyn ColdStore>,
        config: Config,
        replay: &'a mut (dyn FnMut(Lsn, &Batch) + Send),
    ) -> BoxFuture<'a, Result<Store>> {
        Box::pin(async move {
            let shared = opening::open(seams, device, cold, config, replay).await?;
            tasks::spawn(&shared);
            Ok(Store { shared })
        })
    }

    /// Value of a key, as the last applied batch left it.
    pub fn get(&self, table: Table, key: &[u8]) -> Result<Option<Bytes>> {
        self.shared.get(table, key)
    }

    /// Calls `visit` with the keys of `from..to` in order until it returns false. `to` of `None`
    /// means to the table's end. `visit` may use the store. Every key is seen as it is at some
    /// moment during the scan.
    pub fn scan(
        &self,
        table: Table,
        from: &[u8],
        to: Option<&[u8]>,
        visit: &mut dyn FnMut(&[u8], &Bytes) -> bool,
    ) -> Result<()> {
        self.shared.scan(table, from, to, visit)
    }

    /// Reads for an attempt of an operation: entries that are neither in memory nor in `loading`
    /// are noted there, and the read fails with [`Error::Missed`]. Without `loading` everything is
    /// read at once.
    pub fn reads<'a>(&'a self, loading: Option<&'a Loading>) -> Reads<'a> {
        Reads::new(&self.shared, loading)
    }

    /// Loads the entries that the last attempt of an operation missed. The cold store is read where
    /// this delays no other task.
    pub async fn load_missed(&self, loading: &mut Loading) -> Result<()> {
        loading.load_missed(&self.shared).await
    }

    /// Applies a batch: visible at once, in the order of calls. An error means that nothing was
    /// applied. An empty batch changes nothing and has the number of the one before.
    pub fn apply(&self, batch: Batch) -> Result<Lsn> {
        self.shared.apply(&batch, self.shared.reserve_bytes())
    }

    /// Like [`Store::apply`], but may use the space reserved for batches that free space: removals,
    /// truncations.
    pub fn apply_reserved(&self, batch: Batch) -> Result<Lsn> {
        self.shared.apply(&batch, 0)
    }

    /// Waits until the kernel has the batch: it survives the death of this process. Also slows
    /// callers down while checkpoints lag behind.
    pub async fn written(&self, lsn: Lsn) -> Result<()> {
        self.shared.written(lsn).await?;
        self.shared.wait_while(|state| self.shared.is_behind(state)).await;
        Ok(())
    }

    /// As [`Store::written`], for callers that have only read: they need not slow down.
    pub async fn shown(&self, lsn: Lsn) -> Result<()> {
        if self.is_shown(lsn) { Ok(()) } else { self.shared.written(lsn).await }
    }

    /// Whether [`Store::shown`] would not wait.
    pub fn is_shown(&self, lsn: Lsn) -> bool {
        self.shared.is_written(lsn)
    }

    /// Waits until the batch survives power loss.
    pub async fn durable(&self, lsn: Lsn) -> Result<()> {
        self.shared.durable(lsn).await
    }

    /// Waits until there is space for any batch, or no prospect of it: the next [`Store::apply`]
    /// returns which. For users that apply many batches without waiting for any of them, and after
    /// [`Error::Overloaded`].
    pub async fn ready(&self) -> Result<()> {
        self.shared.wait_while(|state| self.shared.is_without_space(state)).await;
        self.shared.check_usable()
    }

    /// Whether there is space for a batch of up to `payload_bytes` now, or waiting for it is
    /// useless: [`Store::apply`] returns the reason. For users that apply one batch at a time,
    /// whichever other tasks wait for theirs to be written.
    pub fn has_space(&self, payload_bytes: u64) -> bool {
        let state = self.shared.state.lock();
        state.is_waiting_useless() || !self.shared.is_too_full(&state, payload_bytes)
    }

    /// Waits until [`Store::has_space`]. `payload_bytes` must not be above three quarters of a
    /// segment.
    pub async fn wait_for_space(&self, payload_bytes: u64) {
        self.shared.wait_while(|state| self.shared.is_too_full(state, payload_bytes)).await;
    }

    /// Number of the last batch applied; 0 in a new store.
    pub fn last(&self) -> Lsn {
        self.shared.state.lock().journal.applied()
    }

    /// Moves everything applied so far to the cold store; the last batch it contains.
    pub async fn checkpoint(&self) -> Result<Lsn> {
        self.shared.request_checkpoint().await
    }

    /// Free space of the device below which [`Store::apply`] refuses.
    pub fn device_reserve(&self) -> u64 {
        self.shared.device_reserve(&self.shared.state.lock())
    }

    /// How much space is left, as far as is known.
    pub fn supply(&self) -> Supply {
        let state = self.shared.state.lock();
        let full = state.cold_full || state.journal_full || self.shared.is_device_full(&state);
        Supply { full, scarce: self.shared.is_device_scarce(&state) }
    }

    /// Why the store accepts no more changes, if it does not.
    pub fn failure(&self) -> Option<Arc<str>> {
        self.shared.state.lock().poison.clone()
    }

    /// From now on the store accepts no more changes and writes nothing: its user has panicked,
    /// perhaps in the middle of a change, and only data that are already written can be relied on.
    /// Takes no lock, so that the panicking thread may call it.
    pub fn halt(&self) {
        self.shared.halted.store(true, Ordering::SeqCst);
    }

    /// When the oldest batch was written that a power loss could take; `None` if there is none.
    pub fn oldest_unflushed(&self) -> Option<Instant> {
        self.shared.state.lock().ages.oldest()
    }

    /// What the store is doing.
    pub fn statistics(&self) -> Statistics {
        self.shared.statistics()
    }

    /// Bytes of the journal since the store was opened, for each table that has some.
    pub fn journal_bytes_of_tables(&self) -> Vec<(Table, u64)> {
        self.shared.state.lock().journal.table_bytes()
    }

    /// Whether the journal will soon be so long that a checkpoint begins. What is to be removed
    /// should be removed before that: the checkpoint would write it to the cold store.
    pub fn is_checkpoint_near(&self) -> bool {
        self.shared.is_checkpoint_near()
    }

    /// Number of the last batch that a power loss cannot take.
    pub fn last_durable(&self) -> Lsn {
        self.shared.last_durable()
    }

    /// Makes everything durable, checkpoints, ends the background tasks, closes the cold store:
    /// afterwards the store can be opened again, and no file is touched any more, even if this
    /// handle still exists. Later calls fail. A failed checkpoint is not an error: the journal has
    /// everything.
    pub fn close(&self) -> BoxFuture<'_, Result<()>> {
        Box::pin(async move {
            let result = self.shared.prepare_close().await;
            self.shared.stop();
            let mut tasks = self.shared.tasks.subscribe();
            // The sender lives in `shared`: waiting cannot fail.
            let _ = tasks.wait_for(|running| *running == 0).await;
            self.shared.cold.close().await;
            result
        })
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        self.shared.stop();
        self.shared.writing.abandon();
        self.shared.flushing.abandon();
    }
}
