//! Time: a monotonic clock with nanoseconds, the wall clock, the id of the host's present boot, and
//! sleeping.

use std::time::Duration;

use types::Timestamp;

use crate::BoxFuture;

/// Nanoseconds since an arbitrary origin of this process; never goes back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Instant(pub u64);

impl Instant {
    /// Time from `earlier` to this, zero if it is later.
    pub fn since(self, earlier: Instant) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

/// As [`Instant::since`].
impl std::ops::Sub for Instant {
    type Output = Duration;

    fn sub(self, earlier: Instant) -> Duration {
        self.since(earlier)
    }
}

impl std::ops::Add<Duration> for Instant {
    type Output = Instant;

    fn add(self, duration: Duration) -> Instant {
        Instant(self.0.saturating_add(u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)))
    }
}

/// The seam for time.
pub trait Clock: Send + Sync {
    /// Monotonic time.
    fn now(&self) -> Instant;
    /// Wall-clock time, for file times only.
    fn wall(&self) -> Timestamp;
    /// Identity of the host's present boot, never 0: another one after every start of the host. A
    /// program that has stored it can find out whether the host has restarted since, and lost what
    /// was not flushed.
    fn boot(&self) -> u64;
    /// Completes at or after `deadline`. Dropping the future cancels it.
    fn sleep_until(&self, deadline: Instant) -> BoxFuture<'static, ()>;
}

/// Sleeps for `duration` from now.
pub fn sleep(clock: &dyn Clock, duration: Duration) -> BoxFuture<'static, ()> {
    clock.sleep_until(clock.now() + duration)
}

/// The future's output, or `None` if `deadline` comes first.
pub async fn timeout_at<T>(clock: &dyn Clock, deadline: Instant, future: impl Future<Output = T>) -> Option<T> {
    let sleeper = clock.sleep_until(deadline);
    let mut future = std::pin::pin!(future);
    let mut sleeper = std::pin::pin!(sleeper);
    std::future::poll_fn(|context| {
        if let std::task::Poll::Ready(value) = future.as_mut().poll(context) {
            return std::task::Poll::Ready(Some(value));
        }
        sleeper.as_mut().poll(context).map(|()| None)
    })
    .await
}
