//! A size and a number of blocks that the MDT says it knows are those of the objects.

use layout::{Layout, Location};
use mds::tables::inode::Inode;

use super::{Invariant, MdtState, Snapshot};
use crate::workload::Verdict;

/// A stat of a file whose size is known asks the MDT only: a difference would be a wrong answer.
///
/// Holds at every moment as long as neither the MDT nor an OST of the file has lost power. The size
/// is marked as not known, where the death of the MDT does not undo it, before a client may change
/// the file's data, and becomes known by the report of a client after the last change: every
/// request that was given up has had its effect by then, or never will (`mds::known_size`). What
/// OSTs do of their own accord, as write-back, changes neither.
///
/// A power loss takes changes from one server that another keeps. Files with an object on a server
/// that is down are not looked at.
pub(super) struct Sizes;

impl Invariant for Sizes {
    fn name(&self) -> &'static str {
        "a known size is that of the objects"
    }

    fn check(&mut self, now: &Snapshot) -> Verdict {
        let Some(mdt) = now.mdt.as_ref().filter(|_| !now.mdt_lost_power()) else { return Ok(()) };
        for inode in mdt.inodes.values().filter(|inode| inode.size_known) {
            let Some(implied) = inode.layout().and_then(|layout| implied(now, mdt, inode, layout)) else { continue };
            let known = (inode.attributes.size, inode.attributes.blocks);
            if implied != known {
                return Err(format!(
                    "inode {}: the MDT knows size and blocks {known:?}, the objects imply {implied:?}",
                    inode.number()
                ));
            }
        }
        Ok(())
    }
}

/// Size and blocks by the objects; `None` if not all of them can be relied on.
fn implied(now: &Snapshot, mdt: &MdtState, inode: &Inode, layout: &Layout) -> Option<(u64, u64)> {
    let (mut size, mut blocks) = (0, 0);
    for (slot, location) in layout.objects() {
        let object = layout.object(inode.number(), slot);
        let attributes = match location {
            Location::Mdt => mdt.data.get(&object).copied(),
            Location::Ost(ost) if now.ost_lost_power(ost) => return None,
            Location::Ost(ost) => now.osts.get(&ost)?.objects.get(&object).map(|record| record.attributes()),
        };
        if let Some(attributes) = attributes {
            size = size.max(layout.file_size(slot, attributes.size));
            blocks += attributes.blocks;
        }
    }
    Some((size, blocks))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        invariants::sample::{FILE, FIRST, inode, object, ost, sound},
        server::Role,
    };

    #[test]
    fn a_known_size_that_is_wrong_is_found() {
        let mut snapshot = sound();
        inode(&mut snapshot, FILE).attributes.size += 1;
        let violation = Sizes.check(&snapshot).unwrap_err();
        assert!(violation.starts_with(&format!("inode {FILE}: the MDT knows")), "{violation}");
        inode(&mut snapshot, FILE).size_known = false;
        assert_eq!(Sizes.check(&snapshot), Ok(()));
    }

    #[test]
    fn a_missing_object_is_found() {
        let mut snapshot = sound();
        ost(&mut snapshot).objects.remove(&object(FILE, 0));
        assert!(Sizes.check(&snapshot).is_err());
        for lost in [Role::Oss(FIRST.0), Role::Mds(0)] {
            snapshot.lost_power = [lost].into();
            assert_eq!(Sizes.check(&snapshot), Ok(()), "{lost} lost power");
        }
        snapshot.lost_power.clear();
        snapshot.osts.remove(&FIRST);
        assert_eq!(Sizes.check(&snapshot), Ok(()), "nobody can say");
    }
}
