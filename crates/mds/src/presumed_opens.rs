//! Inodes that a client may have open without this MDT's knowledge, although it has no lock on
//! their opens any more: until it has reported its opens, they count as open.
//!
//! | why the lock does not protect the opens any more | presumed until |
//! |---|---|
//! | the client itself removed the inode's last name | it gives the lock back by itself, or is asked for it after a while ([`PresumedOpens::overdue`]); before that it registers its opens |
//! | its connection broke, and its locks ended with it | it says on the next connection that all opens are registered; or it reclaims them once more after a restart, because the connection broke before it heard that it was done |
//!
//! From the beginning of a connection until the client has reported its opens, no presumption about
//! it ends. Its former locks are removed in steps, and each becomes a presumption in the same step.
//! So at every moment an inode that it may have open is either locked or presumed open: a change by
//! another client waits for the next step, then finds the inode open. Presumptions that have lost
//! their reason have no effect any more; they are removed in steps too, which also remove inodes
//! without a name.
//!
//! All presumptions about a client end with its session. Volatile: after a restart clients reclaim
//! their opens before anything is removed.

use std::collections::{BTreeMap, BTreeSet};

use parking_lot::Mutex;
use types::{ClientId, InodeNumber};

/// What ends a presumption.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Until {
    /// The lock is given back.
    LockGivenBack,
    /// All opens of the client are registered.
    Registered,
}

/// See [`PresumedOpens::end`].
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Ended {
    /// Inodes without a name that no client can have open any more, unless this MDT knows the open.
    pub unnamed: Vec<InodeNumber>,
    /// There may be more that have ended.
    pub has_more: bool,
}

/// See the module documentation. Invariants: `inodes` has the same pairs as `of_clients`; inodes
/// without a name are in them; a client that has to report opens could open without a request.
#[derive(Debug, Default)]
pub(crate) struct PresumedOpens {
    /// Clients that have had a lock on opens since their session began. Reads grant such locks
    /// beside each other.
    may_open: Mutex<BTreeSet<ClientId>>,
    /// Those of them that have not reported their opens yet since their connection began.
    to_tell: BTreeSet<ClientId>,
    of_clients: BTreeMap<(ClientId, InodeNumber), Until>,
    inodes: BTreeMap<(InodeNumber, ClientId), Until>,
    unnamed: BTreeSet<InodeNumber>,
    /// Presumptions that wait for a lock, and were added in this interval.
    recent: Vec<(ClientId, InodeNumber)>,
    /// The same of the interval before.
    older: Vec<(ClientId, InodeNumber)>,
}

const FIRST: InodeNumber = InodeNumber(0);
const LAST: InodeNumber = InodeNumber(u64::MAX);

impl PresumedOpens {
    /// A client gets a lock on opens.
    pub fn may_open(&self, client: ClientId) {
        self.may_open.lock().insert(client);
    }

    /// A connection of a client begins: its locks have ended, and it has to report its opens.
    pub fn connection_begun(&mut self, client: ClientId) {
        if self.may_open.get_mut().contains(&client) {
            self.to_tell.insert(client);
        }
    }

    /// A client has reported everything that it opened without a request.
    pub fn registered(&mut self, client: ClientId) {
        self.to_tell.remove(&client);
    }

    /// The session of a client ended, and no request of it runs.
    pub fn session_ended(&mut self, client: ClientId) {
        self.to_tell.remove(&client);
        self.may_open.get_mut().remove(&client);
    }

    /// A client may have an inode open.
    pub fn add(&mut self, client: ClientId, inode: InodeNumber, until: Until) {
        let former = self.of_clients.insert((client, inode), until);
        assert_eq!(self.inodes.insert((inode, client), until), former, "each pair is in both tables");
        if until == Until::LockGivenBack {
            self.recent.push((client, inode));
        }
    }

    /// An interval ends: locks that clients have not given back for a whole one, although they
    /// removed the last name themselves. Each is returned once.
    pub fn overdue(&mut self) -> Vec<(ClientId, InodeNumber)> {
        let waited = std::mem::replace(&mut self.older, std::mem::take(&mut self.recent));
        let is_kept = |presumed: &(ClientId, InodeNumber)| {
            self.of_clients.get(presumed).is_some_and(|until| *until == Until::LockGivenBack)
        };
        waited.into_iter().filter(is_kept).collect()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.inodes.is_empty()
    }

    /// Whether a client has not reported its opens yet since its connection began.
    pub fn awaits_registration(&self, client: ClientId) -> bool {
        self.to_tell.contains(&client)
    }

    /// An inode lost its last name.
    pub fn lost_name(&mut self, inode: InodeNumber) {
        if self.of_inode(inode).next().is_some() {
            self.unnamed.insert(inode);
        }
    }

    /// Whether this client may have it open.
    pub fn has(&self, client: ClientId, inode: InodeNumber) -> bool {
        self.inodes.get(&(inode, client)).is_some_and(|until| self.counts(client, *until))
    }

