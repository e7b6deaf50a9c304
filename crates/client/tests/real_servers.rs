//! The client on the shipped MDT and OSTs, on devices in memory.

use crate::support;

use std::sync::Arc;

use bytes::Bytes;
use client::{DirectoryPage, FileSystem, LockRequest, WriteOptions};
use proptest::prelude::*;
use rpc::message::mdt::{LockFamily, LockMode, LockRange, OpenFlags, open_flag};
use support::{
    READ_WRITE, ROOT, append, create, read,
    real::RealCluster,
    script::{Client, STRIPE, play, steps},
    size, write,
};
use types::{Credentials, FsError, InodeNumber, OstIndex};

fn root() -> Credentials {
    Credentials::root()
}

async fn known_size(fs: &FileSystem, inode: InodeNumber) -> (u64, usize) {
    let before = glimpses(fs);
    let size = size(fs, inode).await;
    (size, glimpses(fs) - before)
}

/// Glimpses this client ever asked for.
fn glimpses(fs: &FileSystem) -> usize {
    let of_one = |(_, _, statistics): &(_, _, rpc::ImportStatistics)| {
        let glimpse = statistics.opcodes.iter().filter(|opcode| opcode.name == "ost_glimpse");
        glimpse.map(|opcode| opcode.calls as usize).sum::<usize>()
    };
    fs.connections().iter().map(of_one).sum()
}

#[tokio::test]
async fn a_sole_writer_reports_its_size() {
    let cluster = RealCluster::new(STRIPE, 3).await;
    let fs = cluster.mount().await;
    let file = create(&fs, "file", READ_WRITE).await;
    let inode = file.inode();
    write(&fs, &file, 0, &vec![1; 5 * STRIPE as usize]).await;
    append(&fs, &file, b"more").await;
    fs.truncate(&root(), inode, Some(&file), 4 * STRIPE + 1).await.unwrap();
    let open = fs.get_attributes(inode, None).await.unwrap();
    fs.close(file, None).await.unwrap();
    assert_eq!(known_size(&fs, inode).await, (4 * STRIPE + 1, 0));
    let closed = fs.get_attributes(inode, None).await.unwrap();
    assert_eq!((closed.blocks, closed.mtime, closed.ctime), (open.blocks, open.mtime, open.ctime));
    let again = create(&fs, "file", READ_WRITE | open_flag::TRUNCATE).await;
    write(&fs, &again, 0, b"short").await;
    fs.close(again, None).await.unwrap();
    assert_eq!(known_size(&fs, inode).await, (5, 0));
}

#[tokio::test]
async fn sizes_of_overlapping_writers_are_known_at_the_last_close() {
    let cluster = RealCluster::new(STRIPE, 2).await;
    let (one, other) = (cluster.mount().await, cluster.mount().await);
    let file = create(&one, "file", READ_WRITE).await;
    let inode = file.inode();
    let second = other.open(&root(), inode, OpenFlags(READ_WRITE)).await.unwrap();
    write(&one, &file, STRIPE, b"one").await;
    write(&other, &second, 2 * STRIPE, b"two").await;
    one.close(file, None).await.unwrap();
    assert_eq!(known_size(&one, inode).await, (2 * STRIPE + 3, 2));
    other.close(second, None).await.unwrap();
    assert_eq!(known_size(&one, inode).await, (2 * STRIPE + 3, 0));
}

#[tokio::test]
async fn appends_and_truncations_of_many_take_turns() {
    let cluster = RealCluster::new(STRIPE, 2).await;
    let clients = [cluster.mount().await, cluster.mount().await];
    const RECORDS: usize = 20;
    const BYTES: usize = 3000;
    let inode = create(&clients[0], "log", READ_WRITE).await.inode();
    let writer = |fs: Arc<FileSystem>, mark: u8| async move {
        let file = fs.open(&root(), inode, OpenFlags(open_flag::WRITE | open_flag::APPEND)).await.unwrap();
        for _ in 0..RECORDS {
            append(&fs, &file, &[mark; BYTES]).await;
        }
        fs.close(file, None).await.unwrap();
    };
    let tasks: Vec<_> =
        (0..4u8).map(|index| tokio::spawn(writer(clients[index as usize % 2].clone(), index + 1))).collect();
    for task in tasks {
        task.await.unwrap();
    }
    let file = clients[0].open(&root(), inode, OpenFlags(open_flag::READ)).await.unwrap();
    let data = read(&clients[0], &file, 0, 1 << 20).await;
    assert_eq!(data.len(), 4 * RECORDS * BYTES);
    for mark in 1..=4 {
        let records = data.chunks(BYTES).filter(|record| record.iter().all(|byte| *byte == mark)).count();
        assert_eq!(records, RECORDS, "records of writer {mark}");
    }
    // Truncating opens beside appends of the same client: neither waits forever.
    let appender = clients[0].open(&root(), inode, OpenFlags(open_flag::WRITE | open_flag::APPEND)).await.unwrap();
    let credentials = root();
    for _ in 0..5 {
        let (_, emptied) = tokio::join!(
            append(&clients[0], &appender, b"x"),
            clients[0].open(&credentials, inode, OpenFlags(READ_WRITE | open_flag::TRUNCATE)),
        );
        clients[0].close(emptied.unwrap(), None).await.unwrap();
    }
    assert!(size(&clients[1], inode).await <= 1);
}

