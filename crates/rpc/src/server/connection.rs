//! One connection of a remote client: reads frames, lets the session decide, executes, replies.
//!
//! The first frame must be a `Connect`. What a peer costs that has proved nothing yet is bounded
//! (module `unproven`). Anything that is not a valid frame of this protocol ends
//! this connection, with the reason in the log, but nothing else: the session stays, and its client
//! may come back.
//!
//! Back-pressure: the requests of one connection between their arrival and the sending of their
//! reply are bounded, in number and in memory (module `budget`); a client that does not read its
//! replies is not read from either. Replies wait for it outside of any service, so it holds no
//! service thread.

use std::{
    future::poll_fn,
    sync::{Arc, atomic::Ordering},
    task::Poll,
    time::Duration,
};

use bytes::Bytes;
use rt::{
    BoxFuture, Connection, CpuKind, Frame, FrameHeader, Instant, Receiver, Sender, clock::timeout_at, contain,
    frame::FRAME_BYTES_MAX,
};
use types::{FsError, FsResult, Generation, Slot, Xid, limits::URGENT_SLOTS_MAX};

use super::{
    budget::{BYTES_MAX, Budget, Share, URGENT_BYTES_MAX, memory_of},
    facts,
    failing::Outcome,
    greeting::Greeting,
    kept::{keep, keep_error, keep_for_copies},
    overdue,
    served_target::{Bound, is_disconnect},
    shared::Shared,
    unproven,
};
use crate::{
    auth::Ticket,
    codec::{
        self, MessageDecodeError,
        opcode::{self, Opcode},
    },
    cost,
    handler::{Answer, Call},
    message::{
        RequestExtension, bounds,
        session::{Connect, Connected, Prove, feature, frame_flag},
    },
    service::{Admission, Permit},
    session::{Arrival, CallbackPath, KeptReply, PresentConnection},
};

/// How long a new connection may take to say what it wants.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(30);

/// Most frames of a handshake, with copies of those that seemed lost.
const HANDSHAKE_FRAMES_MAX: usize = 16;

/// Serves one connection until it ends.
pub(super) async fn serve(shared: Arc<Shared>, connection: Connection) {
    let Connection { sender, mut receiver, peer } = connection;
    let registered = Registered::new(&shared, sender.clone());
    let (budget, urgent) =
        (Budget::new(shared.options.slots, BYTES_MAX), Budget::new(URGENT_SLOTS_MAX, URGENT_BYTES_MAX));
    let mut reader = Reader {
        shared: shared.clone(),
        sender,
        nid: facts::nid(&peer),
        budget,
        urgent,
        registered,
        greeting: None,
        session: None,
    };
    let end = reader.run(&mut *receiver).await;
    let is_proven = reader.session.is_some();
    match end {
        End::Closed => tracing::debug!(peer, "connection closed"),
        End::Refused => tracing::debug!(peer, "connection refused"),
        End::Broken(error) => tracing::debug!(peer, %error, "connection broke"),
        End::Garbage(reason) if is_proven => {
            tracing::warn!(peer, %reason, "connection closed because of invalid input");
        }
        End::Garbage(reason) => {
            if let Some(suppressed) = shared.unproven.may_log(shared.now()) {
                let suppressed = (suppressed > 0).then_some(suppressed);
                tracing::warn!(peer, %reason, suppressed, "connection closed because of invalid input");
            }
        }
    }
}

/// An entry in the server's list of connections; dropping it closes the connection.
struct Registered {
    shared: Arc<Shared>,
    number: u64,
    sender: Arc<dyn Sender>,
}

impl Registered {
    fn new(shared: &Arc<Shared>, sender: Arc<dyn Sender>) -> Self {
        let number = shared.connection_next.fetch_add(1, Ordering::Relaxed);
        shared.connections.lock().insert(number, sender.clone());
        shared.unproven.begin(number, sender.clone());
        Self { shared: shared.clone(), number, sender }
    }

    /// Its peer has proved what it is.
    fn proved(&self) {
        self.shared.unproven.end(self.number);
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        self.sender.close();
        self.shared.unproven.end(self.number);
        self.shared.connections.lock().remove(&self.number);
    }
}

/// Why a connection ended.
enum End {
    Closed,
    /// The client was told why it cannot connect.
    Refused,
    Broken(std::io::Error),
    Garbage(String),
}

