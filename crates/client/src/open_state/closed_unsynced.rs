//! Objects of closed files that this client wrote and that were not synced: a program may write,
//! close, open again and fsync, and a server may lose power at any time in between.
//!
//! An inode's entry is made by its last close here. It is removed when the inode is opened again
//! (then its fsync reports a loss), or by a successful sync of everything. Downsides: changes that
//! became durable by themselves long ago are remembered too, so the reported loss may not have
//! happened; beyond [`SLOTS_MAX`] objects, those closed first are forgotten.

use std::collections::{BTreeMap, VecDeque};

use layout::Location;
use types::InodeNumber;

/// Objects to sync: see [`crate::open_state::open_inode::OpenState::unsynced`]. By slot and holder,
/// because another client may give the file another layout meanwhile: what was written may have
/// been lost where it was by then, and what is in its slot now tells nothing.
pub(crate) type Unsynced = BTreeMap<(u32, Location), u64>;

/// Objects remembered: some megabytes.
const SLOTS_MAX: usize = 1 << 16;

/// Notes that an object was changed when its holder had lost unsynced changes so often; the oldest
/// change counts.
pub(crate) fn note(unsynced: &mut Unsynced, object: (u32, Location), era: u64) {
    let since = unsynced.entry(object).or_insert(era);
    *since = era.min(*since);
}

/// See the module documentation.
#[derive(Debug, Default)]
pub(crate) struct ClosedUnsynced {
    inodes: BTreeMap<InodeNumber, Unsynced>,
    /// In order of their closes; those opened again since are in it still.
    order: VecDeque<InodeNumber>,
    slots: usize,
}

impl ClosedUnsynced {
    /// The last open of an inode ended with these objects not synced. Something may be remembered
    /// of it still: a sync of everything that failed gave it back while the inode was open again.
    pub fn closed(&mut self, inode: InodeNumber, unsynced: Unsynced) {
        if unsynced.is_empty() {
            return;
        }
        let mut all = self.take(inode);
        unsynced.into_iter().for_each(|(object, era)| note(&mut all, object, era));
        self.slots += all.len();
        self.inodes.insert(inode, all);
        self.order.push_back(inode);
        while self.slots > SLOTS_MAX || self.order.len() > SLOTS_MAX {
            let oldest = self.order.pop_front().expect("what is remembered is in the order of the closes");
            self.take(oldest);
        }
        assert!(self.inodes.len() <= self.order.len(), "what is remembered is in the order of the closes");
    }

    /// As [`ClosedUnsynced::take`], of an inode that may have had another number.
    pub fn take_both(&mut self, inode: InodeNumber, former: Option<InodeNumber>) -> Unsynced {
        let mut unsynced = self.take(inode);
        let before = former.map(|former| self.take(former)).unwrap_or_default();
        before.into_iter().for_each(|(object, era)| note(&mut unsynced, object, era));
        unsynced
    }

    /// The inode is opened again: what is to be synced with it.
    pub fn take(&mut self, inode: InodeNumber) -> Unsynced {
        let unsynced = self.inodes.remove(&inode).unwrap_or_default();
        assert!(unsynced.len() <= self.slots, "what is remembered of an inode is counted");
        self.slots -= unsynced.len();
        unsynced
    }

    /// Adds to what is remembered of an inode.
    pub fn add(&mut self, inode: InodeNumber, more: &Unsynced) {
        self.closed(inode, more.clone());
    }

    /// Adds what was closed later.
    pub fn append(&mut self, mut later: ClosedUnsynced) {
        for inode in std::mem::take(&mut later.order) {
            self.closed(inode, later.take(inode));
        }
        assert_eq!(later.slots, 0, "all that was closed later is taken over");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_is_taken_once_and_the_oldest_are_forgotten() {
        let mut closed = ClosedUnsynced::default();
        let unsynced = |slots: u32| (0..slots).map(|slot| ((slot, Location::Mdt), 1)).collect::<Unsynced>();
        closed.closed(InodeNumber(1), unsynced(2));
        closed.closed(InodeNumber(2), unsynced(0));
        assert_eq!(closed.take(InodeNumber(1)), unsynced(2));
        assert!(closed.take(InodeNumber(1)).is_empty() && closed.take(InodeNumber(2)).is_empty());
        for inode in 0..10 {
            closed.closed(InodeNumber(inode), unsynced(SLOTS_MAX as u32 / 4));
        }
        assert!(closed.take(InodeNumber(5)).is_empty() && !closed.take(InodeNumber(6)).is_empty());
        for inode in 0..3 * SLOTS_MAX as u64 {
            closed.closed(InodeNumber(inode % 7), unsynced(1));
            closed.take(InodeNumber(inode % 7));
        }
        assert!(closed.order.len() <= SLOTS_MAX, "opened again and again");
        let mut later = ClosedUnsynced::default();
        later.closed(InodeNumber(8), unsynced(3));
        closed.append(later);
        assert_eq!(closed.take(InodeNumber(8)), unsynced(3));
    }

    /// A sync of everything takes what was closed. Meanwhile the file is opened, written elsewhere
    /// and closed again; the sync fails and gives back what it took. The next sync must tell of
    /// both parts of the file.
    #[test]
    fn what_a_failed_sync_gave_back_stays_with_what_was_closed_since() {
        let object = |slot| BTreeMap::from([((slot, Location::Mdt), 1)]);
        let both: Unsynced = object(1).into_iter().chain(object(2)).collect();
        let file = InodeNumber(1);
        let mut before = ClosedUnsynced::default();
        before.closed(file, object(1));
        let mut since = ClosedUnsynced::default();
        since.closed(file, object(2));
        before.append(since);
        assert_eq!(before.take(file), both, "closed before the sync failed");
        before.closed(file, object(1));
        before.closed(file, object(2));
        assert_eq!(before.take(file), both, "closed after the sync failed");
        assert_eq!(before.slots, 0);
    }
}