    /// Whether any client may have it open. An inode without a name counts as open until
    /// [`PresumedOpens::end`] returns it: then the caller ends it.
    pub fn has_any(&self, inode: InodeNumber) -> bool {
        self.unnamed.contains(&inode) || self.of_inode(inode).any(|(client, until)| self.counts(client, until))
    }

    /// Whether any client but this one may have it open.
    pub fn has_other(&self, inode: InodeNumber, client: ClientId) -> bool {
        self.of_inode(inode).any(|(other, until)| other != client && self.counts(other, until))
    }

    fn of_inode(&self, inode: InodeNumber) -> impl Iterator<Item = (ClientId, Until)> {
        let of_inode = self.inodes.range((inode, ClientId(0))..=(inode, ClientId(u64::MAX)));
        of_inode.map(|((_, client), until)| (*client, *until))
    }

    /// Whether a presumption has a reason, as far as that is known here.
    fn counts(&self, client: ClientId, until: Until) -> bool {
        until == Until::LockGivenBack || self.to_tell.contains(&client)
    }

    /// Removes up to `count` presumptions of a client that have lost their reason. `holds`: whether
    /// it has the lock on the opens of an inode.
    pub fn end(&mut self, client: ClientId, count: usize, holds: impl Fn(InodeNumber) -> bool) -> Ended {
        let of_client = self.of_clients.range((client, FIRST)..=(client, LAST)).map(|((_, inode), _)| *inode);
        let ended: Vec<InodeNumber> =
            of_client.filter(|inode| self.has_ended(client, *inode, &holds)).take(count).collect();
        let has_more = !ended.is_empty() && ended.len() == count;
        Ended { unnamed: self.remove(client, ended), has_more }
    }

    /// Removes the presumptions of a client on these inodes that have lost their reason, as
    /// [`PresumedOpens::end`], without a look at the others of the client; returns inodes without a
    /// name that nobody can have open any more.
    pub fn end_on(
        &mut self,
        client: ClientId,
        inodes: BTreeSet<InodeNumber>,
        holds: impl Fn(InodeNumber) -> bool,
    ) -> Vec<InodeNumber> {
        let ended = inodes.into_iter().filter(|inode| self.has_ended(client, *inode, &holds)).collect();
        self.remove(client, ended)
    }

    /// Whether there is a presumption, and it has lost its reason.
    fn has_ended(&self, client: ClientId, inode: InodeNumber, holds: impl Fn(InodeNumber) -> bool) -> bool {
        let Some(until) = self.of_clients.get(&(client, inode)) else { return false };
        let without_reason = *until == Until::Registered || !self.may_open.lock().contains(&client) || !holds(inode);
        without_reason && !self.to_tell.contains(&client)
    }

