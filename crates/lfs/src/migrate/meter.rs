//! The progress of the copy of a large file, on standard error: one line that is overwritten, on a
//! terminal only.

use std::{
    path::Path,
    time::{Duration, Instant},
};

use host::progress;

use crate::size;

/// What takes less is over before a user could have read about it.
const SHORT: Duration = Duration::from_secs(1);
/// Between two changes of the line.
const FRAME: Duration = Duration::from_millis(200);

/// See the module documentation. The line is taken away when it is dropped.
#[derive(Debug)]
pub struct Meter {
    name: String,
    is_wanted: bool,
    is_shown: bool,
    next: Instant,
}

impl Meter {
    /// Of the file `path`; `is_wanted`: standard error is a terminal, and nothing else tells how
    /// far it is.
    pub fn new(path: &Path, is_wanted: bool) -> Self {
        Self { name: path.display().to_string(), is_wanted, is_shown: false, next: Instant::now() + SHORT }
    }

    /// So much of `size` bytes is done, since `begun`.
    pub fn advance(&mut self, done: u64, size: u64, begun: Instant) {
        let now = Instant::now();
        if self.is_wanted && self.is_due(now) {
            self.is_shown = true;
            progress::show(line(&self.name, done, size, now.saturating_duration_since(begun)));
        }
    }

    fn is_due(&mut self, now: Instant) -> bool {
        let is_due = now >= self.next;
        if is_due {
            self.next = now + FRAME;
        }
        is_due
    }
}

impl Drop for Meter {
    fn drop(&mut self) {
        if self.is_shown {
            progress::done();
        }
    }
}

fn line(name: &str, done: u64, size: u64, taken: Duration) -> String {
    let percent = if size == 0 { 100.0 } else { done as f64 / size as f64 * 100.0 };
    let rate = done as f64 / f64::from(1 << 20) / taken.as_secs_f64().max(1e-3);
    format!("{name}: {percent:.0} % of {}, {rate:.0} MiB/s", size::human(size))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_tells_how_far_and_how_fast() {
        let shown = line("data/large", 3 << 30, 12 << 30, Duration::from_secs(10));
        assert_eq!(shown, "data/large: 25 % of 12.0G, 307 MiB/s");
        assert_eq!(line("empty", 0, 0, Duration::ZERO), "empty: 100 % of 0.0, 0 MiB/s");
    }

    #[test]
    fn short_work_is_not_shown_and_long_work_now_and_then() {
        let begun = Instant::now();
        let mut meter = Meter::new(Path::new("file"), true);
        meter.next = begun + SHORT;
        let due = (0..16).filter(|tenth| meter.is_due(begun + Duration::from_millis(tenth * 100)));
        assert_eq!(due.collect::<Vec<_>>(), [10, 12, 14]);
    }

    #[test]
    fn nothing_is_shown_where_nobody_wants_it() {
        let mut meter = Meter::new(Path::new("file"), false);
        meter.next = Instant::now();
        meter.advance(1, 2, Instant::now());
        assert!(!meter.is_shown);
    }
}
