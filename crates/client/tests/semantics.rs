//! What programs see through several clients of one file system, and what it costs in requests.
//! Servers are fakes.

use crate::support;

use std::{collections::BTreeMap, sync::Arc};

use bytes::Bytes;
use client::{AllocateMode, FileSystem, Interruption, OpenFile, SeekTarget, WriteOptions};
use rpc::message::{
    mdt::{OpenFlags, open_flag},
    mgs::{TargetRole, TargetState},
};
use support::{Cluster, READ_WRITE, ROOT, append, create, others_run, read, size, write};
use types::{Credentials, FsError, InodeNumber, OstIndex, SetAttributes, SetTime, Timestamp, limits::FILE_BYTES_MAX};

const STRIPE: u64 = 65536;

fn root() -> Credentials {
    Credentials::root()
}

async fn open(fs: &Arc<FileSystem>, inode: InodeNumber, flags: u32) -> Arc<OpenFile> {
    fs.open(&root(), inode, OpenFlags(flags)).await.expect("the file can be opened")
}

fn counts(expected: &[(&'static str, usize)]) -> BTreeMap<&'static str, usize> {
    expected.iter().copied().collect()
}

#[tokio::test]
async fn small_files_cost_three_requests() {
    let cluster = Cluster::new(STRIPE, 1);
    let fs = cluster.mount().await;
    let before = cluster.requests();
    let file = create(&fs, "new", READ_WRITE).await;
    let inode = file.inode();
    write(&fs, &file, 0, &[7; 4096]).await;
    fs.flush(&file, 1).await.unwrap();
    fs.close(file, None).await.unwrap();
    assert_eq!(cluster.requests_since(&before), counts(&[("create", 1), ("write", 1), ("close", 1)]));
    assert!(cluster.mdt.size_known(inode));

    let before = cluster.requests();
    let attributes = fs.get_attributes(inode, None).await.unwrap();
    assert_eq!((attributes.size, attributes.blocks), (4096, 8));
    assert_eq!(cluster.requests_since(&before), counts(&[("getattr", 1)]));

    let before = cluster.requests();
    let file = open(&fs, inode, open_flag::READ).await;
    assert_eq!(read(&fs, &file, 0, 8192).await, [7; 4096]);
    fs.close(file, None).await.unwrap();
    assert_eq!(cluster.requests_since(&before), counts(&[("open", 1), ("read", 1), ("close", 1)]));
}

#[tokio::test]
async fn a_sole_appender_needs_no_glimpse() {
    let cluster = Cluster::new(STRIPE, 3);
    let fs = cluster.mount().await;
    let file = create(&fs, "log", open_flag::WRITE | open_flag::APPEND).await;
    let before = cluster.requests();
    append(&fs, &file, b"one").await;
    append(&fs, &file, b"two").await;
    assert_eq!(cluster.requests_since(&before), counts(&[("begin", 2), ("write", 2), ("end", 2)]));
    assert_eq!(size(&fs, file.inode()).await, 6);
}

#[tokio::test]
async fn appends_of_two_clients_never_overlap() {
    let cluster = Cluster::new(STRIPE, 2);
    let clients = [cluster.mount().await, cluster.mount().await];
    const RECORDS: u8 = 40;
    const BYTES: usize = 5000;
    let inode = create(&clients[0], "log", READ_WRITE).await.inode();
    let writer = |fs: Arc<FileSystem>, mark: u8| async move {
        let file = open(&fs, inode, open_flag::WRITE | open_flag::APPEND).await;
        for record in 0..RECORDS {
            append(&fs, &file, &[mark + record; BYTES]).await;
        }
        fs.close(file, None).await.unwrap();
    };
    let tasks: Vec<_> =
        [(0, 0), (1, 50), (0, 100), (1, 150)].map(|(client, mark)| writer(clients[client].clone(), mark)).into();
    let tasks: Vec<_> = tasks.into_iter().map(tokio::spawn).collect();
    for task in tasks {
        task.await.unwrap();
    }
    let file = open(&clients[1], inode, open_flag::READ).await;
    let data = read(&clients[1], &file, 0, 1 << 20).await;
    assert_eq!(data.len(), 4 * RECORDS as usize * BYTES);
    let mut seen: Vec<u8> = data.chunks(BYTES).map(|record| record[0]).collect();
    assert!(data.chunks(BYTES).all(|record| record.iter().all(|byte| *byte == record[0])), "a torn record");
    seen.sort_unstable();
    let expected: Vec<u8> = [0, 50, 100, 150].iter().flat_map(|mark| *mark..*mark + RECORDS).collect();
    assert_eq!(seen, expected);
}

#[tokio::test]
async fn a_glimpse_finds_the_size_of_overlapping_writers() {
    let cluster = Cluster::new(STRIPE, 2);
    let (one, other) = (cluster.mount().await, cluster.mount().await);
    let file = create(&one, "shared", READ_WRITE).await;
    let inode = file.inode();
    let second = open(&other, inode, READ_WRITE).await;
    write(&one, &file, 0, &[1; 100]).await;
    write(&other, &second, 3 * STRIPE, &[2; 10]).await;
    assert_eq!((size(&one, inode).await, size(&other, inode).await), (3 * STRIPE + 10, 3 * STRIPE + 10));
    one.close(file, None).await.unwrap();
    assert!(!cluster.mdt.size_known(inode));
    let before = cluster.requests();
    other.close(second, None).await.unwrap();
    assert_eq!(cluster.requests_since(&before), counts(&[("close", 1), ("glimpse", 2), ("report_size", 1)]));
    assert!(cluster.mdt.size_known(inode));
    assert_eq!(size(&one, inode).await, 3 * STRIPE + 10);
}

#[tokio::test]
async fn truncation_is_seen_by_others_at_once() {
    let cluster = Cluster::new(STRIPE, 3);
    let (one, other) = (cluster.mount().await, cluster.mount().await);
    let file = create(&one, "file", READ_WRITE).await;
    let inode = file.inode();
    write(&one, &file, 0, &vec![5; 4 * STRIPE as usize]).await;
    let shown = other.truncate(&root(), inode, None, STRIPE + 7).await.unwrap();
    assert_eq!(shown.size, STRIPE + 7);
    assert_eq!(size(&one, inode).await, STRIPE + 7);
    assert_eq!(read(&one, &file, STRIPE, 100).await, [5; 7]);
    let grown = one.truncate(&root(), inode, Some(&file), 2 * STRIPE + 1).await.unwrap();
    assert_eq!(grown.size, 2 * STRIPE + 1);
    let tail = read(&other, &*open(&other, inode, open_flag::READ).await, STRIPE, 2 * STRIPE as usize).await;
    assert_eq!(tail.len() as u64, STRIPE + 1);
    assert!(tail[..7].iter().all(|byte| *byte == 5) && tail[7..].iter().all(|byte| *byte == 0));
    one.close(file, None).await.unwrap();
    assert_eq!(size(&other, inode).await, 2 * STRIPE + 1);
}

#[tokio::test]
async fn a_truncation_by_path_makes_the_size_known() {
    let cluster = Cluster::new(STRIPE, 3);
    let fs = cluster.mount().await;
    let file = create(&fs, "file", READ_WRITE).await;
    let inode = file.inode();
    fs.close(file, None).await.unwrap();
    fs.truncate(&root(), inode, None, 100).await.unwrap();
    assert!(cluster.mdt.size_known(inode));
    assert_eq!(fs.truncate(&root(), inode, None, FILE_BYTES_MAX + 1).await, Err(FsError::FileTooLarge));
}

/// O_RDONLY | O_TRUNC: the close of a reader tells nothing, so the truncation does.
#[tokio::test]
async fn an_open_for_reading_that_truncates_makes_the_size_known() {
    let cluster = Cluster::new(STRIPE, 2);
    let fs = cluster.mount().await;
    let file = create(&fs, "file", READ_WRITE).await;
    write(&fs, &file, 0, &[1; 100_000]).await;
    let inode = file.inode();
    fs.close(file, None).await.unwrap();
    for by_name in [false, true] {
        let flags = open_flag::READ | open_flag::TRUNCATE;
        let file = if by_name { create(&fs, "file", flags).await } else { open(&fs, inode, flags).await };
        assert!(cluster.mdt.size_known(inode));
        assert_eq!(size(&fs, inode).await, 0);
        fs.close(file, None).await.unwrap();
    }
}

/// How a size is asked for.
#[derive(Clone, Copy, Debug)]
enum Look {
    Inode,
    Name,
    Directory,
}

/// Size of the only file.
async fn size_by(fs: &Arc<FileSystem>, inode: InodeNumber, look: Look) -> u64 {
    match look {
        Look::Inode => size(fs, inode).await,
        Look::Name => fs.lookup(&root(), ROOT, b"file").await.unwrap().size,
        Look::Directory => {
            let directory = open(fs, ROOT, open_flag::READ).await;
            let page = fs.read_directory(&directory, 0, 10, client::EntryAttributes::OfAll).await.unwrap();
            fs.close(directory, None).await.unwrap();
            page.items[0].attributes.expect("asked for").size
        }
    }
}

#[tokio::test]
async fn a_look_at_a_file_of_a_dead_writer_reports_its_size() {
    let cluster = Cluster::new(STRIPE, 2);
    let (fs, other) = (cluster.mount().await, cluster.mount().await);
    let file = create(&fs, "file", READ_WRITE).await;
    write(&fs, &file, 0, &[1; 100_000]).await;
    let inode = file.inode();
    assert_eq!(size(&other, inode).await, 100_000);
    assert!(!cluster.mdt.size_known(inode), "somebody writes to it");
    fs.close(file, None).await.unwrap();
    for look in [Look::Inode, Look::Name, Look::Directory] {
        cluster.mdt.forget_size(inode);
        let before = cluster.requests();
        assert_eq!(size_by(&other, inode, look).await, 100_000);
        assert!(cluster.mdt.size_known(inode));
        assert_eq!(cluster.requests_since(&before)["report_size"], 1);
        let before = cluster.requests();
        assert_eq!(size_by(&other, inode, look).await, 100_000);
        assert!(!cluster.requests_since(&before).contains_key("glimpse"), "the MDT knows");
    }
}

#[tokio::test]
async fn opening_with_truncation_empties_all_objects() {
    let cluster = Cluster::new(STRIPE, 2);
    let (one, other) = (cluster.mount().await, cluster.mount().await);
    let file = create(&one, "file", READ_WRITE).await;
    let inode = file.inode();
    write(&one, &file, 0, &vec![5; 2 * STRIPE as usize]).await;
    one.close(file, None).await.unwrap();
    let again = open(&other, inode, READ_WRITE | open_flag::TRUNCATE).await;
    assert_eq!(size(&one, inode).await, 0);
    write(&other, &again, 10, &[6; 5]).await;
    other.close(again, None).await.unwrap();
    assert!(cluster.mdt.size_known(inode), "the sole writer knows the size");
    let found = create(&one, "file", open_flag::READ).await;
    assert_eq!(found.inode(), inode);
    assert_eq!(read(&one, &found, 0, 100).await, [&[0; 10][..], &[6; 5]].concat());
    let before = cluster.requests();
    let emptied = create(&one, "file", READ_WRITE | open_flag::TRUNCATE).await;
    let made = cluster.requests_since(&before);
    assert_eq!(made, counts(&[("create", 1), ("begin", 1), ("space", 2), ("end", 1)]));
    assert_eq!(size(&one, emptied.inode()).await, 0);
}

#[tokio::test]
async fn an_unlinked_file_lives_until_it_is_closed() {
    let cluster = Cluster::new(STRIPE, 1);
    let fs = cluster.mount().await;
    let file = create(&fs, "file", READ_WRITE).await;
    fs.unlink(&root(), ROOT, b"file").await.unwrap();
    assert_eq!(fs.lookup(&root(), ROOT, b"file").await, Err(FsError::NotFound));
    write(&fs, &file, 0, b"still here").await;
    assert_eq!(read(&fs, &file, 6, 10).await, b"here");
    fs.close(file, None).await.unwrap();
}

#[tokio::test]
async fn reads_at_the_end_of_a_sparse_striped_file() {
    let cluster = Cluster::new(STRIPE, 4);
    let fs = cluster.mount().await;
    let file = create(&fs, "sparse", READ_WRITE).await;
    write(&fs, &file, 2 * STRIPE, &[9; 10]).await;
    assert_eq!(read(&fs, &file, 0, 100).await, [0; 100], "object 0 is missing: a hole");
    let whole = read(&fs, &file, 0, 16 * STRIPE as usize).await;
    assert_eq!(whole.len() as u64, 2 * STRIPE + 10);
    assert_eq!(read(&fs, &file, 2 * STRIPE + 10, 1).await, [0; 0]);
    assert_eq!(read(&fs, &file, 3 * STRIPE, 100).await, [0; 0]);
    assert_eq!(read(&fs, &file, FILE_BYTES_MAX + 5, 100).await, [0; 0]);
    let before = cluster.requests();
    assert_eq!(read(&fs, &file, 0, 3 * STRIPE as usize).await.len() as u64, 2 * STRIPE + 10);
    let made = cluster.requests_since(&before);
    assert_eq!(made, counts(&[("read", 3), ("glimpse", 1)]), "only the untouched object is asked");
}

#[tokio::test]
async fn holes_and_data_over_stripes() {
    let cluster = Cluster::new(STRIPE, 3);
    let fs = cluster.mount().await;
    let file = create(&fs, "sparse", READ_WRITE).await;
    write(&fs, &file, STRIPE, &vec![1; 2 * STRIPE as usize]).await;
    fs.truncate(&root(), file.inode(), Some(&file), 5 * STRIPE).await.unwrap();
    assert_eq!(fs.seek(&file, 0, SeekTarget::Data).await, Ok(STRIPE));
    assert_eq!(fs.seek(&file, 0, SeekTarget::Hole).await, Ok(0));
    assert_eq!(fs.seek(&file, STRIPE + 5, SeekTarget::Hole).await, Ok(3 * STRIPE));
    assert_eq!(fs.seek(&file, 3 * STRIPE, SeekTarget::Data).await, Err(FsError::NoDeviceOrAddress));
    assert_eq!(fs.seek(&file, 5 * STRIPE, SeekTarget::Hole).await, Err(FsError::NoDeviceOrAddress));
    fs.allocate(&file, AllocateMode::Punch, STRIPE + 4096, STRIPE).await.unwrap();
    assert_eq!(fs.seek(&file, STRIPE, SeekTarget::Hole).await, Ok(STRIPE + 4096));
    assert_eq!(fs.seek(&file, STRIPE + 4096, SeekTarget::Data).await, Ok(2 * STRIPE + 4096));
    fs.allocate(&file, AllocateMode::Allocate { extend: true }, 4 * STRIPE, 2 * STRIPE).await.unwrap();
    assert_eq!(size(&fs, file.inode()).await, 6 * STRIPE);
    fs.allocate(&file, AllocateMode::Zero { extend: false }, 0, 9 * STRIPE).await.unwrap();
    assert_eq!(size(&fs, file.inode()).await, 6 * STRIPE);
    assert!(read(&fs, &file, 0, 6 * STRIPE as usize).await.iter().all(|byte| *byte == 0));
    assert_eq!(fs.allocate(&file, AllocateMode::Punch, 0, 0).await, Err(FsError::Invalid));
    let full = AllocateMode::Allocate { extend: true };
    assert_eq!(fs.allocate(&file, full, FILE_BYTES_MAX, 1).await, Err(FsError::FileTooLarge));
}

#[tokio::test]
async fn writes_at_the_limit_are_cut_and_behind_it_refused() {
    let cluster = Cluster::new(STRIPE, 1);
    let fs = cluster.mount().await;
    let file = create(&fs, "file", READ_WRITE).await;
    let data = || Bytes::from_static(b"0123456789");
    let refused = fs.write(&file, FILE_BYTES_MAX, data(), WriteOptions::default()).await;
    assert_eq!(refused, Err(FsError::FileTooLarge));
    assert_eq!(fs.write(&file, 0, Bytes::new(), WriteOptions::default()).await, Ok(0));
    let reader = open(&fs, file.inode(), open_flag::READ).await;
    assert_eq!(fs.write(&reader, 0, data(), WriteOptions::default()).await, Err(FsError::BadHandle));
    let writer = open(&fs, file.inode(), open_flag::WRITE).await;
    assert_eq!(fs.read(&writer, 0, 1).await, Err(FsError::BadHandle));
}

#[tokio::test]
async fn damaged_data_are_fetched_again_but_not_forever() {
    let cluster = Cluster::new(STRIPE, 1);
    let fs = cluster.mount().await;
    let file = create(&fs, "file", READ_WRITE).await;
    write(&fs, &file, 0, b"precious").await;
    cluster.osts[0].damage_reads(2);
    assert_eq!(read(&fs, &file, 0, 100).await, b"precious");
    cluster.osts[0].damage_reads(100);
    assert_eq!(fs.read(&file, 0, 100).await, Err(FsError::Transfer));
}

#[tokio::test]
async fn a_partly_failed_write_reports_what_lies_before_the_failure() {
    let cluster = Cluster::new(STRIPE, 3);
    let fs = cluster.mount().await;
    let file = create(&fs, "file", READ_WRITE).await;
    cluster.osts[1].refuse(1, FsError::NoSpace);
    let data = Bytes::from(vec![3; 6 * STRIPE as usize]);
    let options = WriteOptions::default();
    assert_eq!(fs.write(&file, 100, data.clone(), options).await, Ok(STRIPE as usize - 100));
    assert_eq!(fs.write(&file, STRIPE, data, options).await, Err(FsError::NoSpace));
    let inode = file.inode();
    let before = cluster.requests();
    fs.close(file, None).await.unwrap();
    let made = cluster.requests_since(&before);
    assert_eq!(made, counts(&[("close", 1)]), "what was refused changed nothing: the size is known");
    assert_eq!(size(&fs, inode).await, 7 * STRIPE, "stripe 6 is in object 0, which took its part");
}

#[tokio::test]
async fn times_set_by_hand_survive_the_close() {
    let cluster = Cluster::new(STRIPE, 1);
    let (fs, other) = (cluster.mount().await, cluster.mount().await);
    let file = create(&fs, "file", READ_WRITE).await;
    let inode = file.inode();
    write(&fs, &file, 0, b"x").await;
    let old = Timestamp { seconds: -5, nanoseconds: 3 };
    let changes = SetAttributes { mtime: Some(SetTime::To(old)), ..SetAttributes::default() };
    assert_eq!(fs.set_attributes(&root(), inode, changes, Some(&file)).await.unwrap().mtime, old);
    assert_eq!(other.get_attributes(inode, None).await.unwrap().mtime, old);
    fs.close(file, None).await.unwrap();
    assert_eq!(other.get_attributes(inode, None).await.unwrap().mtime, old);
}

#[tokio::test]
async fn set_id_bits_are_cleared_before_the_first_unprivileged_write() {
    let cluster = Cluster::new(STRIPE, 1);
    let fs = cluster.mount().await;
    let file = create(&fs, "tool", READ_WRITE).await;
    let changes = SetAttributes { mode: Some(0o4755), ..SetAttributes::default() };
    fs.set_attributes(&root(), file.inode(), changes, None).await.unwrap();
    let before = cluster.requests();
    let privileged = WriteOptions { keep_set_id: true, ..WriteOptions::default() };
    fs.write(&file, 0, Bytes::from_static(b"x"), privileged).await.unwrap();
    write(&fs, &file, 0, b"y").await;
    write(&fs, &file, 0, b"z").await;
    assert_eq!(cluster.requests_since(&before), counts(&[("write", 3), ("clear", 1)]));
}

#[tokio::test]
async fn set_id_bits_are_cleared_before_an_unprivileged_allocation() {
    let allocate = AllocateMode::Allocate { extend: true };
    for mode in [allocate, AllocateMode::Punch, AllocateMode::Zero { extend: false }] {
        let cluster = Cluster::new(STRIPE, 1);
        let fs = cluster.mount().await;
        let file = create(&fs, "tool", READ_WRITE).await;
        let changes = SetAttributes { mode: Some(0o4755), ..SetAttributes::default() };
        fs.set_attributes(&root(), file.inode(), changes, None).await.unwrap();
        let before = cluster.requests();
        fs.allocate(&file, mode, 0, STRIPE).await.unwrap();
        assert!(!cluster.requests_since(&before).contains_key("clear"), "{mode:?}: who may keep them");
        let user = Credentials { uid: 5, gid: 5, groups: None };
        for _ in 0..2 {
            fs.allocate_unless(&user, &file, mode, (0, STRIPE), Interruption::default()).await.unwrap();
        }
        assert_eq!(cluster.requests_since(&before)["clear"], 1, "{mode:?}");
    }
}

#[tokio::test]
async fn synchronous_writes_commit_the_file_once() {
    let cluster = Cluster::new(STRIPE, 2);
    let fs = cluster.mount().await;
    let file = create(&fs, "file", READ_WRITE).await;
    let before = cluster.requests();
    let options = WriteOptions { sync: true, ..WriteOptions::default() };
    for _ in 0..2 {
        fs.write(&file, 0, Bytes::from_static(b"x"), options).await.unwrap();
    }
    fs.fsync(&file, true).await.unwrap();
    assert_eq!(cluster.requests_since(&before), counts(&[("write", 2), ("commit", 1)]), "nothing is left to sync");
    write(&fs, &file, 0, b"y").await;
    fs.fsync(&file, false).await.unwrap();
    let made = cluster.requests_since(&before);
    assert_eq!(made, counts(&[("write", 3), ("sync", 1), ("commit", 2)]), "only the object that was written");
    let again = open(&cluster.mount().await, file.inode(), open_flag::READ).await;
    fs.fsync(&again, false).await.unwrap();
    assert_eq!(cluster.requests_since(&before)["sync"], 3, "all objects of a file that existed before the open");
}

#[tokio::test]
async fn a_dropped_handle_is_closed() {
    let cluster = Cluster::new(STRIPE, 1);
    let fs = cluster.mount().await;
    drop(create(&fs, "file", READ_WRITE).await);
    cluster.until_open(0).await;
    let file = create(&fs, "file", READ_WRITE).await;
    fs.close(file.clone(), None).await.unwrap();
    assert_eq!(fs.close(file, None).await, Err(FsError::BadHandle));
    assert_eq!(fs.open_count(), 0);
}

#[tokio::test]
async fn open_files_survive_a_restart_of_the_servers() {
    let cluster = Cluster::new(STRIPE, 2);
    let fs = cluster.mount().await;
    let file = create(&fs, "file", READ_WRITE).await;
    write(&fs, &file, 0, b"before").await;
    cluster.restart().await;
    write(&fs, &file, 6, b" and after").await;
    assert_eq!(read(&fs, &file, 0, 100).await, b"before and after");
    fs.fsync(&file, false).await.unwrap();
    assert_eq!(size(&fs, file.inode()).await, 16);
    assert!(cluster.mdt.counts()["reclaim"] >= 2, "opens, then the end");
    fs.close(file, None).await.unwrap();
}

/// The MDT answered and died, and the new start was told of the open before the answer was heard.
#[tokio::test]
async fn a_close_that_a_restart_overtakes_is_sent_again() {
    let cluster = Cluster::new(STRIPE, 1);
    let fs = cluster.mount().await;
    let file = create(&fs, "file", READ_WRITE).await;
    cluster.mdt.hold_answers(Some("close"));
    let closing = tokio::spawn({
        let fs = fs.clone();
        async move { fs.close(file, None).await }
    });
    cluster.until_open(0).await;
    let _former = cluster.move_on();
    cluster.until_open(1).await;
    cluster.mdt.hold_answers(None);
    assert_eq!(closing.await.unwrap(), Ok(()));
    assert_eq!(cluster.mdt.open_count(), 0);
}

#[tokio::test]
async fn an_fsync_does_not_return_before_what_another_one_flushes_is_durable() {
    let cluster = Cluster::new(STRIPE, 1);
    let fs = cluster.mount().await;
    let file = create(&fs, "file", READ_WRITE).await;
    write(&fs, &file, 0, b"of both").await;
    cluster.osts[0].hold("sync");
    let fsync = || {
        let (fs, file) = (fs.clone(), file.clone());
        tokio::spawn(async move { fs.fsync(&file, false).await })
    };
    let (first, second) = (fsync(), fsync());
    others_run().await;
    assert!(!first.is_finished() && !second.is_finished(), "nothing is durable yet");
    cluster.osts[0].release();
    assert_eq!((first.await.unwrap(), second.await.unwrap()), (Ok(()), Ok(())));
}

#[tokio::test]
async fn an_fsync_that_is_given_up_leaves_its_objects_to_the_next() {
    let cluster = Cluster::new(STRIPE, 1);
    let fs = cluster.mount().await;
    let file = create(&fs, "file", READ_WRITE).await;
    write(&fs, &file, 0, b"data").await;
    cluster.osts[0].hold("sync");
    let given_up = {
        let (fs, file) = (fs.clone(), file.clone());
        tokio::spawn(async move { fs.fsync(&file, false).await })
    };
    others_run().await;
    given_up.abort();
    assert!(given_up.await.unwrap_err().is_cancelled());
    cluster.osts[0].release();
    others_run().await;
    let before = cluster.requests();
    fs.fsync(&file, false).await.unwrap();
    assert_eq!(cluster.requests_since(&before).get("sync"), Some(&1));
}

#[tokio::test]
async fn the_data_sync_of_a_file_opened_for_writing_anew_commits_that_open() {
    let cluster = Cluster::new(STRIPE, 1);
    let fs = cluster.mount().await;
    let first = create(&fs, "file", READ_WRITE).await;
    write(&fs, &first, 0, b"written").await;
    fs.fsync(&first, true).await.unwrap();
    let inode = first.inode();
    let _reader = open(&fs, inode, open_flag::READ).await;
    fs.close(first, None).await.unwrap();
    // From here on the MDT says that it knows the size, and would say so again if it forgot the
    // next open.
    assert!(cluster.mdt.size_known(inode));
    let second = open(&fs, inode, READ_WRITE).await;
    write(&fs, &second, 7, b" and more").await;
    let before = cluster.requests();
    fs.fsync(&second, true).await.unwrap();
    assert_eq!(cluster.requests_since(&before).get("commit"), Some(&1));
}

#[tokio::test]
async fn an_open_that_truncates_waits_for_the_append_of_another_user_of_this_client() {
    let cluster = Cluster::new(STRIPE, 1);
    let fs = cluster.mount().await;
    let file = create(&fs, "file", READ_WRITE).await;
    write(&fs, &file, 0, b"old").await;
    for by_name in [false, true] {
        cluster.osts[0].hold("write");
        let appending = {
            let (fs, file) = (fs.clone(), file.clone());
            tokio::spawn(async move { append(&fs, &file, b"line").await })
        };
        others_run().await;
        let truncating = {
            let (fs, inode) = (fs.clone(), file.inode());
            let flags = READ_WRITE | open_flag::TRUNCATE;
            tokio::spawn(async move {
                if by_name { create(&fs, "file", flags).await } else { open(&fs, inode, flags).await }
            })
        };
        others_run().await;
        assert!(!truncating.is_finished(), "the append knows where the end is");
        cluster.osts[0].release();
        appending.await.unwrap();
        let truncated = truncating.await.unwrap();
        assert_eq!(size(&fs, file.inode()).await, 0, "one after the other, not a line after a hole");
        fs.close(truncated, None).await.unwrap();
    }
}

/// Else nobody could append to or truncate the file for as long as the client lives.
#[tokio::test]
async fn an_open_that_truncates_and_fails_gives_the_lock_back() {
    let cluster = Cluster::new(STRIPE, 1);
    let fs = cluster.mount().await;
    let file = create(&fs, "file", READ_WRITE).await;
    let (inode, flags) = (file.inode(), OpenFlags(READ_WRITE | open_flag::TRUNCATE));
    cluster.mdt.damage_layouts(true);
    let before = cluster.requests();
    fs.open(&root(), inode, flags).await.expect_err("its layout cannot be");
    fs.create_open(&root(), ROOT, b"file", 0o644, 0, flags).await.expect_err("its layout cannot be");
    assert_eq!(cluster.requests_since(&before)["end"], 2);
    assert!(!cluster.mdt.is_locked(inode));
    assert_eq!(cluster.mdt.open_count(), 1, "the failed ones were closed");
    cluster.mdt.damage_layouts(false);
    append(&fs, &file, b"line").await;
}

#[tokio::test]
async fn after_an_eviction_old_files_are_stale_and_new_ones_work() {
    let cluster = Cluster::new(STRIPE, 1);
    let fs = cluster.mount().await;
    let file = create(&fs, "file", READ_WRITE).await;
    let (inode, former) = (file.inode(), fs.client_id());
    cluster.evict(former).await;
    assert_eq!(fs.get_attributes(inode, None).await, Err(FsError::Stale), "whatever comes next finds out");
    while fs.client_id() == former {
        tokio::task::yield_now().await;
    }
    assert_eq!(fs.read(&file, 0, 1).await, Err(FsError::Stale));
    let data = Bytes::from_static(b"late");
    assert_eq!(fs.write(&file, 0, data, WriteOptions::default()).await, Err(FsError::Stale));
    let again = open(&fs, inode, READ_WRITE).await;
    write(&fs, &again, 0, b"new").await;
    assert_eq!(fs.close(file, None).await, Ok(()));
    assert_eq!(read(&fs, &again, 0, 9).await, b"new");
}

/// Its lock ended with the session, and no OST refuses the requests of the new incarnation:
/// somebody else may write to the file by then.
#[tokio::test]
async fn a_truncation_by_path_does_not_go_on_in_a_new_life() {
    let cluster = Cluster::new(STRIPE, 1);
    let fs = cluster.mount().await;
    let file = create(&fs, "file", READ_WRITE).await;
    write(&fs, &file, 0, b"whole").await;
    let (inode, former) = (file.inode(), fs.client_id());
    fs.close(file, None).await.unwrap();
    cluster.osts[0].hold("space");
    cluster.osts[0].refuse_next(FsError::LayoutChanged);
    let truncating = tokio::spawn({
        let fs = fs.clone();
        async move { fs.truncate(&root(), inode, None, 1).await }
    });
    while cluster.osts[0].waiting() == 0 {
        tokio::task::yield_now().await;
    }
    cluster.mdt.next_layout(inode);
    cluster.evict(former).await;
    assert_eq!(fs.get_attributes(inode, None).await, Err(FsError::Stale), "whatever comes next finds out");
    while fs.client_id() == former {
        tokio::task::yield_now().await;
    }
    let again = open(&fs, inode, open_flag::READ).await;
    cluster.osts[0].release();
    assert_eq!(truncating.await.unwrap(), Err(FsError::Stale));
    assert_eq!(read(&fs, &again, 0, 9).await, b"whole");
}

#[tokio::test]
async fn an_inactive_target_fails_at_once() {
    let cluster = Cluster::new(STRIPE, 2);
    let fs = cluster.mount().await;
    let file = create(&fs, "file", READ_WRITE).await;
    let set = |state| {
        cluster.change_map(move |target| {
            if target.role == TargetRole::Ost(OstIndex(1)) {
                target.state = state;
            }
        });
    };
    set(TargetState::Inactive);
    tokio::task::yield_now().await;
    write(&fs, &file, 0, b"on the other").await;
    assert!(matches!(fs.read(&file, STRIPE, 1).await, Err(FsError::Device { .. })));
    assert_eq!(fs.statfs().await.unwrap().bytes_total, 1000);
    set(TargetState::Active);
    tokio::task::yield_now().await;
    assert_eq!(read(&fs, &file, STRIPE, 1).await, [0; 0]);
    let space = fs.statfs().await.unwrap();
    assert_eq!((space.bytes_total, space.bytes_free, space.inodes_total), (2000, 200, 50));
}

#[tokio::test]
async fn directories_are_listed_in_pages_with_sizes() {
    let cluster = Cluster::new(STRIPE, 2);
    let fs = cluster.mount().await;
    let mut files = Vec::new();
    for name in ["a", "b", "c"] {
        let file = create(&fs, name, READ_WRITE).await;
        write(&fs, &file, STRIPE, name.as_bytes()).await;
        files.push(file);
    }
    let directory = open(&fs, ROOT, open_flag::READ).await;
    let before = cluster.requests();
    let page = fs.read_directory(&directory, 0, 2, client::EntryAttributes::OfAll).await.unwrap();
    assert_eq!(cluster.requests_since(&before), counts(&[("other", 1), ("glimpse", 2)]), "one glimpse for each OST");
    assert!(!page.end);
    let sizes: Vec<_> = page.items.iter().map(|item| item.attributes.unwrap().size).collect();
    assert_eq!(sizes, [STRIPE + 1, STRIPE + 1]);
    let last = fs.read_directory(&directory, page.items[1].cookie, 2, client::EntryAttributes::None).await.unwrap();
    assert_eq!((last.items.len(), last.items[0].name.as_slice(), last.end), (1, &b"c"[..], true));
    assert_eq!(last.items[0].attributes, None);
    assert_eq!(fs.read_directory(&files[0], 0, 1, client::EntryAttributes::None).await, Err(FsError::NotDirectory));
}

#[tokio::test]
async fn copies_ranges_between_and_within_files() {
    let cluster = Cluster::new(STRIPE, 2);
    let fs = cluster.mount().await;
    let (from, to) = (create(&fs, "from", READ_WRITE).await, create(&fs, "to", READ_WRITE).await);
    let data: Vec<u8> = (0..3 * STRIPE).map(|byte| (byte % 251) as u8).collect();
    write(&fs, &from, 0, &data).await;
    let options = WriteOptions::default();
    assert_eq!(fs.copy_range((&from, 100), (&to, 7), 1 << 30, options).await, Ok(3 * STRIPE - 100));
    assert_eq!(read(&fs, &to, 7, 4 * STRIPE as usize).await, data[100..]);
    assert_eq!(fs.copy_range((&to, 0), (&to, 50), 100, options).await, Err(FsError::Invalid));
    assert_eq!(fs.copy_range((&to, 0), (&to, 100), 100, options).await, Ok(100));
}

/// Processes are killed while they wait for a server that is away: what comes to the file when it
/// is back is not undone.
#[tokio::test]
async fn what_had_not_begun_when_its_caller_went_does_not_happen() {
    let cluster = Cluster::new(STRIPE, 1);
    let fs = cluster.mount().await;
    let file = create(&fs, "file", READ_WRITE).await;
    let inode = file.inode();
    write(&fs, &file, 0, b"text").await;
    cluster.stop().await;
    // One that stays notices that the server is away.
    let looking = tokio::spawn({
        let fs = fs.clone();
        async move { fs.get_attributes(inode, None).await }
    });
    others_run().await;
    let (opener, cutter, adder) = (fs.clone(), fs.clone(), (fs.clone(), file.clone()));
    let gone = [
        tokio::spawn(async move { drop(open(&opener, inode, READ_WRITE | open_flag::TRUNCATE).await) }),
        tokio::spawn(async move { drop(cutter.truncate(&root(), inode, None, 1).await) }),
        tokio::spawn(async move { append(&adder.0, &adder.1, b"more").await }),
    ];
    others_run().await;
    for task in gone {
        task.abort();
        assert!(task.await.unwrap_err().is_cancelled());
    }
    cluster.restart().await;
    assert_eq!(looking.await.unwrap().unwrap().size, 4);
    assert_eq!(read(&fs, &file, 0, 9).await, b"text");
    others_run().await;
    assert_eq!(read(&fs, &file, 0, 9).await, b"text");
}

/// Otherwise they would make objects of a file anew that its last close has removed.
#[tokio::test]
async fn a_file_is_closed_after_the_changes_that_killed_processes_had_begun() {
    for (request, appends) in [("space", false), ("write", true)] {
        let cluster = Cluster::new(STRIPE, 1);
        let fs = cluster.mount().await;
        let file = create(&fs, "file", READ_WRITE).await;
        write(&fs, &file, 0, b"text").await;
        cluster.osts[0].hold(request);
        let (user, changed) = (fs.clone(), file.clone());
        let killed = tokio::spawn(async move {
            match appends {
                true => append(&user, &changed, b"more").await,
                false => drop(user.truncate(&root(), changed.inode(), Some(&changed), 9).await),
            }
        });
        others_run().await;
        assert_eq!(cluster.osts[0].waiting(), 1, "the change has begun");
        killed.abort();
        let closing = tokio::spawn({
            let fs = fs.clone();
            async move { fs.close(file, None).await }
        });
        others_run().await;
        assert_eq!(cluster.mdt.open_count(), 1, "a close overtakes {request}");
        cluster.osts[0].release();
        closing.await.unwrap().unwrap();
        cluster.until_open(0).await;
    }
}
