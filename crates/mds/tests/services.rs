//! Requests that wait for other clients do not delay the requests that could end the wait: tested
//! with two service threads where a cluster has hundreds.

use crate::{check, common};

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use common::{
    ost::{GIB, NotingOst},
    *,
};
use lock::inode_locks::LockCounters;
use parking_lot::Mutex;
use rpc::{
    Call, Endpoint, Handler, Import, ImportOptions, Question, Recovery, Server, ServerOptions,
    message::{
        ClientReply, ClientRequest, Compound, MdtReply, MdtRequest, Request, RequestExtension, Step, StepInode,
        lock::{CacheMode, Enqueue, InodeBits, Resource, inode_bit},
        mdt::{
            ExclusiveBegin, ExclusiveEnd, ExclusivePurpose, Instantiate, LockFamily, LockMode, LockRange, Lookup, Open,
            OpenFlags, OpenId, Reclaim, SetLock, SetXattr, XattrMode, open_flag,
        },
    },
};
use rt::{BoxFuture, memory::MemoryTransport};
use tokio::sync::{Semaphore, watch};
use types::{ClientId, FsError, FsResult, InodeNumber, LockHandle, NodeKind, OstIndex, Slot, Xid};

/// Requests that wait, of each kind.
const WAITING: u64 = 5;

fn serve(fs: &Fixture) -> Arc<Server> {
    let server = Server::new(
        fs.seams.clone(),
        ServerOptions { service_threads: 2, ..ServerOptions::new(rpc::Keyring::of_test()) },
    );
    server.add_target("test-MDT0000", fs.mdt.clone(), Duration::from_secs(3600));
    server
}

fn connect(fs: &Fixture, server: &Arc<Server>, client: ClientId, recovery: Option<Arc<dyn Recovery>>) -> Import {
    let endpoint = Endpoint::Local(server.clone());
    Import::new(fs.seams.clone(), "test-MDT0000", endpoint, principal(client), ImportOptions::default(), recovery)
}

async fn call(import: &Import, request: MdtRequest) -> FsResult<MdtReply> {
    Ok(import.call(request).await?.reply)
}

/// What waiting requests of a client hear and do.
#[derive(Default)]
struct Waits {
    /// Callbacks after which they are sent again.
    again: watch::Sender<usize>,
    /// Requests that wait.
    waiting: AtomicUsize,
}

/// Asks, again when it is told to, until it need not wait.
fn insist(import: &Import, waits: &Arc<Waits>, request: MdtRequest) -> tokio::task::JoinHandle<FsResult<MdtReply>> {
    let (import, waits) = (import.clone(), waits.clone());
    tokio::spawn(async move {
        loop {
            let mut again = waits.again.subscribe();
            match call(&import, request.clone()).await {
                Ok(MdtReply::Waiting) => {
                    waits.waiting.fetch_add(1, Ordering::Relaxed);
                    again.changed().await.expect("the sender is kept");
                    waits.waiting.fetch_sub(1, Ordering::Relaxed);
                }
                outcome => return outcome,
            }
        }
    })
}

async fn create_open(import: &Import, name: &str, open: OpenId) -> InodeNumber {
    let request = create_request(ROOT, name, NodeKind::Regular, 0o644, Some((open, OpenFlags(WRITE))));
    created(call(import, MdtRequest::Create(root(), request)).await.unwrap()).entry.attributes.inode
}

fn lock(inode: InodeNumber, owner: u64) -> MdtRequest {
    let (family, mode, range) = (LockFamily::Posix, LockMode::Shared, LockRange { start: 0, end: u64::MAX });
    MdtRequest::SetLock(SetLock { inode, family, owner, pid: 1, range, mode, ticket: None })
}

