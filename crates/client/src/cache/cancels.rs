//! Locks of one MDT on their way back to it. Nothing is served under them any more.
//!
//! ```text
//! given up -> leaving (the cache above lets go) -> idle -> with the next request
//!     ^            |                                \----> urgent -> a request of its own
//!     '------------' (an answer shows the inode again)
//! ```
//!
//! A lock is urgent if the MDT asked for it, if no request has taken it along for a while, or if
//! many have gathered. Without a cache above, no lock is ever leaving ([`Leaving`]).
//!
//! Before a lock on the opens of an inode is given back, the MDT must be told of the opens that
//! were made under it; before any lock on an inode is, of the accesses to it that were noted.
//!
//! Giving back a lock twice, or one whose connection has ended, does no harm: handles are never
//! reused.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use rpc::message::lock::{InodeBits, inode_bit};
use types::{InodeNumber, LockHandle, limits::LOCKS_PER_MESSAGE_MAX};

use super::{
    connection_id::ConnectionId,
    leaving::{Leaving, Parting},
    released::Released,
};

/// What becomes of a lock that the MDT asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Withdrawn {
    /// The MDT asked before, and the lock is on its way.
    Already,
    /// What the cache above may still have under it; `None`: nothing.
    Now(Option<Released>),
}

/// See the module documentation.
#[derive(Debug, Default)]
pub(crate) struct Cancels {
    leaving: Leaving,
    /// Locks on opens that have not been sent, with their inodes.
    opens: BTreeMap<LockHandle, InodeNumber>,
    /// Locks on inodes to which accesses were noted, until the MDT was told of these.
    accessed: BTreeMap<LockHandle, InodeNumber>,
    /// Locks that the MDT asked for and that have not been sent.
    asked: BTreeSet<LockHandle>,
    /// With the round in which they came.
    idle: VecDeque<(u64, LockHandle)>,
    urgent: Vec<LockHandle>,
    round: u64,
    /// A task sends the urgent ones.
    is_sending: bool,
    /// A task looks after the others.
    is_gathering: bool,
}

impl Cancels {
    /// Locks that this client gave up, held through this connection. `above`: there is a cache
    /// above, which must drop its copies first.
    pub fn released(
        &mut self,
        released: impl IntoIterator<Item = Released>,
        connection: Option<ConnectionId>,
        above: bool,
    ) {
        for gone in released {
            self.note_opens(gone);
            if above && gone.parts != InodeBits(0) {
                self.leaving.begin(gone, connection);
            } else {
                self.idle.push_back((self.round, gone.handle));
            }
        }
        if self.idle.len() >= LOCKS_PER_MESSAGE_MAX {
            self.hurry();
        }
    }

    fn note_opens(&mut self, Released { handle, inode, parts, .. }: Released) {
        if parts.0 & inode_bit::OPEN != 0 {
            self.opens.insert(handle, inode);
        }
    }

    /// An access to the inode of this lock was noted, and the MDT does not know of it.
    pub fn accessed(&mut self, inode: InodeNumber, handle: LockHandle) {
        self.accessed.insert(handle, inode);
    }

    /// The MDT was told of it, or will not be.
    pub fn told_access(&mut self, inode: InodeNumber) {
        self.accessed.retain(|_, accessed| *accessed != inode);
    }

    /// Whether the MDT is to be told of accesses before this lock is given back.
    pub fn is_accessed(&self, handle: LockHandle) -> bool {
        self.accessed.contains_key(&handle)
    }

    /// Whether the MDT asked for this lock, which it has not got back.
    pub fn is_asked(&self, handle: LockHandle) -> bool {
        self.asked.contains(&handle)
    }

    /// The inode of a lock that waits until the MDT knows of opens or accesses.
    pub fn inode_of(&self, handle: LockHandle) -> Option<InodeNumber> {
        self.opens.get(&handle).or_else(|| self.accessed.get(&handle)).copied()
    }

    /// The MDT asks for a lock; `released`: if it was held until now.
    pub fn withdrawn(&mut self, handle: LockHandle, released: Option<Released>, above: bool) -> Withdrawn {
        if !self.asked.insert(handle) {
            return Withdrawn::Already;
        }
        if let Some(released) = released {
            self.note_opens(released);
            if above && released.parts != InodeBits(0) {
                // Not to be taken back, whatever its connection.
                self.leaving.begin_told(released, None);
            }
        }
        Withdrawn::Now(self.leaving.get(handle))
    }

    /// An answer shows an inode, and was given through this connection: its locks that are leaving
    /// and that the MDT has not asked for, which are held again.
    pub fn take_back(&mut self, inode: InodeNumber, connection: ConnectionId) -> Vec<Released> {
        let taken = self.leaving.take_back(inode, connection, &self.asked);
        for Released { handle, .. } in &taken {
            self.opens.remove(handle);
            self.accessed.remove(handle);
        }
        taken
    }

    /// No lock waits for a request that takes it along.
    pub fn hurry(&mut self) {
        self.urgent.extend(self.idle.drain(..).map(|(_, handle)| handle));
    }

