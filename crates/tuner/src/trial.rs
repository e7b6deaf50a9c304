//! A trial: another setting for some time, then the present one again, and what is known of both is
//! compared.
//!
//! The evidence of earlier stays counts too ([`crate::records`]). What is clear and large is
//! decided during the first stay. What is small must be clear still when the present setting was
//! measured again: a load that grew or shrank meanwhile has counted for both then.

use crate::{
    measurement::Change,
    noise::{Noise, WINDOW_MIN_NS},
    records::{Records, difference},
};

/// Least time of a stay, and fewest windows, from which on it may decide.
const STAY_MIN_NS: u64 = 4 * WINDOW_MIN_NS;
const STAY_WINDOWS: u32 = 2;
/// Longest stay. With what a device's cache does to the rate, this is where longer means gain
/// little.
pub(crate) const STAY_MAX_NS: u64 = 32 * WINDOW_MIN_NS;
/// After so long in a stay, what seems to be worse is not tried any longer.
pub(crate) const FUTILE_NS: u64 = 16 * WINDOW_MIN_NS;
/// A difference is clear beyond so many standard errors.
const CLEAR: f64 = 2.0;
/// The same for less than [`FUTILE_NS`]: each window is another chance to be wrong, and there is
/// time.
const CLEAR_SOON: f64 = 3.0;
/// So large a difference from what is needed is believed without a look back.
const LARGE: f64 = 0.2;
/// A smaller difference is none.
const EQUAL: f64 = 0.015;
/// Looks back at most.
const RETURNS_MAX: u32 = 2;
/// The present setting does so much more or less than before that the load is another one.
pub(crate) const OTHER_LOAD: f64 = 0.25;
/// A trial did so much more, about twice as much, that the present setting cannot have come to it
/// by itself, ...
const HELPED_MUCH: f64 = 0.7;
/// ... even if it does so much more now than the other one.
const STILL_HELPED: f64 = 0.5;
/// If that lasts: devices pause.
const CHANGED_NS: u64 = 10 * WINDOW_MIN_NS;
pub(crate) const OTHER_LOAD_ERRORS: f64 = 4.0;

/// What a trial shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// The other setting gains at least what it must.
    Better,
    /// It does not.
    Worse,
    /// Neither is clear.
    Unclear,
    /// The load changed.
    Changed,
}

/// What comes after a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// Another window with the same setting.
    Stay,
    /// The other one of both settings.
    Turn,
    /// The trial is over.
    End(Verdict),
}

/// See the module documentation.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Trial {
    pub from: u32,
    pub tried: u32,
    /// Relative gain that the other setting must bring.
    needed: f64,
    /// It is taken only if it is better.
    wants_proof: bool,
    /// The present setting's rate fell some time after it was taken, and the other one is what was
    /// there before, or nearer to it: no look back is needed, which might find a rate that is good
    /// for some seconds again.
    pub is_return: bool,
    /// A larger setting was left: what seems to be better may fall, too, and gets the longest stay.
    pub is_doubtful: bool,
    /// The rate with the present setting rises by itself, because of a return.
    pub is_recovering: bool,
    /// The other setting is far away: which one is better shows at once, or does not matter yet. No
    /// look back.
    pub is_far: bool,
    /// The other setting is the largest one, which is what there would be without the tuner: the
    /// first time it is not given up for what is lost in its first moments.
    pub is_first_largest: bool,
    /// The present setting is the largest one: what seems to be a little better than it may be so
    /// because of a bad moment, so the look back gets the longest stay.
    pub leaves_largest: bool,
    has_returned: bool,
    /// Looks back.
    returns: u32,
    /// Of the present stay, together.
    stay: Change,
    windows: u32,
    /// In all.
    nanoseconds: u64,
    tried_ns: u64,
    /// What the last stay at the other setting measured.
    other: Change,
    /// Rate of the present setting before the trial, and its error.
    before: (f64, f64),
    /// How long it was measured.
    before_ns: u64,
}

