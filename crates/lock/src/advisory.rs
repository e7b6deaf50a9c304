//! Advisory locks of all clients on the files of one MDT: fcntl(2) record locks and flock(2) locks.
//!
//! Rules
//! - Requests are granted in order of arrival: never past an earlier queued request that they
//!   conflict with. Exception: if that earlier request waits, directly or through others, for locks
//!   of the new request's owner, the owner would wait for itself; its request passes.
//! - An owner may keep, downgrade or release what it already has at any time.
//! - fcntl: ranges are split and merged as POSIX requires, an upgrade is atomic, and a request that
//!   could never be granted (the holder waits, through any chain over the files of this MDT, for
//!   the requester) is refused with `Deadlock`.
//! - flock: the whole file; an upgrade first releases the old lock, as flock(2) warns, so two
//!   upgraders cannot block each other. Locks of the two families never conflict with each other.
//!
//! A request that has to wait stays in its queue until it is granted or refused, which a
//! [`Completion`] reports, or until it is cancelled or its client is dropped. Every call that can
//! end waits of other requests adds their completions to its last argument. A cancelled request
//! that is not in the queue any more was completed before: exactly one of the two happens.
//!
//! Life cycle: volatile. After a restart of the MDT clients [`reclaim`](AdvisoryLocks::reclaim)
//! what they hold, before anything new is granted.
//!
//! Downside: a request looks at every owner that has locks on its file, so files with many
//! thousands of lock owners are slow; a deadlock over files of several MDTs is not detected. Nor is
//! one among so many owners that the search for it would hold up the other requests of the MDT
//! ([`VISITS_MAX`]): its processes wait until one of them is killed.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::atomic::{AtomicUsize, Ordering},
};

use types::{ClientId, InodeNumber, limits::LOCK_PARTIES_PER_FILE_MAX};

use crate::{
    Completion, HeldLock, LockError, LockFamily, LockMode, LockOwner, LockRange, WaitTicket,
    file::{FileLocks, Waiter},
};

/// A request to set or release a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LockRequest {
    /// The file.
    pub inode: InodeNumber,
    /// Family.
    pub family: LockFamily,
    /// The owner that asks.
    pub owner: LockOwner,
    /// Process, reported to others by F_GETLK.
    pub pid: u32,
    /// Range; ignored for flock.
    pub range: LockRange,
    /// Wanted state.
    pub mode: LockMode,
    /// Queue under this name if it conflicts; `None`: do not wait.
    pub ticket: Option<WaitTicket>,
}

/// Answer to a [`LockRequest`] that was not refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LockAnswer {
    /// The owner has what it wanted.
    Granted,
    /// Queued: a [`Completion`] follows.
    Queued,
}

/// Most owners that are visited for one request in searches for circles of waits: some tens of
/// milliseconds.
const VISITS_MAX: usize = 1 << 17;

type FileKey = (InodeNumber, LockFamily);

/// What one client has: locks plus queued requests, by file.
#[derive(Clone, Debug, Default)]
struct ClientLocks {
    total: usize,
    files: BTreeMap<FileKey, usize>,
}

/// All advisory locks of one MDT.
#[derive(Clone, Debug)]
pub struct AdvisoryLocks {
    limit: usize,
    /// Most owners and queued requests of a file.
    parties_max: usize,
    files: BTreeMap<FileKey, FileLocks>,
    clients: BTreeMap<ClientId, ClientLocks>,
    /// Files in which an owner waits for a record lock: the nodes of the wait-for graph.
    waiting: OwnersFiles,
    /// Files in which an owner holds one.
    holding: OwnersFiles,
    /// Most owners that may be visited for one request, and how many still may for this one.
    visits_max: usize,
    visits_left: Visits,
}

/// A count that goes down while locks are only looked at. Atomic so that several threads may look
/// at locks at once; those that count down do not.
#[derive(Debug)]
struct Visits(AtomicUsize);

impl Visits {
    fn get(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }

    fn set(&self, left: usize) {
        self.0.store(left, Ordering::Relaxed);
    }
}

impl Clone for Visits {
    fn clone(&self) -> Self {
        Self(AtomicUsize::new(self.get()))
    }
}

type OwnersFiles = BTreeMap<LockOwner, BTreeSet<InodeNumber>>;

impl AdvisoryLocks {
    /// No locks. A client may have `limit` locks and queued requests together
    /// ([`types::limits::LOCKS_PER_CLIENT_MAX`]).
    pub fn new(limit: usize) -> Self {
        Self {
            limit,
            parties_max: LOCK_PARTIES_PER_FILE_MAX,
            files: BTreeMap::new(),
            clients: BTreeMap::new(),
            waiting: BTreeMap::new(),
            holding: BTreeMap::new(),
            visits_max: VISITS_MAX,
            visits_left: Visits(AtomicUsize::new(VISITS_MAX)),
        }
    }

