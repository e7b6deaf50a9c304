//! How locks under which clients cache end that are not given back: reminders, evictions, and
//! clients that are gone with many of them.

use crate::common;

use std::time::Duration;

use common::{caching::*, *};
use rpc::{
    Handler,
    message::{MdtReply, MdtRequest, lock::inode_bit::*, mdt::ReadDirectory},
};
use types::ClientId;

/// Short for a test, and long enough for this process to be on time.
const SHORT: Duration = Duration::from_millis(80);
/// A callback for a lock, and a reminder in each of five rounds.
const CALLBACKS_MAX: usize = 4;

fn evicted(test: &Test) -> Vec<ClientId> {
    test.holders.evicted().iter().map(|(client, _)| *client).collect()
}

#[tokio::test]
async fn a_client_is_evicted_for_a_lock_that_nobody_waits_for() {
    let test = Test::with_lease(Duration::ZERO).await;
    let file = test.fs.file(ROOT, "file").await;
    test.stat(BOB, file).await;
    test.set_timeout(SHORT);
    // The access time.
    test.fs.open(ALICE, &root(), file, READ).await.unwrap();
    eventually("the time of BOB has passed", async || evicted(&test) == [BOB]).await;
    assert_eq!(test.fs.mdt.lock_timeouts(), 1);
    assert_eq!(test.holders.heard_so_far(), 2, "it was reminded");
    eventually("the locks of BOB are gone", async || test.fs.mdt.cache_locks().0 == 0).await;
}

#[tokio::test]
async fn a_busy_client_has_more_time() {
    let test = Test::with_lease(Duration::ZERO).await;
    let file = test.fs.file(ROOT, "file").await;
    let granted = test.stat(BOB, file).await;
    test.set_timeout(SHORT);
    test.holders.is_busy(BOB);
    let change = test.begin(chmod(file, 0o600));
    let heard = test.holders.heard(3).await;
    assert!(heard.iter().all(|(client, blocking)| (*client, blocking.handle) == (BOB, granted[0].handle)));
    assert!(!change.is_finished() && evicted(&test).is_empty(), "it was reminded in two rounds");
    test.cancel(BOB, vec![granted[0].handle]).await;
    entry(change.await.unwrap().unwrap()).unwrap();
    assert_eq!(evicted(&test), []);
}

#[tokio::test]
async fn a_client_that_is_busy_for_too_long_is_evicted() {
    let test = Test::with_lease(Duration::ZERO).await;
    let file = test.fs.file(ROOT, "file").await;
    test.stat(BOB, file).await;
    test.set_timeout(SHORT / 4);
    test.holders.is_busy(BOB);
    entry(test.begin(chmod(file, 0o600)).await.unwrap().unwrap()).unwrap();
    assert_eq!((evicted(&test), test.holders.heard_so_far()), (vec![BOB], CALLBACKS_MAX));
    assert_eq!(test.fs.mdt.lock_timeouts(), 1, "in three rounds, once");
}

/// The namespace is not held up for all of them at once; what the client gets on its new connection
/// meanwhile is not among them.
#[tokio::test]
async fn many_locks_of_one_client_go_in_steps() {
    const FILES: usize = 1500;
    let test = Test::new().await;
    let directory = test.fs.mkdir(ROOT, "directory").await;
    let mut last = None;
    for number in 0..FILES {
        last = Some(test.fs.file(directory, &format!("f{number}")).await);
    }
    let (open, _) = test.fs.open(BOB, &root(), directory, READ).await.unwrap();
    let read = ReadDirectory { inode: directory, open, cookie: 0, entries_max: 4096, attributes: true, unasked: None };
    let request = MdtRequest::ReadDirectory(read);
    let (reply, granted) = test.asking(BOB, request, directory, DIRECTORY | SHOWN).await;
    let MdtReply::Directory(page, true) = reply else { panic!("all of it") };
    assert_eq!(page.iter().filter(|found| !found.locks.is_empty()).count(), FILES);
    let all = FILES + granted.len();
    assert_eq!(test.fs.mdt.cache_locks().0, all);
    test.fs.mdt.connection_begun(BOB);
    assert_eq!(test.fs.mdt.cache_locks().0, all - 1024);
    // A change for which one of the others is in the way goes on when that is gone.
    let change = test.begin(chmod(last.unwrap(), 0o600));
    let other = test.fs.file(ROOT, "other").await;
    assert_eq!(resources(&test.stat(BOB, other).await), [(other, SHOWN)]);
    entry(change.await.unwrap().unwrap()).unwrap();
    eventually("the others are gone", async || test.fs.mdt.cache_locks().0 == 1).await;
    assert_eq!(test.stat(BOB, other).await, [], "it still has the new one");
}
