//! The tuner of a service: it changes the number of service threads.

use std::sync::{Arc, Weak};

use rt::Instant;
use tuner::{Limits, Measurement};

use super::{Service, clamp_threads};
use crate::tuning::{Mode, Tuned, Tuning};

/// Fewest threads that a tuner chooses: requests of different kinds that take long must not hold up
/// each other, whatever that is worth at the moment.
const TUNED_THREADS_MIN: usize = 2;

impl Service {
    /// The tuner.
    pub fn tuning(&self) -> &Arc<Tuning> {
        &self.tuning
    }

    /// Lets the tuner choose the number of service threads.
    pub fn tune(self: &Arc<Self>) {
        self.tuning.switch_on(self.limits(), self.clone());
    }

    /// The same, and the tuner begins with so many, within its limits.
    pub fn tune_from(self: &Arc<Self>, threads: usize) {
        self.tuning.switch_off(Mode::Off);
        self.clone().apply(u32::try_from(threads).unwrap_or(u32::MAX));
        self.tune();
    }

    /// Ends the tuner's work: there are as many service threads as there may be.
    pub fn stop_tuning(self: &Arc<Self>) {
        self.tuning.switch_off(Mode::Off);
        {
            let mut state = self.state.lock();
            state.threads = state.threads_max;
        }
        self.start_waiting();
    }

    /// The limits of the number of threads changed.
    pub(super) fn follow_limits(self: &Arc<Self>) {
        self.tuning.follow(|| self.limits(), self.clone());
        {
            let mut state = self.state.lock();
            state.threads = state.threads.max(state.threads_min);
        }
        self.start_waiting();
    }

    /// Requests wait, or some execute at once: the tuner has something to do.
    pub(super) fn watch(self: &Arc<Self>) {
        if self.tuning.wants_watch() {
            let weak: Weak<Self> = Arc::downgrade(self);
            self.tuning.watch((self.clock.clone(), &*self.spawn), self.threads() as u32, weak);
        }
    }

    fn limits(&self) -> Limits {
        let state = self.state.lock();
        let least = state.threads_min.max(TUNED_THREADS_MIN).min(state.threads_max);
        Limits::service_threads(least as u32, state.threads_max as u32)
    }
}

impl Tuned for Service {
    fn measure(&self, now: Instant) -> Measurement {
        let state = self.state.lock();
        // Those that the scheduler holds back while a thread is free do not wait for a thread.
        let waiting = if state.has_free_thread() { 0 } else { state.queue.len() as u64 };
        Measurement {
            now_ns: now.0,
            requests: state.achieved.requests,
            work: state.achieved.work,
            busy_ns: state.achieved.busy_ns,
            waited: state.achieved.waited,
            waiting,
            processors: None,
        }
    }

    fn apply(self: Arc<Self>, setting: u32) {
        let is_more = {
            let mut state = self.state.lock();
            let before = state.threads;
            state.threads = clamp_threads(setting as usize).min(state.threads_max);
            state.threads > before
        };
        if is_more {
            self.start_waiting();
        }
    }
}
