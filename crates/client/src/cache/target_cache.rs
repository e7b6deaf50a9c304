//! The cache of one MDT, as the tasks of this client share it, and the locks that are to be given
//! back.
//!
//! Each use asks the connection first: nothing is served when it is broken, or when the MDT may
//! have evicted this client because it heard nothing of it for too long (this process may have been
//! stopped).

use std::{
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    time::Duration,
};

use bytes::Bytes;
use parking_lot::{Mutex, MutexGuard};
use rpc::{
    Answered, Import, Lease, checksum,
    message::{
        MdtReply, MdtRequest, OstReply,
        lock::{Enqueue, InodeBits, Resource, inode_bit},
        mdt::{Access, LockClaim, NotedAccess},
        session::feature,
    },
};
use rt::{Clock, Instant};
use types::{ClientId, FsResult, InodeNumber, LockHandle, limits::SMALL_FILE_BYTES_MAX};

use super::{
    accesses::{Due, Order},
    cancels::{Cancels, Withdrawn},
    connection_id::ConnectionId,
    inode_cache::{self, InodeCache, Pending, Reply},
    released::Released,
};
use crate::open_state::open_table::OpenTable;

/// Caches above keep what they are given for at most this part of a lease: a process that is
/// stopped cannot withdraw anything from them.
const VALIDITY_PER_LEASE: u32 = 3;
/// How long locks that are not used are kept: 65 minutes, as in Lustre.
const LOCK_AGE_MAX_MS: u64 = 3_900_000;

/// See the module documentation.
#[derive(Debug)]
pub(crate) struct TargetCache {
    cache: Mutex<InodeCache>,
    cancels: Mutex<Cancels>,
    /// A lock on opens was ever asked for.
    wanted_opens: AtomicBool,
    /// Accesses were noted, and nothing has been done about it.
    has_due_accesses: AtomicBool,
    /// `lru_max_age`.
    lock_age_max_ms: AtomicU64,
    /// A task looks after the ages of locks.
    is_aging: AtomicBool,
}

impl Default for TargetCache {
    fn default() -> Self {
        Self {
            cache: Mutex::default(),
            cancels: Mutex::default(),
            wanted_opens: AtomicBool::default(),
            has_due_accesses: AtomicBool::default(),
            lock_age_max_ms: AtomicU64::new(LOCK_AGE_MAX_MS),
            is_aging: AtomicBool::default(),
        }
    }
}

fn wants_opens(wanted: &Enqueue) -> bool {
    matches!(wanted.resource, Resource::Inode(_, InodeBits(bits)) if bits & inode_bit::OPEN != 0)
}

/// All bytes of the object of a small file on the MDT, if an answer brings them undamaged.
fn small_file(answered: &Answered<MdtReply>) -> Option<&Bytes> {
    let done = match &answered.reply {
        MdtReply::Opened(_) => answered.extension.data.as_ref()?,
        MdtReply::Data(OstReply::Read(done)) => done,
        _ => return None,
    };
    let is_whole = answered.bulk.len() as u64 == done.size && done.size <= u64::from(SMALL_FILE_BYTES_MAX);
    (is_whole && checksum::verify(0, &answered.bulk, &done.checksums).is_ok()).then_some(&answered.bulk)
}

/// The newest connection, as the cache knows it.
fn newest(import: &Import) -> ConnectionId {
    (import.client(), import.newest_connection())
}

/// Drops what was cached through another connection than the present one and not claimed. With the
/// cache locked, so that it never goes back to an earlier one. The lease of the connection, if it
/// is of the present session.
fn connect(cache: &mut InodeCache, import: &Import) -> Option<Lease> {
    let lease = import.lease();
    let former = cache.connection();
    let is_present = cache.connect_by(import.client(), lease.map(|lease| lease.connection));
    if cache.connection() != former && lease.is_some() {
        cache.set_accesses_supported(import.supports(feature::LATE_ACCESSES));
    }
    lease.filter(|_| is_present)
}

