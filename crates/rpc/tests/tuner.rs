//! The tuner of the requests in flight to a target. How well it finds the best number is tested
//! with the tuner; here, that it is asked and obeyed.

use crate::common;

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use common::*;
use rpc::{Decision, Endpoint, Import, ImportOptions, Mode};
use rt::memory::{self, MemoryTransport};

const LONG_LEASE: Duration = Duration::from_secs(3600);
/// The largest number of requests in flight.
const MOST: u16 = 16;

fn tuned() -> ImportOptions {
    ImportOptions { rpcs_in_flight_max: MOST, ..quick() }
}

/// Programs that call all the time, until this is dropped.
struct Load(Arc<AtomicBool>);

impl Load {
    fn new(import: &Import) -> Self {
        let ends = Arc::<AtomicBool>::default();
        for number in 0..3 * u64::from(MOST) {
            let (import, ends) = (import.clone(), ends.clone());
            tokio::spawn(async move {
                while !ends.load(Ordering::Relaxed) {
                    assert_eq!(call(&import, effect(number)).await, Ok(done()));
                    tokio::task::yield_now().await;
                }
            });
        }
        Self(ends)
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Waits for the tuner's decision after this one.
async fn decision(import: &Import, number: usize) -> Decision {
    let decided = until(|| import.tuning().log().len() > number);
    tokio::time::timeout(Duration::from_secs(120), decided).await.expect("the tuner decides within seconds");
    import.tuning().log()[number]
}

#[tokio::test]
async fn the_number_of_requests_in_flight_is_tuned() {
    let seams = memory::seams(&MemoryTransport::new(), 1);
    let handler = Counter::new(&Arc::default());
    let server = server(&seams, &handler, LONG_LEASE);
    let endpoint = Endpoint::Remote(listen(&server).await.into());
    let import = import(&seams, endpoint, tuned());
    assert_eq!(import.tuning().mode(), Mode::Off, "until it is switched on");
    import.tune();
    assert_eq!(import.tuning().mode(), Mode::On);
    let other = Import::new(
        seams.clone(),
        TARGET,
        import.endpoint(),
        principal(2),
        ImportOptions { tunes: true, ..tuned() },
        None,
    );
    assert_eq!(other.tuning().mode(), Mode::On, "from the beginning");
    assert_eq!(call(&import, effect(1)).await, Ok(done()));
    let load = Load::new(&import);
    let first = decision(&import, 0).await;
    assert_eq!(first.from, 16, "it begins with what was configured: {first}");
    assert!(import.max_rpcs_in_flight() <= MOST);

    assert_eq!(import.rpcs_in_flight_limit(), MOST);

    import.set_max_rpcs_in_flight(5);
    assert_eq!(import.tuning().mode(), Mode::ByHand);
    let decided = import.tuning().log().len();
    let before = import.statistics().opcodes[0].calls;
    until(|| import.statistics().opcodes[0].calls > before + 1000).await;
    assert_eq!((import.max_rpcs_in_flight(), import.tuning().log().len()), (5, decided));

    import.tune();
    decision(&import, 0).await;
    assert!(import.max_rpcs_in_flight() <= 5, "what was set by hand is the limit");
    import.stop_tuning();
    assert_eq!((import.max_rpcs_in_flight(), import.tuning().mode()), (5, Mode::Off));
    drop(load);
}
