//! Advisory locks requested by two clients. Servers are fakes.

use crate::support;

use std::{sync::Arc, time::Duration};

use client::{FileSystem, LockRequest, OpenFile};
use rpc::message::mdt::{LockFamily, LockMode, LockRange, OpenFlags};
use support::{Cluster, READ_WRITE, create, others_run};
use tokio::sync::oneshot;
use types::{Credentials, FsError, FsResult, InodeNumber};

const STRIPE: u64 = 65536;

/// A file that two clients have open.
struct Contended {
    cluster: Cluster,
    one: Arc<FileSystem>,
    file: Arc<OpenFile>,
    other: Arc<FileSystem>,
    others: Arc<OpenFile>,
}

impl Contended {
    async fn new() -> Contended {
        let cluster = Cluster::new(STRIPE, 1);
        let (one, other) = (cluster.mount().await, cluster.mount().await);
        let file = create(&one, "file", READ_WRITE).await;
        let others = open(&other, file.inode()).await;
        Contended { cluster, one, file, other, others }
    }
}

async fn open(fs: &Arc<FileSystem>, inode: InodeNumber) -> Arc<OpenFile> {
    fs.open(&Credentials::root(), inode, OpenFlags(READ_WRITE)).await.expect("the file can be opened")
}

fn lock(owner: u64, mode: LockMode, wait: bool) -> LockRequest {
    let range = LockRange { start: 0, end: 9 };
    LockRequest { family: LockFamily::Posix, owner, pid: 1, range, mode, wait }
}

#[tokio::test]
async fn a_waiting_lock_is_granted_and_a_dropped_one_leaves_the_queue() {
    let Contended { cluster, one, file, other, others } = Contended::new().await;
    one.set_lock(&file, lock(1, LockMode::Exclusive, false)).await.unwrap();
    assert_eq!(other.set_lock(&others, lock(2, LockMode::Shared, false)).await, Err(FsError::WouldBlock));
    let waiting = tokio::spawn({
        let (other, others) = (other.clone(), others.clone());
        async move { other.set_lock(&others, lock(2, LockMode::Shared, true)).await }
    });
    tokio::task::yield_now().await;
    assert!(!waiting.is_finished());
    waiting.abort();
    assert!(waiting.await.unwrap_err().is_cancelled());
    while !cluster.requests().contains_key("cancel") {
        tokio::task::yield_now().await;
    }
    let waiting = other.set_lock(&others, lock(2, LockMode::Shared, true));
    let release = async {
        tokio::task::yield_now().await;
        one.flush(&file, 1).await
    };
    let (granted, released) = tokio::join!(waiting, release);
    assert_eq!((granted, released), (Ok(()), Ok(())));
    assert_eq!(one.set_lock(&file, lock(1, LockMode::Exclusive, false)).await, Err(FsError::WouldBlock));
}

/// Far longer than anything here takes.
const TIMEOUT: Duration = Duration::from_secs(20);

/// A request whose caller drops it after the MDT has granted the lock and before the answer
/// arrives.
async fn granted_to_nobody(cluster: &Cluster, fs: &Arc<FileSystem>, file: &Arc<OpenFile>, request: LockRequest) {
    let sent = cluster.requests().get("lock").copied().unwrap_or(0);
    cluster.mdt.hold_answers(Some("lock"));
    let (fs, file) = (fs.clone(), file.clone());
    let asking = tokio::spawn(async move { fs.set_lock(&file, request).await });
    requested(cluster, "lock", sent + 1).await;
    asking.abort();
    assert!(asking.await.unwrap_err().is_cancelled());
}

#[tokio::test]
async fn a_lock_granted_to_who_is_gone_is_given_back_also_if_it_did_not_wait() {
    for wait in [false, true] {
        let Contended { cluster, one, file, other, others } = Contended::new().await;
        granted_to_nobody(&cluster, &other, &others, lock(2, LockMode::Exclusive, wait)).await;
        cluster.mdt.hold_answers(None);
        let next = one.set_lock(&file, lock(1, LockMode::Exclusive, true));
        assert_eq!(tokio::time::timeout(TIMEOUT, next).await, Ok(Ok(())), "waits: {wait}");
    }
}

/// A process was killed while it converted a lock; its files are closed before the answer arrives.
#[tokio::test]
async fn what_an_owner_held_is_not_given_back_to_it_after_it_was_closed() {
    let Contended { cluster, one, file, other, others } = Contended::new().await;
    other.set_lock(&others, lock(2, LockMode::Shared, false)).await.unwrap();
    granted_to_nobody(&cluster, &other, &others, lock(2, LockMode::Exclusive, true)).await;
    let flush = tokio::spawn(async move { other.flush(&others, 2).await });
    requested(&cluster, "lock", 3).await;
    cluster.mdt.hold_answers(None);
    flush.await.unwrap().unwrap();
    others_run().await;
    let next = one.set_lock(&file, lock(1, LockMode::Exclusive, true));
    assert_eq!(tokio::time::timeout(TIMEOUT, next).await, Ok(Ok(())));
}

/// A waiting request and what interrupts it.
fn interruptible(
    fs: &Arc<FileSystem>,
    file: &Arc<OpenFile>,
    request: LockRequest,
) -> (tokio::task::JoinHandle<FsResult<()>>, oneshot::Sender<()>) {
    let (interrupt, interrupted) = oneshot::channel();
    let (fs, file) = (fs.clone(), file.clone());
    let interrupted = async move { interrupted.await.expect("the test interrupts it") };
    (tokio::spawn(async move { fs.set_lock_unless(&file, request, interrupted).await }), interrupt)
}

