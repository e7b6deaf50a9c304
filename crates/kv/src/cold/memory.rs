//! A cold store in memory, for tests and the lab, that can lose power.
//!
//! It keeps two images: what is visible, and what was durable at the last commit, with the list of operations between
//! them. [`MemoryCold::power_loss`] goes back to the durable image plus a prefix of the list: the contract promises no
//! more. Downside: everything is held twice.

use std::{collections::BTreeMap, io, sync::Arc};

use bytes::Bytes;
use parking_lot::Mutex;
use rt::BoxFuture;

use super::{Checkpoint, ColdStore};
use crate::batch::{Operation, Table};

type Image = BTreeMap<(Table, Bytes), Bytes>;

#[derive(Default)]
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

/// A cold store in memory. Clones share their content, so that a test can keep it over the death of a store.
#[derive(Clone, Default)]
pub struct MemoryCold {
    state: Arc<Mutex<State>>,
}

impl MemoryCold {
    /// An empty one.
    pub fn new() -> MemoryCold {
        MemoryCold::default()
    }

    /// Loses power: the last commit and `chance(n)` of the `n` operations written after it survive. `chance` must not
    /// exceed its argument.
    pub fn power_loss(&self, chance: impl FnOnce(usize) -> usize) {
        let state = &mut *self.state.lock();
        let survivors = chance(state.uncommitted.len());
        for operation in state.uncommitted.drain(..).take(survivors) {
            perform(&mut state.durable, operation);
        }
        state.visible = state.durable.clone();
    }

    /// Every later write or commit fails with this, until `None`.
    pub fn fail_writes(&self, failure: Option<io::ErrorKind>) {
        self.state.lock().failure = failure;
    }

    /// Writes that would exceed this many bytes of keys and values fail with `StorageFull`.
    pub fn limit_space(&self, bytes_max: Option<u64>) {
        self.state.lock().bytes_max = bytes_max;
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
        Ok(self.state.lock().visible.get(&(table, Bytes::copy_from_slice(key))).cloned())
    }

    fn scan(
        &self,
        table: Table,
        from: &[u8],
        to: Option<&[u8]>,
        visit: &mut dyn FnMut(&[u8], &[u8]) -> bool,
    ) -> io::Result<()> {
        let state = self.state.lock();
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
        let state = Arc::clone(&self.state);
        Box::pin(async move { state.lock().write(operations) })
    }

    fn commit(&self, checkpoint: Checkpoint) -> BoxFuture<'static, io::Result<()>> {
        let state = Arc::clone(&self.state);
        Box::pin(async move { state.lock().commit(checkpoint) })
    }

    fn checkpoint(&self) -> io::Result<Option<Checkpoint>> {
        Ok(self.state.lock().checkpoint)
    }
}
