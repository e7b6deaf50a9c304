//! The handle of an import: its interface for users.

use std::{sync::Arc, time::Duration};

use rt::{BoxFuture, Instant};
use tokio::sync::oneshot;
use types::{ClientId, FsError, FsResult, Generation};

use super::{
    call::Beside,
    inner::{Inner, Link},
    lease::Lease,
    options::{Endpoint, ImportState},
    question::{Answered, Ask, LateOutcome, Question},
    statistics::ImportStatistics,
    trouble::Cause,
};
use crate::{
    codec::opcode::Family,
    handler::{CallbackHandler, KeepsNothing},
    message::{ClientReply, ClientRequest},
    tuning::Mode,
};

/// Told by an import when the server lost its memory of this client. An implementation that holds
/// the import should hold it weakly, since the import holds the implementation.
pub trait Recovery: Send + Sync {
    /// The server restarted: claim again what was open there. Calls through `import` (or its
    /// clones) pass the gate that holds all others back until this returns; they go out one at a
    /// time, and fail with [`FsError::Unreachable`] as soon as the connection breaks. An error
    /// closes the connection and everything is tried again, except [`FsError::Evicted`], which is
    /// an eviction. `has_lost`: [`Connected::era`] has grown since all this was as the server knew
    /// it, so the target may have lost changes that were not durable.
    ///
    /// [`Connected::era`]: crate::message::session::Connected::era
    /// [`FsError::Unreachable`]: types::FsError::Unreachable
    /// [`FsError::Evicted`]: types::FsError::Evicted
    fn recover(&self, import: &Import, has_lost: bool) -> BoxFuture<'_, FsResult<()>>;

    /// A new connection is about to begin, at which the server drops this client's locks: it does
    /// when this completes. What was cached under them is not served any more, neither here nor in
    /// caches above.
    fn before_connect(&self) -> BoxFuture<'_, ()> {
        Box::pin(std::future::ready(()))
    }

    /// A connection to the same start of the server begins, which has dropped what it kept for the
    /// former one: what has to be told before any other call goes out; `None`: nothing. As
    /// [`Recovery::recover`] otherwise.
    fn resume(&self, _import: &Import) -> Option<BoxFuture<'_, FsResult<()>>> {
        None
    }

    /// The server evicted this client: everything that was open there is lost. Comes before the
    /// callers of outstanding requests are told, and before any call of the new session.
    fn evicted(&self) {}

    /// The server makes a request to this client ([`CallbackHandler`]).
    fn call_back(&self, request: ClientRequest) -> BoxFuture<'static, FsResult<ClientReply>> {
        KeepsNothing.call_back(request)
    }
}

/// What answers callbacks: the recovery hook, if there is one.
pub(super) struct Hook(pub(super) Option<Arc<dyn Recovery>>);

impl CallbackHandler for Hook {
    fn call_back(&self, request: ClientRequest) -> BoxFuture<'static, FsResult<ClientReply>> {
        match &self.0 {
            Some(recovery) => recovery.call_back(request),
            None => KeepsNothing.call_back(request),
        }
    }
}

/// A client's view of one target. Cheap to clone; dropping the last clone closes it without a
/// `Disconnect`.
#[derive(Clone)]
pub struct Import {
    pub(super) inner: Arc<Inner>,
    /// `None` in the handle given to the recovery hook.
    pub(super) _closer: Option<Arc<Closer>>,
    pub(super) recovering: bool,
}

/// Closes the import with its last handle.
pub(super) struct Closer(pub(super) Arc<Inner>);

impl Drop for Closer {
    fn drop(&mut self) {
        self.0.begin_close();
    }
}

impl Import {
    /// Name of the target.
    pub fn target(&self) -> &str {
        &self.inner.target
    }

    /// The principal of this side.
    pub fn client(&self) -> ClientId {
        self.inner.principal.client()
    }

