//! The cache of names and attributes on an MDT that grants every lock and withdraws those that a
//! test chooses: which operations need no request, and when the cache must not be used.

use crate::support;

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use client::{FileSystem, Operation};
use rpc::message::mdt::{OpenFlags, open_flag};
use rt::{BoxFuture, Clock, Instant, real::SystemClock};
use support::{Cluster, READ_WRITE, ROOT, create, others_run, write};
use tokio::sync::watch;
use types::{Attributes, Credentials, FsError, FsResult, MdtIndex, SetAttributes, Timestamp};

const MDT: MdtIndex = MdtIndex(0);

async fn look_up(fs: &FileSystem, name: &str) -> FsResult<Attributes> {
    fs.lookup(&Credentials::root(), ROOT, name.as_bytes()).await
}

/// A cluster whose MDT grants locks, and a client that has looked at its root and a file in it.
async fn warm() -> (Cluster, Arc<FileSystem>) {
    let cluster = Cluster::new(65536, 1);
    cluster.mdt.grant_locks();
    let fs = cluster.mount().await;
    let file = create(&fs, "file", READ_WRITE).await;
    write(&fs, &file, 0, b"hello").await;
    fs.close(file, None).await.unwrap();
    look_up(&fs, "file").await.unwrap();
    fs.get_attributes(ROOT, None).await.unwrap();
    (cluster, fs)
}

/// Requests of an operation.
async fn requests<T>(cluster: &Cluster, operation: impl Future<Output = T>) -> (T, BTreeMap<&'static str, usize>) {
    let before = cluster.requests();
    let result = operation.await;
    (result, cluster.requests_since(&before))
}

#[tokio::test]
async fn what_is_known_is_not_asked_again() {
    let (cluster, fs) = warm().await;
    let before = fs.statistics().get(Operation::CacheHits).samples;
    let (found, asked) = requests(&cluster, look_up(&fs, "file")).await;
    let found = found.unwrap();
    assert_eq!((found.size, asked.len()), (5, 0));
    let (again, asked) = requests(&cluster, fs.get_attributes(found.inode, None)).await;
    assert_eq!((again, asked.len()), (Ok(found), 0));
    let root = Credentials::root();
    let readable = fs.access(&root, found.inode, 4);
    assert_eq!(requests(&cluster, readable).await, (Ok(()), BTreeMap::new()));
    assert_eq!(look_up(&fs, "missing").await, Err(FsError::NotFound));
    let (missing, asked) = requests(&cluster, look_up(&fs, "missing")).await;
    assert_eq!((missing, asked.len()), (Err(FsError::NotFound), 0));
    assert_eq!(fs.statistics().get(Operation::CacheHits).samples - before, 4);
}

#[tokio::test]
async fn a_file_that_is_written_here_is_asked_for() {
    let (cluster, fs) = warm().await;
    let file = create(&fs, "file", READ_WRITE).await;
    write(&fs, &file, 0, b"hello, world").await;
    let (found, asked) = requests(&cluster, look_up(&fs, "file")).await;
    assert_eq!(found.unwrap().size, 12);
    assert_eq!(asked.get("lookup"), Some(&1));
    fs.close(file, None).await.unwrap();
    assert_eq!(look_up(&fs, "file").await.unwrap().size, 12);
    let (found, asked) = requests(&cluster, look_up(&fs, "file")).await;
    assert_eq!((found.unwrap().size, asked.len()), (12, 0));
}

#[tokio::test]
async fn changes_of_this_client_are_seen_at_once() {
    let (cluster, fs) = warm().await;
    let inode = look_up(&fs, "file").await.unwrap().inode;
    let changes = SetAttributes { mode: Some(0o600), ..SetAttributes::default() };
    fs.set_attributes(&Credentials::root(), inode, changes, None).await.unwrap();
    let (found, asked) = requests(&cluster, look_up(&fs, "file")).await;
    assert_eq!((found.unwrap().mode, asked.len()), (0o600, 0), "the answer to the change is kept");
    fs.truncate(&Credentials::root(), inode, None, 2).await.unwrap();
    assert_eq!(look_up(&fs, "file").await.unwrap().size, 2);
    let reader = fs.open(&Credentials::root(), inode, OpenFlags(open_flag::READ)).await.unwrap();
    fs.close(reader, None).await.unwrap();
    assert_eq!(look_up(&fs, "file").await.unwrap().size, 2);
    fs.unlink(&Credentials::root(), ROOT, b"file").await.unwrap();
    assert_eq!(look_up(&fs, "file").await, Err(FsError::NotFound));
}

#[tokio::test]
async fn a_lock_that_is_withdrawn_is_given_back_and_nothing_is_served_under_it() {
    let (cluster, fs) = warm().await;
    let inode = look_up(&fs, "file").await.unwrap().inode;
    let locks = cluster.mdt.locks_on(fs.client_id(), inode);
    assert!(!locks.is_empty());
    for lock in locks {
        cluster.withdraw(fs.client_id(), lock).await;
    }
    let (found, asked) = requests(&cluster, look_up(&fs, "file")).await;
    assert_eq!((found.unwrap().size, asked.get("lookup")), (5, Some(&1)));
    others_run().await;
    assert!(cluster.requests()["cancel locks"] > 0);
    let (_, asked) = requests(&cluster, look_up(&fs, "file")).await;
    assert!(asked.len() <= 1);
    let (_, asked) = requests(&cluster, look_up(&fs, "file")).await;
    assert_eq!(asked.len(), 0, "it is granted again");
}

