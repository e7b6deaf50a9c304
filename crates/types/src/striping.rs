//! Striped directories: names of one directory on several MDTs
//! (docs/decisions/0058-striped-directories.md).
//!
//! The directory that programs see is the *master*. It has no names of its own, but a map: a
//! directory on each of several MDTs, or several of them, its *shards*, and the hash that says
//! which of them has a name.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use crate::{InodeNumber, MdtIndex, ShardCount, limits::SHARDS_MAX};

/// Offset basis and prime of FNV-1a with 64 bits.
const FNV_BASIS: u64 = 0xcbf2_9ce4_8422_2325;
const FNV_PRIME: u64 = 0x100_0000_01b3;
/// Multiplier of the generator of the jump consistent hash (Lamping and Veach, 2014).
const JUMP_MULTIPLIER: u64 = 2_862_933_555_777_941_757;

/// Bits of a readdir cookie of a striped directory that say in which shard it is. Cookies are
/// positive numbers: the position in the shard has [`SHARD_COOKIE_BITS`] below them.
pub const SHARD_INDEX_BITS: u32 = 10;
/// See [`SHARD_INDEX_BITS`].
pub const SHARD_COOKIE_BITS: u32 = 63 - SHARD_INDEX_BITS;

const _: () = assert!(SHARDS_MAX <= 1 << SHARD_INDEX_BITS, "a cookie has room for every shard");

/// How a name decides which shard has it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum NameHash {
    /// FNV-1a of the name, modulo the number of shards.
    #[default]
    Fnv1a64,
    /// Sum of the bytes of the name, modulo the number of shards.
    AllCharacters,
    /// A consistent hash of the name; temporary and backup names are hashed as the names that they
    /// are for.
    Crush,
    /// The same; a number is not taken for the random part of a temporary name.
    Crush2,
}

/// Lustre's names.
const NAMES: [(NameHash, &str); 4] = [
    (NameHash::AllCharacters, "all_char"),
    (NameHash::Fnv1a64, "fnv_1a_64"),
    (NameHash::Crush, "crush"),
    (NameHash::Crush2, "crush2"),
];

impl NameHash {
    /// As Lustre calls it.
    pub fn name(self) -> &'static str {
        NAMES.iter().find(|(hash, _)| *hash == self).map_or("unknown", |(_, name)| name)
    }

    /// The one of this name.
    pub fn of_name(name: &str) -> Option<Self> {
        NAMES.iter().find(|(_, known)| *known == name).map(|(hash, _)| *hash)
    }

    /// Its number in records: Lustre's.
    pub fn number(self) -> u8 {
        NAMES.iter().zip(1..).find(|((hash, _), _)| *hash == self).map_or(0, |(_, number)| number)
    }

    /// The one of this number.
    pub fn of_number(number: u8) -> Option<Self> {
        NAMES.get(usize::from(number).checked_sub(1)?).map(|(hash, _)| *hash)
    }

    /// Index of the shard that has a name, of so many; 0 if there are none.
    pub fn shard(self, name: &[u8], shards: usize) -> usize {
        let Ok(count @ 1..) = u64::try_from(shards) else { return 0 };
        let index = match self {
            NameHash::Fnv1a64 => fnv_1a(name) % count,
            NameHash::AllCharacters => name.iter().map(|byte| u64::from(*byte)).sum::<u64>() % count,
            NameHash::Crush => jump(fnv_1a(final_name(name, is_suffix_of_crush)), count),
            NameHash::Crush2 => jump(fnv_1a(final_name(name, is_suffix_of_crush2)), count),
        };
        usize::try_from(index).unwrap_or(0)
    }
}

fn fnv_1a(bytes: &[u8]) -> u64 {
    bytes.iter().fold(FNV_BASIS, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(FNV_PRIME))
}

