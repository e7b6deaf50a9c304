//! An OST that only takes notes.

use std::sync::Arc;

use parking_lot::Mutex;
use rpc::{
    Answer, Call, Endpoint, Handler, Server, ServerOptions, SessionEvent,
    message::{OstReply, OstRequest, Reply, Request, ost::TargetCondition},
};
use rt::{
    BoxFuture,
    memory::{MemoryTransport, seams},
};
use types::{ClientId, FsError, ObjectId, OstIndex, Slot, SpaceUsage, Xid};

/// What it was told, and whether it answers.
#[derive(Default)]
pub struct NotingOst {
    pub destroyed: Mutex<Vec<ObjectId>>,
    pub evicted: Mutex<Vec<ClientId>>,
    pub refuses: Mutex<bool>,
    pub refusals: Mutex<usize>,
    pub condition: Mutex<TargetCondition>,
}

impl NotingOst {
    /// Serves it within this process.
    pub fn serve(network: &MemoryTransport, index: OstIndex) -> (Arc<Self>, Endpoint) {
        let ost = Arc::new(Self::default());
        let server = Server::new(seams(network, u64::from(index.0) + 100), ServerOptions::default());
        server.add_target(&format!("test-{index}"), ost.clone(), std::time::Duration::from_secs(600));
        (ost, Endpoint::Local(server))
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
                OstRequest::Destroy(objects) => {
                    self.destroyed.lock().extend(objects);
                    OstReply::Done
                }
                OstRequest::Evict(client) => {
                    self.evicted.lock().push(client);
                    OstReply::Done
                }
                OstRequest::StatFs => {
                    let space = SpaceUsage { bytes_total: 1 << 30, bytes_available: 1 << 29, ..SpaceUsage::default() };
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
