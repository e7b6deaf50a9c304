//! Rate limits of targets in virtual time, where they must be exact.

use std::{sync::Arc, time::Duration};

use lab::{Process, ProcessId, Simulation, executor::RunLimits, network::Network};
use oss::{RateLimit, rate_limit::BURST};
use parking_lot::Mutex;
use rt::{Instant, Seams};

const MIB: u64 = 1 << 20;

/// Runs `work` in a world of its own, one second after its beginning.
fn in_virtual_time<T, F>(work: impl FnOnce(Simulation, Seams) -> F) -> T
where
    T: Send + 'static,
    F: Future<Output = T> + Send + 'static,
{
    let simulation = Simulation::new(1);
    let network = Network::new(&simulation, 1);
    let seams = Process::start(&simulation, &network, ProcessId(1), "oss", 1).seams();
    let (world, work) = (simulation.clone(), work(simulation.clone(), seams));
    let outcome = simulation.run(RunLimits::default(), async move {
        world.sleep(Duration::from_secs(1)).await;
        work.await
    });
    simulation.end();
    outcome.unwrap()
}

/// Sends `requests` of so many bytes at once; when each was served, by the clock.
async fn served(seams: Seams, limit: Arc<RateLimit>, requests: Vec<u64>) -> Vec<(usize, Instant)> {
    let ends = Arc::new(Mutex::new(Vec::new()));
    let (done, mut all_done) = tokio::sync::mpsc::channel::<()>(1);
    for (number, bytes) in requests.into_iter().enumerate() {
        let (limit, clock, ends, done) = (limit.clone(), seams.clock.clone(), ends.clone(), done.clone());
        let request = async move {
            limit.pass(&*clock, bytes).await;
            ends.lock().push((number, clock.now()));
            drop(done);
        };
        seams.spawn.spawn("request", Box::pin(request));
        // Let it queue before the next one: the executor draws which of several ready tasks runs
        // first.
        rt::clock::sleep(&*seams.clock, Duration::from_nanos(1)).await;
    }
    drop(done);
    all_done.recv().await;
    std::mem::take(&mut *ends.lock())
}

#[test]
fn requests_are_served_in_order_each_in_its_time() {
    let (start, ends) = in_virtual_time(|_, seams| async move {
        let limit = Arc::new(RateLimit::default());
        limit.set_bytes_per_second(100 * MIB);
        limit.set_latency(Duration::from_millis(2));
        let start = seams.clock.now();
        (start, served(seams, limit, vec![MIB, 2 * MIB, MIB]).await)
    });
    // 12, 22 and 12 ms, the first of which begins with what an idle device has saved.
    let saved = start.0 - BURST.as_nanos() as u64;
    let at = |ms: u64| Instant(saved + ms * 1_000_000);
    assert_eq!(ends, [(0, at(12)), (1, at(34)), (2, at(46))]);
}

#[test]
fn a_limit_that_is_off_takes_no_time() {
    let (start, ends) = in_virtual_time(|_, seams| async move {
        let start = seams.clock.now();
        (start, served(seams, Arc::default(), vec![1 << 30; 2]).await)
    });
    assert!(ends.iter().all(|(number, end)| end.0 == start.0 + *number as u64), "{ends:?}");
}

#[test]
fn a_request_that_gives_up_costs_nothing() {
    let (start, ends) = in_virtual_time(|simulation, seams| async move {
        let limit = Arc::new(RateLimit::default());
        limit.set_bytes_per_second(MIB);
        let start = seams.clock.now();
        let (abandoned, clock) = (limit.clone(), seams.clock.clone());
        simulation.spawn(ProcessId(2), "abandoned", Box::pin(async move { abandoned.pass(&*clock, 1000 * MIB).await }));
        simulation.sleep(Duration::from_millis(100)).await;
        simulation.kill(ProcessId(2));
        (start, served(seams, limit, vec![MIB]).await)
    });
    let begun = start.0 + 100_000_000 - BURST.as_nanos() as u64;
    assert_eq!(ends, [(0, Instant(begun + 1_000_000_000))]);
}
