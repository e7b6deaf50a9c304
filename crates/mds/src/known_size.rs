//! When the MDT knows a file's size: the states of a regular file's data attributes (size, blocks,
//! mtime), and the epochs that decide whose report is accepted. Pure: it only changes an inode
//! record.
//!
//! The size of an inode is *known* (its attributes are exact) or *unknown* (the objects must be
//! asked), and the inode has a write *epoch*. Invariant: **an epoch given to a client equals the
//! inode's epoch only as long as that client has been the file's only source of changes since.** So
//! a report under the inode's epoch is always exact, and any other report is ignored. To keep the
//! invariant, a client that opens the file while others may change it gets an epoch that never
//! matches (one below the new one).
//!
//! *Quiet* means: no other client can change the file's data now or later without asking the MDT
//! first. A file is not quiet if there is another open for writing; if another client holds the
//! exclusive data lock (an append or truncation is in progress); during a recovery in which an
//! unknown writer may still come back; or if an OST of the file has not yet been told to refuse an
//! evicted client.
//!
//! | event | quiet | known after | epoch after | epoch given |
//! |---|---|---|---|---|
//! | create, not opened for writing | - | yes | 0 | 0 |
//! | open for writing (create or O_TRUNC included) | yes | no | +1 | the new one |
//! | open for writing | no | no | +2 | new - 1: never matches |
//! | truncate through an open that has the inode's epoch | yes | no | same | same |
//! | truncate otherwise | yes | no | +1 | the new one |
//! | truncate | no | no | +2 | new - 1 |
//! | append | - | no | same | same: equals the open's own only if that is sole |
//! | close of a writer, report under the inode's epoch | - | yes | +1 | |
//! | close of a writer, no such report, others write | no | no | same | |
//! | close of the last writer, no such report | yes | no | same | same, with `size_wanted` |
//! | look at a file of unknown size (stat, look-up, directory) | yes | no | same | same |
//! | report under the inode's epoch | yes | yes | +1 | |
//! | end of a truncation without an open, report under the inode's epoch | yes | yes | +1 | |
//! | a writer is evicted | - | no | +1 | none: its reports never match again |
//! | the MDT lost power | - | no | second of the new era | none of an earlier era matches |
//! | any other report | - | same | same | |
//!
//! *Eras*: the upper bits of an epoch. A power loss may have undone opens for writing, reports of
//! sizes and epochs given since the record was last durable, while the objects kept what was
//! written. So every loss starts a new era, and the size in a record of an earlier era counts as
//! unknown, until the first client that asks the objects reports it.
//!
//! Downsides: two writers of one client count as two clients, and the size becomes known by a
//! glimpse after the last close. After a power loss the first stat of every file costs a glimpse.

use layout::{Layout, Location};
use rpc::message::mdt::SizeUpdate;
use types::{DataChanges, DataTimes, SeenChanges, SeenProof, SetTime, Timestamp};

use crate::tables::inode::{Inode, InodeData};

/// A client begins to write.
pub(crate) fn open_for_write(inode: &mut Inode, quiet: bool) -> u64 {
    inode.size_known = false;
    next_epoch(inode, quiet)
}

/// A truncation begins. `sole`: through an open for writing that was given the inode's present
/// epoch.
pub(crate) fn begin_truncation(inode: &mut Inode, sole: bool, quiet: bool) -> u64 {
    inode.size_known = false;
    if sole && quiet { inode.epoch } else { next_epoch(inode, quiet) }
}

/// A writer is gone without having told anything, and is not believed if it does so later.
pub(crate) fn lose_writer(inode: &mut Inode) {
    inode.size_known = false;
    inode.epoch += 1;
}

/// Epochs of an era: more than one file can be given in years. That leaves 2^24 eras, one for each
/// power loss.
const EPOCHS_PER_ERA: u64 = 1 << 40;

