//! The locks of one family on one file: which are held, and which requests wait in which order.

use std::collections::BTreeMap;

use types::ClientId;

use crate::{
    LockMode, LockOwner, LockRange, WaitTicket,
    segments::{Segment, Segments},
};

/// A queued request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Waiter {
    pub owner: LockOwner,
    pub ticket: WaitTicket,
    pub range: LockRange,
    pub mode: LockMode,
    pub pid: u32,
}

/// One file, one family.
#[derive(Clone, Debug, Default)]
pub(crate) struct FileLocks {
    owners: BTreeMap<LockOwner, Segments>,
    /// In order of arrival.
    pub waiters: Vec<Waiter>,
}

impl FileLocks {
    pub fn is_empty(&self) -> bool {
        self.owners.is_empty() && self.waiters.is_empty()
    }

    /// Owners of locks, and queued requests.
    pub fn parties(&self) -> usize {
        self.owners.len() + self.waiters.len()
    }

    pub fn segments(&self, owner: LockOwner) -> Option<&Segments> {
        self.owners.get(&owner)
    }

    pub fn held(&self) -> impl Iterator<Item = (LockOwner, &Segment)> {
        self.owners.iter().flat_map(|(owner, segments)| segments.iter().map(|segment| (*owner, segment)))
    }

    /// What the client holds here, and how many requests it has queued.
    pub fn count(&self, client: ClientId) -> usize {
        let held: usize = self.owners.range(all_of(client)).map(|(_, segments)| segments.len()).sum();
        held + self.waiters.iter().filter(|waiter| waiter.owner.client == client).count()
    }

    /// Locks of others that `owner`'s request conflicts with: at most one per owner.
    pub fn conflicts(
        &self,
        owner: LockOwner,
        range: LockRange,
        mode: LockMode,
    ) -> impl Iterator<Item = (LockOwner, &Segment)> {
        self.owners
            .iter()
            .filter(move |(holder, _)| **holder != owner)
            .filter_map(move |(holder, segments)| segments.conflict(range, mode).map(|segment| (*holder, segment)))
    }

    /// Owners of queued requests before `position` that `owner`'s request conflicts with.
    pub fn earlier(
        &self,
        position: usize,
        owner: LockOwner,
        range: LockRange,
        mode: LockMode,
    ) -> impl Iterator<Item = LockOwner> {
        self.waiters[..position]
            .iter()
            .filter(move |waiter| waiter.owner != owner && waiter.range.overlaps(range) && waiter.mode.conflicts(mode))
            .map(|waiter| waiter.owner)
    }

    pub fn position(&self, client: ClientId, ticket: WaitTicket) -> Option<usize> {
        self.waiters.iter().position(|waiter| (waiter.owner.client, waiter.ticket) == (client, ticket))
    }

    pub fn waits(&self, owner: LockOwner) -> bool {
        self.waiters.iter().any(|waiter| waiter.owner == owner)
    }

    /// Whether a request waits for a lock that `owner` holds.
    pub fn is_waited_for(&self, owner: LockOwner) -> bool {
        let Some(held) = self.segments(owner) else { return false };
        let mut others = self.waiters.iter().filter(|waiter| waiter.owner != owner);
        others.any(|waiter| held.conflict(waiter.range, waiter.mode).is_some())
    }

    /// Whether a request is queued after a request of `owner` with which it conflicts.
    pub fn is_waited_behind(&self, owner: LockOwner) -> bool {
        let mut own = self.waiters.iter().enumerate().filter(|(_, waiter)| waiter.owner == owner);
        own.any(|(position, first)| {
            let mut later = self.waiters[position + 1..].iter().filter(|waiter| waiter.owner != owner);
            later.any(|waiter| waiter.range.overlaps(first.range) && waiter.mode.conflicts(first.mode))
        })
    }

    pub fn lock(&mut self, owner: LockOwner, range: LockRange, mode: LockMode, pid: u32) {
        self.owners.entry(owner).or_default().lock(range, mode, pid);
    }

    pub fn unlock(&mut self, owner: LockOwner, range: LockRange) {
        if let Some(segments) = self.owners.get_mut(&owner) {
            segments.unlock(range);
            if segments.is_empty() {
                self.owners.remove(&owner);
            }
        }
    }

    /// Takes the owner's locks away, and its queued requests, which are returned.
    pub fn drop_owner(&mut self, owner: LockOwner) -> Vec<Waiter> {
        self.owners.remove(&owner);
        self.waiters.extract_if(.., |waiter| waiter.owner == owner).collect()
    }

    pub fn drop_client(&mut self, client: ClientId) {
        self.owners.retain(|owner, _| owner.client != client);
        self.waiters.retain(|waiter| waiter.owner.client != client);
    }
}

fn all_of(client: ClientId) -> std::ops::RangeInclusive<LockOwner> {
    LockOwner { client, owner: 0 }..=LockOwner { client, owner: u64::MAX }
}
