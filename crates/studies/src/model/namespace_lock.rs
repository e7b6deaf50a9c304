//! The lock of an MDT's namespace in virtual time: requests that only read work beside each other,
//! and a change works alone, in order of arrival; a change that waits keeps later readers out.
//!
//! ```text
//!   read    lock, shared --> works, longer with others beside it ------------------> unlock
//!   change  lock, alone  --> works; longer, and at more cost, if it had to wait ---> unlock
//! ```
//!
//! Downside: an operation has the lock for all that it costs, which is more than what runs under it
//! in the shipped server: its requests are taken apart, and its journal is written, without it.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use lab::processors::NodeProcessors;
use rt::{BoxFuture, CpuKind, Processors};
use tokio::sync::RwLock;

/// What it costs that several want it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LockCosts {
    /// A read takes so much longer for each other one that works beside it.
    pub beside: Duration,
    /// An operation that had to wait has it for so much longer: it comes from another core.
    pub handed_over: Duration,
    /// And a core has so much more to do: it waits in a loop, sleeps and wakes up.
    pub waited: Duration,
}

/// See the module documentation.
pub struct NamespaceLock {
    cores: NodeProcessors,
    costs: LockCosts,
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    lock: RwLock<()>,
    /// Reads that have a core.
    readers: AtomicU32,
}

/// A read, from when it begins to work on.
struct Reader<'s> {
    at_work: &'s AtomicU32,
    has_begun: bool,
}

impl Reader<'_> {
    /// Begins; how many others are at work.
    fn begin(&mut self) -> u32 {
        self.has_begun = true;
        self.at_work.fetch_add(1, Ordering::Relaxed)
    }
}

impl Drop for Reader<'_> {
    fn drop(&mut self) {
        if self.has_begun {
            self.at_work.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

impl NamespaceLock {
    /// That of an MDT on these cores.
    pub fn on(cores: NodeProcessors, costs: LockCosts) -> Self {
        Self { cores, costs, shared: Arc::default() }
    }
}

impl Processors for NamespaceLock {
    fn spend(&self, kind: CpuKind, bytes: u64) -> BoxFuture<'static, ()> {
        let (cores, costs, shared) = (self.cores.clone(), self.costs, self.shared.clone());
        let time = cores.cost(kind, bytes);
        match kind {
            CpuKind::MetadataRead => Box::pin(async move { read(&cores, costs, &shared, time).await }),
            CpuKind::MetadataChange => Box::pin(async move { change(&cores, costs, &shared, time).await }),
            _ => cores.spend(kind, bytes),
        }
    }
}

async fn read(cores: &NodeProcessors, costs: LockCosts, shared: &Shared, time: Duration) {
    let (locked, waited) = match shared.lock.try_read() {
        Ok(locked) => (locked, false),
        Err(_) => (shared.lock.read().await, true),
    };
    let mut reader = Reader { at_work: &shared.readers, has_begun: false };
    cores.occupy(|| time + costs.beside * reader.begin()).await;
    drop((reader, locked));
    after_wait(cores, costs, waited).await;
}

async fn change(cores: &NodeProcessors, costs: LockCosts, shared: &Shared, time: Duration) {
    let (locked, waited) = match shared.lock.try_write() {
        Ok(locked) => (locked, false),
        Err(_) => (shared.lock.write().await, true),
    };
    let handed_over = if waited { costs.handed_over } else { Duration::ZERO };
    cores.occupy(|| time + handed_over).await;
    drop(locked);
    after_wait(cores, costs, waited).await;
}

/// The rest of what a wait has cost, which nobody else waits for.
async fn after_wait(cores: &NodeProcessors, costs: LockCosts, waited: bool) {
    if waited {
        cores.occupy(|| costs.waited).await;
    }
}

#[cfg(test)]
mod tests {
    use lab::{ProcessId, Simulation, executor::RunLimits, processors::ProcessorModel};
    use parking_lot::Mutex;
    use rt::CpuKind::{Copy, MetadataChange, MetadataRead};

    use super::*;
    use crate::model::costs::{MEASURED, node};

    const COSTS: LockCosts = LockCosts {
        beside: Duration::from_nanos(100),
        handed_over: Duration::from_nanos(2_000),
        waited: Duration::from_nanos(30_000),
    };
    const READ: u64 = 4_500;
    const CHANGE: u64 = 10_200;

    /// When each of these, begun in this order, is done, in nanoseconds, rounded down to 100; and
    /// how long all cores worked.
    fn done(kinds: &[CpuKind]) -> (Vec<u64>, u64) {
        let simulation = Simulation::new(1);
        let cores = NodeProcessors::new(&simulation, ProcessorModel { working_set_bytes: 0, ..node(12, MEASURED) });
        let mdt = NamespaceLock::on(cores.clone(), COSTS);
        let (clock, kinds) = (simulation.clone(), kinds.to_vec());
        let ran = simulation.run(RunLimits::default(), async move {
            let begun = clock.now();
            let ends = Arc::new(Mutex::new(vec![0; kinds.len()]));
            for (number, kind) in kinds.iter().enumerate() {
                let (work, ends, inner) = (mdt.spend(*kind, 0), ends.clone(), clock.clone());
                let task = async move {
                    work.await;
                    ends.lock()[number] = inner.now().since(begun).as_nanos() as u64 / 100 * 100;
                };
                clock.spawn(ProcessId(1), "operation", Box::pin(task));
                clock.sleep(Duration::from_nanos(1)).await;
            }
            clock.sleep(Duration::from_secs(1)).await;
            ends.lock().clone()
        });
        (ran.unwrap(), cores.used().worked.as_nanos() as u64)
    }

    #[test]
    fn reads_work_beside_each_other_and_pay_for_that() {
        assert_eq!(done(&[MetadataRead; 3]).0, [READ, READ + 100, READ + 200]);
    }

    /// Those that wait for a core do not count.
    #[test]
    fn as_many_reads_are_beside_each_other_as_there_are_cores() {
        let (ends, _) = done(&[MetadataRead; 400]);
        let last = ends.into_iter().max().unwrap();
        // 34 rounds on 12 cores.
        let switches = 34 * 3_800;
        assert!(last < 34 * (READ + 11 * 100) + switches, "{last}");
    }

    #[test]
    fn a_change_works_alone_and_costs_more_after_a_wait() {
        let second = CHANGE + CHANGE + 2_000;
        let third = second + CHANGE + 2_000;
        let (ends, worked) = done(&[MetadataChange; 3]);
        assert_eq!(ends, [CHANGE, second + 30_000, third + 30_000]);
        assert_eq!(worked, 3 * CHANGE + 2 * 32_000);
    }

    #[test]
    fn a_change_that_waits_keeps_later_readers_out() {
        let (mut ends, _) = done(&[MetadataRead, MetadataChange, MetadataRead, MetadataRead, Copy]);
        let change = READ + CHANGE + 2_000;
        // The seed says which of the two goes first.
        ends[2..4].sort_unstable();
        assert_eq!(ends, [READ, change + 30_000, change + READ + 30_000, change + READ + 100 + 30_000, 0]);
    }
}
