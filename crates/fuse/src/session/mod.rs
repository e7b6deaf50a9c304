//! A session with the kernel: reads requests from the device, hands them to a [`Handler`], ends with the mount.
//!
//! Life cycle: [`Session::start`] answers INIT on the first descriptor, clones it once per further worker and starts the
//! workers, one thread per core. Each worker reads one request at a time into its own buffer, decodes it and polls the
//! handler's future once, on the spot: an operation that needs nobody else is answered by the thread that read it. What is
//! pending goes to a core of the process ([`Cores::run_inline_or_spawn`]), so a worker never blocks but in its read. The session ends when the
//! kernel says so (unmounted), or by [`Session::stop`].
//!
//! Invariants: every request is answered exactly once, on the descriptor it came from ([`Responder`]). Downside: a
//! worker whose inline poll computes for long delays the next request that only it would have read; the kernel gives
//! requests to whichever worker reads first, so the others go on.

pub mod buffer;
pub mod device;
pub mod init;
pub mod responder;
mod wake;

use std::{
    io,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::JoinHandle,
};

use bytes::Bytes;
use rt::{BoxFuture, real::Cores};
use tokio::sync::watch;

use crate::errno::Errno;
use crate::protocol::{DecodeError, Incoming, Operation, decode};
use buffer::{Buffer, BufferPool};
use device::{Device, Received};
use init::{Negotiated, UnsupportedKernel, negotiate};
pub use responder::{Answer, Responder};

/// Answers requests. Implemented by the adapter; by tests too.
pub trait Handler: Send + Sync + 'static {
    /// The work a request asks for, or `None` if it was done at once. Whoever completes it uses `responder`. The data of a
    /// WRITE come in `data` (and are not valid in `incoming` any more); for all others it is empty.
    fn handle(
        self: Arc<Self>,
        incoming: Incoming<'_>,
        data: Bytes,
        responder: Responder,
    ) -> Option<BoxFuture<'static, ()>>;
}

