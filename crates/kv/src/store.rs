//! The store: journal, tables and cold store put together.
//!
//! Order of events of a batch: checked against limits and room -> numbered, encoded into the journal's buffer and applied
//! to the tables, all under one short lock -> written (one writer at a time, whose group takes everybody's batches along)
//! -> flushed (likewise) -> in the cold store with a checkpoint -> its journal segment is used again.
//!
//! Invariants: the tables show exactly the batches that the journal accepted; nothing reaches the cold store before it is
//! durable in the journal; after the first failed write or flush nothing changes any more. No lock is held across an
//! await, and none while the cold store is read.
//!
//! Life cycle: [`Store::open`] (recovery, four background tasks) -> use -> [`Store::close`] (checkpoint, tasks ended, cold
//! store closed). Dropping a store without closing it is what a crash of the process is, except that a write in progress may
//! be cut.
//!
//! Downside: one lock per store; its users are expected to be one state machine each. A read that misses memory blocks the
//! core while the cold store looks it up.

mod checkpoint;
mod opening;
mod reading;
mod space;
mod tasks;

use std::sync::Arc;

use bytes::Bytes;
use parking_lot::Mutex;
use rt::{BoxFuture, Device, Seams};
use tokio::sync::{Notify, watch};

use crate::{
    batch::{Batch, Lsn, Operation, Table},
    cold::ColdStore,
    config::{BATCH_BYTES_MAX, Config, KEY_BYTES_MAX, VALUE_BYTES_MAX},
    error::{Error, Result},
    journal::{
        format::payload_bytes,
        segment_name,
        writer::{Group, Room, Writer},
    },
    pipeline::Pipeline,
    supply::Supply,
    tables::Tables,
};

/// Dirty memory at which `written` waits, in units of the configured amount.
const DIRTY_FACTOR_WAIT: usize = 2;
/// Dirty memory at which `apply` refuses.
const DIRTY_FACTOR_REFUSE: usize = 4;
/// Entries that eviction may look at for each applied or read one: more than one, so that it catches up.
const EVICTION_STEPS: usize = 8;

/// A store. Share it in an `Arc`.
pub struct Store {
    shared: Arc<Shared>,
}

/// What a store is doing, for parameters and tools.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Statistics {
    /// Last batch applied.
    pub applied: Lsn,
    /// Last batch with the kernel.
    pub written: Lsn,
    /// Last durable batch.
    pub durable: Lsn,
    /// Last batch in the cold store.
    pub checkpoint: Lsn,
    /// Estimated memory of the tables.
    pub memory_bytes: u64,
    /// Estimated memory of entries that are not in the cold store.
    pub dirty_bytes: u64,
    /// Everything is in memory; the cold store is never read.
    pub resident: bool,
    /// Journal segments with batches.
    pub segments_live: u64,
    /// Journal segments ready to be written.
    pub segments_ready: u64,
    /// Groups written since the store was opened.
    pub writes: u64,
    /// Flushes since the store was opened.
    pub flushes: u64,
    /// Reads of keys that asked the cold store.
    pub cold_reads: u64,
    /// Whether the store is poisoned.
    pub poisoned: bool,
}

struct State {
    journal: Writer,
    tables: Tables,
    poison: Option<Arc<str>>,
    closed: bool,
    /// It is about to be closed.
    settling: bool,
    /// The last checkpoint failed: nobody waits for the next.
    checkpoint_failed: bool,
    /// It failed for lack of space.
    cold_full: bool,
    /// There was no space for another segment.
    journal_full: bool,
    /// The commit task has been told that there is something to flush.
    commit_armed: bool,
    /// The device's last answer; `None` if it is not known or of no interest.
    device_space: Option<space::DeviceSpace>,
    /// The segment task is at work.
    preparing: bool,
    checkpoints: checkpoint::Progress,
    statistics: Statistics,
}

struct Shared {
    seams: Seams,
    device: Arc<dyn Device>,
    cold: Arc<dyn ColdStore>,
    config: Config,
    store: u64,
    segment_bytes: u64,
    state: Mutex<State>,
    writing: Pipeline<(Group, Result<()>)>,
    flushing: Pipeline<(Lsn, Result<()>)>,
    /// There may be room again, a checkpoint ended, or the store was poisoned.
    changed: Notify,
    commit_wanted: Notify,
    checkpoint_wanted: Notify,
    segment_wanted: Notify,
    /// A batch was refused because the device is full: it is to be asked again.
    space_wanted: Notify,
    stop: watch::Sender<bool>,
    /// Background tasks that still run.
    tasks: watch::Sender<usize>,
}

