//! Data on an MDT: the guarantees of an OST for its objects also hold for those of an MDT.

use crate::common;

use std::sync::Arc;

use bytes::Bytes;
use common::{ALICE, BOB, Fixture, READ, ROOT, WRITE, create_request, created, root};
use layout::{BackingSpec, ComponentSpec, END_OF_FILE, LayoutSpec, StripeSpec};
use mds::{
    Parameters,
    tables::{
        DATA,
        data::{block_key, encode_block},
    },
};
use proptest::prelude::*;
use rpc::{
    Call, Handler, SessionEvent,
    checksum::{checksums, crc32c, verify},
    message::{
        MdtReply, MdtRequest, OstReply, OstRequest, Request,
        mdt::{Create, OpenFlags, OpenId, Reclaim},
        ost::{Changed, ObjectAttributes, Read, SpaceChange, Write},
    },
};
use types::{
    Damage, FsError, FsResult, InodeNumber, MdtIndex, NodeKind, ObjectId, Owner, Slot, Xid, limits::FILE_BYTES_MAX,
};

const BLOCK: u64 = 4096;
/// Bytes of a test's files that are on the MDT.
const ON_MDT: u64 = 128 << 10;

fn on_mdt() -> LayoutSpec {
    LayoutSpec::Composite(vec![
        ComponentSpec { end: ON_MDT, backing: BackingSpec::Mdt },
        ComponentSpec { end: END_OF_FILE, backing: BackingSpec::Striped(StripeSpec::default()) },
    ])
}

fn object(inode: InodeNumber) -> ObjectId {
    ObjectId::new(inode, 0)
}

/// A file with its beginning on the MDT, open for writing.
async fn file(fixture: &Fixture, name: &str) -> (ObjectId, OpenId) {
    let open = fixture.open_id();
    let create = Create {
        parent: ROOT,
        name: name.as_bytes().to_vec(),
        kind: NodeKind::Regular,
        mode: 0o644,
        umask: 0,
        layout: Some(on_mdt()),
        open: Some((open, OpenFlags(READ | WRITE))),
    };
    let reply = fixture.call(ALICE, MdtRequest::Create(root(), create)).await.expect("a file is made");
    (object(created(reply).entry.attributes.inode), open)
}

fn write_request(object: ObjectId, offset: u64, data: &Bytes, sync: bool) -> MdtRequest {
    let checksums = checksums(offset, data);
    MdtRequest::ChangeData(OstRequest::Write(Write {
        object,
        offset,
        checksums,
        sync,
        layout_generation: 0,
        owner: Owner::default(),
    }))
}

fn changed(reply: MdtReply) -> Changed {
    match reply {
        MdtReply::Data(OstReply::Changed(changed)) => changed,
        other => panic!("a change was answered {other:?}"),
    }
}

async fn write(fixture: &Fixture, object: ObjectId, offset: u64, data: Vec<u8>) -> FsResult<Changed> {
    let data = Bytes::from(data);
    let request = write_request(object, offset, &data, false);
    let reply = fixture.call_with(ALICE, Slot(0), fixture.next_xid(ALICE), request, data).await?;
    Ok(changed(reply.0))
}

async fn space(fixture: &Fixture, object: ObjectId, change: SpaceChange) -> FsResult<Changed> {
    Ok(changed(
        fixture.call(ALICE, MdtRequest::ChangeData(OstRequest::Space(object, change, 0, Owner::default()))).await?,
    ))
}

async fn ask(fixture: &Fixture, request: OstRequest) -> FsResult<(OstReply, Bytes)> {
    let request = MdtRequest::ReadData(request);
    match fixture.call_with(ALICE, Slot(0), fixture.next_xid(ALICE), request, Bytes::new()).await? {
        (MdtReply::Data(reply), bulk) => Ok((reply, bulk)),
        other => panic!("a question for data was answered {other:?}"),
    }
}

