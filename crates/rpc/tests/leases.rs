//! Which leases expire, and which do not although the server received nothing.

use crate::common;

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use common::{raw::Raw, *};
use rpc::{Endpoint, ImportOptions, Server, SessionEvent};
use rt::{
    Address, BoxFuture, Clock, Seams, Spawn,
    fault::FaultyTransport,
    memory::{self, JumpingClock, MemoryTransport, RuntimeSpawn},
};
use tokio::sync::{Notify, Semaphore};
use types::ClientId;

const LEASE: Duration = Duration::from_millis(2500);

async fn serve(handler: &Arc<Counter>, lease: Duration) -> (Seams, JumpingClock, Arc<Server>, Address) {
    let clock = JumpingClock::default();
    let seams = Seams { clock: Arc::new(clock.clone()), ..memory::seams(&MemoryTransport::new(), 1) };
    let server = server(&seams, handler, lease);
    let address = server.listen(&Address::from("mds:1")).await.unwrap();
    (seams, clock, server, address)
}

/// It was silent for no longer than others may be; the server was not there to hear it.
#[tokio::test]
async fn a_server_that_stood_still_evicts_nobody_who_speaks_afterwards() {
    let handler = Counter::new(&Arc::default());
    let (seams, clock, server, address) = serve(&handler, LEASE).await;
    let mut raw = Raw::connect(&seams, &address).await;
    raw.hello(|_| ()).await;
    for xid in 1..=3 {
        clock.jump(10 * LEASE);
        // What a client that lives does several times per lease, the first time later than the
        // server's next check.
        let before = clock.now();
        until(|| clock.now().since(before) > LEASE / 3).await;
        raw.request(0, xid, &read()).await;
        assert!(raw.receive().await.is_some(), "it was evicted");
    }
    assert_eq!(server.sessions(TARGET).len(), 1);
    assert!(raw.receive().await.is_none(), "the lease of a silent client runs out");
    until(|| server.sessions(TARGET).is_empty()).await;
    assert!(handler.events().contains(&SessionEvent::Evicted(CLIENT)));
}

/// Its device hangs for longer than a lease, so not even a ping is answered; and requests are
/// repeated too seldom to show that the client lives.
#[tokio::test]
async fn a_client_keeps_its_session_however_long_its_server_takes_to_answer() {
    let handler = Arc::new(Counter { holds_pings: true, ..Counter::base(&Arc::default()) });
    let (seams, clock, _server, address) = serve(&handler, LEASE).await;
    let options = ImportOptions { resend: 10 * LEASE, ..quick() };
    let import = import(&seams, Endpoint::Remote(address.into()), options);
    call(&import, effect(1)).await.unwrap();
    let asking = import.clone();
    let asked = tokio::spawn(async move { call(&asking, gated()).await });
    let before = clock.now();
    until(|| clock.now().since(before) > 3 * LEASE).await;
    handler.gate.add_permits(1000);
    assert_eq!(asked.await.unwrap(), Ok(done()));
    let answered = clock.now();
    until(|| clock.now().since(answered) > LEASE / 2).await;
    assert!(!handler.events().contains(&SessionEvent::Evicted(CLIENT)), "{:?}", handler.events());
}

/// Cores that say that all have run only where a test allows it.
#[derive(Default)]
struct HeldUpCores {
    asked: AtomicUsize,
    ran: Arc<Notify>,
}

impl Spawn for HeldUpCores {
    fn spawn(&self, name: &'static str, future: BoxFuture<'static, ()>) {
        RuntimeSpawn.spawn(name, future);
    }

    fn all_cores_ran(&self) -> BoxFuture<'static, ()> {
        self.asked.fetch_add(1, Ordering::SeqCst);
        let ran = self.ran.clone();
        Box::pin(async move { ran.notified().await })
    }
}

