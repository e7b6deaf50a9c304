//! Where a new directory is: on one of the MDTs, or striped over some of them; and where it goes
//! later.

use client::FileSystem;
use rpc::message::mdt_peer::MakeDirectory;
use rt::Entropy;
use types::{Credentials, FsError, FsResult, InodeNumber, MdtIndex, NameHash, Stripes};

use crate::Random;

/// Directories in a million that are striped.
const STRIPED: u32 = 400_000;
/// Of a million that are to split or merge, those that merge.
const MERGED: u32 = 400_000;
const HASHES: [NameHash; 4] = [NameHash::Fnv1a64, NameHash::AllCharacters, NameHash::Crush, NameHash::Crush2];

/// The MDT of a directory, and its stripes: none, or on some of the MDTs in any order. One shard
/// alone is possible, too.
pub fn draw(random: &Random, mdts: u16) -> (MdtIndex, Stripes) {
    let mdt = MdtIndex(random.below(u64::from(mdts)) as u16);
    if mdts == 1 || !random.happens(STRIPED) {
        return (mdt, Stripes::default());
    }
    (mdt, stripes(random, mdts, 1))
}

/// Stripes on so many of the MDTs, at least, in any order.
fn stripes(random: &Random, mdts: u16, at_least: u64) -> Stripes {
    let mut left: Vec<MdtIndex> = (0..mdts).map(MdtIndex).collect();
    let count = at_least + random.below(u64::from(mdts) + 1 - at_least);
    let take = |_| left.remove(random.below(left.len() as u64) as usize);
    let mdts = (0..count).map(take).collect();
    Stripes { hash: *random.pick(&HASHES), mdts }
}

/// Gives a directory drawn stripes over several MDTs, unless it is striped; or ends those that it
/// has.
pub async fn split(file_system: &FileSystem, directory: InodeNumber, random: &Random, mdts: u16) -> FsResult<()> {
    let stripes = match random.happens(MERGED) {
        true => Stripes { hash: NameHash::default(), mdts: vec![directory.mdt()] },
        false => stripes(random, mdts, 2),
    };
    match file_system.split_directory(&Credentials::root(), directory, stripes).await {
        Err(FsError::NotSupported) => Ok(()),
        outcome => outcome,
    }
}

/// Moves an inode to a drawn MDT, unless it has to stay where it is: it is in use, more than one
/// batch of a small journal can take, or two names in it lead to one file on a further MDT.
pub async fn move_inode(file_system: &FileSystem, inode: InodeNumber, random: &Random, mdts: u16) -> FsResult<()> {
    let to = MdtIndex(random.below(u64::from(mdts)) as u16);
    match file_system.move_inode(&Credentials::root(), inode, to).await {
        Err(FsError::Busy | FsError::TooBig | FsError::NotSupported) => Ok(()),
        outcome => outcome,
    }
}

/// A request for a directory with all permissions of its owner, at a drawn place.
pub fn new_directory(random: &Random, mdts: u16, (parent, name): (InodeNumber, &str)) -> MakeDirectory {
    let (mdt, stripes) = draw(random, mdts);
    MakeDirectory { parent, name: name.as_bytes().to_vec(), mode: 0o755, umask: 0, mdt, stripes }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn all_places_are_drawn_and_no_mdt_has_two_shards() {
        let random = Random::for_purpose(1, "places");
        let drawn: Vec<(MdtIndex, Stripes)> = (0..200).map(|_| draw(&random, 3)).collect();
        let mdts: BTreeSet<u16> = drawn.iter().map(|(mdt, _)| mdt.0).collect();
        assert_eq!(mdts, BTreeSet::from([0, 1, 2]));
        let counts: BTreeSet<usize> = drawn.iter().map(|(_, stripes)| stripes.mdts.len()).collect();
        assert_eq!(counts, BTreeSet::from([0, 1, 2, 3]));
        for (_, stripes) in drawn {
            let distinct: BTreeSet<u16> = stripes.mdts.iter().map(|mdt| mdt.0).collect();
            assert_eq!(distinct.len(), stripes.mdts.len());
        }
    }
}