/// What a read gives, its checksums verified, and the object's size.
async fn read(fixture: &Fixture, object: ObjectId, offset: u64, bytes: u32) -> FsResult<(Vec<u8>, u64)> {
    match ask(fixture, OstRequest::Read(Read { object, offset, bytes, layout_generation: 0 })).await? {
        (OstReply::Read(done), data) => {
            verify(offset, &data, &done.checksums)?;
            Ok((data.to_vec(), done.size))
        }
        other => panic!("a read was answered {other:?}"),
    }
}

async fn attributes(fixture: &Fixture, object: ObjectId) -> ObjectAttributes {
    match ask(fixture, OstRequest::Glimpse(vec![object])).await.expect("a glimpse is answered").0 {
        OstReply::Attributes(found) => found[0],
        other => panic!("a glimpse was answered {other:?}"),
    }
}

async fn objects(fixture: &Fixture) -> Vec<ObjectId> {
    match ask(fixture, OstRequest::ListObjects(None, 100)).await.expect("objects are listed").0 {
        OstReply::Objects(found) => found.into_iter().map(|(object, _)| object).collect(),
        other => panic!("a list was answered {other:?}"),
    }
}

/// The MDT restarts, and ALICE comes back with one open file.
async fn restart(fixture: &mut Fixture, object: ObjectId, open: OpenId) {
    fixture.restart().await;
    let opens = vec![(object.inode, open, OpenFlags(READ | WRITE))];
    fixture.reclaim(ALICE, Reclaim { opens, done: true, ..Reclaim::default() }).await.expect("known");
}

#[tokio::test]
async fn data_survive_a_crash_and_what_was_synced_the_loss_of_power() {
    let mut fixture = Fixture::new().await;
    let (object, open) = file(&fixture, "file").await;
    write(&fixture, object, 5000, vec![1; 10_000]).await.unwrap();
    restart(&mut fixture, object, open).await;
    let (data, size) = read(&fixture, object, 4096, 100_000).await.unwrap();
    assert_eq!((size, data.len()), (15_000, 15_000 - 4096));
    assert!(data[..904].iter().all(|byte| *byte == 0) && data[904..].iter().all(|byte| *byte == 1));
    assert_eq!(attributes(&fixture, object).await.blocks, 3 * 8);

    let synced = Bytes::from(vec![2; 4096]);
    let request = write_request(object, 0, &synced, true);
    fixture.call_with(ALICE, Slot(0), fixture.next_xid(ALICE), request, synced).await.unwrap();
    write(&fixture, object, 50_000, vec![3; 10]).await.unwrap();
    fixture.lose_power().await;
    let (data, size) = read(&fixture, object, 0, 4096).await.unwrap();
    assert_eq!((size, data), (15_000, vec![2; 4096]), "the unsynced write is gone as a whole");
}

#[tokio::test]
async fn a_write_that_is_repeated_after_a_crash_is_done_once() {
    let mut fixture = Fixture::new().await;
    let (object, open) = file(&fixture, "file").await;
    fixture.begin(BOB).await;
    let (slot, xid) = (Slot(3), Xid(1));
    let data = Bytes::from(vec![1; 5000]);
    let request = write_request(object, 100, &data, true);
    let first = fixture.call_with(ALICE, slot, xid, request.clone(), data.clone()).await.unwrap();
    fixture.restart().await;
    let opens = vec![(object.inode, open, OpenFlags(READ | WRITE))];
    fixture.reclaim(ALICE, Reclaim { opens, done: true, ..Reclaim::default() }).await.unwrap();
    fixture.reclaim(BOB, Reclaim { done: true, ..Reclaim::default() }).await.unwrap();
    fixture.open(BOB, &root(), object.inode, WRITE).await.unwrap();
    let other = Bytes::from(vec![9; 200]);
    let theirs = write_request(object, 0, &other, false);
    fixture.call_with(BOB, Slot(0), Xid(7), theirs, other).await.unwrap();
    let again = fixture.call_with(ALICE, slot, xid, request, data).await.unwrap();
    assert_eq!(again, first);
    let (data, _) = read(&fixture, object, 0, 300).await.unwrap();
    assert_eq!((&data[..200], &data[200..]), (&[9; 200][..], &[1; 100][..]));
}

