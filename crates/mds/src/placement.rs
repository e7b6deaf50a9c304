//! What the MDT knows about the OSTs, and where it puts new files. Volatile; refreshed in the
//! background ([`crate::ost_proxy`]), so a creation never waits for an OST.
//!
//! A target of the map that has not answered yet since this MDT started counts as usable and as
//! free as the known target with the most free space: a new cluster must be able to create files at
//! once.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use layout::{OstStatus, Placement, PlacementPolicy, PlainLayout, ResolvedSpec, StripeSpec};
use rpc::message::ost::TargetCondition;
use rt::Instant;
use types::{DeviceId, FsResult, OstIndex, SpaceUsage, SplitMix64, limits::BULK_BYTES_MAX};

use crate::{load::Load, pools::Pools, transfers::Transfers};

/// Free space a target is taken to have while nothing is known of any.
const UNKNOWN_BYTES: u64 = 1 << 40;

/// How long an OST comes after others once it has refused something for lack of space: what it says
/// of its bytes may be true, and inodes or a quota be used up. After a few reports it is tried
/// again.
const REFUSAL_LASTS: Duration = Duration::from_secs(10);
/// By so much its free space must have grown for this to end earlier: two of the largest writes.
const FREED_BYTES: u64 = 2 * BULK_BYTES_MAX as u64;

/// What the last report of an OST said.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OstReport {
    /// Its space.
    pub space: SpaceUsage,
    /// Its condition.
    pub condition: TargetCondition,
}

/// That an OST refused something for lack of space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// When.
    pub at: Instant,
    /// Bytes that it said were free then.
    pub bytes_available: u64,
}

impl Refusal {
    /// Whether it still says anything, by what the OST reports.
    fn holds(&self, now: Instant, space: &SpaceUsage) -> bool {
        let grown = space.bytes_available >= self.bytes_available.saturating_add(FREED_BYTES);
        now.since(self.at) < REFUSAL_LASTS && !grown
    }
}

/// One OST as the MDT sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OstView {
    /// In use, says the map.
    pub active: bool,
    /// Answers, or has not been asked yet.
    pub connected: bool,
    /// It answered, and is not connected at present.
    pub interrupted: bool,
    /// Its last refusal, if that was a moment ago.
    pub refused: Option<Refusal>,
    /// The last report, if there was one since this MDT started.
    pub report: Option<OstReport>,
    /// What all its users have it do.
    pub transfers: Transfers,
}

/// All OSTs of the map, and the state of placement.
#[derive(Debug, Default)]
pub(crate) struct Targets {
    osts: BTreeMap<OstIndex, OstView>,
    /// Pools of them.
    pub pools: Pools,
    /// What is being written where.
    pub load: Load,
    placement: Placement,
    /// How many OSTs that take new objects live on each device.
    sharing: BTreeMap<DeviceId, u32>,
    /// The random numbers of placement: one from the system at the start, which seeds the others,
    /// because asking the kernel would cost more than the rest of a creation's decisions.
    dice: SplitMix64,
}

impl Targets {
    /// Nothing known; placement begins from a random number.
    pub fn new(random: u64) -> Self {
        Self { placement: Placement::new(random), dice: SplitMix64(random), ..Self::default() }
    }

    /// Takes a map over: new targets appear, missing ones go, known ones keep their reports.
    pub fn set_map(&mut self, map: &[(OstIndex, bool)]) {
        let known = std::mem::take(&mut self.osts);
        for (index, active) in map {
            let transfers = Transfers::default();
            let fresh = OstView {
                active: *active,
                connected: true,
                interrupted: false,
                refused: None,
                report: None,
                transfers,
            };
            let view = known.get(index).map_or(fresh, |view| OstView { active: *active, ..*view });
            self.osts.insert(*index, view);
        }
        self.count_sharing();
    }

    fn count_sharing(&mut self) {
        let usable = self.statuses().into_iter().filter(|status| status.exclusion().is_none());
        self.sharing = usable.filter_map(|status| status.device).fold(BTreeMap::new(), |mut sharing, device| {
            *sharing.entry(device).or_default() += 1;
            sharing
        });
    }