impl Trial {
    /// The present setting has a record.
    pub fn new(
        (from, tried): (u32, u32),
        (needed, wants_proof, is_return): (f64, bool, bool),
        records: &Records,
        noise: &Noise,
    ) -> Self {
        assert_ne!(from, tried, "a setting is compared with another one");
        let present = records.get(from, noise);
        let before = present.map_or((0.0, f64::INFINITY), |record| (record.rate, record.error));
        let before_ns = present.map_or(0, |record| record.nanoseconds);
        let stay = Change::default();
        Self {
            from,
            tried,
            needed,
            wants_proof,
            is_return,
            is_doubtful: false,
            is_recovering: false,
            is_far: false,
            is_first_largest: false,
            leaves_largest: false,
            has_returned: false,
            returns: 0,
            stay,
            windows: 0,
            nanoseconds: 0,
            tried_ns: 0,
            other: Change::default(),
            before,
            before_ns,
        }
    }

    /// The setting of the present stay.
    pub fn setting(&self) -> u32 {
        if self.has_returned { self.from } else { self.tried }
    }

    /// What the present stay has measured.
    pub fn stay(&self) -> &Change {
        &self.stay
    }

    /// How long the other setting was measured.
    pub fn tried_ns(&self) -> u64 {
        self.tried_ns
    }

    /// How long windows of both settings were in all.
    pub fn nanoseconds(&self) -> u64 {
        self.nanoseconds
    }

    /// Relative gain of the other setting, and its standard error.
    pub fn gain(&self, records: &Records, noise: &Noise) -> (f64, f64) {
        match (records.get(self.from, noise), records.get(self.tried, noise)) {
            (Some(from), Some(tried)) => {
                let error = from.error.max(self.unexplained(noise) / 2.0);
                (difference(from.rate, tried.rate), error.hypot(tried.error))
            }
            _ => (0.0, f64::INFINITY),
        }
    }

    /// Relative difference of the rates with the present setting, before the trial and now, and its
    /// standard error.
    fn change_of_present(&self, noise: &Noise) -> (f64, f64) {
        let (rate, error) = self.before;
        (difference(rate, self.stay.rate()).abs(), error.hypot(self.stay.error(noise)))
    }

    /// The same, if it is more than noise: the present setting is known no better than that, as
    /// with pauses of a device that hit it once.
    fn unexplained(&self, noise: &Noise) -> f64 {
        if !self.has_returned || self.windows == 0 {
            return 0.0;
        }
        let (change, error) = self.change_of_present(noise);
        if change > CLEAR * error { change } else { 0.0 }
    }

    /// Whether the other setting seems to gain what it must, if it lost or gained so many errors.
    pub fn seems_better(&self, errors: f64, records: &Records, noise: &Noise) -> bool {
        let (gain, error) = self.gain(records, noise);
        gain + errors * error > self.needed
    }

    /// A window, which the records contain already.
    pub fn record(&mut self, change: &Change, records: &Records, noise: &Noise) -> Next {
        self.stay = self.stay.and(change);
        self.windows += 1;
        self.nanoseconds += change.nanoseconds;
        self.tried_ns += if self.has_returned { 0 } else { change.nanoseconds };
        if self.windows < STAY_WINDOWS || self.stay.nanoseconds < STAY_MIN_NS {
            return Next::Stay;
        }
        if self.has_returned && self.has_changed(noise) {
            let is_long = self.stay.nanoseconds >= CHANGED_NS;
            let verdict = if self.has_helped() { Verdict::Better } else { Verdict::Changed };
            return if is_long { Next::End(verdict) } else { Next::Stay };
        }
        let (gain, error) = self.gain(records, noise);
        let beyond = gain - self.needed;
        let verdict = if beyond > 0.0 { Verdict::Better } else { Verdict::Worse };
        let is_soon = self.stay.nanoseconds < FUTILE_NS;
        let is_longest = self.stay.nanoseconds >= STAY_MAX_NS;
        let is_hasty = match (verdict, self.has_returned) {
            (Verdict::Better, false) => self.is_doubtful && !is_longest,
            (Verdict::Better, true) => self.leaves_largest && beyond < LARGE && !is_longest,
            (_, false) => self.is_first_largest && is_soon,
            (_, true) => false,
        };
        if is_hasty {
            return Next::Stay;
        }
        let is_futile = self.is_futile(beyond, error);
        let is_clear = beyond.abs() > if is_soon { CLEAR_SOON } else { CLEAR } * error;
        let is_equal = beyond.abs() + CLEAR * error < EQUAL;
        let is_long = is_equal || is_longest;
        if self.is_far && !self.has_returned && (is_clear || is_futile || is_long) {
            return Next::End(if is_clear { verdict } else { Verdict::Unclear });
        }
        match (is_clear || is_futile, self.has_returned) {
            (true, true) => Next::End(verdict),
            (true, false) if is_clear && self.is_believed(beyond, noise) => Next::End(verdict),
            (true, false) if is_futile && !self.is_open(noise) => Next::End(verdict),
            (true, false) => self.turn(),
            (false, false) if is_long => self.turn(),
            (false, true) if is_long && self.is_worth_more(beyond, error) => self.turn(),
            (false, true) if is_long => Next::End(Verdict::Unclear),
            (false, _) => Next::Stay,
        }
    }

