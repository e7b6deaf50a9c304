//! The version of an inode never goes back, and names one state of its record.

use std::collections::BTreeMap;

use mds::tables::inode::Inode;
use types::InodeNumber;

use super::{Invariant, Snapshot};
use crate::workload::Verdict;

/// A replay would be accepted on an inode that somebody else has changed.
///
/// Holds at every moment, across restarts of the MDT, as long as it has not lost power: then changes
/// that nobody synced are gone, and other ones may get their versions. Every batch that changes an
/// inode raises its version (`mds::transaction::versions`); that a change of names or attributes
/// raises it too is asserted after each commit (`mds::audit`).
#[derive(Default)]
pub(super) struct Versions {
    seen: BTreeMap<InodeNumber, Inode>,
}

impl Invariant for Versions {
    fn name(&self) -> &'static str {
        "versions of inodes only grow"
    }

    fn check(&mut self, now: &Snapshot) -> Verdict {
        let Some(mdt) = &now.mdt else { return Ok(()) };
        if now.mdt_lost_power() {
            return Ok(());
        }
        for (number, inode) in &mdt.inodes {
            let Some(before) = self.seen.get(number) else { continue };
            if inode.version < before.version {
                return Err(format!("inode {number} has version {} after version {}", inode.version, before.version));
            }
            if inode.version == before.version && inode != before {
                return Err(format!("version {} of inode {number} is {inode:?}, it was {before:?}", inode.version));
            }
        }
        self.seen = mdt.inodes.clone();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        invariants::sample::{FILE, mdt, sound},
        server::Role,
    };

    fn change(snapshot: &mut Snapshot, change: impl FnOnce(&mut Inode)) {
        change(mdt(snapshot).inodes.get_mut(&FILE).unwrap());
    }

    #[test]
    fn a_version_that_goes_back_is_found() {
        let (mut versions, mut snapshot) = (Versions::default(), sound());
        change(&mut snapshot, |inode| inode.version = 9);
        versions.check(&snapshot).unwrap();
        change(&mut snapshot, |inode| inode.version = 8);
        let violation = versions.check(&snapshot).unwrap_err();
        assert!(violation.ends_with("has version 8 after version 9"), "{violation}");
        snapshot.lost_power.insert(Role::Mds);
        assert_eq!(versions.check(&snapshot), Ok(()), "a power loss may take changes");
    }

    #[test]
    fn a_change_without_a_version_is_found() {
        let (mut versions, mut snapshot) = (Versions::default(), sound());
        versions.check(&snapshot).unwrap();
        change(&mut snapshot, |inode| inode.attributes.mode = 0o600);
        assert!(versions.check(&snapshot).unwrap_err().contains("it was"));
        change(&mut snapshot, |inode| inode.version += 1);
        assert_eq!(versions.check(&snapshot), Ok(()));
    }
}
