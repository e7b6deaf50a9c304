//! The simulated network: hosts joined by links with delay, and what can go wrong on them.
//!
//! Frames of a connection are delayed, lost, duplicated and reordered as [`NetworkFaults`] say;
//! partitions drop everything between two hosts until healed; a host without power does not answer;
//! a killed process breaks its connections, which the peer notices only if the network between them
//! works, at once or when it sends the next frame. Everything follows one random stream.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    io,
    sync::Arc,
    time::Duration,
};

use parking_lot::Mutex;
use rt::{
    Address, BoxFuture, Connection, Entropy, Frame, Listener, Receiver, Sender, Transport, frame::FRAME_BYTES_MAX,
};
use tokio::sync::{Notify, mpsc};

use crate::{ProcessId, Random, Simulation, hardware::Links};

/// What goes wrong, in parts per million of frames.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NetworkFaults {
    /// Frames that vanish.
    pub lost: u32,
    /// Frames that arrive twice.
    pub duplicated: u32,
    /// Frames that are held back so that later ones overtake them.
    pub reordered: u32,
    /// Frames whose delay is stretched to up to a second.
    pub delayed: u32,
    /// Frames after which the connection breaks.
    pub broken: u32,
}

/// Delay of a healthy link: this much, and up to half as much again.
const LINK_DELAY: Duration = Duration::from_micros(25);
/// Longest delay of a frame that is delayed.
pub const DELAY_MAX: Duration = Duration::from_secs(1);
/// How far a reordered frame is held back at most.
const REORDER_DELAY: Duration = Duration::from_millis(5);

#[derive(Default)]
struct State {
    listeners: BTreeMap<Arc<str>, ListenerEntry>,
    pipes: BTreeMap<u64, Arc<Pipe>>,
    cut: BTreeSet<(Arc<str>, Arc<str>)>,
    /// Hosts without power.
    down: BTreeSet<Arc<str>>,
    faults: NetworkFaults,
    next_pipe: u64,
    next_port: u32,
}

struct ListenerEntry {
    process: ProcessId,
    host: Arc<str>,
    incoming: mpsc::UnboundedSender<Connection>,
}

/// One direction of a connection. The other direction has the same number but for the lowest bit.
struct Pipe {
    number: u64,
    from: (ProcessId, Arc<str>),
    to: (ProcessId, Arc<str>),
    queue: Mutex<PipeQueue>,
    arrived: Notify,
}

#[derive(Default)]
struct PipeQueue {
    frames: VecDeque<Frame>,
    closed: bool,
    /// The receiving end has closed the connection.
    hung_up: bool,
    /// Arrival of the last in-order frame: later ones do not overtake it.
    last_arrival: rt::Instant,
}

/// The network all processes of a simulation share. Cheap to clone.
#[derive(Clone)]
pub struct Network {
    simulation: Simulation,
    random: Arc<Random>,
    state: Arc<Mutex<State>>,
    /// `None`: bandwidth without end.
    links: Option<Arc<dyn Links>>,
}

impl Network {
    /// A network without faults.
    pub fn new(simulation: &Simulation, seed: u64) -> Self {
        let random = Arc::new(Random::for_purpose(seed, "network"));
        Self { simulation: simulation.clone(), random, state: Arc::default(), links: None }
    }

    /// The same network with links that take time for bytes.
    pub fn with_links(self, links: Arc<dyn Links>) -> Self {
        Self { links: Some(links), ..self }
    }

    /// Changes what goes wrong from now on.
    pub fn set_faults(&self, faults: NetworkFaults) {
        self.state.lock().faults = faults;
    }

    /// Cuts all traffic between two hosts, in both directions.
    pub fn cut(&self, one: &str, other: &str) {
        self.cut_way(one, other);
        self.cut_way(other, one);
    }

    /// Cuts what one host sends to another; what that one sends arrives.
    pub fn cut_way(&self, from: &str, to: &str) {
        self.state.lock().cut.insert((from.into(), to.into()));
    }

    /// Heals all cuts. Hosts without power stay down.
    pub fn heal(&self) {
        self.state.lock().cut.clear();
    }

    /// Takes a host's power away, or gives it back. Its processes must be killed too.
    pub fn set_power(&self, host: &str, on: bool) {
        let mut state = self.state.lock();
        if on {
            state.down.remove(host);
        } else {
            state.down.insert(host.into());
        }
    }

