//! An inode of another MDT moves to this one, with its names and all that it has, and gets a number
//! of this MDT (docs/decisions/0066-inodes-that-move.md). This MDT decides.
//!
//! A striped directory has no names of its own. What is named in it for this are its shards, each
//! with an empty name: they stay where they are.
//!
//! Order: the tree, if it is a directory, since the way to the root leads over numbers; the inode;
//! its names on further MDTs, in the order of these; inodes on further MDTs that are named in a
//! directory. Names that are here are looked at last, with all else prepared, and are not locked:
//! they can change only with the inode, which is.

use std::collections::BTreeMap;

use lock::{InodeBits, inode_bit};
use rpc::message::{
    MdtReply,
    mdt_peer::{FollowName, OperationId, Part},
    moved_inode::{GivenInode, GivenName, LeadNames},
};
use types::{
    Attributes, Credentials, Damage, FileKind, FsError, FsResult, InodeNumber,
    limits::{FOLLOWING_MAX, GIVEN_NAMES_MAX},
};

use super::{given_inodes::check_following, peers::follow_name, root_only::require_root};
use crate::{
    known_size,
    tables::{
        DATA, LINKS,
        decision::{DecidedPart, Decision, LedNames},
        entry::NamedInode,
        inode::{Inode, InodeData, Link},
        link,
    },
    transaction::{Transaction, entries::FoundEntry},
};

/// Names in a directory of another MDT, and the operation for which that has prepared them.
struct Led {
    operation: OperationId,
    parent: InodeNumber,
    names: Vec<Vec<u8>>,
}

pub(crate) fn run(txn: &mut Transaction<'_>, who: &Credentials, number: InodeNumber) -> FsResult<MdtReply> {
    require_root(who)?;
    if txn.is_here(number) {
        txn.inode(number)?;
        return Ok(MdtReply::Done);
    }
    if txn.takes_tree_first() {
        txn.hold_tree()?;
    }
    let (operation, given) = txn.given(number)?;
    let former = Inode::decode(number, &given.record)?;
    if former.is_directory() {
        txn.hold_tree_first()?;
    }
    if given.links.len() + given.names.len() > 2 * GIVEN_NAMES_MAX {
        return Err(FsError::TooBig);
    }
    let by_parent = by_parent(&former, &given);
    let led = lead_elsewhere(txn, number, &by_parent)?;
    let here = lead_here(txn, number, &by_parent)?;
    let named = named_in(&former, &given)?;
    let followed = follow_elsewhere(txn, number, &named)?;
    let children = children_here(txn, &named)?;

    let (kind, to) = (former.kind(), txn.new_number());
    arrive(txn, &former, to, &given)?;
    for (parent, found) in here {
        txn.retarget_entry(parent, &found, to, kind)?;
        txn.withdraw(parent, InodeBits(inode_bit::DIRECTORY));
    }
    for named in children {
        follow_name(txn, named.inode, &child_link(number, named), child_link(to, named))?;
    }
    for (operation, named) in followed {
        let part = DecidedPart::MoveLink(child_link(number, named), child_link(to, named));
        txn.decide(named.inode.mdt(), Decision { operation, inode: named.inode, part });
    }
    for Led { operation, parent, names } in led {
        let part = DecidedPart::LeadNames(LedNames { from: number, to, kind, names });
        txn.decide(parent.mdt(), Decision { operation, inode: parent, part });
    }
    txn.decide(number.mdt(), Decision { operation, inode: number, part: DecidedPart::Give(to) });
    txn.give_tree_back();
    Ok(MdtReply::Done)
}

/// What knows a directory by its number: what is named in it, and the shards of a striped one,
/// which have an empty name.
fn named_in(former: &Inode, given: &GivenInode) -> FsResult<Vec<GivenName>> {
    let mut named = given.names.clone();
    if let Some(map) = former.map() {
        if !map.is_possible() || !named.is_empty() {
            return Err(Damage::new("map of a striped directory", "impossible shards").into());
        }
        let shard = |inode| GivenName { name: Vec::new(), inode, kind: FileKind::Directory };
        named.extend(map.shards.into_iter().map(shard));
    }
    Ok(named)
}

fn child_link(parent: InodeNumber, named: &GivenName) -> Link {
    Link { parent, name: named.name.clone() }
}

/// The names of the inode, by directory; these in the order of their MDTs.
fn by_parent(former: &Inode, given: &GivenInode) -> BTreeMap<InodeNumber, Vec<Vec<u8>>> {
    let first = former.first_link.iter().map(|link| (link.parent, &link.name));
    let mut names: BTreeMap<InodeNumber, Vec<Vec<u8>>> = BTreeMap::new();
    for (parent, name) in first.chain(given.links.iter().map(|(parent, name)| (*parent, name))) {
        names.entry(parent).or_default().push(name.clone());
    }
    names
}