#[tokio::test]
async fn the_holder_of_a_file_is_served_while_others_wait_for_it() {
    let fs = Fixture::new().await;
    let server = serve(&fs);
    let asked = Arc::new(Asked::default());
    let (holder, others) = (connect(&fs, &server, ALICE, None), connect(&fs, &server, BOB, Some(asked.clone())));
    let (open, size) = (OpenId(1000), 8192);
    let file = create_open(&holder, "f", open).await;
    let begin = |purpose| MdtRequest::ExclusiveBegin(root(), ExclusiveBegin { inode: file, open: Some(open), purpose });
    // Not empty, so that a truncation has to wait.
    call(&holder, begin(ExclusivePurpose::Truncate(size))).await.unwrap();
    let mut waiting = Vec::new();
    let look = Open { inode: file, open: OpenId(9), flags: OpenFlags(READ) };
    call(&others, MdtRequest::Open(root(), look)).await.unwrap();
    for number in 0..WAITING {
        let flags = OpenFlags(WRITE | open_flag::TRUNCATE);
        let create = create_request(ROOT, "f", NodeKind::Regular, 0o644, Some((OpenId(10 + number), flags)));
        let again = Open { inode: file, open: OpenId(20 + number), flags };
        for request in [MdtRequest::Create(root(), create), MdtRequest::Open(root(), again)] {
            waiting.push(insist(&others, &asked.waits, request));
        }
    }
    let all = waiting.len();
    let waits = || asked.waits.waiting.load(Ordering::Relaxed);
    eventually("all of them wait", async || waits() == all).await;
    assert_eq!(server.service("mdt").statistics().in_flight, 0, "and none occupies a thread");
    server.service("mdt").reset_statistics();
    let end = MdtRequest::ExclusiveEnd(ExclusiveEnd { inode: file, update: None });
    done(call(&holder, end).await.unwrap()).unwrap();
    assert_eq!(server.service("mdt").statistics().waiting_max, 0);
    eventually("they are sent again", async || waits() < all).await;
    // BOB's truncations came in its turn; its other users continue with its lock.
    for task in waiting {
        task.abort();
    }
}

/// Hears for which locks it is asked, and when requests are sent again.
#[derive(Default)]
struct Asked {
    locks: Mutex<Vec<LockHandle>>,
    waits: Arc<Waits>,
}

impl Recovery for Asked {
    fn recover(&self, _: &Import, _has_lost: bool) -> BoxFuture<'_, FsResult<()>> {
        Box::pin(std::future::ready(Ok(())))
    }

    fn call_back(&self, request: ClientRequest) -> BoxFuture<'static, FsResult<ClientReply>> {
        match request {
            ClientRequest::Blocking(blocking) => self.locks.lock().push(blocking.handle),
            ClientRequest::AskAgain(_) => self.waits.again.send_modify(|times| *times += 1),
            request => panic!("not expected: {request:?}"),
        }
        Box::pin(std::future::ready(Ok(ClientReply::Done)))
    }
}

#[tokio::test]
async fn changes_that_wait_for_cache_locks_delay_nobody() {
    let fs = Fixture::new().await;
    let server = serve(&fs);
    let asked = Arc::new(Asked::default());
    let (holder, others) = (connect(&fs, &server, BOB, Some(asked.clone())), connect(&fs, &server, ALICE, None));
    call(&holder, MdtRequest::Ping).await.unwrap();
    let mut waiting = Vec::new();
    for number in 0..WAITING {
        let file = create_open(&others, &format!("{number}"), OpenId(1000 + number)).await;
        let resource = Resource::Inode(file, InodeBits(inode_bit::XATTRS));
        let wanted = Some(Enqueue { resource, mode: CacheMode::Read, opportunistic: true });
        let look = Request::Mdt(MdtRequest::GetAttributes(file));
        let plain = Call::plain(BOB, Slot(1), Xid(number), look, bytes::Bytes::new());
        let call = Call { extension: RequestExtension { wanted, ..RequestExtension::default() }, ..plain };
        assert_eq!(fs.mdt.clone().handle(call).await.extension.granted.len(), 1);
        let (name, value, mode) = (b"user.a".to_vec(), b"1".to_vec(), XattrMode::Any);
        let set = MdtRequest::SetXattr(root(), SetXattr { inode: file, name, value, mode });
        let others = others.clone();
        waiting.push(tokio::spawn(async move { others.call(set).await.map(|answered| answered.reply) }));
    }
    let all = waiting.len();
    eventually("all of them wait", async || asked.locks.lock().len() == all).await;
    assert!(waiting.iter().all(|change| !change.is_finished()));
    assert_eq!(server.service("mdt").statistics().in_flight, all, "more than it has threads");
    let lookup = Lookup { parent: ROOT, name: b"0".to_vec() };
    entry(call(&others, MdtRequest::Lookup(root(), lookup)).await.unwrap()).unwrap();
    let handles = asked.locks.lock().clone();
    done(call(&holder, MdtRequest::CancelLocks(handles)).await.unwrap()).unwrap();
    for change in waiting {
        done(change.await.unwrap().unwrap()).unwrap();
    }
    assert_eq!(fs.mdt.cache_locks(), (0, LockCounters { granted: 5, revoked: 5, blocked: 5 }));
}

