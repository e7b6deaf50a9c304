//! The cores of a node in virtual time: what code states through [`rt::Cpu`] occupies one of them.
//!
//! ```text
//!   spend(kind, bytes) --> free core? --yes--> works: a time slice at most, then asks again
//!                              no
//!                              +--> queue (first in, first out) --> gets a core: switch, then works
//! ```
//!
//! What makes too many threads costly:
//!
//! - a core that changes from one task to another loses time: the switch itself, and the refill of
//!   what the others have displaced from the cache, which grows with the number of runnable tasks
//!   once their working sets together exceed the cache;
//! - a task that has worked for a time slice goes to the end of the queue if others wait;
//! - what passes a queue that all cores share ([`Costs::is_shared`]) moves its lock's cache line
//!   from core to core, once for every other core that works.
//!
//! What makes a busy node cheaper: a core that had nothing to do first wakes up for a frame
//! ([`CpuKind::CoreWakeUp`]); one that works finds the frame when it is done.
//!
//! Invariants: at most `cores` tasks work at once; no core is idle while a task waits; a task that
//! ends gives its core to the next. Downside: cores are equal, tasks do not return to the core
//! whose cache they know, and a suspended process (SIGSTOP) keeps the cores that its tasks had.

mod recent;

use std::{collections::VecDeque, sync::Arc, time::Duration};

use parking_lot::Mutex;
use rt::{BoxFuture, CpuKind, Instant};
use tokio::sync::oneshot;

pub use self::recent::RecentUse;
use crate::Simulation;

/// What one kind costs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cost {
    /// Nanoseconds each time.
    pub each_ns: u32,
    /// Picoseconds for each byte.
    pub byte_ps: u32,
}

/// A table of costs, indexed by kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Costs(pub [Cost; CpuKind::ALL.len()]);

impl Costs {
    /// What this costs.
    pub fn of(&self, kind: CpuKind, bytes: u64) -> Duration {
        let Cost { each_ns, byte_ps } = self.0[kind as usize];
        Duration::from_nanos(u64::from(each_ns) + u64::from(byte_ps).saturating_mul(bytes) / 1000)
    }

    /// The same table, off by so many per cent.
    pub fn scaled(mut self, percent: u32) -> Self {
        let scale = |value: u32| u32::try_from(u64::from(value) * u64::from(percent) / 100).unwrap_or(u32::MAX);
        for cost in &mut self.0 {
            *cost = Cost { each_ns: scale(cost.each_ns), byte_ps: scale(cost.byte_ps) };
        }
        self
    }

    /// Whether this kind passes a queue that all cores share.
    pub fn is_shared(kind: CpuKind) -> bool {
        matches!(kind, CpuKind::FrameIn | CpuKind::WakeUp)
    }

    /// What a core that had nothing to do spends on waking up for this kind, which comes in from
    /// elsewhere. A core that works takes it without sleeping in between.
    fn of_wake_up(&self, kind: CpuKind, bytes: u64) -> Duration {
        match kind {
            CpuKind::FrameIn => self.of(CpuKind::CoreWakeUp, bytes),
            _ => Duration::ZERO,
        }
    }
}

/// The processors of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProcessorModel {
    /// Cores.
    pub cores: u32,
    /// What code costs.
    pub costs: Costs,
    /// How long a task works while others wait.
    pub slice: Duration,
    /// Changing from one task to another, without what the caches lose.
    pub switch: Duration,
    /// Memory that a task uses again and again.
    pub working_set_bytes: u64,
    /// Cache that all tasks share.
    pub cache_bytes: u64,
    /// Bytes per second at which a cache is filled again.
    pub refill_bytes_per_second: u64,
    /// Moving the cache line of a lock from one core to another.
    pub hand_over: Duration,
}

impl ProcessorModel {
    /// What a change from one task to another costs while so many are runnable.
    fn switch_among(&self, runnable: u64) -> Duration {
        let wanted = runnable.saturating_mul(self.working_set_bytes);
        let displaced = wanted.saturating_sub(self.cache_bytes);
        // Each working set loses an equal part of what does not fit.
        let lost_bytes = u128::from(self.working_set_bytes) * u128::from(displaced) / u128::from(wanted.max(1));
        let lost_bytes = u64::try_from(lost_bytes).unwrap_or(u64::MAX);
        self.switch + types::time::transfer_time(lost_bytes, self.refill_bytes_per_second)
    }
}

