//! Closes that nobody waits for: what they cost, when they wait, and what others see meanwhile.
//! Servers are the shipped ones.

use crate::support;

use std::{collections::BTreeMap, sync::Arc};

use bytes::Bytes;
use client::{FileSystem, OpenFile, WriteOptions};
use rpc::message::mdt::{OpenFlags, RenameMode, open_flag};
use support::{ROOT, others_run, real::RealCluster};
use types::{Credentials, InodeNumber, MdtIndex, SetAttributes, SetTime, Timestamp};

/// No close is sent by itself during a test.
const LONG_MS: u32 = 3_600_000;
/// Of those that one message takes along.
const MOST: u64 = types::limits::CLOSES_PER_MESSAGE_MAX as u64;

fn root() -> Credentials {
    Credentials::root()
}

/// Requests to all targets so far, but for those that keep sessions.
fn requests(fs: &FileSystem) -> BTreeMap<String, u64> {
    let mut requests = BTreeMap::new();
    for (_, _, statistics) in fs.connections() {
        for opcode in statistics.opcodes.iter().filter(|opcode| opcode.calls > 0 && !opcode.name.contains("ping")) {
            *requests.entry(opcode.name.to_string()).or_insert(0) += opcode.calls;
        }
    }
    requests
}

fn total(requests: &BTreeMap<String, u64>) -> u64 {
    requests.values().sum()
}

fn count(fs: &FileSystem, name: &str) -> u64 {
    requests(fs).get(name).copied().unwrap_or(0)
}

async fn mount(cluster: &RealCluster) -> Arc<FileSystem> {
    let fs = cluster.mount().await;
    fs.set_close_delay_ms(LONG_MS);
    fs
}

async fn create(fs: &Arc<FileSystem>, name: &str) -> Arc<OpenFile> {
    let flags = OpenFlags(open_flag::READ | open_flag::WRITE);
    let file = fs.create_open(&root(), ROOT, name.as_bytes(), 0o644, 0, flags).await.unwrap().file;
    fs.write(&file, 0, Bytes::from_static(b"data"), WriteOptions::default()).await.unwrap();
    file
}

async fn make(fs: &Arc<FileSystem>, name: &str) -> InodeNumber {
    let file = create(fs, name).await;
    let inode = file.inode();
    fs.close(file, None).await.unwrap();
    inode
}

async fn size(fs: &FileSystem, inode: InodeNumber) -> u64 {
    fs.get_attributes(inode, None).await.unwrap().size
}

#[tokio::test]
async fn creating_writing_and_closing_costs_two_requests() {
    const FILES: u64 = 20;
    let cluster = RealCluster::new(65536, 1).await;
    let fs = mount(&cluster).await;
    make(&fs, "first").await;
    let before = requests(&fs);
    for number in 0..FILES {
        make(&fs, &format!("file{number}")).await;
    }
    let after = requests(&fs);
    assert_eq!(total(&after) - total(&before), 2 * FILES, "{before:?} {after:?}");
    assert_eq!((count(&fs, "mdt_close"), cluster.open_files()), (0, 1), "the last one waits");
    fs.sync_all().await.unwrap();
    assert_eq!((count(&fs, "mdt_close"), cluster.open_files()), (1, 0));
    let other = cluster.mount().await;
    for number in 0..FILES {
        let name = format!("file{number}");
        assert_eq!(other.lookup(&root(), ROOT, name.as_bytes()).await.unwrap().size, 4);
    }
    assert_eq!(count(&other, "ost_glimpse"), 0, "the MDT knows the sizes");
}

/// What programs do to change a file: its data are made durable, and then it has the name.
#[tokio::test]
async fn replacing_a_file_costs_one_request_and_the_commit_of_the_data() {
    let cluster = RealCluster::new(65536, 1).await;
    let fs = mount(&cluster).await;
    make(&fs, "file").await;
    for _ in 0..2 {
        make(&fs, "new").await;
        let before = requests(&fs);
        fs.rename(&root(), (ROOT, b"new"), (ROOT, b"file"), RenameMode::Replace).await.unwrap();
        let mut after = requests(&fs);
        after.iter_mut().for_each(|(name, calls)| *calls -= before.get(name).copied().unwrap_or(0));
        after.retain(|_, calls| *calls > 0);
        assert_eq!(total(&after), 2, "{after:?}");
        assert_eq!(after.get("mdt_rename"), Some(&1), "{after:?}");
    }
}

