//! The exclusive data lock of a file: appends and truncations of all clients, one after the other,
//! in order of arrival.
//!
//! Invariants: at most one holder per file; if the lock is free, it is granted only to the first
//! client in the queue. A client represents all its users: it orders them itself, and a repeated
//! request of the holder is granted again.
//!
//! Life cycle: volatile; after a restart of the MDT a holder reclaims it with `try_begin` before
//! others are admitted.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use types::{ClientId, InodeNumber, limits::EXCLUSIVES_PER_CLIENT_MAX};

use crate::{LockError, TIMEOUT_NS};

/// Answer to a request for the lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExclusiveAnswer {
    /// The client holds it.
    Granted,
    /// Somebody else holds it or comes first; ask again, at the latest within [`TIMEOUT_NS`].
    Waiting,
}

/// Locks of files that a client holds or waits for; more are refused.
const FILES_MAX: usize = EXCLUSIVES_PER_CLIENT_MAX;

#[derive(Clone, Debug, Default)]
struct File {
    holder: Option<ClientId>,
    /// Client and when it last asked, in order of arrival.
    queue: VecDeque<(ClientId, u64)>,
}

/// The exclusive data locks of one MDT.
#[derive(Clone, Debug, Default)]
pub struct ExclusiveLocks {
    files: BTreeMap<InodeNumber, File>,
    /// Files in which a client holds or waits.
    clients: BTreeMap<ClientId, BTreeSet<InodeNumber>>,
}

