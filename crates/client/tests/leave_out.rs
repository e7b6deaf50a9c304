//! Automatic layouts while OSTs fill up under files that several clients use: refused data go
//! elsewhere, existing data stay readable, and no client uses an old layout any more. Servers are
//! the shipped ones.

use crate::support;

use std::sync::Arc;

use bytes::Bytes;
use client::{AllocateMode, FileSystem, Interruption, OpenFile, SeekTarget, WriteOptions};
use layout::{Layout, LayoutSpec, Location, StripeSpec};
use rpc::message::{
    LeaveFullOst, LeaveStep, MdtRequest,
    mdt::{ExclusiveBegin, ExclusiveEnd, ExclusivePurpose, Open, OpenFlags, OpenId, open_flag},
};
use support::{READ_WRITE, append, create, read, real::RealCluster, size, with_layout};
use types::{Credentials, FsError, InodeNumber, OstIndex};

const MIB: u64 = 1 << 20;

fn root() -> Credentials {
    Credentials::root()
}

fn mib(mark: u8) -> Bytes {
    vec![mark; MIB as usize].into()
}

/// Writes in requests so small that a component has one stripe.
async fn write(fs: &Arc<FileSystem>, file: &Arc<OpenFile>, offset: u64, data: &[u8]) {
    const PIECE: usize = 128 << 10;
    for (piece, at) in data.chunks(PIECE).zip((offset..).step_by(PIECE)) {
        support::write(fs, file, at, piece).await;
    }
}

async fn open(fs: &Arc<FileSystem>, inode: InodeNumber) -> Arc<OpenFile> {
    fs.open(&root(), inode, OpenFlags(READ_WRITE)).await.expect("the file can be opened")
}

async fn layout(fs: &FileSystem, inode: InodeNumber) -> Layout {
    fs.layout_info(inode).await.unwrap().layout.expect("a file has a layout")
}

/// The OST that holds a byte.
async fn ost_of(fs: &FileSystem, inode: InodeNumber, offset: u64) -> OstIndex {
    let layout = layout(fs, inode).await;
    let location = layout.ranges(offset, 1).next().map(|range| range.location);
    let Some(Location::Ost(ost)) = location else { panic!("{offset} is on {location:?}") };
    ost
}

/// One byte of each MiB.
async fn marks(fs: &Arc<FileSystem>, file: &OpenFile, mebibytes: u64) -> Vec<u8> {
    let mut marks = Vec::new();
    for number in 0..mebibytes {
        let data = read(fs, file, number * MIB, MIB as usize).await;
        assert!(data.iter().all(|byte| *byte == data[0]), "MiB {number} is one piece");
        marks.push(data[0]);
    }
    marks
}

#[tokio::test]
async fn two_writers_go_on_elsewhere_and_read_each_other() {
    let cluster = RealCluster::automatic(3).await;
    let (one, two) = (cluster.mount().await, cluster.mount().await);
    let file = create(&one, "shared", READ_WRITE).await;
    let inode = file.inode();
    let other = open(&two, inode).await;
    write(&one, &file, 0, &mib(1)).await;
    write(&two, &other, MIB, &mib(2)).await;
    let mut full = Vec::new();
    for number in [2, 4] {
        let ost = ost_of(&one, inode, (number - 1) * MIB).await;
        cluster.fill(ost);
        full.push(ost);
        write(&two, &other, number * MIB, &mib(number as u8 + 1)).await;
        assert!(!full.contains(&ost_of(&one, inode, number * MIB).await));
        // A client that knows the old layout is told, whatever it does.
        let seen = read(&one, &file, number * MIB, MIB as usize).await;
        assert_eq!(seen, mib(number as u8 + 1));
        write(&one, &file, (number + 1) * MIB, &mib(number as u8 + 2)).await;
    }
    for (fs, file) in [(&one, &file), (&two, &other)] {
        assert_eq!(marks(fs, file, 6).await, [1, 2, 3, 4, 5, 6]);
    }
    one.fsync(&file, false).await.unwrap();
    one.close(file, None).await.unwrap();
    two.close(other, None).await.unwrap();
    let third = cluster.mount().await;
    assert_eq!(size(&third, inode).await, 6 * MIB);
    third.unlink(&root(), support::ROOT, b"shared").await.unwrap();
}

