//! Opens for reading without a request, under locks on the opens of inodes: what they cost, and that
//! they are as good as those that the MDT knows. Servers are the shipped ones.

use crate::support;

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use client::{FileSystem, LockRequest, NewNode, OpenFile, Operation, WriteOptions};
use layout::LayoutSpec;
use rpc::message::mdt::{LockFamily, LockMode, LockRange, OpenFlags, XattrMode, open_flag};
use rt::Address;
use support::{Cluster, ROOT, SERVERS, real::RealCluster};
use types::{Credentials, FsError, FsResult, InodeNumber, MdtIndex, NodeKind, SetAttributes, access_list::ACCESS_NAME};

const STRIPE: u64 = 65536;
const DATA: &[u8] = b"what was written";

fn root() -> Credentials {
    Credentials::root()
}

fn user(uid: u32) -> Credentials {
    Credentials { uid, gid: uid, groups: Some(Vec::new()) }
}

/// Requests to the MDT so far.
fn requests(fs: &FileSystem) -> u64 {
    let (_, _, statistics) = fs.connections().into_iter().next().expect("an MDT");
    statistics.opcodes.iter().map(|opcode| opcode.calls).sum()
}

async fn open(fs: &Arc<FileSystem>, who: &Credentials, inode: InodeNumber) -> FsResult<Arc<OpenFile>> {
    fs.open(who, inode, OpenFlags(open_flag::READ)).await
}

async fn write(fs: &Arc<FileSystem>, name: &str) -> InodeNumber {
    let flags = OpenFlags(open_flag::READ | open_flag::WRITE);
    let file = fs.create_open(&root(), ROOT, name.as_bytes(), 0o644, 0, flags).await.unwrap().file;
    fs.write(&file, 0, Bytes::from_static(DATA), WriteOptions::default()).await.unwrap();
    let inode = file.inode();
    fs.close(file, None).await.unwrap();
    inode
}

async fn read(fs: &FileSystem, file: &OpenFile) -> FsResult<Bytes> {
    fs.read(file, 0, 100).await.map(|data| data.into_bytes())
}

async fn mkdir(fs: &FileSystem, name: &str) -> InodeNumber {
    let kind = NodeKind::Directory;
    let node = NewNode { parent: ROOT, name: name.into(), kind, mode: 0o755, umask: 0, layout: None };
    fs.create(&root(), node).await.unwrap().inode
}

/// Two clients; the second has read the file.
async fn warm() -> (RealCluster, Arc<FileSystem>, Arc<FileSystem>, InodeNumber) {
    let cluster = RealCluster::new(STRIPE, 2).await.without_grace().with_open_locks();
    let (one, two) = (cluster.mount().await, cluster.mount().await);
    let inode = write(&one, "file").await;
    let found = two.lookup(&root(), ROOT, b"file").await.unwrap();
    assert_eq!(found.inode, inode);
    let first = open(&two, &root(), inode).await.unwrap();
    two.close(first, None).await.unwrap();
    (cluster, one, two, inode)
}

/// Waits until the MDT knows so many opens.
async fn known(cluster: &RealCluster, count: usize) {
    support::others_run().await;
    assert_eq!(cluster.open_files(), count);
}

#[tokio::test]
async fn a_file_that_is_known_is_opened_and_closed_without_a_request() {
    let (cluster, _one, two, inode) = warm().await;
    let before = requests(&two);
    for _ in 0..3 {
        let file = open(&two, &root(), inode).await.unwrap();
        assert_eq!((read(&two, &file).await.unwrap(), two.open_count()), (Bytes::from_static(DATA), 1));
        two.close(file, None).await.unwrap();
    }
    assert_eq!((requests(&two) - before, cluster.open_files(), two.open_count()), (0, 0, 0));
    assert!(two.statistics().get(Operation::CacheHits).samples >= 3);
}

#[tokio::test]
async fn a_directory_is_read_without_a_request_to_open_it() {
    let (cluster, one, two, _) = warm().await;
    let directory = mkdir(&one, "directory").await;
    two.lookup(&root(), ROOT, b"directory").await.unwrap();
    let before = requests(&two);
    let open_directory = open(&two, &root(), directory).await.unwrap();
    assert_eq!(requests(&two) - before, 0);
    let page = two.read_directory(&open_directory, 0, 10, false).await.unwrap();
    assert_eq!((page.items.len(), page.end, cluster.open_files()), (2, true, 0));
    one.remove_directory(&root(), ROOT, b"directory").await.unwrap();
    known(&cluster, 1).await;
    two.read_directory(&open_directory, 0, 10, false).await.unwrap();
    two.close(open_directory, None).await.unwrap();
    known(&cluster, 0).await;
}

