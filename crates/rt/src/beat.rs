//! Periodic checks of how long others have been silent, by a process that may itself have been
//! suspended: stopped (SIGSTOP), swapped out, migrated with its virtual machine. Then all others
//! seem to have been silent, and their messages still have to be read.
//!
//! A [`Beat`] measures by how much its interval was exceeded. Users must follow two rules: time
//! during which this process did not run does not count ([`Tick::stalled`]), and nothing is decided
//! at the first tick after it ([`Tick::may_judge`]), because messages that have arrived are read
//! before the next tick. (That is true of the core that ticks; [`Spawn::all_cores_ran`] asks the
//! others.) Decisions are allowed at the second of two late ticks in a row, because otherwise a
//! process that is always late would never decide.

use std::time::Duration;

use crate::{Clock, Instant, Spawn, clock};

/// A tick is late if it comes later than due by one in so many of its interval.
const LATE_PART: u32 = 4;

/// See the module documentation.
#[derive(Debug)]
pub struct Beat {
    interval: Duration,
    last: Instant,
    was_late: bool,
}

/// One tick of a [`Beat`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tick {
    /// When.
    pub now: Instant,
    /// How much of the time since the last tick this process did not run; zero unless the tick is
    /// late.
    pub stalled: Duration,
    /// Whether what was sent to this process has probably been read.
    pub may_judge: bool,
}

impl Beat {
    /// Ticks every `interval` from `now` on.
    pub fn new(now: Instant, interval: Duration) -> Self {
        Self { interval, last: now, was_late: false }
    }

    /// Completes at the next tick. May be dropped and asked again.
    pub async fn tick(&mut self, clock: &dyn Clock) -> Tick {
        clock.sleep_until(self.last + self.interval).await;
        self.tick_at(clock.now())
    }

    fn tick_at(&mut self, now: Instant) -> Tick {
        let late_by = now.since(self.last + self.interval);
        let is_late = late_by > self.interval / LATE_PART;
        let tick =
            Tick { now, stalled: if is_late { late_by } else { Duration::ZERO }, may_judge: !is_late || self.was_late };
        self.last = now;
        self.was_late = is_late;
        tick
    }
}

/// Ticks into which [`running_for`] cuts its time.
const PARTS: u32 = 8;

/// Completes when this process has run for `duration`: time that it was suspended does not count,
/// and what arrived meanwhile is read before, on all cores.
pub async fn running_for(clock: &dyn Clock, spawn: &dyn Spawn, duration: Duration) {
    let mut beat = Beat::new(clock.now(), duration / PARTS);
    let mut left = PARTS;
    while left > 0 {
        left -= u32::from(beat.tick(clock).await.may_judge);
    }
    all_cores_ran_within(clock, spawn, duration).await;
}

/// Waits until all cores have read what had arrived, but no longer than `limit`: a core can be held
/// up for any time. False if one did not run.
pub async fn all_cores_ran_within(clock: &dyn Clock, spawn: &dyn Spawn, limit: Duration) -> bool {
    clock::timeout_at(clock, clock.now() + limit, spawn.all_cores_ran()).await.is_some()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::{JumpingClock, RuntimeSpawn};

    #[tokio::test]
    async fn time_that_a_process_stands_still_is_not_time_it_runs() {
        let jumping = JumpingClock::default();
        let duration = Duration::from_secs(80);
        let mut passes = std::pin::pin!(running_for(&jumping, &RuntimeSpawn, duration));
        let mut passed =
            async |pause: Duration| clock::timeout_at(&jumping, jumping.now() + pause, passes.as_mut()).await.is_some();
        for _ in 0..3 {
            jumping.jump(10 * duration);
            assert!(!passed(Duration::from_millis(10)).await);
        }
        for ticks in 3.. {
            jumping.jump(duration / PARTS);
            if passed(Duration::from_millis(1)).await {
                assert!((PARTS..=PARTS + 1).contains(&ticks), "{ticks}");
                break;
            }
        }
    }

    #[test]
    fn a_late_tick_says_for_how_long_and_judges_nothing() {
        let seconds = |seconds| Instant(0) + Duration::from_secs(seconds);
        let mut beat = Beat::new(seconds(0), Duration::from_secs(4));
        let on_time = |now| Tick { now, stalled: Duration::ZERO, may_judge: true };
        assert_eq!(beat.tick_at(seconds(4)), on_time(seconds(4)));
        assert_eq!(beat.tick_at(seconds(9)), on_time(seconds(9)), "by a quarter at most");
        let stalled = Duration::from_secs(50);
        assert_eq!(beat.tick_at(seconds(63)), Tick { now: seconds(63), stalled, may_judge: false });
        assert_eq!(beat.tick_at(seconds(67)), on_time(seconds(67)));
    }

    #[test]
    fn who_is_always_late_judges_every_second_time_at_least() {
        let mut beat = Beat::new(Instant(0), Duration::from_secs(1));
        let judged = |beat: &mut Beat| (1..=6).filter(|n| beat.tick_at(Instant(n * 3_000_000_000)).may_judge).count();
        assert_eq!(judged(&mut beat), 5);
    }
}
