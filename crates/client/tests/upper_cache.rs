//! A cache above the client: it lets go before a lock is given back, and before a new connection
//! begins. And how locks are given back at all.

use crate::support;

use std::{
    sync::{Arc, Weak},
    time::{Duration, Instant},
};

use client::{FileSystem, UpperCache};
use parking_lot::Mutex;
use rpc::message::{
    ClientReply,
    lock::{InodeBits, inode_bit},
    mdt::{OpenFlags, open_flag},
};
use rt::BoxFuture;
use support::{Cluster, READ_WRITE, ROOT, create, log::Log, others_run};
use tokio::sync::watch;
use types::{Credentials, FsError, InodeNumber, MdtIndex};

/// What it was told to let go; it does when the test says so.
struct Above {
    told: Mutex<Vec<(InodeNumber, InodeBits)>>,
    told_all: Mutex<usize>,
    lets_go: watch::Sender<bool>,
}

impl Above {
    fn of(fs: &FileSystem, lets_go: bool) -> Arc<Self> {
        let (told, told_all) = (Mutex::default(), Mutex::default());
        let above = Arc::new(Self { told, told_all, lets_go: watch::Sender::new(lets_go) });
        let cache: Weak<Self> = Arc::downgrade(&above);
        fs.set_upper_cache(cache);
        above
    }

    fn has_been_told(&self, inode: InodeNumber, bit: u32) -> bool {
        self.told.lock().iter().any(|(of, InodeBits(bits))| *of == inode && bits & bit != 0)
    }

    fn let_go(&self) -> BoxFuture<'static, ()> {
        let mut lets_go = self.lets_go.subscribe();
        Box::pin(async move {
            lets_go.wait_for(|lets_go| *lets_go).await.expect("the test goes on");
        })
    }
}

impl UpperCache for Above {
    fn withdraw(&self, inode: InodeNumber, parts: InodeBits) -> BoxFuture<'static, ()> {
        self.told.lock().push((inode, parts));
        self.let_go()
    }

    fn withdraw_all(&self) -> BoxFuture<'static, ()> {
        *self.told_all.lock() += 1;
        self.let_go()
    }
}

async fn with_file() -> (Cluster, Arc<FileSystem>, InodeNumber) {
    let cluster = Cluster::new(65536, 1);
    cluster.mdt.grant_locks();
    let fs = cluster.mount().await;
    fs.get_attributes(ROOT, None).await.unwrap();
    let file = create(&fs, "file", READ_WRITE).await;
    fs.close(file, None).await.unwrap();
    let found = fs.lookup(&Credentials::root(), ROOT, b"file").await.unwrap();
    (cluster, fs, found.inode)
}

#[tokio::test]
async fn what_is_known_may_be_kept_until_it_is_withdrawn_and_the_lock_follows() {
    let (cluster, fs, inode) = with_file().await;
    let above = Above::of(&fs, false);
    let keepable = fs.keepable(inode, Some((ROOT, b"file"))).unwrap();
    assert!(keepable.name && keepable.attributes.is_some_and(|attributes| attributes.inode == inode));
    assert!(!keepable.validity.is_zero());
    assert!(!fs.keepable(inode, Some((ROOT, b"else"))).unwrap().name, "it was not found there");
    let locks = cluster.mdt.locks_on(fs.client_id(), inode);
    for lock in &locks {
        cluster.withdraw(fs.client_id(), *lock).await;
        let reminded = cluster.ask_back(fs.client_id(), *lock).await;
        assert_eq!(reminded, Ok(ClientReply::StillBusy), "the cache above has not let go");
    }
    assert!(fs.keepable(inode, Some((ROOT, b"file"))).is_none(), "it is not served from that moment on");
    others_run().await;
    assert!(above.has_been_told(inode, inode_bit::LOOKUP) && above.has_been_told(inode, inode_bit::ATTRIBUTES));
    assert_eq!(cluster.mdt.locks_on(fs.client_id(), inode), locks, "the cache above serves it still");
    above.lets_go.send_replace(true);
    others_run().await;
    assert_eq!(cluster.mdt.locks_on(fs.client_id(), inode), []);
}

