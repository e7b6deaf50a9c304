//! The search: which settings are compared, and when.
//!
//! Trials begin with twice or half the setting. After a success the next one goes in the same
//! direction; after failures in both directions the factor becomes smaller. When the smallest one
//! has failed in both directions the setting rests, for longer each time. A load that changes
//! begins the search again.

use std::collections::{BTreeSet, VecDeque};

use crate::{
    decision::{Decision, LOG_DECISIONS_MAX, Outcome},
    limits::Limits,
    measurement::{Change, Measurement},
    noise::Noise,
    trial::{Trial, Verdict},
};

const MS: u64 = 1_000_000;
const SECOND: u64 = 1000 * MS;

/// Ratios of the settings that are compared, one after the other.
const FACTORS: [f64; 4] = [2.0, 1.4, 1.2, 1.05];
/// Of these, the first one of later rounds if windows are long: trials must not make means over
/// some seconds differ.
const FACTOR_OF_LONG_WINDOWS: usize = 2;
const LONG_WINDOW_NS: u64 = 200 * MS;
/// Requests that a window should count: a rate from fewer is mostly chance.
const WINDOW_REQUESTS: f64 = 32.0;
/// Fewest requests of a window.
const WINDOW_REQUESTS_MIN: u64 = 8;
const WINDOW_MIN_NS: u64 = 100 * MS;
const WINDOW_MAX_NS: u64 = SECOND;
/// A window with too few requests goes on for up to so many of the longest windows.
const WINDOWS_EXTENDED: u64 = 4;
/// A change of the setting shows after the requests that were under way: some latencies.
const SETTLE_LATENCIES: u64 = 3;
const SETTLE_MIN_NS: u64 = 5 * MS;
const SETTLE_MAX_NS: u64 = 500 * MS;
/// How often the rate is looked at while the setting rests, and the most that a look covers.
const LOOK_NS: u64 = 250 * MS;
const LOOK_MAX_NS: u64 = 4 * SECOND;
/// Rests after a search without success. A load for which another setting is better, but which
/// shows no other rate with this one, is found after the rest.
const REST_MIN_NS: u64 = 4 * SECOND;
const REST_MAX_NS: u64 = 10 * SECOND;
/// Windows in a rest: trials take little of the time.
const REST_WINDOWS: u64 = 20;
/// The load is another one if the rate differs by so much, twice in a row.
const OTHER_LOAD: f64 = 0.25;
const OTHER_LOAD_ERRORS: f64 = 6.0;
/// Weight of a look in the usual rate.
const LOOK_WEIGHT: f64 = 0.2;
/// Processors that are busy for this share of their time have no time for more threads: these must
/// gain more.
const FULL_PROCESSORS: f64 = 0.95;
const GAIN_AT_FULL_PROCESSORS: f64 = 0.05;
/// What a smaller setting must gain if the present one limits nothing: requests would wait that do
/// not wait now.
const GAIN_IF_NOT_LIMITED: f64 = 0.03;
/// By what factor it is smaller at most than what is in use, for the same reason.
const FACTOR_IF_NOT_LIMITED: f64 = 1.2;
/// With fewer requests under way than this, one less is too large a step for that.
const IN_FLIGHT_IF_NOT_LIMITED: f64 = 4.0;

/// What to do after a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    /// The setting from now on.
    pub setting: u32,
    /// When to make the next step.
    pub next_ns: u64,
}

/// See the module documentation.
#[derive(Clone, Debug)]
pub struct Tuner {
    limits: Limits,
    /// The setting outside of trials.
    setting: u32,
    search: Search,
    phase: Phase,
    noise: Noise,
    log: VecDeque<Decision>,
}

#[derive(Clone, Debug)]
enum Phase {
    /// The setting rests. `since`: the last look.
    Resting { since: Measurement, until_ns: u64, usual: Option<f64>, odd_looks: u32 },
    /// The setting of a trial's next window has begun.
    Settling(Comparison),
    /// A window has begun with this measurement.
    Measuring(Comparison, Measurement),
}

/// A trial under way.
#[derive(Clone, Debug)]
struct Comparison {
    trial: Trial,
    window_ns: u64,
    settle_ns: u64,
    /// What the last window with the present setting measured.
    present: Option<Change>,
}

