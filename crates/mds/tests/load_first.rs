//! Load first, then lock: a request that reads from the cold store delays no other request.

use crate::common;
#[path = "../../kv/tests/gated_cold/mod.rs"]
mod gated_cold;

use std::sync::Arc;

use bytes::Bytes;
use common::{caching::LONG, holders::Holders, *};
use gated_cold::GatedCold;
use mds::Mdt;
use rpc::{
    Call, Handler, SessionEvent,
    message::{
        Compound, MdtReply, MdtRequest, Reply, Request, Step, StepInode,
        lock::{InodeBits, inode_bit},
        mdt::{
            Access, ClaimLocks, Create, ExclusiveBegin, ExclusivePurpose, LockClaim, Lookup, OpenFlags, OpenId,
            ReadDirectory, Reclaim, RegisterOpens, RenameMode, SetXattr, XattrMode,
        },
    },
};
use types::{
    FsError, InodeNumber, LockHandle, NodeKind, SetAttributes, Slot, Timestamp, Xid,
    limits::{ACCESSES_PER_MESSAGE_MAX, LOCKS_PER_MESSAGE_MAX, OPENS_PER_MESSAGE_MAX, XATTR_VALUE_BYTES_MAX},
};

const FILES: u32 = 3000;
/// The first of them, which have an extended attribute.
const WITH_ATTRIBUTE: u32 = 2;

/// An MDT with a directory of many files that are in the cold store only.
async fn with_cold_directory() -> (Fixture, GatedCold, InodeNumber) {
    let (fs, cold, directory, _) = restarted_with_cold_directory().await;
    fs.recover().await;
    cold.take_counts();
    (fs, cold, directory)
}

/// The same, before ALICE came back; and the files.
async fn restarted_with_cold_directory() -> (Fixture, GatedCold, InodeNumber, Vec<InodeNumber>) {
    let mut fs = Fixture::new().await;
    // They read under the mutex.
    fs.options.audits = false;
    // Far less than the directory needs.
    fs.options.store.memory_bytes = 64 << 10;
    fs.options.store.dirty_bytes = 64 << 10;
    fs.restart_and_recover().await;
    let directory = fs.mkdir(ROOT, "cold").await;
    let mut files = Vec::new();
    for number in 0..FILES {
        let file = fs.file(directory, &format!("f{number}")).await;
        if number < WITH_ATTRIBUTE {
            let set = SetXattr { inode: file, name: b"user.a".to_vec(), value: b"1".to_vec(), mode: XattrMode::Create };
            fs.call(ALICE, MdtRequest::SetXattr(root(), set)).await.unwrap();
        }
        files.push(file);
    }
    let cold = stop_and_start_cold(&mut fs).await;
    (fs, cold, directory, files)
}

/// Starts the MDT again with nothing in memory.
async fn stop_and_start_cold(fs: &mut Fixture) -> GatedCold {
    fs.mdt.stop().await.unwrap();
    let cold = GatedCold::new(fs.cold.crash());
    fs.device = fs.device.crash();
    fs.mdt = Mdt::open(fs.seams.clone(), Arc::new(fs.device.clone()), Arc::new(cold.clone()), fs.options.clone())
        .await
        .unwrap();
    fs.mdt.update_map(&absent_osts(4));
    cold
}

/// Returns when a request waits for what is loaded from the cold store, whose gate is closed.
async fn wait_for_a_load(cold: &GatedCold) {
    while cold.waiting() == 0 {
        tokio::task::yield_now().await;
    }
}

/// All pages of a directory, with attributes as `ls -l` asks for them; how many names.
async fn list(fs: &Fixture, directory: InodeNumber) -> usize {
    let (open, _) = fs.open(ALICE, &root(), directory, READ).await.unwrap();
    let (mut cookie, mut names) = (0, 0);
    loop {
        let request =
            ReadDirectory { inode: directory, open, cookie, entries_max: 1024, attributes: true, unasked: None };
        match fs.call(ALICE, MdtRequest::ReadDirectory(request)).await.unwrap() {
            MdtReply::Directory(entries, end) => {
                names += entries.iter().filter(|entry| entry.entry.is_some()).count();
                if end {
                    return names;
                }
                cookie = entries.last().unwrap().cookie;
            }
            other => panic!("{other:?}"),
        }
    }
}