#[tokio::test]
async fn open_files_and_locks_survive_a_crash_of_the_mdt() {
    let mut cluster = RealCluster::new(STRIPE, 2).await;
    let (fs, other) = (cluster.mount().await, cluster.mount().await);
    let file = create(&fs, "file", READ_WRITE).await;
    let inode = file.inode();
    let others = other.open(&root(), inode, OpenFlags(open_flag::READ)).await.unwrap();
    write(&fs, &file, 0, b"before").await;
    fs.unlink(&root(), ROOT, b"file").await.unwrap();
    let range = LockRange { start: 0, end: 9 };
    let lock =
        |owner, wait| LockRequest { family: LockFamily::Posix, owner, pid: 1, range, mode: LockMode::Exclusive, wait };
    fs.set_lock(&file, lock(1, false)).await.unwrap();
    cluster.crash_mdt().await;
    append(&fs, &file, b" after").await;
    assert_eq!(read(&fs, &file, 0, 100).await, b"before after");
    assert_eq!(other.set_lock(&others, lock(2, false)).await, Err(FsError::WouldBlock), "the lock was claimed again");
    fs.fsync(&file, false).await.unwrap();
    fs.flush(&file, 1).await.unwrap();
    assert_eq!(other.set_lock(&others, lock(2, false)).await, Ok(()));
    fs.close(file, None).await.unwrap();
    other.close(others, None).await.unwrap();
    assert_eq!(cluster.open_files(), 0);
    assert_eq!(fs.get_attributes(inode, None).await, Err(FsError::Stale));
}

/// Far longer than anything here takes.
const TIMEOUT: std::time::Duration = std::time::Duration::from_secs(60);

#[tokio::test]
async fn waits_go_on_after_a_crash_of_the_mdt() {
    let mut cluster = RealCluster::new(STRIPE, 1).await;
    let (fs, other) = (cluster.mount().await, cluster.mount().await);
    let file = create(&fs, "file", READ_WRITE).await;
    let others = other.open(&root(), file.inode(), OpenFlags(open_flag::READ)).await.unwrap();
    let (family, range, mode) = (LockFamily::Posix, LockRange::WHOLE, LockMode::Exclusive);
    let lock = move |owner, wait| LockRequest { family, owner, pid: 1, range, mode, wait };
    fs.set_lock(&file, lock(1, false)).await.unwrap();
    let waiting = {
        let (other, others) = (other.clone(), others.clone());
        tokio::spawn(async move { other.set_lock(&others, lock(2, true)).await })
    };
    // As long as the request usually needs; if it comes later, it waits at the next start.
    for _ in 0..1000 {
        tokio::task::yield_now().await;
    }
    assert!(!waiting.is_finished());
    cluster.crash_mdt().await;
    for client in [&fs, &other] {
        client.get_attributes(file.inode(), None).await.unwrap();
    }
    assert!(!waiting.is_finished(), "the lock was claimed again");
    fs.flush(&file, 1).await.unwrap();
    let granted = tokio::time::timeout(TIMEOUT, waiting).await.expect("the release is told").unwrap();
    assert_eq!(granted, Ok(()));
    assert_eq!(fs.set_lock(&file, lock(1, false)).await, Err(FsError::WouldBlock));
}

#[tokio::test]
async fn a_flock_lock_given_up_for_another_is_not_claimed_again() {
    let mut cluster = RealCluster::new(STRIPE, 1).await;
    let (fs, other) = (cluster.mount().await, cluster.mount().await);
    let file = create(&fs, "file", READ_WRITE).await;
    let others = other.open(&root(), file.inode(), OpenFlags(open_flag::READ)).await.unwrap();
    let (family, range) = (LockFamily::Flock, LockRange::WHOLE);
    let lock = |owner, mode| LockRequest { family, owner, pid: 1, range, mode, wait: false };
    fs.set_lock(&file, lock(1, LockMode::Shared)).await.unwrap();
    other.set_lock(&others, lock(2, LockMode::Shared)).await.unwrap();
    assert_eq!(fs.set_lock(&file, lock(1, LockMode::Exclusive)).await, Err(FsError::WouldBlock));
    other.set_lock(&others, lock(2, LockMode::Exclusive)).await.expect("the shared lock was given up");
    cluster.crash_mdt().await;
    for client in [&fs, &other] {
        client.get_attributes(file.inode(), None).await.unwrap();
    }
    assert_eq!(fs.set_lock(&file, lock(1, LockMode::Shared)).await, Err(FsError::WouldBlock), "claimed by its holder");
}