impl TargetCache {
    /// This client has a session under this id from now on: what was cached through an earlier one
    /// is not served, and what still comes through it is not kept.
    pub fn begin_session(&self, client: ClientId) {
        self.cache.lock().begin_session(client);
    }

    /// Looks at the cache, if it may be served from at present. Also for how long others may serve
    /// what is found without asking, as long as its lock is not withdrawn.
    pub fn serve_for<T>(
        &self,
        import: &Import,
        clock: &dyn Clock,
        query: impl FnOnce(&mut InodeCache) -> Option<T>,
    ) -> Option<(T, Duration)> {
        let mut cache = self.cache.lock();
        let lease = connect(&mut cache, import)?;
        // Read after the lease: this process may be stopped in between.
        let now = clock.now();
        if lease.until <= now {
            return None;
        }
        let validity = lease.until.since(now).min(lease.length / VALIDITY_PER_LEASE);
        let found = query(&mut cache);
        if cache.accesses.is_due() {
            self.has_due_accesses.store(true, Ordering::Release);
        }
        found.map(|found| (found, validity))
    }

    /// See [`InodeCache::grants`].
    pub fn grants(&self) -> bool {
        self.cache.lock().grants()
    }

    /// What is to be done about accesses that were noted, after each use of the cache.
    pub fn take_due_accesses(&self) -> Due {
        match self.has_due_accesses.load(Ordering::Acquire) {
            true => {
                let mut cache = self.cache.lock();
                self.has_due_accesses.store(false, Ordering::Release);
                cache.accesses.take_due()
            }
            false => Due::Nothing,
        }
    }

    /// See [`Accesses::ends_schedule`].
    ///
    /// [`Accesses::ends_schedule`]: super::accesses::Accesses::ends_schedule
    pub fn ends_schedule_of_accesses(&self) -> bool {
        self.cache.lock().accesses.ends_schedule()
    }

    /// Whether there are accesses of which the MDT does not know.
    pub fn has_accesses(&self) -> bool {
        !self.cache.lock().accesses.is_empty()
    }

    /// Whether the MDT does not know of an access to this inode.
    pub fn has_access(&self, inode: InodeNumber) -> bool {
        self.cache.lock().accesses.has(inode)
    }

    /// The last access so far.
    pub fn last_access(&self) -> Order {
        self.cache.lock().accesses.last()
    }

    /// The next accesses that the MDT is told of, of those until `last`.
    pub fn begin_telling_accesses(&self, last: Order) -> Vec<Access> {
        self.cache.lock().begin_telling_accesses(last)
    }

    /// It was told, and answered.
    pub fn told_accesses(&self, told: &[Access], noted: &[Option<NotedAccess>]) {
        let mut cache = self.cache.lock();
        cache.told_accesses(told, noted);
        self.accesses_done(&cache, told);
    }

    /// It may not have heard; `may_repeat`: it can be told again.
    pub fn failed_to_tell_accesses(&self, told: &[Access], may_repeat: bool) {
        let mut cache = self.cache.lock();
        cache.failed_to_tell_accesses(may_repeat);
        self.accesses_done(&cache, told);
    }

    /// The locks of these need not wait any more, unless they are to be told again.
    fn accesses_done(&self, cache: &InodeCache, told: &[Access]) {
        let mut cancels = self.cancels.lock();
        for Access { inode, .. } in told.iter().filter(|access| !cache.accesses.has(access.inode)) {
            cancels.told_access(*inode);
        }
    }

    /// A request that is about to be sent through this connection or a later one.
    pub fn ask(&self, import: &Import, request: &MdtRequest, clock: &dyn Clock, opens: &OpenTable) -> Pending {
        let mut cache = self.cache.lock();
        connect(&mut cache, import);
        let pending = cache.ask(request, clock.wall(), |inode| opens.is_written(inode));
        if pending.wanted.is_some_and(|wanted| wants_opens(&wanted)) {
            self.wanted_opens.store(true, Ordering::Release);
        }
        pending
    }