/// The first epoch of a power-loss era: that of new files, which have no objects yet.
pub(crate) fn first_epoch(era: u64) -> u64 {
    era.saturating_mul(EPOCHS_PER_ERA)
}

/// Whether the file has objects, for all that is known: it was opened for writing or truncated, or
/// may have been.
pub(crate) fn may_have_objects(inode: &Inode) -> bool {
    !inode.epoch.is_multiple_of(EPOCHS_PER_ERA)
}

/// The layout of a file with objects on OSTs, unless it is known to be empty: before the file
/// replaces another one, these are made durable.
pub(crate) fn undurable_layout(inode: &Inode) -> Option<&Layout> {
    let empty = inode.size_known && inode.attributes.size == 0 && inode.attributes.blocks == 0;
    let on_osts = |layout: &&Layout| layout.objects().any(|(_, location)| matches!(location, Location::Ost(_)));
    inode.layout().filter(|_| !empty && may_have_objects(inode)).filter(on_osts)
}

/// An epoch as people read it.
pub(crate) fn describe(epoch: u64) -> String {
    match (epoch / EPOCHS_PER_ERA, epoch % EPOCHS_PER_ERA) {
        (0, number) => format!("epoch {number}"),
        (era, number) => format!("epoch {number} of era {era}"),
    }
}

/// Takes account of power losses since the record was written (module documentation).
pub(crate) fn doubt(inode: &mut Inode, era: u64) {
    let first = first_epoch(era);
    if inode.layout().is_some() && inode.epoch < first {
        let before = inode.epoch / EPOCHS_PER_ERA;
        if let InodeData::Regular(layout) = &mut inode.data {
            skip_foreign_slots(layout, before, era);
        }
        inode.size_known = false;
        inode.epoch = first + 1;
    }
}

/// Slots that a growth can have given which was lost are not given again:
/// [`Layout::skip_lost_slots`] sees to that when the layout grows, but not in the ranges of another
/// MDT, which had more eras. Such a layout stays as many ranges ahead of the era.
fn skip_foreign_slots(layout: &mut Layout, before: u64, era: u64) {
    let range = layout.slot_range();
    if range > before {
        layout.skip_lost_slots(range + era - before);
    }
}

/// The inode comes from another MDT, which had eras of its own. No client has an epoch of it.
pub(crate) fn arrive(inode: &mut Inode, era: u64) {
    let has_objects = may_have_objects(inode);
    inode.epoch = first_epoch(era) + u64::from(has_objects);
}

/// Accepts a report or ignores it; true if the size is known afterwards. `quiet` is what the event
/// asks for (module table); a closing writer under the inode's epoch is alone by the invariant.
pub(crate) fn take_report(inode: &mut Inode, update: &SizeUpdate, quiet: bool) -> bool {
    if inode.size_known || !quiet || update.epoch != inode.epoch {
        return false;
    }
    apply(inode, update);
    true
}

/// Takes over data attributes, whichever client found them.
pub(crate) fn apply(inode: &mut Inode, update: &SizeUpdate) {
    inode.attributes.size = update.size;
    inode.attributes.blocks = update.blocks;
    account(inode, &update.data_changes());
    inode.size_known = true;
    inode.epoch += 1;
}

/// Takes the changes that objects say of into the times.
pub(crate) fn account(inode: &mut Inode, found: &DataChanges) {
    let attributes = &mut inode.attributes;
    let stored = DataTimes { mtime: attributes.mtime, ctime: attributes.ctime };
    let times = inode.accounted.times(stored, found);
    (attributes.mtime, attributes.ctime) = (times.mtime, times.ctime);
    inode.accounted = inode.accounted.size_known(times, found);
}

/// Whether it is known what a time set now would account for. If not, the objects are to be asked.
pub(crate) fn may_set_mtime(inode: &Inode, seen: Option<&SeenChanges>) -> bool {
    inode.size_known
        || seen.is_some_and(|seen| match seen.proof {
            SeenProof::Alone { epoch } => epoch == inode.epoch,
            SeenProof::Asked { generation } => inode.layout().is_some_and(|layout| layout.generation == generation),
        })
}

