//! When reading something changes its access time: Linux's relatime.

use crate::{Attributes, Timestamp};

/// Seconds after which an access changes the access time although nothing else happened.
const STALE_SECONDS: i64 = 24 * 60 * 60;

/// Whether an access at this time leaves the access time as it is: it is later than the last
/// change, and less than a day old.
pub fn is_fresh(attributes: &Attributes, at: Timestamp) -> bool {
    attributes.atime > attributes.mtime
        && attributes.atime > attributes.ctime
        && at.seconds.saturating_sub(attributes.atime.seconds) < STALE_SECONDS
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{FileKind, InodeNumber};

    #[test]
    fn an_access_counts_once_after_each_change_and_once_a_day() {
        let at = |seconds| Timestamp { seconds, nanoseconds: 0 };
        let zeroed = Attributes::zeroed(InodeNumber(7), FileKind::Regular);
        let of = |atime, mtime, ctime| Attributes { atime: at(atime), mtime: at(mtime), ctime: at(ctime), ..zeroed };
        assert!(is_fresh(&of(6, 5, 5), at(6)));
        assert!(!is_fresh(&of(5, 5, 4), at(6)) && !is_fresh(&of(5, 4, 5), at(6)), "made, written or changed since");
        assert!(is_fresh(&of(6, 5, 5), at(6 + STALE_SECONDS - 1)));
        assert!(!is_fresh(&of(6, 5, 5), at(6 + STALE_SECONDS)));
        assert!(is_fresh(&of(i64::MAX, 5, 5), at(i64::MIN)), "set to the future");
    }
}
