//! Peers that have no key: what they can cost a server, and what they can make a client believe.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use crate::common;

use bytes::Bytes;
use common::{
    raw::{Raw, connect},
    *,
};
use rpc::{
    Endpoint, Import, ImportOptions, Keyring, Principal, Recovery, Role, Server, ServerOptions,
    auth::{Handshake, KeyKind, Side, Transcript},
    codec::{
        self,
        opcode::{self, Opcode},
    },
    message::session::{Challenge, Connect, Connected, Demand, Evidence, Prove, frame_flag},
};
use rt::{
    Address, BoxFuture, Frame, FrameHeader, Listener, Seams,
    memory::{self, JumpingClock, MemoryTransport},
};
use tokio::sync::watch;
use types::{FsError, FsResult, Generation, ProtocolError};

/// Most frames of a handshake before its server gives up.
const FRAMES_MAX: u64 = 16;
/// Most connections without a proof.
const CONNECTIONS_MAX: usize = 1024;

fn serve_at(seams: &Seams, disk: &Arc<Disk>) -> Arc<Server> {
    let server = Server::new(seams.clone(), ServerOptions::new(Keyring::of_test()));
    server.add_target(TARGET, Counter::new(disk), LONG_LEASE);
    server
}

fn handshake(principal: &Principal) -> Handshake<'_> {
    Handshake::begin(principal, connect(principal)).unwrap()
}

/// Whether the server has closed this connection, after whatever it sent before.
async fn is_closed(mut raw: Raw) -> bool {
    tokio::time::timeout(Duration::from_secs(60), async move { while raw.receive().await.is_some() {} }).await.is_ok()
}

#[tokio::test]
async fn large_frames_and_bulk_data_need_a_proof() {
    let seams = memory::seams(&MemoryTransport::new(), 1);
    let server = serve_at(&seams, &Arc::default());
    let address = server.listen(&Address::from("mds:1")).await.unwrap();
    let header = FrameHeader { opcode: opcode::CONNECT.0, ..FrameHeader::default() };
    for (body, bulk) in [(4097, 0), (0, 4097), (2049, 2048)] {
        let raw = Raw::connect(&seams, &address).await;
        raw.send_with(header, Bytes::from(vec![0; body]), Bytes::from(vec![0; bulk])).await;
        assert!(is_closed(raw).await, "{body} and {bulk} bytes");
    }
    let mut proven = Raw::connect(&seams, &address).await;
    proven.hello(|_| ()).await;
    let mut body = codec::encode_request(&Default::default(), &read()).unwrap().bytes.to_vec();
    body.resize(8192, 0);
    let request = proven.header(0, 1, &read());
    proven.send(request, Bytes::from(body)).await;
    assert!(is_closed(proven).await, "it was read, and is no request");
}

#[tokio::test]
async fn the_oldest_of_too_many_connections_without_proof_is_closed() {
    let seams = memory::seams(&MemoryTransport::new(), 1);
    let server = serve_at(&seams, &Arc::default());
    let address = server.listen(&Address::from("mds:1")).await.unwrap();
    let mut proven = Raw::connect(&seams, &address).await;
    proven.hello(|_| ()).await;
    let principal = principal(2);
    let mut waiting = Vec::new();
    for _ in 0..=CONNECTIONS_MAX {
        let mut raw = Raw::connect(&seams, &address).await;
        raw.ask(opcode::CONNECT, handshake(&principal).connect()).await;
        waiting.push(raw);
    }
    assert!(is_closed(waiting.remove(0)).await, "the oldest");
    let mut newest = waiting.pop().unwrap();
    let again = newest.ask(opcode::CONNECT, handshake(&principal).connect()).await;
    let proof = handshake(&principal).answer(&again.body).unwrap();
    assert_eq!(newest.ask(opcode::PROVE, proof).await.header.flags, frame_flag::REPLY);
    proven.request(0, 1, &read()).await;
    assert!(proven.receive().await.is_some(), "a proven connection is none of them");
}

#[tokio::test]
async fn a_peer_that_repeats_its_first_message_without_end_is_closed() {
    let seams = memory::seams(&MemoryTransport::new(), 1);
    let server = serve_at(&seams, &Arc::default());
    let address = server.listen(&Address::from("mds:1")).await.unwrap();
    let principal = principal(1);
    let body = handshake(&principal).connect();
    let mut raw = Raw::connect(&seams, &address).await;
    let header = FrameHeader { opcode: opcode::CONNECT.0, ..FrameHeader::default() };
    for _ in 0..FRAMES_MAX {
        raw.send(header, body.clone()).await;
    }
    let mut answers = 0;
    while raw.receive().await.is_some() {
        answers += 1;
    }
    assert_eq!(answers, FRAMES_MAX);
}