/// Jump consistent hash: with one shard more, one name of so many moves.
fn jump(mut key: u64, count: u64) -> u64 {
    let (mut index, mut next) = (0, 0);
    while next < count {
        index = next;
        key = key.wrapping_mul(JUMP_MULTIPLIER).wrapping_add(1);
        next = ((index + 1) << 31) / ((key >> 33) + 1);
    }
    index
}

/// The name that a program will give to what it writes under a temporary or backup name. As Lustre
/// tells these (`lu_name_is_temp_file`, `lu_name_is_backup_file`): `.NAME.XXXXXX` of rsync,
/// `NAME.XXXXXXXX`, `NAME~`, `NAME.bak`, `NAME.sav`, `NAME.orig`. Besides `.NAME.tmp`, and
/// `NAME.XXXXXX` of mkstemp(3) and mktemp(1).
fn final_name(name: &[u8], is_suffix: fn(&[u8]) -> bool) -> &[u8] {
    if let Some(rest) = name.strip_prefix(b".") {
        if let Some(found) = rest.strip_suffix(b".tmp").filter(|found| !found.is_empty()) {
            return found;
        }
        if let Some(found) = without_suffix(rest, 6, is_suffix) {
            return found;
        }
    }
    if let Some(found) = without_suffix(name, 8, is_suffix).or_else(|| without_suffix(name, 6, is_drawn)) {
        return found;
    }
    for suffix in [".bak", ".sav", ".orig"] {
        if let Some((found, last)) = name.split_at_checked(name.len().saturating_sub(suffix.len()))
            && last.eq_ignore_ascii_case(suffix.as_bytes())
            && !found.is_empty()
        {
            return found;
        }
    }
    name.strip_suffix(b"~").filter(|found| found.last().is_some_and(|last| *last != b'.')).unwrap_or(name)
}

/// What is before a dot and a suffix of so many letters and digits, if it may be a random one.
fn without_suffix(name: &[u8], count: usize, is_suffix: fn(&[u8]) -> bool) -> Option<&[u8]> {
    let (before, suffix) = name.split_at_checked(name.len().checked_sub(count)?)?;
    let found = before.strip_suffix(b".").filter(|found| !found.is_empty())?;
    (suffix.iter().all(u8::is_ascii_alphanumeric) && is_suffix(suffix)).then_some(found)
}

fn has_one_case(suffix: &[u8]) -> bool {
    suffix.iter().all(u8::is_ascii_lowercase) || suffix.iter().all(u8::is_ascii_uppercase)
}

/// Whether all but one of these are digits, or all.
fn is_number(suffix: &[u8]) -> bool {
    suffix.iter().filter(|byte| !byte.is_ascii_digit()).count() <= 1
}

/// Whether Lustre's `crush` takes a suffix for a random one. Lustre's meant to except numbers, as
/// of dates and versions, and excepts those that do not begin with a digit. (It takes other
/// characters than letters and digits, too: these are no temporary names here.)
fn is_suffix_of_crush(suffix: &[u8]) -> bool {
    let is_excepted = is_number(suffix) && !suffix[0].is_ascii_digit();
    !is_excepted && !has_one_case(suffix)
}

/// The same of `crush2`, which is there to except the right ones.
fn is_suffix_of_crush2(suffix: &[u8]) -> bool {
    let is_excepted = is_number(suffix) && suffix[0].is_ascii_digit();
    !is_excepted && !has_one_case(suffix)
}

/// Whether a short suffix is as mkstemp(3) draws most: with letters of both cases. Lustre takes
/// none of these for random. Hashes and numbers of files have one case, and files that differ in
/// that alone have to be spread.
fn is_drawn(suffix: &[u8]) -> bool {
    suffix.iter().any(u8::is_ascii_lowercase) && suffix.iter().any(u8::is_ascii_uppercase)
}

/// The shards of a striped directory.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct DirectoryMap {
    /// The directory.
    pub master: InodeNumber,
    /// Which shard has a name.
    pub hash: NameHash,
    /// The shards, in order, at most [`SHARDS_MAX`].
    pub shards: Vec<InodeNumber>,
}

