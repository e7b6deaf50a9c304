//! A client that alone writes a file knows its size: looking at it asks no object. Servers are the
//! shipped ones.

use crate::support;

use std::sync::Arc;

use bytes::Bytes;
use client::{FileSystem, NewNode, OpenFile, WriteOptions};
use rpc::message::mdt::{OpenFlags, open_flag};
use support::{ROOT, real::RealCluster};
use types::{Attributes, Credentials, InodeNumber, NodeKind, SetAttributes, SetTime, Timestamp};

const STRIPE: u64 = 65536;

/// Requests to all targets so far, but for those that keep sessions and those that write.
fn requests(fs: &FileSystem) -> Vec<(String, u64)> {
    let quiet = ["mdt_ping", "ost_ping", "mgs_ping", "mdt_cancel_locks", "ost_write"];
    let connections = fs.connections();
    let opcodes = connections.iter().flat_map(|(_, _, statistics)| &statistics.opcodes);
    let counted = opcodes.filter(|opcode| opcode.calls > 0 && !quiet.contains(&opcode.name));
    counted.map(|opcode| (opcode.name.to_owned(), opcode.calls)).collect()
}

async fn write(fs: &Arc<FileSystem>, file: &Arc<OpenFile>, offset: u64, bytes: usize) {
    fs.write(file, offset, vec![7; bytes].into(), WriteOptions::default()).await.unwrap();
}

async fn open(fs: &Arc<FileSystem>, inode: InodeNumber) -> Arc<OpenFile> {
    fs.open(&Credentials::root(), inode, OpenFlags(open_flag::WRITE)).await.unwrap()
}

async fn make(fs: &FileSystem) -> InodeNumber {
    let (name, kind) = (b"file".to_vec(), NodeKind::Regular);
    let node = NewNode { parent: ROOT, name, kind, mode: 0o644, umask: 0, layout: None };
    fs.create(&Credentials::root(), node).await.unwrap().inode
}

async fn size(fs: &FileSystem, file: &Arc<OpenFile>) -> u64 {
    fs.get_attributes(file.inode(), Some(file)).await.unwrap().size
}

#[tokio::test]
async fn the_only_writer_asks_no_object() {
    let cluster = RealCluster::new(STRIPE, 2).await;
    let fs = cluster.mount().await;
    let inode = make(&fs).await;
    let file = open(&fs, inode).await;
    write(&fs, &file, 3 * STRIPE, 100).await;
    let before = requests(&fs);
    let seen = fs.get_attributes(inode, Some(&file)).await.unwrap();
    assert_eq!(seen.size, 3 * STRIPE + 100);
    assert!(seen.blocks > 0);
    let time = Timestamp { seconds: 5, nanoseconds: 6 };
    let changes = SetAttributes { mtime: Some(SetTime::To(time)), ..SetAttributes::default() };
    let set = fs.set_attributes(&Credentials::root(), inode, changes, Some(&file)).await.unwrap();
    assert_eq!((set.size, set.mtime), (seen.size, time));
    let after = requests(&fs);
    let of = |requests: &[(String, u64)]| requests.iter().map(|(_, calls)| calls).sum::<u64>();
    assert_eq!(of(&after) - of(&before), 2, "one for each: {before:?} {after:?}");
    // What others see, which ask the objects, and what the MDT knows in the end.
    let other = cluster.mount().await;
    let shown = |seen: Attributes| Attributes { atime: Timestamp::default(), ..seen };
    assert_eq!(shown(other.get_attributes(inode, None).await.unwrap()), shown(set));
    fs.close(file, None).await.unwrap();
    assert_eq!(shown(other.get_attributes(inode, None).await.unwrap()), shown(set));
}

