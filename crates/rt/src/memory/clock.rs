//! The host's clocks, on a host that ends when a test says so.

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
