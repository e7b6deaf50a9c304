//! The host's clocks.
//!
//! Sleeping goes through tokio's timer wheel: its granularity is 1 ms, and a sleeping future must
//! be polled within a tokio runtime (on a core, or on a thread that has entered one). Sleeps never
//! end early, but up to 1 ms late.

use std::{
    sync::LazyLock,
    time::{Duration, SystemTime},
};

use types::Timestamp;

use crate::{BoxFuture, Clock, Entropy, Instant, real::SystemEntropy};

/// The origin of this process's monotonic time: all clocks of a process agree.
static ORIGIN: LazyLock<std::time::Instant> = LazyLock::new(std::time::Instant::now);

/// Linux's random identity of its present run. A host that does not tell has another one in every
/// process.
static BOOT: LazyLock<u64> = LazyLock::new(|| {
    let told = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok();
    let digits = told.map(|text| text.chars().filter(char::is_ascii_hexdigit).take(16).collect::<String>());
    let identity = digits.and_then(|digits| u64::from_str_radix(&digits, 16).ok());
    identity.unwrap_or_else(|| SystemEntropy.next_u64()).max(1)
});

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
            // A host whose clock was never set and runs before 1970: files get the earliest time
            // that is not negative.
            Err(_) => Timestamp::default(),
        }
    }

    fn boot(&self) -> u64 {
        *BOOT
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
