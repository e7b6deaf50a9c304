//! A handler that panics: its request has failed, and nothing else.

mod common;

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use common::*;
use rpc::{
    Answer, Call, Endpoint, Handler, Server, ServerOptions, SessionEvent,
    message::{MdtRequest, Reply, Request},
};
use rt::{
    Address, BoxFuture,
    memory::{self, MemoryTransport},
};
use types::{ClientId, FsError, InodeNumber, Slot, Xid};

/// Panics at the first `ClearPrivileges` of an even number at once, and of an odd one after it had to wait.
#[derive(Default)]
struct Panics {
    panicked: [AtomicBool; 2],
}

impl Handler for Panics {
    fn handle(self: Arc<Self>, call: Call) -> BoxFuture<'static, Answer> {
        Box::pin(async move {
            if let Request::Mdt(MdtRequest::ClearPrivileges(InodeNumber(n))) = call.request {
                let waits = n % 2 == 1;
                if waits {
                    tokio::task::yield_now().await;
                }
                let before = self.panicked[usize::from(waits)].swap(true, Ordering::SeqCst);
                assert!(before, "the panic of this test");
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

    fn session_event(self: Arc<Self>, _event: SessionEvent) -> BoxFuture<'static, ()> {
        Box::pin(std::future::ready(()))
    }
}

/// Its slot was running for ever: its client was told so again and again, and the session could not end.
#[tokio::test]
async fn a_handlers_panic_ends_its_request_and_not_the_session() {
    let seams = memory::seams(&MemoryTransport::new(), 1);
    let server = Server::new(seams.clone(), ServerOptions::default());
    server.add_target(TARGET, Arc::new(Panics::default()), LONG_LEASE);
    let address = server.listen(&Address::from("mds:1")).await.unwrap();
    let import = import(&seams, Endpoint::Remote(address), quick());
    for number in 0..2 {
        let error = call(&import, effect(number)).await.unwrap_err();
        assert!(matches!(&error, FsError::Device { target, .. } if target == TARGET), "{error}");
        assert_eq!(call(&import, effect(number)).await, Ok(done()));
    }
    assert!(server.evict(TARGET, CLIENT).await, "nothing runs");
    assert!(server.remove_target(TARGET).await);
}
