//! When the tuner of an import begins to work.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use rt::{
    BoxFuture, Seams,
    memory::{self, MemoryTransport},
};
use types::{ClientId, Credentials, FsError, InodeNumber, Slot, Xid};

use super::*;
use crate::{
    Answer, Call, Endpoint, Handler, ImportOptions, Keyring, Principal, Role, Server, ServerOptions, SessionEvent,
    message::{MdtReply, MdtRequest, Reply, Request, mdt::Unlink},
};

const TARGET: &str = "stria-MDT0000";

/// A target that has done everything already, but for removals: these it never does. It has no
/// symbolic links.
struct Ready;

impl Handler for Ready {
    fn handle(self: Arc<Self>, call: Call) -> BoxFuture<'static, Answer> {
        match call.request {
            Request::Mdt(MdtRequest::Unlink(..)) => Box::pin(std::future::pending()),
            Request::Mdt(MdtRequest::ReadLink(_)) => Box::pin(std::future::ready(Answer::new(Err(FsError::Invalid)))),
            _ => Box::pin(std::future::ready(Answer::new(Ok(Reply::Mdt(MdtReply::Done))))),
        }
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

fn question() -> Request {
    Request::Mdt(MdtRequest::StatFs)
}

/// An import of such a target with up to 16 requests in flight, and what to reach the target by.
async fn connected() -> (Seams, Arc<Server>, Import) {
    let seams = memory::seams(&MemoryTransport::new(), 1);
    let server = Server::new(seams.clone(), ServerOptions::new(Keyring::of_test()));
    server.add_target(TARGET, Arc::new(Ready), Duration::from_secs(3600));
    let address = server.listen(&rt::Address::from("mds:1")).await.unwrap();
    let import = another(&seams, Endpoint::Remote(address.into()), 1);
    import.call(question()).await.unwrap();
    (seams, server, import)
}

fn another(seams: &Seams, endpoint: Endpoint, client: u64) -> Import {
    let options = ImportOptions { rpcs_in_flight_max: 16, ..ImportOptions::default() };
    Import::new(seams.clone(), TARGET, endpoint, Principal::of_test(client, Role::Client), options, None)
}

/// Programs that ask until the answer is set.
fn load(seams: &Seams, import: &Import) -> Arc<AtomicBool> {
    let ends = Arc::<AtomicBool>::default();
    for _ in 0..64 {
        let (import, ends) = (import.clone(), ends.clone());
        let calls = async move {
            while !ends.load(Ordering::Relaxed) {
                import.call(question()).await.unwrap();
            }
        };
        seams.spawn.spawn("load", Box::pin(calls));
    }
    ends
}

/// Waits until this is so, which takes seconds at most.
async fn until(seams: &Seams, is_so: impl Fn() -> bool) {
    let looks = async {
        while !is_so() {
            seams.clock.sleep_until(seams.clock.now() + Duration::from_millis(1)).await;
        }
    };
    let deadline = seams.clock.now() + Duration::from_secs(60);
    rt::clock::timeout_at(&*seams.clock, deadline, looks).await.expect("it takes seconds at most");
}

/// Changes that never end.
async fn begin_changes(seams: &Seams, import: &Import, count: usize) {
    for _ in 0..count {
        let import = import.clone();
        let change = Unlink { parent: InodeNumber::ROOT, name: b"name".to_vec(), directory: false };
        let request = Request::Mdt(MdtRequest::Unlink(Credentials::root(), change));
        seams.spawn.spawn("change", Box::pin(async move { drop(import.call(request).await) }));
    }
    // Each has gone as far as it goes.
    for _ in 0..100 {
        let mut others_ran = false;
        let others_first = std::future::poll_fn(|context| {
            context.waker().wake_by_ref();
            if std::mem::replace(&mut others_ran, true) { std::task::Poll::Ready(()) } else { std::task::Poll::Pending }
        });
        others_first.await;
    }
}

#[tokio::test]
async fn questions_find_a_slot_beside_changes_with_what_a_tuner_chooses() {
    let (seams, _server, import) = connected().await;
    let waiting = || import.inner.turns.waiting.load(Ordering::Relaxed);
    import.inner.clone().apply(4);
    begin_changes(&seams, &import, 10).await;
    until(&seams, || import.statistics().in_flight >= 3).await;
    let deadline = seams.clock.now() + Duration::from_secs(60);
    let answered = rt::clock::timeout_at(&*seams.clock, deadline, import.call(question())).await;
    answered.expect("changes have not taken all slots").unwrap();
    assert_eq!((import.statistics().in_flight, waiting()), (3, 7), "more requests would help those that wait");
    assert_eq!(import.max_changes_in_flight(), 15, "what was set stays");
    import.inner.clone().apply(16);
    until(&seams, || import.statistics().in_flight == 10).await;
}

#[tokio::test]
async fn what_waits_because_few_changes_are_allowed_is_nothing_for_the_tuner() {
    let (seams, _server, import) = connected().await;
    import.set_max_changes_in_flight(2);
    begin_changes(&seams, &import, 5).await;
    until(&seams, || import.statistics().in_flight == 2).await;
    let turns = &import.inner.turns;
    let counted = (turns.waiting.load(Ordering::Relaxed), turns.waited.load(Ordering::Relaxed));
    assert_eq!(counted, (0, 0), "more requests in flight would not help them");
}

#[tokio::test]
async fn another_import_takes_over_the_setting_and_no_trial() {
    let (seams, _server, import) = connected().await;
    import.tune();
    let ends = load(&seams, &import);
    let setting = || import.tuning().setting();
    until(&seams, || setting().is_some()).await;
    // As in a trial.
    import.inner.clone().apply(3);
    let next = another(&seams, import.endpoint(), 2);
    next.set_like(&import);
    assert_eq!(Some(u32::from(next.inner.guarded.lock().wanted)), setting());
    ends.store(true, Ordering::Relaxed);
}

#[tokio::test]
async fn answers_that_are_errors_are_work() {
    let (_, _server, import) = connected().await;
    let work = || import.inner.measure(Instant(0)).work;
    let before = work();
    let answered = import.call(Request::Mdt(MdtRequest::ReadLink(InodeNumber::ROOT))).await;
    assert_eq!((answered.err(), work() - before), (Some(FsError::Invalid), REQUEST_WORK));
}

/// So few are never enough to be [`WATCHED_FROM`]: those that wait begin the work.
#[tokio::test]
async fn a_load_that_finds_a_setting_of_one_or_two_raises_it() {
    for few in [1, 2] {
        let (seams, _server, import) = connected().await;
        import.tune_from(few);
        assert_eq!((import.max_rpcs_in_flight(), import.tuning().mode()), (few, Mode::On));
        let ends = load(&seams, &import);
        // Farther than the first trial tries.
        until(&seams, || import.max_rpcs_in_flight() > 2 * few).await;
        ends.store(true, Ordering::Relaxed);
    }
}
