//! Wall-clock time as files carry it.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Seconds and nanoseconds since 1970-01-01 UTC. Ordered by time. `nanoseconds` is below 10^9.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Timestamp {
    /// Whole seconds; negative before 1970.
    pub seconds: i64,
    /// Nanoseconds within the second.
    pub nanoseconds: u32,
}

const NANOSECONDS: u64 = 1_000_000_000;

impl Timestamp {
    /// This many nanoseconds later.
    pub fn plus(self, nanoseconds: u64) -> Self {
        let sum = u64::from(self.nanoseconds) + nanoseconds % NANOSECONDS;
        let seconds = (nanoseconds / NANOSECONDS + sum / NANOSECONDS) as i64;
        Self { seconds: self.seconds.saturating_add(seconds), nanoseconds: (sum % NANOSECONDS) as u32 }
    }

    /// The next one.
    pub fn next(self) -> Self {
        self.plus(1)
    }

    /// The time `nanoseconds` after 1970-01-01 UTC.
    pub fn from_nanoseconds(nanoseconds: u64) -> Self {
        Self { seconds: (nanoseconds / NANOSECONDS) as i64, nanoseconds: (nanoseconds % NANOSECONDS) as u32 }
    }
}

/// The time that so many bytes take at so many per second; a rate of 0 counts as 1. At most about
/// 584 years.
pub fn transfer_time(bytes: u64, bytes_per_second: u64) -> Duration {
    let nanoseconds = u128::from(bytes) * u128::from(NANOSECONDS) / u128::from(bytes_per_second.max(1));
    Duration::from_nanos(u64::try_from(nanoseconds).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nanoseconds_carry_into_seconds() {
        let time = Timestamp { seconds: -1, nanoseconds: 999_999_999 };
        assert_eq!(time.next(), Timestamp::default());
        assert_eq!(time.plus(2 * NANOSECONDS + 2), Timestamp { seconds: 2, nanoseconds: 1 });
        assert!(Timestamp { seconds: i64::MAX, ..time }.plus(u64::MAX).nanoseconds < 1_000_000_000);
    }

    #[test]
    fn bytes_take_their_time() {
        assert_eq!(transfer_time(3, 2), Duration::from_millis(1500));
        assert_eq!(transfer_time(u64::MAX, 0), Duration::from_nanos(u64::MAX));
        assert_eq!(transfer_time(0, 0), Duration::ZERO);
    }
}
