//! What a file has is not destroyed, and what was destroyed never comes back.

use std::collections::BTreeMap;

use types::{ObjectId, OstIndex};

use super::{Invariant, OstState, Snapshot};
use crate::{ProcessId, workload::Verdict};

/// An object that a layout names and that is destroyed is data lost without an error: it reads as
/// zeros.
///
/// Holds at every moment, after every fault:
/// - the batch that adds an object to the deferred operation log takes it out of the last layout
///   that names it, and its slot is not given again;
/// - the OST is told only once that batch is durable, so that a crash of the MDT, which takes it
///   back to before the batch, finds the object;
/// - an OST removes the record of an object only when it destroys it. Records that its crash may
///   take are not held against it: those of another process count only if they were durable.
///
/// `mds::audit` asserts the first for the inodes that a batch changes; here all layouts count.
#[derive(Default)]
pub(super) struct Destroyed {
    osts: BTreeMap<OstIndex, Seen>,
}

/// What earlier looks saw of an OST. Of each object: whether a crash of the OST could have undone
/// it.
struct Seen {
    process: ProcessId,
    present: BTreeMap<ObjectId, Lasting>,
    destroyed: BTreeMap<ObjectId, Lasting>,
}

/// Whether what was seen was durable.
type Lasting = bool;

impl Seen {
    fn new(process: ProcessId) -> Self {
        Self { process, present: BTreeMap::new(), destroyed: BTreeMap::new() }
    }

    /// Takes over what is there now; an object that came back after its destruction is an error.
    fn look(&mut self, now: &OstState) -> Result<(), ObjectId> {
        if self.process != now.process {
            self.process = now.process;
            self.present.retain(|_, lasting| *lasting);
            self.destroyed.retain(|_, lasting| *lasting);
        }
        let is_gone = |object: &ObjectId| !now.objects.contains_key(object);
        let gone: Vec<ObjectId> = self.present.keys().copied().filter(is_gone).collect();
        for object in gone {
            self.present.remove(&object);
            self.destroyed.insert(object, false);
        }
        for object in now.objects.keys() {
            if self.destroyed.contains_key(object) {
                return Err(*object);
            }
            self.present.entry(*object).or_insert(false);
        }
        if now.is_durable {
            self.present.values_mut().chain(self.destroyed.values_mut()).for_each(|lasting| *lasting = true);
        }
        Ok(())
    }
}

impl Invariant for Destroyed {
    fn name(&self) -> &'static str {
        "what a file has is not destroyed"
    }

    fn check(&mut self, now: &Snapshot) -> Verdict {
        for (ost, state) in &now.osts {
            let seen = self.osts.entry(*ost).or_insert_with(|| Seen::new(state.process));
            seen.look(state).map_err(|object| format!("object {object} is on {ost} again after it was destroyed"))?;
        }
        let Some(mdt) = &now.mdt else { return Ok(()) };
        for (object, ost, inode) in mdt.named() {
            let number = inode.number();
            if mdt.to_destroy.contains(&(ost, object)) {
                return Err(format!("{ost} is to destroy object {object}, but the layout of inode {number} names it"));
            }
            if self.osts.get(&ost).is_some_and(|seen| seen.destroyed.contains_key(&object)) {
                return Err(format!("{ost} has destroyed object {object}, but the layout of inode {number} names it"));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::invariants::sample::{FILE, FIRST, mdt, object, ost, sound};

    #[test]
    fn an_object_that_a_layout_names_is_not_to_be_destroyed() {
        let mut snapshot = sound();
        mdt(&mut snapshot).to_destroy.insert((FIRST, object(FILE, 0)));
        let violation = Destroyed::default().check(&snapshot).unwrap_err();
        assert!(violation.starts_with("OST0000 is to destroy object"), "{violation}");
    }

    #[test]
    fn a_destroyed_object_of_a_file_is_found() {
        let (mut destroyed, mut snapshot) = (Destroyed::default(), sound());
        assert_eq!(destroyed.check(&snapshot), Ok(()));
        ost(&mut snapshot).objects.remove(&object(FILE, 0));
        let violation = destroyed.check(&snapshot).unwrap_err();
        assert!(violation.contains(&format!("OST0000 has destroyed object {}", object(FILE, 0))), "{violation}");
    }

    #[test]
    fn a_destroyed_object_does_not_come_back() {
        let (mut destroyed, mut snapshot) = (Destroyed::default(), sound());
        assert_eq!(destroyed.check(&snapshot), Ok(()));
        let before = snapshot.clone();
        mdt(&mut snapshot).inodes.remove(&FILE);
        ost(&mut snapshot).objects.remove(&object(FILE, 0));
        assert_eq!(destroyed.check(&snapshot), Ok(()));
        let violation = destroyed.check(&before).unwrap_err();
        assert!(violation.contains("is on OST0000 again"), "{violation}");
    }

    #[test]
    fn a_crash_may_take_what_was_not_durable() {
        for is_durable in [false, true] {
            let (mut destroyed, mut snapshot) = (Destroyed::default(), sound());
            ost(&mut snapshot).is_durable = is_durable;
            assert_eq!(destroyed.check(&snapshot), Ok(()));
            ost(&mut snapshot).process = ProcessId(100);
            ost(&mut snapshot).objects.remove(&object(FILE, 0));
            assert_eq!(destroyed.check(&snapshot).is_ok(), !is_durable);
        }
    }

    #[test]
    fn a_crash_may_undo_a_destruction_that_was_not_durable() {
        for is_durable in [false, true] {
            let (mut destroyed, mut snapshot) = (Destroyed::default(), sound());
            mdt(&mut snapshot).inodes.remove(&FILE);
            assert_eq!(destroyed.check(&snapshot), Ok(()));
            let mut after = snapshot.clone();
            ost(&mut after).objects.remove(&object(FILE, 0));
            ost(&mut after).is_durable = is_durable;
            assert_eq!(destroyed.check(&after), Ok(()));
            ost(&mut snapshot).process = ProcessId(100);
            assert_eq!(destroyed.check(&snapshot).is_ok(), !is_durable);
        }
    }
}
