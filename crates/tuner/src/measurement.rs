//! What a tuner is told: counters that only grow, and the state of the moment.

use crate::noise::{Noise, WINDOW_MIN_NS};

/// Counters of a service, or of a client's requests to one target, from any start on.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Measurement {
    /// When this was measured.
    pub now_ns: u64,
    /// Requests that ended.
    pub requests: u64,
    /// What they achieved, in a unit of the caller's: the tuner maximizes the growth of this.
    pub work: u64,
    /// Sum of the times that they took, without the wait for their turn.
    pub busy_ns: u64,
    /// Requests that had to wait for their turn because as many as the setting allows were under
    /// way.
    pub waited: u64,
    /// Requests that wait for their turn now.
    pub waiting: u64,
    /// Share of the host's processor time that was used recently, 0 to 1; `None` if it is not
    /// known.
    pub processors: Option<f64>,
}

/// What happened between two measurements.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Change {
    pub nanoseconds: u64,
    pub requests: u64,
    pub work: u64,
    pub busy_ns: u64,
    pub waited: u64,
    /// At the end.
    pub waiting: u64,
}

/// Share of requests that had to wait, above which the setting limits what is done.
const LIMITING_SHARE: f64 = 0.1;

/// Requests that a window should count.
const WINDOW_REQUESTS: f64 = 16.0;
const WINDOW_MAX_NS: u64 = 16 * WINDOW_MIN_NS;

impl Change {
    /// Counters that were reset count nothing.
    pub fn between(before: &Measurement, after: &Measurement) -> Self {
        Self {
            nanoseconds: after.now_ns.saturating_sub(before.now_ns),
            requests: after.requests.saturating_sub(before.requests),
            work: after.work.saturating_sub(before.work),
            busy_ns: after.busy_ns.saturating_sub(before.busy_ns),
            waited: after.waited.saturating_sub(before.waited),
            waiting: after.waiting,
        }
    }

    /// This and what came after it.
    pub fn and(&self, later: &Self) -> Self {
        Self {
            nanoseconds: self.nanoseconds.saturating_add(later.nanoseconds),
            requests: self.requests.saturating_add(later.requests),
            work: self.work.saturating_add(later.work),
            busy_ns: self.busy_ns.saturating_add(later.busy_ns),
            waited: self.waited.saturating_add(later.waited),
            waiting: later.waiting,
        }
    }

    /// Relative standard error of the rate.
    pub fn error(&self, noise: &Noise) -> f64 {
        noise.error(self.nanoseconds, self.requests)
    }

    /// Work per second.
    pub fn rate(&self) -> f64 {
        self.work as f64 * 1e9 / self.nanoseconds.max(1) as f64
    }

    /// Requests per second.
    pub fn requests_per_second(&self) -> f64 {
        self.requests as f64 * 1e9 / self.nanoseconds.max(1) as f64
    }

    /// Mean time of a request, in nanoseconds.
    pub fn latency_ns(&self) -> u64 {
        self.busy_ns / self.requests.max(1)
    }

    /// Mean number of requests under way.
    pub fn in_flight(&self) -> f64 {
        self.busy_ns as f64 / self.nanoseconds.max(1) as f64
    }

    /// Whether the setting limited what was done.
    pub fn is_limited(&self) -> bool {
        self.waiting > 0 || self.waited as f64 > LIMITING_SHARE * self.requests as f64
    }

    /// How long the next window must be to count enough requests. Those that began together end
    /// together: it lasts as long as one of them.
    pub fn window_ns(&self) -> u64 {
        let enough_ns = (WINDOW_REQUESTS * 1e9 / self.requests_per_second().max(1e-3)) as u64;
        enough_ns.max(self.latency_ns()).clamp(WINDOW_MIN_NS, WINDOW_MAX_NS)
    }
}
