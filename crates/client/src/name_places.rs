//! Where a request asks for its names while the names of a directory move to its shards
//! (docs/decisions/0062-directories-that-split.md): a shard to which a name belongs says that it is
//! still in the directory, or the directory that it has moved.

use types::{DirectoryMap, InodeNumber};

/// See the module documentation. `None`: by the map of its directory.
#[derive(Debug, Default)]
pub(crate) struct NamePlaces {
    /// The directory that has the only name of the request, or the new one.
    pub new: Option<InodeNumber>,
    /// The directory that has the old name of a rename.
    pub old: Option<InodeNumber>,
}

impl NamePlaces {
    /// The request was answered with this map: whether it is to be sent elsewhere for that. If not,
    /// it was sent where maps say.
    pub fn turn(&mut self, map: &DirectoryMap) -> bool {
        let is_in_directory = map.shards.is_empty();
        if !is_in_directory && self.new.or(self.old).is_none() {
            return false;
        }
        *self = Self { new: is_in_directory.then_some(map.master), old: self.old.filter(|_| is_in_directory) };
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
}
