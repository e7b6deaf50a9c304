//! Who is let in, and who is not.

use crate::common;

use bytes::Bytes;
use common::{
    raw::{self, Raw},
    *,
};
use rpc::{
    Endpoint, Import, Keyring, Principal, Role, Server, ServerOptions,
    auth::{Handshake, KeyKind},
    codec::{self, opcode},
    message::{
        OstRequest, Request,
        session::{Connect, Connected, frame_flag},
    },
};
use rt::{
    Address, FrameHeader, Seams,
    memory::{self, MemoryTransport},
};
use types::{FsError, Generation};

/// A server of one target over the network.
async fn serve(keys: Keyring) -> (Seams, std::sync::Arc<Server>, Address) {
    let seams = memory::seams(&MemoryTransport::new(), 1);
    let server = Server::new(seams.clone(), ServerOptions::new(keys));
    server.add_target(TARGET, Counter::new(&Default::default()), LONG_LEASE);
    let address = server.listen(&Address::from("mds:1")).await.unwrap();
    (seams, server, address)
}

fn keyring(digit: &str) -> Keyring {
    Keyring::server(digit.repeat(64).parse().unwrap())
}

/// What a client has that got the key of clients only.
fn of_clients(servers: &Keyring) -> Keyring {
    Keyring::client(servers.key(KeyKind::Client).unwrap().clone())
}

/// Why a client of this role with these keys gets no session.
async fn refusal(servers: Keyring, role: Role, keys: Keyring) -> String {
    let (seams, server, address) = serve(servers).await;
    let principal = Principal::random(&*seams.entropy, role, "host", "host:1", keys);
    let import = Import::new(seams, TARGET, Endpoint::Remote(address.into()), principal, quick(), None);
    let error = call(&import, read()).await.unwrap_err();
    assert!(matches!(error, FsError::Refused(_)), "{error:?}");
    assert!(server.sessions(TARGET).is_empty());
    error.to_string()
}

#[tokio::test]
async fn without_the_key_of_its_role_nobody_gets_a_session() {
    let said = refusal(keyring("1"), Role::Client, Keyring::default()).await;
    assert_eq!(said, "a client needs the client key of the file system to connect to stria-MDT0000");
    let said = refusal(keyring("1"), Role::Client, of_clients(&keyring("2"))).await;
    assert_eq!(
        said,
        "stria-MDT0000 and this client have different client keys: one of them belongs to another file system, or has an outdated key"
    );
    for role in [Role::Mdt, Role::Ost, Role::Mgs, Role::Mover, Role::Repair] {
        let said = refusal(keyring("1"), role, of_clients(&keyring("1"))).await;
        assert!(said.contains("needs the server key"), "{said}");
    }
    let said = refusal(Keyring::default(), Role::Client, of_clients(&keyring("1"))).await;
    assert!(said.starts_with("this server has no client key"), "{said}");
}

fn connect(principal: &Principal, role: Role) -> Connect {
    Connect { role, ..raw::connect(principal) }
}

/// The error in an answer of the handshake.
fn error(answer: &rt::Frame) -> FsError {
    assert_eq!(answer.header.flags, frame_flag::REPLY | frame_flag::ERROR);
    codec::decode(&answer.body).unwrap()
}

/// A process that has the client key only, and says that it is a server nevertheless.
#[tokio::test]
async fn a_client_cannot_pose_as_a_server() {
    let (seams, server, address) = serve(Keyring::of_test()).await;
    let principal = Principal::random(&*seams.entropy, Role::Client, "host", "raw", of_clients(&Keyring::of_test()));
    let mut raw = Raw::connect(&seams, &address).await;
    // What it can compute is the proof of a client.
    let handshake = Handshake::begin(&principal, connect(&principal, Role::Client)).unwrap();
    let claimed = codec::encode(&connect(&principal, Role::Mdt)).unwrap();
    let challenge = raw.ask(opcode::CONNECT, claimed).await;
    assert_eq!(challenge.header.flags, frame_flag::REPLY);
    assert!(matches!(handshake.answer(&challenge.body), Err(FsError::Refused(_))), "the server proves its own key");
    let foreign = Handshake::begin(&Principal::of_test(9, Role::Client), connect(&principal, Role::Client)).is_ok();
    assert!(foreign, "anything else it may send is no better than this");
    let mut other = Raw::connect(&seams, &address).await;
    let challenge = other.ask(opcode::CONNECT, handshake.connect()).await;
    let proof_of_a_client = handshake.answer(&challenge.body).unwrap();
    let answer = raw.ask(opcode::PROVE, proof_of_a_client).await;
    assert!(error(&answer).to_string().contains("does not have the server key"), "{:?}", error(&answer));
    assert!(raw.receive().await.is_none(), "the connection is closed");
    assert!(server.sessions(TARGET).is_empty());
}

