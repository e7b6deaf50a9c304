//! On which MDT the next directory goes whose default says that new directories are spread
//! (docs/decisions/0058-striped-directories.md): one after the other as long as all have about as
//! much space, else by space; as new files go to OSTs, with the same code ([`layout::Placement`]).
//! MDTs that do not answer come last: a mkdir would wait for them. Volatile.
//!
//! Life cycle: one per MDT; others are asked for their space at an interval (`mdt::peer_space`).
//! One of which nothing is known counts as free as the one with the most space.
//!
//! Downside: MDTs do not know of each other's rounds.

use std::collections::{BTreeMap, BTreeSet};

use layout::{OstStatus, Placement, PlacementPolicy, ResolvedCount, ResolvedSpec};
use types::{DeviceId, MdtIndex, OstIndex, SpaceUsage, SplitMix64};

use crate::balance::Fill;

/// Space of an MDT while nothing is known of any.
const UNKNOWN_BYTES: u64 = 1 << 40;

/// See the module documentation.
#[derive(Debug, Default)]
pub(crate) struct Spread {
    placement: Placement,
    dice: SplitMix64,
    reports: BTreeMap<MdtIndex, SpaceUsage>,
    silent: BTreeSet<MdtIndex>,
    /// How often each has told.
    told: BTreeMap<MdtIndex, u64>,
}

impl Spread {
    /// Nothing known; the round begins at a random number.
    pub fn new(random: u64) -> Self {
        Self { placement: Placement::new(random), dice: SplitMix64(random), ..Self::default() }
    }

    /// An MDT has told its space.
    pub fn report(&mut self, mdt: MdtIndex, space: SpaceUsage) {
        self.silent.remove(&mdt);
        self.reports.insert(mdt, space);
        *self.told.entry(mdt).or_default() += 1;
    }

    /// How often each MDT has told its space.
    pub fn told(&self) -> BTreeMap<MdtIndex, u64> {
        self.told.clone()
    }

    /// An MDT does not answer.
    pub fn lost(&mut self, mdt: MdtIndex) {
        self.silent.insert(mdt);
    }

    /// The MDT of the next directory; `there`: those in use, in order. `None`: there is none.
    pub fn next(&mut self, there: &[MdtIndex], policy: &PlacementPolicy) -> Option<MdtIndex> {
        let statuses = self.statuses(there);
        let spec = ResolvedSpec { stripe_count: ResolvedCount::AtMost(1), ..ResolvedSpec::default() };
        let random = self.dice.next_u64();
        match self.placement.choose(&spec, &statuses, policy, random) {
            Ok(chosen) => chosen.first().map(|target| MdtIndex(target.0)),
            // All are full: what one says of that when it is asked is the answer to the caller.
            Err(_) => there.first().copied(),
        }
    }

    /// How full the MDTs are that answer.
    pub fn fills(&self) -> Vec<Fill> {
        let answering = self.reports.iter().filter(|(mdt, _)| !self.silent.contains(mdt));
        let fill = |(mdt, space): (&MdtIndex, &SpaceUsage)| Fill {
            mdt: *mdt,
            inodes: space.inodes_total.saturating_sub(space.inodes_free),
            room: space.inodes_free,
            sharing: u64::from(self.sharing(self.reports.keys(), space.device)),
        };
        answering.map(fill).collect()
    }

