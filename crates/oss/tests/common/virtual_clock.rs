//! A host's clocks that stand still until a test moves them: hours pass in milliseconds.

use std::time::Duration;

use rt::{BoxFuture, Clock, Instant};
use tokio::sync::watch;
use types::Timestamp;

/// When the wall clock begins: in 2026.
const WALL_ORIGIN_SECONDS: i64 = 1_780_000_000;

/// Clones are moved together.
#[derive(Clone, Debug)]
pub struct VirtualClock {
    now_ns: watch::Sender<u64>,
    boot: u64,
}

impl VirtualClock {
    /// In the first run of the host.
    pub fn new() -> Self {
        Self { now_ns: watch::Sender::new(0), boot: 1 }
    }

    /// After the host was started again. Its monotonic clock goes on, unlike that of Linux: nothing
    /// that is compared here outlives a start.
    pub fn next_boot(&self) -> Self {
        Self { now_ns: self.now_ns.clone(), boot: self.boot + 1 }
    }

    /// Moves it, and lets the tasks that wait for that work.
    pub async fn advance(&self, time: Duration) {
        self.now_ns.send_modify(|now| *now += time.as_nanos() as u64);
        // A turn of a task crosses to others and back several times, for flushes of the journal.
        for _ in 0..64 {
            tokio::task::yield_now().await;
        }
    }
}

impl Clock for VirtualClock {
    fn now(&self) -> Instant {
        Instant(*self.now_ns.borrow())
    }

    fn wall(&self) -> Timestamp {
        let elapsed = Duration::from_nanos(self.now().0);
        Timestamp { seconds: WALL_ORIGIN_SECONDS + elapsed.as_secs() as i64, nanoseconds: elapsed.subsec_nanos() }
    }

    fn boot(&self) -> u64 {
        self.boot
    }

    fn sleep_until(&self, deadline: Instant) -> BoxFuture<'static, ()> {
        let mut now_ns = self.now_ns.subscribe();
        Box::pin(async move {
            now_ns.wait_for(|now| *now >= deadline.0).await.expect("the clock outlives the test");
        })
    }
}
