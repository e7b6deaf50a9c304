//! The slots of a session: the last transaction of each, and its reply.

use bytes::Bytes;
use types::{Slot, Xid};

use crate::{codec::Body, message::session::urgent_slots};

/// The slot of pings and of what a client sends to recover its state.
pub const CONTROL_SLOT: Slot = Slot(0);

/// A reply as it went out, kept for copies of its request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeptReply {
    /// The body is an error.
    pub error: bool,
    /// Encoded reply, and what goes with it.
    pub body: Body,
    /// Its bulk data.
    pub bulk: Bytes,
}

/// What is to be done with an arriving request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Arrival {
    /// Execute it; the slot is running now.
    Execute,
    /// Answer it with the kept reply.
    Repeat(KeptReply),
    /// Tell the client that it is being executed.
    Running,
    /// Tell the client to send it again later: the slot still executes a copy of the request
    /// before, to which the client has an answer.
    Busy,
    /// Tell the client that it came too late: it is not executed, now or ever.
    Expired,
    /// Drop it: a late copy, or from an older connection, or from a session that ends.
    Ignore,
    /// The session ended; tell the client that it was evicted.
    Gone,
    /// The client breaks the protocol; drop its connection.
    Violation(&'static str),
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum State {
    /// Nothing runs and nothing is kept; transactions up to `after` are past.
    Free { after: Xid },
    /// Being executed.
    Running { xid: Xid, execution: Execution },
    /// Executed.
    Done { xid: Xid, reply: Option<KeptReply> },
    /// Executed by an earlier start of the server; the handler answers its repetition, however late
    /// that comes.
    Earlier { xid: Xid },
    /// Arrived after its caller had given up: not executed, nor are copies of it that arrive yet.
    Expired { xid: Xid },
}

/// Whether a request that is executed can have been answered before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Execution {
    /// It cannot: its client waits for this execution.
    First,
    /// Its answer, which is not kept, was on its way when a copy of it came. The client may have
    /// got that answer and use the slot for its next request.
    Repeated,
}

/// What no request has come to.
const UNTOUCHED: State = State::Free { after: Xid(0) };

/// All slots of one session. A client uses the lowest free slot, so that one with little to do at a
/// time leaves most of them untouched: memory is for those it has used.
#[derive(Clone, Debug)]
pub struct SlotTable {
    count: u16,
    ordinary: Touched,
    /// The last slots, which are for urgent requests.
    urgent: Touched,
    running: usize,
}

/// Some of the slots, up to the highest that a request has come to; those after are free, and
/// nothing has come to them.
type Touched = Vec<State>;

impl SlotTable {
    /// `count` slots that no transaction has used yet.
    pub fn new(count: u16) -> Self {
        Self { count, ordinary: Touched::new(), urgent: Touched::new(), running: 0 }
    }

    /// Number of slots.
    pub fn len(&self) -> u16 {
        self.count
    }

    /// Whether there are no slots.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Requests being executed.
    pub fn running(&self) -> usize {
        self.running
    }

    /// Whether this request is being executed.
    pub fn is_running(&self, slot: Slot, xid: Xid) -> bool {
        let (urgent, index) = self.place(slot);
        let touched = if urgent { &self.urgent } else { &self.ordinary };
        matches!(touched.get(index), Some(State::Running { xid: running, .. }) if *running == xid)
    }

    /// Whether no request ever arrived.
    pub fn unused(&self) -> bool {
        self.ordinary.iter().chain(&self.urgent).all(|slot| *slot == UNTOUCHED)
    }

    /// The state of a slot, which is touched from now on; `None` if there is no such slot.
    fn touch(&mut self, slot: Slot) -> Option<&mut State> {
        if slot.0 >= self.count {
            return None;
        }
        let (urgent, index) = self.place(slot);
        let touched = if urgent { &mut self.urgent } else { &mut self.ordinary };
        if index >= touched.len() {
            touched.resize(index + 1, UNTOUCHED);
        }
        touched.get_mut(index)
    }

