//! The server half: the targets of one process, where they listen, their sessions and services.
//!
//! Life cycle: [`Server::new`], [`Server::add_target`], [`Server::listen`] (any number of times), [`Server::stop`]. A stopped
//! server is not started again; a new one shows its clients another incarnation.
//!
//! One task per listening address accepts; one task per connection reads (`connection`). A request is polled once where
//! it was read and becomes a task of its own only if it has to wait. Per target one task evicts sessions whose lease
//! has run out.
//!
//! What arrives after its caller has given up is not executed (module `session`), and what concerns an object waits for changes
//! of it whose callers may have given up since they arrived (module `overdue`).
//!
//! Downside: a connection stays on the core that its reader was given to, busy or not.

mod budget;
mod connection;
mod failing;
mod local;
mod overdue;
mod served_target;

use std::{
    collections::BTreeMap,
    io,
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use parking_lot::Mutex;
use rt::{Address, Instant, Listener, Seams, Sender, clock};
use tokio::sync::watch;
use types::{ClientId, FsError, limits::SESSION_SLOTS_MAX, limits::SESSIONS_PER_TARGET_MAX};

use crate::{
    handler::Handler,
    message::session::{SLOTS_MIN, VERSION_MAX, VERSION_MIN, feature},
    service::{SERVICE_THREADS_MAX, Service},
};
pub use budget::BYTES_MAX as BYTES_IN_WORK_MAX;
pub(crate) use local::{LocalLink, LocalOutcome};
use served_target::ServedTarget;

/// Settings of a [`Server`].
#[derive(Clone, Debug)]
pub struct ServerOptions {
    /// Slots each session gets, [`SLOTS_MIN`]..=[`SESSION_SLOTS_MAX`].
    pub slots: u16,
    /// Oldest protocol version this server speaks.
    pub version_min: u16,
    /// Newest protocol version this server speaks.
    pub version_max: u16,
    /// Feature bits this server supports.
    pub features: u64,
    /// Service threads of a service at its creation, unless its target says otherwise ([`Handler::service_threads`]).
    pub service_threads: usize,
    /// Requests that may wait in one service.
    pub queue_max: usize,
    /// Sessions of clients in other processes that one target keeps. Those who come back to a session of an earlier start have
    /// as much room again, so that newcomers cannot take their places.
    pub sessions_max: usize,
    /// A panic in a target's work takes this target out of service, and nothing else (module `failing`). Without it, it goes on
    /// to whoever polls: a simulation wants to stop where it is.
    pub contain_panics: bool,
}

impl Default for ServerOptions {
    fn default() -> Self {
        Self {
            slots: SESSION_SLOTS_MAX,
            version_min: VERSION_MIN,
            version_max: VERSION_MAX,
            features: feature::ALL,
            service_threads: 256,
            queue_max: 65536,
            sessions_max: SESSIONS_PER_TARGET_MAX,
            contain_panics: true,
        }
    }
}

/// One session, for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionInfo {
    /// The client.
    pub client: ClientId,
    /// Its host and process.
    pub client_name: String,
    /// Requests executing now.
    pub running: usize,
    /// Time since the last sign of life.
    pub idle: Duration,
}

/// What all tasks of a server share.
struct Shared {
    seams: Seams,
    options: ServerOptions,
    services: Mutex<BTreeMap<&'static str, Arc<Service>>>,
    /// Weak, because targets share this: a server that ends with its process, as in the lab, leaves nothing behind.
    targets: Mutex<BTreeMap<String, Weak<ServedTarget>>>,
    /// Open connections, to close them at the end.
    connections: Mutex<BTreeMap<u64, Arc<dyn Sender>>>,
    connection_next: AtomicU64,
    stopping: watch::Sender<bool>,
    /// The same, for every request to look at.
    is_stopping: AtomicBool,
    /// Tasks that accept connections.
    accepting: watch::Sender<usize>,
    /// Targets that are out of service because they panicked.
    failed: watch::Sender<usize>,
}

/// The targets of one process.
pub struct Server {
    shared: Arc<Shared>,
    targets: Mutex<BTreeMap<String, Arc<ServedTarget>>>,
}

impl Shared {
    fn now(&self) -> Instant {
        self.seams.clock.now()
    }

    fn is_stopping(&self) -> bool {
        self.is_stopping.load(Ordering::SeqCst)
    }

    /// Completes when the server stops.
    fn stopped(&self) -> impl Future<Output = ()> + Send + 'static {
        let mut stopping = self.stopping.subscribe();
        async move {
            // An error means that the server is gone altogether.
            let _ = stopping.wait_for(|stopping| *stopping).await;
        }
    }

    /// The service of this name; made on first use, with so many service threads.
    fn service(&self, name: &'static str, threads: usize) -> Arc<Service> {
        let make = || Service::new(self.seams.clock.clone(), name, threads, self.options.queue_max);
        self.services.lock().entry(name).or_insert_with(make).clone()
    }

    fn target(&self, name: &str) -> Option<Arc<ServedTarget>> {
        self.targets.lock().get(name)?.upgrade()
    }
}

