//! The sending half: a bounded queue of frames, and the thread that writes it.
//!
//! ```text
//!   send() on a core:            queue -> the end of the core's turn writes the frames of all its tasks: one system call
//!   send() on any other thread:  queue -> write at once on this thread (no wake-up on the way of a request)
//!   the socket is full:          the writer task of the connection continues
//! ```
//!
//! Invariants: at any time at most one thread writes ([`Writer`] says which); frames leave in the
//! order of [`Lanes`], and before each system call the writer looks for urgent ones that came
//! meanwhile; a frame's bytes count against the bound until the kernel has all of them. If frames
//! are queued and no thread writes, the end of a core's turn is about to.
//!
//! Life cycle: [`Queue::close`] ends it; frames queued by then are still written, for [`LINGER`] at
//! most. An error ends it at once.

use std::{
    io::{self, ErrorKind, IoSlice},
    net::Shutdown,
    sync::Arc,
    thread::ThreadId,
    time::Duration,
};

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::{
    runtime::Handle,
    sync::{Notify, SemaphorePermit},
    time::Instant,
};

use super::socket::Socket;
use crate::{
    BoxFuture, Frame, Sender,
    frame::HEADER_BYTES,
    lanes::Lanes,
    real::turn::{EndOfTurn, at_end},
    space::Space,
};

/// Pieces of memory in one system call: about forty frames. Beyond that a call's own cost no longer
/// matters.
const PIECES_MAX: usize = 128;
/// Times a thread writes what others queued meanwhile, before the writer task takes over. The
/// thread has work of its own, which must not wait for as long as others have something to send;
/// the task costs a wake-up, and from its first one on a descriptor, so it is for the rare case.
const INLINE_ROUNDS: usize = 4;
/// How long a closed connection tries to write what was queued.
const LINGER: Duration = Duration::from_secs(2);

/// Frames to send, and what sends them.
#[derive(Default)]
pub(super) struct Queue {
    state: Mutex<State>,
    /// Closed when nothing is accepted any more.
    space: Space,
    /// Wakes the writer task.
    wake: Notify,
}

#[derive(Default)]
struct State {
    frames: Lanes<Outgoing>,
    writer: Writer,
    phase: Phase,
    /// The core that was last asked to write at the end of its turn, and has not yet.
    turn_of: Option<ThreadId>,
    /// The writer task exists.
    has_task: bool,
}

/// What takes frames from the queue.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum Writer {
    /// No thread at present.
    #[default]
    Idle,
    /// A thread.
    Thread,
    /// The writer task.
    Task,
}

#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum Phase {
    #[default]
    Open,
    /// Closed here; what is queued is still written.
    Closing,
    Ended,
}

/// A frame of which `written` bytes have left.
struct Outgoing {
    header: [u8; HEADER_BYTES],
    body: Bytes,
    bulk: Bytes,
    is_urgent: bool,
    written: usize,
}

impl Outgoing {
    fn bytes(&self) -> usize {
        HEADER_BYTES + self.body.len() + self.bulk.len()
    }

    /// What is still to be written.
    fn pieces(&self) -> impl Iterator<Item = &[u8]> {
        let mut skip = self.written;
        [&self.header[..], &self.body, &self.bulk].into_iter().filter_map(move |piece| {
            let from = skip.min(piece.len());
            skip -= from;
            (from < piece.len()).then(|| &piece[from..])
        })
    }
}

impl Queue {
    /// Nothing is accepted any more; what is queued is still written, the reader sees the end.
    pub fn close(socket: &Arc<Socket>) {
        let queue = &socket.queue;
        let mut state = queue.state.lock();
        if state.phase != Phase::Open {
            return;
        }
        let has_writer = state.writer != Writer::Idle;
        let is_empty = !has_writer && state.frames.is_empty();
        state.phase = if is_empty { Phase::Ended } else { Phase::Closing };
        drop(state);
        queue.space.close();
        socket.shutdown(if is_empty { Shutdown::Both } else { Shutdown::Read });
        queue.wake.notify_one();
        if !has_writer && !is_empty {
            Self::write_what_is_queued(socket);
        }
    }

