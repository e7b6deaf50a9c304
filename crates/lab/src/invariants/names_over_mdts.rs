//! Names and inodes on different MDTs are the same on both sides, once the MDT with the inode has
//! carried out what the one with the name has decided.
//!
//! It holds at every moment: the batch that changes a name has the decisions for the other MDTs,
//! which stay until these have carried them out durably, once, by their numbers. No power loss
//! breaks it: a decision is told when it is durable. One that is carried out twice or never shows
//! here. Of names and inodes on MDTs that are down nothing is said, nor of what those may have
//! decided: it is promised to them.
//!
//! A shard of a striped directory has a name, too: the empty one in its master, which is in the
//! master's map. A number for a shard is not promised but held, so as long as an MDT is down that
//! may have decided to make a directory, shards and masters may lack each other. Each name of a
//! shard is one that belongs there, by what the shard knows of itself; and that is what the map
//! says. So no two shards have a name.

use std::collections::{BTreeMap, BTreeSet};

use mds::{
    Mdt,
    tables::{
        APPLIED, DECISIONS, ENTRIES, INODES, LINKS, PREPARED, applied,
        codec::inode_of_key,
        decision::{self, DecidedPart, Decision, LedNames, MovedName, ReturnedNames},
        entry::{EntryRecord, NamedInode},
        inode::{Inode, Link, Striping},
        link, prepared,
    },
};
use types::{DirectoryMap, FileKind, FsResult, InodeNumber, MdtIndex, ShardPlace};

use crate::{cluster::Cluster, workload::Verdict};

/// An inode and one of its names.
type Named = (InodeNumber, Link);

/// What an MDT has of inodes and names that are on different MDTs.
#[derive(Default)]
struct Shown {
    /// Names here that lead to others, and whether they lead to directories.
    names: BTreeMap<Named, bool>,
    /// Inodes here, with their names there.
    links: BTreeSet<Named>,
    /// Decisions that another MDT may not have carried out, in order.
    decisions: Vec<(MdtIndex, u64, Decision)>,
    /// The last decision of others that was carried out.
    applied: BTreeMap<MdtIndex, u64>,
    /// Inodes that are promised to others.
    promised: Vec<(MdtIndex, InodeNumber)>,
    /// Striped directories.
    maps: Vec<DirectoryMap>,
    /// Shards, and what they know of themselves.
    places: BTreeMap<InodeNumber, ShardPlace>,
}

impl Shown {
    fn of(mdt: &Mdt, index: MdtIndex) -> FsResult<Self> {
        let mut shown = Shown::default();
        mdt.scan_table(ENTRIES, |key, value| {
            let (parent, _) = EntryRecord::decode_key(key)?;
            let target = EntryRecord::decode(value)?.target.filter(|target| target.inode.mdt() != index);
            shown.names.extend(
                target.map(|NamedInode { name, inode, kind }| {
                    ((inode, Link { parent, name }), kind == FileKind::Directory)
                }),
            );
            Ok(())
        })?;
        mdt.scan_table(INODES, |key, value| {
            let inode = Inode::decode(inode_of_key("inode", key)?, value)?;
            let number = inode.number();
            // One that was removed stays for a while.
            if let Some(map) = inode.map().filter(|_| inode.attributes.links > 0) {
                shown.names.extend(distant_shards(&map, index));
                shown.maps.push(map);
            }
            if let Striping::Shard(place) = &inode.striping {
                shown.places.insert(number, *place);
            }
            let link = inode.first_link.filter(|link| link.parent.mdt() != index);
            shown.links.extend(link.map(|link| (number, link)));
            Ok(())
        })?;
        mdt.scan_table(LINKS, |key, _| {
            shown.links.extend(Some(link::decode_key(key)?).filter(|(_, link)| link.parent.mdt() != index));
            Ok(())
        })?;
        mdt.scan_table(DECISIONS, |key, value| {
            let (mdt, sequence) = decision::decode_key(key)?;
            shown.decisions.push((mdt, sequence, Decision::decode(value)?));
            Ok(())
        })?;
        mdt.scan_table(APPLIED, |key, value| {
            shown.applied.insert(applied::decode_key(key)?, applied::decode(value)?);
            Ok(())
        })?;
        mdt.scan_table(PREPARED, |key, value| {
            let (coordinator, inodes) = (prepared::decode_key(key)?.coordinator, prepared::decode(value)?.1);
            shown.promised.extend(inodes.into_iter().map(|inode| (coordinator, inode)));
            Ok(())
        })?;
        Ok(shown)
    }
}

