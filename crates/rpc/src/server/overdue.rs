//! Changes of data that arrived in time and are still under way after their deadlines, on a device that hangs, say, or because the
//! process was stopped: their callers may have given up and gone on.
//!
//! Who asks for an object's size then may tell it to the MDT as final, and who changes the object does not expect that the older
//! change comes afterwards, as it could from wherever in its handler it hangs. So such requests are executed only after all
//! changes of their objects that are overdue when they arrive have ended. Nothing waits otherwise: a change whose deadline is to
//! come has a caller who waits for it.
//!
//! No deadlock: what is overdue arrived before those that wait for it. It holds its service thread, or gets it before they do
//! if they are of one service (first come, first served), and what it waits for itself arrived still earlier.
//!
//! Life cycle: a change is noted from its arrival until its handler has answered.

use std::{
    collections::BTreeMap,
    sync::atomic::{AtomicU64, Ordering},
};

use parking_lot::Mutex;
use rt::Instant;
use tokio::sync::Notify;
use types::ObjectId;

use crate::message::{MdtRequest, OstRequest, Request};

/// Names a change: its deadline, and a number that tells it from others.
type Key = (Instant, u64);

/// Changes of data under way that have deadlines, of one target.
#[derive(Default)]
pub(super) struct Overdue {
    changes: Mutex<BTreeMap<Key, ObjectId>>,
    number_next: AtomicU64,
    ended: Notify,
}

/// A change under way.
pub(super) struct Change<'a> {
    overdue: &'a Overdue,
    key: Key,
}

impl Drop for Change<'_> {
    fn drop(&mut self) {
        self.overdue.changes.lock().remove(&self.key);
        self.overdue.ended.notify_waiters();
    }
}

impl Overdue {
    /// Notes a request, if it changes data and has a deadline.
    pub(super) fn note(&self, request: &Request, deadline: Option<Instant>) -> Option<Change<'_>> {
        let (object, deadline) = (changed_object(request)?, deadline?);
        let key = (deadline, self.number_next.fetch_add(1, Ordering::Relaxed));
        self.changes.lock().insert(key, object);
        Some(Change { overdue: self, key })
    }

    /// What is overdue at `now` and must end before this request is executed.
    pub(super) fn before(&self, request: &Request, now: Instant) -> Vec<Key> {
        let changes = self.changes.lock();
        let overdue = changes.range(..(now, 0));
        overdue.filter(|(_, object)| concerns(request, **object)).map(|(key, _)| *key).collect()
    }

    /// Waits until these have ended.
    pub(super) async fn ended(&self, keys: &[Key]) {
        if keys.is_empty() {
            return;
        }
        loop {
            let mut ended = std::pin::pin!(self.ended.notified());
            ended.as_mut().enable();
            {
                let changes = self.changes.lock();
                if !keys.iter().any(|key| changes.contains_key(key)) {
                    return;
                }
            }
            ended.await;
        }
    }
}

fn changed_object(request: &Request) -> Option<ObjectId> {
    let (Request::Ost(change) | Request::Mdt(MdtRequest::ChangeData(change))) = request else { return None };
    match change {
        OstRequest::Write(write) => Some(write.object),
        OstRequest::Space(object, ..) => Some(*object),
        _ => None,
    }
}

/// Whether a request changes this object or asks for its size.
fn concerns(request: &Request, object: ObjectId) -> bool {
    match request {
        Request::Ost(OstRequest::Glimpse(objects))
        | Request::Mdt(MdtRequest::ReadData(OstRequest::Glimpse(objects))) => objects.contains(&object),
        request => changed_object(request) == Some(object),
    }
}

#[cfg(test)]
mod tests {
    use types::InodeNumber;

    use super::*;
    use crate::message::ost::SpaceChange;

    const DEADLINE: Instant = Instant(5);
    const LATER: Instant = Instant(6);

    fn object(number: u64) -> ObjectId {
        ObjectId { inode: InodeNumber(number), slot: 0 }
    }

    fn truncation(number: u64) -> Request {
        Request::Ost(OstRequest::Space(object(number), SpaceChange::Truncate { size: 0 }, 0))
    }

    fn look(numbers: &[u64]) -> Request {
        Request::Ost(OstRequest::Glimpse(numbers.iter().map(|number| object(*number)).collect()))
    }

    #[tokio::test]
    async fn changes_and_looks_wait_for_what_is_overdue_on_their_objects() {
        let overdue = Overdue::default();
        let change = overdue.note(&truncation(1), Some(DEADLINE)).expect("it changes data");
        let _in_time = overdue.note(&truncation(1), Some(Instant(1000)));
        assert!(overdue.before(&truncation(1), DEADLINE).is_empty(), "its caller still waits for it");
        assert_eq!(overdue.before(&truncation(1), LATER).len(), 1);
        assert_eq!(overdue.before(&look(&[2, 1]), LATER).len(), 1);
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
    fn what_changes_nothing_or_has_no_deadline_is_not_noted() {
        let overdue = Overdue::default();
        assert!(overdue.note(&truncation(1), None).is_none());
        assert!(overdue.note(&look(&[1]), Some(DEADLINE)).is_none());
    }
}