/// The one with room has hardly any, and the others say that they have much: each decision would
/// lead there again.
#[tokio::test]
async fn osts_that_refuse_for_a_quota_do_not_hide_the_one_with_space() {
    let cluster = RealCluster::automatic(3).await;
    let (one, two) = (cluster.mount().await, cluster.mount().await);
    let file = create(&one, "shared", READ_WRITE).await;
    let inode = file.inode();
    let other = open(&two, inode).await;
    write(&one, &file, 0, &mib(1)).await;
    let first = ost_of(&one, inode, MIB - 1).await;
    let last = (0..3).map(OstIndex).find(|ost| *ost != first).expect("there are three");
    // This is how the MDT hears how little it has.
    cluster.leave(last, 3 * MIB).await;
    let spec = StripeSpec { osts: vec![last], ..StripeSpec::default() };
    let large = with_layout(&one, "large", LayoutSpec::Plain(spec)).await;
    let refused = one.write(&large, 0, vec![9; 4 << 20].into(), WriteOptions::default()).await;
    assert_eq!(refused, Err(FsError::NoSpace));
    (0..3).map(OstIndex).filter(|ost| *ost != last).for_each(|ost| cluster.use_up_quota(ost));
    write(&two, &other, MIB, &mib(2)).await;
    assert_eq!(ost_of(&two, inode, MIB).await, last);
    assert_eq!(marks(&one, &file, 2).await, [1, 2]);
}

/// Three parts: the data before and after the part that moved are in the same objects.
#[tokio::test]
async fn data_behind_the_refused_byte_stay_readable() {
    let cluster = RealCluster::automatic(2).await;
    let (one, two) = (cluster.mount().await, cluster.mount().await);
    let file = create(&one, "sparse", READ_WRITE).await;
    let inode = file.inode();
    write(&one, &file, 0, &mib(1)).await;
    write(&one, &file, 4 * MIB, &mib(5)).await;
    let reader = open(&two, inode).await;
    assert_eq!(marks(&two, &reader, 5).await, [1, 0, 0, 0, 5]);
    let first = ost_of(&one, inode, MIB - 1).await;
    cluster.fill(first);
    write(&one, &file, 2 * MIB, &mib(3)).await;
    let split = layout(&one, inode).await;
    assert_eq!(split.extent_of(1).start, 64 << 10);
    assert_eq!((ost_of(&one, inode, 0xfffff).await, ost_of(&one, inode, 4 * MIB).await), (first, first), "{split:?}");
    assert_ne!(ost_of(&one, inode, 2 * MIB).await, first);
    assert_eq!(marks(&two, &reader, 5).await, [1, 0, 3, 0, 5]);
    // Over the parts that are free, and what moved.
    write(&two, &reader, MIB, &[mib(2), mib(3), mib(4)].concat()).await;
    assert_eq!(marks(&one, &file, 5).await, [1, 2, 3, 4, 5]);
    assert_eq!(two.seek(&reader, 0, SeekTarget::Hole).await, Ok(5 * MIB), "no hole between the parts");
    // After the last part again.
    write(&two, &reader, 5 * MIB, &mib(6)).await;
    for size in [6 * MIB, 4 * MIB + 1, 2 * MIB + 1, MIB + 1] {
        one.truncate(&root(), inode, Some(&file), size).await.unwrap();
        let mark = |offset: u64| (offset / MIB) as u8 + 1;
        assert_eq!(read(&two, &reader, size - 2, 100).await, [mark(size - 2), mark(size - 1)]);
    }
    one.truncate(&root(), inode, Some(&file), 6 * MIB).await.unwrap();
    assert_eq!(read(&two, &reader, MIB + 1, 6 << 20).await, vec![0; 5 * MIB as usize - 1], "nothing comes back");
    let allocate = AllocateMode::Allocate { extend: true };
    one.allocate(&file, allocate, 4 * MIB, 2 * MIB).await.expect("a hole is allocated elsewhere");
    two.close(reader, None).await.unwrap();
    one.close(file, None).await.unwrap();
    assert_eq!(size(&two, inode).await, 6 * MIB);
}

/// The block that the object ends in is filled up where it is.
#[tokio::test]
async fn a_log_in_small_pieces_goes_on() {
    let cluster = RealCluster::automatic(2).await;
    let fs = cluster.mount().await;
    let log = create(&fs, "log", READ_WRITE | open_flag::APPEND).await;
    let mut expected = vec![b'a'; 100_001];
    append(&fs, &log, &expected).await;
    cluster.fill(ost_of(&fs, log.inode(), 100_000).await);
    for number in 0..30u8 {
        let line = vec![number; 1001];
        append(&fs, &log, &line).await;
        expected.extend(line);
    }
    assert_eq!(read(&fs, &log, 0, 1 << 20).await, expected);
    assert_eq!(layout(&fs, log.inode()).await.extent_of(1).end % 4096, 0);
}

