//! A cold store in memory, for tests and the lab, that can lose power.
//!
//! It keeps two images: what is visible, and what was durable at the last commit, with the list of
//! operations between them. [`MemoryCold::power_loss`] goes back to the durable image plus a prefix
//! of the list: the contract promises no more. [`MemoryCold::crash`] keeps everything. Both fence
//! the old handle: tasks of the dead process that are still running get errors and change nothing.
//! Downside: everything is stored twice.

use std::{
    collections::BTreeMap,
    io,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use bytes::Bytes;
use parking_lot::{Mutex, MutexGuard};
use rt::{BoxFuture, Entropy};

use super::{Checkpoint, ColdStore};
use crate::batch::{Operation, Table};

type Image = BTreeMap<(Table, Bytes), Bytes>;

#[derive(Clone, Default)]
struct State {
    visible: Image,
    durable: Image,
    /// Written since the last commit, in order.
    uncommitted: Vec<Operation>,
    checkpoint: Option<Checkpoint>,
    /// Bytes of keys and values it may hold, and what fails beyond it.
    bytes_max: Option<u64>,
    failure: Option<io::ErrorKind>,
}

/// A cold store in memory. Clones are the same handle to the same content.
#[derive(Clone)]
pub struct MemoryCold {
    state: Arc<Mutex<State>>,
    attached: Arc<AtomicBool>,
}

impl Default for MemoryCold {
    fn default() -> MemoryCold {
        MemoryCold { state: Arc::default(), attached: Arc::new(AtomicBool::new(true)) }
    }
}

impl MemoryCold {
    /// An empty one.
    pub fn new() -> MemoryCold {
        MemoryCold::default()
    }

    /// The process dies: everything written is kept. This handle is dead, the new one sees the
    /// content.
    pub fn crash(&self) -> MemoryCold {
        let _state = self.state.lock();
        self.attached.store(false, Ordering::Release);
        MemoryCold { state: Arc::clone(&self.state), attached: Arc::new(AtomicBool::new(true)) }
    }

    /// The host loses power: the last commit and some of the operations written after it, in their
    /// order, survive. This handle is dead, the new one sees what is left.
    pub fn power_loss(&self, entropy: &dyn Entropy) -> MemoryCold {
        let next = self.crash();
        let mut guard = next.state.lock();
        let state = &mut *guard;
        let survivors = entropy.below(state.uncommitted.len() as u64 + 1) as usize;
        for operation in state.uncommitted.drain(..).take(survivors) {
            perform(&mut state.durable, operation);
        }
        state.visible = state.durable.clone();
        drop(guard);
        next
    }

    /// A store of its own with the same content: changes of one do not show in the other.
    pub fn copy(&self) -> MemoryCold {
        let state = self.state.lock().clone();
        MemoryCold { state: Arc::new(Mutex::new(state)), attached: Arc::new(AtomicBool::new(true)) }
    }

    /// Every later write or commit fails with this, until `None`.
    pub fn fail_writes(&self, failure: Option<io::ErrorKind>) {
        self.state.lock().failure = failure;
    }

    /// Writes that would exceed this many bytes of keys and values fail with `StorageFull`.
    pub fn limit_space(&self, bytes_max: Option<u64>) {
        self.state.lock().bytes_max = bytes_max;
    }

    fn attached(&self) -> io::Result<MutexGuard<'_, State>> {
        let state = self.state.lock();
        if self.attached.load(Ordering::Acquire) {
            Ok(state)
        } else {
            Err(io::Error::other("the process that opened this cold store is dead"))
        }
    }
}

fn perform(image: &mut Image, operation: Operation) {
    match operation {
        Operation::Put(table, key, value) => image.insert((table, key), value),
        Operation::Delete(table, key) => image.remove(&(table, key)),
    };
}

impl State {
    fn write(&mut self, operations: Vec<Operation>) -> io::Result<()> {
        if let Some(failure) = self.failure {
            return Err(failure.into());
        }
        if let Some(bytes_max) = self.bytes_max {
            let used: usize = self.visible.iter().map(|((_, key), value)| key.len() + value.len()).sum();
            let added: usize = operations.iter().map(Operation::bytes).sum();
            if (used + added) as u64 > bytes_max {
                return Err(io::ErrorKind::StorageFull.into());
            }
        }
        for operation in operations {
            perform(&mut self.visible, operation.clone());
            self.uncommitted.push(operation);
        }
        Ok(())
    }

    fn commit(&mut self, checkpoint: Checkpoint) -> io::Result<()> {
        if let Some(failure) = self.failure {
            return Err(failure.into());
        }
        for operation in self.uncommitted.drain(..) {
            perform(&mut self.durable, operation);
        }
        self.checkpoint = Some(checkpoint);
        Ok(())
    }
}

impl ColdStore for MemoryCold {
    fn get(&self, table: Table, key: &[u8]) -> io::Result<Option<Bytes>> {
        Ok(self.attached()?.visible.get(&(table, Bytes::copy_from_slice(key))).cloned())
    }

    fn scan(
        &self,
        table: Table,
        from: &[u8],
        to: Option<&[u8]>,
        visit: &mut dyn FnMut(&[u8], &[u8]) -> bool,
    ) -> io::Result<()> {
        let state = self.attached()?;
        let start = (table, Bytes::copy_from_slice(from));
        for ((_, key), value) in state
            .visible
            .range(start..)
            .take_while(|((other, key), _)| *other == table && to.is_none_or(|to| key.as_ref() < to))
        {
            if !visit(key, value) {
                break;
            }
        }
        Ok(())
    }

    fn write(&self, operations: Vec<Operation>) -> BoxFuture<'static, io::Result<()>> {
        let cold = self.clone();
        Box::pin(async move { cold.attached()?.write(operations) })
    }

    fn commit(&self, checkpoint: Checkpoint) -> BoxFuture<'static, io::Result<()>> {
        let cold = self.clone();
        Box::pin(async move { cold.attached()?.commit(checkpoint) })
    }

    fn checkpoint(&self) -> io::Result<Option<Checkpoint>> {
        Ok(self.attached()?.checkpoint)
    }
}
