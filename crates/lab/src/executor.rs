//! The executor: tasks, timers and virtual time.
//!
//! Invariants: time never goes back; it advances only when no task is ready, and then to the
//! earliest timer; the seed picks one of the ready tasks, whatever the order in which they became
//! ready: interleavings vary between seeds and are repeatable for the same seed. Nothing here reads
//! a real clock.
//!
//! Downside: a task that never yields stops everything; the step limit turns that into a report.

use std::{
    collections::{BTreeMap, BTreeSet},
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, Wake, Waker},
    time::Duration,
};

use parking_lot::Mutex;
use rt::{BoxFuture, Entropy, Instant};

use crate::{ProcessId, Random};

/// Identifies a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct TaskId(u64);

struct Task {
    process: ProcessId,
    name: &'static str,
    /// Taken out while it is polled.
    future: Option<BoxFuture<'static, ()>>,
}

#[derive(Default)]
struct State {
    now: Instant,
    tasks: BTreeMap<TaskId, Task>,
    /// Sorted, so that the order in which one poll wakes others does not matter: tokio's watch
    /// channels wake their waiters in an order of their own, which differs from run to run.
    ready: Vec<TaskId>,
    timers: BTreeMap<(Instant, u64), Waker>,
    sequence: u64,
    steps: u64,
    /// Processes that were killed: whatever their remains spawn while they are torn down is
    /// dropped.
    dead: BTreeSet<ProcessId>,
    /// Processes that are stopped, ...
    stopped: BTreeSet<ProcessId>,
    /// ... and which of their tasks are ready when they continue.
    held: BTreeSet<TaskId>,
    ended: bool,
}

impl State {
    fn make_ready(&mut self, id: TaskId) {
        if !self.stopped.is_empty() && self.tasks.get(&id).is_some_and(|task| self.stopped.contains(&task.process)) {
            self.held.insert(id);
            return;
        }
        if let Err(position) = self.ready.binary_search(&id) {
            self.ready.insert(position, id);
        }
    }
}

/// Looks at the world between two steps.
type Observer = Box<dyn FnMut() + Send>;

/// One simulated world. Cheap to clone.
#[derive(Clone)]
pub struct Simulation {
    state: Arc<Mutex<State>>,
    order: Arc<Random>,
    /// See [`Simulation::observe`].
    observer: Arc<Mutex<Option<Observer>>>,
}

/// Why a run ended without its result.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum Stuck {
    /// No task is ready and no timer set.
    #[error("deadlock at {0:?}: nothing is ready and no timer is set; waiting: {1}")]
    Deadlock(Instant, String),
    /// Virtual time passed the limit.
    #[error("not finished after {0:?} of virtual time; waiting: {1}")]
    TimeLimit(Duration, String),
    /// Too many polls.
    #[error("not finished after {0} steps: some task never becomes idle; tasks: {1}")]
    StepLimit(u64, String),
}

/// Bounds of a run.
#[derive(Clone, Copy, Debug)]
pub struct RunLimits {
    /// Virtual time.
    pub virtual_time: Duration,
    /// Polls of tasks.
    pub steps: u64,
}

impl Default for RunLimits {
    fn default() -> Self {
        Self { virtual_time: Duration::from_secs(4 * 3600), steps: 200_000_000 }
    }
}

impl Simulation {
    /// An empty world whose interleavings follow `seed`.
    pub fn new(seed: u64) -> Self {
        let state = State { now: Instant(1), ..State::default() };
        let order = Arc::new(Random::for_purpose(seed, "task order"));
        Self { state: Arc::new(Mutex::new(state)), order, observer: Arc::default() }
    }

    /// From now on this is called after each step. It must change nothing of the world.
    pub fn observe(&self, observer: impl FnMut() + Send + 'static) {
        *self.observer.lock() = Some(Box::new(observer));
    }

    /// Virtual time.
    pub fn now(&self) -> Instant {
        self.state.lock().now
    }

    /// Tasks polled so far: a fingerprint of the run.
    pub fn steps(&self) -> u64 {
        self.state.lock().steps
    }

    /// Starts a task of `process`.
    pub fn spawn(&self, process: ProcessId, name: &'static str, future: BoxFuture<'static, ()>) {
        let mut state = self.state.lock();
        if state.ended || state.dead.contains(&process) {
            drop(state);
            return;
        }
        state.sequence += 1;
        let id = TaskId(state.sequence);
        state.tasks.insert(id, Task { process, name, future: Some(future) });
        state.make_ready(id);
    }

