//! Where the listing of an open directory is. Names may move meanwhile: from the directory to its
//! shards, or back. A listing reads where they are first, page after page, and then where they go,
//! without those that it has shown. It may see more of such phases, if names move again.
//!
//! Names move in the order of their cookies. So what a page shows is everything that the directory,
//! or a shard, has between two cookies, and what is missing there has moved. Where it goes on has
//! to have all of that.

use std::{collections::BTreeMap, sync::Arc};

use rpc::message::mdt::{COOKIE_HASH_BITS, COOKIE_PARENT, first_cookie};
use types::{DirectoryMap, FsError, FsResult, InodeNumber, striping::SHARD_INDEX_BITS};

/// Phases of one listing, after which it fails: a directory that changes so often cannot be listed.
const PHASES_MAX: usize = 16;

/// See the module documentation.
#[derive(Debug, Default)]
pub(crate) struct ListingPlace {
    phases: Vec<Phase>,
}

/// What is read from a time on: the directory itself, or its shards.
#[derive(Debug, Default)]
struct Phase {
    /// The shards.
    map: Option<Arc<DirectoryMap>>,
    /// The last cookie of the listing before this.
    begun: Option<u64>,
    /// What pages of each shard, or of the directory (0), have shown: names after the first cookie,
    /// up to the second one. In order.
    shown: BTreeMap<usize, Vec<(u64, u64)>>,
    /// The last place up to which names were gone from there, as one in the directory.
    gone: BTreeMap<usize, u64>,
    /// Names up to this place have to be in the shards.
    needed: u64,
}

/// What is to be read: after a cookie of the directory itself, or of its shards.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// The directory itself.
    Directory(u64),
    /// Its shards.
    Shards(Arc<DirectoryMap>, u64),
}

/// Whether the directory, to which names come back, has all that the shards have not shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Back {
    /// It has.
    All,
    /// Some names are on their way from this shard.
    Await(InodeNumber),
    /// The shards were not read: they come first.
    ShardsFirst,
}

impl ListingPlace {
    /// A page after a cookie is asked for; `map`: the shards that the directory is known to have.
    pub fn ask(&mut self, cookie: u64, map: Option<Arc<DirectoryMap>>) {
        if cookie <= COOKIE_PARENT {
            self.phases.clear();
        }
        if self.phases.is_empty() {
            self.phases.push(Phase { map, needed: u64::MAX, ..Phase::default() });
        }
    }

    /// Whether nothing was asked for.
    pub fn is_new(&self) -> bool {
        self.phases.is_empty()
    }

    /// What comes after this cookie. A page may have been lost on its way, and what it showed.
    pub fn next(&mut self, cookie: u64) -> Next {
        let Some(phase) = self.phases.last_mut() else { return Next::Directory(cookie) };
        let after = if phase.begun == Some(cookie) { cookie.min(COOKIE_PARENT) } else { cookie };
        match &phase.map {
            None => Next::Directory(after),
            Some(map) => Next::Shards(map.clone(), after),
        }
    }

    /// The listing goes on after a cookie in these shards, which have to have names up to the place
    /// `needed`; or in the directory itself. `Stale`: it does so too often.
    pub fn begin(&mut self, map: Option<Arc<DirectoryMap>>, cookie: u64, needed: u64) -> FsResult<()> {
        if self.phases.len() >= PHASES_MAX {
            return Err(FsError::Stale);
        }
        self.phases.push(Phase { map, begun: Some(cookie), needed, ..Phase::default() });
        Ok(())
    }

    /// What was shown after a cookie of this part, and of those after it, is not known to have
    /// arrived.
    pub fn forget_after(&mut self, part: usize, cookie: u64) {
        let Some(phase) = self.phases.last_mut() else { return };
        phase.shown.split_off(&(part + 1));
        let Some(shown) = phase.shown.get_mut(&part) else { return };
        shown.truncate(shown.partition_point(|(from, _)| *from < cookie));
        if let Some((_, to)) = shown.last_mut() {
            *to = cookie.min(*to);
        }
    }

