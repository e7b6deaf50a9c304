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
//! one moment, the second one covers the name from then on ([`learn`]).
//!
//! **A striped directory.** Names are known to lead out of its shards; programs know the directory.
//! What is withdrawn of a shard is withdrawn of the directory ([`crate::upper_cache`]).

use std::{collections::BTreeMap, time::Duration};

use types::{Attributes, DirectoryMap, InodeNumber, MdtIndex};

use crate::{
    FileSystem,
    cache::inode_cache::InodeCache,
    directory_maps::merged,
    upper_cache::{Keepable, Known, Place},
};

/// A name that was found: the directory or shard that has it, the name, and where it leads.
type FoundName<'n> = (InodeNumber, &'n [u8], InodeNumber);

/// What is done with a cache, if it may be looked at.
type Look<'l> = &'l mut dyn FnMut(&mut InodeCache);

/// See [`FileSystem::learn_names`]. Between the three looks anything may happen; `of_names`,
/// `of_inodes`: at the caches of the two MDTs.
fn learn(names: &[FoundName<'_>], of_names: impl FnOnce(Look<'_>), of_inodes: impl Fn(Look<'_>)) {
    let mut unknown = Vec::new();
    of_inodes(&mut |cache| {
        let names = names.iter().filter(|(parent, name, inode)| !cache.leads(*parent, name, *inode));
        unknown.extend(names.filter_map(|name| Some((*name, cache.lock_on_names_of(name.2)?))));
    });
    if unknown.is_empty() {
        return;
    }
    let mut news = Vec::new();
    of_names(&mut |cache| {
        let leads = |((parent, name, inode), _): &&(FoundName<'_>, _)| cache.leads_elsewhere(*parent, name, *inode);
        news.extend(unknown.iter().filter(leads));
    });
    of_inodes(&mut |cache| {
        for ((parent, name, inode), lock) in &news {
            cache.learn_name(*parent, name, *inode, *lock);
        }
    });
}

impl FileSystem {
    /// What the upper cache may keep of an inode at this moment; `name`: the directory and name
    /// through which it was found, if that is to be kept, too. `None`: nothing. To be asked after
    /// the upper cache has noted that it may keep something.
    pub fn keepable(&self, inode: InodeNumber, name: Option<(InodeNumber, &[u8])>) -> Option<Keepable> {
        let place = name.map(|(parent, name)| (self.directory_maps.place(parent, name), name));
        self.known(&[(inode, place)]).pop()?
    }

    /// The same of names in one directory, in order. Each MDT that has some of the inodes is looked
    /// at once.
    pub fn keepable_in(&self, directory: InodeNumber, names: &[(&[u8], InodeNumber)]) -> Vec<Option<Keepable>> {
        let map = self.directory_maps.get(directory);
        let place = |name: &[u8]| map.as_ref().and_then(|map| map.shard_of(name)).unwrap_or(directory);
        let mut by_mdt: BTreeMap<MdtIndex, (Vec<usize>, Vec<Place<'_>>)> = BTreeMap::new();
        for (index, (name, inode)) in names.iter().enumerate() {
            let (indices, shown) = by_mdt.entry(inode.mdt()).or_default();
            indices.push(index);
            shown.push((*inode, Some((place(name), *name))));
        }
        let mut found = vec![None; names.len()];
        for (indices, shown) in by_mdt.into_values() {
            for (index, keepable) in indices.into_iter().zip(self.known(&shown)) {
                found[index] = keepable;
            }
        }
        found
    }

    /// The same of inodes of one MDT, with the places of their names.
    fn known(&self, shown: &[Place<'_>]) -> Vec<Option<Keepable>> {
        let mut elsewhere: BTreeMap<MdtIndex, Vec<FoundName<'_>>> = BTreeMap::new();
        for (inode, place) in shown {
            if let Some((parent, name)) = place.filter(|(parent, _)| parent.mdt() != inode.mdt()) {
                elsewhere.entry(parent.mdt()).or_default().push((parent, name, *inode));
            }
        }
        elsewhere.values().for_each(|names| self.learn_names(names));
        let Ok(target) = self.targets.mdt_of(shown[0].0) else { return vec![None; shown.len()] };
        let known = target.keepable(&*self.seams.clock, &self.client_state.opens, shown);
        known.into_iter().map(|known| Some(self.with_known_shards(known?))).collect()
    }

    /// Notes at the MDT of inodes that these names lead to them, all on one other MDT, if that is
    /// known there while the locks on the names of the inodes are held.
    fn learn_names(&self, names: &[FoundName<'_>]) {
        let [(parent, _, inode), ..] = names else { return };
        let look_at = |one: InodeNumber, look: Look<'_>| {
            let _ = self.look(one, |cache| {
                look(cache);
                Some(())
            });
        };
        learn(names, |look| look_at(*parent, look), |look| look_at(*inode, look));
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

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use rpc::message::{MdtReply, MdtRequest, lock::inode_bit};
    use types::{FileKind, LockHandle};

    use super::*;
    use crate::cache::inode_cache::tests::{Client, ROOT, SHOWN, entry, granted, look_up, unlink};

    /// On MDT 1.
    const FAR: InodeNumber = InodeNumber(1 << 48 | 0x200);
    const NAME: &str = "far";

    /// The caches of the MDT that has a name, and of the one that has the inode to which it leads.
    struct Caches {
        names: Client,
        inodes: Client,
    }

    impl Caches {
        fn warm() -> Self {
            let (mut names, mut inodes) = (Client::cold(), Client::cold());
            let of_root = [granted(1, ROOT, SHOWN | inode_bit::DIRECTORY)];
            names.asks(&MdtRequest::GetAttributes(ROOT), &shown(ROOT), &of_root);
            names.asks(&look_up(NAME), &MdtReply::Remote(FAR), &[]);
            inodes.asks(&MdtRequest::GetAttributes(FAR), &shown(FAR), &[granted(2, FAR, SHOWN)]);
            Self { names, inodes }
        }

        fn knows_name(&self) -> bool {
            self.inodes.0.leads(ROOT, NAME.as_bytes(), FAR)
        }
    }

    fn shown(inode: InodeNumber) -> MdtReply {
        MdtReply::Entry(entry(inode, FileKind::Directory, 0))
    }

    /// Whether the name is known after something has happened between the looks.
    fn learned(before: impl FnOnce(&mut Caches), after: impl FnOnce(&mut Caches)) -> bool {
        let caches = RefCell::new(Caches::warm());
        let of_names = |look: Look<'_>| {
            before(&mut caches.borrow_mut());
            look(&mut caches.borrow_mut().names.0);
            after(&mut caches.borrow_mut());
        };
        learn(&[(ROOT, NAME.as_bytes(), FAR)], of_names, |look| look(&mut caches.borrow_mut().inodes.0));
        let known = caches.borrow().knows_name();
        if known {
            caches.borrow_mut().inodes.0.withdraw(LockHandle(2));
            assert!(!caches.borrow().knows_name(), "only as long as the lock is held");
        }
        known
    }

    #[test]
    fn a_name_is_learned_if_both_caches_know_it_at_one_moment() {
        let withdraw_names = |caches: &mut Caches| assert!(caches.names.0.withdraw(LockHandle(1)).is_some());
        let withdraw_inode = |caches: &mut Caches| assert!(caches.inodes.0.withdraw(LockHandle(2)).is_some());
        assert!(learned(|_| {}, |_| {}));
        assert!(!learned(withdraw_names, |_| {}));
        assert!(learned(|_| {}, withdraw_names), "it led there while the lock on the inode was held");
        assert!(!learned(withdraw_inode, |_| {}) && !learned(|_| {}, withdraw_inode));
        let given_again = |caches: &mut Caches| {
            withdraw_inode(caches);
            caches.inodes.asks(&MdtRequest::GetAttributes(FAR), &shown(FAR), &[granted(3, FAR, SHOWN)]);
        };
        assert!(!learned(|_| {}, given_again), "another client may have changed it in between");
    }

    #[test]
    fn a_name_is_not_learned_beside_own_changes() {
        let remove = |client: &mut Client| client.asks(&unlink(NAME), &MdtReply::Done, &[]);
        assert!(!learned(|caches| drop(remove(&mut caches.names)), |_| {}));
        assert!(!learned(|caches| drop(caches.names.ask(&unlink(NAME))), |_| {}), "it is being removed");
        // A removal that the MDT of the inode decides comes with no callback to this client.
        assert!(!learned(|_| {}, |caches| drop(remove(&mut caches.inodes))));
        assert!(!learned(|_| {}, |caches| drop(caches.inodes.ask(&unlink(NAME)))));
        assert!(!learned(|_| {}, |caches| drop(caches.inodes.ask(&MdtRequest::GetAttributes(FAR)))));
    }

    #[test]
    fn nothing_is_learned_of_a_cache_that_may_not_be_looked_at() {
        let caches = RefCell::new(Caches::warm());
        let name = [(ROOT, NAME.as_bytes(), FAR)];
        learn(&name, |_| {}, |look| look(&mut caches.borrow_mut().inodes.0));
        learn(&name, |look| look(&mut caches.borrow_mut().names.0), |_| {});
        assert!(!caches.borrow().knows_name());
        let other = [(ROOT, NAME.as_bytes(), InodeNumber(FAR.0 + 1))];
        learn(&other, |look| look(&mut caches.borrow_mut().names.0), |look| look(&mut caches.borrow_mut().inodes.0));
        assert!(!caches.borrow().knows_name(), "it leads to another inode");
    }
}
