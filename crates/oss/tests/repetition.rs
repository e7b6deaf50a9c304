//! Requests that are sent again because their replies were lost: one effect, also across a restart
//! of the server.

use crate::common;

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use common::{CLIENT, KIB, MIB, TestOst, object, on_all, pattern, write_request};
use rpc::{
    Handler, Principal, Role, Server, ServerOptions,
    auth::Handshake,
    codec::{
        self,
        opcode::{self, Opcode},
    },
    message::{
        OstReply, OstRequest, Reply, Request,
        ost::SpaceChange,
        session::{Connect, Connected, frame_flag},
    },
};
use rt::{Address, Connection, Frame, FrameHeader};
use types::{ClientId, FsError, FsResult, Generation, ObjectId, Owner, Slot, Xid};

const OTHER: ClientId = ClientId(8);
const LEASE: Duration = Duration::from_secs(3600);

/// A client's end of a connection, which decides itself what it sends again.
struct Link {
    connection: Connection,
    connected: Connected,
    generation: u64,
}

impl Link {
    /// Connects; `after`: the session continues that was this one.
    async fn connect(target: &TestOst, address: &Address, after: Option<&Link>) -> Self {
        let generation = after.map_or(1, |after| after.generation + 1);
        let principal = Principal::of_test(1, Role::Client);
        let connect = Connect {
            connection: Generation(generation),
            resume: after.is_some(),
            incarnation: after.map_or(0, |after| after.connected.incarnation),
            ..Connect::of_test(target.ost.name(), &principal)
        };
        let ticket = after.and_then(|after| after.connected.ticket);
        let handshake = Handshake::begin(&principal, connect).unwrap().with_ticket(ticket);
        let mut connection = target.seams.transport.connect(address).await.unwrap();
        let mut ask = async |opcode: Opcode, body: Bytes| {
            let header = FrameHeader { opcode: opcode.0, connection: generation, ..FrameHeader::default() };
            connection.sender.send(Frame::new(header, body, Bytes::new()).unwrap()).await.unwrap();
            let answer = connection.receiver.receive().await.unwrap().unwrap();
            assert_eq!(answer.header.flags, frame_flag::REPLY, "no error");
            answer
        };
        let challenge = ask(opcode::CONNECT, handshake.connect()).await;
        let answer = ask(opcode::PROVE, handshake.answer(&challenge.body).unwrap()).await;
        Self { connection, connected: codec::decode(&answer.body).unwrap(), generation }
    }

    async fn ask(&mut self, slot: Slot, xid: Xid, request: &OstRequest, bulk: &Bytes) -> FsResult<OstReply> {
        let request = Request::Ost(request.clone());
        let header = FrameHeader {
            version: self.connected.version,
            opcode: opcode::of(&request).0,
            slot: slot.0,
            xid: xid.0,
            connection: self.generation,
            ..FrameHeader::default()
        };
        let frame =
            Frame::new(header, codec::encode_request(&Default::default(), &request).unwrap().bytes, bulk.clone())
                .unwrap();
        self.connection.sender.send(frame).await.unwrap();
        let answer = self.connection.receiver.receive().await.unwrap().unwrap();
        if answer.header.flags & frame_flag::ERROR != 0 {
            return Err(codec::decode(&answer.body).unwrap());
        }
        match codec::decode_reply(opcode::Family::Ost, &answer.body).unwrap() {
            Reply::Ost(reply) => Ok(reply),
            other => panic!("{other:?}"),
        }
    }
}

async fn serve(target: &TestOst) -> (Arc<Server>, Address) {
    let server = Server::new(target.seams.clone(), ServerOptions::new(rpc::Keyring::of_test()));
    server.add_target(target.ost.name(), target.ost.clone(), LEASE);
    let address = server.listen(&Address::from("ost:0")).await.unwrap();
    (server, address)
}

