//! When the MDT knows a file's size: the states of a regular file's figures (size, blocks, mtime), and the epochs that
//! decide whose report is believed. Pure: changes an inode record, decides nothing else.
//!
//! An inode is *settled* (figures exact) or *unsettled* (ask the objects), and has a write *epoch*. Invariant:
//! **an epoch that somebody was given equals the inode's epoch only as long as he has been the file's only source of
//! change since he was given it.** So a report under the inode's epoch is always exact, and any other is ignored. To keep
//! it, whoever comes while others may change the file gets an epoch that never matches (one below the new one).
//!
//! *Quiet* means: nobody else may change the file's data now or later without asking the MDT first. Not quiet are: another
//! open for writing; the exclusive data lock in other hands (an append or truncation under way); a recovery in which an
//! unknown writer may still come back; an evicted client that an OST of the file has not been told to refuse yet.
//!
//! | event | quiet | settled after | epoch after | epoch given |
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
//! | close of the last writer, no such report | yes | no | same | same, with `settle` |
//! | look at an unsettled file (stat, look-up, directory) | yes | no | same | same |
//! | settle, report under the inode's epoch | yes | yes | +1 | |
//! | end of a truncation by nobody's open, report under the inode's epoch | yes | yes | +1 | |
//! | a writer is evicted | - | no | +1 | none: his reports never match again |
//! | the MDT lost power | - | no | second of the new era | none of an earlier era matches |
//! | any other report | - | same | same | |
//!
//! *Eras*: the upper bits of an epoch. What a loss of power took away may include epochs given, openings for writing and
//! settlements since the record was last durable, while the objects kept what was written. So every loss begins an era, and
//! the record of an earlier one is read as that of an unsettled file, whose objects are asked; the first who does so
//! settles it again.
//!
//! Downsides: two writers of one client count as strangers, and the file is settled by a glimpse after the last close. After
//! a loss of power the first stat of every file costs a glimpse.

use rpc::message::{
    mdt::{Entry, SizeUpdate},
    ost::ObjectAttributes,
};
use types::Timestamp;

use crate::tables::inode::Inode;

/// Somebody begins to write.
pub(crate) fn open_for_write(inode: &mut Inode, quiet: bool) -> u64 {
    inode.settled = false;
    next_epoch(inode, quiet)
}

/// A truncation begins. `sole`: through an open for writing that was given the inode's present epoch.
pub(crate) fn begin_truncation(inode: &mut Inode, sole: bool, quiet: bool) -> u64 {
    inode.settled = false;
    if sole && quiet { inode.epoch } else { next_epoch(inode, quiet) }
}

/// A writer is gone without having told anything, and is not believed if it does so later.
pub(crate) fn lose_writer(inode: &mut Inode) {
    inode.settled = false;
    inode.epoch += 1;
}

/// Epochs of an era: more than one file can be given in years. That leaves 2^24 eras, one for each loss of power.
const EPOCHS_PER_ERA: u64 = 1 << 40;

/// The first epoch after this many losses: that of new files, which have no objects yet.
pub(crate) fn first_epoch(losses: u64) -> u64 {
    losses.saturating_mul(EPOCHS_PER_ERA)
}

/// Whether the file has objects, for all that is known: it was opened for writing or truncated, or may have been.
pub(crate) fn may_have_objects(inode: &Inode) -> bool {
    !inode.epoch.is_multiple_of(EPOCHS_PER_ERA)
}

/// An epoch as people read it.
pub(crate) fn describe(epoch: u64) -> String {
    match (epoch / EPOCHS_PER_ERA, epoch % EPOCHS_PER_ERA) {
        (0, number) => format!("epoch {number}"),
        (era, number) => format!("epoch {number} of era {era}"),
    }
}

/// Takes account of losses of power since the record was written (module documentation).
pub(crate) fn doubt(inode: &mut Inode, losses: u64) {
    let first = first_epoch(losses);
    if inode.layout().is_some() && inode.epoch < first {
        inode.settled = false;
        inode.epoch = first + 1;
    }
}

/// Believes a report or ignores it; true if the file is settled by it. `quiet` is what the event asks for (module table);
/// a closing writer under the inode's epoch is alone by the invariant.
pub(crate) fn settle(inode: &mut Inode, update: &SizeUpdate, quiet: bool, now: Timestamp) -> bool {
    if inode.settled || !quiet || update.epoch != inode.epoch {
        return false;
    }
    apply(inode, update, now);
    true
}

/// Takes figures over, whoever found them.
pub(crate) fn apply(inode: &mut Inode, update: &SizeUpdate, now: Timestamp) {
    inode.attributes.size = update.size;
    inode.attributes.blocks = update.blocks;
    match update.mtime {
        Some(written) if written > inode.accounted => {
            inode.attributes.mtime = written;
            inode.attributes.ctime = inode.attributes.ctime.max(written);
            inode.accounted = written;
        }
        Some(_) => {}
        // Nothing was written; what a truncation did to the objects' times is in the inode's already.
        None => inode.accounted = inode.accounted.max(now),
    }
    inode.settled = true;
    inode.epoch += 1;
}

