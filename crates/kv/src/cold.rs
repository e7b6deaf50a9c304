//! The cold store: it holds checkpoints, and entries that exceed the memory budget.

pub mod fjall;
pub mod memory;
mod readers;
mod reclaim;
pub mod tree;
mod worker;

use std::io;

use bytes::Bytes;
use rt::BoxFuture;

use crate::batch::{Lsn, Operation, Table, Term};

/// What a cold store records about the journal, durable together with the data to which it refers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Checkpoint {
    /// The store these data belong to.
    pub store: u64,
    /// Every batch up to this one is contained.
    pub lsn: Lsn,
    /// Its term.
    pub term: Term,
}

/// An ordered map on disk that takes whole checkpoints. It is never the only copy of anything that
/// is not durable in it: the journal keeps every batch until the checkpoint that contains it is
/// durable.
///
/// Reads see all writes that completed. There is one writer at a time. Dropping a future of `write`
/// or `commit` may leave it running; the next one comes after it.
pub trait ColdStore: Send + Sync {
    /// Value of a key. May block the core it runs on.
    fn get(&self, table: Table, key: &[u8]) -> io::Result<Option<Bytes>>;
    /// Calls `visit` with keys in `from..to` in order until it returns false. `to` of `None` means
    /// to the table's end. May block the core it runs on.
    fn scan(
        &self,
        table: Table,
        from: &[u8],
        to: Option<&[u8]>,
        visit: &mut dyn FnMut(&[u8], &[u8]) -> bool,
    ) -> io::Result<()>;
    /// Runs work that reads this store, where it may block: at once, unless the store has threads
    /// for it.
    fn run_blocking(&self, work: Box<dyn FnOnce() + Send>) {
        work();
    }
    /// Applies operations, sorted by table and key. Is called many times for one checkpoint.
    fn write(&self, operations: Vec<Operation>) -> BoxFuture<'static, io::Result<()>>;
    /// Makes everything written durable, together with the journal position it covers.
    fn commit(&self, checkpoint: Checkpoint) -> BoxFuture<'static, io::Result<()>>;
    /// The last durable commit, `None` in a new store. Later writes may be present as well, in any
    /// part.
    fn checkpoint(&self) -> io::Result<Option<Checkpoint>>;
    /// Starts to free the space of deleted or overwritten entries, if it should; does not wait.
    /// Called after commits, and when there was no space for one.
    fn reclaim(&self) {}
    /// Space that it may take besides what it is given to write, because of how it works.
    fn growth_bytes(&self) -> u64 {
        0
    }
    /// Ends all work and releases everything: when this completes, no file is touched any more, and
    /// the store can be opened again, even if this handle still exists. Earlier requests are
    /// completed first. Calls afterwards fail, except this one; a store that works only while it is
    /// called, and holds nothing, need not do anything. Dropping the handle closes as well, and
    /// blocks.
    fn close(&self) -> BoxFuture<'static, ()> {
        Box::pin(async {})
    }
}
