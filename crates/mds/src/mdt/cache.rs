//! Locks under which clients cache, and waiting until they are given back.
//!
//! An operation that changes what others have cached ends its attempt ([`Attempt::Blocked`]). Their
//! locks are asked back (module [`super::lock_callbacks`]), and the request waits here: without the
//! namespace's lock, and not as one of its service's threads. What ends the wait is a cancel,
//! which has slots and a service of its own, a new connection of the holder, or the end of its
//! session.
//!
//! [`Attempt::Blocked`]: crate::namespace::Attempt::Blocked

use std::{pin::pin, time::Duration};

use lock::{ChangeId, Revocation};
use rpc::Parked;
use rt::{ChangeGuard, Instant, clock};
use types::{ClientId, FsError, FsResult, LockHandle};

use super::{Mdt, check::yield_now, waiter::Waiter};
use crate::namespace::{Attempts, Namespace};

/// Pause after a client had no slot for a callback.
pub(super) const BUSY_PAUSE: Duration = Duration::from_millis(10);

/// After a change has waited so long for locks, the log names one of their holders.
const SLOW: Duration = Duration::from_secs(1);

/// How long what a change needs is granted to nobody after its wait was given up: longer than its
/// client pauses before it asks again.
const LINGER: Duration = Duration::from_secs(3);

/// An operation that is tried until it is done. When this is dropped, nothing is in preparation for
/// it any more.
pub(super) struct Preparing<'m> {
    mdt: &'m Mdt,
    pub attempts: Attempts,
}

impl Drop for Preparing<'_> {
    fn drop(&mut self) {
        if let Some(change) = self.attempts.change.take() {
            self.mdt.namespace().volatile.cache.lock().end(change);
        }
    }
}

