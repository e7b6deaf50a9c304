//! Wall-clock time as files carry it.

use serde::{Deserialize, Serialize};

/// Seconds and nanoseconds since 1970-01-01 UTC. Ordered by time. `nanoseconds` is below 10^9.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Timestamp {
    /// Whole seconds; negative before 1970.
    pub seconds: i64,
    /// Nanoseconds within the second.
    pub nanoseconds: u32,
}

impl Timestamp {
    /// The time `nanoseconds` after 1970-01-01 UTC.
    pub fn from_nanoseconds(nanoseconds: u64) -> Self {
        Self { seconds: (nanoseconds / 1_000_000_000) as i64, nanoseconds: (nanoseconds % 1_000_000_000) as u32 }
    }
}
