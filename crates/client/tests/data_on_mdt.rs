//! Files whose beginning is on their MDT, on the shipped servers: what they cost in requests, and
//! that programs do not notice where the bytes are.

use crate::support;

use std::collections::BTreeMap;

use bytes::Bytes;
use client::{AllocateMode, FileSystem, NewFile, NewNode, SeekTarget, WriteOptions, control::execute};
use layout::{BackingSpec, ComponentSpec, END_OF_FILE, LayoutSpec, StripeSpec};
use proptest::prelude::*;
use rpc::message::{
    control::{ControlReply, ControlRequest},
    mdt::{OpenFlags, open_flag},
};
use support::{
    READ_WRITE, ROOT, create, others_run, read,
    real::RealCluster,
    script::{Client, STRIPE, play, steps},
    size, write,
};
use types::{Credentials, FsError, NodeKind};

fn root() -> Credentials {
    Credentials::root()
}

/// New files have their first stripe on the MDT.
async fn cluster(osts: u16) -> RealCluster {
    let components = vec![
        ComponentSpec { end: STRIPE, backing: BackingSpec::Mdt },
        ComponentSpec { end: END_OF_FILE, backing: BackingSpec::Striped(StripeSpec::default()) },
    ];
    cluster_of(osts, LayoutSpec::Composite(components)).await
}

/// New files have this layout.
async fn cluster_of(osts: u16, layout: LayoutSpec) -> RealCluster {
    let cluster = RealCluster::new(STRIPE, osts).await;
    let request = ControlRequest::SetDefaultLayout(Some(layout));
    let reply = execute(&*cluster.mount().await, &root(), (ROOT, None), request).await;
    assert!(matches!(reply, ControlReply::Done), "{reply:?}");
    cluster
}

/// Requests this client ever made, by name.
fn requests(fs: &FileSystem) -> BTreeMap<&'static str, u64> {
    let mut counts = BTreeMap::new();
    for (_, _, statistics) in fs.connections() {
        for opcode in statistics.opcodes.iter().filter(|opcode| opcode.calls > 0 && !opcode.name.ends_with("_ping")) {
            *counts.entry(opcode.name).or_default() += opcode.calls;
        }
    }
    counts
}

/// Requests since `before`.
fn since(fs: &FileSystem, before: &BTreeMap<&'static str, u64>) -> Vec<(&'static str, u64)> {
    let news = requests(fs).into_iter().map(|(name, count)| (name, count - before.get(name).unwrap_or(&0)));
    news.filter(|(_, count)| *count > 0).collect()
}

#[tokio::test]
async fn small_files_ask_the_mdt_only() {
    let cluster = cluster(2).await;
    let fs = cluster.mount().await;
    let before = requests(&fs);
    let file = create(&fs, "small", READ_WRITE).await;
    let inode = file.inode();
    write(&fs, &file, 0, &[7; 4096]).await;
    fs.close(file, None).await.unwrap();
    assert_eq!(since(&fs, &before), [("mdt_change_data", 1), ("mdt_close", 1), ("mdt_create", 1)]);

    let before = requests(&fs);
    let attributes = fs.get_attributes(inode, None).await.unwrap();
    assert_eq!((attributes.size, attributes.blocks), (4096, 8));
    assert_eq!(since(&fs, &before), [], "the answer to the close brought them");

    let before = requests(&fs);
    let file = fs.open(&root(), inode, OpenFlags(open_flag::READ)).await.unwrap();
    assert_eq!(read(&fs, &file, 0, 4096).await, [7; 4096]);
    fs.close(file, None).await.unwrap();
    assert_eq!(since(&fs, &before), [("mdt_open", 1)], "it brought the data, and a lock");

    let before = requests(&fs);
    let file = fs.open(&root(), inode, OpenFlags(open_flag::READ)).await.unwrap();
    assert_eq!(read(&fs, &file, 0, 8192).await, [7; 4096]);
    fs.close(file, None).await.unwrap();
    assert_eq!(since(&fs, &before), [], "known under locks");
}

