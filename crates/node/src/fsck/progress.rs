//! The progress of a check, on standard error: a line that is overwritten on a terminal, and
//! elsewhere an occasional line if the check takes long.

use std::{
    io::IsTerminal,
    time::{Duration, Instant},
};

use indicatif::{ProgressBar, ProgressStyle};

/// Between two lines where nothing can be written over, and before the first.
const PAUSE: Duration = Duration::from_secs(10);
/// Between two frames on a terminal.
const FRAME: Duration = Duration::from_millis(100);

/// See the module documentation.
pub struct Progress {
    bar: Option<ProgressBar>,
    pace: Pace,
    stage: String,
    count: u64,
    total: Option<u64>,
}

impl Progress {
    /// Of a check that begins.
    pub fn new() -> Self {
        let bar = std::io::stderr().is_terminal().then(|| {
            let style = ProgressStyle::with_template("  {spinner} {msg}  {elapsed}");
            let bar = ProgressBar::new_spinner().with_style(style.unwrap_or_else(|_| ProgressStyle::default_spinner()));
            bar.enable_steady_tick(FRAME);
            bar
        });
        Self { bar, pace: Pace { last: Instant::now() }, stage: String::new(), count: 0, total: None }
    }

    /// The next part of the work; `total`: how many there are, if that is known.
    pub fn begin(&mut self, stage: String, total: Option<u64>) {
        (self.stage, self.count, self.total) = (stage, 0, total);
        self.advance(0);
    }

    /// So many more are done.
    pub fn advance(&mut self, count: u64) {
        self.count += count;
        match &self.bar {
            Some(bar) => bar.set_message(self.text()),
            None if self.pace.is_due(Instant::now()) => eprintln!("{}", self.text()),
            None => {}
        }
    }

    /// Tells something that is to stay, at any time while the work continues.
    pub fn teller(&self) -> impl Fn(&str) + use<> {
        let bar = self.bar.clone();
        move |text| match &bar {
            Some(bar) => bar.println(text),
            None => eprintln!("{text}"),
        }
    }

    /// Takes the line away.
    pub fn end(self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }

    fn text(&self) -> String {
        match (self.count, self.total) {
            (0, None) => self.stage.clone(),
            (count, None) => format!("{}: {count}", self.stage),
            (count, Some(total)) => format!("{}: {count} of {total}", self.stage),
        }
    }
}

/// When the next line is due.
struct Pace {
    last: Instant,
}

impl Pace {
    fn is_due(&mut self, now: Instant) -> bool {
        let due = now.saturating_duration_since(self.last) >= PAUSE;
        if due {
            self.last = now;
        }
        due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_come_now_and_then() {
        let begun = Instant::now();
        let mut pace = Pace { last: begun };
        let due: Vec<u64> = (0..35).filter(|second| pace.is_due(begun + Duration::from_secs(*second))).collect();
        assert_eq!(due, [10, 20, 30]);
    }

    #[test]
    fn a_line_says_what_is_done_and_how_far() {
        let mut progress =
            Progress { bar: None, pace: Pace { last: Instant::now() }, stage: String::new(), count: 0, total: None };
        progress.begin("MDT0000: checking names".to_owned(), None);
        assert_eq!(progress.text(), "MDT0000: checking names");
        progress.advance(1024);
        progress.advance(1);
        assert_eq!(progress.text(), "MDT0000: checking names: 1025");
        progress.begin("comparing sizes".to_owned(), Some(7));
        assert_eq!(progress.text(), "comparing sizes: 0 of 7");
    }
}