#[tokio::test]
async fn what_another_client_removes_can_be_read_until_it_is_closed() {
    for replaces in [false, true] {
        let (cluster, one, two, inode) = warm().await;
        let file = open(&two, &root(), inode).await.unwrap();
        assert_eq!(cluster.open_files(), 0);
        if replaces {
            write(&one, "new").await;
            let mode = rpc::message::mdt::RenameMode::Replace;
            one.rename(&root(), (ROOT, b"new"), (ROOT, b"file"), mode).await.unwrap();
        } else {
            one.unlink(&root(), ROOT, b"file").await.unwrap();
        }
        assert_eq!(cluster.open_files(), 1, "told before it was removed");
        assert_eq!(read(&two, &file).await.unwrap(), DATA);
        assert!(one.get_attributes(inode, None).await.is_ok(), "it exists until it is closed");
        two.close(file, None).await.unwrap();
        known(&cluster, 0).await;
        assert_eq!(open(&two, &root(), inode).await.err(), Some(FsError::Stale));
    }
}

#[tokio::test]
async fn what_this_client_removes_can_be_read_until_it_is_closed() {
    for known_name in [true, false] {
        let (cluster, _one, two, inode) = warm().await;
        if !known_name {
            // Under another name, which this client has not looked up.
            two.link(&root(), inode, ROOT, b"other").await.unwrap();
            two.unlink(&root(), ROOT, b"file").await.unwrap();
            two.set_cached_locks_max(MdtIndex(0), 0).unwrap();
            support::others_run().await;
            two.set_cached_locks_max(MdtIndex(0), 1000).unwrap();
            two.get_attributes(inode, None).await.unwrap();
            let first = open(&two, &root(), inode).await.unwrap();
            two.close(first, None).await.unwrap();
        }
        let file = open(&two, &root(), inode).await.unwrap();
        assert_eq!(cluster.open_files(), 0);
        two.unlink(&root(), ROOT, if known_name { b"file" } else { b"other" }).await.unwrap();
        known(&cluster, 1).await;
        assert_eq!(read(&two, &file).await.unwrap(), DATA);
        two.close(file, None).await.unwrap();
        known(&cluster, 0).await;
        assert_eq!(two.get_attributes(inode, None).await, Err(FsError::Stale));
    }
}

#[tokio::test]
async fn a_lock_given_up_for_want_of_room_makes_opens_known() {
    let (cluster, _one, two, inode) = warm().await;
    let file = open(&two, &root(), inode).await.unwrap();
    two.set_cached_locks_max(MdtIndex(0), 0).unwrap();
    known(&cluster, 1).await;
    assert_eq!(two.cached_locks(MdtIndex(0)), Ok((0, 0)));
    assert_eq!(read(&two, &file).await.unwrap(), DATA);
    two.close(file, None).await.unwrap();
    known(&cluster, 0).await;
}

#[tokio::test]
async fn locks_of_programs_make_opens_known() {
    let (cluster, one, two, inode) = warm().await;
    let file = open(&two, &root(), inode).await.unwrap();
    let range = LockRange { start: 0, end: u64::MAX };
    let lock = LockRequest { family: LockFamily::Flock, owner: 7, pid: 1, range, mode: LockMode::Shared, wait: false };
    two.set_lock(&file, lock).await.unwrap();
    assert_eq!(cluster.open_files(), 1);
    drop(one);
    two.close(file, Some(7)).await.unwrap();
    known(&cluster, 0).await;
}

#[tokio::test]
async fn permission_is_decided_as_at_the_mdt() {
    let (_cluster, one, two, inode) = warm().await;
    let changes = SetAttributes { mode: Some(0o640), uid: Some(1000), gid: Some(1000), ..SetAttributes::default() };
    one.set_attributes(&root(), inode, changes, None).await.unwrap();
    for _ in 0..2 {
        for (who, readable) in [(root(), true), (user(1000), true), (user(2000), false)] {
            let outcome = open(&two, &who, inode).await;
            let outcome = match outcome {
                Ok(file) => two.close(file, None).await,
                Err(error) => Err(error),
            };
            assert_eq!(outcome, if readable { Ok(()) } else { Err(FsError::AccessDenied) });
            let run = two.open(&who, inode, OpenFlags(open_flag::EXECUTE)).await;
            assert_eq!(run.err(), Some(FsError::AccessDenied), "nobody may execute it");
        }
    }
    let before = requests(&two);
    assert_eq!(open(&two, &user(2000), inode).await.err(), Some(FsError::AccessDenied));
    assert_eq!(requests(&two), before, "decided here");
    let private = SetAttributes { mode: Some(0o600), ..SetAttributes::default() };
    let kept = open(&two, &user(1000), inode).await.unwrap();
    one.set_attributes(&root(), inode, private, None).await.unwrap();
    assert_eq!(read(&two, &kept).await.unwrap(), DATA, "what is open stays open");
    let group = Credentials { uid: 3000, gid: 1000, groups: Some(Vec::new()) };
    assert_eq!(open(&two, &group, inode).await.err(), Some(FsError::AccessDenied), "at once");
}

