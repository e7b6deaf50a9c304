//! Which setting is compared with the present one, and what it must gain.

use super::{SECOND, Tuner};
use crate::{
    measurement::{Change, Measurement},
    records::difference,
    trial::OTHER_LOAD_ERRORS,
};

/// A smaller setting did so much more, before the rate fell, that the search returns to it.
pub(super) const WAS_BETTER: f64 = 0.15;
/// The same, though the rate may fall on.
pub(super) const CLEARLY_BETTER: f64 = 0.4;
/// The same, though the rate was not seen to fall.
pub(super) const VERY_MUCH_BETTER: f64 = 0.5;
/// So much smaller a setting is far away.
const FAR: u32 = 3;
/// A setting that did clearly less is not tried again for so long, ...
const KNOWN_NS: u64 = 10 * SECOND;
/// ... or for so long for each part of the rate that it lost: a trial of two seconds, with what
/// comes after it, costs 3% then.
const KNOWN_FOR_ALL_NS: f64 = 60e9;
/// After a fall of the rate a smaller setting must gain so much, and larger ones nothing.
const GAIN_AFTER_FALL: f64 = 0.05;
/// Processors that are busy for this share of their time have no time for more threads: these must
/// gain more.
const FULL_PROCESSORS: f64 = 0.95;
const GAIN_AT_FULL_PROCESSORS: f64 = 0.05;
/// What a smaller setting must gain if the present one limits nothing: requests would wait for it.
const GAIN_IF_NOT_LIMITED: f64 = 0.03;
/// With fewer requests under way than this, nothing smaller is tried for that.
const IN_FLIGHT_IF_NOT_LIMITED: f64 = 16.0;
/// A smaller setting that is preferred does so much less at most than the best one that is known:
/// many steps that cost a little each must not cost much.
const BELOW_BEST: f64 = 0.03;

impl Tuner {
    /// After the rate fell, and falls no more: a smaller setting that did more before. One that is
    /// far away, if there is one: what is near may not lead back. A fall that nobody saw, because
    /// the rate went up and down before, too, shows in that the other one did very much more.
    pub(super) fn did_more(&self, least: f64) -> Option<u32> {
        let least = if self.search.has_fallen() { least } else { VERY_MUCH_BETTER };
        let present = self.records.get(self.setting, &self.noise).filter(|_| !self.limits.prefers_larger())?;
        let best_of = |most: u32| {
            let (setting, best) = self.records.best(&self.noise, |known| known <= most)?;
            (difference(present.rate, best.rate) > least).then_some(setting)
        };
        best_of(self.setting / FAR).or_else(|| best_of(self.setting.saturating_sub(1)))
    }

    /// The largest setting, if it is to be tried now: requests wait, and it did not seem to be
    /// worse before.
    pub(super) fn largest(&self, recent: &Change, now_ns: u64) -> Option<u32> {
        let largest = self.limits.max;
        let is_possible = self.setting < largest && self.excluded.clamp(largest, now_ns) == largest;
        if !self.search.largest_is_open() || !is_possible || !recent.is_limited() {
            return None;
        }
        let [present, known] = [self.setting, largest].map(|setting| self.records.get(setting, &self.noise));
        let seems_worse = present
            .zip(known)
            .is_some_and(|(present, known)| difference(known.rate, present.rate) > present.error.hypot(known.error));
        (!seems_worse).then_some(largest)
    }

    /// The setting to compare with; none in the present direction if it is at its limit, or failed
    /// before, or cannot be better.
    pub(super) fn candidate(&self, measured: &Measurement, recent: &Change) -> Option<u32> {
        let factor = self.search.factor();
        let is_limited = recent.is_limited();
        let tried = if self.search.goes_up() {
            let more = (f64::from(self.setting) * factor).round() as u32;
            is_limited.then(|| more.max(self.setting.saturating_add(1)))?
        } else if !is_limited && recent.in_flight() < IN_FLIGHT_IF_NOT_LIMITED {
            return None;
        } else {
            let used = if is_limited { self.setting } else { self.setting.min(recent.in_flight().ceil() as u32) };
            let fewer = (f64::from(used) / factor).round() as u32;
            fewer.min(used.saturating_sub(1))
        };
        let tried = self.excluded.clamp(self.limits.clamp(tried), measured.now_ns);
        if tried == self.setting || (tried > self.setting) != self.search.goes_up() || self.search.has_failed(tried) {
            return None;
        }
        if self.is_known_to_be_worse(tried, measured.now_ns) {
            return None;
        }
        Some(tried)
    }

    /// Whether a setting did much less shortly before: another trial would cost as much again.
    fn is_known_to_be_worse(&self, tried: u32, now_ns: u64) -> bool {
        let [present, tried] = [self.setting, tried].map(|setting| self.records.get(setting, &self.noise));
        present.zip(tried).is_some_and(|(present, tried)| {
            let loss = difference(tried.rate, present.rate) - OTHER_LOAD_ERRORS * tried.error.hypot(present.error);
            loss > 0.0 && now_ns.saturating_sub(tried.at_ns) < self.known_ns(tried.rate / present.rate)
        })
    }

    /// For how long it is known that a setting does only this part of what the present one does.
    /// What a client loses is by chance what others gain.
    fn known_ns(&self, part: f64) -> u64 {
        let for_loss_ns = ((1.0 - part) * KNOWN_FOR_ALL_NS) as u64;
        if self.limits.prefers_larger() { KNOWN_NS } else { KNOWN_NS.max(for_loss_ns) }
    }

    /// What a setting must gain.
    pub(super) fn needed(&self, tried: u32, measured: &Measurement, is_limited: bool) -> f64 {
        let needed = self.limits.elasticity * (f64::from(tried) / f64::from(self.setting)).ln();
        let mut needed = if self.search.tries_largest() { needed.min(0.0) } else { needed };
        if measured.now_ns < self.fallen_until_ns && !self.limits.prefers_larger() {
            needed = if tried < self.setting { needed.max(GAIN_AFTER_FALL) } else { needed.min(0.0) };
        }
        if tried > self.setting && measured.processors.is_some_and(|busy| busy >= FULL_PROCESSORS) {
            needed = needed.max(GAIN_AT_FULL_PROCESSORS);
        }
        if !is_limited {
            needed = needed.max(GAIN_IF_NOT_LIMITED);
        }
        let present = self.records.get(self.setting, &self.noise);
        if let (Some(present), Some((_, best))) = (present, self.records.best(&self.noise, |_| true))
            && needed < 0.0
            && tried < self.setting
        {
            needed = needed.max(difference(present.rate, best.rate * (1.0 - BELOW_BEST)).min(0.0));
        }
        needed
    }
}
