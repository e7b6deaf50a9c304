//! The tuner: measures, compares, and decides.

mod choice;

use std::collections::VecDeque;

use choice::{CLEARLY_BETTER, VERY_MUCH_BETTER, WAS_BETTER};

use crate::{
    beginning::Beginning,
    decision::{Decision, LOG_DECISIONS_MAX, Outcome},
    limits::Limits,
    measurement::{Change, Measurement},
    noise::{Noise, WINDOW_MIN_NS, Windows},
    phase::{Comparison, Judgement, Phase, Rest},
    records::{Records, difference},
    search::{Excluded, Search},
    step::Step,
    trial::{FUTILE_NS, Next, OTHER_LOAD, OTHER_LOAD_ERRORS, STAY_MAX_NS, Trial, Verdict},
};

const MS: u64 = 1_000_000;
const SECOND: u64 = 1000 * MS;

/// Requests that a window must count.
const WINDOW_REQUESTS_MIN: u64 = 8;
/// A window with too few requests goes on for so long.
const WINDOW_EXTENDED_NS: u64 = 4 * SECOND;
/// A change of the setting shows after the requests that were under way: some latencies.
const SETTLE_LATENCIES: u64 = 3;
const SETTLE_MIN_NS: u64 = 5 * MS;
const SETTLE_MAX_NS: u64 = 500 * MS;
/// The same if the setting is a larger one: with as many more under way each takes as much longer.
const SETTLE_MORE_MAX_NS: u64 = SECOND;
/// The present setting is measured for so long before each trial.
const BASE_NS: u64 = 4 * WINDOW_MIN_NS;
/// The same after its rate has fallen.
const BASE_FALLEN_NS: u64 = 2 * SECOND;
/// A rate is that of another load if it differs for so long, twice in a row: devices pause.
const ODD_NS: u64 = 5 * WINDOW_MIN_NS;
/// Time between steps of a setting that grows without trials.
const GROW_MIN_NS: u64 = 50 * MS;
/// The search begins again after a trial that was abandoned.
const ABANDONED_NS: u64 = SECOND / 2;
/// So long after the rate fell with a setting that stayed, or a larger one did much less, it may
/// fall slowly with others, too: a trial of some seconds does not show that smaller ones are as
/// good.
const FALLEN_NS: u64 = 60 * SECOND;
/// So much larger a setting is far away.
const FAR_UP: u32 = 16;
/// A step that is so late: nobody looked meanwhile, because there was no load, or the process or
/// its host stood still.
const PAUSED_NS: u64 = 2 * SECOND;
/// See the module documentation.
#[derive(Clone, Debug)]
pub struct Tuner {
    limits: Limits,
    /// The setting outside of trials.
    setting: u32,
    beginning: Beginning,
    search: Search,
    excluded: Excluded,
    phase: Phase,
    noise: Noise,
    records: Records,
    /// Larger settings are taken without a trial while requests wait.
    grows: bool,
    /// What a setting did, to which a trial returns.
    remembered: f64,
    /// Until when it counts that the rate fell.
    fallen_until_ns: u64,
    /// When the next step is due.
    next_ns: u64,
    log: VecDeque<Decision>,
}

