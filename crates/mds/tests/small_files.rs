//! The lock on the data of a small file on the MDT: it comes with replies that bring all of them,
//! and a change of the data waits until all others have given it back.

use crate::common;

use std::sync::Arc;

use bytes::Bytes;
use common::{caching::*, *};
use layout::{BackingSpec, ComponentSpec, END_OF_FILE, LayoutSpec, StripeSpec};
use rpc::{
    Answer, Call, Handler,
    checksum::checksums,
    message::{
        MdtReply, MdtRequest, OstRequest, Reply, Request, RequestExtension,
        lock::inode_bit::*,
        mdt::{
            ClaimLocks, Create, LockClaim, Open, OpenFlags, OpenId,
            open_flag::{self, UNREGISTERED},
        },
        ost::{Read, SpaceChange, Write},
    },
};
use tokio::task::JoinHandle;
use types::{
    ClientId, FsResult, InodeNumber, LockHandle, NodeKind, ObjectId, Owner, Slot, limits::SMALL_FILE_BYTES_MAX,
};

const ON_MDT: u64 = 128 << 10;
const DATA_LOCK: u32 = DATA;

/// A file that ALICE wrote and closed.
struct File {
    test: Arc<Test>,
    inode: InodeNumber,
    data: Bytes,
}

fn object(inode: InodeNumber) -> ObjectId {
    ObjectId::new(inode, 0)
}

fn writing(inode: InodeNumber, data: &Bytes) -> MdtRequest {
    MdtRequest::ChangeData(OstRequest::Write(Write {
        object: object(inode),
        offset: 0,
        checksums: checksums(0, data),
        sync: false,
        layout_generation: 0,
        owner: Owner::default(),
    }))
}

fn reading(inode: InodeNumber, offset: u64, bytes: u32) -> MdtRequest {
    MdtRequest::ReadData(OstRequest::Read(Read { object: object(inode), offset, bytes, layout_generation: 0 }))
}

async fn answer(test: &Test, client: ClientId, request: MdtRequest, beside: RequestExtension, bulk: Bytes) -> Answer {
    let xid = test.fs.next_xid(client);
    let call = Call { extension: beside, ..Call::plain(client, Slot(0), xid, Request::Mdt(request), bulk) };
    test.fs.mdt.clone().handle(call).await
}

impl File {
    async fn of(bytes: usize) -> File {
        let (test, open) = (Test::new().await, OpenId(1));
        let components = vec![
            ComponentSpec { end: ON_MDT, backing: BackingSpec::Mdt },
            ComponentSpec { end: END_OF_FILE, backing: BackingSpec::Striped(StripeSpec::default()) },
        ];
        let create = Create {
            layout: Some(LayoutSpec::Composite(components)),
            ..create_of("file", open, OpenFlags(READ | WRITE))
        };
        let reply = test.fs.call(ALICE, MdtRequest::Create(root(), create)).await.unwrap();
        let inode = created(reply).entry.attributes.inode;
        let data = Bytes::from(vec![7; bytes]);
        answer(&test, ALICE, writing(inode, &data), RequestExtension::default(), data.clone()).await.reply.unwrap();
        test.fs.close(ALICE, inode, open, None).await.unwrap();
        File { test, inode, data }
    }

    /// BOB opens it for reading, and wants everything.
    async fn open(&self, flags: u32) -> Answer {
        let open = Open { inode: self.inode, open: OpenId(2), flags: OpenFlags(flags) };
        let (test, beside) = (&self.test, wanted(self.inode, ALL));
        answer(test, BOB, MdtRequest::Open(root(), open), beside, Bytes::new()).await
    }

    async fn read(&self, client: ClientId, offset: u64, bytes: u32) -> Answer {
        let beside = wanted(self.inode, DATA_LOCK);
        answer(&self.test, client, reading(self.inode, offset, bytes), beside, Bytes::new()).await
    }

    /// A request of ALICE with data, under way.
    fn begin(&self, request: MdtRequest, bulk: Bytes) -> JoinHandle<FsResult<Reply>> {
        let test = self.test.clone();
        tokio::spawn(async move { answer(&test, ALICE, request, RequestExtension::default(), bulk).await.reply })
    }

