//! The server's side of an in-process session: the same slots and services, no encoding, no task.
//!
//! The handler is awaited in the caller's task and may complete in the caller's first poll. Nothing
//! is lost between caller and server, so no reply is kept. If a caller gives up, the handler is not
//! dropped: the rest of the request becomes a task. For the same reason sessions open and end in
//! tasks of their own: a session that is left half open or half ended would keep its client out
//! permanently.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use bytes::Bytes;
use rt::{BoxFuture, Instant, trace};
use tokio::sync::oneshot;
use types::{FsError, Generation, Slot, Xid};

use super::{
    failing::Outcome,
    served_target::{Bound, is_disconnect},
    shared::Shared,
};
use crate::{
    codec::opcode,
    handler::{Answer, Call, CallbackHandler},
    message::{
        Request, RequestExtension,
        session::{Connect, Connected},
    },
    service::Permit,
    session::{Arrival, CallbackPath, Phase, PresentConnection},
};

/// A client's slot, taken for an in-process call; dropped when the request no longer runs.
pub(crate) trait SlotToken: Send + Unpin + 'static {
    /// The slot.
    fn slot(&self) -> Slot;

    /// The request begins to execute: it counts.
    fn executed(&mut self);
}

/// An in-process session.
pub(crate) struct LocalLink {
    bound: Bound,
    connected: Connected,
    shared: Arc<Shared>,
}

/// What became of a call.
pub(crate) enum LocalOutcome {
    /// It was executed.
    Answered(Answer),
    /// It was not executed: the service's queue is full.
    Busy(Request, Bytes),
    /// It was not executed, and has ended: the session was evicted or closed.
    Gone,
    /// It was not executed: the server stops, the session ends, or a newer connection of this
    /// client replaced this one.
    Disconnected(Request, Bytes),
}

/// Opens an in-process session. It has no lease as long as the link exists.
pub(super) async fn connect(
    shared: &Arc<Shared>,
    connect: &Connect,
    callbacks: Arc<dyn CallbackHandler>,
) -> Result<LocalLink, FsError> {
    let target = shared.target(&connect.target).ok_or(FsError::NoDevice)?;
    let connecting = connect.clone();
    let connecting = unabandoned(shared, "connect", async move { target.connect(&connecting, None).await });
    let (bound, connected) = connecting.await.map_err(|_| FsError::NoDevice)??;
    let present = PresentConnection { generation: bound.generation, version: connected.version };
    if !bound.cell.attach(present, CallbackPath::Local(callbacks)) {
        return Err(FsError::Busy);
    }
    bound.cell.with(|session| session.pin(shared.now(), true));
    bound.cell.notify();
    Ok(LocalLink { bound, connected, shared: shared.clone() })
}

/// The output of `work`, which is completed even if its caller gives up; an error if its task was
/// ended.
fn unabandoned<T: Send + 'static>(
    shared: &Shared,
    name: &'static str,
    work: impl Future<Output = T> + Send + 'static,
) -> oneshot::Receiver<T> {
    let (tell, told) = oneshot::channel();
    let work = async move {
        // The receiver may be gone.
        let _ = tell.send(work.await);
    };
    shared.seams.spawn.spawn(name, Box::pin(work));
    told
}

impl LocalLink {
    /// The answer to `Connect`.
    pub(crate) fn connected(&self) -> &Connected {
        &self.connected
    }

    /// The connection that this is.
    pub(crate) fn generation(&self) -> Generation {
        self.bound.generation
    }

    /// Whether the target still keeps what it knows of the client.
    pub(crate) fn is_open(&self) -> bool {
        let Bound { target, cell, generation, .. } = &self.bound;
        let present = cell.with(|session| session.phase() == Phase::Open && session.generation() == *generation);
        present && !target.is_stopping()
    }

