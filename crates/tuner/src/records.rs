//! What is known of each setting: the evidence of all stays at it, with forgetting.

use std::collections::{BTreeMap, VecDeque};

use crate::{measurement::Change, noise::Noise};

/// After so long, what was measured counts for half.
const HALF_LIFE_NS: f64 = 10e9;
/// What is older than this is forgotten.
const FORGOTTEN_NS: u64 = 60_000_000_000;
/// Least time at a setting that says something.
const KNOWN_NS: u64 = 300_000_000;
/// Stays that are remembered of each setting, and how long one of them is at most.
const STAYS_MAX: usize = 6;
const STAY_NS_MAX: u64 = 12_800_000_000;

/// A time without interruption at one setting.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Stay {
    change: Change,
    until_ns: u64,
}

/// The evidence about one setting.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Record {
    /// The newest last.
    stays: VecDeque<Stay>,
}

/// What a record comes to.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Estimate {
    /// Work per second.
    pub rate: f64,
    /// Its relative standard error.
    pub error: f64,
    /// When it was measured last.
    pub at_ns: u64,
    /// How long it was measured in all.
    pub nanoseconds: u64,
}

impl Record {
    fn add(&mut self, change: &Change, begins: bool, now_ns: u64) {
        let goes_on = !begins && self.stays.back().is_some_and(|stay| stay.change.nanoseconds < STAY_NS_MAX);
        match self.stays.back_mut().filter(|_| goes_on) {
            Some(stay) => *stay = Stay { change: stay.change.and(change), until_ns: now_ns },
            None => self.stays.push_back(Stay { change: *change, until_ns: now_ns }),
        }
        if self.stays.len() > STAYS_MAX {
            self.stays.pop_front();
        }
    }

    /// The mean of all stays. What is surer weighs more, and what is older less.
    fn estimate(&self, noise: &Noise) -> Estimate {
        let now_ns = self.stays.back().map_or(0, |stay| stay.until_ns);
        let (mut weights, mut rates, mut variances) = (0.0, 0.0, 0.0);
        for stay in &self.stays {
            let variance = stay.change.error(noise).powi(2);
            let age = now_ns.saturating_sub(stay.until_ns) as f64;
            let weight = 0.5f64.powf(age / HALF_LIFE_NS) / variance;
            weights += weight;
            rates += weight * stay.change.rate();
            variances += weight * weight * variance;
        }
        Estimate {
            rate: rates / weights.max(f64::MIN_POSITIVE),
            error: variances.sqrt() / weights.max(f64::MIN_POSITIVE),
            at_ns: now_ns,
            nanoseconds: self.nanoseconds(),
        }
    }

    fn nanoseconds(&self) -> u64 {
        self.stays.iter().map(|stay| stay.change.nanoseconds).sum()
    }
}

/// Relative difference of two rates, to their mean, so that a gain and the loss on the way back
/// weigh the same.
pub(crate) fn difference(from: f64, to: f64) -> f64 {
    2.0 * (to - from) / (to + from).max(f64::MIN_POSITIVE)
}

/// See the module documentation.
#[derive(Clone, Debug, Default)]
pub(crate) struct Records {
    of: BTreeMap<u32, Record>,
}

impl Records {
    /// A window of a stay. `begins`: it is the first one.
    pub fn add(&mut self, setting: u32, change: &Change, begins: bool, now_ns: u64) {
        self.of.entry(setting).or_default().add(change, begins, now_ns);
    }

    /// What is known of a setting.
    pub fn get(&self, setting: u32, noise: &Noise) -> Option<Estimate> {
        self.of.get(&setting).map(|record| record.estimate(noise))
    }

    /// The load is another one, or behaves as if it were.
    pub fn forget(&mut self, setting: u32) {
        self.of.remove(&setting);
    }

    /// Forgets all but this one.
    pub fn keep(&mut self, setting: u32) {
        self.of.retain(|known, _| *known == setting);
    }

