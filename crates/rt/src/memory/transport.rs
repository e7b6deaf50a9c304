//! A network within one process: named addresses, reliable connections, no encoding.
//!
//! Frames are passed on as they are (bodies and bulk data are shared, not copied). Frames sent
//! before a close are received; then both sides see the end. Nothing is lost, delayed or damaged:
//! for that, wrap it with [`crate::fault`].

use std::{
    collections::BTreeMap,
    io::{self, ErrorKind},
    sync::Arc,
};

use parking_lot::Mutex;
use tokio::sync::{Notify, mpsc};

use crate::{
    Address, BoxFuture, Connection, Frame, Listener, Receiver, Sender, Transport, frame::FRAME_BYTES_MAX, lanes::Lanes,
    space::Space,
};

/// First port assigned to a listener on port 0 (the first of IANA's dynamic ports).
const PORT_FIRST: u32 = 49152;

/// A network. Clones are the same network.
#[derive(Clone, Default)]
pub struct MemoryTransport {
    network: Arc<Mutex<Network>>,
}

#[derive(Default)]
struct Network {
    listeners: BTreeMap<Address, mpsc::UnboundedSender<Connection>>,
    ports_given: u32,
    connections: u64,
}

impl MemoryTransport {
    /// An empty network.
    pub fn new() -> Self {
        Self::default()
    }
}

impl Network {
    /// `address`, with a port of its own if it asks for port 0.
    fn choose_port(&mut self, address: &Address) -> Address {
        match address.0.strip_suffix(":0") {
            Some(host) => {
                self.ports_given += 1;
                Address::from(format!("{host}:{}", PORT_FIRST + self.ports_given - 1).as_str())
            }
            None => address.clone(),
        }
    }
}

impl Transport for MemoryTransport {
    fn connect(&self, address: &Address) -> BoxFuture<'static, io::Result<Connection>> {
        let (network, address) = (self.network.clone(), address.clone());
        Box::pin(async move {
            let mut network = network.lock();
            network.connections += 1;
            let (here, there) = connection_pair(&address, network.connections);
            let listener = network.listeners.get(&address).ok_or(ErrorKind::ConnectionRefused)?;
            listener.send(there).map_err(|_| ErrorKind::ConnectionRefused)?;
            Ok(here)
        })
    }

    fn listen(&self, address: &Address) -> BoxFuture<'static, io::Result<Box<dyn Listener>>> {
        let (shared, address) = (self.network.clone(), address.clone());
        Box::pin(async move {
            let mut network = shared.lock();
            let address = network.choose_port(&address);
            if network.listeners.contains_key(&address) {
                return Err(ErrorKind::AddrInUse.into());
            }
            let (incoming, accepted) = mpsc::unbounded_channel();
            network.listeners.insert(address.clone(), incoming);
            drop(network);
            Ok(Box::new(MemoryListener { network: shared, address, accepted }) as Box<dyn Listener>)
        })
    }
}

struct MemoryListener {
    network: Arc<Mutex<Network>>,
    address: Address,
    accepted: mpsc::UnboundedReceiver<Connection>,
}

impl Listener for MemoryListener {
    fn accept(&mut self) -> BoxFuture<'_, io::Result<Connection>> {
        Box::pin(async {
            // The network holds the channel's other end as long as this listener exists.
            self.accepted.recv().await.ok_or_else(|| ErrorKind::NotConnected.into())
        })
    }

    fn address(&self) -> Address {
        self.address.clone()
    }
}

impl Drop for MemoryListener {
    fn drop(&mut self) {
        self.network.lock().listeners.remove(&self.address);
    }
}

/// One direction of a connection.
struct Way {
    state: Mutex<WayState>,
    /// Wakes the one receiver.
    arrived: Notify,
    /// Closed when the connection has ended.
    space: Space,
}

#[derive(Default)]
struct WayState {
    frames: Lanes<Frame>,
    ended: bool,
}

impl Way {
    fn new() -> Arc<Self> {
        Arc::new(Way { state: Mutex::default(), arrived: Notify::new(), space: Space::default() })
    }

    fn end(&self) {
        self.state.lock().ended = true;
        self.space.close();
        self.arrived.notify_one();
    }
}

/// The two directions of a connection as one side sees them; dropping the last handle of a side
/// ends both.
struct Side {
    outgoing: Arc<Way>,
    incoming: Arc<Way>,
}

impl Side {
    fn end(&self) {
        self.outgoing.end();
        self.incoming.end();
    }
}

impl Drop for Side {
    fn drop(&mut self) {
        self.end();
    }
}

struct MemorySender(Side);

struct MemoryReceiver {
    side: Side,
    bytes_max: usize,
}

fn connection_pair(address: &Address, number: u64) -> (Connection, Connection) {
    let (up, down) = (Way::new(), Way::new());
    let connection = |outgoing: &Arc<Way>, incoming: &Arc<Way>, peer: String| {
        let side = || Side { outgoing: outgoing.clone(), incoming: incoming.clone() };
        let receiver = MemoryReceiver { side: side(), bytes_max: FRAME_BYTES_MAX };
        Connection { sender: Arc::new(MemorySender(side())), receiver: Box::new(receiver), peer }
    };
    (connection(&up, &down, address.to_string()), connection(&down, &up, format!("connection-{number}")))
}

impl Sender for MemorySender {
    fn send(&self, frame: Frame) -> BoxFuture<'_, io::Result<()>> {
        Box::pin(async move {
            frame.check_lengths().map_err(|error| io::Error::new(ErrorKind::InvalidInput, error))?;
            let way = &self.0.outgoing;
            let permit = way.space.acquire(&frame).await?;
            let mut state = way.state.lock();
            if state.ended {
                return Err(ErrorKind::BrokenPipe.into());
            }
            permit.forget();
            let is_urgent = frame.is_urgent();
            state.frames.push(frame, is_urgent);
            drop(state);
            way.arrived.notify_one();
            Ok(())
        })
    }

    fn close(&self) {
        self.0.end();
    }
}

impl Receiver for MemoryReceiver {
    fn receive(&mut self) -> BoxFuture<'_, io::Result<Option<Frame>>> {
        Box::pin(async {
            let way = &self.side.incoming;
            loop {
                {
                    let mut state = way.state.lock();
                    if let Some(frame) = state.frames.pop() {
                        drop(state);
                        way.space.release(frame.is_urgent(), frame.wire_bytes());
                        frame.header.check_limit(self.bytes_max)?;
                        frame.check_body()?;
                        return Ok(Some(frame));
                    }
                    if state.ended {
                        return Ok(None);
                    }
                }
                way.arrived.notified().await;
            }
        })
    }

    fn limit(&mut self, bytes_max: usize) {
        self.bytes_max = bytes_max;
    }
}