    /// Whether a slot is among the urgent ones, and its index there or among the others.
    fn place(&self, slot: Slot) -> (bool, usize) {
        let first_urgent = self.count.saturating_sub(urgent_slots(self.count));
        match slot.0.checked_sub(first_urgent) {
            Some(index) => (true, index.into()),
            None => (false, slot.0.into()),
        }
    }

    /// Sets what an earlier incarnation of the server remembered of a slot.
    pub fn restore(&mut self, slot: Slot, xid: Xid, reply: KeptReply) {
        self.set(slot, State::Done { xid, reply: Some(reply) });
    }

    /// As [`SlotTable::restore`], of a request whose repetition the handler answers without a
    /// second effect.
    pub fn restore_earlier(&mut self, slot: Slot, xid: Xid) {
        self.set(slot, State::Earlier { xid });
    }

    fn set(&mut self, slot: Slot, state: State) {
        *self.touch(slot).expect("only slots of the session are restored") = state;
    }

    /// A request arrives, in time or after its caller has given up.
    pub fn arrive(&mut self, slot: Slot, xid: Xid, in_time: bool) -> Arrival {
        let Some(state) = self.touch(slot) else {
            return Arrival::Violation("slot out of range");
        };
        match state {
            State::Free { after } if xid <= *after => return Arrival::Ignore,
            State::Running { xid: running, .. } if xid < *running => return Arrival::Ignore,
            State::Running { xid: running, .. } if xid == *running => return Arrival::Running,
            State::Running { execution: Execution::Repeated, .. } => return Arrival::Busy,
            State::Running { .. } => return Arrival::Violation("a new request in a slot whose request is running"),
            State::Done { xid: done, .. } if xid < *done => return Arrival::Ignore,
            State::Done { xid: done, reply: Some(reply) } if xid == *done => return Arrival::Repeat(reply.clone()),
            State::Earlier { xid: earlier } if xid < *earlier => return Arrival::Ignore,
            State::Expired { xid: expired } if xid < *expired => return Arrival::Ignore,
            State::Expired { xid: expired } if xid == *expired => return Arrival::Expired,
            State::Free { .. } | State::Done { .. } | State::Earlier { .. } | State::Expired { .. } => {}
        }
        if !in_time && *state != (State::Earlier { xid }) {
            *state = State::Expired { xid };
            return Arrival::Expired;
        }
        let execution = match state {
            State::Done { xid: done, .. } if *done == xid => Execution::Repeated,
            _ => Execution::First,
        };
        *state = State::Running { xid, execution };
        self.running += 1;
        Arrival::Execute
    }

    /// The running request of `slot` finished.
    pub fn finish(&mut self, slot: Slot, xid: Xid, reply: Option<KeptReply>) {
        self.leave(slot, xid, |_| State::Done { xid, reply });
    }

    /// The running request of `slot` was not executed.
    pub fn withdraw(&mut self, slot: Slot, xid: Xid) {
        self.leave(slot, xid, |execution| match execution {
            Execution::First => State::Free { after: Xid(xid.0.saturating_sub(1)) },
            Execution::Repeated => State::Done { xid, reply: None },
        });
    }