    /// The same with this many owners and queued requests of a file, instead of
    /// [`LOCK_PARTIES_PER_FILE_MAX`].
    pub fn with_parties_max(self, parties_max: usize) -> Self {
        Self { parties_max, ..self }
    }

    /// The same with searches that end earlier.
    pub fn with_visits_max(self, visits_max: usize) -> Self {
        Self { visits_max, ..self }
    }

    /// Sets or releases a lock, or queues the request. One that is queued already stays where it
    /// is.
    pub fn set(&mut self, request: &LockRequest, completed: &mut Vec<Completion>) -> Result<LockAnswer, LockError> {
        let range = match request.family {
            LockFamily::Posix => request.range.normalised()?,
            LockFamily::Flock => LockRange::WHOLE,
        };
        let request = LockRequest { range, ..*request };
        self.visits_left.set(self.visits_max);
        match request.mode {
            LockMode::Unlock => self.unlock(&request, completed),
            LockMode::Shared | LockMode::Exclusive => self.lock(&request, completed),
        }
    }

    fn unlock(&mut self, request: &LockRequest, completed: &mut Vec<Completion>) -> Result<LockAnswer, LockError> {
        let key = (request.inode, request.family);
        let Some(file) = self.files.get_mut(&key) else { return Ok(LockAnswer::Granted) };
        let splits = file.segments(request.owner).is_some_and(|segments| segments.unlock_splits(request.range));
        if splits {
            self.check_limit(request.owner.client, 1)?;
        }
        self.change(key, request.owner, completed, |file| file.unlock(request.owner, request.range));
        Ok(LockAnswer::Granted)
    }

    fn lock(&mut self, request: &LockRequest, completed: &mut Vec<Completion>) -> Result<LockAnswer, LockError> {
        let LockRequest { owner, range, mode, pid, .. } = *request;
        let key = (request.inode, request.family);
        if request.ticket.is_some_and(|ticket| self.is_queued(key.0, key.1, owner.client, ticket)) {
            return Ok(LockAnswer::Queued);
        }
        let file = self.files.entry(key).or_default();
        let own = file.segments(owner);
        let kept = own.is_some_and(|segments| segments.covers(range, mode));
        if request.family == LockFamily::Flock && own.is_some() && !kept {
            self.change(key, owner, completed, |file| file.unlock(owner, range));
        }
        let file = self.files.entry(key).or_default();
        let is_party = file.segments(owner).is_some();
        let end = file.waiters.len();
        if kept || self.admits(key, end, owner, range, mode) {
            let growth = self.growth(key, owner, range, mode);
            if let Err(error) = self.check_parties(key, is_party).and_then(|()| self.check_limit(owner.client, growth))
            {
                self.discard_if_empty(key);
                return Err(error);
            }
            self.change(key, owner, completed, |file| file.lock(owner, range, mode, pid));
            return Ok(LockAnswer::Granted);
        }
        let Some(ticket) = request.ticket else { return Err(LockError::Conflict) };
        if request.family == LockFamily::Posix && self.would_deadlock(key, owner, range, mode) {
            return Err(LockError::Deadlock);
        }
        self.queue(key, Waiter { owner, ticket, range, mode, pid }, completed)?;
        Ok(LockAnswer::Queued)
    }

    fn queue(&mut self, key: FileKey, waiter: Waiter, completed: &mut Vec<Completion>) -> Result<(), LockError> {
        self.check_parties(key, false)?;
        self.check_limit(waiter.owner.client, 1)?;
        self.files.get_mut(&key).expect("a file with a conflict exists").waiters.push(waiter);
        self.account(key, waiter.owner);
        if key.1 == LockFamily::Posix {
            self.grant_passers(waiter.owner, completed);
        }
        Ok(())
    }

    /// The lock that `owner`'s request would conflict with (F_GETLK); of several, the one that
    /// begins first.
    pub fn test(
        &self,
        inode: InodeNumber,
        owner: LockOwner,
        range: LockRange,
        mode: LockMode,
    ) -> Result<Option<HeldLock>, LockError> {
        let key = (inode, LockFamily::Posix);
        let range = range.normalised()?;
        let Some(file) = self.files.get(&key) else { return Ok(None) };
        let first = file.conflicts(owner, range, mode).min_by_key(|(_, segment)| segment.range.start);
        Ok(first.map(|(holder, segment)| HeldLock {
            inode,
            family: LockFamily::Posix,
            client: holder.client,
            owner: holder.owner,
            pid: segment.pid,
            range: segment.range,
            mode: segment.mode,
        }))
    }