/// The request of a client may have arrived at a core that has not run since.
#[tokio::test]
async fn no_lease_is_judged_before_every_core_has_read_what_arrived() {
    let handler = Counter::new(&Arc::default());
    let cores = Arc::new(HeldUpCores::default());
    let seams = Seams { spawn: cores.clone(), ..memory::seams(&MemoryTransport::new(), 1) };
    let server = server(&seams, &handler, LEASE);
    let address = server.listen(&Address::from("mds:1")).await.unwrap();
    let mut raw = Raw::connect(&seams, &address).await;
    raw.hello(|_| ()).await;
    let asked = |times| cores.asked.load(Ordering::SeqCst) == times;
    until(|| asked(1)).await;
    raw.request(0, 1, &read()).await;
    assert!(raw.receive().await.is_some());
    cores.ran.notify_one();
    until(|| asked(2)).await;
    assert_eq!(server.sessions(TARGET).len(), 1, "it was silent for long when it was judged first");
    cores.ran.notify_one();
    until(|| server.sessions(TARGET).is_empty()).await;
    assert!(handler.events().contains(&SessionEvent::Evicted(CLIENT)));
}

/// A core whose device hangs, for example.
#[tokio::test]
async fn a_core_that_never_runs_does_not_keep_clients_that_are_gone() {
    let handler = Counter::new(&Arc::default());
    let cores = Arc::new(HeldUpCores::default());
    let seams = Seams { spawn: cores.clone(), ..memory::seams(&MemoryTransport::new(), 1) };
    let server = server(&seams, &handler, Duration::from_millis(50));
    let address = server.listen(&Address::from("mds:1")).await.unwrap();
    let mut raw = Raw::connect(&seams, &address).await;
    raw.hello(|_| ()).await;
    until(|| server.sessions(TARGET).is_empty()).await;
    assert!(handler.events().contains(&SessionEvent::Evicted(CLIENT)));
    assert!(cores.asked.load(Ordering::SeqCst) > 0);
}

#[tokio::test]
async fn an_eviction_that_takes_long_holds_up_no_other() {
    let others = [client(2), client(3)];
    let handler = Arc::new(Counter { events_gate: Some(Semaphore::new(3)), ..Counter::base(&Arc::default()) });
    let (seams, _, server, address) = serve(&handler, Duration::from_millis(50)).await;
    let mut clients = Vec::new();
    for number in 1..4 {
        let mut raw = Raw::connect(&seams, &address).await;
        raw.hello_as(number, |_| ()).await;
        clients.push(raw);
    }
    let evicted = |client: ClientId| handler.events().contains(&SessionEvent::Evicted(client));
    until(|| evicted(CLIENT) && others.into_iter().all(evicted)).await;
    assert_eq!(server.sessions(TARGET).len(), 3, "the target is still being told of each");
    handler.events_gate.as_ref().unwrap().add_permits(3);
    until(|| server.sessions(TARGET).is_empty()).await;
}

/// What the connections of before were granted ends with them at once. What a session leaves that
/// ends is the business of its end, which may be over by the time that the target would be told.
#[tokio::test]
async fn a_connection_begins_while_requests_run_but_not_while_its_session_ends() {
    let handler = Counter::new(&Arc::default());
    let (seams, _clock, server, address) = serve(&handler, LONG_LEASE).await;
    let network = FaultyTransport::new(&seams);
    let seams = Seams { transport: Arc::new(network.clone()), ..seams };
    let import = import(&seams, Endpoint::Remote(address.clone().into()), quick());
    call(&import, effect(1)).await.unwrap();
    let begun = || handler.begun.load(Ordering::SeqCst);
    let first = begun();
    let asking = import.clone();
    let asked = tokio::spawn(async move { call(&asking, gated()).await });
    until(|| handler.entered.load(Ordering::SeqCst) == 2).await;
    network.reset(&address);
    until(|| begun() == first + 1).await;
    assert!(!asked.is_finished(), "the request of before still runs");
    let evicting = tokio::spawn(async move { server.evict(TARGET, CLIENT).await });
    // Until the eviction has begun and waits for the request: nothing tells of it, and the outcome
    // is the same if the connection comes first.
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
    network.reset(&address);
    handler.gate.add_permits(10);
    assert!(evicting.await.unwrap());
    assert_eq!(asked.await.unwrap(), Err(types::FsError::Evicted));
    assert_eq!(begun(), first + 1);
}