impl Store {
    /// Opens the store on `device` and `cold`, creates it if both are empty. Calls `replay` with every batch that is
    /// newer than the last checkpoint, in order; they are durable when this returns. Damage is an error, see
    /// [`Error::Corrupt`]; nothing is changed in that case.
    pub async fn open(
        seams: Seams,
        device: Arc<dyn Device>,
        cold: Arc<dyn ColdStore>,
        config: Config,
        replay: &mut (dyn FnMut(Lsn, &Batch) + Send),
    ) -> Result<Store> {
        let shared = opening::open(seams, device, cold, config, replay).await?;
        tasks::spawn(&shared);
        Ok(Store { shared })
    }

    /// Value of a key, as the last applied batch left it.
    pub fn get(&self, table: Table, key: &[u8]) -> Result<Option<Bytes>> {
        self.shared.get(table, key)
    }

    /// Calls `visit` with the keys of `from..to` in order until it returns false. `to` of `None` means to the table's end.
    /// `visit` may use the store. Every key is seen as it is at some moment during the scan.
    pub fn scan(
        &self,
        table: Table,
        from: &[u8],
        to: Option<&[u8]>,
        visit: &mut dyn FnMut(&[u8], &Bytes) -> bool,
    ) -> Result<()> {
        self.shared.scan(table, from, to, visit)
    }

    /// Applies a batch: visible at once, in the order of calls. An error means that nothing was applied. An empty batch
    /// changes nothing and has the number of the one before.
    pub fn apply(&self, batch: Batch) -> Result<Lsn> {
        self.shared.apply(&batch, self.shared.reserve_bytes())
    }

    /// Like [`Store::apply`], but may use the space kept back for batches that free some: removals, truncations.
    pub fn apply_reserved(&self, batch: Batch) -> Result<Lsn> {
        self.shared.apply(&batch, 0)
    }

    /// Waits until the kernel has the batch: it survives the death of this process. Also slows callers down while
    /// checkpoints are behind.
    pub async fn written(&self, lsn: Lsn) -> Result<()> {
        self.shared.written(lsn).await?;
        self.shared.wait_while(|state| self.shared.is_behind(state)).await;
        Ok(())
    }

    /// Waits until the batch survives power loss.
    pub async fn durable(&self, lsn: Lsn) -> Result<()> {
        self.shared.durable(lsn).await
    }

    /// Waits until there is room for any batch, or no hope for it: the next [`Store::apply`] tells. For users that apply
    /// many batches without waiting for any of them, and after [`Error::Overloaded`].
    pub async fn ready(&self) -> Result<()> {
        self.shared.wait_while(|state| self.shared.is_without_room(state)).await;
        self.shared.check_usable()
    }

    /// Whether a batch of up to `payload_bytes` finds room now, or waiting for it is useless: [`Store::apply`] tells why. For
    /// users that apply one batch at a time, whoever else waits for his to be written.
    pub fn has_room(&self, payload_bytes: u64) -> bool {
        let state = self.shared.state.lock();
        state.is_waiting_useless() || !self.shared.is_too_full(&state, payload_bytes)
    }

    /// Waits until [`Store::has_room`]. `payload_bytes` must not be above three quarters of a segment.
    pub async fn room(&self, payload_bytes: u64) {
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

    /// How much more there is room for, as far as is known.
    pub fn supply(&self) -> Supply {
        let state = self.shared.state.lock();
        let full = state.cold_full || state.journal_full || self.shared.is_device_full(&state);
        Supply { full, scarce: self.shared.is_device_scarce(&state) }
    }

    /// Why the store takes no more changes, if it does not.
    pub fn failure(&self) -> Option<Arc<str>> {
        self.shared.state.lock().poison.clone()
    }

    /// What the store is doing.
    pub fn statistics(&self) -> Statistics {
        self.shared.statistics()
    }

    /// Makes everything durable, checkpoints, ends the background tasks, closes the cold store: afterwards the store can be
    /// opened again, and no file is touched any more, whoever still has this one. Later calls fail. A checkpoint that fails
    /// is no error: the journal has everything.
    pub async fn close(&self) -> Result<()> {
        let result = self.shared.settle().await;
        self.shared.stop();
        let mut tasks = self.shared.tasks.subscribe();
        // The sender lives in `shared`: waiting cannot fail.
        let _ = tasks.wait_for(|running| *running == 0).await;
        self.shared.cold.close().await;
        result
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        self.shared.stop();
        self.shared.writing.abandon();
        self.shared.flushing.abandon();
    }
}

impl State {
    fn check_usable(&self) -> Result<()> {
        if let Some(first) = &self.poison {
            return Err(Error::Poisoned { first: Arc::clone(first) });
        }
        if self.closed { Err(Error::Closed) } else { Ok(()) }
    }

    /// What to tell a caller for whose batch there is no room. `Overloaded` promises that waiting helps.
    fn no_room(&self) -> Error {
        if self.cold_full || self.journal_full {
            return Error::NoSpace;
        }
        self.checkpoints.failure().unwrap_or(Error::Overloaded)
    }

