//! The version of an inode never goes back, and names one state of its record.

use std::collections::BTreeMap;

use mds::tables::inode::Inode;
use types::InodeNumber;

use super::{Invariant, Snapshot};
use crate::{ProcessId, workload::Verdict};

/// A replay would be accepted on an inode that another client has changed.
///
/// Holds at every moment of one start of the MDT. When its process dies, changes are gone that were
/// applied but not written: no client was told of them, and others may get their versions. Every
/// batch that changes an inode raises its version (`mds::transaction::versions`); that a change of
/// names or attributes raises it too is asserted after each commit (`mds::audit`).
#[derive(Default)]
pub(super) struct Versions {
    /// The process of the MDT that had what was seen.
    process: Option<ProcessId>,
    seen: BTreeMap<InodeNumber, Inode>,
}

impl Invariant for Versions {
    fn name(&self) -> &'static str {
        "versions of inodes only grow"
    }

    fn check(&mut self, now: &Snapshot) -> Verdict {
        let Some(mdt) = &now.mdt else { return Ok(()) };
        if self.process != Some(mdt.process) {
            (self.process, self.seen) = (Some(mdt.process), mdt.inodes.clone());
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
    use crate::invariants::sample::{FILE, mdt, sound};

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
        mdt(&mut snapshot).process = ProcessId(99);
        assert_eq!(versions.check(&snapshot), Ok(()), "what was not written may be gone");
        change(&mut snapshot, |inode| inode.version = 7);
        assert!(versions.check(&snapshot).is_err());
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
