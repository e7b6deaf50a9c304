//! Names and inodes on different MDTs are the same on both sides, once the MDT with the inode has
//! carried out what the one with the name has decided.
//!
//! It holds at every moment: the batch that changes a name has the decisions for the other MDTs,
//! which stay until these have carried them out durably, once, by their numbers. No power loss
//! breaks it: a decision is told when it is durable. One that is carried out twice or never shows
//! here. Of names and inodes on MDTs that are down nothing is said, nor of what those may have
//! decided: it is promised to them.

use std::collections::{BTreeMap, BTreeSet};

use mds::{
    Mdt,
    tables::{
        APPLIED, DECISIONS, ENTRIES, INODES, LINKS, PREPARED, applied,
        codec::inode_of_key,
        decision::{self, DecidedPart, Decision, MovedName},
        entry::{EntryRecord, NamedInode},
        inode::{Inode, Link},
        link, prepared,
    },
};
use types::{FileKind, FsResult, InodeNumber, MdtIndex};

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

/// Looks at all MDTs that are up.
pub(super) fn check(cluster: &Cluster) -> Verdict {
    let mut all = BTreeMap::new();
    for (role, index) in cluster.mds_roles().zip((0..).map(MdtIndex)) {
        let look = |serving: &crate::server::Serving| serving.mdt.as_ref().map(|mdt| Shown::of(mdt, index));
        if let Some(shown) = cluster.inspect(role, look).flatten() {
            all.insert(index, shown.map_err(|error| format!("{role}: a record cannot be read: {error}"))?);
        }
    }
    compare_all(&all)
}

/// Both sides, once all decisions of MDTs that are up are carried out.
#[derive(Default)]
struct Sides {
    names: BTreeMap<Named, bool>,
    links: BTreeSet<Named>,
}

impl Sides {
    fn carry_out(&mut self, mdt: MdtIndex, Decision { inode, part, .. }: &Decision) -> Result<(), String> {
        let is_known = match part {
            DecidedPart::Make { record, .. } => {
                let made = Inode::decode(*inode, record).map_err(|error| error.to_string())?;
                made.first_link.is_some_and(|link| self.links.insert((*inode, link)))
            }
            DecidedPart::DropLink(link) => self.links.remove(&(*inode, link.clone())),
            DecidedPart::AddLink(link) => self.links.insert((*inode, link.clone())),
            DecidedPart::MoveLink(old, new) => self.move_link(mdt, *inode, old, new),
            DecidedPart::MoveName(moved) => self.move_name(mdt, *inode, moved),
            DecidedPart::Tree | DecidedPart::CopyAttributes(_) => true,
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

fn compare_all(all: &BTreeMap<MdtIndex, Shown>) -> Verdict {
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
    let is_known = |number: &InodeNumber| all.contains_key(&number.mdt()) && !doubtful.contains(number);
    let is_compared = |(inode, link): &&Named| is_known(inode) && is_known(&link.parent);
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
        compare_all(&BTreeMap::from([(HERE, here), (THERE, there)]))
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
        assert_eq!(compare_all(&of(&old, names(&old), [0, 0])), Ok(()));
        assert_eq!(compare_all(&of(&new, names(&old), [1, 0])), Ok(()));
        assert_eq!(compare_all(&of(&old, BTreeMap::new(), [0, 1])), Ok(()));
        assert_eq!(compare_all(&of(&new, BTreeMap::new(), [1, 1])), Ok(()));
        assert!(compare_all(&of(&new, names(&old), [1, 1])).is_err(), "the old name is still there");
        // The MDT that has decided is down: what is promised to it is in doubt.
        let mut all = of(&new, names(&old), [1, 0]);
        all.remove(&HERE);
        assert!(compare_all(&all).is_err(), "nothing is promised");
        all.get_mut(&OLD).expect("it is there").promised.push((HERE, directory));
        assert_eq!(compare_all(&all), Ok(()));
    }
}
