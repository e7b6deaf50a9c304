//! The host's clocks as seen by a process that is suspended (SIGSTOP, a virtual machine that is
//! migrated) and resumed.

use std::{sync::Arc, time::Duration};

use parking_lot::Mutex;
use tokio::sync::Notify;
use types::Timestamp;

use super::HostClock;
use crate::{BoxFuture, Clock, Instant, clock};

const HOST: HostClock = HostClock { boot: 1 };

/// The host's clock, which jumps ahead when a test says so. Clones jump together.
#[derive(Clone, Default)]
pub struct JumpingClock(Arc<Jumps>);

#[derive(Default)]
struct Jumps {
    ahead: Mutex<Duration>,
    jumped: Notify,
}

impl JumpingClock {
    /// The process was suspended for so long.
    pub fn jump(&self, duration: Duration) {
        *self.0.ahead.lock() += duration;
        self.0.jumped.notify_waiters();
    }
}

impl Clock for JumpingClock {
    fn now(&self) -> Instant {
        HOST.now() + *self.0.ahead.lock()
    }

    fn wall(&self) -> Timestamp {
        HOST.wall()
    }

    fn boot(&self) -> u64 {
        HOST.boot()
    }

    fn sleep_until(&self, deadline: Instant) -> BoxFuture<'static, ()> {
        let clock = self.clone();
        Box::pin(async move {
            loop {
                let mut jumped = std::pin::pin!(clock.0.jumped.notified());
                jumped.as_mut().enable();
                let now = clock.now();
                if now >= deadline {
                    return;
                }
                let until = HOST.now() + deadline.since(now);
                // Whichever came first, the time is looked at again.
                let _ = clock::timeout_at(&HOST, until, jumped).await;
            }
        })
    }
}
