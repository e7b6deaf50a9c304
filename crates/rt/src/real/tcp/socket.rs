//! The socket shared by the two halves of a connection.

use std::{
    io::{self, ErrorKind, IoSlice},
    net::{Shutdown, TcpStream},
    sync::Arc,
};

use socket2::{MaybeUninitSlice, SockRef};
use tokio::io::{Interest, unix::AsyncFd};

use super::sender::Queue;

/// A connected, non-blocking socket with its queue of frames to send. It belongs to no core; the
/// halves register it where they wait.
pub(super) struct Socket {
    stream: Arc<TcpStream>,
    /// Frames to send.
    pub queue: Queue,
}

impl Socket {
    pub fn new(stream: TcpStream) -> Self {
        Self { stream: Arc::new(stream), queue: Queue::default() }
    }

    /// The socket as the poller of the present core sees it, for what arrives. One at a time.
    pub fn readable(&self) -> io::Result<AsyncFd<Arc<TcpStream>>> {
        // SAFETY: the stream is open, and the reference that goes in with it keeps it so; nobody
        // changes its descriptor.
        Ok(unsafe { AsyncFd::register_with_interest(self.stream.clone(), Interest::READABLE) }?)
    }

    /// The same for room to send; by a descriptor of its own, because a poller knows each one once.
    pub fn writable(&self) -> io::Result<AsyncFd<Arc<TcpStream>>> {
        let stream = Arc::new(self.stream.try_clone()?);
        // SAFETY: as above.
        Ok(unsafe { AsyncFd::register_with_interest(stream, Interest::WRITABLE) }?)
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
