//! OSTs that turn out to be full: where the objects of new files go, and where those that exist
//! stay. Servers are the shipped ones, but for a test of lost answers.

use crate::support;

use std::sync::{Arc, atomic::Ordering};

use bytes::Bytes;
use client::{AllocateMode, FileSystem, OpenFile, WriteOptions};
use layout::{BackingSpec, ComponentSpec, END_OF_FILE, LayoutSpec, Location, ResolvedCount, StripeCount, StripeSpec};
use rpc::message::mdt::{OpenFlags, open_flag};
use support::{Cluster, READ_WRITE, ROOT, append, create, read, real::RealCluster, size, write};
use types::{Credentials, FsError, InodeNumber, NodeKind, OstIndex};

const STRIPE: u64 = 65536;

fn root() -> Credentials {
    Credentials::root()
}

fn stripe(mark: u8) -> Bytes {
    vec![mark; STRIPE as usize].into()
}

async fn open(fs: &Arc<FileSystem>, inode: InodeNumber, flags: u32) -> Arc<OpenFile> {
    fs.open(&root(), inode, OpenFlags(flags)).await.expect("the file can be opened")
}

async fn refused(fs: &Arc<FileSystem>, file: &Arc<OpenFile>, offset: u64) -> FsError {
    fs.write(file, offset, stripe(9), WriteOptions::default()).await.expect_err("the OST is full")
}

/// The OSTs of a file and the generation of its layout.
async fn layout(fs: &FileSystem, inode: InodeNumber) -> (u64, Vec<OstIndex>) {
    let layout = fs.layout_info(inode).await.unwrap().layout.expect("a file has a layout");
    (layout.generation.0, layout.as_plain().expect("a plain one").osts.clone())
}

async fn one_stripe(osts: u16) -> RealCluster {
    RealCluster::with_stripes(STRIPE, ResolvedCount::AtMost(1), osts).await
}

#[tokio::test]
async fn a_new_file_finds_space_wherever_there_is_some() {
    let cluster = one_stripe(4).await;
    let (fs, other) = (cluster.mount().await, cluster.mount().await);
    let written = create(&fs, "written", READ_WRITE).await;
    let appended = create(&fs, "appended", READ_WRITE).await;
    let allocated = create(&fs, "allocated", READ_WRITE).await;
    let (inodes, with_space) = ([written.inode(), appended.inode(), allocated.inode()], OstIndex(2));
    (0..4).map(OstIndex).filter(|ost| *ost != with_space).for_each(|ost| cluster.fill(ost));
    write(&fs, &written, 0, &stripe(1)).await;
    append(&fs, &appended, &stripe(2)).await;
    let allocate = AllocateMode::Allocate { extend: true };
    fs.allocate(&allocated, allocate, 0, STRIPE).await.unwrap();
    for inode in inodes {
        assert_eq!(layout(&fs, inode).await.1, [with_space]);
        let reader = open(&other, inode, open_flag::READ).await;
        assert_eq!(read(&other, &reader, 0, 1 << 20).await.len() as u64, STRIPE);
    }
    fs.fsync(&written, false).await.unwrap();
    for file in [written, appended, allocated] {
        let inode = file.inode();
        fs.close(file, None).await.unwrap();
        assert_eq!(size(&other, inode).await, STRIPE);
    }
    assert_eq!(cluster.objects(with_space).await.len(), 3);
    for full in [0, 1, 3] {
        assert_eq!(cluster.objects(OstIndex(full)).await, [], "nothing is left where there was no room");
    }
}