    /// A page of a part was given, after a cookie up to another one; `gone`: names up to that have
    /// gone from there.
    pub fn gave(&mut self, part: usize, (cookie, last): (u64, u64), gone: Option<u64>) {
        self.forget_after(part, cookie);
        let Some(phase) = self.phases.last_mut() else { return };
        let is_shard = phase.map.is_some();
        if let Some(gone) = gone {
            let told = phase.gone.entry(part).or_default();
            *told = gone.max(*told);
        }
        let gone = gone.map_or(0, |gone| if is_shard { gone >> SHARD_INDEX_BITS } else { gone });
        let from = cookie.max(gone);
        let shown = phase.shown.entry(part).or_default();
        match shown.last_mut() {
            Some((_, to)) if *to == from => *to = last.max(from),
            _ if last > from => shown.push((from, last)),
            _ => {}
        }
    }

    /// All names have gone from these shards, from one of them on.
    pub fn all_gone(&mut self, first: usize) {
        let Some(phase) = self.phases.last_mut() else { return };
        let count = phase.map.as_ref().map_or(0, |map| map.shards.len());
        phase.gone.extend((first..count).map(|part| (part, u64::MAX)));
    }

    /// Whether names have gone from what is read, for all that is known.
    pub fn has_gone(&self) -> bool {
        self.phases.last().is_some_and(|phase| phase.gone.values().any(|gone| *gone > 0))
    }

    /// The last place up to which names have gone from the directory.
    pub fn gone(&self) -> u64 {
        self.phases.last().and_then(|phase| phase.gone.get(&0)).copied().unwrap_or(0)
    }

    /// The place up to which shards must have their names, so that the listing shows all.
    pub fn needed(&self) -> u64 {
        self.phases.last().map_or(u64::MAX, |phase| phase.needed)
    }

    /// Whether nothing was read before this phase.
    pub fn is_first(&self) -> bool {
        self.phases.len() <= 1
    }

    /// Names have come back to the directory from each shard up to a place.
    pub fn back(&self, places: &[(InodeNumber, u64)]) -> Back {
        let is_of = |phase: &&Phase| {
            phase.map.as_ref().is_some_and(|map| map.shards.iter().eq(places.iter().map(|(shard, _)| shard)))
        };
        let Some(phase) = self.phases.iter().rev().find(is_of) else { return Back::ShardsFirst };
        let gone = |part: usize| phase.gone.get(&part).copied().unwrap_or(0);
        let awaited = places.iter().enumerate().find(|(part, (_, place))| *place < gone(*part));
        awaited.map_or(Back::All, |(_, (shard, _))| Back::Await(*shard))
    }

    /// Whether a name was shown in an earlier phase.
    pub fn has_shown(&self, name: &[u8]) -> bool {
        let earlier = self.phases.len().saturating_sub(1);
        self.phases[..earlier].iter().any(|phase| phase.has_shown(name))
    }
}

impl Phase {
    fn has_shown(&self, name: &[u8]) -> bool {
        let (part, bits) = match &self.map {
            None => (0, COOKIE_HASH_BITS),
            Some(map) => (map.hash.shard(name, map.shards.len()), COOKIE_HASH_BITS - SHARD_INDEX_BITS),
        };
        let Some(shown) = self.shown.get(&part) else { return false };
        let cookie = first_cookie(name, bits);
        let after = shown.partition_point(|(from, _)| *from < cookie);
        shown[..after].last().is_some_and(|(_, to)| cookie <= *to)
    }
}

#[cfg(test)]
mod tests {
    use types::{MdtIndex, NameHash};

    use super::*;

    fn map() -> Arc<DirectoryMap> {
        let shards = [0, 1].map(|mdt| InodeNumber::new(MdtIndex(mdt), 300).as_shard());
        Arc::new(DirectoryMap { master: InodeNumber(299), hash: NameHash::AllCharacters, shards: shards.to_vec() })
    }

    fn place(map: Option<Arc<DirectoryMap>>) -> ListingPlace {
        let mut place = ListingPlace::default();
        place.ask(0, map);
        place
    }

