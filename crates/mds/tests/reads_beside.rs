//! Requests that only read, on other threads than the changes beside them: they see changes whole,
//! and all that have been answered; and with a lock goes what is current when it is granted.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
};

use bytes::Bytes;
use parking_lot::Mutex;
use rpc::{
    Call, Clients, Handler, Parked,
    message::{
        ClientReply, ClientRequest, MdtReply, MdtRequest, Reply, Request, RequestExtension,
        lock::{InodeBits, Resource, inode_bit::ATTRIBUTES},
        mdt::{Rename, RenameMode, SourceData},
    },
};
use rt::{BoxFuture, Instant};
use tokio::{runtime, task::spawn_blocking};
use types::{ClientId, FsError, FsResult, InodeNumber, LockHandle, SetAttributes, Slot, Xid};

use super::common::{
    ALICE, BOB, Fixture, READ, ROOT,
    caching::{CAROL, lookup, wanted},
    entry, root,
};

/// Changes of each test.
const ROUNDS: u32 = 400;

/// A client's requests from a thread, in a slot of its own.
struct Sender {
    mdt: Arc<mds::Mdt>,
    client: ClientId,
    slot: Slot,
    xid: u64,
}

impl Sender {
    fn new(fs: &Fixture, client: ClientId, slot: u16) -> Self {
        Self { mdt: fs.mdt.clone(), client, slot: Slot(slot), xid: 0 }
    }

    async fn send(&mut self, request: MdtRequest) -> FsResult<MdtReply> {
        self.send_with(request, RequestExtension::default()).await.0
    }

    /// The reply, and the attributes' lock if it came along.
    async fn send_with(
        &mut self,
        request: MdtRequest,
        extension: RequestExtension,
    ) -> (FsResult<MdtReply>, Option<LockHandle>) {
        self.xid += 1;
        let plain = Call::plain(self.client, self.slot, Xid(self.xid), Request::Mdt(request), Bytes::new());
        let answer = self.mdt.clone().handle(Call { extension, ..plain }).await;
        let reply = answer.reply.map(|reply| match reply {
            Reply::Mdt(reply) => reply,
            other => panic!("an MDT answered {other:?}"),
        });
        let is_attributes =
            |resource| matches!(resource, Resource::Inode(_, bits) if bits.meets(InodeBits(ATTRIBUTES)));
        let lock = answer.extension.granted.iter().find(|lock| is_attributes(lock.resource)).map(|lock| lock.handle);
        (reply, lock)
    }

    /// Owner and group.
    async fn owner(&mut self, inode: InodeNumber) -> (u32, u32) {
        let reply = self.send(MdtRequest::GetAttributes(inode)).await.expect("it exists");
        let attributes = entry(reply).expect("an inode").attributes;
        (attributes.uid, attributes.gid)
    }
}

fn chown(inode: InodeNumber, to: u32) -> MdtRequest {
    let changes = SetAttributes { uid: Some(to), gid: Some(to), ..SetAttributes::default() };
    MdtRequest::SetAttributes(root(), inode, changes)
}

fn rename(parent: InodeNumber, name: &str, new_name: &str, mode: RenameMode) -> MdtRequest {
    let (name, new_name) = (name.into(), new_name.into());
    let rename = Rename {
        parent,
        name,
        new_parent: parent,
        new_name,
        mode,
        source_data: SourceData::AsIs,
        mdt_era: None,
        same_directory: false,
    };
    MdtRequest::Rename(root(), rename)
}

/// Runs all on threads of their own, until they end.
async fn on_threads(bodies: Vec<BoxFuture<'static, ()>>) {
    let threads = bodies.into_iter().map(|body| {
        spawn_blocking(|| {
            runtime::Builder::new_current_thread().enable_all().build().expect("it starts").block_on(body)
        })
    });
    for thread in threads.collect::<Vec<_>>() {
        thread.await.expect("no thread panics");
    }
}

/// What the thread with the changes tells the others: its last change that was answered, and that
/// there are no more, also if it panics.
#[derive(Default)]
struct Progress {
    answered: AtomicU32,
    is_over: AtomicBool,
}

