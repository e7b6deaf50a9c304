//! Calls over the reliable transports and in process: an import in ordinary use.

use crate::common;

use std::sync::Arc;

use bytes::Bytes;
use common::{raw::Raw, *};
use rpc::{
    Endpoint, Import, ImportState, Question, SessionEvent,
    message::{MdtRequest, Request, mdt::Unlink, session::frame_flag},
};
use rt::{
    Address,
    buffer::BufferPool,
    memory::{self, MemoryTransport},
    real::{TcpOptions, TcpTransport},
    trace::{Origin, scoped},
};
use types::{Credentials, FsError, InodeNumber, JobName};

fn unlink() -> Request {
    let unlink = Unlink { parent: InodeNumber(1), name: b"x".to_vec(), directory: false };
    Request::Mdt(MdtRequest::Unlink(Credentials::root(), unlink))
}

/// What every transport must do alike.
async fn ordinary_life(seams: &rt::Seams, endpoint: Endpoint, handler: &Arc<Counter>) {
    let in_process = matches!(endpoint, Endpoint::Local(_));
    let import = import(seams, endpoint, quick());
    let bulk = Bytes::from(vec![7; 100_000]);
    let answered = import.call(Question::with_bulk(effect(1), bulk.clone())).await.unwrap();
    assert_eq!((answered.reply, answered.bulk), (done(), bulk));
    assert_eq!(call(&import, unlink()).await, Err(FsError::NotFound));
    assert_eq!(call(&import, read()).await, Ok(done()));
    let calls = (2..200).map(|n| {
        let import = import.clone();
        tokio::spawn(async move { call(&import, effect(n)).await })
    });
    for task in calls.collect::<Vec<_>>() {
        assert_eq!(task.await.unwrap(), Ok(done()));
    }
    assert!(handler.disk.effects.lock().values().all(|count| *count == 1));
    assert_eq!(handler.disk.effects.lock().len(), 199);
    assert_eq!(import.state(), ImportState::Full);

    let statistics = import.statistics();
    let of = |name| statistics.opcodes.iter().find(|entry| entry.name == name).unwrap();
    assert_eq!((of("mdt_clear_privileges").calls, of("mdt_clear_privileges").errors), (199, 0));
    assert_eq!((of("mdt_unlink").calls, of("mdt_unlink").errors), (1, 1));
    assert_eq!((statistics.in_flight, statistics.connections), (0, 1));

    import.close().await;
    assert_eq!(import.state(), ImportState::Closed);
    assert!(matches!(call(&import, read()).await, Err(FsError::Unreachable { .. })));
    let opened = SessionEvent::Opened { client: CLIENT, resumed: false, in_process, role: ROLE };
    assert_eq!(handler.events(), [opened, SessionEvent::Closed(CLIENT)]);
}

#[tokio::test]
async fn over_memory() {
    let seams = memory::seams(&MemoryTransport::new(), 1);
    let handler = Counter::new(&Arc::default());
    let server = server(&seams, &handler, LONG_LEASE);
    let address = server.listen(&Address::from("mds:0")).await.unwrap();
    ordinary_life(&seams, Endpoint::Remote(address.into()), &handler).await;
    let service = server.service("mdt").statistics();
    assert_eq!((service.in_flight, service.waiting, service.refused), (0, 0, 0));
    assert!(service.requests >= 201 && service.service_time.count == service.requests);
}

#[tokio::test]
async fn over_tcp() {
    let transport = TcpTransport::new(TcpOptions::default(), BufferPool::new(1 << 24));
    let seams = rt::Seams { transport: Arc::new(transport), ..memory::seams(&MemoryTransport::new(), 1) };
    let handler = Counter::new(&Arc::default());
    let server = server(&seams, &handler, LONG_LEASE);
    let address = server.listen(&Address::from("127.0.0.1:0")).await.unwrap();
    ordinary_life(&seams, Endpoint::Remote(address.into()), &handler).await;
    server.stop().await;
}

#[tokio::test]
async fn in_process() {
    let seams = memory::seams(&MemoryTransport::new(), 1);
    let handler = Counter::new(&Arc::default());
    let server = server(&seams, &handler, LONG_LEASE);
    ordinary_life(&seams, Endpoint::Local(server), &handler).await;
}

