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

use std::collections::{BTreeMap, BTreeSet};

use types::{ClientId, InodeNumber};

/// What ends a presumption.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Until {
    /// The lock is given back.
    LockGivenBack,
    /// All opens of the client are registered.
    Registered,
}

/// See the module documentation. Invariants: both maps have the same pairs; what is without a name
/// is in them.
#[derive(Debug, Default)]
pub(crate) struct PresumedOpens {
    clients: BTreeMap<(ClientId, InodeNumber), Until>,
    inodes: BTreeSet<(InodeNumber, ClientId)>,
    unnamed: BTreeSet<InodeNumber>,
}

const FIRST: InodeNumber = InodeNumber(0);
const LAST: InodeNumber = InodeNumber(u64::MAX);

impl PresumedOpens {
    /// A client may have an inode open.
    pub fn add(&mut self, client: ClientId, inode: InodeNumber, until: Until) {
        self.clients.insert((client, inode), until);
        self.inodes.insert((inode, client));
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.clients.is_empty()
    }

    /// An inode lost its last name.
    pub fn lost_name(&mut self, inode: InodeNumber) {
        if self.has_any(inode) {
            self.unnamed.insert(inode);
        }
    }

    /// Whether this client may have it open.
    pub fn has(&self, client: ClientId, inode: InodeNumber) -> bool {
        self.clients.contains_key(&(client, inode))
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
        self.take(client, |inode, until| until == Until::LockGivenBack && !holds(inode))
    }

    /// A client has registered all its opens. Returns as [`PresumedOpens::lock_given_back`].
    pub fn registered(&mut self, client: ClientId) -> Vec<InodeNumber> {
        self.take(client, |_, until| until == Until::Registered)
    }

    /// A client's session ended. Returns as [`PresumedOpens::lock_given_back`].
    pub fn forget(&mut self, client: ClientId) -> Vec<InodeNumber> {
        self.take(client, |_, _| true)
    }

    fn take(&mut self, client: ClientId, ends: impl Fn(InodeNumber, Until) -> bool) -> Vec<InodeNumber> {
        let of_client = self.clients.range((client, FIRST)..=(client, LAST));
        let ended = of_client.filter(|((_, inode), until)| ends(*inode, **until)).map(|((_, inode), _)| *inode);
        let ended: Vec<InodeNumber> = ended.collect();
        for inode in &ended {
            self.clients.remove(&(client, *inode));
            self.inodes.remove(&(*inode, client));
        }
        assert_eq!(self.clients.len(), self.inodes.len(), "both maps have the same pairs");
        ended.into_iter().filter(|inode| !self.has_any(*inode) && self.unnamed.remove(inode)).collect()
    }
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
        assert_eq!(presumed.registered(alice), [], "another client may have it open");
        assert!(presumed.has_any(kept) && !presumed.has_other(kept, bob));
        presumed.add(bob, removed, Until::LockGivenBack);
        assert_eq!(presumed.forget(bob), [kept], "the other has a name");
        assert!(presumed.is_empty() && !presumed.has_any(kept) && !presumed.has_any(removed));
    }
}
