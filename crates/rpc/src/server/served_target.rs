//! One target: its handler, its sessions, and the path of a request that its session has admitted.

mod leases;

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Display,
    future::poll_fn,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::Poll,
    time::Duration,
};

use parking_lot::Mutex;
use rt::{BoxFuture, Instant, contain::Panicked, trace};
use tokio::sync::{oneshot, watch};
use tracing::Span;
use types::{ClientId, FsError, FsResult, Generation, Refusal, Slot, TooMany};

use super::{
    budget::memory_of,
    facts,
    failing::{Failure, Outcome},
    kept::keep,
    overdue::Overdue,
    shared::Shared,
};
use crate::{
    auth::{Role, Ticket},
    codec::opcode::{self, Opcode},
    handler::{Answer, Call, Handler, SessionEvent},
    message::{
        ClientRequest, Request, bounds,
        session::{Connect, Connected, urgent_slots},
    },
    service::{Admission, Hold, Parked, Permit, QueueFull},
    session::{
        CONTROL_SLOT, CallbackResult, ConnectPlan, Phase, Resumable, Session, SessionCell, SlotTable, plan_connect,
    },
    tuning::REQUEST_WORK,
};

/// The service of urgent requests, after Lustre's threads for lock cancels.
const URGENT_SERVICE: &str = "ldlm_canceld";

/// One session, for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionInfo {
    /// The client.
    pub client: ClientId,
    /// Its host and process.
    pub client_name: String,
    /// Requests executing now.
    pub running: usize,
    /// Time since the last sign of life.
    pub idle: Duration,
}

/// One target of the server.
pub(super) struct ServedTarget {
    pub(super) name: String,
    /// Among the targets of this server, for schedulers.
    number: u32,
    pub(super) handler: Arc<dyn Handler>,
    lease: Duration,
    /// Random number of this start of the target.
    incarnation: u64,
    shared: Arc<Shared>,
    sessions: Mutex<BTreeMap<ClientId, Arc<SessionCell>>>,
    /// Completes when the server serves this target no more.
    retired: watch::Sender<bool>,
    is_retired: AtomicBool,
    pub(super) overdue: Overdue,
    pub(super) failure: Arc<Failure>,
}

/// A session as a connection holds it.
#[derive(Clone)]
pub(super) struct Bound {
    pub(super) target: Arc<ServedTarget>,
    pub(super) cell: Arc<SessionCell>,
    pub(super) generation: Generation,
    /// What the client at the other end of this connection has proved to be.
    pub(super) role: Role,
}

impl Bound {
    /// The session, and the connection of it that this is.
    pub(super) fn session(&self) -> (&SessionCell, Generation) {
        (&self.cell, self.generation)
    }
}

impl ServedTarget {
    pub(super) fn new(shared: Arc<Shared>, name: &str, handler: Arc<dyn Handler>, lease: Duration) -> Arc<Self> {
        Arc::new(Self {
            name: name.to_owned(),
            number: shared.target_next.fetch_add(1, Ordering::Relaxed),
            failure: Failure::new(handler.clone()),
            handler,
            lease,
            incarnation: shared.seams.entropy.next_u64(),
            shared,
            sessions: Mutex::default(),
            retired: watch::Sender::new(false),
            is_retired: AtomicBool::new(false),
            overdue: Overdue::default(),
        })
    }

    pub(super) fn session(&self, client: ClientId) -> Option<Arc<SessionCell>> {
        self.sessions.lock().get(&client).cloned()
    }

    pub(super) fn sessions(&self) -> Vec<SessionInfo> {
        let now = self.shared.now();
        let describe = |cell: &Arc<SessionCell>| {
            cell.with(|session| SessionInfo {
                client: cell.client,
                client_name: cell.client_name.clone(),
                running: session.running(),
                idle: now.since(session.last_activity()),
            })
        };
        self.sessions.lock().values().map(describe).collect()
    }