/// Changes the tables of the MDT, which is stopped for it.
async fn behind_its_back(fixture: &Fixture, change: impl FnOnce(&kv::Store, &mut kv::Batch)) {
    fixture.mdt.stop().await.unwrap();
    let (device, cold) = (Arc::new(fixture.device.clone()), Arc::new(fixture.cold.clone()));
    let config = fixture.options.store.clone();
    let store = kv::Store::open(fixture.seams.clone(), device, cold, config, &mut |_, _| {}).await.unwrap();
    let mut batch = kv::Batch::default();
    change(&store, &mut batch);
    store.apply(batch).unwrap();
    store.close().await.unwrap();
}

#[tokio::test]
async fn blocks_that_are_not_counted_or_lie_behind_the_end_are_found_and_repaired() {
    let mut fixture = Fixture::new().await;
    let (object, open) = file(&fixture, "file").await;
    write(&fixture, object, 0, vec![7; 2 * BLOCK as usize]).await.unwrap();
    assert_eq!(fixture.check(false).await, []);
    behind_its_back(&fixture, |_, batch| {
        let stray = [9; BLOCK as usize];
        batch.put(DATA, block_key(object, 5), encode_block(crc32c(&stray), &stray));
        batch.delete(DATA, block_key(object, 1));
    })
    .await;
    restart(&mut fixture, object, open).await;
    let verified = ask(&fixture, OstRequest::Verify(object)).await;
    let blocks = Damage::Blocks {
        object,
        target: "test-MDT0000".to_owned(),
        part: "after its end",
        counted: (2, 0),
        found: (2, 1),
    };
    assert_eq!(verified, Err(blocks.into()));
    let findings = fixture.check(true).await;
    assert!(matches!(&findings[..], [finding] if finding.repaired && finding.problem.contains("1 after its end")));
    assert_eq!(ask(&fixture, OstRequest::Verify(object)).await, Ok((OstReply::Done, Bytes::new())));
    assert_eq!(attributes(&fixture, object).await.blocks, 8);
    assert_eq!(fixture.check(false).await, []);
}

#[tokio::test]
async fn damage_is_found_and_named() {
    let mut fixture = Fixture::new().await;
    let (object, open) = file(&fixture, "file").await;
    write(&fixture, object, 0, vec![7; 3 * BLOCK as usize]).await.unwrap();
    behind_its_back(&fixture, |store, batch| {
        let key = block_key(object, 1);
        let mut value = store.get(DATA, &key).unwrap().expect("the block is stored").to_vec();
        value[100] ^= 1;
        batch.put(DATA, key, value);
    })
    .await;
    restart(&mut fixture, object, open).await;

    let corrupt = FsError::CorruptOnMdt { object, mdt: MdtIndex(0), offset: BLOCK };
    assert_eq!(read(&fixture, object, 0, 100).await.map(|(data, _)| data), Ok(vec![7; 100]), "another block");
    assert_eq!(read(&fixture, object, BLOCK + 10, 1).await, Err(corrupt.clone()));
    assert_eq!(ask(&fixture, OstRequest::Verify(object)).await, Err(corrupt.clone()));
    assert_eq!(write(&fixture, object, BLOCK + 1, vec![1]).await, Err(corrupt), "the rest of the block is not known");
    write(&fixture, object, BLOCK, vec![8; BLOCK as usize]).await.expect("a block that is replaced need not be read");
    assert_eq!(ask(&fixture, OstRequest::Verify(object)).await, Ok((OstReply::Done, Bytes::new())));
}

