//! When to log that the cold store was opened again: on a device that stays full this happens with
//! every write.

use std::time::{Duration, Instant};

/// Between two lines.
const PAUSE: Duration = Duration::from_secs(60);

/// See the module documentation.
#[derive(Debug, Default)]
pub(super) struct Reopenings {
    logged: Option<Instant>,
    unlogged: u64,
}

impl Reopenings {
    /// It was opened again. How often since the last line, if a line is due: the first time at
    /// once, then after a pause.
    pub fn note(&mut self, now: Instant) -> Option<u64> {
        self.unlogged += 1;
        if self.logged.is_some_and(|logged| now.saturating_duration_since(logged) < PAUSE) {
            return None;
        }
        self.logged = Some(now);
        Some(std::mem::take(&mut self.unlogged))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_that_stays_full_gives_a_line_a_minute() {
        let (begun, mut reopenings) = (Instant::now(), Reopenings::default());
        let lines: Vec<(u64, u64)> = (0..150)
            .filter_map(|second| Some((second, reopenings.note(begun + Duration::from_secs(second))?)))
            .collect();
        assert_eq!(lines, [(0, 1), (60, 60), (120, 60)]);
    }
}