    /// What a request for stripes gets: of no pool if it ignores pools, of another one if its pool
    /// spills.
    pub fn pass_on(&mut self, stripes: &StripeSpec) -> StripeSpec {
        let osts = &self.osts;
        let used_pct = |pool: &[OstIndex]| {
            let space = SpaceUsage::sum(pool.iter().filter_map(|ost| Some(osts.get(ost)?.report?.space)));
            let used = u128::from(space.bytes_total.saturating_sub(space.bytes_available)) * 100;
            used.checked_div(u128::from(space.bytes_total)).map(|percent| percent as u32)
        };
        let statuses = self.statuses();
        let takes_objects = |pool: &[OstIndex]| {
            statuses.iter().any(|status| status.exclusion().is_none() && pool.contains(&status.index))
        };
        let pool = stripes.restricted_to().map(|pool| self.pools.pass_on(pool, used_pct, takes_objects));
        StripeSpec { pool, ..stripes.clone() }
    }

    /// An OST answered.
    pub fn report(&mut self, ost: OstIndex, report: OstReport, now: Instant) {
        if let Some(view) = self.osts.get_mut(&ost) {
            view.connected = true;
            view.transfers.report(now, report.condition.work_us);
            view.interrupted = false;
            view.refused = view.refused.filter(|refusal| refusal.holds(now, &report.space));
            view.report = Some(report);
        }
        self.count_sharing();
    }

    /// A client was refused by an OST for lack of space. That is believed without proof: it costs
    /// the OST its turn for a moment, while others have room.
    pub fn refused(&mut self, ost: OstIndex, now: Instant) {
        if let Some(view) = self.osts.get_mut(&ost) {
            let bytes_available = view.report.map_or(0, |report| report.space.bytes_available);
            view.refused = Some(Refusal { at: now, bytes_available });
        }
    }

    /// The last report of an OST.
    pub fn reported(&self, ost: OstIndex) -> Option<OstReport> {
        self.osts.get(&ost).and_then(|view| view.report)
    }

    /// The connection to an OST is interrupted: until it answers, others come first. One that never
    /// answered is used as before: no change is known.
    pub fn interrupted(&mut self, ost: OstIndex) {
        if let Some(view) = self.osts.get_mut(&ost) {
            view.interrupted = view.report.is_some();
        }
    }

    /// An OST does not answer.
    pub fn lost(&mut self, ost: OstIndex) {
        if let Some(view) = self.osts.get_mut(&ost) {
            view.connected = false;
        }
        self.count_sharing();
    }

