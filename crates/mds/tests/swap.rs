//! Layouts swapped between files: what moves, what prevents it, what survives.

use crate::common;

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use common::{ost::NotingOst, *};
use layout::{BackingSpec, ComponentSpec, END_OF_FILE, Layout, LayoutSpec, StripeCount, StripeSpec};
use rpc::{
    Endpoint,
    checksum::crc32c,
    message::{
        MdtReply, MdtRequest, OstReply, OstRequest,
        mdt::{
            Create, CreateUnnamed, DataVersion, ExclusiveBegin, ExclusiveEnd, ExclusivePurpose, LayoutChange,
            LayoutInfo, Open, OpenFlags, OpenId, Opened, SizeUpdate, SwapLayouts, SwapSide, open_flag,
        },
        ost::{Read, Write},
    },
};
use rt::memory::{JumpingClock, MemoryTransport};
use types::{Credentials, FsError, FsResult, InodeNumber, NodeKind, ObjectId, OstIndex, Owner, Slot, Timestamp};

const KIB: u64 = 1 << 10;

async fn with_osts(count: u16) -> (Fixture, Vec<Arc<NotingOst>>) {
    let network = MemoryTransport::new();
    let served: Vec<(Arc<NotingOst>, Endpoint)> =
        (0..count).map(|index| NotingOst::serve(&network, OstIndex(index))).collect();
    let map = served.iter().zip(0..).map(|((_, endpoint), index)| (OstIndex(index), endpoint.clone(), true)).collect();
    let fs = Fixture::on_network(&network, map).await;
    (fs, served.into_iter().map(|(ost, _)| ost).collect())
}

fn stripes(count: u32) -> StripeSpec {
    StripeSpec { stripe_count: StripeCount::Exactly(count), ..StripeSpec::default() }
}

fn on_mdt() -> LayoutSpec {
    LayoutSpec::Composite(vec![
        ComponentSpec { end: 64 * KIB, backing: BackingSpec::Mdt },
        ComponentSpec { end: END_OF_FILE, backing: BackingSpec::Striped(stripes(1)) },
    ])
}

/// A closed file of this layout and size, as its writer told.
async fn file(fs: &Fixture, name: &str, spec: LayoutSpec, size: u64) -> InodeNumber {
    let open = fs.open_id();
    let request = create_request(ROOT, name, NodeKind::Regular, 0o644, Some((open, OpenFlags(READ | WRITE))));
    let request = MdtRequest::Create(root(), Create { layout: Some(spec), ..request });
    let opened = created(fs.call(ALICE, request).await.unwrap()).opened.unwrap();
    let inode = opened.entry.attributes.inode;
    let update = SizeUpdate { epoch: opened.epoch, size, blocks: size / 512, mtime: Some(at(5)), changes: 0 };
    fs.close(ALICE, inode, open, Some(update)).await.unwrap();
    inode
}

/// A file without a name, open for writing.
async fn unnamed(fs: &Fixture) -> (OpenId, Opened) {
    let open = fs.open_id();
    let flags = OpenFlags(READ | WRITE | open_flag::EXCLUSIVE);
    let request = CreateUnnamed { parent: ROOT, mode: 0o600, umask: 0, open: (open, flags) };
    let made = created(fs.call(ALICE, MdtRequest::CreateUnnamed(root(), request)).await.unwrap());
    (open, made.opened.unwrap())
}

fn at(seconds: i64) -> Timestamp {
    Timestamp { seconds, nanoseconds: 0 }
}

async fn layout(fs: &Fixture, inode: InodeNumber) -> Layout {
    match fs.call(ALICE, MdtRequest::GetLayout(inode)).await.unwrap() {
        MdtReply::Layout(LayoutInfo { layout: Some(layout), .. }) => layout,
        other => panic!("{other:?}"),
    }
}

async fn version(fs: &Fixture, inode: InodeNumber) -> FsResult<u64> {
    version_held(fs, inode, None).await
}

