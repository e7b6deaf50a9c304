//! Requests that a scheduler holds back must hold up neither the end of a session nor a connection.
//!
//! The policy of the service `mdt` is `delay`, for longer than any test takes.

use crate::common;

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use common::{raw::Raw, *};
use rpc::{
    Endpoint, Server, SessionEvent, codec,
    message::{
        MdtRequest, OstRequest, Request,
        ost::SpaceChange,
        session::{feature, frame_flag},
    },
};
use rt::{
    Address, Clock, FrameHeader, Seams,
    fault::FaultyTransport,
    memory::{self, JumpingClock, MemoryTransport},
};
use types::{InodeNumber, ObjectId, Owner};

const LEASE: Duration = Duration::from_secs(2);
/// A request that is held back is executed after hours; one that is released, at once.
const TIMEOUT: Duration = Duration::from_secs(60);

struct Stage {
    handler: Arc<Counter>,
    server: Arc<Server>,
    clock: JumpingClock,
    seams: Seams,
    address: Address,
}

impl Stage {
    async fn new(lease: Duration) -> Self {
        let handler = Counter::new(&Arc::default());
        let clock = JumpingClock::default();
        let seams = Seams { clock: Arc::new(clock.clone()), ..memory::seams(&MemoryTransport::new(), 1) };
        let server = server(&seams, &handler, lease);
        let address = server.listen(&Address::from("mds:1")).await.unwrap();
        Self { handler, server, clock, seams, address }
    }

    /// From now on `mdt` executes nothing by itself.
    fn hold_back(&self) {
        let service = self.server.service("mdt");
        service.set_policy_setting("nrs_delay_max", "65535").unwrap();
        service.set_policy_setting("nrs_delay_min", "65535").unwrap();
        service.set_policy("delay".parse().unwrap());
    }

    async fn are_held_back(&self, requests: usize) {
        soon("requests are held back", || self.server.service("mdt").statistics().waiting == requests).await;
    }

    fn effects_of(&self, number: u64) -> u32 {
        self.handler.disk.effects.lock().get(&number).copied().unwrap_or_default()
    }
}

async fn soon(what: &str, condition: impl Fn() -> bool) {
    let waited = tokio::time::timeout(TIMEOUT, until(condition)).await;
    assert!(waited.is_ok(), "not in time: {what}");
}

/// Its session, and the locks with it, lasted until the last delay was over.
#[tokio::test]
async fn a_dead_client_is_evicted_although_its_requests_are_held_back() {
    let stage = Stage::new(LEASE).await;
    stage.hold_back();
    let mut raw = Raw::connect(&stage.seams, &stage.address).await;
    raw.hello(|_| ()).await;
    let before = stage.clock.now();
    raw.request(1, 1, &effect(1)).await;
    raw.request(2, 1, &effect(2)).await;
    stage.are_held_back(2).await;
    soon("the session ends", || stage.server.sessions(TARGET).is_empty()).await;
    assert!(stage.clock.now().since(before) > LEASE);
    assert!(stage.handler.events().contains(&SessionEvent::Evicted(CLIENT)));
    assert_eq!((stage.effects_of(1), stage.effects_of(2)), (1, 1), "they arrived in time");
}

/// It is known to be alive, and its requests are held back for as long as the policy says.
#[tokio::test]
async fn requests_of_a_client_that_pings_stay_held_back() {
    let stage = Stage::new(LEASE).await;
    let import = import(&stage.seams, Endpoint::Remote(stage.address.clone().into()), quick());
    call(&import, effect(1)).await.unwrap();
    stage.hold_back();
    let asking = import.clone();
    let asked = tokio::spawn(async move { call(&asking, effect(2)).await });
    stage.are_held_back(1).await;
    let before = stage.clock.now();
    until(|| stage.clock.now().since(before) > 3 * LEASE).await;
    assert!(!asked.is_finished() && stage.effects_of(2) == 0);
    assert_eq!(stage.server.sessions(TARGET).len(), 1);
}

