//! The exclusive data lock of a file: appends and truncations of all clients, one after the other,
//! in order of arrival.
//!
//! Invariants: at most one holder per file; if the lock is free, it is granted only to the first
//! client in the queue. A client represents all its users: it orders them itself, and a repeated
//! request of the holder is granted again.
//!
//! A lock that becomes free is granted only when it is requested again: the first client in the
//! queue is told, and asks. It keeps its place until it asks, cancels or is dropped, but no longer
//! than for two calls of [`ExclusiveLocks::skip_silent`]. (The purpose of the lock may not be
//! possible any more, and the answer shows the file at the time of the grant.)
//!
//! Life cycle: volatile; after a restart of the MDT a holder reclaims it with `try_begin` before
//! others are admitted.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use types::{ClientId, InodeNumber, limits::EXCLUSIVES_PER_CLIENT_MAX};

use crate::LockError;

/// Answer to a request for the lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExclusiveAnswer {
    /// The client holds it.
    Granted,
    /// Another client holds it or comes first: queued. To be asked again when the client is told.
    Queued,
}

/// Locks of files that a client holds or waits for; more are refused.
const FILES_MAX: usize = EXCLUSIVES_PER_CLIENT_MAX;

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct File {
    holder: Option<ClientId>,
    /// In order of arrival.
    queue: VecDeque<ClientId>,
    /// The first of the queue when [`ExclusiveLocks::skip_silent`] last found the lock free.
    silent: Option<ClientId>,
    /// Intervals for which others have waited for the present holder.
    awaited: u32,
}

/// The exclusive data locks of one MDT.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct ExclusiveLocks {
    files: BTreeMap<InodeNumber, File>,
    /// Files in which a client holds or waits.
    clients: BTreeMap<ClientId, BTreeSet<InodeNumber>>,
}

impl ExclusiveLocks {
    /// Asks for the lock, or asks again; queues if it is not free. Fails with `NoLocks` if the
    /// client has too many of other files.
    pub fn begin(&mut self, inode: InodeNumber, client: ClientId) -> Result<ExclusiveAnswer, LockError> {
        self.check_limit(inode, client)?;
        let file = self.files.entry(inode).or_default();
        self.clients.entry(client).or_default().insert(inode);
        if file.holder == Some(client) {
            return Ok(ExclusiveAnswer::Granted);
        }
        let position = file.queue.iter().position(|waiting| *waiting == client).unwrap_or(file.queue.len());
        if file.holder.is_none() && position == 0 {
            file.queue.pop_front();
            (file.holder, file.silent, file.awaited) = (Some(client), None, 0);
            self.check(inode);
            return Ok(ExclusiveAnswer::Granted);
        }
        if position == file.queue.len() {
            file.queue.push_back(client);
        }
        self.check(inode);
        Ok(ExclusiveAnswer::Queued)
    }

    /// Whether the client may come to this file, or is there.
    fn check_limit(&self, inode: InodeNumber, client: ClientId) -> Result<(), LockError> {
        let full = |inodes: &BTreeSet<InodeNumber>| inodes.len() >= FILES_MAX && !inodes.contains(&inode);
        if self.clients.get(&client).is_some_and(full) { Err(LockError::NoLocks) } else { Ok(()) }
    }

    /// Takes the lock if it is free and no client waits; never queues. Fails with `Conflict`, or as
    /// [`ExclusiveLocks::begin`].
    pub fn try_begin(&mut self, inode: InodeNumber, client: ClientId) -> Result<(), LockError> {
        self.check_limit(inode, client)?;
        let file = self.files.get(&inode);
        let free =
            file.is_none_or(|file| file.holder == Some(client) || (file.holder.is_none() && file.queue.is_empty()));
        if !free {
            return Err(LockError::Conflict);
        }
        self.files.entry(inode).or_default().holder = Some(client);
        self.clients.entry(client).or_default().insert(inode);
        self.check(inode);
        Ok(())
    }

    /// Releases the lock. Returns the next client, to be told; fails with `Invalid` if the client
    /// does not hold it.
    pub fn end(&mut self, inode: InodeNumber, client: ClientId) -> Result<Option<ClientId>, LockError> {
        if self.holder(inode) != Some(client) {
            return Err(LockError::Invalid);
        }
        self.leave(inode, client);
        Ok(self.next(inode))
    }

    /// Leaves the queue. Returns the client that may take a free lock then, to be told.
    pub fn cancel(&mut self, inode: InodeNumber, client: ClientId) -> Option<ClientId> {
        if !self.waits(inode, client) {
            return None;
        }
        self.leave(inode, client);
        self.next(inode)
    }

    /// Removes everything of a client: its session has ended. Returns the clients to be told.
    pub fn drop_client(&mut self, client: ClientId) -> Vec<(InodeNumber, ClientId)> {
        let inodes = self.clients.get(&client).cloned().unwrap_or_default();
        inodes
            .into_iter()
            .filter_map(|inode| {
                self.leave(inode, client);
                self.next(inode).map(|next| (inode, next))
            })
            .collect()
    }