    /// Whether so clear a difference from what is needed is believed without a look back. A setting
    /// that is smaller must be better twice: a pause of the device may have hit the present one.
    /// One that is larger is not worse only because the present one had good luck before.
    fn is_believed(&self, beyond: f64, noise: &Noise) -> bool {
        let is_worse = beyond < 0.0 && !self.is_open(noise);
        self.is_return || (beyond.abs() > LARGE && (is_worse || (beyond > 0.0 && self.tried > self.from)))
    }

    /// Whether the other setting seems to be worse after some time: the present one stays then
    /// anyway, unless the other one is preferred.
    fn is_futile(&self, beyond: f64, error: f64) -> bool {
        self.stay.nanoseconds >= FUTILE_NS && self.wants_proof && beyond < -error
    }

    /// Whether what seems to be lost with a larger setting may have been good luck of the present
    /// one before the trial, which is known less well.
    fn is_open(&self, noise: &Noise) -> bool {
        self.tried > self.from && self.before.1 > self.stay.error(noise)
    }

    /// Whether the rate with the present setting fell during the trial.
    pub fn present_fell(&self, noise: &Noise) -> bool {
        let (change, error) = self.change_of_present(noise);
        self.has_returned && self.stay.rate() < self.before.0 && change > CLEAR_SOON * error
    }

    /// Whether the other setting seems to be better, but not clearly, and has not been measured
    /// often: this is where a search that rises slowly would get stuck.
    fn is_worth_more(&self, beyond: f64, error: f64) -> bool {
        self.tried > self.from && self.returns < RETURNS_MAX && beyond > EQUAL && beyond < error
    }

    /// Whether a smaller setting did much more than the present one before, and this one now does
    /// no more than that: it is the trial that made it better, for a while, as with streams that
    /// came together. If it did less than half, it may do somewhat more now: it will not last. What
    /// was known of the present one for moments only was the beginning of a load.
    fn has_helped(&self) -> bool {
        let gained = difference(self.before.0, self.other.rate());
        let is_meant = self.tried < self.from && !self.is_recovering && self.before_ns >= FUTILE_NS;
        let most = if gained > HELPED_MUCH { STILL_HELPED } else { LARGE };
        is_meant && gained > OTHER_LOAD && difference(self.other.rate(), self.stay.rate()) < most
    }

    fn turn(&mut self) -> Next {
        if !self.has_returned {
            self.other = self.stay;
        }
        self.has_returned = !self.has_returned;
        self.returns += u32::from(self.has_returned);
        (self.stay, self.windows) = (Change::default(), 0);
        Next::Turn
    }

