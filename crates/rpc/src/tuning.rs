//! A tuner at work on a service or an import: when it measures, and whether it may change anything.
//!
//! Life cycle: nothing runs until there is something to tune. The first request that finds some
//! others under way starts a task ([`Tuning::wants_watch`], [`Tuning::watch`]), which measures and
//! changes the setting until there has been no load for [`IDLE`].
//!
//! A value set by hand wins: it is not touched until the tuner is switched on again.

use std::{
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use parking_lot::Mutex;
use rt::{Clock, Instant, Spawn};
use serde::{Deserialize, Serialize};
use tuner::{Decision, Limits, Measurement, Tuner};

/// After so long without load the task ends; longer than an unfinished trial lasts.
const IDLE: Duration = Duration::from_secs(10);
/// Load is at least so many requests in that time, or requests that wait: a ping now and then has
/// nothing to tune.
const LOAD_REQUESTS: u64 = 8;
/// Requests under way from which on there is something to tune.
pub(crate) const WATCHED_FROM: usize = 3;

/// What a request achieves besides moving its data: about as much work as moving so many bytes.
pub(crate) const REQUEST_WORK: u64 = 16 << 10;

/// What is tuned.
pub(crate) trait Tuned: Send + Sync + 'static {
    /// What it did up to now.
    fn measure(&self, now: Instant) -> Measurement;

    /// Its setting from now on.
    fn apply(self: Arc<Self>, setting: u32);
}

/// Tells the share of the host's processor time that was used recently, 0 to 1, if it is known.
pub type ProcessorUse = Arc<dyn Fn() -> Option<f64> + Send + Sync>;

/// Whether a tuner is at work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    /// It may change the setting.
    On,
    /// It may not.
    Off,
    /// It may not, because the value was set by hand.
    ByHand,
}

struct State {
    mode: Mode,
    limits: Limits,
    /// Made when there is something to tune.
    tuner: Option<Tuner>,
    /// Since when there has been no load, and the requests up to then.
    requests: u64,
    quiet_since: Instant,
    /// Of the newest task: older ones end.
    task: u64,
    processors: Option<ProcessorUse>,
}

impl State {
    fn setting(&self) -> Option<u32> {
        self.tuner.as_ref().filter(|_| self.mode == Mode::On).map(Tuner::setting)
    }

    fn switch_off(&mut self, mode: Mode, is_watched: &AtomicBool) {
        self.mode = mode;
        is_watched.store(true, Ordering::Relaxed);
    }
}

/// See the module documentation.
pub struct Tuning {
    state: Mutex<State>,
    /// Nothing is to be started: a task runs, or the tuner is off.
    is_watched: AtomicBool,
}

impl Tuning {
    /// Switched off, with one setting to choose from.
    pub(crate) fn off() -> Arc<Self> {
        let limits = Limits::service_threads(1, 1);
        let state = State {
            mode: Mode::Off,
            limits,
            tuner: None,
            requests: 0,
            quiet_since: Instant(0),
            task: 0,
            processors: None,
        };
        Arc::new(Self { state: Mutex::new(state), is_watched: AtomicBool::new(true) })
    }

    /// Whether the tuner is at work.
    pub fn mode(&self) -> Mode {
        self.state.lock().mode
    }

    /// The setting outside of trials, if a tuner is at work.
    pub fn setting(&self) -> Option<u32> {
        self.state.lock().setting()
    }

    /// From now on the tuner takes into account how busy the host's processors are.
    pub fn watch_processors(&self, processors: ProcessorUse) {
        self.state.lock().processors = Some(processors);
    }

    /// Its last decisions, the newest last.
    pub fn log(&self) -> Vec<Decision> {
        self.state.lock().tuner.iter().flat_map(Tuner::log).copied().collect()
    }

    /// Switches the tuner of this on, with other limits than before; or again, after it was off. A
    /// trial that is under way ends.
    pub(crate) fn switch_on(&self, limits: Limits, what: Arc<dyn Tuned>) {
        self.tune_within(&mut self.state.lock(), limits, what);
    }

    /// The limits may have changed: the tuner goes on with these if it is at work. One step: a
    /// value that is set by hand meanwhile comes before, and the tuner stays off, or afterwards.
    pub(crate) fn follow(&self, limits: impl FnOnce() -> Limits, what: Arc<dyn Tuned>) {
        let mut state = self.state.lock();
        if state.mode == Mode::On {
            self.tune_within(&mut state, limits(), what);
        }
    }