    /// All targets in order.
    pub fn views(&self) -> impl Iterator<Item = (OstIndex, OstView)> + '_ {
        self.osts.iter().map(|(index, view)| (*index, *view))
    }

    /// Number of known targets.
    pub fn count(&self) -> usize {
        self.osts.len()
    }

    /// Targets in use.
    pub fn active(&self) -> impl Iterator<Item = OstIndex> + '_ {
        self.osts.iter().filter(|(_, view)| view.active).map(|(index, _)| *index)
    }

    /// Whether the map has this target, in use or not.
    pub fn is_known(&self, ost: OstIndex) -> bool {
        self.osts.contains_key(&ost)
    }

    /// Stripes for a new file or component, within its pool.
    pub fn place(&mut self, spec: &ResolvedSpec, policy: &PlacementPolicy) -> FsResult<PlainLayout> {
        self.place_where(spec, policy, |_| true)
    }

    /// Likewise, on OSTs that meet a condition.
    pub fn place_where(
        &mut self,
        spec: &ResolvedSpec,
        policy: &PlacementPolicy,
        condition: impl Fn(&OstStatus) -> bool,
    ) -> FsResult<PlainLayout> {
        let statuses: Vec<OstStatus> = self
            .statuses()
            .into_iter()
            .filter(condition)
            .filter(|status| self.pools.contains(status.index, spec.pool.as_deref()))
            .collect();
        let random = self.dice.next_u64();
        let osts = self.placement.choose(spec, &statuses, policy, random)?;
        let is_possible = |ost: &OstIndex| statuses.iter().any(|status| status.index == *ost);
        debug_assert!(osts.iter().all(is_possible), "objects go to OSTs that the request permits");
        Ok(PlainLayout { stripe_bytes: spec.stripe_bytes, osts })
    }

    /// OSTs of a pool (of all) that new objects go to, with the free bytes of their devices.
    pub fn available(&self, pool: Option<&str>, policy: &PlacementPolicy) -> Vec<(OstIndex, u64)> {
        let preferred = self.preferred(pool, policy).into_iter();
        preferred.map(|status| (status.index, status.bytes_available)).collect()
    }

    /// OSTs that new objects go to, with the part of its device's free bytes that is left to each
    /// if all are used.
    pub fn available_parts(&self, policy: &PlacementPolicy) -> Vec<(OstIndex, u64)> {
        self.preferred(None, policy).into_iter().map(|status| (status.index, status.bytes_of_own())).collect()
    }

    fn preferred(&self, pool: Option<&str>, policy: &PlacementPolicy) -> Vec<OstStatus> {
        let mut statuses = self.statuses();
        statuses.retain(|status| self.pools.contains(status.index, pool));
        layout::preferred(&statuses, policy).into_iter().copied().collect()
    }

    /// How many OSTs would be among these, were their connections not interrupted at the moment.
    pub fn awaited(&self, policy: &PlacementPolicy) -> u32 {
        u32::try_from(layout::awaited(&self.statuses(), policy).len()).unwrap_or(u32::MAX)
    }

    /// Whether new objects go to each of these OSTs, and it has this many bytes free besides those
    /// of the others on its device.
    pub fn have_space(&self, osts: &[OstIndex], bytes: u64, policy: &PlacementPolicy) -> bool {
        let preferred = self.preferred(None, policy);
        let distinct: BTreeSet<OstIndex> = osts.iter().copied().collect();
        let on: Vec<&OstStatus> = preferred.iter().filter(|status| distinct.contains(&status.index)).collect();
        let on_device_of = |status: &OstStatus| match status.device {
            None => 1,
            device => on.iter().filter(|other| other.device == device).count() as u64,
        };
        on.len() == distinct.len() && on.iter().all(|status| status.bytes_available / on_device_of(status) >= bytes)
    }

    fn statuses(&self) -> Vec<OstStatus> {
        let reports = || self.osts.values().filter_map(|view| view.report);
        let total = reports().map(|report| report.space.bytes_total).max().unwrap_or(UNKNOWN_BYTES);
        let available = reports().map(|report| report.space.bytes_available).max().unwrap_or(UNKNOWN_BYTES);
        let device = |view: &OstView| view.report.and_then(|report| report.space.device);
        let status = |(index, view): (&OstIndex, &OstView)| OstStatus {
            index: *index,
            active: view.active,
            connected: view.connected,
            interrupted: view.interrupted,
            refused_ns: match view.report {
                Some(report) if lacks_inodes(&report.space) => Some(u64::MAX),
                _ => view.refused.map(|refusal| refusal.at.0),
            },
            no_create: view.report.is_some_and(|report| report.condition.no_create),
            read_only: view.report.is_some_and(|report| report.condition.read_only),
            degraded: view.report.is_some_and(|report| report.condition.degraded),
            objects_written: self.load.of(*index),
            transfers_permille: view.transfers.average_permille(),
            bytes_total: view.report.map_or(total, |report| report.space.bytes_total),
            bytes_available: view.report.map_or(available, |report| report.space.bytes_available),
            device: device(view),
            sharing: device(view).and_then(|device| self.sharing.get(&device).copied()).unwrap_or(1),
        };
        self.osts.iter().map(status).collect()
    }
}