    async fn write_open(&self) -> OpenId {
        let open = Open { inode: self.inode, open: OpenId(3), flags: OpenFlags(WRITE) };
        self.test.fs.call(ALICE, MdtRequest::Open(root(), open)).await.unwrap();
        OpenId(3)
    }
}

fn create_of(name: &str, open: OpenId, flags: OpenFlags) -> Create {
    let kind = NodeKind::Regular;
    Create { parent: ROOT, name: name.into(), kind, mode: 0o644, umask: 0, layout: None, open: Some((open, flags)) }
}

fn data_lock(answer: &Answer) -> Option<LockHandle> {
    let of_data =
        |(at, (_, bits)): (usize, (InodeNumber, u32))| (bits == DATA).then(|| answer.extension.granted[at].handle);
    resources(&answer.extension.granted).into_iter().enumerate().find_map(of_data)
}

#[tokio::test]
async fn an_open_for_reading_brings_small_files() {
    let most = SMALL_FILE_BYTES_MAX as usize;
    for (bytes, is_small) in [(0, true), (4096, true), (most, true), (most + 1, false)] {
        let file = File::of(bytes).await;
        let opened = file.open(READ).await;
        assert!(matches!(opened.reply, Ok(Reply::Mdt(MdtReply::Opened(_)))), "{:?}", opened.reply);
        assert_eq!(data_lock(&opened).is_some(), is_small, "{bytes}");
        let expected = if is_small { file.data.clone() } else { Bytes::new() };
        assert_eq!(opened.bulk, expected, "{bytes}");
        let told = opened.extension.data.map(|done| (done.size, done.checksums));
        assert_eq!(told, is_small.then(|| (bytes as u64, checksums(0, &file.data))));
    }
}

#[tokio::test]
async fn a_read_brings_the_lock_if_it_is_whole() {
    let file = File::of(5000).await;
    for (offset, bytes, is_whole) in [(0, 4999, false), (1, 9000, false), (0, 9000, true), (0, 9000, false)] {
        assert_eq!(data_lock(&file.read(BOB, offset, bytes).await).is_some(), is_whole, "{offset} {bytes}");
    }
    assert!(data_lock(&file.read(CAROL, 0, 5000).await).is_some(), "others have it, too");
    let parameters = mds::Parameters { cache_locks: false, ..file.test.fs.mdt.parameters() };
    file.test.fs.mdt.set_parameters(parameters);
    assert!(data_lock(&file.read(ALICE, 0, 9000).await).is_none(), "switched off");
}

#[tokio::test]
async fn nobody_has_it_while_another_one_writes() {
    let file = File::of(5000).await;
    let open = file.write_open().await;
    assert!(data_lock(&file.read(BOB, 0, 9000).await).is_none());
    let opened = file.open(READ).await;
    assert!(data_lock(&opened).is_none() && opened.extension.data.is_none() && opened.bulk.is_empty());
    assert!(data_lock(&file.read(ALICE, 0, 9000).await).is_some(), "but the writer itself");
    file.test.fs.close(ALICE, file.inode, open, None).await.unwrap();
    assert!(data_lock(&file.read(BOB, 0, 9000).await).is_some());
}

#[tokio::test]
async fn a_change_of_data_waits_until_others_gave_it_back() {
    let space = |inode, change| MdtRequest::ChangeData(OstRequest::Space(object(inode), change, 0, Owner::default()));
    let new = Bytes::from(vec![8; 100]);
    for step in 0..3 {
        let file = File::of(5000).await;
        let handle = data_lock(&file.read(BOB, 0, 9000).await).expect("it is free");
        let carols = data_lock(&file.read(CAROL, 0, 9000).await).expect("for both");
        file.write_open().await;
        assert_eq!(file.test.holders.heard_so_far(), 0, "an open changes no data");
        let (request, bulk) = match step {
            0 => (writing(file.inode, &new), new.clone()),
            1 => (space(file.inode, SpaceChange::Truncate { size: 10 }), Bytes::new()),
            _ => (space(file.inode, SpaceChange::Punch { offset: 0, bytes: 10 }), Bytes::new()),
        };
        let change = file.begin(request, bulk);
        let mut asked = file.test.holders.heard(2).await;
        asked.sort_by_key(|(client, _)| *client);
        let asked: Vec<_> = asked.iter().map(|(client, blocking)| (*client, blocking.handle)).collect();
        assert_eq!(asked, [(BOB, handle), (CAROL, carols)]);
        file.test.cancel(BOB, vec![handle]).await;
        let read = file.read(BOB, 0, 9000).await;
        assert!(!change.is_finished() && read.bulk == file.data, "nobody sees the change yet");
        assert!(data_lock(&read).is_none(), "nor gets a lock on what is about to change");
        file.test.cancel(CAROL, vec![carols]).await;
        change.await.unwrap().unwrap();
        assert_ne!(file.read(BOB, 0, 9000).await.bulk, file.data);
    }
}