#[tokio::test]
async fn what_does_not_belong_here_is_refused_and_leaves_nothing() {
    let fixture = Fixture::new().await.with_plain_files();
    let (object, open) = file(&fixture, "file").await;
    let striped = fixture.file(ROOT, "striped").await;
    let other_slot = ObjectId { slot: 1, ..object };
    for absent in [other_slot, self::object(striped), self::object(ROOT), self::object(InodeNumber(0x7777))] {
        assert_eq!(write(&fixture, absent, 0, vec![1]).await, Err(FsError::Stale), "{absent}");
        assert_eq!(read(&fixture, absent, 0, 1).await, Err(FsError::Stale), "{absent}");
        let truncate = SpaceChange::Truncate { size: 1 };
        assert_eq!(space(&fixture, absent, truncate).await, Err(FsError::Stale), "{absent}");
    }
    assert_eq!(write(&fixture, object, ON_MDT - 1, vec![1; 2]).await, Err(FsError::Invalid), "after the component");
    let too_large = SpaceChange::Truncate { size: FILE_BYTES_MAX + 1 };
    assert_eq!(space(&fixture, object, too_large).await, Err(FsError::FileTooLarge));
    assert_eq!(space(&fixture, object, SpaceChange::Punch { offset: 0, bytes: 0 }).await, Err(FsError::Invalid));
    let overflow = SpaceChange::Zero { offset: u64::MAX, bytes: 2, extend: true };
    assert_eq!(space(&fixture, object, overflow).await, Err(FsError::Invalid));
    let data = Bytes::from_static(b"damaged on the way");
    let MdtRequest::ChangeData(OstRequest::Write(mut damaged)) = write_request(object, 0, &data, false) else {
        unreachable!("a write is a write");
    };
    damaged.checksums[0] ^= 1;
    let request = MdtRequest::ChangeData(OstRequest::Write(damaged));
    let answer = fixture.call_with(ALICE, Slot(0), fixture.next_xid(ALICE), request, data).await;
    assert_eq!(answer, Err(FsError::Transfer));
    for foreign in [OstRequest::Destroy(vec![object], None), OstRequest::StatFs, OstRequest::Sync(vec![])] {
        let change = fixture.call(ALICE, MdtRequest::ChangeData(foreign.clone())).await;
        assert!(matches!(change, Err(FsError::Protocol(_))), "{foreign:?}: {change:?}");
        let question = fixture.call(ALICE, MdtRequest::ReadData(foreign.clone())).await;
        assert!(matches!(question, Err(FsError::Protocol(_))), "{foreign:?}: {question:?}");
    }
    assert_eq!(objects(&fixture).await, []);
    assert_eq!(read(&fixture, object, 0, 100).await, Ok((Vec::new(), 0)));
    fixture.close(ALICE, object.inode, open, None).await.unwrap();
}

#[tokio::test]
async fn layouts_put_no_more_on_the_mdt_than_it_takes() {
    let fixture = Fixture::new().await;
    assert_eq!(fixture.mdt.bytes_on_mdt_limit(), ON_MDT, "half a segment of a small store");
    let too_large = LayoutSpec::Composite(vec![
        ComponentSpec { end: ON_MDT + (64 << 10), backing: BackingSpec::Mdt },
        ComponentSpec { end: END_OF_FILE, backing: BackingSpec::Striped(StripeSpec::default()) },
    ]);
    let set = |spec| fixture.call(ALICE, MdtRequest::SetDefaultLayout(root(), ROOT, Some(spec)));
    assert_eq!(set(too_large).await, Err(FsError::Invalid));
    assert_eq!(set(on_mdt()).await, Ok(MdtReply::Done));
    let parameters = Parameters { bytes_on_mdt_max: 64 << 10, ..fixture.mdt.parameters() };
    fixture.mdt.set_parameters(parameters);
    assert_eq!(set(on_mdt()).await, Err(FsError::Invalid));
}

#[tokio::test]
async fn data_end_with_their_file() {
    let fixture = Fixture::new().await;
    let (kept, _) = file(&fixture, "kept").await;
    let (closed, closed_open) = file(&fixture, "closed").await;
    let (open, open_id) = file(&fixture, "open").await;
    for object in [kept, closed, open] {
        write(&fixture, object, 0, vec![1; 20_000]).await.unwrap();
    }
    fixture.close(ALICE, closed.inode, closed_open, None).await.unwrap();
    fixture.unlink(&root(), ROOT, "closed").await.unwrap();
    fixture.unlink(&root(), ROOT, "open").await.unwrap();
    assert_eq!(objects(&fixture).await, [kept, open]);
    write(&fixture, open, 30_000, vec![2; 100]).await.expect("a file without a name is a file");
    fixture.close(ALICE, open.inode, open_id, None).await.unwrap();
    assert_eq!(objects(&fixture).await, [kept]);
    assert_eq!(write(&fixture, open, 0, vec![1]).await, Err(FsError::Stale));
    assert_eq!(attributes(&fixture, open).await, ObjectAttributes::default());
}