/// Where the search is.
#[derive(Clone, Debug)]
struct Search {
    /// Of [`FACTORS`].
    factor: usize,
    up: bool,
    /// The other direction has failed with this factor, or was where the search came from.
    other_failed: bool,
    /// Settings that were no better than the present one in this round.
    failed: BTreeSet<u32>,
    rest_ns: u64,
    /// Of the last trial.
    window_ns: u64,
}

impl Search {
    fn new() -> Self {
        Self {
            factor: 0,
            up: true,
            other_failed: false,
            failed: BTreeSet::new(),
            rest_ns: REST_MIN_NS,
            window_ns: WINDOW_MIN_NS,
        }
    }

    /// The setting was changed: the next trial goes in the same direction, and farther.
    fn succeeded(&mut self) {
        self.factor = self.factor.saturating_sub(1);
        self.other_failed = true;
        self.failed.clear();
        self.rest_ns = REST_MIN_NS;
    }

    /// The present direction failed. `false`: the round is over.
    fn go_on(&mut self) -> bool {
        self.up = !self.up;
        self.other_failed = !self.other_failed;
        if self.other_failed {
            return true;
        }
        self.factor += 1;
        if self.factor < FACTORS.len() {
            return true;
        }
        self.factor = if self.window_ns > LONG_WINDOW_NS { FACTOR_OF_LONG_WINDOWS } else { 0 };
        false
    }
}

impl Tuner {
    /// A tuner that begins with this setting.
    pub fn new(limits: Limits, setting: u32, start: &Measurement) -> Self {
        Self {
            limits,
            setting: limits.clamp(setting),
            search: Search::new(),
            phase: Phase::Resting { since: *start, until_ns: start.now_ns, usual: None, odd_looks: 0 },
            noise: Noise::new(),
            log: VecDeque::new(),
        }
    }

    /// The setting outside of trials.
    pub fn setting(&self) -> u32 {
        self.setting
    }

    /// The last decisions, the newest last.
    pub fn log(&self) -> impl Iterator<Item = &Decision> {
        self.log.iter()
    }

    /// Takes what was measured up to now. A step that comes early or late does no harm beyond a
    /// shorter or longer window.
    pub fn step(&mut self, measured: &Measurement) -> Step {
        let resting = |until_ns| Phase::Resting { since: *measured, until_ns, usual: None, odd_looks: 0 };
        match std::mem::replace(&mut self.phase, resting(measured.now_ns)) {
            Phase::Resting { since, until_ns, usual, odd_looks } => {
                self.look(measured, &since, until_ns, (usual, odd_looks))
            }
            Phase::Settling(comparison) => self.begin_window(comparison, measured),
            Phase::Measuring(comparison, start) => self.end_window(comparison, &start, measured),
        }
    }

    /// The setting rests: is it time for a trial?
    fn look(
        &mut self,
        measured: &Measurement,
        since: &Measurement,
        until_ns: u64,
        (usual, odd_looks): (Option<f64>, u32),
    ) -> Step {
        let (now_ns, change) = (measured.now_ns, Change::between(since, measured));
        if change.requests < WINDOW_REQUESTS_MIN {
            // Slow requests are waited for; without any, what was usual stays.
            let is_over = change.nanoseconds > LOOK_MAX_NS;
            if is_over && measured.waiting > 0 && self.setting < self.limits.max {
                return self.take_more(measured, &change);
            }
            let since = if is_over { *measured } else { *since };
            return self.rest(Phase::Resting { since, until_ns, usual, odd_looks }, now_ns);
        }
        let rate = change.rate();
        let difference = usual.map_or(0.0, |usual| 2.0 * (rate - usual).abs() / (rate + usual).max(f64::MIN_POSITIVE));
        let is_odd = difference > OTHER_LOAD.max(OTHER_LOAD_ERRORS * self.noise.of_pairs(1, change.requests));
        if is_odd && odd_looks == 0 {
            return self.rest(Phase::Resting { since: *measured, until_ns, usual, odd_looks: 1 }, now_ns);
        }
        let is_other_load = is_odd && odd_looks > 0;
        if is_other_load {
            self.search = Search { window_ns: self.search.window_ns, ..Search::new() };
        }
        if now_ns >= until_ns || is_other_load {
            return self.begin_trial(measured, change);
        }
        let usual = usual.map_or(rate, |usual| usual + LOOK_WEIGHT * (rate - usual));
        self.rest(Phase::Resting { since: *measured, until_ns, usual: Some(usual), odd_looks: 0 }, now_ns)
    }