#[derive(Default)]
struct State {
    busy: u32,
    waiting: VecDeque<oneshot::Sender<Core>>,
    used: ProcessorUse,
}

/// What the cores did so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProcessorUse {
    /// Time that tasks worked, of all cores together.
    pub worked: Duration,
    /// Time that was lost in switches, likewise.
    pub switching: Duration,
    /// Switches.
    pub switches: u64,
}

struct Shared {
    simulation: Simulation,
    model: ProcessorModel,
    state: Mutex<State>,
}

/// The cores of one node. Clones are the same cores.
#[derive(Clone)]
pub struct NodeProcessors(Arc<Shared>);

/// A core that a task has; dropping it gives it to the next.
struct Core(Option<Arc<Shared>>);

impl NodeProcessors {
    /// Idle cores.
    pub fn new(simulation: &Simulation, model: ProcessorModel) -> Self {
        assert!(model.cores > 0, "a node has at least one core");
        Self(Arc::new(Shared { simulation: simulation.clone(), model, state: Mutex::default() }))
    }

    /// What they did so far.
    pub fn used(&self) -> ProcessorUse {
        self.0.state.lock().used
    }

    /// What this costs on them, while nobody else works.
    pub fn cost(&self, kind: CpuKind, bytes: u64) -> Duration {
        self.0.model.costs.of(kind, bytes)
    }

    /// Completes when a core has worked for so long, at whatever; how long is decided when it
    /// begins.
    pub async fn occupy(&self, time: impl FnOnce() -> Duration) {
        work(&self.0, |_| time()).await;
    }

    /// Time that they were busy so far, all together.
    fn busy_time(&self) -> Duration {
        let ProcessorUse { worked, switching, .. } = self.used();
        worked + switching
    }
}

impl rt::Processors for NodeProcessors {
    fn spend(&self, kind: CpuKind, bytes: u64) -> BoxFuture<'static, ()> {
        let shared = self.0.clone();
        Box::pin(async move {
            let more = |found: Found| {
                let wake_up = if found.waited { Duration::ZERO } else { shared.model.costs.of_wake_up(kind, bytes) };
                let others = if Costs::is_shared(kind) { found.others } else { 0 };
                wake_up + shared.model.hand_over * others
            };
            let cost = shared.model.costs.of(kind, bytes);
            work(&shared, |found| cost + more(found)).await;
        })
    }
}

/// What a task finds when it gets a core.
struct Found {
    /// The core worked for another task just before.
    waited: bool,
    /// Other cores that work.
    others: u32,
}

/// Works for as long as it takes as things are found, a slice at a time while others wait.
async fn work(shared: &Arc<Shared>, time: impl FnOnce(Found) -> Duration) {
    let (mut core, mut waited) = Shared::core(shared).await;
    let others = shared.state.lock().busy.saturating_sub(1);
    let mut left = time(Found { waited, others });
    loop {
        let worked = left.min(shared.model.slice);
        let switching = if waited { shared.note_switch() } else { Duration::ZERO };
        let end: Instant = shared.simulation.now() + switching + worked;
        shared.simulation.sleep_until(end).await;
        shared.state.lock().used.worked += worked;
        left -= worked;
        if left.is_zero() {
            return;
        }
        waited = !shared.state.lock().waiting.is_empty();
        if waited {
            drop(core);
            (core, _) = Shared::core(shared).await;
        }
    }
}

impl Shared {
    /// A core, and whether it worked for another task just before.
    async fn core(shared: &Arc<Shared>) -> (Core, bool) {
        let granted = {
            let mut state = shared.state.lock();
            if state.busy < shared.model.cores {
                state.busy += 1;
                return (Core(Some(shared.clone())), false);
            }
            let (grant, granted) = oneshot::channel();
            state.waiting.push_back(grant);
            granted
        };
        (granted.await.expect("a task that waits is given a core"), true)
    }

    fn note_switch(&self) -> Duration {
        let state = &mut *self.state.lock();
        let lost = self.model.switch_among(u64::from(state.busy) + state.waiting.len() as u64);
        state.used.switches += 1;
        state.used.switching += lost;
        lost
    }
}

