//! Opens for reading without a request, under locks on the opens of inodes: what they cost, and
//! that they are as good as those that the MDT knows. Servers are the shipped ones.

use crate::support;

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use client::{FileSystem, LockRequest, NewNode, OpenFile, Operation, WriteOptions};
use layout::LayoutSpec;
use rpc::message::mdt::{LockFamily, LockMode, LockRange, OpenFlags, XattrMode, open_flag};
use rt::{Address, fault::FaultyTransport};
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
    let cluster = RealCluster::new(STRIPE, 2).await.without_grace();
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
    let page = two.read_directory(&open_directory, 0, 10, client::EntryAttributes::None).await.unwrap();
    assert_eq!((page.items.len(), page.end, cluster.open_files()), (2, true, 0));
    one.remove_directory(&root(), ROOT, b"directory").await.unwrap();
    known(&cluster, 1).await;
    two.read_directory(&open_directory, 0, 10, client::EntryAttributes::None).await.unwrap();
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

/// The MDT does not ask for the locks of the client that removes the names: they come along with
/// the next removals.
#[tokio::test]
async fn removing_what_was_read_costs_one_request_each() {
    const FILES: u64 = 200;
    let (cluster, one, two, _) = warm().await;
    for remover_knows in [true, false] {
        for number in 0..FILES {
            let inode = write(&one, &format!("f{number}")).await;
            two.lookup(&root(), ROOT, format!("f{number}").as_bytes()).await.unwrap();
            let file = open(&two, &root(), inode).await.unwrap();
            read(&two, &file).await.unwrap();
            two.close(file, None).await.unwrap();
            if !remover_knows {
                // The name that it will remove is one that it has not looked up.
                one.link(&root(), inode, ROOT, format!("g{number}").as_bytes()).await.unwrap();
                one.unlink(&root(), ROOT, format!("f{number}").as_bytes()).await.unwrap();
                let file = open(&two, &root(), inode).await.unwrap();
                two.close(file, None).await.unwrap();
            }
        }
        let (before, prefix) = (requests(&two), if remover_knows { "f" } else { "g" });
        for number in 0..FILES {
            two.unlink(&root(), ROOT, format!("{prefix}{number}").as_bytes()).await.unwrap();
        }
        let asked = requests(&two) - before;
        // A host that stops for half a second lets a few locks go by themselves.
        assert!((FILES..FILES + FILES / 10).contains(&asked), "{asked} requests for {FILES} removals");
    }
    assert_eq!(cluster.open_files(), 0);
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
    two.set_lock(&file, shared_flock()).await.unwrap();
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
    let cluster = RealCluster::new(STRIPE, 2).await.without_grace();
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

/// A client on another host that may open a file without asking, and its network.
async fn warm_and_breakable() -> (Cluster, Arc<FileSystem>, FaultyTransport, InodeNumber) {
    let cluster = Cluster::new(STRIPE, 1);
    cluster.mdt.grant_locks();
    let (fs, network) = cluster.mount_breakable().await;
    let inode = write(&fs, "file").await;
    fs.lookup(&root(), ROOT, b"file").await.unwrap();
    let asked = open_quietly(&fs, inode).await;
    fs.close(asked, None).await.unwrap();
    (cluster, fs, network, inode)
}

async fn open_quietly(fs: &Arc<FileSystem>, inode: InodeNumber) -> Arc<OpenFile> {
    let quiet = OpenFlags(open_flag::READ | open_flag::NO_ACCESS_TIME);
    fs.open(&root(), inode, quiet).await.unwrap()
}

/// A lock that the MDT grants for an open that it knows.
fn shared_flock() -> LockRequest {
    let range = LockRange { start: 0, end: u64::MAX };
    LockRequest { family: LockFamily::Flock, owner: 7, pid: 1, range, mode: LockMode::Shared, wait: false }
}

/// The objects of the locks that ended with the connection: the MDT is told of the opens before
/// anything else.
#[tokio::test]
async fn opens_are_told_on_a_new_connection() {
    let (cluster, fs, network, inode) = warm_and_breakable().await;
    let unasked = open_quietly(&fs, inode).await;
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
    let (cluster, fs, _, inode) = warm_and_breakable().await;
    let file = open_quietly(&fs, inode).await;
    assert_eq!(cluster.mdt.open_count(), 0);
    let closes = cluster.requests().get("close").copied();
    cluster.mdt.hold_answers(Some("register opens"));
    let lock = shared_flock();
    let (locking, locked) = (fs.clone(), file.clone());
    let telling = tokio::spawn(async move { locking.set_lock(&locked, lock).await });
    cluster.until_open(1).await;
    let closing = tokio::spawn(async move { fs.close(file, None).await });
    support::others_run().await;
    assert!(!closing.is_finished() && cluster.requests().get("close").copied() == closes);
    cluster.mdt.hold_answers(None);
    closing.await.unwrap().unwrap();
    telling.abort();
    assert_eq!(cluster.mdt.open_count(), 0);
}

/// The server is silent: the registration is given up, and so is the wait of the close, but the MDT
/// must not hear of the open after its end, and must hear of the end.
#[tokio::test]
async fn a_close_after_a_registration_that_was_given_up_is_told_later() {
    for arrives in [true, false] {
        let (cluster, fs, network, inode) = warm_and_breakable().await;
        let (closed, kept) = (open_quietly(&fs, inode).await, open_quietly(&fs, inode).await);
        let closes = cluster.requests().get("close").copied();
        if arrives {
            cluster.mdt.hold_answers(Some("register opens"));
        } else {
            network.cut(&Address::from(SERVERS));
        }
        fs.set_timeout(Duration::from_millis(50));
        let locked = fs.set_lock(&closed, shared_flock()).await;
        assert!(matches!(locked, Err(FsError::Unreachable { .. })), "{locked:?}");
        assert_eq!(cluster.mdt.open_count(), if arrives { 2 } else { 0 });
        let closing = tokio::time::timeout(Duration::from_secs(20), fs.close(closed, None));
        assert_eq!(closing.await.expect("it waits no longer than others"), Ok(()));
        assert_eq!((cluster.requests().get("close").copied(), fs.open_count()), (closes, 1), "not told before");
        fs.set_timeout(Duration::from_secs(20));
        cluster.mdt.hold_answers(None);
        network.heal(&Address::from(SERVERS));
        fs.set_lock(&kept, shared_flock()).await.unwrap();
        cluster.until_open(1).await;
        fs.close(kept, None).await.unwrap();
        cluster.until_open(0).await;
        support::others_run().await;
        assert_eq!(cluster.mdt.open_count(), 0, "nothing comes later");
    }
}

/// The connection on which all opens are told breaks, too, and files are closed meanwhile.
#[tokio::test]
async fn opens_are_told_again_if_the_new_connection_breaks() {
    // More than go into one message.
    const OPENS: usize = types::limits::OPENS_PER_MESSAGE_MAX + 10;
    let (cluster, fs, network, inode) = warm_and_breakable().await;
    let mut files = Vec::new();
    for _ in 0..OPENS {
        files.push(open_quietly(&fs, inode).await);
    }
    cluster.mdt.hold_answers(Some("register opens"));
    network.reset(&Address::from(SERVERS));
    let (asking, asked) = (fs.clone(), fs.clone());
    let statfs = tokio::spawn(async move { asking.statfs().await });
    cluster.until_open(types::limits::OPENS_PER_MESSAGE_MAX).await;
    // One that was told, and one that may be told with the next message.
    let (first, last) = (files.remove(0), files.pop().unwrap());
    let closing = tokio::spawn(async move {
        asked.close(last, None).await?;
        asked.close(first, None).await
    });
    support::others_run().await;
    assert!(!statfs.is_finished() && !closing.is_finished());
    network.reset(&Address::from(SERVERS));
    cluster.mdt.hold_answers(None);
    let done = async { (statfs.await.unwrap().map(drop), closing.await.unwrap()) };
    let done = tokio::time::timeout(Duration::from_secs(60), done).await.expect("it goes on");
    assert_eq!(done, (Ok(()), Ok(())));
    assert_eq!((cluster.mdt.open_count(), fs.open_count()), (OPENS - 2, OPENS - 2));
    for file in files {
        fs.close(file, None).await.unwrap();
    }
    assert_eq!((cluster.mdt.open_count(), fs.open_count()), (0, 0));
}

/// What was opened without asking counts at the MDT only once it is told: it is never lost for
/// that.
#[tokio::test]
async fn at_the_limit_no_open_is_lost() {
    const OPENS: usize = 4;
    let cluster = RealCluster::new(STRIPE, 2).await.without_grace().with_opens_max(OPENS).await;
    let (one, two) = (cluster.mount().await, cluster.mount().await);
    let inode = write(&one, "file").await;
    two.lookup(&root(), ROOT, b"file").await.unwrap();
    let first = open(&two, &root(), inode).await.unwrap();
    two.close(first, None).await.unwrap();
    let mut files = Vec::new();
    for count in 1..=2 * OPENS {
        files.push(open(&two, &root(), inode).await.unwrap());
        assert_eq!(cluster.open_files(), count.saturating_sub(OPENS), "asked for when there are too many");
    }
    let refused = open(&two, &root(), inode).await.err();
    assert!(matches!(refused, Some(FsError::TooMany(_))), "{refused:?}");
    one.unlink(&root(), ROOT, b"file").await.unwrap();
    assert_eq!(cluster.open_files(), 2 * OPENS, "all are told");
    for file in files {
        assert_eq!(read(&two, &file).await.unwrap(), DATA);
        two.close(file, None).await.unwrap();
    }
    known(&cluster, 0).await;
    assert_eq!(one.get_attributes(inode, None).await, Err(FsError::Stale));
}

/// Reads a directory and those below it as a mount does for `find`: until there are no more names,
/// with attributes. Returns the names.
async fn walk(fs: &Arc<FileSystem>, directory: InodeNumber) -> usize {
    let (mut names, mut rest) = (0, vec![directory]);
    while let Some(directory) = rest.pop() {
        let open_directory = open(fs, &root(), directory).await.unwrap();
        let mut cookie = 0;
        loop {
            let page = fs.read_directory(&open_directory, cookie, 50, client::EntryAttributes::OfAll).await.unwrap();
            let Some(last) = page.items.last() else { break };
            cookie = last.cookie;
            let found = page.items.iter().filter(|item| !matches!(&item.name[..], b"." | b".."));
            names += found.clone().count();
            rest.extend(found.filter(|item| item.kind == types::FileKind::Directory).map(|item| item.inode));
        }
        fs.close(open_directory, None).await.unwrap();
    }
    names
}

/// One request for the names of each directory that is not known; none to open and close it, to
/// learn that there are no more names, or to do all of it again.
#[tokio::test]
async fn a_walk_costs_one_request_for_each_directory_and_another_one_none() {
    const DIRECTORIES: usize = 4;
    const FILES: usize = 5;
    let cluster = RealCluster::new(STRIPE, 2).await;
    let one = cluster.mount().await;
    for number in 0..DIRECTORIES {
        let directory = mkdir(&one, &format!("d{number}")).await;
        for number in 0..FILES {
            let kind = NodeKind::Regular;
            let name = format!("f{number}").into_bytes();
            let node = NewNode { parent: directory, name, kind, mode: 0o644, umask: 0, layout: None };
            one.create(&root(), node).await.unwrap();
        }
    }
    let two = cluster.mount().await;
    let names = DIRECTORIES * (1 + FILES);
    let mut asked = Vec::new();
    for _ in 0..3 {
        let before = requests(&two);
        assert_eq!(walk(&two, ROOT).await, names);
        asked.push(requests(&two) - before);
    }
    assert_eq!(asked, [1 + DIRECTORIES as u64, 0, 0]);
    assert_eq!((cluster.open_files(), two.open_count()), (0, 0));
    mkdir(&one, "new").await;
    let before = requests(&two);
    assert_eq!(walk(&two, ROOT).await, names + 1);
    // Open and names of the root, of which the locks were withdrawn; names of the new one.
    assert_eq!(requests(&two) - before, 3, "the others are known");
}
