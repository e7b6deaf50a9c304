//! The cold store: where checkpoints go, and what exceeds the memory budget.

use std::io;

use bytes::Bytes;

use crate::batch::{Lsn, Operation, Table};

/// An ordered map on disk that takes whole checkpoints. It is never the only copy of anything that is not durable in it:
/// the journal keeps every batch until the checkpoint that contains it is durable.
pub trait ColdStore: Send + Sync {
    /// Value of a key.
    fn get(&self, table: Table, key: &[u8]) -> io::Result<Option<Bytes>>;
    /// Calls `visit` with keys in `from..to` in order until it returns false. `to` of `None` means to the table's end.
    fn scan(
        &self,
        table: Table,
        from: &[u8],
        to: Option<&[u8]>,
        visit: &mut dyn FnMut(&[u8], &[u8]) -> bool,
    ) -> io::Result<()>;
    /// Applies sorted operations. May be called several times for one checkpoint.
    fn write(&self, operations: &[Operation]) -> io::Result<()>;
    /// Makes everything written durable, together with the journal position it covers.
    fn commit(&self, checkpoint: Lsn) -> io::Result<()>;
    /// Journal position of the last durable commit; everything up to it is in this store. More may be, in any part.
    fn checkpoint(&self) -> io::Result<Lsn>;
}