#[tokio::test]
async fn the_writer_keeps_its_own_and_nobody_claims_one() {
    let file = File::of(5000).await;
    let own = data_lock(&file.read(ALICE, 0, 9000).await).expect("it is free");
    file.write_open().await;
    file.begin(writing(file.inode, &file.data), file.data.clone()).await.unwrap().unwrap();
    assert_eq!(file.test.holders.heard_so_far(), 0);
    let version = file.read(BOB, 0, 9000).await.extension.granted.first().map_or(1, |lock| lock.version);
    for version in 0..=version + 8 {
        let bits = rpc::message::lock::InodeBits(DATA);
        let claim = LockClaim { handle: own, inode: file.inode, bits, version };
        let claims = MdtRequest::ClaimLocks(ClaimLocks { era: 1, locks: vec![claim] });
        let reply = file.test.fs.call(ALICE, claims).await.unwrap();
        assert_eq!(reply, MdtReply::LocksClaimed(vec![None]));
    }
}

#[tokio::test]
async fn a_file_without_a_name_has_none() {
    let file = File::of(5000).await;
    let handle = data_lock(&file.read(BOB, 0, 9000).await).expect("it is free");
    let opened = file.open(READ).await;
    assert!(matches!(opened.reply, Ok(Reply::Mdt(MdtReply::Opened(_)))), "{:?}", opened.reply);
    let others: Vec<LockHandle> = opened.extension.granted.iter().map(|lock| lock.handle).collect();
    let test = file.test.clone();
    let unlink = tokio::spawn(async move { test.fs.unlink(&root(), ROOT, "file").await });
    let asked = file.test.holders.heard(2).await;
    assert!(asked.iter().any(|(_, blocking)| blocking.handle == handle), "{asked:?}");
    file.test.cancel(BOB, others).await;
    assert!(!unlink.is_finished());
    file.test.cancel(BOB, vec![handle]).await;
    unlink.await.unwrap().unwrap();
    let read = file.read(BOB, 0, 9000).await;
    assert_eq!((&read.bulk, data_lock(&read)), (&file.data, None), "it is open");
}

#[tokio::test]
async fn an_open_that_brings_the_lock_on_opens_is_not_registered() {
    let file = File::of(100).await;
    let opens = || file.test.fs.mdt.open_files();
    let opened = file.open(READ | UNREGISTERED).await;
    assert!(opened.extension.unregistered);
    assert_eq!(opens(), 0);
    let again = file.open(READ | UNREGISTERED).await;
    assert!(!again.extension.unregistered, "it has the lock: such opens need no request");
    assert_eq!(opens(), 1);
    file.test.fs.close(BOB, file.inode, OpenId(2), None).await.unwrap();
    file.test.cancel(BOB, opened.extension.granted.iter().map(|lock| lock.handle).collect()).await;
    assert!(!file.open(READ).await.extension.unregistered, "it did not say that it could be");
    file.test.fs.close(BOB, file.inode, OpenId(2), None).await.unwrap();
    for flags in [READ | open_flag::APPEND, WRITE] {
        assert!(!file.open(flags | UNREGISTERED).await.extension.unregistered, "it could not be registered later");
        assert_eq!(opens(), 1);
        file.test.fs.close(BOB, file.inode, OpenId(2), None).await.unwrap();
    }
}