    /// Whether the rate with the present setting is that of another load.
    fn has_changed(&self, noise: &Noise) -> bool {
        let (change, error) = self.change_of_present(noise);
        change > OTHER_LOAD.max(OTHER_LOAD_ERRORS * error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::noise::Windows;

    /// Windows of 100 ms with 1000 requests.
    fn verdict(needed: f64, rate: impl Fn(u32, u32) -> f64) -> (Verdict, u32) {
        verdict_of((4, 8), needed, |_| {}, rate)
    }

    fn verdict_of(
        (from, tried): (u32, u32),
        needed: f64,
        prepare: impl FnOnce(&mut Trial),
        rate: impl Fn(u32, u32) -> f64,
    ) -> (Verdict, u32) {
        let (mut records, mut noise, mut now) = (Records::default(), Noise::default(), 0);
        let mut windows = Windows::default();
        (0..64).for_each(|_| windows.add(WINDOW_MIN_NS, 100.0, &mut noise));
        let window = |rate: f64| Change {
            nanoseconds: WINDOW_MIN_NS,
            requests: 1000,
            work: (rate * 1000.0) as u64,
            ..Change::default()
        };
        (0..32).for_each(|number| records.add(from, &window(rate(0, from)), number == 0, WINDOW_MIN_NS));
        let mut trial = Trial::new((from, tried), (needed, true, false), &records, &noise);
        prepare(&mut trial);
        for count in 1.. {
            now += WINDOW_MIN_NS;
            let change = window(rate(count, trial.setting()));
            records.add(trial.setting(), &change, trial.stay().nanoseconds == 0, now);
            if let Next::End(verdict) = trial.record(&change, &records, &noise) {
                return (verdict, count);
            }
        }
        unreachable!("a trial ends")
    }

    #[test]
    fn a_large_difference_is_seen_in_one_stay() {
        assert_eq!(verdict(0.0, |_, setting| f64::from(setting)), (Verdict::Better, 4));
        assert_eq!(verdict(0.0, |_, setting| 100.0 / f64::from(setting)), (Verdict::Worse, 4));
    }

    #[test]
    fn a_small_difference_must_last_until_the_present_setting_was_measured_again() {
        let (found, windows) = verdict(0.0, |_, setting| 100.0 + 2.0 * f64::from(setting));
        assert!(found == Verdict::Better && windows >= 8, "{found:?} after {windows}");
        let grows = |count: u32, _| 100.0 + 0.5 * f64::from(count);
        assert_ne!(verdict(0.02, grows).0, Verdict::Better);
    }

    #[test]
    fn equal_rates_are_unclear_or_decided_by_what_is_needed() {
        assert_eq!(verdict(0.0, |_, _| 100.0), (Verdict::Unclear, 8));
        assert_eq!(verdict(0.15, |_, _| 100.0).0, Verdict::Worse);
        assert_eq!(verdict(-0.15, |_, _| 100.0).0, Verdict::Better);
    }

    #[test]
    fn the_largest_setting_is_not_left_for_a_bad_moment() {
        let found = |leaves_largest| {
            let looked_back = std::cell::Cell::new(0);
            // It does less for the first half of a long look back, and more for the second one.
            let rate = |count: u32, setting: u32| {
                if setting == 4 || count == 0 {
                    return 100.0;
                }
                looked_back.set(looked_back.get() + 1);
                if looked_back.get() <= 16 { 80.0 } else { 120.0 }
            };
            let prepare = |trial: &mut Trial| {
                trial.leaves_largest = leaves_largest;
                // Known badly, so that it can be wrong.
                trial.before = (100.0, 1.0);
            };
            verdict_of((8, 4), 0.0, prepare, rate)
        };
        assert_eq!(found(false).0, Verdict::Better);
        assert_ne!(found(true).0, Verdict::Better);
        assert!(found(true).1 > found(false).1);
    }

    #[test]
    fn a_smaller_setting_that_helped_is_taken_unless_the_load_was_beginning() {
        let found = |before_ns| {
            let rate = |count: u32, _| if count == 0 { 40.0 } else { 100.0 };
            let prepare = |trial: &mut Trial| trial.before_ns = before_ns;
            verdict_of((8, 4), 0.0, prepare, rate).0
        };
        assert_eq!(found(FUTILE_NS), Verdict::Better);
        assert_eq!(found(STAY_MIN_NS), Verdict::Changed);
    }

    #[test]
    fn another_load_ends_the_trial() {
        let halves = |count, _| if count < 2 { 100.0 } else { 40.0 };
        assert_eq!(verdict(-0.7, halves).0, Verdict::Changed);
    }
}
