//! Accesses that clients tell of afterwards: which of them count, and what they can set.

use crate::common;

use common::{caching::*, *};
use rpc::message::{
    MdtReply, MdtRequest,
    lock::inode_bit::*,
    mdt::{Access, NotedAccess, Open, OpenFlags, OpenId},
};
use types::{Attributes, ClientId, InodeNumber, LockHandle, NodeKind, SetAttributes, SetTime, Timestamp};

/// What a client opens files under.
const READ_LOCK: u32 = ATTRIBUTES | OPEN;

async fn attributes(test: &Test, inode: InodeNumber) -> Attributes {
    test.fs.stat(inode).await.unwrap().attributes
}

/// A file that a client has read before its owner changed it, and the client's lock on these parts.
async fn changed_file(test: &Test, client: ClientId, bits: u32) -> (InodeNumber, LockHandle) {
    let file = test.fs.file(ROOT, "file").await;
    let open = Open { inode: file, open: OpenId(5000), flags: OpenFlags(READ) };
    let granted = test.wanting(client, MdtRequest::Open(root(), open), file, bits).await;
    assert_eq!(resources(&granted), [(file, bits)]);
    test.fs.call(client, chmod(file, 0o640)).await.unwrap();
    (file, granted[0].handle)
}

async fn note(test: &Test, client: ClientId, accesses: Vec<Access>) -> Vec<Option<NotedAccess>> {
    match test.fs.call(client, MdtRequest::NoteAccesses(accesses)).await {
        Ok(MdtReply::AccessesNoted(noted)) => noted,
        other => panic!("accesses were answered {other:?}"),
    }
}

#[tokio::test]
async fn an_access_sets_the_access_time_once() {
    let test = Test::new().await;
    let (inode, lock) = changed_file(&test, BOB, READ_LOCK).await;
    let before = attributes(&test, inode).await;
    assert!(before.atime < before.ctime);
    let time = before.ctime.next();
    let noted = note(&test, BOB, vec![Access { inode, lock, time }; 2]).await;
    assert_eq!(attributes(&test, inode).await, Attributes { atime: time, ..before });
    assert_eq!((noted[0], noted[0].unwrap().time), (noted[1], time), "the second one changes nothing");
    let later = note(&test, BOB, vec![Access { inode, lock, time: time.plus(500) }]).await;
    assert_eq!((later, attributes(&test, inode).await.atime), (noted[..1].to_vec(), time), "it is fresh");
}

#[tokio::test]
async fn its_version_is_told() {
    let test = Test::new().await;
    let (inode, lock) = changed_file(&test, BOB, READ_LOCK).await;
    let time = attributes(&test, inode).await.ctime.next();
    let noted = note(&test, BOB, vec![Access { inode, lock, time }]).await;
    let granted = test.stat(CAROL, inode).await;
    assert_eq!(noted[0].unwrap().version, granted[0].version);
}

#[tokio::test]
async fn a_time_in_the_future_is_the_present_and_one_in_the_past_changes_nothing() {
    let test = Test::new().await;
    let (inode, lock) = changed_file(&test, BOB, READ_LOCK).await;
    let before = attributes(&test, inode).await;
    let past = Timestamp { seconds: -5, nanoseconds: 0 };
    let noted = note(&test, BOB, vec![Access { inode, lock, time: past }]).await;
    assert_eq!((noted[0].unwrap().time, attributes(&test, inode).await), (before.atime, before));
    let future = Timestamp { seconds: i64::MAX, nanoseconds: 0 };
    let noted = note(&test, BOB, vec![Access { inode, lock, time: future }]).await;
    let after = attributes(&test, inode).await;
    assert!(after.atime > before.ctime && after.atime <= test.fs.seams.clock.wall());
    assert_eq!(noted[0].unwrap().time, after.atime);
}

