//! Services: named request queues with a number of service threads, as in Portal RPC.
//!
//! A service thread is not an operating system thread but the right to execute: at most `threads`
//! requests of a service execute at once, the others wait in order of arrival. So a target's disk
//! or CPU sees a bounded number of requests whatever the number of clients, and the number can be
//! changed while requests run.
//!
//! Life cycle of a request: [`Service::admit`] gives a [`Permit`] at once, or queues; dropping the
//! permit admits the next. The queue is bounded: beyond `queue_max` a request is refused (not
//! executed) and its client tries again later. Downside: one FIFO per service, no fairness between
//! clients.

use std::{collections::VecDeque, sync::Arc, time::Duration};

use parking_lot::Mutex;
use rt::{Clock, Instant};
use tokio::sync::oneshot;

use crate::histogram::Histogram;

/// Most service threads one service may be given.
pub const SERVICE_THREADS_MAX: usize = 65536;

/// What a service did so far, and what it does now.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServiceStatistics {
    /// Requests admitted.
    pub requests: u64,
    /// Requests refused because the queue was full.
    pub refused: u64,
    /// Requests executing now.
    pub in_flight: usize,
    /// Requests waiting now.
    pub waiting: usize,
    /// Most requests that ever waited at once.
    pub waiting_max: usize,
    /// Time from arrival to execution.
    pub queue_time: Histogram,
    /// Time of execution.
    pub service_time: Histogram,
}