/// Names on further MDTs. Those on the MDT of the inode go with it.
fn lead_elsewhere(
    txn: &mut Transaction<'_>,
    number: InodeNumber,
    names: &BTreeMap<InodeNumber, Vec<Vec<u8>>>,
) -> FsResult<Vec<Led>> {
    let mut led = Vec::new();
    for (parent, names) in names {
        if txn.is_here(*parent) || parent.mdt() == number.mdt() {
            continue;
        }
        let part = LeadNames { parent: *parent, names: names.clone(), inode: number };
        let (operation, _) = txn.prepared(parent.mdt(), Part::LeadNames(part))?;
        led.push(Led { operation, parent: *parent, names: names.clone() });
    }
    Ok(led)
}

/// Names in directories here.
fn lead_here(
    txn: &Transaction<'_>,
    number: InodeNumber,
    names: &BTreeMap<InodeNumber, Vec<Vec<u8>>>,
) -> FsResult<Vec<(InodeNumber, FoundEntry)>> {
    let mut here = Vec::new();
    for (parent, names) in names.iter().filter(|(parent, _)| txn.is_here(**parent)) {
        txn.directory(*parent)?;
        for name in names {
            let found = txn.find_entry(*parent, name)?.filter(|found| found.target.inode == number);
            here.push((*parent, found.ok_or(FsError::Stale)?));
        }
    }
    Ok(here)
}

/// Inodes on further MDTs that are named in a directory.
fn follow_elsewhere<'a>(
    txn: &mut Transaction<'_>,
    number: InodeNumber,
    named: &'a [GivenName],
) -> FsResult<Vec<(OperationId, &'a GivenName)>> {
    let is_further = |named: &&GivenName| !txn.is_here(named.inode) && named.inode.mdt() != number.mdt();
    let mut further: Vec<&GivenName> = named.iter().filter(is_further).collect();
    if further.len() > FOLLOWING_MAX {
        return Err(FsError::TooBig);
    }
    further.sort_by_key(|named| named.inode);
    if further.windows(2).any(|pair| pair[0].inode == pair[1].inode) {
        // Two names of one file would wait for each other.
        return Err(FsError::NotSupported);
    }
    let mut followed = Vec::new();
    for named in further {
        let GivenName { name, inode, .. } = named.clone();
        let part = FollowName { inode, parent: number, name, shard: number };
        followed.push((txn.prepared(inode.mdt(), Part::FollowName(part))?.0, named));
    }
    Ok(followed)
}

/// Inodes here that are named in a directory. Waits for those that are in doubt.
fn children_here<'a>(txn: &Transaction<'_>, named: &'a [GivenName]) -> FsResult<Vec<&'a GivenName>> {
    let mut here = Vec::new();
    let is_here = |named: &&GivenName| txn.is_here(named.inode);
    txn.need_inodes(named.iter().filter(is_here).map(|named| named.inode))?;
    for named in named.iter().filter(is_here) {
        match txn.inode(named.inode) {
            Ok(_) => here.push(named),
            // A name that leads to nothing moves as it is.
            Err(FsError::Stale) => {}
            Err(error) => return Err(error),
        }
    }
    check_following(txn, here.iter().map(|named| named.inode))?;
    Ok(here)
}

/// The inode is here, with all that it has.
fn arrive(txn: &mut Transaction<'_>, former: &Inode, to: InodeNumber, given: &GivenInode) -> FsResult<()> {
    let data = match &former.data {
        InodeData::Regular(layout) => InodeData::Regular(layout::swap::renumbered(layout, former.number(), to)),
        other => other.clone(),
    };
    let attributes = Attributes { inode: to, ..former.attributes };
    let mut inode = Inode { attributes, version: 0, data, ..former.clone() };
    known_size::arrive(&mut inode, txn.context.era);
    for (name, value) in &given.xattrs {
        txn.put_xattr(to, name, value);
    }
    for (parent, name) in &given.links {
        let further = Link { parent: *parent, name: name.clone() };
        txn.put(LINKS, link::key(to, &further), link::value());
    }
    for (key, value) in &given.data {
        if key.len() > kv::KEY_BYTES_MAX / 2 || value.len() > kv::VALUE_BYTES_MAX {
            return Err(Damage::new("data", "larger than any").into());
        }
        txn.put(DATA, [&to.0.to_be_bytes()[..], key].concat(), value.clone());
    }
    for GivenName { name, inode, kind } in &given.names {
        // What is said of another inode in the batch that changes it has to be true.
        let kind = txn.kind_here(*inode, *kind)?;
        txn.insert_entry(to, NamedInode { name: name.clone(), inode: *inode, kind })?;
    }
    txn.put_inode(&inode);
    Ok(())
}