async fn version_held(fs: &Fixture, inode: InodeNumber, hold_writers: Option<OpenId>) -> FsResult<u64> {
    match fs.call(ALICE, MdtRequest::DataVersion(root(), DataVersion { inode, hold_writers })).await? {
        MdtReply::Version(version) => Ok(version),
        other => panic!("{other:?}"),
    }
}

fn side(inode: InodeNumber, epoch: u64) -> SwapSide {
    SwapSide { inode, open: None, known: SizeUpdate { epoch, size: 0, blocks: 0, mtime: None, changes: 0 } }
}

async fn swap(fs: &Fixture, who: &Credentials, first: SwapSide, second: SwapSide) -> FsResult<()> {
    let swap = MdtRequest::SwapLayouts(who.clone(), SwapLayouts { first, second });
    done(fs.call(ALICE, swap).await?)
}

async fn swap_closed(fs: &Fixture, first: InodeNumber, second: InodeNumber) -> FsResult<()> {
    let (one, other) = (version(fs, first).await?, version(fs, second).await?);
    swap(fs, &root(), side(first, one), side(second, other)).await
}

#[tokio::test]
async fn sizes_go_with_the_data_and_times_stay() {
    let mut fs = Fixture::new().await;
    let one = file(&fs, "one", LayoutSpec::Plain(stripes(1)), 1 << 20).await;
    let two = file(&fs, "two", LayoutSpec::Plain(stripes(3)), 3 << 20).await;
    let before = (fs.stat(one).await.unwrap().attributes, fs.stat(two).await.unwrap().attributes);
    let layouts = (layout(&fs, one).await, layout(&fs, two).await);
    swap_closed(&fs, one, two).await.unwrap();
    fs.restart_and_recover().await;
    let after = (fs.stat(one).await.unwrap(), fs.stat(two).await.unwrap());
    assert!(after.0.size_unknown.is_none() && after.1.size_unknown.is_none());
    let size_and_blocks = |found: &types::Attributes| (found.size, found.blocks);
    assert_eq!(size_and_blocks(&after.0.attributes), size_and_blocks(&before.1));
    assert_eq!(size_and_blocks(&after.1.attributes), size_and_blocks(&before.0));
    assert_eq!((after.0.attributes.mtime, after.1.attributes.mtime), (before.0.mtime, before.1.mtime));
    let (first, second) = (layout(&fs, one).await, layout(&fs, two).await);
    assert_eq!((first.named_by, second.named_by), (Some(two), Some(one)));
    assert_eq!((first.components, second.components), (layouts.1.components, layouts.0.components));
}

#[tokio::test]
async fn each_file_destroys_the_objects_it_has() {
    let (fs, osts) = with_osts(2).await;
    let one = file(&fs, "one", LayoutSpec::Plain(StripeSpec { first_ost: Some(OstIndex(0)), ..stripes(1) }), 9).await;
    let two = file(&fs, "two", LayoutSpec::Plain(StripeSpec { first_ost: Some(OstIndex(1)), ..stripes(1) }), 9).await;
    swap_closed(&fs, one, two).await.unwrap();
    fs.unlink(&root(), ROOT, "one").await.unwrap();
    let destroyed = |ost: &NotingOst| ost.destroyed.lock().clone();
    eventually("the objects are destroyed", async || !destroyed(&osts[1]).is_empty()).await;
    assert_eq!(destroyed(&osts[1]), [ObjectId::new(two, 0)]);
    assert_eq!(destroyed(&osts[0]), []);
}