#[tokio::test]
async fn a_listing_of_a_cold_directory_reads_nothing_under_the_mutex() {
    let (fs, cold, directory) = with_cold_directory().await;
    assert_eq!(list(&fs, directory).await, FILES as usize);
    let (under_mutex, loads) = cold.take_counts();
    println!("{FILES} files listed with attributes: {under_mutex} cold reads under the mutex, {loads} loads");
    assert_eq!(under_mutex, 0);
    assert!((1..100).contains(&loads), "{loads} loads: what a page needs is loaded together");
}

#[tokio::test]
async fn requests_read_nothing_under_the_mutex() {
    let (fs, cold, directory) = with_cold_directory().await;
    fs.lookup(&root(), directory, "f7").await.unwrap();
    assert!(fs.lookup(&root(), directory, "missing").await.is_err());
    let new = fs.file(directory, "new").await;
    let old = fs.lookup(&root(), directory, "f100").await.unwrap().attributes.inode;
    let (open, _) = fs.open(ALICE, &root(), old, READ | WRITE).await.unwrap();
    fs.close(ALICE, old, open, None).await.unwrap();
    fs.rename(&root(), (directory, "f8"), (directory, "renamed"), RenameMode::Replace).await.unwrap();
    fs.link(&root(), new, directory, "link").await.unwrap();
    fs.mkdir(directory, "sub").await;
    fs.unlink(&root(), directory, "f9").await.unwrap();
    fs.rmdir(&root(), directory, "sub").await.unwrap();
    let (under_mutex, loads) = cold.take_counts();
    assert!(loads > 0, "the directory was not cold");
    assert_eq!(under_mutex, 0, "of {loads} loads");
}

/// They are told in a service that others wait for, and any client may send them.
#[tokio::test]
async fn accesses_without_a_lock_read_nothing() {
    let (fs, cold, _, files) = restarted_with_cold_directory().await;
    fs.recover().await;
    cold.take_counts();
    let access = |inode: &InodeNumber| Access { inode: *inode, lock: LockHandle(7), time: Timestamp::default() };
    let accesses: Vec<_> = files.iter().rev().take(ACCESSES_PER_MESSAGE_MAX).map(access).collect();
    let noted = fs.call(ALICE, MdtRequest::NoteAccesses(accesses)).await.unwrap();
    assert_eq!(noted, MdtReply::AccessesNoted(vec![None; ACCESSES_PER_MESSAGE_MAX]));
    assert_eq!(cold.take_counts(), (0, 0));
    fs.call(ALICE, MdtRequest::GetAttributes(files[files.len() - 1])).await.unwrap();
    assert!(cold.take_counts().1 > 0, "the files were not cold");
}

/// So are opens.
#[tokio::test]
async fn opens_that_a_client_cannot_have_read_nothing() {
    let (fs, cold, _, files) = restarted_with_cold_directory().await;
    fs.recover().await;
    cold.take_counts();
    let told: Vec<InodeNumber> = files.into_iter().rev().take(OPENS_PER_MESSAGE_MAX).collect();
    let opens = told.iter().map(|inode| (*inode, OpenId(inode.0), OpenFlags(READ))).collect();
    let registered = fs.call(ALICE, MdtRequest::RegisterOpens(RegisterOpens { opens, complete: false })).await.unwrap();
    let MdtReply::NotReclaimed(refused) = registered else { panic!("{registered:?}") };
    assert_eq!((refused.lost, cold.take_counts()), (told, (0, 0)));
}