fn are_distinct<T: Ord>(all: impl IntoIterator<Item = T>) -> bool {
    let mut seen = BTreeSet::new();
    all.into_iter().all(|one| seen.insert(one))
}

impl DirectoryMap {
    /// The shard that has this name, if there are any.
    pub fn shard_of(&self, name: &[u8]) -> Option<InodeNumber> {
        self.shards.get(self.hash.shard(name, self.shards.len())).copied()
    }

    /// Whether it can be the map of a directory.
    pub fn is_possible(&self) -> bool {
        !self.shards.is_empty()
            && self.shards.len() <= SHARDS_MAX
            && are_distinct(&self.shards)
            && self.shards.iter().all(|shard| shard.is_shard())
            && !self.master.is_shard()
    }

    /// Whether several shards are on one MDT.
    pub fn is_overstriped(&self) -> bool {
        !are_distinct(self.shards.iter().map(|shard| shard.mdt()))
    }
}

/// How a directory is to be striped.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stripes {
    /// Which shard has a name.
    pub hash: NameHash,
    /// The MDTs of its shards, in order; none: it is not striped. One MDT may have several.
    pub mdts: Vec<MdtIndex>,
}

impl Stripes {
    /// Whether several shards are on one MDT.
    pub fn is_overstriped(&self) -> bool {
        !are_distinct(&self.mdts)
    }
}

/// How a directory is to be made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DirectoryPlace {
    /// The MDT that has it.
    pub mdt: MdtIndex,
    /// The MDTs of its shards.
    pub stripes: Stripes,
}

/// What new directories in a directory get.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DirectoryDefault {
    /// How many shards they have.
    pub count: ShardCount,
    /// The MDT of the first of these; `None`: the one that has the name of the new directory, or
    /// another one each time, as `spread_levels` says.
    pub first: Option<MdtIndex>,
    /// Which shard has a name; `None`: by the usual one.
    pub hash: Option<NameHash>,
    /// For so many levels of directories; `None`: for all.
    pub levels: Option<u8>,
    /// For so many levels the first MDT is another one each time, and the one that has the name
    /// below them; `None`: for all.
    pub spread_levels: Option<u8>,
}

impl DirectoryDefault {
    /// Most levels that can be given as a number, as in Lustre.
    pub const LEVELS_MAX: u8 = 250;

    /// What the root of a new file system has, as in Lustre: the directories of the three upper
    /// levels are on the MDTs in turn, those below them on the MDT of their name.
    pub const OF_NEW_ROOT: Self =
        Self { count: ShardCount::Exactly(1), first: None, hash: None, levels: None, spread_levels: Some(3) };

    /// Whether it can be a default.
    pub fn is_possible(&self) -> bool {
        self.count.is_possible()
            && self.levels.is_none_or(|levels| (1..=Self::LEVELS_MAX).contains(&levels))
            && self.spread_levels.is_none_or(|levels| levels <= Self::LEVELS_MAX)
            && (self.first.is_none() || self.spread_levels == Some(0))
    }

    /// What a new directory gives on.
    pub fn inherited(self) -> Option<Self> {
        let levels = match self.levels {
            Some(0 | 1) => return None,
            levels => levels.map(|levels| levels - 1),
        };
        let spread_levels = self.spread_levels.map(|levels| levels.saturating_sub(1));
        Some(Self { levels, spread_levels, ..self })
    }

    /// Whether there are as many MDTs as it says, and the first one; `there`: those in use.
    pub fn is_fulfilled_by(&self, there: &[MdtIndex]) -> bool {
        let has_all = match self.count {
            ShardCount::Exactly(count) => usize::from(count) <= there.len(),
            ShardCount::All => true,
            count => count.on(there.len()) <= SHARDS_MAX,
        };
        has_all && self.first.is_none_or(|first| there.contains(&first))
    }

