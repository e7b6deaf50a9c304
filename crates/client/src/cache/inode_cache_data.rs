//! Data of small files in the cache.

use rpc::message::{
    OstReply, OstRequest,
    ost::{Changed, ObjectAttributes, Read, ReadDone, SpaceChange},
};
use types::{ObjectId, Owner};

use super::*;

const OBJECT: ObjectId = ObjectId { inode: FILE, slot: 0, mirror: 0 };
const LOCK: LockHandle = LockHandle(9);

fn reading() -> MdtRequest {
    let read = Read { object: OBJECT, offset: 0, bytes: 100, layout_generation: 0 };
    MdtRequest::ReadData(OstRequest::Read(read))
}

fn change() -> MdtRequest {
    let change = SpaceChange::Truncate { size: 0 };
    MdtRequest::ChangeData(OstRequest::Space(OBJECT, change, 0, Owner::default()))
}

fn changed() -> MdtReply {
    let (before, after) = (ObjectAttributes::default(), ObjectAttributes::default());
    MdtReply::Data(OstReply::Changed(Changed { before, after }))
}

impl Client {
    /// The answer to a read brings these data, and these locks.
    fn brings(&mut self, pending: Pending, data: &'static [u8], granted: &[Granted]) {
        let reply = MdtReply::Data(OstReply::Read(ReadDone { checksums: vec![1], size: data.len() as u64 }));
        let beside = ReplyExtension { granted: granted.to_vec(), ..ReplyExtension::default() };
        let data = Bytes::from_static(data);
        let reply =
            Reply { reply: &reply, beside: &beside, connection: CONNECTION, data: Some(&data), taken_back: &[] };
        self.0.answer(pending, Ok(reply));
    }

    fn reads(&mut self, data: &'static [u8], granted: &[Granted]) {
        let pending = self.ask(&reading());
        self.brings(pending, data, granted);
    }

    fn data(&mut self) -> Option<Vec<u8>> {
        self.0.data(OBJECT, 0, 100).map(|(data, _)| data.to_vec())
    }

    /// Whether it asks for the lock on data beside a read.
    fn wants(&mut self) -> bool {
        self.ask(&reading()).wanted.is_some()
    }
}

fn lock() -> Granted {
    granted(LOCK.0, FILE, inode_bit::DATA)
}

#[test]
fn data_are_served_under_their_lock() {
    let mut client = Client::warm();
    client.reads(b"data", &[]);
    assert_eq!((client.data(), client.wants()), (None, true), "there is no lock");
    client.reads(b"data", &[lock()]);
    assert_eq!((client.data().as_deref(), client.wants()), (Some(&b"data"[..]), false));
    client.0.withdraw(LOCK);
    assert_eq!((client.data(), client.wants()), (None, true));
}

#[test]
fn what_had_no_room_is_asked_for_under_the_same_lock() {
    let mut client = Client::warm();
    client.reads(b"data", &[lock()]);
    client.0.small_files.set_bytes_max(0);
    assert_eq!((client.data(), client.wants()), (None, false), "it is of no use");
    client.0.small_files.set_bytes_max(1 << 20);
    assert!(client.wants());
    client.reads(b"data", &[]);
    assert!(client.data().is_some(), "the lock was held when it was asked for");
}

#[test]
fn own_changes_are_never_overtaken() {
    let mut client = Client::warm();
    client.reads(b"old", &[lock()]);
    let early = client.ask(&reading());
    let change = client.ask(&change());
    assert_eq!(client.data(), None, "nobody knows whether it has happened");
    let during = client.ask(&reading());
    client.brings(early, b"old", &[]);
    assert_eq!(client.data(), None);
    client.answered(change, &changed(), &[]);
    client.brings(during, b"old", &[]);
    assert_eq!(client.data(), None, "it may have been answered before the change was made");
    client.reads(b"new", &[]);
    assert_eq!(client.data().as_deref(), Some(&b"new"[..]));
}

#[test]
fn a_callback_that_overtakes_the_answer_counts() {
    let mut client = Client::warm();
    let pending = client.ask(&reading());
    client.0.withdraw(LOCK);
    client.brings(pending, b"old", &[lock()]);
    assert_eq!(client.data(), None);
}

#[test]
fn data_are_not_claimed() {
    const NEXT: ConnectionId = (CONNECTION.0, types::Generation(CONNECTION.1.0 + 1));
    let mut client = Client::warm();
    client.reads(b"data", &[Granted { version: 5, ..lock() }]);
    let claims = client.0.begin_claim(NEXT);
    assert!(!claims.is_empty() && claims.iter().all(|claim| claim.bits.0 & inode_bit::DATA == 0), "{claims:?}");
    for claim in &claims {
        client.0.claimed(NEXT, claim, Some(LockHandle(claim.handle.0 + 100)));
    }
    client.0.end_claim(NEXT);
    client.0.connect(Some(NEXT));
    assert_eq!(client.data(), None);
    assert!(client.0.attributes(FILE, |_| false).is_some(), "its other locks were granted");
}
