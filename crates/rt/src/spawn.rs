//! Tasks.

use crate::BoxFuture;

/// The seam for concurrent tasks of one process. A task runs until it completes or its process
/// ends; callers that need the result or an early end pass a channel in.
pub trait Spawn: Send + Sync {
    /// Runs `future` on this core if called on one, else on any. `name` appears in logs.
    fn spawn(&self, name: &'static str, future: BoxFuture<'static, ()>);

    /// Runs `future` on the core whose turn it is: for tasks that have work of their own, such as
    /// the reader of a new connection, so that all cores get their share.
    fn spawn_spread(&self, name: &'static str, future: BoxFuture<'static, ()>) {
        self.spawn(name, future);
    }
}
