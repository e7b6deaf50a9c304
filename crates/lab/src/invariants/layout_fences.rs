//! No object refuses the layout that the MDT has of its file.

use super::{Invariant, Snapshot};
use crate::workload::Verdict;

/// A fence above the file's layout would keep all clients from the object for ever.
///
/// Holds whatever the MDT loses: the generation that a fence requires is durable before the MDT
/// sets the fence (`mds::ops::leave_full_ost`), and the generation of the layout with the object
/// never goes back, wherever a swap takes it.
pub(super) struct LayoutFences;

impl Invariant for LayoutFences {
    fn name(&self) -> &'static str {
        "no object refuses its file's layout"
    }

    fn check(&mut self, now: &Snapshot) -> Verdict {
        let Some(mdt) = now.mdt.as_ref() else { return Ok(()) };
        for (object, ost, inode) in mdt.named() {
            let record = now.osts.get(&ost).and_then(|state| state.objects.get(&object));
            let (Some(record), Some(layout)) = (record, inode.layout()) else { continue };
            if record.fence > layout.generation.0 {
                return Err(format!(
                    "object {object} on {ost} refuses layouts before generation {}, but inode {} is at {}",
                    record.fence,
                    inode.number(),
                    layout.generation.0
                ));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::invariants::sample::{FILE, layout_of, object, ost, sound};

    #[test]
    fn a_fence_is_at_most_at_the_layout() {
        let mut snapshot = sound();
        let present = layout_of(&mut snapshot, FILE).generation.0;
        ost(&mut snapshot).objects.get_mut(&object(FILE, 0)).unwrap().fence = present;
        assert_eq!(LayoutFences.check(&snapshot), Ok(()));
        ost(&mut snapshot).objects.get_mut(&object(FILE, 0)).unwrap().fence = present + 1;
        let violation = LayoutFences.check(&snapshot).unwrap_err();
        assert!(violation.contains(&format!("before generation {}", present + 1)), "{violation}");
    }
}