    /// Ends all tasks of `process` at once, as a crash does. It never runs anything again.
    pub fn kill(&self, process: ProcessId) {
        assert_ne!(process, ProcessId::DRIVER, "the driver cannot be killed");
        let mut state = self.state.lock();
        state.dead.insert(process);
        let dead: Vec<TaskId> =
            state.tasks.iter().filter(|(_, task)| task.process == process).map(|(id, _)| *id).collect();
        let futures: Vec<_> = dead.iter().filter_map(|id| state.tasks.remove(id)).collect();
        state.ready.retain(|id| !dead.contains(id));
        state.held.retain(|id| !dead.contains(id));
        state.stopped.remove(&process);
        drop(state);
        drop(futures);
    }

    /// Stops a process (SIGSTOP): none of its tasks is polled until [`Simulation::resume`], while
    /// time continues and what its tasks wait for happens.
    pub fn stop(&self, process: ProcessId) {
        assert_ne!(process, ProcessId::DRIVER, "the driver cannot be stopped");
        let state = &mut *self.state.lock();
        if state.dead.contains(&process) {
            return;
        }
        state.stopped.insert(process);
        let tasks = &state.tasks;
        let of_process = |id: &TaskId| tasks.get(id).is_some_and(|task| task.process == process);
        state.held.extend(state.ready.extract_if(.., |id| of_process(id)));
    }

    /// Lets a stopped process continue (SIGCONT).
    pub fn resume(&self, process: ProcessId) {
        let mut state = self.state.lock();
        if !state.stopped.remove(&process) {
            return;
        }
        // Those of others are held again.
        for id in std::mem::take(&mut state.held) {
            state.make_ready(id);
        }
    }

    /// Drops every task. Tasks hold their world and their world holds them: without this a finished
    /// run stays in memory.
    pub fn end(&self) {
        let mut state = self.state.lock();
        state.ended = true;
        state.ready.clear();
        state.held.clear();
        let tasks = std::mem::take(&mut state.tasks);
        drop(state);
        drop(tasks);
        let timers = std::mem::take(&mut self.state.lock().timers);
        drop(timers);
        let observer = self.observer.lock().take();
        drop(observer);
    }

    /// Completes at `deadline`.
    pub fn sleep_until(&self, deadline: Instant) -> Sleep {
        Sleep { simulation: self.clone(), deadline, timer: None }
    }

    /// Runs everything until `main` completes.
    pub fn run<T: Send + 'static>(
        &self,
        limits: RunLimits,
        main: impl Future<Output = T> + Send + 'static,
    ) -> Result<T, Stuck> {
        let result = Arc::new(Mutex::new(None));
        let slot = Arc::clone(&result);
        self.spawn(
            ProcessId::DRIVER,
            "main",
            Box::pin(async move {
                let value = main.await;
                *slot.lock() = Some(value);
            }),
        );
        let end = self.now() + limits.virtual_time;
        let steps_end = self.steps() + limits.steps;
        loop {
            if let Some(value) = result.lock().take() {
                return Ok(value);
            }
            if self.steps() >= steps_end {
                return Err(Stuck::StepLimit(limits.steps, self.waiting()));
            }
            if !self.poll_one() {
                self.advance(end, limits)?;
            } else if let Some(observer) = &mut *self.observer.lock() {
                observer();
            }
        }
    }

    /// Polls one ready task; false if there is none.
    fn poll_one(&self) -> bool {
        let (id, mut future) = {
            let mut state = self.state.lock();
            if state.ready.is_empty() {
                return false;
            }
            let index = self.order.below(state.ready.len() as u64) as usize;
            let id = state.ready.remove(index);
            state.steps += 1;
            match state.tasks.get_mut(&id).and_then(|task| task.future.take()) {
                Some(future) => (id, future),
                None => return true,
            }
        };
        let waker = Waker::from(Arc::new(TaskWaker { id, state: Arc::clone(&self.state) }));
        let outcome = future.as_mut().poll(&mut Context::from_waker(&waker));
        let mut state = self.state.lock();
        let finished = match (outcome, state.tasks.get_mut(&id)) {
            (Poll::Pending, Some(task)) => {
                task.future = Some(future);
                return true;
            }
            (Poll::Ready(()), _) => state.tasks.remove(&id),
            (Poll::Pending, None) => None,
        };
        drop(state);
        drop(finished);
        true
    }

    /// Moves time to the earliest timer.
    fn advance(&self, end: Instant, limits: RunLimits) -> Result<(), Stuck> {
        let mut state = self.state.lock();
        let Some(((deadline, _), waker)) = state.timers.pop_first() else {
            let now = state.now;
            drop(state);
            return Err(Stuck::Deadlock(now, self.waiting()));
        };
        if deadline > end {
            drop(state);
            return Err(Stuck::TimeLimit(limits.virtual_time, self.waiting()));
        }
        state.now = state.now.max(deadline);
        drop(state);
        waker.wake();
        Ok(())
    }

    /// Completes after `duration`.
    pub fn sleep(&self, duration: Duration) -> Sleep {
        self.sleep_until(self.now() + duration)
    }

    /// Names of all live tasks with their processes, for reports.
    fn waiting(&self) -> String {
        let state = self.state.lock();
        let mut counts: BTreeMap<(ProcessId, &str), u32> = BTreeMap::new();
        for task in state.tasks.values() {
            *counts.entry((task.process, task.name)).or_default() += 1;
        }
        let lines: Vec<String> =
            counts.iter().map(|((process, name), count)| format!("{process}/{name} x{count}")).collect();
        lines.join(", ")
    }
}

