//! What every scenario of the concurrent mode implements.

use rt::BoxFuture;

use super::actor::Actor;
use crate::workload::Verdict;

/// What clients do together, and what must be true afterwards.
pub(super) trait Scenario: Send + Sync {
    /// Name of its directory.
    fn name(&self) -> &'static str;
    /// Makes what all clients need, in the scenario's directory, before anything goes wrong.
    fn prepare<'a>(&'a self, actor: &'a Actor) -> BoxFuture<'a, Verdict>;
    /// One client's part.
    fn play<'a>(&'a self, actor: &'a Actor, rounds: u64) -> BoxFuture<'a, Verdict>;
    /// Looks at the end. `dead` died in the middle of whatever it did.
    fn judge<'a>(&'a self, actor: &'a Actor, dead: Option<u16>) -> BoxFuture<'a, Verdict>;
}