/// What a master has as names of its shards on other MDTs.
fn distant_shards(map: &DirectoryMap, mdt: MdtIndex) -> Vec<(Named, bool)> {
    let link = Link { parent: map.master, name: Vec::new() };
    let others = map.shards.iter().filter(|shard| shard.mdt() != mdt);
    others.map(|shard| ((*shard, link.clone()), true)).collect()
}

/// Names that are in a shard to which they do not belong.
fn misplaced(mdt: &Mdt, places: &BTreeMap<InodeNumber, ShardPlace>) -> FsResult<Option<(InodeNumber, Vec<u8>)>> {
    let mut found = None;
    mdt.scan_table(ENTRIES, |key, value| {
        let (parent, _) = EntryRecord::decode_key(key)?;
        let name = EntryRecord::decode(value)?.target.map(|target| target.name);
        let belongs = |name: &Vec<u8>| places.get(&parent).is_none_or(|place| place.has(name));
        found = found.take().or(name.filter(|name| !belongs(name)).map(|name| (parent, name)));
        Ok(())
    })?;
    Ok(found)
}

/// Looks at all MDTs that are up.
pub(super) fn check(cluster: &Cluster) -> Verdict {
    let (mut all, mut is_complete) = (BTreeMap::new(), true);
    for (role, index) in cluster.mds_roles().zip((0..).map(MdtIndex)) {
        let look = |mdt: &Mdt| {
            let shown = Shown::of(mdt, index)?;
            let misplaced = misplaced(mdt, &shown.places)?;
            FsResult::Ok((shown, misplaced))
        };
        match cluster.inspect(role, |serving| serving.mdt.as_ref().map(|mdt| look(mdt))).flatten() {
            Some(found) => {
                let (shown, misplaced) = found.map_err(|error| format!("{role}: a record cannot be read: {error}"))?;
                if let Some((shard, name)) = misplaced {
                    return Err(format!("{:?} is in shard {shard} and belongs to another one", name.escape_ascii()));
                }
                all.insert(index, shown);
            }
            None => is_complete = false,
        }
    }
    compare_maps(&all)?;
    compare_all(&all, is_complete)
}

/// A map and its shards say the same of where names belong.
fn compare_maps(all: &BTreeMap<MdtIndex, Shown>) -> Verdict {
    let places: BTreeMap<InodeNumber, ShardPlace> =
        all.values().flat_map(|shown| &shown.places).map(|(shard, place)| (*shard, *place)).collect();
    for DirectoryMap { master, hash, shards } in all.values().flat_map(|shown| &shown.maps) {
        let count = shards.len() as u16;
        for (shard, index) in shards.iter().zip(0..) {
            let expected = ShardPlace { hash: *hash, index, count };
            if let Some(found) = places.get(shard).filter(|found| **found != expected) {
                return Err(format!("the map of {master} says {expected:?} of shard {shard}, which says {found:?}"));
            }
        }
    }
    Ok(())
}

/// Both sides, once all decisions of MDTs that are up are carried out.
#[derive(Default)]
struct Sides {
    names: BTreeMap<Named, bool>,
    links: BTreeSet<Named>,
    /// Former and new numbers of inodes that move: all of one's names change at once, but those on
    /// other MDTs than the inode when these hear of it. Nothing is said of them until then.
    moving: BTreeSet<InodeNumber>,
}

