//! An OST that only records its requests.

use std::sync::Arc;

use parking_lot::Mutex;
use rpc::{
    Answer, Call, Endpoint, Handler, Server, ServerOptions, SessionEvent,
    message::{
        OstReply, OstRequest, Reply, Request,
        ost::{DeferredOrigin, TargetCondition},
    },
};
use rt::{
    BoxFuture,
    memory::{MemoryTransport, seams},
};
use types::{ClientId, FsError, ObjectId, OstIndex, Slot, SpaceUsage, Xid};

pub const GIB: u64 = 1 << 30;

/// What it was told, and whether it answers.
pub struct NotingOst {
    pub destroyed: Mutex<Vec<ObjectId>>,
    pub evicted: Mutex<Vec<ClientId>>,
    /// Objects that refuse layouts before this generation.
    pub fenced: Mutex<Vec<(ObjectId, u64)>>,
    /// Where the deferred operations came from, and how many each request had.
    pub origins: Mutex<Vec<(DeferredOrigin, usize)>>,
    pub refuses: Mutex<bool>,
    pub refusals: Mutex<usize>,
    pub condition: Mutex<TargetCondition>,
    /// Of [`GIB`] in all.
    pub bytes_available: Mutex<u64>,
    /// Questions for space that have arrived, and what they wait for.
    pub questions: Mutex<usize>,
    pub hold: tokio::sync::Mutex<()>,
}

impl Default for NotingOst {
    fn default() -> Self {
        Self {
            destroyed: Mutex::default(),
            evicted: Mutex::default(),
            fenced: Mutex::default(),
            origins: Mutex::default(),
            refuses: Mutex::default(),
            refusals: Mutex::default(),
            condition: Mutex::default(),
            bytes_available: Mutex::new(GIB / 2),
            questions: Mutex::default(),
            hold: tokio::sync::Mutex::default(),
        }
    }
}

impl NotingOst {
    /// Serves it within this process.
    pub fn serve(network: &MemoryTransport, index: OstIndex) -> (Arc<Self>, Endpoint) {
        let ost = Arc::new(Self::default());
        let server = ost.server(network, index);
        (ost, Endpoint::Local(server))
    }

    /// Serves it within this process, as so many OSTs.
    pub fn serve_as(network: &MemoryTransport, count: u16) -> (Arc<Self>, Vec<(OstIndex, Endpoint, bool)>) {
        let ost = Arc::new(Self::default());
        let server = ost.server(network, OstIndex(0));
        for index in (1..count).map(OstIndex) {
            ost.add_to(&server, index);
        }
        let map = (0..count).map(|index| (OstIndex(index), Endpoint::Local(server.clone()), true)).collect();
        (ost, map)
    }

    /// Serves it on the network, until the server is stopped.
    pub async fn listen(self: &Arc<Self>, network: &MemoryTransport, index: OstIndex) -> (Arc<Server>, Endpoint) {
        let server = self.server(network, index);
        let address = rt::Address::from(format!("{index}:1").as_str());
        let address = server.listen(&address).await.expect("nobody else listens there");
        (server, Endpoint::Remote(address.into()))
    }

    fn server(self: &Arc<Self>, network: &MemoryTransport, index: OstIndex) -> Arc<Server> {
        let server = Server::new(seams(network, u64::from(index.0) + 100), ServerOptions::new(rpc::Keyring::of_test()));
        self.add_to(&server, index);
        server
    }

    fn add_to(self: &Arc<Self>, server: &Arc<Server>, index: OstIndex) {
        server.add_target(&format!("test-{index}"), self.clone(), std::time::Duration::from_secs(600));
    }
}

impl Handler for NotingOst {
    fn handle(self: Arc<Self>, call: Call) -> BoxFuture<'static, Answer> {
        Box::pin(async move {
            let Request::Ost(request) = call.request else { panic!("not for an OST") };
            if *self.refuses.lock() {
                *self.refusals.lock() += 1;
                return Answer::new(Err(FsError::NoSpace));
            }
            let reply = match request {
                OstRequest::Destroy(objects, origin) => {
                    self.origins.lock().extend(origin.map(|origin| (origin, objects.len())));
                    self.destroyed.lock().extend(objects);
                    OstReply::Done
                }
                OstRequest::Evict(client, origin) => {
                    self.origins.lock().extend(origin.map(|origin| (origin, 1)));
                    self.evicted.lock().push(client);
                    OstReply::Done
                }
                OstRequest::Fence(objects, generation) => {
                    self.fenced.lock().extend(objects.into_iter().map(|object| (object, generation)));
                    OstReply::Done
                }
                OstRequest::StatFs => {
                    *self.questions.lock() += 1;
                    let _held = self.hold.lock().await;
                    let bytes_available = *self.bytes_available.lock();
                    let space = SpaceUsage { bytes_total: GIB, bytes_available, ..SpaceUsage::default() };
                    OstReply::Space(space, *self.condition.lock())
                }
                _ => OstReply::Done,
            };
            Answer::new(Ok(Reply::Ost(reply)))
        })
    }

    fn service(&self, _: &Request) -> &'static str {
        "ost"
    }

    fn persistent_reply(&self, _: ClientId, _: Slot) -> Option<(Xid, Reply)> {
        None
    }

    fn session_event(self: Arc<Self>, _: SessionEvent) -> BoxFuture<'static, ()> {
        Box::pin(async {})
    }
}
