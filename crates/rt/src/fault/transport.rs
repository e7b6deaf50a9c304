//! A network that loses, repeats, delays and reorders frames, and that can be cut.
//!
//! Faults happen on the way out of a wrapped sender. Both sides of a connection are wrapped if both
//! use the same [`FaultyTransport`], as the processes of a test do; then requests and replies are
//! affected alike. An address that is cut off loses all frames of its connections, including those
//! already on their way; ends of connections are not noticed, and new connections time out, as with
//! a pulled cable. After it is healed, connections continue.
//!
//! Each connection with delayed frames has one task that sends them when they are due. Downside: a
//! delayed frame is acknowledged at once, so a bad network slows its senders less than a real one;
//! beyond 1024 frames on the way, further ones are lost.

use std::{
    collections::{BTreeMap, BTreeSet},
    io::{self, ErrorKind},
    sync::{Arc, Weak},
};

use parking_lot::Mutex;
use tokio::sync::{Notify, watch};

use super::network::{NetworkRules, NetworkStatistics};
use crate::{
    Address, BoxFuture, Clock, Connection, Entropy, Frame, Instant, Listener, Receiver, Seams, Sender, Spawn, Transport,
};

/// Most frames on their way in one direction of a connection.
const DELAYED_FRAMES_MAX: usize = 1024;

/// A transport with faults. Clones are the same network.
#[derive(Clone)]
pub struct FaultyTransport {
    inner: Arc<dyn Transport>,
    network: Arc<Network>,
}

/// What all connections share.
struct Network {
    clock: Arc<dyn Clock>,
    entropy: Arc<dyn Entropy>,
    spawn: Arc<dyn Spawn>,
    rules: Mutex<NetworkRules>,
    statistics: Mutex<NetworkStatistics>,
    cut: watch::Sender<BTreeSet<Address>>,
    connections: Mutex<BTreeMap<Address, Vec<Weak<Line>>>>,
}

impl FaultyTransport {
    /// Wraps the transport of `seams`; time, chance and tasks are theirs.
    pub fn new(seams: &Seams) -> Self {
        let network = Network {
            clock: seams.clock.clone(),
            entropy: seams.entropy.clone(),
            spawn: seams.spawn.clone(),
            rules: Mutex::default(),
            statistics: Mutex::default(),
            cut: watch::Sender::default(),
            connections: Mutex::default(),
        };
        Self { inner: seams.transport.clone(), network: Arc::new(network) }
    }

    /// Changes the rules for frames sent from now on.
    pub fn set_rules(&self, rules: NetworkRules) {
        *self.network.rules.lock() = rules;
    }

    /// Cuts everything that goes to or comes from a listening address.
    pub fn cut(&self, address: &Address) {
        self.network.cut.send_if_modified(|cut| cut.insert(address.clone()));
    }

    /// Repairs a cut.
    pub fn heal(&self, address: &Address) {
        self.network.cut.send_if_modified(|cut| cut.remove(address));
    }

    /// Breaks all connections of a listening address, as if it had been restarted. New ones are
    /// possible.
    pub fn reset(&self, address: &Address) {
        let lines = self.network.connections.lock().remove(address).unwrap_or_default();
        lines.iter().filter_map(Weak::upgrade).for_each(|line| line.close());
    }

    /// What was done to frames so far.
    pub fn statistics(&self) -> NetworkStatistics {
        *self.network.statistics.lock()
    }
}

impl Network {
    fn is_cut(&self, address: &Address) -> bool {
        self.cut.borrow().contains(address)
    }

    async fn healed(&self, address: &Address) {
        let mut cut = self.cut.subscribe();
        // The sender is part of `self`, so it cannot be gone.
        let _ = cut.wait_for(|cut| !cut.contains(address)).await;
    }

    fn wrap(self: &Arc<Self>, address: &Address, connection: Connection) -> Connection {
        let line = Arc::new(Line {
            network: self.clone(),
            address: address.clone(),
            inner: connection.sender,
            delayed: Mutex::default(),
            wake: Notify::new(),
        });
        let mut connections = self.connections.lock();
        let lines = connections.entry(address.clone()).or_default();
        lines.retain(|line| line.strong_count() > 0);
        lines.push(Arc::downgrade(&line));
        let receiver = FaultyReceiver { network: self.clone(), address: address.clone(), inner: connection.receiver };
        Connection { sender: Arc::new(FaultySender(line)), receiver: Box::new(receiver), peer: connection.peer }
    }
}

impl Transport for FaultyTransport {
    fn connect(&self, address: &Address) -> BoxFuture<'static, io::Result<Connection>> {
        let (transport, address) = (self.clone(), address.clone());
        Box::pin(async move {
            if transport.network.is_cut(&address) {
                return Err(ErrorKind::TimedOut.into());
            }
            let connection = transport.inner.connect(&address).await?;
            Ok(transport.network.wrap(&address, connection))
        })
    }

    fn listen(&self, address: &Address) -> BoxFuture<'static, io::Result<Box<dyn Listener>>> {
        let (transport, address) = (self.clone(), address.clone());
        Box::pin(async move {
            let inner = transport.inner.listen(&address).await?;
            Ok(Box::new(FaultyListener { network: transport.network, inner }) as Box<dyn Listener>)
        })
    }
}

struct FaultyListener {
    network: Arc<Network>,
    inner: Box<dyn Listener>,
}