impl Sides {
    fn carry_out(&mut self, mdt: MdtIndex, Decision { inode, part, .. }: &Decision) -> Result<(), String> {
        let is_known = match part {
            DecidedPart::Make { record, .. } => {
                let made = Inode::decode(*inode, record).map_err(|error| error.to_string())?;
                self.names.extend(made.map().map_or(Vec::new(), |map| distant_shards(&map, mdt)));
                // A shard may be on the MDT of its master.
                made.first_link.is_some_and(|link| link.parent.mdt() == mdt || self.links.insert((*inode, link)))
            }
            DecidedPart::DropLink(link) => {
                self.names.retain(|(_, name), _| name.parent != *inode || !name.name.is_empty());
                link.parent.mdt() == mdt || self.links.remove(&(*inode, link.clone()))
            }
            DecidedPart::AddLink(link) => self.links.insert((*inode, link.clone())),
            DecidedPart::MoveLink(old, new) => self.move_link(mdt, *inode, old, new),
            DecidedPart::MoveName(moved) => self.move_name(mdt, *inode, moved),
            DecidedPart::AddNames { names, .. } | DecidedPart::ReturnNames(ReturnedNames { names, .. }) => {
                names.iter().all(|named| {
                    let link = Link { parent: *inode, name: named.name.clone() };
                    // Names on the inode's own MDT are not told here.
                    named.inode.mdt() == mdt
                        || self.names.insert((named.inode, link), named.kind == FileKind::Directory).is_none()
                })
            }
            DecidedPart::Give(to) => {
                self.moving.extend([*inode, *to]);
                true
            }
            DecidedPart::LeadNames(LedNames { from, to, .. }) => {
                self.moving.extend([*from, *to]);
                true
            }
            DecidedPart::Tree | DecidedPart::CopyAttributes(_) | DecidedPart::GiveNames => true,
        };
        if is_known { Ok(()) } else { Err(format!("{part:?} does not fit {inode} of {mdt}")) }
    }

    /// Names on the inode's own MDT are not told here.
    fn move_link(&mut self, mdt: MdtIndex, inode: InodeNumber, old: &Link, new: &Link) -> bool {
        let had = old.parent.mdt() == mdt || self.links.remove(&(inode, old.clone()));
        had && (new.parent.mdt() == mdt || self.links.insert((inode, new.clone())))
    }

    fn move_name(&mut self, mdt: MdtIndex, parent: InodeNumber, moved: &MovedName) -> bool {
        let MovedName { name, inode, new, target, .. } = moved;
        let old = Link { parent, name: name.clone() };
        let mut fits = match inode.mdt() == mdt {
            true => self.move_link(mdt, *inode, &old, new),
            false => self.names.remove(&(*inode, old.clone())).is_some(),
        };
        if let Some((target, kind)) = target {
            fits &= match target.mdt() == mdt {
                true => self.move_link(mdt, *target, new, &old),
                false => self.names.insert((*target, old), *kind == FileKind::Directory).is_none(),
            };
        }
        fits
    }
}

/// `is_complete`: all MDTs are up.
fn compare_all(all: &BTreeMap<MdtIndex, Shown>, is_complete: bool) -> Verdict {
    let mut sides = Sides::default();
    for shown in all.values() {
        sides.names.extend(shown.names.clone());
        sides.links.extend(shown.links.clone());
    }
    for (coordinator, shown) in all {
        for (mdt, sequence, decision) in &shown.decisions {
            let Some(participant) = all.get(mdt) else { continue };
            if *sequence > participant.applied.get(coordinator).copied().unwrap_or(0) {
                let carried_out = sides.carry_out(*mdt, decision);
                carried_out.map_err(|reason| format!("decision {sequence} of {coordinator}: {reason}"))?;
            }
        }
    }
    let promised = all.values().flat_map(|shown| &shown.promised);
    let doubtful: BTreeSet<InodeNumber> =
        promised.filter(|(coordinator, _)| !all.contains_key(coordinator)).map(|(_, inode)| *inode).collect();
    let is_known = |number: &InodeNumber| {
        all.contains_key(&number.mdt()) && !doubtful.contains(number) && !sides.moving.contains(number)
    };
    let is_told = |link: &Link| is_complete || !link.name.is_empty();
    let is_compared = |(inode, link): &&Named| is_known(inode) && is_known(&link.parent) && is_told(link);
    let mut directories = BTreeMap::new();
    for (named, is_directory) in sides.names.iter().filter(|(named, _)| is_compared(named)) {
        if !sides.links.contains(named) {
            return Err(format!("{named:?} is a name, and the inode does not know it"));
        }
        if *is_directory && let Some(other) = directories.insert(named.0, &named.1) {
            return Err(format!("directory {} has two names: {other:?} and {:?}", named.0, named.1));
        }
    }
    match sides.links.iter().filter(is_compared).find(|named| !sides.names.contains_key(named)) {
        None => Ok(()),
        Some(named) => Err(format!("{named:?} is no name, and the inode knows it")),
    }
}

