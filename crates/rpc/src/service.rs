//! Services: named request queues with a number of service threads, as in Portal RPC.
//!
//! A service thread is not an operating system thread but the right to execute: at most `threads`
//! requests of a service execute at once, the others wait. So a target's disk
//! or CPU sees a bounded number of requests whatever the number of clients, and the number can be
//! changed while requests run.
//!
//! Life cycle of a request: [`Service::admit`] gives a [`Permit`] at once, or queues; dropping the
//! permit admits the next, in the order of the service's policy (crate `nrs`). The queue is
//! bounded: beyond `queue_max` a request is refused (not executed) and its client tries again
//! later. What a policy holds back leaves places to others ([`Scheduler::has_room`]), and requests
//! that nothing may hold back have as many again for themselves.
//!
//! With fifo, the usual policy, a request that finds a free thread and an empty queue does not
//! touch the queue. A policy that holds requests back says until when; one task of the service
//! sleeps until then. Downside: with any other policy every request passes through the queue, with
//! an allocation.

mod policies;
mod tuned;

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use nrs::{Facts, PolicyName, Scheduled, Scheduler};
use parking_lot::Mutex;
use rt::{Clock, Instant, Spawn};
use tokio::sync::oneshot;

use crate::{
    histogram::Histogram,
    tuning::{Tuning, WATCHED_FROM},
};

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
    work: u64,
    /// There was no free thread.
    waits: bool,
    grant: oneshot::Sender<Permit>,
}

struct State {
    threads: usize,
    /// The most that the tuner chooses, and what it is without the tuner.
    threads_max: usize,
    threads_min: usize,
    /// Most requests that ever executed at once, up to `threads`.
    threads_used: usize,
    /// Executing requests that wait for others: these execute meanwhile.
    parked: usize,
    /// Time for which requests waited in this way that is not yet part of what the tuner measures:
    /// it ends before they do.
    parked_ns: u64,
    queue: Scheduler<Waiter>,
    /// When the queue is asked next, though no thread becomes free.
    wake_at: Option<Instant>,
    /// Requests that execute now, by policy.
    active: [usize; PolicyName::ALL.len()],
    achieved: Achieved,
    statistics: ServiceStatistics,
}

/// What the tuner measures; never reset.
#[derive(Default)]
struct Achieved {
    requests: u64,
    work: u64,
    /// Time of execution, without that for which requests waited for others.
    busy_ns: u64,
    /// Requests that waited for a thread.
    waited: u64,
}

/// A named queue.
pub struct Service {
    name: &'static str,
    queue_max: usize,
    clock: Arc<dyn Clock>,
    spawn: Arc<dyn Spawn>,
    state: Mutex<State>,
    tuning: Arc<Tuning>,
}

/// The right to execute one request; dropping it ends the execution.
pub struct Permit {
    /// `None` once handed back.
    service: Option<Arc<Service>>,
    started: Instant,
    /// That chose the request.
    policy: PolicyName,
    /// What the request achieves, for the tuner.
    work: u64,
}

/// Whether a request may be held back while a service thread is free.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Hold {
    /// If the service's policy says so.
    ByPolicy,
    /// Something waits for its end.
    Never,
}

/// Outcome of [`Service::admit`].
pub enum Admission {
    /// Execute now.
    Now(Permit),
    /// Execute when the permit arrives.
    Queued(Waiting),
}

/// A place in the queue, until the permit arrives; dropping it gives the place up.
pub struct Waiting {
    service: Arc<Service>,
    ticket: u64,
    granted: oneshot::Receiver<Permit>,
    has_permit: bool,
}

impl Future for Waiting {
    type Output = Permit;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Permit> {
        let granted = std::task::ready!(Pin::new(&mut self.granted).poll(context));
        self.has_permit = true;
        Poll::Ready(granted.expect("what waits in a queue is granted, or gives its place up"))
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        if !self.has_permit {
            let removed = self.service.state.lock().queue.remove(self.ticket);
            drop(removed);
        }
    }
}

