//! Inodes that a client may have open without this MDT's knowledge, although it has no lock on their
//! opens any more: until it has told, they are taken to be open.
//!
//! | why the lock is not what it was | presumed until |
//! |---|---|
//! | the client itself removed the inode's last name, and is asked for the lock | it gives the lock back: it registers its opens first |
//! | its connection broke, and its locks with it | it says on the next connection that all are registered |
//!
//! All of a client end with its session. Volatile: after a restart clients reclaim their opens
//! before anything is removed.

use std::collections::BTreeSet;

use types::{ClientId, InodeNumber};

/// What ends a presumption.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Until {
    /// The lock is given back.
    LockGivenBack,
    /// All opens of the client are registered.
    Registered,
}

type Pairs = BTreeSet<(ClientId, InodeNumber)>;

/// See the module documentation. Invariants: a pair waits for one thing; `inodes` has the same pairs
/// as the two others together; what is without a name is in them.
#[derive(Debug, Default)]
pub(crate) struct PresumedOpens {
    /// Until the lock is given back. Apart, because there are few, and cancels many.
    with_lock: Pairs,
    /// Until all opens of the client are registered.
    unregistered: Pairs,
    inodes: BTreeSet<(InodeNumber, ClientId)>,
    unnamed: BTreeSet<InodeNumber>,
}

const FIRST: InodeNumber = InodeNumber(0);
const LAST: InodeNumber = InodeNumber(u64::MAX);

impl PresumedOpens {
    /// A client may have an inode open. Once it has to register all its opens, a lock given back does
    /// not end that.
    pub fn add(&mut self, client: ClientId, inode: InodeNumber, until: Until) {
        let pair = (client, inode);
        match until {
            Until::LockGivenBack if self.unregistered.contains(&pair) => {}
            Until::LockGivenBack => {
                self.with_lock.insert(pair);
            }
            Until::Registered => {
                self.with_lock.remove(&pair);
                self.unregistered.insert(pair);
            }
        }
        self.inodes.insert((inode, client));
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.inodes.is_empty()
    }

    /// Whether a client has not told yet what it has open since its connection began.
    pub fn awaits_registration(&self, client: ClientId) -> bool {
        self.unregistered.range((client, FIRST)..=(client, LAST)).next().is_some()
    }

    /// An inode lost its last name.
    pub fn lost_name(&mut self, inode: InodeNumber) {
        if self.has_any(inode) {
            self.unnamed.insert(inode);
        }
    }

    /// Whether this client may have it open.
    pub fn has(&self, client: ClientId, inode: InodeNumber) -> bool {
        self.inodes.contains(&(inode, client))
    }

    /// Whether any client may have it open.
    pub fn has_any(&self, inode: InodeNumber) -> bool {
        self.inodes.range((inode, ClientId(0))..=(inode, ClientId(u64::MAX))).next().is_some()
    }

    /// Whether any client but this one may have it open.
    pub fn has_other(&self, inode: InodeNumber, client: ClientId) -> bool {
        let clients = self.inodes.range((inode, ClientId(0))..=(inode, ClientId(u64::MAX)));
        clients.into_iter().any(|(_, other)| *other != client)
    }

    /// A client has given locks back, and `holds` others. Returns inodes without a name that nobody
    /// may have open any more, unless this MDT knows it.
    pub fn lock_given_back(&mut self, client: ClientId, holds: impl Fn(InodeNumber) -> bool) -> Vec<InodeNumber> {
        let ended = take(&mut self.with_lock, client, |inode| !holds(inode));
        self.end(client, ended)
    }

    /// A client has registered all its opens. Returns as [`PresumedOpens::lock_given_back`].
    pub fn registered(&mut self, client: ClientId, holds: impl Fn(InodeNumber) -> bool) -> Vec<InodeNumber> {
        let mut ended = take(&mut self.unregistered, client, |_| true);
        ended.extend(take(&mut self.with_lock, client, |inode| !holds(inode)));
        self.end(client, ended)
    }

