//! How background work yields to other load. Pure.
//!
//! It watches its own progress (Douceur and Bolosky, "Progress-based regulation of low-importance
//! processes", 1999): work that shares a disk or a link makes less progress than alone. If a piece
//! takes twice as long as the best of the recent ones, there is other load, whatever its source;
//! then the work pauses, twice as long each time this happens again. No counters of servers are
//! needed. In addition there is a budget of bytes per second.
//!
//! Downside: a disk whose speed varies by itself counts as used by others; the work then takes
//! longer than necessary.

use std::time::Duration;

use types::time::transfer_time;

/// The first pause, and the longest.
const PAUSE_MIN: Duration = Duration::from_secs(1);
const PAUSE_MAX: Duration = Duration::from_secs(60);
/// So many times as long as the best is too long.
const SLOW: u64 = 2;
/// By one part in so many the best gets worse with each piece: what was long ago does not count
/// forever.
const FORGETTING: u64 = 64;

/// See the module documentation.
#[derive(Clone, Copy, Debug, Default)]
pub struct Throttle {
    /// Nanoseconds per MiB.
    best: Option<u64>,
    pause: Duration,
}

impl Throttle {
    /// A piece was done in this time: how long to pause before the next, with the budget there is
    /// now. (Of bytes, or of whatever else it counts.)
    pub fn after_piece(&mut self, bytes: u64, took: Duration, bytes_per_second: u64) -> Duration {
        let nanoseconds = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX).max(1);
        let pace = u64::try_from((u128::from(nanoseconds) << 20) / u128::from(bytes.max(1))).unwrap_or(u64::MAX).max(1);
        let best = self.best.map_or(pace, |best| best.saturating_add(best / FORGETTING));
        self.best = Some(best.min(pace));
        if pace / SLOW > best {
            self.pause = (self.pause * 2).clamp(PAUSE_MIN, PAUSE_MAX);
            return self.pause;
        }
        self.pause = Duration::ZERO;
        transfer_time(bytes, bytes_per_second).saturating_sub(took)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn ms(milliseconds: u64) -> Duration {
        Duration::from_millis(milliseconds)
    }

    #[test]
    fn alone_it_keeps_to_its_budget() {
        let mut throttle = Throttle::default();
        for _ in 0..100 {
            assert_eq!(throttle.after_piece(4 * MIB, ms(25), 32 * MIB), ms(100));
        }
        assert_eq!(throttle.after_piece(4 * MIB, ms(25), u64::MAX), Duration::ZERO);
    }

    #[test]
    fn it_pauses_longer_and_longer_while_others_work_and_goes_on_when_they_end() {
        let mut throttle = Throttle::default();
        throttle.after_piece(4 * MIB, ms(20), u64::MAX);
        let pauses: Vec<u64> = (0..8).map(|_| throttle.after_piece(4 * MIB, ms(90), u64::MAX).as_secs()).collect();
        assert_eq!(pauses, [1, 2, 4, 8, 16, 32, 60, 60]);
        assert_eq!(throttle.after_piece(4 * MIB, ms(21), u64::MAX), Duration::ZERO);
        assert_eq!(throttle.after_piece(4 * MIB, ms(90), u64::MAX).as_secs(), 1);
    }

    #[test]
    fn a_disk_that_became_slower_for_good_is_not_taken_for_a_busy_one_for_ever() {
        let mut throttle = Throttle::default();
        throttle.after_piece(4 * MIB, ms(20), u64::MAX);
        let pieces = (0..).find(|_| throttle.after_piece(4 * MIB, ms(80), u64::MAX) == Duration::ZERO);
        assert!(pieces.is_some_and(|pieces| (20..80).contains(&pieces)), "{pieces:?}");
    }
}
