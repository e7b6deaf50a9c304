//! The client half: an import is a client's view of one target (Lustre's word).
//!
//! A call takes a slot, sends its request with the slot's next transaction number, and waits. What the network does to
//! frames and connections is invisible to the caller, as long as the server gives a sign of life within the patience:
//!
//! - A request without a reply is sent again on the same connection, at growing intervals. A server that still executes
//!   it says so.
//! - A broken or silent connection is opened anew, with back-off. What is outstanding is sent again with its old (slot,
//!   xid), so it takes effect once.
//! - After a restart of the server the [`Recovery`] hook claims again what was open there; other calls wait for it.
//! - After an eviction every outstanding call ends with [`FsError::Evicted`](types::FsError::Evicted), the hook is told, and a new session begins.
//!
//! A caller that drops its call gives up the result, not the slot: that stays taken until the request's fate is known. A caller
//! that is told that the server does not answer may go on: what he asked has been executed by then, or never will be (see
//! `core`).
//!
//! Requests that the server keeps until somebody else gives something up ([`RequestRow::waits`]) get at most three quarters of
//! the slots: what they wait for may be this client's, and must find a slot. Not fewer, because a lock goes to who asked
//! first, and he has to be asking then.
//!
//! [`RequestRow::waits`]: crate::message::kind::RequestRow::waits
//!
//! ```text
//! NEW -> CONNECTING -> [RECOVER ->] FULL -> DISCONN -> CONNECTING ...      any -> EVICTED -> CONNECTING, any -> CLOSED
//! ```
//!
//! One task per import connects, reads replies, repeats and pings; callers send their requests themselves. In process,
//! a call awaits the handler itself, in the caller's task.
//!
//! Downside: one connection per import, so one core reads all replies of a target.

mod call;
mod core;
mod driver;
mod options;
mod permits;
mod slots;
mod statistics;
mod trouble;
mod waiting;

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use parking_lot::Mutex;
use rt::{BoxFuture, Instant, Seams, Sender};
use tokio::sync::{Notify, Semaphore, oneshot};
use types::{ClientId, FsError, FsResult, Slot, limits::SESSION_SLOTS_MAX};

use crate::{
    codec::opcode::Family,
    message::{Reply, Request, bounds},
    server::LocalLink,
};
pub(crate) use call::SlotToken;
use core::{CallResult, Core, Purpose};
pub use options::{Endpoint, ImportOptions, ImportState};
use permits::Permits;
pub use statistics::{ImportStatistics, OpcodeStatistics};
pub use trouble::Cause;
use waiting::Waiting;

/// What becomes of a request whose caller was told that the server does not answer.
pub struct Fate(oneshot::Receiver<CallResult>);

impl Fate {
    /// Waits until the request is under way no more: its answer, if the server gave one after all; `None`: it was executed or never
    /// will be, and nobody knows which.
    pub async fn known(self) -> Option<FsResult<Answered>> {
        self.0.await.ok()
    }
}

/// Told by an import when the server lost its memory of this client. An implementation that holds the import should hold
/// it weakly, since the import holds the implementation.
pub trait Recovery: Send + Sync {
    /// The server restarted: claim again what was open there. Calls through `import` (or its clones) pass the gate
    /// that holds all others back until this returns; they go out one at a time, and fail with [`FsError::Unreachable`] as
    /// soon as the connection breaks. An error closes the connection and everything is tried again, except
    /// [`FsError::Evicted`], which is an eviction. `has_lost`: [`Connected::losses`] has grown since all this was as the
    /// server knew it, so the target may have lost changes that were not durable.
    ///
    /// [`Connected::losses`]: crate::message::session::Connected::losses
    /// [`FsError::Unreachable`]: types::FsError::Unreachable
    /// [`FsError::Evicted`]: types::FsError::Evicted
    fn recover(&self, import: &Import, has_lost: bool) -> BoxFuture<'_, FsResult<()>>;