#[tokio::test]
async fn an_evicted_client_cannot_write_and_begins_anew() {
    let cluster = RealCluster::new(STRIPE, 2).await;
    let (fs, other) = (cluster.mount().await, cluster.mount().await);
    let file = create(&fs, "file", READ_WRITE).await;
    let inode = file.inode();
    write(&fs, &file, 0, b"kept").await;
    let former = fs.client_id();
    cluster.evict(former).await;
    let late = fs.write(&file, 0, Bytes::from_static(b"late"), WriteOptions { append: true, ..Default::default() });
    assert_eq!(late.await, Err(FsError::Stale));
    while fs.client_id() == former {
        tokio::task::yield_now().await;
    }
    let late = fs.write(&file, 0, Bytes::from_static(b"late"), WriteOptions::default());
    assert_eq!(late.await, Err(FsError::Stale));
    let again = fs.open(&root(), inode, OpenFlags(READ_WRITE)).await.unwrap();
    append(&fs, &again, b" and new").await;
    fs.close(again, None).await.unwrap();
    fs.close(file, None).await.unwrap();
    let reader = other.open(&root(), inode, OpenFlags(open_flag::READ)).await.unwrap();
    assert_eq!(read(&other, &reader, 0, 100).await, b"kept and new");
}

/// Whatever an MDT thinks of it: a client that some OST refuses could write nothing there under its
/// present id.
#[tokio::test]
async fn a_client_that_an_ost_refuses_begins_anew() {
    let cluster = RealCluster::new(STRIPE, 2).await;
    let fs = cluster.mount().await;
    let file = create(&fs, "file", READ_WRITE).await;
    let inode = file.inode();
    write(&fs, &file, 0, b"kept").await;
    let former = fs.client_id();
    cluster.refuse(OstIndex(0), former).await;
    cluster.refuse(OstIndex(1), former).await;
    let late = fs.write(&file, 0, Bytes::from_static(b"late"), WriteOptions::default());
    assert_eq!(late.await, Err(FsError::Stale));
    assert_ne!(fs.client_id(), former);
    let again = fs.open(&root(), inode, OpenFlags(READ_WRITE)).await.unwrap();
    append(&fs, &again, b" and new").await;
    assert_eq!(read(&fs, &again, 0, 100).await, b"kept and new");
    fs.close(again, None).await.unwrap();
    assert_eq!(fs.close(file, None).await, Ok(()));
}

/// Its writer is gone without a word; once the OSTs refuse it, the first client that looks reports
/// the size.
#[tokio::test]
async fn a_look_reports_the_size_of_a_dead_writers_file() {
    let cluster = RealCluster::new(STRIPE, 2).await;
    let (writer, other) = (cluster.mount().await, cluster.mount().await);
    let file = create(&writer, "file", READ_WRITE).await;
    let inode = file.inode();
    write(&writer, &file, 0, &vec![1; STRIPE as usize + 5]).await;
    assert_eq!(known_size(&other, inode).await, (STRIPE + 5, 2));
    cluster.evict(writer.client_id()).await;
    for _ in 0..10_000 {
        let (size, asked) = known_size(&other, inode).await;
        assert_eq!(size, STRIPE + 5);
        if asked == 0 {
            return;
        }
        tokio::time::sleep(std::time::Duration::from_millis(1)).await;
    }
    panic!("the size is never known");
}

#[tokio::test]
async fn directories_show_sizes_of_open_files() {
    let cluster = RealCluster::new(STRIPE, 2).await;
    let fs = cluster.mount().await;
    let mut files = Vec::new();
    for index in 0..10u64 {
        let file = create(&fs, &format!("file{index}"), READ_WRITE).await;
        write(&fs, &file, index * STRIPE / 2, b"end").await;
        files.push(file);
    }
    let directory = fs.open(&root(), ROOT, OpenFlags(open_flag::READ)).await.unwrap();
    let DirectoryPage { items, end, .. } =
        fs.read_directory(&directory, 0, 100, client::EntryAttributes::OfAll).await.unwrap();
    assert!(end && items.len() == 12);
    let mut sizes: Vec<u64> = items.iter().filter_map(|item| Some(item.attributes?.size)).collect();
    sizes.sort_unstable();
    assert_eq!(sizes, (0..10).map(|index| index * STRIPE / 2 + 3).collect::<Vec<_>>());
    fs.unmount().await;
    assert_eq!(cluster.open_files(), 0);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 12, ..ProptestConfig::default() })]

    #[test]
    fn two_clients_see_one_file(
        osts in 1u16..=4,
        script in prop::collection::vec((any::<bool>(), steps()), 1..25),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let cluster = RealCluster::new(STRIPE, osts).await;
            let (first, second) = (cluster.mount().await, cluster.mount().await);
            let file = create(&first, "file", READ_WRITE).await;
            let inode = file.inode();
            let other = second.open(&root(), inode, OpenFlags(READ_WRITE)).await.unwrap();
            let clients = [Client { fs: first, file }, Client { fs: second, file: other }];
            let (model, [one, two]) = play(clients, &script).await;
            one.fs.close(one.file, None).await.unwrap();
            two.fs.close(two.file, None).await.unwrap();
            assert_eq!(known_size(&one.fs, inode).await, (model.len() as u64, 0));
        });
    }
}