/// The queue is full; the request was not executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the queue of service {0} is full")]
pub struct QueueFull(pub &'static str);

struct Waiter {
    arrived: Instant,
    grant: oneshot::Sender<Permit>,
}

struct State {
    threads: usize,
    /// Executing requests that wait for clients: others execute meanwhile.
    parked: usize,
    waiting: VecDeque<Waiter>,
    statistics: ServiceStatistics,
}

/// A named queue.
pub struct Service {
    name: &'static str,
    queue_max: usize,
    clock: Arc<dyn Clock>,
    state: Mutex<State>,
}

/// The right to execute one request; dropping it ends the execution.
pub struct Permit {
    /// `None` once handed back.
    service: Option<Arc<Service>>,
    started: Instant,
}

/// Outcome of [`Service::admit`].
pub enum Admission {
    /// Execute now.
    Now(Permit),
    /// Execute when the permit arrives.
    Queued(oneshot::Receiver<Permit>),
}

impl Service {
    /// A service with `threads` service threads (at least 1) and at most `queue_max` waiting
    /// requests.
    pub fn new(clock: Arc<dyn Clock>, name: &'static str, threads: usize, queue_max: usize) -> Arc<Self> {
        let (threads, parked) = (clamp_threads(threads), 0);
        let state = State { threads, parked, waiting: VecDeque::new(), statistics: Default::default() };
        Arc::new(Self { name, queue_max, clock, state: Mutex::new(state) })
    }

    /// Its name.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// Number of service threads.
    pub fn threads(&self) -> usize {
        self.state.lock().threads
    }

    /// Changes the number of service threads, at least 1. More start waiting requests at once;
    /// fewer take effect as running requests end.
    pub fn set_threads(self: &Arc<Self>, threads: usize) {
        self.state.lock().threads = clamp_threads(threads);
        self.start_waiting();
    }

    /// Figures up to now.
    pub fn statistics(&self) -> ServiceStatistics {
        let state = self.state.lock();
        ServiceStatistics { waiting: state.waiting.len(), ..state.statistics.clone() }
    }

    /// Forgets the statistics gathered so far (not those of the present moment).
    pub fn reset_statistics(&self) {
        let mut state = self.state.lock();
        let in_flight = state.statistics.in_flight;
        state.statistics = ServiceStatistics { in_flight, ..Default::default() };
    }

    /// Asks for execution of a request that arrived at `now`.
    pub fn admit(self: &Arc<Self>, now: Instant) -> Result<Admission, QueueFull> {
        let mut state = self.state.lock();
        if state.has_free_thread() && state.waiting.is_empty() {
            state.start(Duration::ZERO);
            return Ok(Admission::Now(Permit { service: Some(self.clone()), started: now }));
        }
        if state.waiting.len() >= self.queue_max {
            state.statistics.refused += 1;
            return Err(QueueFull(self.name));
        }
        let (grant, granted) = oneshot::channel();
        state.waiting.push_back(Waiter { arrived: now, grant });
        let waiting = state.waiting.len();
        state.statistics.waiting_max = state.statistics.waiting_max.max(waiting);
        Ok(Admission::Queued(granted))
    }

    /// One of the executing requests waits for clients: until the answer is dropped, another one may
    /// execute. So requests that end such waits are executed however many wait.
    pub fn park(self: &Arc<Self>) -> Parked {
        self.state.lock().parked += 1;
        self.start_waiting();
        Parked { service: self.clone() }
    }

    /// Gives free service threads to waiting requests. Grants outside the lock, because a waiter
    /// that is gone gives its permit back.
    fn start_waiting(self: &Arc<Self>) {
        loop {
            let mut state = self.state.lock();
            if !state.has_free_thread() {
                return;
            }
            let Some(waiter) = state.waiting.pop_front() else { return };
            let now = self.clock.now();
            state.start(now.since(waiter.arrived));
            drop(state);
            let permit = Permit { service: Some(self.clone()), started: now };
            if let Err(mut unwanted) = waiter.grant.send(permit) {
                unwanted.service = None;
                self.state.lock().statistics.in_flight -= 1;
            }
        }
    }
}

/// See [`Service::park`].
pub struct Parked {
    service: Arc<Service>,
}

impl Drop for Parked {
    /// The request goes on, besides those that execute by now.
    fn drop(&mut self) {
        self.service.state.lock().parked -= 1;
    }
}

impl State {
    fn has_free_thread(&self) -> bool {
        self.statistics.in_flight < self.threads + self.parked
    }

    fn start(&mut self, queued: Duration) {
        self.statistics.in_flight += 1;
        self.statistics.requests += 1;
        self.statistics.queue_time.record(queued);
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let Some(service) = self.service.take() else { return };
        let busy = service.clock.now().since(self.started);
        let mut state = service.state.lock();
        state.statistics.in_flight -= 1;
        state.statistics.service_time.record(busy);
        let somebody_waits = !state.waiting.is_empty();
        drop(state);
        if somebody_waits {
            service.start_waiting();
        }
    }
}

fn clamp_threads(threads: usize) -> usize {
    threads.clamp(1, SERVICE_THREADS_MAX)
}

#[cfg(test)]
mod tests {
    use rt::BoxFuture;
    use types::Timestamp;

    use super::*;

    /// A clock that stands where it is put.
    #[derive(Default)]
    struct Hand(Mutex<Instant>);

    impl Hand {
        fn advance(&self, duration: Duration) {
            let mut now = self.0.lock();
            *now = *now + duration;
        }
    }

    impl Clock for Hand {
        fn now(&self) -> Instant {
            *self.0.lock()
        }

        fn wall(&self) -> Timestamp {
            Timestamp::default()
        }

        fn boot(&self) -> u64 {
            1
        }

        fn sleep_until(&self, _: Instant) -> BoxFuture<'static, ()> {
            Box::pin(std::future::pending())
        }
    }

    fn service(threads: usize, queue_max: usize) -> (Arc<Hand>, Arc<Service>) {
        let hand = Arc::new(Hand::default());
        (hand.clone(), Service::new(hand, "test", threads, queue_max))
    }

    fn now(admission: Result<Admission, QueueFull>) -> Permit {
        match admission {
            Ok(Admission::Now(permit)) => permit,
            _ => panic!("not admitted at once"),
        }
    }

    fn queued(admission: Result<Admission, QueueFull>) -> oneshot::Receiver<Permit> {
        match admission {
            Ok(Admission::Queued(granted)) => granted,
            _ => panic!("not queued"),
        }
    }

    #[test]
    fn requests_execute_in_order_of_arrival() {
        let (hand, service) = service(1, 10);
        let first = now(service.admit(hand.now()));
        let mut second = queued(service.admit(hand.now()));
        let mut third = queued(service.admit(hand.now()));
        drop(first);
        let permit = second.try_recv().expect("the first in the queue");
        assert!(third.try_recv().is_err());
        drop(permit);
        assert!(third.try_recv().is_ok());
    }

    #[test]
    fn service_threads_change_while_requests_run() {
        let (hand, service) = service(1, 10);
        let first = now(service.admit(hand.now()));
        let mut waiting: Vec<_> = (0..3).map(|_| queued(service.admit(hand.now()))).collect();
        service.set_threads(3);
        let mut permits: Vec<_> = waiting.iter_mut().flat_map(oneshot::Receiver::try_recv).collect();
        assert_eq!(permits.len(), 2);
        service.set_threads(1);
        permits.clear();
        assert!(waiting[2].try_recv().is_err(), "one still executes, and one may");
        drop(first);
        assert!(waiting[2].try_recv().is_ok());
        service.set_threads(0);
        assert_eq!(service.threads(), 1, "a service without threads would never answer");
    }

    #[test]
    fn a_request_that_waits_for_clients_takes_no_thread() {
        let (hand, service) = service(1, 10);
        let first = now(service.admit(hand.now()));
        let mut second = queued(service.admit(hand.now()));
        let parked = service.park();
        let second = second.try_recv().expect("the first is parked");
        let mut third = queued(service.admit(hand.now()));
        drop(parked);
        drop(second);
        assert!(third.try_recv().is_err(), "the first goes on");
        drop(first);
        assert!(third.try_recv().is_ok());
    }

    #[test]
    fn those_who_give_up_do_not_hold_the_queue() {
        let (hand, service) = service(1, 10);
        let first = now(service.admit(hand.now()));
        let gone_before = queued(service.admit(hand.now()));
        let gone_after = queued(service.admit(hand.now()));
        let mut last = queued(service.admit(hand.now()));
        drop(gone_before);
        drop(first);
        assert!(last.try_recv().is_err(), "it was granted to the one before");
        drop(gone_after);
        let permit = last.try_recv().expect("passed on");
        assert_eq!(service.statistics().in_flight, 1);
        drop(permit);
        assert_eq!(service.statistics().in_flight, 0);
    }

    #[test]
    fn a_full_queue_refuses() {
        let (hand, service) = service(1, 1);
        let first = now(service.admit(hand.now()));
        let _second = queued(service.admit(hand.now()));
        assert!(matches!(service.admit(hand.now()), Err(QueueFull("test"))));
        assert_eq!(service.statistics().refused, 1);
        drop(first);
    }

    #[test]
    fn times_are_counted() {
        let (hand, service) = service(1, 10);
        let first = now(service.admit(hand.now()));
        let mut second = queued(service.admit(hand.now()));
        hand.advance(Duration::from_micros(100));
        drop(first);
        drop(second.try_recv());
        let statistics = service.statistics();
        assert_eq!((statistics.requests, statistics.in_flight, statistics.waiting), (2, 0, 0));
        assert_eq!(statistics.waiting_max, 1);
        assert_eq!((statistics.queue_time.max_ns, statistics.service_time.max_ns), (100_000, 100_000));
        assert_eq!((statistics.queue_time.sum_ns, statistics.service_time.sum_ns), (100_000, 100_000));
        service.reset_statistics();
        assert_eq!(service.statistics(), ServiceStatistics::default());
    }
}