    /// The MDT waits for a lock, under which nothing is served anywhere.
    pub fn asked_back(&mut self, handle: LockHandle) {
        self.leaving.end(handle);
        self.urgent.push(handle);
    }

    /// The cache above has dropped its copies.
    pub fn left(&mut self, parting: &Parting) {
        if self.leaving.left(parting) {
            self.idle.push_back((self.round, parting.released.handle));
        }
    }

    /// Locks that go with a request: not those under which opens were made that the MDT does not
    /// know, according to `is_untold`, nor those under which accesses were noted.
    pub fn take_along(&mut self, is_untold: impl Fn(InodeNumber) -> bool) -> Vec<LockHandle> {
        let mut taken = Vec::new();
        let (opens, accessed) = (&self.opens, &self.accessed);
        self.idle.retain(|(_, handle)| {
            let stays = taken.len() >= LOCKS_PER_MESSAGE_MAX
                || accessed.contains_key(handle)
                || opens.get(handle).is_some_and(|inode| is_untold(*inode));
            if !stays {
                taken.push(*handle);
            }
            stays
        });
        assert!(taken.len() <= LOCKS_PER_MESSAGE_MAX, "{} locks in one message", taken.len());
        self.sent(&taken);
        taken
    }

    /// The request may not have been sent.
    pub fn give_back(&mut self, handles: Vec<LockHandle>) {
        self.idle.extend(handles.into_iter().map(|handle| (self.round, handle)));
    }

    /// Whether a task has to be begun that sends what is urgent.
    pub fn begin_to_send(&mut self) -> bool {
        let begins = !self.is_sending && !self.urgent.is_empty();
        self.is_sending |= begins;
        begins
    }

    /// The next locks for a request of their own, with the inodes of those on opens; empty: there
    /// are none, and the task that asks ends.
    pub fn next_urgent(&mut self) -> Vec<(LockHandle, Option<InodeNumber>)> {
        let count = self.urgent.len().min(LOCKS_PER_MESSAGE_MAX);
        self.is_sending = count > 0;
        self.urgent.drain(..count).map(|handle| (handle, self.opens.get(&handle).copied())).collect()
    }

    /// The MDT has these locks back, or will have.
    pub fn sent(&mut self, handles: &[LockHandle]) {
        for handle in handles {
            self.opens.remove(handle);
            self.accessed.remove(handle);
            self.asked.remove(handle);
        }
    }

    /// Whether there are any that no client waits for.
    fn has_idle(&self) -> bool {
        !self.leaving.is_empty() || !self.idle.is_empty()
    }

    /// Whether a task has to be begun that looks after what is not urgent.
    pub fn begin_to_gather(&mut self) -> bool {
        let begins = !self.is_gathering && self.has_idle();
        self.is_gathering |= begins;
        begins
    }

    /// The next round of that task: the locks for which the cache above must be told to drop its
    /// copies. What has been idle for a whole round becomes urgent. `None`: there is nothing left,
    /// and the task ends.
    pub fn next_round(&mut self) -> Option<Vec<Parting>> {
        self.is_gathering = self.has_idle();
        if !self.is_gathering {
            return None;
        }
        while let Some((_, handle)) = self.idle.pop_front_if(|(since, _)| *since < self.round) {
            self.urgent.push(handle);
        }
        self.round += 1;
        Some(self.leaving.take_untold())
    }
}

#[cfg(test)]
mod tests {
    use types::{ClientId, Generation};

    use super::*;
    use crate::cache::own_changes::Moment;

    fn lock(handle: u64, parts: u32) -> Released {
        Released {
            handle: LockHandle(handle),
            inode: InodeNumber(7),
            parts: InodeBits(parts),
            since: Moment::default(),
        }
    }

    #[test]
    fn idle_locks_go_with_the_next_request_or_by_themselves_after_a_round() {
        let mut cancels = Cancels::default();
        cancels.released([lock(1, 1), lock(2, 0)], None, false);
        assert!(cancels.begin_to_gather() && !cancels.begin_to_gather() && !cancels.begin_to_send());
        assert_eq!(cancels.take_along(|_| false), [LockHandle(1), LockHandle(2)]);
        assert_eq!(cancels.take_along(|_| false), []);
        assert_eq!(cancels.next_round(), None);
        cancels.released([lock(3, 1)], None, false);
        assert!(cancels.begin_to_gather());
        assert_eq!(cancels.next_round(), Some(Vec::new()));
        assert!(!cancels.begin_to_send(), "a request may still come");
        assert_eq!(cancels.next_round(), Some(Vec::new()));
        assert!(cancels.begin_to_send() && !cancels.begin_to_send());
        assert_eq!((cancels.next_urgent(), cancels.next_urgent()), (vec![(LockHandle(3), None)], Vec::new()));
        assert_eq!(cancels.next_round(), None);
        cancels.asked_back(LockHandle(4));
        assert!(cancels.begin_to_send());
    }

