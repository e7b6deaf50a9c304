//! Checkpoints: changed entries go to the cold store, then the journal up to that point is
//! obsolete.
//!
//! One at a time, always on the checkpoint task, so that a cancelled caller leaves nothing half
//! done. Steps:
//! 1. freeze: note the last batch, start a new epoch of changes;
//! 2. call the hook of the store's user; make everything up to the freeze durable in the journal;
//! 3. walk the tables in steps: take the newest values of changed entries, make sure that they are
//!    durable in the journal, write them, mark them clean;
//! 4. commit the cold store with the noted number;
//! 5. release the journal's segments.
//!
//! After a crash between any of these steps, work is repeated and nothing is lost: the journal
//! still has the changes, and values are absolute.

use std::sync::Arc;

use super::{shared::Shared, space::STEP_BYTES};
use crate::{
    batch::Lsn,
    cold::Checkpoint,
    error::{Error, Result, is_no_space},
    tables::Cursor,
};

/// Where checkpoints stand.
pub(super) struct Progress {
    /// What the last successful one contains.
    pub last: Lsn,
    /// Checkpoints asked for; each gets a number.
    requested: u64,
    /// Requests that were answered, and how the last one was.
    completed: u64,
    result: Result<Lsn>,
    /// The task was told that one is due.
    pub wanted: bool,
}

impl Progress {
    pub fn new(last: Lsn) -> Progress {
        Progress { last, requested: 0, completed: 0, result: Ok(last), wanted: false }
    }

    /// Why the last one failed, if it did.
    pub fn failure(&self) -> Option<Error> {
        self.result.as_ref().err().cloned()
    }

    pub fn is_requested(&self) -> bool {
        self.requested > self.completed
    }
}

impl Shared {
    /// Asks for a checkpoint and waits for one that began afterwards.
    pub(super) async fn request_checkpoint(&self) -> Result<Lsn> {
        let number = {
            let mut state = self.state.lock();
            state.check_usable()?;
            if state.checkpoints.last == state.journal.applied() {
                return Ok(state.checkpoints.last);
            }
            state.checkpoints.requested += 1;
            state.checkpoints.requested
        };
        self.checkpoint_wanted.notify_one();
        loop {
            let mut notified = std::pin::pin!(self.changed.notified());
            notified.as_mut().enable();
            {
                let state = self.state.lock();
                if state.checkpoints.completed >= number {
                    return state.checkpoints.result.clone();
                }
                state.check_usable()?;
            }
            notified.await;
        }
    }

    /// Runs one and answers the requests made before it began. Whether it succeeded.
    pub(super) async fn run_checkpoint(&self) -> bool {
        let requested = self.state.lock().checkpoints.requested;
        let result = self.perform_checkpoint().await;
        let mut state = self.state.lock();
        let succeeded = result.is_ok();
        let failed_before = std::mem::replace(&mut state.checkpoint_failed, !succeeded);
        state.cold_full = result.as_ref().is_err_and(Error::is_no_space);
        if let Err(error) = &result
            && !state.closed
            && !failed_before
        {
            tracing::warn!(%error, "checkpoint failed; retrying");
        }
        state.checkpoints.wanted = false;
        state.checkpoints.completed = requested;
        state.checkpoints.result = result;
        drop(state);
        self.changed.notify_waiters();
        succeeded
    }

    async fn perform_checkpoint(&self) -> Result<Lsn> {
        self.check_space_for_step().await?;
        let (frozen, lsn, term) = {
            let state = self.state.lock();
            state.check_usable()?;
            (self.tables.write().freeze(), state.journal.applied(), state.journal.term())
        };
        self.durable(lsn).await?;
        if let Some(hook) = &self.config.before_checkpoint {
            hook(lsn).await.map_err(|cause| Error::Hook { cause: Arc::new(cause) })?;
        }
        let mut cursor = Some(Cursor::default());
        while let Some(from) = cursor {
            if self.is_short() {
                self.check_space_for_step().await?;
            }
            cursor = self.write_step(&from, frozen).await?;
            yield_now().await;
            self.check_usable()?;
        }
        let checkpoint = Checkpoint { store: self.store, lsn, term };
        let committed = self.cold.commit(checkpoint).await;
        committed.map_err(|error| self.cold_failed("commit", error))?;
        let mut state = self.state.lock();
        state.checkpoints.last = lsn;
        state.journal.release(lsn);
        if state.journal.ready_segments() > 0 {
            state.journal_full = false;
        }
        Ok(lsn)
    }

    fn is_short(&self) -> bool {
        self.is_device_short(&self.state.lock())
    }

    /// Takes one step of the walk to the cold store; where to continue.
    async fn write_step(&self, from: &Cursor, frozen: u32) -> Result<Option<Cursor>> {
        let (step, applied) = {
            let state = self.state.lock();
            state.check_usable()?;
            let step = self.tables.read().walk(from, frozen, self.config.step_entries, STEP_BYTES);
            (step, state.journal.applied())
        };
        if step.operations.is_empty() {
            return Ok(step.next);
        }
        if step.newer {
            self.durable(applied).await?;
        }
        let written = self.cold.write(step.operations.clone()).await;
        written.map_err(|error| self.cold_failed("write", error))?;
        let mut state = self.state.lock();
        let mut tables = self.tables.write();
        tables.mark_clean(&step.operations, frozen);
        tables.evict(self.config.memory_bytes as usize, 4 * self.config.step_entries);
        state.dirty = tables.dirty();
        drop(tables);
        drop(state);
        self.changed.notify_waiters();
        Ok(step.next)
    }

    /// A full cold store is tried again later; after any other failure its contents are unknown.
    fn cold_failed(&self, action: &'static str, source: std::io::Error) -> Error {
        let full = is_no_space(&source);
        let error = Error::cold(action, source);
        if !full {
            self.poison(&error);
        }
        error
    }
}

/// Lets other tasks of this core run.
async fn yield_now() {
    let mut yielded = false;
    std::future::poll_fn(|context| {
        if yielded {
            return std::task::Poll::Ready(());
        }
        yielded = true;
        context.waker().wake_by_ref();
        std::task::Poll::Pending
    })
    .await;
}