    /// The server evicted this client: everything that was open there is lost. Comes before any call of the new session.
    fn evicted(&self) {}
}

/// What a call brought back.
#[derive(Clone, Debug, PartialEq)]
pub struct Answered {
    /// The reply.
    pub reply: Reply,
    /// Bulk data that came with it.
    pub bulk: Bytes,
    /// [`losses`] of the connection through which it came. What the reply acknowledges survived these losses; it may not
    /// survive the next one.
    ///
    /// [`losses`]: crate::message::session::Connected::losses
    pub losses: u64,
}

/// How calls reach the target at present.
#[derive(Clone)]
enum Link {
    Local(Arc<LocalLink>),
    Remote(Arc<dyn Sender>),
}

/// Everything behind the import's lock.
struct Guarded {
    core: Core,
    link: Option<Link>,
    endpoint: Endpoint,
    /// The endpoint changed since the driver looked.
    readdressed: bool,
    /// Somebody found the present link dead.
    link_lost: bool,
    /// Somebody found the session gone.
    session_lost: bool,
    /// Calls could go out since the last disconnection.
    worked: bool,
    closing: bool,
    /// Wanted `max_rpcs_in_flight`.
    wanted: u16,
    /// Callers whose requests are not sent yet.
    waiting: Waiting,
}

/// How many of so many requests may be such that wait for others.
fn waiting_max(requests: u16) -> u16 {
    (requests - requests / 4).clamp(1, requests.max(2) - 1)
}

/// What callers and the driver share.
struct Inner {
    seams: Seams,
    target: Arc<str>,
    family: Option<Family>,
    client: ClientId,
    client_name: String,
    options: ImportOptions,
    recovery: Option<Arc<dyn Recovery>>,
    guarded: Mutex<Guarded>,
    /// One permit per ordinary request that may be outstanding; held until its slot is free again.
    permits: Permits,
    /// One permit per call that waits for others, beside that for its slot.
    waiting: Permits,
    /// One permit for the control slot.
    control: Semaphore,
    /// Wakes callers that wait for another state.
    changed: Notify,
    /// Wakes the driver.
    wake: Notify,
    /// Wakes the part of the driver that sends again.
    resend: Notify,
    /// Wakes the part of the driver that ends calls when nobody has patience: a call began, or the patience changed.
    impatient: Notify,
}

/// A client's view of one target. Cheap to clone; the last clone dropped closes it without a farewell.
#[derive(Clone)]
pub struct Import {
    inner: Arc<Inner>,
    /// `None` in the handle given to the recovery hook.
    _closer: Option<Arc<Closer>>,
    recovering: bool,
}

/// Closes the import with its last handle.
struct Closer(Arc<Inner>);

impl Drop for Closer {
    fn drop(&mut self) {
        self.0.begin_close();
    }
}

impl Inner {
    fn now(&self) -> Instant {
        self.seams.clock.now()
    }

    fn begin_close(&self) {
        self.guarded.lock().closing = true;
        self.wake.notify_one();
    }

    /// A slot is free again: lets the next call have it.
    fn slot_freed(&self, slot: Slot) {
        if slot == slots::CONTROL {
            self.control.add_permits(1);
        } else {
            self.permits.give_back();
        }
    }

    /// A permit was not used.
    fn permit_back(&self, purpose: Purpose) {
        self.slot_freed(if purpose == Purpose::Ordinary { slots::FIRST_ORDINARY } else { slots::CONTROL });
    }

    /// Makes the number of permits what is wanted and granted.
    fn adjust_permits(&self) {
        let guarded = self.guarded.lock();
        let goal = guarded.wanted.clamp(1, guarded.core.ordinary_slots().max(1));
        self.permits.resize(goal);
        self.waiting.resize(waiting_max(goal));
    }
}

