//! State shared by all tasks of a server: its seams and options, its services, and its current
//! targets and connections.
//!
//! Life cycle: made with its [`Server`](super::Server); every target and connection holds it.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering},
    },
};

use nrs::Facts;
use parking_lot::Mutex;
use rt::{Instant, Seams, Sender};
use tokio::sync::watch;

use super::{options::ServerOptions, served_target::ServedTarget, unproven::Unproven};
use crate::{auth::Key, service::Service};

/// See the module documentation.
pub(super) struct Shared {
    pub(super) seams: Seams,
    pub(super) options: ServerOptions,
    pub(super) services: Mutex<BTreeMap<&'static str, Arc<Service>>>,
    /// Weak, because targets share this: a server that ends with its process, as in the lab, leaves
    /// nothing behind.
    pub(super) targets: Mutex<BTreeMap<String, Weak<ServedTarget>>>,
    pub(super) target_next: AtomicU32,
    /// Open connections, to close them at the end.
    pub(super) connections: Mutex<BTreeMap<u64, Arc<dyn Sender>>>,
    pub(super) connection_next: AtomicU64,
    pub(super) unproven: Unproven,
    /// Of the tickets that returning clients show.
    pub(super) ticket_key: Key,
    pub(super) stopping: watch::Sender<bool>,
    /// The same, for every request to look at.
    pub(super) is_stopping: AtomicBool,
    /// Tasks that accept connections.
    pub(super) accepting: watch::Sender<usize>,
    /// Targets that are out of service because they panicked.
    pub(super) failed: watch::Sender<usize>,
}

impl Shared {
    /// Of a server without targets.
    pub(super) fn new(seams: Seams, options: ServerOptions) -> Arc<Self> {
        Arc::new(Self {
            ticket_key: options.keys.of_tickets(&*seams.entropy),
            seams,
            options,
            services: Mutex::default(),
            targets: Mutex::default(),
            target_next: AtomicU32::new(0),
            connections: Mutex::default(),
            connection_next: AtomicU64::new(0),
            unproven: Unproven::default(),
            stopping: watch::Sender::new(false),
            is_stopping: AtomicBool::new(false),
            accepting: watch::Sender::new(0),
            failed: watch::Sender::new(0),
        })
    }

    pub(super) fn now(&self) -> Instant {
        self.seams.clock.now()
    }

    pub(super) fn is_stopping(&self) -> bool {
        self.is_stopping.load(Ordering::SeqCst)
    }

    /// Completes when the server stops.
    pub(super) fn stopped(&self) -> impl Future<Output = ()> + Send + 'static {
        let mut stopping = self.stopping.subscribe();
        async move {
            // An error means that the server is gone altogether.
            let _ = stopping.wait_for(|stopping| *stopping).await;
        }
    }

    /// The service of this name; made on first use, with so many service threads.
    pub(super) fn service(&self, name: &'static str, threads: usize) -> Arc<Service> {
        let seams = (self.seams.clock.clone(), self.seams.spawn.clone());
        let make = || Service::new(seams, name, threads, self.options.queue_max);
        self.services.lock().entry(name).or_insert_with(make).clone()
    }

    /// Waiting requests of which this is true are executed as soon as there is a thread: something
    /// waits for their end.
    pub(super) fn release(&self, is_wanted: &dyn Fn(&Facts) -> bool) {
        let services: Vec<_> = self.services.lock().values().cloned().collect();
        for service in services {
            service.release(is_wanted);
        }
    }

    pub(super) fn target(&self, name: &str) -> Option<Arc<ServedTarget>> {
        self.targets.lock().get(name)?.upgrade()
    }
}