/// What an unsettled file shows when all of it is in one object.
pub(crate) fn complete(entry: &mut Entry, object: &ObjectAttributes) {
    if entry.unsettled.take().is_none() {
        return;
    }
    let attributes = &mut entry.attributes;
    (attributes.size, attributes.blocks) = (object.size, object.blocks);
    if object.mtime > entry.accounted {
        attributes.mtime = object.mtime;
        attributes.ctime = attributes.ctime.max(object.mtime);
    }
}

/// Sets mtime by hand: writes up to `now` are history from here on.
pub(crate) fn set_mtime(inode: &mut Inode, mtime: Timestamp, now: Timestamp) {
    inode.attributes.mtime = mtime;
    inode.accounted = inode.accounted.max(now);
}

fn next_epoch(inode: &mut Inode, quiet: bool) -> u64 {
    inode.epoch += if quiet { 1 } else { 2 };
    if quiet { inode.epoch } else { inode.epoch - 1 }
}

#[cfg(test)]
mod tests {
    use types::FileKind;

    use super::*;
    use crate::tables::inode::tests::sample;

    fn file() -> Inode {
        let mut inode = sample(FileKind::Regular);
        inode.settled = true;
        inode.epoch = 0;
        inode.attributes.size = 10;
        inode.accounted = at(100);
        inode.attributes.mtime = at(50);
        inode.attributes.ctime = at(50);
        inode
    }

    fn at(seconds: i64) -> Timestamp {
        Timestamp { seconds, nanoseconds: 0 }
    }

    fn report(epoch: u64, size: u64, mtime: Option<Timestamp>) -> SizeUpdate {
        SizeUpdate { epoch, size, blocks: 8, mtime }
    }

    #[test]
    fn a_sole_writer_settles_at_close() {
        let mut inode = file();
        let epoch = open_for_write(&mut inode, true);
        assert!(!inode.settled && epoch == 1);
        assert!(settle(&mut inode, &report(epoch, 4096, Some(at(200))), true, at(1000)));
        assert!(inode.settled);
        assert_eq!((inode.attributes.size, inode.attributes.mtime, inode.attributes.ctime), (4096, at(200), at(200)));
        assert!(!settle(&mut inode, &report(epoch, 1, None), true, at(1000)), "a report counts once");
    }

    #[test]
    fn writers_that_met_are_never_believed() {
        let mut inode = file();
        let first = open_for_write(&mut inode, true);
        let second = open_for_write(&mut inode, false);
        assert!(!settle(&mut inode, &report(first, 1, None), true, at(1000)));
        assert!(!settle(&mut inode, &report(second, 1, None), true, at(1000)));
        let asked = inode.epoch;
        let third = open_for_write(&mut inode, true);
        assert!(!settle(&mut inode, &report(asked, 1, None), true, at(1000)), "somebody writes again");
        assert!(settle(&mut inode, &report(third, 7, None), true, at(1000)));
        assert_eq!(inode.attributes.size, 7);
    }

    #[test]
    fn a_glimpse_counts_only_while_quiet_and_under_its_epoch() {
        let mut inode = file();
        open_for_write(&mut inode, true);
        let epoch = inode.epoch;
        assert!(!settle(&mut inode, &report(epoch, 5, None), false, at(1000)));
        assert!(settle(&mut inode, &report(epoch, 5, None), true, at(1000)));
        let again = report(inode.epoch, 6, None);
        assert!(!settle(&mut inode, &again, true, at(1000)), "a settled file needs no settling");
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
        assert!(!idle.settled);
        assert!(settle(&mut idle, &report(epoch, 3, None), true, at(1000)));
    }

    #[test]
    fn a_lost_writer_is_not_believed_later() {
        let mut inode = file();
        let epoch = open_for_write(&mut inode, true);
        lose_writer(&mut inode);
        assert!(!settle(&mut inode, &report(epoch, 5, None), true, at(1000)));
    }

    #[test]
    fn after_a_loss_of_power_nothing_from_before_is_believed() {
        let mut inode = file();
        let lost = open_for_write(&mut inode, true);
        // The record of before is what is left.
        let mut inode = file();
        doubt(&mut inode, 1);
        assert!(!inode.settled && may_have_objects(&inode));
        assert!(!settle(&mut inode, &report(lost, 5, None), true, at(1000)));
        let epoch = inode.epoch;
        doubt(&mut inode, 1);
        assert_eq!(inode.epoch, epoch, "once for each loss");
        assert!(settle(&mut inode, &report(epoch, 7, None), true, at(1000)));
        doubt(&mut inode, 1);
        assert!(inode.settled, "settled since");
        doubt(&mut inode, 2);
        assert!(!inode.settled);
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
    fn old_object_times_do_not_undo_an_explicit_mtime() {
        let mut inode = file();
        let epoch = open_for_write(&mut inode, true);
        assert!(settle(&mut inode, &report(epoch, 10, Some(at(100))), true, at(1000)));
        assert_eq!(inode.attributes.mtime, at(50), "the object's time was accounted for before");
        let epoch = open_for_write(&mut inode, true);
        set_mtime(&mut inode, at(7), at(300));
        assert!(settle(&mut inode, &report(epoch, 10, Some(at(250))), true, at(1000)));
        assert_eq!(inode.attributes.mtime, at(7), "written before the explicit time");
        let epoch = open_for_write(&mut inode, true);
        assert!(settle(&mut inode, &report(epoch, 10, Some(at(301))), true, at(1000)));
        assert_eq!(inode.attributes.mtime, at(301), "written after it");
    }
}
