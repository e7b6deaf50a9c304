//! Changes of data that arrived in time and are still in progress after their deadlines, for
//! example because a device hangs or the process was stopped: their callers may have given up and
//! continued.
//!
//! A client that then asks for an object's size may report it to the MDT as final; a client that
//! reads does not expect the data to change afterwards; and a client that changes the object does
//! not expect the older change to take effect later. The older change could do so from any point of
//! its handler, even before it has locked its range. So such requests are executed only after all
//! changes of their objects that are overdue at their arrival have ended. Other changes are not
//! waited for: a change whose deadline has not passed has a caller that waits for it.
//!
//! A waiting request holds no service thread, and on a connection no slot for longer than
//! [`WAIT_MAX`]: then its client is told to come back. An overdue change arrived before the
//! requests that wait for it, and the requests that it waits for arrived still earlier, so there is
//! no deadlock.
//!
//! Life cycle: a change is noted from its arrival until its handler has answered. If a copy of it
//! arrives meanwhile, its caller waits until the copy's deadline.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use parking_lot::Mutex;
use rt::Instant;
use tokio::sync::Notify;
use types::{ClientId, ObjectId, Slot, Xid};

use crate::message::Request;

/// Longest wait of a request that came through a connection.
pub(super) const WAIT_MAX: Duration = Duration::from_secs(2);

/// What the copies of a request have in common.
pub(super) type Origin = (ClientId, Slot, Xid);

/// Number of a noted change, which tells it from others.
pub(super) type Number = u64;

/// Changes of data in progress that have deadlines, of one target.
#[derive(Default)]
pub(super) struct Overdue {
    table: Mutex<Table>,
    ended: Notify,
}

#[derive(Default)]
struct Table {
    changes: BTreeMap<Number, Noted>,
    /// The same in the order of their deadlines.
    deadlines: BTreeSet<(Instant, Number)>,
    number_next: Number,
}

struct Noted {
    deadline: Instant,
    object: ObjectId,
    origin: Origin,
}

/// A change in progress.
pub(super) struct Change<'a> {
    overdue: &'a Overdue,
    number: Number,
}

impl Drop for Change<'_> {
    fn drop(&mut self) {
        let table = &mut *self.overdue.table.lock();
        if let Some(noted) = table.changes.remove(&self.number) {
            table.deadlines.remove(&(noted.deadline, self.number));
        }
        self.overdue.ended.notify_waiters();
    }
}

impl Overdue {
    /// Notes a request, if it changes data and has a deadline.
    pub(super) fn note(&self, request: &Request, origin: Origin, deadline: Option<Instant>) -> Option<Change<'_>> {
        let (object, deadline) = (request.row().changed_object()?, deadline?);
        let table = &mut *self.table.lock();
        let number = table.number_next;
        table.number_next += 1;
        table.changes.insert(number, Noted { deadline, object, origin });
        table.deadlines.insert((deadline, number));
        Some(Change { overdue: self, number })
    }

    /// A copy of a request in progress arrived: its caller waits until this deadline at least.
    pub(super) fn extend(&self, origin: Origin, deadline: Instant) {
        let table = &mut *self.table.lock();
        for (number, noted) in &mut table.changes {
            if noted.origin == origin && noted.deadline < deadline {
                table.deadlines.remove(&(noted.deadline, *number));
                table.deadlines.insert((deadline, *number));
                noted.deadline = deadline;
            }
        }
    }

    /// What is overdue at `now` and must end before this request is executed.
    pub(super) fn before(&self, request: &Request, now: Instant) -> Vec<Number> {
        let (table, data) = (self.table.lock(), request.row().data);
        let overdue = table.deadlines.range(..(now, 0)).map(|(_, number)| *number);
        overdue.filter(|number| data.concerns(table.changes[number].object)).collect()
    }

    /// Waits until these have ended.
    pub(super) async fn ended(&self, numbers: &[Number]) {
        if numbers.is_empty() {
            return;
        }
        loop {
            let mut ended = std::pin::pin!(self.ended.notified());
            ended.as_mut().enable();
            {
                let table = self.table.lock();
                if !numbers.iter().any(|number| table.changes.contains_key(number)) {
                    return;
                }
            }
            ended.await;
        }
    }
}