impl From<MessageDecodeError> for End {
    fn from(error: MessageDecodeError) -> Self {
        End::Garbage(error.to_string())
    }
}

/// The next frame.
async fn receive(receiver: &mut dyn Receiver) -> Result<Frame, End> {
    match receiver.receive().await {
        Ok(Some(frame)) => Ok(frame),
        Ok(None) => Err(End::Closed),
        Err(error) if error.kind() == std::io::ErrorKind::InvalidData => Err(End::Garbage(error.to_string())),
        Err(error) => Err(End::Broken(error)),
    }
}

struct Reader {
    shared: Arc<Shared>,
    sender: Arc<dyn Sender>,
    /// The client's address.
    nid: Arc<str>,
    /// Of requests between their arrival and the sending of their replies.
    budget: Budget,
    /// Of urgent ones.
    urgent: Budget,
    registered: Registered,
    /// Set by the first `Connect`.
    greeting: Option<Greeting>,
    /// Set by the first `Prove`.
    session: Option<(Bound, Connected)>,
}

impl Reader {
    async fn run(&mut self, receiver: &mut dyn Receiver) -> End {
        if let Err(end) = self.greet(receiver).await {
            return end;
        }
        loop {
            // A server that stops closes the connection, after the replies of running requests.
            let handled = match receive(receiver).await {
                Ok(frame) => self.on_frame(frame).await,
                Err(end) => return end,
            };
            if let Err(end) = handled {
                return end;
            }
        }
    }

    /// The handshake. It never takes longer than its time limit, whatever a peer sends or does not
    /// read; only the opening of a session, for a client that has proved what it is, is waited for,
    /// because no session may be left half open.
    async fn greet(&mut self, receiver: &mut dyn Receiver) -> Result<(), End> {
        let clock = self.shared.seams.clock.clone();
        let deadline = clock.now() + CONNECT_TIMEOUT;
        let late = || End::Garbage("no session in time".to_owned());
        receiver.limit(unproven::FRAME_BYTES_MAX);
        for _ in 0..HANDSHAKE_FRAMES_MAX {
            let step = async {
                let frame = receive(receiver).await?;
                match Opcode(frame.header.opcode) {
                    opcode::PROVE => self.check_proof(&frame).await.map(|ticket| Some((frame.header, ticket))),
                    _ => self.on_frame(frame).await.map(|()| None),
                }
            };
            if let Some((header, ticket)) = timeout_at(&*clock, deadline, step).await.ok_or_else(late)?? {
                self.registered.proved();
                receiver.limit(FRAME_BYTES_MAX);
                return self.on_proof(&header, ticket).await;
            }
        }
        Err(late())
    }

    async fn on_frame(&mut self, frame: Frame) -> Result<(), End> {
        match Opcode(frame.header.opcode) {
            opcode::CONNECT => self.on_connect(frame).await,
            opcode::PROVE => {
                let ticket = self.check_proof(&frame).await?;
                self.on_proof(&frame.header, ticket).await
            }
            _ => self.on_request(frame).await,
        }
    }

    /// The first message of a connection, or a copy of it: is answered by a challenge.
    async fn on_connect(&mut self, frame: Frame) -> Result<(), End> {
        let connect: Connect = codec::decode(&frame.body)?;
        match &self.greeting {
            Some(greeting) if greeting.connect == connect => {}
            Some(_) => return Err(End::Garbage("a second Connect on one connection".to_owned())),
            None => match Greeting::begin(&self.shared, connect.clone(), &frame.body) {
                Ok(greeting) => self.greeting = Some(greeting),
                Err(error) => return self.refuse(&frame.header, &connect, error).await,
            },
        }
        let body = self.greeting.as_ref().map(Greeting::challenge).unwrap_or_default().into();
        self.send(&frame.header, KeptReply { error: false, body, bulk: Bytes::new() }).await
    }

    /// The client's proof, or a copy of it, which must be as good. Returns the ticket with it.
    async fn check_proof(&mut self, frame: &Frame) -> Result<Option<Ticket>, End> {
        let prove: Prove = codec::decode(&frame.body)?;
        let Some(greeting) = &self.greeting else {
            return Err(End::Garbage("a proof before Connect".to_owned()));
        };
        match greeting.admit(&prove) {
            Ok(()) => Ok(prove.ticket),
            Err(error) => self.refuse(&frame.header, &greeting.connect, error).await.map(|()| None),
        }
    }

