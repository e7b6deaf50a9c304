//! State that a store shares with its background tasks, and the path of a batch through it:
//! applied, written, flushed.
//!
//! Invariants: the contents of [`State`] and what the tables show of batches change together under
//! the lock of [`State`], which is held briefly, never across an await, and never while the cold
//! store is read. The tables have a lock of their own besides, so that readers wait neither for
//! each other nor for the journal; it is taken after that of [`State`].

use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicU64, Ordering},
};

use bytes::Bytes;
use parking_lot::Mutex;
use rt::{BoxFuture, CpuKind, Device, ReadMostly, Seams};
use tokio::sync::{Notify, watch};

use super::{age::Ages, checkpoint::Progress, space::DeviceSpace};
use crate::{
    batch::{Batch, Lsn, Operation},
    cold::ColdStore,
    config::{BATCH_BYTES_MAX, Config, KEY_BYTES_MAX, VALUE_BYTES_MAX},
    error::{Error, Result},
    journal::{
        format::payload_bytes_max,
        logged::LoggedOperation,
        segment_name,
        writer::{BatchPlace, Group, Writer},
    },
    pipeline::Pipeline,
    tables::{Dirty, Tables},
};

/// Dirty memory at which `written` waits, in units of the configured amount.
const DIRTY_FACTOR_WAIT: usize = 2;
/// Dirty memory at which `apply` refuses.
const DIRTY_FACTOR_REFUSE: usize = 4;
/// A checkpoint is near when this part of the journal is left before it.
const NEAR_PARTS: u64 = 8;
/// Entries that eviction may look at for each applied or read one: more than one, so that it
/// catches up.
pub(super) const EVICTION_STEPS: usize = 8;

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
    /// Bytes of the journal since the store was opened, headers included.
    pub journal_bytes: u64,
    /// Bytes of journal segments that were prepared since then.
    pub prepared_bytes: u64,
    /// Reads of keys that asked the cold store.
    pub cold_reads: u64,
    /// Whether the store is poisoned.
    pub poisoned: bool,
}

/// What the store's lock protects.
pub(super) struct State {
    pub(super) journal: Writer,
    /// Of the tables.
    pub(super) dirty: Dirty,
    pub(super) poison: Option<Arc<str>>,
    /// See [`super::Store::halt`].
    pub(super) halted: Arc<AtomicBool>,
    pub(super) closed: bool,
    /// It is about to be closed.
    pub(super) closing: bool,
    /// The last checkpoint failed: no task waits for the next one.
    pub(super) checkpoint_failed: bool,
    /// It failed for lack of space.
    pub(super) cold_full: bool,
    /// There was no space for another segment.
    pub(super) journal_full: bool,
    /// The commit task has been told that there is something to flush.
    pub(super) commit_armed: bool,
    /// The device's last answer; `None` if it is not known or of no interest.
    pub(super) device_space: Option<DeviceSpace>,
    /// The segment task is at work.
    pub(super) preparing: bool,
    pub(super) checkpoints: Progress,
    pub(super) ages: Ages,
    pub(super) statistics: Statistics,
}

/// What the store shares with its tasks.
pub(super) struct Shared {
    pub(super) seams: Seams,
    pub(super) device: Arc<dyn Device>,
    pub(super) cold: Arc<dyn ColdStore>,
    pub(super) config: Config,
    pub(super) store: u64,
    pub(super) segment_bytes: u64,
    pub(super) state: Mutex<State>,
    pub(super) tables: ReadMostly<Tables>,
    /// As the journal in `state` has it, for readers: the last batch that the kernel has,
    pub(super) written_to: AtomicU64,
    /// and the last one that is durable.
    pub(super) flushed_to: AtomicU64,
    /// The same as in `state`, for code that must not wait for the lock.
    pub(super) halted: Arc<AtomicBool>,
    pub(super) writing: Pipeline<(Group, Result<()>)>,
    pub(super) flushing: Pipeline<(Lsn, Result<()>)>,
    /// There may be room again, a checkpoint ended, or the store was poisoned.
    pub(super) changed: Notify,
    pub(super) commit_wanted: Notify,
    pub(super) checkpoint_wanted: Notify,
    pub(super) segment_wanted: Notify,
    /// A batch was refused because the device is full: it is to be asked again.
    pub(super) space_wanted: Notify,
    pub(super) stop: watch::Sender<bool>,
    /// Background tasks that still run.
    pub(super) tasks: watch::Sender<usize>,
}

