//! Changes in preparation: what they are about, and which locks they wait for.

use std::collections::{BTreeMap, BTreeSet};

use types::{ClientId, InodeNumber, LockHandle};

use crate::InodeBits;

/// Name of a change in preparation; never given again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ChangeId(u64);

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Change {
    client: ClientId,
    inodes: BTreeSet<InodeNumber>,
    waits_for: BTreeSet<LockHandle>,
}

/// Invariants: `preparing` has the parts of all changes, `waiters` has exactly what their
/// `waits_for` say.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Changes {
    next: u64,
    changes: BTreeMap<ChangeId, Change>,
    preparing: BTreeMap<(InodeNumber, ChangeId), InodeBits>,
    waiters: BTreeSet<(LockHandle, ChangeId)>,
}

impl Changes {
    /// A change begins to wait, or waits again: for these locks, and perhaps for more than before.
    /// Returns its name and whether it is new.
    pub fn begin(
        &mut self,
        before: Option<ChangeId>,
        client: ClientId,
        parts: &[(InodeNumber, InodeBits)],
        blocking: impl Iterator<Item = LockHandle>,
    ) -> (ChangeId, bool) {
        let before = before.filter(|change| self.changes.contains_key(change));
        let id = before.unwrap_or_else(|| {
            self.next += 1;
            ChangeId(self.next)
        });
        let new = Change { client, inodes: BTreeSet::new(), waits_for: BTreeSet::new() };
        let change = self.changes.entry(id).or_insert(new);
        for (inode, bits) in parts {
            change.inodes.insert(*inode);
            *self.preparing.entry((*inode, id)).or_default() |= *bits;
        }
        for handle in blocking {
            change.waits_for.insert(handle);
            self.waiters.insert((handle, id));
        }
        (id, before.is_none())
    }

    /// Parts of an inode that are being changed.
    pub fn preparing(&self, inode: InodeNumber) -> InodeBits {
        let of_inode = self.preparing.range((inode, ChangeId(0))..=(inode, ChangeId(u64::MAX)));
        of_inode.fold(InodeBits::NONE, |all, (_, bits)| all | *bits)
    }

    /// The locks that a change waits for.
    pub fn waits_for(&self, change: ChangeId) -> impl Iterator<Item = LockHandle> {
        self.changes.get(&change).into_iter().flat_map(|change| &change.waits_for).copied()
    }

    /// A lock exists no more. Adds the changes that waited for it, and wait for none now.
    pub fn lock_gone(&mut self, handle: LockHandle, ready: &mut Vec<ChangeId>) {
        let waiters: Vec<ChangeId> =
            self.waiters.range((handle, ChangeId(0))..=(handle, ChangeId(u64::MAX))).map(|(_, id)| *id).collect();
        for id in waiters {
            self.waiters.remove(&(handle, id));
            let change = self.changes.get_mut(&id).expect("a change that waits exists");
            change.waits_for.remove(&handle);
            if change.waits_for.is_empty() {
                ready.push(id);
            }
        }
    }

    /// A change is over.
    pub fn end(&mut self, id: ChangeId) {
        let Some(change) = self.changes.remove(&id) else { return };
        for inode in change.inodes {
            self.preparing.remove(&(inode, id));
        }
        for handle in change.waits_for {
            self.waiters.remove(&(handle, id));
        }
    }

    /// Number of changes.
    pub fn len(&self) -> usize {
        self.changes.len()
    }

    /// Asserts the invariants; `blocking`: the locks of clients other than this one on these parts.
    pub fn check(&self, blocking: impl Fn(ClientId, InodeNumber, InodeBits) -> Vec<LockHandle>) {
        assert_eq!(self.preparing.len(), self.changes.values().map(|change| change.inodes.len()).sum::<usize>());
        assert_eq!(self.waiters.len(), self.changes.values().map(|change| change.waits_for.len()).sum::<usize>());
        for (id, change) in &self.changes {
            let parts = change.inodes.iter().map(|inode| (*inode, self.preparing[&(*inode, *id)]));
            let blocking: BTreeSet<LockHandle> =
                parts.flat_map(|(inode, bits)| blocking(change.client, inode, bits)).collect();
            assert_eq!(blocking, change.waits_for, "{id:?} waits for the locks of others on what it changes");
            assert!(change.waits_for.iter().all(|handle| self.waiters.contains(&(*handle, *id))));
        }
    }
}
