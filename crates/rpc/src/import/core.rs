//! The client's half of sessions as a plain state machine: which requests are outstanding, what to
//! send when, which callers have waited long enough. It decides; the tasks in `driver` and the
//! callers in `call` act.
//!
//! Invariants:
//! - A slot is in use from the moment when its request may have been sent until the outcome is
//!   known: its reply arrived, or a later `Connect` was answered (then all requests that arrived
//!   before have been executed, and no others will be).
//! - A request keeps its (slot, xid) however often it is sent.
//! - A request says when its caller gives up, on the target's clock (estimated from the target's
//!   last report of it), and is not executed if it arrives later: if no answer came in time, the
//!   request was executed by then or never will be. This requires that both clocks run at about the
//!   same rate, and that the target's clock runs while its process is stopped. If a caller leaves
//!   before its timeout (drops its call, closes the import, shortens the timeout), its request may
//!   still arrive.
//! - A request whose caller gave up is repeated only on the same connection, to learn its outcome,
//!   and marked as late.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use bytes::Bytes;
use rt::{Frame, FrameHeader, Instant, frame::class};
use tokio::sync::OwnedSemaphorePermit;
use types::{
    FsError, FsResult, Generation, Slot, Xid,
    limits::{CALLBACK_SLOTS, SESSION_SLOTS_MAX, URGENT_SLOTS_MAX},
};

use super::{
    options::{ImportOptions, ImportState},
    question::{Answered, CallResult, Caller},
    slots::Slots,
    statistics::Counters,
    trouble::Trouble,
};
use crate::{
    auth::Ticket,
    codec::{self, Body, MessageDecodeError, opcode::Opcode},
    message::{
        ClientReply, ClientRequest, Reply, ReplyExtension,
        session::{Connected, frame_flag},
    },
    session::{Arrival, KeptReply, SlotTable},
};

/// A request is repeated at least this often, so that one whose frames got lost is executed in
/// bounded time.
const RESEND_MAX: Duration = Duration::from_secs(60);
/// Without any sign of life for this many resend intervals, a connection with outstanding requests
/// is given up.
const SILENCE_INTERVALS: u32 = 4;
/// The server is asked for a sign of life this many times within the timeout of calls, if
/// something is outstanding.
const PROBES_PER_TIMEOUT: u32 = 4;
/// ... but not more often than this, however short the timeout: an import whose callers do not
/// wait at all (its target is out of use) still watches its connection, and must not do nothing
/// else.
const PROBE_AFTER_MIN: Duration = Duration::from_millis(100);
/// First pause after a server's refusal; doubles with each further one.
const BUSY_PAUSE: Duration = Duration::from_millis(2);
/// How often the pause after a refusal doubles: up to half a second.
const BUSY_DOUBLINGS: u32 = 8;
/// Pings per lease.
const PINGS_PER_LEASE: u32 = 3;
/// ... but with this pause between them at least.
const KEEP_INTERVAL_MIN: Duration = Duration::from_millis(1);
/// This part of a lease is not used: the clocks of both sides may run at different rates.
const LEASE_MARGIN: u32 = 4;

/// What a request is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    /// A call of the user.
    Ordinary,
    /// The same, and it changes names or attributes: there is a limit of its own for those.
    Change,
    /// A call that others may wait for.
    Urgent,
    /// A call of the recovery hook: lives and dies with its connection.
    Recovery,
    /// A ping: no caller waits for it.
    Ping,
}

impl Purpose {
    /// Whether the request is sent in the control slot.
    pub(super) fn is_control(self) -> bool {
        matches!(self, Purpose::Recovery | Purpose::Ping)
    }
}

struct Outstanding {
    xid: Xid,
    opcode: Opcode,
    trace: u64,
    body: Body,
    bulk: Bytes,
    purpose: Purpose,
    started: Instant,
    /// The connection on which it was sent first.
    connection: Generation,
    /// First sent on the present connection.
    sent: Instant,
    resend_at: Instant,
    resend_after: Duration,
    refusals: u32,
    /// Its part of the memory that large requests may take at the target.
    _memory: Option<OwnedSemaphorePermit>,
    /// Where its caller waits; `None`: no caller ever did.
    caller_core: Option<usize>,
    /// `None`: no caller waits any more.
    caller: Option<Caller>,
    /// Told instead of a caller that has given up.
    late: Option<Caller>,
}