#[tokio::test]
async fn data_on_the_mdt_get_the_number_of_their_new_file() {
    let fs = Fixture::new().await;
    let (one, two) = (file(&fs, "one", on_mdt(), 0).await, file(&fs, "two", on_mdt(), 0).await);
    write(&fs, one, b"first").await;
    write(&fs, two, b"the second").await;
    let plain = file(&fs, "plain", LayoutSpec::Plain(stripes(1)), 0).await;
    swap_closed(&fs, one, two).await.unwrap();
    assert_eq!(
        (read(&fs, one).await.unwrap(), read(&fs, two).await.unwrap()),
        (b"the second".to_vec(), b"first".to_vec())
    );
    swap_closed(&fs, two, plain).await.unwrap();
    assert_eq!(read(&fs, two).await, Err(FsError::Stale), "it is on an OST");
    assert_eq!(read(&fs, plain).await.unwrap(), b"first");
    fs.unlink(&root(), ROOT, "two").await.unwrap();
    assert_eq!(read(&fs, plain).await.unwrap(), b"first");
    let findings = fs.call(ALICE, MdtRequest::Check(root(), false)).await.unwrap();
    assert_eq!(findings, MdtReply::Findings(vec![]));
}

async fn write(fs: &Fixture, inode: InodeNumber, data: &[u8]) {
    let object = ObjectId::new(inode, 0);
    let write = Write {
        object,
        offset: 0,
        checksums: vec![crc32c(data)],
        sync: false,
        layout_generation: 0,
        owner: Owner::default(),
    };
    let request = MdtRequest::ChangeData(OstRequest::Write(write));
    let (open, opened) = fs.open(ALICE, &root(), inode, WRITE).await.unwrap();
    fs.call_with(ALICE, Slot(0), fs.next_xid(ALICE), request, Bytes::copy_from_slice(data)).await.unwrap();
    fs.close(ALICE, inode, open, Some(size_update(opened.epoch, data.len() as u64))).await.unwrap();
}

