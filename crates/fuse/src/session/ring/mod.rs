//! FUSE over io_uring: requests and answers without read(2) and write(2) (Linux 6.14 and later,
//! module parameter `enable_uring`).
//!
//! ```text
//!  processor 0   processor 1   ...                 kernel: one queue per possible processor
//!      |             |
//!   entries       entries          512 per queue, more if requests wait     (queues.rs, memory.rs)
//!      |             |
//!   core 0        core 1     ...   each core has one ring for its share of the queues
//!                                                                           (core_ring.rs)
//! ```
//! A request comes to the queue of the processor on which its caller runs, and so to one core. The
//! thread of that core reads it, polls its operation, owns the sockets on which the operation sends
//! and receives, and answers: no request changes threads, unless an I/O thread answers it
//! (held.rs). FORGET, INTERRUPT and what came before the queues were complete still arrive on
//! `/dev/fuse`, where one worker ([`super::workers`]) reads them; it is a thread of its own, so
//! interrupts also arrive while cores are busy.
//!
//! Start: the rings are set up before INIT is answered, because with FUSE_OVER_IO_URING in the
//! answer every request waits until each queue has an entry. If a queue does not get its first
//! entry, the rings are dropped and the offer is withdrawn by a registration that the kernel
//! refuses: all requests then go to `/dev/fuse`.
//!
//! **What must not block.** With `/dev/fuse`, a worker that is blocked leaves the mount to the
//! others. Here a core that is blocked serves no request of its processors until it continues, as
//! it serves no socket meanwhile. So a core may wait for the local disk (a journal write takes as
//! long as the page cache takes), but never for the mount itself: nothing that runs on a core may
//! open, stat or map a path below a mount of this process. Nothing does: programs of the process
//! (mover, studies) use the client's API, files of targets and `/proc` are on other file systems,
//! mounting and unmounting happen on threads that are no cores, and data are never in memory mapped
//! from the mount. For the same reason a core never tells the kernel to drop a name (INVAL_ENTRY):
//! that waits for the lock of the directory, which requests hold, and is done by threads of its
//! own. INVAL_INODE and INC_EPOCH wait for no such lock.
//!
//! Downside: an entry's payload belongs to the kernel again as soon as its request is answered.
//! Large WRITE data are therefore copied once, as are READ data (both are not over `/dev/fuse`).

mod core_ring;
pub(super) mod held;
mod memory;
mod processors;
mod queues;
mod submission;

use std::{
    io,
    sync::{Arc, mpsc},
};

use rt::Spawn;
use tokio::sync::watch;

pub use core_ring::Shared;
use core_ring::{CoreRing, IdleRing, set_up};
pub use memory::EntryBytes;
pub use queues::ENTRIES_MAX;

/// Rings that are set up, for a session that has not begun.
pub struct IdleRings {
    rings: Vec<IdleRing>,
    queues: u16,
}

impl IdleRings {
    /// One ring per core, but no more than there are queues.
    pub fn set_up(cores: usize) -> io::Result<Self> {
        let queues = processors::possible()?;
        let rings = (0..cores.min(queues.into())).map(|_| set_up()).collect::<io::Result<_>>()?;
        Ok(Self { rings, queues })
    }
}

/// Why rings could not be taken into service.
#[derive(Debug)]
pub enum StartError {
    /// The kernel sends all requests to `/dev/fuse`.
    Withdrawn(io::Error),
    /// The kernel may keep requests for rings that no thread serves.
    Stuck(io::Error),
}

/// Rings in service.
pub struct Rings {
    stop: watch::Sender<bool>,
    queues: u16,
}

impl Rings {
    /// Gives every queue its first entry, and begins to serve. After an error requests come over
    /// `/dev/fuse`. Waits for the cores: not to be called on one.
    pub fn start(idle: IdleRings, shared: &Arc<Shared>) -> Result<Self, StartError> {
        let (count, queues) = (idle.rings.len(), idle.queues);
        let (stop, stopped) = watch::channel(false);
        let (tell, told) = mpsc::channel();
        for (index, ring) in idle.rings.into_iter().enumerate() {
            let (shared, stopped, tell) = (shared.clone(), stopped.clone(), tell.clone());
            let cores = shared.dispatcher.cores().clone();
            let numbers = (0..queues).filter(|queue| cores.of_processor((*queue).into()) % count == index).collect();
            let serve = async move {
                match CoreRing::start(ring, numbers, shared) {
                    Ok(started) => {
                        // If the receiver is gone, `start` has failed, and told this task to stop.
                        let _ = tell.send(Ok(()));
                        started.run(stopped).await;
                    }
                    Err(error) => drop(tell.send(Err(error))),
                }
            };
            cores.spawn_on(index, "requests over io_uring", Box::pin(serve));
        }
        drop(tell);
        let mut started = 0;
        let outcome = told.iter().take(count).try_for_each(|outcome| outcome.inspect(|()| started += 1));
        let outcome = outcome.and_then(|()| match started == count {
            true => Ok(()),
            false => Err(io::Error::other("the cores have been stopped")),
        });
        match outcome {
            Ok(()) => Ok(Self { stop, queues }),
            Err(error) => {
                stop.send_replace(true);
                withdraw(shared).map_err(StartError::Stuck)?;
                Err(StartError::Withdrawn(error))
            }
        }
    }

    /// Queues served.
    pub fn queues(&self) -> u16 {
        self.queues
    }
}

/// From now on requests are refused; the tasks of the cores end with the mount.
impl Drop for Rings {
    fn drop(&mut self) {
        self.stop.send_replace(true);
    }
}

/// Lets the kernel send all requests to `/dev/fuse`.
fn withdraw(shared: &Shared) -> io::Result<()> {
    let mut ring = io_uring::IoUring::<io_uring::squeue::Entry128>::builder().build(1)?;
    let refused = submission::withdraw(shared.device.descriptor());
    // SAFETY: it names no memory, and a descriptor that `shared` keeps open.
    unsafe { ring.submission().push(&refused) }.map_err(io::Error::other)?;
    ring.submit_and_wait(1)?;
    match ring.completion().next().map(|completion| completion.result()) {
        Some(result) if result < 0 => Ok(()),
        other => Err(io::Error::other(format!("the kernel did not return to /dev/fuse: {other:?}"))),
    }
}