    /// A client's session ended. Returns as [`PresumedOpens::lock_given_back`].
    pub fn forget(&mut self, client: ClientId) -> Vec<InodeNumber> {
        let mut ended = take(&mut self.unregistered, client, |_| true);
        ended.extend(take(&mut self.with_lock, client, |_| true));
        self.end(client, ended)
    }

    fn end(&mut self, client: ClientId, ended: Vec<InodeNumber>) -> Vec<InodeNumber> {
        for inode in &ended {
            self.inodes.remove(&(*inode, client));
        }
        let pairs = self.with_lock.len() + self.unregistered.len();
        assert_eq!(pairs, self.inodes.len(), "a pair waits for one thing");
        ended.into_iter().filter(|inode| !self.has_any(*inode) && self.unnamed.remove(inode)).collect()
    }
}

/// Takes those of a client that end.
fn take(pairs: &mut Pairs, client: ClientId, ends: impl Fn(InodeNumber) -> bool) -> Vec<InodeNumber> {
    let of_client = pairs.range((client, FIRST)..=(client, LAST)).map(|(_, inode)| *inode);
    let ended: Vec<InodeNumber> = of_client.filter(|inode| ends(*inode)).collect();
    for inode in &ended {
        pairs.remove(&(client, *inode));
    }
    ended
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_presumption_ends_with_what_it_waits_for() {
        let (alice, bob) = (ClientId(1), ClientId(2));
        let (removed, kept) = (InodeNumber(5), InodeNumber(6));
        let mut presumed = PresumedOpens::default();
        presumed.add(alice, removed, Until::LockGivenBack);
        presumed.lost_name(removed);
        presumed.add(alice, kept, Until::Registered);
        presumed.add(bob, kept, Until::Registered);
        assert!(presumed.has(alice, removed) && presumed.has_any(removed) && !presumed.has(bob, removed));
        assert!(!presumed.has_other(removed, alice) && presumed.has_other(kept, alice));
        assert_eq!(presumed.lock_given_back(alice, |_| true), [], "another lock came back");
        assert_eq!(presumed.lock_given_back(alice, |_| false), [removed]);
        assert!(!presumed.has_any(removed) && presumed.has(alice, kept));
        presumed.lost_name(kept);
        assert_eq!(presumed.registered(alice, |_| true), [], "another client may have it open");
        assert!(presumed.has_any(kept) && !presumed.has_other(kept, bob));
        presumed.add(bob, removed, Until::LockGivenBack);
        assert_eq!(presumed.forget(bob), [kept], "the other has a name");
        assert!(presumed.is_empty() && !presumed.has_any(kept) && !presumed.has_any(removed));
    }

    #[test]
    fn who_has_to_register_everything_ends_nothing_with_a_lock() {
        let (alice, bob) = (ClientId(1), ClientId(2));
        let (removed, other) = (InodeNumber(5), InodeNumber(6));
        let mut presumed = PresumedOpens::default();
        presumed.add(alice, removed, Until::Registered);
        presumed.add(alice, removed, Until::LockGivenBack);
        presumed.add(alice, other, Until::LockGivenBack);
        presumed.add(bob, other, Until::LockGivenBack);
        presumed.lost_name(removed);
        assert!(presumed.awaits_registration(alice) && !presumed.awaits_registration(bob));
        assert_eq!(presumed.lock_given_back(alice, |inode| inode == other), []);
        assert!(presumed.has(alice, removed) && presumed.has(alice, other));
        assert_eq!(presumed.registered(alice, |_| false), [removed], "locks that nobody has end nothing later");
        assert!(!presumed.awaits_registration(alice) && !presumed.has(alice, other) && presumed.has(bob, other));
        presumed.add(bob, other, Until::Registered);
        assert_eq!(presumed.forget(bob), []);
        assert!(presumed.is_empty());
    }
}