#[tokio::test]
async fn only_the_holder_of_the_lock_may_tell() {
    let test = Test::new().await;
    let (inode, lock) = changed_file(&test, BOB, READ_LOCK).await;
    let before = attributes(&test, inode).await;
    let time = before.ctime.next();
    let access = Access { inode, lock, time };
    let other = test.fs.mkdir(ROOT, "other").await;
    let others = [
        (CAROL, access),
        (BOB, Access { lock: LockHandle(lock.0 + 1000), ..access }),
        (BOB, Access { inode: other, ..access }),
        (BOB, Access { inode: InodeNumber(u64::MAX), ..access }),
    ];
    for (client, access) in others {
        assert_eq!(note(&test, client, vec![access]).await, [None], "{client} {access:?}");
    }
    test.cancel(BOB, vec![lock]).await;
    assert_eq!(note(&test, BOB, vec![access]).await, [None], "it gave the lock back");
    assert_eq!(attributes(&test, inode).await, before);
}

#[tokio::test]
async fn what_could_not_have_been_opened_was_not_read() {
    for bits in [ATTRIBUTES, OPEN] {
        let test = Test::new().await;
        let (inode, lock) = changed_file(&test, BOB, bits).await;
        let time = attributes(&test, inode).await.ctime.next();
        assert_eq!(note(&test, BOB, vec![Access { inode, lock, time }]).await, [None]);
    }
}

#[tokio::test]
async fn links_and_directories_are_read_too() {
    let test = Test::new().await;
    let link = test.fs.create(&root(), ROOT, "link", NodeKind::Symlink(b"target".to_vec()), 0o777).await.unwrap();
    let directory = test.fs.mkdir(ROOT, "directory").await;
    for (inode, bits) in [(link, ATTRIBUTES), (directory, READ_LOCK)] {
        let granted = test.wanting(BOB, MdtRequest::GetAttributes(inode), inode, bits).await;
        assert_eq!(resources(&granted), [(inode, bits)]);
        let time = attributes(&test, inode).await.ctime.next();
        let noted = note(&test, BOB, vec![Access { inode, lock: granted[0].handle, time }]).await;
        assert_eq!((noted[0].unwrap().time, attributes(&test, inode).await.atime), (time, time));
    }
}

/// The request is answered although nobody gives a lock back.
#[tokio::test]
async fn other_clients_are_asked_afterwards() {
    let test = Test::new().await;
    let (inode, lock) = changed_file(&test, BOB, READ_LOCK).await;
    let granted = test.stat(CAROL, inode).await;
    let time = attributes(&test, inode).await.ctime.next();
    assert!(note(&test, BOB, vec![Access { inode, lock, time }]).await[0].is_some());
    let heard = test.holders.heard(1).await;
    assert_eq!((heard[0].0, heard[0].1.handle), (CAROL, granted[0].handle));
    assert_eq!(attributes(&test, inode).await.atime, time);
}

/// Another client's lock comes back before its change is made, and with it the accesses.
#[tokio::test]
async fn a_time_that_another_client_sets_comes_after_the_accesses() {
    let test = Test::new().await;
    let (inode, lock) = changed_file(&test, BOB, READ_LOCK).await;
    let time = attributes(&test, inode).await.ctime.next();
    let old = Timestamp { seconds: 7, nanoseconds: 0 };
    let set = SetAttributes { atime: Some(SetTime::To(old)), ..SetAttributes::default() };
    let setting = test.begin(MdtRequest::SetAttributes(root(), inode, set));
    assert_eq!(test.holders.heard(1).await[0].1.handle, lock);
    let noted = note(&test, BOB, vec![Access { inode, lock, time }]).await;
    assert_eq!(noted[0].unwrap().time, time, "the change waits");
    test.cancel(BOB, vec![lock]).await;
    setting.await.unwrap().unwrap();
    assert_eq!(note(&test, BOB, vec![Access { inode, lock, time }]).await, [None]);
    assert_eq!(attributes(&test, inode).await.atime, old);
}