    /// Completes when the target is served here no more.
    pub(crate) fn stopped(&self) -> impl Future<Output = ()> + Send + 'static {
        self.bound.target.stopped()
    }

    /// Executes a request that arrives at `now`, with its class and what is said with it. `token`
    /// is dropped when the request no longer runs, also if this future is dropped before.
    pub(crate) async fn call(
        &self,
        now: Instant,
        xid: Xid,
        beside: (u8, RequestExtension),
        request: Request,
        bulk: Bytes,
        mut token: impl SlotToken,
    ) -> LocalOutcome {
        let slot = token.slot();
        let Bound { target, cell, generation, role } = &self.bound;
        match cell.arrive(now, *generation, slot, xid, None) {
            Arrival::Execute => {}
            Arrival::Gone if target.handler.stores_replies_of_sessions_that_ended() => {
                return LocalOutcome::Disconnected(request, bulk);
            }
            Arrival::Gone => return LocalOutcome::Gone,
            Arrival::Ignore => return LocalOutcome::Disconnected(request, bulk),
            other => unreachable!("an in-process client never repeats a transaction: {other:?}"),
        }
        let mut arrived = Arrived { bound: &self.bound, slot, xid, withdraw: true };
        if target.is_stopping() {
            return LocalOutcome::Disconnected(request, bulk);
        }
        let disconnects = is_disconnect(&request);
        let overdue = target.overdue.before(&request, now);
        target.overdue.ended(&overdue).await;
        let (trace, opcode, urgent) = (trace::current(), opcode::of(&request), request.row().urgent);
        let (class, extension) = beside;
        let (client, features) = (cell.client, self.connected.features);
        let call = Call { client, slot, xid, trace, class, features, extension, request, bulk };
        let Ok(permit) = target.admitted(target.now(), self.bound.session(), &call, urgent).await else {
            return LocalOutcome::Busy(call.request, call.bulk);
        };
        arrived.withdraw = false;
        token.executed();
        let future = target.handle(*role, call);
        let running = Running { bound: self.bound.clone(), slot, xid, permit: Some(permit), token: Some(token) };
        let executing = Executing { shared: &self.shared, parts: Some((future, running)), trace };
        let answer = match executing.await {
            Outcome::Answered(answer) => answer,
            Outcome::Panicked => {
                target.detach_all();
                return LocalOutcome::Answered(Answer::new(Err(target.panic_error(opcode))));
            }
            // Its session ends, or another connection of this client waited for it.
            Outcome::Unanswered if !target.is_stopping() => {
                cell.until(|session| (session.phase() != Phase::Ending).then_some(())).await;
                return LocalOutcome::Gone;
            }
            // Nothing was kept of it to be sent to the target's next start.
            Outcome::Unanswered => {
                let detail = "out of service".to_owned();
                let error = FsError::Device { target: target.name.clone(), detail };
                return LocalOutcome::Answered(Answer::new(Err(error)));
            }
        };
        if disconnects {
            let (target, cell) = (target.clone(), cell.clone());
            // An error means that the server is gone altogether.
            let _ = unabandoned(&self.shared, "disconnect", async move { target.close(&cell).await }).await;
        }
        LocalOutcome::Answered(answer)
    }
}

impl Drop for LocalLink {
    fn drop(&mut self) {
        let now = self.shared.now();
        let generation = self.bound.generation;
        self.bound.cell.with(|session| {
            if session.generation() == generation {
                session.pin(now, false);
            }
        });
    }
}

/// A request between its arrival and its execution: withdrawn if its caller gives up while it
/// waits.
struct Arrived<'a> {
    bound: &'a Bound,
    slot: Slot,
    xid: Xid,
    withdraw: bool,
}

impl Drop for Arrived<'_> {
    fn drop(&mut self) {
        if self.withdraw {
            self.bound.cell.withdraw(self.slot, self.xid);
        }
    }
}

/// What a running request holds; ends with it.
struct Running<T> {
    bound: Bound,
    slot: Slot,
    xid: Xid,
    permit: Option<Permit>,
    token: Option<T>,
}

impl<T> Drop for Running<T> {
    /// In this order: the next request may start, the session knows, the client's slot is free.
    fn drop(&mut self) {
        self.permit.take();
        self.bound.cell.finish(self.slot, self.xid, None);
        self.token.take();
    }
}

/// A handler at work for an in-process caller.
struct Executing<'a, T: SlotToken> {
    shared: &'a Arc<Shared>,
    parts: Option<(BoxFuture<'static, Outcome>, Running<T>)>,
    trace: u64,
}

impl<T: SlotToken> Future for Executing<'_, T> {
    type Output = Outcome;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Outcome> {
        let (future, _) = self.parts.as_mut().expect("not polled after completion");
        let answer = std::task::ready!(future.as_mut().poll(context));
        self.parts = None;
        Poll::Ready(answer)
    }
}

impl<T: SlotToken> Drop for Executing<'_, T> {
    fn drop(&mut self) {
        let Some((future, running)) = self.parts.take() else { return };
        let rest = async move {
            // No caller waits for the answer any more.
            let _ = future.await;
            drop(running);
        };
        self.shared.seams.spawn.spawn("abandoned call", Box::pin(trace::scoped(self.trace, Box::pin(rest))));
    }
}
