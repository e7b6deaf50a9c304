//! Names and inodes on different MDTs are the same on both sides, once the MDT with the inode has
//! carried out what the one with the name has decided.
//!
//! It holds at every moment: the batch that changes a name has the decision for the other MDT,
//! which stays until that one has carried it out durably, once, by its number. No power loss breaks
//! it: a decision is told when it is durable. One that is carried out twice or never shows here. Of
//! MDTs that are down nothing is said.

use std::collections::BTreeMap;

use mds::{
    Mdt,
    tables::{
        APPLIED, DECISIONS, ENTRIES, INODES, applied,
        codec::inode_of_key,
        decision::{self, DecidedPart, Decision},
        entry::EntryRecord,
        inode::{Inode, Link},
    },
};
use types::{FsResult, InodeNumber, MdtIndex};

use crate::{cluster::Cluster, workload::Verdict};

/// What an MDT has of directories whose names are on other MDTs.
#[derive(Default)]
struct Shown {
    /// Names that lead to others.
    names: Vec<(InodeNumber, Link)>,
    /// Inodes here, with their names there.
    inodes: BTreeMap<InodeNumber, Link>,
    /// Decisions that another MDT may not have carried out, in order.
    decisions: Vec<(MdtIndex, u64, Decision)>,
    /// The last decision of others that was carried out.
    applied: BTreeMap<MdtIndex, u64>,
}

impl Shown {
    fn of(mdt: &Mdt, index: MdtIndex) -> FsResult<Self> {
        let mut shown = Shown::default();
        mdt.scan_table(ENTRIES, |key, value| {
            let (parent, _) = EntryRecord::decode_key(key)?;
            let target = EntryRecord::decode(value)?.target.filter(|target| target.inode.mdt() != index);
            shown.names.extend(target.map(|target| (target.inode, Link { parent, name: target.name })));
            Ok(())
        })?;
        mdt.scan_table(INODES, |key, value| {
            let inode = Inode::decode(inode_of_key("inode", key)?, value)?;
            let number = inode.number();
            let link = inode.first_link.filter(|link| link.parent.mdt() != index);
            shown.inodes.extend(link.map(|link| (number, link)));
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

fn compare_all(all: &BTreeMap<MdtIndex, Shown>) -> Verdict {
    for (named, with_names) in all {
        for (held, with_inodes) in all.iter().filter(|(held, _)| *held != named) {
            compare((*named, with_names), (*held, with_inodes))?;
        }
    }
    Ok(())
}

/// Names of one MDT that lead to another.
fn compare((named, with_names): (MdtIndex, &Shown), (held, with_inodes): (MdtIndex, &Shown)) -> Verdict {
    let mut names = BTreeMap::new();
    for (inode, link) in with_names.names.iter().filter(|(inode, _)| inode.mdt() == held) {
        if let Some(other) = names.insert(*inode, link.clone()) {
            return Err(format!("directory {inode} of {held} has two names on {named}: {link:?} and {other:?}"));
        }
    }
    let mut inodes = with_inodes.inodes.clone();
    inodes.retain(|_, link| link.parent.mdt() == named);
    let applied = with_inodes.applied.get(&named).copied().unwrap_or(0);
    let to_come = with_names.decisions.iter().filter(|(mdt, sequence, _)| *mdt == held && *sequence > applied);
    for (_, sequence, Decision { inode, part, .. }) in to_come {
        let (before, after) = match part {
            DecidedPart::Make { record, .. } => {
                let made = Inode::decode(*inode, record).map_err(|error| error.to_string())?;
                (None, made.first_link)
            }
            DecidedPart::Remove(link) => (Some(link), None),
            DecidedPart::Rename(old, new) => (Some(old), Some(new.clone())),
        };
        if inodes.remove(inode).as_ref() != before {
            return Err(format!("decision {sequence} of {named} does not fit directory {inode} of {held}"));
        }
        inodes.extend(after.map(|link| (*inode, link)));
    }
    let different = names.iter().chain(&inodes).find(|(inode, _)| names.get(*inode) != inodes.get(*inode));
    match different {
        None => Ok(()),
        Some((inode, _)) => Err(format!(
            "directory {inode} of {held} has the name {:?}; {named} has {:?}",
            inodes.get(inode),
            names.get(inode)
        )),
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
            names: name.map(|name| (inode, link(name))).into_iter().collect(),
            decisions: decisions.collect(),
            ..Shown::default()
        };
        let there = Shown {
            inodes: known.map(|known| (inode, link(known))).into_iter().collect(),
            applied: BTreeMap::from([(HERE, applied)]),
            ..Shown::default()
        };
        compare_all(&BTreeMap::from([(HERE, here), (THERE, there)]))
    }

    #[test]
    fn both_sides_agree_once_decisions_are_carried_out() {
        let rename = || vec![DecidedPart::Rename(link("a"), link("b"))];
        let remove = || vec![DecidedPart::Remove(link("a"))];
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
}