    /// Executes the plans for a `Connect` until it is answered. `nid`: the address of a client in
    /// another process.
    pub(super) async fn connect(
        self: &Arc<Self>,
        connect: &Connect,
        nid: Option<Arc<str>>,
    ) -> Result<(Bound, Connected), FsError> {
        let version = self.shared.options.negotiate(connect)?;
        loop {
            if self.is_stopping() {
                return Err(FsError::NoDevice);
            }
            let (plan, cell) = self.plan(connect);
            match (plan, cell) {
                (ConnectPlan::Refuse(error), _) => return Err(error),
                (ConnectPlan::Open { resumed }, _) => self.open(connect, resumed, nid.clone()).await?,
                (ConnectPlan::Replace, Some(cell)) => {
                    self.end(&cell, SessionEvent::Closed(cell.client)).await;
                }
                (ConnectPlan::Wait, Some(cell)) => cell.until(|session| self.may_go_on(session, connect)).await,
                (ConnectPlan::Ready { resumed }, Some(cell)) => {
                    let slots = cell.with(|session| session.slots());
                    let connected = Connected {
                        version,
                        features: connect.features & self.shared.options.features,
                        incarnation: self.incarnation,
                        resumed,
                        slots,
                        urgent_slots: urgent_slots(slots),
                        lease_ms: u32::try_from(self.lease.as_millis()).unwrap_or(u32::MAX),
                        era: self.handler.era(),
                        ticket: Some(Ticket::issue(
                            &self.shared.ticket_key,
                            &self.name,
                            connect.client,
                            self.incarnation,
                        )),
                    };
                    let bound =
                        Bound { target: self.clone(), cell, generation: connect.connection, role: connect.role };
                    return Ok((bound, connected));
                }
                (ConnectPlan::Wait | ConnectPlan::Replace | ConnectPlan::Ready { .. }, None) => {
                    unreachable!("these plans are made for an existing session only")
                }
            }
        }
    }

    /// Refuses a client of another process that wants to continue a session and does not have one
    /// from this target. An existing session stays as it is.
    pub(super) fn check_ticket(&self, connect: &Connect, ticket: Option<&Ticket>) -> FsResult<()> {
        let is_good =
            |ticket: &Ticket| ticket.is_of(&self.shared.ticket_key, &self.name, connect.client, connect.incarnation);
        if !connect.resume || ticket.is_some_and(is_good) {
            return Ok(());
        }
        let (client, target) = (connect.client, &self.name);
        Err(Refusal::Unproven(format!(
            "the client {client} did not get the session that it wants to continue from {target}"
        ))
        .into())
    }

    fn plan(&self, connect: &Connect) -> (ConnectPlan, Option<Arc<SessionCell>>) {
        let (now, incarnation) = (self.shared.now(), self.incarnation);
        match self.session(connect.client) {
            Some(cell) => {
                let (plan, superseded, waits) = cell.with(|session| {
                    let before = session.generation();
                    let plan = plan_connect(Some(session), now, connect, incarnation, Resumable::None);
                    let superseded = session.generation() > before;
                    let is_ready = matches!(plan, ConnectPlan::Ready { .. });
                    // What a session leaves that ends is the business of its end. With the session
                    // locked: before a later connection begins, or the session's end.
                    if is_ready || superseded && session.phase() == Phase::Open {
                        self.handler.connection_begun(connect.client);
                    }
                    (plan, superseded, session.running() > 0)
                });
                if superseded {
                    cell.detach();
                    cell.notify();
                    if waits {
                        self.release(&BTreeSet::from([cell.client]));
                    }
                }
                (plan, Some(cell))
            }
            None if !connect.resume && !self.handler.may_begin(connect.client) => {
                (ConnectPlan::Refuse(FsError::Evicted), None)
            }
            None => {
                let resumable = match connect.resume && self.handler.may_resume(connect.client) {
                    true if self.handler.stores_replies_of_sessions_that_ended() => Resumable::All,
                    true => Resumable::OfEarlierStarts,
                    false => Resumable::None,
                };
                (plan_connect(None, now, connect, incarnation, resumable), None)
            }
        }
    }

    /// Whether a waiting `Connect` should plan again: it was overtaken, or nothing is in its way
    /// any more, or its session is gone (which is told by another call of this after the session's
    /// removal).
    fn may_go_on(&self, session: &mut Session, connect: &Connect) -> Option<()> {
        let overtaken = session.generation() > connect.connection;
        let ready = session.phase() == Phase::Open && session.running() == 0;
        let ended = session.phase() == Phase::Ended;
        (overtaken || ready || ended).then_some(())
    }

