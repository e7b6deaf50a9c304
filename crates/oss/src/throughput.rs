//! How fast a device was recently: bytes moved, and the time it was busy with that, separately for
//! reads and writes. The time counts while any request with data is in progress, and for writes
//! also while written files are flushed: a write that only reached the host's memory says nothing
//! about the device. Waiting for the network does not count.
//!
//! All targets of a process on one device share one of these, so the rates are the device's, as
//! its space is.
//!
//! "Recently" means: when the busy time reaches [`WINDOW`], both are halved, so older values weigh
//! less. Idle time changes nothing.
//!
//! Downside: reads served from the host's memory count as reads of the device; targets of other
//! processes on the device are not taken into account.

use std::time::Duration;

use parking_lot::Mutex;
use rpc::message::ost::Moved;
use rt::{Clock, Instant};

/// Busy time that is remembered at most.
const WINDOW: Duration = Duration::from_secs(20);

/// Which way data go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    /// From the device.
    Read,
    /// To the device.
    Write,
}

/// See the module documentation.
#[derive(Debug, Default)]
pub struct Throughput {
    read: Mutex<Busy>,
    write: Mutex<Busy>,
}

#[derive(Debug, Default)]
struct Busy {
    running: u32,
    /// Up to when `nanoseconds` holds.
    since: Instant,
    nanoseconds: u64,
    bytes: u64,
    /// As `nanoseconds`, of all time.
    total: Duration,
}

impl Busy {
    fn advance(&mut self, now: Instant) {
        if self.running > 0 {
            self.total = self.total.saturating_add(now.since(self.since));
            let passed = u64::try_from(now.since(self.since).as_nanos()).unwrap_or(u64::MAX);
            self.nanoseconds = self.nanoseconds.saturating_add(passed);
        }
        self.since = self.since.max(now);
        while u128::from(self.nanoseconds) >= WINDOW.as_nanos() {
            self.nanoseconds /= 2;
            self.bytes /= 2;
        }
    }

    fn moved(&mut self, now: Instant) -> Moved {
        self.advance(now);
        Moved { bytes: self.bytes, busy_us: self.nanoseconds / 1000 }
    }
}

/// Something that keeps the device busy, until it is dropped.
pub(crate) struct Work<'a> {
    busy: &'a Mutex<Busy>,
    clock: &'a dyn Clock,
}

impl Work<'_> {
    /// So many bytes were moved.
    pub fn moved(&self, bytes: u64) {
        let mut busy = self.busy.lock();
        busy.bytes = busy.bytes.saturating_add(bytes);
    }
}

impl Drop for Work<'_> {
    fn drop(&mut self) {
        let mut busy = self.busy.lock();
        busy.advance(self.clock.now());
        assert!(busy.running > 0, "work that ends has begun");
        busy.running -= 1;
    }
}

impl Throughput {
    /// Work begins.
    pub(crate) fn begin<'a>(&'a self, direction: Direction, clock: &'a dyn Clock) -> Work<'a> {
        let busy = self.of(direction);
        let mut state = busy.lock();
        state.advance(clock.now());
        state.running += 1;
        drop(state);
        Work { busy, clock }
    }

    /// What was moved lately, and in which time.
    pub(crate) fn moved(&self, direction: Direction, now: Instant) -> Moved {
        self.of(direction).lock().moved(now)
    }

    /// How long the device was busy with reads, and with writes, since the start: the sum. The
    /// difference of two answers is the load in between.
    pub(crate) fn busy(&self, now: Instant) -> Duration {
        let busy = |direction| {
            let mut busy = self.of(direction).lock();
            busy.advance(now);
            busy.total
        };
        busy(Direction::Read).saturating_add(busy(Direction::Write))
    }

    /// Whether the device is busy now.
    pub(crate) fn is_running(&self) -> bool {
        [Direction::Read, Direction::Write].into_iter().any(|direction| self.of(direction).lock().running > 0)
    }

    fn of(&self, direction: Direction) -> &Mutex<Busy> {
        match direction {
            Direction::Read => &self.read,
            Direction::Write => &self.write,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(milliseconds: u64) -> Instant {
        Instant(milliseconds * 1_000_000)
    }

    #[test]
    fn time_counts_once_while_any_work_is_going_on() {
        let mut busy = Busy::default();
        busy.advance(at(1000));
        busy.running = 2;
        busy.advance(at(1010));
        busy.running = 1;
        busy.bytes = 5000;
        assert_eq!(
            busy.moved(at(1020)),
            Moved { bytes: 5000, busy_us: 20_000 },
            "twice at a time is not twice as long"
        );
        busy.running = 0;
        assert_eq!(busy.moved(at(9_999_999)), Moved { bytes: 5000, busy_us: 20_000 }, "idle");
        assert_eq!(busy.total, Duration::from_millis(20));
    }

    #[test]
    fn what_is_long_ago_weighs_less() {
        let mut busy = Busy { running: 1, ..Busy::default() };
        for second in 1..=100u64 {
            busy.bytes += if second <= 50 { 100 << 20 } else { 10 << 20 };
            busy.advance(at(second * 1000));
        }
        let Moved { bytes, busy_us } = busy.moved(at(100_000));
        assert!(busy_us < 20_000_000);
        assert_eq!(busy.total, Duration::from_secs(100), "nothing of it is forgotten");
        let speed = bytes / (busy_us / 1000) * 1000;
        assert!((10 << 20..13 << 20).contains(&speed), "{speed}");
    }
}