    /// Forgets what is too old.
    pub fn age(&mut self, now_ns: u64) {
        let is_new = |record: &Record| {
            record.stays.back().is_some_and(|stay| now_ns.saturating_sub(stay.until_ns) < FORGOTTEN_NS)
        };
        self.of.retain(|_, record| is_new(record));
    }

    /// The setting that did most, of those that are allowed.
    pub fn best(&self, noise: &Noise, allows: impl Fn(u32) -> bool) -> Option<(u32, Estimate)> {
        self.known(noise, allows).max_by(|(_, one), (_, other)| one.rate.total_cmp(&other.rate))
    }

    /// Whether a setting beyond the other one is known to do less than the present one.
    pub fn falls_beyond(&self, present: u32, other: u32, noise: &Noise) -> bool {
        let beyond = self.known(noise, |known| known > other).map(|(_, estimate)| estimate);
        let least = beyond.min_by(|one, other| one.rate.total_cmp(&other.rate));
        self.get(present, noise).zip(least).is_some_and(|(present, beyond)| {
            difference(beyond.rate, present.rate) > 2.0 * present.error.hypot(beyond.error)
        })
    }

    fn known(&self, noise: &Noise, allows: impl Fn(u32) -> bool) -> impl Iterator<Item = (u32, Estimate)> {
        let known =
            self.of.iter().filter(move |(setting, record)| record.nanoseconds() >= KNOWN_NS && allows(**setting));
        known.map(move |(setting, record)| (*setting, record.estimate(noise)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::noise::{WINDOW_MIN_NS, Windows};

    const SECOND: u64 = 1_000_000_000;

    fn window(work: u64) -> Change {
        Change { nanoseconds: SECOND, requests: work, work, ..Change::default() }
    }

    #[test]
    fn stays_at_a_setting_are_pooled_and_old_ones_weigh_less() {
        let (mut records, noise) = (Records::default(), Noise::default());
        records.add(8, &window(1000), true, SECOND);
        let one = records.get(8, &noise).unwrap();
        records.add(8, &window(2000), true, SECOND);
        let two = records.get(8, &noise).unwrap();
        assert!((two.rate - 1500.0).abs() < 1e-6 && (two.error - one.error / 2f64.sqrt()).abs() < 1e-9, "{two:?}");
        records.add(8, &window(3000), true, 41 * SECOND);
        let later = records.get(8, &noise).unwrap();
        assert!(later.rate > 2800.0 && later.error > two.error, "{later:?}");
    }

    #[test]
    fn a_long_stay_is_surer_than_several_short_ones() {
        let (mut records, mut noise) = (Records::default(), Noise::default());
        let mut windows = Windows::default();
        for number in 0..512 {
            let rate = if matches!(number % 4, 1 | 2) { 160.0 } else { 40.0 };
            windows.add(WINDOW_MIN_NS, rate, &mut noise);
        }
        let short = Change { nanoseconds: WINDOW_MIN_NS, ..window(1000) };
        for number in 0..4 {
            records.add(4, &short, true, SECOND);
            records.add(8, &short, number == 0, SECOND);
        }
        let [several, long] = [4, 8].map(|setting| records.get(setting, &noise).unwrap().error);
        assert!(long < several / 2.0, "{long} {several}");
    }

    #[test]
    fn the_best_setting_is_found_among_those_that_are_known() {
        let (mut records, noise) = (Records::default(), Noise::default());
        for (setting, work) in [(4, 100), (8, 300), (16, 200)] {
            records.add(setting, &window(work), true, SECOND);
        }
        assert_eq!(records.best(&noise, |_| true).unwrap().0, 8);
        assert_eq!(records.best(&noise, |setting| setting != 8).unwrap().0, 16);
        records.age(62 * SECOND);
        assert!(records.best(&noise, |_| true).is_none());
    }

    #[test]
    fn gains_and_losses_weigh_the_same() {
        assert!((difference(80.0, 120.0) - 0.4).abs() < 1e-9);
        assert_eq!(difference(80.0, 120.0), -difference(120.0, 80.0));
        assert_eq!(difference(0.0, 0.0), 0.0);
    }
}