    /// A client has proved what it is: opens its session, unless it is open.
    async fn on_proof(&mut self, header: &FrameHeader, ticket: Option<Ticket>) -> Result<(), End> {
        if let (None, Some(greeting)) = (&self.session, &self.greeting) {
            match self.open(&greeting.connect, ticket).await {
                Ok(session) => self.session = Some(session),
                Err(error) => return self.refuse(header, &greeting.connect, error).await,
            }
        }
        let body = self.session.as_ref().map(|(_, connected)| encode_connected(connected)).unwrap_or_default().into();
        self.send(header, KeptReply { error: false, body, bulk: Bytes::new() }).await?;
        // Not before: the client understands no callback before it is connected.
        if let Some((bound, _)) = &self.session {
            bound.cell.notify();
        }
        Ok(())
    }

    /// Opens or continues the session of a client that has proved what it is.
    async fn open(&self, connect: &Connect, ticket: Option<Ticket>) -> FsResult<(Bound, Connected)> {
        let target = self.shared.target(&connect.target).ok_or(FsError::NoDevice)?;
        target.check_ticket(connect, ticket.as_ref())?;
        let (bound, connected) = target.connect(connect, Some(self.nid.clone())).await?;
        let present = PresentConnection { generation: bound.generation, version: connected.version };
        match bound.cell.attach(present, CallbackPath::Remote(self.sender.clone())) {
            true => Ok((bound, connected)),
            false => Err(FsError::Busy),
        }
    }

    /// Tells a client why it cannot connect.
    async fn refuse(&self, request: &FrameHeader, connect: &Connect, error: FsError) -> Result<(), End> {
        let (client, name) = (connect.client, bounds::client_name(&connect.client_name));
        let (target, role) = (bounds::client_name(&connect.target), connect.role);
        if let Some(suppressed) = self.shared.unproven.may_log(self.shared.now()) {
            let (nid, suppressed) = (&*self.nid, (suppressed > 0).then_some(suppressed));
            tracing::info!(%target, nid, %client, name, %role, %error, suppressed, "client refused");
        }
        self.send(request, keep_error(&error)).await?;
        Err(End::Refused)
    }

    async fn on_request(&mut self, frame: Frame) -> Result<(), End> {
        let header = frame.header;
        cost::spend_on_frame_in(&self.shared.seams.cpu, &frame).await;
        let Some((bound, connected)) = &self.session else {
            return Err(End::Garbage("a request before a session".to_owned()));
        };
        if header.version == connected.version && header.flags & !frame_flag::ERROR == CALLBACK_REPLY {
            return on_callback_reply(bound, &frame);
        }
        if header.version != connected.version || header.flags & !frame_flag::RESENT != 0 {
            return Err(End::Garbage(format!("version {} flags {:#x}", header.version, header.flags)));
        }
        let bound = bound.clone();
        let decoded = contain::catch(None, || {
            let extension: RequestExtension = codec::decode_extension(frame.extension())?;
            Ok((extension, codec::decode_request(Opcode(header.opcode), frame.message())?))
        });
        let decoded = decoded.map_err(|panicked| End::Garbage(format!("decoding panicked: {panicked}")))?;
        let (extension, request) = match decoded {
            Ok(decoded) => decoded,
            Err(error @ MessageDecodeError::UnknownOpcode(_)) => {
                return self.send(&header, keep_error(&FsError::from(error))).await;
            }
            Err(error) => return Err(error.into()),
        };
        let (slot, xid) = (Slot(header.slot), Xid(header.xid));
        let in_urgent_slot = header.slot >= connected.slots - connected.urgent_slots;
        let budget = if in_urgent_slot { &self.urgent } else { &self.budget };
        let urgent = in_urgent_slot && request.row().urgent;
        // A copy of a request in progress takes nothing: its client holds one part for both.
        let bytes = match bound.cell.with(|session| session.is_running(slot, xid)) {
            true => 0,
            false => memory_of(&request, frame.body.len() + frame.bulk.len()),
        };
        let share = budget.admit(bytes).await;
        let has_deadline = connected.features & feature::DEADLINES != 0 && header.deadline_ns != 0;
        let deadline = has_deadline.then_some(Instant(header.deadline_ns));
        match bound.cell.arrive(bound.target.now(), Generation(header.connection), slot, xid, deadline) {
            Arrival::Execute => {
                let call = Call {
                    client: bound.cell.client,
                    slot,
                    xid,
                    trace: header.trace,
                    class: header.class,
                    features: connected.features,
                    extension,
                    request,
                    bulk: frame.bulk,
                };
                self.execute(bound, header, deadline, (call, urgent), share).await
            }
            Arrival::Repeat(kept) => self.send(&header, kept).await,
            Arrival::Running => {
                if let Some(deadline) = deadline {
                    bound.target.overdue.extend((bound.cell.client, slot, xid), deadline);
                }
                self.send_note(&header, frame_flag::RUNNING).await
            }
            Arrival::Busy => self.send_note(&header, frame_flag::BUSY).await,
            Arrival::Expired => self.send_note(&header, frame_flag::EXPIRED).await,
            Arrival::Ignore => Ok(()),
            // On the next connection the client continues with its session: nothing was lost with
            // it.
            Arrival::Gone if bound.target.handler.stores_replies_of_sessions_that_ended() => Err(End::Closed),
            Arrival::Gone => self.send(&header, keep_error(&FsError::Evicted)).await,
            Arrival::Violation(reason) => Err(End::Garbage(reason.to_owned())),
        }
    }