    /// The network as `process` on `host` sees it.
    pub fn endpoint(&self, process: ProcessId, host: &Arc<str>) -> NetworkEndpoint {
        NetworkEndpoint { network: self.clone(), process, host: Arc::clone(host) }
    }

    /// Forgets a dead process: its listeners vanish, its connections break.
    pub fn drop_process(&self, process: ProcessId) {
        let mut state = self.state.lock();
        let (dead, alive) = std::mem::take(&mut state.listeners).into_iter().partition(|(_, it)| it.process == process);
        state.listeners = alive;
        let pipes: Vec<Arc<Pipe>> = state.pipes.values().cloned().collect();
        drop(state);
        // Connections that were not accepted end here; that needs the lock.
        drop::<BTreeMap<_, _>>(dead);
        for pipe in pipes {
            if pipe.to.0 == process {
                self.close(&pipe);
            } else if pipe.from.0 == process {
                self.close_later(pipe);
            }
        }
    }

    fn is_cut(&self, one: &Arc<str>, other: &Arc<str>) -> bool {
        let state = self.state.lock();
        state.down.contains(one)
            || state.down.contains(other)
            || state.cut.contains(&(Arc::clone(one), Arc::clone(other)))
    }

    fn link_delay(&self) -> Duration {
        if let Some(delay) = self.links.as_ref().and_then(|links| links.delay()) {
            return delay;
        }
        LINK_DELAY + Duration::from_nanos(self.random.within(0..LINK_DELAY.as_nanos() as u64 / 2))
    }

    /// The end of a connection travels like a frame, after all frames; a cut network swallows it,
    /// and the peer has to find out itself.
    fn close_later(&self, pipe: Arc<Pipe>) {
        let now = self.simulation.now();
        let deadline = (now + self.link_delay()).max(rt::Instant(pipe.queue.lock().last_arrival.0 + 1));
        let network = self.clone();
        self.simulation.spawn(
            ProcessId::DRIVER,
            "network close",
            Box::pin(async move {
                network.simulation.sleep_until(deadline).await;
                if !network.is_cut(&pipe.from.1, &pipe.to.1) {
                    network.close(&pipe);
                }
            }),
        );
    }

    /// Nothing more arrives through this pipe.
    fn close(&self, pipe: &Arc<Pipe>) {
        pipe.queue.lock().closed = true;
        pipe.arrived.notify_one();
        self.state.lock().pipes.remove(&pipe.number);
    }

    /// One end is closed by its owner, because it wants to, or because nothing more arrives: the
    /// other end hears of it.
    fn hang_up(&self, incoming: &Arc<Pipe>, outgoing: &Arc<Pipe>) {
        if std::mem::replace(&mut incoming.queue.lock().hung_up, true) {
            return;
        }
        self.close(incoming);
        self.close_later(Arc::clone(outgoing));
    }

    /// A frame arrives.
    fn deliver(&self, pipe: &Arc<Pipe>, frame: Frame) {
        if self.is_cut(&pipe.from.1, &pipe.to.1) {
            return;
        }
        let mut queue = pipe.queue.lock();
        if !queue.closed {
            queue.frames.push_back(frame);
            drop(queue);
            pipe.arrived.notify_one();
            return;
        }
        drop(queue);
        // The receiver is gone: the sender is told (a TCP reset).
        let reverse = self.state.lock().pipes.get(&(pipe.number ^ 1)).cloned();
        if let Some(reverse) = reverse {
            self.close_later(reverse);
        }
    }

    fn send(&self, pipe: &Arc<Pipe>, mut frame: Frame) {
        if let Some(links) = &self.links {
            frame.bulk = links.under_way(frame.bulk);
        }
        let faults = self.state.lock().faults;
        let copies = 1 + u32::from(self.random.happens(faults.duplicated));
        let breaks = self.random.happens(faults.broken);
        for _ in 0..copies {
            if !self.random.happens(faults.lost) {
                self.deliver_later(pipe, frame.clone(), faults);
            }
        }
        if breaks {
            self.close_later(Arc::clone(pipe));
        }
    }

