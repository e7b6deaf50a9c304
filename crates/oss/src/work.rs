//! How much an OST has to do: the transfers in progress, summed over time. Two readings give the
//! average number in between, for all users: readers, writers, files of any metadata target.
//! Statistics of bytes do not show this: a target that moves few bytes may be slow, or idle.
//!
//! Invariant: `total` is valid at time `since`; from then on `running` transfers are in progress.
//!
//! Life cycle: one per start of a target, from 0. Downside: requests that wait in the server's
//! queue are not counted yet.

use parking_lot::Mutex;
use rt::{Clock, Instant};

/// See the module documentation.
pub(crate) struct Work {
    state: Mutex<State>,
}

struct State {
    running: u32,
    since: Instant,
    /// Transfers times nanoseconds.
    total: u128,
}

impl State {
    fn advance(&mut self, now: Instant) {
        self.total += u128::from(self.running) * now.since(self.since).as_nanos();
        self.since = self.since.max(now);
    }
}

/// A transfer in work, until it is dropped.
pub(crate) struct Transfer<'a> {
    work: &'a Work,
    clock: &'a dyn Clock,
}

impl Work {
    /// None yet.
    pub fn new(now: Instant) -> Self {
        Self { state: Mutex::new(State { running: 0, since: now, total: 0 }) }
    }

    /// A transfer begins.
    pub fn begin<'a>(&'a self, clock: &'a dyn Clock) -> Transfer<'a> {
        let mut state = self.state.lock();
        state.advance(clock.now());
        state.running += 1;
        Transfer { work: self, clock }
    }

    /// The sum up to now: transfers times microseconds.
    pub fn total_us(&self, now: Instant) -> u64 {
        let mut state = self.state.lock();
        state.advance(now);
        u64::try_from(state.total / 1000).unwrap_or(u64::MAX)
    }
}

impl Drop for Transfer<'_> {
    fn drop(&mut self) {
        let mut state = self.work.state.lock();
        state.advance(self.clock.now());
        assert!(state.running > 0, "a transfer that ends has begun");
        state.running -= 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(milliseconds: u64) -> Instant {
        Instant(milliseconds * 1_000_000)
    }

    #[test]
    fn transfers_add_up_while_they_are_in_work() {
        let mut state = State { running: 0, since: at(5), total: 0 };
        state.advance(at(10));
        assert_eq!(state.total, 0, "idle");
        state.running = 3;
        state.advance(at(12));
        state.running = 1;
        state.advance(at(20));
        assert_eq!(state.total, (3 * 2 + 8) * 1_000_000);
        state.advance(at(15));
        assert_eq!(
            (state.total, state.since),
            ((3 * 2 + 8) * 1_000_000, at(20)),
            "a reading that came late counts nothing twice"
        );
        let work = Work { state: Mutex::new(state) };
        assert_eq!(work.total_us(at(22)), 16_000);
    }
}