impl State {
    pub(super) fn check_usable(&self) -> Result<()> {
        if let Some(first) = &self.poison {
            return Err(Error::Poisoned { first: Arc::clone(first) });
        }
        if self.halted.load(Ordering::SeqCst) {
            return Err(Error::Poisoned { first: "a panic of its user".into() });
        }
        if self.closed { Err(Error::Closed) } else { Ok(()) }
    }

    /// What to tell a caller for whose batch there is no room. `Overloaded` promises that waiting
    /// helps.
    pub(super) fn no_space(&self) -> Error {
        if self.cold_full || self.journal_full {
            return Error::NoSpace;
        }
        self.checkpoints.failure().unwrap_or(Error::Overloaded)
    }

    /// No task waits for space any more, or needs to.
    pub(super) fn is_waiting_useless(&self) -> bool {
        self.checkpoint_failed || self.journal_full || self.closed || self.poison.is_some()
    }
}

impl Shared {
    pub(super) fn reserve_bytes(&self) -> u64 {
        self.config.reserve_bytes.min(self.segment_bytes / 4)
    }

    pub(super) fn check_usable(&self) -> Result<()> {
        self.state.lock().check_usable()
    }

    pub(super) fn apply(&self, batch: &Batch, reserve_bytes: u64) -> Result<Lsn> {
        let mut guard = self.state.lock();
        let state = &mut *guard;
        state.check_usable()?;
        if batch.is_empty() {
            return Ok(state.journal.applied());
        }
        check_limits(batch, state.journal.payload_bytes_max().min(BATCH_BYTES_MAX))?;
        let dirty_max = self.config.dirty_bytes.saturating_mul(DIRTY_FACTOR_REFUSE as u64);
        if state.dirty.bytes() as u64 > dirty_max && reserve_bytes > 0 {
            return Err(state.no_space());
        }
        if reserve_bytes > 0 && self.is_device_full(state) {
            drop(guard);
            self.space_wanted.notify_one();
            return Err(Error::NoSpace);
        }
        if state.journal.place(batch, reserve_bytes) == BatchPlace::None {
            let error = state.no_space();
            drop(guard);
            self.segment_wanted.notify_one();
            self.checkpoint_wanted.notify_one();
            return Err(error);
        }
        let was_dirty = self.is_dirty(state);
        let steps = batch.operations.len() * EVICTION_STEPS;
        let mut tables = self.tables.write();
        let replaced: Vec<Option<Bytes>> = batch.operations.iter().map(|one| tables.apply(one)).collect();
        tables.evict(self.config.memory_bytes as usize, steps);
        state.dirty = tables.dirty();
        drop(tables);
        let logged = batch.operations.iter().zip(&replaced);
        let logged: Vec<_> = logged.map(|(one, replaced)| LoggedOperation::new(one, replaced.as_deref())).collect();
        let lsn = state.journal.append(&logged);
        self.wake_tasks(state);
        let is_relieved = was_dirty && !self.is_dirty(state);
        drop(guard);
        if is_relieved {
            // It removed what callers wait for a checkpoint of.
            self.changed.notify_waiters();
        }
        Ok(lsn)
    }