    fn deliver_later(&self, pipe: &Arc<Pipe>, frame: Frame, faults: NetworkFaults) {
        let now = self.simulation.now();
        let sent = match &self.links {
            Some(links) => links.through(now, &pipe.from.1, &pipe.to.1, frame_bytes(&frame)),
            None => now,
        };
        let mut arrival = sent + self.link_delay();
        if self.random.happens(faults.delayed) {
            arrival = arrival + Duration::from_nanos(self.random.below(DELAY_MAX.as_nanos() as u64));
        }
        if self.random.happens(faults.reordered) {
            arrival = arrival + Duration::from_nanos(self.random.below(REORDER_DELAY.as_nanos() as u64));
        } else {
            let mut queue = pipe.queue.lock();
            arrival = arrival.max(rt::Instant(queue.last_arrival.0 + 1));
            queue.last_arrival = arrival;
        }
        let (network, pipe) = (self.clone(), Arc::clone(pipe));
        self.simulation.spawn(
            ProcessId::DRIVER,
            "network delivery",
            Box::pin(async move {
                network.simulation.sleep_until(arrival).await;
                network.deliver(&pipe, frame);
            }),
        );
    }

    /// The two directions of a connection.
    fn pipes(&self, near: (ProcessId, Arc<str>), far: (ProcessId, Arc<str>)) -> (Arc<Pipe>, Arc<Pipe>) {
        let pipe =
            |number, from, to| Arc::new(Pipe { number, from, to, queue: Mutex::default(), arrived: Notify::new() });
        let mut state = self.state.lock();
        state.next_pipe += 2;
        let out = pipe(state.next_pipe, near.clone(), far.clone());
        let back = pipe(state.next_pipe + 1, far, near);
        state.pipes.insert(out.number, Arc::clone(&out));
        state.pipes.insert(back.number, Arc::clone(&back));
        (out, back)
    }

    async fn connect(self, process: ProcessId, host: Arc<str>, address: Address) -> io::Result<Connection> {
        /// How long a connection attempt into a cut network lasts.
        const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);
        let delay = self.link_delay() * 2;
        self.simulation.sleep_until(self.simulation.now() + delay).await;
        let found = self
            .state
            .lock()
            .listeners
            .get(&address.0)
            .map(|entry| (entry.process, Arc::clone(&entry.host), entry.incoming.clone()));
        let other = address.0.split(':').next().unwrap_or_default().into();
        let cut = self.is_cut(&host, &other);
        let Some((other_process, other_host, incoming)) = found.filter(|_| !cut) else {
            if cut {
                self.simulation.sleep_until(self.simulation.now() + CONNECT_TIMEOUT).await;
                return Err(io::ErrorKind::TimedOut.into());
            }
            return Err(io::ErrorKind::ConnectionRefused.into());
        };
        let mine = (process, Arc::clone(&host));
        let theirs = (other_process, Arc::clone(&other_host));
        let (out, back) = self.pipes(mine, theirs);
        let near = self.half(&out, &back, other_host.to_string());
        let far = self.half(&back, &out, host.to_string());
        incoming.send(far).map_err(|_| io::Error::from(io::ErrorKind::ConnectionRefused))?;
        Ok(near)
    }

    fn half(&self, out: &Arc<Pipe>, back: &Arc<Pipe>, peer: String) -> Connection {
        Connection {
            sender: Arc::new(PipeSender { network: self.clone(), out: Arc::clone(out), back: Arc::clone(back) }),
            receiver: Box::new(PipeReceiver {
                network: self.clone(),
                pipe: Arc::clone(back),
                out: Arc::clone(out),
                bytes_max: FRAME_BYTES_MAX,
            }),
            peer,
        }
    }
}

/// Bytes of a frame on a link.
fn frame_bytes(frame: &Frame) -> u64 {
    (size_of::<rt::FrameHeader>() + frame.body.len() + frame.bulk.len()) as u64
}

/// A process's view of the network.
pub struct NetworkEndpoint {
    network: Network,
    process: ProcessId,
    host: Arc<str>,
}

impl Transport for NetworkEndpoint {
    fn connect(&self, address: &Address) -> BoxFuture<'static, io::Result<Connection>> {
        Box::pin(self.network.clone().connect(self.process, Arc::clone(&self.host), address.clone()))
    }

    fn listen(&self, address: &Address) -> BoxFuture<'static, io::Result<Box<dyn Listener>>> {
        let (network, process, host) = (self.network.clone(), self.process, Arc::clone(&self.host));
        let wanted = Arc::clone(&address.0);
        Box::pin(async move {
            let mut state = network.state.lock();
            let name: Arc<str> = if wanted.ends_with(":0") {
                state.next_port += 1;
                format!("{host}:{}", state.next_port).into()
            } else {
                wanted
            };
            if state.listeners.contains_key(&name) {
                return Err(io::ErrorKind::AddrInUse.into());
            }
            let (incoming, connections) = mpsc::unbounded_channel();
            state.listeners.insert(Arc::clone(&name), ListenerEntry { process, host, incoming });
            let address = Address(name);
            drop(state);
            Ok(Box::new(NetworkListener { network, process, address, connections }) as Box<dyn Listener>)
        })
    }
}

