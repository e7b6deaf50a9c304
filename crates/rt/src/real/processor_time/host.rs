//! Processor time of the whole host, from `/proc/stat`.

use std::fs;

/// Time that all processors have spent since the host started, in hundredths of a second.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Times {
    total: u64,
    idle: u64,
}

impl Times {
    /// Up to now; `None` if the host does not tell.
    pub(super) fn now() -> Option<Self> {
        Self::parse(&fs::read_to_string("/proc/stat").ok()?)
    }

    /// The first line: `cpu user nice system idle iowait irq softirq steal guest guest_nice`.
    fn parse(text: &str) -> Option<Self> {
        let numbers = text.lines().next()?.strip_prefix("cpu ")?.split_whitespace();
        // Guests are counted as users, too.
        let numbers: Vec<u64> = numbers.take(8).map(str::parse).collect::<Result<_, _>>().ok()?;
        Some(Self { total: numbers.iter().sum(), idle: numbers.get(3)? + numbers.get(4)? })
    }

    /// Share that was used since `before`.
    pub(super) fn used_since(self, before: Self) -> Option<f64> {
        let total = self.total.checked_sub(before.total).filter(|total| *total > 0)?;
        let idle = self.idle.saturating_sub(before.idle).min(total);
        Some((total - idle) as f64 / total as f64)
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
        assert!(Times::now().is_some_and(|times| times.total > 0));
    }
}
