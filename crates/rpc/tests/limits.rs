//! A target with the largest allowed number of clients.

use crate::common;

use common::{raw::Raw, *};
use rpc::{
    Endpoint, Import, Server, ServerOptions, codec,
    message::session::{Connect, Connected, frame_flag},
};
use rt::{
    Address, Seams,
    memory::{self, MemoryTransport},
};
use types::{FsError, Generation};

async fn serve(seams: &Seams, sessions_max: usize) -> (std::sync::Arc<Server>, Address) {
    let server =
        Server::new(seams.clone(), ServerOptions { sessions_max, ..ServerOptions::new(rpc::Keyring::of_test()) });
    server.add_target(TARGET, Counter::new(&Default::default()), LONG_LEASE);
    let address = server.listen(&Address::from("mds:1")).await.unwrap();
    (server, address)
}

#[tokio::test]
async fn a_newcomer_is_refused_and_those_who_are_there_go_on() {
    let seams = memory::seams(&MemoryTransport::new(), 1);
    let (server, address) = serve(&seams, 2).await;
    let connect = |number, endpoint| Import::new(seams.clone(), TARGET, endpoint, principal(number), quick(), None);
    let remote = |number| connect(number, Endpoint::Remote(address.clone().into()));
    let (first, second) = (remote(1), remote(2));
    for import in [&first, &second] {
        assert_eq!(call(import, effect(1)).await, Ok(done()));
    }
    let third = remote(3);
    let refused = call(&third, effect(2)).await;
    let Err(FsError::TooMany(full)) = refused else { panic!("{refused:?}") };
    let text = full.to_string();
    assert!(text.starts_with("stria-MDT0000 has 2 clients") && text.contains("unmount some"), "{text}");
    for import in [&first, &second] {
        assert_eq!(call(import, effect(3)).await, Ok(done()));
    }
    let mount = connect(4, Endpoint::Local(server.clone()));
    assert_eq!(call(&mount, effect(4)).await, Ok(done()), "the server's own process is no newcomer");
    // Closed first: else they would come back as newcomers.
    for (import, number) in [(first, 1), (mount, 4)] {
        import.close().await;
        server.evict(TARGET, client(number)).await;
    }
    until(|| server.sessions(TARGET).len() < 2).await;
    // It asks again by itself.
    while call(&third, effect(5)).await.is_err() {
        tokio::task::yield_now().await;
    }
}

/// As many newcomers as there may be must not keep a client out that comes back after a restart,
/// also not if they say that they come back.
#[tokio::test]
async fn a_returning_client_gets_a_session_and_a_newcomer_cannot_pose_as_one() {
    let seams = memory::seams(&MemoryTransport::new(), 1);
    let (first, address) = serve(&seams, 1).await;
    let opened: Connected =
        codec::decode(&Raw::connect(&seams, &address).await.hello(|_| ()).await.body).expect("a session");
    first.stop().await;
    let (server, address) = serve(&seams, 1).await;
    let mut newcomer = Raw::connect(&seams, &address).await;
    assert_eq!(newcomer.hello_as(7, |_| ()).await.header.flags, frame_flag::REPLY);
    let resume = |connect: &mut Connect| {
        (connect.resume, connect.incarnation, connect.connection) = (true, opened.incarnation, Generation(5));
    };
    for ticket in [None, opened.ticket] {
        let mut posing = Raw { ticket, ..Raw::connect(&seams, &address).await };
        let answer = posing.hello_as(8, resume).await;
        assert_eq!(answer.header.flags, frame_flag::REPLY | frame_flag::ERROR, "it has no ticket of its own");
        assert_eq!(server.sessions(TARGET).len(), 1);
    }
    let mut back = Raw { ticket: opened.ticket, ..Raw::connect(&seams, &address).await };
    assert_eq!(back.hello(resume).await.header.flags, frame_flag::REPLY);
    assert_eq!(server.sessions(TARGET).len(), 2);
}

#[tokio::test]
async fn names_are_bounded_before_anything_is_kept() {
    let seams = memory::seams(&MemoryTransport::new(), 1);
    let (server, address) = serve(&seams, 10).await;
    let long = "x".repeat(1000);
    for (client_name, target) in [(&long[..], TARGET), ("two\nlines", TARGET), ("c", &long[..])] {
        let mut raw = Raw::connect(&seams, &address).await;
        let answer = raw
            .hello(|connect| {
                connect.client_name = client_name.to_owned();
                connect.target = target.to_owned();
            })
            .await;
        assert_eq!(answer.header.flags, frame_flag::REPLY | frame_flag::ERROR);
        let error: FsError = codec::decode(&answer.body).unwrap();
        assert!(matches!(&error, FsError::Refused(refusal) if refusal.to_string().len() < 200), "{error}");
        assert!(server.sessions(TARGET).is_empty());
    }
    // A host that has a long name is served under the part that fits.
    let import = Import::new(seams, TARGET, Endpoint::Remote(address.into()), principal(1).named(&long), quick(), None);
    assert_eq!(import.call(effect(1)).await.map(|answered| answered.reply), Ok(done()));
    assert_eq!(server.sessions(TARGET)[0].client_name.len(), 255);
}
