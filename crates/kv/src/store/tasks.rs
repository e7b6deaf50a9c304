//! Background tasks: flushing at the commit interval, checkpoints, preparing segments ahead,
//! querying the space after a refusal. An idle store has no timer.

use std::sync::Arc;

use bytes::Bytes;
use rt::{Device, Instant, clock::timeout_at};

use super::shared::Shared;
use crate::{
    error::{Error, Result},
    journal::segment_name,
};

/// Prepared segments kept besides the current one.
const SEGMENTS_AHEAD: usize = 1;
/// Zeros are written in pieces of this size.
const ZERO_BYTES: usize = 1 << 20;
static ZEROS: [u8; ZERO_BYTES] = [0; ZERO_BYTES];

pub(super) fn spawn(shared: &Arc<Shared>) {
    shared.tasks.send_replace(4);
    let task = Arc::clone(shared);
    shared.seams.spawn.spawn("kv_commit", Box::pin(async move { Ended(task).0.commit_task().await }));
    let task = Arc::clone(shared);
    shared.seams.spawn.spawn("kv_checkpoint", Box::pin(async move { Ended(task).0.checkpoint_task().await }));
    let task = Arc::clone(shared);
    shared.seams.spawn.spawn("kv_segments", Box::pin(async move { Ended(task).0.segment_task().await }));
    let task = Arc::clone(shared);
    shared.seams.spawn.spawn("kv_space", Box::pin(async move { Ended(task).0.space_task().await }));
    shared.segment_wanted.notify_one();
    shared.checkpoint_wanted.notify_one();
}

/// Counts a task as ended when it ends, whatever the way.
struct Ended(Arc<Shared>);

impl Drop for Ended {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.poison(&Error::TaskPanicked);
        }
        self.0.tasks.send_modify(|running| *running -= 1);
    }
}

impl Shared {
    fn is_stopped(&self) -> bool {
        *self.stop.borrow()
    }

    /// Sleeps until `deadline`; whether the store was stopped.
    async fn stopped_before(&self, deadline: Instant) -> bool {
        let mut stop = self.stop.subscribe();
        timeout_at(&*self.seams.clock, deadline, stop.wait_for(|stopped| *stopped)).await.is_some()
    }

    /// Flushes a commit interval after the first unflushed batch, and again until there is none.
    async fn commit_task(&self) {
        loop {
            self.commit_wanted.notified().await;
            loop {
                if self.stopped_before(self.seams.clock.now() + self.config.commit_interval).await {
                    return;
                }
                let last = self.state.lock().journal.applied();
                // A failure poisoned the store; there is no one else to tell.
                if self.durable(last).await.is_err() || self.write_mark().await.is_err() {
                    return;
                }
                self.ask_space().await;
                // There are changes: its timer starts, or is to end sooner.
                self.checkpoint_wanted.notify_one();
                let mut state = self.state.lock();
                if state.journal.applied() == state.journal.flushed() {
                    state.commit_armed = false;
                    break;
                }
            }
        }
    }

    /// Checkpoints when asked, when limits are exceeded, and some time after the first change.
    async fn checkpoint_task(&self) {
        let mut deadline: Option<Instant> = None;
        loop {
            let wanted = self.checkpoint_wanted.notified();
            let expired = match deadline {
                Some(deadline) => timeout_at(&*self.seams.clock, deadline, wanted).await.is_none(),
                None => {
                    wanted.await;
                    false
                }
            };
            if self.is_stopped() {
                return;
            }
            let (due, interval) = {
                let mut state = self.state.lock();
                let requested = state.checkpoints.is_requested();
                let useful = state.journal.live_segments() > 1;
                let due = self.checkpoint_due(&state) || (useful && state.journal_full);
                if !due {
                    // What was large was removed before this task came to it. The next change that
                    // makes one due has to tell again.
                    state.checkpoints.wanted = false;
                }
                // After a failure only time or a request makes it try again.
                let dirty = state.dirty.bytes() > 0;
                let interval = dirty.then(|| self.checkpoint_interval(&state));
                (requested || expired || (due && !state.checkpoint_failed), interval)
            };
            if due {
                let succeeded = self.run_checkpoint().await;
                deadline = (!succeeded).then(|| self.seams.clock.now() + self.config.commit_interval);
                self.reclaim();
                self.segment_wanted.notify_one();
            } else if let Some(interval) = interval {
                let latest = self.seams.clock.now() + interval;
                deadline = Some(deadline.map_or(latest, |deadline| deadline.min(latest)));
            }
        }
    }

