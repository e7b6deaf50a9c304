//! What loses power in a round, and when workers hear of it.

use std::{
    collections::BTreeSet,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use rt::{Entropy, Instant};
use types::MdtIndex;

use crate::{Random, cluster::Cluster, faults::FaultPlan, server::Role};

/// What lost power, and when.
#[derive(Clone, Debug)]
pub struct Loss {
    /// When.
    pub at: Instant,
    /// Servers.
    pub roles: BTreeSet<Role>,
    /// Whether all clients ended with them.
    pub clients: bool,
    /// Longest time that an acknowledged change may stay in danger.
    pub danger_max: Duration,
}

impl Loss {
    /// Drawn for this moment.
    pub fn of_seed(cluster: &Cluster, plan: FaultPlan, random: &Random) -> Self {
        let roles = cluster.roles();
        let object_servers = || roles.iter().copied().filter(|role| matches!(role, Role::Oss(_)));
        let lost: BTreeSet<Role> = match random.below(4) {
            0 => Self::some_mds(cluster, random),
            1 => BTreeSet::from([*random.pick(&object_servers().collect::<Vec<_>>())]),
            2 => object_servers().collect(),
            _ => roles.iter().copied().collect(),
        };
        let (at, clients) = (cluster.simulation().now(), random.below(4) == 0);
        Self { at, roles: lost, clients, danger_max: danger_max(cluster, plan) }
    }

    /// The MDS; if there are several, some of them.
    fn some_mds(cluster: &Cluster, random: &Random) -> BTreeSet<Role> {
        let all: Vec<Role> = cluster.mds_roles().collect();
        if all.len() == 1 {
            return all.into_iter().collect();
        }
        let some = all.iter().copied().filter(|_| random.below(2) == 0);
        some.chain([*random.pick(&all)]).collect()
    }

    /// Nothing lost anything.
    pub fn nothing(cluster: &Cluster) -> Self {
        Self { at: cluster.simulation().now(), roles: BTreeSet::new(), clients: false, danger_max: Duration::ZERO }
    }

    /// Whether an OST lost power.
    pub fn hit_objects(&self) -> bool {
        self.roles.iter().any(|role| matches!(role, Role::Oss(_)))
    }

    /// Whether the first MDT lost power, which has all names that are not directories' of others.
    pub fn hit_names(&self) -> bool {
        self.roles.contains(&Role::Mds(0))
    }

    /// Whether this MDT lost power.
    pub fn hit(&self, mdt: MdtIndex) -> bool {
        self.roles.contains(&Role::Mds(mdt.0))
    }
}

/// Tells the workers of a round that the power is gone: what they have in progress has an unknown
/// end.
#[derive(Clone, Default)]
pub struct Blackout(Arc<AtomicBool>);

impl Blackout {
    /// It happens now.
    pub fn happens(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Whether it has happened.
    pub fn happened(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// Longest time that an acknowledged change may stay in danger. A server that is suspended, or
/// whose device does, commits nothing.
fn danger_max(cluster: &Cluster, plan: FaultPlan) -> Duration {
    if plan.stops || plan.hangs {
        return Duration::MAX;
    }
    /// For flushes, and for the queue before them.
    const SLACK: Duration = Duration::from_millis(200);
    let settings = &cluster.options().settings;
    settings.store.commit_interval + settings.ost.commit_interval + SLACK
}