/// Claims are served beside what others reclaim after a restart.
#[tokio::test]
async fn claims_read_inodes_only_at_the_beginning_of_a_connection() {
    let (fs, cold, _, files) = restarted_with_cold_directory().await;
    let _holders = Holders::of(&fs.mdt, fs.seams.clock.clone(), LONG);
    fs.recover().await;
    let bits = InodeBits(inode_bit::XATTRS);
    let claim = |inode: &InodeNumber| LockClaim { handle: LockHandle(7), inode: *inode, bits, version: u64::MAX };
    let locks: Vec<_> = files.iter().rev().take(LOCKS_PER_MESSAGE_MAX).map(claim).collect();
    let claim = ClaimLocks { era: fs.mdt.era(), locks };
    let refused = Ok(MdtReply::LocksClaimed(vec![None; LOCKS_PER_MESSAGE_MAX]));
    fs.call(ALICE, MdtRequest::GetAttributes(ROOT)).await.unwrap();
    cold.take_counts();
    assert_eq!(fs.call(ALICE, MdtRequest::ClaimLocks(claim.clone())).await, refused);
    assert_eq!(cold.take_counts(), (0, 0), "too late");
    fs.mdt.connection_begun(ALICE);
    cold.set_open(false);
    let ask = async || fs.call(ALICE, MdtRequest::ClaimLocks(claim.clone())).await;
    let first = std::pin::pin!(ask());
    let second = async {
        wait_for_a_load(&cold).await;
        let counts = cold.take_counts();
        assert_eq!(ask().await, refused, "one at a time");
        assert_eq!(cold.take_counts(), (0, 0), "after {counts:?}");
        cold.set_open(true);
    };
    assert_eq!(tokio::join!(first, second).0, refused, "they have other versions");
}

/// Nothing of an attempt of a compound that is given up remains, and what its steps opened is not
/// open.
#[tokio::test]
async fn steps_of_a_compound_read_nothing_under_the_mutex() {
    let (fs, cold, directory) = with_cold_directory().await;
    let known = StepInode::Known(directory);
    let lookup = |name: &str| Step::Lookup { parent: known, name: name.as_bytes().to_vec() };
    let (name, kind, inode) = (b"new".to_vec(), NodeKind::Directory, StepInode::Of(1));
    let steps = vec![
        Step::Create { parent: known, name, kind, mode: 0o755, umask: 0, layout: None, open: None },
        lookup("f100"),
        Step::Open { inode, open: OpenId(7), flags: OpenFlags(READ) },
        lookup("f2000"),
        lookup("f700"),
        lookup("missing"),
    ];
    let request = MdtRequest::Compound(Compound { who: root(), steps });
    let MdtReply::Compound(reply) = fs.call(ALICE, request).await.unwrap() else { panic!("not a compound") };
    assert_eq!((reply.replies.len(), reply.error), (5, Some(FsError::NotFound)));
    let (under_mutex, loads) = cold.take_counts();
    assert!(loads > 1, "each step misses something");
    assert_eq!(under_mutex, 0, "of {loads} loads");
    assert_eq!(fs.mdt.open_files(), 1);
    fs.close(ALICE, reply.replies[1].inode().unwrap(), OpenId(7), None).await.unwrap();
    assert_eq!(fs.mdt.open_files(), 0);
    assert_eq!(fs.check(false).await, []);
}

/// A program that looks for what changed since it last looked (an incremental backup) must find
/// what had not happened yet.
#[tokio::test]
async fn what_waits_to_be_loaded_has_the_time_at_which_it_happens() {
    let (fs, cold, directory) = with_cold_directory().await;
    // So that what the next one needs is in memory.
    fs.file(ROOT, "warm").await;
    cold.set_open(false);
    let create = Create {
        parent: directory,
        name: b"late".to_vec(),
        kind: NodeKind::Regular,
        mode: 0o644,
        umask: 0,
        layout: None,
        open: None,
    };
    let request = Request::Mdt(MdtRequest::Create(root(), create));
    let call = Call::plain(ALICE, Slot(5), Xid(1), request, Bytes::new());
    let slow = tokio::spawn(fs.mdt.clone().handle(call));
    wait_for_a_load(&cold).await;
    assert!(!slow.is_finished(), "it waits for the cold store");
    let warm = fs.lookup(&root(), ROOT, "warm").await.unwrap().attributes.inode;
    let touch = SetAttributes { mode: Some(0o600), ..SetAttributes::default() };
    fs.call(ALICE, MdtRequest::SetAttributes(root(), warm, touch)).await.unwrap();
    let seen = fs.stat(warm).await.unwrap().attributes.ctime;
    cold.set_open(true);
    match slow.await.unwrap().reply.unwrap() {
        Reply::Mdt(MdtReply::Created(created)) => assert!(created.entry.attributes.ctime >= seen),
        other => panic!("{other:?}"),
    }
}