/// What the target last told of its clock on the present connection, and when that was here.
#[derive(Clone, Copy)]
struct TargetClock {
    told: Instant,
    heard: Instant,
}

/// A target's clock may lag behind by one in so many: four times what a clock is slewed by at most
/// (500 ppm), as either of two may be, in opposite directions, besides the errors of their
/// quartzes.
const CLOCK_MARGIN: u32 = 500;

impl TargetClock {
    /// What the target's clock does not show before this time here: its reply was in flight, and
    /// its clock may run slower than this one by the margin.
    fn at(self, here: Instant) -> Instant {
        let passed = here.since(self.heard);
        self.told + (passed - passed / CLOCK_MARGIN)
    }
}

/// For how many times its timeout a caller's request is sent again that always arrives after its
/// deadline.
const EXPIRED_TIMEOUTS: u32 = 4;
/// The deadline of a request that no caller waits for: long past.
const DEADLINE_PAST: u64 = 1;
/// The deadline of a request that may be executed whenever it arrives.
const DEADLINE_NEVER: u64 = 0;

impl Outstanding {
    fn is_wanted(&self) -> bool {
        self.caller.as_ref().is_some_and(|caller| !caller.is_closed())
    }

    fn complete(self, result: CallResult) -> Completion {
        Completion { purpose: self.purpose, caller: self.caller.or(self.late), caller_core: self.caller_core, result }
    }
}

/// A finished call: its caller and the result.
pub(super) struct Completion {
    /// Its slot is free.
    pub(super) purpose: Purpose,
    pub(super) caller: Option<Caller>,
    /// The core on which the caller waits, or waited.
    pub(super) caller_core: Option<usize>,
    pub(super) result: CallResult,
}

impl Completion {
    pub(super) fn deliver(self) {
        if let Some(caller) = self.caller {
            // A caller that is gone needs no answer.
            let _ = caller.send(self.result);
        }
    }
}

/// What a received frame means.
#[allow(clippy::large_enum_variant, reason = "almost all are completions, and none is kept")]
pub(super) enum Received {
    /// Nothing to do: a late copy, or a note that was taken.
    Nothing,
    /// The server is busy; the request is due again sooner than the driver expects.
    Earlier,
    /// A call is over.
    Complete(Completion),
    /// The session is gone, which all callers are to be told.
    Evicted,
    /// The target makes a request, which is to be answered.
    Callback(FrameHeader, ClientRequest),
    /// The target makes a request again that was answered.
    Answer(Frame),
    /// The frame is not one of this protocol.
    Garbage(String),
}

/// The state of one import.
pub(super) struct Core {
    target: Arc<str>,
    pub(super) state: ImportState,
    /// Why the server refuses this client permanently.
    pub(super) refused: Option<FsError>,
    /// Generation of the newest connection.
    pub(super) generation: Generation,
    /// Incarnation of the server that knows our session; `None`: there is no session.
    pub(super) session: Option<u64>,
    /// What that server gave to continue the session with.
    pub(super) ticket: Option<Ticket>,
    /// Power-loss era of the target as of the newest connection.
    era: u64,
    /// The same as of the last connection that became full.
    era_known: u64,
    /// Features of the newest connection.
    features: u64,
    version: u16,
    /// Of all requests.
    class: u8,
    slot_count: u16,
    /// Of these, the last so many are for urgent requests.
    urgent_count: u16,
    lease: Duration,
    /// When the last answered request was sent on the present connection: the target has heard from
    /// this client since. `None`: none was answered yet.
    renewed: Option<Instant>,
    pub(super) slots: Slots,
    /// Callbacks of the target in this session.
    callbacks: SlotTable,
    /// The incarnation of the target whose callbacks these are.
    callbacks_of: Option<u64>,
    outstanding: BTreeMap<Slot, Outstanding>,
    /// Last sign of life for callers: a connection whose recovery never ends is none.
    last_heard: Instant,
    /// Last frame from the server.
    last_frame: Instant,
    last_sent: Instant,
    /// `None`: the target does not tell.
    target_clock: Option<TargetClock>,
    pub(super) trouble: Trouble,
    pub(super) timeout: Duration,
    resend: Duration,
    pub(super) counters: Counters,
}

