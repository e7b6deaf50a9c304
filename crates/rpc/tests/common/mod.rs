//! A target that counts effects, and helpers for all tests here.

#![allow(dead_code, reason = "each test file uses a part")]

pub mod raw;

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use parking_lot::Mutex;
use rpc::{
    Answer, Call, Endpoint, Handler, Import, ImportOptions, Principal, Role, Server, ServerOptions, SessionEvent,
    message::{MdtReply, MdtRequest, OstRequest, Reply, Request, RequestExtension},
};
use rt::{BoxFuture, Seams};
use tokio::sync::Semaphore;
use types::{ClientId, Credentials, FsError, InodeNumber, Slot, Xid};

/// Name of the target in all tests.
pub const TARGET: &str = "stria-MDT0000";
/// The client in all tests.
pub const CLIENT: ClientId = ClientId(0xa6c8_9977_db6f_261f);
/// A lease that never runs out in a test.
pub const LONG_LEASE: Duration = Duration::from_secs(3600);

/// What survives a restart of the target: effects, and the last reply of each slot.
#[derive(Default)]
pub struct Disk {
    /// How often each numbered mutation took effect.
    pub effects: Mutex<BTreeMap<u64, u32>>,
    /// Last mutation per client and slot.
    pub replies: Mutex<BTreeMap<(ClientId, Slot), (Xid, Reply)>>,
}

/// A target whose mutation `ClearPrivileges(n)` counts effect `n` and answers with that many bytes
/// of bulk.
pub struct Counter {
    pub disk: Arc<Disk>,
    pub events: Mutex<Vec<SessionEvent>>,
    pub reads: AtomicU64,
    /// What was said beside the last request.
    pub extension: Mutex<RequestExtension>,
    /// Connections that began.
    pub begun: AtomicUsize,
    /// Sessions that have begun to end.
    pub ending: AtomicUsize,
    /// Requests that entered the handler.
    pub entered: AtomicUsize,
    /// `GetAttributes`, `SetLock`, `ChangeData` and `RemoveXattr` wait for a permit of this.
    pub gate: Semaphore,
    /// Session events take until they get a permit of this.
    pub events_gate: Option<Semaphore>,
    /// Mutations yield this often before they take effect, so that they overlap with everything
    /// else.
    pub yields: usize,
    /// Clients that may resume after a restart; `None`: all.
    pub known: Option<Vec<ClientId>>,
    /// Clients that begin no session.
    pub refused: Vec<ClientId>,
    pub era: u64,
    /// Repetitions of what a former start executed are answered by the handler.
    pub answers_repetitions: bool,
    /// Pings wait for the gate, too: nothing is answered, as if a device hung.
    pub holds_pings: bool,
}

impl Counter {
    pub fn new(disk: &Arc<Disk>) -> Arc<Self> {
        Arc::new(Self::base(disk))
    }

    pub fn base(disk: &Arc<Disk>) -> Self {
        Self {
            disk: disk.clone(),
            events: Mutex::default(),
            reads: AtomicU64::new(0),
            extension: Mutex::default(),
            begun: AtomicUsize::new(0),
            ending: AtomicUsize::new(0),
            entered: AtomicUsize::new(0),
            gate: Semaphore::new(0),
            events_gate: None,
            yields: 0,
            known: None,
            refused: Vec::new(),
            era: 0,
            answers_repetitions: false,
            holds_pings: false,
        }
    }

    pub fn events(&self) -> Vec<SessionEvent> {
        self.events.lock().clone()
    }

    /// The last mutation of a slot.
    fn last(&self, client: ClientId, slot: Slot) -> Option<Xid> {
        self.disk.replies.lock().get(&(client, slot)).map(|(xid, _)| *xid)
    }
}

/// The mutation with number `n`.
pub fn effect(n: u64) -> Request {
    Request::Mdt(MdtRequest::ClearPrivileges(InodeNumber(n)))
}

/// A request that waits for the handler's gate.
pub fn gated() -> Request {
    Request::Mdt(MdtRequest::GetAttributes(InodeNumber(1)))
}

/// The same, and it changes attributes.
pub fn gated_change() -> Request {
    Request::Mdt(MdtRequest::RemoveXattr(Credentials::root(), InodeNumber(1), b"user.name".to_vec()))
}

fn is_gated(request: &Request) -> bool {
    use MdtRequest::{ChangeData, GetAttributes, RemoveXattr, SetLock};
    matches!(request, Request::Mdt(GetAttributes(_) | SetLock(_) | ChangeData(_) | RemoveXattr(..)))
}

/// A request without effect.
pub fn read() -> Request {
    Request::Mdt(MdtRequest::StatFs)
}

pub fn done() -> Reply {
    Reply::Mdt(MdtReply::Done)
}

