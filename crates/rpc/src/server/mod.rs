//! The server half: the targets of one process, where they listen, their sessions and services.
//!
//! Life cycle: [`Server::new`], [`Server::add_target`], [`Server::listen`] (any number of times),
//! [`Server::stop`]. A stopped server is not started again; a new server has another incarnation,
//! which its clients see.
//!
//! One task per listening address accepts; one task per connection reads (`connection`). A request
//! is polled once in the task that read it and becomes a task of its own only if it has to wait.
//! Per target one task evicts sessions whose lease has run out.
//!
//! A request that arrives after its caller has given up is not executed (module `session`), and a
//! request that concerns an object waits for changes of it whose callers may have given up since
//! they arrived (module `overdue`).
//!
//! Downside: a connection stays on the core to which its reader was assigned, busy or not.

mod budget;
mod clients;
mod connection;
mod facts;
mod failing;
mod greeting;
mod kept;
mod local;
mod options;
mod overdue;
mod served_target;
mod shared;
mod unproven;

use std::{
    collections::BTreeMap,
    io,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use parking_lot::Mutex;
use rt::{Address, BoxFuture, Listener, Seams, clock};
use types::{ClientId, FsError, limits::SESSION_SLOTS_MAX};

use crate::{
    handler::{CallbackHandler, Handler},
    message::{
        ClientRequest,
        session::{Connect, SLOTS_MIN},
    },
    service::{SERVICE_THREADS_MAX, Service},
    session::CallbackResult,
};
pub(crate) use budget::memory_of;
pub use budget::{BYTES_MAX as BYTES_IN_WORK_MAX, URGENT_BYTES_MAX as URGENT_BYTES_IN_WORK_MAX};
use clients::ServedClients;
pub(crate) use local::{LocalLink, LocalOutcome, SlotToken};
pub use options::ServerOptions;
use served_target::ServedTarget;
pub use served_target::SessionInfo;
use shared::Shared;

/// The targets of one process.
pub struct Server {
    shared: Arc<Shared>,
    targets: Mutex<BTreeMap<String, Arc<ServedTarget>>>,
}

impl Server {
    /// A server without targets; it does not listen yet.
    pub fn new(seams: Seams, options: ServerOptions) -> Arc<Self> {
        assert!((SLOTS_MIN..=SESSION_SLOTS_MAX).contains(&options.slots), "slots per session out of range");
        assert!(options.service_threads <= SERVICE_THREADS_MAX, "more service threads than any service may have");
        assert!(options.version_min <= options.version_max, "no protocol version is left");
        Arc::new(Self { shared: Shared::new(seams, options), targets: Mutex::default() })
    }

    /// Serves `handler` under `name`, which must not be served yet; sessions without a request for
    /// `lease` are evicted.
    pub fn add_target(self: &Arc<Self>, name: &str, handler: Arc<dyn Handler>, lease: Duration) {
        let target = ServedTarget::new(self.shared.clone(), name, handler, lease);
        target.handler.served(Arc::new(ServedClients(Arc::downgrade(&target))));
        let before = self.targets.lock().insert(name.to_owned(), target.clone());
        assert!(before.is_none(), "{name} is already served");
        self.shared.targets.lock().insert(name.to_owned(), Arc::downgrade(&target));
        self.shared.seams.spawn.spawn("leases", Box::pin(target.watch_leases()));
    }

    /// Serves this target no more: running requests finish, its clients' connections are closed.
    /// Clients wait for it to come back, here or elsewhere. False if there is none.
    pub async fn remove_target(&self, name: &str) -> bool {
        self.shared.targets.lock().remove(name);
        let Some(target) = self.targets.lock().remove(name) else { return false };
        target.retire().await;
        true
    }

    /// Listens on `address`; returns where (port 0 lets the system choose).
    pub fn listen<'a>(self: &'a Arc<Self>, address: &'a Address) -> BoxFuture<'a, io::Result<Address>> {
        Box::pin(self.listen_inner(address))
    }

    async fn listen_inner(self: &Arc<Self>, address: &Address) -> io::Result<Address> {
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

    /// Panics in requests of this target since it is served. After the first it is out of service:
    /// a process that opens it again takes it up from its journal.
    pub fn panics(&self, target: &str) -> u64 {
        self.shared.target(target).map_or(0, |target| target.failure.panics())
    }

    /// Completes when all targets of this server, of which it has some, are out of service because
    /// they panicked.
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

    /// Makes a request to a client of a target, and waits for its answer, as long as its session
    /// exists. [`FsError::Evicted`]: it has none, or it ended; [`FsError::Busy`]: the client owes
    /// too many answers.
    pub async fn call_back(&self, target: &str, client: ClientId, request: ClientRequest) -> CallbackResult {
        let target = self.shared.target(target).ok_or(FsError::NoDevice)?;
        target.call_back(client, request).await
    }

    /// Ends a client's session at a target as if its lease had expired. False if there is none.
    pub async fn evict(&self, target: &str, client: ClientId) -> bool {
        match self.shared.target(target) {
            Some(target) => target.evict(client).await,
            None => false,
        }
    }

    /// Stops accepting, lets running requests finish, closes every connection. Clients wait for a
    /// server that comes back. In-process calls in progress finish; later ones wait like those of
    /// remote clients.
    pub async fn stop(&self) {
        self.shared.is_stopping.store(true, Ordering::SeqCst);
        self.shared.stopping.send_replace(true);
        // The addresses are free again when this returns. The sender is not dropped before this
        // borrow of it ends.
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
    pub(crate) async fn connect_local(
        &self,
        connect: &Connect,
        callbacks: Arc<dyn CallbackHandler>,
    ) -> Result<LocalLink, FsError> {
        local::connect(&self.shared, connect, callbacks).await
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