    /// Sends a request and waits for its reply. The trace id is the caller's ([`rt::trace`]).
    ///
    /// Errors of its own, besides those of the target:
    /// - [`FsError::Unreachable`](types::FsError::Unreachable): no sign of life from the server for
    ///   the timeout, or the import was closed; whether the request took effect is unknown.
    /// - [`FsError::Evicted`](types::FsError::Evicted): the session was lost while the request was
    ///   outstanding; whether it took effect is unknown, and everything that was open in the
    ///   session is gone. Later calls belong to a new session. The client repeats what is safe to
    ///   repeat and tells its user `Stale` for what went through an open file.
    /// - [`FsError::Protocol`](types::FsError::Protocol): the server speaks no version that this
    ///   side speaks.
    /// - [`FsError::TooBig`](types::FsError::TooBig): the request is larger than a frame.
    pub async fn call<'a, R: Ask>(&self, question: impl Into<Question<'a, R>>) -> FsResult<Answered<R::Reply>> {
        let Question { request, bulk, late_outcome, wanted, cancels, closes } = question.into();
        let request = request.addressed_to(self.inner.family);
        let (mut late, known) = late_outcome.is_some().then(oneshot::channel).unzip();
        let bytes = bulk.len();
        let outcome = self.exchange(request, bulk, &Beside { wanted, cancels, closes }, &mut late).await;
        if let (Some(late_outcome), Some(known)) = (late_outcome, known) {
            let is_open = late.is_none() && matches!(outcome, Err(FsError::Unreachable { .. }));
            *late_outcome = is_open.then_some(LateOutcome(known));
        }
        let Answered { reply, bulk, extension, era, connection } = outcome?;
        self.inner.turns.answered(bytes + bulk.len());
        Ok(Answered { reply: R::reply(reply)?, bulk, extension, era, connection })
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
            guarded.turn = guarded.turn_at(&endpoint);
            guarded.endpoint = endpoint;
            guarded.core.trouble.end();
            guarded.readdressed = true;
            drop(guarded);
            self.inner.wake.notify_one();
        }
    }

    /// Waits until the server refuses this client, and says why: it speaks another version, or does
    /// not accept the client's key. The import goes on trying to connect.
    pub async fn refusal(&self) -> FsError {
        loop {
            let mut changed = std::pin::pin!(self.inner.changed.notified());
            changed.as_mut().enable();
            if let Some(refused) = self.inner.guarded.lock().core.refused.clone() {
                return refused;
            }
            changed.await;
        }
    }

    /// Where the target is expected.
    pub fn endpoint(&self) -> Endpoint {
        self.inner.guarded.lock().endpoint.clone()
    }

    /// Changes the number of requests that may be outstanding at once, 1 to the number of slots the
    /// server grants less 1. The tuner does not touch it from now on.
    pub fn set_max_rpcs_in_flight(&self, count: u16) {
        self.inner.tuning.set_by_hand();
        {
            let mut guarded = self.inner.guarded.lock();
            (guarded.wanted, guarded.wanted_max) = (count, count);
        }
        self.inner.adjust_permits();
    }

    /// Number of requests that may be outstanding at once.
    pub fn max_rpcs_in_flight(&self) -> u16 {
        self.inner.permits.count()
    }

    /// Takes over what was set of an earlier import of the same target: how many requests may be
    /// outstanding, and whether a tuner chooses.
    pub fn set_like(&self, earlier: &Import) {
        {
            // Not what the tuner tries at the moment.
            let setting = earlier.tuning().setting().map(|setting| setting as u16);
            let (wanted, wanted_max) = {
                let earlier = earlier.inner.guarded.lock();
                (setting.unwrap_or(earlier.wanted), earlier.wanted_max)
            };
            let mut guarded = self.inner.guarded.lock();
            (guarded.wanted, guarded.wanted_max) = (wanted, wanted_max);
        }
        self.inner.adjust_permits();
        self.set_max_changes_in_flight(earlier.max_changes_in_flight());
        match earlier.tuning().mode() {
            Mode::On => self.tune(),
            mode => self.inner.tuning.switch_off(mode),
        }
    }

    /// Changes how many of them may be changes of names and attributes at an MDT, at least 1. While
    /// no more requests may be outstanding, there is always one fewer.
    pub fn set_max_changes_in_flight(&self, count: u16) {
        self.inner.guarded.lock().changes_wanted = count.max(1);
        self.inner.adjust_permits();
    }

    /// How many of them may be changes of names and attributes.
    pub fn max_changes_in_flight(&self) -> u16 {
        self.inner.guarded.lock().changes_wanted
    }

    /// Changes how long callers wait for a silent server.
    pub fn set_timeout(&self, timeout: Duration) {
        self.inner.guarded.lock().core.timeout = timeout;
        self.inner.timeout_due.notify_one();
        self.inner.changed.notify_waiters();
    }

    /// Present state.
    pub fn state(&self) -> ImportState {
        self.inner.guarded.lock().core.state
    }

    /// [`era`] of the target as of the last connection by which calls could go out; `None`: there
    /// was none.
    ///
    /// [`era`]: crate::message::session::Connected::era
    pub fn era(&self) -> Option<u64> {
        self.inner.guarded.lock().core.era_known()
    }

    /// Whether both sides of the newest connection support this [`feature`].
    ///
    /// [`feature`]: crate::message::session::feature
    pub fn supports(&self, feature: u64) -> bool {
        self.inner.guarded.lock().core.supports(feature)
    }

    /// The newest connection, perhaps one by which calls cannot go out.
    pub fn newest_connection(&self) -> Generation {
        self.inner.guarded.lock().core.generation
    }

    /// The present connection, and how long the target keeps the client's state for it at least;
    /// `None`: calls cannot go out. Asked before anything is answered from a cache.
    pub fn lease(&self) -> Option<Lease> {
        let guarded = self.inner.guarded.lock();
        let until = match guarded.link.as_ref().filter(|_| guarded.core.state == ImportState::Full)? {
            Link::Local(link) if link.is_open() => Instant(u64::MAX),
            Link::Local(_) => return None,
            Link::Remote(_) => guarded.core.leased_until(),
        };
        Some(Lease { connection: guarded.core.generation, until, length: guarded.core.lease() })
    }

    /// When the target gave the last sign of life, on the clock of the import; the beginning of
    /// time if it never did.
    pub fn last_heard(&self) -> Instant {
        self.inner.guarded.lock().core.last_heard()
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

    /// Whether a call with this trace id waits for this target: for a connection, a slot or a reply
    /// from afar.
    pub fn is_awaited(&self, trace: u64) -> bool {
        let guarded = self.inner.guarded.lock();
        guarded.waiting.contains(trace) || guarded.core.awaits_reply(trace)
    }

    /// Why the target cannot be reached at present: what ended the last attempt to connect; `None`
    /// while it is connected, and before the first attempt has ended.
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

    /// Counters since the import was made.
    pub fn statistics(&self) -> ImportStatistics {
        let guarded = self.inner.guarded.lock();
        guarded.core.counters.snapshot(guarded.core.slots.used())
    }

    /// The principal of this side has ended: no new session begins. Outstanding calls are answered
    /// in the present session, if it lives; with its end they and all later ones fail with
    /// [`FsError::Evicted`](types::FsError::Evicted), and the import is closed.
    pub fn end_with_session(&self) {
        self.inner.guarded.lock().ends_with_session = true;
        self.inner.wake.notify_one();
    }

    /// Ends the session, if the server can be reached, and the connection. Outstanding and later
    /// calls fail with [`FsError::Unreachable`](types::FsError::Unreachable).
    pub async fn close(&self) {
        let disconnect = self.inner.family.map(Family::disconnect);
        if let (ImportState::Full, Some(disconnect)) = (self.state(), disconnect) {
            self.inner.guarded.lock().leaving = true;
            let deadline = self.inner.now() + self.inner.options.connect_timeout;
            let call = self.call(disconnect);
            match rt::clock::timeout_at(&*self.inner.seams.clock, deadline, call).await {
                Some(Ok(_)) => {}
                Some(Err(error)) => tracing::debug!(target = %self.inner.target, %error, "cannot disconnect"),
                None => tracing::debug!(target = %self.inner.target, "no answer when disconnecting"),
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