#[cfg(test)]
mod tests {
    use types::Owner;

    use types::InodeNumber;

    use super::*;
    use crate::message::{
        OstRequest,
        ost::{Read, SpaceChange},
    };

    const DEADLINE: Instant = Instant(5);
    const LATER: Instant = Instant(6);
    const ORIGIN: Origin = (ClientId(1), Slot(2), Xid(3));

    fn object(number: u64) -> ObjectId {
        ObjectId::new(InodeNumber(number), 0)
    }

    fn truncation(number: u64) -> Request {
        Request::Ost(OstRequest::Space(object(number), SpaceChange::Truncate { size: 0 }, 0, Owner::default()))
    }

    fn look(numbers: &[u64]) -> Request {
        Request::Ost(OstRequest::Glimpse(numbers.iter().map(|number| object(*number)).collect()))
    }

    #[tokio::test]
    async fn changes_and_looks_wait_for_what_is_overdue_on_their_objects() {
        let overdue = Overdue::default();
        let change = overdue.note(&truncation(1), ORIGIN, Some(DEADLINE)).expect("it changes data");
        let _in_time = overdue.note(&truncation(1), ORIGIN, Some(Instant(1000)));
        assert!(overdue.before(&truncation(1), DEADLINE).is_empty(), "its caller still waits for it");
        assert_eq!(overdue.before(&truncation(1), LATER).len(), 1);
        assert_eq!(overdue.before(&look(&[2, 1]), LATER).len(), 1);
        let read = |number| Read { object: object(number), offset: 0, bytes: 4096, layout_generation: 0 };
        assert_eq!(overdue.before(&Request::Ost(OstRequest::Read(read(1))), LATER).len(), 1, "the lab's seed 120");
        assert!(overdue.before(&Request::Ost(OstRequest::Read(read(2))), LATER).is_empty());
        assert_eq!(overdue.before(&Request::Ost(OstRequest::Seek(object(1), 0, true)), LATER).len(), 1);
        for other in [truncation(2), look(&[2]), Request::Ost(OstRequest::Ping)] {
            assert!(overdue.before(&other, LATER).is_empty(), "{other:?}");
        }
        let keys = overdue.before(&look(&[1]), LATER);
        let mut waiting = Box::pin(overdue.ended(&keys));
        let mut context = std::task::Context::from_waker(std::task::Waker::noop());
        assert!(waiting.as_mut().poll(&mut context).is_pending());
        drop(change);
        waiting.await;
    }

    #[test]
    fn nothing_is_overdue_whose_caller_asks_again() {
        let overdue = Overdue::default();
        let _change = overdue.note(&truncation(1), ORIGIN, Some(DEADLINE));
        overdue.extend((ClientId(1), Slot(2), Xid(4)), Instant(100));
        assert_eq!(overdue.before(&truncation(1), LATER).len(), 1, "that was a copy of another request");
        overdue.extend(ORIGIN, Instant(100));
        assert!(overdue.before(&truncation(1), LATER).is_empty());
        overdue.extend(ORIGIN, DEADLINE);
        assert!(overdue.before(&truncation(1), LATER).is_empty(), "an older copy, which was overtaken");
        assert_eq!(overdue.before(&truncation(1), Instant(101)).len(), 1);
    }

    #[test]
    fn what_changes_nothing_or_has_no_deadline_is_not_noted() {
        let overdue = Overdue::default();
        assert!(overdue.note(&truncation(1), ORIGIN, None).is_none());
        assert!(overdue.note(&look(&[1]), ORIGIN, Some(DEADLINE)).is_none());
    }
}