#[tokio::test]
async fn nothing_may_be_kept_of_a_file_that_is_written_here() {
    let (_cluster, fs, inode) = with_file().await;
    let file = create(&fs, "file", READ_WRITE).await;
    let keepable = fs.keepable(inode, Some((ROOT, b"file")));
    assert!(keepable.is_none_or(|keepable| keepable.attributes.is_none()));
    fs.close(file, None).await.unwrap();
    assert!(fs.is_caching(MdtIndex(0)));
    fs.set_cached_locks_max(MdtIndex(0), 0).unwrap();
    assert!(!fs.is_caching(MdtIndex(0)) && fs.keepable(inode, None).is_none());
}

#[tokio::test]
async fn a_new_connection_begins_when_the_cache_above_serves_nothing() {
    let (cluster, fs, inode) = with_file().await;
    let above = Above::of(&fs, false);
    let (restarted, asked) = tokio::join!(cluster.restart(), async {
        others_run().await;
        while *above.told_all.lock() == 0 {
            tokio::task::yield_now().await;
        }
        assert!(fs.keepable(inode, None).is_none());
        let asking = tokio::spawn({
            let fs = fs.clone();
            async move { fs.get_attributes(inode, None).await }
        });
        others_run().await;
        assert!(!asking.is_finished(), "there is no connection yet");
        above.lets_go.send_replace(true);
        asking.await.unwrap()
    });
    let () = restarted;
    assert_eq!(asked.map(|attributes| attributes.inode), Ok(inode));
}

#[tokio::test]
async fn the_lock_of_a_removed_file_goes_beside_the_next_request() {
    let (cluster, fs, inode) = with_file().await;
    let before = cluster.requests();
    fs.unlink(&Credentials::root(), ROOT, b"file").await.unwrap();
    others_run().await;
    assert_eq!(fs.lookup(&Credentials::root(), ROOT, b"file").await, Err(FsError::NotFound));
    let asked: usize = cluster.requests_since(&before).values().sum();
    assert_eq!(asked, 1, "{:?}", cluster.requests_since(&before));
    let locks = cluster.mdt.locks_on(fs.client_id(), inode);
    assert_ne!(locks, []);
    // The fake may give the inode's number to the next file.
    let file = create(&fs, "another", READ_WRITE).await;
    let now = cluster.mdt.locks_on(fs.client_id(), inode);
    assert!(locks.iter().all(|lock| !now.contains(lock)), "{locks:?}, {now:?}");
    fs.close(file, None).await.unwrap();
    assert_eq!(cluster.requests_since(&before).get("cancel locks"), None);
}

#[tokio::test]
async fn a_listing_is_read_once_until_a_name_changes() {
    let (cluster, fs, _) = with_file().await;
    let root = Credentials::root();
    fs.get_attributes(ROOT, None).await.unwrap();
    let quiet = OpenFlags(open_flag::READ | open_flag::NO_ACCESS_TIME);
    let directory = fs.open(&root, ROOT, quiet).await.unwrap();
    fs.get_attributes(ROOT, None).await.unwrap();
    let first = fs.read_directory(&directory, 0, 100, client::EntryAttributes::OfAll).await.unwrap();
    assert!(first.end && first.items.iter().any(|item| item.name == b"file"));
    let before = cluster.requests();
    let again = fs.read_directory(&directory, 0, 100, client::EntryAttributes::OfAll).await.unwrap();
    assert_eq!((again, cluster.requests_since(&before).len()), (first.clone(), 0));
    let last = first.items.last().unwrap().cookie;
    let rest = fs.read_directory(&directory, last, 100, client::EntryAttributes::OfAll).await.unwrap();
    assert!(rest.end && rest.items.is_empty());
    assert_eq!(cluster.requests_since(&before).len(), 0);
    let file = create(&fs, "another", READ_WRITE).await;
    let now = fs.read_directory(&directory, 0, 100, client::EntryAttributes::None).await.unwrap();
    assert!(now.items.iter().any(|item| item.name == b"another"));
    fs.close(file, None).await.unwrap();
}

