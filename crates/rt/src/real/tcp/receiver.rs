//! The receiving half: large reads, many frames per system call.
//!
//! Frames are taken from a read buffer: bodies are slices of it, so they should be decoded and
//! dropped. Bulk data of a page or more get a page-aligned buffer of the pool; the part that is
//! already in the read buffer is copied, and the rest is read directly into place, together with
//! the following frames, in one system call. Smaller bulk data are copied. So bulk data may be kept
//! at the cost of at most twice their size.
//!
//! A receive that is dropped half-way loses nothing: bytes that were read stay here. The socket is
//! registered with the poller of the core that waits first, until [`Receiver::leave_core`]; so a
//! reader can move to another core.

use std::{
    io::{self, ErrorKind},
    mem::MaybeUninit,
    net::TcpStream,
    sync::Arc,
};

use bytes::{Bytes, BytesMut};
use socket2::MaybeUninitSlice;
use tokio::io::unix::AsyncFd;

use super::{sender::Queue, socket::Socket};
use crate::{
    BoxFuture, Frame, FrameHeader, Receiver,
    buffer::{Buffer, BufferPool},
    frame::{FRAME_BYTES_MAX, HEADER_BYTES},
    real::message_came,
};

/// Room offered to a read: hundreds of small frames, and a bounded part of large bulk data that is
/// copied.
const READ_BYTES: usize = 64 << 10;
/// Room below which the read buffer is renewed.
const READ_BYTES_MIN: usize = 16 << 10;
/// Bulk data from here on get a buffer of the pool.
const POOLED_BYTES_MIN: usize = 4096;

/// The receiving half of a connection; closes it when dropped.
pub(super) struct TcpReceiver {
    socket: Arc<Socket>,
    /// The socket as the poller of the reader's core sees it; `None` before the reader waits there.
    registered: Option<Arc<AsyncFd<Arc<TcpStream>>>>,
    pool: BufferPool,
    /// Read but not cut into frames yet.
    read: BytesMut,
    /// The frame whose bulk data are being read.
    partial: Option<Partial>,
    /// Most bytes of a frame's body and bulk data.
    bytes_max: usize,
    /// The last read filled all the room it was given: there may be more.
    eager: bool,
    /// The stream cannot be followed any further.
    broken: bool,
}

/// A frame that lacks the end of its bulk data.
struct Partial {
    header: FrameHeader,
    body: Bytes,
    bulk: Buffer,
    filled: usize,
}

impl TcpReceiver {
    pub fn new(socket: Arc<Socket>, pool: BufferPool) -> Self {
        Self {
            socket,
            registered: None,
            pool,
            read: BytesMut::new(),
            partial: None,
            bytes_max: FRAME_BYTES_MAX,
            eager: false,
            broken: false,
        }
    }

    /// Cuts the next frame from what was read; `None` if it is not whole yet.
    fn cut_frame(&mut self) -> io::Result<Option<Frame>> {
        if let Some(partial) = self.partial.take_if(|partial| partial.filled == partial.bulk.len()) {
            return Ok(Some(Frame { header: partial.header, body: partial.body, bulk: partial.bulk.freeze() }));
        }
        if self.partial.is_some() {
            return Ok(None);
        }
        let Some(start) = self.read.first_chunk::<HEADER_BYTES>() else {
            FrameHeader::check_beginning(&self.read)?;
            return Ok(None);
        };
        let header = FrameHeader::decode(start)?;
        header.check_limit(self.bytes_max)?;
        let (body_bytes, bulk_bytes) = (header.body_bytes as usize, header.bulk_bytes as usize);
        let inline_bytes = if bulk_bytes < POOLED_BYTES_MIN { bulk_bytes } else { 0 };
        let wanted = HEADER_BYTES + body_bytes + inline_bytes;
        if self.read.len() < wanted {
            self.read.reserve(wanted - self.read.len());
            return Ok(None);
        }
        let whole = self.read.split_to(wanted).freeze();
        let body = whole.slice(HEADER_BYTES..HEADER_BYTES + body_bytes);
        let frame = Frame { header, body, bulk: Bytes::copy_from_slice(&whole[HEADER_BYTES + body_bytes..]) };
        frame.check_body()?;
        if inline_bytes == bulk_bytes {
            return Ok(Some(frame));
        }
        let mut bulk = self.pool.take(bulk_bytes);
        let filled = bulk_bytes.min(self.read.len());
        bulk[..filled].copy_from_slice(&self.read.split_to(filled));
        self.partial = Some(Partial { header, body: frame.body, bulk, filled });
        self.cut_frame()
    }

