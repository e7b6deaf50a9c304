//! How fast a migration goes: its limit, and its reports.

use std::{
    io::Write,
    time::{Duration, Instant},
};

use crate::lfs::{Outcome, print};

/// Most bytes copied at once.
const PIECE_BYTES: u64 = 16 << 20;
/// With a limit, pieces take about this part of a second, so that a burst is short.
const PIECES_PER_SECOND: u64 = 10;
/// No piece is smaller: a request's worth.
const PIECE_BYTES_MIN: u64 = 64 << 10;

/// The course of one file's copy.
#[derive(Debug)]
pub struct Pace {
    bytes_per_second: Option<u64>,
    reports: Option<Duration>,
    begun: Instant,
    reported: Instant,
    /// Bytes copied, which the limit is about.
    copied: u64,
    /// How far it is, holes included.
    position: u64,
}

impl Pace {
    /// A limit, and the seconds between reports, if any.
    pub fn new(bytes_per_second: Option<u64>, report_seconds: Option<u64>) -> Self {
        let now = Instant::now();
        let reports = report_seconds.map(Duration::from_secs);
        Self { bytes_per_second, reports, begun: now, reported: now, copied: 0, position: 0 }
    }

    /// A copy begins (again).
    pub fn begin(&mut self) {
        *self = Self { begun: Instant::now(), reported: Instant::now(), copied: 0, position: 0, ..*self };
    }

    /// Most bytes that should be copied next.
    pub fn piece_bytes(&self) -> u64 {
        let limit = |rate: u64| (rate / PIECES_PER_SECOND).clamp(PIECE_BYTES_MIN, PIECE_BYTES);
        self.bytes_per_second.map_or(PIECE_BYTES, limit)
    }

    /// So much was copied behind a hole: waits as long as the limit asks for, and reports what is to be reported of `size`
    /// bytes.
    pub fn copied(&mut self, bytes: u64, hole: u64, size: u64, output: &mut dyn Write) -> Outcome {
        self.copied += bytes;
        self.position += hole + bytes;
        if let Some(rate) = self.bytes_per_second {
            let due = Duration::from_secs_f64(self.copied as f64 / rate as f64);
            std::thread::sleep(due.saturating_sub(self.begun.elapsed()));
        }
        if self.reports.is_some_and(|interval| self.reported.elapsed() >= interval) {
            self.reported = Instant::now();
            return self.report(size, output);
        }
        Ok(())
    }

    /// The copy is complete.
    pub fn end(&mut self, size: u64, output: &mut dyn Write) -> Outcome {
        self.position = size;
        if self.reports.is_some() { self.report(size, output) } else { Ok(()) }
    }

    fn report(&self, size: u64, output: &mut dyn Write) -> Outcome {
        let seconds = self.begun.elapsed().as_secs_f64();
        let rate = self.copied as f64 / f64::from(1 << 20) / seconds.max(1e-6);
        print(output, format_args!("{}\n", line(seconds, rate, self.position, size)))?;
        output.flush().map_err(crate::lfs::write_failure)
    }
}

/// A report, as an entry of a list in YAML.
fn line(seconds: f64, mib_per_second: f64, copied: u64, size: u64) -> String {
    let percent = if size == 0 { 100.0 } else { copied as f64 / size as f64 * 100.0 };
    format!(
        "- {{ seconds: {seconds:.1}, mib_per_second: {mib_per_second:.1}, copied: {copied}, size: {size}, percent: {percent:.1} }}"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_fit_the_limit() {
        assert_eq!(Pace::new(None, None).piece_bytes(), PIECE_BYTES);
        assert_eq!(Pace::new(Some(20 << 20), None).piece_bytes(), 2 << 20);
        assert_eq!(Pace::new(Some(1), None).piece_bytes(), PIECE_BYTES_MIN);
    }

    #[test]
    fn reports_are_yaml() {
        let expected = "- { seconds: 2.0, mib_per_second: 8.0, copied: 16777216, size: 33554432, percent: 50.0 }";
        assert_eq!(line(2.0, 8.0, 16 << 20, 32 << 20), expected);
        assert!(line(0.0, 0.0, 0, 0).ends_with("percent: 100.0 }"));
    }

    #[test]
    fn a_limit_is_kept() {
        let mut pace = Pace::new(Some(10 << 20), None);
        let begun = Instant::now();
        pace.copied(1 << 20, 0, 1 << 20, &mut Vec::new()).unwrap();
        assert!(begun.elapsed() >= Duration::from_millis(99));
    }
}