/// The new connection waited for the requests of the one before.
#[tokio::test]
async fn a_client_whose_requests_are_held_back_reconnects_at_once() {
    let stage = Stage::new(LONG_LEASE).await;
    let network = FaultyTransport::new(&stage.seams);
    let seams = Seams { transport: Arc::new(network.clone()), ..stage.seams.clone() };
    let import = import(&seams, Endpoint::Remote(stage.address.clone().into()), quick());
    call(&import, effect(1)).await.unwrap();
    let begun = || stage.handler.begun.load(Ordering::SeqCst);
    let first = begun();
    stage.hold_back();
    let asking = import.clone();
    let asked = tokio::spawn(async move { call(&asking, effect(2)).await });
    stage.are_held_back(1).await;
    network.reset(&stage.address);
    let answer = tokio::time::timeout(TIMEOUT, asked).await.expect("reconnected").unwrap();
    assert_eq!(answer, Ok(done()));
    assert_eq!(stage.effects_of(2), 1);
    assert!(begun() > first);
}

/// A request that waits for an overdue change asks its service late: its session may have begun to
/// end meanwhile.
#[tokio::test]
async fn a_request_that_is_queued_while_its_session_ends_is_not_held_back() {
    let stage = Stage::new(100 * LONG_LEASE).await;
    let object = ObjectId::new(InodeNumber(1), 0);
    let mut writer = Raw::connect(&stage.seams, &stage.address).await;
    let hello = writer.hello(|connect| connect.features = feature::DEADLINES).await;
    let change = SpaceChange::Truncate { size: 1 };
    let write = Request::Mdt(MdtRequest::ChangeData(OstRequest::Space(object, change, 0, Owner::default())));
    let deadline_ns = hello.header.deadline_ns + LONG_LEASE.as_nanos() as u64;
    let header = FrameHeader { deadline_ns, ..writer.header(1, 1, &write) };
    writer.send(header, codec::encode_request(&Default::default(), &write).unwrap().bytes).await;
    soon("the change is executed", || stage.handler.entered.load(Ordering::SeqCst) == 1).await;
    let mut other = Raw::connect(&stage.seams, &stage.address).await;
    other.hello_as(9, |_| ()).await;
    stage.clock.jump(2 * LONG_LEASE);
    stage.hold_back();
    let look = Request::Mdt(MdtRequest::ReadData(OstRequest::Glimpse(vec![object])));
    for _ in 0..2 {
        other.request(1, 1, &look).await;
    }
    let answer = other.receive().await.unwrap();
    assert_eq!(answer.header.flags, frame_flag::REPLY | frame_flag::RUNNING, "it waits for the change");
    let server = stage.server.clone();
    let evicting = tokio::spawn(async move { server.evict(TARGET, client(9)).await });
    // Until the eviction has begun and waits for the request: nothing tells of it.
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
    assert!(!evicting.is_finished());
    stage.handler.gate.add_permits(1);
    let evicted = tokio::time::timeout(TIMEOUT, evicting).await.expect("its session ends").unwrap();
    assert!(evicted);
}

/// A client that comes back tells the server what it has before anything else goes on.
#[tokio::test]
async fn the_control_slot_is_not_held_back() {
    let stage = Stage::new(LONG_LEASE).await;
    stage.hold_back();
    let mut raw = Raw::connect(&stage.seams, &stage.address).await;
    raw.hello(|_| ()).await;
    raw.request(1, 1, &effect(1)).await;
    raw.request(0, 1, &effect(2)).await;
    let answer = tokio::time::timeout(TIMEOUT, raw.receive()).await.expect("answered").unwrap();
    assert_eq!((answer.header.slot, answer.header.flags), (0, frame_flag::REPLY));
    assert_eq!((stage.effects_of(1), stage.effects_of(2)), (0, 1));
    stage.are_held_back(1).await;
}
