//! Which process serves each target: distinguishes a target that was started again, here or
//! elsewhere, from one that is running twice.
//!
//! A target is started where it is to be served, so the process with the most recent first report
//! is accepted at once: a restart on another port and a failover to another host cost no time. The
//! process that it replaced is no longer accepted as long as the newer one reports: of two copies
//! of a target (a directory that was copied, or a host that was taken for dead) one is in the map,
//! always the same, and the other one is refused. Otherwise each report of either would send all
//! clients from one to the other.
//!
//! Life cycle: volatile. After a start of the MGS the first reports decide again. Downside: it is
//! not known here which of two copies is the right one; the one that was started last is assumed to
//! be.

use std::{
    collections::{BTreeMap, VecDeque},
    time::Duration,
};

use rpc::message::mgs::{Register, TargetRole};
use rt::Instant;
use types::{ClientId, FsResult, Refusal};

use crate::registrar::REPORT_INTERVAL;

/// For how long after its last report a process keeps its predecessors out.
const HELD: Duration = REPORT_INTERVAL.saturating_mul(3);
/// So many predecessors of a process are remembered; more of them do not live at a time.
const PREDECESSORS_MAX: usize = 16;

struct Holder {
    process: ClientId,
    addresses: Vec<String>,
    seen: Instant,
    /// The latest last.
    predecessors: VecDeque<ClientId>,
}

/// See the module documentation.
#[derive(Default)]
pub(crate) struct Holders(BTreeMap<TargetRole, Holder>);

impl Holders {
    /// Whether a process may say where its target is.
    pub fn check(&self, now: Instant, process: ClientId, report: &Register) -> FsResult<()> {
        let Some(holder) = self.0.get(&report.role) else { return Ok(()) };
        let elsewhere = holder.addresses != report.addresses && holder.predecessors.contains(&process);
        if !elsewhere || now.since(holder.seen) > HELD {
            return Ok(());
        }
        Err(Refusal::ServedTwice {
            target: report.role.target_name(&report.fsname),
            uuid: report.uuid.clone(),
            address: report.addresses.join(","),
            newer_address: holder.addresses.join(","),
        }
        .into())
    }

    /// A process has said where its target is.
    pub fn note(&mut self, now: Instant, process: ClientId, report: &Register) {
        let before = self.0.remove(&report.role);
        let mut predecessors = VecDeque::new();
        if let Some(before) = before {
            predecessors = before.predecessors;
            predecessors.retain(|predecessor| *predecessor != process);
            if before.process != process {
                predecessors.push_back(before.process);
            }
            if predecessors.len() > PREDECESSORS_MAX {
                predecessors.pop_front();
            }
        }
        self.0.insert(report.role, Holder { process, addresses: report.addresses.clone(), seen: now, predecessors });
    }
}

#[cfg(test)]
mod tests {
    use rpc::message::ost::TargetCondition;
    use types::{OstIndex, SpaceUsage};

    use super::*;

    const ORIGINAL: (u64, &str) = (1, "a:1");
    const COPY: (u64, &str) = (2, "b:1");

    fn at(seconds: u64) -> Instant {
        Instant(seconds * 1_000_000_000)
    }

    /// A process reports.
    fn reports(holders: &mut Holders, now: Instant, (process, address): (u64, &str)) -> FsResult<()> {
        let report = Register {
            fsname: "stria".into(),
            role: TargetRole::Ost(OstIndex(0)),
            uuid: "u0".into(),
            addresses: vec![address.into()],
            space: SpaceUsage::default(),
            condition: TargetCondition::default(),
        };
        holders.check(now, ClientId(process), &report)?;
        holders.note(now, ClientId(process), &report);
        Ok(())
    }

    /// Each report of either changed the address, and all clients went from the one to the other.
    #[test]
    fn of_two_copies_the_one_started_first_is_refused_while_the_other_reports() {
        let mut holders = Holders::default();
        assert_eq!(reports(&mut holders, at(0), ORIGINAL), Ok(()));
        assert_eq!(reports(&mut holders, at(3), COPY), Ok(()));
        for seconds in [5, 10, 18] {
            let refused = Refusal::ServedTwice {
                target: "stria-OST0000".to_owned(),
                uuid: "u0".to_owned(),
                address: ORIGINAL.1.to_owned(),
                newer_address: COPY.1.to_owned(),
            };
            assert_eq!(reports(&mut holders, at(seconds), ORIGINAL), Err(refused.into()));
        }
        assert_eq!(reports(&mut holders, at(18), COPY), Ok(()));
        assert!(reports(&mut holders, at(33), ORIGINAL).is_err());
        assert_eq!(reports(&mut holders, at(34), ORIGINAL), Ok(()), "the copy is gone");
        assert!(reports(&mut holders, at(35), COPY).is_err(), "and when it comes again, the other is there");
    }

    #[test]
    fn whoever_is_started_anew_is_believed_at_once_wherever_it_is() {
        let mut holders = Holders::default();
        for process in 0..100 {
            assert_eq!(reports(&mut holders, at(0), (process, ["a:1", "b:1", "a:2"][process as usize % 3])), Ok(()));
        }
        assert_eq!(reports(&mut holders, at(0), (99, "a:1")), Ok(()), "again");
        assert!(reports(&mut holders, at(0), (98, "c:1")).is_err());
        assert_eq!(reports(&mut holders, at(0), (97, "a:1")), Ok(()), "at the same address there are no two");
        assert!(holders.0.values().all(|holder| holder.predecessors.len() <= PREDECESSORS_MAX));
    }
}
