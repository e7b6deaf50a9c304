//! What happens to inodes that lose their last name: processes that looked them up before can still
//! use them for a while.

use crate::common;

use std::time::Duration;

use common::*;
use rpc::message::{
    MdtReply, MdtRequest,
    mdt::{OpenFlags, Reclaim, RenameMode},
};
use types::{FsError, InodeNumber, NodeKind};

/// Longer than any test.
const LONG: Duration = Duration::from_secs(3600);
const SHORT: Duration = Duration::from_millis(20);

async fn fixture(grace: Duration) -> Fixture {
    let mut fs = Fixture::new().await;
    fs.options.parameters.removal_grace = grace;
    fs.mdt.set_parameters(fs.options.parameters);
    fs
}

async fn is_gone(fs: &Fixture, inode: InodeNumber) -> bool {
    fs.stat(inode).await == Err(FsError::Stale)
}

/// Inodes that count.
async fn inodes(fs: &Fixture) -> u64 {
    let space = fs.mdt.space().await.unwrap();
    space.inodes_total - space.inodes_free
}

#[tokio::test]
async fn a_file_replaced_between_look_up_and_open_opens() {
    let fs = fixture(LONG).await;
    let old = fs.file(ROOT, "f").await;
    fs.file(ROOT, "new").await;
    assert_eq!(fs.lookup(&root(), ROOT, "f").await.unwrap().attributes.inode, old);
    fs.rename(&root(), (ROOT, "new"), (ROOT, "f"), RenameMode::Replace).await.unwrap();
    for _ in 0..2 {
        let (open, opened) = fs.open(ALICE, &root(), old, READ).await.unwrap();
        assert_eq!(opened.entry.attributes.links, 0);
        fs.close(ALICE, old, open, None).await.unwrap();
    }
    assert_ne!(fs.lookup(&root(), ROOT, "f").await.unwrap().attributes.inode, old);
    assert_eq!(fs.check(false).await, []);
}

#[tokio::test]
async fn symbolic_links_and_directories_are_kept_as_files_are() {
    let fs = fixture(LONG).await;
    let link = fs.create(&root(), ROOT, "l", NodeKind::Symlink(b"there".to_vec()), 0o777).await.unwrap();
    let directory = fs.mkdir(ROOT, "d").await;
    fs.unlink(&root(), ROOT, "l").await.unwrap();
    fs.rmdir(&root(), ROOT, "d").await.unwrap();
    let read = fs.call(ALICE, MdtRequest::ReadLink(link)).await;
    assert!(matches!(read, Ok(MdtReply::Target(target)) if target == b"there"));
    assert_eq!(fs.lookup(&root(), directory, "x").await, Err(FsError::NotFound));
    let made = fs.create(&root(), directory, "x", NodeKind::Regular, 0o644).await;
    assert_eq!(made, Err(FsError::NotFound));
    assert_eq!(fs.list(directory, 100).await.len(), 2, "dots");
    assert_eq!(fs.check(false).await, []);
}

/// The kernel looks a name up again when it hears that what it led to is stale. A file without a
/// name that is open has none.
#[tokio::test]
async fn a_removed_file_gets_no_new_name() {
    let fs = fixture(LONG).await;
    let file = fs.file(ROOT, "f").await;
    fs.unlink(&root(), ROOT, "f").await.unwrap();
    assert_eq!(fs.link(&root(), file, ROOT, "g").await, Err(FsError::Stale));
    fs.open(ALICE, &root(), file, READ).await.unwrap();
    assert_eq!(fs.link(&root(), file, ROOT, "g").await, Err(FsError::NotFound));
}

#[tokio::test]
async fn removed_files_end_when_their_time_is_over_and_nobody_has_them_open() {
    let fs = fixture(SHORT).await;
    let before = inodes(&fs).await;
    let files = [fs.file(ROOT, "open").await, fs.file(ROOT, "closed").await, fs.file(ROOT, "never").await];
    let (open, _) = fs.open(ALICE, &root(), files[0], WRITE).await.unwrap();
    let (closed, opened) = fs.open(ALICE, &root(), files[1], WRITE).await.unwrap();
    for name in ["open", "closed", "never"] {
        fs.unlink(&root(), ROOT, name).await.unwrap();
    }
    let asked = fs.close(ALICE, files[1], closed, None).await.unwrap();
    assert_eq!(asked.size_wanted, None, "nobody needs the size of a file that goes");
    assert!(opened.epoch > 0);
    eventually("they end", async || is_gone(&fs, files[1]).await && is_gone(&fs, files[2]).await).await;
    assert_eq!(fs.links(files[0]).await, 0, "it is open");
    assert_eq!(fs.check(false).await, []);
    fs.close(ALICE, files[0], open, None).await.unwrap();
    assert!(is_gone(&fs, files[0]).await, "its time was over");
    assert_eq!(inodes(&fs).await, before);
    assert_eq!(fs.check(false).await, []);
}

#[tokio::test]
async fn many_removed_files_end() {
    const FILES: usize = 700;
    let fs = fixture(SHORT).await;
    let before = inodes(&fs).await;
    for number in 0..FILES {
        fs.file(ROOT, &format!("f{number}")).await;
    }
    for number in 0..FILES {
        fs.unlink(&root(), ROOT, &format!("f{number}")).await.unwrap();
    }
    eventually("all end", async || inodes(&fs).await == before).await;
    assert_eq!(fs.check(false).await, []);
}

#[tokio::test]
async fn a_restart_ends_removed_files_that_nobody_claims() {
    let mut fs = fixture(LONG).await;
    let [kept, left] = [fs.file(ROOT, "kept").await, fs.file(ROOT, "left").await];
    let (open, _) = fs.open(ALICE, &root(), kept, READ).await.unwrap();
    fs.unlink(&root(), ROOT, "kept").await.unwrap();
    fs.unlink(&root(), ROOT, "left").await.unwrap();
    fs.restart().await;
    assert_eq!(fs.links(left).await, 0, "nothing ends during recovery");
    let during = fs.file(ROOT, "during").await;
    fs.unlink(&root(), ROOT, "during").await.unwrap();
    assert_eq!(fs.check(false).await, []);
    let opens = vec![(kept, open, OpenFlags(READ))];
    fs.reclaim(ALICE, Reclaim { opens, done: true, ..Reclaim::default() }).await.unwrap();
    eventually("what nobody claimed ends", async || is_gone(&fs, left).await).await;
    assert_eq!((fs.links(kept).await, fs.links(during).await), (0, 0), "one is open, one was removed just now");
    assert_eq!(fs.check(false).await, []);
    fs.close(ALICE, kept, open, None).await.unwrap();
    assert!(is_gone(&fs, kept).await);
    assert_eq!(fs.check(false).await, []);
}