struct NetworkListener {
    network: Network,
    process: ProcessId,
    address: Address,
    connections: mpsc::UnboundedReceiver<Connection>,
}

impl Listener for NetworkListener {
    fn accept(&mut self) -> BoxFuture<'_, io::Result<Connection>> {
        Box::pin(async { self.connections.recv().await.ok_or_else(|| io::ErrorKind::ConnectionAborted.into()) })
    }

    fn address(&self) -> Address {
        self.address.clone()
    }
}

impl Drop for NetworkListener {
    fn drop(&mut self) {
        let mut state = self.network.state.lock();
        let mine = state.listeners.get(&self.address.0).is_some_and(|entry| entry.process == self.process);
        let entry = if mine { state.listeners.remove(&self.address.0) } else { None };
        drop(state);
        drop(entry);
    }
}

struct PipeSender {
    network: Network,
    out: Arc<Pipe>,
    back: Arc<Pipe>,
}

impl Sender for PipeSender {
    fn send(&self, frame: Frame) -> BoxFuture<'_, io::Result<()>> {
        if self.back.queue.lock().closed {
            return Box::pin(std::future::ready(Err(io::ErrorKind::BrokenPipe.into())));
        }
        self.network.send(&self.out, frame);
        Box::pin(std::future::ready(Ok(())))
    }

    fn close(&self) {
        self.network.hang_up(&self.back, &self.out);
    }
}

impl Drop for PipeSender {
    fn drop(&mut self) {
        self.close();
    }
}

struct PipeReceiver {
    network: Network,
    pipe: Arc<Pipe>,
    out: Arc<Pipe>,
    bytes_max: usize,
}

impl Drop for PipeReceiver {
    fn drop(&mut self) {
        self.network.hang_up(&self.pipe, &self.out);
    }
}

