//! How fast a migration goes: its limit, and its reports.

use std::{
    io::Write,
    time::{Duration, Instant},
};

use types::time::transfer_time;

use super::meter::Meter;
use crate::outcome::{Outcome, print, write_failure};

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
    meter: Meter,
}

impl Pace {
    /// A limit, and the seconds between reports, if any. `meter` shows how far it is besides.
    pub fn new(bytes_per_second: Option<u64>, report_seconds: Option<u64>, meter: Meter) -> Self {
        let now = Instant::now();
        let reports = report_seconds.map(Duration::from_secs);
        Self { bytes_per_second, reports, begun: now, reported: now, copied: 0, position: 0, meter }
    }

    /// A copy begins (again).
    pub fn begin(&mut self) {
        (self.begun, self.reported) = (Instant::now(), Instant::now());
        (self.copied, self.position) = (0, 0);
    }

    /// Most bytes that should be copied next.
    pub fn piece_bytes(&self) -> u64 {
        let limit = |rate: u64| (rate / PIECES_PER_SECOND).clamp(PIECE_BYTES_MIN, PIECE_BYTES);
        self.bytes_per_second.map_or(PIECE_BYTES, limit)
    }

    /// So much was copied after a hole: waits as long as the limit asks for, and reports what is to
    /// be reported of `size` bytes.
    pub fn copied(&mut self, bytes: u64, hole: u64, size: u64, output: &mut dyn Write) -> Outcome {
        self.copied += bytes;
        self.position += hole + bytes;
        if let Some(rate) = self.bytes_per_second {
            std::thread::sleep(transfer_time(self.copied, rate).saturating_sub(self.begun.elapsed()));
        }
        self.meter.advance(self.position, size, self.begun);
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
        output.flush().map_err(write_failure)
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
    use std::path::Path;

    use super::*;

    fn pace(limit: Option<u64>) -> Pace {
        Pace::new(limit, None, Meter::new(Path::new("file"), false))
    }

    #[test]
    fn pieces_fit_the_limit() {
        let piece_bytes = |limit| pace(limit).piece_bytes();
        assert_eq!(piece_bytes(None), PIECE_BYTES);
        assert_eq!(piece_bytes(Some(20 << 20)), 2 << 20);
        assert_eq!(piece_bytes(Some(1)), PIECE_BYTES_MIN);
    }

    #[test]
    fn reports_are_yaml() {
        let expected = "- { seconds: 2.0, mib_per_second: 8.0, copied: 16777216, size: 33554432, percent: 50.0 }";
        assert_eq!(line(2.0, 8.0, 16 << 20, 32 << 20), expected);
        assert!(line(0.0, 0.0, 0, 0).ends_with("percent: 100.0 }"));
    }

    #[test]
    fn a_limit_is_kept() {
        let mut pace = pace(Some(10 << 20));
        let begun = Instant::now();
        pace.copied(1 << 20, 0, 1 << 20, &mut Vec::new()).unwrap();
        assert!(begun.elapsed() >= Duration::from_millis(99));
    }
}