/// Sets mtime by hand, ctime having become the present time by it: the changes that were seen, and
/// those that are accounted for already, are history from here on, and whatever else comes is not.
pub(crate) fn set_mtime(inode: &mut Inode, mtime: SetTime, seen: Option<&SeenChanges>, now: Timestamp) {
    let further =
        seen.map(|seen| seen.changes).filter(|seen| !inode.size_known && seen.count > inode.accounted.changes);
    if let Some(seen) = further {
        account(inode, &seen);
    }
    inode.change(now.max(inode.accounted.time.next()));
    let ctime = inode.attributes.ctime;
    inode.attributes.mtime = match mtime {
        SetTime::Now => ctime,
        SetTime::To(time) => time,
    };
    inode.accounted.time = ctime;
}

fn next_epoch(inode: &mut Inode, quiet: bool) -> u64 {
    let before = inode.epoch;
    inode.epoch += if quiet { 1 } else { 2 };
    let given = if quiet { inode.epoch } else { inode.epoch - 1 };
    assert!(given > before, "an epoch is given once");
    given
}

#[cfg(test)]
mod tests {
    use types::{Accounted, FileKind};

    use super::*;
    use crate::tables::inode::tests::sample;

    fn file() -> Inode {
        let mut inode = sample(FileKind::Regular);
        inode.size_known = true;
        inode.epoch = 0;
        inode.attributes.size = 10;
        inode.accounted = Accounted { time: at(100), changes: 1, records: 0 };
        inode.attributes.mtime = at(50);
        inode.attributes.ctime = at(50);
        inode
    }

    fn at(seconds: i64) -> Timestamp {
        Timestamp { seconds, nanoseconds: 0 }
    }

    fn report(epoch: u64, size: u64, mtime: Option<Timestamp>) -> SizeUpdate {
        SizeUpdate { epoch, size, blocks: 8, mtime, changes: 1 + u64::from(mtime.is_some()) }
    }

    #[test]
    fn a_sole_writer_reports_at_close() {
        let mut inode = file();
        let epoch = open_for_write(&mut inode, true);
        assert!(!inode.size_known && epoch == 1);
        assert!(take_report(&mut inode, &report(epoch, 4096, Some(at(200))), true));
        assert!(inode.size_known);
        assert_eq!((inode.attributes.size, inode.attributes.mtime, inode.attributes.ctime), (4096, at(200), at(200)));
        assert!(!take_report(&mut inode, &report(epoch, 1, None), true), "a report counts once");
    }

    #[test]
    fn writers_that_met_are_never_believed() {
        let mut inode = file();
        let first = open_for_write(&mut inode, true);
        let second = open_for_write(&mut inode, false);
        assert!(!take_report(&mut inode, &report(first, 1, None), true));
        assert!(!take_report(&mut inode, &report(second, 1, None), true));
        let asked = inode.epoch;
        let third = open_for_write(&mut inode, true);
        assert!(!take_report(&mut inode, &report(asked, 1, None), true), "somebody writes again");
        assert!(take_report(&mut inode, &report(third, 7, None), true));
        assert_eq!(inode.attributes.size, 7);
    }

    #[test]
    fn a_glimpse_counts_only_while_quiet_and_under_its_epoch() {
        let mut inode = file();
        open_for_write(&mut inode, true);
        let epoch = inode.epoch;
        assert!(!take_report(&mut inode, &report(epoch, 5, None), false));
        assert!(take_report(&mut inode, &report(epoch, 5, None), true));
        let again = report(inode.epoch, 6, None);
        assert!(!take_report(&mut inode, &again, true), "a known size needs no report");
    }