impl Core {
    pub(super) fn new(target: Arc<str>, class: u8, options: &ImportOptions) -> Self {
        Self {
            target,
            state: ImportState::New,
            refused: None,
            generation: Generation(0),
            session: None,
            ticket: None,
            era: 0,
            era_known: 0,
            features: 0,
            version: 0,
            class,
            slot_count: SESSION_SLOTS_MAX,
            urgent_count: URGENT_SLOTS_MAX,
            lease: Duration::MAX,
            renewed: None,
            slots: Slots::new(),
            callbacks: SlotTable::new(CALLBACK_SLOTS),
            callbacks_of: None,
            outstanding: BTreeMap::new(),
            last_heard: Instant(0),
            last_frame: Instant(0),
            last_sent: Instant(0),
            target_clock: None,
            trouble: Trouble::default(),
            timeout: options.timeout,
            resend: options.resend,
            counters: Counters::new(),
        }
    }

    /// When the server gave the last sign of life; the beginning of time if it never did.
    pub(super) fn last_heard(&self) -> Instant {
        self.last_heard
    }

    /// When a caller that came at `started` gives up, unless the server gives a sign of life.
    pub(super) fn deadline(&self, started: Instant) -> Instant {
        started.max(self.last_heard) + self.timeout
    }

    /// What a caller is told that came at `started` and gives up now.
    pub(super) fn unreachable(&self, now: Instant, started: Instant) -> FsError {
        let seconds = u32::try_from(now.since(started).as_secs()).unwrap_or(u32::MAX);
        let cause = self.trouble.cause().map(ToString::to_string);
        FsError::Unreachable { target: self.target.to_string(), seconds, cause }
    }

    /// What a caller is told when the import is closed, or when it gives up.
    pub(super) fn gone(&self, now: Instant, started: Instant) -> FsError {
        self.refused.clone().unwrap_or_else(|| self.unreachable(now, started))
    }

    /// Takes a slot for a call.
    pub(super) fn take_slot(&mut self, purpose: Purpose) -> Option<(Slot, Xid)> {
        match purpose {
            Purpose::Ordinary | Purpose::Change => self.slots.take_ordinary(self.slot_count - self.urgent_count),
            Purpose::Urgent => self.slots.take_within(self.slot_count - self.urgent_count, self.slot_count),
            Purpose::Recovery | Purpose::Ping => self.slots.take_control(),
        }
    }

    /// Registers a request in a slot just taken, for a caller that waits on a core; returns the
    /// frame to send.
    #[expect(clippy::too_many_arguments, reason = "each belongs to the request")]
    pub(super) fn begin(
        &mut self,
        now: Instant,
        started: Instant,
        (slot, xid): (Slot, Xid),
        opcode: Opcode,
        (body, bulk, memory): (Body, Bytes, Option<OwnedSemaphorePermit>),
        trace: u64,
        purpose: Purpose,
        caller: Option<(usize, Caller)>,
    ) -> Frame {
        let (caller_core, caller) = caller.unzip();
        let resend_after = self.resend_after(purpose);
        let outstanding = Outstanding {
            xid,
            opcode,
            trace,
            body,
            bulk,
            purpose,
            started,
            connection: self.generation,
            sent: now,
            resend_at: now + resend_after,
            resend_after,
            refusals: 0,
            _memory: memory,
            caller_core,
            caller,
            late: None,
        };
        self.last_sent = now;
        let frame = self.frame(slot, &outstanding, 0);
        self.outstanding.insert(slot, outstanding);
        frame
    }

    /// `late` is told what the caller of a request just started is not told any more, if it gives
    /// up; dropped, if its outcome will never be known.
    pub(super) fn tell_late(&mut self, slot: Slot, late: Caller) {
        self.outstanding.get_mut(&slot).expect("it was just begun").late = Some(late);
    }

    /// The target told its clock.
    pub(super) fn hear_clock(&mut self, now: Instant, told_ns: u64) {
        if told_ns != 0 {
            self.target_clock = Some(TargetClock { told: Instant(told_ns), heard: now });
        }
    }

    /// When a request's caller gives up, on the target's clock.
    fn deadline_ns(&self, request: &Outstanding) -> u64 {
        let Some(clock) = self.target_clock else { return DEADLINE_NEVER };
        if request.is_wanted() || request.purpose == Purpose::Ping {
            clock.at(self.deadline(request.started)).0.max(DEADLINE_PAST)
        } else {
            DEADLINE_PAST
        }
    }

