//! Tests of services.

use std::task::Waker;

use nrs::Selection;
use rt::BoxFuture;
use types::{ClientId, JobName, Timestamp};

use super::*;
use crate::tuning::Tuned;

/// A clock that stands where it is put.
#[derive(Default)]
struct Hand(Arc<Mutex<Instant>>);

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

    fn sleep_until(&self, until: Instant) -> BoxFuture<'static, ()> {
        let now = self.0.clone();
        Box::pin(std::future::poll_fn(move |_| if *now.lock() >= until { Poll::Ready(()) } else { Poll::Pending }))
    }
}

/// Keeps tasks until somebody looks at them.
#[derive(Default)]
struct Tasks(Mutex<Vec<BoxFuture<'static, ()>>>);

impl Spawn for Tasks {
    fn spawn(&self, _: &'static str, future: BoxFuture<'static, ()>) {
        self.0.lock().push(future);
    }

    fn all_cores_ran(&self) -> BoxFuture<'static, ()> {
        Box::pin(std::future::ready(()))
    }
}

impl Tasks {
    /// Runs every task as far as it goes.
    fn run(&self) {
        let tasks = std::mem::take(&mut *self.0.lock());
        let left: Vec<_> = tasks.into_iter().filter_map(|mut task| poll(&mut task).is_none().then_some(task)).collect();
        self.0.lock().extend(left);
    }
}

fn poll<T>(future: &mut (impl Future<Output = T> + Unpin)) -> Option<T> {
    match Pin::new(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(value) => Some(value),
        Poll::Pending => None,
    }
}

fn scheduled(threads: usize, queue_max: usize) -> (Arc<Hand>, Arc<Tasks>, Arc<Service>) {
    let (hand, tasks) = (Arc::new(Hand::default()), Arc::new(Tasks::default()));
    (hand.clone(), tasks.clone(), Service::new((hand, tasks), "test", threads, queue_max))
}

fn service(threads: usize, queue_max: usize) -> (Arc<Hand>, Arc<Service>) {
    let (hand, _, service) = scheduled(threads, queue_max);
    (hand, service)
}

fn of_client(client: u64) -> Facts {
    let (nid, job) = ("0@lo".into(), JobName::NONE);
    Facts { client: ClientId(client), nid, job, uid: 0, gid: 0, project: 0, opcode: "ost_write", target: 0, data: None }
}

fn any() -> Facts {
    of_client(1)
}

fn now(admission: Result<Admission, QueueFull>) -> Permit {
    match admission {
        Ok(Admission::Now(permit)) => permit,
        _ => panic!("not admitted at once"),
    }
}

fn queued(admission: Result<Admission, QueueFull>) -> Waiting {
    match admission {
        Ok(Admission::Queued(granted)) => granted,
        _ => panic!("not queued"),
    }
}

#[test]
fn requests_execute_in_order_of_arrival() {
    let (hand, service) = service(1, 10);
    let first = now(service.admit(hand.now(), any));
    let mut second = queued(service.admit(hand.now(), any));
    let mut third = queued(service.admit(hand.now(), any));
    drop(first);
    let permit = poll(&mut second).expect("the first in the queue");
    assert!(poll(&mut third).is_none());
    drop(permit);
    assert!(poll(&mut third).is_some());
}

#[test]
fn service_threads_change_while_requests_run() {
    let (hand, service) = service(1, 10);
    let first = now(service.admit(hand.now(), any));
    let mut waiting: Vec<_> = (0..3).map(|_| queued(service.admit(hand.now(), any))).collect();
    service.set_threads(3);
    let mut permits: Vec<_> = waiting.iter_mut().filter_map(poll).collect();
    assert_eq!(permits.len(), 2);
    service.set_threads(1);
    permits.clear();
    assert!(poll(&mut waiting[2]).is_none(), "one still executes, and one may");
    drop(first);
    assert!(poll(&mut waiting[2]).is_some());
    service.set_threads(0);
    assert_eq!(service.threads(), 1, "a service without threads would never answer");
}

