//! A queue of one: an operation that many tasks may wait for, and only one at a time performs.
//!
//! The first task starts the operation and drives it; the others wait and are all served by it, or
//! one of them starts the next. If the driver is dropped (a cancelled request), the half-done
//! operation is kept and the next task completes it: nothing that was passed to the device is ever
//! forgotten. No lock is held while it runs.

use std::{
    pin::Pin,
    task::{Context, Poll},
};

use parking_lot::Mutex;
use rt::BoxFuture;
use tokio::sync::Notify;

enum DriverState<T> {
    Idle,
    /// A caller drives the operation.
    Driven,
    /// Its driver was dropped.
    Parked(BoxFuture<'static, T>),
}

/// See the module.
pub(crate) struct Pipeline<T> {
    slot: Mutex<DriverState<T>>,
    notify: Notify,
}

impl<T: Send + 'static> Pipeline<T> {
    pub fn new() -> Pipeline<T> {
        Pipeline { slot: Mutex::new(DriverState::Idle), notify: Notify::new() }
    }

    /// Runs operations until `done` says so. `start` begins the next operation, `None` if there is
    /// nothing to do, in which case `done` must hold; `finish` takes its result.
    pub async fn run<R>(
        &self,
        done: impl Fn() -> Option<R>,
        start: impl Fn() -> Option<BoxFuture<'static, T>>,
        finish: impl Fn(T),
    ) -> R {
        if let Some(result) = done() {
            return result;
        }
        loop {
            let mut notified = std::pin::pin!(self.notify.notified());
            notified.as_mut().enable();
            if let Some(result) = done() {
                return result;
            }
            let Some(mut driver) = self.claim() else {
                notified.await;
                continue;
            };
            if driver.future.is_none() {
                driver.future = start();
            }
            if driver.future.is_none() {
                return done().expect("there is nothing to do only if nothing is waited for");
            }
            let output = (&mut driver).await;
            finish(output);
        }
    }

    fn claim(&self) -> Option<Driver<'_, T>> {
        let mut slot = self.slot.lock();
        let future = match std::mem::replace(&mut *slot, DriverState::Driven) {
            DriverState::Driven => return None,
            DriverState::Idle => None,
            DriverState::Parked(future) => Some(future),
        };
        Some(Driver { pipeline: self, future })
    }

    /// Forgets an operation that no task drives. Tasks that wait for it must be told in another
    /// way.
    pub fn abandon(&self) {
        let mut slot = self.slot.lock();
        if matches!(*slot, DriverState::Parked(_)) {
            *slot = DriverState::Idle;
        }
    }
}

struct Driver<'a, T> {
    pipeline: &'a Pipeline<T>,
    future: Option<BoxFuture<'static, T>>,
}

impl<T> Future for Driver<'_, T> {
    type Output = T;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<T> {
        let driver = self.get_mut();
        let future = driver.future.as_mut().expect("polled only while there is an operation");
        let output = std::task::ready!(future.as_mut().poll(context));
        driver.future = None;
        Poll::Ready(output)
    }
}

impl<T> Drop for Driver<'_, T> {
    fn drop(&mut self) {
        *self.pipeline.slot.lock() = self.future.take().map_or(DriverState::Idle, DriverState::Parked);
        self.pipeline.notify.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use std::{
        pin::pin,
        sync::{
            Arc,
            atomic::{AtomicU32, Ordering},
        },
        task::Waker,
    };

    use super::*;

    /// Counts what an operation was started and finished, and lets the test decide when it may end.
    struct Work {
        pipeline: Pipeline<u32>,
        gate: Arc<Notify>,
        started: AtomicU32,
        finished: AtomicU32,
    }

    impl Work {
        fn new() -> Work {
            Work {
                pipeline: Pipeline::new(),
                gate: Arc::new(Notify::new()),
                started: AtomicU32::new(0),
                finished: AtomicU32::new(0),
            }
        }

        async fn until(&self, target: u32) {
            let done = || (self.finished.load(Ordering::SeqCst) >= target).then_some(());
            let start = || -> Option<BoxFuture<'static, u32>> {
                let number = self.started.fetch_add(1, Ordering::SeqCst) + 1;
                let gate = Arc::clone(&self.gate);
                Some(Box::pin(async move {
                    gate.notified().await;
                    number
                }))
            };
            self.pipeline.run(done, start, |number| self.finished.store(number, Ordering::SeqCst)).await;
        }
    }

    #[test]
    fn one_operation_serves_all_and_survives_its_driver() {
        let work = Work::new();
        let mut context = Context::from_waker(Waker::noop());
        let mut second = pin!(work.until(1));
        {
            let mut first = pin!(work.until(1));
            assert!(first.as_mut().poll(&mut context).is_pending());
            assert!(second.as_mut().poll(&mut context).is_pending());
            assert_eq!(work.started.load(Ordering::SeqCst), 1, "the second joins");
        }
        // The first is gone; the second takes its operation over instead of starting another.
        assert!(second.as_mut().poll(&mut context).is_pending());
        work.gate.notify_one();
        assert!(second.as_mut().poll(&mut context).is_ready());
        assert_eq!(work.started.load(Ordering::SeqCst), 1);
        assert_eq!(work.finished.load(Ordering::SeqCst), 1);
    }

    #[test]
    fn operations_follow_one_another_until_all_are_served() {
        let work = Work::new();
        let mut context = Context::from_waker(Waker::noop());
        let mut waiter = pin!(work.until(3));
        for _ in 0..3 {
            assert!(waiter.as_mut().poll(&mut context).is_pending());
            work.gate.notify_one();
        }
        assert!(waiter.as_mut().poll(&mut context).is_ready());
        assert_eq!(work.started.load(Ordering::SeqCst), 3);
    }
}