/// The bytes between the next pair of fences in a text, and the rest of it.
fn fenced(text: &str) -> (Vec<u8>, &str) {
    let (_, begun) = text.split_once("```\n").unwrap();
    let (block, rest) = begun.split_once("```\n").unwrap();
    let digits: String = block.split_whitespace().collect();
    let byte = |at: usize| u8::from_str_radix(&digits[at..at + 2], 16).unwrap();
    ((0..digits.len()).step_by(2).map(byte).collect(), rest)
}

/// The example in docs/wire_protocol.md, which was computed by another program.
#[test]
fn the_handshake_is_as_documented() {
    let text = include_str!("../../../docs/wire_protocol.md");
    let (_, example) = text.split_once("Example: the server key").unwrap();
    let (frame, rest) = fenced(example);
    let (challenge, rest) = fenced(rest);
    let (prove, _) = fenced(rest);
    let principal = principal(1);
    let handshake = Handshake::begin(&principal, connect(&principal, Role::Client)).unwrap();
    let class = rt::frame::class::URGENT;
    let header = FrameHeader { opcode: opcode::CONNECT.0, xid: 1, connection: 1, class, ..FrameHeader::default() };
    let connect = rt::Frame::new(header, handshake.connect(), Bytes::new()).unwrap();
    assert_eq!(frame, [&connect.header.encode()[..], &connect.body].concat());
    assert_eq!(handshake.answer(&challenge).unwrap(), prove);
    let key = Keyring::of_test().key(KeyKind::Client).unwrap().to_text();
    assert!(example.contains(&format!("begins with {}", &key[..8])), "{key}");
    assert!(example.contains(&format!("has the id {CLIENT}")), "{CLIENT}");
}

/// All that was sent in one handshake is sent again on another connection.
#[tokio::test]
async fn a_handshake_cannot_be_replayed() {
    let (seams, server, address) = serve(Keyring::of_test()).await;
    let principal = principal(1);
    let handshake = Handshake::begin(&principal, connect(&principal, Role::Client)).unwrap();
    let mut first = Raw::connect(&seams, &address).await;
    let challenge = first.ask(opcode::CONNECT, handshake.connect()).await;
    let prove = handshake.answer(&challenge.body).unwrap();
    assert_eq!(first.ask(opcode::PROVE, prove.clone()).await.header.flags, frame_flag::REPLY);
    let mut second = Raw::connect(&seams, &address).await;
    let challenge_again = second.ask(opcode::CONNECT, handshake.connect()).await;
    assert_ne!(challenge_again.body, challenge.body, "a new random number each time");
    let answer = second.ask(opcode::PROVE, prove).await;
    assert!(error(&answer).to_string().contains("does not have the client key"));
    assert_eq!(server.sessions(TARGET).len(), 1, "the first one's");
    first.request(0, 1, &read()).await;
    assert!(first.receive().await.is_some(), "the client whose handshake it was goes on");
}

/// A program that has the client key and knows the id of another client.
#[tokio::test]
async fn a_session_cannot_be_taken_over_by_its_id() {
    let (seams, server, address) = serve(Keyring::of_test()).await;
    let mut victim = Raw::connect(&seams, &address).await;
    victim.hello(|_| ()).await;
    let mut thief = Raw::connect(&seams, &address).await;
    let hostile = Principal::of_test(2, Role::Client).claiming(CLIENT);
    let answer = thief
        .greet(&hostile, Connect { resume: true, connection: Generation(9), ..connect(&hostile, Role::Client) })
        .await;
    assert_eq!(error(&answer).to_string(), format!("the id {CLIENT} belongs to another client"));
    victim.request(0, 1, &read()).await;
    assert!(victim.receive().await.is_some(), "the session is still its client's");
    assert_eq!(server.sessions(TARGET).len(), 1);
}

