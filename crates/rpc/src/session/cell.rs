//! A session as the server's tasks share it: the state machine under its lock, and the actions when
//! it changes.

use std::{sync::Arc, time::Duration};

use parking_lot::Mutex;
use rt::{Clock, Instant, clock};
use tokio::sync::{Notify, futures::Notified, oneshot};
use types::{ClientId, FsError, FsResult, Generation, Slot, Xid};

use super::{
    Arrival, KeptReply, Phase, Session,
    call_back::CallbackPath,
    callbacks::{CallbackResult, Callbacks},
};

/// How often in a lease a request that may wait for very long looks whether its client is silent.
const SILENCE_CHECKS: u32 = 8;
const SILENCE_CHECK_MIN: Duration = Duration::from_millis(1);

/// One session of one target.
pub struct SessionCell {
    /// Whose it is.
    pub client: ClientId,
    /// The client's host and process, for people.
    pub client_name: String,
    /// The client's address when the session was opened, for schedulers.
    pub nid: Arc<str>,
    state: Mutex<CellState>,
    /// Told whenever a waiting `Connect`, the session's end or a callback may continue.
    changed: Notify,
}

struct CellState {
    session: Session,
    path: CallbackPath,
    connection: PresentConnection,
    callbacks: Callbacks,
}

/// The connection of a session at present.
#[derive(Clone, Copy, Debug, Default)]
pub struct PresentConnection {
    /// Its generation.
    pub generation: Generation,
    /// The protocol version agreed on.
    pub version: u16,
}

impl SessionCell {
    /// A cell around a new session that begins now.
    pub fn new(client: ClientId, client_name: &str, nid: Arc<str>, session: Session, now: Instant) -> Arc<Self> {
        let state = Mutex::new(CellState {
            session,
            path: CallbackPath::None,
            connection: PresentConnection::default(),
            callbacks: Callbacks::new(Xid(now.0)),
        });
        Arc::new(Self { client, client_name: client_name.to_owned(), nid, state, changed: Notify::new() })
    }

    /// Looks at or changes the session.
    pub fn with<T>(&self, act: impl FnOnce(&mut Session) -> T) -> T {
        act(&mut self.state.lock().session)
    }

    /// Wakes the tasks that wait in [`SessionCell::until`].
    pub fn notify(&self) {
        self.changed.notify_waiters();
    }

    /// Waits until `act` gives a result; it is asked now and after each change.
    pub async fn until<T>(&self, mut act: impl FnMut(&mut Session) -> Option<T>) -> T {
        loop {
            let mut changed = std::pin::pin!(self.changed.notified());
            changed.as_mut().enable();
            if let Some(result) = self.with(&mut act) {
                return result;
            }
            changed.await;
        }
    }

    /// Completes when a newer connection, or the session's end, waits for the requests that run, or
    /// when the client has been silent for longer than its lease: it gets no answer of these.
    pub async fn left(&self, clock: &dyn Clock, lease: Duration) {
        let is_silent = || self.with(|session| session.silent(clock.now(), lease));
        let silent = async {
            while !is_silent() {
                clock::sleep(clock, (lease / SILENCE_CHECKS).max(SILENCE_CHECK_MIN)).await;
            }
        };
        tokio::select! {
            biased;
            () = self.until(|session| session.is_waited_for().then_some(())) => {}
            () = silent => {}
        }
    }

    /// Makes this the session's connection and closes the one before, if it is still the newest.
    /// Callbacks may go through it when [`SessionCell::notify`] is called.
    pub fn attach(&self, connection: PresentConnection, path: CallbackPath) -> bool {
        let mut state = self.state.lock();
        if state.session.generation() != connection.generation {
            return false;
        }
        state.connection = connection;
        let old = std::mem::replace(&mut state.path, path);
        drop(state);
        old.close();
        true
    }

    /// Closes the session's connection, if it has one.
    pub fn detach(&self) {
        let old = std::mem::replace(&mut self.state.lock().path, CallbackPath::None);
        old.close();
    }

    /// How the client is reached at present.
    pub(super) fn path(&self) -> (PresentConnection, CallbackPath) {
        let state = self.state.lock();
        (state.connection, state.path.clone())
    }

    /// Completes when another connection is attached, and now and then without a reason.
    pub(super) fn changed(&self) -> Notified<'_> {
        self.changed.notified()
    }

    /// A slot for a callback.
    pub(super) fn begin_callback(&self, waiter: oneshot::Sender<CallbackResult>) -> FsResult<(Slot, Xid)> {
        let mut state = self.state.lock();
        match state.session.phase() {
            Phase::Opening | Phase::Open => state.callbacks.begin(waiter).ok_or(FsError::Busy),
            Phase::Ending | Phase::Ended => Err(FsError::Evicted),
        }
    }

    /// The client answered a callback.
    pub fn callback_answered(&self, slot: Slot, xid: Xid, result: CallbackResult) {
        self.state.lock().callbacks.answered(slot, xid, result);
    }

    /// The session is ending: nothing waits for the client any more.
    pub fn end_callbacks(&self) {
        self.state.lock().callbacks.end();
    }

    /// [`Session::arrive`].
    pub fn arrive(
        &self,
        now: Instant,
        generation: Generation,
        slot: Slot,
        xid: Xid,
        deadline: Option<Instant>,
    ) -> Arrival {
        self.with(|session| session.arrive(now, generation, slot, xid, deadline))
    }

    /// [`Session::finish`].
    pub fn finish(&self, slot: Slot, xid: Xid, reply: Option<KeptReply>) {
        if self.with(|session| session.finish(slot, xid, reply)) {
            self.notify();
        }
    }

    /// [`Session::withdraw`].
    pub fn withdraw(&self, slot: Slot, xid: Xid) {
        if self.with(|session| session.withdraw(slot, xid)) {
            self.notify();
        }
    }
}
