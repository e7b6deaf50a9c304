//! What happens to requests that no caller waits for any more: they are executed before they are
//! given up, or never.

use crate::common;

use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use common::{raw::Raw, *};
use parking_lot::Mutex;
use rpc::{
    Endpoint, Import, ImportOptions, codec,
    message::{
        MdtRequest, OstRequest, Request,
        ost::SpaceChange,
        session::{Connected, feature, frame_flag},
    },
};
use rt::{
    Address, BoxFuture, Clock, Connection, Frame, FrameHeader, Instant, Listener, Seams, Sender, Transport,
    memory::{self, MemoryTransport},
};
use types::{FsError, InodeNumber, ObjectId, Owner, Timestamp};

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
        let endpoint = Endpoint::Remote(server.listen(&Address::from("ost:1")).await.unwrap().into());
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
        Import::new(seams, TARGET, endpoint, principal(2), quick(), None)
    }

    fn effects(&self) -> Vec<u64> {
        self.handler.disk.effects.lock().keys().copied().collect()
    }
}

/// A server process that was stopped found an old write in its buffers, and executed it over a
/// newer one of another client.
#[tokio::test]
async fn a_request_given_up_is_not_executed_after_a_later_one() {
    let stage = Stage::new().await;
    // One connection for all of the test: what is held is the next thing that the server reads.
    let one = stage.gated(ImportOptions { resend: LONG_LEASE, ..quick() }).await;
    stage.gate.set(Way::Held(Vec::new()));
    one.set_timeout(Duration::from_millis(20));
    assert!(matches!(call(&one, effect(1)).await, Err(FsError::Unreachable { .. })));
    assert_eq!(call(&stage.other(), effect(2)).await, Ok(done()));
    one.set_timeout(LONG_LEASE);
    stage.gate.open().await;
    assert_eq!(call(&one, effect(3)).await, Ok(done()), "after the first one on its connection");
    assert_eq!(stage.effects(), [2, 3]);
    until(|| one.statistics().in_flight == 0).await;
}

/// Its frame was lost, or never left; the repetition that asks for its outcome executed it,
/// whatever its user had done since.
#[tokio::test]
async fn a_dropped_request_is_not_executed_by_its_repetition() {
    let stage = Stage::new().await;
    let import = stage.gated(quick()).await;
    stage.gate.set(Way::Lost);
    {
        let mut dropped = Box::pin(import.call(effect(1)));
        let mut context = std::task::Context::from_waker(std::task::Waker::noop());
        assert!(dropped.as_mut().poll(&mut context).is_pending());
    }
    assert_eq!(import.statistics().in_flight, 1, "its outcome is unknown");
    stage.gate.open().await;
    until(|| import.statistics().in_flight == 0).await;
    assert_eq!(call(&import, effect(2)).await, Ok(done()));
    assert_eq!(stage.effects(), [2]);
}

#[tokio::test]
async fn a_request_that_arrives_after_its_deadline_is_refused_for_good() {
    let seams = memory::seams(&MemoryTransport::new(), 1);
    let handler = Counter::new(&Arc::default());
    let server = server(&seams, &handler, LONG_LEASE);
    let address = server.listen(&Address::from("ost:1")).await.unwrap();
    let mut raw = Raw::connect(&seams, &address).await;
    let hello = raw.hello(|connect| connect.features = feature::DEADLINES).await;
    assert_ne!(hello.header.deadline_ns, 0, "the target tells its clock");
    for (xid, deadline_ns, note) in [
        (1, hello.header.deadline_ns.saturating_sub(1), frame_flag::EXPIRED),
        (1, u64::MAX, frame_flag::EXPIRED),
        (2, u64::MAX, 0),
        (2, 1, 0),
        (3, 0, 0),
    ] {
        let request = effect(xid);
        let header = FrameHeader { deadline_ns, ..raw.header(4, xid, &request) };
        raw.send(header, codec::encode_request(&Default::default(), &request).unwrap().bytes).await;
        let answer = raw.receive().await.unwrap().header;
        assert_eq!(answer.flags, frame_flag::REPLY | note, "{xid} {deadline_ns}");
        assert!(answer.deadline_ns >= hello.header.deadline_ns);
    }
    assert_eq!(*handler.disk.effects.lock(), [(2, 1), (3, 1)].into());

    let mut older = Raw::connect(&seams, &address).await;
    older.hello_as(9, |_| ()).await;
    let header = FrameHeader { deadline_ns: 1, ..older.header(1, 1, &effect(4)) };
    older.send(header, codec::encode_request(&Default::default(), &effect(4)).unwrap().bytes).await;
    assert_eq!(
        older.receive().await.unwrap().header.flags,
        frame_flag::REPLY,
        "it knows nothing of this target's clock"
    );
}

