//! The share of the host's processor time that is used, from `/proc/stat`.
//!
//! Downside: of the whole host, also where a process may use a part of it only.

use std::{
    fs,
    time::{Duration, Instant},
};

use parking_lot::Mutex;

/// The counters are in hundredths of a second: shorter times show little.
const INTERVAL: Duration = Duration::from_millis(200);

/// Time that all processors have spent since the host started, in hundredths of a second.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Times {
    total: u64,
    idle: u64,
}

impl Times {
    /// The first line: `cpu user nice system idle iowait irq softirq steal guest guest_nice`.
    fn parse(text: &str) -> Option<Self> {
        let numbers = text.lines().next()?.strip_prefix("cpu ")?.split_whitespace();
        // Guests are counted as users, too.
        let numbers: Vec<u64> = numbers.take(8).map(str::parse).collect::<Result<_, _>>().ok()?;
        Some(Self { total: numbers.iter().sum(), idle: numbers.get(3)? + numbers.get(4)? })
    }

    /// Share that was used since `before`.
    fn used_since(self, before: Self) -> Option<f64> {
        let total = self.total.checked_sub(before.total).filter(|total| *total > 0)?;
        let idle = self.idle.saturating_sub(before.idle).min(total);
        Some((total - idle) as f64 / total as f64)
    }
}

/// See the module documentation.
#[derive(Debug, Default)]
pub struct ProcessorTime(Mutex<Option<Last>>);

#[derive(Debug)]
struct Last {
    at: Instant,
    times: Times,
    used: Option<f64>,
}

impl ProcessorTime {
    /// Share of the processor time that was used recently, 0 to 1: since the last call some time
    /// ago. `None` if it is not known (yet).
    pub fn used(&self) -> Option<f64> {
        let mut last = self.0.lock();
        let now = Instant::now();
        if let Some(last) = last.as_ref().filter(|last| now.duration_since(last.at) < INTERVAL) {
            return last.used;
        }
        let times = Times::parse(&fs::read_to_string("/proc/stat").ok()?)?;
        let used = last.as_ref().and_then(|last| times.used_since(last.times));
        *last = Some(Last { at: now, times, used });
        used
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_idle_is_used() {
        let parse = |text| Times::parse(text).unwrap();
        let before = parse("cpu  100 0 50 800 50 0 0 0 7 0\ncpu0 1 2 3\n");
        assert_eq!(before, Times { total: 1000, idle: 850 });
        let after = parse("cpu  160 0 80 805 55 0 0 0 7 0\n");
        assert_eq!(after.used_since(before), Some(0.9));
        assert_eq!(before.used_since(before), None, "no time passed");
        assert_eq!(before.used_since(after), None, "the counters went back");
    }

    #[test]
    fn other_texts_are_not_understood() {
        for text in ["", "cpu", "cpu  1 2 3", "cpu  1 2 3 x 5 6 7 8", "intr 1 2 3 4 5 6"] {
            assert_eq!(Times::parse(text), None, "{text}");
        }
    }

    #[test]
    fn this_host_tells() {
        assert!(Times::parse(&fs::read_to_string("/proc/stat").unwrap()).is_some_and(|times| times.total > 0));
    }
}
