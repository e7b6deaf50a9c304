//! When the tuner of an import begins to work.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use rt::{
    BoxFuture,
    memory::{self, MemoryTransport},
};
use types::{ClientId, Slot, Xid};

use super::*;
use crate::{
    Answer, Call, Endpoint, Handler, ImportOptions, Keyring, Principal, Role, Server, ServerOptions, SessionEvent,
    message::{MdtReply, MdtRequest, Reply, Request},
};

const TARGET: &str = "stria-MDT0000";

/// A target that has done everything already.
struct Ready;

impl Handler for Ready {
    fn handle(self: Arc<Self>, _: Call) -> BoxFuture<'static, Answer> {
        Box::pin(std::future::ready(Answer::new(Ok(Reply::Mdt(MdtReply::Done)))))
    }

    fn service(&self, _: &Request) -> &'static str {
        "mdt"
    }

    fn persistent_reply(&self, _: ClientId, _: Slot) -> Option<(Xid, Reply)> {
        None
    }

    fn session_event(self: Arc<Self>, _: SessionEvent) -> BoxFuture<'static, ()> {
        Box::pin(std::future::ready(()))
    }
}

/// So few are never enough to be [`WATCHED_FROM`]: those that wait begin the work.
#[tokio::test]
async fn a_load_that_finds_a_setting_of_one_or_two_raises_it() {
    for few in [1, 2] {
        let seams = memory::seams(&MemoryTransport::new(), 1);
        let server = Server::new(seams.clone(), ServerOptions::new(Keyring::of_test()));
        server.add_target(TARGET, Arc::new(Ready), Duration::from_secs(3600));
        let address = server.listen(&rt::Address::from("mds:1")).await.unwrap();
        let options = ImportOptions { rpcs_in_flight_max: 16, ..ImportOptions::default() };
        let principal = Principal::of_test(1, Role::Client);
        let import = Import::new(seams.clone(), TARGET, Endpoint::Remote(address.into()), principal, options, None);
        let request = || Request::Mdt(MdtRequest::StatFs);
        import.call(request()).await.unwrap();
        import.tune_from(few);
        assert_eq!((import.max_rpcs_in_flight(), import.tuning().mode()), (few, Mode::On));

        let ends = Arc::<AtomicBool>::default();
        for _ in 0..64 {
            let (import, ends) = (import.clone(), ends.clone());
            let calls = async move {
                while !ends.load(Ordering::Relaxed) {
                    import.call(request()).await.unwrap();
                }
            };
            seams.spawn.spawn("load", Box::pin(calls));
        }
        // Farther than the first trial tries.
        let rises = async {
            while import.max_rpcs_in_flight() <= 2 * few {
                seams.clock.sleep_until(seams.clock.now() + Duration::from_millis(1)).await;
            }
        };
        let deadline = seams.clock.now() + Duration::from_secs(60);
        rt::clock::timeout_at(&*seams.clock, deadline, rises).await.expect("it rises within seconds");
        ends.store(true, Ordering::Relaxed);
    }
}
