//! One connection of a remote client: reads frames, lets the session decide, executes, replies.
//!
//! The first frame must be a `Connect`. Anything that is not a valid frame of this protocol ends
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
use rt::{BoxFuture, Connection, Frame, FrameHeader, Instant, Receiver, Sender, clock::timeout_at, contain};
use types::{FsError, Generation, Slot, Xid};

use super::{
    budget::{Budget, Share},
    failing::Outcome,
    overdue,
    served_target::{Bound, ServedTarget, is_disconnect, keep, keep_error},
    shared::Shared,
};
use crate::{
    codec::{
        self, MessageDecodeError,
        opcode::{self, Opcode},
    },
    handler::{Answer, Call},
    message::{
        Request, bounds,
        session::{Connect, Connected, feature, frame_flag},
    },
    service::{Admission, Permit},
    session::{Arrival, KeptReply},
};

/// How long a new connection may take to say what it wants.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(30);

/// Serves one connection until it ends.
pub(super) async fn serve(shared: Arc<Shared>, connection: Connection) {
    let Connection { sender, mut receiver, peer } = connection;
    let _registered = Registered::new(&shared, sender.clone());
    let budget = Budget::new(shared.options.slots);
    let mut reader = Reader { shared, sender, budget, session: None };
    let end = reader.run(&mut *receiver).await;
    match end {
        End::Closed => tracing::debug!(peer, "connection closed"),
        End::Refused => tracing::debug!(peer, "connection refused"),
        End::Broken(error) => tracing::debug!(peer, %error, "connection broke"),
        End::Garbage(reason) => tracing::warn!(peer, %reason, "connection closed because of invalid input"),
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
        Self { shared: shared.clone(), number, sender }
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        self.sender.close();
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

struct Reader {
    shared: Arc<Shared>,
    sender: Arc<dyn Sender>,
    /// Of requests between their arrival and the sending of their replies.
    budget: Budget,
    /// Set by the first `Connect`.
    session: Option<(Bound, Connected)>,
}

impl Reader {
    async fn run(&mut self, receiver: &mut dyn Receiver) -> End {
        let clock = self.shared.seams.clock.clone();
        let deadline = clock.now() + CONNECT_TIMEOUT;
        loop {
            // A server that stops closes the connection, after the replies of running requests.
            let received = match self.session {
                Some(_) => receiver.receive().await,
                None => match timeout_at(&*clock, deadline, receiver.receive()).await {
                    Some(received) => received,
                    None => return End::Garbage("no Connect request in time".to_owned()),
                },
            };
            let frame = match received {
                Ok(Some(frame)) => frame,
                Ok(None) => return End::Closed,
                Err(error) if error.kind() == std::io::ErrorKind::InvalidData => {
                    return End::Garbage(error.to_string());
                }
                Err(error) => return End::Broken(error),
            };
            let handled = if frame.header.opcode == opcode::CONNECT.0 {
                self.on_connect(frame).await
            } else {
                self.on_request(frame).await
            };
            if let Err(end) = handled {
                return end;
            }
        }
    }

    async fn on_connect(&mut self, frame: Frame) -> Result<(), End> {
        let connect: Connect = codec::decode(&frame.body)?;
        if let Some((bound, connected)) = &self.session {
            if bound.generation != connect.connection {
                return Err(End::Garbage("a second session on one connection".to_owned()));
            }
            let body = encode_connected(connected);
            return self.send(&frame.header, KeptReply { error: false, body, bulk: Bytes::new() }).await;
        }
        let connected = match (connect.check(), self.shared.target(&connect.target)) {
            (Ok(()), Some(target)) => target.connect(&connect, false).await,
            (Ok(()), None) => Err(FsError::NoDevice),
            (Err(error), _) => Err(error),
        };
        let attached = connected.and_then(|(bound, connected)| {
            if bound.cell.attach(bound.generation, Some(self.sender.clone())) {
                Ok((bound, connected))
            } else {
                Err(FsError::Busy)
            }
        });
        match attached {
            Ok((bound, connected)) => {
                let body = encode_connected(&connected);
                self.session = Some((bound, connected));
                self.send(&frame.header, KeptReply { error: false, body, bulk: Bytes::new() }).await
            }
            Err(error) => {
                let (client, name) = (connect.client, bounds::client_name(&connect.client_name));
                let target = bounds::client_name(&connect.target);
                tracing::info!(%target, %client, name, %error, "client refused");
                self.send(&frame.header, keep_error(&error)).await?;
                Err(End::Refused)
            }
        }
    }

    async fn on_request(&mut self, frame: Frame) -> Result<(), End> {
        let header = frame.header;
        let Some((bound, connected)) = &self.session else {
            return Err(End::Garbage("a request before Connect".to_owned()));
        };
        if header.version != connected.version || header.flags != 0 {
            return Err(End::Garbage(format!("version {} flags {:#x}", header.version, header.flags)));
        }
        let bound = bound.clone();
        let decoded = contain::catch(None, || codec::decode_request(Opcode(header.opcode), &frame.body));
        let decoded = decoded.map_err(|panicked| End::Garbage(format!("decoding panicked: {panicked}")))?;
        let request = match decoded {
            Ok(request) => request,
            Err(error @ MessageDecodeError::UnknownOpcode(_)) => {
                return self.send(&header, keep_error(&FsError::from(error))).await;
            }
            Err(error) => return Err(error.into()),
        };
        let (slot, xid) = (Slot(header.slot), Xid(header.xid));
        let share = self.budget.admit(&request, frame.body.len() + frame.bulk.len()).await;
        let has_deadline = connected.features & feature::DEADLINES != 0 && header.deadline_ns != 0;
        let deadline = has_deadline.then_some(Instant(header.deadline_ns));
        match bound.cell.arrive(bound.target.now(), Generation(header.connection), slot, xid, deadline) {
            Arrival::Execute => self.execute(bound, header, deadline, (request, frame.bulk), share).await,
            Arrival::Repeat(kept) => self.send(&header, kept).await,
            Arrival::Running => {
                if let Some(deadline) = deadline {
                    bound.target.overdue.extend((bound.cell.client, slot, xid), deadline);
                }
                self.send_note(&header, frame_flag::RUNNING).await
            }
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
        (request, bulk): (Request, Bytes),
        share: Share,
    ) -> Result<(), End> {
        let (slot, xid) = (Slot(header.slot), Xid(header.xid));
        if bound.target.is_stopping() {
            bound.cell.withdraw(slot, xid);
            return Ok(());
        }
        let overdue = bound.target.overdue.before(&request, bound.target.now());
        let way = if overdue.is_empty() {
            match bound.target.admit(bound.target.now(), &request) {
                Ok(admission) => Way::Admitted(admission),
                Err(_full) => {
                    bound.cell.withdraw(slot, xid);
                    return self.send_note(&header, frame_flag::BUSY).await;
                }
            }
        } else {
            Way::Behind(overdue)
        };
        let call = Call { client: bound.cell.client, slot, xid, trace: header.trace, request, bulk };
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

/// How a request comes to its execution.
enum Way {
    /// Its service takes it.
    Admitted(Admission),
    /// These changes must end before it asks its service.
    Behind(Vec<overdue::Number>),
}

impl Way {
    /// Waits for the permit to execute the request; `None`: not now.
    async fn permit(self, shared: &Shared, target: &ServedTarget, request: &Request) -> Option<Permit> {
        match self {
            Way::Admitted(Admission::Now(permit)) => Some(permit),
            Way::Admitted(Admission::Queued(granted)) => {
                Some(granted.await.expect("a service outlives the targets that use it"))
            }
            Way::Behind(changes) => {
                let until = target.now() + overdue::WAIT_MAX;
                timeout_at(&*shared.seams.clock, until, target.overdue.ended(&changes)).await?;
                target.admitted(target.now(), request).await.ok()
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
    // Who found nothing overdue between the request's arrival and the note, because the process was
    // stopped there, goes first.
    let is_late = change.is_some() && deadline.is_some_and(|deadline| deadline < bound.target.now());
    let permit = if is_late { None } else { way.permit(&shared, &bound.target, &call.request).await };
    let Some(permit) = permit else {
        drop(change);
        bound.cell.withdraw(slot, xid);
        // If this does not arrive, the client asks again by itself.
        let _ = sender.send(note(shared.now(), &header, frame_flag::BUSY)).await;
        return;
    };
    let (disconnects, repeatable) = (is_disconnect(&call.request), call.request.row().is_repeatable());
    let (answer, is_panic) = match bound.target.execute(call).await {
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
    let reply = keep(&answer.reply, answer.bulk);
    share.shrink_to(reply.body.len() + reply.bulk.len());
    let kept = (!repeatable).then(|| reply.clone());
    bound.cell.finish(bound.target.now(), slot, xid, kept);
    if disconnects && !is_panic {
        bound.target.close(&bound.cell).await;
    }
    if let Err(error) = sender.send(reply_frame(bound.target.now(), &header, reply)).await {
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
    FrameHeader { flags: frame_flag::REPLY | flags, deadline_ns: now.0, ..*request }
}

/// The frame of a reply. Bulk data beyond the limit are the handler's mistake and become an error.
fn reply_frame(now: Instant, request: &FrameHeader, kept: KeptReply) -> Frame {
    let flags = if kept.error { frame_flag::ERROR } else { 0 };
    Frame::new(reply_header(now, request, flags), kept.body, kept.bulk).unwrap_or_else(|error| {
        tracing::error!(opcode = %Opcode(request.opcode), %error, "reply too large");
        let error = keep_error(&FsError::TooBig);
        Frame::new(reply_header(now, request, frame_flag::ERROR), error.body, Bytes::new())
            .expect("a bare error fits any frame")
    })
}

fn encode_connected(connected: &Connected) -> Bytes {
    codec::encode(connected).expect("a few numbers fit any frame")
}