impl Mdt {
    pub(super) fn preparing(&self) -> Preparing<'_> {
        Preparing { mdt: self, attempts: Attempts::default() }
    }

    /// Waits until a change waits for no lock any more: clients that do not give theirs back are
    /// evicted (module [`super::lock_deadlines`]). Fails with `NoDevice` if the MDT or its server
    /// stops before: clients do not reach it any more; or if nobody waits for the change any more:
    /// an evicted client is told so when its requests have ended.
    pub(super) async fn locks_given_back(&self, waiter: Option<Waiter>, change: ChangeId) -> FsResult<()> {
        let Some(given_back) = self.namespace().volatile.cache.lock().wait(change) else { return Ok(()) };
        let clock = &*self.seams.clock;
        let mut given_back = pin!(self.unless_left(waiter, given_back));
        if let Some(outcome) = clock::timeout_at(clock, clock.now() + SLOW, &mut given_back).await {
            return outcome;
        }
        self.report_wait(change);
        given_back.await
    }

    /// The wait of a change was given up, and its client asks again: until then what it needs is
    /// granted to nobody. Otherwise clients that go on using it would be granted it each time.
    pub(super) fn linger(&self, change: Option<ChangeId>) {
        let (Some(change), Some(mdt)) = (change, self.me.upgrade()) else { return };
        let end = async move {
            mdt.pause(LINGER).await;
            mdt.report_wait(change);
            mdt.namespace().volatile.cache.lock().end(change);
        };
        self.seams.spawn.spawn("lock_linger", Box::pin(end));
    }

    /// A change has waited for a second, or longer: one line a second says for whom.
    fn report_wait(&self, change: ChangeId) {
        // First: listing what a change waits for may take long, and the namespace is locked.
        let Some(left_out) = self.revoker.begin_report(self.seams.clock.now()) else { return };
        let awaited = self.namespace().volatile.cache.lock().awaited(change);
        let Some(Revocation { client, inode, bits, .. }) = awaited.first().copied() else { return };
        let name = self.revoker.clients().and_then(|clients| clients.name(client)).unwrap_or_default();
        tracing::warn!(
            target = %self.name(), %client, name, %inode, parts = %bits, locks = awaited.len(), left_out,
            "a change has waited for a second or longer for locks; the first of them is held by this client. As many other waits \
             were left out"
        );
    }

    /// A request of this service waits for clients or OSTs: it counts as none of the service's
    /// threads until the answer is dropped.
    pub(super) fn park(&self, service: &'static str) -> Option<Parked> {
        self.revoker.clients()?.park(service)
    }

    /// Waits for clients, or for other MDTs, as none of the threads of its service. Fails as
    /// [`Mdt::locks_given_back`].
    pub(super) async fn unless_stopped<T>(
        &self,
        waiter: Option<Waiter>,
        progress: impl Future<Output = T>,
    ) -> FsResult<T> {
        let clients = self.revoker.clients().ok_or(FsError::NoDevice)?;
        // What this MDT does by itself has no thread of a service.
        let waiter = waiter.filter(|waiter| waiter.client != self.principal.client());
        let _parked = waiter.and_then(|waiter| clients.park(waiter.service));
        let mut stopping = self.stopping.subscribe();
        tokio::select! {
            biased;
            done = progress => Ok(done),
            _ = stopping.wait_for(|stopping| *stopping) => Err(FsError::NoDevice),
            () = clients.stopped() => Err(FsError::NoDevice),
        }
    }

    /// The same, not longer than somebody waits for the answer. `NoDevice` then, too: the client
    /// sends the request again, if it lives and was not evicted.
    pub(super) async fn unless_left<T>(
        &self,
        waiter: Option<Waiter>,
        progress: impl Future<Output = T>,
    ) -> FsResult<T> {
        let others = waiter.filter(|waiter| waiter.client != self.principal.client());
        let Some(Waiter { client, .. }) = others else { return self.unless_stopped(waiter, progress).await };
        let left = self.revoker.clients().ok_or(FsError::NoDevice)?.left(client);
        let unless_left = async {
            tokio::select! {
                biased;
                done = progress => Ok(done),
                () = left => Err(FsError::NoDevice),
            }
        };
        self.unless_stopped(waiter, unless_left).await?
    }

    /// A client gives locks back.
    pub(super) fn cancel_locks(&self, client: ClientId, handles: &[LockHandle]) {
        if !handles.is_empty() {
            let now = self.seams.clock.now();
            self.namespace().volatile.cancel_locks(client, handles, now);
        }
    }

    /// A connection of a client begins: its locks have ended with the former one, and what it may
    /// have opened under them is taken to be open until it has told. A client that is expected back
    /// after a restart reclaims all its opens first, and until then nothing ends.
    pub(super) fn locks_ended(&self, client: ClientId) {
        {
            let volatile = &mut self.namespace().volatile;
            if !volatile.recovery.expected.contains(&client) {
                volatile.opens.presumed.connection_begun(client);
            }
        }
        self.drop_cache_locks(client);
    }

    /// A client serves nothing any more from what it was granted so far.
    pub(super) fn drop_cache_locks(&self, client: ClientId) {
        let last = self.namespace().volatile.cache.lock().last_handle();
        self.drop_locks_up_to(client, last);
    }

    /// Ends what is presumed of a client without a reason any more: some now, the rest soon.
    pub(super) fn end_presumptions(&self, client: ClientId) {
        let now = self.seams.clock.now();
        self.in_steps("presumed_opens", move |namespace| namespace.volatile.end_presumptions(client, now));
    }

    /// The session of a client ended, and with it all that was presumed of it.
    pub(super) async fn forget_presumptions(&self, client: ClientId) {
        let now = self.seams.clock.now();
        self.namespace().volatile.opens.presumed.session_ended(client);
        while self.namespace().volatile.end_presumptions(client, now) {
            yield_now().await;
        }
    }

    /// Removes locks of a client, which uses them no more: some now, the others soon, since there
    /// may be a million, and no request reaches the namespace meanwhile. Its later locks stay, so
    /// it may connect again before they are gone. Locks that do not exist for their client any more
    /// only hold changes up until then, and are not granted again.
    fn drop_locks_up_to(&self, client: ClientId, last: LockHandle) {
        let now = self.seams.clock.now();
        self.in_steps("lock_drop", move |namespace| namespace.volatile.drop_locks(client, last, now));
    }

    /// Takes a step of work now, and the rest soon, as long as there is more; others reach the
    /// namespace in between.
    fn in_steps(&self, name: &'static str, step: impl Fn(&mut Namespace) -> bool + Send + 'static) {
        let step = move |mdt: &Mdt| {
            let mut namespace = mdt.namespace();
            let has_more = step(&mut namespace);
            ChangeGuard::unlock_fair(namespace);
            has_more
        };
        if !step(self) {
            return;
        }
        let Some(mdt) = self.me.upgrade() else { return };
        let rest = async move {
            yield_now().await;
            while step(&mdt) {
                yield_now().await;
            }
        };
        self.seams.spawn.spawn(name, Box::pin(rest));
    }

    /// The session of a client was ended here: it may serve from its cache until its lease ends.
    /// `None`: that is over.
    pub(super) fn drop_cache_locks_after_lease(&self, client: ClientId) -> Option<Instant> {
        let clock = self.seams.clock.clone();
        let lease_end = self.revoker.clients().and_then(|clients| clients.lease_end(client));
        let (Some(lease_end), Some(mdt)) = (lease_end.filter(|end| *end > clock.now()), self.me.upgrade()) else {
            self.drop_cache_locks(client);
            return None;
        };
        // In a new session it gets others.
        let last = self.namespace().volatile.cache.lock().last_handle();
        let drop_them = async move {
            clock.sleep_until(lease_end).await;
            mdt.drop_locks_up_to(client, last);
        };
        self.seams.spawn.spawn("lease_end", Box::pin(drop_them));
        Some(lease_end)
    }
}