#[tokio::test]
async fn many_files_of_a_lost_client_end_together() {
    let fixture = Fixture::new().await;
    let mut unlinked = Vec::new();
    for index in 0..100 {
        let name = format!("file{index}");
        let (object, _) = file(&fixture, &name).await;
        write(&fixture, object, 0, vec![1; ON_MDT as usize]).await.unwrap();
        fixture.unlink(&root(), ROOT, &name).await.unwrap();
        unlinked.push(object);
    }
    assert_eq!(objects(&fixture).await.len(), 100);
    fixture.event(SessionEvent::Evicted(ALICE)).await;
    fixture.begin(ALICE).await;
    assert_eq!(objects(&fixture).await, [], "more than one batch can take");
}

#[tokio::test]
async fn many_writes_at_once_wait_for_checkpoints_and_none_is_refused() {
    let fixture = Fixture::new().await;
    let (object, _) = file(&fixture, "file").await;
    let mut writes = Vec::new();
    for slot in 0..100 {
        let data = Bytes::from(vec![slot as u8; ON_MDT as usize]);
        let request = write_request(object, 0, &data, false);
        let (slot, request) = (Slot(slot), Request::Mdt(request));
        let call = Call::plain(ALICE, slot, Xid(1), request, data);
        writes.push(tokio::spawn(fixture.mdt.clone().handle(call)));
    }
    for index in 0..100 {
        writes.push(tokio::spawn({
            let create = create_request(ROOT, &format!("other{index}"), NodeKind::Regular, 0o644, None);
            let request = Request::Mdt(MdtRequest::Create(root(), create));
            let call = Call::plain(BOB, Slot(index), Xid(1), request, Bytes::new());
            fixture.mdt.clone().handle(call)
        }));
    }
    for write in writes {
        let answer = write.await.unwrap();
        assert!(answer.reply.is_ok(), "{:?}", answer.reply);
    }
    let (data, _) = read(&fixture, object, 0, ON_MDT as u32).await.unwrap();
    assert!(data.iter().all(|byte| *byte == data[0]), "a write is seen whole or not at all");
}

#[derive(Clone, Debug)]
enum Step {
    Write { offset: u64, bytes: u64 },
    Space(SpaceChange),
    Read { offset: u64, bytes: u64 },
    Seek { offset: u64, data: bool },
    Restart,
}

fn offsets() -> impl Strategy<Value = u64> {
    prop_oneof![0..ON_MDT, (0..ON_MDT / BLOCK, 0u64..5).prop_map(|(block, bytes)| (block * BLOCK + bytes) & !1)]
}

fn ranges() -> impl Strategy<Value = (u64, u64)> {
    let lengths = prop_oneof![1..100u64, 1..6 * BLOCK, Just(BLOCK)];
    (offsets(), lengths).prop_map(|(offset, bytes)| (offset, bytes.min(ON_MDT - offset)))
}

fn steps() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => ranges().prop_map(|(offset, bytes)| Step::Write { offset, bytes }),
        2 => offsets().prop_map(|size| Step::Space(SpaceChange::Truncate { size })),
        // It may keep the length of a file that continues.
        1 => (ON_MDT..3 * ON_MDT).prop_map(|size| Step::Space(SpaceChange::Truncate { size })),
        1 => (ranges(), any::<bool>())
            .prop_map(|((offset, bytes), extend)| Step::Space(SpaceChange::Allocate { offset, bytes, extend })),
        2 => ranges().prop_map(|(offset, bytes)| Step::Space(SpaceChange::Punch { offset, bytes })),
        1 => (ranges(), any::<bool>())
            .prop_map(|((offset, bytes), extend)| Step::Space(SpaceChange::Zero { offset, bytes, extend })),
        4 => ranges().prop_map(|(offset, bytes)| Step::Read { offset, bytes }),
        2 => (offsets(), any::<bool>()).prop_map(|(offset, data)| Step::Seek { offset, data }),
        1 => Just(Step::Restart),
    ]
}