    /// Nobody waits for room any more, or nobody has to.
    fn is_waiting_useless(&self) -> bool {
        self.checkpoint_failed || self.journal_full || self.closed || self.poison.is_some()
    }
}

impl Shared {
    fn reserve_bytes(&self) -> u64 {
        self.config.reserve_bytes.min(self.segment_bytes / 4)
    }

    fn check_usable(&self) -> Result<()> {
        self.state.lock().check_usable()
    }

    fn apply(&self, batch: &Batch, reserve_bytes: u64) -> Result<Lsn> {
        let mut guard = self.state.lock();
        let state = &mut *guard;
        state.check_usable()?;
        if batch.is_empty() {
            return Ok(state.journal.applied());
        }
        check_limits(batch, state.journal.payload_bytes_max().min(BATCH_BYTES_MAX))?;
        let dirty_max = self.config.dirty_bytes.saturating_mul(DIRTY_FACTOR_REFUSE as u64);
        if state.tables.dirty_bytes() as u64 > dirty_max && reserve_bytes > 0 {
            return Err(state.no_room());
        }
        if reserve_bytes > 0 && self.is_device_full(state) {
            drop(guard);
            self.space_wanted.notify_one();
            return Err(Error::NoSpace);
        }
        if state.journal.room(batch, reserve_bytes) == Room::None {
            let error = state.no_room();
            drop(guard);
            self.segment_wanted.notify_one();
            self.checkpoint_wanted.notify_one();
            return Err(error);
        }
        let lsn = state.journal.append(batch);
        for operation in &batch.operations {
            state.tables.apply(operation);
        }
        let steps = batch.operations.len() * EVICTION_STEPS;
        state.tables.evict(self.config.memory_bytes as usize, steps);
        self.wake_tasks(state);
        Ok(lsn)
    }

    /// Tells the background tasks what they have to do after a batch.
    fn wake_tasks(&self, state: &mut State) {
        if !state.commit_armed {
            state.commit_armed = true;
            self.commit_wanted.notify_one();
        }
        if state.journal.ready_segments() == 0 && !state.preparing {
            state.preparing = true;
            self.segment_wanted.notify_one();
        }
        if !state.checkpoints.wanted && self.checkpoint_due(state) {
            state.checkpoints.wanted = true;
            self.checkpoint_wanted.notify_one();
        }
    }

    fn checkpoint_due(&self, state: &State) -> bool {
        state.tables.dirty_bytes() as u64 > self.config.dirty_bytes
            || state.journal.live_segments() as u64 > u64::from(self.config.segments_max) / 2
            || self.is_checkpoint_urgent(state)
    }

    async fn written(&self, lsn: Lsn) -> Result<()> {
        let done = || {
            let state = self.state.lock();
            if state.journal.written() >= lsn {
                return Some(Ok(()));
            }
            if state.journal.applied() < lsn {
                return Some(Err(Error::UnknownLsn { asked: lsn, last: state.journal.applied() }));
            }
            state.check_usable().err().map(Err)
        };
        self.write_until(done).await
    }

    async fn write_until<R>(&self, done: impl Fn() -> Option<R>) -> R {
        self.writing.run(done, || self.start_write(), |(group, result)| self.finish_write(group, result)).await
    }

    fn start_write(&self) -> Option<BoxFuture<'static, (Group, Result<()>)>> {
        let mut state = self.state.lock();
        if state.check_usable().is_err() {
            return None;
        }
        let group = state.journal.take_group()?;
        state.statistics.writes += 1;
        drop(state);
        let device = Arc::clone(&self.device);
        Some(Box::pin(async move {
            for piece in &group.pieces {
                let name = segment_name(piece.slot);
                if let Err(error) = device.write(&name, piece.offset, vec![piece.bytes.clone()]).await {
                    return (group, Err(Error::device("write", &name, error)));
                }
            }
            (group, Ok(()))
        }))
    }

    fn finish_write(&self, group: Group, result: Result<()>) {
        match result {
            Ok(()) => self.state.lock().journal.group_written(group),
            Err(error) => self.poison(&error),
        }
    }

    async fn durable(&self, lsn: Lsn) -> Result<()> {
        self.written(lsn).await?;
        let done = || {
            let state = self.state.lock();
            if state.journal.flushed() >= lsn {
                return Some(Ok(()));
            }
            state.check_usable().err().map(Err)
        };
        self.flushing.run(done, || self.start_flush(), |(lsn, result)| self.finish_flush(lsn, result)).await
    }

