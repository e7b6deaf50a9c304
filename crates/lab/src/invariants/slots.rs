//! No object is named twice: neither by two layouts nor by two slots of one.

use std::collections::BTreeMap;

use super::{Invariant, Snapshot};
use crate::workload::Verdict;

/// Two files that name one object would show each other's data, and the removal of one would take
/// the data of the other.
///
/// Holds at every moment, after every fault: an inode's number is in the names of one layout's
/// objects at a time. A swap exchanges both layouts in one batch (`layout::swap`). A power loss
/// takes the MDT back to a prefix of its batches; growth of layouts that it took with it is
/// reclaimed by the clients that know it, for the same file.
pub(super) struct LayoutSlots;

impl Invariant for LayoutSlots {
    fn name(&self) -> &'static str {
        "an object belongs to one file"
    }

    fn check(&mut self, now: &Snapshot) -> Verdict {
        let Some(mdt) = &now.mdt else { return Ok(()) };
        let mut seen = BTreeMap::new();
        for (object, ost, inode) in mdt.named() {
            if let Some((other_ost, other)) = seen.insert(object, (ost, inode.number())) {
                let number = inode.number();
                return Err(format!(
                    "object {object} is named by inode {other} on {other_ost} and by inode {number} on {ost}"
                ));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use types::InodeNumber;

    use super::*;
    use crate::invariants::sample::{FILE, NEXT, layout_of, sound};

    #[test]
    fn layouts_of_two_files_may_not_name_one_object() {
        let mut snapshot = sound();
        layout_of(&mut snapshot, NEXT).named_by = Some(FILE);
        let violation = LayoutSlots.check(&snapshot).unwrap_err();
        assert!(violation.contains(&format!("inode {FILE} on OST0000 and by inode {NEXT}")), "{violation}");
    }

    /// As after a swap.
    #[test]
    fn layouts_may_be_exchanged() {
        let mut snapshot = sound();
        layout_of(&mut snapshot, FILE).named_by = Some(NEXT);
        layout_of(&mut snapshot, NEXT).named_by = Some(FILE);
        assert_eq!(LayoutSlots.check(&snapshot), Ok(()));
        layout_of(&mut snapshot, NEXT).named_by = Some(InodeNumber(NEXT.0 + 1));
        assert_eq!(LayoutSlots.check(&snapshot), Ok(()));
    }
}