    /// Opens a session, unless another connection just did, or there is no room for one more.
    async fn open(self: &Arc<Self>, connect: &Connect, resumed: bool, nid: Option<Arc<str>>) -> Result<(), FsError> {
        let in_process = nid.is_none();
        let nid = nid.unwrap_or_else(|| facts::NID_OF_THIS_PROCESS.into());
        let mut slots = SlotTable::new(self.shared.options.slots);
        if resumed {
            self.restore(connect.client, &mut slots);
        }
        let session = Session::new(self.shared.now(), connect.connection, slots, resumed);
        let cell = SessionCell::new(connect.client, &connect.client_name, nid, session, self.shared.now());
        {
            let mut sessions = self.sessions.lock();
            if sessions.contains_key(&connect.client) {
                return Ok(());
            }
            let sessions_max = self.shared.options.sessions_max.saturating_mul(if resumed { 2 } else { 1 });
            if !in_process && sessions.len() >= sessions_max {
                return Err(TooMany::Clients { target: self.name.clone(), clients: sessions.len() }.into());
            }
            sessions.insert(connect.client, cell.clone());
        }
        tracing::info!(target = %self.name, client = %cell.client, name = cell.client_name, resumed, "session opened");
        let (client, role) = (cell.client, connect.role);
        self.tell(SessionEvent::Opened { client, resumed, in_process, role }).await;
        cell.with(Session::opened);
        cell.notify();
        Ok(())
    }

    /// Takes over what the target remembers of an earlier incarnation's session.
    fn restore(&self, client: ClientId, slots: &mut SlotTable) {
        for slot in (0..slots.len()).map(Slot) {
            if let Some((xid, reply)) = self.handler.persistent_reply(client, slot) {
                slots.restore(slot, xid, keep(Answer::new(Ok(reply))));
            } else if let Some(xid) = self.handler.answers_repetition(client, slot) {
                slots.restore_earlier(slot, xid);
            }
        }
    }

    /// Ends a session: no new requests, the running ones finish, the target is told, the connection
    /// is closed. False if it ends already.
    async fn end(&self, cell: &Arc<SessionCell>, event: SessionEvent) -> bool {
        if !cell.with(Session::end) {
            return false;
        }
        self.conclude(cell, event).await;
        true
    }

    /// The rest of a session whose end has begun.
    async fn conclude(&self, cell: &Arc<SessionCell>, event: SessionEvent) {
        cell.end_callbacks();
        cell.notify();
        self.handler.session_ending(event);
        if cell.with(|session| session.running() > 0) {
            self.release(&BTreeSet::from([cell.client]));
        }
        cell.until(|session| (session.running() == 0).then_some(())).await;
        let (target, client, name) = (&self.name, cell.client, &cell.client_name);
        tracing::info!(%target, %client, name, reason = %event, "session ended");
        self.tell(event).await;
        let mut sessions = self.sessions.lock();
        if sessions.get(&cell.client).is_some_and(|present| Arc::ptr_eq(present, cell)) {
            sessions.remove(&cell.client);
        }
        drop(sessions);
        cell.with(Session::ended);
        cell.notify();
    }

    /// No scheduler holds back what these clients have asked of this target any more. Looks at
    /// everything that waits: only for clients whose requests run, which include those that wait.
    fn release(&self, clients: &BTreeSet<ClientId>) {
        self.shared.release(&|facts| facts.target == self.number && clients.contains(&facts.client));
    }

    /// When a client's lease runs out; `None` if it has no session, or needs no lease.
    pub(super) fn lease_end(&self, client: ClientId) -> Option<Instant> {
        self.session(client)?.with(|session| session.lease_end(self.lease))
    }