/// The read of one request is slow; another one, of what is in memory, is answered meanwhile, and
/// one that changes what the first has read before it continues.
#[tokio::test]
async fn a_slow_read_of_one_request_holds_up_no_other() {
    let (fs, cold, directory) = with_cold_directory().await;
    let warm = fs.file(ROOT, "warm").await;
    cold.set_open(false);
    let request = MdtRequest::Lookup(root(), Lookup { parent: directory, name: b"f2000".to_vec() });
    let call = Call::plain(ALICE, Slot(5), Xid(1), Request::Mdt(request), Bytes::new());
    let slow = tokio::spawn(fs.mdt.clone().handle(call));
    wait_for_a_load(&cold).await;
    assert!(!slow.is_finished(), "it waits for the cold store");
    fs.stat(warm).await.expect("another request is answered");
    let (open, _) = fs.open(ALICE, &root(), warm, WRITE).await.expect("and changes something");
    fs.close(ALICE, warm, open, None).await.unwrap();
    assert!(!slow.is_finished());
    cold.set_open(true);
    match slow.await.unwrap().reply.unwrap() {
        Reply::Mdt(MdtReply::Entry(_)) => {}
        other => panic!("{other:?}"),
    }
}

/// Whether a file has capabilities must be known where it is opened for writing or truncated.
#[tokio::test]
async fn capabilities_of_a_file_that_changes_are_not_read_under_the_mutex() {
    let (fs, cold, _, files) = restarted_with_cold_directory().await;
    fs.recover().await;
    cold.take_counts();
    let (opened, truncated) = (files[0], files[1]);
    fs.open(ALICE, &root(), opened, WRITE).await.unwrap();
    let begin = ExclusiveBegin { inode: truncated, open: None, purpose: ExclusivePurpose::Truncate(7) };
    let reply = fs.call(ALICE, MdtRequest::ExclusiveBegin(root(), begin)).await;
    assert!(matches!(reply, Ok(MdtReply::ExclusiveGranted(_))), "{reply:?}");
    let (under_mutex, loads) = cold.take_counts();
    assert!(loads > 0, "the files were not cold");
    assert_eq!(under_mutex, 0, "of {loads} loads");
}

#[tokio::test]
async fn what_a_client_claims_after_a_restart_is_loaded_together() {
    let (fs, cold, _, files) = restarted_with_cold_directory().await;
    cold.take_counts();
    let opens = files.iter().map(|file| (*file, fs.open_id(), OpenFlags(READ))).collect();
    let reply = fs.reclaim(ALICE, Reclaim { opens, done: true, ..Reclaim::default() }).await;
    assert_eq!(reply, Ok(()));
    assert_eq!(fs.mdt.open_files(), files.len());
    let (under_mutex, loads) = cold.take_counts();
    assert_eq!(under_mutex, 0);
    assert!(loads < 10, "{loads} loads");
    fs.event(SessionEvent::Closed(ALICE)).await;
    assert_eq!(fs.mdt.open_files(), 0);
    let (under_mutex, _) = cold.take_counts();
    assert!(under_mutex < 10, "{under_mutex}: only the records of the session itself");
}

/// The attributes of one file can have half a gigabyte, which must not be in memory as a whole for
/// each client that lists them.
#[tokio::test]
async fn large_values_are_loaded_in_small_pages() {
    const ATTRIBUTES: usize = 40;
    let mut fs = Fixture::new().await;
    fs.options.store.memory_bytes = 256 << 10;
    fs.options.store.dirty_bytes = 256 << 10;
    fs.restart_and_recover().await;
    let file = fs.file(ROOT, "f").await;
    for number in 0..ATTRIBUTES {
        let (name, value) = (format!("user.{number}").into_bytes(), vec![7; XATTR_VALUE_BYTES_MAX]);
        let set = SetXattr { inode: file, name, value, mode: XattrMode::Create };
        fs.call(ALICE, MdtRequest::SetXattr(root(), set)).await.unwrap();
    }
    let cold = stop_and_start_cold(&mut fs).await;
    fs.recover().await;
    cold.take_counts();
    match fs.call(ALICE, MdtRequest::ListXattr(root(), file)).await {
        Ok(MdtReply::Names(names)) => {
            assert_eq!(names.iter().filter(|name| name.starts_with(b"user.")).count(), ATTRIBUTES);
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(cold.take_counts().0, 0, "reads under the mutex");
    let longest = cold.longest_scan();
    println!("{longest} bytes in the largest page");
    assert!(((1 << 20)..(2 << 20)).contains(&longest), "{longest} bytes in one page");
}
