//! Callbacks for locks under which clients cache, and waiting until they are given back.
//!
//! An operation that changes what others have cached ends its attempt ([`Attempt::Blocked`]). Their
//! locks are asked back, and the request waits here: without the namespace's mutex, and not as one
//! of its service's threads. What ends the wait is a cancel, which has slots and a service of its
//! own, a new connection of the holder, or the end of its session.
//!
//! A client that does not give a lock back within [`Parameters::lock_timeout`] is evicted; it may
//! be alive. It serves from its cache until its lease ends, so its locks are kept until then.
//!
//! [`Attempt::Blocked`]: crate::namespace::Attempt::Blocked
//! [`Parameters::lock_timeout`]: crate::options::Parameters::lock_timeout

use std::{pin::pin, sync::Arc, time::Duration};

use lock::{ChangeId, Revocation};
use rpc::{
    Clients,
    message::{
        ClientRequest,
        client::Blocking,
        lock::{CacheMode, Resource},
    },
};
use rt::beat;
use tokio::sync::futures::OwnedNotified;
use types::{ClientId, FsError, FsResult, LockHandle};

use super::Mdt;
use crate::namespace::Attempts;

/// Pause after a client had no slot for a callback.
const BUSY_PAUSE: Duration = Duration::from_millis(10);

/// An operation that is tried until it is done. When this is dropped, nothing is in preparation for
/// it any more.
pub(super) struct Preparing<'m> {
    mdt: &'m Mdt,
    pub attempts: Attempts,
}

impl Drop for Preparing<'_> {
    fn drop(&mut self) {
        if let Some(change) = self.attempts.change.take() {
            self.mdt.namespace().volatile.cache.end(change);
        }
    }
}

impl Mdt {
    pub(super) fn preparing(&self) -> Preparing<'_> {
        Preparing { mdt: self, attempts: Attempts::default() }
    }

    /// Asks clients to give locks back; waits for nothing.
    pub(super) fn ask_back(&self, asked: Vec<Revocation>) {
        if asked.is_empty() {
            return;
        }
        let (Some(clients), Some(mdt)) = (self.revoker.clients(), self.me.upgrade()) else { return };
        for revocation in asked {
            let (mdt, clients) = (mdt.clone(), clients.clone());
            let ask = async move { mdt.ask_for_lock(&*clients, revocation).await };
            self.seams.spawn.spawn("lock_callback", Box::pin(ask));
        }
    }

    /// One callback. The lock comes back with another request: this only makes sure that the client
    /// has heard, or is gone.
    async fn ask_for_lock(&self, clients: &dyn Clients, revocation: Revocation) {
        let Revocation { client, handle, inode, bits } = revocation;
        let turns = self.revoker.turns_of(client);
        let _turn = turns.acquire().await;
        let blocking = Blocking { handle, resource: Resource::Inode(inode, bits), mode: CacheMode::Write };
        loop {
            match clients.call_back(client, ClientRequest::Blocking(blocking)).await {
                // It has no such lock, and will not take it for granted: it keeps nothing.
                Err(FsError::NotFound) => return self.cancel_locks(client, &[handle]),
                Err(FsError::Busy) if self.pause(BUSY_PAUSE).await => {}
                // Its locks go with its session, or with the server.
                Ok(_) | Err(FsError::Evicted | FsError::NoDevice | FsError::Busy) => return,
                Err(error) => {
                    tracing::warn!(target = %self.name(), %client, %error, "a client was not asked for a lock");
                    return;
                }
            }
        }
    }

    /// Waits until a change waits for no lock any more; clients that do not give theirs back are
    /// evicted. Fails with `NoDevice` if the MDT or its server stops before: clients do not reach it
    /// any more.
    pub(super) async fn locks_given_back(&self, service: Option<&'static str>, change: ChangeId) -> FsResult<()> {
        let Some(waiter) = self.namespace().volatile.cache.wait(change) else { return Ok(()) };
        let clients = self.revoker.clients().ok_or(FsError::NoDevice)?;
        let _parked = service.and_then(|service| clients.park(service));
        let (clock, spawn) = (&*self.seams.clock, &*self.seams.spawn);
        let mut waiter = pin!(waiter);
        let mut is_late = false;
        let mut overdue = pin!(beat::running_for(clock, spawn, self.parameters().lock_timeout));
        let mut stopping = self.stopping.subscribe();
        let mut stopped = clients.stopped();
        loop {
            tokio::select! {
                biased;
                () = &mut waiter => return Ok(()),
                _ = stopping.wait_for(|stopping| *stopping) => return Err(FsError::NoDevice),
                () = &mut stopped => return Err(FsError::NoDevice),
                () = &mut overdue, if !is_late => is_late = true,
            }
            let blockers = self.namespace().volatile.cache.blockers(change);
            for client in blockers {
                self.evict_holder(&clients, client);
            }
        }
    }

    /// Waits until one client less of the former start is expected. Fails as
    /// [`Mdt::locks_given_back`].
    pub(super) async fn client_back(&self, service: Option<&'static str>, progress: OwnedNotified) -> FsResult<()> {
        let clients = self.revoker.clients().ok_or(FsError::NoDevice)?;
        let _parked = service.and_then(|service| clients.park(service));
        let mut stopping = self.stopping.subscribe();
        tokio::select! {
            biased;
            () = progress => Ok(()),
            _ = stopping.wait_for(|stopping| *stopping) => Err(FsError::NoDevice),
            () = clients.stopped() => Err(FsError::NoDevice),
        }
    }

    /// Ends the session of a client that does not give a lock back.
    fn evict_holder(&self, clients: &Arc<dyn Clients>, client: ClientId) {
        tracing::warn!(target = %self.name(), %client, "evicted: the client did not give back a lock in time");
        let clients = clients.clone();
        let evict = async move {
            // Without a session it has been evicted, and its locks go with its lease.
            let _ = clients.evict(client).await;
        };
        self.seams.spawn.spawn("lock_eviction", Box::pin(evict));
    }

    /// A client gives locks back.
    pub(super) fn cancel_locks(&self, client: ClientId, handles: &[LockHandle]) {
        if !handles.is_empty() {
            self.namespace().volatile.cache.cancel(client, handles);
        }
    }

    /// A client serves nothing any more from what it was granted so far.
    pub(super) fn drop_cache_locks(&self, client: ClientId) {
        self.revoker.forget(client);
        let cache = &mut self.namespace().volatile.cache;
        let last = cache.last_handle();
        cache.drop_client(client, last);
    }

    /// The session of a client was ended here: it may serve from its cache until its lease ends.
    pub(super) fn drop_cache_locks_after_lease(&self, client: ClientId) {
        let clock = self.seams.clock.clone();
        let lease_end = self.revoker.clients().and_then(|clients| clients.lease_end(client));
        let (Some(lease_end), Some(mdt)) = (lease_end.filter(|end| *end > clock.now()), self.me.upgrade()) else {
            return self.drop_cache_locks(client);
        };
        self.revoker.forget(client);
        // In a new session it gets others.
        let last = self.namespace().volatile.cache.last_handle();
        let drop_them = async move {
            clock.sleep_until(lease_end).await;
            mdt.namespace().volatile.cache.drop_client(client, last);
        };
        self.seams.spawn.spawn("lease_end", Box::pin(drop_them));
    }
}