fn changes(object: ObjectId) -> Vec<(OstRequest, Bytes)> {
    let space = [
        SpaceChange::Truncate { size: 5000 },
        SpaceChange::Truncate { size: 9 * MIB },
        SpaceChange::Punch { offset: 1000, bytes: 3 * MIB },
        SpaceChange::Zero { offset: 1000, bytes: 5 * MIB, extend: true },
        SpaceChange::Allocate { offset: 3 * MIB, bytes: 3 * MIB, extend: true },
    ];
    let spaces = space.map(|change| (OstRequest::Space(object, change, 0, Owner::default()), Bytes::new()));
    let writes = [
        write_request(object, 100, b"inline", false),
        write_request(object, 8192, &pattern(3, 0, 64 * KIB), true),
        write_request(object, 5 * MIB, &pattern(3, 0, MIB), false),
        // In several batches.
        write_request(object, 0, &pattern(3, 0, 4 * MIB), false),
    ];
    spaces.into_iter().chain(writes).collect()
}

/// The request was executed and its reply lost with the server. Others saw what it did, and went on
/// from there.
#[test]
fn a_repetition_after_a_restart_gets_the_lost_reply_and_undoes_nothing() {
    for case in 0..changes(object(1)).len() {
        on_all(async |engine| {
            let (request, bulk) = changes(object(1)).swap_remove(case);
            let target = TestOst::on(engine, 1).await;
            target.write(object(1), 0, &pattern(1, 0, 4 * MIB)).await;
            let (server, address) = serve(&target).await;
            let mut link = Link::connect(&target, &address, None).await;
            let lost = link.ask(Slot(3), Xid(1), &request, &bulk).await.unwrap();
            drop(server);

            let target = target.crash().await;
            let (answer, theirs) = (
                pattern(2, 0, 4 * MIB),
                OstRequest::Space(object(1), SpaceChange::Truncate { size: 4 * MIB }, 0, Owner::default()),
            );
            target.answer(OTHER, theirs, Bytes::new()).await.reply.unwrap();
            let (theirs, data) = write_request(object(1), 0, &answer, true);
            target.answer(OTHER, theirs, data).await.reply.unwrap();
            let before = target.attributes(object(1)).await;

            let (_server, address) = serve(&target).await;
            let mut link = Link::connect(&target, &address, Some(&link)).await;
            let again = link.ask(Slot(3), Xid(1), &request, &bulk).await.unwrap();
            assert_eq!(again, lost, "{request:?}");
            assert_eq!(target.attributes(object(1)).await, before, "{request:?}");
            assert!(target.read(object(1), 0, 4 * MIB).await == answer, "{request:?}");
            // The slot continues.
            link.ask(Slot(3), Xid(2), &request, &bulk).await.unwrap();
            assert_ne!(target.attributes(object(1)).await, before, "{request:?}");
        });
    }
}

/// The reply of what a power loss took went with it: the repetition is the only effect.
#[test]
fn a_reply_is_lost_if_and_only_if_its_change_is() {
    let mut kept = 0;
    for seed in 0..32 {
        on_all(async |engine| {
            let target = TestOst::on(engine, seed).await;
            let data = pattern(1, 0, 10 * KIB);
            target.write(object(1), 0, &data).await;
            let target = target.power_loss(seed).await;
            let change_kept = target.attributes(object(1)).await.size > 0;
            assert_eq!(target.ost.persistent_reply(CLIENT, Slot(0)).is_some(), change_kept, "seed {seed}");
            kept += u32::from(change_kept);
        });
    }
    assert!((1..64).contains(&kept), "both happen: {kept}");
}