#[tokio::test]
async fn whole_small_files_are_made_and_read_with_one_request_each() {
    let cluster = cluster(2).await;
    let fs = cluster.mount().await;
    let new = |name: &str| NewFile { parent: ROOT, name: name.as_bytes().to_vec(), mode: 0o644, umask: 0 };
    let before = requests(&fs);
    let made = fs.create_with_data(&root(), new("small"), Bytes::from(vec![7; 4096])).await.unwrap();
    assert_eq!((made.size, made.blocks), (4096, 8));
    assert_eq!(since(&fs, &before), [("mdt_compound", 1)]);
    let before = requests(&fs);
    let (attributes, data) = fs.open_and_read(&root(), ROOT, &[b"small"], 8192).await.unwrap();
    assert_eq!((attributes.size, data.into_bytes()), (4096, Bytes::from(vec![7; 4096])));
    assert_eq!(since(&fs, &before), [("mdt_compound", 1)]);
    assert_eq!(cluster.open_files(), 0);
    let again = fs.create_with_data(&root(), new("small"), Bytes::new()).await;
    assert_eq!(again, Err(FsError::Exists));
}

/// A path of any length, open, read and close are one request; 32 names are one.
#[tokio::test]
async fn a_path_is_walked_with_one_request() {
    let cluster = cluster(2).await;
    let fs = cluster.mount().await;
    let (mut directory, mut path) = (ROOT, Vec::new());
    for depth in 0..40 {
        path.push(format!("d{depth}").into_bytes());
        let (parent, name, kind) = (directory, path[depth].clone(), NodeKind::Directory);
        let node = NewNode { parent, name, kind, mode: 0o755, umask: 0, layout: None };
        directory = fs.create(&root(), node).await.unwrap().inode;
    }
    let path: Vec<&[u8]> = path.iter().map(Vec::as_slice).collect();
    for (names, requests_made) in [(0, 0), (1, 1), (32, 1), (40, 2)] {
        let before = requests(&fs);
        fs.walk(&root(), ROOT, &path[..names]).await.unwrap();
        let expected = [("mdt_compound", requests_made)];
        assert_eq!(
            since(&fs, &before),
            if requests_made == 0 { &expected[..0] } else { &expected[..] },
            "{names} names"
        );
    }
    assert_eq!(fs.walk(&root(), ROOT, &path).await.unwrap().inode, directory);
    assert_eq!(fs.walk(&root(), ROOT, &[b"d0", b"none", b"x"]).await, Err(FsError::NotFound));
    let deep = NewFile { parent: directory, name: b"file".to_vec(), mode: 0o600, umask: 0 };
    fs.create_with_data(&root(), deep, Bytes::from_static(b"data")).await.unwrap();
    let below = fs.walk(&root(), ROOT, &path[..20]).await.unwrap().inode;
    let names: Vec<&[u8]> = path[20..].iter().copied().chain([&b"file"[..]]).collect();
    let before = requests(&fs);
    let (_, data) = fs.open_and_read(&root(), below, &names, 100).await.unwrap();
    assert_eq!(data.into_bytes(), Bytes::from_static(b"data"));
    assert_eq!(since(&fs, &before), [("mdt_compound", 1)], "21 names, open, read and close");
    let long: Vec<&[u8]> = path.iter().copied().chain([&b"file"[..]]).collect();
    fs.open_and_read(&root(), ROOT, &long, 100).await.unwrap();
    let stranger = Credentials { uid: 1000, gid: 1000, groups: Some(Vec::new()) };
    let private = fs.open_and_read(&stranger, below, &names, 100).await;
    assert_eq!(private.err(), Some(FsError::AccessDenied));
    assert_eq!(cluster.open_files(), 0);
}