/// The block that a write begins in, in the middle, has no data: it moves as a whole.
#[tokio::test]
async fn an_unaligned_write_into_a_hole_goes_elsewhere() {
    let cluster = RealCluster::automatic(2).await;
    let (one, two) = (cluster.mount().await, cluster.mount().await);
    let file = create(&one, "sparse", READ_WRITE).await;
    let inode = file.inode();
    write(&one, &file, 0, &mib(1)).await;
    write(&one, &file, 3 * MIB, &mib(4)).await;
    let reader = open(&two, inode).await;
    let first = ost_of(&one, inode, MIB).await;
    cluster.fill(first);
    write(&one, &file, 2 * MIB + 1, &[3; 200_000]).await;
    assert_ne!(ost_of(&one, inode, 2 * MIB).await, first);
    let expected = [vec![0; 4097], vec![3; 200_000], vec![0; 4096]].concat();
    assert_eq!(read(&two, &reader, 2 * MIB - 4096, expected.len()).await, expected);
    assert_eq!(read(&two, &reader, 3 * MIB, MIB as usize).await, mib(4));
}

/// A component in which nothing was written: its objects keep their fence, in no bytes.
#[tokio::test]
async fn a_component_without_data_is_left_out_as_a_whole() {
    let cluster = RealCluster::automatic(2).await;
    let (one, two) = (cluster.mount().await, cluster.mount().await);
    let file = create(&one, "file", READ_WRITE).await;
    let inode = file.inode();
    // Its end gets an object, which a truncation would not need.
    one.allocate(&file, AllocateMode::Zero { extend: true }, 2 * MIB - 1, 1).await.unwrap();
    let other = open(&two, inode).await;
    let first = ost_of(&one, inode, MIB).await;
    cluster.fill(first);
    write(&two, &other, 64 << 10, &mib(7)).await;
    assert_eq!(read(&one, &file, 64 << 10, MIB as usize).await, mib(7));
    let layout = layout(&one, inode).await;
    assert_eq!((layout.extent_of(1).bytes(), layout.object_count()), (0, 3), "{layout:?}");
    assert_eq!(size(&one, inode).await, 2 * MIB);
    one.truncate(&root(), inode, Some(&file), 100 << 10).await.unwrap();
    assert_eq!(size(&two, inode).await, 100 << 10);
}

#[tokio::test]
async fn nobody_is_refused_before_all_osts_are_full() {
    let cluster = RealCluster::automatic(3).await;
    let fs = cluster.mount().await;
    let file = create(&fs, "file", READ_WRITE).await;
    write(&fs, &file, 0, &mib(1)).await;
    (0..2).map(OstIndex).for_each(|ost| cluster.fill(ost));
    write(&fs, &file, MIB, &mib(2)).await;
    cluster.fill(OstIndex(2));
    assert_eq!(fs.write(&file, 2 * MIB, mib(3), WriteOptions::default()).await, Err(FsError::NoSpace));
    assert_eq!(marks(&fs, &file, 2).await, [1, 2]);
}

/// Both OSTs are below their reserve, and none is refused for that.
#[tokio::test]
async fn the_last_space_is_used_and_then_there_is_none() {
    const PIECE: u64 = 128 << 10;
    let cluster = RealCluster::automatic(2).await;
    let fs = cluster.mount().await;
    let file = create(&fs, "file", READ_WRITE).await;
    write(&fs, &file, 0, &mib(1)).await;
    cluster.leave(OstIndex(0), 2 * MIB).await;
    cluster.leave(OstIndex(1), 3 * MIB).await;
    let (mut end, mut refusals) = (MIB, 0);
    // On a machine that stands still for a second the MDT decides by older reports, and knows
    // better the next time.
    while refusals < 3 {
        match fs.write(&file, end, vec![1; PIECE as usize].into(), WriteOptions::default()).await {
            Ok(bytes) => (end, refusals) = (end + bytes as u64, 0),
            Err(error) => {
                assert_eq!(error, FsError::NoSpace);
                refusals += 1;
            }
        }
    }
    for ost in [0, 1].map(OstIndex) {
        assert!(cluster.left(ost).await < MIB / 2, "{ost} has {} left", cluster.left(ost).await);
    }
    let data = read(&fs, &file, 0, end as usize + 1).await;
    assert!(data.len() as u64 == end && data.iter().all(|byte| *byte == 1));
}