#[tokio::test]
async fn the_mdt_knows_at_once_what_a_client_was_refused() {
    let cluster = one_stripe(2).await;
    let fs = cluster.mount().await;
    let files = [create(&fs, "a", READ_WRITE).await, create(&fs, "b", READ_WRITE).await];
    let mut on_first = None;
    for file in &files {
        write(&fs, file, 0, &stripe(1)).await;
        if layout(&fs, file.inode()).await.1 == [OstIndex(0)] {
            on_first = Some(file);
        }
    }
    let on_first = on_first.expect("two files lie on two OSTs");
    cluster.fill(OstIndex(0));
    assert_eq!(refused(&fs, on_first, STRIPE).await, FsError::NoSpace, "what exists stays where it is");
    for number in 0..10 {
        let file = create(&fs, &number.to_string(), READ_WRITE).await;
        assert_eq!(layout(&fs, file.inode()).await, (1, vec![OstIndex(1)]));
    }
}

#[tokio::test]
async fn only_objects_that_do_not_exist_move() {
    let cluster = RealCluster::with_stripes(STRIPE, ResolvedCount::AtMost(2), 3).await;
    let fs = cluster.mount().await;
    let file = create(&fs, "file", READ_WRITE).await;
    let inode = file.inode();
    let (_, osts) = layout(&fs, inode).await;
    let spare = (0..3).map(OstIndex).find(|ost| !osts.contains(ost)).unwrap();
    write(&fs, &file, 0, &stripe(1)).await;
    cluster.fill(osts[1]);
    write(&fs, &file, 100, &vec![2; 2 * STRIPE as usize - 100]).await;
    assert_eq!(layout(&fs, inode).await, (2, vec![osts[0], spare]));
    cluster.fill(osts[0]);
    let options = WriteOptions::default();
    assert_eq!(fs.write(&file, 2 * STRIPE, stripe(3), options).await, Err(FsError::NoSpace));
    let data = read(&fs, &file, 0, 1 << 20).await;
    assert_eq!((data.len() as u64, data[99], data[100]), (2 * STRIPE, 1, 2));
    fs.close(file, None).await.unwrap();
    assert_eq!(size(&fs, inode).await, 2 * STRIPE);
}

/// The first stripes stay where they are; those of the next component were assigned to a full OST,
/// and go elsewhere.
#[tokio::test]
async fn components_find_space_when_the_file_grows_into_them() {
    let cluster = RealCluster::new(STRIPE, 3).await;
    let fs = cluster.mount().await;
    let stripes = StripeSpec { stripe_count: StripeCount::Exactly(1), ..StripeSpec::default() };
    let component = |end| ComponentSpec { end, backing: BackingSpec::Striped(stripes.clone()) };
    let components = vec![component(STRIPE), component(END_OF_FILE)];
    let node = client::NewNode {
        parent: ROOT,
        name: b"composite".to_vec(),
        kind: NodeKind::Regular,
        mode: 0o644,
        umask: 0,
        layout: Some(LayoutSpec::Composite(components)),
    };
    let inode = fs.create(&root(), node).await.unwrap().inode;
    let file = open(&fs, inode, READ_WRITE).await;
    write(&fs, &file, 0, &stripe(1)).await;
    (0..2).map(OstIndex).for_each(|ost| cluster.fill(ost));
    write(&fs, &file, STRIPE, &[stripe(2), stripe(3)].concat()).await;
    let layout = fs.layout_info(inode).await.unwrap().layout.unwrap();
    assert_eq!(layout.location(1), Some(Location::Ost(OstIndex(2))));
    assert_eq!(read(&fs, &file, 0, 1 << 20).await, [stripe(1), stripe(2), stripe(3)].concat());
}