async fn read(fs: &Fixture, inode: InodeNumber) -> FsResult<Vec<u8>> {
    let request = MdtRequest::ReadData(OstRequest::Read(Read {
        object: ObjectId::new(inode, 0),
        offset: 0,
        bytes: 100,
        layout_generation: 0,
    }));
    match fs.call_with(ALICE, Slot(0), fs.next_xid(ALICE), request, Bytes::new()).await? {
        (MdtReply::Data(OstReply::Read(_)), bulk) => Ok(bulk.to_vec()),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn whoever_has_a_file_open_keeps_its_layout() {
    let fs = Fixture::new().await;
    fs.begin(BOB).await;
    let one = file(&fs, "one", LayoutSpec::Plain(stripes(1)), 9).await;
    let two = file(&fs, "two", LayoutSpec::Plain(stripes(2)), 9).await;
    for (client, flags) in [(ALICE, READ), (BOB, READ), (BOB, WRITE)] {
        let (open, opened) = fs.open(client, &root(), one, flags).await.unwrap();
        let epochs = (version(&fs, one).await.unwrap_or(opened.epoch), version(&fs, two).await.unwrap());
        for (first, second) in [(side(one, epochs.0), side(two, epochs.1)), (side(two, epochs.1), side(one, epochs.0))]
        {
            assert_eq!(swap(&fs, &root(), first, second).await, Err(FsError::Busy));
        }
        let update = SizeUpdate { epoch: opened.epoch, size: 9, blocks: 0, mtime: None, changes: 0 };
        fs.close(client, one, open, (flags == WRITE).then_some(update)).await.unwrap();
    }
    // A truncation in progress, and a version that is over.
    let old = version(&fs, one).await.unwrap();
    let begin = ExclusiveBegin { inode: one, open: None, purpose: ExclusivePurpose::Truncate(4) };
    fs.call(BOB, MdtRequest::ExclusiveBegin(root(), begin)).await.unwrap();
    assert_eq!(version(&fs, one).await, Err(FsError::Busy));
    assert_eq!(
        swap(&fs, &root(), side(one, old + 1), side(two, version(&fs, two).await.unwrap())).await,
        Err(FsError::Busy)
    );
    let update = SizeUpdate { epoch: old + 1, size: 4, blocks: 0, mtime: None, changes: 0 };
    fs.call(BOB, MdtRequest::ExclusiveEnd(ExclusiveEnd { inode: one, update: Some(update) })).await.unwrap();
    assert_eq!(
        swap(&fs, &root(), side(one, old), side(two, version(&fs, two).await.unwrap())).await,
        Err(FsError::Busy)
    );
    swap_closed(&fs, one, two).await.unwrap();
    assert_eq!(fs.stat(two).await.unwrap().attributes.size, 4);
}

#[tokio::test]
async fn a_repeated_swap_does_not_swap_back() {
    let mut fs = Fixture::new().await;
    let one = file(&fs, "one", LayoutSpec::Plain(stripes(1)), 1).await;
    let two = file(&fs, "two", LayoutSpec::Plain(stripes(2)), 2).await;
    let sides = (side(one, version(&fs, one).await.unwrap()), side(two, version(&fs, two).await.unwrap()));
    let request = MdtRequest::SwapLayouts(root(), SwapLayouts { first: sides.0, second: sides.1 });
    let xid = fs.next_xid(ALICE);
    assert_eq!(fs.call_as(ALICE, Slot(1), xid, request.clone()).await, Ok(MdtReply::Done));
    fs.restart_and_recover().await;
    assert_eq!(fs.call_as(ALICE, Slot(1), xid, request).await, Ok(MdtReply::Done));
    assert_eq!(fs.stat(one).await.unwrap().attributes.size, 2);
}

#[tokio::test]
async fn a_swap_is_a_way_to_write() {
    let fs = Fixture::new().await;
    let one = file(&fs, "one", LayoutSpec::Plain(stripes(1)), 1).await;
    let two = file(&fs, "two", LayoutSpec::Plain(stripes(1)), 2).await;
    let sides = (side(one, version(&fs, one).await.unwrap()), side(two, version(&fs, two).await.unwrap()));
    let stranger = Credentials { uid: 7, gid: 7, groups: Some(vec![]) };
    assert_eq!(swap(&fs, &stranger, sides.0, sides.1).await, Err(FsError::AccessDenied));
    assert_eq!(swap(&fs, &root(), sides.0, sides.0).await, Err(FsError::Invalid));
    let directory = fs.mkdir(ROOT, "directory").await;
    assert_eq!(swap(&fs, &root(), sides.0, side(directory, 0)).await, Err(FsError::IsDirectory));
}

/// A client repeats an open when the MDT restarted while it granted it. A migration that holds
/// writers off waits for that one.
#[tokio::test]
async fn an_open_that_is_repeated_does_not_wait_for_who_waits_for_it() {
    let fs = Fixture::new().await;
    fs.begin(BOB).await;
    let inode = file(&fs, "file", LayoutSpec::Plain(stripes(1)), 9).await;
    let (held, _) = fs.open(ALICE, &root(), inode, READ).await.unwrap();
    let again = |open| MdtRequest::Open(root(), Open { inode, open, flags: OpenFlags(WRITE) });
    let open = fs.open_id();
    assert!(matches!(fs.call(BOB, again(open)).await, Ok(MdtReply::Opened(_))));
    assert_eq!(version_held(&fs, inode, Some(held)).await, Err(FsError::Busy));
    assert!(matches!(fs.call(BOB, again(open)).await, Ok(MdtReply::Opened(_))));
    assert_eq!(fs.call(ALICE, again(fs.open_id())).await, Ok(MdtReply::Waiting));
}

/// Each would wait for the other to close the file, and writers for both, forever.
#[tokio::test]
async fn one_open_at_a_time_holds_writers_off() {
    let fs = Fixture::new().await;
    fs.begin(BOB).await;
    let inode = file(&fs, "file", LayoutSpec::Plain(stripes(1)), 9).await;
    let (first, _) = fs.open(ALICE, &root(), inode, READ).await.unwrap();
    let (same_client, _) = fs.open(ALICE, &root(), inode, READ).await.unwrap();
    let (other_client, _) = fs.open(BOB, &root(), inode, READ).await.unwrap();
    let of_bob = MdtRequest::DataVersion(root(), DataVersion { inode, hold_writers: Some(other_client) });
    let epoch = version_held(&fs, inode, Some(first)).await.unwrap();
    for _ in 0..2 {
        assert_eq!(version_held(&fs, inode, Some(same_client)).await, Err(FsError::WouldBlock));
        assert_eq!(fs.call(BOB, of_bob.clone()).await, Err(FsError::WouldBlock));
        assert_eq!(version_held(&fs, inode, Some(first)).await, Ok(epoch), "it has not lost it");
    }
    fs.close(ALICE, inode, first, None).await.unwrap();
    assert_eq!(fs.call(BOB, of_bob).await, Ok(MdtReply::Version(epoch)));
    assert_eq!(version_held(&fs, inode, Some(same_client)).await, Err(FsError::WouldBlock));
}

/// A client that goes on renewing its lease, and holds writers off again and again.
#[tokio::test]
async fn writers_are_not_held_off_forever() {
    let mut fs = Fixture::new().await;
    let clock = JumpingClock::default();
    fs.seams.clock = Arc::new(clock.clone());
    fs.restart_and_recover().await;
    fs.begin(BOB).await;
    let inode = file(&fs, "file", LayoutSpec::Plain(stripes(1)), 9).await;
    let (holder, _) = fs.open(ALICE, &root(), inode, READ).await.unwrap();
    let write = MdtRequest::Open(root(), Open { inode, open: OpenId(77), flags: OpenFlags(WRITE) });
    let (mut intervals, mut refused) = (0, 0);
    let opened = async || {
        clock.jump(Duration::from_secs(3));
        intervals += 1;
        match version_held(&fs, inode, Some(holder)).await {
            Ok(_) => {}
            Err(error) => {
                assert_eq!(error, FsError::WouldBlock);
                refused += 1;
            }
        }
        !matches!(fs.call(BOB, write.clone()).await, Ok(MdtReply::Waiting))
    };
    eventually("BOB writes", opened).await;
    assert!(intervals >= 200 && refused <= 1, "after {intervals} intervals and {refused} refusals");
}

/// The holder waits until all others have closed the file, so a program that reads it, and then
/// opens it for writing, would wait for itself.
#[tokio::test]
async fn who_has_the_file_open_besides_is_not_held_off() {
    let fs = Fixture::new().await;
    fs.begin(BOB).await;
    let inode = file(&fs, "file", LayoutSpec::Plain(stripes(1)), 9).await;
    let (held, _) = fs.open(ALICE, &root(), inode, READ).await.unwrap();
    let begin = ExclusiveBegin { inode, open: None, purpose: ExclusivePurpose::Truncate(4) };
    let truncate = MdtRequest::ExclusiveBegin(root(), begin);
    // Of the holder's client or another; opened for writing, or cut off by path.
    for client in [ALICE, BOB] {
        for truncates in [false, true] {
            let epoch = version_held(&fs, inode, Some(held)).await.unwrap();
            let open = fs.open_id();
            let write = MdtRequest::Open(root(), Open { inode, open, flags: OpenFlags(WRITE) });
            let request = if truncates { truncate.clone() } else { write };
            assert_eq!(fs.call(client, request.clone()).await, Ok(MdtReply::Waiting));
            let (reader, _) = fs.open(client, &root(), inode, READ).await.unwrap();
            let update = match fs.call(client, request).await.unwrap() {
                MdtReply::Opened(opened) => {
                    SizeUpdate { epoch: opened.epoch, size: 9, blocks: 0, mtime: None, changes: 0 }
                }
                MdtReply::ExclusiveGranted(granted) => {
                    SizeUpdate { epoch: granted.epoch, size: 4, blocks: 0, mtime: None, changes: 0 }
                }
                other => panic!("{other:?}"),
            };
            assert_eq!(version_held(&fs, inode, Some(held)).await, Err(FsError::Busy), "it has begun to write");
            if truncates {
                let end = ExclusiveEnd { inode, update: Some(update) };
                fs.call(client, MdtRequest::ExclusiveEnd(end)).await.unwrap();
            } else {
                fs.close(client, inode, open, Some(update)).await.unwrap();
            }
            fs.close(client, inode, reader, None).await.unwrap();
            assert!(version_held(&fs, inode, Some(held)).await.unwrap() > epoch, "what was copied is copied again");
        }
    }
}

/// What `lfs migrate` does, request by request.
#[tokio::test]
async fn a_file_moves_into_an_unnamed_one_and_back_out() {
    let fs = Fixture::new().await;
    fs.begin(BOB).await;
    let inode = file(&fs, "file", LayoutSpec::Plain(stripes(1)), 5 << 20).await;
    let mtime = fs.stat(inode).await.unwrap().attributes.mtime;
    let (held, _) = fs.open(ALICE, &root(), inode, READ).await.unwrap();
    let epoch = version_held(&fs, inode, Some(held)).await.unwrap();
    // Writers wait from here on.
    let open = Open { inode, open: fs.open_id(), flags: OpenFlags(WRITE) };
    let write = MdtRequest::Open(root(), open);
    assert_eq!(fs.call(BOB, write.clone()).await, Ok(MdtReply::Waiting));
    let (open, opened) = unnamed(&fs).await;
    let volatile = opened.entry.attributes.inode;
    let begin = |epoch| LayoutChange::Begin { epoch, spec: LayoutSpec::Plain(stripes(3)), like: inode };
    let change = |change| fs.call(ALICE, MdtRequest::ChangeLayout(root(), volatile, change));
    assert_eq!(change(begin(opened.epoch + 1)).await, Err(FsError::Busy));
    assert_eq!(change(begin(opened.epoch)).await, Ok(MdtReply::Done));
    let named = fs.call(ALICE, MdtRequest::ChangeLayout(root(), inode, begin(epoch))).await;
    assert_eq!(named, Err(FsError::Busy), "only unnamed files begin anew");
    let known = SizeUpdate { epoch: opened.epoch, size: 5 << 20, blocks: 99, mtime: Some(at(1 << 40)), changes: 3 };
    let second = SwapSide { inode: volatile, open: Some(open), known };
    let first = SwapSide { open: Some(held), ..side(inode, epoch) };
    let other = SwapSide { known: SizeUpdate { epoch: known.epoch + 1, ..known }, ..second };
    assert_eq!(swap(&fs, &root(), first, other).await, Err(FsError::Busy));
    swap(&fs, &root(), first, second).await.unwrap();
    let moved = fs.stat(inode).await.unwrap();
    assert!(moved.size_unknown.is_none() && moved.accounted >= at(1 << 40));
    assert_eq!(moved.changes, 3, "those of the objects that it has now");
    assert_eq!((moved.attributes.size, moved.attributes.blocks, moved.attributes.mtime), (5 << 20, 99, mtime));
    assert_eq!((layout(&fs, inode).await.object_count(), layout(&fs, inode).await.named_by), (3, Some(volatile)));
    // The writer continues; with the end of the unnamed file its layout, the old one, goes.
    assert!(matches!(fs.call(BOB, write).await, Ok(MdtReply::Opened(_))));
    fs.close(ALICE, volatile, open, None).await.unwrap();
    assert_eq!(fs.stat(volatile).await, Err(FsError::Stale));
}

/// Its slots would be given once more, and name objects that are there: after a swap, those of
/// another file.
#[tokio::test]
async fn a_file_that_was_truncated_or_swapped_does_not_begin_anew() {
    let fs = Fixture::new().await;
    let inode = file(&fs, "file", LayoutSpec::Plain(stripes(1)), 5 << 20).await;
    let begin = async |volatile: InodeNumber, epoch: u64| {
        let change = LayoutChange::Begin { epoch, spec: LayoutSpec::Plain(stripes(2)), like: inode };
        fs.call(ALICE, MdtRequest::ChangeLayout(root(), volatile, change)).await
    };
    let truncate = async |volatile: InodeNumber, open: OpenId| {
        let begin = ExclusiveBegin { inode: volatile, open: Some(open), purpose: ExclusivePurpose::Truncate(0) };
        let granted = fs.call(ALICE, MdtRequest::ExclusiveBegin(root(), begin)).await.unwrap();
        let MdtReply::ExclusiveGranted(granted) = granted else { panic!("{granted:?}") };
        let end = MdtRequest::ExclusiveEnd(ExclusiveEnd { inode: volatile, update: None });
        fs.call(ALICE, end).await.unwrap();
        granted.epoch
    };
    let (open, opened) = unnamed(&fs).await;
    let written = opened.entry.attributes.inode;
    assert_eq!(truncate(written, open).await, opened.epoch, "it is the only source of changes");
    assert_eq!(begin(written, opened.epoch).await, Err(FsError::Busy), "what was cut off has objects");

    let (open, opened) = unnamed(&fs).await;
    let swapped = opened.entry.attributes.inode;
    assert_eq!(begin(swapped, opened.epoch).await, Ok(MdtReply::Done), "nothing has happened to it");
    let known = SizeUpdate { epoch: opened.epoch, size: 5 << 20, blocks: 99, mtime: None, changes: 0 };
    let second = SwapSide { inode: swapped, open: Some(open), known };
    swap(&fs, &root(), side(inode, version(&fs, inode).await.unwrap()), second).await.unwrap();
    let epoch = version(&fs, swapped).await.unwrap_or(opened.epoch + 1);
    assert_eq!(begin(swapped, epoch).await, Err(FsError::Busy));
    let epoch = truncate(swapped, open).await;
    assert_eq!(begin(swapped, epoch).await, Err(FsError::Busy), "its objects bear the number of the other file");
    assert_eq!(layout(&fs, swapped).await.named_by, Some(inode));
}

/// A swap reads and writes, and its files are named by numbers that anybody can guess.
#[tokio::test]
async fn who_swaps_may_read_and_write_both_and_come_to_them() {
    let fs = Fixture::new().await;
    let public = fs.create(&root(), ROOT, "public", NodeKind::Directory, 0o777).await.unwrap();
    let own = fs.create(&user(5), public, "own", NodeKind::Regular, 0o600).await.unwrap();
    let private = fs.create(&user(6), public, "private", NodeKind::Directory, 0o700).await.unwrap();
    let hidden = fs.create(&user(6), private, "hidden", NodeKind::Regular, 0o666).await.unwrap();
    let unreadable = fs.create(&user(6), public, "unreadable", NodeKind::Regular, 0o622).await.unwrap();
    let shared = fs.create(&user(6), public, "shared", NodeKind::Regular, 0o666).await.unwrap();
    let attempt = async |victim: InodeNumber| {
        let (one, other) = (version(&fs, own).await.unwrap(), version(&fs, victim).await.unwrap());
        swap(&fs, &user(5), side(own, one), side(victim, other)).await
    };
    assert_eq!(attempt(hidden).await, Err(FsError::AccessDenied));
    assert_eq!(attempt(unreadable).await, Err(FsError::AccessDenied));
    // Another user of the same client has it open.
    let (open, opened) = fs.open(ALICE, &user(6), hidden, WRITE).await.unwrap();
    let one = version(&fs, own).await.unwrap();
    let theirs = SwapSide { open: Some(open), ..side(hidden, opened.epoch) };
    assert_eq!(swap(&fs, &user(5), side(own, one), theirs).await, Err(FsError::AccessDenied));
    attempt(shared).await.unwrap();
}
