//! A session with the kernel: takes requests from it, passes them to a [`Handler`], and ends with
//! the mount.
//!
//! ```text
//!            transport                                         common to both
//!  kernel ── /dev/fuse: a thread per core (workers)   ──┬──> Dispatcher ──> Handler ──> Responder
//!        └── io_uring: the cores themselves (ring)    ──┘
//! ```
//! Life cycle: [`Session::start`] chooses the transport ([`RingChoice`]), answers INIT on the
//! device and starts to serve. Each operation is decoded and polled once, immediately, by the
//! thread that took it from the kernel: an operation that does not have to wait is answered there.
//! A pending operation continues on a core of the process ([`Cores::run_inline_or_spawn`]). The
//! session ends when the kernel says so (unmounted), or by [`Session::stop`].
//!
//! Invariant: every request is answered exactly once, where it came from ([`Responder`]).

pub mod buffer;
pub mod device;
mod dispatch;
mod handler;
mod host_limits;
pub mod init;
pub mod notifications;
mod request_timeout;
pub mod responder;
mod ring;
pub mod transfer_size;
mod transport;
mod wake;
mod workers;

use std::{
    io,
    sync::{Arc, atomic::AtomicU64},
    time::Duration,
};

use rt::real::Cores;
use tokio::sync::watch;

use crate::protocol::flags::init::OVER_IO_URING;
use crate::protocol::{Operation, decode};
use buffer::BufferPool;
use device::{Device, Received};
use dispatch::Dispatcher;
pub use handler::Handler;
use init::{Negotiated, UnsupportedKernel, negotiate};
pub use notifications::{Notifications, Notified};
pub use responder::{Answer, Responder};
pub use ring::EntryBytes;
use ring::{IdleRings, Rings, StartError};
pub use transport::{RingChoice, Transport};
use workers::Workers;

/// How long the end of a session waits for requests that are pending.
const REST_MAX: Duration = Duration::from_secs(1);

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
    /// io_uring is required.
    #[error("the mount option io_uring=on cannot be fulfilled: {0}")]
    NoRing(String),
}

/// Not its source: its text has the cause, which would be told twice.
impl From<io::Error> for SessionError {
    fn from(cause: io::Error) -> Self {
        SessionError::Device(cause)
    }
}

/// How a session serves.
#[derive(Clone, Copy, Debug)]
pub struct SessionOptions {
    /// Threads that read `/dev/fuse` if that is the transport, at least one.
    pub threads: usize,
    /// Bits of INIT that are switched on besides those of every session.
    pub features: u64,
    /// Whether to use io_uring.
    pub io_uring: RingChoice,
    /// Bytes of data of one READ or WRITE at most: whole pages ([`transfer_size::of_host`]).
    pub data_bytes: usize,
    /// What entries of io_uring are registered with.
    pub entry_bytes: EntryBytes,
}

/// A running session.
pub struct Session {
    workers: Workers,
    rings: Option<Rings>,
    features: u64,
    entries_refused: Arc<AtomicU64>,
    dispatcher: Arc<Dispatcher>,
}

impl Session {
    /// Starts serving a mounted device. Not to be called on a core.
    pub fn start(
        device: Device,
        options: SessionOptions,
        handler: Arc<dyn Handler>,
        cores: Cores,
    ) -> Result<Session, SessionError> {
        let threads = options.threads.max(1);
        let pool = BufferPool::new(2 * threads + 8, options.data_bytes);
        let Initialised { minor, features, rings: idle } = initialise(&device, &pool, options, cores.count())?;
        let device = Arc::new(device);
        let late = Arc::downgrade(&handler);
        device.set_when_late(Box::new(move || {
            if let Some(handler) = late.upgrade() {
                handler.answered_late();
            }
        }));
        handler.begins(Notifications::new(&device, minor));
        let dispatcher = Dispatcher::new(handler, cores);
        let mut workers = Workers::new(device.clone(), dispatcher.clone(), pool.clone());
        workers.start(1)?;
        let entries_refused: Arc<AtomicU64> = Arc::default();
        let (ending, refused) = (workers.ending(), entries_refused.clone());
        let shared = Arc::new(ring::Shared {
            device,
            dispatcher: dispatcher.clone(),
            pool,
            ending,
            refused,
            data_bytes: options.data_bytes,
            entry_bytes: options.entry_bytes,
        });
        let rings = match idle {
            None => None,
            Some(idle) => match Rings::start(idle, &shared) {
                Ok(rings) => Some(rings),
                Err(StartError::Stuck(error)) => return Err(SessionError::NoRing(error.to_string())),
                Err(StartError::Withdrawn(error)) if options.io_uring == RingChoice::On => {
                    return Err(SessionError::NoRing(error.to_string()));
                }
                Err(StartError::Withdrawn(error)) => {
                    tracing::warn!(%error, "io_uring failed; requests come over /dev/fuse");
                    None
                }
            },
        };
        match &rings {
            Some(rings) => {
                workers.gather_forgets();
                tracing::info!(queues = rings.queues(), "FUSE requests come over io_uring");
            }
            None => workers.start(threads)?,
        }
        Ok(Session { workers, rings, features, entries_refused, dispatcher })
    }