#[tokio::test]
async fn a_close_that_nothing_takes_along_is_sent_by_itself() {
    let cluster = RealCluster::new(65536, 1).await;
    let fs = cluster.mount().await;
    fs.set_close_delay_ms(5);
    let inode = make(&fs, "file").await;
    while cluster.open_files() > 0 {
        tokio::time::sleep(std::time::Duration::from_millis(1)).await;
    }
    let before = requests(&fs);
    assert_eq!(size(&fs, inode).await, 4);
    assert_eq!(requests(&fs), before, "its reply has brought the attributes");
    fs.set_close_delay_ms(0);
    make(&fs, "at once").await;
    assert_eq!(cluster.open_files(), 0);
}

#[tokio::test]
async fn many_are_sent_together() {
    let cluster = RealCluster::new(65536, 1).await;
    let fs = mount(&cluster).await;
    let mut files = Vec::new();
    for number in 0..2 * MOST + 4 {
        files.push(create(&fs, &format!("file{number}")).await);
    }
    let before = total(&requests(&fs));
    for file in files {
        fs.close(file, None).await.unwrap();
    }
    assert_eq!((count(&fs, "mdt_close"), cluster.open_files()), (2, 2));
    fs.sync_all().await.unwrap();
    assert_eq!((count(&fs, "mdt_close"), cluster.open_files()), (3, 0));
    // With two commits: of the MDT and of the OST.
    assert_eq!(total(&requests(&fs)) - before, 3 + 2);
}

/// What fsync promises depends on no close of another file.
#[tokio::test]
async fn fsync_leaves_closes_waiting() {
    let cluster = RealCluster::new(65536, 1).await;
    let fs = mount(&cluster).await;
    let file = create(&fs, "synced").await;
    make(&fs, "closed").await;
    let before = requests(&fs);
    fs.fsync(&file, false).await.unwrap();
    assert_eq!((count(&fs, "mdt_close"), cluster.open_files()), (0, 2));
    // Two commits: of the MDT and of the OST.
    assert!(total(&requests(&fs)) - total(&before) <= 2, "{before:?} {:?}", requests(&fs));
}

/// Whatever this client asks next comes after the close.
#[tokio::test]
async fn later_requests_find_the_file_closed() {
    let cluster = RealCluster::new(65536, 1).await;
    let (fs, other) = (mount(&cluster).await, cluster.mount().await);
    let inode = make(&fs, "file").await;
    let file = fs.open(&root(), inode, OpenFlags(open_flag::WRITE)).await.unwrap();
    assert_eq!(cluster.open_files(), 1, "the new one");
    fs.write(&file, 4, Bytes::from_static(b"more"), WriteOptions::default()).await.unwrap();
    fs.close(file, None).await.unwrap();
    let time = Timestamp { seconds: 1_000_000_000, nanoseconds: 5 };
    let changes = SetAttributes { mtime: Some(SetTime::To(time)), ..SetAttributes::default() };
    let set = fs.set_attributes(&root(), inode, changes, None).await.unwrap();
    assert_eq!((set.size, set.mtime, cluster.open_files()), (8, time, 0));
    let seen = other.get_attributes(inode, None).await.unwrap();
    assert_eq!((seen.size, seen.mtime, count(&other, "ost_glimpse")), (8, time, 0));
    make(&fs, "new").await;
    fs.rename(&root(), (ROOT, b"new"), (ROOT, b"file"), RenameMode::Replace).await.unwrap();
    assert_eq!(cluster.open_files(), 0);
    make(&fs, "gone").await;
    fs.unlink(&root(), ROOT, b"gone").await.unwrap();
    assert_eq!((cluster.open_files(), count(&fs, "mdt_close")), (0, 0));
}

/// A file that another client wants is closed before the lock on it is given back.
#[tokio::test]
async fn a_client_that_waits_for_a_lock_finds_the_file_closed() {
    let cluster = RealCluster::new(65536, 1).await;
    let (fs, other) = (mount(&cluster).await, mount(&cluster).await);
    let inode = make(&fs, "file").await;
    let file = other.open(&root(), inode, OpenFlags(open_flag::WRITE)).await.unwrap();
    assert_eq!(cluster.open_files(), 1, "only that of the other one");
    other.write(&file, 4, Bytes::from_static(b"more"), WriteOptions::default()).await.unwrap();
    other.close(file, None).await.unwrap();
    assert_eq!((size(&other, inode).await, count(&other, "ost_glimpse")), (8, 0), "it was the only writer");
    assert_eq!(size(&fs, inode).await, 8);
}

#[tokio::test]
async fn a_look_by_another_client_sees_the_size_in_any_case() {
    let cluster = RealCluster::new(65536, 1).await;
    let (fs, other) = (mount(&cluster).await, cluster.mount().await);
    let inode = make(&fs, "file").await;
    assert_eq!((size(&other, inode).await, cluster.open_files()), (4, 1), "from the objects");
}