#[tokio::test]
async fn an_in_process_call_completes_in_one_poll() {
    let seams = memory::seams(&MemoryTransport::new(), 1);
    let handler = Counter::new(&Arc::default());
    let server = server(&seams, &handler, LONG_LEASE);
    let import = import(&seams, Endpoint::Local(server), quick());
    import.connected().await.unwrap();
    let mut call = Box::pin(import.call(effect(1)));
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    assert!(call.as_mut().poll(&mut context).is_ready());
}

#[tokio::test]
async fn a_dropped_in_process_call_runs_to_its_end_and_keeps_its_slot_until_then() {
    let seams = memory::seams(&MemoryTransport::new(), 1);
    let handler = Counter::new(&Arc::default());
    let server = server(&seams, &handler, LONG_LEASE);
    let import = import(&seams, Endpoint::Local(server), quick());
    import.connected().await.unwrap();
    let mut dropped = Box::pin(import.call(gated()));
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    assert!(dropped.as_mut().poll(&mut context).is_pending());
    drop(dropped);
    assert_eq!(import.statistics().in_flight, 1);
    assert_eq!(call(&import, effect(1)).await, Ok(done()));
    handler.gate.add_permits(1);
    until(|| import.statistics().in_flight == 0).await;
}

#[tokio::test]
async fn a_target_can_be_taken_out_of_its_server_and_come_back() {
    let seams = memory::seams(&MemoryTransport::new(), 1);
    let disk = Arc::default();
    let server = server(&seams, &Counter::new(&disk), LONG_LEASE);
    let address = server.listen(&Address::from("mds:0")).await.unwrap();
    let endpoints = [Endpoint::Local(server.clone()), Endpoint::Remote(address.into())];
    let imports: Vec<_> = (1..3)
        .zip(endpoints)
        .map(|(client, endpoint)| Import::new(seams.clone(), TARGET, endpoint, principal(client), quick(), None))
        .collect();
    for (number, import) in imports.iter().enumerate() {
        assert_eq!(call(import, effect(number as u64)).await, Ok(done()));
    }
    assert!(server.remove_target(TARGET).await);
    assert!(!server.remove_target(TARGET).await);
    for import in &imports {
        until(|| import.state() != ImportState::Full).await;
    }
    // To its clients it has restarted.
    server.add_target(TARGET, Counter::new(&disk), LONG_LEASE);
    for (number, import) in imports.iter().enumerate() {
        assert_eq!(call(import, effect(10 + number as u64)).await, Ok(done()));
    }
    assert!(disk.effects.lock().values().all(|count| *count == 1));
    assert!(imports.iter().all(|import| import.statistics().evictions == 0));
}

#[tokio::test]
async fn an_import_of_a_stopped_server_goes_on_with_its_successor() {
    let network = MemoryTransport::new();
    let seams = memory::seams(&network, 1);
    let disk = Arc::default();
    let first = server(&seams, &Counter::new(&disk), LONG_LEASE);
    let import = import(&seams, Endpoint::Local(first.clone()), quick());
    assert_eq!(call(&import, effect(1)).await, Ok(done()));
    first.stop().await;
    let waiting = tokio::spawn({
        let import = import.clone();
        async move { call(&import, effect(2)).await }
    });
    let handler = Counter::new(&disk);
    let second = server(&seams, &handler, LONG_LEASE);
    import.set_address(Endpoint::Local(second));
    assert_eq!(waiting.await.unwrap(), Ok(done()));
    assert_eq!(
        handler.events(),
        [SessionEvent::Opened { client: CLIENT, resumed: true, in_process: true, role: ROLE }]
    );
    assert_eq!(*disk.effects.lock(), [(1, 1), (2, 1)].into());
}

#[tokio::test]
async fn a_reply_names_the_power_loss_era_in_which_it_was_given() {
    let seams = memory::seams(&MemoryTransport::new(), 1);
    let disk = Arc::default();
    let server = server(&seams, &Counter::new(&disk), LONG_LEASE);
    let address = server.listen(&Address::from("mds:0")).await.unwrap();
    let endpoints = [Endpoint::Local(server.clone()), Endpoint::Remote(address.into())];
    let imports: Vec<_> = (1..3)
        .zip(endpoints)
        .map(|(client, endpoint)| Import::new(seams.clone(), TARGET, endpoint, principal(client), quick(), None))
        .collect();
    for era in [0, 3] {
        for import in &imports {
            let answered = import.call(effect(1)).await.unwrap();
            assert_eq!((answered.reply, answered.era), (done(), era));
        }
        assert!(server.remove_target(TARGET).await);
        server.add_target(TARGET, Arc::new(Counter { era: 3, ..Counter::base(&disk) }), LONG_LEASE);
    }
}