/// The open of the first request is used: nothing is opened twice.
#[tokio::test]
async fn a_file_that_is_elsewhere_is_read_and_written_through_the_open_that_is_there() {
    let cluster = cluster_of(2, LayoutSpec::Plain(StripeSpec::default())).await;
    let fs = cluster.mount().await;
    let new = NewFile { parent: ROOT, name: b"striped".to_vec(), mode: 0o644, umask: 0 };
    let before = requests(&fs);
    fs.create_with_data(&root(), new, Bytes::from_static(b"data")).await.unwrap();
    let made = [("mdt_close", 1), ("mdt_compound", 1), ("mdt_getattr", 1), ("ost_write", 1)];
    assert_eq!(since(&fs, &before), made);
    let before = requests(&fs);
    let (attributes, data) = fs.open_and_read(&root(), ROOT, &[b"striped"], 100).await.unwrap();
    assert_eq!((attributes.size, data.into_bytes()), (4, Bytes::from_static(b"data")));
    let read = [("mdt_close", 1), ("mdt_compound", 1), ("mdt_getattr", 1), ("ost_glimpse", 1), ("ost_read", 1)];
    assert_eq!(since(&fs, &before), read);
    assert_eq!(cluster.open_files(), 0);
}

/// Whenever its caller goes away: a compound that left a file open is followed by a close.
#[tokio::test]
async fn a_whole_file_whose_caller_is_gone_is_not_left_open() {
    let cluster = cluster_of(1, LayoutSpec::Plain(StripeSpec::default())).await;
    let fs = cluster.mount().await;
    for turns in 0..20 {
        let name = format!("file {turns}").into_bytes();
        let new = NewFile { parent: ROOT, name, mode: 0o644, umask: 0 };
        let creating = {
            let (fs, new) = (fs.clone(), new.clone());
            tokio::spawn(async move { fs.create_with_data(&root(), new, Bytes::from_static(b"data")).await })
        };
        let reading = {
            let fs = fs.clone();
            tokio::spawn(async move { fs.open_and_read(&root(), ROOT, &[b"file 0"], 100).await })
        };
        for _ in 0..turns {
            tokio::task::yield_now().await;
        }
        creating.abort();
        reading.abort();
    }
    for _ in 0..20 {
        others_run().await;
    }
    assert_eq!((cluster.open_files(), fs.open_count()), (0, 0));
}

#[tokio::test]
async fn whole_files_that_do_not_fit_are_made_and_read_as_others() {
    let cluster = cluster(2).await;
    let fs = cluster.mount().await;
    let contents: Bytes = (0..3 * STRIPE as usize + 5).map(|at| (at / 13) as u8).collect();
    let new = NewFile { parent: ROOT, name: b"large".to_vec(), mode: 0o644, umask: 0 };
    let made = fs.create_with_data(&root(), new, contents.clone()).await.unwrap();
    assert_eq!(made.size, contents.len() as u64);
    let (attributes, data) = fs.open_and_read(&root(), made.inode, &[], contents.len()).await.unwrap();
    assert_eq!(attributes.size, made.size);
    assert!(data.into_bytes() == contents);
    let short = fs.open_and_read(&root(), ROOT, &[b"large"], contents.len() - 1).await;
    assert_eq!(short.err(), Some(FsError::FileTooLarge));
    assert_eq!(cluster.open_files(), 0);
}

#[tokio::test]
async fn fsync_commits_data_on_the_mdt_each_time_there_are_some() {
    let cluster = cluster(1).await;
    let fs = cluster.mount().await;
    let file = create(&fs, "file", READ_WRITE).await;
    let before = requests(&fs);
    for data_only in [true, true, false] {
        write(&fs, &file, 0, b"data").await;
        fs.fsync(&file, data_only).await.unwrap();
    }
    assert_eq!(since(&fs, &before), [("mdt_change_data", 3), ("mdt_commit", 3)]);
    let before = requests(&fs);
    fs.fsync(&file, true).await.unwrap();
    assert_eq!(since(&fs, &before), [], "nothing was written");
}

#[tokio::test]
async fn what_the_mdt_lost_is_told_by_fsync_and_what_was_synced_is_there() {
    let mut cluster = cluster(1).await;
    let fs = cluster.mount().await;
    let file = create(&fs, "file", READ_WRITE).await;
    write(&fs, &file, 0, b"synced").await;
    fs.fsync(&file, false).await.unwrap();
    write(&fs, &file, 0, b"LOST").await;
    cluster.lose_power_of_mdt().await;
    let outcome = fs.fsync(&file, true).await;
    assert!(matches!(outcome, Err(FsError::Device { .. })), "{outcome:?}");
    assert_eq!(read(&fs, &file, 0, 100).await, b"synced");
    write(&fs, &file, 0, b"again!").await;
    fs.fsync(&file, true).await.expect("a loss is told once");
}

