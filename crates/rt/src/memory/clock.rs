//! The host's clocks, on a host that reboots when a test says so, or whose wall clock is wrong.

use types::Timestamp;

use crate::{BoxFuture, Clock, Instant, real::SystemClock};

/// The system's clocks, in a run of the host that the test numbers.
#[derive(Clone, Copy, Debug)]
pub struct HostClock {
    /// The run; not 0.
    pub boot: u64,
}

impl Clock for HostClock {
    fn now(&self) -> Instant {
        SystemClock.now()
    }

    fn wall(&self) -> Timestamp {
        SystemClock.wall()
    }

    fn boot(&self) -> u64 {
        self.boot
    }

    fn sleep_until(&self, deadline: Instant) -> BoxFuture<'static, ()> {
        SystemClock.sleep_until(deadline)
    }
}

/// The system's clocks, with a wall clock that differs from that of other hosts.
#[derive(Clone, Copy, Debug)]
pub struct ShiftedClock {
    /// By how much it is ahead; negative: behind.
    pub seconds: i64,
}

impl Clock for ShiftedClock {
    fn now(&self) -> Instant {
        SystemClock.now()
    }

    fn wall(&self) -> Timestamp {
        let wall = SystemClock.wall();
        Timestamp { seconds: wall.seconds + self.seconds, ..wall }
    }

    fn boot(&self) -> u64 {
        SystemClock.boot()
    }

    fn sleep_until(&self, deadline: Instant) -> BoxFuture<'static, ()> {
        SystemClock.sleep_until(deadline)
    }
}