#[tokio::test]
async fn what_another_client_writes_is_read_through_an_open_of_before() {
    let (_cluster, one, two, inode) = warm().await;
    let file = open(&two, &root(), inode).await.unwrap();
    let writer = one.open(&root(), inode, OpenFlags(open_flag::WRITE)).await.unwrap();
    one.write(&writer, 0, Bytes::from_static(b"WHAT"), WriteOptions::default()).await.unwrap();
    assert_eq!(read(&two, &file).await.unwrap(), &b"WHAT was written"[..]);
    let long = vec![7; 5 * STRIPE as usize];
    one.write(&writer, 0, Bytes::from(long.clone()), WriteOptions::default()).await.unwrap();
    one.close(writer, None).await.unwrap();
    let again = open(&two, &root(), inode).await.unwrap();
    for file in [&file, &again] {
        assert_eq!(two.read(file, 0, long.len() + 1).await.unwrap().into_bytes(), long);
    }
}

#[tokio::test]
async fn opens_are_claimed_after_a_restart() {
    let (mut cluster, one, two, inode) = warm().await;
    let (kept, gone) = (open(&two, &root(), inode).await.unwrap(), open(&two, &root(), inode).await.unwrap());
    cluster.crash_mdt().await;
    let removed = tokio::spawn(async move { one.unlink(&root(), ROOT, b"file").await });
    two.close(gone, None).await.unwrap();
    removed.await.unwrap().unwrap();
    known(&cluster, 1).await;
    assert_eq!(read(&two, &kept).await.unwrap(), DATA);
    two.close(kept, None).await.unwrap();
    known(&cluster, 0).await;
    assert_eq!(two.get_attributes(inode, None).await, Err(FsError::Stale));
}

#[tokio::test]
async fn opens_of_an_evicted_client_are_stale() {
    let (cluster, one, two, inode) = warm().await;
    let file = open(&two, &root(), inode).await.unwrap();
    let former = two.client_id();
    cluster.evict(former).await;
    one.unlink(&root(), ROOT, b"file").await.unwrap();
    // It learns of its eviction with its next request.
    two.lookup(&root(), ROOT, b"not asked before").await.unwrap_err();
    while two.client_id() == former {
        tokio::task::yield_now().await;
    }
    assert_eq!(read(&two, &file).await, Err(FsError::Stale));
    two.close(file, None).await.unwrap();
    known(&cluster, 0).await;
    assert_eq!(one.get_attributes(inode, None).await, Err(FsError::Stale));
}

#[tokio::test]
async fn an_access_list_is_decided_by_the_mdt() {
    let (_cluster, one, two, inode) = warm().await;
    // Version 2; owner 7, user 1000 nothing, owning group 5, mask 5, others 5.
    let list: &[u8] = &[
        2, 0, 0, 0, 1, 0, 7, 0, 255, 255, 255, 255, 2, 0, 0, 0, 0xe8, 3, 0, 0, 4, 0, 5, 0, 255, 255, 255, 255, 0x10, 0,
        5, 0, 255, 255, 255, 255, 0x20, 0, 5, 0, 255, 255, 255, 255,
    ];
    one.set_xattr(&root(), inode, ACCESS_NAME, list, XattrMode::Any).await.unwrap();
    for _ in 0..2 {
        assert_eq!(open(&two, &user(1000), inode).await.err(), Some(FsError::AccessDenied));
        let other = open(&two, &user(2000), inode).await.unwrap();
        two.close(other, None).await.unwrap();
    }
}

