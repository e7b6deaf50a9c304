//! Files that get their objects as they grow, seen by several clients: a client that knows an old
//! layout sees and keeps what others wrote beyond it. On the shipped MDT and OSTs, on devices in
//! memory.

use crate::support;

use std::sync::Arc;

use bytes::Bytes;
use client::{AllocateMode, FileSystem, OpenFile, SeekTarget, WriteOptions};
use layout::{BackingSpec, ComponentSpec, END_OF_FILE, Layout, LayoutSpec, StripeCount, StripeSpec};
use proptest::prelude::*;
use rpc::message::mdt::{OpenFlags, open_flag};
use support::{
    READ_WRITE, ROOT, append, read,
    real::RealCluster,
    script::{Client, STRIPE, play, steps},
    size, with_layout, write,
};
use types::{Credentials, FsError, InodeNumber};

/// The watermarks of the test's files.
const FIRST: u64 = STRIPE;
const SECOND: u64 = 4 * STRIPE;

fn root() -> Credentials {
    Credentials::root()
}

fn component(end: u64, stripe_count: StripeCount) -> ComponentSpec {
    let stripes = StripeSpec { stripe_count, stripe_bytes: Some(STRIPE), ..StripeSpec::default() };
    ComponentSpec { end, backing: BackingSpec::Striped(stripes) }
}

/// One stripe, two, then all; the last component ends at `end`.
async fn composite(fs: &Arc<FileSystem>, name: &str, end: u64) -> Arc<OpenFile> {
    let spec = LayoutSpec::Composite(vec![
        component(FIRST, StripeCount::Exactly(1)),
        component(SECOND, StripeCount::Exactly(2)),
        component(end, StripeCount::All),
    ]);
    with_layout(fs, name, spec).await
}

/// Every way in which a layout can grow.
fn growing_layouts() -> impl Strategy<Value = LayoutSpec> {
    let extended = |end| {
        let stripes = StripeSpec { stripe_bytes: Some(STRIPE), ..StripeSpec::default() };
        ComponentSpec { end, backing: BackingSpec::Extended(stripes, STRIPE) }
    };
    let on_mdt = ComponentSpec { end: FIRST, backing: BackingSpec::Mdt };
    let all = component(END_OF_FILE, StripeCount::All);
    prop_oneof![
        Just(LayoutSpec::Composite(vec![
            component(FIRST, StripeCount::Exactly(1)),
            component(SECOND, StripeCount::Exactly(2)),
            all.clone()
        ])),
        Just(LayoutSpec::Composite(vec![extended(SECOND), all.clone()])),
        Just(LayoutSpec::Composite(vec![extended(END_OF_FILE)])),
        Just(LayoutSpec::Composite(vec![on_mdt, extended(END_OF_FILE)])),
        Just(LayoutSpec::Automatic),
    ]
}

async fn open(fs: &Arc<FileSystem>, inode: InodeNumber, flags: u32) -> Arc<OpenFile> {
    fs.open(&root(), inode, OpenFlags(flags)).await.unwrap()
}

async fn layout(fs: &FileSystem, inode: InodeNumber) -> Layout {
    fs.layout_info(inode).await.unwrap().layout.unwrap()
}

/// Components with objects.
fn instantiated(layout: &Layout) -> usize {
    layout.components.iter().filter(|component| component.is_instantiated()).count()
}

#[tokio::test]
async fn components_get_their_objects_when_a_write_comes_to_them() {
    let cluster = RealCluster::new(STRIPE, 3).await;
    let fs = cluster.mount().await;
    let file = composite(&fs, "file", END_OF_FILE).await;
    let inode = file.inode();
    write(&fs, &file, 0, &[1; 100]).await;
    assert_eq!(instantiated(&layout(&fs, inode).await), 1);
    write(&fs, &file, FIRST - 50, &[2; 100]).await;
    assert_eq!(instantiated(&layout(&fs, inode).await), 2);
    write(&fs, &file, SECOND + 7 * STRIPE, &[3; 100]).await;
    assert_eq!(instantiated(&layout(&fs, inode).await), 3);
    let data = read(&fs, &file, 0, 1 << 20).await;
    let mut expected = vec![0; (SECOND + 7 * STRIPE) as usize];
    expected[..100].fill(1);
    expected[FIRST as usize - 50..FIRST as usize + 50].fill(2);
    expected.extend([3; 100]);
    assert!(data == expected);
    fs.close(file, None).await.unwrap();
    assert_eq!(size(&fs, inode).await, SECOND + 7 * STRIPE + 100, "reported by the close");
}

