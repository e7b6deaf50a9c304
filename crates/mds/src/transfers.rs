//! The average number of transfers in progress on an OST, computed from the sum that it reports
//! (`TargetCondition::work_us`). Pure.
//!
//! Reports come at an interval, and at once when a request needs to know the space. A report within
//! a second of the one that it is compared with changes nothing, because a moment says little.
//!
//! Downside: the average is as old as the report, a few seconds.

use std::time::Duration;

use rt::Instant;

/// Shortest time over which an average is taken.
const INTERVAL_MIN: Duration = Duration::from_secs(1);

/// See the module documentation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Transfers {
    /// The report that the next one is compared with.
    base: Option<(Instant, u64)>,
    average_permille: u32,
}

impl Transfers {
    /// The OST says how much work it has had since its start.
    pub(crate) fn report(&mut self, now: Instant, work_us: u64) {
        let Some((then, before)) = self.base.filter(|(_, before)| *before <= work_us) else {
            // The first report since the OST started.
            *self = Self { base: Some((now, work_us)), average_permille: 0 };
            return;
        };
        let elapsed = now.since(then);
        if elapsed >= INTERVAL_MIN {
            let average = u128::from(work_us - before) * 1000 / elapsed.as_micros();
            *self = Self { base: Some((now, work_us)), average_permille: u32::try_from(average).unwrap_or(u32::MAX) };
        }
    }

    /// Thousandths of transfers in work, on average between the last two reports; 0 if nothing is
    /// known.
    pub fn average_permille(&self) -> u32 {
        self.average_permille
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(milliseconds: u64) -> Instant {
        Instant(milliseconds * 1_000_000)
    }

    #[test]
    fn the_average_is_that_of_the_time_between_reports() {
        let mut transfers = Transfers::default();
        let mut after = |milliseconds: u64, work_us: u64| {
            transfers.report(at(milliseconds), work_us);
            transfers.average_permille()
        };
        assert_eq!(after(1000, 77_000_000), 0, "nothing to compare with");
        assert_eq!(after(6000, 77_000_000 + 12 * 5_000_000), 12_000);
        assert_eq!(after(6500, 77_000_000 + 12 * 5_000_000 + 40 * 500_000), 12_000, "too soon to tell");
        assert_eq!(after(8000, 77_000_000 + 12 * 5_000_000 + 40 * 500_000), 10_000, "over two seconds");
        assert_eq!(after(13_000, 1_000_000), 0, "the OST started anew");
        assert_eq!(after(15_000, 5_000_000), 2000);
        assert_eq!(after(20_000, 5_300_000), 60);
        assert_eq!(after(25_000, 5_300_000), 0, "idle");
    }
}
