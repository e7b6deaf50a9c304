//! How fast inodes move to another MDT in the background. Pure.
//!
//! Each takes its part of a budget, whether it moves or not, since trying costs the MDTs about as
//! much. Beyond that it yields to others by its own progress ([`Throttle`]): only moves of files
//! count, as a directory takes longer the more names it has.

use std::time::Duration;

use rt::Instant;
use types::time::transfer_time;

use super::throttle::Throttle;

/// Files whose moves are one piece of progress: one alone may wait for somebody's flush.
const PIECE_FILES: u32 = 32;
/// What was not used of the budget counts for so long.
const UNUSED: Duration = Duration::from_secs(1);

/// See the module documentation.
#[derive(Clone, Debug, Default)]
pub struct InodePace {
    throttle: Throttle,
    files: u32,
    took: Duration,
    /// When the budget permits the next one.
    due: Instant,
}

impl InodePace {
    /// A file has moved, in this time.
    pub fn file_moved(&mut self, took: Duration) {
        self.files += 1;
        self.took += took;
    }

    /// How long to pause after an inode.
    pub fn pause(&mut self, now: Instant, inodes_per_second: u64) -> Duration {
        let unused = Instant(now.0.saturating_sub(UNUSED.as_nanos() as u64));
        self.due = self.due.max(unused) + transfer_time(1, inodes_per_second);
        let mut pause = self.due.since(now);
        if self.files >= PIECE_FILES {
            pause = pause.max(self.throttle.after_piece(u64::from(self.files), self.took, u64::MAX));
            (self.files, self.took) = (0, Duration::ZERO);
        }
        pause
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Moves files that take so long each; the seconds that takes in all, and the longest pause.
    fn seconds(
        pace: &mut InodePace,
        now: &mut Instant,
        files: u32,
        took_ms: u64,
        inodes_per_second: u64,
    ) -> (u64, u64) {
        let (begun, mut longest) = (*now, Duration::ZERO);
        for _ in 0..files {
            let took = Duration::from_millis(took_ms);
            pace.file_moved(took);
            *now = *now + took;
            let pause = pace.pause(*now, inodes_per_second);
            longest = longest.max(pause);
            *now = *now + pause;
        }
        (now.since(begun).as_secs(), longest.as_secs())
    }

    #[test]
    fn it_keeps_to_its_budget_and_yields_when_moves_take_longer() {
        let (mut pace, mut now) = (InodePace::default(), Instant(1 << 40));
        assert_eq!(seconds(&mut pace, &mut now, 1024, 2, 100), (9, 0), "the first second is there at once");
        assert_eq!(seconds(&mut pace, &mut now, 1024, 2, 10), (102, 0));
        assert_eq!(seconds(&mut pace, &mut now, 1024, 2, 1000), (2, 0), "as fast as it can");
        let (_, longest) = seconds(&mut pace, &mut now, 6 * PIECE_FILES, 9, 1000);
        assert_eq!(longest, 32, "others have something to do");
        assert_eq!(seconds(&mut pace, &mut now, 100, 2, 1000).1, 0, "not any more");
    }
}
