//! A session as the server's tasks share it: the state machine under its lock, and the actions when
//! it changes.

use std::sync::Arc;

use parking_lot::Mutex;
use rt::{Instant, Sender};
use tokio::sync::Notify;
use types::{ClientId, Generation, Slot, Xid};

use super::{Arrival, KeptReply, Session};

/// One session of one target.
pub struct SessionCell {
    /// Whose it is.
    pub client: ClientId,
    /// The client's host and process, for people.
    pub client_name: String,
    state: Mutex<CellState>,
    /// Told whenever a waiting `Connect` or the session's end may continue.
    changed: Notify,
}

struct CellState {
    session: Session,
    /// The present connection, to close it when it is superseded; `None` for in-process clients.
    sender: Option<Arc<dyn Sender>>,
}

impl SessionCell {
    /// A cell around a new session.
    pub fn new(client: ClientId, client_name: &str, session: Session) -> Arc<Self> {
        let state = Mutex::new(CellState { session, sender: None });
        Arc::new(Self { client, client_name: client_name.to_owned(), state, changed: Notify::new() })
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

    /// Makes `sender` the session's connection and closes the one before, if `generation` is still
    /// the newest.
    pub fn attach(&self, generation: Generation, sender: Option<Arc<dyn Sender>>) -> bool {
        let mut state = self.state.lock();
        if state.session.generation() != generation {
            return false;
        }
        let old = std::mem::replace(&mut state.sender, sender);
        drop(state);
        if let Some(old) = old {
            old.close();
        }
        true
    }

    /// Closes the session's connection, if it has one.
    pub fn detach(&self) {
        let sender = self.state.lock().sender.take();
        if let Some(sender) = sender {
            sender.close();
        }
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
    pub fn finish(&self, now: Instant, slot: Slot, xid: Xid, reply: Option<KeptReply>) {
        if self.with(|session| session.finish(now, slot, xid, reply)) {
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