#[test]
fn a_request_that_waits_for_clients_takes_no_thread() {
    let (hand, service) = service(1, 10);
    let first = now(service.admit(hand.now(), any));
    let mut second = queued(service.admit(hand.now(), any));
    let parked = service.park();
    let second = poll(&mut second).expect("the first is parked");
    let mut third = queued(service.admit(hand.now(), any));
    drop(parked);
    drop(second);
    assert!(poll(&mut third).is_none(), "the first goes on");
    drop(first);
    assert!(poll(&mut third).is_some());
}

#[test]
fn the_tuner_does_not_count_waits_for_other_requests() {
    let (hand, service) = service(2, 10);
    let busy_us = || service.measure(hand.now()).busy_ns / 1000;
    let (first, second) = (now(service.admit(hand.now(), any)), now(service.admit(hand.now(), any)));
    let parked = service.park();
    hand.advance(Duration::from_micros(100));
    drop(parked);
    hand.advance(Duration::from_micros(7));
    drop(first);
    assert_eq!(busy_us(), 7);
    hand.advance(Duration::from_micros(5));
    drop(second);
    assert_eq!(busy_us(), 7 + 112);
    assert_eq!(service.statistics().service_time.sum_ns, 107_000 + 112_000, "what is shown is the whole time");
}

#[test]
fn those_who_give_up_do_not_hold_the_queue() {
    let (hand, service) = service(1, 10);
    let first = now(service.admit(hand.now(), any));
    let gone_before = queued(service.admit(hand.now(), any));
    let gone_after = queued(service.admit(hand.now(), any));
    let mut last = queued(service.admit(hand.now(), any));
    drop(gone_before);
    drop(first);
    assert!(poll(&mut last).is_none(), "it was granted to the one before");
    drop(gone_after);
    let permit = poll(&mut last).expect("passed on");
    assert_eq!(service.statistics().in_flight, 1);
    drop(permit);
    assert_eq!(service.statistics().in_flight, 0);
}

#[test]
fn a_full_queue_refuses() {
    let (hand, service) = service(1, 1);
    let first = now(service.admit(hand.now(), any));
    let _second = queued(service.admit(hand.now(), any));
    assert!(matches!(service.admit(hand.now(), any), Err(QueueFull("test"))));
    assert_eq!(service.statistics().refused, 1);
    drop(first);
}

#[test]
fn times_are_counted() {
    let (hand, service) = service(1, 10);
    let first = now(service.admit(hand.now(), any));
    let mut second = queued(service.admit(hand.now(), any));
    hand.advance(Duration::from_micros(100));
    drop(first);
    drop(poll(&mut second));
    let statistics = service.statistics();
    assert_eq!((statistics.requests, statistics.in_flight, statistics.waiting), (2, 0, 0));
    assert_eq!(statistics.waiting_max, 1);
    assert_eq!((statistics.queue_time.max_ns, statistics.service_time.max_ns), (100_000, 100_000));
    assert_eq!((statistics.queue_time.sum_ns, statistics.service_time.sum_ns), (100_000, 100_000));
    service.reset_statistics();
    assert_eq!(service.statistics(), ServiceStatistics::default());
}

/// Lets requests queue after one that executes; returns them and the permit of that one.
fn waiting(service: &Arc<Service>, hand: &Hand, clients: &[u64]) -> (Permit, Vec<(u64, Waiting)>) {
    let mut first = match service.admit(hand.now(), any) {
        Ok(Admission::Now(permit)) => return (permit, queue_all(service, hand, clients)),
        admission => queued(admission),
    };
    let first = poll(&mut first).expect("nothing else executes");
    (first, queue_all(service, hand, clients))
}