#[tokio::test]
async fn what_others_depend_on_is_closed_at_once() {
    let cluster = RealCluster::new(65536, 1).await.without_grace();
    let fs = mount(&cluster).await;
    // A flock ends.
    let file = create(&fs, "flock").await;
    fs.close(file, Some(7)).await.unwrap();
    assert_eq!(cluster.open_files(), 0);
    // Truncated.
    let file = create(&fs, "truncated").await;
    fs.truncate(&root(), file.inode(), Some(&file), 2).await.unwrap();
    fs.close(file, None).await.unwrap();
    assert_eq!(cluster.open_files(), 0);
    // Without a name.
    let file = create(&fs, "unnamed").await;
    fs.unlink(&root(), ROOT, b"unnamed").await.unwrap();
    fs.close(file, None).await.unwrap();
    assert_eq!(cluster.open_files(), 0);
    // Open twice.
    let file = create(&fs, "twice").await;
    let again = fs.open(&root(), file.inode(), OpenFlags(open_flag::READ)).await.unwrap();
    fs.close(file, None).await.unwrap();
    assert!(cluster.open_files() <= 1);
    fs.close(again, None).await.unwrap();
    assert_eq!(cluster.open_files(), 0);
}

#[tokio::test]
async fn an_mdt_that_restarts_learns_of_the_close() {
    let mut cluster = RealCluster::new(65536, 1).await;
    let fs = mount(&cluster).await;
    let inode = make(&fs, "file").await;
    cluster.crash_mdt().await;
    fs.sync_all().await.unwrap();
    assert_eq!(cluster.open_files(), 0);
    let other = cluster.mount().await;
    assert_eq!((size(&other, inode).await, count(&other, "ost_glimpse")), (4, 0));
}

#[tokio::test]
async fn an_mdt_that_loses_power_does_not_take_the_report() {
    let mut cluster = RealCluster::new(65536, 1).await;
    let fs = mount(&cluster).await;
    let file = create(&fs, "file").await;
    fs.fsync(&file, false).await.unwrap();
    let inode = file.inode();
    fs.close(file, None).await.unwrap();
    cluster.lose_power_of_mdt().await;
    fs.sync_all().await.unwrap();
    assert_eq!(cluster.open_files(), 0);
    let other = cluster.mount().await;
    assert_eq!(size(&other, inode).await, 4);
}

#[tokio::test]
async fn an_eviction_drops_what_waits() {
    let cluster = RealCluster::new(65536, 1).await;
    let fs = mount(&cluster).await;
    let inode = make(&fs, "file").await;
    cluster.evict(fs.client_id()).await;
    assert_eq!(cluster.open_files(), 0);
    // The first request learns of it.
    drop(fs.find_root().await);
    others_run().await;
    assert_eq!(size(&fs, inode).await, 4);
    make(&fs, "another").await;
    fs.sync_all().await.unwrap();
    assert_eq!((cluster.open_files(), fs.open_count()), (0, 0));
}

/// `lru_size=clear`: a client without locks gets no callbacks, so its closes go with the locks.
#[tokio::test]
async fn locks_that_are_cleared_take_what_waits_along() {
    let cluster = RealCluster::new(65536, 1).await;
    let (fs, other) = (mount(&cluster).await, mount(&cluster).await);
    let inode = make(&fs, "file").await;
    fs.clear_cached_locks(MdtIndex(0)).unwrap();
    while cluster.open_files() > 0 {
        tokio::time::sleep(std::time::Duration::from_millis(1)).await;
    }
    assert_eq!((size(&other, inode).await, count(&other, "ost_glimpse")), (4, 0));
}

#[tokio::test]
async fn a_client_that_leaves_closes_first() {
    let cluster = RealCluster::new(65536, 1).await;
    let fs = mount(&cluster).await;
    let inode = make(&fs, "file").await;
    fs.unmount().await;
    let other = cluster.mount().await;
    assert_eq!((size(&other, inode).await, count(&other, "ost_glimpse")), (4, 0), "the size was reported");
}

/// A request that fails tells nothing of the closes that it took along: they are repeated.
#[tokio::test]
async fn a_request_that_fails_loses_no_close() {
    let cluster = RealCluster::new(65536, 1).await;
    let fs = mount(&cluster).await;
    make(&fs, "file").await;
    fs.unlink(&root(), InodeNumber(0x1234), b"name").await.unwrap_err();
    assert_eq!(cluster.open_files(), 0, "it was executed");
    while fs.open_count() > 0 {
        tokio::time::sleep(std::time::Duration::from_millis(1)).await;
    }
}