impl Import {
    /// An import that begins to connect. The target's name says which requests it understands (and so how to ping it):
    /// `MGS`, `<fsname>-MDT<index>` or `<fsname>-OST<index>`.
    pub fn new(
        seams: Seams,
        target: &str,
        endpoint: Endpoint,
        client: ClientId,
        client_name: &str,
        options: ImportOptions,
        recovery: Option<Arc<dyn Recovery>>,
    ) -> Import {
        let target: Arc<str> = target.into();
        let permits = options.rpcs_in_flight_max.clamp(1, SESSION_SLOTS_MAX - 1);
        let guarded = Guarded {
            core: Core::new(target.clone(), &options),
            link: None,
            endpoint,
            readdressed: false,
            link_lost: false,
            session_lost: false,
            worked: false,
            closing: false,
            wanted: permits,
            waiting: Waiting::default(),
        };
        let inner = Arc::new(Inner {
            family: Family::of_target(&target),
            seams,
            target,
            client,
            client_name: bounds::client_name(client_name),
            options,
            recovery,
            guarded: Mutex::new(guarded),
            permits: Permits::new(permits),
            waiting: Permits::new(waiting_max(permits)),
            control: Semaphore::new(1),
            changed: Notify::new(),
            wake: Notify::new(),
            resend: Notify::new(),
            impatient: Notify::new(),
        });
        inner.seams.spawn.spawn_spread("import", Box::pin(driver::run(inner.clone())));
        Import { _closer: Some(Arc::new(Closer(inner.clone()))), inner, recovering: false }
    }

    /// Name of the target.
    pub fn target(&self) -> &str {
        &self.inner.target
    }

    /// Who this side is.
    pub fn client(&self) -> ClientId {
        self.inner.client
    }

    /// Sends a request and waits for its reply. The trace id is the caller's ([`rt::trace`]).
    ///
    /// Errors of its own, beside those of the target:
    /// - [`FsError::Unreachable`](types::FsError::Unreachable): no sign of life from the server for the patience, or the import was closed; whether the
    ///   request took effect is unknown.
    /// - [`FsError::Evicted`](types::FsError::Evicted): the session was lost while the request was outstanding; whether it took effect is unknown,
    ///   and everything that was open in the session is gone. Later calls belong to a new session. The client repeats
    ///   what is safe to repeat and tells its user `Stale` for what went through an open file.
    /// - [`FsError::Protocol`](types::FsError::Protocol): the server speaks no version that this side speaks.
    /// - [`FsError::TooBig`](types::FsError::TooBig): the request is larger than a frame.
    pub async fn call(&self, request: Request, bulk: Bytes) -> FsResult<(Reply, Bytes)> {
        let answered = self.exchange(request, bulk, &mut None).await?;
        Ok((answered.reply, answered.bulk))
    }

    /// As [`Import::call`]; with the reply comes what it is worth.
    pub async fn call_counted(&self, request: Request, bulk: Bytes) -> FsResult<Answered> {
        self.exchange(request, bulk, &mut None).await
    }

    /// As [`Import::call_counted`]; with the error comes the fate of a request that may have been, or be, executed nevertheless.
    pub async fn call_with_fate(&self, request: Request, bulk: Bytes) -> Result<Answered, (FsError, Option<Fate>)> {
        let (late, fate) = oneshot::channel();
        let mut late = Some(late);
        let answered = self.exchange(request, bulk, &mut late).await;
        answered.map_err(|error| {
            let is_open = late.is_none() && matches!(error, FsError::Unreachable { .. });
            (error, is_open.then_some(Fate(fate)))
        })
    }

    /// The target is served there now. Reconnects if that is another place.
    pub fn set_address(&self, endpoint: Endpoint) {
        let mut guarded = self.inner.guarded.lock();
        let same = match (&guarded.endpoint, &endpoint) {
            (Endpoint::Local(old), Endpoint::Local(new)) => Arc::ptr_eq(old, new),
            (Endpoint::Remote(old), Endpoint::Remote(new)) => old == new,
            _ => false,
        };
        if !same {
            guarded.endpoint = endpoint;
            guarded.readdressed = true;
            drop(guarded);
            self.inner.wake.notify_one();
        }
    }