fn queue_all(service: &Arc<Service>, hand: &Hand, clients: &[u64]) -> Vec<(u64, Waiting)> {
    let queue = |client: &u64| (*client, queued(service.admit(hand.now(), || of_client(*client))));
    clients.iter().map(queue).collect()
}

/// The client of the one that executes next, if one does.
fn executes(waiting: &mut Vec<(u64, Waiting)>) -> Option<(u64, Permit)> {
    let granted = |(place, (client, waiting)): (usize, &mut (u64, Waiting))| Some((place, *client, poll(waiting)?));
    let (place, client, permit) = waiting.iter_mut().enumerate().find_map(granted)?;
    waiting.remove(place);
    Some((client, permit))
}

#[test]
fn another_policy_holds_with_the_next_request_that_executes() {
    let (hand, service) = service(1, 100);
    let (mut permit, mut waiting) = waiting(&service, &hand, &[1, 1, 1, 2]);
    service.set_policy("crrn".parse().unwrap());
    service.set_policy_setting("nrs_crrn_quantum", "1").unwrap();
    let mut order = Vec::new();
    while !waiting.is_empty() {
        drop(permit);
        let (client, next) = executes(&mut waiting).expect("one executes");
        (permit, order) = (next, [order, vec![client]].concat());
        if order.len() == 2 {
            service.set_policy(Selection::FIFO);
        }
    }
    assert_eq!(order, [1, 2, 1, 1]);
    let active: Vec<_> = service.policies().into_iter().filter(|(_, active)| *active > 0).collect();
    assert_eq!(active.len(), 1);
    assert_eq!(active[0].0.name, PolicyName::Fifo, "the last one came by fifo");
    drop(permit);
    assert!(service.policies().iter().all(|(policy, active)| (policy.queued, *active) == (0, 0)));
}

#[test]
fn requests_that_a_rate_holds_back_execute_when_it_is_time() {
    let (hand, tasks, service) = scheduled(10, 100);
    service.set_policy("tbf jobid".parse().unwrap());
    service.change_policy_rules("change default rate=10", &[]).unwrap();
    let mut requests = queue_all(&service, &hand, &[1; 5]);
    let mut permits: Vec<_> = std::iter::from_fn(|| executes(&mut requests)).collect();
    assert_eq!((permits.len(), service.statistics().waiting), (3, 2), "a full bucket");
    tasks.run();
    assert!(executes(&mut requests).is_none());
    hand.advance(Duration::from_millis(100));
    tasks.run();
    permits.extend(executes(&mut requests));
    assert!(executes(&mut requests).is_none());
    hand.advance(Duration::from_millis(100));
    tasks.run();
    permits.extend(executes(&mut requests));
    assert_eq!(permits.len(), 5);
    hand.advance(Duration::from_millis(100));
    tasks.run();
    assert!(tasks.0.lock().is_empty(), "nothing waits: no task is left");
}

#[test]
fn what_is_held_back_executes_when_it_is_released_or_the_policy_changes() {
    let (hand, _, service) = scheduled(10, 100);
    service.set_policy("delay".parse().unwrap());
    let mut requests = queue_all(&service, &hand, &[1, 2, 2, 3]);
    assert!(executes(&mut requests).is_none());
    service.release(&|facts| facts.client == ClientId(2));
    let clients = |requests: &mut Vec<_>| std::iter::from_fn(|| executes(requests).map(|(client, _)| client)).collect();
    let released: Vec<u64> = clients(&mut requests);
    assert_eq!(released, [2, 2]);
    service.set_policy(Selection::FIFO);
    let rest: Vec<u64> = clients(&mut requests);
    assert_eq!(rest, [1, 3]);
}

