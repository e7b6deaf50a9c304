//! Every object on an OST belongs to a file, or is about to be destroyed.

use super::{Invariant, Snapshot};
use crate::workload::Verdict;

/// An object that belongs to no file would take space forever; one on another OST than its layout
/// names would be data that no client reads.
///
/// Holds as long as the MDT has not lost power:
/// - a client writes only by layouts that were answered to it, and an answer shows nothing that the
///   death of the MDT would undo; the file was marked as having objects when it was opened;
/// - a slot is never given to another OST once its object may exist (`mds::ops::place`, and
///   `beginning` of `mds::ops::layout_changes`);
/// - a file is removed after the last of its opens has ended, and with it all requests of the
///   opener: those that were given up are not executed any more, and those of an evicted client are
///   refused, since each OST is told to refuse it before it is told to destroy;
/// - the batch that removes a file adds its objects to the deferred operation log, and they leave
///   it after the OST has made their destruction durable.
///
/// A power loss may take the MDT back to before a file was created, had grown, or was given another
/// layout before anything was written to it; then objects remain until `stria fsck` removes
/// them.
pub(super) struct Objects;

impl Invariant for Objects {
    fn name(&self) -> &'static str {
        "an object has a file or is to be destroyed"
    }

    fn check(&mut self, now: &Snapshot) -> Verdict {
        let Some(mdt) = now.mdt.as_ref().filter(|_| !now.mdt_lost_power()) else { return Ok(()) };
        let owners = mdt.owners();
        for (ost, state) in &now.osts {
            for object in state.objects.keys() {
                let owner = owners.get(object);
                if let Some((wanted, inode)) = owner.filter(|(wanted, _)| wanted != ost) {
                    return Err(format!(
                        "object {object} is on {ost}, but the layout of inode {} has it on {wanted}",
                        inode.number()
                    ));
                }
                let is_in_use = owner.is_some_and(|(_, inode)| inode.may_have_objects());
                if !is_in_use && !mdt.to_destroy.contains(&(*ost, *object)) {
                    return Err(format!(
                        "object {object} is on {ost}, but no file with objects names it and {ost} is not to destroy it"
                    ));
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        invariants::sample::{FILE, FIRST, SECOND, inode, mdt, object, ost, sound},
        server::Role,
    };

    #[test]
    fn an_object_without_a_file_is_found() {
        let mut snapshot = sound();
        mdt(&mut snapshot).inodes.remove(&FILE);
        let violation = Objects.check(&snapshot).unwrap_err();
        assert!(violation.contains(&format!("{} is on OST0000, but no file", object(FILE, 0))), "{violation}");
        mdt(&mut snapshot).to_destroy.insert((FIRST, object(FILE, 0)));
        assert!(Objects.check(&snapshot).is_err(), "the other object");
        mdt(&mut snapshot).to_destroy.insert((SECOND, object(FILE, 1)));
        assert_eq!(Objects.check(&snapshot), Ok(()));
    }

    #[test]
    fn a_file_that_was_never_written_has_no_objects() {
        let mut snapshot = sound();
        inode(&mut snapshot, FILE).epoch = 0;
        assert!(Objects.check(&snapshot).is_err());
    }

    #[test]
    fn a_power_loss_of_the_mdt_may_leave_objects_behind() {
        let mut snapshot = sound();
        mdt(&mut snapshot).inodes.remove(&FILE);
        snapshot.lost_power.insert(Role::Mds(0));
        assert_eq!(Objects.check(&snapshot), Ok(()));
    }

    #[test]
    fn an_object_on_another_ost_than_its_layout_says_is_found() {
        let mut snapshot = sound();
        let moved = snapshot.osts[&FIRST].objects[&object(FILE, 0)];
        snapshot.osts.get_mut(&SECOND).unwrap().objects.insert(object(FILE, 0), moved);
        let violation = Objects.check(&snapshot).unwrap_err();
        assert!(violation.contains("is on OST0001, but the layout"), "{violation}");
    }

    /// Seed 2291 of mode power: an unnamed file, made for a migration, got the layout that was
    /// asked for and was copied to. The power loss took that layout, but not the file, whose first
    /// layout had the same slot on another OST.
    #[test]
    fn a_power_loss_of_the_mdt_may_bring_back_the_layout_that_a_migration_replaced() {
        let mut snapshot = sound();
        let copied = ost(&mut snapshot).objects.remove(&object(FILE, 0)).unwrap();
        snapshot.osts.get_mut(&SECOND).unwrap().objects.insert(object(FILE, 0), copied);
        assert!(Objects.check(&snapshot).is_err());
        snapshot.lost_power.insert(Role::Mds(0));
        assert_eq!(Objects.check(&snapshot), Ok(()));
    }
}