    /// Features the kernel and this side agreed on.
    pub fn features(&self) -> u64 {
        self.features
    }

    /// How requests come.
    pub fn transport(&self) -> Transport {
        if self.rings.is_some() { Transport::IoUring } else { Transport::Device }
    }

    /// Counts entries of io_uring that the kernel gave back without a request.
    pub fn entries_refused(&self) -> &Arc<AtomicU64> {
        &self.entries_refused
    }

    /// Becomes true when the kernel ended the session (an unmount, by whomever) or it was stopped.
    pub fn ended(&self) -> watch::Receiver<bool> {
        self.workers.ended()
    }

    /// Ends all workers and waits for them, and a moment for requests that are pending on cores:
    /// nobody waits for the close of the last file before an unmount. Those that take longer are
    /// still answered; when the last of them is, the descriptors close, and a mount that still
    /// exists then answers ENOTCONN. (Over io_uring it is the cores that answer ENOTCONN until the
    /// mount is gone.) Not to be called on a core.
    pub fn stop(self) {
        let dispatcher = self.dispatcher.clone();
        drop(self);
        dispatcher.rest(REST_MAX);
    }
}

/// What INIT led to.
struct Initialised {
    minor: u32,
    features: u64,
    /// If io_uring is one of the features.
    rings: Option<IdleRings>,
}

/// Reads and answers INIT.
fn initialise(
    device: &Device,
    pool: &Arc<BufferPool>,
    options: SessionOptions,
    cores: usize,
) -> Result<Initialised, SessionError> {
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
        let refuse = || device.send(unique, libc::EPROTO, &[], &[]);
        let rings = match choose(options.io_uring, request.flags, cores) {
            Ok(rings) => rings,
            Err(reason) => {
                refuse()?;
                return Err(SessionError::NoRing(reason));
            }
        };
        let further = options.features | rings.as_ref().map_or(0, |_| OVER_IO_URING);
        match negotiate(&request, further, options.data_bytes) {
            Ok(Negotiated::Agreed(reply, features)) => {
                device.send(unique, 0, &Answer::of(&reply).head, &[])?;
                request_timeout::warn();
                tracing::debug!(minor = reply.minor, features = format_args!("{features:#x}"), "FUSE session started");
                return Ok(Initialised { minor: reply.minor, features, rings });
            }
            Ok(Negotiated::TryOlder(reply)) => device.send(unique, 0, &Answer::of(&reply).head, &[])?,
            Err(error) => {
                refuse()?;
                return Err(error.into());
            }
        }
    }
}

/// Sets up rings, if they are wanted and available; an error if they are required and not
/// available.
fn choose(choice: RingChoice, offered: u64, cores: usize) -> Result<Option<IdleRings>, String> {
    if choice == RingChoice::Off {
        return Ok(None);
    }
    let rings = match offered & OVER_IO_URING {
        0 => Err("the kernel does not offer it; on Linux 6.14 or later it does after: \
                  echo 1 > /sys/module/fuse/parameters/enable_uring"
            .to_owned()),
        _ => IdleRings::set_up(cores).map_err(|error| format!("cannot set up io_uring: {error}")),
    };
    match (rings, choice) {
        (Ok(rings), _) => Ok(Some(rings)),
        (Err(reason), RingChoice::On) => Err(reason),
        (Err(reason), _) => {
            tracing::info!(reason, "FUSE requests come over /dev/fuse, not over io_uring");
            Ok(None)
        }
    }
}
