//! Space of targets and of the devices below them.
//!
//! Several targets may be on one device. Each reports the space and the identity of the whole
//! device; sums count a device once ([`SpaceUsage::sum`]).

use std::{collections::BTreeMap, fmt};

use serde::{Deserialize, Serialize};

use crate::split_mix::mix;

/// Identity of a device: two targets with the same one share its space. It holds for one boot of
/// the host and is stored nowhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct DeviceId(pub u64);

impl DeviceId {
    /// The device that `host` calls `number`. `host` is 128 random bits, so identities of different
    /// hosts are as good as random.
    pub fn new(host: u128, number: u64) -> Self {
        let mixed = mix(number) ^ host as u64;
        Self(mix(mixed) ^ (host >> 64) as u64)
    }
}

impl fmt::Display for DeviceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

/// Space and inodes of a target, as statfs(2) shows them. Bytes, not blocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SpaceUsage {
    /// Capacity in bytes.
    pub bytes_total: u64,
    /// Free bytes.
    pub bytes_free: u64,
    /// Free bytes for users other than root.
    pub bytes_available: u64,
    /// Inodes or objects the target can hold.
    pub inodes_total: u64,
    /// Inodes or objects still free.
    pub inodes_free: u64,
    /// The device whose bytes these are; `None` if unknown: then no other target has the same.
    #[serde(default)]
    pub device: Option<DeviceId>,
}

impl SpaceUsage {
    /// What targets have together. Of those on one device the numbers are those of the target that
    /// may use most of it: what one keeps in reserve, the others keep as well, in the same place.
    /// Inodes in use are each target's own; the free ones are made of the device's space.
    pub fn sum(spaces: impl IntoIterator<Item = SpaceUsage>) -> SpaceUsage {
        let mut devices: BTreeMap<DeviceId, SpaceUsage> = BTreeMap::new();
        let mut sum = SpaceUsage::default();
        for space in spaces {
            match space.device {
                None => sum.add(&space),
                Some(device) => devices.entry(device).or_default().add_of_same_device(&space),
            }
        }
        devices.values().for_each(|space| sum.add(space));
        sum
    }

    fn add(&mut self, other: &SpaceUsage) {
        self.bytes_total = self.bytes_total.saturating_add(other.bytes_total);
        self.bytes_free = self.bytes_free.saturating_add(other.bytes_free);
        self.bytes_available = self.bytes_available.saturating_add(other.bytes_available);
        self.inodes_total = self.inodes_total.saturating_add(other.inodes_total);
        self.inodes_free = self.inodes_free.saturating_add(other.inodes_free);
    }

    fn add_of_same_device(&mut self, other: &SpaceUsage) {
        let inodes_used = self.inodes_used().saturating_add(other.inodes_used());
        self.bytes_total = self.bytes_total.max(other.bytes_total);
        self.bytes_free = self.bytes_free.max(other.bytes_free);
        self.bytes_available = self.bytes_available.max(other.bytes_available);
        self.inodes_free = self.inodes_free.max(other.inodes_free);
        self.inodes_total = inodes_used.saturating_add(self.inodes_free);
    }

    /// Bytes in use, reserves included.
    pub fn bytes_used(&self) -> u64 {
        self.bytes_total.saturating_sub(self.bytes_free)
    }

    /// Inodes or objects there are.
    pub fn inodes_used(&self) -> u64 {
        self.inodes_total.saturating_sub(self.inodes_free)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn target(device: Option<u64>, free: u64, objects: u64) -> SpaceUsage {
        SpaceUsage {
            bytes_total: 1000,
            bytes_free: free,
            bytes_available: free,
            inodes_total: objects + free,
            inodes_free: free,
            device: device.map(DeviceId),
        }
    }

    #[test]
    fn a_device_counts_once_however_many_targets_it_has() {
        let shared = SpaceUsage::sum([target(Some(1), 600, 5), target(Some(1), 590, 7), target(Some(1), 600, 1)]);
        assert_eq!((shared.bytes_total, shared.bytes_free, shared.bytes_available), (1000, 600, 600));
        assert_eq!((shared.inodes_used(), shared.inodes_free), (13, 600), "each has inodes of its own");
        let two = SpaceUsage::sum([target(Some(1), 600, 5), target(Some(2), 100, 5), target(Some(1), 600, 5)]);
        assert_eq!((two.bytes_total, two.bytes_free, two.inodes_used()), (2000, 700, 15));
        let unknown = SpaceUsage::sum([target(None, 600, 5), target(None, 100, 5)]);
        assert_eq!((unknown.bytes_total, unknown.bytes_free, unknown.inodes_used()), (2000, 700, 10));
    }

    #[test]
    fn hosts_have_no_device_in_common() {
        let ids: std::collections::BTreeSet<_> = (0..100u128)
            .flat_map(|host| (0..100).map(move |number| DeviceId::new(host << 70 | host, number)))
            .collect();
        assert_eq!(ids.len(), 10_000);
        assert_eq!(DeviceId::new(7, 8), DeviceId::new(7, 8));
    }
}
