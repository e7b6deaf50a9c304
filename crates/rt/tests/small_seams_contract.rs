//! The contracts of `rt::Clock`, `rt::Entropy` and `rt::Spawn`, run over every implementation.

use std::{
    collections::BTreeSet,
    sync::{Arc, mpsc},
    time::Duration,
};

use rt::{
    Clock, Entropy, Instant, Spawn, clock,
    memory::{RuntimeSpawn, SeededEntropy},
    real::{Cores, SystemClock, SystemEntropy},
};

fn run<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(future)
}

#[test]
fn time_goes_forward_and_sleeps_are_never_short() {
    run(async {
        let clock = SystemClock;
        let mut before = clock.now();
        for _ in 0..1000 {
            let now = clock.now();
            assert!(now >= before);
            before = now;
        }
        let start = clock.now();
        clock::sleep(&clock, Duration::from_millis(5)).await;
        assert!(clock.now().since(start) >= Duration::from_millis(5));
        clock.sleep_until(start).await;
        clock.sleep_until(Instant(0)).await;
        assert_eq!(start.since(clock.now()), Duration::ZERO);
    });
}

#[test]
fn all_clocks_of_a_process_agree() {
    let before = SystemClock.now();
    let elsewhere = std::thread::spawn(|| SystemClock.now()).join().unwrap();
    assert!(before <= elsewhere && elsewhere <= SystemClock.now());
}

#[test]
fn all_clocks_of_a_run_of_the_host_name_it_alike() {
    assert_ne!(SystemClock.boot(), 0);
    let elsewhere = std::thread::spawn(|| SystemClock.boot()).join().unwrap();
    assert_eq!(SystemClock.boot(), elsewhere);
}

#[test]
fn the_wall_clock_shows_this_century() {
    let wall = SystemClock.wall();
    assert!(wall.seconds > 1_700_000_000 && wall.nanoseconds < 1_000_000_000);
}

#[test]
fn timeouts_end_what_waits_and_not_what_is_ready() {
    run(async {
        let clock = SystemClock;
        assert_eq!(clock::timeout_at(&clock, Instant(0), async { 5 }).await, Some(5));
        let soon = clock.now() + Duration::from_millis(2);
        assert_eq!(clock::timeout_at(&clock, soon, std::future::pending::<()>()).await, None);
        assert!(clock.now() >= soon);
        let never = clock::timeout_at(&clock, Instant(u64::MAX), clock::sleep(&clock, Duration::from_millis(1)));
        assert_eq!(never.await, Some(()));
    });
}

#[test]
fn random_numbers_are_spread_and_within_bounds() {
    for entropy in [Arc::new(SystemEntropy) as Arc<dyn Entropy>, Arc::new(SeededEntropy::new(1))] {
        let numbers: BTreeSet<u64> = (0..1000).map(|_| entropy.next_u64()).collect();
        assert_eq!(numbers.len(), 1000, "64 bits hardly ever repeat");
        let mut counts = [0; 10];
        (0..10_000).for_each(|_| counts[entropy.below(10) as usize] += 1);
        assert!(counts.iter().all(|count| (700..1300).contains(count)), "{counts:?}");
        assert_eq!(entropy.below(1), 0);
    }
}

#[test]
fn the_same_seed_gives_the_same_numbers() {
    let numbers = |seed| {
        let entropy = SeededEntropy::new(seed);
        (0..100).map(|_| entropy.next_u64()).collect::<Vec<_>>()
    };
    assert_eq!(numbers(7), numbers(7));
    assert_ne!(numbers(7), numbers(8));
}

/// Tasks run, may spawn, and run concurrently: each waits for the next one.
async fn tasks_run_concurrently(spawn: Arc<dyn Spawn>) {
    let (tell, mut told) = tokio::sync::mpsc::unbounded_channel();
    let mut previous = None;
    for number in 0..50 {
        let (release, released) = tokio::sync::oneshot::channel::<()>();
        let (tell, next) = (tell.clone(), previous.replace(release));
        let inner = spawn.clone();
        let task = async move {
            released.await.unwrap();
            tell.send(number).unwrap();
            if let Some(next) = next {
                inner.spawn_spread("releases", Box::pin(async move { next.send(()).unwrap() }));
            }
        };
        spawn.spawn("waits", Box::pin(task));
    }
    previous.unwrap().send(()).unwrap();
    for expected in (0..50).rev() {
        assert_eq!(told.recv().await, Some(expected));
    }
}

#[test]
fn tasks_run_beside_each_other() {
    run(tasks_run_concurrently(Arc::new(RuntimeSpawn)));
    let cores = Cores::start(3).unwrap();
    cores.block_on(tasks_run_concurrently(Arc::new(cores.clone())));
    cores.shutdown();
}

#[test]
fn spread_tasks_reach_every_core() {
    let cores = Cores::start(3).unwrap();
    let (tell, told) = mpsc::channel();
    let spawn = cores.clone();
    let spreader = async move {
        for _ in 0..3 {
            let tell = tell.clone();
            let name = async move { tell.send(std::thread::current().name().unwrap().to_owned()).unwrap() };
            spawn.spawn_spread("names its core", Box::pin(name));
        }
    };
    cores.spawn("spreads", Box::pin(spreader));
    let names: BTreeSet<String> = (0..3).map(|_| told.recv().unwrap()).collect();
    assert_eq!(names.len(), 3);
    cores.shutdown();
}
