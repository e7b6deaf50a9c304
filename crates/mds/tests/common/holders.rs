//! The clients of an MDT that no server serves: they hear callbacks, and do what tests say.

use std::{
    sync::{Arc, Weak},
    time::Duration,
};

use mds::Mdt;
use parking_lot::Mutex;
use rpc::{
    Clients, Handler, Parked, SessionEvent,
    message::{ClientReply, ClientRequest, client::Blocking},
};
use rt::{BoxFuture, Clock, Instant};
use tokio::sync::watch;
use types::{ClientId, FsError, FsResult};

/// After so long a test has failed.
const TIMEOUT: Duration = Duration::from_secs(30);

pub struct Holders {
    mdt: Weak<Mdt>,
    clock: Arc<dyn Clock>,
    /// How long the leases of clients last after their evictions.
    lease: Duration,
    heard: watch::Sender<Vec<(ClientId, Blocking)>>,
    told: watch::Sender<Vec<(ClientId, ClientRequest)>>,
    evicted: Mutex<Vec<(ClientId, Instant)>>,
    /// Clients that keep nothing.
    keep_nothing: Mutex<Vec<ClientId>>,
    /// Clients that say that they are busy.
    busy: Mutex<Vec<ClientId>>,
    stopped: watch::Sender<bool>,
}

impl Holders {
    pub fn of(mdt: &Arc<Mdt>, clock: Arc<dyn Clock>, lease: Duration) -> Arc<Self> {
        let holders = Arc::new(Self {
            mdt: Arc::downgrade(mdt),
            clock,
            lease,
            heard: watch::Sender::default(),
            told: watch::Sender::default(),
            evicted: Mutex::default(),
            keep_nothing: Mutex::default(),
            busy: Mutex::default(),
            stopped: watch::Sender::new(false),
        });
        mdt.served(holders.clone());
        holders
    }

    /// Waits for so many callbacks, and takes them.
    pub async fn heard(&self, count: usize) -> Vec<(ClientId, Blocking)> {
        let mut heard = self.heard.subscribe();
        let all = heard.wait_for(|heard| heard.len() >= count);
        tokio::time::timeout(TIMEOUT, all).await.expect("clients are asked").expect("the sender is kept");
        self.heard.send_replace(Vec::new())
    }

    /// Waits until clients that wait were told so often, and takes it.
    pub async fn told(&self, count: usize) -> Vec<(ClientId, ClientRequest)> {
        let mut told = self.told.subscribe();
        let all = told.wait_for(|told| told.len() >= count);
        tokio::time::timeout(TIMEOUT, all).await.expect("clients are told").expect("the sender is kept");
        self.told.send_replace(Vec::new())
    }

    /// How often clients that wait were told until now.
    pub fn told_so_far(&self) -> usize {
        self.told.borrow().len()
    }

    /// Callbacks for locks until now.
    pub fn heard_so_far(&self) -> usize {
        self.heard.borrow().len()
    }

    pub fn evicted(&self) -> Vec<(ClientId, Instant)> {
        self.evicted.lock().clone()
    }

    pub fn keeps_nothing(&self, client: ClientId) {
        self.keep_nothing.lock().push(client);
    }

    pub fn is_busy(&self, client: ClientId) {
        self.busy.lock().push(client);
    }

    pub fn stop(&self) {
        self.stopped.send_replace(true);
    }
}

impl Clients for Holders {
    fn call_back(&self, client: ClientId, request: ClientRequest) -> BoxFuture<'static, FsResult<ClientReply>> {
        let ClientRequest::Blocking(blocking) = request else {
            self.told.send_modify(|told| told.push((client, request)));
            return Box::pin(std::future::ready(Ok(ClientReply::Done)));
        };
        self.heard.send_modify(|heard| heard.push((client, blocking)));
        let answer = match () {
            () if self.keep_nothing.lock().contains(&client) => Err(FsError::NotFound),
            () if self.busy.lock().contains(&client) => Ok(ClientReply::StillBusy),
            () => Ok(ClientReply::Done),
        };
        Box::pin(std::future::ready(answer))
    }

    fn evict(&self, client: ClientId) -> BoxFuture<'static, bool> {
        self.evicted.lock().push((client, self.clock.now()));
        let mdt = self.mdt.upgrade();
        Box::pin(async move {
            let Some(mdt) = mdt else { return false };
            mdt.session_event(SessionEvent::Evicted(client)).await;
            true
        })
    }

    fn lease_end(&self, client: ClientId) -> Option<Instant> {
        let evicted = self.evicted.lock();
        evicted.iter().find(|(evicted, _)| *evicted == client).map(|(_, at)| *at + self.lease)
    }

    fn stopped(&self) -> BoxFuture<'static, ()> {
        let mut stopped = self.stopped.subscribe();
        Box::pin(async move {
            // An error means that the test is over.
            let _ = stopped.wait_for(|stopped| *stopped).await;
        })
    }

    fn park(&self, _: &'static str) -> Option<Parked> {
        None
    }
}