/// The client that had the objects fenced gives up before it has another layout made.
#[tokio::test]
async fn a_fence_without_a_new_layout_holds_nobody_up() {
    let cluster = RealCluster::automatic(1).await;
    let (one, two) = (cluster.mount().await, cluster.mount().await);
    let file = create(&one, "file", READ_WRITE).await;
    write(&one, &file, 0, &mib(1)).await;
    let inode = file.inode();
    let reader = two.open(&root(), inode, OpenFlags(open_flag::READ)).await.unwrap();
    let before = layout(&one, inode).await;
    let (client, open) = (one.client_id(), OpenId(u64::MAX));
    let opens = Open { inode, open, flags: OpenFlags(READ_WRITE) };
    let begin = ExclusiveBegin { inode, open: Some(open), purpose: ExclusivePurpose::Append };
    let step = LeaveStep::Fence(before.components[1].id);
    let leave = LeaveFullOst { inode, open, generation: before.generation, step };
    cluster.ask_mdt(client, MdtRequest::Open(root(), opens)).await;
    cluster.ask_mdt(client, MdtRequest::ExclusiveBegin(root(), begin)).await;
    cluster.ask_mdt(client, MdtRequest::LeaveFullOst(leave)).await;
    let reading = tokio::spawn({
        let (two, reader) = (two.clone(), reader.clone());
        async move { read(&two, &reader, 0, 2 << 20).await }
    });
    // Whichever user of the client it is.
    let writing = tokio::spawn({
        let (one, file) = (one.clone(), file.clone());
        async move { write(&one, &file, MIB, &mib(2)).await }
    });
    for fs in [&one, &two] {
        while support::asked_for_layout(fs) == 0 {
            tokio::task::yield_now().await;
        }
    }
    assert!(!reading.is_finished() && !writing.is_finished(), "they wait for the layout");
    cluster.ask_mdt(client, MdtRequest::ExclusiveEnd(ExclusiveEnd { inode, update: None })).await;
    assert_eq!(reading.await.unwrap()[..MIB as usize], mib(1));
    writing.await.unwrap();
    two.truncate(&root(), inode, None, MIB).await.unwrap();
    let after = layout(&one, inode).await;
    assert_eq!((after.generation.0, after.components), (before.generation.0 + 1, before.components));
}

/// No MDT fences so far: readers and truncations do not ask for the layout forever.
#[tokio::test]
async fn an_object_that_is_fenced_beyond_the_layout_is_damaged() {
    let cluster = RealCluster::automatic(1).await;
    let fs = cluster.mount().await;
    let file = create(&fs, "file", READ_WRITE).await;
    write(&fs, &file, 0, &mib(1)).await;
    let inode = file.inode();
    cluster.fence(OstIndex(0), inode, 1, layout(&fs, inode).await.generation.0 + 1).await;
    assert!(matches!(fs.read(&file, 0, 1 << 20).await.err(), Some(FsError::Damaged(_))));
    assert!(matches!(fs.truncate(&root(), inode, None, MIB).await.err(), Some(FsError::Damaged(_))));
    assert!(fs.write(&file, MIB, mib(2), WriteOptions::default()).await.is_err());
}

#[tokio::test]
async fn what_was_left_out_outlasts_the_mdts_loss_of_power() {
    let mut cluster = RealCluster::automatic(2).await;
    let fs = cluster.mount().await;
    let file = create(&fs, "file", READ_WRITE).await;
    write(&fs, &file, 0, &mib(1)).await;
    cluster.fill(ost_of(&fs, file.inode(), MIB - 1).await);
    write(&fs, &file, MIB, &mib(2)).await;
    cluster.lose_power_of_mdt().await;
    write(&fs, &file, 2 * MIB, &mib(3)).await;
    let other = cluster.mount().await;
    let reader = open(&other, file.inode()).await;
    assert_eq!(marks(&other, &reader, 3).await, [1, 2, 3]);
}