    /// Whether an MDT may have several shards of a directory.
    pub fn is_overstriped(&self) -> bool {
        self.count.is_overstriped()
    }

    /// Whether the first MDT of a new directory is another one each time.
    pub fn is_spread(&self) -> bool {
        self.first.is_none() && self.spread_levels != Some(0)
    }

    /// Whether a new directory is on one MDT, whichever that is.
    pub fn may_be_anywhere(&self) -> bool {
        self.is_spread() && self.count == ShardCount::Exactly(1)
    }

    /// Where a new directory is; `first`: the first MDT by this default; `there`: the MDTs in use,
    /// in order. If fewer are left than the default says, all of them; if the first is out of use,
    /// from the next one on.
    pub fn place(&self, first: MdtIndex, there: &[MdtIndex]) -> DirectoryPlace {
        let mdts = self.count.place(&mdts_from(there, first, SHARDS_MAX));
        let mdt = mdts.first().copied().unwrap_or(first);
        let stripes = match mdts.len() {
            0 | 1 => Stripes::default(),
            _ => Stripes { hash: self.hash.unwrap_or_default(), mdts },
        };
        DirectoryPlace { mdt, stripes }
    }
}

/// So many MDTs, but not more than there are, from one of them on and around, or from the next one
/// if it is not there; `there`: those in use, in order.
pub fn mdts_from(there: &[MdtIndex], first: MdtIndex, count: usize) -> Vec<MdtIndex> {
    let start = there.iter().position(|mdt| *mdt >= first).unwrap_or(0);
    there[start..].iter().chain(&there[..start]).take(count).copied().collect()
}

/// The part of a shard in its directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShardPlace {
    /// Which shard has a name.
    pub hash: NameHash,
    /// Which of the shards it is.
    pub index: u16,
    /// How many there are.
    pub count: u16,
}

impl ShardPlace {
    /// Whether this shard has the name, if any has.
    pub fn has(&self, name: &[u8]) -> bool {
        self.hash.shard(name, usize::from(self.count)) == usize::from(self.index)
    }
}

#[cfg(test)]
mod tests {
    use ShardCount::{Exactly, Overstriped, PerMdt};

    use super::*;

    const ALL: [NameHash; 4] = [NameHash::Fnv1a64, NameHash::AllCharacters, NameHash::Crush, NameHash::Crush2];

    #[test]
    fn hashes_have_names_and_numbers() {
        for hash in ALL {
            assert_eq!(NameHash::of_name(hash.name()), Some(hash));
            assert_eq!(NameHash::of_number(hash.number()), Some(hash));
        }
        assert_eq!((NameHash::of_name("foo"), NameHash::of_number(0), NameHash::of_number(5)), (None, None, None));
        assert_eq!(ALL.map(NameHash::number), [2, 1, 3, 4], "as in Lustre");
    }

    #[test]
    fn names_are_spread_over_all_shards() {
        for hash in ALL {
            for count in [1, 2, 3, 7, 64, SHARDS_MAX] {
                let mut found = vec![0; count];
                for number in 0..count * 100 {
                    found[hash.shard(format!("file.{number}").as_bytes(), count)] += 1;
                }
                let is_sum = hash == NameHash::AllCharacters;
                assert!(is_sum || found.iter().all(|names| (40..200).contains(names)), "{hash:?} {count}: {found:?}");
            }
            assert_eq!(hash.shard(b"name", 0), 0);
        }
        assert_eq!(fnv_1a(b"a"), 0xaf63_dc4c_8601_ec8c);
    }

    #[test]
    fn one_shard_more_moves_few_names() {
        let moved = |hash: NameHash| {
            let name = |number: usize| format!("n{number}").into_bytes();
            (0..1000).filter(|number| hash.shard(&name(*number), 9) != hash.shard(&name(*number), 10)).count()
        };
        assert!((50..200).contains(&moved(NameHash::Crush)), "{}", moved(NameHash::Crush));
        assert!(moved(NameHash::Fnv1a64) > 800);
    }