    /// Lets the cold store give back space, unless it is about to be closed.
    fn reclaim(&self) {
        let useful = {
            let state = self.state.lock();
            !state.closing && (!state.checkpoint_failed || state.cold_full)
        };
        if useful {
            self.cold.reclaim();
        }
    }

    /// Keeps prepared segments ahead of the writer.
    async fn segment_task(&self) {
        loop {
            self.segment_wanted.notified().await;
            while let Some(slot) = self.claim_slot() {
                let prepared = match self.check_space_for_segment().await {
                    Ok(()) => prepare_segment(&*self.device, slot, self.segment_bytes, self.config.zero_segments).await,
                    refused => refused,
                };
                if self.is_stopped() {
                    return;
                }
                let deadline = self.seams.clock.now() + self.config.commit_interval;
                if !self.segment_prepared(slot, prepared) && self.stopped_before(deadline).await {
                    return;
                }
            }
            if self.is_stopped() {
                return;
            }
        }
    }

    /// Asks for space when something was refused for lack of it.
    async fn space_task(&self) {
        loop {
            self.space_wanted.notified().await;
            if self.is_stopped() {
                return;
            }
            self.ask_space().await;
        }
    }

    /// The next segment to prepare, if one is needed and allowed.
    fn claim_slot(&self) -> Option<u32> {
        let mut state = self.state.lock();
        let needed = state.journal.ready_segments() < SEGMENTS_AHEAD && state.check_usable().is_ok();
        let slot = needed.then(|| state.journal.claim_slot(self.config.segments_max)).flatten();
        state.preparing = slot.is_some();
        let limited = needed && slot.is_none();
        drop(state);
        if limited {
            self.checkpoint_wanted.notify_one();
        }
        slot
    }

    /// Adds the segment, or notes that there is no space or no descriptor for it. Whether it was
    /// added.
    fn segment_prepared(&self, slot: u32, prepared: Result<()>) -> bool {
        let added = match prepared {
            Ok(()) => {
                let mut state = self.state.lock();
                state.journal.add_ready(slot);
                state.statistics.prepared_bytes += self.segment_bytes;
                state.journal_full = false;
                true
            }
            Err(error) if error.is_no_space() || error.is_busy() => {
                tracing::warn!(%error, "cannot prepare a journal segment now; trying again later");
                let mut state = self.state.lock();
                state.journal.give_back(slot);
                state.journal_full = true;
                drop(state);
                self.checkpoint_wanted.notify_one();
                false
            }
            Err(error) => {
                self.poison(&error);
                false
            }
        };
        self.changed.notify_waiters();
        added
    }
}

/// Reserves a segment's space, and writes zeros if a flush shall never have to change its metadata.
/// What the segment held becomes invalid. A segment that does not fit is removed. Zeros are written
/// from the beginning to the end, so that a new file has its length when it is prepared in full.
pub(super) async fn prepare_segment(device: &dyn Device, slot: u32, segment_bytes: u64, zero: bool) -> Result<()> {
    let name = segment_name(slot);
    let prepared = reserve(device, &name, segment_bytes, zero).await;
    if prepared.as_ref().is_err_and(Error::is_no_space) {
        device.remove(&name).await.map_err(|error| Error::device("remove", &name, error))?;
    }
    prepared
}

async fn reserve(device: &dyn Device, name: &str, segment_bytes: u64, zero: bool) -> Result<()> {
    device.allocate(name, 0, segment_bytes).await.map_err(|error| Error::device("allocate", name, error))?;
    if zero {
        let mut offset = 0;
        while offset < segment_bytes {
            let count = (ZERO_BYTES as u64).min(segment_bytes - offset);
            let zeros = Bytes::from_static(&ZEROS[..count as usize]);
            device.write(name, offset, vec![zeros]).await.map_err(|error| Error::device("write", name, error))?;
            offset += count;
        }
    }
    device.truncate(name, segment_bytes).await.map_err(|error| Error::device("size", name, error))?;
    device.flush(name).await.map_err(|error| Error::device("flush", name, error))
}
