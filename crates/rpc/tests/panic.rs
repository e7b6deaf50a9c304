//! A handler that panics: its request fails, its target is out of service, and all others continue.

use crate::common;

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use common::*;
use rpc::{
    Answer, Call, Endpoint, Handler, Import, Server, ServerOptions, SessionEvent,
    message::{MdtRequest, Reply, Request},
};
use rt::{
    Address, BoxFuture, Seams,
    memory::{self, MemoryTransport},
};
use tokio::sync::Semaphore;
use types::{ClientId, FsError, InodeNumber, Slot, Xid};

/// The other target of the process.
const OTHER: &str = "stria-OST0000";

/// Panics at `ClearPrivileges` of an even number at once, and of an odd one after it had to wait.
/// `GetAttributes` waits for a permit, and whatever is answered then is wrong.
struct Panics {
    gate: Semaphore,
    /// Requests that wait for a permit, or have waited.
    waiting: AtomicUsize,
    halted: AtomicBool,
    at_session: AtomicBool,
}

impl Panics {
    fn new() -> Arc<Self> {
        let at_session = AtomicBool::new(false);
        let (gate, waiting) = (Semaphore::new(0), AtomicUsize::new(0));
        Arc::new(Self { gate, waiting, halted: AtomicBool::new(false), at_session })
    }
}

impl Handler for Panics {
    fn handle(self: Arc<Self>, call: Call) -> BoxFuture<'static, Answer> {
        Box::pin(async move {
            match call.request {
                Request::Mdt(MdtRequest::ClearPrivileges(InodeNumber(n))) => {
                    if n % 2 == 1 {
                        tokio::task::yield_now().await;
                    }
                    panic!("the panic of this test");
                }
                Request::Mdt(MdtRequest::GetAttributes(_)) => {
                    self.waiting.fetch_add(1, Ordering::SeqCst);
                    self.gate.acquire().await.expect("never closed").forget();
                }
                _ => {}
            }
            Answer::new(Ok(done()))
        })
    }

    fn service(&self, _request: &Request) -> &'static str {
        "mdt"
    }

    fn persistent_reply(&self, _client: ClientId, _slot: Slot) -> Option<(Xid, Reply)> {
        None
    }

    fn halt(&self) {
        self.halted.store(true, Ordering::SeqCst);
    }

    fn session_event(self: Arc<Self>, _event: SessionEvent) -> BoxFuture<'static, ()> {
        assert!(!self.at_session.load(Ordering::SeqCst), "a panic at a session's event");
        Box::pin(std::future::ready(()))
    }
}

fn serve(seams: &Seams) -> (Arc<Server>, Arc<Panics>) {
    let (server, panics) = (Server::new(seams.clone(), ServerOptions::new(rpc::Keyring::of_test())), Panics::new());
    server.add_target(TARGET, panics.clone(), LONG_LEASE);
    server.add_target(OTHER, Panics::new(), LONG_LEASE);
    (server, panics)
}

fn connect(seams: &Seams, target: &str, endpoint: &Endpoint, client: u64) -> Import {
    let mut options = quick();
    options.timeout = Duration::from_millis(300);
    Import::new(seams.clone(), target, endpoint.clone(), principal(client), options, None)
}

/// Whether this ends within a moment.
async fn ends<T>(work: impl Future<Output = T>) -> bool {
    tokio::time::timeout(Duration::from_millis(50), work).await.is_ok()
}

#[tokio::test]
async fn a_panic_ends_its_target_and_spares_the_others() {
    for (number, is_local) in [(0, false), (1, false), (2, true), (3, true)] {
        let seams = memory::seams(&MemoryTransport::new(), 1);
        let (server, panics) = serve(&seams);
        let endpoint = match is_local {
            true => Endpoint::Local(server.clone()),
            false => Endpoint::Remote(server.listen(&Address::from("mds:1")).await.unwrap().into()),
        };
        let [one, two] = [1, 2].map(|client| connect(&seams, TARGET, &endpoint, client));
        let other = connect(&seams, OTHER, &endpoint, 3);
        for import in [&one, &other] {
            assert_eq!(call(import, Request::Mdt(MdtRequest::Ping)).await, Ok(done()));
        }
        let waits = tokio::spawn(async move { (call(&two, gated()).await, two) });
        until(|| panics.waiting.load(Ordering::SeqCst) == 1).await;
        let error = call(&one, effect(number)).await.unwrap_err();
        assert!(
            matches!(&error, FsError::Device { target, detail } if target == TARGET && detail.contains("panic")),
            "{error}"
        );
        assert!(panics.halted.load(Ordering::SeqCst), "it writes nothing more");
        assert_eq!((server.panics(TARGET), server.panics(OTHER)), (1, 0));
        // What waited is answered by nothing that the handler says now.
        panics.gate.add_permits(1);
        let (waited, two) = waits.await.unwrap();
        assert!(waited.is_err(), "{waited:?}");
        for import in [&one, &two] {
            let again = call(import, Request::Mdt(MdtRequest::Ping)).await;
            assert!(matches!(again, Err(FsError::Unreachable { .. })), "{again:?}");
        }
        assert_eq!(call(&other, Request::Mdt(MdtRequest::Ping)).await, Ok(done()), "another target");
        assert!(!ends(server.all_failed()).await);
        call(&other, effect(0)).await.unwrap_err();
        assert!(ends(server.all_failed()).await, "nothing is left to live for");
    }
}

#[tokio::test]
async fn a_panic_at_the_beginning_of_a_session_ends_the_target_too() {
    let seams = memory::seams(&MemoryTransport::new(), 1);
    let (server, panics) = serve(&seams);
    panics.at_session.store(true, Ordering::SeqCst);
    let endpoint = Endpoint::Local(server.clone());
    let refused = call(&connect(&seams, TARGET, &endpoint, 1), read()).await;
    assert!(matches!(refused, Err(FsError::Unreachable { .. })), "{refused:?}");
    assert_eq!(server.panics(TARGET), 1);
    let other = connect(&seams, OTHER, &endpoint, 3);
    assert_eq!(call(&other, Request::Mdt(MdtRequest::Ping)).await, Ok(done()));
    assert!(server.remove_target(TARGET).await);
}