/// Whether there is no room for another object. A target that counts no inodes says 0 of 0.
fn lacks_inodes(space: &SpaceUsage) -> bool {
    space.inodes_total > 0 && space.inodes_free == 0
}

#[cfg(test)]
mod tests {
    use rpc::message::mgs::Pool;

    use super::*;

    const NOW: Instant = Instant(0);

    fn report(available: u64) -> OstReport {
        let space = SpaceUsage { bytes_total: 1000 << 20, bytes_available: available << 20, ..SpaceUsage::default() };
        OstReport { space, condition: TargetCondition::default() }
    }

    fn place(targets: &mut Targets) -> FsResult<Vec<OstIndex>> {
        Ok(targets.place(&ResolvedSpec::default(), &PlacementPolicy::default())?.osts)
    }

    #[test]
    fn a_fresh_map_is_usable_and_lost_targets_are_not() {
        let mut targets = Targets::default();
        assert!(place(&mut targets).is_err(), "no target at all");
        targets.set_map(&[(OstIndex(0), true), (OstIndex(1), true)]);
        let mut seen: Vec<OstIndex> = (0..2).flat_map(|_| place(&mut targets).unwrap()).collect();
        seen.sort();
        assert_eq!(seen, [OstIndex(0), OstIndex(1)]);
        targets.lost(OstIndex(0));
        assert_eq!(place(&mut targets), Ok(vec![OstIndex(1)]));
        targets.report(OstIndex(0), report(900), NOW);
        targets.set_map(&[(OstIndex(0), true), (OstIndex(1), false)]);
        assert_eq!(place(&mut targets), Ok(vec![OstIndex(0)]));
        targets.report(OstIndex(0), report(0), NOW);
        assert!(place(&mut targets).is_err(), "full");
    }

    #[test]
    fn interrupted_targets_are_avoided_until_they_answer_or_nothing_else_is_left() {
        let mut targets = Targets::default();
        targets.set_map(&[(OstIndex(0), true), (OstIndex(1), true)]);
        (0..2).for_each(|index| targets.report(OstIndex(index), report(900), NOW));
        targets.interrupted(OstIndex(0));
        for _ in 0..4 {
            assert_eq!(place(&mut targets), Ok(vec![OstIndex(1)]));
        }
        let policy = PlacementPolicy::default();
        assert_eq!(targets.available(None, &policy), [(OstIndex(1), 900 << 20)]);
        assert!(!targets.have_space(&[OstIndex(0)], 1, &policy), "nor does a file grow there");
        assert_eq!(targets.awaited(&policy), 1, "but a file is not narrow for long because of it");
        targets.lost(OstIndex(1));
        assert_eq!(targets.awaited(&policy), 0, "it is all there is");
        assert_eq!(place(&mut targets), Ok(vec![OstIndex(0)]), "a short interruption makes no lack of space");
        targets.report(OstIndex(0), report(900), NOW);
        assert_eq!(place(&mut targets), Ok(vec![OstIndex(0)]));
    }

    #[test]
    fn an_ost_that_refuses_or_has_no_inodes_is_avoided_whatever_bytes_it_has() {
        let mut targets = Targets::default();
        targets.set_map(&[(OstIndex(0), true), (OstIndex(1), true)]);
        (0..2).for_each(|index| targets.report(OstIndex(index), report(900), NOW));
        let both = |targets: &mut Targets| {
            let mut chosen: Vec<u16> = (0..4).map(|_| place(targets).unwrap()[0].0).collect();
            chosen.sort_unstable();
            chosen
        };
        targets.refused(OstIndex(0), NOW);
        targets.report(OstIndex(0), report(900), NOW + REFUSAL_LASTS / 2);
        assert_eq!(both(&mut targets), [1; 4], "it may say what it likes");
        targets.report(OstIndex(0), report(900), NOW + REFUSAL_LASTS);
        assert_eq!(both(&mut targets), [0, 0, 1, 1], "after a while it is tried again");
        targets.refused(OstIndex(0), NOW);
        targets.report(OstIndex(0), report(904), NOW);
        assert_eq!(both(&mut targets), [1; 4], "what others gave back a moment later");
        targets.report(OstIndex(0), report(908), NOW);
        assert_eq!(both(&mut targets), [0, 0, 1, 1], "much was removed");
        targets.report(OstIndex(0), report(900), NOW);
        let mut without_inodes = report(900);
        (without_inodes.space.inodes_total, without_inodes.space.inodes_free) = (1000, 0);
        targets.report(OstIndex(1), without_inodes, NOW);
        assert_eq!(both(&mut targets), [0; 4]);
        targets.lost(OstIndex(0));
        assert_eq!(both(&mut targets), [1; 4], "small objects need no inode");
    }