#[cfg(test)]
mod tests {
    use rpc::message::mdt_peer::OperationId;
    use types::NameHash;

    use super::*;

    const HERE: MdtIndex = MdtIndex(0);
    const THERE: MdtIndex = MdtIndex(1);

    fn link(name: &str) -> Link {
        Link { parent: InodeNumber::ROOT, name: name.into() }
    }

    /// `name` leads to the directory, which has the name `known`; decisions 5 and later are there,
    /// of which the other MDT has carried out those up to `applied`.
    fn all(name: Option<&str>, known: Option<&str>, parts: Vec<DecidedPart>, applied: u64) -> Verdict {
        let inode = InodeNumber::new(THERE, 0x200);
        let operation = OperationId { coordinator: HERE, start: 1, number: 1 };
        let decisions = (5..).zip(parts).map(|(sequence, part)| (THERE, sequence, Decision { operation, inode, part }));
        let here = Shown {
            names: name.map(|name| ((inode, link(name)), true)).into_iter().collect(),
            decisions: decisions.collect(),
            ..Shown::default()
        };
        let there = Shown {
            links: known.map(|known| (inode, link(known))).into_iter().collect(),
            applied: BTreeMap::from([(HERE, applied)]),
            ..Shown::default()
        };
        compare_all(&BTreeMap::from([(HERE, here), (THERE, there)]), true)
    }

    #[test]
    fn both_sides_agree_once_decisions_are_carried_out() {
        let rename = || vec![DecidedPart::MoveLink(link("a"), link("b"))];
        let remove = || vec![DecidedPart::DropLink(link("a"))];
        for sound in [
            all(Some("a"), Some("a"), vec![], 4),
            all(Some("b"), Some("a"), rename(), 4),
            all(Some("b"), Some("b"), rename(), 5),
            all(None, Some("a"), remove(), 4),
            all(None, None, remove(), 5),
        ] {
            assert_eq!(sound, Ok(()));
        }
        for (what, wrong) in [
            ("a name is lost", all(None, Some("a"), vec![], 4)),
            ("a directory is lost", all(Some("a"), None, vec![], 4)),
            ("a decision was lost", all(Some("b"), Some("a"), vec![], 4)),
            ("a decision was carried out, and is to be again", all(Some("b"), Some("b"), rename(), 4)),
            ("a decision counts and was not carried out", all(None, Some("a"), remove(), 5)),
        ] {
            assert!(wrong.is_err(), "{what}");
        }
    }

