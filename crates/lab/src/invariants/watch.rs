//! Looks at a running cluster at times that the seed draws.
//!
//! The pauses are spread over all orders of magnitude, up to the time that has passed: some looks
//! follow each other within the steps of one request, a run without faults, which takes
//! milliseconds, has several, and one that takes minutes has not many more.
//!
//! Life cycle: [`Watch::begin`] starts a task of the simulation; the first violation ends the run
//! (see [`Cluster::failed`]) and the task.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use types::MdtIndex;

use super::{Invariant, Snapshot, all, cached_locks, names_over_mdts, scrubs, served::ServedIsTrue, served_above};
use crate::{
    ProcessId, Random,
    cluster::{Cluster, client_host},
    faults::spread,
    workload::Verdict,
};

/// Shortest pause between two looks.
const PAUSE_MIN: Duration = Duration::from_micros(100);
/// The longest pause at first.
const FIRST_PAUSE_MAX: Duration = Duration::from_millis(1);

/// A watch over a cluster.
#[derive(Clone, Default)]
pub struct Watch {
    looks: Arc<AtomicU64>,
}

impl Watch {
    /// From now on all invariants are checked again and again. With several MDTs only those between
    /// them are, and those about caches: the others need a snapshot of all servers, which has one
    /// MDT.
    pub fn begin(cluster: &Cluster) -> Watch {
        let watch = Watch::default();
        cached_locks::watch(cluster);
        let (looks, simulation, cluster) = (watch.looks.clone(), cluster.simulation().clone(), cluster.clone());
        let random = Random::for_purpose(cluster.seed(), "invariants");
        let task = async move {
            let mut invariants = all();
            let begun = cluster.simulation().now();
            loop {
                let passed = cluster.simulation().now().since(begun);
                let pause = spread(&random, PAUSE_MIN, FIRST_PAUSE_MAX.max(passed));
                cluster.simulation().sleep(pause).await;
                if let Err(reason) = look(&cluster, &mut invariants) {
                    return cluster.fail(reason);
                }
                looks.fetch_add(1, Ordering::Relaxed);
            }
        };
        simulation.spawn(ProcessId::DRIVER, "invariants", Box::pin(task));
        watch
    }

    /// How often it has looked.
    pub fn looks(&self) -> u64 {
        self.looks.load(Ordering::Relaxed)
    }
}

fn look(cluster: &Cluster, invariants: &mut [Box<dyn Invariant>]) -> Verdict {
    scrubs::check(cluster)?;
    if cluster.options().mdts > 1 {
        let checked = names_over_mdts::check(cluster);
        checked.map_err(|violation| format!("names over several MDTs do not fit their inodes: {violation}"))?;
        let of_mdt = |index| {
            let snapshot = Snapshot::of_mdt(cluster, MdtIndex(index))?;
            check(&mut ServedIsTrue, &snapshot).map_err(|violation| format!("MDT {index}: {violation}"))?;
            Ok(snapshot)
        };
        let snapshots = (0..cluster.options().mdts).map(of_mdt).collect::<Result<Vec<_>, String>>()?;
        return check_above(cluster, &snapshots);
    }
    let snapshot = Snapshot::of(cluster)?;
    invariants.iter_mut().try_for_each(|invariant| check(&mut **invariant, &snapshot))?;
    check_above(cluster, &[snapshot])
}

fn check_above(cluster: &Cluster, mdts: &[Snapshot]) -> Verdict {
    let caches = cluster.upper_caches().into_iter();
    let served: Vec<_> =
        caches.map(|(client, cache)| (format!("the cache above {}", client_host(client)), cache.served())).collect();
    served_above::check(&served, mdts).map_err(|violation| format!("what is served above clients: {violation}"))
}

fn check(invariant: &mut dyn Invariant, snapshot: &Snapshot) -> Verdict {
    let checked = invariant.check(snapshot);
    checked.map_err(|violation| format!("invariant \"{}\" is violated: {violation}", invariant.name()))
}