    #[test]
    fn a_pool_restricts_placement_as_long_as_there_is_one() {
        let mut targets = Targets::default();
        targets.set_map(&(0..4).map(|index| (OstIndex(index), true)).collect::<Vec<_>>());
        targets.pools.set(&[
            Pool { name: "fast".to_owned(), osts: vec![OstIndex(1), OstIndex(3)] },
            Pool { name: "none.yet".to_owned(), osts: Vec::new() },
        ]);
        let policy = PlacementPolicy::default();
        let mut place = |pool: &str| {
            let stripe_count = layout::ResolvedCount::All;
            let spec = ResolvedSpec { stripe_count, pool: Some(pool.to_owned()), ..ResolvedSpec::default() };
            let osts = targets.place(&spec, &policy).map(|plain| plain.osts);
            osts.map(|mut osts| {
                osts.sort();
                osts
            })
        };
        assert_eq!(place("fast"), Ok(vec![OstIndex(1), OstIndex(3)]));
        assert_eq!(place("none.yet"), Err(types::FsError::NoSpace));
        assert_eq!(place("removed").map(|osts| osts.len()), Ok(4));
        assert!(targets.pools.is_pool("fast") && !targets.pools.is_pool("removed"));
        assert_eq!(targets.available(Some("fast"), &policy).len(), 2);
    }

    /// As [`report`], on a device.
    fn report_of(device: u64, available: u64) -> OstReport {
        let report = report(available);
        OstReport { space: SpaceUsage { device: Some(DeviceId(device)), ..report.space }, ..report }
    }

    #[test]
    fn targets_on_one_device_have_its_space_once() {
        let mut targets = Targets::default();
        targets.set_map(&(0..3).map(|index| (OstIndex(index), true)).collect::<Vec<_>>());
        (0..2).for_each(|index| targets.report(OstIndex(index), report_of(7, 400), NOW));
        targets.report(OstIndex(2), report_of(8, 400), NOW);
        let policy = PlacementPolicy::default();
        let parts = |targets: &Targets| -> Vec<u64> {
            targets.available_parts(&policy).into_iter().map(|(_, bytes)| bytes >> 20).collect()
        };
        assert_eq!(parts(&targets), [200, 200, 400]);
        assert_eq!(targets.available(None, &policy)[0].1, 400 << 20, "one file may use it all");
        assert!(targets.have_space(&[OstIndex(0)], 300 << 20, &policy));
        assert!(!targets.have_space(&[OstIndex(0), OstIndex(1)], 300 << 20, &policy));
        assert!(targets.have_space(&[OstIndex(0), OstIndex(2)], 300 << 20, &policy));
        targets.lost(OstIndex(1));
        assert_eq!(parts(&targets), [400, 400], "a dead target takes no part");
        targets.report(OstIndex(1), report_of(7, 400), NOW);
        let pool = |name: &str, osts: &[u16]| Pool {
            name: name.to_owned(),
            osts: osts.iter().copied().map(OstIndex).collect(),
        };
        targets.pools.set(&[pool("fast", &[0, 1, 2]), pool("slow", &[0])]);
        targets.pools.set_threshold("fast", 60).unwrap();
        targets.pools.set_target("fast", Some("slow")).unwrap();
        (0..2).for_each(|index| targets.report(OstIndex(index), report_of(7, 100), NOW));
        targets.report(OstIndex(2), report_of(8, 900), NOW);
        let asked = StripeSpec { pool: Some("fast".to_owned()), ..StripeSpec::default() };
        assert_eq!(targets.pass_on(&asked).pool.unwrap(), "fast", "half of two devices is used, not 63 % of three");
    }