#[tokio::test]
async fn open_files_go_on_after_a_crash_of_the_mdt() {
    let mut cluster = cluster(2).await;
    let (fs, other) = (cluster.mount().await, cluster.mount().await);
    let file = create(&fs, "file", READ_WRITE).await;
    write(&fs, &file, STRIPE - 3, b"before").await;
    cluster.crash_mdt().await;
    write(&fs, &file, STRIPE + 3, b" after").await;
    fs.fsync(&file, false).await.expect("nothing was lost");
    let seen = other.open(&root(), file.inode(), OpenFlags(open_flag::READ)).await.unwrap();
    assert_eq!(read(&other, &seen, STRIPE - 3, 100).await, b"before after");
    fs.close(file, None).await.unwrap();
    assert_eq!(size(&other, seen.inode()).await, STRIPE + 9);
}

#[tokio::test]
async fn an_evicted_client_cannot_write_to_the_mdt() {
    let cluster = cluster(1).await;
    let (fs, other) = (cluster.mount().await, cluster.mount().await);
    let file = create(&fs, "file", READ_WRITE).await;
    write(&fs, &file, 0, b"kept").await;
    cluster.evict(fs.client_id()).await;
    let late = fs.write(&file, 0, Bytes::from_static(b"late"), WriteOptions::default()).await;
    assert_eq!(late, Err(FsError::Stale));
    let seen = other.open(&root(), file.inode(), OpenFlags(open_flag::READ)).await.unwrap();
    assert_eq!(read(&other, &seen, 0, 100).await, b"kept");
}

#[tokio::test]
async fn holes_are_found_on_both_sides_of_the_boundary() {
    let cluster = cluster(2).await;
    let fs = cluster.mount().await;
    let file = create(&fs, "file", READ_WRITE).await;
    write(&fs, &file, 0, &vec![1; 3 * STRIPE as usize]).await;
    let seek = async |offset, target| fs.seek(&file, offset, target).await;
    assert_eq!(seek(0, SeekTarget::Hole).await, Ok(3 * STRIPE));
    fs.allocate(&file, AllocateMode::Punch, STRIPE - 8192, 16384).await.unwrap();
    assert_eq!(seek(0, SeekTarget::Hole).await, Ok(STRIPE - 8192));
    for inside in [STRIPE - 8192 + 5, STRIPE + 5] {
        assert_eq!(seek(inside, SeekTarget::Hole).await, Ok(inside), "in the middle of a block without data");
    }
    assert_eq!(seek(STRIPE - 8192, SeekTarget::Data).await, Ok(STRIPE + 8192));
    assert_eq!(seek(STRIPE + 8192, SeekTarget::Hole).await, Ok(3 * STRIPE));
    assert!(read(&fs, &file, STRIPE - 8192, 16384).await.iter().all(|byte| *byte == 0));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 16, ..ProptestConfig::default() })]

    #[test]
    fn two_clients_see_one_file(
        osts in 1u16..=3,
        script in prop::collection::vec((any::<bool>(), steps()), 1..25),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let cluster = cluster(osts).await;
            let (first, second) = (cluster.mount().await, cluster.mount().await);
            let file = create(&first, "file", READ_WRITE).await;
            let inode = file.inode();
            let other = second.open(&root(), inode, OpenFlags(READ_WRITE)).await.unwrap();
            let clients = [Client { fs: first, file }, Client { fs: second, file: other }];
            let (model, [one, two]) = play(clients, &script).await;
            one.fs.close(one.file, None).await.unwrap();
            two.fs.close(two.file, None).await.unwrap();
            let before = requests(&one.fs);
            assert_eq!(size(&one.fs, inode).await, model.len() as u64);
            assert_eq!(since(&one.fs, &before), [("mdt_getattr", 1)], "its size is known");
        });
    }
}