#[tokio::test]
async fn a_reader_with_an_old_layout_sees_what_was_written_behind_it() {
    let cluster = RealCluster::new(STRIPE, 3).await;
    let (fs, other) = (cluster.mount().await, cluster.mount().await);
    let end = SECOND + STRIPE + 3;
    // An answer teaches the layout, so each question is about a file of its own.
    for question in 0..5 {
        let file = composite(&fs, &format!("file{question}"), END_OF_FILE).await;
        write(&fs, &file, 0, b"begin").await;
        let reader = open(&other, file.inode(), open_flag::READ).await;
        write(&fs, &file, SECOND + STRIPE, b"end").await;
        match question {
            0 => assert_eq!(read(&other, &reader, 0, 1 << 20).await.len() as u64, end),
            1 => assert_eq!(read(&other, &reader, SECOND + STRIPE, 100).await, b"end"),
            2 => assert_eq!(other.seek(&reader, 4096, SeekTarget::Data).await, Ok(SECOND + STRIPE)),
            3 => assert_eq!(other.seek(&reader, SECOND + STRIPE, SeekTarget::Hole).await, Ok(end)),
            _ => assert_eq!(read(&other, &reader, 3, 5).await, b"in\0\0\0", "a hole, not the end"),
        }
        assert_eq!(size(&other, file.inode()).await, end);
    }
}

#[tokio::test]
async fn two_clients_that_cross_at_once_get_the_same_objects() {
    let cluster = RealCluster::new(STRIPE, 3).await;
    let (fs, other) = (cluster.mount().await, cluster.mount().await);
    for round in 0..8 {
        let file = composite(&fs, &format!("file{round}"), END_OF_FILE).await;
        let same = open(&other, file.inode(), READ_WRITE).await;
        let (mine, its) = (vec![1; 3 * STRIPE as usize], vec![2; 3 * STRIPE as usize]);
        tokio::join!(write(&fs, &file, SECOND - STRIPE, &mine), write(&other, &same, SECOND + 2 * STRIPE, &its));
        assert_eq!(layout(&fs, file.inode()).await, layout(&other, file.inode()).await);
        for (fs, file) in [(&fs, &file), (&other, &same)] {
            let data = read(fs, file, SECOND - STRIPE, 1 << 20).await;
            assert!(data == [mine.clone(), its.clone()].concat(), "round {round}");
        }
        fs.close(file, None).await.unwrap();
        other.close(same, None).await.unwrap();
    }
}

#[tokio::test]
async fn truncations_and_appends_cross_watermarks() {
    let cluster = RealCluster::new(STRIPE, 3).await;
    let (fs, other) = (cluster.mount().await, cluster.mount().await);
    let file = composite(&fs, "file", END_OF_FILE).await;
    let inode = file.inode();
    let same = open(&other, inode, READ_WRITE).await;
    append(&fs, &file, &vec![1; FIRST as usize - 10]).await;
    append(&other, &same, &[2; 20]).await;
    assert_eq!(size(&fs, inode).await, FIRST + 10);
    // Growth by name, by somebody who has it open too, then by a client that knows nothing of it.
    fs.truncate(&root(), inode, None, SECOND + 5).await.unwrap();
    append(&other, &same, &[3; 20]).await;
    assert_eq!(size(&fs, inode).await, SECOND + 25);
    let data = read(&fs, &file, 0, 1 << 20).await;
    assert_eq!(data.len() as u64, SECOND + 25);
    assert_eq!(&data[FIRST as usize - 11..FIRST as usize + 11], [[1].as_slice(), &[2; 20], &[0]].concat());
    assert_eq!(&data[SECOND as usize + 4..], [[0].as_slice(), &[3; 20]].concat());
    // Cut within the middle component, grown again: nothing comes back.
    other.truncate(&root(), inode, Some(&same), FIRST + 5).await.unwrap();
    other.truncate(&root(), inode, None, SECOND + 2 * STRIPE).await.unwrap();
    let data = read(&fs, &file, FIRST, 1 << 20).await;
    assert_eq!((data.len() as u64, &data[..6]), (SECOND + 2 * STRIPE - FIRST, [2, 2, 2, 2, 2, 0].as_slice()));
    assert!(data[5..].iter().all(|byte| *byte == 0));
    let emptied = open(&fs, inode, READ_WRITE | open_flag::TRUNCATE).await;
    assert_eq!(read(&other, &same, 0, 100).await, b"");
    for (fs, file) in [(&fs, file), (&fs, emptied), (&other, same)] {
        fs.close(file, None).await.unwrap();
    }
    assert_eq!(size(&fs, inode).await, 0);
}