impl Drop for Core {
    /// Outside of the lock, because a task that waits no more gives the core back.
    fn drop(&mut self) {
        let Some(shared) = self.0.take() else { return };
        loop {
            let next = {
                let mut state = shared.state.lock();
                assert!(state.busy > 0, "a core that is given back was busy");
                match state.waiting.pop_front() {
                    Some(next) => next,
                    None => {
                        state.busy -= 1;
                        return;
                    }
                }
            };
            match next.send(Core(Some(shared.clone()))) {
                Ok(()) => return,
                Err(mut unwanted) => unwanted.0 = None,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use rt::{Processors, clock::timeout_at};

    use super::*;
    use crate::{ProcessId, executor::RunLimits};

    const COPY: Cost = Cost { each_ns: 0, byte_ps: 1000 };

    /// A nanosecond for each byte that is copied, and nothing for anything else.
    fn model(cores: u32) -> ProcessorModel {
        let mut costs = Costs([Cost::default(); CpuKind::ALL.len()]);
        costs.0[CpuKind::Copy as usize] = COPY;
        ProcessorModel {
            cores,
            costs,
            slice: Duration::from_micros(100),
            switch: Duration::from_micros(2),
            working_set_bytes: 1 << 20,
            cache_bytes: 4 << 20,
            refill_bytes_per_second: 1 << 30,
            hand_over: Duration::from_nanos(100),
        }
    }

    /// When each of these copies of so many bytes, begun at once, is done.
    fn done(model: ProcessorModel, copies: &[u64]) -> (Vec<Duration>, ProcessorUse) {
        let simulation = Simulation::new(1);
        let processors = NodeProcessors::new(&simulation, model);
        let (clock, cores) = (simulation.clone(), processors.clone());
        let copies = copies.to_vec();
        let ran = simulation.run(RunLimits::default(), async move {
            let begun = clock.now();
            let ends: Vec<Arc<Mutex<Duration>>> = copies.iter().map(|_| Arc::default()).collect();
            let (finished, mut all) = tokio::sync::mpsc::unbounded_channel();
            for (bytes, end) in copies.iter().zip(&ends) {
                let work = cores.spend(CpuKind::Copy, *bytes);
                let (inner, end, finished) = (clock.clone(), end.clone(), finished.clone());
                let task = async move {
                    work.await;
                    *end.lock() = inner.now().since(begun);
                    finished.send(()).unwrap();
                };
                clock.spawn(ProcessId(1), "copy", Box::pin(task));
            }
            for _ in &copies {
                all.recv().await.unwrap();
            }
            ends.iter().map(|end| *end.lock()).collect()
        });
        let mut ends: Vec<Duration> = ran.unwrap();
        ends.sort();
        (ends, processors.used())
    }

    #[test]
    fn as_many_tasks_as_cores_do_not_hinder_each_other() {
        let (ends, used) = done(model(4), &[50_000; 4]);
        assert_eq!(ends, [Duration::from_micros(50); 4]);
        assert_eq!(used, ProcessorUse { worked: Duration::from_micros(200), ..ProcessorUse::default() });
    }

    #[test]
    fn one_task_alone_pays_no_switch_however_long_it_works() {
        let (ends, used) = done(model(1), &[1_000_000]);
        assert_eq!((ends, used.switches), (vec![Duration::from_millis(1)], 0));
    }

    #[test]
    fn tasks_that_share_a_core_take_turns_and_pay_for_them() {
        let (ends, used) = done(model(1), &[200_000, 200_000]);
        // Two slices each, in turns: the first begins without a switch, the other three follow one.
        assert_eq!(ends, [Duration::from_micros(304), Duration::from_micros(406)]);
        assert_eq!((used.switches, used.switching), (3, Duration::from_micros(6)));
    }

    #[test]
    fn a_switch_costs_more_when_the_working_sets_do_not_fit_the_cache() {
        let model = model(1);
        assert_eq!(model.switch_among(4), model.switch);
        // Half of 8 MiB does not fit: each loses half a MiB, which takes 1/2048 s.
        assert_eq!(model.switch_among(8), model.switch + Duration::from_secs(1) / 2048);
        assert!(model.switch_among(64) > model.switch_among(8));
        assert!(model.switch_among(u64::MAX) <= model.switch + Duration::from_secs(1) / 1024);
    }

    #[test]
    fn a_shared_queue_costs_more_the_more_cores_work() {
        let simulation = Simulation::new(1);
        let processors = NodeProcessors::new(&simulation, model(2));
        let (clock, cores) = (simulation.clone(), processors);
        let ran = simulation.run(RunLimits::default(), async move {
            let begun = clock.now();
            cores.spend(CpuKind::WakeUp, 0).await;
            let alone = clock.now().since(begun);
            let other = cores.spend(CpuKind::Copy, 50_000);
            clock.spawn(ProcessId(1), "other", Box::pin(other));
            clock.sleep(Duration::from_micros(1)).await;
            let begun = clock.now();
            cores.spend(CpuKind::WakeUp, 0).await;
            (alone, clock.now().since(begun))
        });
        assert_eq!(ran.unwrap(), (Duration::ZERO, Duration::from_nanos(100)));
    }

    #[test]
    fn a_core_wakes_up_for_a_frame_unless_it_works() {
        let mut model = ProcessorModel { switch: Duration::ZERO, hand_over: Duration::ZERO, ..model(1) };
        model.costs.0[CpuKind::CoreWakeUp as usize] = Cost { each_ns: 5000, byte_ps: 10 };
        let simulation = Simulation::new(1);
        let cores = NodeProcessors::new(&simulation, model);
        let clock = simulation.clone();
        let ran = simulation.run(RunLimits::default(), async move {
            let begun = clock.now();
            cores.spend(CpuKind::FrameIn, 1_000_000).await;
            let idle = clock.now().since(begun);
            clock.spawn(ProcessId(1), "copy", cores.spend(CpuKind::Copy, 50_000));
            clock.sleep(Duration::from_micros(20)).await;
            let begun = clock.now();
            cores.spend(CpuKind::FrameIn, 1_000_000).await;
            let busy = clock.now().since(begun);
            // What goes out finds its core awake: the task that sends it has just run.
            cores.spend(CpuKind::FrameOut, 1_000_000).await;
            (idle, busy, clock.now().since(begun))
        });
        let rest = Duration::from_micros(30);
        assert_eq!(ran.unwrap(), (Duration::from_micros(15), rest, rest));
    }

    #[test]
    fn a_task_that_gives_up_frees_its_core_and_its_place() {
        let simulation = Simulation::new(1);
        let processors = NodeProcessors::new(&simulation, model(1));
        let (inner, cores) = (simulation.clone(), processors.clone());
        let network = crate::network::Network::new(&simulation, 1);
        let clock = crate::Process::start(&simulation, &network, ProcessId(2), "n", 1).seams().clock;
        let ran = simulation.run(RunLimits::default(), async move {
            let soon = |micros| clock.now() + Duration::from_micros(micros);
            // One has the core and two wait, of which one ends before it gets it.
            inner.spawn(ProcessId(1), "first", cores.spend(CpuKind::Copy, 1_000_000));
            inner.sleep(Duration::from_micros(1)).await;
            let late = timeout_at(&*clock, soon(10), cores.spend(CpuKind::Copy, 10)).await;
            assert_eq!(late, None);
            inner.kill(ProcessId(1));
            let begun = clock.now();
            cores.spend(CpuKind::Copy, 10_000).await;
            clock.now().since(begun)
        });
        assert_eq!(ran.unwrap(), Duration::from_micros(10), "the core was free at once");
        assert_eq!(processors.0.state.lock().busy, 0);
    }

    #[test]
    fn a_table_can_be_off() {
        let costs = Costs([Cost { each_ns: 1000, byte_ps: 200 }; CpuKind::ALL.len()]);
        assert_eq!(costs.of(CpuKind::FrameIn, 1 << 20), Duration::from_nanos(1000 + (200 << 20) / 1000));
        assert_eq!(costs.scaled(130).0[0], Cost { each_ns: 1300, byte_ps: 260 });
        assert_eq!(costs.scaled(70).0[9], Cost { each_ns: 700, byte_ps: 140 });
    }
}
