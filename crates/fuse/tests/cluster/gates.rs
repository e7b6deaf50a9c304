//! Holds chosen messages between the clients and the targets, until a test lets them go. So a test
//! knows that one side waits before the other one acts, without looking at a clock.

use std::{sync::Arc, time::Duration};

use parking_lot::{Condvar, Mutex};
use rpc::{
    Answer, Call, Clients, Handler, Parked, SessionEvent,
    message::{ClientReply, ClientRequest, Reply, Request},
};
use rt::{BoxFuture, Instant};
use tokio::sync::watch;
use types::{ClientId, FsResult, Slot, Xid};

/// After so long without the message that it waits for, a test has failed.
const TIMEOUT: Duration = Duration::from_secs(30);

/// A message on its way.
#[derive(Clone, Copy, Debug)]
pub enum Message<'a> {
    /// From a client; not executed yet.
    Request(&'a Request),
    /// The answer to this request, which was executed.
    Answer(&'a Request),
    /// To a client.
    Callback(&'a ClientRequest),
}

type Choice = dyn Fn(ClientId, Message<'_>) -> bool + Send + Sync;

/// What a gate holds.
struct Held {
    choice: Box<Choice>,
    count: Mutex<usize>,
    arrived: Condvar,
    open: watch::Sender<bool>,
}

/// The gates of a cluster.
#[derive(Clone, Default)]
pub struct Gates(Arc<Mutex<Vec<Arc<Held>>>>);

impl Gates {
    /// From now on, the messages that `choice` chooses are held. Those of a client come with its
    /// id, and so do those to a client.
    pub fn close(&self, choice: impl Fn(ClientId, Message<'_>) -> bool + Send + Sync + 'static) -> Gate {
        let (count, arrived, open) = (Mutex::new(0), Condvar::new(), watch::Sender::new(false));
        let held = Arc::new(Held { choice: Box::new(choice), count, arrived, open });
        self.0.lock().push(held.clone());
        Gate { gates: self.clone(), held }
    }

    /// A target whose messages come through these gates.
    pub fn before(&self, target: Arc<dyn Handler>) -> Arc<dyn Handler> {
        Arc::new(GatedTarget { target, gates: self.clone() })
    }

    fn are_open(&self) -> bool {
        self.0.lock().is_empty()
    }

    async fn pass(&self, client: ClientId, message: Message<'_>) {
        let chosen = |held: &&Arc<Held>| (held.choice)(client, message);
        let holding: Vec<Arc<Held>> = self.0.lock().iter().filter(chosen).cloned().collect();
        for held in holding {
            let mut open = held.open.subscribe();
            *held.count.lock() += 1;
            held.arrived.notify_all();
            // The sender is part of what is held.
            let _ = open.wait_for(|open| *open).await;
            *held.count.lock() -= 1;
        }
    }
}

/// A closed gate; opens when dropped.
pub struct Gate {
    gates: Gates,
    held: Arc<Held>,
}

impl Gate {
    /// Waits until a message is held.
    pub fn wait(&self, what: &str) {
        let mut count = self.held.count.lock();
        let timed_out = self.held.arrived.wait_while_for(&mut count, |count| *count == 0, TIMEOUT).timed_out();
        assert!(!timed_out, "{what}: the message that is to be held does not come");
    }

    /// Messages that are held.
    pub fn count(&self) -> usize {
        *self.held.count.lock()
    }

    /// Lets everything go, now and in the future.
    pub fn open(&self) {
        self.gates.0.lock().retain(|held| !Arc::ptr_eq(held, &self.held));
        self.held.open.send_replace(true);
    }
}

impl Drop for Gate {
    fn drop(&mut self) {
        self.open();
    }
}

struct GatedTarget {
    target: Arc<dyn Handler>,
    gates: Gates,
}

impl Handler for GatedTarget {
    fn handle(self: Arc<Self>, call: Call) -> BoxFuture<'static, Answer> {
        if self.gates.are_open() {
            return self.target.clone().handle(call);
        }
        Box::pin(async move {
            let (client, request) = (call.client, call.request.clone());
            self.gates.pass(client, Message::Request(&request)).await;
            let answer = self.target.clone().handle(call).await;
            self.gates.pass(client, Message::Answer(&request)).await;
            answer
        })
    }

    fn service(&self, request: &Request) -> &'static str {
        self.target.service(request)
    }

    fn persistent_reply(&self, client: ClientId, slot: Slot) -> Option<(Xid, Reply)> {
        self.target.persistent_reply(client, slot)
    }

    fn answers_repetition(&self, client: ClientId, slot: Slot) -> Option<Xid> {
        self.target.answers_repetition(client, slot)
    }

    fn may_resume(&self, client: ClientId) -> bool {
        self.target.may_resume(client)
    }

    fn stores_replies_of_sessions_that_ended(&self) -> bool {
        self.target.stores_replies_of_sessions_that_ended()
    }

    fn era(&self) -> u64 {
        self.target.era()
    }

    fn halt(&self) {
        self.target.halt();
    }

    fn served(&self, clients: Arc<dyn Clients>) {
        self.target.served(Arc::new(GatedClients { clients, gates: self.gates.clone() }));
    }

    fn connection_begun(&self, client: ClientId) {
        self.target.connection_begun(client);
    }

    fn session_ending(&self, event: SessionEvent) {
        self.target.session_ending(event);
    }

    fn session_event(self: Arc<Self>, event: SessionEvent) -> BoxFuture<'static, ()> {
        self.target.clone().session_event(event)
    }
}

struct GatedClients {
    clients: Arc<dyn Clients>,
    gates: Gates,
}

impl Clients for GatedClients {
    fn call_back(&self, client: ClientId, request: ClientRequest) -> BoxFuture<'static, FsResult<ClientReply>> {
        let (clients, gates) = (self.clients.clone(), self.gates.clone());
        Box::pin(async move {
            gates.pass(client, Message::Callback(&request)).await;
            clients.call_back(client, request).await
        })
    }

    fn evict(&self, client: ClientId) -> BoxFuture<'static, bool> {
        self.clients.evict(client)
    }

    fn name(&self, client: ClientId) -> Option<String> {
        self.clients.name(client)
    }

    fn lease_end(&self, client: ClientId) -> Option<Instant> {
        self.clients.lease_end(client)
    }

    fn stopped(&self) -> BoxFuture<'static, ()> {
        self.clients.stopped()
    }

    fn park(&self, service: &'static str) -> Option<Parked> {
        self.clients.park(service)
    }
}