    fn leave(&mut self, slot: Slot, xid: Xid, next: impl FnOnce(Execution) -> State) {
        let state = self.touch(slot).expect("a slot of the session");
        let execution = match state {
            State::Running { xid: running, execution } if *running == xid => *execution,
            other => panic!("only the running request of a slot can end, not {xid:?}: {other:?}"),
        };
        *state = next(execution);
        self.running -= 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SLOT: Slot = Slot(1);

    fn kept(text: &'static str) -> KeptReply {
        KeptReply { error: false, body: Bytes::from_static(text.as_bytes()).into(), bulk: Bytes::new() }
    }

    fn table() -> SlotTable {
        SlotTable::new(2)
    }

    #[test]
    fn a_new_xid_is_executed_and_its_copy_gets_the_kept_reply() {
        let mut table = table();
        assert!(table.unused());
        assert_eq!(table.arrive(SLOT, Xid(1), true), Arrival::Execute);
        assert_eq!(table.running(), 1);
        table.finish(SLOT, Xid(1), Some(kept("one")));
        assert_eq!(table.running(), 0);
        assert_eq!(table.arrive(SLOT, Xid(1), true), Arrival::Repeat(kept("one")));
        assert_eq!(table.running(), 0);
        assert!(!table.unused());
    }

    #[test]
    fn a_copy_of_a_running_request_is_told_so() {
        let mut table = table();
        table.arrive(SLOT, Xid(5), true);
        assert_eq!(table.arrive(SLOT, Xid(5), true), Arrival::Running);
        assert_eq!(table.running(), 1);
    }

    #[test]
    fn late_copies_are_ignored_in_every_state() {
        let mut table = table();
        table.arrive(SLOT, Xid(5), true);
        assert_eq!(table.arrive(SLOT, Xid(4), true), Arrival::Ignore);
        table.finish(SLOT, Xid(5), None);
        assert_eq!(table.arrive(SLOT, Xid(4), true), Arrival::Ignore);
        table.arrive(SLOT, Xid(6), true);
        table.withdraw(SLOT, Xid(6));
        assert_eq!(table.arrive(SLOT, Xid(5), true), Arrival::Ignore);
    }

    #[test]
    fn a_copy_of_a_request_without_kept_reply_is_executed_again() {
        let mut table = table();
        table.arrive(SLOT, Xid(3), true);
        table.finish(SLOT, Xid(3), None);
        assert_eq!(table.arrive(SLOT, Xid(3), true), Arrival::Execute);
    }

    /// A read took longer than the interval after which requests are sent again. Its answer and its
    /// copy passed each other; the client went on to its next request while the copy was executed,
    /// and lost its connection as if it had broken the protocol.
    #[test]
    fn the_next_request_waits_for_a_copy_of_an_answered_read() {
        let mut table = table();
        table.arrive(SLOT, Xid(3), true);
        table.finish(SLOT, Xid(3), None);
        assert_eq!(table.arrive(SLOT, Xid(3), true), Arrival::Execute, "its answer may be lost");
        assert_eq!(table.arrive(SLOT, Xid(4), true), Arrival::Busy);
        assert_eq!(table.arrive(SLOT, Xid(4), false), Arrival::Busy, "its client learns later that it is late");
        assert_eq!(table.running(), 1);
        // The copy is refused; another copy of it is as much of a copy.
        table.withdraw(SLOT, Xid(3));
        assert_eq!(table.arrive(SLOT, Xid(3), true), Arrival::Execute);
        assert_eq!(table.arrive(SLOT, Xid(4), true), Arrival::Busy);
        table.finish(SLOT, Xid(3), None);
        assert_eq!(table.arrive(SLOT, Xid(4), true), Arrival::Execute);
        assert!(matches!(table.arrive(SLOT, Xid(5), true), Arrival::Violation(_)), "nothing answered this one");
    }

    #[test]
    fn a_withdrawn_request_is_executed_when_it_comes_again() {
        let mut table = table();
        table.arrive(SLOT, Xid(3), true);
        table.withdraw(SLOT, Xid(3));
        assert_eq!(table.running(), 0);
        assert_eq!(table.arrive(SLOT, Xid(3), true), Arrival::Execute);
    }

    #[test]
    fn a_slot_carries_one_request_at_a_time() {
        let mut table = table();
        table.arrive(SLOT, Xid(3), true);
        assert!(matches!(table.arrive(SLOT, Xid(4), true), Arrival::Violation(_)));
        assert_eq!(table.arrive(Slot(0), Xid(1), true), Arrival::Execute);
        assert!(matches!(table.arrive(Slot(2), Xid(1), true), Arrival::Violation(_)));
    }

    /// Memory of a server with many clients: 256 slots were 20 KiB for each client that ever said
    /// hello.
    #[test]
    fn a_session_that_uses_few_slots_holds_few() {
        let mut table = SlotTable::new(256);
        assert_eq!((table.len(), table.ordinary.capacity()), (256, 0));
        assert_eq!(table.arrive(Slot(2), Xid(1), true), Arrival::Execute);
        assert_eq!(table.ordinary, [UNTOUCHED, UNTOUCHED, State::Running { xid: Xid(1), execution: Execution::First }]);
        assert!(matches!(table.arrive(Slot(256), Xid(1), true), Arrival::Violation(_)));
        assert_eq!(table.arrive(Slot(255), Xid(1), true), Arrival::Execute);
        assert_eq!((table.len(), table.running()), (256, 2));
        table.finish(Slot(255), Xid(1), None);
        assert_eq!(table.arrive(Slot(254), Xid(0), true), Arrival::Ignore);
    }

    #[test]
    fn xid_zero_is_never_executed() {
        assert_eq!(table().arrive(SLOT, Xid(0), true), Arrival::Ignore);
    }

    #[test]
    fn a_restored_slot_answers_as_before_the_restart() {
        let mut table = table();
        table.restore(SLOT, Xid(7), kept("seven"));
        assert_eq!(table.arrive(SLOT, Xid(7), true), Arrival::Repeat(kept("seven")));
        assert_eq!(table.arrive(SLOT, Xid(6), true), Arrival::Ignore);
        assert_eq!(table.arrive(SLOT, Xid(8), true), Arrival::Execute);
    }

    #[test]
    fn what_an_earlier_start_executed_is_answered_by_its_handler_however_late() {
        for in_time in [true, false] {
            let mut table = table();
            table.restore_earlier(SLOT, Xid(7));
            assert!(!table.unused());
            assert_eq!(table.arrive(SLOT, Xid(6), in_time), Arrival::Ignore);
            assert_eq!(table.arrive(SLOT, Xid(7), in_time), Arrival::Execute);
            assert_eq!(table.running(), 1);
            table.finish(SLOT, Xid(7), Some(kept("seven")));
            assert_eq!(table.arrive(SLOT, Xid(7), false), Arrival::Repeat(kept("seven")));
        }
        let mut table = table();
        table.restore_earlier(SLOT, Xid(7));
        assert_eq!(table.arrive(SLOT, Xid(8), false), Arrival::Expired, "that is another one");
    }

    #[test]
    fn a_late_request_is_not_executed_nor_is_any_copy_of_it() {
        let mut table = table();
        assert_eq!(table.arrive(SLOT, Xid(3), false), Arrival::Expired);
        assert_eq!(table.running(), 0);
        assert!(!table.unused());
        assert_eq!(table.arrive(SLOT, Xid(3), true), Arrival::Expired, "its client was told so");
        assert_eq!(table.arrive(SLOT, Xid(2), true), Arrival::Ignore);
        assert_eq!(table.arrive(SLOT, Xid(4), true), Arrival::Execute);
    }

    #[test]
    fn a_late_copy_learns_what_became_of_its_request() {
        let mut table = table();
        table.arrive(SLOT, Xid(3), true);
        assert_eq!(table.arrive(SLOT, Xid(3), false), Arrival::Running);
        table.finish(SLOT, Xid(3), Some(kept("three")));
        assert_eq!(table.arrive(SLOT, Xid(3), false), Arrival::Repeat(kept("three")));
        table.arrive(SLOT, Xid(4), true);
        table.finish(SLOT, Xid(4), None);
        assert_eq!(table.arrive(SLOT, Xid(4), false), Arrival::Expired, "it changed nothing");
    }
}