impl Service {
    /// A service with `threads` service threads (at least 1) and at most `queue_max` waiting
    /// requests.
    pub fn new(
        (clock, spawn): (Arc<dyn Clock>, Arc<dyn Spawn>),
        name: &'static str,
        threads: usize,
        queue_max: usize,
    ) -> Arc<Self> {
        let state = State {
            threads: clamp_threads(threads),
            threads_max: clamp_threads(threads),
            threads_min: 1,
            threads_used: 0,
            parked: 0,
            parked_ns: 0,
            queue: Scheduler::default(),
            wake_at: None,
            active: Default::default(),
            achieved: Default::default(),
            statistics: Default::default(),
        };
        Arc::new(Self { name, queue_max, clock, spawn, state: Mutex::new(state), tuning: Tuning::off() })
    }

    /// Its name.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// Number of service threads at present.
    pub fn threads(&self) -> usize {
        self.state.lock().threads
    }

    /// Largest number of service threads.
    pub fn threads_max(&self) -> usize {
        self.state.lock().threads_max
    }

    /// Least number of service threads.
    pub fn threads_min(&self) -> usize {
        self.state.lock().threads_min
    }

    /// Service threads that were needed so far, at least the least number: most requests that
    /// executed at once.
    pub fn threads_started(&self) -> usize {
        let state = self.state.lock();
        state.threads_used.clamp(state.threads_min, state.threads_max)
    }

    /// Changes the number of service threads, at least 1, which the tuner does not touch from now
    /// on. More start waiting requests at once; fewer take effect as running requests end. The
    /// least number is no higher.
    pub fn set_threads(self: &Arc<Self>, threads: usize) {
        self.tuning.set_by_hand();
        let mut state = self.state.lock();
        state.threads = clamp_threads(threads);
        state.threads_max = state.threads;
        state.threads_min = state.threads_min.min(state.threads);
        state.threads_used = state.threads_used.min(state.threads);
        drop(state);
        self.start_waiting();
    }

    /// Changes the least number of service threads, at most the largest.
    pub fn set_threads_min(self: &Arc<Self>, threads_min: usize) {
        let mut state = self.state.lock();
        state.threads_min = threads_min.clamp(1, state.threads_max);
        drop(state);
        self.follow_limits();
    }

    /// Counters up to now.
    pub fn statistics(&self) -> ServiceStatistics {
        let state = self.state.lock();
        ServiceStatistics { waiting: state.queue.len(), ..state.statistics.clone() }
    }

    /// Forgets the statistics gathered so far (not those of the present moment).
    pub fn reset_statistics(&self) {
        let mut state = self.state.lock();
        let in_flight = state.statistics.in_flight;
        state.statistics = ServiceStatistics { in_flight, ..Default::default() };
    }

    /// Asks for execution of a request that arrived at `now`. `facts`: what a policy may know of
    /// it.
    pub fn admit(self: &Arc<Self>, now: Instant, facts: impl FnOnce() -> Facts) -> Result<Admission, QueueFull> {
        self.admit_held(now, (Hold::ByPolicy, 1), facts)
    }

    /// As [`Service::admit`], and says whether a policy may hold the request back, and what it
    /// achieves.
    pub(crate) fn admit_held(
        self: &Arc<Self>,
        now: Instant,
        (hold, work): (Hold, u64),
        facts: impl FnOnce() -> Facts,
    ) -> Result<Admission, QueueFull> {
        let mut state = self.state.lock();
        let is_fifo = state.queue.is_fifo();
        if is_fifo && state.has_free_thread() && state.queue.is_empty() {
            state.start(Duration::ZERO, PolicyName::Fifo);
            let is_busy = state.statistics.in_flight >= WATCHED_FROM;
            drop(state);
            if is_busy {
                self.watch();
            }
            let service = Some(self.clone());
            return Ok(Admission::Now(Permit { service, started: now, policy: PolicyName::Fifo, work }));
        }
        let facts = facts();
        let has_room = match hold {
            Hold::ByPolicy => state.queue.has_room(now.0, &facts, self.queue_max),
            Hold::Never => state.queue.len() < 2 * self.queue_max,
        };
        if !has_room {
            state.statistics.refused += 1;
            return Err(QueueFull(self.name));
        }
        let (grant, granted) = oneshot::channel();
        let waiter = Waiter { arrived: now, work, waits: !state.has_free_thread(), grant };
        let ticket = match hold {
            Hold::ByPolicy => state.queue.push(now.0, facts, waiter),
            Hold::Never => state.queue.push_free(now.0, facts, waiter),
        };
        let waiting = state.queue.len();
        state.statistics.waiting_max = state.statistics.waiting_max.max(waiting);
        drop(state);
        self.watch();
        if !is_fifo {
            self.start_waiting();
        }
        Ok(Admission::Queued(Waiting { service: self.clone(), ticket, granted, has_permit: false }))
    }