/// What finds no space waits until the OSTs were asked, up to a second.
#[tokio::test]
async fn requests_that_ask_osts_for_space_delay_nobody() {
    let network = MemoryTransport::new();
    let (ost, endpoint) = NotingOst::serve(&network, OstIndex(0));
    *ost.bytes_available.lock() = 0;
    let fs = Fixture::on_network(&network, Vec::new()).await.with_plain_files();
    let ost_refresh = Duration::from_secs(3600);
    fs.mdt.set_parameters(mds::Parameters { ost_refresh, ..fs.mdt.parameters() });
    fs.mdt.update_map(&[(OstIndex(0), endpoint, true)]);
    eventually("the OST has answered", async || fs.mdt.osts().iter().all(|(_, view)| view.report.is_some())).await;
    let server = serve(&fs);
    let client = connect(&fs, &server, BOB, None);
    call(&client, MdtRequest::Ping).await.unwrap();
    let service = server.service("mdt");
    let hold = ost.hold.lock().await;
    let mut waiting = Vec::new();
    for number in 0..WAITING {
        let (name, kind, mode, umask) = (format!("{number}").into_bytes(), NodeKind::Regular, 0o644, 0);
        let step = Step::Create { parent: StepInode::Known(ROOT), name, kind, mode, umask, layout: None, open: None };
        let compound = MdtRequest::Compound(Compound { who: root(), steps: vec![step] });
        waiting.push(change(&client, compound));
        let create = create_request(ROOT, &format!("{number}"), NodeKind::Regular, 0o644, None);
        waiting.push(change(&client, MdtRequest::Create(root(), create)));
    }
    // With two threads.
    eventually("more wait", async || service.statistics().in_flight as u64 > WAITING).await;
    call(&client, MdtRequest::GetAttributes(ROOT)).await.unwrap();
    drop(hold);
    for (number, request) in waiting.into_iter().enumerate() {
        match request.await.unwrap() {
            Ok(MdtReply::Compound(reply)) => assert_eq!(reply.error, Some(FsError::NoSpace)),
            reply => assert_eq!(reply, Err(FsError::NoSpace), "{number}"),
        }
    }
    *ost.bytes_available.lock() = GIB / 2;
    create_open(&client, "with space", OpenId(1)).await;
}

#[tokio::test]
async fn repairs_that_wait_for_cache_locks_delay_nobody() {
    let mut fs = Fixture::new().await;
    let file = fs.file(ROOT, "f").await;
    fs.damage(|store, batch| {
        let mut inode = check::inode_of(store, file);
        inode.attributes.links = 2;
        check::put_inode(batch, &inode);
    })
    .await;
    let server = serve(&fs);
    let asked = Arc::new(Asked::default());
    let holder = connect(&fs, &server, BOB, Some(asked.clone()));
    let repair = rpc::Principal::of_test(1, rpc::Role::Repair).claiming(ALICE);
    let endpoint = Endpoint::Local(server.clone());
    let others = Import::new(fs.seams.clone(), "test-MDT0000", endpoint, repair, ImportOptions::default(), None);
    call(&holder, MdtRequest::Ping).await.unwrap();
    let resource = Resource::Inode(file, InodeBits(inode_bit::ATTRIBUTES));
    let wanted = Some(Enqueue { resource, mode: CacheMode::Read, opportunistic: true });
    let look = Question { wanted, ..MdtRequest::GetAttributes(file).into() };
    assert_eq!(holder.call(look).await.unwrap().extension.granted.len(), 1);
    let checks: Vec<_> = (0..WAITING).map(|_| change(&others, MdtRequest::Check(root(), true))).collect();
    let service = server.service("mdt_readpage");
    // With two threads.
    eventually("all of them wait", async || service.statistics().in_flight == checks.len()).await;
    eventually("the lock is asked for", async || !asked.locks.lock().is_empty()).await;
    let handles = asked.locks.lock().clone();
    done(call(&holder, MdtRequest::CancelLocks(handles)).await.unwrap()).unwrap();
    let mut repaired = 0;
    for check in checks {
        let MdtReply::Findings(findings) = check.await.unwrap().unwrap() else { panic!("no findings") };
        repaired += findings.iter().filter(|finding| finding.repaired).count();
    }
    assert!(repaired >= 1, "its number of links is right");
}

