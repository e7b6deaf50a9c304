//! The tuner of an import: it changes how many requests may be outstanding.

use std::sync::{
    Arc, Weak,
    atomic::{AtomicU64, Ordering},
};

use rt::Instant;
use tuner::{Limits, Measurement};

use super::{handle::Import, inner::Inner};
use crate::tuning::{Mode, REQUEST_WORK, Tuned, Tuning, WATCHED_FROM};

/// What the tuner measures besides the counters of the import; never reset.
#[derive(Default)]
pub(super) struct Turns {
    /// Calls that had to wait for their turn.
    waited: AtomicU64,
    /// Calls that wait for it now.
    waiting: AtomicU64,
    /// Bytes that answered calls moved.
    bytes: AtomicU64,
}

/// A call that waits for its turn, until this is dropped.
pub(super) struct AwaitsTurn<'a>(&'a Turns);

impl Turns {
    pub(super) fn await_turn(&self) -> AwaitsTurn<'_> {
        self.waited.fetch_add(1, Ordering::Relaxed);
        self.waiting.fetch_add(1, Ordering::Relaxed);
        AwaitsTurn(self)
    }

    /// A call was answered that moved so many bytes.
    pub(super) fn answered(&self, bytes: usize) {
        self.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }
}

impl Drop for AwaitsTurn<'_> {
    fn drop(&mut self) {
        self.0.waiting.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Import {
    /// The tuner.
    pub fn tuning(&self) -> &Arc<Tuning> {
        &self.inner.tuning
    }

    /// Lets the tuner choose how many requests may be outstanding, up to the largest number.
    pub fn tune(&self) {
        let most = self.rpcs_in_flight_limit();
        self.inner.tuning.switch_on(Limits::requests_in_flight(1, most.into()), self.inner.clone());
    }

    /// The same, and the tuner begins with so many.
    pub fn tune_from(&self, count: u16) {
        self.inner.tuning.switch_off(Mode::Off);
        self.inner.clone().apply(u32::from(count.max(1)));
        self.tune();
    }

    /// The most requests that may be outstanding with whatever the tuner chooses.
    pub fn rpcs_in_flight_limit(&self) -> u16 {
        self.inner.guarded.lock().wanted_max
    }

    /// Ends the tuner's work: as many requests as there may be.
    pub fn stop_tuning(&self) {
        self.inner.tuning.switch_off(Mode::Off);
        let mut guarded = self.inner.guarded.lock();
        guarded.wanted = guarded.wanted_max;
        drop(guarded);
        self.inner.adjust_permits();
    }

    /// Starts the tuner's task if it has something to do: some calls are outstanding, or others
    /// wait because the setting allows so few.
    pub(super) fn watch(&self) {
        let inner = &self.inner;
        if !inner.tuning.may_want_watch() {
            return;
        }
        let waits = inner.turns.waiting.load(Ordering::Relaxed) > 0;
        if !waits && inner.guarded.lock().core.slots.used() < WATCHED_FROM {
            return;
        }
        if inner.tuning.wants_watch() {
            let weak: Weak<Inner> = Arc::downgrade(inner);
            let setting = u32::from(inner.permits.count());
            inner.tuning.watch((inner.seams.clock.clone(), &*inner.seams.spawn), setting, weak);
        }
    }
}

impl Tuned for Inner {
    fn measure(&self, now: Instant) -> Measurement {
        let (requests, busy_ns) = self.guarded.lock().core.counters.work();
        Measurement {
            now_ns: now.0,
            requests,
            // An error is work too: of a load of names that do not exist it is all there is.
            work: requests * REQUEST_WORK + self.turns.bytes.load(Ordering::Relaxed),
            busy_ns,
            waited: self.turns.waited.load(Ordering::Relaxed),
            waiting: self.turns.waiting.load(Ordering::Relaxed),
            processors: None,
        }
    }

    fn apply(self: Arc<Self>, setting: u32) {
        {
            let mut guarded = self.guarded.lock();
            let wanted = (setting as u16).min(guarded.wanted_max);
            if guarded.wanted == wanted {
                return;
            }
            guarded.wanted = wanted;
        }
        self.adjust_permits();
    }
}

#[cfg(test)]
#[path = "tuned_tests.rs"]
mod tests;
