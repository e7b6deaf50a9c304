//! Scrubs of running OSTs report no damage: no fault of the lab makes any.

use oss::scrub_record::ScrubRecord;
use types::OstIndex;

use crate::{cluster::Cluster, workload::Verdict};

/// Holds at every moment, after every fault: what a scrub finds different from its checksum may
/// have changed meanwhile, so it is read again under the lock with which changes are kept out; and
/// after a loss of power an OST compares what it had not flushed before it serves anybody.
pub(super) fn check(cluster: &Cluster) -> Verdict {
    for role in cluster.roles() {
        let look = |serving: &crate::server::Serving| {
            serving.osts.iter().try_for_each(|ost| is_clean(ost.index(), ost.last_scrub().as_ref()))
        };
        cluster.inspect(role, look).transpose()?;
    }
    Ok(())
}

/// Of one OST.
pub(crate) fn is_clean(ost: OstIndex, scrub: Option<&ScrubRecord>) -> Verdict {
    match scrub {
        Some(scrub) if scrub.damaged_blocks > 0 => {
            Err(format!("the scrub of {ost} reports damage: {}", scrub.describe(0)))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::invariants::sample::{FILE, FIRST, object};

    #[test]
    fn reported_damage_is_a_violation() {
        let mut scrub = ScrubRecord::default();
        assert_eq!((is_clean(FIRST, None), is_clean(FIRST, Some(&scrub))), (Ok(()), Ok(())));
        scrub.note_damage(object(FILE, 0), 3..5);
        assert!(is_clean(FIRST, Some(&scrub)).unwrap_err().starts_with("the scrub of OST0000 reports damage"));
    }
}