/// Comes back with what it has, when it is let.
struct Returning {
    may: Semaphore,
    waits: Arc<Waits>,
    claims: Mutex<Reclaim>,
}

impl Returning {
    fn new() -> Arc<Self> {
        let claims = Mutex::new(Reclaim { done: true, ..Reclaim::default() });
        Arc::new(Self { may: Semaphore::new(0), waits: Arc::default(), claims })
    }
}

impl Recovery for Returning {
    fn recover(&self, import: &Import, _has_lost: bool) -> BoxFuture<'_, FsResult<()>> {
        let import = import.clone();
        Box::pin(async move {
            self.may.acquire().await.expect("never closed").forget();
            let claims = self.claims.lock().clone();
            done(call(&import, MdtRequest::Reclaim(claims)).await?)
        })
    }

    fn call_back(&self, request: ClientRequest) -> BoxFuture<'static, FsResult<ClientReply>> {
        assert_eq!(request, ClientRequest::AskAgain(None));
        self.waits.again.send_modify(|times| *times += 1);
        Box::pin(std::future::ready(Ok(ClientReply::Done)))
    }
}

#[tokio::test]
async fn a_client_comes_back_while_others_wait_for_it() {
    let mut fs = Fixture::new().await;
    let first = serve(&fs);
    let (early, late) = (Returning::new(), Returning::new());
    let (alice, bob) =
        (connect(&fs, &first, ALICE, Some(early.clone())), connect(&fs, &first, BOB, Some(late.clone())));
    let open = OpenId(1000);
    let file = create_open(&alice, "f", open).await;
    early.claims.lock().opens.push((file, open, OpenFlags(WRITE)));
    early.may.add_permits(1);
    call(&bob, MdtRequest::Ping).await.unwrap();
    fs.restart().await;
    let second = serve(&fs);
    first.stop().await;
    for import in [&alice, &bob] {
        import.set_address(Endpoint::Local(second.clone()));
    }
    let mut waiting = Vec::new();
    for number in 0..WAITING {
        let instantiate = Instantiate { inode: file, open, start: 0, end: 1 };
        waiting.push(insist(&alice, &early.waits, MdtRequest::Instantiate(instantiate)));
        waiting.push(insist(&alice, &early.waits, lock(file, number)));
    }
    let all = waiting.len();
    eventually("all of them wait", async || early.waits.waiting.load(Ordering::Relaxed) == all).await;
    late.may.add_permits(1);
    for task in waiting {
        task.await.unwrap().expect("granted once BOB is back");
    }
    for service in ["mdt", "mdt_recovery"] {
        assert_eq!(second.service(service).statistics().waiting_max, 0, "{service}");
    }
}

fn set_xattr(inode: InodeNumber) -> MdtRequest {
    let (name, value, mode) = (b"user.a".to_vec(), b"1".to_vec(), XattrMode::Any);
    MdtRequest::SetXattr(root(), SetXattr { inode, name, value, mode })
}

/// A change of which the caller may be gone when it is answered.
fn change(import: &Import, request: MdtRequest) -> tokio::task::JoinHandle<FsResult<MdtReply>> {
    let import = import.clone();
    tokio::spawn(async move { call(&import, request).await })
}

#[tokio::test]
async fn clients_that_end_while_each_waits_for_the_other_hold_nobody_up() {
    let fs = Fixture::new().await;
    let server = serve(&fs);
    let asked = Arc::new(Asked::default());
    let alice = connect(&fs, &server, ALICE, Some(asked.clone()));
    let bob = connect(&fs, &server, BOB, Some(asked.clone()));
    let other = connect(&fs, &server, ClientId(3), None);
    let mut changes = Vec::new();
    for (number, (holder, waits)) in [(&alice, &bob), (&bob, &alice)].into_iter().enumerate() {
        let file = create_open(&other, &format!("{number}"), OpenId(1000 + number as u64)).await;
        call(holder, MdtRequest::Ping).await.unwrap();
        let resource = Resource::Inode(file, InodeBits(inode_bit::XATTRS));
        let wanted = Some(Enqueue { resource, mode: CacheMode::Read, opportunistic: true });
        let look = Question { wanted, ..MdtRequest::GetAttributes(file).into() };
        assert_eq!(holder.call(look).await.unwrap().extension.granted.len(), 1);
        changes.push((file, change(waits, set_xattr(file))));
    }
    eventually("both wait", async || asked.locks.lock().len() == 2).await;
    let parameters = mds::Parameters { lock_timeout: Duration::from_millis(10), ..fs.mdt.parameters() };
    fs.mdt.set_parameters(parameters);
    for (file, _) in &changes {
        done(call(&other, set_xattr(*file)).await.unwrap()).unwrap();
    }
}

