//! The maps of striped directories (docs/decisions/0058-striped-directories.md): which shard has a
//! name. It is learned from the answer to the first request that names the directory itself. The
//! numbers of a directory and its shards are not used twice, so a map is true as long as its shards
//! exist. They may end, if the directory gets its names back or a power loss of its MDT takes back
//! that it got shards: then the map is forgotten.

use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicU64, Ordering},
};

use parking_lot::Mutex;
use rpc::message::MdtRequest;
use types::{Attributes, DirectoryMap, FsError, FsResult, InodeNumber, SetAttributes};

use crate::{name_places::NamePlaces, recently_used::RecentlyUsed};

/// Maps that are kept; of more, some are asked for again.
const MAPS_MAX: usize = 4096;
/// Shards of which the last known attributes are kept.
const SHARDS_SEEN_MAX: usize = 65536;

/// See the module documentation.
#[derive(Debug)]
pub(crate) struct DirectoryMaps {
    /// How many maps were learned; most clients never see one.
    learned: AtomicU64,
    maps: Mutex<RecentlyUsed<Arc<DirectoryMap>>>,
    /// Maps were given up because there were too many.
    gave_up: AtomicBool,
    /// Attributes of shards as they were last seen.
    seen: Mutex<RecentlyUsed<Attributes>>,
}

impl Default for DirectoryMaps {
    fn default() -> Self {
        Self {
            learned: AtomicU64::new(0),
            maps: Mutex::new(RecentlyUsed::new(MAPS_MAX)),
            gave_up: AtomicBool::new(false),
            seen: Mutex::new(RecentlyUsed::new(SHARDS_SEEN_MAX)),
        }
    }
}

impl DirectoryMaps {
    /// How many maps have been learned so far. To be asked before a request is sent: if its answer
    /// is a map that is known by then, and this has not changed, the map was known before.
    pub fn learned(&self) -> u64 {
        self.learned.load(Ordering::Relaxed)
    }

    /// Keeps what an MDT said of a directory; false if that was known already.
    pub fn learn(&self, map: DirectoryMap) -> FsResult<bool> {
        if !map.is_possible() {
            return Err(FsError::Invalid);
        }
        let mut maps = self.maps.lock();
        if maps.get(map.master).is_some_and(|known| **known == map) {
            return Ok(false);
        }
        if maps.insert(map.master, Arc::new(map)) {
            self.gave_up.store(true, Ordering::Relaxed);
        }
        self.learned.fetch_add(1, Ordering::Relaxed);
        Ok(true)
    }

    /// The directory has not got this shard any more.
    pub fn forget_shard(&self, directory: InodeNumber, shard: InodeNumber) {
        let mut maps = self.maps.lock();
        if maps.get(directory).is_some_and(|map| map.shards.contains(&shard)) {
            maps.remove(directory);
        }
    }

    /// Whether any directory is known to be striped.
    pub fn is_used(&self) -> bool {
        self.learned() > 0
    }

    /// Whether a map may have been learned that is not known any more.
    pub fn may_lack(&self, directory: InodeNumber) -> bool {
        self.gave_up.load(Ordering::Relaxed) && self.get(directory).is_none()
    }

    /// The map of a directory, if it is known to be striped.
    pub fn get(&self, directory: InodeNumber) -> Option<Arc<DirectoryMap>> {
        if !self.is_used() {
            return None;
        }
        self.maps.lock().get(directory).cloned()
    }

    /// The directory to be asked for a name: a shard, if this one is known to be striped.
    pub fn place(&self, directory: InodeNumber, name: &[u8]) -> InodeNumber {
        let is_dots = name == b"." || name == b"..";
        let shard = || self.get(directory).and_then(|map| map.shard_of(name));
        if is_dots { directory } else { shard().unwrap_or(directory) }
    }

    /// Lets a request name shards instead of striped directories that are known; `places`: where
    /// its names are, if they have not moved there. Returns the inode of which the MDT is to be
    /// asked; `at`: that of the request as it is.
    pub fn place_request(&self, at: InodeNumber, request: &mut MdtRequest, places: &NamePlaces) -> InodeNumber {
        if !self.is_used() {
            return at;
        }
        let (parent, name) = match request {
            MdtRequest::Lookup(_, lookup) => (&mut lookup.parent, &lookup.name),
            MdtRequest::Create(_, create) => (&mut create.parent, &create.name),
            MdtRequest::Unlink(_, unlink) => (&mut unlink.parent, &unlink.name),
            MdtRequest::Link(_, link) => (&mut link.parent, &link.name),
            MdtRequest::MakeDirectory(_, make) => (&mut make.parent, &make.name),
            MdtRequest::Rename(_, rename) => {
                let old = places.of_old(self, rename.parent, &rename.name);
                let new = places.of_new(self, rename.new_parent, &rename.new_name);
                rename.same_directory |= rename.parent == rename.new_parent && old != new;
                if old.mdt() != rename.parent.mdt() {
                    // That of another MDT.
                    rename.mdt_era = None;
                }
                (rename.parent, rename.new_parent) = (old, new);
                return new;
            }
            _ => return at,
        };
        *parent = places.of_new(self, *parent, name);
        *parent
    }

