//! Locks that were given up, while the cache above drops its copies of what is under them.
//!
//! That may take as long as the copies are valid. Until a lock is given back, its MDT grants no
//! other one on the same parts to this client. So if an answer shows the inode again, the lock is
//! taken back instead: it has been held all the time.

use std::collections::{BTreeMap, BTreeSet};

use types::{InodeNumber, LockHandle};

use super::{connection_id::ConnectionId, released::Released};

/// A lock for which the cache above is to be told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Parting {
    pub released: Released,
    /// How often locks have begun to leave before: one that was taken back may leave again.
    pub turn: u64,
}

/// See the module documentation.
#[derive(Debug, Default)]
pub(super) struct Leaving {
    /// Each with the connection through which it is held.
    locks: BTreeMap<LockHandle, (Parting, Option<ConnectionId>)>,
    of_inodes: BTreeSet<(InodeNumber, LockHandle)>,
    /// Those of which the cache above has not been told.
    untold: BTreeSet<LockHandle>,
    turn: u64,
}

impl Leaving {
    /// A lock begins to leave; the cache above is not told yet.
    pub fn begin(&mut self, released: Released, connection: Option<ConnectionId>) {
        self.begin_told(released, connection);
        self.untold.insert(released.handle);
    }

    /// The same, when somebody else tells it.
    pub fn begin_told(&mut self, released: Released, connection: Option<ConnectionId>) {
        self.turn += 1;
        self.locks.insert(released.handle, (Parting { released, turn: self.turn }, connection));
        self.of_inodes.insert((released.inode, released.handle));
    }

    /// A lock that is leaving.
    pub fn get(&self, handle: LockHandle) -> Option<Released> {
        self.locks.get(&handle).map(|(parting, _)| parting.released)
    }

    /// It does not have to wait any more. False if it was not leaving.
    pub fn end(&mut self, handle: LockHandle) -> bool {
        let Some((Parting { released, .. }, _)) = self.locks.remove(&handle) else { return false };
        self.of_inodes.remove(&(released.inode, handle));
        self.untold.remove(&handle);
        true
    }

    /// The cache above has dropped its copies. False if the lock was taken back meanwhile.
    pub fn left(&mut self, Parting { released, turn }: &Parting) -> bool {
        let is_same = self.locks.get(&released.handle).is_some_and(|(parting, _)| parting.turn == *turn);
        is_same && self.end(released.handle)
    }

    /// Takes back the locks on an inode that are held through this connection, but for those that
    /// are `asked` for.
    pub fn take_back(
        &mut self,
        inode: InodeNumber,
        connection: ConnectionId,
        asked: &BTreeSet<LockHandle>,
    ) -> Vec<Released> {
        if self.locks.is_empty() {
            return Vec::new();
        }
        let of_inode = (inode, LockHandle(0))..=(inode, LockHandle(u64::MAX));
        let handles = self.of_inodes.range(of_inode).map(|(_, handle)| *handle);
        let is_held = |handle: &LockHandle| self.locks[handle].1 == Some(connection) && !asked.contains(handle);
        let taken: Vec<_> = handles.filter(is_held).map(|handle| self.locks[&handle].0.released).collect();
        for released in &taken {
            self.end(released.handle);
        }
        taken
    }

    /// The locks of which the cache above is to be told now.
    pub fn take_untold(&mut self) -> Vec<Parting> {
        std::mem::take(&mut self.untold).iter().map(|handle| self.locks[handle].0).collect()
    }

    pub fn is_empty(&self) -> bool {
        self.locks.is_empty()
    }
}