    fn tune_within(&self, state: &mut State, limits: Limits, what: Arc<dyn Tuned>) {
        if state.mode != Mode::On || state.limits != limits {
            if let Some(setting) = state.setting() {
                what.apply(setting);
            }
            (state.mode, state.limits, state.tuner) = (Mode::On, limits, None);
            state.task += 1;
            self.is_watched.store(false, Ordering::Relaxed);
        }
    }

    /// Switches the tuner off. Its decisions stay.
    pub(crate) fn switch_off(&self, mode: Mode) {
        self.state.lock().switch_off(mode, &self.is_watched);
    }

    /// The value is set by hand.
    pub(crate) fn set_by_hand(&self) {
        let mut state = self.state.lock();
        if state.mode == Mode::On {
            state.switch_off(Mode::ByHand, &self.is_watched);
        }
    }

    /// Whether [`Tuning::wants_watch`] may say yes. Costs a look at a number.
    pub(crate) fn may_want_watch(&self) -> bool {
        !self.is_watched.load(Ordering::Relaxed)
    }

    /// Whether the caller has to call [`Tuning::watch`]: once for each time that there is something
    /// to tune again. Costs a look at a number.
    pub(crate) fn wants_watch(&self) -> bool {
        self.may_want_watch() && !self.is_watched.swap(true, Ordering::Relaxed)
    }

    /// Starts the task. What is tuned is not kept for it.
    pub(crate) fn watch(
        self: &Arc<Self>,
        (clock, spawn): (Arc<dyn Clock>, &dyn Spawn),
        setting: u32,
        tuned: Weak<dyn Tuned>,
    ) {
        let tuning = self.clone();
        let work = async move {
            let Some(what) = tuned.upgrade() else { return };
            let task = tuning.begin(&*what, setting, clock.now());
            drop(what);
            let mut next = clock.now();
            loop {
                clock.sleep_until(next).await;
                let Some(what) = tuned.upgrade() else { return };
                match tuning.step(what, clock.now(), task) {
                    Some(later) => next = later,
                    None => return,
                }
            }
        };
        spawn.spawn("tuner", Box::pin(work));
    }

    /// A task begins. Returns its number.
    fn begin(&self, what: &dyn Tuned, setting: u32, now: Instant) -> u64 {
        let mut state = self.state.lock();
        let measured = what.measure(now);
        let limits = state.limits;
        state.tuner.get_or_insert_with(|| Tuner::new(limits, setting, &measured));
        (state.requests, state.quiet_since, state.task) = (measured.requests, now, state.task + 1);
        state.task
    }

    /// One step of a task. Returns when to make the next one; `None`: the task ends.
    fn step(&self, what: Arc<dyn Tuned>, now: Instant, task: u64) -> Option<Instant> {
        let mut state = self.state.lock();
        if state.mode != Mode::On || state.task != task {
            return None;
        }
        let processors = state.processors.as_ref().and_then(|processors| processors());
        let measured = Measurement { processors, ..what.measure(now) };
        if measured.waiting > 0 || measured.requests >= state.requests + LOAD_REQUESTS {
            (state.requests, state.quiet_since) = (measured.requests, now);
        }
        let is_idle = now.since(state.quiet_since) >= IDLE;
        let tuner = state.tuner.as_mut()?;
        let step = tuner.step(&measured);
        let setting = if is_idle { tuner.setting() } else { step.setting };
        // Under the lock: a value that is set by hand meanwhile comes afterwards.
        what.apply(setting);
        if is_idle {
            self.is_watched.store(false, Ordering::Relaxed);
            return None;
        }
        Some(Instant(step.next_ns))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Does nothing, with whatever setting.
    struct Idle;

    impl Tuned for Idle {
        fn measure(&self, now: Instant) -> Measurement {
            Measurement { now_ns: now.0, ..Measurement::default() }
        }

        fn apply(self: Arc<Self>, _: u32) {}
    }

    #[test]
    fn new_limits_do_not_switch_on_what_was_set_by_hand_meanwhile() {
        let tuning = Tuning::off();
        let limits = |most| Limits::service_threads(2, most);
        tuning.switch_on(limits(64), Arc::new(Idle));
        let meanwhile = || {
            assert!(tuning.state.is_locked(), "nothing is set by hand between the check and the change");
            limits(32)
        };
        tuning.follow(meanwhile, Arc::new(Idle));
        assert_eq!((tuning.mode(), tuning.state.lock().limits), (Mode::On, limits(32)));
        tuning.set_by_hand();
        tuning.follow(|| unreachable!("the tuner is off"), Arc::new(Idle));
        assert_eq!((tuning.mode(), tuning.state.lock().limits), (Mode::ByHand, limits(32)));
    }
}
