//! Threads that read `/dev/fuse`: all requests of a mount that does not use io_uring; of one that
//! does, the few that come this way nevertheless (FORGET, INTERRUPT, DESTROY).
//!
//! Each worker blocks in a read of its own clone of the device, serves the request and reads again.
//! The kernel wakes one blocked reader per request; if the cores watched the device through epoll,
//! it would wake all of them for each.
//!
//! Each keeps to a core, and to its processor if the cores are bound.
//!
//! Where requests come over io_uring, nobody waits for what is read here, most of which is a FORGET
//! for each file that is removed. The worker then reads the next ones a moment later, together: the
//! kernel wakes nobody meanwhile.
//!
//! Downside: a request that has to wait moves to a core, which costs a switch to another thread. A
//! worker whose inline poll takes long reads no requests meanwhile; the kernel gives requests to
//! the worker that reads first, so the others continue.

use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::JoinHandle,
    time::Duration,
};

use bytes::Bytes;
use tokio::sync::watch;

use super::buffer::{Buffer, BufferPool};
use super::device::{Device, Received};
use super::dispatch::{self, Dispatcher};
use super::responder::Responder;
use super::wake;
use crate::protocol::{Incoming, Operation, RequestDecodeError, decode};

/// How long a worker lets forgotten inodes gather: some twenty at the rate at which one program
/// removes files. An INTERRUPT may wait as long.
const FORGETS_PAUSE: Duration = Duration::from_millis(2);

/// The workers of a session.
pub struct Workers {
    threads: Vec<JoinHandle<()>>,
    shared: Arc<Shared>,
    device: Arc<Device>,
}

/// What the workers have in common.
struct Shared {
    dispatcher: Arc<Dispatcher>,
    pool: Arc<BufferPool>,
    stop: AtomicBool,
    /// Requests that are waited for come another way.
    gathers_forgets: AtomicBool,
    ending: watch::Sender<bool>,
}

impl Workers {
    /// No workers yet, of a device that has answered INIT.
    pub fn new(device: Arc<Device>, dispatcher: Arc<Dispatcher>, pool: Arc<BufferPool>) -> Self {
        wake::prepare();
        let (stop, gathers_forgets) = (AtomicBool::new(false), AtomicBool::new(false));
        let shared = Shared { dispatcher, pool, stop, gathers_forgets, ending: watch::Sender::new(false) };
        Self { threads: Vec::new(), shared: Arc::new(shared), device }
    }

    /// Starts workers until there are `count`.
    pub fn start(&mut self, count: usize) -> io::Result<()> {
        for number in self.threads.len()..count {
            let (shared, device) = (self.shared.clone(), self.device_of(number));
            let thread = std::thread::Builder::new().name(format!("fuse{number}"));
            let work = move || {
                shared.dispatcher.cores().keep_to(number);
                work(&shared, &device);
            };
            self.threads.push(thread.spawn(work)?);
        }
        Ok(())
    }

    /// Requests come over io_uring from now on.
    pub fn gather_forgets(&self) {
        self.shared.gathers_forgets.store(true, Ordering::Release);
    }

    /// Says that the session has ended.
    pub fn ending(&self) -> watch::Sender<bool> {
        self.shared.ending.clone()
    }

    /// Becomes true when the kernel ended the session, or a worker or a ring stopped.
    pub fn ended(&self) -> watch::Receiver<bool> {
        self.shared.ending.subscribe()
    }

    /// The device itself for the first worker, a clone for the others; where the device file may be
    /// opened by root only, they share the one that was passed to us, which costs them a common
    /// lock in the kernel.
    fn device_of(&self, number: usize) -> Arc<Device> {
        if number == 0 {
            return self.device.clone();
        }
        match self.device.try_clone() {
            Ok(clone) => Arc::new(clone),
            Err(error) => {
                tracing::debug!(number, %error, "cannot clone /dev/fuse; sharing it");
                self.device.clone()
            }
        }
    }
}

/// Ends the workers and waits for them.
impl Drop for Workers {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Release);
        for thread in self.threads.drain(..) {
            wake::wake_until_ended(&thread);
            // A worker catches panics of the work it does; one that ended by a panic has logged it.
            let _ = thread.join();
        }
    }
}

/// The work of a worker.
fn work(shared: &Shared, device: &Arc<Device>) {
    let mut buffer = shared.pool.take();
    while !shared.stop.load(Ordering::Acquire) {
        match device.receive(&mut buffer) {
            Ok(Received::Request) => {
                let is_forget = serve(shared, device, &mut buffer);
                if is_forget && shared.gathers_forgets.load(Ordering::Acquire) {
                    std::thread::sleep(FORGETS_PAUSE);
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

/// Serves the request in the buffer. True if the kernel forgets something, and waits for nothing.
fn serve(shared: &Shared, device: &Arc<Device>, buffer: &mut Buffer) -> bool {
    let incoming = match decode(buffer.request()) {
        Ok(incoming) => incoming,
        // Without a header there is no request to answer.
        Err(error @ RequestDecodeError::NoHeader { .. }) => {
            tracing::error!(%error, "malformed request");
            return false;
        }
        Err(error) => {
            dispatch::refuse(&error, Responder::over_device(device.clone(), unique_of(&error)));
            return false;
        }
    };
    let responder = Responder::over_device(device.clone(), incoming.header.unique);
    let (header, opcode) = (incoming.header, incoming.opcode);
    let is_forget = matches!(incoming.operation, Operation::Forget(_) | Operation::BatchForget { .. });
    if let Operation::Write { write, .. } = incoming.operation {
        let data = buffer.take_write_data(write.size as usize);
        let operation = Operation::Write { write, data: &[] };
        shared.dispatcher.serve(Incoming { header, opcode, operation }, data, responder);
    } else {
        shared.dispatcher.serve(incoming, Bytes::new(), responder);
    }
    is_forget
}

fn unique_of(error: &RequestDecodeError) -> u64 {
    match *error {
        RequestDecodeError::NoHeader { .. } => 0,
        RequestDecodeError::UnknownOpcode { unique, .. }
        | RequestDecodeError::Length { unique, .. }
        | RequestDecodeError::Malformed { unique, .. } => unique,
    }
}