    #[test]
    fn truncation_keeps_the_epoch_of_the_sole_writer_only() {
        let mut inode = file();
        let own = open_for_write(&mut inode, true);
        assert_eq!(begin_truncation(&mut inode, true, true), own);
        let by_path = begin_truncation(&mut inode, false, false);
        assert!(by_path != inode.epoch && own != inode.epoch);
        let mut idle = file();
        let epoch = begin_truncation(&mut idle, false, true);
        assert!(!idle.size_known);
        assert!(take_report(&mut idle, &report(epoch, 3, None), true));
    }

    #[test]
    fn a_lost_writer_is_not_believed_later() {
        let mut inode = file();
        let epoch = open_for_write(&mut inode, true);
        lose_writer(&mut inode);
        assert!(!take_report(&mut inode, &report(epoch, 5, None), true));
    }

    #[test]
    fn after_a_loss_of_power_nothing_from_before_is_believed() {
        let mut inode = file();
        let lost = open_for_write(&mut inode, true);
        // The record of before is what is left.
        let mut inode = file();
        doubt(&mut inode, 1);
        assert!(!inode.size_known && may_have_objects(&inode));
        assert!(!take_report(&mut inode, &report(lost, 5, None), true));
        let epoch = inode.epoch;
        doubt(&mut inode, 1);
        assert_eq!(inode.epoch, epoch, "once for each loss");
        assert!(take_report(&mut inode, &report(epoch, 7, None), true));
        doubt(&mut inode, 1);
        assert!(inode.size_known, "known since");
        doubt(&mut inode, 2);
        assert!(!inode.size_known);
    }

    #[test]
    fn only_files_that_were_never_opened_for_writing_have_no_objects() {
        let mut inode = file();
        inode.epoch = first_epoch(3);
        assert!(!may_have_objects(&inode));
        open_for_write(&mut inode, true);
        assert!(may_have_objects(&inode));
        let mut directory = sample(FileKind::Directory);
        let before = directory.clone();
        doubt(&mut directory, 9);
        assert_eq!(directory, before);
    }

    #[test]
    fn what_was_seen_when_a_time_was_set_does_not_undo_it() {
        let mut inode = file();
        let epoch = open_for_write(&mut inode, true);
        assert!(take_report(&mut inode, &report(epoch, 10, None), true));
        assert_eq!(inode.attributes.mtime, at(50), "nothing was written");
        let epoch = open_for_write(&mut inode, true);
        let changes = DataChanges { count: 2, last: at(400) };
        let seen = SeenChanges { changes, proof: SeenProof::Alone { epoch } };
        assert!(may_set_mtime(&inode, Some(&seen)) && !may_set_mtime(&inode, None));
        set_mtime(&mut inode, SetTime::To(at(7)), Some(&seen), at(300));
        assert!(take_report(&mut inode, &report(epoch, 10, Some(at(400))), true));
        assert_eq!(inode.attributes.mtime, at(7), "written before the time was set, by a clock that is ahead");
        let epoch = open_for_write(&mut inode, true);
        assert!(take_report(&mut inode, &SizeUpdate { changes: 3, ..report(epoch, 10, Some(at(301))) }, true));
        assert!(inode.attributes.mtime > at(400), "written after it, by a clock that is behind");
        assert_eq!(inode.attributes.mtime, inode.attributes.ctime);
    }

    #[test]
    fn a_time_that_is_now_is_later_than_all_before() {
        let mut inode = file();
        let epoch = open_for_write(&mut inode, true);
        assert!(take_report(&mut inode, &report(epoch, 10, Some(at(400))), true));
        set_mtime(&mut inode, SetTime::Now, None, at(300));
        assert!(inode.attributes.mtime > at(400) && inode.attributes.ctime > at(400));
        let before = inode.attributes;
        inode.change_contents(at(300));
        assert!(inode.attributes.mtime > before.mtime && inode.attributes.ctime > before.ctime);
    }
}
