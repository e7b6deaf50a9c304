//! Which hosts of a simulation are one machine: they share its cores and its link. And what the
//! lock of an MDT's namespace costs there.

use super::namespace_lock::LockCosts;

/// Hosts of each machine. Object storage servers are in [`super::links::LinkModel`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Machines {
    /// Metadata targets of an MDS, each a host of its own in the lab: `mds` to `mds5` are one
    /// machine if this is 6.
    pub mdts: u16,
    /// Mounts of a client node, likewise.
    pub clients: u16,
    /// The lock of each MDT's namespace; `None`: it keeps nobody waiting. In the lab code holds it
    /// for no time, since it states its costs before.
    pub namespace_lock: Option<LockCosts>,
}

impl Machines {
    /// Every host is a machine.
    pub const SEPARATE: Self = Self { mdts: 1, clients: 1, namespace_lock: None };

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_of_a_machine_are_neighbours() {
        let machines = Machines { mdts: 6, clients: 32, namespace_lock: None };
        let same = |one: &str, other: &str| machines.of(one) == machines.of(other);
        assert!(same("mds", "mds5") && !same("mds5", "mds6") && same("client32", "client63"));
        assert!(machines.of("oss1").is_none() && machines.of("mgs").is_none() && !same("mds", "client0"));
        assert_eq!(Machines::SEPARATE.of("mds3"), None);
    }
}
