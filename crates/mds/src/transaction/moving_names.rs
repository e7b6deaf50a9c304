//! Who has a name of a directory that gets shards, while its names move
//! (docs/decisions/0062-directories-that-split.md). They move in the order of their positions in
//! the directory. The place up to which they have moved decides: names up to it are in the shards,
//! all others in the directory. A shard on another MDT learns of the place later, with the names,
//! so it believes of some names that they are in the directory, which knows better.
//!
//! Names that meet at one position in a shard are a group: as long as some of a group have moved
//! and others have not, all of them wait.
//!
//! For names that go back from shards see [`super::returning_names`].

use rpc::message::session::feature;
use types::{DirectoryMap, FsError, FsResult, InodeNumber};

use super::Transaction;
use crate::tables::{
    COUNTERS, counter,
    entry::{COLLISIONS_MAX, Position},
    inode::{Inode, Striping},
};

impl Transaction<'_> {
    /// The position up to which names of this directory have moved, or have come to this shard.
    /// [`Position::END`]: all. 0: nobody uses any until then.
    pub fn moved_to(&self, directory: &Inode) -> FsResult<Position> {
        match directory.striping {
            _ if !directory.names_move() => Ok(Position::END),
            Striping::Shard(_) if directory.names_return() => self.gone_from(directory.number()),
            Striping::None | Striping::Shard(_) => Ok(Position(directory.map_version)),
            Striping::Over(..) => {
                let stored = self.get(COUNTERS, &counter::split_key(directory.number()))?;
                stored.map_or(Ok(Position(0)), |value| counter::decode_number(&value).map(Position))
            }
        }
    }

    /// Fails if this directory, or shard, is not the one that has a name, or would have it; with
    /// what is no answer: its client is told the map ([`Transaction::take_striped`]), or that the
    /// name is still in the directory itself: a map without shards.
    pub fn has_name(&self, directory: &Inode, name: &[u8]) -> FsResult<()> {
        if directory.names_return() {
            return self.has_returning_name(directory, name);
        }
        let place = match &directory.striping {
            Striping::None => return Ok(()),
            Striping::Shard(_) if !directory.names_move() => return Ok(()),
            Striping::Over(..) | Striping::Shard(_) => self.moved_to(directory)?,
        };
        let (first, last) = Position::of(name).group();
        let has_moved = last <= place;
        match (directory.map(), directory.master()) {
            (Some(map), _) if has_moved => self.is_striped(map),
            (Some(_), _) if first > place && place > Position(0) => {
                self.moving.set(Some(directory.number()));
                Ok(())
            }
            (None, None) => Ok(()),
            (None, Some(_)) if has_moved => Ok(()),
            (None, Some(master)) if self.context.knows(feature::MOVING_NAMES) => {
                self.is_striped(DirectoryMap { master, hash: Default::default(), shards: Vec::new() })
            }
            (None, Some(master)) => self.wait_for_peer(master.mdt()),
            _ => self.wait_for_peer(self.mdt),
        }
    }

    /// The same of the old name of a rename. `CrossDevice` if it is still in the directory itself:
    /// what its client is told otherwise is about the new name.
    pub fn has_old_name(&self, directory: &Inode, name: &[u8]) -> FsResult<()> {
        match self.has_name(directory, name) {
            Err(error) if directory.master().is_some() => Err(self.not_here(error)),
            outcome => outcome,
        }
    }

    /// The same of an old name that the MDT of the new one asks for. `CrossDevice` if it is not
    /// here.
    pub fn has_name_for_peer(&self, directory: &Inode, name: &[u8]) -> FsResult<()> {
        self.has_name(directory, name).map_err(|error| self.not_here(error))
    }

    fn not_here(&self, error: FsError) -> FsError {
        if self.take_striped().is_some() { FsError::CrossDevice } else { error }
    }

    pub(super) fn is_striped(&self, map: DirectoryMap) -> FsResult<()> {
        self.striped.replace(Some(map));
        Err(FsError::Busy)
    }

    /// The map of the striped directory at which the operation ended.
    pub fn take_striped(&self) -> Option<DirectoryMap> {
        self.striped.take()
    }

    /// Fails for a directory that has its names in shards.
    pub fn has_own_names(&self, directory: &Inode) -> FsResult<()> {
        directory.map().map_or(Ok(()), |map| self.is_striped(map))
    }

    /// Waits if names are still to come to this shard: until then it is not known which it has.
    pub fn has_all_names(&self, directory: &Inode) -> FsResult<()> {
        match directory.master() {
            Some(master) if directory.names_move() => self.wait_for_peer(master.mdt()),
            _ => Ok(()),
        }
    }

    /// A shard has room for one more name of its group, when they have moved.
    pub(super) fn check_group(&self, directory: InodeNumber, name: &[u8]) -> FsResult<()> {
        let (first, last) = Position::of(name).group();
        let mut names = 0;
        self.visit_entries(directory, Position(first.0.saturating_sub(1)), &mut |found| {
            names += u64::from(found.position <= last);
            Ok(found.position <= last && names < COLLISIONS_MAX)
        })?;
        if names < COLLISIONS_MAX { Ok(()) } else { Err(FsError::NoSpace) }
    }
}

#[cfg(test)]
mod tests {
    use types::{FileKind, FsError};

    use super::*;
    use crate::{
        tables::{
            ENTRIES,
            entry::{EntryRecord, NamedInode},
        },
        transaction::entries::tests::with_transaction,
    };

    #[tokio::test]
    async fn no_more_names_are_made_than_a_shard_has_room_for() {
        const DIRECTORY: InodeNumber = InodeNumber(9);
        with_transaction(|txn| {
            let (first, last) = Position::of(b"name").group();
            for number in 0..COLLISIONS_MAX {
                assert_eq!(txn.check_group(DIRECTORY, b"name"), Ok(()), "{number}");
                let name = format!("other{number}").into_bytes();
                let target = NamedInode { name, inode: InodeNumber(number), kind: FileKind::Regular };
                let record = EntryRecord { more: false, target: Some(target) };
                let position = Position(if number % 2 == 0 { first.0 + number } else { last.0 - number });
                txn.put(ENTRIES, EntryRecord::key(DIRECTORY, position), record.encode());
            }
            assert_eq!(txn.check_group(DIRECTORY, b"name"), Err(FsError::NoSpace));
            assert_eq!(txn.check_group(DIRECTORY, b"another"), Ok(()));
        })
        .await;
    }
}