/// A client that says it returns shows what it got with its session, also to the server that still
/// has the session.
#[tokio::test]
async fn a_session_continues_with_its_ticket_only() {
    let (seams, server, address) = serve(Keyring::of_test()).await;
    let mut first = Raw::connect(&seams, &address).await;
    let opened: Connected = codec::decode(&first.hello(|_| ()).await.body).unwrap();
    let mut other = Raw::connect(&seams, &address).await;
    let of_other: Connected = codec::decode(&other.hello_as(2, |_| ()).await.body).unwrap();
    let resume = |connect: &mut Connect| {
        (connect.resume, connect.incarnation, connect.connection) = (true, opened.incarnation, Generation(2));
    };
    for ticket in [None, of_other.ticket] {
        let mut wrong = Raw { ticket, ..Raw::connect(&seams, &address).await };
        let answer = wrong.hello(resume).await;
        assert!(error(&answer).to_string().contains("did not get the session"), "{}", error(&answer));
    }
    first.request(0, 1, &read()).await;
    assert!(first.receive().await.is_some(), "the session and its connection stay");
    let mut again = Raw { ticket: opened.ticket, ..Raw::connect(&seams, &address).await };
    let continued: Connected = codec::decode(&again.hello(resume).await.body).unwrap();
    assert!(continued.resumed);
    assert_eq!((continued.ticket, server.sessions(TARGET).len()), (opened.ticket, 2));
}

#[tokio::test]
async fn requests_and_proofs_before_their_time_close_the_connection() {
    let (seams, server, address) = serve(Keyring::of_test()).await;
    let mut raw = Raw::connect(&seams, &address).await;
    let header = FrameHeader { opcode: opcode::PROVE.0, ..FrameHeader::default() };
    let principal = principal(1);
    let handshake = Handshake::begin(&principal, connect(&principal, Role::Client)).unwrap();
    let mut other = Raw::connect(&seams, &address).await;
    let challenge = other.ask(opcode::CONNECT, handshake.connect()).await;
    raw.send(header, handshake.answer(&challenge.body).unwrap()).await;
    assert!(raw.receive().await.is_none(), "a proof before Connect");
    other.request(0, 1, &read()).await;
    assert!(other.receive().await.is_none(), "a request after Connect alone");
    let mut second = Raw::connect(&seams, &address).await;
    second.ask(opcode::CONNECT, handshake.connect()).await;
    let another = codec::encode(&Connect { features: 1, ..connect(&principal, Role::Client) }).unwrap();
    second.send(FrameHeader { opcode: opcode::CONNECT.0, ..FrameHeader::default() }, another).await;
    assert!(second.receive().await.is_none(), "another Connect than that which was challenged");
    assert!(server.sessions(TARGET).is_empty());
}

/// A client of version 1 says nothing of keys.
#[tokio::test]
async fn a_client_of_an_earlier_version_is_told_so() {
    let (seams, _server, address) = serve(Keyring::of_test()).await;
    let mut raw = Raw::connect(&seams, &address).await;
    // Its `Connect`, byte by byte: length, versions, features, target, client, name, connection,
    // resume, incarnation.
    let mut fields = vec![1, 1, 0];
    fields.push(TARGET.len() as u8);
    fields.extend_from_slice(TARGET.as_bytes());
    fields.extend_from_slice(b"\x07\x03old\x01\x00\x00");
    let body = [&[fields.len() as u8][..], &fields].concat();
    let answer = raw.ask(opcode::CONNECT, Bytes::from(body)).await;
    assert_eq!(
        error(&answer).to_string(),
        "protocol error: old speaks version 1 of the protocol, stria-MDT0000 speaks version 2; use the same release of \
         StriaFS on all hosts"
    );
}

/// What a role may not do is refused before the target sees it.
#[tokio::test]
async fn a_client_may_not_evict_destroy_or_repair() {
    let (seams, _server, address) = serve(Keyring::of_test()).await;
    for (role, permitted) in [(Role::Client, false), (Role::Mdt, true)] {
        let principal = Principal::of_test(3, role);
        let import =
            Import::new(seams.clone(), TARGET, Endpoint::Remote(address.clone().into()), principal, quick(), None);
        let evict = Request::Ost(OstRequest::Evict(CLIENT, None));
        let outcome = call(&import, evict).await;
        assert_eq!(outcome == Err(FsError::NotPermitted), !permitted, "{role}: {outcome:?}");
        import.close().await;
    }
}