    fn frame(&self, slot: Slot, request: &Outstanding, flags: u16) -> Frame {
        let class = match request.purpose {
            // A ping keeps the lease.
            Purpose::Urgent | Purpose::Ping => class::URGENT,
            Purpose::Ordinary | Purpose::Change | Purpose::Recovery => self.class,
        };
        let header = FrameHeader {
            version: self.version,
            opcode: request.opcode.0,
            flags,
            extension_bytes: request.body.extension_bytes,
            class,
            slot: slot.0,
            xid: request.xid.0,
            connection: self.generation.0,
            deadline_ns: self.deadline_ns(request),
            trace: request.trace,
            ..FrameHeader::default()
        };
        Frame::new(header, request.body.bytes.clone(), request.bulk.clone())
            .expect("limits were checked before a slot was taken")
    }

    /// A frame arrived on the present connection.
    pub(super) fn receive(&mut self, now: Instant, frame: Frame, busy_jitter: u64) -> Received {
        let header = frame.header;
        self.last_frame = now;
        if self.state == ImportState::Full {
            self.last_heard = now;
        }
        if header.flags & !frame_flag::RESENT == frame_flag::CALLBACK {
            return self.called_back(&frame);
        }
        if header.flags & frame_flag::REPLY == 0 {
            return Received::Garbage("a request from the server".to_owned());
        }
        if self.target_clock.is_some() && header.connection == self.generation.0 {
            self.hear_clock(now, header.deadline_ns);
        }
        let slot = Slot(header.slot);
        let Some(request) = self.outstanding.get_mut(&slot) else { return Received::Nothing };
        // The opcode too: a late copy of the answer to Connect carries numbers that a ping may
        // have.
        let answers = request.xid.0 == header.xid && request.opcode.0 == header.opcode;
        if !answers || self.generation.0 != header.connection {
            return Received::Nothing;
        }
        if header.flags & frame_flag::RUNNING != 0 {
            return Received::Nothing;
        }
        if header.flags & frame_flag::BUSY != 0 {
            self.counters.busy += 1;
            request.resend_at = now + busy_pause(request.refusals, busy_jitter);
            request.refusals += 1;
            return Received::Earlier;
        }
        if header.flags & frame_flag::EXPIRED != 0 {
            return self.expired(now, slot, busy_jitter);
        }
        let result = match decode_result(request.opcode, &frame) {
            Ok(Err(FsError::Evicted)) => {
                self.counters.failed(request.opcode);
                return Received::Evicted;
            }
            result => result,
        };
        let request = self.outstanding.remove(&slot).expect("it was just found");
        self.slots.give_back(slot);
        self.renewed = self.renewed.max(Some(request.sent));
        let purpose = request.purpose;
        self.counters.answered((request.opcode, purpose), now.since(request.started), now.since(request.sent));
        let result = match result {
            Ok(Ok((reply, extension))) => {
                self.counters.acknowledged(&extension);
                Ok(Answered { reply, bulk: frame.bulk, extension, era: self.era, connection: request.connection })
            }
            Ok(Err(error)) => Err(error),
            Err(error) => {
                tracing::warn!(target = %self.target, opcode = %request.opcode, %error, "undecodable reply");
                Err(error.into())
            }
        };
        if result.is_err() {
            self.counters.failed(request.opcode);
        }
        Received::Complete(request.complete(result))
    }

    /// The target makes a request.
    fn called_back(&mut self, frame: &Frame) -> Received {
        let header = frame.header;
        if header.connection != self.generation.0 {
            return Received::Nothing;
        }
        let request: ClientRequest = match codec::decode(frame.message()) {
            Ok(request) => request,
            Err(error) => return Received::Garbage(format!("a callback: {error}")),
        };
        match self.callbacks.arrive(Slot(header.slot), Xid(header.xid), true) {
            Arrival::Execute => Received::Callback(header, request),
            Arrival::Repeat(kept) => Received::Answer(callback_answer(header, kept)),
            // The answer follows.
            Arrival::Running | Arrival::Ignore => Received::Nothing,
            // Of requests with deadlines, and of answers that are not kept.
            Arrival::Expired | Arrival::Busy => Received::Nothing,
            Arrival::Violation(reason) => Received::Garbage(format!("a callback: {reason}")),
            Arrival::Gone => unreachable!("slots do not end"),
        }
    }

