//! The beginning of a load, which says nothing about what follows.
//!
//! Caches of devices are empty, and clients that send more and more at once are not at work as they
//! will be. Nothing counts before that is over.

use crate::measurement::Measurement;

const MS: u64 = 1_000_000;

/// It lasts so long at least, ...
const LEAST_NS: u64 = 1500 * MS;
/// ... and while a quarter more requests wait after each such time.
const STEP_NS: u64 = 500 * MS;
const MORE: f64 = 1.25;
/// But no longer than this.
const MOST_NS: u64 = 5000 * MS;

/// See the module documentation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Beginning {
    until_ns: u64,
    most_ns: u64,
    /// Requests that waited at the last step.
    waiting: u64,
}

impl Beginning {
    pub fn new(start: &Measurement) -> Self {
        Self { until_ns: start.now_ns + LEAST_NS, most_ns: start.now_ns + MOST_NS, waiting: start.waiting }
    }

    /// Whether it is not over yet.
    pub fn goes_on(&mut self, measured: &Measurement) -> bool {
        if measured.now_ns < self.until_ns {
            return true;
        }
        let grows = measured.waiting as f64 > MORE * self.waiting as f64;
        self.waiting = measured.waiting;
        let goes_on = grows && measured.now_ns < self.most_ns;
        if goes_on {
            self.until_ns = measured.now_ns + STEP_NS;
        }
        goes_on
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// After how many milliseconds it is over, if so many requests wait then.
    fn ends(waiting: impl Fn(u64) -> u64) -> u64 {
        let at = |ms: u64| Measurement { now_ns: ms * MS, waiting: waiting(ms), ..Measurement::default() };
        let mut beginning = Beginning::new(&at(0));
        (1..).map(|step| 100 * step).find(|ms| !beginning.goes_on(&at(*ms))).unwrap()
    }

    #[test]
    fn a_load_has_begun_when_no_more_requests_come_to_wait() {
        assert_eq!(ends(|_| 0), 1500);
        assert_eq!(ends(|ms| if ms == 0 { 0 } else { 100 }), 2000);
        assert_eq!(ends(|ms| if ms < 1900 { 1 << (ms / 250) } else { 200 }), 2500);
        assert_eq!(ends(|ms| 1 << (ms / 250)), 5000, "it has an end");
    }
}