impl Handler for Counter {
    fn handle(self: Arc<Self>, call: Call) -> BoxFuture<'static, Answer> {
        Box::pin(async move {
            self.entered.fetch_add(1, Ordering::SeqCst);
            *self.extension.lock() = call.extension;
            if self.holds_pings && call.request == Request::Mdt(MdtRequest::Ping) {
                self.gate.acquire().await.expect("never closed").forget();
            }
            match call.request {
                Request::Mdt(MdtRequest::ClearPrivileges(_))
                    if self.answers_repetitions && self.last(call.client, call.slot) == Some(call.xid) =>
                {
                    Answer::new(Ok(done()))
                }
                Request::Mdt(MdtRequest::ClearPrivileges(InodeNumber(n))) => {
                    for _ in 0..self.yields {
                        tokio::task::yield_now().await;
                    }
                    *self.disk.effects.lock().entry(n).or_default() += 1;
                    self.disk.replies.lock().insert((call.client, call.slot), (call.xid, done()));
                    Answer::with_bulk(Ok(done()), call.bulk)
                }
                request if is_gated(&request) => {
                    self.gate.acquire().await.expect("never closed").forget();
                    Answer::new(Ok(done()))
                }
                Request::Mdt(MdtRequest::Unlink(..)) => Answer::new(Err(FsError::NotFound)),
                Request::Mdt(MdtRequest::ReadData(OstRequest::Read(read))) => {
                    self.reads.fetch_add(1, Ordering::SeqCst);
                    Answer::with_bulk(Ok(done()), vec![0; read.bytes as usize].into())
                }
                Request::Mdt(MdtRequest::Commit) => Answer::new(Err(FsError::Evicted)),
                Request::Mdt(_) => {
                    self.reads.fetch_add(1, Ordering::SeqCst);
                    Answer::with_bulk(Ok(done()), call.bulk)
                }
                _ => Answer::new(Err(FsError::NotSupported)),
            }
        })
    }

    fn service(&self, request: &Request) -> &'static str {
        match request {
            request if is_gated(request) => "gated",
            _ => "mdt",
        }
    }

    fn persistent_reply(&self, client: ClientId, slot: Slot) -> Option<(Xid, Reply)> {
        let kept = || self.disk.replies.lock().get(&(client, slot)).cloned();
        if self.answers_repetitions { None } else { kept() }
    }

    fn answers_repetition(&self, client: ClientId, slot: Slot) -> Option<Xid> {
        if self.answers_repetitions { self.last(client, slot) } else { None }
    }

    fn era(&self) -> u64 {
        self.era
    }

    fn may_resume(&self, client: ClientId) -> bool {
        self.known.as_ref().is_none_or(|known| known.contains(&client))
    }

    fn may_begin(&self, client: ClientId) -> bool {
        !self.refused.contains(&client)
    }

    fn session_ending(&self, _: SessionEvent) {
        self.ending.fetch_add(1, Ordering::SeqCst);
    }

    fn connection_begun(&self, _: ClientId) {
        self.begun.fetch_add(1, Ordering::SeqCst);
    }

    fn session_event(self: Arc<Self>, event: SessionEvent) -> BoxFuture<'static, ()> {
        self.events.lock().push(event);
        if let SessionEvent::Evicted(client) | SessionEvent::Closed(client) = event {
            self.disk.replies.lock().retain(|(owner, _), _| *owner != client);
        }
        Box::pin(async move {
            if let Some(gate) = &self.events_gate {
                gate.acquire().await.expect("never closed").forget();
            }
        })
    }
}

/// A server of one [`Counter`].
pub fn server(seams: &Seams, handler: &Arc<Counter>, lease: Duration) -> Arc<Server> {
    let server = Server::new(seams.clone(), ServerOptions::new(rpc::Keyring::of_test()));
    server.add_target(TARGET, handler.clone(), lease);
    server
}

/// Options for tests: everything happens soon.
pub fn quick() -> ImportOptions {
    ImportOptions {
        timeout: Duration::from_secs(20),
        resend: Duration::from_millis(40),
        connect_timeout: Duration::from_millis(500),
        backoff_min: Duration::from_millis(2),
        backoff_max: Duration::from_millis(20),
        ..ImportOptions::default()
    }
}

/// The id of the n-th client.
pub fn client(number: u64) -> ClientId {
    principal(number).client()
}

/// What all clients are.
pub const ROLE: Role = Role::Client;

/// The n-th client. The id of the first is [`CLIENT`].
pub fn principal(number: u64) -> Principal {
    Principal::of_test(number, ROLE)
}

pub fn import(seams: &Seams, endpoint: Endpoint, options: ImportOptions) -> Import {
    Import::new(seams.clone(), TARGET, endpoint, principal(1), options, None)
}

/// Where a server listens from now on.
pub async fn listen(server: &Arc<Server>) -> rt::Address {
    server.listen(&rt::Address::from("mds:1")).await.unwrap()
}

pub async fn call(import: &Import, request: Request) -> Result<Reply, FsError> {
    import.call(request).await.map(|answered| answered.reply)
}

/// Waits until `condition` holds; the test's own time limit is the bound.
pub async fn until(condition: impl Fn() -> bool) {
    while !condition() {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}