#[tokio::test]
async fn a_file_in_use_elsewhere_and_a_chosen_ost_stay() {
    let cluster = one_stripe(2).await;
    let (fs, other) = (cluster.mount().await, cluster.mount().await);
    let file = create(&fs, "read elsewhere", READ_WRITE).await;
    let reader = open(&other, file.inode(), open_flag::READ).await;
    let chosen = client::NewNode {
        parent: ROOT,
        name: b"chosen".to_vec(),
        kind: NodeKind::Regular,
        mode: 0o644,
        umask: 0,
        layout: Some(LayoutSpec::Plain(StripeSpec {
            stripe_count: StripeCount::Exactly(1),
            first_ost: Some(OstIndex(0)),
            ..StripeSpec::default()
        })),
    };
    let chosen = fs.create(&root(), chosen).await.unwrap().inode;
    let chosen = open(&fs, chosen, READ_WRITE).await;
    let (_, osts) = layout(&fs, file.inode()).await;
    cluster.fill(osts[0]);
    assert_eq!(refused(&fs, &file, 0).await, FsError::NoSpace);
    other.close(reader, None).await.unwrap();
    write(&fs, &file, 0, b"now").await;
    assert_eq!(layout(&fs, file.inode()).await.0, 2);
    cluster.fill(OstIndex(0));
    assert_eq!(refused(&fs, &chosen, 0).await, FsError::NoSpace);
    assert_eq!(layout(&fs, chosen.inode()).await, (1, vec![OstIndex(0)]));
}

#[tokio::test]
async fn writes_at_the_same_time_move_an_object_once() {
    let cluster = one_stripe(2).await;
    let fs = cluster.mount().await;
    let file = create(&fs, "file", READ_WRITE).await;
    let (_, osts) = layout(&fs, file.inode()).await;
    cluster.fill(osts[0]);
    let writers: Vec<_> = (0..8u8)
        .map(|number| {
            let (fs, file) = (fs.clone(), file.clone());
            tokio::spawn(async move {
                fs.write(&file, u64::from(number) * STRIPE, stripe(number), WriteOptions::default()).await
            })
        })
        .collect();
    for writer in writers {
        assert_eq!(writer.await.unwrap(), Ok(STRIPE as usize));
    }
    assert_eq!(layout(&fs, file.inode()).await, (2, vec![OstIndex(1 - osts[0].0)]));
    let data = read(&fs, &file, 0, 1 << 20).await;
    assert!((0..8usize).all(|number| data[number * STRIPE as usize..][..STRIPE as usize] == stripe(number as u8)));
}

/// The MDT loses power right after it moved an object: the client continues under the layout it was
/// given.
#[tokio::test]
async fn a_moved_object_is_found_again_after_the_mdt_lost_power() {
    let mut cluster = one_stripe(2).await;
    let fs = cluster.mount().await;
    let file = create(&fs, "file", READ_WRITE).await;
    fs.fsync(&file, false).await.unwrap();
    let (inode, (_, osts)) = (file.inode(), layout(&fs, file.inode()).await);
    cluster.fill(osts[0]);
    write(&fs, &file, 0, &stripe(1)).await;
    cluster.lose_power_of_mdt().await;
    write(&fs, &file, STRIPE, &stripe(2)).await;
    fs.fsync(&file, false).await.unwrap();
    fs.close(file, None).await.unwrap();
    let other = cluster.mount().await;
    let reader = open(&other, inode, open_flag::READ).await;
    assert_eq!(read(&other, &reader, 0, 1 << 20).await, [stripe(1), stripe(2)].concat());
}

/// Nobody knows whether the MDT changed the layout: it is asked before the next use.
#[tokio::test]
async fn an_answer_that_is_lost_makes_the_client_ask_for_the_layout() {
    let cluster = Cluster::with_osts(STRIPE, 1, 2);
    let fs = cluster.mount().await;
    let file = create(&fs, "file", READ_WRITE).await;
    cluster.osts[0].refuse(0, FsError::NoSpace);
    cluster.mdt.loses_answer.store(true, Ordering::Relaxed);
    assert_eq!(refused(&fs, &file, 0).await, FsError::NoSpace);
    write(&fs, &file, 0, b"elsewhere").await;
    assert_eq!(read(&fs, &file, 0, 100).await, b"elsewhere");
    let requests = cluster.requests();
    assert_eq!((requests["layout"], requests["report"]), (1, 1), "the object is moved once");
    assert_eq!(cluster.osts[1].counts()["write"], 1);
}
