//! What a client that answers no callbacks costs, and that it costs other clients nothing; nor does
//! one that never ends what others wait for.

use crate::common;

use std::{
    sync::{
        Arc, Weak,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use common::{
    caching::{SHOWN, chmod, wanted},
    *,
};
use mds::Mdt;
use parking_lot::Mutex;
use rpc::{
    Call, Clients, Handler, Parked, SessionEvent,
    message::{
        ClientReply, ClientRequest, MdtReply, MdtRequest, Request,
        client::LockCompleted,
        mdt::{ExclusiveBegin, ExclusiveEnd, ExclusivePurpose, LockFamily, LockMode, LockRange, SetLock, WaitTicket},
    },
};
use rt::{
    BoxFuture, Instant, Spawn,
    memory::{JumpingClock, RuntimeSpawn},
};
use tokio::sync::watch;
use types::{ClientId, FsError, FsResult, InodeNumber, LockHandle, Slot};

const MALLORY: ClientId = ClientId(0x666);
/// Notices that MALLORY causes, or tries to.
const NOTICES: u64 = 2000;
/// Tasks that notices of one client may take: deliveries, and an eviction. As many may callbacks
/// for its locks.
const TASKS_MAX: usize = 17;
/// Callbacks for locks that one client has to answer at a time.
const CALLBACKS_MAX: usize = 16;

/// Counts tasks for callbacks.
#[derive(Default)]
struct Tasks(Arc<AtomicUsize>);

impl Tasks {
    fn count(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }
}

impl Spawn for Tasks {
    fn spawn(&self, name: &'static str, future: BoxFuture<'static, ()>) {
        if !name.starts_with("notice") && name != "lock_callback" {
            return RuntimeSpawn.spawn(name, future);
        }
        let count = self.0.clone();
        count.fetch_add(1, Ordering::Relaxed);
        let counted = async move {
            future.await;
            count.fetch_sub(1, Ordering::Relaxed);
        };
        RuntimeSpawn.spawn(name, Box::pin(counted));
    }

    fn all_cores_ran(&self) -> BoxFuture<'static, ()> {
        RuntimeSpawn.all_cores_ran()
    }
}

/// Clients that answer at once, except MALLORY: it answers nothing before it is allowed to.
struct Deaf {
    mdt: Weak<Mdt>,
    answers: watch::Sender<bool>,
    evictions: watch::Sender<usize>,
    told: Mutex<Vec<(ClientId, ClientRequest)>>,
}

impl Deaf {
    fn told(&self, client: ClientId) -> Vec<ClientRequest> {
        let told = self.told.lock();
        told.iter().filter(|(to, _)| *to == client).map(|(_, request)| request.clone()).collect()
    }
}

impl Clients for Deaf {
    fn call_back(&self, client: ClientId, request: ClientRequest) -> BoxFuture<'static, FsResult<ClientReply>> {
        self.told.lock().push((client, request));
        let (mut answers, mut evictions) = (self.answers.subscribe(), self.evictions.subscribe());
        Box::pin(async move {
            if client != MALLORY {
                return Ok(ClientReply::Done);
            }
            tokio::select! {
                _ = answers.wait_for(|answers| *answers) => Ok(ClientReply::Done),
                _ = evictions.changed() => Err(FsError::Evicted),
            }
        })
    }

    fn evict(&self, client: ClientId) -> BoxFuture<'static, bool> {
        assert_eq!(client, MALLORY, "nobody else is evicted");
        self.evictions.send_modify(|evictions| *evictions += 1);
        let mdt = self.mdt.upgrade();
        Box::pin(async move {
            let Some(mdt) = mdt else { return false };
            mdt.session_event(SessionEvent::Evicted(client)).await;
            true
        })
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

/// ALICE, MALLORY, and a file.
struct Scene {
    fs: Fixture,
    tasks: Arc<Tasks>,
    clients: Arc<Deaf>,
    file: InodeNumber,
}

impl Scene {
    async fn new(set: impl FnOnce(&mut Fixture)) -> Self {
        let mut fs = Fixture::new().await;
        let tasks = Arc::new(Tasks::default());
        fs.seams.spawn = tasks.clone();
        set(&mut fs);
        fs.restart_and_recover().await;
        let clients = Arc::new(Deaf {
            mdt: Arc::downgrade(&fs.mdt),
            answers: watch::Sender::new(false),
            evictions: watch::Sender::new(0),
            told: Mutex::default(),
        });
        fs.mdt.clone().served(clients.clone());
        let file = fs.file(ROOT, "f").await;
        let scene = Self { fs, tasks, clients, file };
        scene.begin_mallory().await;
        scene
    }

    async fn begin_mallory(&self) {
        self.fs.begin(MALLORY).await;
        self.fs.open(MALLORY, &root(), self.file, READ).await.unwrap();
    }

    async fn lock(&self, owner: u64, ticket: u64) -> FsResult<MdtReply> {
        let (inode, family, mode) = (self.file, LockFamily::Posix, LockMode::Exclusive);
        let (range, ticket) = (LockRange { start: 0, end: u64::MAX }, Some(WaitTicket(ticket)));
        self.fs.call(MALLORY, MdtRequest::SetLock(SetLock { inode, family, owner, pid: 1, range, mode, ticket })).await
    }

    async fn unlock(&self, owner: u64) -> FsResult<MdtReply> {
        let (inode, family, mode) = (self.file, LockFamily::Posix, LockMode::Unlock);
        let range = LockRange { start: 0, end: u64::MAX };
        let unlock = SetLock { inode, family, owner, pid: 1, range, mode, ticket: None };
        self.fs.call(MALLORY, MdtRequest::SetLock(unlock)).await
    }

    async fn begin(&self, client: ClientId) -> MdtReply {
        let begin = ExclusiveBegin { inode: self.file, open: None, purpose: ExclusivePurpose::Truncate(4096) };
        self.fs.call(client, MdtRequest::ExclusiveBegin(root(), begin)).await.unwrap()
    }

    /// MALLORY is granted a lock on the file, ALICE changes it, and MALLORY gives the lock back
    /// when it has heard, which it does `heard_max` times. ALICE does not wait for more.
    async fn lock_and_give_back(&self, heard_max: usize) {
        let revoked = self.fs.mdt.cache_locks().1.revoked;
        let heard = heard_max.min(self.clients.told(MALLORY).len() + 1);
        let xid = self.fs.next_xid(MALLORY);
        let request = Request::Mdt(MdtRequest::GetAttributes(self.file));
        let plain = Call::plain(MALLORY, Slot(0), xid, request, Bytes::new());
        let answer = self.fs.mdt.clone().handle(Call { extension: wanted(self.file, SHOWN), ..plain }).await;
        let handles: Vec<LockHandle> = answer.extension.granted.iter().map(|granted| granted.handle).collect();
        assert_eq!(handles.len(), 1);
        let give_back = async {
            let is_asked = async || self.fs.mdt.cache_locks().1.revoked == revoked + 1;
            eventually("the lock is asked for", is_asked).await;
            eventually("it hears", async || self.clients.told(MALLORY).len() == heard).await;
            done(self.fs.call(MALLORY, MdtRequest::CancelLocks(handles)).await.unwrap()).unwrap();
        };
        let (changed, ()) = tokio::join!(self.fs.call(ALICE, chmod(self.file, 0o600)), give_back);
        entry(changed.unwrap()).unwrap();
    }

    async fn end(&self, client: ClientId) {
        let end = MdtRequest::ExclusiveEnd(ExclusiveEnd { inode: self.file, update: None });
        done(self.fs.call(client, end).await.unwrap()).unwrap();
    }
}

fn again(inode: InodeNumber) -> ClientRequest {
    ClientRequest::AskAgain(Some(inode))
}

/// A client queues for an exclusive data lock and gives up its place, which tells its other users.
#[tokio::test]
async fn a_client_is_told_to_ask_again_for_an_inode_by_one_callback_at_a_time() {
    let scene = Scene::new(|_| {}).await;
    assert!(matches!(scene.begin(ALICE).await, MdtReply::ExclusiveGranted(_)));
    for _ in 0..NOTICES {
        assert_eq!(scene.begin(MALLORY).await, MdtReply::Waiting);
        scene.end(MALLORY).await;
        tokio::task::yield_now().await;
    }
    assert!(scene.tasks.count() <= TASKS_MAX, "{} tasks", scene.tasks.count());
    assert_eq!(scene.clients.told(MALLORY), [again(scene.file)], "more are not sent before it is answered");
    scene.clients.answers.send_replace(true);
    eventually("the last one came after it was sent", async || scene.clients.told(MALLORY).len() == 2).await;
    eventually("no task stays", async || scene.tasks.count() == 0).await;
    assert_eq!(scene.clients.told(MALLORY), [again(scene.file), again(scene.file)]);
    assert_eq!(*scene.clients.evictions.borrow(), 0, "it has few notices");
}

/// A client's owners lock the same range in turn, which completes a request each time.
#[tokio::test]
async fn a_client_that_is_granted_locks_and_hears_nothing_is_evicted() {
    const MAX: usize = 100;
    let scene = Scene::new(|fs| fs.options.notices_per_client_max = MAX).await;
    done(scene.lock(0, 0).await.unwrap()).unwrap();
    let mut granted = 0;
    while granted < NOTICES && *scene.clients.evictions.borrow() == 0 {
        if scene.lock(granted + 1, granted + 1).await != Ok(MdtReply::Queued) || scene.unlock(granted).await.is_err() {
            break;
        }
        granted += 1;
        assert!(scene.tasks.count() <= TASKS_MAX, "{} tasks", scene.tasks.count());
        tokio::task::yield_now().await;
    }
    assert!((MAX as u64..NOTICES).contains(&granted), "evicted after {granted} notices");
    eventually("no task stays", async || scene.tasks.count() == 0).await;
    assert_eq!(*scene.clients.evictions.borrow(), 1);
    assert!(scene.clients.told(MALLORY).len() < TASKS_MAX, "what was not sent is dropped");

    // Its next session is told as any other.
    scene.clients.told.lock().clear();
    scene.clients.answers.send_replace(true);
    scene.begin_mallory().await;
    done(scene.lock(1, 1).await.unwrap()).unwrap();
    assert_eq!(scene.lock(2, 2).await, Ok(MdtReply::Queued));
    done(scene.unlock(1).await.unwrap()).unwrap();
    let completed = LockCompleted { ticket: WaitTicket(2), outcome: Ok(()) };
    let expected = [ClientRequest::LockCompleted(completed)];
    eventually("it is told", async || scene.clients.told(MALLORY) == expected).await;
}

/// All tasks of a silent client are taken: another client is told at once.
#[tokio::test]
async fn a_client_that_hears_nothing_delays_no_other() {
    let scene = Scene::new(|_| {}).await;
    done(scene.lock(0, 0).await.unwrap()).unwrap();
    for owner in 0..100 {
        assert_eq!(scene.lock(owner + 1, owner + 1).await, Ok(MdtReply::Queued));
        done(scene.unlock(owner).await.unwrap()).unwrap();
    }
    assert!(matches!(scene.begin(MALLORY).await, MdtReply::ExclusiveGranted(_)));
    assert_eq!(scene.begin(ALICE).await, MdtReply::Waiting);
    scene.end(MALLORY).await;
    eventually("ALICE is told", async || scene.clients.told(ALICE) == [again(scene.file)]).await;
    scene.clients.answers.send_replace(true);
    eventually("MALLORY is told everything", async || scene.clients.told(MALLORY).len() == 100).await;
    let told = scene.clients.told(MALLORY).into_iter().map(|request| match request {
        ClientRequest::LockCompleted(completed) => completed.ticket.0,
        request => panic!("not expected: {request:?}"),
    });
    assert!(told.eq(1..=100), "in the order of the grants");
    assert!(tokio::time::timeout(Duration::from_secs(30), scene.fs.mdt.stop()).await.is_ok());
}

/// A client gives locks back and answers no callback for them; and connects again and again, which
/// keeps its session alive.
#[tokio::test]
async fn a_client_that_gives_locks_back_and_answers_nothing_is_evicted() {
    let scene = Scene::new(|_| {}).await;
    for round in 0..400 {
        scene.lock_and_give_back(CALLBACKS_MAX).await;
        assert!(scene.tasks.count() <= CALLBACKS_MAX, "{} tasks", scene.tasks.count());
        if round % 100 == 50 {
            scene.fs.mdt.connection_begun(MALLORY);
        }
    }
    assert_eq!((scene.tasks.count(), scene.clients.told(MALLORY).len()), (CALLBACKS_MAX, CALLBACKS_MAX));
    assert_eq!(*scene.clients.evictions.borrow(), 0, "its time is not over");
    let timeouts = scene.fs.mdt.lock_timeouts();
    set_lock_timeout(&scene, Duration::from_millis(80));
    eventually("MALLORY is evicted", async || *scene.clients.evictions.borrow() == 1).await;
    eventually("no task stays", async || scene.tasks.count() == 0).await;
    assert_eq!(scene.clients.told(MALLORY).len(), CALLBACKS_MAX, "it is asked for no lock that it has given back");
    assert_eq!(scene.fs.mdt.lock_timeouts(), timeouts + 1);
}

/// The same, but it answers: its callbacks cost it nothing, however short the time is.
#[tokio::test]
async fn a_client_that_answers_callbacks_and_gives_locks_back_stays() {
    const TIMEOUT: Duration = Duration::from_millis(400);
    let scene = Scene::new(|_| {}).await;
    scene.clients.answers.send_replace(true);
    set_lock_timeout(&scene, TIMEOUT);
    let begun = std::time::Instant::now();
    while begun.elapsed() < 4 * TIMEOUT {
        scene.lock_and_give_back(usize::MAX).await;
    }
    eventually("no task stays", async || scene.tasks.count() == 0).await;
    assert!(scene.clients.told(MALLORY).len() > CALLBACKS_MAX);
    assert_eq!(*scene.clients.evictions.borrow(), 0);
}

/// A client renews its lease, and does not end its truncation.
#[tokio::test]
async fn a_client_that_does_not_end_a_truncation_is_evicted_when_others_have_waited_long() {
    let clock = JumpingClock::default();
    let scene = Scene::new(|fs| fs.seams.clock = Arc::new(clock.clone())).await;
    assert!(matches!(scene.begin(MALLORY).await, MdtReply::ExclusiveGranted(_)));
    let pass = async || {
        clock.jump(Duration::from_secs(3));
        tokio::time::sleep(Duration::from_millis(1)).await;
    };
    for _ in 0..300 {
        pass().await;
    }
    assert_eq!(*scene.clients.evictions.borrow(), 0, "nobody waits");
    assert_eq!(scene.begin(ALICE).await, MdtReply::Waiting);
    for _ in 0..199 {
        pass().await;
    }
    assert_eq!(*scene.clients.evictions.borrow(), 0, "not for 10 minutes");
    let is_evicted = async || {
        pass().await;
        *scene.clients.evictions.borrow() == 1
    };
    eventually("MALLORY is evicted", is_evicted).await;
}

fn set_lock_timeout(scene: &Scene, lock_timeout: Duration) {
    let parameters = mds::Parameters { lock_timeout, ..scene.fs.mdt.parameters() };
    scene.fs.mdt.set_parameters(parameters);
}
