//! Requests of a target to its clients.

use crate::common;

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use common::{raw::Raw, *};
use rpc::{
    Endpoint, Import, Principal, Recovery, Role, codec,
    message::{
        ClientReply, ClientRequest,
        client::Blocking,
        lock::{CacheMode, InodeBits, Resource, inode_bit},
        session::frame_flag,
    },
};
use rt::{
    Address, BoxFuture, FrameHeader, Seams,
    memory::{self, MemoryTransport},
};
use tokio::sync::Semaphore;
use types::{ClientId, FsError, FsResult, InodeNumber, LockHandle};

/// Counts the callbacks it executes, and keeps those of type `Blocking` waiting at its gate.
struct Holder {
    executed: AtomicU64,
    entered: AtomicUsize,
    gate: Arc<Semaphore>,
}

impl Holder {
    fn new() -> Arc<Self> {
        let gate = Arc::new(Semaphore::new(0));
        Arc::new(Self { executed: AtomicU64::new(0), entered: AtomicUsize::new(0), gate })
    }
}

impl Recovery for Holder {
    fn recover(&self, _: &Import, _: bool) -> BoxFuture<'_, FsResult<()>> {
        Box::pin(std::future::ready(Ok(())))
    }

    fn call_back(&self, request: ClientRequest) -> BoxFuture<'static, FsResult<ClientReply>> {
        self.entered.fetch_add(1, Ordering::SeqCst);
        self.executed.fetch_add(1, Ordering::SeqCst);
        let gate = self.gate.clone();
        Box::pin(async move {
            match request {
                ClientRequest::Ping => Ok(ClientReply::Done),
                ClientRequest::Blocking(_) => {
                    gate.acquire().await.expect("never closed").forget();
                    Ok(ClientReply::Done)
                }
                _ => Err(FsError::NotFound),
            }
        })
    }
}

fn blocking() -> ClientRequest {
    let resource = Resource::Inode(InodeNumber(1), InodeBits(inode_bit::LOOKUP));
    ClientRequest::Blocking(Blocking { handle: LockHandle(7), resource, mode: CacheMode::Write })
}

fn holding(seams: &Seams, endpoint: Endpoint, holder: &Arc<Holder>) -> (Import, ClientId) {
    let principal = Principal::of_test(1, Role::Client);
    let client = principal.client();
    (Import::new(seams.clone(), TARGET, endpoint, principal, quick(), Some(holder.clone())), client)
}

#[tokio::test]
async fn a_client_answers_its_target_in_process_and_over_a_network() {
    let seams = memory::seams(&MemoryTransport::new(), 1);
    let server = server(&seams, &Counter::new(&Default::default()), LONG_LEASE);
    for endpoint in [Endpoint::Remote(listen(&server).await.into()), Endpoint::Local(server.clone())] {
        let holder = Holder::new();
        let (import, client) = holding(&seams, endpoint, &holder);
        import.connected().await.unwrap();
        assert_eq!(server.call_back(TARGET, client, ClientRequest::Ping).await, Ok(ClientReply::Done));
        let glimpse = ClientRequest::Glimpse(LockHandle(9));
        assert_eq!(server.call_back(TARGET, client, glimpse).await, Err(FsError::NotFound));
        assert_eq!(holder.executed.load(Ordering::SeqCst), 2);
        import.close().await;
        assert_eq!(server.call_back(TARGET, client, ClientRequest::Ping).await, Err(FsError::Evicted));
    }
    assert_eq!(server.call_back("nobody", ClientId(1), ClientRequest::Ping).await, Err(FsError::NoDevice));
}

/// Callbacks that wait for the client, more of them than it has threads or slots for requests, are
/// in the way of no request, and requests that wait are in the way of no callback.
#[tokio::test]
async fn callbacks_and_requests_wait_for_each_other_never() {
    let seams = memory::seams(&MemoryTransport::new(), 1);
    let handler = Counter::new(&Default::default());
    let server = server(&seams, &handler, LONG_LEASE);
    let holder = Holder::new();
    let (import, client) = holding(&seams, Endpoint::Remote(listen(&server).await.into()), &holder);
    import.set_max_rpcs_in_flight(4);
    import.connected().await.unwrap();
    let requests: Vec<_> = (0..10)
        .map(|_| {
            let import = import.clone();
            tokio::spawn(async move { call(&import, gated()).await })
        })
        .collect();
    until(|| handler.entered.load(Ordering::SeqCst) == 4).await;
    let callbacks: Vec<_> = (0..20)
        .map(|_| {
            let server = server.clone();
            tokio::spawn(async move { server.call_back(TARGET, client, blocking()).await })
        })
        .collect();
    until(|| holder.entered.load(Ordering::SeqCst) == 20).await;
    assert_eq!(server.call_back(TARGET, client, ClientRequest::Ping).await, Ok(ClientReply::Done));
    holder.gate.add_permits(20);
    for callback in callbacks {
        assert_eq!(callback.await.unwrap(), Ok(ClientReply::Done));
    }
    handler.gate.add_permits(10);
    for request in requests {
        assert_eq!(request.await.unwrap(), Ok(done()));
    }
}