    /// Where the target is expected.
    pub fn endpoint(&self) -> Endpoint {
        self.inner.guarded.lock().endpoint.clone()
    }

    /// Changes the number of requests that may be outstanding at once, 1 to the number of slots the server grants less 1.
    pub fn set_max_rpcs_in_flight(&self, count: u16) {
        self.inner.guarded.lock().wanted = count;
        self.inner.adjust_permits();
    }

    /// Number of requests that may be outstanding at once.
    pub fn max_rpcs_in_flight(&self) -> u16 {
        self.inner.permits.count()
    }

    /// Changes how long callers wait for a silent server.
    pub fn set_patience(&self, patience: Duration) {
        self.inner.guarded.lock().core.patience = patience;
        self.inner.impatient.notify_one();
        self.inner.changed.notify_waiters();
    }

    /// Present state.
    pub fn state(&self) -> ImportState {
        self.inner.guarded.lock().core.state
    }

    /// [`losses`] of the target as of the last connection by which calls could go out; `None`: there was none.
    ///
    /// [`losses`]: crate::message::session::Connected::losses
    pub fn losses(&self) -> Option<u64> {
        self.inner.guarded.lock().core.losses_known()
    }

    /// Waits until the import is in state [`ImportState::Full`]; errors as those of a call.
    pub async fn connected(&self) -> FsResult<()> {
        self.ready(self.inner.now()).await
    }

    /// Waits until calls cannot go out: the import is not in state [`ImportState::Full`].
    pub async fn disconnected(&self) {
        loop {
            let mut changed = std::pin::pin!(self.inner.changed.notified());
            changed.as_mut().enable();
            if self.state() != ImportState::Full {
                return;
            }
            changed.await;
        }
    }

    /// Whether a call with this trace id waits for this target: for a connection, a slot or a reply from afar.
    pub fn is_awaited(&self, trace: u64) -> bool {
        let guarded = self.inner.guarded.lock();
        guarded.waiting.contains(trace) || guarded.core.awaits_reply(trace)
    }

    /// Why the target cannot be reached at present: what ended the last attempt to connect; `None` while it is connected, and before
    /// the first attempt has ended.
    pub fn cause(&self) -> Option<Cause> {
        self.inner.guarded.lock().core.trouble.cause().cloned()
    }

    /// Waits until the target cannot be reached for another cause than `known`.
    pub async fn trouble(&self, known: Option<&Cause>) -> Cause {
        loop {
            let mut changed = std::pin::pin!(self.inner.changed.notified());
            changed.as_mut().enable();
            match self.cause() {
                Some(cause) if Some(&cause) != known => return cause,
                _ => changed.await,
            }
        }
    }

    /// Figures up to now.
    pub fn statistics(&self) -> ImportStatistics {
        let guarded = self.inner.guarded.lock();
        guarded.core.counters.snapshot(guarded.core.slots.used())
    }

    /// Ends the session, if the server can be reached, and the connection. Outstanding and later calls fail with
    /// [`FsError::Unreachable`](types::FsError::Unreachable).
    pub async fn close(&self) {
        let farewell = self.inner.family.and_then(Family::disconnect);
        if let (ImportState::Full, Some(farewell)) = (self.state(), farewell) {
            let deadline = self.inner.now() + self.inner.options.connect_timeout;
            let call = self.call(farewell, Bytes::new());
            match rt::clock::timeout_at(&*self.inner.seams.clock, deadline, call).await {
                Some(Ok(_)) => {}
                Some(Err(error)) => tracing::debug!(target = %self.inner.target, %error, "farewell failed"),
                None => tracing::debug!(target = %self.inner.target, "no answer to Disconnect"),
            }
        }
        self.inner.begin_close();
        self.inner.until_closed().await;
    }
}

impl std::fmt::Debug for Import {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Import").field("target", &self.inner.target).field("state", &self.state()).finish()
    }
}