struct Over(Arc<Progress>);

impl Drop for Over {
    fn drop(&mut self) {
        self.0.is_over.store(true, Ordering::Release);
    }
}

#[tokio::test]
async fn readers_see_every_change_that_was_answered_and_no_half_of_one() {
    let fs = Fixture::new().await;
    fs.begin(BOB).await;
    let file = fs.file(ROOT, "file").await;
    let progress: Arc<Progress> = Arc::default();
    let mut bodies: Vec<BoxFuture<'static, ()>> = Vec::new();
    for slot in 1..=2 {
        let (mut bob, progress) = (Sender::new(&fs, BOB, slot), progress.clone());
        bodies.push(Box::pin(async move {
            let mut last = 0;
            while !progress.is_over.load(Ordering::Acquire) {
                let answered = progress.answered.load(Ordering::Acquire);
                let by_number = bob.owner(file).await;
                let found = entry(bob.send(lookup(ROOT, "file")).await.expect("it is there")).expect("it is a file");
                for (uid, gid) in [by_number, (found.attributes.uid, found.attributes.gid)] {
                    assert_eq!(uid, gid, "half of a change");
                    assert!(uid >= answered, "the change to {answered} was answered, and {uid} is seen");
                    assert!(uid >= last, "a change is undone");
                    last = uid;
                }
            }
        }));
    }
    let mut alice = Sender::new(&fs, ALICE, 1);
    bodies.push(Box::pin(async move {
        let over = Over(progress);
        for round in 1..=ROUNDS {
            alice.send(chown(file, round)).await.expect("root may");
            over.0.answered.store(round, Ordering::Release);
        }
    }));
    on_threads(bodies).await;
    assert_eq!(fs.stat(file).await.expect("it exists").attributes.uid, ROUNDS);
}

/// A file has one of two names, and two files change theirs.
#[tokio::test]
async fn a_listing_shows_renames_whole() {
    let fs = Fixture::new().await;
    fs.begin(BOB).await;
    let directory = fs.mkdir(ROOT, "directory").await;
    let moving = fs.file(directory, "here").await;
    let pair = [fs.file(directory, "left").await, fs.file(directory, "right").await];
    let progress: Arc<Progress> = Arc::default();
    let mut bodies: Vec<BoxFuture<'static, ()>> = Vec::new();
    for slot in 1..=2 {
        let (open, _) = fs.open(BOB, &root(), directory, READ).await.expect("it opens");
        let (mut bob, progress) = (Sender::new(&fs, BOB, slot), progress.clone());
        bodies.push(Box::pin(async move {
            while !progress.is_over.load(Ordering::Acquire) {
                let read = rpc::message::mdt::ReadDirectory {
                    inode: directory,
                    open,
                    cookie: 0,
                    entries_max: 100,
                    attributes: true,
                    unasked: None,
                };
                let reply = bob.send(MdtRequest::ReadDirectory(read)).await.expect("it is read");
                let MdtReply::Directory(page, true) = reply else { panic!("not all of it: {reply:?}") };
                let names: BTreeMap<_, _> = page.into_iter().map(|found| (found.name, found.inode)).collect();
                let of = |name: &str| names.get(name.as_bytes()).copied();
                assert_eq!(names.len(), 5, "{names:?}");
                assert!([of("here"), of("there")].contains(&Some(moving)), "{names:?}");
                let seen = [of("left"), of("right")].map(|inode| inode.expect("the name stays"));
                assert!(seen == pair || seen == [pair[1], pair[0]], "half of an exchange: {names:?}");
            }
        }));
    }
    let mut alice = Sender::new(&fs, ALICE, 1);
    bodies.push(Box::pin(async move {
        let _over = Over(progress);
        for _ in 0..ROUNDS / 4 {
            for (name, new_name) in [("here", "there"), ("there", "here")] {
                alice.send(rename(directory, name, new_name, RenameMode::Replace)).await.expect("it is renamed");
                alice.send(rename(directory, "left", "right", RenameMode::Exchange)).await.expect("they change");
            }
        }
    }));
    on_threads(bodies).await;
}

