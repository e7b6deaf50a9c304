//! What the caches above clients serve is what the MDTs have, put together: the attributes of a
//! striped directory are those of its shards, too, and its names are in them.
//!
//! Holds at every moment, as [`super::served`]. Nothing is said of what an MDT has that is down, or
//! that has ever lost power, nor of inodes that are gone.

use client::Served;
use mds::tables::inode::Inode;
use types::{Attributes, InodeNumber, Timestamp};

use super::{MdtState, Snapshot};
use crate::workload::Verdict;

/// Compares what these hosts serve with all MDTs.
pub(super) fn check(served: &[(String, Served)], mdts: &[Snapshot]) -> Verdict {
    let known = Known(mdts);
    for (host, served) in served {
        for shown in &served.attributes {
            let Some(found) = known.attributes(shown.inode) else { continue };
            let [shown, found] = [shown, &found].map(|each| Attributes { atime: Timestamp::default(), ..*each });
            if shown != found {
                return Err(format!("{host} serves {shown:?}, it is {found:?}"));
            }
        }
        for (parent, name, leads) in &served.names {
            let Some(places) = known.places(*parent) else { continue };
            let found: Vec<_> = places.into_iter().filter_map(|(mdt, place)| mdt.name(place, name)).collect();
            if found.first().copied() != *leads {
                let name = String::from_utf8_lossy(name);
                return Err(format!("{host} serves that {name} in {parent} is {leads:?}, it is {found:?}"));
            }
        }
    }
    Ok(())
}

/// The MDTs that can be compared with.
struct Known<'s>(&'s [Snapshot]);

impl<'s> Known<'s> {
    fn mdt_of(&self, inode: InodeNumber) -> Option<&'s MdtState> {
        let snapshot = self.0.iter().find(|snapshot| snapshot.index == inode.mdt())?;
        snapshot.mdt.as_ref().filter(|_| !snapshot.mdt_lost_power())
    }

    fn inode(&self, inode: InodeNumber) -> Option<&'s Inode> {
        self.mdt_of(inode)?.inodes.get(&inode)
    }

    /// Attributes as stat shows them.
    fn attributes(&self, inode: InodeNumber) -> Option<Attributes> {
        let inode = self.inode(inode)?;
        let mut shown = inode.attributes;
        let Some(map) = inode.map() else { return Some(shown) };
        (shown.size, shown.blocks) = (0, 0);
        for shard in &map.shards {
            let shard = self.inode(*shard)?.attributes;
            shown.size += shard.size;
            shown.blocks += shard.blocks;
            shown.links += shard.links - 2;
            shown.mtime = shown.mtime.max(shard.mtime);
            shown.ctime = shown.ctime.max(shard.ctime);
        }
        Some(shown)
    }

    /// Where names of a directory are: in itself, as long as they move, and in its shards.
    fn places(&self, directory: InodeNumber) -> Option<Vec<(&'s MdtState, InodeNumber)>> {
        let shards = self.inode(directory)?.map().map_or(Vec::new(), |map| map.shards);
        let places = std::iter::once(directory).chain(shards);
        places.map(|place| Some((self.mdt_of(place)?, place))).collect()
    }
}

impl MdtState {
    fn name(&self, place: InodeNumber, name: &[u8]) -> Option<InodeNumber> {
        self.names.get(&(place, name.to_vec())).copied()
    }
}

#[cfg(test)]
mod tests {
    use mds::tables::inode::{InodeData, Striping};
    use types::{FileKind, MdtIndex, NameHash};

    use super::*;
    use crate::{
        invariants::sample::{CLIENT, FILE, inode, mdt, sound},
        server::Role,
    };

    const MASTER: InodeNumber = InodeNumber(0x102);

    fn shard() -> InodeNumber {
        InodeNumber::new(MdtIndex(1), 0x300).as_shard()
    }

    fn directory(number: InodeNumber, model: &Inode) -> Inode {
        let attributes = Attributes { links: 2, size: 5, ..Attributes::zeroed(number, FileKind::Directory) };
        Inode { attributes, data: InodeData::Directory(None), ..model.clone() }
    }

    /// A striped directory, whose only shard is on another MDT, with a file.
    fn striped() -> [Snapshot; 2] {
        let mut first = sound();
        let model = inode(&mut first, FILE).clone();
        let mut master = directory(MASTER, &model);
        master.striping = Striping::Over(NameHash::Crush, vec![shard()]);
        mdt(&mut first).inodes.insert(MASTER, master);
        let mut second = Snapshot { index: MdtIndex(1), ..sound() };
        let mut of_names = directory(shard(), &model);
        of_names.attributes.links = 3;
        of_names.attributes.size = 7;
        mdt(&mut second).inodes = [(shard(), of_names)].into();
        mdt(&mut second).names = [((shard(), b"file".to_vec()), FILE)].into();
        [first, second]
    }

    fn serving() -> Served {
        let shown = Attributes { links: 3, size: 7, ..Attributes::zeroed(MASTER, FileKind::Directory) };
        let names = vec![(MASTER, b"file".to_vec(), Some(FILE))];
        Served { client: CLIENT, attributes: vec![shown], names, ..Served::default() }
    }

    fn check_one(served: Served, mdts: &[Snapshot]) -> Verdict {
        check(&[("above".to_owned(), served)], mdts)
    }

    #[test]
    fn a_striped_directory_is_what_its_shards_are() {
        let mut mdts = striped();
        assert_eq!(check_one(serving(), &mdts), Ok(()));
        inode(&mut mdts[1], shard()).attributes.size += 1;
        assert!(check_one(serving(), &mdts).unwrap_err().starts_with("above serves Attributes"));
        mdts[1].lost_power = [Role::Mds(1)].into();
        assert_eq!(check_one(serving(), &mdts), Ok(()), "it may have been lost");
    }

    #[test]
    fn its_names_are_in_them() {
        let mut mdts = striped();
        mdt(&mut mdts[1]).names.clear();
        assert!(check_one(serving(), &mdts).unwrap_err().contains("serves that file in"));
        mdt(&mut mdts[0]).names = [((MASTER, b"file".to_vec()), FILE)].into();
        assert_eq!(check_one(serving(), &mdts), Ok(()), "it is on its way");
        mdts[1].mdt = None;
        mdt(&mut mdts[0]).names.clear();
        assert_eq!(check_one(serving(), &mdts), Ok(()), "it may have it");
    }
}
