//! How many shards a directory gets (docs/decisions/0058-striped-directories.md).

use serde::{Deserialize, Serialize};

use crate::{
    MdtIndex,
    limits::{SHARDS_MAX, SHARDS_PER_MDT_MAX},
};

/// How many shards a directory gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "Option<u16>", into = "Option<u16>")]
pub enum ShardCount {
    /// One on each MDT that is in use.
    All,
    /// So many, each on another MDT.
    Exactly(u16),
    /// So many, several on an MDT if there are fewer MDTs.
    Overstriped(u16),
    /// So many on each MDT that is in use.
    PerMdt(u16),
}

impl ShardCount {
    /// Bits of a stored count that say that an MDT may have several shards.
    const OVERSTRIPED: u16 = 0x8000;
    /// With the other one: the count is that of each MDT.
    const PER_MDT: u16 = 0xc000;
    const COUNT: u16 = !Self::PER_MDT;

    /// As it is stored and sent; 0: all. Releases that know no more than one shard on each MDT take
    /// a larger number than [`SHARDS_MAX`] for an impossible one.
    pub fn number(self) -> u16 {
        match self {
            ShardCount::All => 0,
            ShardCount::Exactly(count) => count.min(Self::COUNT),
            ShardCount::Overstriped(count) => Self::OVERSTRIPED | count.min(Self::COUNT),
            ShardCount::PerMdt(count) => Self::PER_MDT | count.min(Self::COUNT),
        }
    }

    /// The one of this number.
    pub fn of_number(number: u16) -> Self {
        match (number & Self::PER_MDT, number & Self::COUNT) {
            (0, 0) => ShardCount::All,
            (Self::PER_MDT, count) => ShardCount::PerMdt(count),
            (Self::OVERSTRIPED, count) => ShardCount::Overstriped(count),
            _ => ShardCount::Exactly(number),
        }
    }

    /// Whether a directory can have so many.
    pub fn is_possible(self) -> bool {
        match self {
            ShardCount::All => true,
            ShardCount::Exactly(count) | ShardCount::Overstriped(count) => {
                count > 0 && usize::from(count) <= SHARDS_MAX
            }
            ShardCount::PerMdt(count) => count > 0 && count <= SHARDS_PER_MDT_MAX,
        }
    }

    /// Whether an MDT may have several.
    pub fn is_overstriped(self) -> bool {
        matches!(self, ShardCount::Overstriped(_) | ShardCount::PerMdt(_))
    }

    /// How many that are on so many MDTs.
    pub fn on(self, mdts: usize) -> usize {
        match self {
            ShardCount::All => mdts,
            ShardCount::Exactly(count) | ShardCount::Overstriped(count) => usize::from(count),
            ShardCount::PerMdt(count) => mdts * usize::from(count),
        }
    }

    /// The MDTs of the shards, one after the other; `around`: all of them, in the order in which
    /// they get shards. No more than a directory can have; if there are fewer MDTs than `Exactly`
    /// says, all of them.
    pub fn place(self, around: &[MdtIndex]) -> Vec<MdtIndex> {
        let count = match self {
            ShardCount::Exactly(count) => around.len().min(usize::from(count)),
            count => count.on(around.len()),
        };
        around.iter().copied().cycle().take(count.min(SHARDS_MAX)).collect()
    }
}

impl From<Option<u16>> for ShardCount {
    fn from(number: Option<u16>) -> Self {
        match number {
            None => ShardCount::All,
            // As it was sent before: none at all.
            Some(0) => ShardCount::Exactly(0),
            Some(number) => Self::of_number(number),
        }
    }
}

impl From<ShardCount> for Option<u16> {
    fn from(count: ShardCount) -> Self {
        match count {
            ShardCount::All => None,
            count => Some(count.number()),
        }
    }
}

#[cfg(test)]
mod tests {
    use ShardCount::{All, Exactly, Overstriped, PerMdt};

    use super::*;

    #[test]
    fn counts_have_the_numbers_of_before_and_others_where_those_were_impossible() {
        for (count, number) in [
            (All, 0),
            (Exactly(1), 1),
            (Exactly(1000), 1000),
            (Overstriped(2), 0x8002),
            (Overstriped(1000), 0x83e8),
            (PerMdt(2), 0xc002),
            (PerMdt(32), 0xc020),
        ] {
            assert_eq!((count.number(), ShardCount::of_number(number)), (number, count));
            assert!(count.is_possible());
            assert_eq!(ShardCount::from(Option::from(count)), count);
        }
        assert_eq!(Option::from(Exactly(7)), Some(7_u16));
        for impossible in [Exactly(0), Exactly(1001), Overstriped(0), Overstriped(1001), PerMdt(0), PerMdt(33)] {
            assert!(!impossible.is_possible(), "{impossible:?}");
            assert_eq!(ShardCount::from(Option::from(impossible)), impossible);
        }
        for huge in [Exactly(u16::MAX), Overstriped(u16::MAX), PerMdt(u16::MAX)] {
            assert!(!ShardCount::of_number(huge.number()).is_possible(), "{huge:?} does not become another count");
        }
        let possible = (0..=u16::MAX).filter(|number| ShardCount::of_number(*number).is_possible());
        possible.for_each(|number| assert_eq!(ShardCount::of_number(number).number(), number));
    }

    #[test]
    fn shards_go_around() {
        let around = [1, 5, 0].map(MdtIndex);
        let placed = |count: ShardCount| count.place(&around).iter().map(|mdt| mdt.0).collect::<Vec<_>>();
        assert_eq!(placed(All), [1, 5, 0]);
        assert_eq!([placed(Exactly(2)), placed(Exactly(4))], [vec![1, 5], vec![1, 5, 0]]);
        assert_eq!([placed(Overstriped(2)), placed(Overstriped(4))], [vec![1, 5], vec![1, 5, 0, 1]]);
        assert_eq!([placed(PerMdt(1)), placed(PerMdt(2))], [vec![1, 5, 0], vec![1, 5, 0, 1, 5, 0]]);
        assert_eq!(Overstriped(u16::MAX).place(&around).len(), SHARDS_MAX);
        assert_eq!(Overstriped(2).place(&[]), []);
    }
}