/// What clients keep under locks, and the locks that they were asked for before they knew of them.
#[derive(Default)]
struct Kept {
    owners: BTreeMap<LockHandle, u32>,
    asked: Vec<LockHandle>,
}

/// Clients that give locks back as soon as they are asked for them.
struct GiveBack {
    mdt: Weak<mds::Mdt>,
    kept: Arc<Mutex<Kept>>,
}

impl Clients for GiveBack {
    /// A lock that its client does not know of yet is given back when it does.
    fn call_back(&self, _: ClientId, request: ClientRequest) -> BoxFuture<'static, FsResult<ClientReply>> {
        let outcome = match request {
            ClientRequest::Blocking(blocking) => {
                let mut kept = self.kept.lock();
                match kept.owners.remove(&blocking.handle) {
                    Some(_) => Err(FsError::NotFound),
                    None => {
                        kept.asked.push(blocking.handle);
                        Ok(ClientReply::Done)
                    }
                }
            }
            _ => Ok(ClientReply::Done),
        };
        assert!(self.mdt.strong_count() > 0, "its clients are asked as long as it exists");
        Box::pin(std::future::ready(outcome))
    }

    fn evict(&self, _: ClientId) -> BoxFuture<'static, bool> {
        panic!("nobody is late")
    }

    fn lease_end(&self, _: ClientId) -> Option<Instant> {
        None
    }

    fn stopped(&self) -> BoxFuture<'static, ()> {
        Box::pin(std::future::pending())
    }

    fn park(&self, _: &'static str) -> Option<Parked> {
        None
    }
}

/// When a change is answered, nobody keeps what was before it under a lock: neither a client that
/// has its reply, nor one whose reply is under way.
#[tokio::test]
async fn with_a_lock_goes_what_is_current() {
    let fs = Fixture::new().await;
    let file = fs.file(ROOT, "file").await;
    let kept: Arc<Mutex<Kept>> = Arc::default();
    fs.mdt.served(Arc::new(GiveBack { mdt: Arc::downgrade(&fs.mdt), kept: kept.clone() }));
    let (progress, grants): (Arc<Progress>, Arc<AtomicU32>) = Default::default();
    let mut bodies: Vec<BoxFuture<'static, ()>> = Vec::new();
    for (slot, client) in [(1, BOB), (2, CAROL)] {
        fs.begin(client).await;
        let (mut sender, progress, kept) = (Sender::new(&fs, client, slot), progress.clone(), kept.clone());
        let grants = grants.clone();
        bodies.push(Box::pin(async move {
            while !progress.is_over.load(Ordering::Acquire) {
                let request = MdtRequest::GetAttributes(file);
                let (reply, lock) = sender.send_with(request, wanted(file, ATTRIBUTES)).await;
                let owner = entry(reply.expect("it exists")).expect("an inode").attributes.uid;
                let Some(handle) = lock else { continue };
                grants.fetch_add(1, Ordering::Relaxed);
                let is_asked = {
                    let mut kept = kept.lock();
                    let is_asked = kept.asked.contains(&handle);
                    kept.asked.retain(|asked| *asked != handle);
                    if !is_asked {
                        kept.owners.insert(handle, owner);
                    }
                    is_asked
                };
                if is_asked {
                    sender.send(MdtRequest::CancelLocks(vec![handle])).await.expect("it is given back");
                }
            }
        }));
    }
    let mut alice = Sender::new(&fs, ALICE, 1);
    bodies.push(Box::pin(async move {
        let over = Over(progress);
        for round in 1..=ROUNDS {
            alice.send(chown(file, round)).await.expect("root may");
            let old: Vec<_> = kept.lock().owners.values().copied().filter(|owner| *owner < round).collect();
            assert!(old.is_empty(), "the change to {round} was answered, and {old:?} are kept under locks");
            over.0.answered.store(round, Ordering::Release);
        }
    }));
    on_threads(bodies).await;
    assert!(grants.load(Ordering::Relaxed) > 0, "locks were granted");
}