    /// The directory of the old name is on MDT 2, and MDT 0, which has the new one, has decided.
    #[test]
    fn a_name_on_a_third_mdt_is_followed() {
        const OLD: MdtIndex = MdtIndex(2);
        let (inode, directory) = (InodeNumber::new(THERE, 0x200), InodeNumber::new(OLD, 0x200));
        let (old, new) = (Link { parent: directory, name: b"old".to_vec() }, link("new"));
        let operation = OperationId { coordinator: HERE, start: 1, number: 1 };
        let moved = MovedName { name: b"old".to_vec(), inode, kind: FileKind::Fifo, new: new.clone(), target: None };
        let parts = [
            (OLD, 1, Decision { operation, inode: directory, part: DecidedPart::MoveName(moved) }),
            (THERE, 1, Decision { operation, inode, part: DecidedPart::MoveLink(old.clone(), new.clone()) }),
        ];
        let names = |link: &Link| BTreeMap::from([((inode, link.clone()), false)]);
        let of = |there: &Link, old_names, applied: [u64; 2]| {
            let here = Shown { names: names(&new), decisions: parts.to_vec(), ..Shown::default() };
            let links = BTreeSet::from([(inode, there.clone())]);
            let there = Shown { links, applied: BTreeMap::from([(HERE, applied[0])]), ..Shown::default() };
            let third = Shown { names: old_names, applied: BTreeMap::from([(HERE, applied[1])]), ..Shown::default() };
            BTreeMap::from([(HERE, here), (THERE, there), (OLD, third)])
        };
        assert_eq!(compare_all(&of(&old, names(&old), [0, 0]), true), Ok(()));
        assert_eq!(compare_all(&of(&new, names(&old), [1, 0]), true), Ok(()));
        assert_eq!(compare_all(&of(&old, BTreeMap::new(), [0, 1]), true), Ok(()));
        assert_eq!(compare_all(&of(&new, BTreeMap::new(), [1, 1]), true), Ok(()));
        assert!(compare_all(&of(&new, names(&old), [1, 1]), true).is_err(), "the old name is still there");
        // The MDT that has decided is down: what is promised to it is in doubt.
        let mut all = of(&new, names(&old), [1, 0]);
        all.remove(&HERE);
        assert!(compare_all(&all, false).is_err(), "nothing is promised");
        all.get_mut(&OLD).expect("it is there").promised.push((HERE, directory));
        assert_eq!(compare_all(&all, false), Ok(()));
    }
    /// A striped directory on MDT 0, with a shard there and one on MDT 1.
    #[test]
    fn shards_and_their_masters_know_each_other() {
        let master = InodeNumber::new(HERE, 0x200);
        let shards = [HERE, THERE].map(|mdt| InodeNumber::new(mdt, 0x201).as_shard());
        let map = DirectoryMap { master, hash: NameHash::Fnv1a64, shards: shards.to_vec() };
        let to_master = Link { parent: master, name: Vec::new() };
        let operation = OperationId { coordinator: HERE, start: 1, number: 1 };
        let all = |links: &[Named], drops: &[u64], index| {
            let part = DecidedPart::DropLink(to_master.clone());
            let decision =
                |sequence: &u64| (THERE, *sequence, Decision { operation, inode: shards[1], part: part.clone() });
            let exists = drops.is_empty();
            let here = Shown {
                names: if exists { distant_shards(&map, HERE).into_iter().collect() } else { BTreeMap::new() },
                maps: exists.then(|| map.clone()).into_iter().collect(),
                decisions: drops.iter().map(decision).collect(),
                ..Shown::default()
            };
            let place = ShardPlace { hash: NameHash::Fnv1a64, index, count: 2 };
            let (links, places) = (links.iter().cloned().collect(), BTreeMap::from([(shards[1], place)]));
            BTreeMap::from([(HERE, here), (THERE, Shown { links, places, ..Shown::default() })])
        };
        let link = (shards[1], to_master.clone());
        assert_eq!(compare_all(&all(std::slice::from_ref(&link), &[], 1), true), Ok(()));
        assert_eq!(compare_all(&all(std::slice::from_ref(&link), &[1], 1), true), Ok(()), "it is about to go");
        assert!(compare_all(&all(&[], &[], 1), true).is_err(), "a shard is lost");
        assert_eq!(compare_all(&all(&[], &[], 1), false), Ok(()), "an MDT that is down may have made it");
        assert!(compare_all(&all(&[], &[1], 1), true).is_err(), "a shard that is to go has gone");
        assert_eq!(compare_maps(&all(&[], &[], 1)), Ok(()));
        assert!(compare_maps(&all(&[], &[], 0)).is_err(), "another one than the map says");
    }
}
