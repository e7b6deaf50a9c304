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

    /// Runs `future` on the given core (modulo their number): for loops of which every core has
    /// one, and for tasks that follow others to their core. A core that has stopped drops it.
    fn spawn_on(&self, core: usize, name: &'static str, future: BoxFuture<'static, ()>) {
        let _ = core;
        self.spawn(name, future);
    }

    /// The core whose tasks the calling thread runs, or that continues with what the calling thread
    /// begins.
    fn here(&self) -> usize {
        0
    }

    /// Completes when every core has run since this call and has seen what had arrived for its
    /// tasks before it. Code that is about to judge the silence of others waits for this first,
    /// because a core that was held up has not yet read what others sent. It may take as long as
    /// the slowest core is held up: by a device that hangs, for example.
    fn all_cores_ran(&self) -> BoxFuture<'static, ()>;
}
