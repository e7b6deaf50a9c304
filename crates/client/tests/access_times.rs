//! Access times that a client decides under its locks and tells the MDT afterwards. Servers are the
//! shipped ones, and clients have clocks of their own.

use crate::support;

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use bytes::Bytes;
use client::{FileSystem, NewNode, WriteOptions};
use rpc::message::mdt::{OpenFlags, open_flag};
use rt::{Clock, memory::HostClock};
use support::{ROOT, real::RealCluster};
use types::{Attributes, Credentials, InodeNumber, MdtIndex, NodeKind, SetAttributes, SetTime, Timestamp};

const OLD: Timestamp = Timestamp { seconds: 1_000_000_000, nanoseconds: 7 };

fn root() -> Credentials {
    Credentials::root()
}

/// Requests to the MDT so far, by name.
fn requests(fs: &FileSystem) -> BTreeMap<&'static str, u64> {
    let (_, _, statistics) = fs.connections().into_iter().next().expect("an MDT");
    statistics.opcodes.iter().map(|opcode| (opcode.name, opcode.calls)).collect()
}

/// Those since then.
fn requests_since(fs: &FileSystem, before: &BTreeMap<&'static str, u64>) -> BTreeMap<&'static str, u64> {
    let since = |(name, calls): (&'static str, u64)| (name, calls - before.get(name).copied().unwrap_or(0));
    requests(fs).into_iter().map(since).filter(|(_, calls)| *calls > 0).collect()
}

async fn read(fs: &Arc<FileSystem>, inode: InodeNumber) {
    let file = fs.open(&root(), inode, OpenFlags(open_flag::READ)).await.unwrap();
    fs.read(&file, 0, 100).await.unwrap();
    fs.close(file, None).await.unwrap();
}

async fn list(fs: &Arc<FileSystem>, inode: InodeNumber, flags: u32) {
    let directory = fs.open(&root(), inode, OpenFlags(flags)).await.unwrap();
    assert!(fs.read_directory(&directory, 0, 100, client::EntryAttributes::None).await.unwrap().end);
    fs.close(directory, None).await.unwrap();
}

async fn stat(fs: &FileSystem, inode: InodeNumber) -> Attributes {
    fs.get_attributes(inode, None).await.unwrap()
}

async fn set(fs: &FileSystem, inode: InodeNumber, changes: SetAttributes) -> Attributes {
    fs.set_attributes(&root(), inode, changes, None).await.unwrap()
}

async fn chmod(fs: &FileSystem, inode: InodeNumber, mode: u32) -> Attributes {
    set(fs, inode, SetAttributes { mode: Some(mode), ..SetAttributes::default() }).await
}

async fn set_access_time(fs: &FileSystem, inode: InodeNumber) -> Attributes {
    set(fs, inode, SetAttributes { atime: Some(SetTime::To(OLD)), ..SetAttributes::default() }).await
}

/// A file that a client has read before it gave it another name: it reads it again without a
/// request, which changes the access time.
async fn changed_file(fs: &Arc<FileSystem>) -> InodeNumber {
    let flags = OpenFlags(open_flag::READ | open_flag::WRITE);
    let file = fs.create_open(&root(), ROOT, b"file", 0o644, 0, flags).await.unwrap().file;
    fs.write(&file, 0, Bytes::from_static(b"data"), WriteOptions::default()).await.unwrap();
    let inode = file.inode();
    fs.close(file, None).await.unwrap();
    read(fs, inode).await;
    let linked = fs.link(&root(), inode, ROOT, b"other").await.unwrap();
    assert!(linked.atime < linked.ctime);
    inode
}

/// Waits until the MDT was told.
async fn told(fs: &FileSystem, before: &BTreeMap<&'static str, u64>) {
    let told = async {
        while !requests_since(fs, before).contains_key("mdt_note_accesses") {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), told).await.expect("it is told within a second");
    support::others_run().await;
}

/// With an OST whose clock is behind: what it changes is not in the future.
async fn cluster() -> RealCluster {
    RealCluster::new(65536, 1).await
}

#[tokio::test]
async fn an_open_that_changes_the_access_time_needs_no_request() {
    let cluster = cluster().await;
    let (one, two) = (cluster.mount().await, cluster.mount().await);
    let inode = changed_file(&one).await;
    let changed = stat(&one, inode).await;
    assert!(changed.atime < changed.ctime);
    let before = requests(&one);
    let file = one.open(&root(), inode, OpenFlags(open_flag::READ)).await.unwrap();
    let seen = stat(&one, inode).await;
    one.close(file, None).await.unwrap();
    let file = one.open(&root(), inode, OpenFlags(open_flag::READ)).await.unwrap();
    one.close(file, None).await.unwrap();
    assert_eq!(requests_since(&one, &before), BTreeMap::new());
    assert!(seen.atime > changed.ctime, "it is shown at once");
    told(&one, &before).await;
    assert_eq!(requests_since(&one, &before), BTreeMap::from([("mdt_note_accesses", 1)]));
    assert_eq!((stat(&two, inode).await, stat(&one, inode).await), (seen, seen));
}

#[tokio::test]
async fn a_directory_that_is_listed_from_the_cache_is_told_of() {
    let cluster = cluster().await;
    let (one, two) = (cluster.mount().await, cluster.mount().await);
    let kind = NodeKind::Directory;
    let node = NewNode { parent: ROOT, name: b"directory".into(), kind, mode: 0o755, umask: 0, layout: None };
    let inode = one.create(&root(), node).await.unwrap().inode;
    list(&one, inode, open_flag::READ).await;
    chmod(&one, inode, 0o750).await;
    // Read again, because it was changed, without an access.
    list(&one, inode, open_flag::READ | open_flag::NO_ACCESS_TIME).await;
    let changed = stat(&one, inode).await;
    assert!(changed.atime < changed.ctime);
    let before = requests(&one);
    list(&one, inode, open_flag::READ).await;
    let since = requests_since(&one, &before);
    assert!(!since.contains_key("mdt_readdir"), "{since:?}");
    told(&one, &before).await;
    let seen = stat(&one, inode).await;
    assert!(seen.atime > changed.ctime);
    assert_eq!(stat(&two, inode).await.atime, seen.atime);
}

#[tokio::test]
async fn a_time_is_set_without_waiting_for_accesses_to_others() {
    let cluster = cluster().await;
    let one = cluster.mount().await;
    let inode = changed_file(&one).await;
    let kind = NodeKind::Directory;
    let node = NewNode { parent: ROOT, name: b"directory".into(), kind, mode: 0o755, umask: 0, layout: None };
    let other = one.create(&root(), node).await.unwrap().inode;
    let before = requests(&one);
    read(&one, inode).await;
    assert_eq!(set_access_time(&one, other).await.atime, OLD);
    assert!(!requests_since(&one, &before).contains_key("mdt_note_accesses"));
    assert_eq!(set_access_time(&one, inode).await.atime, OLD);
    assert_eq!(requests_since(&one, &before)["mdt_note_accesses"], 1);
}

#[tokio::test]
async fn many_accesses_are_told_with_few_requests() {
    const FILES: usize = 200;
    let cluster = cluster().await;
    let (one, two) = (cluster.mount().await, cluster.mount().await);
    let mut links = Vec::new();
    for name in 0..FILES {
        let (name, kind) = (format!("link{name}").into_bytes(), NodeKind::Symlink(b"target".to_vec()));
        let node = NewNode { parent: ROOT, name, kind, mode: 0o777, umask: 0, layout: None };
        let inode = one.create(&root(), node).await.unwrap().inode;
        one.read_link(inode).await.unwrap();
        one.link(&root(), inode, ROOT, format!("other{inode}").as_bytes()).await.unwrap();
        links.push(inode);
    }
    let before = requests(&one);
    for link in &links {
        assert_eq!(one.read_link(*link).await.unwrap(), b"target");
    }
    one.unmount().await;
    let since = requests_since(&one, &before);
    assert!(since["mdt_note_accesses"] <= 3, "{since:?}");
    assert!(!since.contains_key("mdt_readlink"), "{since:?}");
    for link in links {
        let seen = stat(&two, link).await;
        assert!(seen.atime > seen.ctime, "told before the end of the session");
    }
}

/// Otherwise an access from before would replace it.
#[tokio::test]
async fn an_access_time_that_is_set_stays() {
    for by_other in [false, true] {
        let cluster = cluster().await;
        let (one, two) = (cluster.mount().await, cluster.mount().await);
        let inode = changed_file(&one).await;
        let before = requests(&one);
        read(&one, inode).await;
        assert!(!requests_since(&one, &before).contains_key("mdt_open"));
        let set = set_access_time(if by_other { &two } else { &one }, inode).await;
        assert_eq!(set.atime, OLD);
        assert_eq!(requests_since(&one, &before)["mdt_note_accesses"], 1, "before");
        assert_eq!((stat(&one, inode).await.atime, stat(&two, inode).await.atime), (OLD, OLD));
        one.unmount().await;
        assert_eq!(stat(&two, inode).await.atime, OLD);
    }
}

#[tokio::test]
async fn replies_show_accesses_of_which_the_mdt_does_not_know() {
    let cluster = cluster().await;
    let one = cluster.mount().await;
    let inode = changed_file(&one).await;
    let before = requests(&one);
    read(&one, inode).await;
    let seen = stat(&one, inode).await.atime;
    assert_eq!(chmod(&one, inode, 0o600).await.atime, seen);
    assert_eq!(stat(&one, inode).await.atime, seen);
    assert!(!requests_since(&one, &before).contains_key("mdt_note_accesses"), "it was not told yet");
    one.unmount().await;
    assert_eq!(stat(&*cluster.mount().await, inode).await.atime, seen);
}

/// Of its eviction it learns when it tells accesses, as the last thing before it ends its sessions.
#[tokio::test]
async fn a_mount_that_ends_begins_no_session_when_it_was_evicted() {
    let cluster = cluster().await;
    let one = cluster.mount().await;
    let inode = changed_file(&one).await;
    read(&one, inode).await;
    cluster.evict(one.client_id()).await;
    assert_eq!(cluster.sessions_at_mdt(), 0);
    one.unmount().await;
    support::others_run().await;
    assert_eq!(cluster.sessions_at_mdt(), 0);
}

#[tokio::test]
async fn clocks_that_differ_do_no_harm() {
    for seconds in [-3600, 3600] {
        let cluster = cluster().await;
        let (one, two) = (cluster.mount_ahead(seconds).await, cluster.mount().await);
        let inode = changed_file(&one).await;
        let before = requests(&one);
        read(&one, inode).await;
        assert!(!requests_since(&one, &before).contains_key("mdt_open"));
        let seen = stat(&one, inode).await;
        assert!(seen.atime > seen.ctime);
        told(&one, &before).await;
        let stored = stat(&two, inode).await;
        assert!(stored.atime > stored.ctime && stored.atime <= HostClock { boot: 1 }.wall(), "{seconds}");
        assert_eq!(stat(&one, inode).await, stored, "what the MDT has is shown from then on");
    }
}

#[tokio::test]
async fn accesses_survive_a_restart_of_the_mdt_if_the_lock_does() {
    let mut cluster = cluster().await;
    let one = cluster.mount().await;
    let inode = changed_file(&one).await;
    read(&one, inode).await;
    let seen = stat(&one, inode).await.atime;
    cluster.crash_mdt().await;
    let other =
        NewNode { parent: ROOT, name: b"x".into(), kind: NodeKind::Directory, mode: 0o755, umask: 0, layout: None };
    one.create(&root(), other).await.unwrap();
    let before = requests(&one);
    assert_eq!(stat(&one, inode).await.atime, seen);
    assert_eq!(requests_since(&one, &before), BTreeMap::new(), "its lock was claimed");
    one.unmount().await;
    assert_eq!(stat(&*cluster.mount().await, inode).await.atime, seen);
}

#[tokio::test]
async fn locks_that_are_given_up_wait_for_the_accesses() {
    let cluster = cluster().await;
    let (one, two) = (cluster.mount().await, cluster.mount().await);
    let inode = changed_file(&one).await;
    read(&one, inode).await;
    let seen = stat(&one, inode).await.atime;
    let before = requests(&one);
    one.set_cached_locks_max(MdtIndex(0), 0).unwrap();
    told(&one, &before).await;
    assert_eq!(stat(&two, inode).await.atime, seen);
    let set = set_access_time(&two, inode).await;
    assert_eq!((set.atime, stat(&one, inode).await.atime), (OLD, OLD));
}
