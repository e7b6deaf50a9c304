//! Shared by the tests of the management service: a clock that tests advance, and a host on which
//! to start the service.

#![allow(dead_code, reason = "every test file uses another part")]

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use kv::{Config, MemoryCold, Store};
use mgs::Mgs;
use rt::{
    BoxFuture, Clock, Instant, Seams,
    memory::{MemoryDevice, MemoryTransport, Unflushed},
};
use tokio::sync::watch;
use types::{FsResult, Timestamp};

/// A clock that a test moves; the store, which has timers of its own, uses another.
pub struct HandClock {
    pub now: watch::Sender<u64>,
    pub sleepers: AtomicU64,
}

impl HandClock {
    pub fn new() -> Arc<Self> {
        Arc::new(Self { now: watch::Sender::new(0), sleepers: AtomicU64::new(0) })
    }

    pub fn advance(&self, duration: Duration) {
        self.now.send_modify(|now| *now += duration.as_nanos() as u64);
    }
}

impl Clock for HandClock {
    fn now(&self) -> Instant {
        Instant(*self.now.borrow())
    }

    fn wall(&self) -> Timestamp {
        Timestamp::default()
    }

    fn boot(&self) -> u64 {
        1
    }

    fn sleep_until(&self, deadline: Instant) -> BoxFuture<'static, ()> {
        let mut now = self.now.subscribe();
        self.sleepers.fetch_add(1, Ordering::Relaxed);
        Box::pin(async move {
            now.wait_for(|now| *now >= deadline.0).await.expect("the clock outlives the test");
        })
    }
}

/// A host with a device, on which the service is started again and again.
pub struct Host {
    pub seams: Seams,
    pub clock: Arc<HandClock>,
    pub device: MemoryDevice,
    pub cold: MemoryCold,
}

impl Host {
    pub fn new() -> Self {
        let clock = HandClock::new();
        let seams = rt::memory::seams(&MemoryTransport::new(), 1);
        Self { seams, clock, device: MemoryDevice::new(), cold: MemoryCold::new() }
    }

    pub async fn open(&self, fsname: &str) -> FsResult<Arc<Mgs>> {
        let (device, cold) = (Arc::new(self.device.clone()), Arc::new(self.cold.clone()));
        let store = Store::open(self.seams.clone(), device, cold, Config::small(), &mut |_, _| {}).await.unwrap();
        let seams = Seams { clock: self.clock.clone(), ..self.seams.clone() };
        Mgs::open(&seams, store, fsname).await
    }

    pub fn power_loss(&mut self) {
        self.device = self.device.power_loss(&*self.seams.entropy, Unflushed::Lost);
        self.cold = self.cold.power_loss(&*self.seams.entropy);
    }
}