    /// A callback was executed; returns the answer to send.
    pub(super) fn call_back_done(&mut self, header: FrameHeader, result: &FsResult<ClientReply>) -> Frame {
        let (error, body) = match result {
            Ok(reply) => (false, codec::encode(reply)),
            Err(error) => (true, codec::encode(error)),
        };
        let body = body.expect("an answer to a callback is small").into();
        let kept = KeptReply { error, body, bulk: Bytes::new() };
        let (slot, xid) = (Slot(header.slot), Xid(header.xid));
        // It may have been one of a session that has ended.
        if self.callbacks.is_running(slot, xid) {
            self.callbacks.finish(slot, xid, Some(kept.clone()));
        }
        callback_answer(header, kept)
    }

    /// A request arrived after its deadline, and never will be executed. If its caller still waits
    /// (it took long on its way, and the target gave a sign of life meanwhile), it is sent under
    /// another number, but not forever: what takes longer to arrive than a caller waits for a sign
    /// of life would only fill the link.
    fn expired(&mut self, now: Instant, slot: Slot, jitter: u64) -> Received {
        let request = self.outstanding.get_mut(&slot).expect("it was just found");
        if request.is_wanted() && now.since(request.started) <= self.timeout * EXPIRED_TIMEOUTS {
            request.xid = self.slots.renew(slot);
            request.resend_after = self.resend;
            request.resend_at = now + busy_pause(request.refusals, jitter);
            request.refusals += 1;
            return Received::Earlier;
        }
        let request = self.outstanding.remove(&slot).expect("it was just found");
        self.slots.give_back(slot);
        if request.is_wanted() {
            tracing::warn!(target = %self.target, opcode = %request.opcode, "requests arrive after their callers' timeouts");
        }
        let result = Err(self.unreachable(now, request.started));
        Received::Complete(request.complete(result))
    }

    /// Whether the caller of a request with this trace id waits for its reply.
    pub(super) fn awaits_reply(&self, trace: u64) -> bool {
        self.outstanding.values().any(|request| request.trace == trace && request.is_wanted())
    }

    /// Whether no call can time out before another call begins or the timeout changes.
    pub(super) fn no_call_can_time_out(&self) -> bool {
        self.timeout.is_zero() && self.outstanding.values().all(|request| request.caller.is_none())
    }

    /// Callers that have waited long enough, and their results. Their slots stay in use.
    pub(super) fn end_timed_out(&mut self, now: Instant) -> Vec<(Caller, FsError)> {
        let (timeout, last_heard) = (self.timeout, self.last_heard);
        let mut gone = Vec::new();
        let late: Vec<Slot> = self
            .outstanding
            .iter()
            .filter(|(_, request)| request.caller.is_some())
            .filter(|(_, request)| request.started.max(last_heard) + timeout <= now)
            .map(|(slot, _)| *slot)
            .collect();
        for slot in late {
            let request = self.outstanding.get_mut(&slot).expect("it was just found");
            let (caller, started) = (request.caller.take(), request.started);
            gone.extend(caller.map(|caller| (caller, self.unreachable(now, started))));
        }
        gone
    }

    /// What has been sent on the present connection: while recovering, the recovery's calls only.
    fn sent(&self) -> impl Iterator<Item = (&Slot, &Outstanding)> {
        let full = self.state == ImportState::Full;
        self.outstanding.iter().filter(move |(_, request)| full || request.purpose == Purpose::Recovery)
    }

    /// Requests to send again because their reply is late.
    pub(super) fn due(&mut self, now: Instant) -> Vec<Frame> {
        let due: Vec<Slot> =
            self.sent().filter(|(_, request)| request.resend_at <= now).map(|(slot, _)| *slot).collect();
        for slot in &due {
            let request = self.outstanding.get_mut(slot).expect("it was just found");
            if !request.purpose.is_control() {
                request.resend_after = (request.resend_after * 2).min(RESEND_MAX.max(self.resend));
            }
            request.resend_at = now + request.resend_after;
            self.counters.resent += 1;
            self.last_sent = now;
        }
        due.iter().map(|slot| self.frame(*slot, &self.outstanding[slot], frame_flag::RESENT)).collect()
    }