    /// Executes an admitted request here as far as it goes without waiting, else in a task of its
    /// own.
    async fn execute(
        &self,
        bound: Bound,
        header: FrameHeader,
        deadline: Option<Instant>,
        (call, urgent): (Call, bool),
        share: Share,
    ) -> Result<(), End> {
        let (slot, xid) = (call.slot, call.xid);
        if bound.target.is_stopping() {
            bound.cell.withdraw(slot, xid);
            return Ok(());
        }
        let overdue = bound.target.overdue.before(&call.request, bound.target.now());
        let way = if overdue.is_empty() {
            match bound.target.admit(bound.target.now(), bound.session(), &call, urgent) {
                Ok(admission) => Way::Admitted(admission),
                Err(_full) => {
                    bound.cell.withdraw(slot, xid);
                    return self.send_note(&header, frame_flag::BUSY).await;
                }
            }
        } else {
            Way::After(overdue, urgent)
        };
        let work = work(self.shared.clone(), bound, self.sender.clone(), (header, deadline), way, call, share);
        let mut work: BoxFuture<'static, ()> = Box::pin(work);
        let done = poll_fn(|context| Poll::Ready(work.as_mut().poll(context).is_ready())).await;
        if !done {
            self.shared.seams.spawn.spawn("request", work);
        }
        Ok(())
    }

    async fn send_note(&self, request: &FrameHeader, note: u16) -> Result<(), End> {
        self.sender.send(self::note(self.shared.now(), request, note)).await.map_err(End::Broken)
    }

    async fn send(&self, request: &FrameHeader, kept: KeptReply) -> Result<(), End> {
        self.sender.send(reply_frame(self.shared.now(), request, kept)).await.map_err(End::Broken)
    }
}

/// Flags of an answer to a callback.
const CALLBACK_REPLY: u16 = frame_flag::CALLBACK | frame_flag::REPLY;

/// The client answered a callback.
fn on_callback_reply(bound: &Bound, frame: &Frame) -> Result<(), End> {
    let result = match frame.header.flags & frame_flag::ERROR {
        0 => Ok(codec::decode(frame.message())?),
        _ => Err(codec::decode(frame.message())?),
    };
    bound.cell.callback_answered(Slot(frame.header.slot), Xid(frame.header.xid), result);
    Ok(())
}

/// How a request comes to its execution.
enum Way {
    /// Its service takes it.
    Admitted(Admission),
    /// These changes must end before it asks its service; whether it is urgent.
    After(Vec<overdue::Number>, bool),
}