/// Why a session could not start.
#[derive(Debug, thiserror::Error)]
pub enum SessionError {
    /// The device failed.
    #[error("cannot use /dev/fuse: {0}")]
    Device(#[from] io::Error),
    /// Too old a kernel.
    #[error(transparent)]
    Kernel(#[from] UnsupportedKernel),
    /// Something else than INIT came first.
    #[error("the kernel did not begin with INIT: {0}")]
    NoInit(String),
}

/// A running session.
pub struct Session {
    workers: Vec<JoinHandle<()>>,
    stop: Arc<AtomicBool>,
    ended: watch::Receiver<bool>,
    features: u64,
}

impl Session {
    /// Starts serving a mounted device with `threads` workers (at least one).
    pub fn start(
        device: Device,
        threads: usize,
        handler: Arc<dyn Handler>,
        cores: Cores,
    ) -> Result<Session, SessionError> {
        let threads = threads.max(1);
        let pool = BufferPool::new(2 * threads + 8);
        let features = initialise(&device, &pool)?;
        wake::prepare();
        let device = Arc::new(device);
        let devices: Vec<_> = (0..threads).map(|number| device_of_worker(number, &device)).collect();

        let (ending, ended) = watch::channel(false);
        let shared = Arc::new(Shared { handler, cores, pool, stop: Arc::default(), ending });
        let stop = shared.stop.clone();
        let mut workers = Vec::with_capacity(threads);
        for (number, device) in devices.into_iter().enumerate() {
            let shared = shared.clone();
            let thread = std::thread::Builder::new().name(format!("fuse{number}"));
            workers.push(thread.spawn(move || work(&shared, &device))?);
        }
        Ok(Session { workers, stop, ended, features })
    }

    /// Features the kernel and this side agreed on.
    pub fn features(&self) -> u64 {
        self.features
    }

    /// Becomes true when the kernel ended the session (an unmount, by whomever) or it was stopped.
    pub fn ended(&self) -> watch::Receiver<bool> {
        self.ended.clone()
    }

    /// Ends all workers and waits for them. Requests that are pending on cores are still answered; when the last of them
    /// is, the descriptors close, and a mount that still exists then answers ENOTCONN.
    pub fn stop(mut self) {
        self.stop.store(true, Ordering::Release);
        for worker in self.workers.drain(..) {
            wake::wake_until_ended(&worker);
            // A worker catches panics of the work it does; one that ended by a panic has logged it.
            let _ = worker.join();
        }
    }
}

/// What the workers have in common.
struct Shared {
    handler: Arc<dyn Handler>,
    cores: Cores,
    pool: Arc<BufferPool>,
    stop: Arc<AtomicBool>,
    ending: watch::Sender<bool>,
}

/// The device itself for the first worker, a clone for the others; where the device file may be opened by root only, they
/// share the one that was passed to us, which costs them a common lock in the kernel.
fn device_of_worker(number: usize, device: &Arc<Device>) -> Arc<Device> {
    if number == 0 {
        return device.clone();
    }
    match device.try_clone() {
        Ok(clone) => Arc::new(clone),
        Err(error) => {
            tracing::debug!(number, %error, "cannot clone /dev/fuse; sharing it");
            device.clone()
        }
    }
}

/// Reads and answers INIT; returns the features agreed on.
fn initialise(device: &Device, pool: &Arc<BufferPool>) -> Result<u64, SessionError> {
    let mut buffer = pool.take();
    loop {
        match device.receive(&mut buffer)? {
            Received::Again => continue,
            Received::Ended => return Err(SessionError::NoInit("it was unmounted".to_owned())),
            Received::Request => {}
        }
        let incoming = decode(buffer.request()).map_err(|error| SessionError::NoInit(error.to_string()))?;
        let Operation::Init(request) = incoming.operation else {
            return Err(SessionError::NoInit(format!("it sent {}", incoming.opcode.label())));
        };
        let unique = incoming.header.unique;
        match negotiate(&request) {
            Ok(Negotiated::Agreed(reply, features)) => {
                device.send(unique, 0, &Answer::of(&reply).head, &[])?;
                tracing::debug!(minor = reply.minor, features = format_args!("{features:#x}"), "FUSE session begins");
                return Ok(features);
            }
            Ok(Negotiated::TryOlder(reply)) => device.send(unique, 0, &Answer::of(&reply).head, &[])?,
            Err(error) => {
                device.send(unique, libc::EPROTO, &[], &[])?;
                return Err(error.into());
            }
        }
    }
}

/// The life of a worker.
fn work(shared: &Shared, device: &Arc<Device>) {
    let mut buffer = shared.pool.take();
    while !shared.stop.load(Ordering::Acquire) {
        match device.receive(&mut buffer) {
            Ok(Received::Request) => {
                // A defect in one operation must not take the mount down: its request is answered with EIO by the
                // responder's drop, and the worker goes on. State is behind locks that do not poison.
                if catch_unwind(AssertUnwindSafe(|| serve(shared, device, &mut buffer))).is_err() {
                    tracing::error!("a request's work panicked");
                }
            }
            Ok(Received::Again) => {}
            Ok(Received::Ended) => break,
            Err(error) => {
                tracing::error!(%error, "reading /dev/fuse failed; this worker ends");
                break;
            }
        }
    }
    shared.ending.send_replace(true);
}

/// Serves the request in the buffer.
fn serve(shared: &Shared, device: &Arc<Device>, buffer: &mut Buffer) {
    let incoming = match decode(buffer.request()) {
        Ok(incoming) => incoming,
        Err(error) => return refuse(device, &error),
    };
    let responder = Responder::new(device.clone(), incoming.header.unique);
    let handler = shared.handler.clone();
    let work = if let Operation::Write { write, .. } = incoming.operation {
        let (header, opcode) = (incoming.header, incoming.opcode);
        let data = buffer.take_write_data(write.size as usize);
        let operation = Operation::Write { write, data: &[] };
        handler.handle(Incoming { header, opcode, operation }, data, responder)
    } else {
        handler.handle(incoming, Bytes::new(), responder)
    };
    if let Some(work) = work {
        shared.cores.run_inline_or_spawn("fuse", work);
    }
}

/// Answers what could not be decoded.
fn refuse(device: &Arc<Device>, error: &DecodeError) {
    let (unique, errno) = match *error {
        // Without a header there is nobody to answer.
        DecodeError::NoHeader { .. } => return tracing::error!(%error, "malformed request"),
        DecodeError::UnknownOpcode { unique, .. } => (unique, Errno::NO_SUCH_OPERATION),
        DecodeError::Length { unique, .. } | DecodeError::Malformed { unique, .. } => {
            tracing::error!(%error, "malformed request");
            (unique, Errno::INVALID)
        }
    };
    Responder::new(device.clone(), unique).refuse(errno);
}
