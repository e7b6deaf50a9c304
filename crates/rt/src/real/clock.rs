//! The host's clocks.
//!
//! Sleeping goes through tokio's timer wheel: its granularity is 1 ms, and a sleeping future must be polled within a
//! tokio runtime (on a core, or on a thread that has entered one). Sleeps never end early, but up to 1 ms late.

use std::{
    sync::LazyLock,
    time::{Duration, SystemTime},
};

use types::Timestamp;

use crate::{BoxFuture, Clock, Instant};

/// The origin of this process's monotonic time: all clocks of a process agree.
static ORIGIN: LazyLock<std::time::Instant> = LazyLock::new(std::time::Instant::now);

/// The host's clocks: CLOCK_MONOTONIC and CLOCK_REALTIME.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn now(&self) -> Instant {
        Instant(0) + ORIGIN.elapsed()
    }

    fn wall(&self) -> Timestamp {
        match SystemTime::now().duration_since(SystemTime::UNIX_EPOCH) {
            Ok(since) => {
                let seconds = i64::try_from(since.as_secs()).unwrap_or(i64::MAX);
                Timestamp { seconds, nanoseconds: since.subsec_nanos() }
            }
            // A host whose clock was never set and runs before 1970: files get the earliest time that is not negative.
            Err(_) => Timestamp::default(),
        }
    }

    fn sleep_until(&self, deadline: Instant) -> BoxFuture<'static, ()> {
        Box::pin(async move {
            let origin: std::time::Instant = *ORIGIN;
            // A deadline that the host cannot express is never reached: a century is as good.
            let century = Duration::from_secs(100 * 365 * 24 * 3600);
            let when = origin + Duration::from_nanos(deadline.0).min(century);
            tokio::time::sleep_until(when.into()).await;
        })
    }
}