#[tokio::test]
async fn a_layout_is_not_replaced_under_a_reader() {
    let cluster = RealCluster::new(STRIPE, 2).await.without_grace().with_open_locks();
    let (one, two) = (cluster.mount().await, cluster.mount().await);
    let inode = write(&one, "file").await;
    let first = open(&two, &root(), inode).await.unwrap();
    two.close(first, None).await.unwrap();
    let reader = open(&two, &root(), inode).await.unwrap();
    assert_eq!(cluster.open_files(), 0);
    let moved = one.migrate(&root(), inode, LayoutSpec::Automatic, false, None).await;
    assert_eq!(moved, Err(FsError::Busy), "the reader is known by then");
    assert_eq!((cluster.open_files(), read(&two, &reader).await.unwrap()), (1, Bytes::from_static(DATA)));
    two.close(reader, None).await.unwrap();
    let again = open(&two, &root(), inode).await.unwrap();
    two.close(again, None).await.unwrap();
    one.migrate(&root(), inode, LayoutSpec::Automatic, false, None).await.unwrap();
    let after = open(&two, &root(), inode).await.unwrap();
    assert_eq!(read(&two, &after).await.unwrap(), DATA, "by the new layout");
}

#[tokio::test]
async fn a_client_that_moves_a_file_itself_reads_it_by_the_new_layout() {
    let (cluster, _one, two, inode) = warm().await;
    let reader = open(&two, &root(), inode).await.unwrap();
    assert_eq!(cluster.open_files(), 0);
    assert_eq!(two.migrate(&root(), inode, LayoutSpec::Automatic, false, None).await, Err(FsError::Busy));
    assert_eq!(read(&two, &reader).await.unwrap(), DATA);
    two.close(reader, None).await.unwrap();
    two.migrate(&root(), inode, LayoutSpec::Automatic, false, None).await.unwrap();
    for _ in 0..2 {
        let after = open(&two, &root(), inode).await.unwrap();
        assert_eq!(read(&two, &after).await.unwrap(), DATA);
        two.close(after, None).await.unwrap();
    }
}

/// The objects of the locks that ended with the connection: the MDT is told of the opens before
/// anything else.
#[tokio::test]
async fn opens_are_told_on_a_new_connection() {
    let cluster = Cluster::new(STRIPE, 1);
    cluster.mdt.grant_locks();
    let (fs, network) = cluster.mount_breakable().await;
    let inode = write(&fs, "file").await;
    fs.lookup(&root(), ROOT, b"file").await.unwrap();
    let quiet = OpenFlags(open_flag::READ | open_flag::NO_ACCESS_TIME);
    let asked = fs.open(&root(), inode, quiet).await.unwrap();
    fs.close(asked, None).await.unwrap();
    let unasked = fs.open(&root(), inode, quiet).await.unwrap();
    assert_eq!(cluster.mdt.open_count(), 0);
    network.reset(&Address::from(SERVERS));
    fs.statfs().await.unwrap();
    assert_eq!((cluster.mdt.open_count(), cluster.requests()["register opens"]), (1, 1));
    fs.close(unasked, None).await.unwrap();
    assert_eq!(cluster.mdt.open_count(), 0);
}

/// The MDT must not hear of an open after its end.
#[tokio::test]
async fn a_close_waits_for_a_registration_under_way() {
    let cluster = Cluster::new(STRIPE, 1);
    cluster.mdt.grant_locks();
    let fs = cluster.mount().await;
    let inode = write(&fs, "file").await;
    fs.lookup(&root(), ROOT, b"file").await.unwrap();
    let quiet = OpenFlags(open_flag::READ | open_flag::NO_ACCESS_TIME);
    let asked = fs.open(&root(), inode, quiet).await.unwrap();
    fs.close(asked, None).await.unwrap();
    let file = fs.open(&root(), inode, quiet).await.unwrap();
    assert_eq!(cluster.mdt.open_count(), 0);
    let closes = cluster.requests().get("close").copied();
    cluster.mdt.hold_answers(Some("register opens"));
    let range = LockRange { start: 0, end: u64::MAX };
    let lock = LockRequest { family: LockFamily::Flock, owner: 7, pid: 1, range, mode: LockMode::Shared, wait: false };
    let (locking, locked) = (fs.clone(), file.clone());
    let telling = tokio::spawn(async move { locking.set_lock(&locked, lock).await });
    let told = async {
        while cluster.mdt.open_count() == 0 {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), told).await.expect("the MDT is told");
    let closing = tokio::spawn(async move { fs.close(file, None).await });
    support::others_run().await;
    assert!(!closing.is_finished() && cluster.requests().get("close").copied() == closes);
    cluster.mdt.hold_answers(None);
    closing.await.unwrap().unwrap();
    telling.abort();
    assert_eq!(cluster.mdt.open_count(), 0);
}
