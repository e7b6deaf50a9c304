//! The locks under which clients cache names and attributes, as this MDT keeps them: the table, the
//! changes that wait for locks to come back, and the locks that are still to be asked for.
//!
//! Decisions are made here, under the namespace's lock; the callbacks are made without it
//! (`mdt/lock_callbacks.rs`).
//!
//! Life cycle: volatile; after a restart no client has a lock, unless it claims it again. Handles
//! begin at the time of the start, so that they differ from those of every earlier start.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use lock::{
    ChangeId, GrantedBits, InodeBits, InodeLocks, LockLimits, Prepared, Revocation,
    inode_locks::{Dropped, LockCounters},
};
use tokio::sync::{Notify, futures::OwnedNotified};
use types::{
    ClientId, InodeNumber, LockHandle, Timestamp,
    limits::{CACHE_LOCKS_MAX, CACHE_LOCKS_PER_CLIENT_MAX},
};

use crate::{
    lock_callbacks::{Caller, LockCallback, LockCallbacks},
    lock_deadlines::LockDeadlines,
};

/// Locks of a client that is gone, removed without releasing the namespace's lock: about a
/// millisecond. A client may have a million.
pub(crate) const LOCKS_PER_STEP: usize = 1024;

/// What is to be done at a tick.
#[derive(Debug)]
pub(crate) struct DueLocks {
    /// Tasks that are to begin: clients are reminded.
    pub callers: Vec<Caller>,
    /// Clients to be evicted: they did not give back a lock in time.
    pub late: BTreeSet<ClientId>,
    /// Clients to be evicted: they did not answer a callback.
    pub deaf: BTreeSet<ClientId>,
}

/// See the module documentation.
#[derive(Debug)]
pub(crate) struct CacheLocks {
    locks: InodeLocks,
    /// Requests that wait for the locks that conflict with their change.
    waiters: BTreeMap<ChangeId, Arc<Notify>>,
    /// Locks to be asked back.
    asked: Vec<Revocation>,
    /// Locks that were asked back.
    deadlines: LockDeadlines,
    /// The callbacks by which they are.
    callbacks: LockCallbacks,
    /// Clients whose time to give a lock back, or to answer, was over, since the start.
    timeouts: u64,
    /// Clients some of whose ended locks still exist, and the last of these.
    ended: BTreeMap<ClientId, LockHandle>,
}

impl CacheLocks {
    /// None; of an MDT that starts now.
    pub fn new(now: Timestamp) -> Self {
        // A grant takes longer than a nanosecond.
        let now_ns = u64::try_from(now.seconds).unwrap_or(0).saturating_mul(1_000_000_000);
        let first = LockHandle(now_ns.saturating_add(now.nanoseconds.into()).max(1));
        Self::limited(first, LockLimits { per_client: CACHE_LOCKS_PER_CLIENT_MAX, total: CACHE_LOCKS_MAX })
    }

    /// None yet, and never more than these.
    pub fn limited(first: LockHandle, limits: LockLimits) -> Self {
        Self {
            locks: InodeLocks::new(first, limits),
            waiters: BTreeMap::new(),
            asked: Vec::new(),
            deadlines: LockDeadlines::default(),
            callbacks: LockCallbacks::default(),
            timeouts: 0,
            ended: BTreeMap::new(),
        }
    }

    /// Grants what can be granted at once.
    pub fn grant(&mut self, client: ClientId, inode: InodeNumber, bits: InodeBits) -> Option<GrantedBits> {
        self.locks.grant(client, inode, bits, &mut self.asked)
    }

    /// Grants a lock of an earlier connection of its client again, all of it or nothing; returns
    /// its new handle. Claims ask for nothing back.
    pub fn claim(
        &mut self,
        client: ClientId,
        former: LockHandle,
        inode: InodeNumber,
        bits: InodeBits,
    ) -> Option<LockHandle> {
        if self.ended.get(&client).is_some_and(|last| former <= *last) {
            self.cancel(client, &[former]);
        }
        if self.locks_left(client) == 0 {
            return None;
        }
        let granted = self.grant(client, inode, bits)?;
        if granted.bits == bits {
            return Some(granted.handle);
        }
        self.cancel(client, &[granted.handle]);
        None
    }

    /// How many more locks a client may be granted.
    pub fn locks_left(&self, client: ClientId) -> usize {
        self.locks.locks_left(client)
    }

    /// Inodes on which there are locks.
    pub fn inodes(&self) -> usize {
        self.locks.inodes()
    }

    /// What a client has of an inode.
    pub fn held_by(&self, inode: InodeNumber, client: ClientId) -> InodeBits {
        self.locks.held_by(inode, client)
    }

