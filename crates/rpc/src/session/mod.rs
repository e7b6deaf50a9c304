//! Sessions, server side: the reason why a call happens exactly once.
//!
//! A [`Session`] is the state that one target keeps for one client. It is a plain state machine: it
//! decides, the server acts. For each slot it knows the last transaction number and its reply:
//!
//! | slot state | xid arrives | what happens |
//! |---|---|---|
//! | any | below the slot's | ignored: a late copy |
//! | done, reply kept | equal | the same reply again |
//! | done, not kept (it changes nothing) | equal | executed again, if in time; else expired |
//! | running | equal | "still running" |
//! | running | above | a violation: a slot carries one request at a time |
//! | running again: a copy, after its answer (not kept) | above | "busy": the client got that answer, and sends this one again later |
//! | expired | equal | "expired" again |
//! | executed by an earlier start, reply not kept here | equal | the handler answers it, however late |
//! | free, done, expired | above | executed, if in time; else expired from then on |
//!
//! Deadlines: a request says when its caller gives up, on this target's clock. A request that
//! arrives later, from the buffers of a server that was stopped or of a network that was cut, is
//! not executed: its caller has been told that it failed, and it must not undo what the caller or
//! others have done since. Requests that have arrived in time are executed, in order of arrival.
//!
//! Connections: each carries a generation. A newer `Connect` ends the older connection at once (its
//! frames are dropped from then on) but is answered only after the requests running on it have
//! finished; so no old request can overtake a new one, and a client that gets the answer knows the
//! outcome of its earlier requests: executed, or never to be executed.
//!
//! Life cycle: [`Phase::Opening`] (the target is told) -> [`Phase::Open`] -> [`Phase::Ending`]
//! (drained, the target is told) -> gone. While a session opens or ends, a `Connect` of the same
//! client waits.
//!
//! Leases: a client that is silent for longer than its lease is evicted, once none of its requests
//! runs. Only what arrives from it counts, not what the server does by itself, for example the end
//! of a request (docs/decisions/0042). Time during which the server itself did not run does not
//! count, and requests that arrived meanwhile are read before any client is evicted (module
//! [`rt::beat`]).
//!
//! A request counts as running from its arrival, also while it waits in the queue of its service. A
//! scheduler that holds requests back does not delay any of this: the server releases what it holds
//! of a client that connects again, of one that was silent for longer than its lease, and of a
//! session that ends (docs/decisions/0041).
//!
//! Downside: a request that runs for a long time delays its client's reconnection. One that may
//! wait for very long ends when that happens ([`SessionCell::left`]).

mod call_back;
mod callbacks;
mod cell;
mod slot;

pub use call_back::CallbackPath;
pub use callbacks::CallbackResult;
pub use cell::{PresentConnection, SessionCell};
pub use slot::{Arrival, CONTROL_SLOT, KeptReply, SlotTable};

use std::time::Duration;

use rt::Instant;
use types::{FsError, Generation, Slot, Xid};

use crate::message::session::Connect;

/// Where a session is in its life cycle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// The target is being told of it.
    Opening,
    /// Requests are executed.
    Open,
    /// It was evicted or closed: no requests begin, those running are waited for, and the client is
    /// told nothing.
    Ending,
    /// The target has been told; the session is forgotten.
    Ended,
}

/// What is to be done with a `Connect`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ConnectPlan {
    /// Open a new session, then plan again.
    Open {
        /// It continues one of an earlier start of this server.
        resumed: bool,
    },
    /// Wait until the present session changes (opened, drained, gone), then plan again.
    Wait,
    /// End the present session as closed by its client, then plan again.
    Replace,
    /// Answer: connected; the flag says whether the client's session continues with its volatile
    /// state.
    Ready {
        /// As in [`crate::message::session::Connected::resumed`].
        resumed: bool,
    },
    /// Answer with this error: `Evicted` if the client's session is gone, `Busy` if the connection
    /// was overtaken.
    Refuse(FsError),
}

/// Which sessions that are not there any more a target lets a client continue with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resumable {
    /// None: the client was evicted.
    None,
    /// Those of earlier starts.
    OfEarlierStarts,
    /// Also one of this start, whose lease ran out: nothing was lost with it that its stored
    /// replies do not restore.
    All,
}

/// State of one client at one target.
#[derive(Debug)]
pub struct Session {
    phase: Phase,
    generation: Generation,
    slots: SlotTable,
    last_activity: Instant,
    /// It continues a session of an earlier incarnation.
    continued: bool,
    /// In-process clients live as long as the server: they need no lease.
    pinned: bool,
    /// A newer connection waits for the requests that run.
    delays_connection: bool,
}

impl Session {
    /// A session that begins with a connection of this generation; it is in [`Phase::Opening`].
    pub fn new(now: Instant, generation: Generation, slots: SlotTable, continued: bool) -> Self {
        Self {
            phase: Phase::Opening,
            generation,
            slots,
            last_activity: now,
            continued,
            pinned: false,
            delays_connection: false,
        }
    }

    /// Where it is in its life cycle.
    pub fn phase(&self) -> Phase {
        self.phase
    }

    /// Generation of the newest connection.
    pub fn generation(&self) -> Generation {
        self.generation
    }

    /// Time of the last sign of life.
    pub fn last_activity(&self) -> Instant {
        self.last_activity
    }

    /// Requests being executed, and those that wait for their execution.
    pub fn running(&self) -> usize {
        self.slots.running()
    }

