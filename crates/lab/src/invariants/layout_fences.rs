//! No object refuses the layout that the MDT is about to give its file.

use super::{Invariant, Snapshot};
use crate::workload::Verdict;

/// A fence above the file's next layout would keep all clients from the object until the MDT has
/// counted up to it.
///
/// Holds as long as the MDT has not lost power: a client raises a fence to the generation after the
/// one that it has just got, under the exclusive data lock (`client::placement::leave_out`), and
/// the generation of the layout with the object never goes back, wherever a swap takes it. A power
/// loss may take the MDT back to an older generation than the fence was raised from; then the first
/// client that is refused has the layout renewed (`mds::ops::leave_out`).
pub(super) struct LayoutFences;

impl Invariant for LayoutFences {
    fn name(&self) -> &'static str {
        "no object refuses its file's next layout"
    }

    fn check(&mut self, now: &Snapshot) -> Verdict {
        let Some(mdt) = now.mdt.as_ref().filter(|_| !now.mdt_lost_power()) else { return Ok(()) };
        for (object, ost, inode) in mdt.named() {
            let record = now.osts.get(&ost).and_then(|state| state.objects.get(&object));
            let (Some(record), Some(layout)) = (record, inode.layout()) else { continue };
            if record.fence > layout.generation.next().0 {
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
    use crate::{
        invariants::sample::{FILE, layout_of, object, ost, sound},
        server::Role,
    };

    #[test]
    fn a_fence_is_at_most_at_the_next_layout() {
        let mut snapshot = sound();
        let next = layout_of(&mut snapshot, FILE).generation.next().0;
        ost(&mut snapshot).objects.get_mut(&object(FILE, 0)).unwrap().fence = next;
        assert_eq!(LayoutFences.check(&snapshot), Ok(()));
        ost(&mut snapshot).objects.get_mut(&object(FILE, 0)).unwrap().fence = next + 1;
        let violation = LayoutFences.check(&snapshot).unwrap_err();
        assert!(violation.contains(&format!("before generation {}", next + 1)), "{violation}");
        snapshot.lost_power.insert(Role::Mds);
        assert_eq!(LayoutFences.check(&snapshot), Ok(()));
    }
}