impl Receiver for PipeReceiver {
    fn receive(&mut self) -> BoxFuture<'_, io::Result<Option<Frame>>> {
        Box::pin(async {
            loop {
                {
                    let mut queue = self.pipe.queue.lock();
                    if let Some(frame) = queue.frames.pop_front() {
                        frame.header.check_limit(self.bytes_max)?;
                        return Ok(Some(frame));
                    }
                    if queue.closed {
                        return Ok(None);
                    }
                }
                self.pipe.arrived.notified().await;
            }
        })
    }

    fn limit(&mut self, bytes_max: usize) {
        self.bytes_max = bytes_max;
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::{Process, executor::RunLimits};

    /// Sends 200 frames with the faults; returns what arrives, in order.
    fn received(seed: u64, faults: NetworkFaults) -> Vec<u64> {
        let simulation = Simulation::new(seed);
        let network = Network::new(&simulation, seed);
        network.set_faults(faults);
        let server = Process::start(&simulation, &network, ProcessId(1), "server", seed).seams();
        let client = Process::start(&simulation, &network, ProcessId(2), "client", seed).seams();
        let run = simulation.run(RunLimits::default(), async move {
            let mut listener = server.transport.listen(&"server:1".into()).await.unwrap();
            let near = client.transport.connect(&"server:1".into()).await.unwrap();
            let mut far = listener.accept().await.unwrap();
            for number in 0..200 {
                let header = rt::FrameHeader { xid: number, ..Default::default() };
                near.sender.send(Frame { header, body: Bytes::new(), bulk: Bytes::new() }).await.unwrap();
            }
            rt::clock::sleep(&*client.clock, Duration::from_secs(5)).await;
            near.sender.close();
            let mut numbers = Vec::new();
            while let Some(frame) = far.receiver.receive().await.unwrap() {
                numbers.push(frame.header.xid);
            }
            numbers
        });
        run.unwrap()
    }

    #[test]
    fn a_healthy_network_keeps_order() {
        assert_eq!(received(3, NetworkFaults::default()), (0..200).collect::<Vec<_>>());
    }

    #[test]
    fn faults_happen_and_repeat() {
        let faults =
            NetworkFaults { lost: 100_000, duplicated: 100_000, reordered: 100_000, ..NetworkFaults::default() };
        let frames = received(3, faults);
        assert_eq!(frames, received(3, faults));
        assert!(!frames.is_sorted() && frames.len() != 200, "{frames:?}");
        let lost = (0..200).filter(|number| !frames.contains(number)).count();
        assert!((1..60).contains(&lost), "{lost} of 200 lost");
    }

    /// A connection between two processes, the listener of which is kept.
    async fn connected(server: &rt::Seams, client: &rt::Seams) -> (Connection, Connection, Box<dyn Listener>) {
        let mut listener = server.transport.listen(&"server:1".into()).await.unwrap();
        let near = client.transport.connect(&"server:1".into()).await.unwrap();
        let far = listener.accept().await.unwrap();
        (near, far, listener)
    }

    fn frame() -> Frame {
        Frame { header: rt::FrameHeader::default(), body: Bytes::new(), bulk: Bytes::new() }
    }

    #[test]
    fn who_speaks_to_a_process_that_died_behind_a_cut_is_told_after_healing() {
        let simulation = Simulation::new(1);
        let network = Network::new(&simulation, 1);
        let server = Process::start(&simulation, &network, ProcessId(1), "server", 1);
        let client = Process::start(&simulation, &network, ProcessId(2), "client", 1).seams();
        let (control, world) = (network.clone(), simulation.clone());
        let run = simulation.run(RunLimits::default(), async move {
            let (mut near, _far, _listener) = connected(&server.seams(), &client).await;
            control.cut("server", "client");
            server.kill();
            world.sleep(Duration::from_secs(1)).await;
            near.sender.send(frame()).await.expect("nobody told this side yet");
            world.sleep(Duration::from_secs(1)).await;
            control.heal();
            world.sleep(Duration::from_secs(1)).await;
            near.sender.send(frame()).await.expect("the frame after the cut is lost");
            assert!(near.receiver.receive().await.unwrap().is_none());
            assert_eq!(near.sender.send(frame()).await.unwrap_err().kind(), io::ErrorKind::BrokenPipe);
        });
        run.unwrap();
    }

    /// As with TCP: an idle client would otherwise believe that it can be reached, and be evicted
    /// for a lock that it was never asked for.
    #[test]
    fn when_a_connection_breaks_in_one_direction_both_ends_hear_of_it() {
        let simulation = Simulation::new(1);
        let network = Network::new(&simulation, 1);
        let server = Process::start(&simulation, &network, ProcessId(1), "server", 1).seams();
        let client = Process::start(&simulation, &network, ProcessId(2), "client", 1).seams();
        let control = network.clone();
        let run = simulation.run(RunLimits::default(), async move {
            let (mut near, mut far, _listener) = connected(&server, &client).await;
            control.set_faults(NetworkFaults { broken: 1_000_000, ..NetworkFaults::default() });
            near.sender.send(frame()).await.unwrap();
            assert!(far.receiver.receive().await.unwrap().is_some());
            assert!(far.receiver.receive().await.unwrap().is_none());
            far.sender.close();
            assert!(near.receiver.receive().await.unwrap().is_none());
        });
        run.unwrap();
    }

    #[test]
    fn an_orderly_end_comes_behind_what_was_sent() {
        let simulation = Simulation::new(1);
        let network = Network::new(&simulation, 1);
        let server = Process::start(&simulation, &network, ProcessId(1), "server", 1).seams();
        let client = Process::start(&simulation, &network, ProcessId(2), "client", 1).seams();
        let run = simulation.run(RunLimits::default(), async move {
            let (near, mut far, _listener) = connected(&server, &client).await;
            for _ in 0..50 {
                near.sender.send(frame()).await.unwrap();
            }
            drop(near);
            let mut count = 0;
            while far.receiver.receive().await.unwrap().is_some() {
                count += 1;
            }
            assert_eq!(count, 50);
        });
        run.unwrap();
    }

    #[test]
    fn a_cut_network_swallows_frames_and_heals() {
        let simulation = Simulation::new(1);
        let network = Network::new(&simulation, 1);
        let server = Process::start(&simulation, &network, ProcessId(1), "server", 1).seams();
        let client = Process::start(&simulation, &network, ProcessId(2), "client", 1).seams();
        let control = network.clone();
        let run = simulation.run(RunLimits::default(), async move {
            let _listener = server.transport.listen(&"server:1".into()).await.unwrap();
            control.cut("server", "client");
            let refused = client.transport.connect(&"server:1".into()).await.err().unwrap();
            assert_eq!(refused.kind(), io::ErrorKind::TimedOut);
            control.heal();
            client.transport.connect(&"server:1".into()).await.unwrap();
        });
        run.unwrap();
    }
}