    fn start_flush(&self) -> Option<BoxFuture<'static, (Lsn, Result<()>)>> {
        let mut state = self.state.lock();
        if state.check_usable().is_err() {
            return None;
        }
        let (slots, lsn) = state.journal.take_unflushed();
        state.statistics.flushes += 1;
        drop(state);
        let device = Arc::clone(&self.device);
        Some(Box::pin(async move {
            for slot in slots {
                let name = segment_name(slot);
                if let Err(error) = device.flush(&name).await {
                    return (lsn, Err(Error::device("flush", &name, error)));
                }
            }
            (lsn, Ok(()))
        }))
    }

    fn finish_flush(&self, lsn: Lsn, result: Result<()>) {
        match result {
            Ok(()) => self.state.lock().journal.flushed_to(lsn),
            Err(error) => self.poison(&error),
        }
    }

    /// Writes down what is flushed, if the journal does not say it yet.
    async fn write_mark(&self) -> Result<()> {
        let Some(target) = self.state.lock().journal.append_mark() else { return Ok(()) };
        let done = || {
            let state = self.state.lock();
            if state.journal.written_bytes() >= target {
                return Some(Ok(()));
            }
            state.check_usable().err().map(Err)
        };
        self.write_until(done).await
    }

    /// Waits while there is too little room and hope that checkpoints and new segments make some.
    async fn wait_while(&self, crowded: impl Fn(&State) -> bool) {
        loop {
            let mut notified = std::pin::pin!(self.changed.notified());
            notified.as_mut().enable();
            {
                let state = self.state.lock();
                if state.is_waiting_useless() || !crowded(&state) {
                    return;
                }
            }
            self.segment_wanted.notify_one();
            self.checkpoint_wanted.notify_one();
            notified.await;
        }
    }

    fn is_dirty(&self, state: &State) -> bool {
        let limit = self.config.dirty_bytes.saturating_mul(DIRTY_FACTOR_WAIT as u64);
        state.tables.dirty_bytes() as u64 > limit
    }

    /// Callers should slow down.
    fn is_behind(&self, state: &State) -> bool {
        self.is_dirty(state) || state.journal.room_bytes() < self.segment_bytes / 2
    }

    /// Some batch might not find room.
    fn is_without_room(&self, state: &State) -> bool {
        self.is_dirty(state) || state.journal.ready_segments() == 0
    }

    /// A batch of this size would not find room, or take what is kept for slowing callers down.
    fn is_too_full(&self, state: &State, payload_bytes: u64) -> bool {
        self.is_dirty(state) || state.journal.room_for(payload_bytes, self.reserve_bytes()) == Room::None
    }

    /// The first failure of a write or flush: nothing changes any more.
    fn poison(&self, error: &Error) {
        let mut state = self.state.lock();
        if state.poison.is_none() {
            tracing::error!(%error, "the store takes no more changes");
            state.poison = Some(error.to_string().into());
        }
        drop(state);
        self.changed.notify_waiters();
    }

    /// Makes everything durable and checkpoints if possible.
    async fn settle(&self) -> Result<()> {
        let last = {
            let mut state = self.state.lock();
            state.settling = true;
            state.journal.applied()
        };
        self.durable(last).await?;
        if let Err(error) = self.request_checkpoint().await {
            tracing::warn!(%error, "closing without a checkpoint");
        }
        self.write_mark().await
    }

    fn stop(&self) {
        self.state.lock().closed = true;
        self.stop.send_replace(true);
        self.commit_wanted.notify_one();
        self.checkpoint_wanted.notify_one();
        self.segment_wanted.notify_one();
        self.space_wanted.notify_one();
        self.changed.notify_waiters();
    }

    fn statistics(&self) -> Statistics {
        let state = self.state.lock();
        Statistics {
            applied: state.journal.applied(),
            written: state.journal.written(),
            durable: state.journal.flushed(),
            checkpoint: state.checkpoints.last,
            memory_bytes: state.tables.bytes() as u64,
            dirty_bytes: state.tables.dirty_bytes() as u64,
            resident: state.tables.is_complete(),
            segments_live: state.journal.live_segments() as u64,
            segments_ready: state.journal.ready_segments() as u64,
            poisoned: state.poison.is_some(),
            ..state.statistics
        }
    }
}

fn check_limits(batch: &Batch, batch_bytes_max: u64) -> Result<()> {
    let refuse = |what, bytes: u64, bytes_max: u64| {
        if bytes > bytes_max { Err(Error::TooLarge { what, bytes, bytes_max }) } else { Ok(()) }
    };
    for operation in &batch.operations {
        refuse("a key", operation.key().len() as u64, KEY_BYTES_MAX as u64)?;
        if let Operation::Put(_, _, value) = operation {
            refuse("a value", value.len() as u64, VALUE_BYTES_MAX as u64)?;
        }
    }
    refuse("a batch", payload_bytes(batch), batch_bytes_max)
}
