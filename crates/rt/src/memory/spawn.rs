//! Tasks of tests.

use crate::{BoxFuture, Spawn};

/// Spawns onto the tokio runtime of the calling thread; outside one it panics, as tests should.
/// Tasks end with it.
#[derive(Clone, Copy, Debug, Default)]
pub struct RuntimeSpawn;

impl Spawn for RuntimeSpawn {
    fn spawn(&self, _name: &'static str, future: BoxFuture<'static, ()>) {
        tokio::spawn(future);
    }

    /// There is one core, and it runs.
    fn all_cores_ran(&self) -> BoxFuture<'static, ()> {
        Box::pin(std::future::ready(()))
    }
}