impl Server {
    /// A server without targets; it does not listen yet.
    pub fn new(seams: Seams, options: ServerOptions) -> Arc<Self> {
        assert!((SLOTS_MIN..=SESSION_SLOTS_MAX).contains(&options.slots), "slots per session out of range");
        assert!(options.service_threads <= SERVICE_THREADS_MAX, "more service threads than any service may have");
        assert!(options.version_min <= options.version_max, "no protocol version is left");
        let shared = Shared {
            seams,
            options,
            services: Mutex::default(),
            targets: Mutex::default(),
            connections: Mutex::default(),
            connection_next: AtomicU64::new(0),
            stopping: watch::Sender::new(false),
            is_stopping: AtomicBool::new(false),
            accepting: watch::Sender::new(0),
            failed: watch::Sender::new(0),
        };
        Arc::new(Self { shared: Arc::new(shared), targets: Mutex::default() })
    }

    /// Serves `handler` under `name`, which must not be served yet; sessions without a request for `lease` are evicted.
    pub fn add_target(self: &Arc<Self>, name: &str, handler: Arc<dyn Handler>, lease: Duration) {
        for (service, threads) in handler.service_threads() {
            self.shared.service(service, *threads);
        }
        let target = ServedTarget::new(self.shared.clone(), name, handler, lease);
        let before = self.targets.lock().insert(name.to_owned(), target.clone());
        assert!(before.is_none(), "{name} is served already");
        self.shared.targets.lock().insert(name.to_owned(), Arc::downgrade(&target));
        self.shared.seams.spawn.spawn("leases", Box::pin(target.watch_leases()));
    }

    /// Serves this target no more: running requests finish, its clients' connections are closed. Clients wait for it to
    /// come back, here or elsewhere. False if there is none.
    pub async fn remove_target(&self, name: &str) -> bool {
        self.shared.targets.lock().remove(name);
        let Some(target) = self.targets.lock().remove(name) else { return false };
        target.retire().await;
        true
    }

    /// Listens on `address`; returns where (port 0 lets the system choose).
    pub async fn listen(self: &Arc<Self>, address: &Address) -> io::Result<Address> {
        let listener = self.shared.seams.transport.listen(address).await?;
        let address = listener.address();
        let shared = self.shared.clone();
        shared.accepting.send_modify(|count| *count += 1);
        let task = async move {
            accept(&shared, listener).await;
            shared.accepting.send_modify(|count| *count -= 1);
        };
        self.shared.seams.spawn.spawn("accept", Box::pin(task));
        Ok(address)
    }

    /// The service of this name, made on first use.
    pub fn service(&self, name: &'static str) -> Arc<Service> {
        self.shared.service(name, self.shared.options.service_threads)
    }

    /// All services in use, by name.
    pub fn services(&self) -> Vec<Arc<Service>> {
        self.shared.services.lock().values().cloned().collect()
    }

    /// Sessions of a target, by client; empty if there is no such target.
    pub fn sessions(&self, target: &str) -> Vec<SessionInfo> {
        self.shared.target(target).map(|target| target.sessions()).unwrap_or_default()
    }

    /// Panics in requests of this target since it is served. After the first it is out of service: a process that opens it anew
    /// takes it up from its journal.
    pub fn panics(&self, target: &str) -> u64 {
        self.shared.target(target).map_or(0, |target| target.failure.panics())
    }

    /// Completes when all targets of this server, of which it has some, are out of service because they panicked.
    pub async fn all_failed(&self) {
        let mut failed = self.shared.failed.subscribe();
        loop {
            let targets = self.targets.lock().len();
            // The sender is not dropped before this borrow of it ends.
            if targets > 0 && *failed.borrow_and_update() >= targets {
                return;
            }
            let _ = failed.changed().await;
        }
    }

    /// Ends a client's session at a target as if its lease had expired. False if there is none.
    pub async fn evict(&self, target: &str, client: ClientId) -> bool {
        match self.shared.target(target) {
            Some(target) => target.evict(client).await,
            None => false,
        }
    }

    /// Stops accepting, lets running requests finish, closes every connection. Clients wait for a server that comes
    /// back. In-process calls in progress finish; later ones wait like those of remote clients.
    pub async fn stop(&self) {
        self.shared.is_stopping.store(true, Ordering::SeqCst);
        self.shared.stopping.send_replace(true);
        // The addresses are free again when this returns. The sender is not dropped before this borrow of it ends.
        let _ = self.shared.accepting.subscribe().wait_for(|count| *count == 0).await;
        let targets: Vec<_> = self.targets.lock().values().cloned().collect();
        for target in targets {
            target.drain().await;
        }
        let connections = std::mem::take(&mut *self.shared.connections.lock());
        for sender in connections.into_values() {
            sender.close();
        }
    }

    /// Opens an in-process session.
    pub(crate) async fn connect_local(&self, connect: &crate::message::session::Connect) -> Result<LocalLink, FsError> {
        local::connect(&self.shared, connect).await
    }
}

/// Pause after a failed accept (out of descriptors, say), so that it does not spin.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Accepts connections until the server stops.
async fn accept(shared: &Arc<Shared>, mut listener: Box<dyn Listener>) {
    let mut stopped = std::pin::pin!(shared.stopped());
    loop {
        let accepted = tokio::select! {
            biased;
            () = &mut stopped => return,
            accepted = listener.accept() => accepted,
        };
        match accepted {
            Ok(connection) => {
                let task = connection::serve(shared.clone(), connection);
                shared.seams.spawn.spawn_spread("connection", Box::pin(task));
            }
            Err(error) => {
                tracing::warn!(address = %listener.address(), %error, "cannot accept a connection");
                tokio::select! {
                    biased;
                    () = &mut stopped => return,
                    () = clock::sleep(&*shared.seams.clock, ACCEPT_PAUSE) => {}
                }
            }
        }
    }
}