    /// One of the executing requests waits for clients or other requests: until the answer is
    /// dropped, another one may execute. So requests that end such waits are executed however many
    /// wait.
    pub fn park(self: &Arc<Self>) -> Parked {
        self.state.lock().parked += 1;
        self.start_waiting();
        Parked { service: self.clone(), since: self.clock.now() }
    }

    /// Gives free service threads to waiting requests. Grants outside the lock, because a waiter
    /// that is gone gives its permit back.
    fn start_waiting(self: &Arc<Self>) {
        loop {
            let mut state = self.state.lock();
            if !state.has_free_thread() || state.queue.is_empty() {
                return;
            }
            let now = self.clock.now();
            let (policy, waiter) = match state.queue.pop(now.0) {
                Scheduled::Request(policy, entry) => (policy, entry.waiter),
                Scheduled::NotBefore(time_ns) => {
                    let wakes_before = state.wake_at.is_some_and(|wake_at| wake_at.0 <= time_ns);
                    if !wakes_before {
                        state.wake_at = Some(Instant(time_ns));
                        drop(state);
                        self.wake_at(Instant(time_ns));
                    }
                    return;
                }
                Scheduled::Nothing => return,
            };
            state.start(now.since(waiter.arrived), policy);
            state.achieved.waited += u64::from(waiter.waits);
            drop(state);
            let permit = Permit { service: Some(self.clone()), started: now, policy, work: waiter.work };
            if let Err(mut unwanted) = waiter.grant.send(permit) {
                unwanted.service = None;
                self.state.lock().end(policy);
            }
        }
    }

    /// Asks the queue again at this time. A service that is no longer in use is not kept for it.
    fn wake_at(self: &Arc<Self>, time: Instant) {
        let (clock, service) = (self.clock.clone(), Arc::downgrade(self));
        let wake = async move {
            clock.sleep_until(time).await;
            let Some(service) = service.upgrade() else { return };
            {
                let mut state = service.state.lock();
                // Else the queue was asked in between and named another time.
                if state.wake_at == Some(time) {
                    state.wake_at = None;
                }
            }
            service.start_waiting();
        };
        self.spawn.spawn("request scheduler", Box::pin(wake));
    }
}

/// See [`Service::park`].
pub struct Parked {
    service: Arc<Service>,
    since: Instant,
}

impl Drop for Parked {
    /// The request goes on, besides those that execute by now.
    fn drop(&mut self) {
        let waited = self.service.clock.now().since(self.since);
        let mut state = self.service.state.lock();
        state.parked -= 1;
        state.parked_ns += waited.as_nanos() as u64;
    }
}

impl State {
    fn has_free_thread(&self) -> bool {
        self.statistics.in_flight < self.threads + self.parked
    }

    fn start(&mut self, queued: Duration, policy: PolicyName) {
        self.statistics.in_flight += 1;
        self.active[policy as usize] += 1;
        let needed = self.statistics.in_flight - self.parked.min(self.statistics.in_flight);
        self.threads_used = self.threads_used.max(needed.min(self.threads));
        self.statistics.requests += 1;
        self.statistics.queue_time.record(queued);
    }

    fn end(&mut self, policy: PolicyName) {
        self.statistics.in_flight -= 1;
        self.active[policy as usize] -= 1;
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let Some(service) = self.service.take() else { return };
        let busy = service.clock.now().since(self.started);
        let mut state = service.state.lock();
        state.end(self.policy);
        state.statistics.service_time.record(busy);
        state.achieved.requests += 1;
        state.achieved.work += self.work;
        // It may be that of another request: the sum counts.
        let busy_ns = busy.as_nanos() as u64;
        let parked_ns = state.parked_ns.min(busy_ns);
        // Without requests there is no wait of one of them.
        state.parked_ns = if state.statistics.in_flight == 0 { 0 } else { state.parked_ns - parked_ns };
        state.achieved.busy_ns += busy_ns - parked_ns;
        let somebody_waits = !state.queue.is_empty();
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
mod tests;