    /// See [`SessionCell::left`]; at once if the client has no session.
    pub(super) fn left(&self, client: ClientId) -> impl Future<Output = ()> + Send + 'static {
        let (cell, clock, lease) = (self.session(client), self.shared.seams.clock.clone(), self.lease);
        async move {
            if let Some(cell) = cell {
                cell.left(&*clock, lease).await;
            }
        }
    }

    /// See [`Service::park`](crate::service::Service::park).
    pub(super) fn park(&self, service: &'static str) -> Parked {
        self.shared.service(service, self.shared.options.service_threads).park()
    }

    /// Makes a request to a client. It is made even if the caller gives up.
    pub(super) async fn call_back(&self, client: ClientId, request: ClientRequest) -> CallbackResult {
        if self.is_stopping() {
            return Err(FsError::NoDevice);
        }
        let cell = self.session(client).ok_or(FsError::Evicted)?;
        let (tell, told) = oneshot::channel();
        let clock = self.shared.seams.clock.clone();
        let work = async move {
            // A caller that is gone needs no answer.
            let _ = tell.send(cell.call_back(&*clock, request).await);
        };
        self.shared.seams.spawn.spawn("callback", Box::pin(work));
        told.await.unwrap_or(Err(FsError::NoDevice))
    }

    /// Ends a client's session at once. False if there is none.
    pub(super) async fn evict(&self, client: ClientId) -> bool {
        let Some(cell) = self.session(client) else { return false };
        let ended = self.end(&cell, SessionEvent::Evicted(client)).await;
        cell.detach();
        ended
    }

    /// After a client's `Disconnect` was executed: ends its session. The connection stays, for the
    /// reply.
    pub(super) async fn close(&self, cell: &Arc<SessionCell>) {
        self.end(cell, SessionEvent::Closed(cell.client)).await;
    }

    /// Waits until no request is running; no request waits for clients any more.
    pub(super) async fn drain(&self) {
        let cells: Vec<_> = self.sessions.lock().values().cloned().collect();
        for cell in &cells {
            cell.end_callbacks();
        }
        self.shared.release(&|facts| facts.target == self.number);
        for cell in cells {
            cell.until(|session| (session.running() == 0).then_some(())).await;
        }
    }

    /// Ends this target's service: no request begins any more, the running ones finish, connections
    /// are closed.
    pub(super) async fn retire(&self) {
        self.is_retired.store(true, Ordering::SeqCst);
        self.retired.send_replace(true);
        self.drain().await;
        self.detach_all();
    }

    /// Completes when no request begins here any more.
    pub(super) fn stopped(&self) -> impl Future<Output = ()> + Send + 'static {
        let (server, mut retired) = (self.shared.stopped(), self.retired.subscribe());
        async move {
            tokio::select! {
                biased;
                () = server => {}
                // An error means that the target is gone altogether.
                _ = retired.wait_for(|retired| *retired) => {}
            }
        }
    }

    /// Asks the request's service for execution; urgent ones have one of their own, so that they
    /// never wait for what waits for them. `generation`: of the request's connection.
    pub(super) fn admit(
        &self,
        now: Instant,
        (cell, generation): (&SessionCell, Generation),
        call: &Call,
        urgent: bool,
    ) -> Result<Admission, QueueFull> {
        let threads = self.shared.options.service_threads;
        let service = if urgent { URGENT_SERVICE } else { self.handler.service(&call.request) };
        let hold = if urgent || call.slot == CONTROL_SLOT { Hold::Never } else { Hold::ByPolicy };
        let facts = || facts::of(cell, self.number, call);
        let work = REQUEST_WORK + u64::from(memory_of(&call.request, call.bulk.len()));
        let admission = self.shared.service(service, threads).admit_held(now, (hold, work), facts)?;
        // What waits for the requests of this session or connection may have released them before
        // this one was queued. Checked afterwards: whatever begins to wait from here on finds it.
        let is_queued = matches!(admission, Admission::Queued(_));
        if is_queued && (self.is_stopping() || !cell.with(|session| session.may_hold_back(generation))) {
            self.release(&BTreeSet::from([cell.client]));
        }
        Ok(admission)
    }

    /// As [`ServedTarget::admit`], and waits in the queue.
    pub(super) async fn admitted(
        &self,
        now: Instant,
        session: (&SessionCell, Generation),
        call: &Call,
        urgent: bool,
    ) -> Result<Permit, QueueFull> {
        match self.admit(now, session, call, urgent)? {
            Admission::Now(permit) => Ok(permit),
            Admission::Queued(waiting) => Ok(waiting.await),
        }
    }

    /// Executes a request that holds its permit.
    pub(super) async fn execute(self: &Arc<Self>, role: Role, call: Call) -> Outcome {
        self.handle(role, call).await
    }

    /// The handler at work, on what it may be asked. It is dropped where it stands when the target
    /// fails.
    pub(super) fn handle(self: &Arc<Self>, role: Role, call: Call) -> BoxFuture<'static, Outcome> {
        let permitted = match call.request.row().permission.allows(role) {
            true => bounds::check_extension(&call.extension).and_then(|()| bounds::check(&call.request)),
            false => {
                let operation = opcode::of(&call.request);
                tracing::warn!(target = %self.name, client = %call.client, %role, %operation, "request refused");
                Err(FsError::NotPermitted)
            }
        };
        if let Err(error) = permitted {
            return Box::pin(std::future::ready(Outcome::Answered(Answer::new(Err(error)))));
        }
        let (target, client, opcode, trace) = (self.clone(), call.client, opcode::of(&call.request), call.trace);
        let span = tracing::debug_span!(
            "request",
            target = %self.name,
            %client,
            operation = %opcode,
            trace = %trace::shown(trace),
            uid = call.extension.uid,
        );
        if !self.shared.options.contain_panics {
            let work = trace::scoped(trace, self.observe(span, self.handler.clone().handle(call)));
            return Box::pin(async move { Outcome::of(work.await) });
        }
        // Also the making of the future is the handler's.
        let handler = self.handler.clone();
        let work = self.observe(span, Box::pin(async move { handler.handle(call).await }));
        let mut work = self.failure.contain(Box::pin(trace::scoped(trace, work)));
        Box::pin(async move {
            let answered = poll_fn(|context| match target.failure.has_failed() {
                true => Poll::Ready(None),
                false => Pin::new(&mut work).poll(context).map(Some),
            });
            match answered.await {
                Some(Err(Panicked { what, trace })) => {
                    let trace = trace::shown(trace);
                    tracing::error!(target = %target.name, %client, %opcode, %trace, what, "a request panicked");
                    target.fail();
                    Outcome::Panicked
                }
                Some(Ok(answer)) if !target.failure.has_failed() => Outcome::of(answer),
                Some(Ok(_)) | None => Outcome::Unanswered,
            }
        })
    }

    /// The work of a request in its span, if the span is recorded.
    fn observe(self: &Arc<Self>, span: Span, work: BoxFuture<'static, Answer>) -> BoxFuture<'static, Answer> {
        if span.is_disabled() {
            return work;
        }
        let target = self.clone();
        let error: fn(&Answer) -> Option<&dyn Display> = |answer| match &answer.reply {
            Ok(_) => None,
            Err(error) => Some(error),
        };
        Box::pin(trace::observed(span, move || target.now(), work, error))
    }

    /// Tells the handler of a session's milestone.
    async fn tell(&self, event: SessionEvent) {
        let (handler, contains) = (self.handler.clone(), self.shared.options.contain_panics);
        let work: BoxFuture<'_, ()> = Box::pin(async move { handler.session_event(event).await });
        if self.failure.has_failed() {
            return;
        }
        if !contains {
            return work.await;
        }
        if let Err(Panicked { what, .. }) = self.failure.contain(work).await {
            tracing::error!(target = %self.name, ?event, what, "an event of a session panicked");
            self.fail();
            self.detach_all();
        }
    }

    /// Out of service after a panic. The connections stay for the answer to the request that
    /// panicked, see [`ServedTarget::detach_all`].
    fn fail(&self) {
        if !self.failure.note() {
            return;
        }
        tracing::error!(target = %self.name, "out of service; the next start recovers from its journal");
        self.is_retired.store(true, Ordering::SeqCst);
        self.retired.send_replace(true);
        self.shared.failed.send_modify(|failed| *failed += 1);
    }

    /// Closes all connections to this target.
    pub(super) fn detach_all(&self) {
        let cells: Vec<_> = self.sessions.lock().values().cloned().collect();
        for cell in cells {
            cell.detach();
        }
    }

    /// The error for a request that panicked.
    pub(super) fn panic_error(&self, opcode: Opcode) -> FsError {
        FsError::Device { target: self.name.clone(), detail: format!("{opcode} ended in a panic") }
    }

    pub(super) fn now(&self) -> Instant {
        self.shared.now()
    }

    pub(super) fn is_stopping(&self) -> bool {
        self.is_retired.load(Ordering::SeqCst) || self.shared.is_stopping()
    }
}

/// Whether this request is a client's `Disconnect`.
pub(super) fn is_disconnect(request: &Request) -> bool {
    opcode::of(request).family().is_some_and(|family| family.disconnect() == *request)
}
