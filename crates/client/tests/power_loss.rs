//! Servers lose power: what was not synced may be gone, and the next sync says so, once.

use crate::support;

use std::sync::Arc;

use client::{FileSystem, OpenFile, WriteOptions};
use rpc::message::mdt::{OpenFlags, open_flag};
use support::{Cluster, READ_WRITE, ROOT, create, size, write};
use types::{Credentials, FsError, FsResult};

const STRIPE: u64 = 65536;

fn root() -> Credentials {
    Credentials::root()
}

fn is_loss(outcome: FsResult<()>) -> bool {
    matches!(outcome, Err(FsError::Device { .. }))
}

async fn open_root(fs: &Arc<FileSystem>) -> Arc<OpenFile> {
    fs.open(&root(), ROOT, OpenFlags(open_flag::READ)).await.unwrap()
}

#[tokio::test]
async fn fsync_reports_writes_lost_with_an_osts_power_once() {
    let cluster = Cluster::new(STRIPE, 2);
    let fs = cluster.mount().await;
    let file = create(&fs, "file", READ_WRITE).await;
    write(&fs, &file, 0, b"doomed").await;
    cluster.osts[0].lose_power();
    cluster.restart().await;
    // A later write of the same object must not hide the loss.
    write(&fs, &file, 100, b"after").await;
    assert!(is_loss(fs.fsync(&file, false).await));
    assert_eq!(fs.fsync(&file, false).await, Ok(()));
    assert_eq!(size(&fs, file.inode()).await, 105);
}

/// A seed of the lab: the power went between the open and the fsync that was to make the data of an
/// earlier open durable.
#[tokio::test]
async fn fsync_after_a_reopen_reports_what_was_written_before_the_close_and_lost() {
    let cluster = Cluster::new(STRIPE, 2);
    let fs = cluster.mount().await;
    let file = create(&fs, "file", READ_WRITE).await;
    write(&fs, &file, 0, b"doomed").await;
    let inode = file.inode();
    fs.close(file, None).await.unwrap();
    let again = fs.open(&root(), inode, OpenFlags(READ_WRITE)).await.unwrap();
    cluster.osts[0].lose_power();
    cluster.restart().await;
    assert!(is_loss(fs.fsync(&again, false).await));
    assert_eq!(fs.fsync(&again, false).await, Ok(()));
    // Closed once more, there is nothing left to tell.
    fs.close(again, None).await.unwrap();
    cluster.osts[0].lose_power();
    cluster.restart().await;
    let again = fs.open(&root(), inode, OpenFlags(READ_WRITE)).await.unwrap();
    assert_eq!(fs.fsync(&again, false).await, Ok(()));
}

#[tokio::test]
async fn what_was_synced_before_a_loss_of_power_raises_no_alarm() {
    let cluster = Cluster::new(STRIPE, 2);
    let fs = cluster.mount().await;
    let file = create(&fs, "file", READ_WRITE).await;
    write(&fs, &file, 0, b"safe").await;
    fs.fsync(&file, false).await.unwrap();
    let options = WriteOptions { sync: true, ..WriteOptions::default() };
    fs.write(&file, 4, bytes::Bytes::from_static(b"too"), options).await.unwrap();
    cluster.osts.iter().for_each(|ost| ost.lose_power());
    cluster.mdt.lose_power();
    cluster.restart().await;
    assert_eq!(fs.fsync(&file, false).await, Ok(()));
}

/// A seed of the lab: a truncation was lost, what it had cut off was there again, and the close cut
/// it off once more.
#[tokio::test]
async fn a_close_after_a_loss_does_not_tell_a_size_of_before() {
    let cluster = Cluster::new(STRIPE, 2);
    let fs = cluster.mount().await;
    let file = create(&fs, "file", READ_WRITE).await;
    write(&fs, &file, 0, b"doomed").await;
    let inode = file.inode();
    cluster.osts.iter().for_each(|ost| ost.lose_power());
    cluster.restart().await;
    assert!(is_loss(fs.fsync(&file, false).await));
    fs.close(file, None).await.unwrap();
    let other = cluster.mount().await;
    assert_eq!(size(&other, inode).await, 0, "what the objects hold");
}

#[tokio::test]
async fn the_death_of_processes_loses_nothing() {
    let cluster = Cluster::new(STRIPE, 2);
    let fs = cluster.mount().await;
    let file = create(&fs, "file", READ_WRITE).await;
    write(&fs, &file, 0, b"data").await;
    cluster.restart().await;
    assert_eq!(fs.fsync(&file, false).await, Ok(()));
}

/// A new name, power loss, open of the directory, fsync of it: the way of every careful program.
#[tokio::test]
async fn the_sync_of_a_directory_reports_names_lost_with_the_mdts_power() {
    let cluster = Cluster::new(STRIPE, 1);
    let fs = cluster.mount().await;
    let other = create(&fs, "other", READ_WRITE).await;
    let file = create(&fs, "lost", READ_WRITE).await;
    fs.close(file, None).await.unwrap();
    cluster.mdt.lose_power();
    cluster.restart().await;
    let directory = open_root(&fs).await;
    for open in [&directory, &other] {
        assert!(is_loss(fs.fsync(open, false).await), "each of them must hear it");
        assert_eq!(fs.fsync(open, false).await, Ok(()));
    }
    fs.close(directory, None).await.unwrap();
    assert_eq!(fs.fsync(&*open_root(&fs).await, false).await, Ok(()), "history");
}

#[tokio::test]
async fn an_fsync_that_finds_names_and_data_lost_tells_both_at_once() {
    let cluster = Cluster::new(STRIPE, 1);
    let fs = cluster.mount().await;
    let file = create(&fs, "file", READ_WRITE).await;
    write(&fs, &file, 0, b"doomed").await;
    cluster.osts[0].lose_power();
    cluster.mdt.lose_power();
    cluster.restart().await;
    assert!(is_loss(fs.fsync(&file, false).await));
    assert_eq!(fs.fsync(&file, false).await, Ok(()));
}

#[tokio::test]
async fn the_sync_of_everything_reports_what_closed_files_lost() {
    let cluster = Cluster::new(STRIPE, 1);
    let fs = cluster.mount().await;
    let file = create(&fs, "file", READ_WRITE).await;
    fs.sync_all().await.unwrap();
    write(&fs, &file, 0, b"doomed").await;
    fs.close(file, None).await.unwrap();
    cluster.osts[0].lose_power();
    cluster.restart().await;
    assert!(is_loss(fs.sync_all().await));
    assert_eq!(fs.sync_all().await, Ok(()));
}