    /// When a ping is due: to keep the lease, or because something is outstanding and nothing is
    /// heard.
    fn ping_at(&self) -> Instant {
        let lease = self.last_sent + self.lease / PINGS_PER_LEASE;
        if self.outstanding.is_empty() {
            lease
        } else {
            lease.min(self.last_sent.max(self.last_frame) + self.probe_after())
        }
    }

    /// How long after a request its first copy is sent. While one is in the control slot there can
    /// be no ping, and its copies keep the lease: the target may take longer than that to answer.
    /// A lost ping would hide that a connection is dead for as long as it is not repeated, and
    /// requests that nobody waits for any more keep their slots until that is known.
    fn resend_after(&self, purpose: Purpose) -> Duration {
        let keeps_lease = (self.lease / PINGS_PER_LEASE).max(KEEP_INTERVAL_MIN);
        match purpose {
            Purpose::Ping => self.probe_after().min(keeps_lease),
            Purpose::Recovery => self.resend.min(keeps_lease),
            Purpose::Ordinary | Purpose::Change | Purpose::Urgent => self.resend,
        }
    }

    fn probe_after(&self) -> Duration {
        self.resend.min((self.timeout / PROBES_PER_TIMEOUT).max(PROBE_AFTER_MIN))
    }

    /// Whether a ping should be sent.
    pub(super) fn needs_ping(&self, now: Instant) -> bool {
        self.state == ImportState::Full && self.ping_at() <= now
    }

    /// When [`Core::due`] and [`Core::needs_ping`] should be asked next: often enough for requests
    /// yet to come, and never at once (the control slot may be taken when a ping is due).
    pub(super) fn next_due(&self, now: Instant) -> Instant {
        let often = self.probe_after() / 2;
        let resend = self.sent().map(|(_, request)| request.resend_at).min();
        let next = resend.unwrap_or(Instant(u64::MAX)).min(now + often);
        let ping = self.ping_at();
        if ping > now { next.min(ping) } else { next }
    }

    /// Whether the connection should be given up: something is outstanding, and nothing comes back.
    pub(super) fn is_silent(&self, now: Instant) -> bool {
        let limit = self.resend * SILENCE_INTERVALS;
        let oldest = self.sent().map(|(_, request)| request.sent).min();
        oldest.is_some_and(|sent| now.since(sent.max(self.last_frame)) > limit)
    }

    /// A `Connect` was answered: the outcome of all requests that no caller waits for is known.
    /// Returns what the slots were for that are free now.
    pub(super) fn connected(&mut self, now: Instant, connected: &Connected) -> Vec<Purpose> {
        self.version = connected.version;
        self.features = connected.features;
        self.era = connected.era;
        self.slot_count = connected.slots.min(SESSION_SLOTS_MAX);
        self.urgent_count = connected.urgent_slots.min(self.slot_count - 2);
        if self.callbacks_of != Some(connected.incarnation) {
            self.callbacks = SlotTable::new(CALLBACK_SLOTS);
            self.callbacks_of = Some(connected.incarnation);
        }
        self.lease = Duration::from_millis(u64::from(connected.lease_ms));
        self.refused = None;
        self.renewed = None;
        self.target_clock = None;
        self.last_sent = now;
        self.last_frame = now;
        self.counters.connections += 1;
        let past: Vec<Slot> =
            self.outstanding.iter().filter(|(_, request)| !request.is_wanted()).map(|(slot, _)| *slot).collect();
        let mut freed = Vec::with_capacity(past.len());
        for slot in past {
            freed.extend(self.outstanding.remove(&slot).map(|request| request.purpose));
            self.slots.give_back(slot);
        }
        freed
    }

    /// Whether both sides of the newest connection support a feature.
    pub(super) fn supports(&self, feature: u64) -> bool {
        self.features & feature == feature
    }

    /// Whether requests are outstanding in slots that the server does not grant any more.
    pub(super) fn lost_slots(&self) -> bool {
        self.outstanding.keys().next_back().is_some_and(|slot| slot.0 >= self.slot_count)
    }