    /// Ends the connection; what is queued is lost.
    pub fn end(socket: &Socket) {
        let queue = &socket.queue;
        let mut state = queue.state.lock();
        state.phase = Phase::Ended;
        let lost = std::mem::take(&mut state.frames);
        drop(state);
        drop(lost);
        queue.space.close();
        socket.shutdown(Shutdown::Both);
        queue.wake.notify_one();
    }

    /// What to write next, for the current writer, into `batch`, which is empty; its memory serves
    /// the frames that come now. False: there is nothing, the writer is idle now and, if the
    /// connection was closed, it has ended.
    fn next_batch(socket: &Socket, batch: &mut Lanes<Outgoing>) -> bool {
        let mut state = socket.queue.state.lock();
        let is_over = state.frames.is_empty() || state.phase == Phase::Ended;
        batch.shrink();
        std::mem::swap(batch, &mut state.frames);
        if !is_over {
            return true;
        }
        state.writer = Writer::Idle;
        if state.phase == Phase::Closing {
            state.phase = Phase::Ended;
            drop(state);
            socket.shutdown(Shutdown::Both);
            socket.queue.wake.notify_one();
        }
        false
    }

    /// Puts back what could not be written and makes the task the writer.
    fn hand_over(socket: &Arc<Socket>, mut rest: Lanes<Outgoing>) -> io::Result<()> {
        let core = Handle::try_current().map_err(io::Error::other)?;
        let mut state = socket.queue.state.lock();
        rest.append(std::mem::take(&mut state.frames));
        state.frames = rest;
        state.writer = Writer::Task;
        let has_task = std::mem::replace(&mut state.has_task, true);
        drop(state);
        if has_task {
            socket.queue.wake.notify_one();
        } else {
            core.spawn(write_queue(socket.clone()));
        }
        Ok(())
    }

    /// Writes until `batch` is empty; `WouldBlock` when the socket is full.
    fn write(socket: &Socket, batch: &mut Lanes<Outgoing>) -> io::Result<()> {
        while !batch.is_empty() {
            batch.take_urgent(&mut socket.queue.state.lock().frames);
            let mut pieces = [IoSlice::new(&[]); PIECES_MAX];
            let mut count = 0;
            for (place, piece) in pieces.iter_mut().zip(batch.iter().flat_map(Outgoing::pieces)) {
                *place = IoSlice::new(piece);
                count += 1;
            }
            let written = socket.write(&pieces[..count])?;
            Self::advance(&socket.queue.space, batch, written);
        }
        Ok(())
    }

    /// So many more bytes of `batch` have left.
    fn advance(space: &Space, batch: &mut Lanes<Outgoing>, mut written: usize) {
        while let Some(frame) = batch.front_mut().filter(|_| written > 0) {
            let part = written.min(frame.bytes() - frame.written);
            frame.written += part;
            written -= part;
            if frame.written < frame.bytes() {
                return batch.keep_begun_first();
            }
            space.release(frame.is_urgent, frame.bytes());
            batch.pop();
        }
    }

    /// Becomes the writer, unless there is one or nothing to write.
    fn become_writer(&self) -> bool {
        let mut state = self.state.lock();
        state.turn_of = None;
        let becomes = state.writer == Writer::Idle && !state.frames.is_empty() && state.phase != Phase::Ended;
        if becomes {
            state.writer = Writer::Thread;
        }
        becomes
    }

    /// Writes on the calling thread, unless another one does. An error ends the connection: later
    /// frames are refused.
    fn write_what_is_queued(socket: &Arc<Socket>) {
        if socket.queue.become_writer()
            && let Err(error) = Self::write_inline(socket)
        {
            tracing::debug!(%error, "a connection broke while sending");
        }
    }

    /// Writes on the calling thread, which became the writer.
    fn write_inline(socket: &Arc<Socket>) -> io::Result<()> {
        let mut result = Ok(());
        let mut rest = Lanes::default();
        for _ in 0..INLINE_ROUNDS {
            if !Self::next_batch(socket, &mut rest) {
                return Ok(());
            }
            result = Self::write(socket, &mut rest);
            if result.is_err() {
                break;
            }
        }
        match result {
            Err(error) if error.kind() != ErrorKind::WouldBlock => Err(error),
            _ => Self::hand_over(socket, rest),
        }
        .inspect_err(|_| Self::end(socket))
    }