    /// A connection has begun: what is to be claimed on it.
    pub fn begin_claim(&self, import: &Import) -> Vec<LockClaim> {
        self.cache.lock().begin_claim(newest(import))
    }

    /// Claims were answered, with new handles of those that were granted.
    pub fn claimed(&self, import: &Import, claims: &[LockClaim], granted: &[Option<LockHandle>]) {
        let mut cache = self.cache.lock();
        let answers = claims.iter().zip(granted);
        let released = answers.filter_map(|(claim, granted)| cache.claimed(newest(import), claim, *granted)).collect();
        // Nothing was served under them.
        self.release(cache, released, false);
    }

    /// Whatever was not claimed by now is dropped.
    pub fn end_claim(&self, import: &Import) {
        self.cache.lock().end_claim(newest(import));
    }

    /// Whether this client may have been granted a lock on opens.
    pub fn has_wanted_opens(&self) -> bool {
        self.wanted_opens.load(Ordering::Acquire)
    }

    /// The connection at present, as the cache knows it.
    pub fn connection(&self, import: &Import) -> Option<ConnectionId> {
        let mut cache = self.cache.lock();
        connect(&mut cache, import);
        cache.connection()
    }

    /// It was answered, or has failed. Adds to the reply the access times that only this client
    /// knows. `above`: there is a cache above. Returns whether it changed
    /// attributes of an inode that could not be named before, and the locks on inodes that lost
    /// their last name, probably: they are given back along with others.
    pub fn answer(
        &self,
        import: &Import,
        pending: Pending,
        outcome: &mut FsResult<Answered<MdtReply>>,
        above: bool,
    ) -> (bool, Vec<(InodeNumber, LockHandle)>) {
        let mut cache = self.cache.lock();
        connect(&mut cache, import);
        if let Ok(answered) = outcome {
            cache.accesses.show(&mut answered.reply, &mut answered.extension);
        }
        let data = outcome.as_ref().ok().and_then(small_file);
        let taken_back = outcome.as_ref().map_or(Vec::new(), |answered| self.take_back(&cache, import, answered));
        let reply = outcome.as_ref().map(|answered| Reply {
            reply: &answered.reply,
            beside: &answered.extension,
            connection: (import.client(), answered.connection),
            data,
            taken_back: &taken_back,
        });
        let inode_cache::Answered { released, unnamed, has_doubts } = cache.answer(pending, reply);
        self.release(cache, released, above);
        (has_doubts, unnamed)
    }

    /// The locks on inodes which this answer shows that are not given back yet.
    fn take_back(&self, cache: &InodeCache, import: &Import, answered: &Answered<MdtReply>) -> Vec<Released> {
        let connection = (import.client(), answered.connection);
        if cache.connection() != Some(connection) || cache.locks_max() == 0 {
            return Vec::new();
        }
        let mut cancels = self.cancels.lock();
        inode_cache::named_by(&answered.reply).flat_map(|inode| cancels.take_back(inode, connection)).collect()
    }

    /// Its outcome will not become known.
    pub fn abandon(&self, pending: Pending) {
        self.cache.lock().abandon(pending);
    }

    /// The MDT asks for a lock: nothing is served under it from now on, and a layout that an open
    /// file was used by is outdated. `above` as in [`TargetCache::answer`].
    pub fn withdraw(&self, import: &Import, handle: LockHandle, opens: &OpenTable, above: bool) -> Withdrawn {
        let mut cache = self.cache.lock();
        connect(&mut cache, import);
        let released = cache.withdraw(handle);
        if let Some(released) = released.filter(|released| released.parts.0 & inode_bit::LAYOUT != 0)
            && let Some(open) = opens.find(released.inode)
        {
            open.outdate_layout();
        }
        let mut cancels = self.cancels.lock();
        if let Some(released) = released.filter(|released| cache.accesses.has(released.inode)) {
            cancels.accessed(released.inode, handle);
        }
        cancels.withdrawn(handle, released, above)
    }

