//! A turn that requests take one after the other, in order of arrival, without holding a service
//! thread while they wait.
//!
//! Life cycle: [`Turn::take`] waits; the turn ends when its guard is dropped. A future dropped
//! while it waits leaves the queue.

use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::{Mutex, MutexGuard};

use crate::range_lock::THREADLESS_MAX;

/// See the module documentation.
#[derive(Default)]
pub struct Turn {
    taken: Mutex<()>,
    /// Requests that wait without a service thread.
    threadless: AtomicUsize,
}

/// Counts one of them until it is dropped.
struct Threadless<'a>(&'a AtomicUsize);

impl<'a> Threadless<'a> {
    /// `None` if there are enough: the service threads bound the others, and with them the memory
    /// of requests that wait.
    fn begin(count: &'a AtomicUsize) -> Option<Self> {
        let counted = Self(count);
        (count.fetch_add(1, Ordering::Relaxed) < THREADLESS_MAX).then_some(counted)
    }
}

impl Drop for Threadless<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Turn {
    /// Waits for the turn. `park` gives the service thread back until its answer is dropped; it is
    /// called if others have to end theirs first, and few enough wait in this way.
    pub async fn take<P>(&self, park: impl FnOnce() -> P) -> MutexGuard<'_, ()> {
        if let Ok(turn) = self.taken.try_lock() {
            return turn;
        }
        let _waits = Threadless::begin(&self.threadless).map(|counted| (counted, park()));
        self.taken.lock().await
    }
}

#[cfg(test)]
mod tests {
    use std::{
        pin::pin,
        task::{Context, Poll, Waker},
    };

    use super::*;

    fn poll<F: Future>(future: std::pin::Pin<&mut F>) -> Option<F::Output> {
        match future.poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(output) => Some(output),
            Poll::Pending => None,
        }
    }

    /// What is counted while it lives.
    struct Parked<'a>(&'a AtomicUsize);

    impl<'a> Parked<'a> {
        fn new(count: &'a AtomicUsize) -> Self {
            count.fetch_add(1, Ordering::Relaxed);
            Self(count)
        }
    }

    impl Drop for Parked<'_> {
        fn drop(&mut self) {
            self.0.fetch_sub(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn a_request_that_waits_for_its_turn_holds_no_thread() {
        let (turn, parked) = (Turn::default(), AtomicUsize::new(0));
        let take = || turn.take(|| Parked::new(&parked));
        let count = || parked.load(Ordering::Relaxed);
        let first = poll(pin!(take())).expect("nobody has it");
        assert_eq!(count(), 0, "it does not wait");
        let (mut second, mut third) = (pin!(take()), pin!(take()));
        assert!(poll(second.as_mut()).is_none() && poll(third.as_mut()).is_none());
        assert_eq!(count(), 2);
        drop(first);
        assert!(poll(third.as_mut()).is_none(), "in order of arrival");
        let has_it = poll(second.as_mut()).expect("its turn");
        assert_eq!(count(), 1);
        drop(has_it);
        assert!(poll(third.as_mut()).is_some());
        assert_eq!(count(), 0);
    }

    #[test]
    fn only_so_many_wait_without_a_thread() {
        let (turn, parked) = (Turn::default(), AtomicUsize::new(0));
        let _first = poll(pin!(turn.take(|| ()))).expect("nobody has it");
        let mut waiting: Vec<_> =
            (0..THREADLESS_MAX + 10).map(|_| Box::pin(turn.take(|| Parked::new(&parked)))).collect();
        assert!(waiting.iter_mut().all(|waits| poll(waits.as_mut()).is_none()));
        assert_eq!(parked.load(Ordering::Relaxed), THREADLESS_MAX);
        waiting.clear();
        assert_eq!((parked.load(Ordering::Relaxed), turn.threadless.load(Ordering::Relaxed)), (0, 0));
    }
}