/// A vector of bytes, and which blocks hold data.
#[derive(Default)]
struct Model {
    bytes: Vec<u8>,
    held: std::collections::BTreeSet<u64>,
}

impl Model {
    fn size(&self) -> u64 {
        self.bytes.len() as u64
    }

    fn grow(&mut self, size: u64) {
        if self.size() < size {
            self.bytes.resize(size as usize, 0);
        }
    }

    fn write(&mut self, offset: u64, bytes: u64, mark: u8) {
        self.grow(offset + bytes);
        self.bytes[offset as usize..(offset + bytes) as usize].fill(mark);
        self.held.extend(offset / BLOCK..(offset + bytes).div_ceil(BLOCK));
    }

    fn zero(&mut self, offset: u64, bytes: u64) {
        let end = (offset + bytes).min(self.size());
        if offset < end {
            self.bytes[offset as usize..end as usize].fill(0);
        }
        let size = self.size();
        let covered = |block: &u64| block * BLOCK >= offset && ((block + 1) * BLOCK).min(size) <= offset + bytes;
        self.held.retain(|block| !covered(block));
    }

    fn change(&mut self, change: SpaceChange) {
        match change {
            SpaceChange::Truncate { size } => {
                self.bytes.resize(size as usize, 0);
                self.held.retain(|block| *block < size.div_ceil(BLOCK));
            }
            SpaceChange::Allocate { offset, bytes, extend: true } => self.grow(offset + bytes),
            SpaceChange::Allocate { .. } => {}
            SpaceChange::Punch { offset, bytes } => self.zero(offset, bytes),
            SpaceChange::Zero { offset, bytes, extend } => {
                self.zero(offset, bytes);
                if extend {
                    self.grow(offset + bytes);
                }
            }
        }
    }

    fn seek(&self, offset: u64, data: bool) -> Option<u64> {
        let found = (offset..self.size()).find(|at| self.held.contains(&(at / BLOCK)) == data);
        if data || offset >= self.size() { found } else { Some(found.unwrap_or(self.size())) }
    }
}

async fn run(script: Vec<Step>) {
    let mut fixture = Fixture::new().await;
    let (object, open) = file(&fixture, "file").await;
    let mut model = Model::default();
    for (index, step) in script.into_iter().enumerate() {
        let before = attributes(&fixture, object).await;
        let changed = match step.clone() {
            Step::Write { offset, bytes } => {
                let mark = index as u8 + 1;
                model.write(offset, bytes, mark);
                Some(write(&fixture, object, offset, vec![mark; bytes as usize]).await.unwrap())
            }
            Step::Space(change) => {
                model.change(change);
                Some(space(&fixture, object, change).await.unwrap())
            }
            Step::Read { offset, bytes } => {
                let (data, size) = read(&fixture, object, offset, bytes as u32).await.unwrap();
                let start = offset.min(model.size()) as usize;
                let end = (offset + bytes).min(model.size()) as usize;
                assert!(data == model.bytes[start..end.max(start)], "read of {bytes} at {offset}");
                assert_eq!(size, model.size());
                None
            }
            Step::Seek { offset, data } => {
                let found = ask(&fixture, OstRequest::Seek(object, offset, data)).await.unwrap().0;
                assert_eq!(found, OstReply::Found(model.seek(offset, data)), "{step:?}");
                None
            }
            Step::Restart => {
                restart(&mut fixture, object, open).await;
                None
            }
        };
        let after = attributes(&fixture, object).await;
        assert_eq!((after.size, after.blocks), (model.size(), model.held.len() as u64 * 8), "after {step:?}");
        if let Some(changed) = changed {
            assert_eq!(changed, Changed { before, after }, "after {step:?}");
        }
        ask(&fixture, OstRequest::Verify(object)).await.expect("nothing is damaged");
    }
    let (data, _) = read(&fixture, object, 0, 3 * ON_MDT as u32).await.unwrap();
    assert!(data == model.bytes, "the contents differ");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn an_object_is_a_vector_of_bytes(script in prop::collection::vec(steps(), 1..40)) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(run(script));
    }
}
