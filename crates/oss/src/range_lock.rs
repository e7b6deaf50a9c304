//! Order among operations on one object: locks on ranges of blocks, granted in order of arrival.
//!
//! A request waits for every earlier request whose range overlaps, unless both are shared. So two
//! writes never mix, a read sees a write whole or not at all, no request starves, and requests on
//! different blocks or objects run in parallel. The lock only orders; updates of records are atomic
//! because of the store's mutex.
//!
//! Life cycle: `lock` queues at once (the order is that of the calls), the returned future waits,
//! the guard unlocks when dropped; a future dropped while it waits leaves the queue.
//!
//! Downside: queueing and releasing take time in proportion to the number of requests on the
//! object. A request that waits need not hold a service thread, but only the first
//! [`THREADLESS_MAX`] of an object are told so, and the service threads bound the others.

use std::{
    collections::BTreeMap,
    ops::{Bound, Range},
    pin::Pin,
    task::{Context, Poll, ready},
};

use parking_lot::Mutex;
use tokio::sync::oneshot;
use types::ObjectId;

/// Requests on one object that may wait without a service thread: comparing a range with those of
/// so many takes about a microsecond.
pub const THREADLESS_MAX: usize = 256;

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
    /// Earlier requests that this one conflicts with; it is granted at 0.
    conflicts: usize,
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

/// A lock that was asked for; dropping it gives it up.
#[must_use = "dropping a request gives it up"]
pub struct RangeRequest<'a> {
    /// `None` once granted.
    guard: Option<RangeGuard<'a>>,
    granted: oneshot::Receiver<()>,
    waits: bool,
    /// Of earlier requests on the object.
    earlier: usize,
}

impl RangeRequest<'_> {
    /// Whether other requests have to end first, and few enough wait already that this one needs
    /// no service thread meanwhile.
    pub fn waits_without_thread(&self) -> bool {
        self.waits && self.earlier < THREADLESS_MAX
    }
}

impl<'a> Future for RangeRequest<'a> {
    type Output = RangeGuard<'a>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<RangeGuard<'a>> {
        if self.waits {
            let granted = ready!(Pin::new(&mut self.granted).poll(context));
            granted.expect("a request keeps its sender until it is granted or its guard is dropped");
        }
        Poll::Ready(self.guard.take().expect("a request is not polled after it was granted"))
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
    pub fn shared(&self, object: ObjectId, blocks: Range<u64>) -> RangeRequest<'_> {
        self.lock(object, blocks, false)
    }

    /// Locks blocks for changing them.
    pub fn exclusive(&self, object: ObjectId, blocks: Range<u64>) -> RangeRequest<'_> {
        self.lock(object, blocks, true)
    }

    fn lock(&self, object: ObjectId, blocks: Range<u64>, exclusive: bool) -> RangeRequest<'_> {
        let (waiter, granted) = oneshot::channel();
        let mut objects = self.objects.lock();
        let queue = objects.entry(object).or_default();
        let ticket = queue.next_ticket;
        queue.next_ticket += 1;
        assert!(
            queue.requests.last_key_value().is_none_or(|(last, _)| *last < ticket),
            "a request is the last in its queue"
        );
        let earlier = queue.requests.len();
        let mut request = Request { blocks, exclusive, conflicts: 0, waiter: None };
        request.conflicts = queue.requests.values().filter(|earlier| request.conflicts(earlier)).count();
        let waits = request.conflicts > 0;
        request.waiter = waits.then_some(waiter);
        queue.requests.insert(ticket, request);
        drop(objects);
        let guard = Some(RangeGuard { locks: self, object, ticket });
        RangeRequest { guard, granted, waits, earlier }
    }

    /// Number of objects with locks, for tests and parameters.
    pub fn objects(&self) -> usize {
        self.objects.lock().len()
    }
}

impl Queue {
    /// Removes a request, and grants those that waited for it alone.
    fn remove(&mut self, ticket: u64) {
        let removed = self.requests.remove(&ticket).expect("a lock that is released was held or awaited");
        let later = self.requests.range_mut((Bound::Excluded(ticket), Bound::Unbounded));
        for (_, request) in later.filter(|(_, request)| request.conflicts(&removed)) {
            request.conflicts -= 1;
            if request.conflicts > 0 {
                continue;
            }
            let waiter = request.waiter.take().expect("a request with conflicts waits");
            // A receiver that is gone belongs to a guard about to be dropped, which unlocks again.
            let _ = waiter.send(());
        }
        let first = self.requests.values().next();
        assert!(first.is_none_or(|first| first.waiter.is_none()), "the first request of a queue waits for nothing");
    }
}

impl Drop for RangeGuard<'_> {
    fn drop(&mut self) {
        let mut objects = self.locks.objects.lock();
        let queue = objects.get_mut(&self.object).expect("the object of a lock has a queue");
        queue.remove(self.ticket);
        if queue.requests.is_empty() {
            objects.remove(&self.object);
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

    #[test]
    fn a_request_waits_for_each_earlier_one_that_it_overlaps() {
        let locks = RangeLocks::default();
        let one = poll(pin!(locks.exclusive(OBJECT, 0..4))).unwrap();
        let two = poll(pin!(locks.exclusive(OBJECT, 4..8))).unwrap();
        let mut both = pin!(locks.exclusive(OBJECT, 0..8));
        let mut after = pin!(locks.shared(OBJECT, 7..8));
        drop(two);
        assert!(poll(both.as_mut()).is_none(), "the first is held");
        assert!(poll(after.as_mut()).is_none(), "not before the one that waits");
        drop(one);
        drop(poll(both.as_mut()).expect("granted"));
        assert!(poll(after.as_mut()).is_some());
    }

    #[test]
    fn only_so_many_of_an_object_wait_without_a_service_thread() {
        let locks = RangeLocks::default();
        let first = locks.exclusive(OBJECT, 0..1);
        assert!(!first.waits_without_thread(), "it does not wait");
        let waiting: Vec<_> = (1..THREADLESS_MAX).map(|_| locks.exclusive(OBJECT, 0..1)).collect();
        assert!(waiting.iter().all(RangeRequest::waits_without_thread));
        assert!(!locks.exclusive(OBJECT, 0..1).waits_without_thread(), "too many");
        let other = ObjectId::new(types::InodeNumber(2), 0);
        let held = locks.exclusive(other, 0..1);
        assert!(locks.shared(other, 0..1).waits_without_thread(), "another object has its own");
        drop((first, waiting, held));
        assert_eq!(locks.objects(), 0);
    }
}