    /// Says whether the session is exempt from its lease.
    pub fn pin(&mut self, now: Instant, pinned: bool) {
        self.pinned = pinned;
        self.last_activity = now;
    }

    /// The target has been told: requests may come.
    pub fn opened(&mut self) {
        assert_eq!(self.phase, Phase::Opening, "a session opens once");
        self.phase = Phase::Open;
    }

    /// Starts the session's end. False if it is already ending (or is still opening): another task
    /// handles it.
    pub fn end(&mut self) -> bool {
        let begins = self.phase == Phase::Open;
        if begins {
            self.phase = Phase::Ending;
        }
        begins
    }

    /// The target has been told of the end.
    pub fn ended(&mut self) {
        assert_eq!(self.phase, Phase::Ending, "a session ends once");
        self.phase = Phase::Ended;
    }

    /// Whether the lease has run out. A session that executes a request is left alone until it has
    /// finished.
    pub fn expired(&self, now: Instant, lease: Duration) -> bool {
        self.running() == 0 && self.silent(now, lease)
    }

    /// Whether the client has been silent for longer than its lease. Its requests may be running,
    /// or wait in the queue of a service.
    pub fn silent(&self, now: Instant, lease: Duration) -> bool {
        self.phase == Phase::Open && !self.pinned && now.since(self.last_activity) > lease
    }

    /// Whether the session's end, or a newer connection, waits for the requests that run.
    pub fn is_waited_for(&self) -> bool {
        matches!(self.phase, Phase::Ending | Phase::Ended) || self.delays_connection
    }

    /// Whether a scheduler may hold back a request that arrived on the connection of `generation`.
    /// If not, the session's end or a newer connection waits for it.
    pub fn may_hold_back(&self, generation: Generation) -> bool {
        self.phase == Phase::Open && self.generation == generation
    }

    /// When the lease runs out; `None` while the session needs none.
    pub fn lease_end(&self, lease: Duration) -> Option<Instant> {
        (!self.pinned).then(|| self.last_activity + lease)
    }

    /// The server did not run for so long: the client could not show that it lives.
    pub fn excuse(&mut self, now: Instant, stalled: Duration) {
        self.last_activity = now.min(self.last_activity + stalled);
    }

    /// A request arrives on the connection of `generation`. After its deadline its caller may have
    /// been told that it failed, and have gone on.
    pub fn arrive(
        &mut self,
        now: Instant,
        generation: Generation,
        slot: Slot,
        xid: Xid,
        deadline: Option<Instant>,
    ) -> Arrival {
        match self.phase {
            Phase::Open => {}
            // Some of its requests may still run: nobody is told that the session is gone before
            // the last of them has ended. The end of the connection tells, or a later copy.
            Phase::Ending => return Arrival::Ignore,
            Phase::Opening | Phase::Ended => return Arrival::Gone,
        }
        if generation != self.generation {
            return Arrival::Ignore;
        }
        self.last_activity = now;
        self.slots.arrive(slot, xid, deadline.is_none_or(|deadline| now <= deadline))
    }

    /// A request finished; `reply` is what to answer copies of it with (`None`: execute them
    /// again). Returns whether this was the last one running. It is no sign of life: a client that
    /// waits for an answer pings, and one that died meanwhile must not get another lease.
    pub fn finish(&mut self, slot: Slot, xid: Xid, reply: Option<KeptReply>) -> bool {
        self.slots.finish(slot, xid, reply);
        self.running() == 0
    }

    /// A request that arrived will not be executed after all; its client sends it again. Returns
    /// whether this was the last one running.
    pub fn withdraw(&mut self, slot: Slot, xid: Xid) -> bool {
        self.slots.withdraw(slot, xid);
        self.running() == 0
    }

    /// Whether this request is being executed.
    pub fn is_running(&self, slot: Slot, xid: Xid) -> bool {
        self.slots.is_running(slot, xid)
    }

    /// Number of slots.
    pub fn slots(&self) -> u16 {
        self.slots.len()
    }
}

/// Decides about a `Connect`, and notes its generation in the session. Called again after each step
/// it asks for, so it must give the same connection the same answer until something changed.
pub fn plan_connect(
    session: Option<&mut Session>,
    now: Instant,
    connect: &Connect,
    incarnation: u64,
    resumable: Resumable,
) -> ConnectPlan {
    let Some(session) = session else {
        return match connect.resume {
            false => ConnectPlan::Open { resumed: false },
            true => {
                let is_earlier = connect.incarnation != incarnation;
                match resumable {
                    Resumable::All => ConnectPlan::Open { resumed: true },
                    Resumable::OfEarlierStarts if is_earlier => ConnectPlan::Open { resumed: true },
                    Resumable::OfEarlierStarts | Resumable::None => ConnectPlan::Refuse(FsError::Evicted),
                }
            }
        };
    };
    if connect.connection < session.generation {
        return ConnectPlan::Refuse(FsError::Busy);
    }
    let news = connect.connection > session.generation;
    session.generation = connect.connection;
    session.last_activity = now;
    if session.phase != Phase::Open {
        return ConnectPlan::Wait;
    }
    let unused = session.slots.unused() && !session.continued;
    if !connect.resume && news && !unused {
        return ConnectPlan::Replace;
    }
    session.delays_connection = session.running() > 0;
    if session.delays_connection {
        return ConnectPlan::Wait;
    }
    ConnectPlan::Ready { resumed: connect.resume && connect.incarnation == incarnation }
}

#[cfg(test)]
mod tests;