    /// Whether no client has a lock.
    pub fn is_empty(&self) -> bool {
        self.locks.is_empty()
    }

    /// What a client may cache of an inode by this lock.
    pub fn held_by_lock(&self, inode: InodeNumber, client: ClientId, handle: LockHandle) -> InodeBits {
        self.locks.held_by_lock(inode, client, handle)
    }

    /// Whether clients other than this one have cached something of an inode.
    pub fn others_hold(&self, client: ClientId, inode: InodeNumber) -> bool {
        !self.locks.held_by_others(inode, client).is_empty()
    }

    /// Whether a client has these parts of an inode.
    pub fn holds(&self, client: ClientId, inode: InodeNumber, bits: InodeBits) -> bool {
        self.locks.held_by(inode, client) & bits == bits
    }

    /// Whether clients other than this one have some of these parts.
    pub fn others_hold_some(&self, client: ClientId, parts: &[(InodeNumber, InodeBits)]) -> bool {
        parts.iter().any(|(inode, bits)| self.locks.held_by_others(*inode, client).meets(*bits))
    }

    /// A change of these parts. `Some`: it waits for locks, which are asked back.
    pub fn prepare(
        &mut self,
        change: Option<ChangeId>,
        client: ClientId,
        parts: &[(InodeNumber, InodeBits)],
    ) -> Option<ChangeId> {
        match self.locks.prepare(change, client, parts) {
            Prepared::Ready => None,
            Prepared::Blocked(id, ask) => {
                self.asked.extend(ask);
                Some(id)
            }
        }
    }

    /// Asks back what other clients have of these parts, without waiting for it.
    pub fn revoke(&mut self, client: ClientId, parts: &[(InodeNumber, InodeBits)]) {
        self.asked.extend(self.locks.revoke(client, parts));
    }

    /// Asks a client for its own locks on these parts.
    pub fn ask_for_own(&mut self, client: ClientId, inode: InodeNumber, bits: InodeBits) {
        self.asked.extend(self.locks.ask_holder(client, inode, bits));
    }

    /// A change was made or given up.
    pub fn end(&mut self, change: ChangeId) {
        self.locks.end(change);
        self.waiters.remove(&change);
    }

    /// Completes when a change waits for no lock any more; `None`: it does not wait now.
    pub fn wait(&mut self, change: ChangeId) -> Option<OwnedNotified> {
        if self.locks.is_ready(change) {
            return None;
        }
        Some(self.waiters.entry(change).or_default().clone().notified_owned())
    }

    /// The locks that a change waits for.
    pub fn awaited(&self, change: ChangeId) -> Vec<Revocation> {
        self.locks.awaited(change)
    }

    /// A client gives locks back; those that it had are returned.
    pub fn cancel(&mut self, client: ClientId, handles: &[LockHandle]) -> Vec<GrantedBits> {
        let mut ready = Vec::new();
        let cancelled = handles.iter().filter_map(|handle| self.locks.cancel(client, *handle, &mut ready)).collect();
        handles.iter().for_each(|handle| self.callbacks.lock_gone(client, *handle));
        self.wake(&ready);
        cancelled
    }

    /// A client has none of its locks up to this one any more: removes some of them.
    pub fn drop_some(&mut self, client: ClientId, last: LockHandle) -> Dropped {
        let mut ready = Vec::new();
        let dropped = self.locks.drop_client(client, last, LOCKS_PER_STEP, &mut ready);
        dropped.locks.iter().for_each(|lock| self.callbacks.lock_gone(client, lock.handle));
        self.wake(&ready);
        match dropped.has_more {
            true => self.ended.insert(client, last),
            false => self.ended.remove(&client),
        };
        dropped
    }

    /// An inode is gone, and everything known of it.
    pub fn drop_inode(&mut self, inode: InodeNumber) {
        let mut ready = Vec::new();
        for (client, handle) in self.locks.drop_inode(inode, &mut ready) {
            self.callbacks.lock_gone(client, handle);
        }
        self.wake(&ready);
    }

    fn wake(&mut self, ready: &[ChangeId]) {
        for change in ready {
            if let Some(waiter) = self.waiters.get(change) {
                waiter.notify_waiters();
            }
        }
    }

    /// Begins to ask for the locks that are to be asked back. Their holders have a limited time
    /// from now on. Returns the tasks that are to begin.
    pub fn take_asked(&mut self) -> Vec<Caller> {
        let asked = std::mem::take(&mut self.asked).into_iter();
        let mut callers = Vec::new();
        for revocation in asked.filter(|revocation| self.locks.exists(revocation.handle)) {
            self.deadlines.asked(revocation, |handle| self.locks.exists(handle));
            callers.extend(self.callbacks.add(LockCallback { revocation, again: false }));
        }
        callers
    }

