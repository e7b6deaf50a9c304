//! What a cache above this client may keep ([`crate::UpperCache`]): names and attributes that this
//! client itself may serve, put together from the caches of several MDTs.
//!
//! | | covered by |
//! |---|---|
//! | a name | the lock on the name of the inode to which it leads, at the MDT of the inode |
//! | attributes | the lock on them |
//! | attributes of a striped directory | those locks of the directory and of all its shards |
//!
//! **A name on another MDT than its inode.** Its MDT grants the lock on all names of the directory,
//! which any change there ends. The MDT of the inode grants the one on its names, and asks for it
//! back before any of them is changed, wherever it is (docs/decisions/0049). So if both are held at
//! one moment, the second one covers the name from then on ([`FileSystem::learn_name`]).
//!
//! **A striped directory.** Names are known to lead out of its shards; programs know the directory.
//! What is withdrawn of a shard is withdrawn of the directory ([`crate::upper_cache`]).

use std::time::Duration;

use types::{Attributes, DirectoryMap, InodeNumber};

use crate::{
    FileSystem,
    cache::inode_cache::InodeCache,
    directory_maps::merged,
    upper_cache::{Keepable, Known, Place},
};

impl FileSystem {
    /// What the upper cache may keep of an inode at this moment; `name`: the directory and name
    /// through which it was found, if that is to be kept, too. `None`: nothing. To be asked after
    /// the upper cache has noted that it may keep something.
    pub fn keepable(&self, inode: InodeNumber, name: Option<(InodeNumber, &[u8])>) -> Option<Keepable> {
        let place = name.map(|(parent, name)| (self.directory_maps.place(parent, name), name));
        self.known(&[(inode, place)]).pop()?
    }

    /// The same of names in one directory, in order.
    pub fn keepable_in(&self, directory: InodeNumber, names: &[(&[u8], InodeNumber)]) -> Vec<Option<Keepable>> {
        let map = self.directory_maps.get(directory);
        let place = |name: &[u8]| map.as_ref().and_then(|map| map.shard_of(name)).unwrap_or(directory);
        let shown: Vec<_> = names.iter().map(|(name, inode)| (*inode, Some((place(name), *name)))).collect();
        let of_mdts = shown.chunk_by(|(one, _), (next, _)| one.mdt() == next.mdt());
        of_mdts.flat_map(|of_mdt| self.known(of_mdt)).collect()
    }

    /// The same of inodes of one MDT, with the places of their names.
    fn known(&self, shown: &[Place<'_>]) -> Vec<Option<Keepable>> {
        for (inode, place) in shown {
            if let Some((parent, name)) = place.filter(|(parent, _)| parent.mdt() != inode.mdt()) {
                self.learn_name(parent, name, *inode);
            }
        }
        let Ok(target) = self.targets.mdt_of(shown[0].0) else { return vec![None; shown.len()] };
        let known = target.keepable(&*self.seams.clock, &self.client_state.opens, shown);
        known.into_iter().map(|known| Some(self.with_known_shards(known?))).collect()
    }

    /// Notes at the MDT of an inode that this name leads to it, if that is known at the MDT of the
    /// name while the lock on the names of the inode is held.
    fn learn_name(&self, parent: InodeNumber, name: &[u8], inode: InodeNumber) {
        let is_news = |lock| self.look(parent, |cache| cache.leads_elsewhere(parent, name, inode).then_some(lock));
        let lock = self
            .look(inode, |cache| if cache.leads(parent, name, inode) { None } else { cache.lock_on_names_of(inode) });
        if let Some(lock) = lock.and_then(is_news) {
            self.look(inode, |cache| {
                cache.learn_name(parent, name, inode, lock);
                Some(())
            });
        }
    }

    /// Completes attributes of a striped directory.
    fn with_known_shards(&self, known: Known) -> Keepable {
        match known {
            Known::All(keepable) => keepable,
            Known::WithoutShards(keepable) => {
                let found = keepable.attributes.and_then(|found| self.known_with_shards(found));
                let validity = found.map_or(keepable.validity, |(_, validity)| validity.min(keepable.validity));
                Keepable { attributes: found.map(|(attributes, _)| attributes), validity, ..keepable }
            }
        }
    }

    /// What stat shows of a striped directory, if all of it is known; `found`: what is known of the
    /// directory itself.
    fn known_with_shards(&self, found: Attributes) -> Option<(Attributes, Duration)> {
        let map = self.directory_maps.get(found.inode)?;
        let DirectoryMap { master, shards, .. } = &*map;
        let (mut known, mut validity) = (Vec::with_capacity(shards.len()), Duration::MAX);
        for shard in shards {
            // First: what is withdrawn from now on is withdrawn of the directory.
            self.client_state.above.follow(*shard, *master, self.seams.clock.now());
            let opens = &self.client_state.opens;
            let target = self.targets.mdt_of(*shard).ok()?;
            let of_shard = |cache: &mut InodeCache| cache.attributes(*shard, |inode| opens.is_written(inode));
            let (attributes, of_target) = target.serve_for(&self.seams, of_shard)?;
            known.push(attributes);
            validity = validity.min(of_target);
        }
        Some((merged(found, &known), validity))
    }
}