#[tokio::test]
async fn a_handshake_has_a_deadline_whatever_is_sent() {
    let seams = memory::seams(&MemoryTransport::new(), 1);
    let clock = JumpingClock::default();
    let server = serve_at(&Seams { clock: Arc::new(clock.clone()), ..seams.clone() }, &Arc::default());
    let address = server.listen(&Address::from("mds:1")).await.unwrap();
    let principal = principal(1);
    let silent = Raw::connect(&seams, &address).await;
    let mut talking = Raw::connect(&seams, &address).await;
    talking.ask(opcode::CONNECT, handshake(&principal).connect()).await;
    clock.jump(Duration::from_secs(20));
    talking.ask(opcode::CONNECT, handshake(&principal).connect()).await;
    clock.jump(Duration::from_secs(11));
    assert!(is_closed(talking).await, "its second message gave it no more time");
    assert!(is_closed(silent).await);
}

/// What the server proves must not serve as the proof of a client.
#[tokio::test]
async fn a_servers_own_proof_cannot_be_sent_back() {
    let seams = memory::seams(&MemoryTransport::new(), 1);
    let server = serve_at(&seams, &Arc::default());
    let address = server.listen(&Address::from("mds:1")).await.unwrap();
    let secret = rpc::auth::Secret::of_test(1);
    let mut raw = Raw::connect(&seams, &address).await;
    let challenge = raw.ask(opcode::CONNECT, codec::encode(&connect(&principal(1))).unwrap()).await;
    let Challenge { demand: Demand::Key { proof, .. }, .. } = codec::decode(&challenge.body).unwrap();
    let answer = raw
        .ask(opcode::PROVE, codec::encode(&Prove { evidence: Evidence::Key { proof }, secret, ticket: None }).unwrap());
    let answer = answer.await;
    assert_eq!(answer.header.flags, frame_flag::REPLY | frame_flag::ERROR);
    let error: FsError = codec::decode(&answer.body).unwrap();
    assert_eq!(error.to_string(), "the client does not have the client key of this file system");
    assert!(server.sessions(TARGET).is_empty());
}

/// A server that has forgotten all but what it stored believes an id no more than before.
#[tokio::test]
async fn a_session_cannot_be_taken_over_after_a_restart() {
    let seams = memory::seams(&MemoryTransport::new(), 1);
    let disk: Arc<Disk> = Arc::default();
    let first = serve_at(&seams, &disk);
    let address = first.listen(&Address::from("mds:1")).await.unwrap();
    let mut victim = Raw::connect(&seams, &address).await;
    let opened: Connected = codec::decode(&victim.hello(|_| ()).await.body).unwrap();
    first.stop().await;
    let second = serve_at(&seams, &disk);
    let address = second.listen(&Address::from("mds:1")).await.unwrap();
    let resume = |connect: &mut Connect| {
        (connect.resume, connect.incarnation, connect.connection) = (true, opened.incarnation, Generation(9));
    };
    let hostile = Principal::of_test(2, Role::Client).claiming(CLIENT);
    let mut stolen = connect(&hostile);
    resume(&mut stolen);
    let mut thief = Raw { ticket: opened.ticket, ..Raw::connect(&seams, &address).await };
    let answer = thief.greet(&hostile, stolen).await;
    assert_eq!(answer.header.flags, frame_flag::REPLY | frame_flag::ERROR);
    assert!(second.sessions(TARGET).is_empty());
    // Nor under the same secret in another role, in which it would have other rights.
    let mut posing = Connect { role: Role::Mdt, ..connect(&principal(1)) };
    resume(&mut posing);
    let mut mdt = Raw { ticket: opened.ticket, ..Raw::connect(&seams, &address).await };
    assert_eq!(mdt.greet(&principal(1), posing).await.header.flags, frame_flag::REPLY | frame_flag::ERROR);
    let mut back = Raw { ticket: opened.ticket, ..Raw::connect(&seams, &address).await };
    assert_eq!(back.hello(resume).await.header.flags, frame_flag::REPLY);
    assert_eq!(second.sessions(TARGET).len(), 1);
}

/// Counts the sessions that a client lost.
#[derive(Default)]
struct Evictions(AtomicU64);

impl Recovery for Evictions {
    fn recover(&self, _import: &Import, _has_lost: bool) -> BoxFuture<'_, FsResult<()>> {
        Box::pin(async { Ok(()) })
    }

    fn evicted(&self) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

/// What a false server answers to `Connect`.
type Answer = fn(&Frame) -> (u16, Bytes);

/// Answers every `Connect` like this; tells every opcode it gets.
async fn pose(mut listener: Box<dyn Listener>, answer: Answer, seen: watch::Sender<Vec<Opcode>>) {
    let mut held = Vec::new();
    while let Ok(mut connection) = listener.accept().await {
        let seen = seen.clone();
        held.push(tokio::spawn(async move {
            while let Ok(Some(frame)) = connection.receiver.receive().await {
                seen.send_modify(|seen| seen.push(Opcode(frame.header.opcode)));
                let (flags, body) = answer(&frame);
                let header = FrameHeader { flags: frame_flag::REPLY | flags, ..frame.header };
                // A client that has gone meanwhile comes again.
                let _ = connection.sender.send(Frame::new(header, body, Bytes::new()).unwrap()).await;
            }
        }));
    }
}