    /// The connection, and the cache, if it may be served from at present. Nothing changes.
    pub fn look<T>(
        &self,
        import: &Import,
        clock: &dyn Clock,
        look: impl FnOnce(&InodeCache, ConnectionId) -> T,
    ) -> Option<T> {
        let cache = self.cache.lock();
        let lease = import.lease().filter(|lease| lease.until > clock.now())?;
        Some(look(&cache, (import.client(), lease.connection)))
    }

    /// How many locks are kept at most; 0: nothing is cached.
    pub fn locks_max(&self) -> usize {
        self.cache.lock().locks_max()
    }

    /// Changes that. `above` as in [`TargetCache::answer`].
    pub fn set_locks_max(&self, locks_max: usize, above: bool) {
        let mut cache = self.cache.lock();
        let released = cache.set_locks_max(locks_max);
        self.release(cache, released, above);
    }

    /// Gives up everything, and leaves the limit as it is. `above` as in [`TargetCache::answer`].
    pub fn give_up_all(&self, above: bool) {
        let mut cache = self.cache.lock();
        let released = cache.give_up_all();
        self.release(cache, released, above);
    }

    /// Memory that data of small files take, and may take at most.
    pub fn small_files_usage(&self) -> (u64, u64) {
        self.cache.lock().small_files.usage()
    }

    /// Changes how much it may be; 0: none are kept.
    pub fn set_small_files_bytes_max(&self, bytes_max: u64) {
        self.cache.lock().small_files.set_bytes_max(bytes_max);
    }

    /// How long locks that are not used are kept.
    pub fn lock_age_max(&self) -> Duration {
        Duration::from_millis(self.lock_age_max_ms.load(Ordering::Relaxed))
    }

    /// Changes that.
    pub fn set_lock_age_max(&self, age_max: Duration) {
        self.lock_age_max_ms.store(age_max.as_millis().try_into().unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    /// Whether a task has to begin that looks after the ages of locks.
    pub fn begin_to_age(&self) -> bool {
        !self.is_aging.load(Ordering::Relaxed)
            && self.cache.lock().lock_count() > 0
            && !self.is_aging.swap(true, Ordering::Relaxed)
    }

    /// Gives up the locks that were not used for long. False if none is left: this task ends.
    pub fn give_up_unused(&self, now: Instant, above: bool) -> bool {
        let mut cache = self.cache.lock();
        let released = cache.give_up_unused(now, self.lock_age_max());
        let has_more = cache.lock_count() > 0;
        // With the cache locked: a lock that is granted from now on starts another task.
        self.is_aging.store(has_more, Ordering::Relaxed);
        self.release(cache, released, above);
        has_more
    }

    /// Locks held.
    pub fn lock_count(&self) -> usize {
        self.cache.lock().lock_count()
    }

    /// Inodes on which locks are held.
    pub fn inode_count(&self) -> usize {
        self.cache.lock().inode_count()
    }

    /// With the cache locked: a callback for one of them finds what the cache above still has.
    fn release(&self, cache: MutexGuard<'_, InodeCache>, released: Vec<Released>, above: bool) {
        if !released.is_empty() {
            let mut cancels = self.cancels.lock();
            let accessed = released.iter().filter(|released| cache.accesses.has(released.inode));
            accessed.for_each(|released| cancels.accessed(released.inode, released.handle));
            cancels.released(released, cache.connection(), above);
        }
        drop(cache);
    }

    /// The locks to be given back. Never to be locked before the cache.
    pub fn cancels(&self) -> MutexGuard<'_, Cancels> {
        self.cancels.lock()
    }
}