#[tokio::test]
async fn a_layout_that_ends_takes_what_fits() {
    let cluster = RealCluster::new(STRIPE, 2).await;
    let fs = cluster.mount().await;
    let end = 6 * STRIPE;
    let file = composite(&fs, "file", end).await;
    let inode = file.inode();
    let data = Bytes::from(vec![1; 100]);
    let at = |offset| fs.write(&file, offset, data.clone(), WriteOptions::default());
    assert_eq!(at(end - 30).await, Ok(30), "short");
    assert_eq!(at(end).await, Err(FsError::NoData));
    let options = WriteOptions { append: true, ..WriteOptions::default() };
    assert_eq!(fs.write(&file, 0, data.clone(), options).await, Err(FsError::NoData));
    let allocate = AllocateMode::Allocate { extend: true };
    assert_eq!(fs.allocate(&file, allocate, end - 10, 20).await, Err(FsError::NoData));
    assert_eq!(fs.truncate(&root(), inode, Some(&file), end + 1).await.map(|_| ()), Err(FsError::NoData));
    // The refusal gave the lock back.
    assert_eq!(fs.truncate(&root(), inode, None, end - 1).await.map(|shown| shown.size), Ok(end - 1));
    assert_eq!(fs.write(&file, 0, data, options).await, Ok(1));
    fs.allocate(&file, AllocateMode::Punch, 0, 10 * STRIPE).await.unwrap();
    assert_eq!(read(&fs, &file, 0, 1 << 20).await, vec![0; end as usize]);
    assert_eq!(fs.seek(&file, 0, SeekTarget::Hole).await, Ok(0));
}

#[tokio::test]
async fn ranges_are_allocated_over_several_components() {
    let cluster = RealCluster::new(STRIPE, 3).await;
    let fs = cluster.mount().await;
    let file = composite(&fs, "file", END_OF_FILE).await;
    let inode = file.inode();
    fs.allocate(&file, AllocateMode::Allocate { extend: false }, FIRST / 2, SECOND).await.unwrap();
    assert_eq!(size(&fs, inode).await, 0);
    assert_eq!(instantiated(&layout(&fs, inode).await), 3);
    fs.allocate(&file, AllocateMode::Allocate { extend: true }, 0, SECOND + 10).await.unwrap();
    assert_eq!(size(&fs, inode).await, SECOND + 10);
    write(&fs, &file, 0, &vec![7; SECOND as usize + 10]).await;
    fs.allocate(&file, AllocateMode::Zero { extend: true }, FIRST - 1, SECOND).await.unwrap();
    let data = read(&fs, &file, 0, 1 << 20).await;
    assert_eq!(data.len() as u64, FIRST - 1 + SECOND);
    assert!(data[..FIRST as usize - 1].iter().all(|byte| *byte == 7));
    assert!(data[FIRST as usize - 1..].iter().all(|byte| *byte == 0));
}

