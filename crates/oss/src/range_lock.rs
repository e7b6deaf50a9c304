//! Order among operations on one object: locks on ranges of blocks, granted in order of arrival.
//!
//! A request waits for every earlier request whose range overlaps, unless both are shared. So two
//! writes never mix, a read sees a write whole or not at all, no request starves, and requests on
//! different blocks or objects run in parallel. The lock only orders; updates of records are atomic
//! because of the store's mutex.
//!
//! Life cycle: `lock` queues at once (the order is that of the calls), the returned future waits,
//! the guard unlocks when dropped; a future dropped while it waits leaves the queue. Downside:
//! releasing is quadratic in the number of requests on one object, which service threads bound.

use std::{collections::BTreeMap, ops::Range};

use parking_lot::Mutex;
use tokio::sync::oneshot;
use types::ObjectId;

/// All range locks of a store.
#[derive(Default)]
pub struct RangeLocks {
    objects: Mutex<BTreeMap<ObjectId, Queue>>,
}

#[derive(Default)]
struct Queue {
    next_ticket: u64,
    requests: BTreeMap<u64, Request>,
}

struct Request {
    blocks: Range<u64>,
    exclusive: bool,
    /// `None` once granted.
    waiter: Option<oneshot::Sender<()>>,
}

impl Request {
    fn conflicts(&self, other: &Request) -> bool {
        (self.exclusive || other.exclusive)
            && self.blocks.start < other.blocks.end
            && other.blocks.start < self.blocks.end
    }
}

/// A held (or awaited) lock; dropping it unlocks.
#[must_use = "dropping the guard unlocks"]
pub struct RangeGuard<'a> {
    locks: &'a RangeLocks,
    object: ObjectId,
    ticket: u64,
}

impl RangeLocks {
    /// Locks blocks for reading.
    pub fn shared(&self, object: ObjectId, blocks: Range<u64>) -> impl Future<Output = RangeGuard<'_>> + Send {
        self.lock(object, blocks, false)
    }

    /// Locks blocks for changing them.
    pub fn exclusive(&self, object: ObjectId, blocks: Range<u64>) -> impl Future<Output = RangeGuard<'_>> + Send {
        self.lock(object, blocks, true)
    }

    fn lock(
        &self,
        object: ObjectId,
        blocks: Range<u64>,
        exclusive: bool,
    ) -> impl Future<Output = RangeGuard<'_>> + Send {
        let (waiter, granted) = oneshot::channel();
        let mut objects = self.objects.lock();
        let queue = objects.entry(object).or_default();
        let ticket = queue.next_ticket;
        queue.next_ticket += 1;
        assert!(
            queue.requests.last_key_value().is_none_or(|(last, _)| *last < ticket),
            "a request is the last in its queue"
        );
        let mut request = Request { blocks, exclusive, waiter: None };
        let wait = queue.requests.values().any(|earlier| request.conflicts(earlier));
        request.waiter = wait.then_some(waiter);
        queue.requests.insert(ticket, request);
        drop(objects);
        let guard = RangeGuard { locks: self, object, ticket };
        async move {
            if wait {
                granted.await.expect("a request keeps its sender until it is granted or its guard is dropped");
            }
            guard
        }
    }

    /// Number of objects with locks, for tests and parameters.
    pub fn objects(&self) -> usize {
        self.objects.lock().len()
    }
}

impl Queue {
    /// Grants every request that no longer conflicts with an earlier one.
    fn grant(&mut self) {
        let tickets: Vec<u64> =
            self.requests.iter().filter(|(_, request)| request.waiter.is_some()).map(|(ticket, _)| *ticket).collect();
        for ticket in tickets {
            let request = &self.requests[&ticket];
            if self.requests.range(..ticket).any(|(_, earlier)| request.conflicts(earlier)) {
                continue;
            }
            if let Some(waiter) = self.requests.get_mut(&ticket).and_then(|request| request.waiter.take()) {
                // A receiver that is gone belongs to a guard about to be dropped, which unlocks
                // again.
                let _ = waiter.send(());
            }
        }
        let first = self.requests.values().next();
        assert!(first.is_none_or(|first| first.waiter.is_none()), "the first request of a queue waits for nothing");
    }
}

impl Drop for RangeGuard<'_> {
    fn drop(&mut self) {
        let mut objects = self.locks.objects.lock();
        let queue = objects.get_mut(&self.object).expect("the object of a lock has a queue");
        let request = queue.requests.remove(&self.ticket);
        assert!(request.is_some(), "a lock that is released was held or awaited");
        if queue.requests.is_empty() {
            objects.remove(&self.object);
        } else {
            queue.grant();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{
        pin::pin,
        task::{Context, Poll, Waker},
    };

    use super::*;

    const OBJECT: ObjectId = ObjectId::new(types::InodeNumber(1), 0);

    fn poll<T>(future: std::pin::Pin<&mut impl Future<Output = T>>) -> Option<T> {
        match future.poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(value) => Some(value),
            Poll::Pending => None,
        }
    }

    #[test]
    fn overlapping_changes_wait_in_order_and_others_do_not() {
        let locks = RangeLocks::default();
        let first = poll(pin!(locks.exclusive(OBJECT, 0..10))).unwrap();
        let mut second = pin!(locks.exclusive(OBJECT, 5..15));
        assert!(poll(second.as_mut()).is_none());
        let apart = poll(pin!(locks.exclusive(OBJECT, 15..20))).expect("nothing overlaps");
        let mut third = pin!(locks.exclusive(OBJECT, 12..13));
        assert!(poll(third.as_mut()).is_none(), "must not overtake the second");
        drop(first);
        let second = poll(second.as_mut()).expect("granted");
        assert!(poll(third.as_mut()).is_none());
        drop(second);
        let third = poll(third.as_mut()).expect("granted");
        drop((third, apart));
        assert_eq!(locks.objects(), 0, "nothing is left behind");
    }

    #[test]
    fn readers_share_and_do_not_starve_a_writer() {
        let locks = RangeLocks::default();
        let one = poll(pin!(locks.shared(OBJECT, 0..1))).unwrap();
        let two = poll(pin!(locks.shared(OBJECT, 0..1))).unwrap();
        let mut writer = pin!(locks.exclusive(OBJECT, 0..1));
        assert!(poll(writer.as_mut()).is_none());
        let mut late = pin!(locks.shared(OBJECT, 0..1));
        assert!(poll(late.as_mut()).is_none(), "a reader waits for an earlier writer that waits");
        drop((one, two));
        let writer = poll(writer.as_mut()).expect("granted");
        assert!(poll(late.as_mut()).is_none());
        drop(writer);
        assert!(poll(late.as_mut()).is_some());
    }

    #[test]
    fn a_waiter_that_gives_up_lets_the_next_one_through() {
        let locks = RangeLocks::default();
        let held = poll(pin!(locks.shared(OBJECT, 0..4))).unwrap();
        let mut next = {
            let mut gives_up = Box::pin(locks.exclusive(OBJECT, 0..4));
            assert!(poll(gives_up.as_mut()).is_none());
            let mut next = Box::pin(locks.shared(OBJECT, 0..4));
            assert!(poll(next.as_mut()).is_none());
            next
        };
        assert!(poll(next.as_mut()).is_some(), "shared with the first");
        drop((next, held));
        assert_eq!(locks.objects(), 0);
    }
}
