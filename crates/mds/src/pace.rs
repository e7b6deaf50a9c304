//! When to ask an OST for its space again: often enough to notice that it fills up, and to notice
//! soon that a full one has space again. Pure.
//!
//! At the rate at which free space decreased between the last two answers, the MDT gets several
//! more answers before the OST is full. An idle OST is asked at the ordinary interval; if it then
//! fills up suddenly, its refusal of a write shows this.

use std::time::Duration;

use rt::Instant;

/// Questions that come before the OST is full, if it continues filling as fast.
const QUESTIONS_BEFORE_FULL: u32 = 4;
/// Questions per ordinary interval, at most.
const QUESTIONS_MAX: u32 = 50;
/// Questions per ordinary interval to an OST that is full.
const QUESTIONS_WHILE_FULL: u32 = 5;

/// See the module documentation.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Pace {
    last: Option<(Instant, u64)>,
}

impl Pace {
    /// Time to the next question. `bytes_left`: until the OST counts as full, by the answer of now.
    pub fn next(&mut self, now: Instant, bytes_left: u64, interval: Duration) -> Duration {
        let before = self.last.replace((now, bytes_left));
        if bytes_left == 0 {
            return interval / QUESTIONS_WHILE_FULL;
        }
        let Some((then, bytes_before)) = before.filter(|(_, bytes)| *bytes > bytes_left) else { return interval };
        let elapsed = now.since(then).as_nanos();
        let until_full = elapsed * u128::from(bytes_left) / u128::from(bytes_before - bytes_left);
        let until_full = Duration::from_nanos(u64::try_from(until_full).unwrap_or(u64::MAX));
        (until_full / QUESTIONS_BEFORE_FULL).clamp(interval / QUESTIONS_MAX, interval)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const INTERVAL: Duration = Duration::from_secs(5);

    fn at(seconds: u64) -> Instant {
        Instant(seconds * 1_000_000_000)
    }

    #[test]
    fn a_target_that_fills_is_asked_more_often_the_nearer_its_end() {
        let mut pace = Pace::default();
        assert_eq!(pace.next(at(0), 1000, INTERVAL), INTERVAL, "nothing to compare with");
        assert_eq!(pace.next(at(5), 900, INTERVAL), INTERVAL, "45 s are left");
        assert_eq!(pace.next(at(10), 200, INTERVAL), Duration::from_secs_f64(10.0 / 7.0 / 4.0));
        assert_eq!(pace.next(at(11), 1, INTERVAL), INTERVAL / QUESTIONS_MAX);
        assert_eq!(pace.next(at(12), 0, INTERVAL), INTERVAL / QUESTIONS_WHILE_FULL);
        assert_eq!(pace.next(at(13), 500, INTERVAL), INTERVAL, "space came back");
        assert_eq!(pace.next(at(14), 500, INTERVAL), INTERVAL);
    }
}
