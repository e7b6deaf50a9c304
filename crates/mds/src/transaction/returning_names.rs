//! Who has a name of a directory to which names go back from its shards
//! (docs/decisions/0065-directories-that-merge.md). Each shard has a place of its own: names up to
//! it are in the directory, all others in the shard. The MDT of the shard decides that; the
//! directory hears of it later, with the names, so it believes of some names that they are in the
//! shard, which knows better.
//!
//! As with names that move to shards, those that meet at one position in a shard are a group: as
//! long as some of a group have gone and others have not, all of them wait.

use rpc::message::session::feature;
use types::{DirectoryMap, FsError, FsResult, InodeNumber};

use super::Transaction;
use crate::tables::{
    COUNTERS, counter,
    entry::{COLLISIONS_MAX, Position},
    inode::{Inode, Striping},
};

impl Transaction<'_> {
    /// The position up to which names have gone back from a shard that gives them.
    pub fn gone_from(&self, shard: InodeNumber) -> FsResult<Position> {
        let stored = self.get(COUNTERS, &counter::split_key(shard))?;
        stored.map_or(Ok(Position::END), |value| counter::decode_number(&value).map(Position))
    }

    /// The position up to which names have come back to a directory from a shard.
    pub fn back_from(&self, directory: InodeNumber, shard: InodeNumber) -> FsResult<Position> {
        let stored = self.get(COUNTERS, &counter::return_key(directory, shard))?;
        stored.map_or(Ok(Position(0)), |value| counter::decode_number(&value).map(Position))
    }

    /// [`Transaction::has_name`] of a directory to which names go back, or of a shard of it.
    pub(super) fn has_returning_name(&self, directory: &Inode, name: &[u8]) -> FsResult<()> {
        let (number, (first, last)) = (directory.number(), Position::of(name).group());
        let map = directory.map();
        let place = match map.as_ref().and_then(|map| map.shard_of(name)) {
            Some(shard) => self.back_from(number, shard)?,
            None => self.gone_from(number)?,
        };
        let (is_back, is_in_shard) = (last <= place, first > place);
        match (map, directory.master()) {
            (Some(_), _) if is_back => self.may_be_made(number),
            (Some(map), _) if is_in_shard => self.is_striped(map),
            (None, _) if is_in_shard => self.may_be_made(number),
            (None, Some(master)) if is_back && self.context.knows(feature::MOVING_NAMES) => {
                self.is_striped(DirectoryMap { master, hash: Default::default(), shards: Vec::new() })
            }
            (None, Some(master)) if is_back => self.wait_for_peer(master.mdt()),
            // It has ended.
            (None, None) => Err(FsError::Stale),
            _ => self.wait_for_peer(self.mdt),
        }
    }

    fn may_be_made(&self, directory: InodeNumber) -> FsResult<()> {
        self.moving.set(Some(directory));
        Ok(())
    }

    /// The directory has room for one more name of this hash and shard, when all names are back:
    /// each shard may bring its part of those of one hash.
    pub(super) fn check_share(&self, directory: &Inode, name: &[u8]) -> FsResult<()> {
        let number = directory.number();
        let (hash, count, index) = match &directory.striping {
            Striping::Over(hash, shards) => (*hash, shards.len(), hash.shard(name, shards.len())),
            Striping::Shard(place) if place.has(name) => {
                (place.hash, usize::from(place.count), usize::from(place.index))
            }
            Striping::None | Striping::Shard(_) => return Err(FsError::Invalid),
        };
        let (position, first) = (Position::of(name), Position::of_name_in(number, name));
        let mut names = 0;
        self.visit_entries(number, Position(first.0 - 1), &mut |found| {
            let found_name = &found.target.name;
            let is_like_it = Position::of(found_name) == position && hash.shard(found_name, count) == index;
            names += u64::from(is_like_it);
            Ok(found.position.0 - first.0 < COLLISIONS_MAX)
        })?;
        if names < share_of_hash(count) { Ok(()) } else { Err(FsError::NoSpace) }
    }
}

/// How many names of one hash each of so many shards may bring back.
pub(crate) fn share_of_hash(shards: usize) -> u64 {
    COLLISIONS_MAX / (shards as u64).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_no_more_than_there_is_room() {
        for shards in 1..=COLLISIONS_MAX {
            let share = share_of_hash(shards as usize);
            assert!(share > 0 && share * shards <= COLLISIONS_MAX, "{shards}");
        }
    }
}
