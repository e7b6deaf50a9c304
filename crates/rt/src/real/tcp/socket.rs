//! The socket shared by the two halves of a connection, and how it is assigned to a core.

use std::{
    io::{self, ErrorKind, IoSlice},
    net::{Shutdown, TcpStream},
    sync::{Arc, OnceLock},
};

use parking_lot::Mutex;
use socket2::{MaybeUninitSlice, SockRef};
use tokio::{io::unix::AsyncFd, runtime::Handle};

use super::sender::Queue;

/// A connected, non-blocking socket with its queue of frames to send.
///
/// Not registered with any poller at first; [`Socket::adopt`] registers it with the runtime it is
/// called in, once.
pub(super) struct Socket {
    stream: Arc<TcpStream>,
    registered: OnceLock<AsyncFd<Arc<TcpStream>>>,
    /// Held while registering: a descriptor must not be added to a poller twice.
    registering: Mutex<()>,
    /// Frames to send.
    pub queue: Queue,
}

impl Socket {
    pub fn new(stream: TcpStream) -> Self {
        Self {
            stream: Arc::new(stream),
            registered: OnceLock::new(),
            registering: Mutex::new(()),
            queue: Queue::default(),
        }
    }

    /// The socket as the poller of its core sees it. The first call chooses the core: the one of
    /// the runtime that the calling thread is in; the connection's writer task starts there.
    pub fn adopt(self: &Arc<Self>) -> io::Result<&AsyncFd<Arc<TcpStream>>> {
        if let Some(registered) = self.registered.get() {
            return Ok(registered);
        }
        let _turn = self.registering.lock();
        if let Some(registered) = self.registered.get() {
            return Ok(registered);
        }
        let core = Handle::try_current().map_err(io::Error::other)?;
        // SAFETY: the stream is open, and the reference that goes in with it keeps it so; nobody
        // changes its descriptor.
        let descriptor = unsafe { AsyncFd::register(self.stream.clone()) }?;
        let registered = self.registered.get_or_init(|| descriptor);
        core.spawn(super::sender::write_queue(self.clone()));
        Ok(registered)
    }

    /// Writes as much as fits now; `WouldBlock` if nothing does.
    pub fn write(&self, pieces: &[IoSlice<'_>]) -> io::Result<usize> {
        retry(|| SockRef::from(&*self.stream).send_vectored_with_flags(pieces, libc::MSG_NOSIGNAL))
    }

    /// Reads what is there now; `WouldBlock` if nothing is, 0 at the end.
    pub fn read(&self, buffers: &mut [MaybeUninitSlice<'_>]) -> io::Result<usize> {
        retry(|| Ok(SockRef::from(&*self.stream).recv_vectored(buffers)?.0))
    }

    /// Ends one or both directions. A socket that is no longer connected is at its end already.
    pub fn shutdown(&self, how: Shutdown) {
        if let Err(error) = self.stream.shutdown(how)
            && error.kind() != ErrorKind::NotConnected
        {
            tracing::debug!(%error, "cannot shut a connection down");
        }
    }
}

fn retry(mut operate: impl FnMut() -> io::Result<usize>) -> io::Result<usize> {
    loop {
        match operate() {
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            result => return result,
        }
    }
}