    /// To be called at intervals, of which each is long enough for a client that is told to ask
    /// again: takes the first out of a queue if its lock was as free at the last call. Returns the
    /// next clients, to be told.
    pub fn skip_silent(&mut self) -> Vec<(InodeNumber, ClientId)> {
        let mut gone = Vec::new();
        for (inode, file) in &mut self.files {
            let first = if file.holder.is_some() { None } else { file.queue.front().copied() };
            if first.is_some() && first == file.silent {
                gone.extend(first.map(|client| (*inode, client)));
            }
            file.silent = first;
        }
        gone.iter().for_each(|(inode, client)| self.leave(*inode, *client));
        gone.into_iter().filter_map(|(inode, _)| self.next(inode).map(|next| (inode, next))).collect()
    }

    /// To be called at intervals: the holders that others have waited for, in so many intervals
    /// since they were granted the lock. Each is returned once, or again after as many.
    pub fn long_awaited(&mut self, intervals_max: u32) -> Vec<(InodeNumber, ClientId)> {
        let mut late = Vec::new();
        for (inode, file) in &mut self.files {
            let Some(holder) = file.holder.filter(|_| !file.queue.is_empty()) else { continue };
            file.awaited += 1;
            if file.awaited >= intervals_max {
                file.awaited = 0;
                late.push((*inode, holder));
            }
        }
        late
    }

    /// The holder of a file's lock.
    pub fn holder(&self, inode: InodeNumber) -> Option<ClientId> {
        self.files.get(&inode)?.holder
    }

    /// Whether a client holds the lock of any file.
    pub fn holds_any(&self, client: ClientId) -> bool {
        self.clients.get(&client).is_some_and(|inodes| inodes.iter().any(|inode| self.holder(*inode) == Some(client)))
    }

    /// Whether a client is in the queue of a file.
    pub fn waits(&self, inode: InodeNumber, client: ClientId) -> bool {
        self.files.get(&inode).is_some_and(|file| file.queue.contains(&client))
    }

    /// Number of queued requests.
    pub fn queued(&self) -> usize {
        self.files.values().map(|file| file.queue.len()).sum()
    }

    /// Whether no lock is held or wanted.
    pub fn is_empty(&self) -> bool {
        self.files.is_empty()
    }

    /// The first in the queue of a free file.
    fn next(&self, inode: InodeNumber) -> Option<ClientId> {
        let file = self.files.get(&inode)?;
        if file.holder.is_some() { None } else { file.queue.front().copied() }
    }

    /// Asserts what holds for a file that a client has come to.
    fn check(&self, inode: InodeNumber) {
        let file = self.files.get(&inode).expect("a file that a client has come to is in the table");
        let indexed = |client: &ClientId| self.clients.get(client).is_some_and(|inodes| inodes.contains(&inode));
        assert!(file.holder.iter().all(indexed), "the holder of a lock is indexed");
        assert!(file.queue.back().into_iter().all(indexed), "a client in a queue is indexed");
        let waits = |holder: ClientId| file.queue.contains(&holder);
        assert!(!file.holder.is_some_and(waits), "the holder of a lock does not wait for it");
    }

