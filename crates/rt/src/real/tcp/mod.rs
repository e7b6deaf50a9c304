//! Frames over TCP.
//!
//! Sending needs no core: a frame is written by the core that sends it, at the end of its turn
//! (module `turn`), together with what other tasks of this turn sent; other threads write at once.
//! Receiving registers the socket with the poller of the core on which the reader waits; a reader
//! can move to another core.
//!
//! Many frames per system call in both directions: see `sender.rs` and `receiver.rs`. A peer that
//! has vanished is detected by keepalive probes when the connection is idle and by TCP_USER_TIMEOUT
//! when data are unacknowledged.
//!
//! Futures must be polled within a tokio runtime. Downside: a connection that was ever full has a
//! writer task and a second descriptor.

mod receiver;
mod sender;
mod socket;

use std::{
    io::{self, ErrorKind},
    net::SocketAddr,
    sync::Arc,
    time::Duration,
};

use rustix::net::sockopt;
use tokio::net::{TcpListener, TcpStream};

use self::{receiver::TcpReceiver, sender::TcpSender, socket::Socket};
use crate::{Address, BoxFuture, Connection, Listener, Transport, buffer::BufferPool};

/// Pause after the host refused a connection for lack of descriptors or memory.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// How a vanished peer is noticed. The defaults find one within 30 s, idle or not: well within the
/// 100 s a client waits for a server.
#[derive(Clone, Copy, Debug)]
pub struct TcpOptions {
    /// Idle time before the first keepalive probe; whole seconds.
    pub keepalive_idle: Duration,
    /// Time between probes; whole seconds.
    pub keepalive_interval: Duration,
    /// Unanswered probes that end a connection.
    pub keepalive_probes: u32,
    /// How long sent data may stay unacknowledged (or the peer's window closed) before the
    /// connection ends.
    pub unacknowledged_max: Duration,
}

impl Default for TcpOptions {
    fn default() -> Self {
        Self {
            keepalive_idle: Duration::from_secs(10),
            keepalive_interval: Duration::from_secs(5),
            keepalive_probes: 4,
            unacknowledged_max: Duration::from_secs(30),
        }
    }
}

/// TCP.
#[derive(Clone)]
pub struct TcpTransport {
    options: TcpOptions,
    pool: BufferPool,
}

impl TcpTransport {
    /// TCP whose received bulk data are in buffers of `pool`.
    pub fn new(options: TcpOptions, pool: BufferPool) -> Self {
        Self { options, pool }
    }

    fn connection(&self, stream: TcpStream) -> io::Result<Connection> {
        let peer = stream.peer_addr()?.to_string();
        self.prepare(&stream)?;
        let socket = Arc::new(Socket::new(stream.into_std()?));
        let receiver = TcpReceiver::new(socket.clone(), self.pool.clone());
        Ok(Connection { sender: Arc::new(TcpSender::new(socket)), receiver: Box::new(receiver), peer })
    }

    fn prepare(&self, stream: &TcpStream) -> io::Result<()> {
        sockopt::set_tcp_nodelay(stream, true)?;
        sockopt::set_socket_keepalive(stream, true)?;
        sockopt::set_tcp_keepidle(stream, self.options.keepalive_idle)?;
        sockopt::set_tcp_keepintvl(stream, self.options.keepalive_interval)?;
        sockopt::set_tcp_keepcnt(stream, self.options.keepalive_probes)?;
        let milliseconds = u32::try_from(self.options.unacknowledged_max.as_millis()).unwrap_or(u32::MAX);
        Ok(sockopt::set_tcp_user_timeout(stream, milliseconds)?)
    }
}

impl Transport for TcpTransport {
    fn connect(&self, address: &Address) -> BoxFuture<'static, io::Result<Connection>> {
        let (transport, address) = (self.clone(), address.clone());
        Box::pin(async move {
            let addresses = resolve(&address).await?;
            transport.connection(TcpStream::connect(&*addresses).await?)
        })
    }

    fn listen(&self, address: &Address) -> BoxFuture<'static, io::Result<Box<dyn Listener>>> {
        let (transport, address) = (self.clone(), address.clone());
        Box::pin(async move {
            let listener = TcpListener::bind(&*address.0).await?;
            let address = Address::from(listener.local_addr()?.to_string().as_str());
            Ok(Box::new(TcpAcceptor { transport, listener, address }) as Box<dyn Listener>)
        })
    }
}

/// The addresses of a host and port; `NotFound` if there are none.
async fn resolve(address: &Address) -> io::Result<Vec<SocketAddr>> {
    let unresolved = |detail: &str| io::Error::new(ErrorKind::NotFound, detail.to_owned());
    let found = tokio::net::lookup_host(&*address.0).await.map_err(|error| {
        let text = error.to_string();
        // What the standard library says before the resolver's words.
        unresolved(text.trim_start_matches("failed to lookup address information: "))
    })?;
    let addresses: Vec<SocketAddr> = found.collect();
    if addresses.is_empty() { Err(unresolved("it has no address")) } else { Ok(addresses) }
}

struct TcpAcceptor {
    transport: TcpTransport,
    listener: TcpListener,
    address: Address,
}

impl Listener for TcpAcceptor {
    fn accept(&mut self) -> BoxFuture<'_, io::Result<Connection>> {
        Box::pin(async {
            loop {
                let accepted = self.listener.accept().await.and_then(|(stream, _)| self.transport.connection(stream));
                match accepted {
                    Err(error) if is_gone(&error) => {}
                    Err(error) if is_shortage(&error) => {
                        tracing::warn!(%error, address = %self.address, "cannot accept a connection");
                        tokio::time::sleep(ACCEPT_PAUSE).await;
                    }
                    result => return result,
                }
            }
        })
    }

    fn address(&self) -> Address {
        self.address.clone()
    }
}

/// The peer of a new connection went away before it was accepted.
fn is_gone(error: &io::Error) -> bool {
    use ErrorKind::{ConnectionAborted, ConnectionReset, Interrupted, InvalidInput, NotConnected};
    // Setting an option of a socket that was reset is EINVAL.
    [ConnectionAborted, ConnectionReset, Interrupted, InvalidInput, NotConnected].contains(&error.kind())
}

/// The host has no descriptor or no memory for a connection; it may have later.
fn is_shortage(error: &io::Error) -> bool {
    error.raw_os_error().is_some_and(|code| [libc::EMFILE, libc::ENFILE, libc::ENOBUFS, libc::ENOMEM].contains(&code))
}
