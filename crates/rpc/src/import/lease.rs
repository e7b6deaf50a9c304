//! How long a target keeps its state for this client in memory.

use std::time::Duration;

use rt::Instant;
use types::Generation;

/// A connection by which calls can go out, and the client's lease at the target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lease {
    /// The connection: locks end with it.
    pub connection: Generation,
    /// The target does not evict this client before, by this side's clock, with a margin.
    pub until: Instant,
    /// How long a lease is: less than what is left of it may be promised to others at a time.
    pub length: Duration,
}
