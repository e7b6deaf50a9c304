//! Where a new directory is: on one of the MDTs, or striped over some of them; and where it goes
//! later.

use std::sync::Arc;

use client::FileSystem;
use parking_lot::Mutex;
use rpc::message::mdt_peer::MakeDirectory;
use rt::Entropy;
use types::{Credentials, FsResult, InodeNumber, MdtIndex, NameHash, Stripes};

use crate::{Random, move_counts::MoveCounts};

/// Directories in a million that are striped.
const STRIPED: u32 = 400_000;
/// Of a million that are to split or merge, those that merge.
const MERGED: u32 = 400_000;
/// Of a million that split, those of which all names go to one other MDT, as those of a large
/// directory do before it moves.
const ALONE: u32 = 300_000;
/// Of a million that get stripes, those with more on MDTs that have one already.
const OVERSTRIPED: u32 = 300_000;
const HASHES: [NameHash; 4] = [NameHash::Fnv1a64, NameHash::AllCharacters, NameHash::Crush, NameHash::Crush2];

/// The MDTs of a cluster, and what came of moves between them. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Places {
    mdts: u16,
    counts: Arc<Mutex<MoveCounts>>,
}

impl Places {
    /// On so many MDTs.
    pub fn new(mdts: u16) -> Self {
        Self { mdts, counts: Arc::default() }
    }

    /// Whether there is more than one.
    pub fn are_several(&self) -> bool {
        self.mdts > 1
    }

    /// What came of moves so far.
    pub fn counts(&self) -> MoveCounts {
        *self.counts.lock()
    }

    fn mdt(&self, random: &Random) -> MdtIndex {
        MdtIndex(random.below(u64::from(self.mdts)) as u16)
    }

    /// The MDT of a directory, and its stripes: none, or on some of the MDTs in any order, perhaps
    /// several on one. One shard alone is possible, too.
    pub fn draw(&self, random: &Random) -> (MdtIndex, Stripes) {
        let mdt = self.mdt(random);
        if !self.are_several() || !random.happens(STRIPED) {
            return (mdt, Stripes::default());
        }
        (mdt, self.stripes(random, 1))
    }

    /// Stripes on so many of the MDTs, at least, in any order; some have further ones.
    fn stripes(&self, random: &Random, at_least: u64) -> Stripes {
        let mut left: Vec<MdtIndex> = (0..self.mdts).map(MdtIndex).collect();
        let count = at_least + random.below(u64::from(self.mdts) + 1 - at_least);
        let take = |_| left.remove(random.below(left.len() as u64) as usize);
        let mut mdts: Vec<MdtIndex> = (0..count).map(take).collect();
        if random.happens(OVERSTRIPED) {
            let further = 1 + random.below(u64::from(self.mdts));
            mdts.extend((0..further).map(|_| self.mdt(random)));
        }
        Stripes { hash: *random.pick(&HASHES), mdts }
    }

    /// The stripes that a directory on this MDT is to have: none, those over several MDTs, or one
    /// on another MDT.
    fn other_stripes(&self, random: &Random, mdt: MdtIndex) -> Stripes {
        if random.happens(MERGED) {
            return Stripes { hash: NameHash::default(), mdts: vec![mdt] };
        }
        if random.happens(ALONE) {
            let others: Vec<MdtIndex> = (0..self.mdts).map(MdtIndex).filter(|other| *other != mdt).collect();
            return Stripes { hash: *random.pick(&HASHES), mdts: vec![*random.pick(&others)] };
        }
        self.stripes(random, 2)
    }

    /// Gives a directory drawn stripes, unless it is striped; or ends those that it has.
    pub async fn split(&self, file_system: &FileSystem, directory: InodeNumber, random: &Random) -> FsResult<()> {
        let stripes = self.other_stripes(random, directory.mdt());
        let outcome = file_system.split_directory(&Credentials::root(), directory, stripes).await;
        self.counts.lock().note_split(outcome)
    }

    /// Moves an inode to a drawn MDT, unless it has to stay where it is: it is in use, more than
    /// one batch of a small journal can take, or two names in it lead to one file on a further MDT.
    pub async fn move_inode(&self, file_system: &FileSystem, inode: InodeNumber, random: &Random) -> FsResult<()> {
        let to = self.mdt(random);
        let outcome = file_system.move_inode(&Credentials::root(), inode, to).await;
        self.counts.lock().note_move(inode.mdt() == to, outcome)
    }

    /// A request for a directory with all permissions of its owner, at a drawn place.
    pub fn new_directory(&self, random: &Random, (parent, name): (InodeNumber, &str)) -> MakeDirectory {
        let (mdt, stripes) = self.draw(random);
        MakeDirectory { parent, name: name.as_bytes().to_vec(), mode: 0o755, umask: 0, mdt, stripes }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn all_places_are_drawn_and_some_mdts_have_several_shards() {
        let (random, places) = (Random::for_purpose(1, "places"), Places::new(3));
        let drawn: Vec<(MdtIndex, Stripes)> = (0..200).map(|_| places.draw(&random)).collect();
        let mdts: BTreeSet<u16> = drawn.iter().map(|(mdt, _)| mdt.0).collect();
        assert_eq!(mdts, BTreeSet::from([0, 1, 2]));
        let counts = |is_overstriped| {
            let like_it = drawn.iter().filter(|(_, stripes)| stripes.is_overstriped() == is_overstriped);
            like_it.map(|(_, stripes)| stripes.mdts.len()).collect::<BTreeSet<usize>>()
        };
        assert_eq!(counts(false), BTreeSet::from([0, 1, 2, 3]));
        assert_eq!(counts(true), BTreeSet::from([2, 3, 4, 5, 6]));
    }

    #[test]
    fn directories_split_over_several_mdts_or_one_other_or_merge() {
        let (random, places) = (Random::for_purpose(2, "places"), Places::new(3));
        let drawn: Vec<Stripes> = (0..200).map(|_| places.other_stripes(&random, MdtIndex(1))).collect();
        let alone: BTreeSet<u16> =
            drawn.iter().filter(|stripes| stripes.mdts.len() == 1).map(|stripes| stripes.mdts[0].0).collect();
        assert_eq!(alone, BTreeSet::from([0, 1, 2]));
        let plain = drawn.iter().filter(|stripes| !stripes.is_overstriped());
        assert_eq!(plain.map(|stripes| stripes.mdts.len()).collect::<BTreeSet<_>>(), BTreeSet::from([1, 2, 3]));
        assert!(drawn.iter().any(Stripes::is_overstriped));
    }
}