    /// Tells the background tasks what they have to do after a batch.
    pub(super) fn wake_tasks(&self, state: &mut State) {
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

    pub(super) fn checkpoint_due(&self, state: &State) -> bool {
        state.dirty.bytes() as u64 > self.config.dirty_bytes
            || state.journal.live_segments() as u64 > u64::from(self.config.segments_max) / 2
            || self.is_checkpoint_urgent(state)
    }

    pub(super) fn is_checkpoint_near(&self) -> bool {
        let (live, most) = (self.state.lock().journal.live_segments() as u64, u64::from(self.config.segments_max));
        live + most / NEAR_PARTS > most / 2
    }

    pub(super) async fn written(&self, lsn: Lsn) -> Result<()> {
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

    pub(super) async fn write_until<R>(&self, done: impl Fn() -> Option<R>) -> R {
        self.writing.run(done, || self.start_write(), |(group, result)| self.finish_write(group, result)).await
    }

    pub(super) fn start_write(&self) -> Option<BoxFuture<'static, (Group, Result<()>)>> {
        let mut state = self.state.lock();
        if state.check_usable().is_err() {
            return None;
        }
        let group = state.journal.take_group()?;
        state.statistics.writes += 1;
        let (applied, flushed) = (state.journal.applied(), state.journal.flushed());
        state.ages.writing(applied, flushed, self.seams.clock.now());
        drop(state);
        let (device, cpu) = (Arc::clone(&self.device), self.seams.cpu.clone());
        Some(Box::pin(async move {
            let bytes: usize = group.pieces.iter().map(|piece| piece.bytes.len()).sum();
            cpu.spend(CpuKind::JournalAppend, bytes as u64).await;
            for piece in &group.pieces {
                let name = segment_name(piece.slot);
                if let Err(error) = device.write(&name, piece.offset, vec![piece.bytes.clone()]).await {
                    return (group, Err(Error::device("write", &name, error)));
                }
            }
            (group, Ok(()))
        }))
    }

    pub(super) fn finish_write(&self, group: Group, result: Result<()>) {
        match result {
            Ok(()) => {
                let mut state = self.state.lock();
                state.journal.group_written(group);
                self.written_to.store(state.journal.written().0, Ordering::Release);
            }
            Err(error) => self.poison(&error),
        }
    }

    pub(super) async fn durable(&self, lsn: Lsn) -> Result<()> {
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

    pub(super) fn start_flush(&self) -> Option<BoxFuture<'static, (Lsn, Result<()>)>> {
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

    pub(super) fn finish_flush(&self, lsn: Lsn, result: Result<()>) {
        match result {
            Ok(()) => {
                let mut state = self.state.lock();
                state.journal.flushed_to(lsn);
                self.flushed_to.store(lsn.0, Ordering::Release);
                state.ages.flushed(lsn);
            }
            Err(error) => self.poison(&error),
        }
    }

    /// Writes down what is flushed, if the journal does not say it yet.
    pub(super) async fn write_mark(&self) -> Result<()> {
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
    pub(super) async fn wait_while(&self, crowded: impl Fn(&State) -> bool) {
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

    pub(super) fn is_dirty(&self, state: &State) -> bool {
        let limit = self.config.dirty_bytes.saturating_mul(DIRTY_FACTOR_WAIT as u64);
        state.dirty.bytes() as u64 > limit
    }

    /// Callers should slow down.
    pub(super) fn is_behind(&self, state: &State) -> bool {
        self.is_dirty(state) || state.journal.free_bytes() < self.segment_bytes / 2
    }

    /// Some batch might not find room.
    pub(super) fn is_without_space(&self, state: &State) -> bool {
        self.is_dirty(state) || state.journal.ready_segments() == 0
    }

    /// A batch of this size would not find room, or take what is kept for slowing callers down.
    pub(super) fn is_too_full(&self, state: &State, payload_bytes: u64) -> bool {
        self.is_dirty(state) || state.journal.place_for(payload_bytes, self.reserve_bytes()) == BatchPlace::None
    }

    /// The first failure of a write or flush: nothing changes any more.
    pub(super) fn poison(&self, error: &Error) {
        let mut state = self.state.lock();
        if state.poison.is_none() {
            tracing::error!(%error, "the store no longer accepts changes");
            state.poison = Some(error.to_string().into());
        }
        drop(state);
        self.changed.notify_waiters();
    }

    /// Makes everything durable and checkpoints if possible.
    pub(super) async fn prepare_close(&self) -> Result<()> {
        let last = {
            let mut state = self.state.lock();
            state.closing = true;
            state.journal.applied()
        };
        self.durable(last).await?;
        if let Err(error) = self.request_checkpoint().await {
            tracing::warn!(%error, "closing without a checkpoint");
        }
        self.write_mark().await
    }

    pub(super) fn stop(&self) {
        self.state.lock().closed = true;
        self.stop.send_replace(true);
        self.commit_wanted.notify_one();
        self.checkpoint_wanted.notify_one();
        self.segment_wanted.notify_one();
        self.space_wanted.notify_one();
        self.changed.notify_waiters();
    }

    pub(super) fn last_durable(&self) -> Lsn {
        Lsn(self.flushed_to.load(Ordering::Acquire))
    }

    /// Whether the kernel has the batch.
    pub(super) fn is_written(&self, lsn: Lsn) -> bool {
        self.written_to.load(Ordering::Acquire) >= lsn.0
    }

    pub(super) fn statistics(&self) -> Statistics {
        let state = self.state.lock();
        let tables = self.tables.read();
        Statistics {
            applied: state.journal.applied(),
            written: state.journal.written(),
            durable: state.journal.flushed(),
            checkpoint: state.checkpoints.last,
            memory_bytes: tables.bytes() as u64,
            dirty_bytes: state.dirty.bytes() as u64,
            resident: tables.is_complete(),
            segments_live: state.journal.live_segments() as u64,
            segments_ready: state.journal.ready_segments() as u64,
            journal_bytes: state.journal.appended_bytes(),
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
    refuse("a batch", payload_bytes_max(batch), batch_bytes_max)
}