    /// How many of these are on a device, at least one.
    fn sharing<'a>(&self, mdts: impl Iterator<Item = &'a MdtIndex>, device: Option<DeviceId>) -> u32 {
        let shares = |mdt: &&MdtIndex| device.is_some() && self.reports.get(mdt).is_some_and(|of| of.device == device);
        u32::try_from(mdts.filter(shares).count().max(1)).unwrap_or(u32::MAX)
    }

    fn statuses(&self, there: &[MdtIndex]) -> Vec<OstStatus> {
        let of = |mdt: &MdtIndex| self.reports.get(mdt);
        let unknown =
            SpaceUsage { bytes_total: UNKNOWN_BYTES, bytes_available: UNKNOWN_BYTES, ..SpaceUsage::default() };
        let best = there.iter().filter_map(of).max_by_key(|space| space.bytes_available).copied().unwrap_or(unknown);
        let status = |mdt: &MdtIndex| {
            let space = of(mdt).copied().unwrap_or(SpaceUsage { device: None, ..best });
            let lacks_inodes = space.inodes_total > 0 && space.inodes_free == 0;
            OstStatus {
                index: OstIndex(mdt.0),
                active: true,
                connected: true,
                interrupted: self.silent.contains(mdt),
                refused_ns: lacks_inodes.then_some(u64::MAX),
                no_create: false,
                read_only: false,
                degraded: false,
                bytes_total: space.bytes_total,
                bytes_available: space.bytes_available,
                device: space.device,
                sharing: self.sharing(there.iter(), space.device),
                objects_written: 0,
                transfers_permille: 0,
            }
        };
        there.iter().map(status).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const POLICY: PlacementPolicy =
        PlacementPolicy { qos_threshold_rr: 17, qos_prio_free: 90, reserved_permille: 1, reserved_bytes: 0 };

    fn space(gib: u64) -> SpaceUsage {
        SpaceUsage { bytes_total: 1000 << 30, bytes_available: gib << 30, ..SpaceUsage::default() }
    }

    fn there(count: u16) -> Vec<MdtIndex> {
        (0..count).map(MdtIndex).collect()
    }

    /// How many of so many directories each MDT gets.
    fn counts(spread: &mut Spread, there: &[MdtIndex], directories: usize) -> Vec<usize> {
        let chosen: Vec<_> = (0..directories).map(|_| spread.next(there, &POLICY).expect("there are some")).collect();
        there.iter().map(|mdt| chosen.iter().filter(|chosen| *chosen == mdt).count()).collect()
    }

    #[test]
    fn directories_go_round_while_mdts_have_about_as_much_space() {
        let (mut spread, there) = (Spread::new(5), there(3));
        for round in 0..4 {
            assert_eq!(counts(&mut spread, &there, 3), [1, 1, 1], "round {round}, nothing is known");
        }
        let first = spread.next(&there, &POLICY).unwrap();
        let second = spread.next(&there, &POLICY).unwrap();
        assert_eq!(second.0, (first.0 + 1) % 3, "one after the other");
        [(0, 900), (1, 800), (2, 850)].iter().for_each(|(mdt, gib)| spread.report(MdtIndex(*mdt), space(*gib)));
        assert_eq!(counts(&mut spread, &there, 300), [100, 100, 100], "within 17%");
        assert_eq!(spread.next(&[], &POLICY), None);
        assert_eq!(spread.next(&there[2..], &POLICY), Some(MdtIndex(2)), "the only one in use");
    }

    #[test]
    fn directories_go_where_space_is_when_that_differs() {
        let (mut spread, there) = (Spread::new(5), there(3));
        [(0, 900), (1, 100), (2, 500)].iter().for_each(|(mdt, gib)| spread.report(MdtIndex(*mdt), space(*gib)));
        let found = counts(&mut spread, &there, 1000);
        assert!(found[0] > found[2] && found[2] > found[1] && found[1] > 0, "{found:?}");
        spread.report(MdtIndex(1), space(0));
        assert_eq!(counts(&mut spread, &there, 100)[1], 0, "full");
        let no_inodes = SpaceUsage { inodes_total: 10, inodes_free: 0, ..space(900) };
        spread.report(MdtIndex(0), no_inodes);
        assert_eq!(counts(&mut spread, &there, 100), [0, 0, 100]);
        there.iter().for_each(|mdt| spread.report(*mdt, space(0)));
        assert!(spread.next(&there, &POLICY).is_some(), "it says that it is full");
        let on_one_device = |gib| SpaceUsage { device: Some(DeviceId(7)), ..space(gib) };
        [0, 1].iter().for_each(|mdt| spread.report(MdtIndex(*mdt), on_one_device(900)));
        spread.report(MdtIndex(2), space(450));
        let found = counts(&mut spread, &there, 100);
        assert!(found.iter().all(|count| *count > 0), "two share what they have: {found:?}");
    }

    #[test]
    fn mdts_that_do_not_answer_come_last() {
        let (mut spread, there) = (Spread::new(0), there(3));
        spread.lost(MdtIndex(1));
        assert_eq!(counts(&mut spread, &there, 100), [50, 0, 50]);
        spread.report(MdtIndex(1), space(900));
        assert!(counts(&mut spread, &there, 99).iter().all(|count| *count == 33));
        there.iter().for_each(|mdt| spread.lost(*mdt));
        assert_eq!(counts(&mut spread, &there, 99), [33, 33, 33], "they may be back");
    }

    #[test]
    fn room_is_shared_by_mdts_on_one_device() {
        let mut spread = Spread::new(0);
        let on = |device, free| SpaceUsage {
            inodes_total: 100 + free,
            inodes_free: free,
            device: Some(DeviceId(device)),
            ..SpaceUsage::default()
        };
        [(0, on(7, 50)), (1, on(7, 50)), (2, on(8, 60))]
            .iter()
            .for_each(|(mdt, of)| spread.report(MdtIndex(*mdt), *of));
        let fill = |mdt, room, sharing| Fill { mdt: MdtIndex(mdt), inodes: 100, room, sharing };
        assert_eq!(spread.fills(), [fill(0, 50, 2), fill(1, 50, 2), fill(2, 60, 1)]);
        spread.lost(MdtIndex(1));
        assert_eq!(spread.fills(), [fill(0, 50, 2), fill(2, 60, 1)], "what it has is still there");
    }
}
