//! What OSTs count is what they have.

use super::{Invariant, Snapshot};
use crate::workload::Verdict;

/// Placement and `df` rely on the sums that an OST keeps, and clients on the counts of each object.
///
/// Holds at every moment, after every fault: each batch that changes the states of blocks changes
/// the counts of their object and the sums over all objects with them (`oss::directory`,
/// transaction), and those of bitmaps come with the chunks that name the blocks. Of the space that
/// the MDT was told of, what users may take is part of what is free, and that of the total.
pub(super) struct Space;

impl Invariant for Space {
    fn name(&self) -> &'static str {
        "space adds up"
    }

    fn check(&mut self, now: &Snapshot) -> Verdict {
        for (ost, state) in &now.osts {
            let (mut objects, mut blocks) = (0, 0);
            for (object, record) in &state.objects {
                let held = state.held.get(object).copied().unwrap_or_default();
                if (record.blocks, record.inline_blocks) != held {
                    return Err(format!(
                        "object {object} on {ost} counts {} blocks, {} of them inline, but has {held:?}",
                        record.blocks, record.inline_blocks
                    ));
                }
                objects += 1;
                blocks += record.blocks;
            }
            if (state.totals.objects, state.totals.blocks) != (objects, blocks) {
                return Err(format!("{ost} counts {:?}, but has {objects} objects with {blocks} blocks", state.totals));
            }
            if let Some(problem) = state.device.first() {
                return Err(format!("{ost}: {problem}"));
            }
            if let Some(object) = state.held.keys().find(|object| !state.objects.contains_key(object)) {
                return Err(format!("{ost} has blocks of object {object}, which does not exist"));
            }
        }
        for (ost, space) in now.mdt.iter().flat_map(|mdt| &mdt.reports) {
            let nested = space.bytes_available <= space.bytes_free && space.bytes_free <= space.bytes_total;
            if !nested || space.inodes_free > space.inodes_total {
                return Err(format!("{ost} reported {space:?}"));
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
    fn wrong_sums_are_found() {
        let mut snapshot = sound();
        ost(&mut snapshot).device.push("block 7 of the device has two owners".to_owned());
        assert!(Space.check(&snapshot).unwrap_err().starts_with("OST0000: block 7"));
        let mut snapshot = sound();
        ost(&mut snapshot).totals.blocks += 1;
        assert!(Space.check(&snapshot).unwrap_err().starts_with("OST0000 counts Totals"));
        let mut snapshot = sound();
        ost(&mut snapshot).totals.objects -= 1;
        assert!(Space.check(&snapshot).is_err());
    }

    #[test]
    fn wrong_counts_of_an_object_are_found() {
        let mut snapshot = sound();
        ost(&mut snapshot).objects.get_mut(&object(FILE, 0)).unwrap().inline_blocks += 1;
        assert!(Space.check(&snapshot).unwrap_err().starts_with("object"));
    }

    #[test]
    fn blocks_without_an_object_are_found() {
        let mut snapshot = sound();
        ost(&mut snapshot).held.insert(object(FILE, 9), (1, 0));
        assert!(Space.check(&snapshot).unwrap_err().contains("which does not exist"));
    }

    #[test]
    fn reports_that_do_not_add_up_are_found() {
        let mut snapshot = sound();
        let report = mdt(&mut snapshot).reports.get_mut(&FIRST).unwrap();
        report.bytes_available = report.bytes_free + 1;
        assert!(Space.check(&snapshot).unwrap_err().starts_with("OST0000 reported"));
    }
}
