//! The thread that writes to a fjall store, one command after another; the last one closes fjall.
//!
//! Life cycle: starts with the store, owns the thread that manages space, and is the only one to
//! close fjall: on request, when the store is dropped, and when it panics. Commands left in its
//! queue fail after that.

use std::{
    io,
    sync::{Arc, atomic::Ordering, mpsc},
    thread::JoinHandle,
};

use fjall::{AbstractTree, PersistMode};
use tokio::sync::oneshot;

use super::{
    checkpoint,
    fault::Fault,
    keyspaces::{Keyspaces, data_key, failed},
    shared::Shared,
};
use crate::{batch::Operation, cold::Checkpoint, error::is_no_space};

/// What is to be written.
pub(super) enum Order {
    Write(Vec<Operation>),
    Commit(Checkpoint),
}

/// What the thread is to do.
pub(super) enum Job {
    /// Write, and tell how that went.
    Write(Order, oneshot::Sender<io::Result<()>>),
    /// Close fjall and end; what is here is dropped then.
    Close(oneshot::Sender<()>),
}

/// See the module documentation.
pub(super) struct Writer {
    shared: Arc<Shared>,
    /// Ends before fjall is closed; taken when this is dropped.
    compactor: Option<JoinHandle<()>>,
    /// A write failed: fjall is to be opened again before the next.
    failed: bool,
    /// Dropped after closing: a task that waits for a command waits for that too.
    queue: mpsc::Receiver<Job>,
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.shared.stop();
        if let Some(compactor) = self.compactor.take() {
            // A panic of the thread has been reported where it happened.
            let _ = compactor.join();
        }
        self.shared.close();
    }
}

impl Writer {
    pub fn new(shared: Arc<Shared>, compactor: Option<JoinHandle<()>>, queue: mpsc::Receiver<Job>) -> Writer {
        Writer { shared, compactor, failed: false, queue }
    }

    /// Does what is queued until it is told to close, or the store is dropped, and closes.
    pub fn work(mut self) {
        let closing = self.write_all();
        drop(self);
        drop(closing);
    }

    /// Executes the queued commands; returns the sender of a request to close.
    fn write_all(&mut self) -> Option<oneshot::Sender<()>> {
        while let Ok(job) = self.queue.recv() {
            match job {
                Job::Write(order, reply) => {
                    let result = self.perform(&order);
                    // There may be something to merge.
                    self.shared.wakes.wake();
                    // No caller waits any more after a cancelled checkpoint.
                    let _ = reply.send(result);
                }
                Job::Close(closing) => return Some(closing),
            }
        }
        None
    }

    fn perform(&mut self, order: &Order) -> io::Result<()> {
        let outcome = self.attempt(order);
        match outcome {
            Err(Fault::Background) => self.attempt(order),
            outcome => outcome,
        }
        .map_err(Fault::into_error)
    }

    /// Opens fjall again if that is needed first.
    fn attempt(&mut self, order: &Order) -> Result<(), Fault> {
        if self.failed || self.shared.is_missing() {
            self.shared.open_again().map_err(Fault::Now)?;
            self.failed = false;
        }
        let outcome = match order {
            Order::Write(operations) => self.write(operations),
            Order::Commit(checkpoint) => self.commit(*checkpoint),
        };
        self.failed = match &outcome {
            Ok(()) | Err(Fault::NoSpaceToMerge) => false,
            Err(Fault::Background) => true,
            Err(Fault::Now(error)) => is_no_space(error),
        };
        outcome
    }

    /// What an error of fjall means.
    fn judge(&self, error: fjall::Error) -> Fault {
        match error {
            fjall::Error::Poisoned if self.shared.is_nearly_full().unwrap_or(false) => Fault::Background,
            error => Fault::Now(failed(error)),
        }
    }

    fn write(&self, operations: &[Operation]) -> Result<(), Fault> {
        self.shared.make_space_to_write()?;
        let keyspaces = self.shared.keyspaces().map_err(Fault::Now)?;
        let mut batch = keyspaces.database.batch().durability(Some(PersistMode::Buffer));
        let mut deleted = 0;
        for operation in operations {
            match operation {
                Operation::Put(table, key, value) => {
                    batch.insert(&keyspaces.data, data_key(*table, key), value.as_ref());
                }
                Operation::Delete(table, key) => {
                    batch.remove(&keyspaces.data, data_key(*table, key));
                    deleted += 1;
                }
            }
        }
        self.shared.deleted.fetch_add(deleted, Ordering::Relaxed);
        batch.commit().map_err(|error| self.judge(error))?;
        self.rotate_full_buffer(&keyspaces)
    }

    /// fjall only asks its thread to do that, which has no time for it while it flushes, or waits
    /// for the end of a rewriting: the buffer would grow, and the journal with it, as long as that
    /// takes. So a full one is sealed here, and waited for before the next write.
    fn rotate_full_buffer(&self, keyspaces: &Keyspaces) -> Result<(), Fault> {
        if keyspaces.data.tree.active_memtable().size() > self.shared.write_buffer_bytes() {
            keyspaces.data.rotate_memtable().map_err(|error| self.judge(error))?;
        }
        Ok(())
    }

    fn commit(&self, checkpoint: Checkpoint) -> Result<(), Fault> {
        self.shared.wait_for_flushes().map_err(Fault::Now)?;
        let keyspaces = self.shared.keyspaces().map_err(Fault::Now)?;
        keyspaces.meta.insert(checkpoint::KEY, checkpoint::encode(checkpoint)).map_err(|error| self.judge(error))?;
        let persist = |mode| {
            keyspaces.database.persist(mode).map_err(|error| match error {
                // Background work failed before: it is unknown what was synced.
                error @ fjall::Error::Poisoned => self.judge(error),
                // Never tried again, whatever was missing: what a failed sync left out is not
                // known.
                error => Fault::Now(io::Error::other(format!("sync: {}", failed(error)))),
            })
        };
        persist(PersistMode::SyncAll)?;
        // A sync that failed in the background while this one waited for the journal.
        persist(PersistMode::Buffer)?;
        self.let_journals_go(&keyspaces)
    }

    /// A journal that is full goes when all that it has is in tables. What is in the buffer of
    /// `meta` never fills it, so that without this the next journal would have to be full as well.
    fn let_journals_go(&self, keyspaces: &Keyspaces) -> Result<(), Fault> {
        if keyspaces.database.journal_count() > 1 {
            keyspaces.meta.rotate_memtable().map_err(|error| self.judge(error))?;
            keyspaces.data.rotate_memtable().map_err(|error| self.judge(error))?;
        }
        Ok(())
    }
}