#[tokio::test]
async fn writers_that_are_refused_at_the_same_time_all_find_space() {
    let cluster = RealCluster::automatic(3).await;
    let clients = [cluster.mount().await, cluster.mount().await];
    let file = create(&clients[0], "file", READ_WRITE).await;
    let inode = file.inode();
    write(&clients[0], &file, 0, &mib(1)).await;
    cluster.fill(ost_of(&clients[0], inode, MIB - 1).await);
    let mut writers = Vec::new();
    for number in 1..17u64 {
        let fs = clients[number as usize % 2].clone();
        let file = open(&fs, inode).await;
        writers.push(tokio::spawn(async move {
            let written = fs.write(&file, number * MIB, mib(number as u8 + 1), WriteOptions::default()).await;
            assert_eq!(written, Ok(MIB as usize), "MiB {number}");
            fs.close(file, None).await.unwrap();
        }));
    }
    for writer in writers {
        writer.await.unwrap();
    }
    let expected: Vec<u8> = (1..18).collect();
    let reader = open(&clients[1], inode).await;
    assert_eq!(marks(&clients[1], &reader, 17).await, expected);
    let layout = layout(&clients[0], inode).await;
    assert!(layout.components.len() < 10, "{layout:?}");
}

/// An OST that is not full may still not have room for so much at once.
#[tokio::test]
async fn a_reservation_larger_than_all_space_is_refused_after_few_layouts() {
    let cluster = RealCluster::automatic(2).await;
    let fs = cluster.mount().await;
    let file = create(&fs, "file", READ_WRITE).await;
    let inode = file.inode();
    cluster.devices.iter().for_each(|device| device.set_capacity(64 * MIB));
    let allocate = AllocateMode::Allocate { extend: true };
    for _ in 0..2 {
        assert_eq!(fs.allocate(&file, allocate, 100 * MIB, 900 * MIB).await, Err(FsError::NoSpace));
    }
    let refused = layout(&fs, inode).await;
    assert!(refused.generation.0 < 100, "{}", refused.generation.0);
    cluster.devices.iter().for_each(|device| device.set_capacity(2048 * MIB));
    write(&fs, &file, 0, &mib(1)).await;
    assert_eq!(marks(&fs, &file, 1).await, [1]);
    fs.close(file, None).await.unwrap();
    fs.unlink(&root(), support::ROOT, b"file").await.unwrap();
}

#[tokio::test]
async fn a_large_reservation_asks_all_osts_before_it_takes_anything() {
    let cluster = RealCluster::automatic(2).await;
    let fs = cluster.mount().await;
    let file = create(&fs, "file", READ_WRITE).await;
    let before = layout(&fs, file.inode()).await;
    cluster.devices.iter().for_each(|device| device.set_capacity(64 * MIB));
    let allocate = AllocateMode::Allocate { extend: true };
    assert_eq!(fs.allocate(&file, allocate, 300 << 30, 20 << 30).await, Err(FsError::NoSpace));
    assert_eq!(layout(&fs, file.inode()).await, before);
    for ost in (0..2).map(OstIndex) {
        assert_eq!(cluster.objects(ost).await, []);
    }
    // What takes no space is none of it.
    fs.allocate(&file, AllocateMode::Zero { extend: true }, 0, 1 << 40).await.unwrap();
    assert_eq!(size(&fs, file.inode()).await, 1 << 40);
}

#[tokio::test]
async fn a_reservation_is_spread_over_osts_that_each_have_space_for_a_part() {
    let cluster = RealCluster::automatic(2).await;
    let fs = cluster.mount().await;
    let file = create(&fs, "file", READ_WRITE).await;
    cluster.devices.iter().for_each(|device| device.set_capacity(96 * MIB));
    let allocate = AllocateMode::Allocate { extend: true };
    fs.allocate(&file, allocate, 0, 140 * MIB).await.unwrap();
    assert_eq!(size(&fs, file.inode()).await, 140 * MIB);
}

#[tokio::test]
async fn the_search_for_space_to_reserve_can_be_interrupted() {
    let cluster = RealCluster::automatic(2).await;
    let fs = cluster.mount().await;
    let file = create(&fs, "file", READ_WRITE).await;
    let allocate = AllocateMode::Allocate { extend: true };
    let interrupted = Interruption::default();
    interrupted.raise();
    assert_eq!(
        fs.allocate_unless(&Credentials::root(), &file, allocate, (0, MIB), interrupted.clone()).await,
        Ok(()),
        "nothing was looked for"
    );
    let before = layout(&fs, file.inode()).await;
    (0..2).map(OstIndex).for_each(|ost| cluster.fill(ost));
    let outcome = fs.allocate_unless(&Credentials::root(), &file, allocate, (2 * MIB, MIB), interrupted).await;
    assert_eq!(outcome, Err(FsError::Interrupted));
    assert_eq!(layout(&fs, file.inode()).await.generation, before.generation);
}
