//! Imitates a slower device: requests pass one after the other, each in the time that the imitated
//! device would take. So stripe counts matter on a machine whose targets all share one disk, and a
//! study can be run in miniature.
//!
//! A token bucket with a queue. A request costs `latency + bytes / rate`; requests are served in
//! order of arrival, one at a time; a device that was idle has saved up at most a burst, [`BURST`]
//! by default, which absorbs the coarseness of real timers, so that the rate is met on average. No
//! real device saves anything: where it matters how many requests wait, the burst is set to zero.
//! Time comes from the clock's seam: in virtual time a limit is exact.
//!
//! Life cycle: off until a rate or a latency is set; settings apply to requests that start to be
//! served after them. A request dropped while it waits leaves the queue and costs nothing.
//! Downside: the delay is added to the time of the real device.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use rt::{Clock, Instant};
use types::time::transfer_time;

/// Time an idle device may have saved up: several times what a timer of an operating system is
/// late.
pub const BURST: Duration = Duration::from_millis(5);

/// Limits one device, or the link of one server. Off by default.
#[derive(Debug)]
pub struct RateLimit {
    /// 0: no limit.
    bytes_per_second: AtomicU64,
    latency_ns: AtomicU64,
    burst_ns: AtomicU64,
    /// When the device has served everything before; the holder of the lock is being served.
    free_at: tokio::sync::Mutex<Instant>,
}

impl Default for RateLimit {
    fn default() -> Self {
        Self {
            bytes_per_second: AtomicU64::new(0),
            latency_ns: AtomicU64::new(0),
            burst_ns: AtomicU64::new(BURST.as_nanos() as u64),
            free_at: tokio::sync::Mutex::default(),
        }
    }
}

impl RateLimit {
    /// Bytes per second; 0: no limit.
    pub fn bytes_per_second(&self) -> u64 {
        self.bytes_per_second.load(Ordering::Relaxed)
    }

    /// Sets the bytes per second; 0: no limit.
    pub fn set_bytes_per_second(&self, bytes_per_second: u64) {
        self.bytes_per_second.store(bytes_per_second, Ordering::Relaxed);
    }

    /// Time every request takes besides that of its bytes.
    pub fn latency(&self) -> Duration {
        Duration::from_nanos(self.latency_ns.load(Ordering::Relaxed))
    }

    /// Sets the time every request takes besides that of its bytes.
    pub fn set_latency(&self, latency: Duration) {
        self.latency_ns.store(u64::try_from(latency.as_nanos()).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    /// Time that an idle device may have saved up.
    pub fn burst(&self) -> Duration {
        Duration::from_nanos(self.burst_ns.load(Ordering::Relaxed))
    }

    /// Sets the time that an idle device may have saved up.
    pub fn set_burst(&self, burst: Duration) {
        self.burst_ns.store(u64::try_from(burst.as_nanos()).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    /// Time a request of so many bytes occupies the device.
    pub fn cost(&self, bytes: u64) -> Duration {
        self.latency()
            + match self.bytes_per_second() {
                0 => Duration::ZERO,
                rate => transfer_time(bytes, rate),
            }
    }

    /// Completes when a request of so many bytes has been served: at once if there is no limit.
    pub async fn pass(&self, clock: &dyn Clock, bytes: u64) {
        if self.bytes_per_second() == 0 && self.latency_ns.load(Ordering::Relaxed) == 0 {
            return;
        }
        // Before it waits for others: their late timers cost it nothing.
        let arrived = clock.now();
        // The queue itself: tokio's mutex is granted in order of arrival, and a waiter that is
        // dropped leaves it.
        let mut free_at = self.free_at.lock().await;
        let end = served_at(*free_at, arrived, self.burst(), self.cost(bytes));
        if end > clock.now() {
            clock.sleep_until(end).await;
        }
        assert!(end >= *free_at, "the device serves one request after the other");
        *free_at = end;
    }
}

/// When a request that arrived then and costs this much is done on a device that is free at
/// `free_at`.
fn served_at(free_at: Instant, arrived: Instant, burst: Duration, cost: Duration) -> Instant {
    let saved = Instant(arrived.0.saturating_sub(u64::try_from(burst.as_nanos()).unwrap_or(u64::MAX)));
    free_at.max(saved) + cost
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    #[test]
    fn an_idle_device_has_saved_a_burst_and_a_busy_one_nothing() {
        let served = |free_at, arrived| {
            let end = served_at(Instant(free_at * MS), Instant(arrived * MS), BURST, Duration::from_millis(20));
            end.0 / MS
        };
        assert_eq!(served(0, 1000), 1015);
        assert_eq!(served(1015, 1000), 1035);
        assert_eq!(served(1015, 1017), 1035, "a late timer costs no rate");
        let exact = served_at(Instant(0), Instant(1000 * MS), Duration::ZERO, Duration::from_millis(20));
        assert_eq!(exact, Instant(1020 * MS), "without a burst nothing is saved");
    }

    #[test]
    fn costs_are_latency_and_bytes_and_never_overflow() {
        let limit = RateLimit::default();
        assert_eq!(limit.cost(1 << 40), Duration::ZERO, "off");
        limit.set_bytes_per_second(100 << 20);
        limit.set_latency(Duration::from_micros(300));
        assert_eq!(limit.cost(1 << 20), Duration::from_micros(10_300));
        limit.set_bytes_per_second(1);
        limit.set_latency(Duration::MAX);
        assert!(limit.cost(u64::MAX) > Duration::from_secs(1 << 32));
    }
}