impl Tuner {
    /// A tuner that begins with this setting.
    pub fn new(limits: Limits, setting: u32, start: &Measurement) -> Self {
        Self {
            limits,
            setting: limits.clamp(setting),
            beginning: Beginning::new(start),
            search: Search::new(false),
            excluded: Excluded::none(),
            phase: Phase::Resting(Rest {
                since: Some(*start),
                until_ns: start.now_ns + limits.first_trial_ns(),
                ..Rest::default()
            }),
            noise: Noise::default(),
            records: Records::default(),
            grows: limits.prefers_larger(),
            remembered: 0.0,
            fallen_until_ns: 0,
            next_ns: start.now_ns,
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

    /// Takes what was measured up to now. A step that comes early or somewhat late does no harm
    /// beyond a shorter or longer window; after a pause what happened meanwhile does not count.
    pub fn step(&mut self, measured: &Measurement) -> Step {
        let step = match measured.now_ns.saturating_sub(self.next_ns) > PAUSED_NS {
            true => self.resume(measured),
            false => self.go_on(measured),
        };
        self.next_ns = step.next_ns;
        step
    }

    /// The load begins again. A trial that was under way is forgotten.
    fn resume(&mut self, measured: &Measurement) -> Step {
        self.search.forget_trial();
        // What was left out did less with another load.
        self.excluded = Excluded::none();
        self.fallen_until_ns = 0;
        self.beginning = Beginning::new(measured);
        let until_ns = measured.now_ns + self.limits.first_trial_ns();
        self.rest(Rest { since: Some(*measured), until_ns, ..Rest::default() }, measured.now_ns)
    }

    fn go_on(&mut self, measured: &Measurement) -> Step {
        match std::mem::replace(&mut self.phase, Phase::Resting(Rest::default())) {
            Phase::Resting(rest) => self.look(rest, measured),
            Phase::Settling(comparison) => self.begin_window(comparison, measured),
            Phase::Measuring(comparison, start) => self.end_window(comparison, &start, measured),
        }
    }

    fn look(&mut self, mut rest: Rest, measured: &Measurement) -> Step {
        let Some(since) = rest.since else {
            rest.since = Some(*measured);
            return self.rest(rest, measured.now_ns);
        };
        let change = Change::between(&since, measured);
        if self.grows && change.requests > 0 {
            if change.is_limited() && self.setting < self.limits.max {
                return self.grow(measured, &change);
            }
            self.grows = self.setting < self.limits.max;
        }
        if self.beginning.goes_on(measured) {
            rest.since = Some(*measured);
            return self.rest(rest, measured.now_ns);
        }
        if change.requests < WINDOW_REQUESTS_MIN {
            // Slow requests are waited for.
            if change.nanoseconds > WINDOW_EXTENDED_NS {
                if measured.waiting > 0 && self.setting < self.limits.max {
                    return self.take_more(measured, &change);
                }
                rest.since = Some(*measured);
            }
            return self.rest(rest, measured.now_ns);
        }
        rest.since = Some(*measured);
        rest.window_ns = change.window_ns();
        rest.windows.add(change.nanoseconds, change.rate(), &mut self.noise);
        rest.recent = rest.recent.and(&change);
        rest.seen_ns += change.nanoseconds;
        let is_due = measured.now_ns >= rest.until_ns || self.did_more(VERY_MUCH_BETTER).is_some();
        let is_due = is_due && rest.seen_ns >= self.base_ns();
        match self.judge(&mut rest, is_due, measured.now_ns) {
            Judgement::OtherLoad(change) => self.follow(&change, measured),
            Judgement::Usual if is_due => self.begin_trial(measured, rest.windows, change),
            Judgement::Usual | Judgement::Open => self.rest(rest, measured.now_ns),
        }
    }

    /// How long the present setting is measured before a trial. A rate that has fallen may fall on,
    /// unless it is clear by now where to return to.
    fn base_ns(&self) -> u64 {
        let is_open = self.search.has_fallen() && self.did_more(CLEARLY_BETTER).is_none();
        if is_open { BASE_FALLEN_NS } else { BASE_NS }
    }

    /// Whether the rate is that of another load, twice in a row. If not, it becomes a part of what
    /// is known as soon as it says something, or at once if a trial is due.
    fn judge(&mut self, rest: &mut Rest, is_due: bool, now_ns: u64) -> Judgement {
        let error = rest.recent.error(&self.noise);
        let is_odd = self.records.get(self.setting, &self.noise).is_some_and(|usual| {
            let change = difference(usual.rate, rest.recent.rate());
            change.abs() > OTHER_LOAD.max(OTHER_LOAD_ERRORS * error.hypot(usual.error))
        });
        let is_long = rest.recent.nanoseconds >= ODD_NS && (is_odd || error * OTHER_LOAD_ERRORS <= OTHER_LOAD);
        if !is_long && rest.recent.nanoseconds < STAY_MAX_NS && (is_odd || rest.odd.is_some() || !is_due) {
            return Judgement::Open;
        }
        let recent = std::mem::take(&mut rest.recent);
        match (is_odd, rest.odd.take()) {
            (true, Some(before)) => return Judgement::OtherLoad(before.and(&recent)),
            (true, None) => {
                rest.odd = Some(recent);
                return Judgement::Open;
            }
            (false, odd) => {
                if self.search.has_fallen() {
                    // It may have fallen slowly: what is new counts.
                    self.records.forget(self.setting);
                }
                for change in odd.iter().chain([&recent]) {
                    self.records.add(self.setting, change, !rest.is_recorded, now_ns);
                    rest.is_recorded = true;
                }
            }
        }
        Judgement::Usual
    }

    /// The rate with the present setting has changed: the search begins again, after a fall with
    /// smaller settings.
    fn follow(&mut self, change: &Change, measured: &Measurement) -> Step {
        let usual = self.records.get(self.setting, &self.noise);
        let falls = usual.is_some_and(|usual| usual.rate > change.rate());
        match falls {
            true => self.fallen_until_ns = measured.now_ns + FALLEN_NS,
            false => self.excluded.lift(measured.now_ns),
        }
        self.records.forget(self.setting);
        self.records.add(self.setting, change, true, measured.now_ns);
        if self.limits.prefers_larger() {
            // The rate of a client changes whenever others or the server try something: if all
            // began again then, none would come to rest. Later rounds find what has changed.
            return self.rest_until(measured.now_ns + ABANDONED_NS, SETTLE_MIN_NS, measured);
        }
        self.search = Search::new(falls);
        self.rest_until(measured.now_ns, SETTLE_MIN_NS, measured)
    }

    /// Requests wait, but too few of them end to compare anything: with a larger setting more of
    /// them end, unless nothing does.
    fn take_more(&mut self, measured: &Measurement, change: &Change) -> Step {
        self.double(Outcome::TooFew, measured, change);
        self.search = Search::new(false);
        self.rest_until(measured.now_ns, SETTLE_MIN_NS, measured)
    }

    /// Larger settings are preferred, and requests wait: a larger one is taken without a trial.
    fn grow(&mut self, measured: &Measurement, change: &Change) -> Step {
        self.double(Outcome::Grown, measured, change);
        let settle_ns = change.latency_ns().clamp(GROW_MIN_NS, SETTLE_MAX_NS);
        self.rest_until(measured.now_ns + self.limits.first_trial_ns(), settle_ns, measured)
    }

    fn double(&mut self, outcome: Outcome, measured: &Measurement, change: &Change) {
        let from = self.setting;
        self.setting = self.limits.clamp(from.saturating_mul(2));
        self.add(Decision {
            now_ns: measured.now_ns,
            from,
            tried: self.setting,
            setting: self.setting,
            outcome,
            gain: 0.0,
            noise: 0.0,
            compared_ns: 0,
            rate: change.rate(),
            latency_ns: change.latency_ns(),
            waiting: measured.waiting,
        });
    }

    fn rest(&mut self, rest: Rest, now_ns: u64) -> Step {
        let next_ns = now_ns + rest.window_ns.max(WINDOW_MIN_NS);
        self.phase = Phase::Resting(rest);
        Step { setting: self.setting, next_ns }
    }

    /// The setting, which begins now, stays until this time, at least.
    fn rest_until(&mut self, until_ns: u64, settle_ns: u64, measured: &Measurement) -> Step {
        self.phase = Phase::Resting(Rest { until_ns, ..Rest::default() });
        Step { setting: self.setting, next_ns: measured.now_ns + settle_ns }
    }

    /// Begins the next trial, if there is another setting to compare with.
    fn begin_trial(&mut self, measured: &Measurement, windows: Windows, recent: Change) -> Step {
        self.records.age(measured.now_ns);
        if !recent.is_limited() && self.setting < self.limits.max && self.search.postpones() {
            return self.rest_until(measured.now_ns + ABANDONED_NS, SETTLE_MIN_NS, measured);
        }
        loop {
            if let Some(tried) = self.did_more(WAS_BETTER) {
                self.remembered = self.records.get(tried, &self.noise).map_or(0.0, |best| best.rate);
                self.records.forget(tried);
                return self.compare(tried, WAS_BETTER / 2.0, true, &recent, measured);
            }
            let largest = self.largest(&recent, measured.now_ns);
            if largest.is_some() {
                self.search.try_largest();
            }
            let candidate = largest.or_else(|| self.candidate(measured, &recent));
            if let Some(tried) = candidate {
                let needed = self.needed(tried, measured, recent.is_limited());
                self.remembered = 0.0;
                let is_return = tried < self.setting && self.search.has_fallen();
                let needed = if is_return { needed.max(WAS_BETTER / 2.0) } else { needed };
                return self.compare(tried, needed, is_return, &recent, measured);
            }
            if !self.search.go_on(self.setting == self.limits.max) {
                let until_ns = measured.now_ns + self.search.rest();
                let since = Some(*measured);
                let seen_ns = self.base_ns();
                return self.rest(
                    Rest { since, until_ns, windows, seen_ns, is_recorded: true, ..Rest::default() },
                    measured.now_ns,
                );
            }
        }
    }

    fn compare(&mut self, tried: u32, needed: f64, is_return: bool, recent: &Change, measured: &Measurement) -> Step {
        let longer = u64::from(tried / self.setting);
        let settle_max_ns = if longer > 1 { SETTLE_MORE_MAX_NS } else { SETTLE_MAX_NS };
        let settle_ns = SETTLE_LATENCIES.max(longer).saturating_mul(recent.latency_ns());
        let settle_ns = settle_ns.clamp(SETTLE_MIN_NS, settle_max_ns);
        // The largest setting is what there would be without the tuner.
        let prefers_tried = self.limits.prefers_larger() || self.search.tries_largest();
        let wants_proof = tried < self.setting || !prefers_tried;
        let mut trial = Trial::new((self.setting, tried), (needed, wants_proof, is_return), &self.records, &self.noise);
        trial.is_recovering = self.excluded.is_recovering(measured.now_ns);
        trial.is_far = tried / self.setting >= FAR_UP;
        trial.is_first_largest = self.search.tries_largest() && !self.search.is_later();
        trial.leaves_largest = self.setting == self.limits.max;
        trial.is_doubtful = tried > self.setting && self.search.has_come_down();
        let comparison = Comparison {
            trial,
            window_ns: recent.window_ns(),
            settle_ns,
            windows: Windows::default(),
            present: *recent,
        };
        self.settle(comparison, measured)
    }

    fn settle(&mut self, comparison: Comparison, measured: &Measurement) -> Step {
        let (setting, next_ns) = (comparison.trial.setting(), measured.now_ns + comparison.settle_ns);
        self.phase = Phase::Settling(comparison);
        Step { setting, next_ns }
    }

    fn begin_window(&mut self, comparison: Comparison, measured: &Measurement) -> Step {
        let (setting, next_ns) = (comparison.trial.setting(), measured.now_ns + comparison.window_ns);
        self.phase = Phase::Measuring(comparison, *measured);
        Step { setting, next_ns }
    }

    fn end_window(&mut self, mut comparison: Comparison, start: &Measurement, measured: &Measurement) -> Step {
        let (now_ns, change) = (measured.now_ns, Change::between(start, measured));
        if change.requests < WINDOW_REQUESTS_MIN {
            if change.nanoseconds < WINDOW_EXTENDED_NS {
                let (setting, next_ns) = (comparison.trial.setting(), now_ns + comparison.window_ns);
                self.phase = Phase::Measuring(comparison, *start);
                return Step { setting, next_ns };
            }
            return self.abandon(&comparison, measured);
        }
        let setting = comparison.trial.setting();
        if setting == comparison.trial.from {
            comparison.present = change;
        }
        self.records.add(setting, &change, comparison.trial.stay().nanoseconds == 0, now_ns);
        comparison.windows.add(change.nanoseconds, change.rate(), &mut self.noise);
        comparison.window_ns = change.window_ns();
        match comparison.trial.record(&change, &self.records, &self.noise) {
            Next::Stay => self.begin_window(comparison, measured),
            Next::Turn => {
                comparison.windows = Windows::default();
                self.settle(comparison, measured)
            }
            Next::End(Verdict::Changed) => {
                self.note(&comparison, Outcome::Abandoned, measured);
                self.follow(comparison.trial.stay(), measured)
            }
            Next::End(verdict) => self.conclude(comparison, verdict, measured),
        }
    }

    /// The load ended during a trial: the search begins again after a rest.
    fn abandon(&mut self, comparison: &Comparison, measured: &Measurement) -> Step {
        self.note(comparison, Outcome::Abandoned, measured);
        self.search = Search::new(false);
        self.rest_until(measured.now_ns + ABANDONED_NS, comparison.settle_ns, measured)
    }

    fn conclude(&mut self, comparison: Comparison, verdict: Verdict, measured: &Measurement) -> Step {
        let (trial, now_ns) = (&comparison.trial, measured.now_ns);
        let (from, tried, is_return) = (trial.from, trial.tried, trial.is_return);
        let is_taken = verdict == Verdict::Better || (verdict == Verdict::Unclear && self.takes_unclear(trial));
        let outcome = match verdict {
            Verdict::Better if is_return => Outcome::Returned,
            Verdict::Better => Outcome::Changed,
            Verdict::Worse => Outcome::Kept,
            Verdict::Unclear | Verdict::Changed => Outcome::Unclear,
        };
        // The stay that ends now goes on if its setting remains.
        let stays = trial.setting() == if is_taken { tried } else { from };
        let seen_ns = if stays { trial.stay().nanoseconds } else { 0 };
        if is_taken {
            self.setting = tried;
            self.search.succeeded(from, tried);
            // From now on trials decide.
            self.grows = false;
        }
        if is_taken && (is_return || (tried < from && trial.present_fell(&self.noise))) {
            self.excluded.returned(from, tried, now_ns);
        }
        let (gain, error) = trial.gain(&self.records, &self.noise);
        if !is_taken && tried > from && (gain < -OTHER_LOAD || trial.present_fell(&self.noise)) {
            self.fallen_until_ns = now_ns + FALLEN_NS;
        }
        self.note(&comparison, outcome, measured);
        // What it has lost for sure: else a bad guess would keep the setting for long.
        let cost_ns = -(gain + error).min(0.0) * (trial.tried_ns() + comparison.settle_ns) as f64;
        let found = self.records.get(tried, &self.noise).map_or(0.0, |found| found.rate);
        if is_taken && is_return && difference(self.remembered, found) < -OTHER_LOAD {
            // What is known of others is of another load, too.
            self.records.keep(self.setting);
        }
        let mut until_ns = now_ns;
        if !is_taken {
            self.search.fails(tried);
            // The way back is no part of a round.
            let goes_on = self.remembered > 0.0 || self.search.go_on(self.setting == self.limits.max);
            if let Some(cost) = self.search.cost(self.setting == self.limits.max) {
                until_ns += (cost_ns / cost) as u64;
            }
            if !goes_on {
                until_ns = until_ns.max(now_ns + self.search.rest());
            }
        }
        let window_ns = comparison.window_ns;
        if is_taken && stays && comparison.trial.is_first_largest && seen_ns < FUTILE_NS {
            // That it does more was clear in its first moments; how much it does is not known yet.
            self.records.forget(tried);
        }
        if stays {
            let rest =
                Rest { since: Some(*measured), until_ns, window_ns, seen_ns, is_recorded: true, ..Rest::default() };
            return self.rest(rest, now_ns);
        }
        self.rest_until(until_ns, comparison.settle_ns, measured)
    }

    /// Whether the other setting is taken though nothing is clear: the largest one unless it seems
    /// to be worse by more than an error; larger ones by clients if they do not seem to be worse,
    /// by servers if they seem to be better; smaller ones if they seem to be better and the rate
    /// with the present one has fallen meanwhile.
    fn takes_unclear(&self, trial: &Trial) -> bool {
        if trial.tried < trial.from && trial.present_fell(&self.noise) {
            return trial.seems_better(0.0, &self.records, &self.noise);
        }
        let errors = match self.search.tries_largest() {
            true => 1.0,
            false if self.limits.prefers_larger() => 0.0,
            false => -0.5,
        };
        let falls_beyond = self.records.falls_beyond(trial.from, trial.tried, &self.noise);
        trial.tried > trial.from && !falls_beyond && trial.seems_better(errors, &self.records, &self.noise)
    }

    fn note(&mut self, comparison: &Comparison, outcome: Outcome, measured: &Measurement) {
        let (trial, present) = (&comparison.trial, comparison.present);
        let (gain, noise) = trial.gain(&self.records, &self.noise);
        self.add(Decision {
            now_ns: measured.now_ns,
            from: trial.from,
            tried: trial.tried,
            setting: self.setting,
            outcome,
            gain,
            noise,
            compared_ns: trial.nanoseconds(),
            rate: present.rate(),
            latency_ns: present.latency_ns(),
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