    /// Removes a client from a file, be it holder or waiter.
    fn leave(&mut self, inode: InodeNumber, client: ClientId) {
        let file = self.files.get_mut(&inode).expect("a client is only indexed at files that exist");
        if file.holder == Some(client) {
            (file.holder, file.awaited) = (None, 0);
        }
        file.queue.retain(|waiting| *waiting != client);
        if file.holder.is_none() && file.queue.is_empty() {
            self.files.remove(&inode);
        }
        let inodes = self.clients.get_mut(&client).expect("a client at a file is indexed");
        assert!(inodes.remove(&inode), "a client at a file is indexed there");
        if inodes.is_empty() {
            self.clients.remove(&client);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: InodeNumber = InodeNumber(500);

    fn client(number: u64) -> ClientId {
        ClientId(number)
    }

    #[test]
    fn order_of_arrival_holds() {
        let mut locks = ExclusiveLocks::default();
        assert_eq!(locks.begin(FILE, client(1)), Ok(ExclusiveAnswer::Granted));
        assert_eq!(locks.begin(FILE, client(1)), Ok(ExclusiveAnswer::Granted), "asking again while holding");
        assert_eq!(locks.begin(FILE, client(2)), Ok(ExclusiveAnswer::Queued));
        assert_eq!(locks.begin(FILE, client(3)), Ok(ExclusiveAnswer::Queued));
        assert_eq!(locks.end(FILE, client(2)), Err(LockError::Invalid));
        assert_eq!(locks.end(FILE, client(1)), Ok(Some(client(2))));
        assert_eq!(locks.begin(FILE, client(3)), Ok(ExclusiveAnswer::Queued), "2 was first");
        assert_eq!(locks.begin(FILE, client(1)), Ok(ExclusiveAnswer::Queued));
        assert_eq!(locks.try_begin(FILE, client(4)), Err(LockError::Conflict), "a free lock with a queue is not free");
        assert_eq!(locks.begin(FILE, client(2)), Ok(ExclusiveAnswer::Granted));
        assert_eq!(locks.end(FILE, client(2)), Ok(Some(client(3))));
    }

    #[test]
    fn a_client_has_the_locks_of_so_many_files_at_most() {
        let mut locks = ExclusiveLocks::default();
        for number in 0..FILES_MAX as u64 {
            assert_eq!(locks.begin(InodeNumber(number), client(1)), Ok(ExclusiveAnswer::Granted));
        }
        let more = InodeNumber(FILES_MAX as u64);
        assert_eq!(locks.begin(more, client(1)), Err(LockError::NoLocks));
        assert_eq!(locks.try_begin(more, client(1)), Err(LockError::NoLocks));
        assert_eq!(locks.begin(InodeNumber(0), client(1)), Ok(ExclusiveAnswer::Granted), "it has that");
        assert_eq!(locks.begin(more, client(2)), Ok(ExclusiveAnswer::Granted), "others go on");
        locks.end(InodeNumber(0), client(1)).unwrap();
        assert_eq!(locks.begin(more, client(1)), Ok(ExclusiveAnswer::Queued));
    }

    #[test]
    fn clients_that_die_or_cancel_free_their_places() {
        let mut locks = ExclusiveLocks::default();
        assert_eq!(locks.try_begin(FILE, client(1)), Ok(()));
        (2..=4).for_each(|number| assert_eq!(locks.begin(FILE, client(number)), Ok(ExclusiveAnswer::Queued)));
        assert_eq!(locks.cancel(FILE, client(4)), None, "the lock is not free");
        assert_eq!(locks.drop_client(client(1)), [(FILE, client(2))]);
        assert_eq!(locks.begin(FILE, client(3)), Ok(ExclusiveAnswer::Queued), "2 was told and has not asked yet");
        assert_eq!(locks.cancel(FILE, client(2)), Some(client(3)));
        assert_eq!(locks.queued(), 1);
        assert_eq!(locks.cancel(FILE, client(3)), None);
        assert_eq!(locks.cancel(FILE, client(3)), None);
        assert!(locks.is_empty());
        assert!(locks.clients.is_empty());
    }

    #[test]
    fn a_holder_is_awaited_for_so_long() {
        let mut locks = ExclusiveLocks::default();
        assert_eq!(locks.begin(FILE, client(1)), Ok(ExclusiveAnswer::Granted));
        (0..9).for_each(|_| assert_eq!(locks.long_awaited(3), [], "nobody waits"));
        assert_eq!(locks.begin(FILE, client(2)), Ok(ExclusiveAnswer::Queued));
        (0..2).for_each(|_| assert_eq!(locks.long_awaited(3), []));
        // Each time that it has the lock counts for itself.
        assert_eq!(locks.end(FILE, client(1)), Ok(Some(client(2))));
        assert_eq!(locks.begin(FILE, client(2)), Ok(ExclusiveAnswer::Granted));
        assert_eq!(locks.begin(FILE, client(1)), Ok(ExclusiveAnswer::Queued));
        (0..2).for_each(|_| assert_eq!(locks.long_awaited(3), []));
        assert_eq!(locks.long_awaited(3), [(FILE, client(2))]);
        assert_eq!(locks.long_awaited(3), []);
    }

    #[test]
    fn a_client_that_does_not_ask_again_is_skipped() {
        let mut locks = ExclusiveLocks::default();
        assert_eq!(locks.begin(FILE, client(1)), Ok(ExclusiveAnswer::Granted));
        (2..=3).for_each(|number| assert_eq!(locks.begin(FILE, client(number)), Ok(ExclusiveAnswer::Queued)));
        assert_eq!(locks.skip_silent(), []);
        assert_eq!(locks.skip_silent(), [], "the lock is not free");
        assert_eq!(locks.end(FILE, client(1)), Ok(Some(client(2))));
        assert_eq!(locks.skip_silent(), []);
        assert_eq!(locks.begin(FILE, client(2)), Ok(ExclusiveAnswer::Granted), "in time");
        assert_eq!(locks.begin(FILE, client(1)), Ok(ExclusiveAnswer::Queued));
        assert_eq!(locks.end(FILE, client(2)), Ok(Some(client(3))));
        assert_eq!(locks.skip_silent(), []);
        assert_eq!(locks.skip_silent(), [(FILE, client(1))], "3 was silent");
        assert_eq!(locks.begin(FILE, client(3)), Ok(ExclusiveAnswer::Queued), "it may come back");
        assert_eq!(locks.begin(FILE, client(1)), Ok(ExclusiveAnswer::Granted));
    }
}
