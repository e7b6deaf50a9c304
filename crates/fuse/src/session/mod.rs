//! A session with the kernel: reads requests from the device, passes them to a [`Handler`], and
//! ends with the mount.
//!
//! Life cycle: [`Session::start`] answers INIT on the first descriptor, clones it once per further
//! worker and starts the workers, one thread per core. Each worker reads one request at a time into
//! its own buffer, decodes it and polls the handler's future once, immediately: an operation that
//! does not have to wait is answered by the thread that read it. A pending operation goes to a core
//! of the process ([`Cores::run_inline_or_spawn`]), so a worker blocks only in its read. The
//! session ends when the kernel says so (unmounted), or by [`Session::stop`].
//!
//! Invariants: every request is answered exactly once, on the descriptor it came from
//! ([`Responder`]). Downside: a worker whose inline poll takes long reads no requests meanwhile;
//! the kernel gives requests to the worker that reads first, so the others continue.

pub mod buffer;
pub mod device;
pub mod init;
pub mod responder;
mod wake;

use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::JoinHandle,
};

use bytes::Bytes;
use rt::{
    BoxFuture,
    contain::{self, Contained, Panicked},
    real::Cores,
};
use tokio::sync::watch;

use crate::protocol::{Incoming, Operation, RequestDecodeError, decode};
use buffer::{Buffer, BufferPool};
use device::{Device, Received};
use host::errno::Errno;
use init::{Negotiated, UnsupportedKernel, negotiate};
pub use responder::{Answer, Responder};

/// Answers requests. Implemented by the adapter; by tests too.
pub trait Handler: Send + Sync + 'static {
    /// The work that a request asks for, or `None` if it was done at once. The code that completes
    /// it uses `responder`. The data of a WRITE come in `data` (and are not valid in `incoming` any
    /// more); for all others it is empty.
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
    Device(io::Error),
    /// Too old a kernel.
    #[error(transparent)]
    Kernel(#[from] UnsupportedKernel),
    /// Something else than INIT came first.
    #[error("the kernel did not begin with INIT: {0}")]
    NoInit(String),
}

/// Not its source: its text has the cause, which would be told twice.
impl From<io::Error> for SessionError {
    fn from(cause: io::Error) -> Self {
        SessionError::Device(cause)
    }
}

/// A running session.
pub struct Session {
    workers: Vec<JoinHandle<()>>,
    stop: Arc<AtomicBool>,
    ended: watch::Receiver<bool>,
    features: u64,
}

impl Session {
    /// Starts serving a mounted device with `threads` workers (at least one). `features`: bits of
    /// INIT that are switched on besides those of every session.
    pub fn start(
        device: Device,
        threads: usize,
        features: u64,
        handler: Arc<dyn Handler>,
        cores: Cores,
    ) -> Result<Session, SessionError> {
        let threads = threads.max(1);
        let pool = BufferPool::new(2 * threads + 8);
        let features = initialise(&device, &pool, features)?;
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

    /// Ends all workers and waits for them. Requests that are pending on cores are still answered;
    /// when the last of them is, the descriptors close, and a mount that still exists then answers
    /// ENOTCONN.
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

/// The device itself for the first worker, a clone for the others; where the device file may be
/// opened by root only, they share the one that was passed to us, which costs them a common lock in
/// the kernel.
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
fn initialise(device: &Device, pool: &Arc<BufferPool>, further: u64) -> Result<u64, SessionError> {
    let mut buffer = pool.take();
    loop {
        match device.receive(&mut buffer)? {
            Received::Again => continue,
            Received::Ended => return Err(SessionError::NoInit("the file system was unmounted".to_owned())),
            Received::Request => {}
        }
        let incoming = decode(buffer.request()).map_err(|error| SessionError::NoInit(error.to_string()))?;
        let Operation::Init(request) = incoming.operation else {
            return Err(SessionError::NoInit(format!("it sent {}", incoming.opcode.label())));
        };
        let unique = incoming.header.unique;
        match negotiate(&request, further) {
            Ok(Negotiated::Agreed(reply, features)) => {
                device.send(unique, 0, &Answer::of(&reply).head, &[])?;
                tracing::debug!(minor = reply.minor, features = format_args!("{features:#x}"), "FUSE session started");
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
                // A defect in one operation must not take the mount down: its request is answered
                // with EIO by the responder's drop, and the worker continues. State is behind locks
                // that do not poison.
                if let Err(panicked) = contain::catch(None, || serve(shared, device, &mut buffer)) {
                    report(&panicked);
                }
            }
            Ok(Received::Again) => {}
            Ok(Received::Ended) => break,
            Err(error) => {
                tracing::error!(%error, "cannot read /dev/fuse; this worker stops");
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
        let contained = Contained::new(None, work);
        let work = async move {
            if let Err(panicked) = contained.await {
                report(&panicked);
            }
        };
        shared.cores.run_inline_or_spawn("fuse", work);
    }
}

/// The request is answered by the drop of its responder.
fn report(panicked: &Panicked) {
    tracing::error!(trace = panicked.trace, what = panicked.what, "a request of the mount panicked; it fails with EIO");
}

/// Answers what could not be decoded.
fn refuse(device: &Arc<Device>, error: &RequestDecodeError) {
    let (unique, errno) = match *error {
        // Without a header there is no request to answer.
        RequestDecodeError::NoHeader { .. } => return tracing::error!(%error, "malformed request"),
        RequestDecodeError::UnknownOpcode { unique, .. } => (unique, Errno::NO_SUCH_OPERATION),
        RequestDecodeError::Length { unique, .. } | RequestDecodeError::Malformed { unique, .. } => {
            tracing::error!(%error, "malformed request");
            (unique, Errno::INVALID)
        }
    };
    Responder::new(device.clone(), unique).refuse(errno);
}
