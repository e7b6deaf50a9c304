//! The cache of one MDT, as the tasks of this client share it, and the locks that are to be given
//! back.
//!
//! Each use asks the connection first: nothing is served when it is broken, or when the MDT may have
//! evicted this client because it heard nothing of it for too long (this process may have been
//! stopped).

use parking_lot::Mutex;
use rpc::{
    Answered, Import, Lease,
    message::{MdtReply, MdtRequest},
};
use rt::Clock;
use types::{FsResult, LockHandle, limits::LOCKS_PER_MESSAGE_MAX};

use super::inode_cache::{InodeCache, Pending, Reply};
use crate::open_state::open_table::OpenTable;

/// Locks to be given back.
#[derive(Debug, Default)]
struct Cancels {
    handles: Vec<LockHandle>,
    /// A task sends them.
    is_sending: bool,
}

/// See the module documentation.
#[derive(Debug, Default)]
pub(crate) struct TargetCache {
    cache: Mutex<InodeCache>,
    cancels: Mutex<Cancels>,
}

/// Drops what was cached through another connection than the present one. With the cache locked, so
/// that it never goes back to an earlier one; the import of an earlier session has no say.
fn connect(cache: &mut InodeCache, import: &Import) -> Option<Lease> {
    let lease = import.lease();
    let connection = lease.map(|lease| (import.client(), lease.connection));
    if connection.is_some() || !cache.is_of_other_session(import.client()) {
        cache.connect(connection);
    }
    lease
}

impl TargetCache {
    /// Looks at the cache, if it may be served from at present.
    pub fn serve<T>(
        &self,
        import: &Import,
        clock: &dyn Clock,
        query: impl FnOnce(&mut InodeCache) -> Option<T>,
    ) -> Option<T> {
        let mut cache = self.cache.lock();
        let lease = connect(&mut cache, import);
        // Read after the lease: this process may be stopped in between.
        let now = clock.now();
        if lease?.until <= now {
            return None;
        }
        query(&mut cache)
    }

    /// A request that is about to be sent through this connection or a later one.
    pub fn ask(&self, import: &Import, request: &MdtRequest, clock: &dyn Clock, opens: &OpenTable) -> Pending {
        let mut cache = self.cache.lock();
        connect(&mut cache, import);
        cache.ask(request, clock.wall(), |inode| opens.is_written(inode))
    }

    /// It was answered, or has failed.
    pub fn answer(&self, import: &Import, pending: Pending, outcome: &FsResult<Answered<MdtReply>>) {
        let mut cache = self.cache.lock();
        connect(&mut cache, import);
        let reply = outcome.as_ref().map(|answered| Reply {
            reply: &answered.reply,
            granted: &answered.extension.granted,
            connection: (import.client(), answered.connection),
        });
        let cancelled = cache.answer(pending, reply);
        drop(cache);
        self.cancel(cancelled);
    }

    /// Nobody will know its outcome.
    pub fn abandon(&self, pending: Pending) {
        self.cache.lock().abandon(pending);
    }

    /// The MDT withdraws a lock.
    pub fn withdraw(&self, import: &Import, handle: LockHandle) {
        let mut cache = self.cache.lock();
        connect(&mut cache, import);
        cache.withdraw(handle);
        drop(cache);
        self.cancel(vec![handle]);
    }

    /// How many locks are kept at most; 0: nothing is cached.
    pub fn locks_max(&self) -> usize {
        self.cache.lock().locks_max()
    }

    /// Changes that.
    pub fn set_locks_max(&self, locks_max: usize) {
        let cancelled = self.cache.lock().set_locks_max(locks_max);
        self.cancel(cancelled);
    }

    /// Locks held.
    pub fn lock_count(&self) -> usize {
        self.cache.lock().lock_count()
    }

    fn cancel(&self, handles: Vec<LockHandle>) {
        if !handles.is_empty() {
            self.cancels.lock().handles.extend(handles);
        }
    }

    /// Whether there are locks to be given back, and no task does it yet: the caller does.
    pub fn begin_to_cancel(&self) -> bool {
        let mut cancels = self.cancels.lock();
        let begins = !cancels.is_sending && !cancels.handles.is_empty();
        cancels.is_sending |= begins;
        begins
    }

    /// The next locks to be given back in one message; `None`: there are none, and the task that
    /// asks ends.
    pub fn next_cancels(&self) -> Option<Vec<LockHandle>> {
        let mut cancels = self.cancels.lock();
        let count = cancels.handles.len().min(LOCKS_PER_MESSAGE_MAX);
        if count == 0 {
            *cancels = Cancels::default();
            return None;
        }
        Some(cancels.handles.drain(..count).collect())
    }
}