    /// Reads what is there now; the number of bytes, 0 at the end.
    fn read_now(&mut self) -> io::Result<usize> {
        let (capacity_min, capacity) = match HEADER_BYTES + self.bytes_max {
            // A peer that is not trusted yet costs no more memory than its largest frame.
            largest if largest < READ_BYTES_MIN => (1, largest),
            _ => (READ_BYTES_MIN, READ_BYTES),
        };
        if self.read.capacity() - self.read.len() < capacity_min {
            self.read.reserve(capacity);
        }
        let spare = self.read.spare_capacity_mut();
        let spare_bytes = spare.len();
        let mut empty = [];
        let ahead = match &mut self.partial {
            Some(partial) => as_uninit(&mut partial.bulk[partial.filled..]),
            None => &mut empty[..],
        };
        let ahead_bytes = ahead.len();
        let mut buffers = [MaybeUninitSlice::new(ahead), MaybeUninitSlice::new(spare)];
        let first = usize::from(ahead_bytes == 0);
        let bytes = self.socket.read(&mut buffers[first..])?;
        assert!(bytes <= ahead_bytes + spare_bytes, "the kernel fills no more than it is given");
        if let Some(partial) = &mut self.partial {
            partial.filled += bytes.min(ahead_bytes);
        }
        let length = self.read.len() + bytes.saturating_sub(ahead_bytes);
        // SAFETY: the kernel initialised `bytes` bytes, those beyond `ahead_bytes` in the spare
        // capacity from its start.
        unsafe { self.read.set_len(length) };
        self.eager = bytes == ahead_bytes + spare_bytes;
        Ok(bytes)
    }

    /// Waits for bytes and reads them; their number, 0 at the end.
    async fn fill(&mut self) -> io::Result<usize> {
        if std::mem::take(&mut self.eager) {
            // A peer that sends without pause must not keep this core from its other tasks.
            tokio::task::yield_now().await;
        }
        let registered = match &self.registered {
            Some(registered) => registered.clone(),
            None => self.registered.insert(Arc::new(self.socket.readable()?)).clone(),
        };
        loop {
            let mut guard = registered.readable().await?;
            match self.read_now() {
                Ok(bytes) => {
                    if !self.eager && bytes > 0 {
                        // Short: the socket is empty, the next event will tell.
                        guard.clear_ready();
                    }
                    return Ok(bytes);
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => guard.clear_ready(),
                Err(error) => return Err(error),
            }
        }
    }

    async fn next_frame(&mut self) -> io::Result<Option<Frame>> {
        if self.broken {
            return Err(ErrorKind::NotConnected.into());
        }
        loop {
            if let Some(frame) = self.cut_frame()? {
                message_came();
                return Ok(Some(frame));
            }
            if self.fill().await? == 0 {
                let between_frames = self.read.is_empty() && self.partial.is_none();
                return if between_frames { Ok(None) } else { Err(ErrorKind::UnexpectedEof.into()) };
            }
        }
    }
}

impl Receiver for TcpReceiver {
    fn receive(&mut self) -> BoxFuture<'_, io::Result<Option<Frame>>> {
        Box::pin(async {
            let result = self.next_frame().await;
            if result.is_err() {
                self.broken = true;
                Queue::end(&self.socket);
            }
            result
        })
    }

    fn limit(&mut self, bytes_max: usize) {
        self.bytes_max = bytes_max;
    }

    fn leave_core(&mut self) {
        self.registered = None;
    }
}

impl Drop for TcpReceiver {
    fn drop(&mut self) {
        Queue::close(&self.socket);
    }
}

/// Bytes as memory to be written to.
fn as_uninit(bytes: &mut [u8]) -> &mut [MaybeUninit<u8>] {
    // SAFETY: same layout; the only user, recv(2), writes initialised bytes and nothing else.
    unsafe { &mut *(std::ptr::from_mut(bytes) as *mut [MaybeUninit<u8>]) }
}
