//! What every invariant implements.

use super::snapshot::Snapshot;
use crate::workload::Verdict;

/// What must be true at every moment. May remember what earlier looks saw.
pub trait Invariant: Send {
    /// Its name in failures.
    fn name(&self) -> &'static str;

    /// Describes a violation, with everything that is needed to find it.
    fn check(&mut self, now: &Snapshot) -> Verdict;
}
