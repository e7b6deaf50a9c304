//! Statistics of an import.

use std::time::Duration;

use types::Lsn;

use super::core::Purpose;
use crate::{
    codec::opcode::Opcode,
    histogram::Histogram,
    message::{ReplyExtension, kind::RequestKind},
};

/// Calls of one kind of request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpcodeStatistics {
    /// Name of the request, as `mdt_create`.
    pub name: &'static str,
    /// Calls answered.
    pub calls: u64,
    /// Of these, with an error.
    pub errors: u64,
    /// Time from call to reply.
    pub time: Histogram,
}

/// Calls of an import.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ImportStatistics {
    /// Per kind of request that was called, in order of opcodes.
    pub opcodes: Vec<OpcodeStatistics>,
    /// Slots in use now: requests outstanding, and those whose callers gave up but whose outcome is
    /// not known yet.
    pub in_flight: usize,
    /// Requests sent again.
    pub resent: u64,
    /// Requests refused by a full queue of the server.
    pub busy: u64,
    /// Successful connections, the first included.
    pub connections: u64,
    /// Evictions suffered.
    pub evictions: u64,
    /// The last change that the target acknowledged: its place in the target's journal.
    pub last_change: Lsn,
    /// Changes up to this one survive a power loss of the target.
    pub committed: Lsn,
}

#[derive(Clone, Copy, Default)]
struct Counts {
    errors: u64,
    time: Histogram,
}

/// Counters of an import. Those of a request exist from its first answer on.
pub(super) struct Counters {
    /// Of all requests but those of the control slot, never reset.
    answered: u64,
    busy_ns: u64,
    opcodes: [Option<Box<Counts>>; RequestKind::COUNT],
    pub(super) resent: u64,
    pub(super) busy: u64,
    pub(super) connections: u64,
    pub(super) evictions: u64,
    last_change: Lsn,
    committed: Lsn,
}

impl Counters {
    pub(super) fn new() -> Self {
        Self {
            answered: 0,
            busy_ns: 0,
            opcodes: [const { None }; RequestKind::COUNT],
            resent: 0,
            busy: 0,
            connections: 0,
            evictions: 0,
            last_change: Lsn(0),
            committed: Lsn(0),
        }
    }

    /// Notes what the target says of its changes.
    pub(super) fn acknowledged(&mut self, extension: &ReplyExtension) {
        let change = extension.change.as_ref().map_or(Lsn(0), |change| change.lsn);
        self.last_change = self.last_change.max(change);
        self.committed = self.committed.max(extension.committed);
    }

    /// Counts an answered call: the time since its beginning, and since its request was sent. Pings
    /// and what a recovery asks are no work of the programs, and wait for no turn.
    pub(super) fn answered(&mut self, (opcode, purpose): (Opcode, Purpose), time: Duration, since_sent: Duration) {
        if !purpose.is_control() {
            self.answered += 1;
            self.busy_ns = self.busy_ns.saturating_add(since_sent.as_nanos() as u64);
        }
        if let Some(kind) = opcode.kind() {
            self.opcodes[kind.index()].get_or_insert_default().time.record(time);
        }
    }

    /// Counts an answer that was an error.
    pub(super) fn failed(&mut self, opcode: Opcode) {
        if let Some(kind) = opcode.kind() {
            self.opcodes[kind.index()].get_or_insert_default().errors += 1;
        }
    }

    /// Answered calls that tuners count, and the sum of the times since their requests were sent,
    /// in nanoseconds.
    pub(super) fn work(&self) -> (u64, u64) {
        (self.answered, self.busy_ns)
    }

    pub(super) fn snapshot(&self, in_flight: usize) -> ImportStatistics {
        let named = |(kind, counts): (RequestKind, &Option<Box<Counts>>)| {
            let counts = counts.as_ref()?;
            let calls = counts.time.count;
            Some(OpcodeStatistics { name: kind.row().name, calls, errors: counts.errors, time: counts.time })
        };
        ImportStatistics {
            opcodes: RequestKind::all().zip(&self.opcodes).filter_map(named).collect(),
            in_flight,
            resent: self.resent,
            busy: self.busy,
            connections: self.connections,
            evictions: self.evictions,
            last_change: self.last_change,
            committed: self.committed,
        }
    }
}