    #[test]
    fn temporary_names_are_where_their_final_names_are() {
        let of = |name: &'static str| {
            [is_suffix_of_crush as fn(&[u8]) -> bool, is_suffix_of_crush2]
                .map(|is_suffix| String::from_utf8_lossy(final_name(name.as_bytes(), is_suffix)))
        };
        for (name, expected) in [
            (".file.Ab3dE7", "file"),
            (".f.tmp", "f"),
            ("file.Ab3dE7", "file"),
            ("file.Ab3dE7Xy", "file"),
            ("file.3fa9c1d2", "file"),
            ("file~", "file"),
            ("file.bak", "file"),
            ("file.ORIG", "file"),
            ("file.c", "file.c"),
            ("file.config", "file.config"),
            ("file.template", "file.template"),
            ("file.3fa9c1", "file.3fa9c1"),
            ("file.2026-b", "file.2026-b"),
            (".tmp", ".tmp"),
            ("..tmp", "..tmp"),
            (".Ab3dE7", ".Ab3dE7"),
            ("~", "~"),
            ("file.~", "file.~"),
            (".bak", ".bak"),
            (".file.Ab-dE7", ".file.Ab-dE7"),
            ("", ""),
        ] {
            assert_eq!(of(name), [expected, expected], "{name}");
        }
        assert_eq!(of("log.20261128"), ["log", "log.20261128"]);
        assert_eq!(of("log.2026112b"), ["log", "log.2026112b"]);
        assert_eq!(of("log.v2026112"), ["log.v2026112", "log"]);
    }

    #[test]
    fn defaults_hold_for_their_levels_and_choose_mdts() {
        let there = [0, 1, 2, 5].map(MdtIndex);
        let all = DirectoryDefault {
            count: ShardCount::All,
            first: None,
            hash: None,
            levels: Some(2),
            spread_levels: Some(0),
        };
        let mdts = |default: DirectoryDefault| {
            let place = default.place(default.first.unwrap_or(MdtIndex(2)), &there);
            (place.mdt.0, place.stripes.mdts.iter().map(|mdt| mdt.0).collect::<Vec<_>>())
        };
        assert_eq!(mdts(all), (2, vec![2, 5, 0, 1]));
        let next = all.inherited().expect("another level");
        assert_eq!((next.levels, next.inherited()), (Some(1), None));
        let endless = DirectoryDefault { levels: None, ..all };
        assert_eq!(endless.inherited(), Some(endless));
        let two = DirectoryDefault { count: Exactly(2), first: Some(MdtIndex(5)), ..all };
        assert_eq!(mdts(two), (5, vec![5, 0]));
        let (gone, many) =
            (DirectoryDefault { first: Some(MdtIndex(3)), ..two }, DirectoryDefault { count: Exactly(5), ..all });
        assert_eq!(mdts(gone), (5, vec![5, 0]), "the next one, if this one was taken out of use");
        assert_eq!(mdts(many), (2, vec![2, 5, 0, 1]), "those that are left");
        assert_eq!([all, two, gone, many].map(|default| default.is_fulfilled_by(&there)), [true, true, false, false]);
        let one = DirectoryDefault { count: Exactly(1), spread_levels: Some(1), ..endless };
        let below = one.inherited().expect("endless");
        assert_eq!([one, below, two].map(|default| default.is_spread()), [true, false, false]);
        let striped = DirectoryDefault { count: Exactly(2), ..one };
        assert_eq!([one, below, striped].map(|default| default.may_be_anywhere()), [true, false, false]);
        assert_eq!(mdts(below), (2, Vec::new()));
        let impossible = [
            DirectoryDefault { count: ShardCount::Exactly(0), ..all },
            DirectoryDefault { levels: Some(0), ..all },
            DirectoryDefault { levels: Some(251), ..all },
            DirectoryDefault { spread_levels: None, ..two },
        ];
        assert!([all, endless, two, one].iter().all(DirectoryDefault::is_possible));
        assert!(!impossible.iter().any(DirectoryDefault::is_possible));
        let alone = DirectoryPlace { mdt: MdtIndex(0), stripes: Stripes::default() };
        assert_eq!(one.place(MdtIndex(0), &[]), alone);
        assert_eq!(all.place(MdtIndex(0), &[MdtIndex(0)]), alone, "all of them is one");
        let many: Vec<MdtIndex> = (0..=SHARDS_MAX as u16).map(MdtIndex).collect();
        assert_eq!(all.place(MdtIndex(0), &many).stripes.mdts.len(), SHARDS_MAX, "not more than a directory can have");
    }

    #[test]
    fn a_default_may_give_an_mdt_several_shards() {
        let there = [0, 1, 5].map(MdtIndex);
        let over = |count| DirectoryDefault { count, first: None, hash: None, levels: None, spread_levels: Some(0) };
        let mdts = |count| {
            let place = over(count).place(MdtIndex(1), &there);
            (place.mdt.0, place.stripes.mdts.iter().map(|mdt| mdt.0).collect::<Vec<_>>())
        };
        assert_eq!(mdts(Overstriped(5)), (1, vec![1, 5, 0, 1, 5]));
        assert_eq!(mdts(Overstriped(2)), (1, vec![1, 5]), "no more than that is needed");
        assert_eq!(mdts(PerMdt(2)), (1, vec![1, 5, 0, 1, 5, 0]));
        let alone = over(Overstriped(3)).place(MdtIndex(1), &there[1..2]);
        assert_eq!(alone.stripes.mdts, [MdtIndex(1); 3]);
        let fulfilled = |count, mdts: u16| over(count).is_fulfilled_by(&(0..mdts).map(MdtIndex).collect::<Vec<_>>());
        assert!(fulfilled(Overstriped(9), 1) && fulfilled(PerMdt(32), 31) && !fulfilled(PerMdt(32), 32));
        assert_eq!(
            [Exactly(4), Overstriped(4), PerMdt(4)].map(|count| over(count).is_overstriped()),
            [false, true, true]
        );
    }

    #[test]
    fn maps_that_no_directory_has_are_told() {
        let shard = |mdt| InodeNumber::new(MdtIndex(mdt), 300).as_shard();
        let map = |shards| DirectoryMap { master: InodeNumber(300), hash: NameHash::Crush, shards };
        assert!(map(vec![shard(0), shard(1)]).is_possible());
        assert!(!map(Vec::new()).is_possible());
        assert!(!map(vec![shard(1), shard(1)]).is_possible(), "the same shard twice");
        assert!(!map(vec![InodeNumber(300)]).is_possible());
        assert!(!map((0..=SHARDS_MAX as u16).map(shard).collect()).is_possible());
        assert!(!DirectoryMap { master: shard(0), ..map(vec![shard(0)]) }.is_possible());
        assert_eq!(map(Vec::new()).shard_of(b"name"), None);
    }

    #[test]
    fn several_shards_on_one_mdt_are_told() {
        let shard = |mdt, counter| InodeNumber::new(MdtIndex(mdt), counter).as_shard();
        let map = |shards| DirectoryMap { master: InodeNumber(300), hash: NameHash::Crush, shards };
        let several = map(vec![shard(0, 301), shard(1, 301), shard(0, 302)]);
        assert!(several.is_possible() && several.is_overstriped());
        assert!(!map(vec![shard(0, 301), shard(1, 301)]).is_overstriped());
        let stripes =
            |mdts: &[u16]| Stripes { mdts: mdts.iter().copied().map(MdtIndex).collect(), ..Stripes::default() };
        assert_eq!(
            [stripes(&[0, 0]), stripes(&[0, 1]), stripes(&[])].map(|stripes| stripes.is_overstriped()),
            [true, false, false]
        );
    }
}
