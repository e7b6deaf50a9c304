//! Which directories of an MDT move to another one because it has more than its part of all inodes
//! (docs/decisions/0067-balance-of-mdts.md). Pure: from how full the MDTs are, whether and how much
//! ([`surplus`]); from what was found in its tables, what ([`choose`]).
//!
//! Its part goes by what each can hold: MDTs on devices of one size have equal parts, one with half
//! of the room has half of the inodes. MDTs that share a device share its free space.
//!
//! Nothing moves to and fro: an MDT gives from `threshold_pct` above its part on, down to a quarter
//! of that, and only to those below their part, no more than they lack. Of those that give at the
//! same time, each fills its part of what is lacking.
//!
//! Downside: it counts inodes. That one inode takes more space than another, or is used more, shows
//! in its part only as far as that takes space.

use std::time::Duration;

use types::{InodeNumber, MdtIndex};

/// What is given ends when it is so many times less than what begins it.
const HYSTERESIS: u64 = 4;

/// When an MDT gives inodes to others (`mdt.*.balance_*`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BalancePolicy {
    /// The budget; 0: never.
    pub inodes_per_second: u64,
    /// By how many percent it has more than its part.
    pub threshold_pct: u32,
    /// And at least so many inodes more.
    pub inodes_min: u64,
    /// Directories stay that were made, used, changed or moved more recently, or in which anything
    /// was.
    pub idle: Duration,
}

impl Default for BalancePolicy {
    fn default() -> Self {
        Self {
            // Who works in a directory that moves, without having anything open in it, gets errors:
            // this is for the operator to decide.
            inodes_per_second: 0,
            // A clear difference: above the one from which on new directories go by space (17).
            threshold_pct: 25,
            // Less is not worth new numbers: it takes some MiB.
            inodes_min: 10_000,
            // Longer than most jobs run.
            idle: Duration::from_secs(86_400),
        }
    }
}

/// How full an MDT is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fill {
    /// Which one.
    pub mdt: MdtIndex,
    /// Its inodes.
    pub inodes: u64,
    /// How many more it can hold, with what it shares with others.
    pub room: u64,
    /// How many MDTs share that, itself included.
    pub sharing: u64,
}

impl Fill {
    fn capacity(&self) -> u128 {
        u128::from(self.inodes) + u128::from(self.room / self.sharing.max(1))
    }
}

/// What an MDT gives, and to which one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Surplus {
    /// The MDT that lacks most.
    pub to: MdtIndex,
    /// How many inodes at most.
    pub inodes: u64,
}

/// What `me` has to give, where there are these MDTs, itself included. `is_giving`: it has begun to
/// give.
pub fn surplus(me: MdtIndex, fills: &[Fill], policy: &BalancePolicy, is_giving: bool) -> Option<Surplus> {
    let inodes: u128 = fills.iter().map(|fill| u128::from(fill.inodes)).sum();
    let capacity: u128 = fills.iter().map(Fill::capacity).sum();
    let part = |fill: &Fill| (inodes * fill.capacity()).checked_div(capacity).unwrap_or(0) as u64;
    // Others may be about to end.
    let gives = |fill: &Fill, is_giving: bool| {
        let parts = if is_giving { HYSTERESIS } else { 1 };
        let (part, excess) = (part(fill), fill.inodes.saturating_sub(part(fill)));
        let is_much =
            u128::from(excess) * 100 >= u128::from(part) * u128::from(policy.threshold_pct) / u128::from(parts);
        (excess > 0 && is_much && excess >= policy.inodes_min / parts).then_some(excess)
    };
    let mine = gives(fills.iter().find(|fill| fill.mdt == me)?, is_giving)?;
    let of_others = fills.iter().filter(|fill| fill.mdt != me).filter_map(|fill| gives(fill, true));
    let all: u128 = u128::from(mine) + of_others.map(u128::from).sum::<u128>();
    let lacks = |fill: &Fill| part(fill).saturating_sub(fill.inodes);
    let to =
        fills.iter().filter(|fill| fill.mdt != me).max_by_key(|fill| (lacks(fill), std::cmp::Reverse(fill.mdt)))?;
    let inodes = (u128::from(lacks(to)) * u128::from(mine) / all) as u64;
    (inodes > 0).then_some(Surplus { to: to.mdt, inodes: inodes.min(mine) })
}