/// The journal was flushed, the host file was not: the record survives without its bytes, and the
/// reply must not.
#[test]
fn a_write_in_place_whose_bytes_are_lost_is_made_again() {
    let mut lost = 0;
    for (seed, synced) in (0..8).flat_map(|seed| [(seed, false), (seed, true)]) {
        on_all(async |engine| {
            let target = TestOst::on(engine, seed).await;
            let data = pattern(1, 0, MIB);
            target.write(object(1), 0, &data).await;
            target.done(OstRequest::Sync(vec![object(if synced { 1 } else { 2 })])).await;
            let target = target.power_loss(seed).await;
            let is_whole = target.read(object(1), 0, MIB).await == data;
            assert!(is_whole || !synced);
            assert_eq!(target.ost.persistent_reply(CLIENT, Slot(0)).is_some(), is_whole, "seed {seed}");
            lost += u32::from(!is_whole);
        });
    }
    assert!(lost > 0);
}

#[test]
fn replies_end_with_their_session_and_their_client() {
    on_all(async |engine| {
        let target = TestOst::on(engine, 1).await;
        let (server, address) = serve(&target).await;
        let kept = |target: &TestOst| target.ost.persistent_reply(CLIENT, Slot(1)).is_some();
        let (request, bulk) = write_request(object(1), 0, b"data", false);
        let mut link = Link::connect(&target, &address, None).await;
        link.ask(Slot(1), Xid(1), &request, &bulk).await.unwrap();
        assert!(kept(&target));
        link.ask(Slot(1), Xid(2), &OstRequest::Disconnect, &Bytes::new()).await.unwrap();
        assert!(!kept(&target), "closed");

        let mut link = Link::connect(&target, &address, None).await;
        link.ask(Slot(1), Xid(1), &request, &bulk).await.unwrap();
        assert!(server.evict(target.ost.name(), CLIENT).await);
        assert!(kept(&target), "after a lease that ran out and a restart it may come back");
        let mut link = Link::connect(&target, &address, None).await;
        assert!(!kept(&target), "it begins anew");

        link.ask(Slot(1), Xid(1), &request, &bulk).await.unwrap();
        target.answer(OTHER, OstRequest::Evict(CLIENT, None), Bytes::new()).await.reply.unwrap();
        assert!(!kept(&target), "refused permanently");
        assert_eq!(link.ask(Slot(1), Xid(2), &request, &bulk).await, Err(FsError::Evicted));
    });
}

/// An OST that a client could not reach for a while, while others could.
#[test]
fn a_session_whose_lease_ran_out_goes_on_with_its_replies() {
    on_all(async |engine| {
        let target = TestOst::on(engine, 1).await;
        let (server, address) = serve(&target).await;
        let (request, bulk) = write_request(object(1), 0, b"mine", false);
        let mut link = Link::connect(&target, &address, None).await;
        let lost = link.ask(Slot(1), Xid(1), &request, &bulk).await.unwrap();
        assert!(server.evict(target.ost.name(), CLIENT).await);
        let (theirs, data) = write_request(object(1), 0, b"theirs", true);
        target.answer(OTHER, theirs, data).await.reply.unwrap();

        let mut link = Link::connect(&target, &address, Some(&link)).await;
        assert_eq!(link.ask(Slot(1), Xid(1), &request, &bulk).await.unwrap(), lost);
        assert_eq!(target.read(object(1), 0, 6).await, b"theirs");
        link.ask(Slot(1), Xid(2), &request, &bulk).await.unwrap();
        assert_eq!(target.read(object(1), 0, 6).await, b"miners");
    });
}

#[test]
fn what_changes_nothing_leaves_no_reply() {
    on_all(async |engine| {
        let target = TestOst::on(engine, 1).await;
        target.truncate(object(1), 0).await;
        target.space(object(1), SpaceChange::Punch { offset: 0, bytes: MIB }).await.unwrap();
        target.write(object(1), 0, b"").await;
        assert_eq!(target.ost.persistent_reply(CLIENT, Slot(0)), None);
        target.write(object(1), 0, b"data").await;
        assert!(target.ost.persistent_reply(CLIENT, Slot(0)).is_some());
    });
}