/// A component that ends before the new size may have been extended meanwhile by another client,
/// whose writes there must not be cut off: its objects are left alone.
#[tokio::test]
async fn a_truncation_changes_no_object_of_components_before_the_new_end() {
    let cluster = RealCluster::new(STRIPE, 3).await;
    let fs = cluster.mount().await;
    let file = composite(&fs, "file", END_OF_FILE).await;
    let inode = file.inode();
    write(&fs, &file, 0, &vec![1; SECOND as usize]).await;
    let blocks = fs.get_attributes(inode, None).await.unwrap().blocks;
    let changed = async |size| {
        let before = calls(&fs, "ost_space");
        let shown = fs.truncate(&root(), inode, Some(&file), size).await.unwrap();
        (calls(&fs, "ost_space") - before, shown.blocks)
    };
    assert_eq!(changed(SECOND + 1).await, (3, blocks), "the last component's objects only");
    assert_eq!(changed(SECOND).await, (5, blocks), "the end of the second one is its end too");
    assert_eq!(changed(FIRST + 10).await.0, 5);
    assert_eq!(changed(0).await, (6, 0));
    fs.close(file, None).await.unwrap();
    assert_eq!(size(&fs, inode).await, 0);
}

/// How often this client sent such a request.
fn calls(fs: &FileSystem, name: &str) -> usize {
    let connections = fs.connections();
    let opcodes = connections.iter().flat_map(|(_, _, statistics)| &statistics.opcodes);
    opcodes.filter(|opcode| opcode.name == name).map(|opcode| opcode.calls as usize).sum()
}

/// The MDT gave objects to a component, and lost power before that was durable. Its
/// present writers still write to them, and later writers get the same ones.
#[tokio::test]
async fn growth_that_the_mdt_lost_is_claimed_back() {
    let mut cluster = RealCluster::new(STRIPE, 3).await;
    let (fs, other) = (cluster.mount().await, cluster.mount().await);
    let file = composite(&fs, "file", END_OF_FILE).await;
    let inode = file.inode();
    let same = open(&other, inode, READ_WRITE).await;
    write(&fs, &file, 0, b"begin").await;
    fs.fsync(&file, false).await.unwrap();
    let durable = layout(&fs, inode).await;
    write(&fs, &file, SECOND, &vec![1; 4 * STRIPE as usize]).await;
    let grown = layout(&fs, inode).await;
    assert!(grown.generation > durable.generation);
    cluster.lose_power_of_mdt().await;
    write(&other, &same, SECOND + 4 * STRIPE, &vec![2; STRIPE as usize]).await;
    assert_eq!(layout(&other, inode).await, grown, "claimed by the one that knew of it");
    let expected = [vec![1; 4 * STRIPE as usize], vec![2; STRIPE as usize]].concat();
    assert!(read(&fs, &file, SECOND, 1 << 20).await == expected);
    assert!(read(&other, &same, SECOND, 1 << 20).await == expected);
    fs.close(file, None).await.unwrap();
    other.close(same, None).await.unwrap();
    assert_eq!(size(&fs, inode).await, SECOND + 5 * STRIPE);
    let late = cluster.mount().await;
    let reader = open(&late, inode, open_flag::READ).await;
    assert!(read(&late, &reader, SECOND, 1 << 20).await == expected);
}

/// The program continues writing to a file that nobody can find any more: it must not be told that
/// this is durable.
#[tokio::test]
async fn a_file_whose_creation_was_lost_is_stale_for_who_has_it_open() {
    let mut cluster = RealCluster::new(STRIPE, 3).await;
    let fs = cluster.mount().await;
    let kept = composite(&fs, "kept", END_OF_FILE).await;
    fs.fsync(&kept, false).await.unwrap();
    let file = composite(&fs, "lost", END_OF_FILE).await;
    write(&fs, &file, 0, b"before").await;
    cluster.lose_power_of_mdt().await;
    assert!(fs.lookup(&Credentials::root(), ROOT, b"lost").await.is_err(), "the name is gone");
    let more = fs.write(&file, 6, Bytes::from_static(b"after"), WriteOptions::default()).await;
    assert_eq!(more, Err(FsError::Stale));
    for _ in 0..2 {
        assert_eq!(fs.fsync(&file, false).await, Err(FsError::Stale), "whenever it is asked");
    }
    assert_eq!(fs.read(&file, 0, 6).await.map(|data| data.len()), Err(FsError::Stale));
    fs.close(file, None).await.unwrap();
    write(&fs, &kept, 0, b"the other one goes on").await;
}

