//! Inodes whose last name was removed a moment ago: they are kept for a while, so that a process
//! that looked the name up before still finds the inode.
//!
//! A path is looked up first and used then, in two requests: between them the name may be replaced
//! by rename. POSIX has no error for that; a local file system keeps the inode as long as a process
//! holds it. Here processes do not announce that they hold an inode, so every inode that lost its
//! last name is kept for [`Parameters::removal_grace`](crate::Parameters::removal_grace), as an
//! orphan (table ORPHANS), open or not.
//!
//! Life cycle: [`Removed::add`] with the batch that removes the last name; a task of the MDT takes
//! those whose time is over ([`Removed::take_due`]) and deletes them, unless they are open: then
//! their last close does. Volatile: after a restart, all orphans are deleted at the end of
//! recovery.
//!
//! Invariant: an inode in here has a record in ORPHANS, and no other code deletes it. Downside: the
//! space of a removed file is free later by that time, and a client that sends its second request
//! after the grace period gets `Stale`.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
};

use rt::Instant;
use tokio::sync::Notify;
use types::InodeNumber;

/// Inodes ended in one transaction.
pub(crate) const BATCH: usize = 256;

/// See the module documentation.
#[derive(Debug, Default)]
pub(crate) struct Removed {
    deadlines: BTreeMap<InodeNumber, Instant>,
    /// As `deadlines`, in the order of their coming; entries that are not (any more) in `deadlines`
    /// do not count.
    queue: VecDeque<(Instant, InodeNumber)>,
    wakeup: Arc<Notify>,
}

impl Removed {
    /// Keeps an inode until `deadline`, or until that of those added before, if it is later.
    pub fn add(&mut self, number: InodeNumber, deadline: Instant) {
        self.deadlines.insert(number, deadline);
        self.queue.push_back((deadline, number));
        assert!(self.deadlines.len() <= self.queue.len(), "each inode that is kept is in the queue");
        self.wakeup.notify_one();
    }

    /// Rung when an inode is added.
    pub fn wakeup(&self) -> Arc<Notify> {
        self.wakeup.clone()
    }

    /// Whether the inode is kept.
    pub fn contains(&self, number: InodeNumber) -> bool {
        self.deadlines.contains_key(&number)
    }

    /// When the next one's time is over.
    pub fn next_deadline(&self) -> Option<Instant> {
        self.queue.front().map(|(deadline, _)| *deadline)
    }

    /// Those whose time is over, at most [`BATCH`].
    pub fn due(&self, now: Instant) -> Vec<InodeNumber> {
        let due = self.queue.iter().take_while(|(deadline, _)| *deadline <= now);
        let kept = due.filter(|(deadline, number)| self.deadlines.get(number) == Some(deadline));
        kept.map(|(_, number)| *number).take(BATCH).collect()
    }

    /// Takes out those whose time is over, at most [`BATCH`].
    pub fn take_due(&mut self, now: Instant) -> Vec<InodeNumber> {
        let mut due = Vec::new();
        while due.len() < BATCH
            && let Some((deadline, number)) = self.queue.pop_front_if(|(deadline, _)| *deadline <= now)
        {
            if self.deadlines.get(&number) == Some(&deadline) {
                self.deadlines.remove(&number);
                due.push(number);
            }
        }
        assert!(self.deadlines.len() <= self.queue.len(), "each inode that is kept is in the queue");
        due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inodes_are_kept_until_their_time_is_over() {
        let mut removed = Removed::default();
        let (first, second) = (InodeNumber(1), InodeNumber(2));
        removed.add(first, Instant(10));
        removed.add(second, Instant(20));
        assert_eq!(removed.take_due(Instant(9)), []);
        assert!(removed.contains(first));
        assert_eq!(removed.take_due(Instant(10)), [first]);
        assert!(!removed.contains(first) && removed.contains(second));
        assert_eq!(removed.next_deadline(), Some(Instant(20)));
        removed.add(second, Instant(30));
        assert_eq!(removed.take_due(Instant(20)), [], "the later time counts");
        assert_eq!(removed.take_due(Instant(30)), [second]);
        assert_eq!(removed.next_deadline(), None);
    }

    #[test]
    fn many_are_taken_in_batches() {
        let mut removed = Removed::default();
        (0..600).for_each(|number| removed.add(InodeNumber(number), Instant(1)));
        assert_eq!([(); 4].map(|()| removed.take_due(Instant(1)).len()), [BATCH, BATCH, 88, 0]);
    }
}
