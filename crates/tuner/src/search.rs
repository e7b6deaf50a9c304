//! The search: which settings are tried, in which order.
//!
//! The first trial is with the largest setting: it is what there would be without the tuner, and
//! where the rate has a plateau, no step of some factor shows what is beyond that. If the present
//! setting limits nothing at that moment, it waits until it does, for some seconds at most before
//! anything else is tried. The next ones are with four times or a quarter of the setting. After a
//! success the next one goes in the same direction; after failures in both directions the factor
//! becomes smaller. When the smallest one has failed in both directions the round is over. Later
//! rounds, after a rest, begin with the largest setting again, unless it seemed to be worse or a
//! larger one was left, and then nearby.

use std::collections::BTreeSet;

const SECOND: u64 = 1_000_000_000;

/// Ratios of the settings that are compared, one after the other.
const FACTORS: [f64; 5] = [4.0, 2.0, 1.4, 1.2, 1.1];
/// Of these, the first one of later rounds: trials must not make means over some seconds differ. A
/// load that wants much more or much less shows that here, too.
const FACTOR_LATER: usize = 2;

/// So often the first trial is put off if nothing waits.
const POSTPONED_MAX: u32 = 3;

/// Trials cost this part of the rate at most: with small steps of the first round, ...
const COST_NEARBY: f64 = 0.1;
/// ... with the largest setting, which is what there would be without the tuner, so that the first
/// round is over soon and trials of what does much less are, too, ...
const COST_LARGEST: f64 = 0.03;
/// ... and later: less than what a search may cost in all.
const COST_LATER: f64 = 0.02;

/// Rests between rounds. A load for which another setting is better, but which shows no other rate
/// with this one, is found after the rest.
const REST_MIN_NS: u64 = 4 * SECOND;
const REST_MAX_NS: u64 = 10 * SECOND;

/// How long settings are left out that did less after they had won a trial: doubles each time.
const EXCLUDED_NS: u64 = 60 * SECOND;
const EXCLUDED_MAX_NS: u64 = 3600 * SECOND;

/// So long after a return the rate may rise because of it.
const RECOVERED_NS: u64 = 10 * SECOND;

/// See the module documentation.
#[derive(Clone, Debug)]
pub(crate) struct Search {
    /// The largest setting was not tried in this round.
    largest_is_open: bool,
    /// The present trial is with the largest setting.
    tries_largest: bool,
    /// How often the first trial was put off.
    postponed: u32,
    /// Of [`FACTORS`].
    factor: usize,
    up: bool,
    /// The first round is over.
    is_later: bool,
    has_fallen: bool,
    /// A larger setting was left.
    has_come_down: bool,
    /// The other direction has failed with this factor, or was where the search came from.
    other_failed: bool,
    /// Settings that were no better than the present one in this round.
    failed: BTreeSet<u32>,
    rest_ns: u64,
}

impl Search {
    /// `has_fallen`: the rate with the present setting fell some time after it was taken. Then
    /// smaller ones are tried first.
    pub fn new(has_fallen: bool) -> Self {
        Self {
            largest_is_open: !has_fallen,
            tries_largest: false,
            postponed: 0,
            factor: 0,
            up: !has_fallen,
            is_later: false,
            has_fallen,
            has_come_down: false,
            other_failed: false,
            failed: BTreeSet::new(),
            rest_ns: REST_MIN_NS,
        }
    }

    pub fn has_fallen(&self) -> bool {
        self.has_fallen
    }

    pub fn is_later(&self) -> bool {
        self.is_later
    }

    /// The part of the rate that trials may cost; any, until what is best is nearby. `is_largest`:
    /// the present setting is the largest one.
    pub fn cost(&self, is_largest: bool) -> Option<f64> {
        match (self.is_later, is_largest) {
            (true, _) => Some(COST_LATER),
            (false, true) => Some(COST_LARGEST),
            (false, false) => (self.factor >= FACTOR_LATER).then_some(COST_NEARBY),
        }
    }

    pub fn factor(&self) -> f64 {
        FACTORS[self.factor]
    }

    /// Whether the largest setting is to be tried, wherever the present one is.
    pub fn largest_is_open(&self) -> bool {
        self.largest_is_open
    }

    /// Whether to wait before the first trial: something may wait soon, and then it is with the
    /// largest setting.
    pub fn postpones(&mut self) -> bool {
        let is_first = self.largest_is_open && !self.is_later && self.failed.is_empty();
        self.postponed += u32::from(is_first);
        is_first && self.postponed <= POSTPONED_MAX
    }