#[tokio::test]
async fn with_a_second_writer_the_objects_are_asked() {
    let cluster = RealCluster::new(STRIPE, 2).await;
    let (fs, other) = (cluster.mount().await, cluster.mount().await);
    let inode = make(&fs).await;
    let file = open(&fs, inode).await;
    write(&fs, &file, 0, 10).await;
    assert_eq!(size(&fs, &file).await, 10);
    let second = open(&other, inode).await;
    write(&other, &second, 0, 5000).await;
    assert_eq!(size(&fs, &file).await, 5000);
    assert_eq!(size(&other, &second).await, 5000);
    other.close(second, None).await.unwrap();
    assert_eq!(size(&fs, &file).await, 5000, "its size was not told to this client");
    write(&fs, &file, 0, 6000).await;
    assert_eq!(size(&fs, &file).await, 6000);
    // Truncated by a name, under the exclusive lock.
    other.truncate(&Credentials::root(), inode, None, 100).await.unwrap();
    assert_eq!(size(&fs, &file).await, 100);
    fs.close(file, None).await.unwrap();
    assert_eq!(other.get_attributes(inode, None).await.unwrap().size, 100);
}

/// Each look is between two changes that this client knows of.
#[tokio::test]
async fn looks_beside_writes_show_what_was_written_before() {
    let cluster = RealCluster::new(STRIPE, 2).await;
    let fs = cluster.mount().await;
    let inode = make(&fs).await;
    let file = open(&fs, inode).await;
    let writer = tokio::spawn({
        let (fs, file) = (fs.clone(), file.clone());
        async move {
            for turn in 0..200_u64 {
                fs.write(&file, turn * 1000, Bytes::from(vec![1; 1000]), WriteOptions::default()).await.unwrap();
            }
        }
    });
    let mut last = 0;
    while !writer.is_finished() {
        let seen = size(&fs, &file).await;
        assert!(seen >= last && seen.is_multiple_of(1000), "{seen} after {last}");
        last = seen;
        tokio::task::yield_now().await;
    }
    writer.await.unwrap();
    assert_eq!(size(&fs, &file).await, 200_000);
}

/// From creation to the first look after the close: one request to create, one to close.
#[tokio::test]
async fn a_new_file_is_looked_at_without_requests() {
    let cluster = RealCluster::new(STRIPE, 2).await;
    let (fs, other) = (cluster.mount().await, cluster.mount().await);
    let root = Credentials::root();
    let before = requests(&fs);
    let flags = OpenFlags(open_flag::READ | open_flag::WRITE);
    let made = fs.create_open(&root, ROOT, b"new", 0o644, 0, flags).await.unwrap();
    let inode = made.attributes.inode;
    assert_eq!(fs.get_attributes(inode, Some(&made.file)).await.unwrap(), made.attributes);
    write(&fs, &made.file, 0, 70_000).await;
    let seen = fs.get_attributes(inode, Some(&made.file)).await.unwrap();
    assert_eq!(seen.size, 70_000);
    fs.close(made.file, None).await.unwrap();
    let closed = fs.get_attributes(inode, None).await.unwrap();
    assert_eq!((closed.size, closed.mtime), (70_000, seen.mtime));
    assert_eq!(fs.lookup(&root, ROOT, b"new").await.unwrap(), closed);
    let of = |requests: &[(String, u64)]| requests.iter().map(|(_, calls)| calls).sum::<u64>();
    let after = requests(&fs);
    assert_eq!(of(&after) - of(&before), 2, "{before:?} {after:?}");
    let shown = |seen: Attributes| Attributes { atime: Timestamp::default(), ..seen };
    assert_eq!(shown(other.get_attributes(inode, None).await.unwrap()), shown(closed));

    // Another client's changes are seen in between.
    let file = open(&fs, inode).await;
    let mode = SetAttributes { mode: Some(0o600), ..SetAttributes::default() };
    other.set_attributes(&root, inode, mode, None).await.unwrap();
    assert_eq!(fs.get_attributes(inode, Some(&file)).await.unwrap().mode & 0o777, 0o600);
    let second = open(&other, inode).await;
    write(&other, &second, 0, 80_000).await;
    assert_eq!(fs.get_attributes(inode, Some(&file)).await.unwrap().size, 80_000);
    other.close(second, None).await.unwrap();
    fs.close(file, None).await.unwrap();
    assert_eq!(fs.get_attributes(inode, None).await.unwrap().size, 80_000);
}