    /// The target does not evict this client before, by this side's clock: a lease after the last
    /// answered request was sent, less [`LEASE_MARGIN`].
    pub(super) fn leased_until(&self) -> Instant {
        self.renewed.map_or(Instant(0), |renewed| renewed + (self.lease - self.lease / LEASE_MARGIN))
    }

    /// How long the target keeps a client that is silent.
    pub(super) fn lease(&self) -> Duration {
        self.lease
    }

    /// Slots for ordinary calls that the server grants.
    pub(super) fn ordinary_slots(&self) -> u16 {
        self.slot_count - self.urgent_count - 1
    }

    /// Slots for urgent calls that the server grants.
    pub(super) fn urgent_slots(&self) -> u16 {
        self.urgent_count
    }

    /// Power-loss era of the target as of the last connection that became full.
    pub(super) fn era_known(&self) -> Option<u64> {
        self.session.map(|_| self.era_known)
    }

    /// Whether the target lost something since a connection was full.
    pub(super) fn has_lost(&self) -> bool {
        self.era > self.era_known
    }

    /// Recovery is over: everything outstanding goes out again.
    pub(super) fn full(&mut self, now: Instant, incarnation: u64, ticket: Option<Ticket>) -> Vec<Frame> {
        self.state = ImportState::Full;
        self.session = Some(incarnation);
        self.ticket = ticket;
        self.era_known = self.era;
        self.last_heard = now;
        for request in self.outstanding.values_mut() {
            request.sent = now;
            request.resend_after = self.resend;
            request.resend_at = now + self.resend;
            self.counters.resent += 1;
        }
        self.outstanding.iter().map(|(slot, request)| self.frame(*slot, request, frame_flag::RESENT)).collect()
    }

    /// The connection is gone. Calls of the recovery end with it.
    pub(super) fn disconnected(&mut self, now: Instant) -> Vec<(Caller, FsError)> {
        self.state = ImportState::Disconnected;
        let recovering = |request: &&mut Outstanding| request.purpose == Purpose::Recovery;
        let callers: Vec<_> = self
            .outstanding
            .values_mut()
            .filter(recovering)
            .filter_map(|request| Some((request.caller.take()?, request.started)))
            .collect();
        callers.into_iter().map(|(caller, started)| (caller, self.unreachable(now, started))).collect()
    }

    /// The session is gone: every caller is told. Slots stay in use until the next connection.
    pub(super) fn evicted(&mut self) -> Vec<Caller> {
        self.state = ImportState::Evicted;
        self.session = None;
        self.ticket = None;
        self.callbacks_of = None;
        self.counters.evictions += 1;
        self.abandon_all()
    }

    /// Nothing will be answered any more, for this reason.
    pub(super) fn abandon_all(&mut self) -> Vec<Caller> {
        let abandon = |request: &mut Outstanding| {
            request.late = None;
            request.caller.take()
        };
        self.outstanding.values_mut().filter_map(abandon).collect()
    }
}

/// How long to wait after the n-th refusal of a request in a row: half of it by chance, so that
/// clients that were refused together do not come back together.
pub(super) fn busy_pause(refusals: u32, random: u64) -> Duration {
    let pause = BUSY_PAUSE * (1 << refusals.min(BUSY_DOUBLINGS));
    pause / 2 + pause / 2 * (random % 1024) as u32 / 1024
}

/// The answer to a callback.
fn callback_answer(header: FrameHeader, kept: KeptReply) -> Frame {
    let error = if kept.error { frame_flag::ERROR } else { 0 };
    let flags = frame_flag::CALLBACK | frame_flag::REPLY | error;
    let header = FrameHeader { flags, extension_bytes: 0, ..header };
    Frame::new(header, kept.body.bytes, Bytes::new()).expect("an answer to a callback is small")
}

/// The result that a reply frame carries.
fn decode_result(opcode: Opcode, frame: &Frame) -> Result<FsResult<(Reply, ReplyExtension)>, MessageDecodeError> {
    if frame.header.flags & frame_flag::ERROR != 0 {
        return codec::decode::<FsError>(frame.message()).map(Err);
    }
    let family = opcode.family().ok_or(MessageDecodeError::UnknownOpcode(opcode.0))?;
    Ok(Ok((codec::decode_reply(family, frame.message())?, codec::decode_extension(frame.extension())?)))
}

#[cfg(test)]
#[path = "core_tests.rs"]
mod tests;