/// Others wait for it.
#[tokio::test]
async fn what_holds_up_a_lock_that_the_mdt_asks_for_is_logged_after_a_second() {
    let (log, _guard) = Log::of_this_thread();
    let late = "locks that the MDT asks for have not been given back";
    let ask_for_all = async |cluster: &Cluster, fs: &FileSystem, inode: InodeNumber| {
        for lock in cluster.mdt.locks_on(fs.client_id(), inode) {
            cluster.withdraw(fs.client_id(), lock).await;
        }
    };
    // The cache above, for two seconds: it has a second of its own.
    let (cluster, fs, inode) = with_file().await;
    let above = Above::of(&fs, false);
    ask_for_all(&cluster, &fs, inode).await;
    let line = log.wait_for(&[late, "held_up_by=\"the cache above\""]).await;
    assert!(line.contains(&format!("inode=\"{inode}\"")) && line.contains("for 2 s"), "{line}");
    above.lets_go.send_replace(true);
    drop(above);

    // Opens of which the MDT does not know.
    let (cluster, fs, inode) = with_file().await;
    let flags = OpenFlags(open_flag::READ | open_flag::NO_ACCESS_TIME);
    let asked = fs.open(&Credentials::root(), inode, flags).await.unwrap();
    let unasked = fs.open(&Credentials::root(), inode, flags).await.unwrap();
    cluster.mdt.hold_answers(Some("register opens"));
    ask_for_all(&cluster, &fs, inode).await;
    let line = log.wait_for(&[late, "held_up_by=\"opens that the MDT has to know\""]).await;
    assert!(line.contains(&format!("inode=\"{inode}\"")) && line.contains("locks=1"), "{line}");
    assert!(!cluster.mdt.locks_on(fs.client_id(), inode).is_empty(), "it is given back afterwards");
    cluster.mdt.hold_answers(None);
    for file in [asked, unasked] {
        fs.close(file, None).await.unwrap();
    }

    // The answer of the MDT itself.
    let (cluster, fs, inode) = with_file().await;
    cluster.mdt.hold_answers(Some("cancel locks"));
    ask_for_all(&cluster, &fs, inode).await;
    log.wait_for(&[late, "held_up_by=\"the request to the MDT\""]).await;
    cluster.mdt.hold_answers(None);
}

/// A kernel that hangs holds up thousands of locks.
#[tokio::test]
async fn a_mount_logs_one_line_a_second_of_locks_that_are_held_up() {
    let (log, _guard) = Log::of_this_thread();
    let cluster = Cluster::new(65536, 1);
    cluster.mdt.grant_locks();
    let fs = cluster.mount().await;
    let above = Above::of(&fs, false);
    let mut locks = Vec::new();
    for number in 0..20 {
        let name = format!("file{number}");
        let file = create(&fs, &name, READ_WRITE).await;
        fs.close(file, None).await.unwrap();
        let found = fs.lookup(&Credentials::root(), ROOT, name.as_bytes()).await.unwrap();
        locks.extend(cluster.mdt.locks_on(fs.client_id(), found.inode));
    }
    let late = "locks that the MDT asks for have not been given back";
    let (spare, others) = locks.split_at(10);
    let begun = Instant::now();
    for lock in others {
        cluster.withdraw(fs.client_id(), *lock).await;
    }
    log.wait_for(&[late, "left_out=0"]).await;
    let counted = || {
        let left_out = |line: String| {
            let (_, count) = line.split_once("left_out=").expect("it says how many were left out");
            count.split(' ').next().unwrap().parse::<usize>().expect("a number")
        };
        log.lines(&[late]).into_iter().map(|line| 1 + left_out(line)).sum::<usize>()
    };
    // A later line counts those that were left out, unless it is left out itself.
    for lock in spare {
        cluster.withdraw(fs.client_id(), *lock).await;
        let asked = Instant::now();
        while counted() < above.told.lock().len() && asked.elapsed() < Duration::from_secs(4) {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        if counted() == above.told.lock().len() {
            break;
        }
    }
    let lines = log.lines(&[late]);
    assert_eq!(counted(), above.told.lock().len(), "each lock that is held up is counted: {lines:?}");
    assert!(counted() > 10 && lines.len() as u64 <= begun.elapsed().as_secs() + 1, "{} lines: {lines:?}", lines.len());
    above.lets_go.send_replace(true);
    others_run().await;
}