#[tokio::test]
async fn a_limit_of_zero_gives_all_locks_back() {
    let (cluster, fs) = warm().await;
    assert!(fs.cached_locks(MDT).unwrap().0 > 0);
    fs.set_cached_locks_max(MDT, 0).unwrap();
    assert_eq!(fs.cached_locks(MDT), Ok((0, 0)));
    others_run().await;
    let inode = look_up(&fs, "file").await.unwrap().inode;
    assert_eq!(cluster.mdt.locks_on(fs.client_id(), inode), []);
    assert_eq!(cluster.mdt.locks_on(fs.client_id(), ROOT), []);
    let (_, asked) = requests(&cluster, look_up(&fs, "file")).await;
    assert_eq!(asked.get("lookup"), Some(&1));
    fs.set_cached_locks_max(MDT, 100).unwrap();
    for _ in 0..2 {
        look_up(&fs, "file").await.unwrap();
        fs.get_attributes(ROOT, None).await.unwrap();
    }
    let (_, asked) = requests(&cluster, look_up(&fs, "file")).await;
    assert_eq!(asked.len(), 0);
}

/// A clock that only moves when a test sets it forward.
struct StepClock(watch::Sender<u64>);

impl StepClock {
    async fn step(&self, duration: Duration) {
        self.0.send_modify(|now| *now += duration.as_nanos() as u64);
        others_run().await;
    }
}

impl Clock for StepClock {
    fn now(&self) -> Instant {
        Instant(*self.0.borrow())
    }

    fn wall(&self) -> Timestamp {
        SystemClock.wall()
    }

    fn boot(&self) -> u64 {
        SystemClock.boot()
    }

    fn sleep_until(&self, deadline: Instant) -> BoxFuture<'static, ()> {
        let mut now = self.0.subscribe();
        Box::pin(async move { drop(now.wait_for(|now| *now >= deadline.0).await) })
    }
}

#[tokio::test]
async fn locks_that_are_not_used_for_long_are_given_back() {
    let (cluster, _) = warm().await;
    let clock = Arc::new(StepClock(watch::Sender::new(1)));
    let fs = cluster.mount_remote(clock.clone()).await;
    fs.set_lock_age_max(MDT, Duration::from_secs(60)).unwrap();
    let file = look_up(&fs, "file").await.unwrap().inode;
    fs.get_attributes(ROOT, None).await.unwrap();
    let held = |inode| !cluster.mdt.locks_on(fs.client_id(), inode).is_empty();
    for _ in 0..6 {
        assert!(held(file) && held(ROOT));
        clock.step(Duration::from_secs(10)).await;
        fs.get_attributes(ROOT, None).await.unwrap();
    }
    // Locks wait for two rounds for a request that takes them along.
    for _ in 0..5 {
        clock.step(Duration::from_secs(10)).await;
        fs.get_attributes(ROOT, None).await.unwrap();
    }
    assert!(!held(file), "it was not used for 110 s");
    let (_, asked) = requests(&cluster, fs.get_attributes(ROOT, None)).await;
    assert!(held(ROOT) && asked.is_empty(), "it was used all the time");
    for _ in 0..11 {
        clock.step(Duration::from_secs(10)).await;
    }
    assert!(!held(ROOT));
    assert_eq!(fs.cached_locks(MDT).unwrap().0, 0);
    // The task that looks after the ages begins again with the next lock.
    look_up(&fs, "file").await.unwrap();
    assert!(held(file));
    for _ in 0..11 {
        clock.step(Duration::from_secs(10)).await;
    }
    assert!(!held(file));
}

#[tokio::test]
async fn nothing_is_served_after_a_restart_or_an_eviction() {
    let (cluster, fs) = warm().await;
    cluster.restart().await;
    let (found, asked) = requests(&cluster, look_up(&fs, "file")).await;
    assert_eq!((found.unwrap().size, asked.get("lookup")), (5, Some(&1)));
    cluster.evict(fs.client_id()).await;
    let (found, asked) = requests(&cluster, look_up(&fs, "file")).await;
    assert!(found == Err(FsError::Stale) || asked.get("lookup") == Some(&1), "{found:?}");
}

/// A clock that a test sets forward.
struct LateClock(AtomicU64);

impl LateClock {
    fn ahead(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

impl Clock for LateClock {
    fn now(&self) -> Instant {
        SystemClock.now() + Duration::from_nanos(self.ahead())
    }

    fn wall(&self) -> Timestamp {
        SystemClock.wall()
    }

    fn boot(&self) -> u64 {
        SystemClock.boot()
    }

    fn sleep_until(&self, deadline: Instant) -> BoxFuture<'static, ()> {
        SystemClock.sleep_until(Instant(deadline.0.saturating_sub(self.ahead())))
    }
}

#[tokio::test]
async fn a_client_that_was_stopped_serves_nothing_before_it_has_asked() {
    let (cluster, _) = warm().await;
    let clock = Arc::new(LateClock(AtomicU64::new(0)));
    let fs = cluster.mount_remote(clock.clone()).await;
    look_up(&fs, "file").await.unwrap();
    let (_, asked) = requests(&cluster, look_up(&fs, "file")).await;
    assert_eq!(asked.len(), 0);
    // Three quarters of a lease: the MDT may evict it after the whole.
    clock.0.store(Duration::from_secs(46).as_nanos() as u64, Ordering::Relaxed);
    let (found, asked) = requests(&cluster, look_up(&fs, "file")).await;
    assert_eq!((found.unwrap().size, asked.get("lookup")), (5, Some(&1)));
    let (_, asked) = requests(&cluster, look_up(&fs, "file")).await;
    assert_eq!(asked.len(), 0, "the answer renewed the lease");
}