struct TaskWaker {
    id: TaskId,
    state: Arc<Mutex<State>>,
}

impl Wake for TaskWaker {
    fn wake(self: Arc<Self>) {
        let mut state = self.state.lock();
        if state.tasks.contains_key(&self.id) {
            state.make_ready(self.id);
        }
    }
}

/// Future of [`Simulation::sleep_until`].
pub struct Sleep {
    simulation: Simulation,
    deadline: Instant,
    timer: Option<(Instant, u64)>,
}

impl Future for Sleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let simulation = self.simulation.clone();
        let mut state = simulation.state.lock();
        if let Some(timer) = self.timer.take() {
            state.timers.remove(&timer);
        }
        if state.now >= self.deadline {
            return Poll::Ready(());
        }
        state.sequence += 1;
        let timer = (self.deadline, state.sequence);
        state.timers.insert(timer, context.waker().clone());
        self.timer = Some(timer);
        Poll::Pending
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        if let Some(timer) = self.timer.take() {
            let waker = self.simulation.state.lock().timers.remove(&timer);
            drop(waker);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn trace(seed: u64) -> (Vec<u32>, Instant, u64) {
        let simulation = Simulation::new(seed);
        let log = Arc::new(Mutex::new(Vec::new()));
        for number in 0..8 {
            let (inner, log) = (simulation.clone(), Arc::clone(&log));
            simulation.spawn(
                ProcessId(1),
                "worker",
                Box::pin(async move {
                    for round in 0..3 {
                        inner.sleep_until(inner.now() + Duration::from_nanos(u64::from(number % 3) + 1)).await;
                        log.lock().push(number * 10 + round);
                    }
                }),
            );
        }
        let inner = simulation.clone();
        let end = simulation
            .run(RunLimits::default(), async move {
                inner.sleep_until(Instant(1_000_000)).await;
                inner.now()
            })
            .unwrap();
        let log = log.lock().clone();
        (log, end, simulation.steps())
    }

    #[test]
    fn a_seed_repeats_and_seeds_differ() {
        assert_eq!(trace(1), trace(1));
        assert_eq!(trace(1).0.len(), 24);
        assert_ne!(trace(1).0, trace(2).0);
        assert_eq!(trace(1).1, Instant(1_000_000));
    }

    /// Many tasks wait for one watch channel, which wakes them in an order that tokio draws by lot.
    fn order_of_watchers() -> Vec<u32> {
        let simulation = Simulation::new(3);
        let (sender, receiver) = tokio::sync::watch::channel(false);
        let log = Arc::new(Mutex::new(Vec::new()));
        for number in 0..50 {
            let (mut receiver, log) = (receiver.clone(), Arc::clone(&log));
            let task = async move {
                receiver.wait_for(|value| *value).await.unwrap();
                log.lock().push(number);
            };
            simulation.spawn(ProcessId(1), "watcher", Box::pin(task));
        }
        let inner = simulation.clone();
        let run = simulation.run(RunLimits::default(), async move {
            inner.sleep(Duration::from_secs(1)).await;
            sender.send_replace(true);
            inner.sleep(Duration::from_secs(1)).await;
        });
        run.unwrap();
        log.lock().clone()
    }

    /// The first seed that was run twice gave two logs.
    #[test]
    fn the_order_of_wakes_does_not_matter() {
        let first = order_of_watchers();
        assert_eq!(first.len(), 50);
        assert!((0..10).all(|_| order_of_watchers() == first));
    }

    #[test]
    fn a_deadlock_is_reported() {
        let simulation = Simulation::new(1);
        let stuck = simulation.run(RunLimits::default(), std::future::pending::<()>()).unwrap_err();
        assert!(matches!(&stuck, Stuck::Deadlock(_, waiting) if waiting.contains("main")), "{stuck}");
    }

    #[test]
    fn a_killed_process_does_nothing_more() {
        let simulation = Simulation::new(1);
        let count = Arc::new(Mutex::new(0));
        let (inner, counter) = (simulation.clone(), Arc::clone(&count));
        simulation.spawn(
            ProcessId(5),
            "loop",
            Box::pin(async move {
                loop {
                    inner.sleep_until(inner.now() + Duration::from_secs(1)).await;
                    *counter.lock() += 1;
                }
            }),
        );
        let inner = simulation.clone();
        let run = simulation.run(RunLimits::default(), async move {
            inner.sleep_until(inner.now() + Duration::from_millis(3500)).await;
            inner.kill(ProcessId(5));
            inner.sleep_until(inner.now() + Duration::from_secs(60)).await;
        });
        run.unwrap();
        assert_eq!(*count.lock(), 3);
    }

    #[test]
    fn a_stopped_process_goes_on_where_it_was_in_time_that_went_on() {
        let simulation = Simulation::new(1);
        let log = Arc::new(Mutex::new(Vec::new()));
        for process in [ProcessId(5), ProcessId(6)] {
            let (inner, log) = (simulation.clone(), Arc::clone(&log));
            let ticks = async move {
                for _ in 0..3 {
                    inner.sleep(Duration::from_secs(1)).await;
                    log.lock().push((process.0, inner.now().0 / 1_000_000_000));
                }
            };
            simulation.spawn(process, "ticks", Box::pin(ticks));
        }
        let inner = simulation.clone();
        let run = simulation.run(RunLimits::default(), async move {
            inner.sleep(Duration::from_millis(1500)).await;
            inner.stop(ProcessId(5));
            inner.stop(ProcessId(6));
            inner.sleep(Duration::from_secs(1)).await;
            inner.resume(ProcessId(6));
            inner.sleep(Duration::from_secs(10)).await;
            inner.resume(ProcessId(5));
            inner.sleep(Duration::from_secs(10)).await;
        });
        run.unwrap();
        let of = |process| log.lock().iter().filter(|(who, _)| *who == process).map(|(_, at)| *at).collect::<Vec<_>>();
        assert_eq!((of(5), of(6)), (vec![1, 12, 13], vec![1, 2, 3]));
    }

    /// Spawns a task when it is dropped, as code does that must finish something on behalf of a
    /// caller that is gone.
    struct SpawnsAtTheEnd(Simulation, Arc<Mutex<bool>>);

    impl Drop for SpawnsAtTheEnd {
        fn drop(&mut self) {
            let ran = Arc::clone(&self.1);
            self.0.spawn(ProcessId(5), "remains", Box::pin(async move { *ran.lock() = true }));
        }
    }

    #[test]
    fn the_remains_of_a_killed_process_start_nothing() {
        let simulation = Simulation::new(1);
        let ran = Arc::new(Mutex::new(false));
        let guard = SpawnsAtTheEnd(simulation.clone(), Arc::clone(&ran));
        simulation.spawn(
            ProcessId(5),
            "guarded",
            Box::pin(async move {
                let _guard = guard;
                std::future::pending::<()>().await;
            }),
        );
        let inner = simulation.clone();
        let run = simulation.run(RunLimits::default(), async move {
            inner.sleep(Duration::from_secs(1)).await;
            inner.kill(ProcessId(5));
            inner.sleep(Duration::from_secs(1)).await;
        });
        run.unwrap();
        assert!(!*ran.lock());
    }

    #[test]
    fn an_ended_world_is_freed() {
        let simulation = Simulation::new(1);
        let witness = Arc::new(());
        let (inner, held) = (simulation.clone(), Arc::clone(&witness));
        simulation.spawn(
            ProcessId(1),
            "sleeper",
            Box::pin(async move {
                let _held = held;
                inner.sleep(Duration::from_secs(1000)).await;
            }),
        );
        let inner = simulation.clone();
        simulation.run(RunLimits::default(), async move { inner.sleep(Duration::from_secs(1)).await }).unwrap();
        simulation.end();
        assert_eq!(Arc::strong_count(&witness), 1);
    }
}