    /// Requests wait, but too few end to compare anything: with a larger setting more of them end,
    /// unless nothing does.
    fn take_more(&mut self, measured: &Measurement, change: &Change) -> Step {
        let from = self.setting;
        self.setting = self.limits.clamp(from.saturating_mul(2));
        self.search = Search { window_ns: self.search.window_ns, ..Search::new() };
        self.add(Decision {
            now_ns: measured.now_ns,
            from,
            tried: self.setting,
            setting: self.setting,
            outcome: Outcome::TooFew,
            gain: 0.0,
            noise: 0.0,
            pairs: 0,
            rate: change.rate(),
            latency_ns: change.latency_ns(),
            waiting: measured.waiting,
        });
        let until_ns = measured.now_ns;
        self.rest(Phase::Resting { since: *measured, until_ns, usual: None, odd_looks: 0 }, until_ns)
    }

    fn rest(&mut self, phase: Phase, now_ns: u64) -> Step {
        self.phase = phase;
        Step { setting: self.setting, next_ns: now_ns + LOOK_NS }
    }

    /// Rests until the next round.
    fn rest_after_round(&mut self, measured: &Measurement) -> Step {
        let until_ns = measured.now_ns + self.search.rest_ns.max(REST_WINDOWS * self.search.window_ns);
        self.search.rest_ns = (2 * self.search.rest_ns).min(REST_MAX_NS);
        self.search.failed.clear();
        self.rest(Phase::Resting { since: *measured, until_ns, usual: None, odd_looks: 0 }, measured.now_ns)
    }

    /// Begins the next trial, if there is another setting to compare with.
    fn begin_trial(&mut self, measured: &Measurement, recent: Change) -> Step {
        let candidate = loop {
            if let Some(candidate) = self.candidate(measured, &recent) {
                break candidate;
            }
            if !self.search.go_on() {
                return self.rest_after_round(measured);
            }
        };
        let (tried, needed) = candidate;
        let latency_ns = recent.latency_ns();
        let window_ns = (WINDOW_REQUESTS * 1e9 / recent.requests_per_second().max(1e-3)) as u64;
        let window_ns = window_ns.max(SETTLE_LATENCIES * latency_ns).clamp(WINDOW_MIN_NS, WINDOW_MAX_NS);
        self.search.window_ns = window_ns;
        let comparison = Comparison {
            trial: Trial::new((self.setting, tried), needed, self.noise),
            window_ns,
            settle_ns: (SETTLE_LATENCIES * latency_ns).clamp(SETTLE_MIN_NS, SETTLE_MAX_NS),
            present: None,
        };
        self.begin_window(comparison, measured)
    }

    /// The setting to compare with, and what it must gain; none in the present direction if it is
    /// at its limit, or failed before, or cannot be better.
    fn candidate(&self, measured: &Measurement, recent: &Change) -> Option<(u32, f64)> {
        let factor = FACTORS[self.search.factor];
        let is_limited = recent.is_limited();
        let tried = if self.search.up {
            let more = (f64::from(self.setting) * factor).round() as u32;
            is_limited.then(|| self.limits.clamp(more.max(self.setting.saturating_add(1))))?
        } else if !is_limited && (factor > FACTOR_IF_NOT_LIMITED || recent.in_flight() < IN_FLIGHT_IF_NOT_LIMITED) {
            return None;
        } else {
            let used = if is_limited { self.setting } else { self.setting.min(recent.in_flight().ceil() as u32) };
            let fewer = (f64::from(used) / factor).round() as u32;
            self.limits.clamp(fewer.min(used.saturating_sub(1)))
        };
        if tried == self.setting || self.search.failed.contains(&tried) {
            return None;
        }
        let mut needed = self.limits.elasticity * (f64::from(tried) / f64::from(self.setting)).ln();
        if tried > self.setting && measured.processors.is_some_and(|busy| busy >= FULL_PROCESSORS) {
            needed = needed.max(GAIN_AT_FULL_PROCESSORS);
        }
        if !is_limited {
            needed = needed.max(GAIN_IF_NOT_LIMITED);
        }
        Some((tried, needed))
    }