/// The proof of a server that has another key.
fn wrong_proof(hello: &Frame) -> (u16, Bytes) {
    let keys = Keyring::server("17".repeat(32).parse().unwrap());
    let (version, nonce) = (2, [3; 32]);
    let proof = Transcript::new(&hello.body, version, nonce).prove(keys.key(KeyKind::Client).unwrap(), Side::Server);
    (0, codec::encode(&Challenge { version, demand: Demand::Key { nonce, proof } }).unwrap())
}

fn evicted(_hello: &Frame) -> (u16, Bytes) {
    (frame_flag::ERROR, codec::encode(&FsError::Evicted).unwrap())
}

/// As a server of version 1 answers a client that speaks no version that it speaks.
fn version_1(_hello: &Frame) -> (u16, Bytes) {
    let error = FsError::from(ProtocolError::Versions {
        client: "host:1".to_owned(),
        client_versions: 2..=2,
        server: TARGET.to_owned(),
        server_versions: 1..=1,
    });
    (frame_flag::ERROR, codec::encode(&error).unwrap())
}

/// As a server of version 1 answers what it believes to be one of its clients: version,
/// features, incarnation, resumed, slots, lease.
fn connected_1(_hello: &Frame) -> (u16, Bytes) {
    (0, Bytes::from_static(b"\x07\x01\x00\x09\x00\x08\x90\x4e"))
}

/// The error of a call to a false server, after which the client has sent it nothing but `Connect`.
async fn error_at(answer: Answer) -> FsError {
    let seams = memory::seams(&MemoryTransport::new(), 1);
    let listener = seams.transport.listen(&Address::from("false:1")).await.unwrap();
    let seen = watch::Sender::default();
    let posing = tokio::spawn(pose(listener, answer, seen.clone()));
    let options = ImportOptions { timeout: Duration::from_millis(300), ..quick() };
    let import =
        Import::new(seams, TARGET, Endpoint::Remote(Address::from("false:1").into()), principal(1), options, None);
    let error = call(&import, effect(1)).await.unwrap_err();
    assert!(!seen.borrow().is_empty(), "it was asked");
    assert!(seen.borrow().iter().all(|opcode| *opcode == opcode::CONNECT), "{:?}", seen.borrow());
    posing.abort();
    error
}

#[tokio::test]
async fn a_false_server_gets_no_request_and_no_secret() {
    let error = error_at(wrong_proof).await;
    assert!(error.to_string().starts_with("stria-MDT0000 and this client have different client keys"), "{error}");
    for answer in [evicted, connected_1] {
        error_at(answer).await;
    }
}

#[tokio::test]
async fn a_server_of_an_earlier_version_is_named_as_such() {
    let error = error_at(version_1).await;
    assert_eq!(
        error.to_string(),
        "protocol error: host:1 speaks version 2 of the protocol, stria-MDT0000 speaks version 1; use the same release of \
         StriaFS on all hosts"
    );
    let error = error_at(connected_1).await.to_string();
    assert!(error.contains("did not answer the handshake in this version of the protocol"), "{error}");
}

/// A program that takes the address of a server cannot end what a client has there.
#[tokio::test]
async fn a_false_server_cannot_end_a_session() {
    let seams = memory::seams(&MemoryTransport::new(), 1);
    let disk: Arc<Disk> = Arc::default();
    let address = Address::from("mds:1");
    let first = serve_at(&seams, &disk);
    first.listen(&address).await.unwrap();
    let evictions: Arc<Evictions> = Arc::default();
    let endpoint = Endpoint::Remote(address.clone().into());
    let import = Import::new(seams.clone(), TARGET, endpoint, principal(1), quick(), Some(evictions.clone()));
    assert_eq!(call(&import, effect(1)).await, Ok(done()));
    first.stop().await;
    for answer in [evicted, wrong_proof, version_1] {
        let listener = seams.transport.listen(&address).await.unwrap();
        let seen = watch::Sender::default();
        let posing = tokio::spawn(pose(listener, answer, seen.clone()));
        // The second attempt comes after the first answer was judged.
        seen.subscribe().wait_for(|seen| seen.len() >= 2).await.unwrap();
        posing.abort();
        assert!(posing.await.unwrap_err().is_cancelled());
    }
    let again = serve_at(&seams, &disk);
    again.listen(&address).await.unwrap();
    assert_eq!(call(&import, effect(2)).await, Ok(done()), "it continues where it was");
    assert_eq!(evictions.0.load(Ordering::SeqCst), 0);
}
