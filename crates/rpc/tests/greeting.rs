//! How a client reacts to a server's answer to `Connect`.

use crate::common;

use bytes::Bytes;
use common::*;
use rpc::{
    Endpoint, ImportState, Keyring,
    auth::{KeyKind, Side, Transcript},
    codec::{self, opcode},
    message::session::{Challenge, Connected, Demand, frame_flag},
};
use rt::{
    Address, Frame, FrameHeader, Listener,
    memory::{self, MemoryTransport},
};
use types::ProtocolError;

/// Answers every `Connect` that comes, and says so of as many slots.
async fn grant(mut listener: Box<dyn Listener>, slots: u16) {
    let connected = Connected {
        version: 2,
        features: 0,
        incarnation: 1,
        resumed: false,
        slots,
        lease_ms: 60_000,
        era: 0,
        urgent_slots: 1,
        ticket: None,
    };
    let connected = codec::encode(&connected).unwrap();
    let key = Keyring::of_test().key(KeyKind::Client).unwrap().clone();
    let mut held = Vec::new();
    while let Ok(mut connection) = listener.accept().await {
        let Ok(Some(hello)) = connection.receiver.receive().await else { continue };
        assert_eq!(hello.header.opcode, opcode::CONNECT.0);
        let (version, nonce) = (2, [3; 32]);
        let proof = Transcript::new(&hello.body, version, nonce).prove(&key, Side::Server);
        let challenge = Challenge { version, demand: Demand::Key { nonce, proof } };
        let reply = async |header: FrameHeader, body: Bytes| {
            let header = FrameHeader { flags: frame_flag::REPLY, ..header };
            // A client that has gone meanwhile comes again.
            let _ = connection.sender.send(Frame::new(header, body, Bytes::new()).unwrap()).await;
        };
        reply(hello.header, codec::encode(&challenge).unwrap()).await;
        let Ok(Some(prove)) = connection.receiver.receive().await else { continue };
        assert_eq!(prove.header.opcode, opcode::PROVE.0);
        reply(prove.header, connected.clone()).await;
        held.push(connection);
    }
}

/// One slot is for pings: with a server that granted no other, calls went round and round for a
/// slot that never came; with none at all the number of slots fell below zero.
#[tokio::test]
async fn a_server_that_grants_no_slot_to_call_in_is_refused_by_name() {
    for slots in 0..3 {
        let seams = memory::seams(&MemoryTransport::new(), 1);
        let listener = seams.transport.listen(&Address::from("mean:1")).await.unwrap();
        let granting = tokio::spawn(grant(listener, slots));
        let import = import(&seams, Endpoint::Remote(Address::from("mean:1").into()), quick());
        let error = call(&import, read()).await.unwrap_err();
        assert_eq!(error, ProtocolError::Slots { granted: slots, needed: 3 }.into());
        assert_ne!(import.state(), ImportState::Full);
        granting.abort();
    }
}