impl ExclusiveLocks {
    /// Asks for the lock, or asks again; queues if it is not free. Fails with `NoLocks` if the
    /// client has too many of other files.
    pub fn begin(&mut self, now_ns: u64, inode: InodeNumber, client: ClientId) -> Result<ExclusiveAnswer, LockError> {
        self.check_limit(inode, client)?;
        let file = self.files.entry(inode).or_default();
        self.clients.entry(client).or_default().insert(inode);
        if file.holder == Some(client) {
            return Ok(ExclusiveAnswer::Granted);
        }
        let position = file.queue.iter().position(|(waiting, _)| *waiting == client).unwrap_or(file.queue.len());
        if file.holder.is_none() && position == 0 {
            file.queue.pop_front();
            file.holder = Some(client);
            self.check(inode);
            return Ok(ExclusiveAnswer::Granted);
        }
        if position == file.queue.len() {
            file.queue.push_back((client, now_ns));
        } else {
            file.queue[position].1 = now_ns;
        }
        self.check(inode);
        Ok(ExclusiveAnswer::Waiting)
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

    /// Leaves the queue. Returns who is next if that changed who may take a free lock.
    pub fn cancel(&mut self, inode: InodeNumber, client: ClientId) -> Option<ClientId> {
        let waits = self.files.get(&inode)?.queue.iter().any(|(waiting, _)| *waiting == client);
        if !waits {
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

    /// Removes requests from queues that did not ask again for [`TIMEOUT_NS`]. Returns the clients
    /// to be told.
    pub fn expire(&mut self, now_ns: u64) -> Vec<(InodeNumber, ClientId)> {
        let stale = |asked: u64| now_ns.saturating_sub(asked) >= TIMEOUT_NS;
        let gone: Vec<(InodeNumber, ClientId)> = self
            .files
            .iter()
            .flat_map(|(inode, file)| file.queue.iter().map(move |(client, asked)| (*inode, *client, *asked)))
            .filter(|(_, _, asked)| stale(*asked))
            .map(|(inode, client, _)| (inode, client))
            .collect();
        gone.iter().for_each(|(inode, client)| self.leave(*inode, *client));
        let inodes: BTreeSet<InodeNumber> = gone.into_iter().map(|(inode, _)| inode).collect();
        inodes.into_iter().filter_map(|inode| self.next(inode).map(|next| (inode, next))).collect()
    }

    /// The holder of a file's lock.
    pub fn holder(&self, inode: InodeNumber) -> Option<ClientId> {
        self.files.get(&inode)?.holder
    }

    /// Whether a client holds the lock of any file.
    pub fn holds_any(&self, client: ClientId) -> bool {
        self.clients.get(&client).is_some_and(|inodes| inodes.iter().any(|inode| self.holder(*inode) == Some(client)))
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
        if file.holder.is_some() { None } else { file.queue.front().map(|(client, _)| *client) }
    }

    /// Asserts what holds for a file that a client has come to.
    fn check(&self, inode: InodeNumber) {
        let file = self.files.get(&inode).expect("a file that a client has come to is in the table");
        let indexed = |client: &ClientId| self.clients.get(client).is_some_and(|inodes| inodes.contains(&inode));
        assert!(file.holder.iter().all(indexed), "the holder of a lock is indexed");
        let last = file.queue.back().map(|(client, _)| client);
        assert!(last.into_iter().all(indexed), "a client in a queue is indexed");
        let waits = |holder: ClientId| file.queue.iter().any(|(waiting, _)| *waiting == holder);
        assert!(!file.holder.is_some_and(waits), "the holder of a lock does not wait for it");
    }

    /// Removes a client from a file, be it holder or waiter.
    fn leave(&mut self, inode: InodeNumber, client: ClientId) {
        let file = self.files.get_mut(&inode).expect("a client is only indexed at files that exist");
        if file.holder == Some(client) {
            file.holder = None;
        }
        file.queue.retain(|(waiting, _)| *waiting != client);
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
    const SECOND: u64 = 1_000_000_000;

    fn client(number: u64) -> ClientId {
        ClientId(number)
    }

    #[test]
    fn order_of_arrival_holds() {
        let mut locks = ExclusiveLocks::default();
        assert_eq!(locks.begin(0, FILE, client(1)), Ok(ExclusiveAnswer::Granted));
        assert_eq!(locks.begin(0, FILE, client(1)), Ok(ExclusiveAnswer::Granted), "asking again while holding");
        assert_eq!(locks.begin(0, FILE, client(2)), Ok(ExclusiveAnswer::Waiting));
        assert_eq!(locks.begin(1, FILE, client(3)), Ok(ExclusiveAnswer::Waiting));
        assert_eq!(locks.end(FILE, client(2)), Err(LockError::Invalid));
        assert_eq!(locks.end(FILE, client(1)), Ok(Some(client(2))));
        assert_eq!(locks.begin(2, FILE, client(3)), Ok(ExclusiveAnswer::Waiting), "2 was first");
        assert_eq!(locks.begin(2, FILE, client(1)), Ok(ExclusiveAnswer::Waiting));
        assert_eq!(locks.try_begin(FILE, client(4)), Err(LockError::Conflict), "a free lock with a queue is not free");
        assert_eq!(locks.begin(2, FILE, client(2)), Ok(ExclusiveAnswer::Granted));
        assert_eq!(locks.end(FILE, client(2)), Ok(Some(client(3))));
    }

    #[test]
    fn a_client_has_the_locks_of_so_many_files_at_most() {
        let mut locks = ExclusiveLocks::default();
        for number in 0..FILES_MAX as u64 {
            assert_eq!(locks.begin(0, InodeNumber(number), client(1)), Ok(ExclusiveAnswer::Granted));
        }
        let more = InodeNumber(FILES_MAX as u64);
        assert_eq!(locks.begin(0, more, client(1)), Err(LockError::NoLocks));
        assert_eq!(locks.try_begin(more, client(1)), Err(LockError::NoLocks));
        assert_eq!(locks.begin(0, InodeNumber(0), client(1)), Ok(ExclusiveAnswer::Granted), "it has that");
        assert_eq!(locks.begin(0, more, client(2)), Ok(ExclusiveAnswer::Granted), "others go on");
        locks.end(InodeNumber(0), client(1)).unwrap();
        assert_eq!(locks.begin(1, more, client(1)), Ok(ExclusiveAnswer::Waiting));
    }

    #[test]
    fn clients_that_die_or_fall_silent_free_their_places() {
        let mut locks = ExclusiveLocks::default();
        assert_eq!(locks.try_begin(FILE, client(1)), Ok(()));
        (2..=4).for_each(|number| assert_eq!(locks.begin(number, FILE, client(number)), Ok(ExclusiveAnswer::Waiting)));
        assert_eq!(locks.drop_client(client(1)), [(FILE, client(2))]);
        assert_eq!(locks.begin(4 * SECOND, FILE, client(3)), Ok(ExclusiveAnswer::Waiting));
        assert_eq!(locks.expire(4 * SECOND), []);
        assert_eq!(locks.expire(6 * SECOND), [(FILE, client(3))], "2 and 4 were silent");
        assert_eq!(locks.queued(), 1);
        assert_eq!(locks.cancel(FILE, client(3)), None);
        assert_eq!(locks.cancel(FILE, client(3)), None);
        assert!(locks.is_empty());
        assert!(locks.clients.is_empty());
    }
}