    /// Takes a queued request out of the queue. False if it is not there: it was completed, or
    /// never came.
    pub fn cancel(
        &mut self,
        inode: InodeNumber,
        family: LockFamily,
        client: ClientId,
        ticket: WaitTicket,
        completed: &mut Vec<Completion>,
    ) -> bool {
        let key = (inode, family);
        self.visits_left.set(self.visits_max);
        let Some(file) = self.files.get_mut(&key) else { return false };
        let Some(position) = file.position(client, ticket) else { return false };
        let waiter = file.waiters.remove(position);
        self.account(key, waiter.owner);
        self.grant_waiters(key, completed);
        true
    }

    /// Whether this request is queued on a file.
    pub fn is_queued(&self, inode: InodeNumber, family: LockFamily, client: ClientId, ticket: WaitTicket) -> bool {
        self.files.get(&(inode, family)).is_some_and(|file| file.position(client, ticket).is_some())
    }

    /// Removes the locks of `owner` on a file: its last descriptor was closed. Its queued requests
    /// are completed with [`LockError::Released`].
    pub fn drop_owner(
        &mut self,
        inode: InodeNumber,
        family: LockFamily,
        owner: LockOwner,
        completed: &mut Vec<Completion>,
    ) {
        let key = (inode, family);
        self.visits_left.set(self.visits_max);
        let Some(file) = self.files.get_mut(&key) else { return };
        let released = |waiter: Waiter| completion(&waiter, Err(LockError::Released));
        completed.extend(file.drop_owner(owner).into_iter().map(released));
        self.account(key, owner);
        self.grant_waiters(key, completed);
    }

    /// Removes everything of a client: its session ended. Its own requests are completed with it.
    pub fn drop_client(&mut self, client: ClientId, completed: &mut Vec<Completion>) {
        let Some(state) = self.clients.remove(&client) else { return };
        self.visits_left.set(self.visits_max);
        for files in [&mut self.waiting, &mut self.holding] {
            files.retain(|owner, _| owner.client != client);
        }
        for key in state.files.keys() {
            self.files.get_mut(key).expect("a file with locks of a client exists").drop_client(client);
        }
        for key in state.files.keys() {
            self.grant_waiters(*key, completed);
        }
    }

    /// Takes a lock back that was held before this MDT restarted. Fails with `Conflict` if another
    /// client has reclaimed a conflicting one: then one of both lost its lock earlier.
    pub fn reclaim(&mut self, lock: &HeldLock) -> Result<(), LockError> {
        let range = lock.range.normalised()?;
        if lock.mode == LockMode::Unlock {
            return Err(LockError::Invalid);
        }
        let owner = LockOwner { client: lock.client, owner: lock.owner };
        let key = (lock.inode, lock.family);
        if self.files.get(&key).is_some_and(|file| file.conflicts(owner, range, lock.mode).next().is_some()) {
            return Err(LockError::Conflict);
        }
        self.check_parties(key, self.files.get(&key).is_some_and(|file| file.segments(owner).is_some()))?;
        self.check_limit(lock.client, self.growth(key, owner, range, lock.mode))?;
        self.files.entry(key).or_default().lock(owner, range, lock.mode, lock.pid);
        self.account(key, owner);
        Ok(())
    }