#[tokio::test]
async fn a_request_says_for_whom_it_is_made() {
    let seams = memory::seams(&MemoryTransport::new(), 1);
    let handler = Counter::new(&Arc::default());
    let server = server(&seams, &handler, LONG_LEASE);
    let address = server.listen(&Address::from("mds:0")).await.unwrap();
    for endpoint in [Endpoint::Local(server.clone()), Endpoint::Remote(address.into())] {
        let import = import(&seams, endpoint, quick());
        let origin = Origin { trace: 1, uid: 7, gid: 8, job: JobName::new("dd.7"), project: 9 };
        assert_eq!(scoped(origin, Box::pin(call(&import, effect(1)))).await, Ok(done()));
        let said = handler.extension.lock().clone();
        assert_eq!((said.uid, said.gid, said.job.as_str(), said.project), (7, 8, "dd.7", 9));
        import.close().await;
    }
}

/// A client that leaves does not come back for what it was still doing.
#[tokio::test]
async fn requests_beside_the_end_of_a_session_open_no_other() {
    let seams = memory::seams(&MemoryTransport::new(), 1);
    let handler = Counter::new(&Arc::default());
    let server = server(&seams, &handler, LONG_LEASE);
    let address = server.listen(&Address::from("mds:0")).await.unwrap();
    let import = import(&seams, Endpoint::Remote(address.into()), quick());
    assert_eq!(call(&import, effect(1)).await, Ok(done()));
    let (before, (), after) = tokio::join!(call(&import, gated()), import.close(), call(&import, effect(2)));
    for outcome in [before, after] {
        assert!(matches!(outcome, Err(FsError::Unreachable { .. })), "nothing is known yet: {outcome:?}");
    }
    handler.gate.add_permits(1);
    until(|| handler.events().len() > 1).await;
    assert_eq!(*handler.disk.effects.lock(), [(1, 1)].into());
    let opened = SessionEvent::Opened { client: CLIENT, resumed: false, in_process: false, role: ROLE };
    assert_eq!(handler.events(), [opened, SessionEvent::Closed(CLIENT)]);
}

/// A copy of a read and the answer to the read pass each other: the client goes on to its next
/// request while the copy is executed. It kept to the protocol, and keeps its connection.
#[tokio::test]
async fn the_request_after_an_answered_read_is_not_in_the_way_of_a_copy_of_the_read() {
    let seams = memory::seams(&MemoryTransport::new(), 1);
    let handler = Counter::new(&Arc::default());
    let server = server(&seams, &handler, LONG_LEASE);
    let address = server.listen(&Address::from("mds:0")).await.unwrap();
    let mut client = Raw::connect(&seams, &address).await;
    client.hello(|_| ()).await;
    handler.gate.add_permits(1);
    client.request(1, 1, &gated()).await;
    assert_eq!(client.receive().await.unwrap().header.flags, frame_flag::REPLY);
    client.request(1, 1, &gated()).await;
    client.request(1, 2, &effect(7)).await;
    let refused = client.receive().await.expect("the connection stays").header;
    assert_eq!((refused.xid, refused.flags), (2, frame_flag::REPLY | frame_flag::BUSY));
    handler.gate.add_permits(1);
    assert_eq!(client.receive().await.unwrap().header.xid, 1, "the second answer to the read");
    client.request(1, 2, &effect(7)).await;
    let answered = client.receive().await.unwrap().header;
    assert_eq!((answered.xid, answered.flags), (2, frame_flag::REPLY));
    assert_eq!(*handler.disk.effects.lock(), [(7, 1)].into());
}

/// As in the lab, where a process ends by dropping its tasks.
#[test]
fn a_server_whose_tasks_are_gone_leaves_nothing_behind() {
    let handler = Counter::new(&Arc::default());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let seams = memory::seams(&MemoryTransport::new(), 1);
        let server = server(&seams, &handler, LONG_LEASE);
        let address = server.listen(&Address::from("mds:0")).await.unwrap();
        let import = import(&seams, Endpoint::Remote(address.into()), quick());
        assert_eq!(call(&import, effect(1)).await, Ok(done()));
    });
    drop(runtime);
    assert_eq!(Arc::strong_count(&handler), 1);
}
