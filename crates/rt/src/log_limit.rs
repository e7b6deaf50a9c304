//! A limit on how many lines of one kind the log gets: so many in a period, and the next line tells
//! how many were left out.
//!
//! Downside: it does not look at what a line says, so a frequent cause may hide a rare one.

use std::time::Duration;

use parking_lot::Mutex;

use crate::Instant;

#[derive(Debug, Default)]
struct State {
    /// When the present period began.
    begun: Option<Instant>,
    /// Lines in this period.
    lines: u32,
    /// Lines that were left out since the last one.
    left_out: u64,
}

/// See the module documentation.
#[derive(Debug)]
pub struct LogLimit {
    lines_max: u32,
    period: Duration,
    state: Mutex<State>,
}

impl LogLimit {
    /// For what one line a second says well enough.
    pub const ONE_A_SECOND: (u32, Duration) = (1, Duration::from_secs(1));

    /// At most `lines_max` lines in a period, which begins with its first line.
    pub fn new((lines_max, period): (u32, Duration)) -> Self {
        assert!(lines_max > 0, "a limit leaves at least one line in a period");
        Self { lines_max, period, state: Mutex::default() }
    }

    /// Whether one more line may be logged now, and how many were left out since the last one.
    pub fn may_log(&self, now: Instant) -> Option<u64> {
        let mut state = self.state.lock();
        if state.begun.is_none_or(|begun| now.since(begun) >= self.period) {
            state.begun = Some(now);
            state.lines = 0;
        }
        if state.lines == self.lines_max {
            state.left_out += 1;
            return None;
        }
        state.lines += 1;
        Some(std::mem::take(&mut state.left_out))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(milliseconds: u64) -> Instant {
        Instant(milliseconds * 1_000_000)
    }

    #[test]
    fn one_line_a_second_and_the_others_are_counted() {
        let limit = LogLimit::new(LogLimit::ONE_A_SECOND);
        let logged = [0, 1, 999, 1000, 1500, 5000].map(|milliseconds| limit.may_log(at(milliseconds)));
        assert_eq!(logged, [Some(0), None, None, Some(2), None, Some(1)]);
    }

    #[test]
    fn several_lines_in_a_period() {
        let limit = LogLimit::new((20, Duration::from_secs(60)));
        for _ in 0..20 {
            assert_eq!(limit.may_log(at(1000)), Some(0));
        }
        assert_eq!((limit.may_log(at(2000)), limit.may_log(at(60_000))), (None, None));
        assert_eq!(limit.may_log(at(61_000)), Some(2));
        assert_eq!(limit.may_log(at(61_000)), Some(0));
    }
}