    /// One turn of the writer task, whose unfinished batch is `batch`.
    fn write_as_task(socket: &Socket, batch: &mut Lanes<Outgoing>) -> io::Result<Turn> {
        {
            let state = socket.queue.state.lock();
            match (state.phase, state.writer) {
                (Phase::Ended, _) => return Ok(Turn::Ended),
                (_, Writer::Task) => {}
                _ => return Ok(Turn::Nothing),
            }
        }
        loop {
            match Self::write(socket, batch) {
                Ok(()) => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(Turn::Full),
                Err(error) => return Err(error),
            }
            if !Self::next_batch(socket, batch) {
                return Ok(Turn::Nothing);
            }
        }
    }

    fn is_closing(&self) -> bool {
        self.state.lock().phase == Phase::Closing
    }
}

/// What the writer task waits for next.
enum Turn {
    /// Until it is the writer.
    Nothing,
    /// Until the socket has room.
    Full,
    /// The connection has ended.
    Ended,
}

/// The writer task of a connection; ends with it.
async fn write_queue(socket: Arc<Socket>) {
    if let Err(error) = write_until_end(&socket).await {
        tracing::debug!(%error, "a connection broke while sending");
    }
    Queue::end(&socket);
}

async fn write_until_end(socket: &Arc<Socket>) -> io::Result<()> {
    let registered = socket.writable()?;
    let mut batch = Lanes::default();
    let mut deadline = None;
    loop {
        match Queue::write_as_task(socket, &mut batch)? {
            Turn::Ended => return Ok(()),
            Turn::Nothing => socket.queue.wake.notified().await,
            Turn::Full => {
                if deadline.is_none() && socket.queue.is_closing() {
                    deadline = Some(Instant::now() + LINGER);
                }
                tokio::select! {
                    guard = registered.writable() => {
                        // Tried under the guard, so that no event between the two is missed.
                        match Queue::write(socket, &mut batch) {
                            Err(error) if error.kind() == ErrorKind::WouldBlock => guard?.clear_ready(),
                            result => result?,
                        }
                    }
                    () = socket.queue.wake.notified() => {}
                    () = reached(deadline) => return Err(ErrorKind::TimedOut.into()),
                }
            }
        }
    }
}

async fn reached(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => tokio::time::sleep_until(deadline).await,
        None => std::future::pending().await,
    }
}

/// The sending half of a connection; closes it when dropped.
pub(super) struct TcpSender {
    socket: Arc<Socket>,
}

impl TcpSender {
    pub fn new(socket: Arc<Socket>) -> Self {
        Self { socket }
    }
}

impl EndOfTurn for Socket {
    fn end_of_turn(self: Arc<Self>) {
        Queue::write_what_is_queued(&self);
    }
}

impl TcpSender {
    /// Queues a frame that has its room, and writes it or has it written.
    fn queue(&self, frame: Frame, permit: SemaphorePermit<'_>) -> io::Result<()> {
        let queue = &self.socket.queue;
        let thread = std::thread::current().id();
        let has_writer = {
            let mut state = queue.state.lock();
            if state.phase != Phase::Open {
                return Err(ErrorKind::BrokenPipe.into());
            }
            permit.forget();
            let (header, is_urgent) = (frame.header.encode(), frame.is_urgent());
            let outgoing = Outgoing { header, body: frame.body, bulk: frame.bulk, is_urgent, written: 0 };
            state.frames.push(outgoing, is_urgent);
            state.writer != Writer::Idle || state.turn_of == Some(thread)
        };
        if has_writer {
            return Ok(());
        }
        match at_end(self.socket.clone()) {
            Ok(()) => queue.state.lock().turn_of = Some(thread),
            Err(socket) => Queue::write_what_is_queued(&socket),
        }
        Ok(())
    }
}

impl Sender for TcpSender {
    fn send(&self, frame: Frame) -> BoxFuture<'_, io::Result<()>> {
        Box::pin(async move {
            frame.check_lengths().map_err(|error| io::Error::new(ErrorKind::InvalidInput, error))?;
            let permit = self.socket.queue.space.acquire(&frame).await?;
            self.queue(frame, permit)
        })
    }

    fn close(&self) {
        Queue::close(&self.socket);
    }
}

impl Drop for TcpSender {
    fn drop(&mut self) {
        Queue::close(&self.socket);
    }
}