/// A client that owes as many answers as it may is not asked more, and the session's end tells all
/// that wait for it.
#[tokio::test]
async fn answers_that_nobody_gives_are_bounded_and_end_with_the_session() {
    let seams = memory::seams(&MemoryTransport::new(), 1);
    let server = server(&seams, &Counter::new(&Default::default()), LONG_LEASE);
    let holder = Holder::new();
    let (import, client) = holding(&seams, Endpoint::Remote(listen(&server).await.into()), &holder);
    import.connected().await.unwrap();
    let slots = usize::from(types::limits::CALLBACK_SLOTS);
    let waiting: Vec<_> = (0..slots)
        .map(|_| {
            let server = server.clone();
            tokio::spawn(async move { server.call_back(TARGET, client, blocking()).await })
        })
        .collect();
    until(|| holder.entered.load(Ordering::SeqCst) == slots).await;
    assert_eq!(server.call_back(TARGET, client, ClientRequest::Ping).await, Err(FsError::Busy));
    assert!(server.evict(TARGET, client).await);
    for callback in waiting {
        assert_eq!(callback.await.unwrap(), Err(FsError::Evicted));
    }
}

/// The connection breaks while the client executes callbacks, again and again: each is executed
/// once and answered.
#[tokio::test]
async fn a_callback_is_executed_once_across_connections() {
    let transport = MemoryTransport::new();
    let seams = memory::seams(&transport, 1);
    let server = server(&seams, &Counter::new(&Default::default()), LONG_LEASE);
    let holder = Holder::new();
    let (import, client) = holding(&seams, Endpoint::Remote(listen(&server).await.into()), &holder);
    import.connected().await.unwrap();
    for round in 1..=5 {
        let waiting = tokio::spawn({
            let server = server.clone();
            async move { server.call_back(TARGET, client, blocking()).await }
        });
        until(|| holder.entered.load(Ordering::SeqCst) == round).await;
        let connections = import.statistics().connections;
        let elsewhere = listen_elsewhere(&server, round).await;
        import.set_address(Endpoint::Remote(elsewhere.into()));
        until(|| import.statistics().connections > connections).await;
        holder.gate.add_permits(1);
        assert_eq!(waiting.await.unwrap(), Ok(ClientReply::Done));
        assert_eq!(holder.executed.load(Ordering::SeqCst), round as u64, "executed once");
    }
}

async fn listen_elsewhere(server: &Arc<rpc::Server>, number: usize) -> Address {
    server.listen(&Address::from(format!("elsewhere{number}:1").as_str())).await.unwrap()
}

/// A peer that answers what nobody asked, twice, with another number or with garbage, harms nobody.
#[tokio::test]
async fn answers_that_nobody_asked_for_are_ignored_and_garbage_closes_the_connection() {
    let seams = memory::seams(&MemoryTransport::new(), 1);
    let server = server(&seams, &Counter::new(&Default::default()), LONG_LEASE);
    let address = listen(&server).await;
    let mut raw = Raw::connect(&seams, &address).await;
    raw.hello(|_| {}).await;
    let flags = frame_flag::CALLBACK | frame_flag::REPLY;
    let header = FrameHeader { flags, slot: 3, xid: 12, opcode: 0x0400, ..raw.header(0, 0, &read()) };
    let reply = codec::encode(&ClientReply::Done).unwrap();
    raw.send(header, reply.clone()).await;
    raw.send(header, reply).await;
    raw.request(1, 1, &read()).await;
    assert_eq!(raw.receive().await.expect("the connection goes on").header.xid, 1);
    raw.send(header, Bytes::from_static(b"\xff\xff\xff")).await;
    assert!(raw.receive().await.is_none(), "closed");
}

/// A target that asks what no lock manager of this build understands is told so.
#[tokio::test]
async fn a_client_that_keeps_nothing_says_so() {
    let seams = memory::seams(&MemoryTransport::new(), 1);
    let server = server(&seams, &Counter::new(&Default::default()), LONG_LEASE);
    let import = import(&seams, Endpoint::Remote(listen(&server).await.into()), quick());
    import.connected().await.unwrap();
    let answer = tokio::time::timeout(Duration::from_secs(20), server.call_back(TARGET, import.client(), blocking()));
    assert_eq!(answer.await.unwrap(), Err(FsError::NotFound));
}