    #[test]
    fn a_pool_that_is_used_to_its_threshold_spills() {
        let mut targets = Targets::default();
        targets.set_map(&(0..3).map(|index| (OstIndex(index), true)).collect::<Vec<_>>());
        let pool = |name: &str, osts: &[u16]| Pool {
            name: name.to_owned(),
            osts: osts.iter().copied().map(OstIndex).collect(),
        };
        targets.pools.set(&[pool("fast", &[0, 1]), pool("slow", &[2])]);
        targets.pools.set_threshold("fast", 60).unwrap();
        targets.pools.set_target("fast", Some("slow")).unwrap();
        let asked = StripeSpec { pool: Some("fast".to_owned()), ..StripeSpec::default() };
        let mut pool_of = |available: [u64; 2]| {
            (0..).zip(available).for_each(|(index, mib)| targets.report(OstIndex(index), report(mib), NOW));
            targets.pass_on(&asked).pool.unwrap()
        };
        assert_eq!(pool_of([100, 710]), "fast", "59.5 % of both");
        assert_eq!(pool_of([100, 700]), "slow");
        assert_eq!(pool_of([900, 700]), "fast", "again");
        assert_eq!(pool_of([100, 700]), "slow");
        targets.lost(OstIndex(2));
        assert_eq!(targets.pass_on(&asked).pool.unwrap(), "fast", "nothing can be put into the other");
        targets.pools.set(&[pool("fast", &[0, 1]), pool("slow", &[])]);
        assert_eq!(targets.pass_on(&asked).pool.unwrap(), "fast", "there is nothing in the other");
        let ignoring = StripeSpec { pool: Some(layout::spec::POOL_IGNORED.to_owned()), ..StripeSpec::default() };
        assert_eq!(targets.pass_on(&ignoring).pool, None);
    }

    /// No matter for whom it works: this MDT need not have placed what is read and written there.
    #[test]
    fn an_ost_that_is_busy_for_others_gets_no_new_objects_while_others_are_idle() {
        let mut targets = Targets::default();
        targets.set_map(&(0..3).map(|index| (OstIndex(index), true)).collect::<Vec<_>>());
        let after = |targets: &mut Targets, seconds: u64, work_us: [u64; 3]| {
            for (index, work_us) in (0..).zip(work_us) {
                let condition = TargetCondition { work_us, ..TargetCondition::default() };
                let now = Instant(seconds * 1_000_000_000);
                targets.report(OstIndex(index), OstReport { condition, ..report(900) }, now);
            }
            let mut chosen: Vec<u16> = (0..6).map(|_| place(targets).unwrap()[0].0).collect();
            chosen.sort_unstable();
            chosen
        };
        assert_eq!(after(&mut targets, 1, [0, 0, 0]), [0, 0, 1, 1, 2, 2]);
        let second: [u64; 3] = [5_000_000, 50 * 5_000_000, 0];
        assert_eq!(after(&mut targets, 6, second), [0, 0, 0, 2, 2, 2]);
        assert_eq!(after(&mut targets, 11, second), [0, 0, 1, 1, 2, 2], "it is done");
    }

    #[test]
    fn conditions_are_respected() {
        let mut targets = Targets::default();
        targets.set_map(&[(OstIndex(0), true), (OstIndex(1), true)]);
        let no_create = TargetCondition { no_create: true, ..TargetCondition::default() };
        targets.report(OstIndex(0), OstReport { condition: no_create, ..report(900) }, NOW);
        targets.report(OstIndex(1), report(900), NOW);
        for _ in 0..4 {
            assert_eq!(place(&mut targets), Ok(vec![OstIndex(1)]));
        }
    }
}