    /// These are the attributes of a shard.
    pub fn saw(&self, shard: Attributes) {
        self.seen.lock().insert(shard.inode, shard);
    }

    /// This client has changed attributes of a directory, which are these now, and with them those
    /// of its shards: earlier times are not to be shown again.
    pub fn changed(&self, map: &DirectoryMap, changes: &SetAttributes, now: &Attributes) {
        for shard in &map.shards {
            let Some(mut seen) = self.seen(*shard) else { continue };
            if changes.atime.is_some() {
                seen.atime = now.atime;
            }
            if changes.mtime.is_some() {
                seen.mtime = now.mtime;
            }
            self.saw(seen);
        }
    }

    /// The attributes of a shard as they were last seen.
    pub fn seen(&self, shard: InodeNumber) -> Option<Attributes> {
        self.seen.lock().get(shard).copied()
    }
}

/// What stat shows of a striped directory: its own attributes with those of its shards.
pub(crate) fn merged(mut directory: Attributes, shards: &[Attributes]) -> Attributes {
    if shards.is_empty() {
        return directory;
    }
    directory.size = shards.iter().fold(0, |sum, shard| sum.saturating_add(shard.size));
    directory.blocks = shards.iter().fold(0, |sum, shard| sum.saturating_add(shard.blocks));
    for shard in shards {
        directory.links = directory.links.saturating_add(shard.links.saturating_sub(2));
        directory.atime = directory.atime.max(shard.atime);
        directory.mtime = directory.mtime.max(shard.mtime);
        directory.ctime = directory.ctime.max(shard.ctime);
    }
    directory
}

#[cfg(test)]
mod tests {
    use rpc::message::mdt::{Lookup, Rename, RenameMode, SourceData};
    use types::{Credentials, FileKind, MdtIndex, NameHash, Timestamp};

    use super::*;

    fn map() -> DirectoryMap {
        let shards = [0, 1].map(|mdt| InodeNumber::new(MdtIndex(mdt), 300).as_shard());
        DirectoryMap { master: InodeNumber(299), hash: NameHash::AllCharacters, shards: shards.to_vec() }
    }

    #[test]
    fn requests_name_the_shard_that_has_the_name() {
        let (maps, map) = (DirectoryMaps::default(), map());
        let lookup = |name: &[u8]| {
            let mut request =
                MdtRequest::Lookup(Credentials::root(), Lookup { parent: map.master, name: name.to_vec() });
            let at = maps.place_request(map.master, &mut request, &NamePlaces::default());
            let MdtRequest::Lookup(_, placed) = request else { panic!("it stays a lookup") };
            assert_eq!(at, placed.parent);
            at
        };
        assert_eq!(lookup(&[2]), map.master, "nothing is known yet");
        assert_eq!((maps.learn(map.clone()), maps.learn(map.clone())), (Ok(true), Ok(false)));
        assert_eq!([lookup(&[2]), lookup(&[3]), lookup(b"..")], [map.shards[0], map.shards[1], map.master]);
        let rename = |name: u8, new_name: u8| {
            let rename = Rename {
                parent: map.master,
                name: vec![name],
                new_parent: map.master,
                new_name: vec![new_name],
                mode: RenameMode::Replace,
                source_data: SourceData::AsIs,
                mdt_era: Some(7),
                same_directory: false,
            };
            let mut request = MdtRequest::Rename(Credentials::root(), rename);
            let at = maps.place_request(map.master, &mut request, &NamePlaces::default());
            let MdtRequest::Rename(_, placed) = request else { panic!("it stays a rename") };
            assert_eq!(at, placed.new_parent);
            (placed.parent, placed.new_parent, placed.same_directory)
        };
        assert_eq!(rename(2, 4), (map.shards[0], map.shards[0], false));
        assert_eq!(rename(2, 5), (map.shards[0], map.shards[1], true));
    }

    #[test]
    fn impossible_maps_are_refused() {
        let maps = DirectoryMaps::default();
        let impossible = DirectoryMap { shards: Vec::new(), ..map() };
        assert_eq!(maps.learn(impossible), Err(FsError::Invalid));
        assert_eq!(maps.get(map().master), None);
    }

    #[test]
    fn attributes_of_shards_are_merged() {
        let of = |inode, links, seconds| Attributes {
            links,
            size: 4096,
            blocks: 8,
            mtime: Timestamp { seconds, nanoseconds: 0 },
            ..Attributes::zeroed(InodeNumber(inode), FileKind::Directory)
        };
        let found = merged(of(9, 2, 5), &[of(1, 3, 4), of(2, 4, 6)]);
        assert_eq!((found.inode, found.links, found.size, found.blocks), (InodeNumber(9), 5, 8192, 16));
        assert_eq!(found.mtime.seconds, 6);
        assert_eq!(merged(of(9, 2, 5), &[]), of(9, 2, 5));
    }
}