    #[test]
    fn the_cache_above_lets_go_first() {
        let mut cancels = Cancels::default();
        cancels.released([lock(1, 1), lock(2, 1)], None, true);
        assert_eq!(cancels.take_along(|_| false), []);
        assert!(cancels.begin_to_gather());
        let told = cancels.next_round().unwrap_or_default();
        assert_eq!(told.iter().map(|parting| parting.released).collect::<Vec<_>>(), [lock(1, 1), lock(2, 1)]);
        assert_eq!(cancels.withdrawn(LockHandle(2), None, true), Withdrawn::Now(Some(lock(2, 1))));
        assert_eq!(cancels.withdrawn(LockHandle(2), None, true), Withdrawn::Already, "a reminder");
        cancels.asked_back(LockHandle(2));
        told.iter().for_each(|parting| cancels.left(parting));
        assert_eq!(
            (cancels.take_along(|_| false), cancels.next_urgent()),
            (vec![LockHandle(1)], vec![(LockHandle(2), None)])
        );
        cancels.sent(&[LockHandle(2)]);
        assert_eq!(cancels.withdrawn(LockHandle(2), None, true), Withdrawn::Now(None), "the MDT asks once more");
        assert_eq!(cancels.withdrawn(LockHandle(3), Some(lock(3, 1)), true), Withdrawn::Now(Some(lock(3, 1))));
        assert_eq!(cancels.withdrawn(LockHandle(4), Some(lock(4, 1)), false), Withdrawn::Now(None));
    }

    #[test]
    fn a_lock_that_is_leaving_is_taken_back_unless_the_mdt_asked_for_it() {
        const PRESENT: ConnectionId = (ClientId(1), Generation(2));
        const OTHER: ConnectionId = (ClientId(1), Generation(3));
        let mut cancels = Cancels::default();
        cancels.released([lock(1, 1), lock(2, 2)], Some(PRESENT), true);
        assert_eq!(cancels.take_back(InodeNumber(8), PRESENT), [], "of another inode");
        assert_eq!(cancels.take_back(InodeNumber(7), OTHER), [], "of another connection");
        let first = cancels.next_round().unwrap_or_default();
        cancels.withdrawn(LockHandle(2), None, true);
        assert_eq!(cancels.take_back(InodeNumber(7), PRESENT), [lock(1, 1)]);
        assert_eq!(cancels.take_back(InodeNumber(7), PRESENT), [], "it is held");
        cancels.released([lock(1, 1)], Some(PRESENT), true);
        first.iter().for_each(|parting| cancels.left(parting));
        assert_eq!(cancels.take_along(|_| false), [LockHandle(2)], "the other one has to leave once more");
        let second = cancels.next_round().unwrap_or_default();
        second.iter().for_each(|parting| cancels.left(parting));
        assert_eq!(cancels.take_along(|_| false), [LockHandle(1)]);
        assert_eq!(cancels.take_back(InodeNumber(7), PRESENT), [], "it is on its way");
    }

    #[test]
    fn locks_on_opens_go_alone_until_the_opens_are_told() {
        let mut cancels = Cancels::default();
        cancels.released([lock(1, inode_bit::OPEN), lock(2, 1)], None, false);
        assert_eq!(cancels.take_along(|_| true), [LockHandle(2)]);
        cancels.hurry();
        assert_eq!(cancels.next_urgent(), [(LockHandle(1), Some(InodeNumber(7)))]);
        cancels.asked_back(LockHandle(1));
        assert_eq!(cancels.next_urgent(), [(LockHandle(1), Some(InodeNumber(7)))], "asked for meanwhile");
        cancels.sent(&[LockHandle(1)]);
        cancels.released([lock(3, inode_bit::OPEN)], None, false);
        assert_eq!(cancels.take_along(|_| false), [LockHandle(3)]);
    }

    #[test]
    fn locks_under_which_accesses_were_noted_go_alone_until_these_are_told() {
        let mut cancels = Cancels::default();
        cancels.accessed(InodeNumber(7), LockHandle(1));
        cancels.released([lock(1, 2), lock(2, 2)], None, false);
        assert_eq!(cancels.take_along(|_| false), [LockHandle(2)]);
        cancels.told_access(InodeNumber(8));
        assert!(cancels.is_accessed(LockHandle(1)));
        cancels.told_access(InodeNumber(7));
        assert_eq!(cancels.take_along(|_| false), [LockHandle(1)]);
        cancels.accessed(InodeNumber(7), LockHandle(3));
        cancels.sent(&[LockHandle(3)]);
        assert!(!cancels.is_accessed(LockHandle(3)), "it was given back");
    }

    #[test]
    fn many_idle_locks_wait_for_nothing() {
        let mut cancels = Cancels::default();
        cancels.released((0..LOCKS_PER_MESSAGE_MAX as u64).map(|handle| lock(handle, 1)), None, false);
        assert!(cancels.begin_to_send());
        assert_eq!(cancels.next_urgent().len(), LOCKS_PER_MESSAGE_MAX);
    }
}
