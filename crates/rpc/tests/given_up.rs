//! What becomes of requests that nobody waits for any more: they are executed before they are given up, or never.

mod common;

use std::{io, sync::Arc, time::Duration};

use bytes::Bytes;
use common::*;
use parking_lot::Mutex;
use rpc::{Endpoint, Import, ImportOptions};
use rt::{
    Address, BoxFuture, Connection, Frame, Listener, Seams, Sender, Transport,
    memory::{self, MemoryTransport},
};
use types::{ClientId, FsError};

/// What happens to frames on their way to the server.
enum Way {
    Open,
    /// They wait, as in the buffers of a server that is stopped.
    Held(Vec<(Arc<dyn Sender>, Frame)>),
    Lost,
}

/// A network whose way to the server can be closed.
struct Gate {
    network: MemoryTransport,
    way: Arc<Mutex<Way>>,
}

struct GateSender {
    sender: Arc<dyn Sender>,
    way: Arc<Mutex<Way>>,
}

impl Gate {
    fn new(network: &MemoryTransport) -> Arc<Self> {
        Arc::new(Self { network: network.clone(), way: Arc::new(Mutex::new(Way::Open)) })
    }

    fn set(&self, way: Way) {
        *self.way.lock() = way;
    }

    /// Lets everything through that was held, then what comes.
    async fn open(&self) {
        let before = std::mem::replace(&mut *self.way.lock(), Way::Open);
        if let Way::Held(held) = before {
            for (sender, frame) in held {
                sender.send(frame).await.unwrap();
            }
        }
    }
}

impl Transport for Gate {
    fn connect(&self, address: &Address) -> BoxFuture<'static, io::Result<Connection>> {
        let (connecting, way) = (self.network.connect(address), self.way.clone());
        Box::pin(async move {
            let Connection { sender, receiver, peer } = connecting.await?;
            Ok(Connection { sender: Arc::new(GateSender { sender, way }), receiver, peer })
        })
    }

    fn listen(&self, address: &Address) -> BoxFuture<'static, io::Result<Box<dyn Listener>>> {
        self.network.listen(address)
    }
}

impl Sender for GateSender {
    fn send(&self, frame: Frame) -> BoxFuture<'_, io::Result<()>> {
        match &mut *self.way.lock() {
            Way::Open => return self.sender.send(frame),
            Way::Held(held) => held.push((self.sender.clone(), frame)),
            Way::Lost => {}
        }
        Box::pin(async { Ok(()) })
    }

    fn close(&self) {
        self.sender.close();
    }
}

/// A server that can be reached directly and through a gate.
struct Stage {
    handler: Arc<Counter>,
    _server: Arc<rpc::Server>,
    gate: Arc<Gate>,
    seams: Seams,
    endpoint: Endpoint,
}

impl Stage {
    async fn new() -> Self {
        let network = MemoryTransport::new();
        let seams = memory::seams(&network, 1);
        let handler = Counter::new(&Arc::default());
        let server = server(&seams, &handler, LONG_LEASE);
        let endpoint = Endpoint::Remote(server.listen(&Address::from("ost:1")).await.unwrap());
        Self { handler, _server: server, gate: Gate::new(&network), seams, endpoint }
    }

    /// A connected client behind the gate.
    async fn gated(&self, options: ImportOptions) -> Import {
        let seams = Seams { transport: self.gate.clone(), ..self.seams.clone() };
        let import = import(&seams, self.endpoint.clone(), options);
        import.connected().await.unwrap();
        import
    }

    fn other(&self) -> Import {
        let (seams, endpoint) = (self.seams.clone(), self.endpoint.clone());
        Import::new(seams, TARGET, endpoint, ClientId(2), "other", quick(), None)
    }

    fn effects(&self) -> Vec<u64> {
        self.handler.disk.effects.lock().keys().copied().collect()
    }
}

/// A server process that was stopped found an old write in its buffers, and executed it over a newer one of another client.
#[tokio::test]
async fn a_request_given_up_is_not_executed_after_a_later_one() {
    let stage = Stage::new().await;
    // One connection for all of the test: what is held is the next thing that the server reads.
    let one = stage.gated(ImportOptions { resend: LONG_LEASE, ..quick() }).await;
    stage.gate.set(Way::Held(Vec::new()));
    one.set_patience(Duration::from_millis(20));
    assert!(matches!(call(&one, effect(1)).await, Err(FsError::Unreachable { .. })));
    assert_eq!(call(&stage.other(), effect(2)).await, Ok(done()));
    one.set_patience(LONG_LEASE);
    stage.gate.open().await;
    assert_eq!(call(&one, effect(3)).await, Ok(done()), "behind the first one on its connection");
    assert_eq!(stage.effects(), [2, 3]);
    until(|| one.statistics().in_flight == 0).await;
}

/// Its frame was lost, or never left; the repetition that asks for its fate executed it, whatever its user had done since.
#[tokio::test]
async fn a_dropped_request_is_not_executed_by_its_repetition() {
    let stage = Stage::new().await;
    let import = stage.gated(quick()).await;
    stage.gate.set(Way::Lost);
    {
        let mut dropped = Box::pin(import.call(effect(1), Bytes::new()));
        let mut context = std::task::Context::from_waker(std::task::Waker::noop());
        assert!(dropped.as_mut().poll(&mut context).is_pending());
    }
    assert_eq!(import.statistics().in_flight, 1, "its fate is unknown");
    stage.gate.open().await;
    until(|| import.statistics().in_flight == 0).await;
    assert_eq!(call(&import, effect(2)).await, Ok(done()));
    assert_eq!(stage.effects(), [2]);
}