    /// The next trial is with the largest setting.
    pub fn try_largest(&mut self) {
        self.largest_is_open = false;
        self.tries_largest = true;
    }

    /// The present trial shows nothing.
    pub fn forget_trial(&mut self) {
        self.largest_is_open |= std::mem::take(&mut self.tries_largest);
    }

    /// Whether the present trial is with the largest setting.
    pub fn tries_largest(&self) -> bool {
        self.tries_largest
    }

    pub fn goes_up(&self) -> bool {
        self.up
    }

    pub fn has_failed(&self, setting: u32) -> bool {
        self.failed.contains(&setting)
    }

    /// This setting is no better.
    pub fn fails(&mut self, setting: u32) {
        self.failed.insert(setting);
    }

    pub fn has_come_down(&self) -> bool {
        self.has_come_down
    }

    /// The setting was changed: the next trial goes in the same direction, and farther.
    pub fn succeeded(&mut self, from: u32, to: u32) {
        self.has_come_down |= to < from;
        self.largest_is_open &= to > from;
        // What is between is open if the setting became the largest one.
        self.other_failed = !self.tries_largest;
        self.factor = if self.tries_largest { 0 } else { self.factor.saturating_sub(1) };
        self.up &= !self.tries_largest;
        self.tries_largest = false;
        self.is_later = false;
        self.has_fallen = false;
        self.failed.clear();
        self.failed.insert(from);
        self.rest_ns = REST_MIN_NS;
    }

    /// The present direction failed, or the largest setting. `false`: the round is over.
    /// `is_largest`: the present setting is the largest one; then somewhat smaller ones cannot be
    /// much better than it if those that are smaller by [`FACTOR_LATER`] are not, and what there
    /// would be without the tuner rests long.
    pub fn go_on(&mut self, is_largest: bool) -> bool {
        if std::mem::take(&mut self.tries_largest) {
            return true;
        }
        self.up = !self.up;
        self.other_failed = !self.other_failed;
        if self.other_failed {
            return true;
        }
        self.factor += 1;
        if self.factor < if is_largest { FACTOR_LATER + 1 } else { FACTORS.len() } {
            return true;
        }
        self.factor = FACTOR_LATER;
        self.largest_is_open = !self.has_come_down;
        self.is_later = true;
        self.has_fallen = false;
        self.failed.clear();
        if is_largest {
            self.rest_ns = REST_MAX_NS;
        }
        false
    }

    /// How long the setting rests after a round, which is longer each time.
    pub fn rest(&mut self) -> u64 {
        let rest_ns = self.rest_ns;
        self.rest_ns = (2 * rest_ns).min(REST_MAX_NS);
        rest_ns
    }
}

/// Settings that are left out for some time, because the rate fell some seconds after they had been
/// taken: a short trial would be in their favour again.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Excluded {
    above: u32,
    since_ns: u64,
    until_ns: u64,
    next_ns: u64,
}

impl Excluded {
    pub fn none() -> Self {
        Self { above: u32::MAX, since_ns: 0, until_ns: 0, next_ns: EXCLUDED_NS }
    }

    /// The search returned to `to`, from `from`: all that is nearer to `from`, and beyond, is left
    /// out.
    pub fn returned(&mut self, from: u32, to: u32, now_ns: u64) {
        self.above = (f64::from(from) * f64::from(to)).sqrt().round() as u32;
        (self.since_ns, self.until_ns) = (now_ns, now_ns + self.next_ns);
        self.next_ns = (2 * self.next_ns).min(EXCLUDED_MAX_NS);
    }

    /// Whether the rate may still rise because of a return.
    pub fn is_recovering(&self, now_ns: u64) -> bool {
        self.until_ns > 0 && now_ns.saturating_sub(self.since_ns) <= RECOVERED_NS
    }

    /// The rate has risen: if this does not come from the return, the load is another one.
    pub fn lift(&mut self, now_ns: u64) {
        if !self.is_recovering(now_ns) {
            self.until_ns = now_ns;
        }
    }

    /// Brings a setting within what is not left out.
    pub fn clamp(&self, setting: u32, now_ns: u64) -> u32 {
        if now_ns < self.until_ns { setting.min(self.above) } else { setting }
    }
}