#[test]
fn what_nothing_may_hold_back_is_held_back_by_no_policy_chosen_later() {
    let (hand, _, service) = scheduled(1, 100);
    let (permit, mut requests) = waiting(&service, &hand, &[1, 2]);
    service.release(&|facts| facts.client == ClientId(2));
    let free = service.admit_held(hand.now(), (Hold::Never, 1), || of_client(3));
    requests.push((3, queued(free)));
    for policy in ["delay", "tbf", "crrn", "delay"] {
        service.set_policy(policy.parse().unwrap());
    }
    drop(permit);
    assert_eq!(executes(&mut requests).map(|(client, _)| client), Some(2));
    assert_eq!(executes(&mut requests).map(|(client, _)| client), Some(3));
    assert!(executes(&mut requests).is_none());
    let free = service.admit_held(hand.now(), (Hold::Never, 1), || of_client(4));
    assert!(poll(&mut queued(free)).is_some(), "with a policy that holds back all others");
}

#[test]
fn callers_that_give_up_leave_the_queue_of_every_policy() {
    for policy in PolicyName::ALL {
        let (hand, service) = service(1, 16);
        let (permit, requests) = waiting(&service, &hand, &[]);
        service.set_policy(Selection::of(policy));
        let many: Vec<_> = (0..16).map_while(|_| service.admit(hand.now(), any).ok()).collect();
        assert!(matches!(service.admit(hand.now(), any), Err(QueueFull("test"))), "{policy} is bounded");
        assert!(many.len() >= 6, "{policy}: {}", many.len());
        drop(many);
        assert_eq!(service.statistics().waiting, 0, "{policy}");
        drop((permit, requests));
        assert_eq!(service.statistics().in_flight, 0, "{policy}");
    }
}

#[test]
fn a_class_that_is_held_back_leaves_the_queue_to_others() {
    let (hand, service) = service(10_000, 800);
    service.set_policy("tbf uid".parse().unwrap());
    service.change_policy_rules("change default rate=1", &[]).unwrap();
    let of_user = |uid| move || Facts { uid, ..any() };
    let slow: Vec<_> = (0..800).map_while(|_| service.admit(hand.now(), of_user(1)).ok()).collect();
    assert_eq!(slow.len(), 3 + 300, "with a full bucket, and half of what may be held back");
    let mut other = queued(service.admit(hand.now(), of_user(2)));
    assert!(poll(&mut other).is_some(), "another class is executed at once");
    // Many classes with few requests each.
    let requests = (10..810).flat_map(|uid| [uid; 8]);
    let many: Vec<_> = requests.filter_map(|uid| service.admit(hand.now(), of_user(uid)).ok()).collect();
    assert!(service.statistics().waiting <= 600, "{}", service.statistics().waiting);
    let mut other = queued(service.admit(hand.now(), of_user(5000)));
    assert!(poll(&mut other).is_some(), "a class with tokens");
    let mut free = queued(service.admit_held(hand.now(), (Hold::Never, 1), of_user(1)));
    assert!(poll(&mut free).is_some(), "what nothing may hold back");
    drop((slow, many));
}

#[test]
fn a_full_queue_admits_what_nothing_may_hold_back() {
    let (hand, service) = service(1, 2);
    let (permit, _waiting) = waiting(&service, &hand, &[1, 2]);
    assert!(service.admit(hand.now(), any).is_err());
    let free = || service.admit_held(hand.now(), (Hold::Never, 1), any);
    let _more = [queued(free()), queued(free())];
    assert!(free().is_err(), "there is a limit for these too");
    drop(permit);
}

#[test]
fn threads_that_were_needed_count_as_started() {
    let (hand, service) = service(4, 10);
    assert_eq!((service.threads_min(), service.threads_started()), (1, 1));
    let permits: Vec<_> = (0..3).map(|_| now(service.admit(hand.now(), any))).collect();
    assert_eq!(service.threads_started(), 3);
    drop(permits);
    assert_eq!(service.threads_started(), 3);
    service.set_threads_min(4);
    assert_eq!(service.threads_started(), 4);
    service.set_threads(2);
    assert_eq!((service.threads_min(), service.threads_started()), (2, 2));
}

#[path = "tuned_tests.rs"]
mod tuned;