    /// Locks held on a file.
    pub fn held(&self, inode: InodeNumber, family: LockFamily) -> impl Iterator<Item = HeldLock> + '_ {
        self.files.get(&(inode, family)).into_iter().flat_map(move |file| held_in(inode, family, file))
    }

    /// Locks held by a client: what it reclaims after a restart of the MDT. (A client keeps such a
    /// table of its own.)
    pub fn held_by(&self, client: ClientId) -> impl Iterator<Item = HeldLock> + '_ {
        self.clients
            .get(&client)
            .into_iter()
            .flat_map(|state| state.files.keys())
            .flat_map(|(inode, family)| self.held(*inode, *family))
            .filter(move |lock| lock.client == client)
    }

    /// Number of queued requests.
    pub fn queued(&self) -> usize {
        self.files.values().map(|file| file.waiters.len()).sum()
    }

    /// Whether no lock is held or wanted.
    pub fn is_empty(&self) -> bool {
        self.files.is_empty()
    }

    /// Changes the locks of `owner` on a file, then brings the accounts up to date and completes
    /// the requests of others that this concerns.
    fn change(
        &mut self,
        key: FileKey,
        owner: LockOwner,
        completed: &mut Vec<Completion>,
        change: impl FnOnce(&mut FileLocks),
    ) {
        let Some(file) = self.files.get_mut(&key) else { return };
        change(file);
        self.account(key, owner);
        self.refuse_deadlocked(key, owner, completed);
        self.grant_waiters(key, completed);
    }

    /// Grants the queued requests of a file that no longer conflict, in order. A request that is
    /// granted cannot let an earlier one continue, but one that is refused may.
    fn grant_waiters(&mut self, key: FileKey, completed: &mut Vec<Completion>) {
        let mut position = 0;
        while let Some(waiter) = self.files.get(&key).and_then(|file| file.waiters.get(position)).copied() {
            let Waiter { owner, range, mode, pid, .. } = waiter;
            if !self.admits(key, position, owner, range, mode) {
                position += 1;
                continue;
            }
            self.files.get_mut(&key).expect("it has a waiter").waiters.remove(position);
            self.account(key, owner);
            let outcome = self.check_limit(owner.client, self.growth(key, owner, range, mode));
            if outcome.is_ok() {
                self.files.get_mut(&key).expect("it had a waiter").lock(owner, range, mode, pid);
                self.account(key, owner);
            }
            completed.push(completion(&waiter, outcome));
            if outcome.is_err() || self.refuse_deadlocked(key, owner, completed) {
                position = 0;
            }
        }
        self.discard_if_empty(key);
    }

    /// `owner` may hold more of a file than before. Where it waits itself, through another thread,
    /// requests that wait for that may have come to wait for themselves. Returns whether there were
    /// any.
    fn refuse_deadlocked(&mut self, key: FileKey, owner: LockOwner, completed: &mut Vec<Completion>) -> bool {
        if key.1 != LockFamily::Posix || !self.waiting.contains_key(&owner) {
            return false;
        }
        let mut has_refused = false;
        // There was no circle before, so one that there is leads through a request that now waits
        // for `owner`. Whom that reaches is the same for all of them, until one is refused.
        let mut reached = self.waits_for([owner], false);
        let mut position = 0;
        while let Some(waiter) = self.files.get(&key).and_then(|file| file.waiters.get(position)).copied() {
            let Waiter { owner: waits, range, mode, .. } = waiter;
            let file = &self.files[&key];
            if !reached.contains(&waits) || !file.conflicts(waits, range, mode).any(|(holder, _)| holder == owner) {
                position += 1;
                continue;
            }
            self.files.get_mut(&key).expect("it has a waiter").waiters.remove(position);
            self.account(key, waiter.owner);
            completed.push(completion(&waiter, Err(LockError::Deadlock)));
            has_refused = true;
            reached = self.waits_for([owner], false);
        }
        has_refused
    }

    /// Updates the counts of `owner` and its client to match the file.
    fn account(&mut self, key: FileKey, owner: LockOwner) {
        let file = &self.files[&key];
        let (count, waits, holds) = (file.count(owner.client), file.waits(owner), file.segments(owner).is_some());
        let state = self.clients.entry(owner.client).or_default();
        let before = if count == 0 { state.files.remove(&key) } else { state.files.insert(key, count) };
        let before = before.unwrap_or(0);
        assert!(before <= state.total, "a client's locks on one file are among all its locks");
        state.total = state.total - before + count;
        assert!(state.total <= self.limit, "a client has no more locks and queued requests than it may");
        if state.files.is_empty() {
            assert_eq!(state.total, 0, "a client without files has no locks");
            self.clients.remove(&owner.client);
        }
        if key.1 == LockFamily::Posix {
            note(&mut self.waiting, owner, key.0, waits);
            note(&mut self.holding, owner, key.0, holds);
        }
    }

    /// How many locks more `owner` has once this one is granted: a record lock in the middle of a
    /// longer one of another mode makes two.
    fn growth(&self, key: FileKey, owner: LockOwner, range: LockRange, mode: LockMode) -> usize {
        let held = self.files.get(&key).and_then(|file| file.segments(owner));
        held.map_or(1, |held| held.growth(range, mode))
    }

    fn check_limit(&self, client: ClientId, more: usize) -> Result<(), LockError> {
        let total = self.clients.get(&client).map_or(0, |state| state.total);
        if total.saturating_add(more) > self.limit { Err(LockError::NoLocks) } else { Ok(()) }
    }

    /// Whether one more owner or request may come to a file; those that are there may continue.
    fn check_parties(&self, key: FileKey, is_there: bool) -> Result<(), LockError> {
        let parties = self.files.get(&key).map_or(0, FileLocks::parties);
        if is_there || parties < self.parties_max { Ok(()) } else { Err(LockError::NoLocks) }
    }

    fn discard_if_empty(&mut self, key: FileKey) {
        if self.files.get(&key).is_some_and(FileLocks::is_empty) {
            self.files.remove(&key);
        }
    }

    /// Whether a request may be granted now: no other owner holds a conflicting lock, and no
    /// earlier request wants one, except those that wait for `owner` itself. `position`: of its
    /// place in the queue.
    fn admits(&self, key: FileKey, position: usize, owner: LockOwner, range: LockRange, mode: LockMode) -> bool {
        let file = &self.files[&key];
        if file.conflicts(owner, range, mode).next().is_some() {
            return false;
        }
        file.earlier(position, owner, range, mode)
            .all(|earlier| key.1 == LockFamily::Posix && self.waits_for([earlier], true).contains(&owner))
    }

    fn would_deadlock(&self, key: FileKey, owner: LockOwner, range: LockRange, mode: LockMode) -> bool {
        let holders = self.files[&key].conflicts(owner, range, mode).map(|(holder, _)| holder);
        self.waits_for(holders, false).contains(&owner)
    }

    /// All owners that `from` wait for, directly or through others, and `from` themselves. With
    /// `queues`, a queued request also waits for the conflicting ones before it; without, only for
    /// locks that are held. Not all of them if the request has visited too many.
    fn waits_for(&self, from: impl IntoIterator<Item = LockOwner>, queues: bool) -> BTreeSet<LockOwner> {
        let mut reached: BTreeSet<LockOwner> = from.into_iter().collect();
        let mut next: Vec<LockOwner> = reached.iter().copied().collect();
        while let Some(owner) = next.pop() {
            let Some(left) = self.visits_left.get().checked_sub(1) else { break };
            self.visits_left.set(left);
            for inode in self.waiting.get(&owner).into_iter().flatten() {
                let file = &self.files[&(*inode, LockFamily::Posix)];
                for (position, waiter) in file.waiters.iter().enumerate().filter(|(_, waiter)| waiter.owner == owner) {
                    let holders = file.conflicts(owner, waiter.range, waiter.mode).map(|(holder, _)| holder);
                    let position = if queues { position } else { 0 };
                    let earlier = file.earlier(position, owner, waiter.range, waiter.mode);
                    next.extend(holders.chain(earlier).filter(|other| reached.insert(*other)));
                }
            }
        }
        reached
    }

    /// Whether any owner waits for a record lock that `owner` holds, or after one that it waits
    /// for.
    fn is_waited_for(&self, owner: LockOwner) -> bool {
        let file = |inode: &InodeNumber| &self.files[&(*inode, LockFamily::Posix)];
        let mut held = self.holding.get(&owner).into_iter().flatten().map(file);
        let mut wanted = self.waiting.get(&owner).into_iter().flatten().map(file);
        held.any(|file| file.is_waited_for(owner)) || wanted.any(|file| file.is_waited_behind(owner))
    }

    /// `owner` began to wait. Where that closed a cycle through places in queues, those in the
    /// cycle may now pass. There is none if no owner waits for `owner`: so a request that joins a
    /// long queue costs no search through all of it.
    fn grant_passers(&mut self, owner: LockOwner, completed: &mut Vec<Completion>) {
        if !self.is_waited_for(owner) {
            return;
        }
        let circle: BTreeSet<LockOwner> =
            self.waits_for([owner], true).into_iter().filter(|other| *other != owner).collect();
        let files: BTreeSet<InodeNumber> =
            circle.iter().filter_map(|other| self.waiting.get(other)).flatten().copied().collect();
        files.into_iter().for_each(|inode| self.grant_waiters((inode, LockFamily::Posix), completed));
    }
}

fn completion(waiter: &Waiter, outcome: Result<(), LockError>) -> Completion {
    Completion { client: waiter.owner.client, ticket: waiter.ticket, outcome }
}

/// Enters a file of an owner, or takes it out.
fn note(files: &mut OwnersFiles, owner: LockOwner, inode: InodeNumber, is_so: bool) {
    if is_so {
        files.entry(owner).or_default().insert(inode);
    } else if let Some(inodes) = files.get_mut(&owner) {
        inodes.remove(&inode);
        if inodes.is_empty() {
            files.remove(&owner);
        }
    }
}

fn held_in(inode: InodeNumber, family: LockFamily, file: &FileLocks) -> impl Iterator<Item = HeldLock> + '_ {
    file.held().map(move |(owner, segment)| HeldLock {
        inode,
        family,
        client: owner.client,
        owner: owner.owner,
        pid: segment.pid,
        range: segment.range,
        mode: segment.mode,
    })
}