impl Listener for FaultyListener {
    fn accept(&mut self) -> BoxFuture<'_, io::Result<Connection>> {
        Box::pin(async {
            let address = self.inner.address();
            Ok(self.network.wrap(&address, self.inner.accept().await?))
        })
    }

    fn address(&self) -> Address {
        self.inner.address()
    }
}

/// One direction of a connection, and its frames on the way.
struct Line {
    network: Arc<Network>,
    address: Address,
    inner: Arc<dyn Sender>,
    delayed: Mutex<Delayed>,
    wake: Notify,
}

#[derive(Default)]
struct Delayed {
    /// By time of arrival and order of departure.
    frames: BTreeMap<(Instant, u64), Frame>,
    departed: u64,
    latest: Instant,
    has_task: bool,
    /// The task is sending a frame, which nothing may pass.
    sending: bool,
    closed: bool,
}

impl Line {
    /// Puts a frame on its way; `false` if it must go at once, by the caller.
    fn delay(self: &Arc<Self>, frame: &Frame, due: Instant, may_overtake: bool) -> bool {
        let now = self.network.clock.now();
        let mut delayed = self.delayed.lock();
        // Without reordering nothing passes what is still on its way.
        let due = if may_overtake { due } else { due.max(delayed.latest) };
        let nothing_ahead = may_overtake || (delayed.frames.is_empty() && !delayed.sending);
        if due <= now && nothing_ahead {
            return false;
        }
        if delayed.frames.len() >= DELAYED_FRAMES_MAX {
            self.network.statistics.lock().lost += 1;
            return true;
        }
        delayed.latest = delayed.latest.max(due);
        let key = (due, delayed.departed);
        delayed.departed += 1;
        delayed.frames.insert(key, frame.clone());
        let starts = !std::mem::replace(&mut delayed.has_task, true);
        drop(delayed);
        self.network.statistics.lock().delayed += 1;
        if starts {
            self.network.spawn.spawn("delayed frames", Box::pin(deliver(self.clone())));
        }
        self.wake.notify_one();
        true
    }

    fn close(&self) {
        let mut delayed = self.delayed.lock();
        delayed.closed = true;
        let lost = std::mem::take(&mut delayed.frames);
        drop(delayed);
        self.network.statistics.lock().lost += lost.len() as u64;
        self.wake.notify_one();
        self.inner.close();
    }
}

/// Sends delayed frames when they are due, until the line is closed.
async fn deliver(line: Arc<Line>) {
    loop {
        let next = {
            let delayed = line.delayed.lock();
            if delayed.closed {
                return;
            }
            delayed.frames.keys().next().copied()
        };
        let Some((due, _)) = next else {
            line.wake.notified().await;
            continue;
        };
        if line.network.clock.now() < due {
            tokio::select! {
                biased;
                () = line.network.clock.sleep_until(due) => {}
                () = line.wake.notified() => {}
            }
            continue;
        }
        let frame = {
            let mut delayed = line.delayed.lock();
            let first = delayed.frames.pop_first().map(|(_, frame)| frame);
            delayed.sending = first.is_some();
            first
        };
        if let Some(frame) = frame {
            if line.network.is_cut(&line.address) {
                line.network.statistics.lock().lost += 1;
            } else if line.inner.send(frame).await.is_err() {
                return line.close();
            }
        }
        line.delayed.lock().sending = false;
    }
}

/// Closes its line when dropped: the line's task holds it too.
struct FaultySender(Arc<Line>);

impl Sender for FaultySender {
    fn send(&self, frame: Frame) -> BoxFuture<'_, io::Result<()>> {
        Box::pin(async move {
            frame.check_lengths().map_err(|error| io::Error::new(ErrorKind::InvalidInput, error))?;
            let network = &self.0.network;
            if self.0.delayed.lock().closed {
                return Err(ErrorKind::BrokenPipe.into());
            }
            let (delays, reorder) = {
                let rules = network.rules.lock();
                (rules.delays(&*network.entropy), rules.reorder)
            };
            let lost = delays.is_empty() || network.is_cut(&self.0.address);
            {
                let mut statistics = network.statistics.lock();
                statistics.sent += 1;
                statistics.lost += u64::from(lost);
                statistics.duplicated += u64::from(!lost && delays.len() > 1);
            }
            if lost {
                return Ok(());
            }
            let now = network.clock.now();
            for delay in delays {
                if !self.0.delay(&frame, now + delay, reorder) {
                    self.0.inner.send(frame.clone()).await?;
                }
            }
            Ok(())
        })
    }

    fn close(&self) {
        self.0.close();
    }
}

impl Drop for FaultySender {
    fn drop(&mut self) {
        self.0.close();
    }
}

struct FaultyReceiver {
    network: Arc<Network>,
    address: Address,
    inner: Box<dyn Receiver>,
}

impl Receiver for FaultyReceiver {
    fn receive(&mut self) -> BoxFuture<'_, io::Result<Option<Frame>>> {
        Box::pin(async {
            loop {
                let received = self.inner.receive().await;
                if !self.network.is_cut(&self.address) {
                    return received;
                }
                if !matches!(received, Ok(Some(_))) {
                    self.network.healed(&self.address).await;
                    return received;
                }
                self.network.statistics.lock().lost += 1;
            }
        })
    }

    fn limit(&mut self, bytes_max: usize) {
        self.inner.limit(bytes_max);
    }

    fn leave_core(&mut self) {
        self.inner.leave_core();
    }
}