    fn begin_window(&mut self, comparison: Comparison, measured: &Measurement) -> Step {
        let (setting, next_ns) = (comparison.trial.setting(), measured.now_ns + comparison.window_ns);
        self.phase = Phase::Measuring(comparison, *measured);
        Step { setting, next_ns }
    }

    fn end_window(&mut self, mut comparison: Comparison, start: &Measurement, measured: &Measurement) -> Step {
        let change = Change::between(start, measured);
        if change.requests < WINDOW_REQUESTS_MIN {
            if change.nanoseconds < WINDOWS_EXTENDED * WINDOW_MAX_NS {
                let (setting, next_ns) = (comparison.trial.setting(), measured.now_ns + comparison.window_ns);
                self.phase = Phase::Measuring(comparison, *start);
                return Step { setting, next_ns };
            }
            return self.abandon(&comparison, measured);
        }
        if comparison.trial.setting() == comparison.trial.from {
            comparison.present = Some(change);
        }
        match comparison.trial.record(change.rate(), change.requests, &mut self.noise) {
            None if comparison.trial.turns() => {
                let (setting, next_ns) = (comparison.trial.setting(), measured.now_ns + comparison.settle_ns);
                self.phase = Phase::Settling(comparison);
                Step { setting, next_ns }
            }
            None => self.begin_window(comparison, measured),
            Some(Verdict::Changed) => self.abandon(&comparison, measured),
            Some(verdict) => self.conclude(&comparison, verdict, measured),
        }
    }

    /// The load changed during a trial: the search begins again after a rest.
    fn abandon(&mut self, comparison: &Comparison, measured: &Measurement) -> Step {
        self.note(comparison, Outcome::Abandoned, measured);
        let Search { rest_ns, window_ns, .. } = self.search;
        self.search = Search { rest_ns, window_ns, ..Search::new() };
        let until_ns = measured.now_ns + SECOND;
        self.rest(Phase::Resting { since: *measured, until_ns, usual: None, odd_looks: 0 }, measured.now_ns)
    }

    fn conclude(&mut self, comparison: &Comparison, verdict: Verdict, measured: &Measurement) -> Step {
        let Trial { from, tried, .. } = comparison.trial;
        let is_preferred = self.limits.prefers_larger() && tried > from && comparison.trial.seems_better();
        let (outcome, is_taken) = match verdict {
            Verdict::Better => (Outcome::Changed, true),
            Verdict::Worse => (Outcome::Kept, false),
            Verdict::Unclear | Verdict::Changed => (Outcome::Unclear, is_preferred),
        };
        if is_taken {
            self.setting = tried;
            self.search.succeeded();
        }
        self.note(comparison, outcome, measured);
        if !is_taken {
            self.search.failed.insert(tried);
            if !self.search.go_on() {
                return self.rest_after_round(measured);
            }
        }
        // The next trial begins after what the last window was measured with has passed.
        let until_ns = measured.now_ns;
        self.phase = Phase::Resting { since: *measured, until_ns, usual: None, odd_looks: 0 };
        Step { setting: self.setting, next_ns: measured.now_ns + comparison.settle_ns.max(WINDOW_MIN_NS) }
    }

    fn note(&mut self, comparison: &Comparison, outcome: Outcome, measured: &Measurement) {
        let (trial, present) = (&comparison.trial, comparison.present);
        self.add(Decision {
            now_ns: measured.now_ns,
            from: trial.from,
            tried: trial.tried,
            setting: self.setting,
            outcome,
            gain: trial.gain(),
            noise: trial.error(&self.noise),
            pairs: trial.pairs(),
            rate: present.map_or(0.0, |change| change.rate()),
            latency_ns: present.map_or(0, |change| change.latency_ns()),
            waiting: measured.waiting,
        });
    }

    fn add(&mut self, decision: Decision) {
        if self.log.len() == LOG_DECISIONS_MAX {
            self.log.pop_front();
        }
        self.log.push_back(decision);
    }
}