/// The slot of a change whose repetition the handler answers was as new after a restart: a late
/// repetition was told that it was never executed, and its client, who still waited, asked for it
/// once more.
#[tokio::test]
async fn a_late_repetition_after_a_restart_learns_that_it_was_executed() {
    let disk = Arc::new(Disk::default());
    let (mut incarnation, mut ticket) = (0, None);
    for (seed, deadlines) in [(1, [u64::MAX, u64::MAX]), (2, [1, 1]), (3, [1, u64::MAX])] {
        let seams = memory::seams(&MemoryTransport::new(), seed);
        let handler = Arc::new(Counter { answers_repetitions: true, ..Counter::base(&disk) });
        let server = server(&seams, &handler, LONG_LEASE);
        let address = server.listen(&Address::from("ost:1")).await.unwrap();
        let mut raw = Raw { ticket, ..Raw::connect(&seams, &address).await };
        let hello = raw.hello(|connect| {
            connect.features = feature::DEADLINES;
            (connect.resume, connect.incarnation) = (ticket.is_some(), incarnation);
        });
        let connected: Connected = codec::decode(&hello.await.body).unwrap();
        (incarnation, ticket) = (connected.incarnation, connected.ticket);
        for deadline_ns in deadlines {
            let header = FrameHeader { deadline_ns, ..raw.header(4, 7, &effect(1)) };
            raw.send(header, codec::encode_request(&Default::default(), &effect(1)).unwrap().bytes).await;
            assert_eq!(raw.receive().await.unwrap().header.flags, frame_flag::REPLY, "start {seed}, {deadline_ns}");
        }
        assert_eq!(*disk.effects.lock(), [(1, 1)].into(), "start {seed}");
    }
}

/// A clock that can be put forward.
struct Forward {
    clock: Arc<dyn Clock>,
    ahead_ns: AtomicU64,
}

impl Clock for Forward {
    fn now(&self) -> Instant {
        self.clock.now() + Duration::from_nanos(self.ahead_ns.load(Ordering::SeqCst))
    }

    fn wall(&self) -> Timestamp {
        self.clock.wall()
    }

    fn boot(&self) -> u64 {
        self.clock.boot()
    }

    fn sleep_until(&self, deadline: Instant) -> BoxFuture<'static, ()> {
        self.clock.sleep_until(Instant(deadline.0.saturating_sub(self.ahead_ns.load(Ordering::SeqCst))))
    }
}

/// A size was found, and told to the MDT as final, before a write had ended that its caller had
/// given up.
#[tokio::test]
async fn sizes_are_told_after_changes_whose_callers_may_have_given_up() {
    let seams = memory::seams(&MemoryTransport::new(), 1);
    let clock = Arc::new(Forward { clock: seams.clock.clone(), ahead_ns: AtomicU64::new(0) });
    let handler = Counter::new(&Arc::default());
    let server = server(&Seams { clock: clock.clone(), ..seams.clone() }, &handler, 10 * LONG_LEASE);
    let address = server.listen(&Address::from("ost:1")).await.unwrap();
    let object = ObjectId::new(InodeNumber(1), 0);

    let mut writer = Raw::connect(&seams, &address).await;
    let hello = writer.hello(|connect| connect.features = feature::DEADLINES).await;
    let write = Request::Mdt(MdtRequest::ChangeData(OstRequest::Space(
        object,
        SpaceChange::Truncate { size: 1 },
        0,
        Owner::default(),
    )));
    let hour_ns = LONG_LEASE.as_nanos() as u64;
    let header = FrameHeader { deadline_ns: hello.header.deadline_ns + hour_ns, ..writer.header(1, 1, &write) };
    writer.send(header, codec::encode_request(&Default::default(), &write).unwrap().bytes).await;
    until(|| handler.entered.load(Ordering::SeqCst) == 1).await;

    let mut other = Raw::connect(&seams, &address).await;
    other.hello_as(9, |_| ()).await;
    let look = Request::Mdt(MdtRequest::ReadData(OstRequest::Glimpse(vec![object])));
    other.request(1, 1, &look).await;
    assert_eq!(other.receive().await.unwrap().header.flags, frame_flag::REPLY, "its caller waits for it");
    clock.ahead_ns.store(2 * hour_ns, Ordering::SeqCst);
    for _ in 0..2 {
        other.request(1, 2, &look).await;
    }
    assert_eq!(other.receive().await.unwrap().header.flags, frame_flag::REPLY | frame_flag::RUNNING);
    handler.gate.add_permits(1);
    assert_eq!(writer.receive().await.unwrap().header.flags, frame_flag::REPLY);
    assert_eq!(other.receive().await.unwrap().header.flags, frame_flag::REPLY);
}