/// fdatasync after growth: the layout is as durable as the data it leads to.
#[tokio::test]
async fn synced_data_behind_a_watermark_are_found_after_a_loss_of_power() {
    let mut cluster = RealCluster::new(STRIPE, 3).await;
    let fs = cluster.mount().await;
    let file = composite(&fs, "file", END_OF_FILE).await;
    let inode = file.inode();
    write(&fs, &file, 0, b"begin").await;
    fs.fsync(&file, true).await.unwrap();
    write(&fs, &file, SECOND, b"synced").await;
    fs.fsync(&file, true).await.unwrap();
    let client = fs.client_id();
    // The one that could claim it is gone.
    cluster.evict(client).await;
    cluster.lose_power_of_mdt().await;
    let late = cluster.mount().await;
    let reader = open(&late, inode, open_flag::READ).await;
    assert_eq!(read(&late, &reader, SECOND, 100).await, b"synced");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    #[test]
    fn two_clients_see_one_growing_file(
        osts in 1u16..=4,
        spec in growing_layouts(),
        script in prop::collection::vec((any::<bool>(), steps()), 1..25),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let cluster = RealCluster::new(STRIPE, osts).await;
            let (first, second) = (cluster.mount().await, cluster.mount().await);
            let file = with_layout(&first, "file", spec.clone()).await;
            let inode = file.inode();
            let other = open(&second, inode, READ_WRITE).await;
            let clients = [Client { fs: first, file }, Client { fs: second, file: other }];
            let (model, [one, two]) = play(clients, &script).await;
            one.fs.close(one.file, None).await.unwrap();
            two.fs.close(two.file, None).await.unwrap();
            assert_eq!(size(&one.fs, inode).await, model.len() as u64);
        });
    }
}

/// A truncation to a size that no object of the layout holds: one that is there keeps it, for
/// everybody.
#[tokio::test]
async fn a_length_without_objects_is_seen_by_all_and_cut_again() {
    const MIB: u64 = 1 << 20;
    let cluster = RealCluster::new(STRIPE, 3).await;
    let (fs, other) = (cluster.mount().await, cluster.mount().await);
    let file = with_layout(&fs, "file", LayoutSpec::Automatic).await;
    let inode = file.inode();
    let elsewhere = open(&other, inode, READ_WRITE).await;
    write(&fs, &file, 0, &[7; 100]).await;
    let objects = layout(&fs, inode).await.object_count();
    for mebibytes in [40, 50, 30] {
        fs.truncate(&root(), inode, Some(&file), mebibytes * MIB).await.unwrap();
        assert_eq!(layout(&fs, inode).await.object_count(), objects, "{mebibytes} MiB");
        assert_eq!(size(&other, inode).await, mebibytes * MIB);
    }
    assert!(read(&other, &elsewhere, 30 * MIB - 10, 100).await == [0; 10], "zeros to the end");
    assert_eq!(other.seek(&elsewhere, 0, SeekTarget::Hole).await, Ok(4096));
    assert_eq!(other.seek(&elsewhere, 4096, SeekTarget::Data).await, Err(FsError::NoDeviceOrAddress));
    append(&other, &elsewhere, &[8; 10]).await;
    assert_eq!(size(&fs, inode).await, 30 * MIB + 10);
    write(&fs, &file, 10 * MIB, &[9; 10]).await;
    // Now an object holds the end; what kept a longer one before is cut with it.
    fs.truncate(&root(), inode, None, 20 * MIB).await.unwrap();
    assert_eq!((size(&fs, inode).await, size(&other, inode).await), (20 * MIB, 20 * MIB));
    let whole = read(&other, &elsewhere, 0, 64 << 20).await;
    assert_eq!(whole.len() as u64, 20 * MIB);
    assert!(whole[..100] == [7; 100] && whole[10 << 20..][..10] == [9; 10]);
    fs.truncate(&root(), inode, None, 50).await.unwrap();
    assert_eq!(read(&other, &elsewhere, 0, 1000).await, [7; 50]);
    for (fs, file) in [(fs, file), (other, elsewhere)] {
        fs.close(file, None).await.unwrap();
    }
    let later = cluster.mount().await;
    assert_eq!(size(&later, inode).await, 50);
}
