//! Imports whose callers do not wait: those of deactivated targets.

use crate::common;

use std::{sync::Arc, time::Duration};

use common::*;
use parking_lot::Mutex;
use rpc::{Endpoint, ImportOptions, ImportState};
use rt::{
    Address, BoxFuture, Clock, Instant, Seams,
    memory::{self, MemoryTransport},
};
use types::{FsError, Timestamp};

/// A clock that notes how long its users want to sleep.
struct Noting {
    clock: Arc<dyn Clock>,
    slept: Mutex<Vec<Duration>>,
}

impl Clock for Noting {
    fn now(&self) -> Instant {
        self.clock.now()
    }

    fn wall(&self) -> Timestamp {
        self.clock.wall()
    }

    fn boot(&self) -> u64 {
        self.clock.boot()
    }

    fn sleep_until(&self, deadline: Instant) -> BoxFuture<'static, ()> {
        self.slept.lock().push(deadline.since(self.now()));
        self.clock.sleep_until(deadline)
    }
}

fn without_waiting() -> ImportOptions {
    ImportOptions { timeout: Duration::ZERO, ..quick() }
}

/// Its driver looked every millisecond whether somebody had waited too long.
#[tokio::test]
async fn an_import_that_nobody_calls_sets_no_timer_for_those_who_call() {
    let seams = memory::seams(&MemoryTransport::new(), 1);
    let server = server(&seams, &Counter::new(&Arc::default()), LONG_LEASE);
    let clock = Arc::new(Noting { clock: seams.clock.clone(), slept: Mutex::default() });
    let seams = Seams { clock: clock.clone(), ..seams };
    let options = ImportOptions { connect_timeout: LONG_LEASE, ..without_waiting() };
    let import = import(&seams, Endpoint::Local(server), options);
    until(|| import.state() == ImportState::Full).await;
    let slept = clock.slept.lock().clone();
    assert!(slept.iter().all(|pause| *pause > Duration::from_secs(60)), "{slept:?}");
}

#[tokio::test]
async fn a_call_that_is_not_answered_at_once_is_given_up_whenever_it_begins() {
    let seams = memory::seams(&MemoryTransport::new(), 1);
    let handler = Counter::new(&Arc::default());
    let server = server(&seams, &handler, LONG_LEASE);
    let address = server.listen(&Address::from("mds:1")).await.unwrap();
    let import = import(&seams, Endpoint::Remote(address.into()), without_waiting());
    until(|| import.state() == ImportState::Full).await;
    for _ in 0..2 {
        assert!(matches!(call(&import, gated()).await, Err(FsError::Unreachable { .. })));
    }
    import.set_timeout(LONG_LEASE);
    assert_eq!(call(&import, effect(1)).await, Ok(done()));
    handler.gate.add_permits(3);
    assert_eq!(call(&import, gated()).await, Ok(done()));
}

#[tokio::test]
async fn a_call_that_waits_is_given_up_when_its_target_goes_out_of_use() {
    let seams = memory::seams(&MemoryTransport::new(), 1);
    let handler = Counter::new(&Arc::default());
    let server = server(&seams, &handler, LONG_LEASE);
    let address = server.listen(&Address::from("mds:1")).await.unwrap();
    let import = import(&seams, Endpoint::Remote(address.into()), quick());
    let waiting = tokio::spawn({
        let import = import.clone();
        async move { call(&import, gated()).await }
    });
    until(|| import.statistics().in_flight == 1).await;
    import.set_timeout(Duration::ZERO);
    assert!(matches!(waiting.await.unwrap(), Err(FsError::Unreachable { .. })));
}
