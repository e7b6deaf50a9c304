//! A tuner at work on a service, in virtual time.

use super::*;
use crate::tuning::Mode;

/// Requests that programs keep under way.
const PROGRAMS: usize = 64;
const STEP: Duration = Duration::from_millis(5);

/// A service whose device does 100 requests per second for each of up to 8 at once, and less with
/// more of them.
struct Plant {
    hand: Arc<Hand>,
    tasks: Arc<Tasks>,
    service: Arc<Service>,
    /// With what has been done of each.
    executing: Vec<(Permit, f64)>,
    waiting: Vec<Waiting>,
    done: u64,
}

impl Plant {
    fn new(threads: usize) -> Self {
        let (hand, tasks, service) = scheduled(threads, 1000);
        Self { hand, tasks, service, executing: Vec::new(), waiting: Vec::new(), done: 0 }
    }

    fn rate(executing: usize) -> f64 {
        let executing = executing as f64;
        100.0 * executing.min(8.0) / (1.0 + 0.03 * (executing - 8.0).max(0.0))
    }

    fn step(&mut self) {
        while self.executing.len() + self.waiting.len() < PROGRAMS {
            match self.service.admit(self.hand.now(), any).unwrap() {
                Admission::Now(permit) => self.executing.push((permit, 0.0)),
                Admission::Queued(waiting) => self.waiting.push(waiting),
            }
        }
        self.hand.advance(STEP);
        self.tasks.run();
        let count = self.executing.len();
        let progress = Self::rate(count) / count as f64 * STEP.as_secs_f64();
        self.executing.iter_mut().for_each(|(_, done)| *done += progress);
        self.done += self.executing.extract_if(.., |(_, done)| *done >= 1.0).count() as u64;
        let executing = &mut self.executing;
        self.waiting.retain_mut(|waiting| poll(waiting).map(|permit| executing.push((permit, 0.0))).is_none());
    }

    /// Requests per second in this time.
    fn run(&mut self, seconds: u64) -> f64 {
        let before = self.done;
        for _ in 0..seconds * 1000 / STEP.as_millis() as u64 {
            self.step();
        }
        (self.done - before) as f64 / seconds as f64
    }
}

#[test]
fn the_number_of_threads_becomes_the_best() {
    for start in [2, 64] {
        let mut plant = Plant::new(64);
        plant.service.set_threads_min(2);
        plant.service.tune();
        plant.service.tune_from(start);
        assert_eq!((plant.service.threads(), plant.service.tuning().mode()), (start, Mode::On));
        plant.run(20);
        let rate = plant.run(20);
        assert!(rate >= 0.95 * Plant::rate(8), "from {start}: {rate}: {:#?}", plant.service.tuning().log());
        assert_eq!(plant.service.threads_max(), 64, "the tuner's limit stays");
    }
}

#[test]
fn what_is_set_by_hand_is_not_touched() {
    let mut plant = Plant::new(64);
    plant.service.tune();
    plant.run(6);
    plant.service.set_threads(33);
    plant.run(10);
    assert_eq!((plant.service.threads(), plant.service.tuning().mode()), (33, Mode::ByHand));
    assert!(!plant.service.tuning().log().is_empty(), "what the tuner did before is still shown");
    plant.service.tune();
    plant.run(10);
    assert_ne!(plant.service.threads(), 33, "on again");
    assert!(plant.service.threads() <= 33, "up to that number");
    plant.service.stop_tuning();
    plant.run(10);
    assert_eq!((plant.service.threads(), plant.service.tuning().mode()), (33, Mode::Off));
}

/// New limits mean a new tuner, which begins at the setting, not at what was tried at the moment.
#[test]
fn a_trial_does_not_become_the_setting_when_limits_change() {
    let mut plant = Plant::new(64);
    plant.service.tune();
    let setting = |plant: &Plant| plant.service.tuning().setting().map(|setting| setting as usize);
    let is_trial = |plant: &Plant| setting(plant).is_some_and(|setting| plant.service.threads() < setting);
    for _ in 0..20_000 {
        if is_trial(&plant) {
            break;
        }
        plant.step();
    }
    assert!(is_trial(&plant), "{:#?}", plant.service.tuning().log());
    let before = setting(&plant).unwrap();
    plant.service.set_threads_min(3);
    assert_eq!((plant.service.threads(), plant.service.tuning().mode()), (before, Mode::On));
}

#[test]
fn without_load_there_is_no_task() {
    let mut plant = Plant::new(64);
    plant.service.tune();
    let alone = now(plant.service.admit(plant.hand.now(), any));
    assert!(plant.tasks.0.lock().is_empty(), "one request is nothing to tune");
    drop(alone);
    plant.run(5);
    assert_eq!(plant.tasks.0.lock().len(), 1);
    let threads = plant.service.tuning().log().len();
    assert!(threads > 0);
    plant.executing.clear();
    plant.waiting.clear();
    for _ in 0..100 {
        plant.hand.advance(Duration::from_secs(1));
        plant.tasks.run();
    }
    assert!(plant.tasks.0.lock().is_empty(), "it ends after the last request");
    plant.run(5);
    assert_eq!(plant.tasks.0.lock().len(), 1, "and begins again with the next ones");
}

#[test]
fn a_few_requests_now_and_then_are_no_load() {
    let mut plant = Plant::new(64);
    plant.service.tune();
    plant.run(1);
    assert_eq!(plant.tasks.0.lock().len(), 1);
    plant.executing.clear();
    plant.waiting.clear();
    for _ in 0..20 {
        // As pings are.
        drop(now(plant.service.admit(plant.hand.now(), any)));
        plant.hand.advance(Duration::from_secs(2));
        plant.tasks.run();
    }
    assert!(plant.tasks.0.lock().is_empty());
}

/// They wait for long, but for a thread: this is no idle service.
#[test]
fn requests_that_wait_are_load_even_if_none_ends() {
    let (hand, tasks, service) = scheduled(4, 1000);
    service.tune();
    service.state.lock().threads = 2;
    let _executing = [now(service.admit(hand.now(), any)), now(service.admit(hand.now(), any))];
    let waiting: Vec<_> = (0..20).map(|_| queued(service.admit(hand.now(), any))).collect();
    for _ in 0..100 {
        hand.advance(Duration::from_millis(250));
        tasks.run();
    }
    assert_eq!(tasks.0.lock().len(), 1);
    assert_eq!(service.threads(), 4, "{:#?}", service.tuning().log());
    drop(waiting);
}