async fn requested(cluster: &Cluster, name: &str, count: usize) {
    while cluster.requests().get(name).copied().unwrap_or(0) < count {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn a_lock_granted_while_its_caller_is_interrupted_is_the_callers() {
    let Contended { cluster, one, file, other, others } = Contended::new().await;
    cluster.mdt.hold_answers(Some("lock"));
    let (asking, interrupt) = interruptible(&other, &others, lock(2, LockMode::Exclusive, true));
    requested(&cluster, "lock", 1).await;
    interrupt.send(()).unwrap();
    others_run().await;
    assert!(!asking.is_finished(), "who has the lock is not known yet");
    cluster.mdt.hold_answers(None);
    assert_eq!(asking.await.unwrap(), Ok(()));
    assert_eq!(one.set_lock(&file, lock(1, LockMode::Shared, false)).await, Err(FsError::WouldBlock));
}

/// The cancel of a wait and its completion cross.
#[tokio::test]
async fn a_lock_granted_while_its_wait_is_cancelled_is_the_callers_if_there_is_one() {
    for interrupts in [true, false] {
        let Contended { cluster, one, file, other, others } = Contended::new().await;
        one.set_lock(&file, lock(1, LockMode::Exclusive, false)).await.unwrap();
        let (asking, interrupt) = interruptible(&other, &others, lock(2, LockMode::Exclusive, true));
        requested(&cluster, "lock", 2).await;
        others_run().await;
        cluster.mdt.keep_notices(true);
        one.set_lock(&file, lock(1, LockMode::Unlock, false)).await.unwrap();
        match interrupts {
            true => interrupt.send(()).unwrap(),
            false => asking.abort(),
        }
        requested(&cluster, "cancel", 1).await;
        others_run().await;
        assert_eq!(one.set_lock(&file, lock(1, LockMode::Shared, false)).await, Err(FsError::WouldBlock));
        assert_eq!(asking.is_finished(), !interrupts, "the callback says what became of it");
        cluster.mdt.keep_notices(false);
        if interrupts {
            assert_eq!(asking.await.unwrap(), Ok(()));
            assert_eq!(one.set_lock(&file, lock(1, LockMode::Shared, false)).await, Err(FsError::WouldBlock));
        } else {
            let next = one.set_lock(&file, lock(1, LockMode::Exclusive, true));
            assert_eq!(tokio::time::timeout(TIMEOUT, next).await, Ok(Ok(())), "it was given back");
        }
    }
}

/// Other than by a repetition, a wait costs one request.
#[tokio::test]
async fn who_waits_does_not_ask_again() {
    let Contended { cluster, one, file, other, others } = Contended::new().await;
    one.set_lock(&file, lock(1, LockMode::Exclusive, false)).await.unwrap();
    let (asking, _interrupt) = interruptible(&other, &others, lock(2, LockMode::Exclusive, true));
    requested(&cluster, "lock", 2).await;
    others_run().await;
    one.set_lock(&file, lock(1, LockMode::Unlock, false)).await.unwrap();
    assert_eq!(tokio::time::timeout(TIMEOUT, asking).await.unwrap().unwrap(), Ok(()));
    assert_eq!(cluster.requests()["lock"], 3, "two locks and a release");
}

/// As the kernel does after a signal whose handler restarts calls.
#[tokio::test]
async fn a_wait_that_is_asked_for_again_when_it_was_interrupted_keeps_its_lock() {
    let Contended { cluster, one, file, other, others } = Contended::new().await;
    one.set_lock(&file, lock(1, LockMode::Exclusive, false)).await.unwrap();
    let (asking, interrupt) = interruptible(&other, &others, lock(2, LockMode::Exclusive, true));
    requested(&cluster, "lock", 2).await;
    cluster.mdt.hold_answers(Some("cancel"));
    interrupt.send(()).unwrap();
    requested(&cluster, "cancel", 1).await;
    others_run().await;
    assert!(!asking.is_finished(), "the request may still be queued");
    cluster.mdt.hold_answers(None);
    assert_eq!(asking.await.unwrap(), Err(FsError::Interrupted));
    let again = other.set_lock(&others, lock(2, LockMode::Exclusive, true));
    let (again, released) = tokio::join!(again, one.set_lock(&file, lock(1, LockMode::Unlock, false)));
    assert_eq!((again, released), (Ok(()), Ok(())));
    others_run().await;
    assert_eq!(one.set_lock(&file, lock(1, LockMode::Exclusive, false)).await, Err(FsError::WouldBlock));
}

/// Its close would not release them.
#[tokio::test]
async fn nothing_is_locked_through_a_stale_file() {
    let Contended { cluster, one, file, other, others } = Contended::new().await;
    let (inode, former) = (file.inode(), one.client_id());
    cluster.evict(former).await;
    assert_eq!(one.get_attributes(inode, None).await, Err(FsError::Stale), "whatever comes next finds out");
    while one.client_id() == former {
        tokio::task::yield_now().await;
    }
    for family in [LockFamily::Posix, LockFamily::Flock] {
        let exclusive = LockRequest { family, ..lock(1, LockMode::Exclusive, false) };
        assert_eq!(one.set_lock(&file, exclusive).await, Err(FsError::Stale));
        assert_eq!(other.set_lock(&others, exclusive).await, Ok(()), "nobody holds it");
    }
    let unlock = lock(1, LockMode::Unlock, false);
    assert_eq!(one.set_lock(&file, unlock).await, Ok(()), "nothing is left to release");
}
