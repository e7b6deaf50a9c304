//! Which hosts of a simulation are one machine: they share its cores and its link. And an MDT's
//! mutex: it executes one operation at a time, whatever cores its machine has.

use std::sync::Arc;

use rt::{BoxFuture, CpuKind, Processors};
use tokio::sync::Mutex;

/// Hosts of each machine. Object storage servers are in [`super::links::LinkModel`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Machines {
    /// Metadata targets of an MDS, each a host of its own in the lab: `mds` to `mds5` are one
    /// machine if this is 6.
    pub mdts: u16,
    /// Mounts of a client node, likewise.
    pub clients: u16,
    /// Whether an MDT executes one operation at a time. One mutex guards its namespace; in the lab
    /// it is held for no time, since code states its costs before it takes the mutex.
    pub mdts_one_at_a_time: bool,
}

impl Machines {
    /// Every host is a machine.
    pub const SEPARATE: Self = Self { mdts: 1, clients: 1, mdts_one_at_a_time: false };

    /// The machine of a host; `None`: the host itself.
    pub fn of(&self, host: &str) -> Option<String> {
        let number = |prefix: &str| match host.strip_prefix(prefix)? {
            "" => Some(0),
            number => number.parse::<u16>().ok(),
        };
        let (kind, number, each) = match (number("mds"), number("client")) {
            (Some(mds), _) => ("mds", mds, self.mdts),
            (None, Some(client)) => ("client", client, self.clients),
            (None, None) => return None,
        };
        (each > 1).then(|| format!("{kind} machine {}", number / each))
    }
}

/// The cores of an MDT that executes one operation at a time, in order of arrival.
pub struct OneAtATime {
    cores: Arc<dyn Processors>,
    turn: Arc<Mutex<()>>,
}

impl OneAtATime {
    /// An MDT on these cores.
    pub fn on(cores: Arc<dyn Processors>) -> Self {
        Self { cores, turn: Arc::default() }
    }
}

impl Processors for OneAtATime {
    fn spend(&self, kind: CpuKind, bytes: u64) -> BoxFuture<'static, ()> {
        let work = self.cores.spend(kind, bytes);
        if !matches!(kind, CpuKind::MetadataRead | CpuKind::MetadataChange) {
            return work;
        }
        let turn = Arc::clone(&self.turn);
        Box::pin(async move {
            let _turn = turn.lock().await;
            work.await;
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_of_a_machine_are_neighbours() {
        let machines = Machines { mdts: 6, clients: 32, mdts_one_at_a_time: true };
        let same = |one: &str, other: &str| machines.of(one) == machines.of(other);
        assert!(same("mds", "mds5") && !same("mds5", "mds6") && same("client32", "client63"));
        assert!(machines.of("oss1").is_none() && machines.of("mgs").is_none() && !same("mds", "client0"));
        assert_eq!(Machines::SEPARATE.of("mds3"), None);
    }
}