    fn remove(&mut self, client: ClientId, ended: Vec<InodeNumber>) -> Vec<InodeNumber> {
        for inode in &ended {
            let ended = self.of_clients.remove(&(client, *inode));
            assert!(ended.is_some() && self.inodes.remove(&(*inode, client)) == ended, "each pair is in both tables");
        }
        assert_eq!(self.of_clients.len(), self.inodes.len(), "each pair is in both");
        let is_last = |inode: &InodeNumber| self.of_inode(*inode).next().is_none();
        let last: Vec<InodeNumber> = ended.into_iter().filter(is_last).collect();
        last.into_iter().filter(|inode| self.unnamed.remove(inode)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: usize = usize::MAX;
    const ALICE: ClientId = ClientId(1);
    const BOB: ClientId = ClientId(2);

    fn both_may_open() -> PresumedOpens {
        let presumed = PresumedOpens::default();
        [ALICE, BOB].into_iter().for_each(|client| presumed.may_open(client));
        presumed
    }

    fn unnamed(inodes: &[InodeNumber]) -> Ended {
        Ended { unnamed: inodes.to_vec(), has_more: false }
    }

    #[test]
    fn locks_that_come_back_end_presumptions_on_their_inodes_only() {
        let inodes = [5, 6, 7].map(InodeNumber);
        let mut presumed = both_may_open();
        for inode in inodes {
            presumed.add(ALICE, inode, Until::LockGivenBack);
            presumed.lost_name(inode);
        }
        let [first, second, third] = inodes;
        assert_eq!(presumed.end_on(ALICE, [first, second].into(), |inode| inode == second), [first]);
        assert_eq!(presumed.end_on(BOB, inodes.into(), |_| false), []);
        assert!(!presumed.has_any(first) && presumed.has_any(second) && presumed.has_any(third));
        presumed.connection_begun(ALICE);
        assert_eq!(presumed.end_on(ALICE, inodes.into(), |_| false), [], "it has to report its opens first");
        presumed.registered(ALICE);
        assert_eq!(presumed.end_on(ALICE, inodes.into(), |_| false), [second, third]);
    }

    #[test]
    fn a_presumption_ends_with_what_it_waits_for() {
        let (removed, kept) = (InodeNumber(5), InodeNumber(6));
        let mut presumed = both_may_open();
        presumed.add(ALICE, removed, Until::LockGivenBack);
        presumed.lost_name(removed);
        assert!(presumed.has(ALICE, removed) && presumed.has_any(removed) && !presumed.has(BOB, removed));
        assert!(!presumed.has_other(removed, ALICE) && presumed.has_other(removed, BOB));
        assert_eq!(presumed.end(ALICE, ALL, |_| true), unnamed(&[]), "another lock came back");
        assert_eq!(presumed.end(ALICE, ALL, |_| false), unnamed(&[removed]));
        assert!(!presumed.has_any(removed));
        for client in [ALICE, BOB] {
            presumed.connection_begun(client);
            presumed.add(client, kept, Until::Registered);
        }
        presumed.lost_name(kept);
        presumed.registered(ALICE);
        assert_eq!(presumed.end(ALICE, ALL, |_| true), unnamed(&[]), "another client may have it open");
        assert!(presumed.has_any(kept) && !presumed.has_other(kept, BOB));
        presumed.add(BOB, removed, Until::LockGivenBack);
        presumed.session_ended(BOB);
        assert_eq!(presumed.end(BOB, ALL, |_| true), unnamed(&[kept]), "the other has a name");
        assert!(presumed.is_empty() && !presumed.has_any(kept) && !presumed.has_any(removed));
    }

    #[test]
    fn a_lock_is_overdue_once_after_a_whole_interval() {
        let (kept, returned) = (InodeNumber(5), InodeNumber(6));
        let mut presumed = both_may_open();
        presumed.add(ALICE, kept, Until::LockGivenBack);
        presumed.add(ALICE, returned, Until::LockGivenBack);
        presumed.add(BOB, kept, Until::Registered);
        assert_eq!(presumed.overdue(), [], "the interval may have begun before it");
        presumed.end(ALICE, ALL, |inode| inode == kept);
        assert_eq!(presumed.overdue(), [(ALICE, kept)]);
        assert_eq!(presumed.overdue(), []);
        assert!(presumed.has(ALICE, kept), "until it is given back");
    }

    #[test]
    fn a_client_that_has_to_tell_ends_nothing_with_a_lock() {
        let (removed, other) = (InodeNumber(5), InodeNumber(6));
        let mut presumed = both_may_open();
        presumed.connection_begun(ALICE);
        presumed.add(ALICE, removed, Until::LockGivenBack);
        presumed.add(ALICE, other, Until::Registered);
        presumed.add(BOB, other, Until::LockGivenBack);
        presumed.lost_name(removed);
        assert!(presumed.awaits_registration(ALICE) && !presumed.awaits_registration(BOB));
        assert_eq!(presumed.end(ALICE, ALL, |_| false), unnamed(&[]));
        assert!(presumed.has(ALICE, removed) && presumed.has(ALICE, other));
        presumed.registered(ALICE);
        assert!(!presumed.awaits_registration(ALICE) && !presumed.has(ALICE, other), "at once");
        assert!(presumed.has(ALICE, removed), "it may have the lock again");
        assert_eq!(presumed.end(ALICE, ALL, |_| false), unnamed(&[removed]));
        assert!(!presumed.has_any(removed) && presumed.has(BOB, other));
    }

    #[test]
    fn many_end_in_steps_and_count_no_more_from_the_beginning() {
        let mut presumed = both_may_open();
        presumed.connection_begun(ALICE);
        for inode in (0..10).map(InodeNumber) {
            presumed.add(ALICE, inode, Until::Registered);
            if inode.0 < 9 {
                presumed.lost_name(inode);
            }
        }
        presumed.registered(ALICE);
        assert!((0..10).all(|inode| !presumed.has(ALICE, InodeNumber(inode))));
        assert!(!presumed.has_any(InodeNumber(9)) && presumed.has_any(InodeNumber(8)), "it is still to be ended");
        let mut ended = Vec::new();
        while let step = presumed.end(ALICE, 4, |_| true)
            && step.has_more
        {
            assert_eq!(step.unnamed.len(), 4);
            ended.extend(step.unnamed);
            if ended.len() == 4 {
                // It connects again: what is left counts until it has reported again.
                presumed.connection_begun(ALICE);
                assert!(!presumed.has(ALICE, InodeNumber(3)) && presumed.has(ALICE, InodeNumber(9)));
                assert_eq!(presumed.end(ALICE, 4, |_| true), unnamed(&[]));
                presumed.registered(ALICE);
            }
        }
        assert_eq!(ended.len(), 8, "the rest ended with the step that found no more");
        assert!(presumed.is_empty());
    }

    #[test]
    fn nothing_is_presumed_of_a_client_without_a_session() {
        let mut presumed = both_may_open();
        presumed.session_ended(ALICE);
        // A connection that was about to begin.
        presumed.connection_begun(ALICE);
        assert!(!presumed.awaits_registration(ALICE));
        presumed.connection_begun(BOB);
        assert!(presumed.awaits_registration(BOB));
    }
}