impl Way {
    /// Waits for the permit to execute the request; `None`: not now.
    async fn permit(self, shared: &Shared, bound: &Bound, call: &Call) -> Option<Permit> {
        let target = &bound.target;
        match self {
            Way::Admitted(Admission::Now(permit)) => Some(permit),
            Way::Admitted(Admission::Queued(waiting)) => {
                let permit = waiting.await;
                shared.seams.cpu.spend(CpuKind::WakeUp, 0).await;
                Some(permit)
            }
            Way::After(changes, urgent) => {
                let until = target.now() + overdue::WAIT_MAX;
                timeout_at(&*shared.seams.clock, until, target.overdue.ended(&changes)).await?;
                target.admitted(target.now(), bound.session(), call, urgent).await.ok()
            }
        }
    }
}

/// The way of one request from its arrival to its reply.
async fn work(
    shared: Arc<Shared>,
    bound: Bound,
    sender: Arc<dyn Sender>,
    (header, deadline): (FrameHeader, Option<Instant>),
    way: Way,
    call: Call,
    mut share: Share,
) {
    let (slot, xid) = (call.slot, call.xid);
    let change = bound.target.overdue.note(&call.request, (bound.cell.client, slot, xid), deadline);
    // A request that found nothing overdue between the request's arrival and the note, because the
    // process was stopped there, goes first.
    let is_late = change.is_some() && deadline.is_some_and(|deadline| deadline < bound.target.now());
    let permit = if is_late { None } else { way.permit(&shared, &bound, &call).await };
    let Some(permit) = permit else {
        drop(change);
        bound.cell.withdraw(slot, xid);
        // If this does not arrive, the client asks again by itself.
        let _ = sender.send(note(shared.now(), &header, frame_flag::BUSY)).await;
        return;
    };
    let (disconnects, repeatable) = (is_disconnect(&call.request), call.request.row().is_repeatable());
    let (answer, is_panic) = match bound.target.execute(bound.role, call).await {
        Outcome::Answered(answer) => (answer, false),
        Outcome::Panicked => (Answer::new(Err(bound.target.panic_error(Opcode(header.opcode)))), true),
        Outcome::Unanswered => {
            // As if the process had died: the client asks the target's next start.
            bound.cell.withdraw(slot, xid);
            return;
        }
    };
    drop(change);
    drop(permit);
    let (reply, kept) = match repeatable {
        true => (keep(answer), None),
        false => {
            let (reply, kept) = keep_for_copies(answer);
            (reply, Some(kept))
        }
    };
    share.shrink_to(reply.body.bytes.len() + reply.bulk.len());
    bound.cell.finish(slot, xid, kept);
    if disconnects && !is_panic {
        bound.target.close(&bound.cell).await;
    }
    let reply = reply_frame(bound.target.now(), &header, reply);
    if let Err(error) = cost::send(&shared.seams.cpu, &*sender, reply).await {
        tracing::debug!(client = %bound.cell.client, %error, "reply not sent; the client will repeat the request");
    }
    if is_panic {
        bound.target.detach_all();
    }
    drop(share);
}

/// An answer that says only how it stands with a request.
fn note(now: Instant, request: &FrameHeader, note: u16) -> Frame {
    let header = reply_header(now, request, note);
    Frame::new(header, Bytes::new(), Bytes::new()).expect("an empty frame is within the limits")
}

/// `now`: the time from which the client computes the deadlines of its requests.
fn reply_header(now: Instant, request: &FrameHeader, flags: u16) -> FrameHeader {
    FrameHeader { flags: frame_flag::REPLY | flags, deadline_ns: now.0, extension_bytes: 0, ..*request }
}

/// The frame of a reply. Bulk data beyond the limit are the handler's mistake and become an error.
fn reply_frame(now: Instant, request: &FrameHeader, kept: KeptReply) -> Frame {
    let flags = if kept.error { frame_flag::ERROR } else { 0 };
    let header = FrameHeader { extension_bytes: kept.body.extension_bytes, ..reply_header(now, request, flags) };
    Frame::new(header, kept.body.bytes, kept.bulk).unwrap_or_else(|error| {
        tracing::error!(opcode = %Opcode(request.opcode), %error, "reply too large");
        let error = keep_error(&FsError::TooBig);
        Frame::new(reply_header(now, request, frame_flag::ERROR), error.body.bytes, Bytes::new())
            .expect("a bare error fits any frame")
    })
}

fn encode_connected(connected: &Connected) -> Bytes {
    codec::encode(connected).expect("a few numbers fit any frame")
}