    #[test]
    fn a_listing_goes_on_where_names_have_gone() {
        let mut place = place(None);
        assert_eq!(place.next(0), Next::Directory(0));
        place.gave(0, (0, 500), None);
        assert_eq!((place.next(500), place.needed(), place.is_first()), (Next::Directory(500), u64::MAX, true));
        place.begin(Some(map()), 500, 1000).unwrap();
        assert_eq!(place.next(500), Next::Shards(map(), COOKIE_PARENT));
        place.ask(500, None);
        assert_eq!(place.next(500), Next::Shards(map(), COOKIE_PARENT), "the page was lost on its way");
        assert_eq!((place.next(1 << 53), place.needed()), (Next::Shards(map(), 1 << 53), 1000));
        place.begin(None, 1 << 53, 0).unwrap();
        assert_eq!(place.next(1 << 53), Next::Directory(COOKIE_PARENT));
        place.ask(0, Some(map()));
        assert_eq!((place.next(0), place.is_first()), (Next::Shards(map(), 0), true), "from the beginning");
        let begun = (0..PHASES_MAX).try_for_each(|_| place.begin(None, 7, 0));
        assert_eq!(begun, Err(FsError::Stale));
    }

    #[test]
    fn what_pages_have_shown_is_known() {
        let mut place = place(None);
        let shown = |place: &ListingPlace| place.phases[0].shown.get(&0).cloned().unwrap_or_default();
        place.gave(0, (0, 500), None);
        place.gave(0, (500, 700), None);
        assert_eq!(shown(&place), [(0, 700)]);
        place.gave(0, (600, 800), None);
        assert_eq!(shown(&place), [(0, 800)], "a part comes a second time");
        // Names up to 1000 have moved.
        place.gave(0, (800, 1200), Some(1000));
        place.gave(0, (1200, 1300), Some(1100));
        assert_eq!(shown(&place), [(0, 800), (1000, 1300)]);
        place.gave(0, (900, 1150), Some(1100));
        assert_eq!(shown(&place), [(0, 800), (1100, 1150)], "some of it has moved");
        assert!(place.has_gone() && place.gone() == 1100);
        // Pages that show no name change nothing.
        let mut dots = super::tests::place(None);
        dots.gave(0, (0, COOKIE_PARENT), Some(1000));
        assert_eq!(shown(&dots), []);
    }

    #[test]
    fn what_shards_have_not_shown_is_awaited() {
        let mut place = place(Some(map()));
        let shards = map().shards.clone();
        let back = |first, second| [(shards[0], first), (shards[1], second)];
        place.gave(0, (0, 1 << 20), None);
        place.gave(1, (0, 1 << 20), Some(5 << SHARD_INDEX_BITS));
        assert_eq!(place.phases[0].shown[&1], [(5, 1 << 20)]);
        place.begin(None, 9, 0).unwrap();
        assert_eq!(place.back(&back(0, 5 << SHARD_INDEX_BITS)), Back::All);
        assert_eq!(place.back(&back(0, 7)), Back::Await(shards[1]));
        assert_eq!(place.back(&[(shards[0], u64::MAX)]), Back::ShardsFirst, "of other shards");
        place.begin(Some(map()), 9, u64::MAX).unwrap();
        place.gave(1, (0, 1 << 20), None);
        place.forget_after(0, 3);
        assert!(place.phases[2].shown.is_empty(), "the page did not arrive");
        place.all_gone(1);
        assert_eq!(place.back(&back(0, u64::MAX - 1)), Back::Await(shards[1]));
    }

    #[test]
    fn names_are_shown_in_the_order_of_their_cookies() {
        let cookie = first_cookie(b"name", COOKIE_HASH_BITS);
        for (ranges, is_shown) in [
            (&[(0, cookie)][..], true),
            (&[(0, 5), (cookie - 1, cookie + 9)], true),
            (&[(0, cookie - 1), (cookie, u64::MAX)], false),
            (&[], false),
        ] {
            let mut place = place(None);
            place.phases[0].shown.insert(0, ranges.to_vec());
            assert!(!place.has_shown(b"name"), "it is being read");
            place.begin(None, 7, 0).unwrap();
            assert_eq!(place.has_shown(b"name"), is_shown, "{ranges:?}");
        }
        let mut place = place(Some(map()));
        let part = map().hash.shard(b"name", 2);
        place.gave(part, (0, u64::MAX), None);
        place.begin(None, 7, 0).unwrap();
        assert!(place.has_shown(b"name"));
        place.phases[0].shown = BTreeMap::from([(1 - part, vec![(0, u64::MAX)])]);
        assert!(!place.has_shown(b"name"), "another shard has shown its names");
    }
}
