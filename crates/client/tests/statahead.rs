//! Attributes that are asked for ahead of lookups: what they cost, and that they are under locks
//! like all others. Servers are the shipped ones.

use crate::support;

use std::sync::Arc;

use client::{DirectoryItem, FileSystem, NewNode};
use rpc::message::mdt::{OpenFlags, RenameMode, open_flag};
use support::{ROOT, real::RealCluster};
use types::{Attributes, Credentials, FsError, MdtIndex, NodeKind, SetAttributes};

const NAMES: usize = 300;

fn root() -> Credentials {
    Credentials::root()
}

/// Requests to the MDT so far.
fn requests(fs: &FileSystem) -> u64 {
    let (_, _, statistics) = fs.connections().into_iter().next().expect("an MDT");
    statistics.opcodes.iter().map(|opcode| opcode.calls).sum()
}

async fn look_up(fs: &FileSystem, name: &[u8]) -> Result<Attributes, FsError> {
    fs.lookup(&root(), ROOT, name).await
}

/// A client that has made many files, and another one that has listed them without their
/// attributes.
async fn listed() -> (RealCluster, Arc<FileSystem>, Arc<FileSystem>, Vec<DirectoryItem>) {
    let cluster = RealCluster::new(65536, 1).await;
    let (one, two) = (cluster.mount().await, cluster.mount().await);
    for number in 0..NAMES {
        let name = format!("file{number}").into_bytes();
        let node = NewNode { parent: ROOT, name, kind: NodeKind::Regular, mode: 0o644, umask: 0, layout: None };
        one.create(&root(), node).await.unwrap();
    }
    let names = list(&two).await;
    assert_eq!(names.len(), NAMES);
    (cluster, one, two, names)
}

async fn list(fs: &Arc<FileSystem>) -> Vec<DirectoryItem> {
    let flags = OpenFlags(open_flag::READ | open_flag::NO_ACCESS_TIME);
    let directory = fs.open(&root(), ROOT, flags).await.unwrap();
    let page = fs.read_directory(&directory, 0, 1000, client::EntryAttributes::None).await.unwrap();
    assert!(page.end);
    fs.close(directory, None).await.unwrap();
    page.items.into_iter().filter(|item| !item.name.starts_with(b".")).collect()
}

#[tokio::test]
async fn lookups_in_the_order_of_a_listing_need_few_requests() {
    let (_cluster, _one, two, names) = listed().await;
    let before = requests(&two);
    for item in &names {
        assert_eq!(look_up(&two, &item.name).await.unwrap().inode, item.inode);
    }
    // The first name, then pages of 32, 64, 128 and 75 names.
    assert_eq!(requests(&two) - before, 5);
    assert_eq!(two.statistics().statahead.get(), (4, NAMES as u64 - 1, 0));
}

/// A cache above knows the names longer than the attributes.
#[tokio::test]
async fn attributes_in_the_order_of_a_listing_need_few_requests() {
    let (_cluster, _one, two, names) = listed().await;
    let before = requests(&two);
    for item in &names {
        let name = || Some((ROOT, item.name.clone()));
        assert_eq!(two.get_attributes_named(item.inode, None, name).await.unwrap().inode, item.inode);
    }
    assert_eq!(requests(&two) - before, 5);
    for item in &names {
        two.get_attributes_named(item.inode, None, || unreachable!("they are known")).await.unwrap();
    }
}

/// As `du` looks at them, a part in another order and then the next one, with fewer locks than
/// names: what was used goes before what was asked for ahead and waits.
#[tokio::test]
async fn looks_in_another_order_need_few_requests_though_locks_are_few() {
    const PART: usize = 100;
    let (_cluster, _one, two, _) = listed().await;
    two.set_cached_locks_max(MdtIndex(0), 2 * PART).unwrap();
    for walk in 0..3 {
        let names = list(&two).await;
        let before = requests(&two);
        for part in names.chunks(PART) {
            for number in 0..PART {
                let item = &part[number * 37 % PART];
                assert_eq!(look_up(&two, &item.name).await.unwrap().inode, item.inode);
            }
        }
        let asked = requests(&two) - before;
        assert!(asked < 70, "{asked} requests in walk {walk}");
    }
}

#[tokio::test]
async fn what_was_asked_for_ahead_is_as_coherent_as_what_was_asked_for() {
    let (_cluster, one, two, names) = listed().await;
    for item in &names[..10] {
        look_up(&two, &item.name).await.unwrap();
    }
    // All of these came ahead, and the second client has looked at none of them.
    let (changed, removed, replaced) = (&names[20], &names[21], &names[22]);
    let chmod = SetAttributes { mode: Some(0o600), ..SetAttributes::default() };
    one.set_attributes(&root(), changed.inode, chmod, None).await.unwrap();
    one.unlink(&root(), ROOT, &removed.name).await.unwrap();
    let moved = &names[200];
    one.rename(&root(), (ROOT, &moved.name), (ROOT, &replaced.name), RenameMode::Replace).await.unwrap();
    assert_eq!(look_up(&two, &changed.name).await.unwrap().mode, 0o600);
    assert_eq!(look_up(&two, &removed.name).await, Err(FsError::NotFound));
    assert_eq!(look_up(&two, &replaced.name).await.unwrap().inode, moved.inode);
    assert_eq!(look_up(&two, &moved.name).await, Err(FsError::NotFound));
    two.get_attributes(ROOT, None).await.unwrap();
    let before = requests(&two);
    look_up(&two, &names[23].name).await.unwrap();
    assert_eq!(requests(&two), before, "it came ahead, and nobody has changed it");
}

#[tokio::test]
async fn a_user_sees_no_more_than_without() {
    let (_cluster, one, two, names) = listed().await;
    let closed = SetAttributes { mode: Some(0o700), ..SetAttributes::default() };
    one.set_attributes(&root(), ROOT, closed, None).await.unwrap();
    list(&two).await;
    let stranger = Credentials { uid: 1000, gid: 1000, groups: Some(Vec::new()) };
    for item in &names {
        assert_eq!(two.lookup(&stranger, ROOT, &item.name).await, Err(FsError::AccessDenied));
    }
}

#[tokio::test]
async fn nothing_is_asked_for_ahead_if_that_is_switched_off() {
    let (_cluster, _one, two, names) = listed().await;
    two.set_statahead_max(0);
    let before = requests(&two);
    for item in &names {
        look_up(&two, &item.name).await.unwrap();
    }
    assert_eq!(requests(&two) - before, NAMES as u64);
    assert_eq!(two.statistics().statahead.get(), (0, 0, 0));
}