/// A directory with all that is below it on this MDT.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Subtree {
    /// The directory.
    pub directory: InodeNumber,
    /// Inodes, itself included.
    pub inodes: u64,
    /// How long nothing in it was used or changed.
    pub idle: Duration,
    /// The MDT of the directory above it.
    pub above: MdtIndex,
}

/// Which of these move, none of which is below another: first what a former move has left behind,
/// then what has not been used for the longest time, of about equally long the largest.
pub fn choose(found: &[Subtree], surplus: &Surplus, policy: &BalancePolicy) -> Vec<InodeNumber> {
    let mut found: Vec<&Subtree> = found.iter().filter(|subtree| subtree.idle >= policy.idle).collect();
    let rank =
        |subtree: &Subtree| (subtree.above == surplus.to, subtree.idle.as_secs().checked_ilog2(), subtree.inodes);
    found.sort_by_key(|subtree| std::cmp::Reverse(rank(subtree)));
    let mut left = surplus.inodes;
    found.retain(|subtree| match left.checked_sub(subtree.inodes) {
        Some(rest) => {
            left = rest;
            true
        }
        None => false,
    });
    found.into_iter().map(|subtree| subtree.directory).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const POLICY: BalancePolicy =
        BalancePolicy { inodes_per_second: 100, threshold_pct: 20, inodes_min: 50, idle: Duration::from_secs(100) };

    /// MDTs with so many inodes of so many that each can hold.
    fn fills(of: &[(u64, u64)]) -> Vec<Fill> {
        let fill = |(index, (inodes, capacity)): (usize, &(u64, u64))| Fill {
            mdt: MdtIndex(index as u16),
            inodes: *inodes,
            room: capacity - inodes,
            sharing: 1,
        };
        of.iter().enumerate().map(fill).collect()
    }

    fn gives(me: u16, of: &[(u64, u64)], is_giving: bool) -> Option<(u16, u64)> {
        let found = surplus(MdtIndex(me), &fills(of), &POLICY, is_giving);
        found.map(|surplus| (surplus.to.0, surplus.inodes))
    }

    #[test]
    fn an_mdt_with_more_than_its_part_gives_to_the_one_that_lacks_most() {
        const SIZE: u64 = 1 << 30;
        let of = |inodes: &[u64]| inodes.iter().map(|inodes| (*inodes, SIZE)).collect::<Vec<_>>();
        assert_eq!(gives(0, &of(&[1000, 0]), false), Some((1, 500)));
        assert_eq!(gives(1, &of(&[1000, 0]), false), None, "the other one");
        assert_eq!(gives(0, &of(&[1000, 300, 200]), false), Some((2, 300)));
        assert_eq!(gives(0, &of(&[1000, 1000, 0]), false), Some((2, 333)), "half of what it lacks");
        assert_eq!(gives(0, &of(&[1000]), false), None, "alone");
        assert_eq!(gives(7, &of(&[1000, 0]), false), None, "nothing is known of it");
        assert_eq!(gives(0, &of(&[0, 0]), false), None);
        // Within the threshold, and too few to matter.
        assert_eq!((gives(0, &of(&[1190, 810]), false), gives(0, &of(&[1210, 790]), false)), (None, Some((1, 210))));
        assert_eq!((gives(0, &of(&[98, 0]), false), gives(0, &of(&[100, 0]), false)), (None, Some((1, 50))));
        // Once it has begun it goes on to a quarter of that.
        assert_eq!((gives(0, &of(&[1060, 940]), true), gives(0, &of(&[1040, 960]), true)), (Some((1, 60)), None));
    }

    #[test]
    fn parts_go_by_what_mdts_can_hold() {
        assert_eq!(gives(0, &[(600, 2000), (300, 1000)], false), None);
        assert_eq!(gives(1, &[(300, 2000), (600, 1000)], false), Some((0, 300)));
        assert_eq!(gives(0, &[(900, 1000), (9000, 10_000)], false), None, "both are full");
        let mut shared = fills(&[(1000, 100_000), (0, 100_000), (0, 100_000)]);
        shared[1].sharing = 2;
        shared[2].sharing = 2;
        let found = surplus(MdtIndex(0), &shared, &POLICY, false).unwrap();
        assert_eq!((found.to, found.inodes), (MdtIndex(1), 250));
        shared.iter_mut().for_each(|fill| fill.room = 0);
        assert_eq!(surplus(MdtIndex(0), &shared, &POLICY, false), None, "there is no room anywhere");
    }

    /// All MDTs decide, again and again, by what was true when they decided before.
    #[test]
    fn it_comes_to_rest_whatever_it_begins_with_and_moves_no_more_than_it_must() {
        let mut random = types::SplitMix64(7);
        for _ in 0..300 {
            let count = 2 + random.next_u64() % 6;
            let mut of: Vec<(u64, u64)> =
                (0..count).map(|_| (random.next_u64() % 100_000, 200_000 + random.next_u64() % 1_000_000)).collect();
            let begun = of.clone();
            let total: u64 = of.iter().map(|(inodes, _)| *inodes).sum();
            let capacity: u64 = of.iter().map(|(_, capacity)| *capacity).sum();
            let part = |of: &[(u64, u64)], mdt: usize| of[mdt].1 as u128 * u128::from(total) / u128::from(capacity);
            let mut giving = vec![false; of.len()];
            let mut moved = 0;
            let mut rounds = 0;
            loop {
                rounds += 1;
                assert!(rounds < 500, "no end: {begun:?}, now {of:?}");
                let decided: Vec<_> = (0..of.len()).map(|mdt| gives(mdt as u16, &of, giving[mdt])).collect();
                giving = decided.iter().map(Option::is_some).collect();
                if decided.iter().all(Option::is_none) {
                    break;
                }
                for (mdt, gift) in decided.into_iter().enumerate() {
                    let Some((to, inodes)) = gift else { continue };
                    // As much as fits of what was found.
                    let inodes = inodes.min(5000);
                    of[mdt].0 -= inodes;
                    of[usize::from(to)].0 += inodes;
                    moved += inodes;
                }
            }
            let excess: u128 =
                (0..of.len()).map(|mdt| u128::from(begun[mdt].0).saturating_sub(part(&begun, mdt))).sum();
            assert!(u128::from(moved) <= excess, "{moved} of {excess}: {begun:?}");
            for mdt in 0..of.len() {
                let limit = part(&of, mdt) * 120 / 100 + 51;
                assert!(u128::from(of[mdt].0) <= limit, "MDT{mdt} of {begun:?}: {of:?}");
            }
        }
    }

    #[test]
    fn what_is_idle_longest_moves_and_fits() {
        let subtree = |number: u64, inodes: u64, idle: u64, above: u16| Subtree {
            directory: InodeNumber(number),
            inodes,
            idle: Duration::from_secs(idle),
            above: MdtIndex(above),
        };
        let chosen = |found: &[Subtree], inodes: u64| -> Vec<u64> {
            choose(found, &Surplus { to: MdtIndex(1), inodes }, &POLICY).into_iter().map(|found| found.0).collect()
        };
        let found = [
            subtree(1, 10, 99, 0),
            subtree(2, 40, 1500, 0),
            subtree(3, 60, 1100, 0),
            subtree(4, 500, 100_000, 0),
            subtree(5, 7, 150, 1),
            subtree(6, 1, 150, 0),
        ];
        assert_eq!(chosen(&found, 1000), [5, 4, 3, 2, 6], "all but what was used a moment ago");
        assert_eq!(chosen(&found, 108), [5, 3, 2, 6]);
        assert_eq!(chosen(&found, 60), [5, 2, 6]);
        assert_eq!(chosen(&found, 0), [0; 0]);
    }
}