/// It had been told that its session was gone, and the change was made later. Found by the lab.
#[tokio::test]
async fn a_change_of_an_evicted_client_that_waits_for_a_lock_is_never_made() {
    let fs = Fixture::new().await;
    let server = serve(&fs);
    let asked = Arc::new(Asked::default());
    let (alice, bob) = (connect(&fs, &server, ALICE, None), connect(&fs, &server, BOB, Some(asked.clone())));
    let file = create_open(&alice, "f", OpenId(1000)).await;
    let resource = Resource::Inode(file, InodeBits(inode_bit::XATTRS));
    let wanted = Some(Enqueue { resource, mode: CacheMode::Read, opportunistic: true });
    let look = Question { wanted, ..MdtRequest::GetAttributes(file).into() };
    let granted = bob.call(look).await.unwrap().extension.granted;
    let waiting = change(&alice, set_xattr(file));
    eventually("BOB is asked for its lock", async || asked.locks.lock().len() == 1).await;
    assert!(server.evict("test-MDT0000", ALICE).await, "whatever BOB does");
    assert_eq!(waiting.await.unwrap(), Err(FsError::Evicted));
    let handles = granted.iter().map(|granted| granted.handle).collect();
    done(call(&bob, MdtRequest::CancelLocks(handles)).await.unwrap()).unwrap();
    let look = MdtRequest::GetXattr(root(), file, b"user.a".to_vec());
    assert_eq!(call(&bob, look).await, Err(FsError::NoData));
}

/// The same for one that waits for clients of before a restart.
#[tokio::test]
async fn a_change_of_an_evicted_client_that_waits_for_clients_of_before_is_never_made() {
    let mut fs = Fixture::new().await;
    fs.begin(BOB).await;
    let file = fs.file(ROOT, "f").await;
    fs.restart().await;
    let server = serve(&fs);
    let carol = ClientId(0xc);
    let waiting = change(&connect(&fs, &server, carol, None), set_xattr(file));
    eventually("it waits", async || server.service("mdt").statistics().in_flight == 1).await;
    assert!(server.evict("test-MDT0000", carol).await, "also one that comes back");
    assert_eq!(waiting.await.unwrap(), Err(FsError::Evicted));
    fs.recover().await;
    fs.reclaim(BOB, Reclaim { done: true, ..Reclaim::default() }).await.unwrap();
    let look = MdtRequest::GetXattr(root(), file, b"user.a".to_vec());
    assert_eq!(fs.call(BOB, look).await, Err(FsError::NoData));
}

/// Nobody knows what a client of before has cached.
#[tokio::test]
async fn after_a_restart_changes_wait_for_the_clients_of_before_and_reads_do_not() {
    let mut fs = Fixture::new().await;
    let first = serve(&fs);
    let (early, late) = (Returning::new(), Returning::new());
    let (alice, bob) =
        (connect(&fs, &first, ALICE, Some(early.clone())), connect(&fs, &first, BOB, Some(late.clone())));
    let file = create_open(&alice, "f", OpenId(1000)).await;
    call(&bob, MdtRequest::Ping).await.unwrap();
    early.may.add_permits(1);
    fs.restart().await;
    let second = serve(&fs);
    first.stop().await;
    for import in [&alice, &bob] {
        import.set_address(Endpoint::Local(second.clone()));
    }
    let waiting = change(&alice, set_xattr(file));
    eventually("it waits", async || second.service("mdt").statistics().in_flight == 1).await;
    let lookup = Lookup { parent: ROOT, name: b"f".to_vec() };
    entry(call(&alice, MdtRequest::Lookup(root(), lookup)).await.unwrap()).unwrap();
    assert!(!waiting.is_finished());
    late.may.add_permits(1);
    done(waiting.await.unwrap().unwrap()).unwrap();
}
