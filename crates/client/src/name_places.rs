//! Where a request asks for its names while the names of a directory move to its shards
//! (docs/decisions/0062-directories-that-split.md): a shard to which a name belongs says that it is
//! still in the directory, or the directory that it has moved.

use types::{DirectoryMap, InodeNumber};

use crate::directory_maps::DirectoryMaps;

/// See the module documentation. `None`: by the map of its directory.
#[derive(Debug, Default)]
pub(crate) struct NamePlaces {
    /// The directory that has the only name of the request, or the new one.
    pub new: Option<InodeNumber>,
    /// The directory that has the old name of a rename.
    pub old: Option<InodeNumber>,
    /// The last shard that was asked and did not exist.
    ended: Option<InodeNumber>,
}

impl NamePlaces {
    /// Of a rename whose old name is in this directory.
    pub fn of_old_in(old: InodeNumber) -> Self {
        Self { old: Some(old), ..Self::default() }
    }

    /// Where the only name of a request is, or the new one.
    pub fn of_new(&self, maps: &DirectoryMaps, parent: InodeNumber, name: &[u8]) -> InodeNumber {
        self.new.unwrap_or_else(|| maps.place(parent, name))
    }

    /// Where the old name of a rename is.
    pub fn of_old(&self, maps: &DirectoryMaps, parent: InodeNumber, name: &[u8]) -> InodeNumber {
        self.old.unwrap_or_else(|| maps.place(parent, name))
    }

    /// A shard of the directory was asked that does not exist: it has ended, and its names are in
    /// the directory. Whether this is to be asked; not if it has sent the request to the same shard
    /// again.
    pub fn has_ended(&mut self, maps: &DirectoryMaps, directory: InodeNumber, shard: InodeNumber) -> bool {
        maps.forget_shard(directory, shard);
        if directory == shard || self.ended.replace(shard) == Some(shard) {
            return false;
        }
        self.new = Some(directory);
        true
    }

    /// The request was answered with this map: whether it is to be sent elsewhere for that. If not,
    /// it was sent where maps say.
    pub fn turn(&mut self, map: &DirectoryMap) -> bool {
        let is_in_directory = map.shards.is_empty();
        if !is_in_directory && self.new.or(self.old).is_none() {
            return false;
        }
        self.new = is_in_directory.then_some(map.master);
        self.old = self.old.filter(|_| is_in_directory);
        true
    }
}

#[cfg(test)]
mod tests {
    use types::NameHash;

    use super::*;

    #[test]
    fn a_request_is_sent_to_the_directory_and_back() {
        let (master, hash) = (InodeNumber(9), NameHash::Crush);
        let whole = DirectoryMap { master, hash, shards: vec![InodeNumber(10).as_shard()] };
        let still_there = DirectoryMap { shards: Vec::new(), ..whole.clone() };
        let mut places = NamePlaces::default();
        assert!(!places.turn(&whole), "it was sent to the directory");
        assert!(places.turn(&still_there));
        assert_eq!((places.new, places.old), (Some(master), None));
        places.old = Some(master);
        assert!(places.turn(&still_there));
        assert_eq!((places.new, places.old), (Some(master), Some(master)));
        assert!(places.turn(&whole));
        assert_eq!((places.new, places.old), (None, None));
    }

    #[test]
    fn a_shard_that_has_ended_has_its_names_in_the_directory() {
        let (master, hash, shard) = (InodeNumber(9), NameHash::Crush, InodeNumber(10).as_shard());
        let map = DirectoryMap { master, hash, shards: vec![shard] };
        let maps = DirectoryMaps::default();
        maps.learn(map.clone()).unwrap();
        let mut places = NamePlaces::default();
        assert_eq!(places.of_new(&maps, master, b"name"), shard);
        assert!(places.has_ended(&maps, master, shard));
        assert_eq!((maps.get(master), places.of_new(&maps, master, b"name")), (None, master));
        // Another request learns a map of before.
        maps.learn(map.clone()).unwrap();
        assert_eq!(places.of_new(&maps, master, b"name"), master);
        // The directory itself says that it has this shard.
        assert!(places.turn(&map));
        assert_eq!(places.of_new(&maps, master, b"name"), shard);
        assert!(!places.has_ended(&maps, master, shard), "it is missing");
        // It gets another one, which ends, too.
        let other = InodeNumber(11).as_shard();
        assert!(places.has_ended(&maps, master, other));
        assert!(!NamePlaces::default().has_ended(&maps, other, other), "the shard itself was asked for");
    }
}