    /// What one of these tasks is to make next; what it made before is answered. `None`: it ends.
    pub fn next_callback(&mut self, caller: Caller) -> Option<LockCallback> {
        self.callbacks.next(caller)
    }

    /// An eighth of the time that clients have to give locks back has passed: what is due.
    pub fn tick(&mut self) -> DueLocks {
        let due = self.deadlines.tick(|handle| self.locks.exists(handle));
        let again = |revocation: Revocation| self.callbacks.add(LockCallback { revocation, again: true });
        let callers = due.remind.into_iter().filter_map(again).collect();
        let deaf = &self.callbacks.tick() - &due.evict;
        self.timeouts += (due.evict.len() + deaf.len()) as u64;
        DueLocks { callers, late: due.evict, deaf }
    }

    /// Whether no lock is asked back, and no answer awaited.
    pub fn nothing_asked(&self) -> bool {
        self.deadlines.is_empty() && self.callbacks.is_empty()
    }

    /// Signalled when a client is asked for a lock.
    pub fn asked_for(&self) -> Arc<Notify> {
        self.deadlines.wakeup()
    }

    /// A client is about to give back a lock of which it was reminded.
    pub fn is_busy(&mut self, handle: LockHandle) {
        if self.locks.exists(handle) {
            self.deadlines.is_busy(handle);
        }
    }

    /// The last handle that was given.
    pub fn last_handle(&self) -> LockHandle {
        self.locks.last_handle()
    }

    /// Locks that exist.
    pub fn count(&self) -> usize {
        self.locks.len()
    }

    /// How often a client did not give a lock back, or did not answer, in time, since the start.
    pub fn timeouts(&self) -> u64 {
        self.timeouts
    }

    /// Counts since the start.
    pub fn counters(&self) -> LockCounters {
        self.locks.counters()
    }

    /// Asserts the invariants: for audits, since it looks at everything.
    pub fn check(&self) {
        self.locks.check();
        self.callbacks.check(|handle| self.locks.exists(handle));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Locks of the former connection are removed step by step: those that are left do not prevent
    /// claims.
    #[test]
    fn locks_are_claimed_while_old_ones_are_removed() {
        let (client, bits) = (ClientId(1), InodeBits(1));
        let limits = LockLimits { per_client: 3 * LOCKS_PER_STEP, total: 3 * LOCKS_PER_STEP };
        let mut cache = CacheLocks::limited(LockHandle(1), limits);
        let inodes = (0..2 * LOCKS_PER_STEP as u64).map(InodeNumber);
        let held: Vec<GrantedBits> = inodes.filter_map(|inode| cache.grant(client, inode, bits)).collect();
        let last = cache.last_handle();
        assert!(cache.drop_some(client, last).has_more, "there are more");
        let claim = |cache: &mut CacheLocks, lock: &GrantedBits| cache.claim(client, lock.handle, lock.inode, bits);
        let claimed = held.iter().filter_map(|lock| claim(&mut cache, lock)).count();
        assert_eq!((claimed, cache.count()), (held.len(), held.len()));
        assert!(!cache.drop_some(client, last).has_more);
        assert_eq!(cache.count(), held.len(), "the new ones stay");
        assert_eq!(claim(&mut cache, &held[0]), None, "it has it");
        cache.check();
    }

    #[test]
    fn a_claim_is_granted_as_a_whole_or_not_at_all() {
        let (client, inode) = (ClientId(1), InodeNumber(7));
        let mut cache = CacheLocks::limited(LockHandle(1), LockLimits { per_client: 2, total: 9 });
        let part = cache.grant(client, inode, InodeBits(1)).expect("it is free");
        assert_eq!((cache.claim(client, LockHandle(0), inode, InodeBits(3)), cache.count()), (None, 1));
        assert!(cache.claim(client, part.handle, InodeNumber(8), InodeBits(3)).is_some());
        assert_eq!(cache.claim(client, LockHandle(0), InodeNumber(9), InodeBits(3)), None, "the limit");
        assert_eq!(cache.take_asked().len(), 0, "claims ask for nothing back");
        cache.check();
    }

    #[test]
    fn handles_of_a_later_start_are_others() {
        let at = |seconds, nanoseconds| CacheLocks::new(Timestamp { seconds, nanoseconds }).last_handle();
        assert_eq!(at(1_800_000_000, 5).0 - at(1_800_000_000, 0).0, 5);
        assert_eq!(at(-5, 0), LockHandle(0));
    }
}
