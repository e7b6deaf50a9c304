//! The part of this MDT in a move of an inode to another one
//! (docs/decisions/0066-inodes-that-move.md): it has the inode, or names of it.
//!
//! The MDT that has the inode promises to give it away, with all that it has of it: attributes,
//! extended attributes, access lists, layout, data on the MDT, and the names in a directory. Locked
//! are the inode, the directories here that have its names, and the inodes here that are named in
//! it. Files that are open, or being truncated, stay: a client has their number.
//!
//! Objects on OSTs stay where they are, under the names that they have: the layout says whose
//! number is in these (`layout::swap`).

use rpc::message::{
    mdt_peer::OperationId,
    moved_inode::{GivenInode, GivenName, LeadNames},
};
use types::{
    FileKind, FsError, FsResult, InodeNumber,
    limits::{GIVEN_BYTES_MAX, GIVEN_NAMES_MAX},
};

use super::{layout_changes::is_at_rest, lost_and_found::LOST_AND_FOUND, peers::follow_name};
use crate::{
    known_size,
    peers::{era_of, has_lost_power},
    tables::{
        DATA, PREPARED,
        decision::LedNames,
        entry::{NamedInode, Position},
        inode::{Inode, InodeData, Link, Striping},
        prepared::{self, Promise},
    },
    transaction::Transaction,
};

/// Estimate of what a name, an attribute or a block of data takes besides its bytes.
const HEAD_BYTES: usize = 32;

/// What is locked of an inode that is given away.
pub(super) struct Locked {
    /// The inode first.
    pub inodes: Vec<InodeNumber>,
    /// Of these, the directories that have its names.
    pub parents: Vec<InodeNumber>,
}

/// Whether an inode can be given away. Returns what is locked for that.
pub(super) fn check(txn: &Transaction<'_>, number: InodeNumber, may_be_striped: bool) -> FsResult<Locked> {
    let inode = txn.inode(number)?;
    check_movable(txn, &inode, may_be_striped)?;
    let mut parents = Vec::new();
    for Link { parent, name } in links_here(txn, &inode)? {
        txn.directory(parent)?;
        if !leads_to(txn, parent, &name, number)? {
            return Err(FsError::Stale);
        }
        parents.push(parent);
    }
    let mut others = parents.clone();
    let children: Vec<InodeNumber> = children_here(txn, &inode)?.into_iter().map(|(child, _)| child).collect();
    txn.need_inodes(children.iter().copied())?;
    for child in &children {
        match txn.inode(*child) {
            Ok(_) => others.push(*child),
            // A name that leads to nothing moves as it is.
            Err(FsError::Stale) => {}
            Err(error) => return Err(error),
        }
    }
    check_following(txn, children.into_iter())?;
    if bytes_of(&given(txn, number)?) > GIVEN_BYTES_MAX {
        return Err(FsError::TooBig);
    }
    others.sort();
    others.dedup();
    // Only damage makes it its own parent.
    others.retain(|other| *other != number);
    Ok(Locked { inodes: [&[number], &others[..]].concat(), parents })
}

/// Inodes here that follow one which moves change in the same batch.
pub(super) fn check_following(txn: &Transaction<'_>, children: impl Iterator<Item = InodeNumber>) -> FsResult<()> {
    let mut bytes = 0;
    for child in children {
        bytes += txn.record_bytes(child)?;
    }
    if bytes > txn.context.following_bytes_max() { Err(FsError::TooBig) } else { Ok(()) }
}

fn check_movable(txn: &Transaction<'_>, inode: &Inode, may_be_striped: bool) -> FsResult<()> {
    let is_found_by_name = |link: &Link| link.parent == InodeNumber::ROOT && link.name == LOST_AND_FOUND;
    if inode.number() == InodeNumber::ROOT || inode.first_link.as_ref().is_some_and(is_found_by_name) {
        return Err(FsError::Invalid);
    }
    match inode.striping {
        Striping::None => {}
        Striping::Over(..) if may_be_striped => {}
        Striping::Over(..) | Striping::Shard(_) => return Err(FsError::NotSupported),
    }
    if inode.attributes.links == 0 {
        return Err(FsError::Stale);
    }
    if inode.names_move() {
        // Its number is in what it tells the shards until all have moved.
        return txn.wait_for_peer(txn.mdt);
    }
    if txn.volatile.recovery.running() {
        // Clients of the former start may have it open.
        return txn.wait_for_peer(txn.mdt);
    }
    let is_unused = !txn.is_open(inode.number()) && !txn.volatile.is_layout_changing(inode.number());
    if is_unused && is_at_rest(txn, inode) { Ok(()) } else { Err(FsError::Busy) }
}

/// All names of an inode; more than can move are an error.
fn links(txn: &Transaction<'_>, inode: &Inode) -> FsResult<Vec<Link>> {
    let further = match inode.is_directory() {
        true => Vec::new(),
        false => txn.further_links(inode.number(), GIVEN_NAMES_MAX)?,
    };
    let links: Vec<Link> = inode.first_link.iter().cloned().chain(further).collect();
    if links.len() > GIVEN_NAMES_MAX { Err(FsError::TooBig) } else { Ok(links) }
}

fn links_here(txn: &Transaction<'_>, inode: &Inode) -> FsResult<Vec<Link>> {
    Ok(links(txn, inode)?.into_iter().filter(|link| txn.is_here(link.parent)).collect())
}

/// The names in a directory; more than can move are an error.
fn names_in(txn: &Transaction<'_>, inode: &Inode) -> FsResult<Vec<NamedInode>> {
    let mut names = Vec::new();
    if inode.is_directory() {
        txn.visit_entries(inode.number(), Position(0), &mut |found| {
            names.push(found.target);
            Ok(names.len() <= GIVEN_NAMES_MAX)
        })?;
    }
    if names.len() > GIVEN_NAMES_MAX { Err(FsError::TooBig) } else { Ok(names) }
}

/// The inodes here that are named in a directory, with their names; the shards of a striped one
/// have an empty name.
fn children_here(txn: &Transaction<'_>, inode: &Inode) -> FsResult<Vec<(InodeNumber, Vec<u8>)>> {
    let named = names_in(txn, inode)?.into_iter().map(|named| (named.inode, named.name));
    let shards = inode.map().into_iter().flat_map(|map| map.shards).map(|shard| (shard, Vec::new()));
    Ok(named.chain(shards).filter(|(child, _)| txn.is_here(*child)).collect())
}

fn leads_to(txn: &Transaction<'_>, parent: InodeNumber, name: &[u8], inode: InodeNumber) -> FsResult<bool> {
    Ok(txn.find_entry(parent, name)?.is_some_and(|found| found.target.inode == inode))
}

/// What is given away of an inode, as it is now: it does not change while it is promised.
pub(super) fn given(txn: &Transaction<'_>, number: InodeNumber) -> FsResult<GivenInode> {
    let mut inode = txn.find_inode(number)?.ok_or(FsError::Stale)?;
    if inode.is_directory() {
        // It has to hold without the root directory.
        inode.data = InodeData::Directory(txn.stored_default(&inode)?);
    }
    if let InodeData::Regular(layout) = &mut inode.data {
        // Nothing tells the other MDT which slots a loss of power here concerns.
        layout.skip_lost_slots(txn.context.era);
    }
    let mut xattrs = Vec::new();
    for name in txn.xattr_names(number)? {
        xattrs.extend(txn.xattr(number, &name)?.map(|value| (name, value)));
    }
    let further = links(txn, &inode)?.into_iter().skip(inode.first_link.iter().len());
    let links = further.map(|Link { parent, name }| (parent, name)).collect();
    let names =
        names_in(txn, &inode)?.into_iter().map(|NamedInode { name, inode, kind }| GivenName { name, inode, kind });
    let (mut data, key) = (Vec::new(), number.0.to_be_bytes());
    let mut bytes = 0;
    txn.scan_prefix(DATA, &key, &mut |found, value| {
        bytes += value.len();
        data.push((found[key.len()..].to_vec(), value.to_vec()));
        Ok(bytes <= GIVEN_BYTES_MAX)
    })?;
    let start = txn.volatile.peers.start();
    Ok(GivenInode { start, record: inode.encode_at(1), xattrs, links, data, names: names.collect() })
}

fn bytes_of(given: &GivenInode) -> usize {
    let pair = |(key, value): &(Vec<u8>, Vec<u8>)| HEAD_BYTES + key.len() + value.len();
    given.record.len()
        + given.xattrs.iter().chain(&given.data).map(pair).sum::<usize>()
        + given.links.iter().map(|(_, name)| HEAD_BYTES + name.len()).sum::<usize>()
        + given.names.iter().map(|named| HEAD_BYTES + named.name.len()).sum::<usize>()
}

/// Whether names of a directory here can lead to the same inode under another number.
pub(super) fn check_names(txn: &Transaction<'_>, part: &LeadNames) -> FsResult<()> {
    txn.directory(part.parent)?;
    for name in &part.names {
        if !leads_to(txn, part.parent, name, part.inode)? {
            return Err(FsError::Stale);
        }
    }
    Ok(())
}

/// The MDT that has decided has the inode, under this number: here it is gone.
pub(super) fn give(txn: &mut Transaction<'_>, number: InodeNumber, to: InodeNumber) -> FsResult<()> {
    let Some(inode) = txn.find_inode(number)? else { return Ok(()) };
    let kind = inode.kind();
    for Link { parent, name } in links_here(txn, &inode)? {
        let led = LedNames { from: number, to, kind, names: vec![name] };
        lead(txn, parent, &led)?;
    }
    for (child, name) in children_here(txn, &inode)? {
        let (old, new) = (Link { parent: number, name: name.clone() }, Link { parent: to, name });
        follow_name(txn, child, &old, new)?;
    }
    txn.remove_given(&inode)
}

/// Names of a directory lead to the number that an inode has now.
pub(super) fn lead(txn: &mut Transaction<'_>, parent: InodeNumber, led: &LedNames) -> FsResult<()> {
    for name in &led.names {
        match txn.find_entry(parent, name)?.filter(|found| found.target.inode == led.from) {
            Some(found) => txn.retarget_entry(parent, &found, led.to, led.kind)?,
            None => {
                tracing::error!(%parent, inode = %led.from, "a name that was to lead elsewhere is not as it was promised")
            }
        }
    }
    Ok(())
}

/// An inode that was promised stays after all, and the coordinator, which has started again, may
/// have had it until a loss of power. What clients did with it there is lost, but not what they
/// wrote to its objects: they are asked for its size. New ones get other slots than any that the
/// coordinator can have given.
pub(super) fn doubt(txn: &mut Transaction<'_>, operation: OperationId, start: u64) -> FsResult<()> {
    if !has_lost_power(operation.start, start) {
        return Ok(());
    }
    let Some(value) = txn.get(PREPARED, &prepared::key(operation))? else { return Ok(()) };
    let (Promise::Give, inodes) = prepared::decode(&value)? else { return Ok(()) };
    let Some(number) = inodes.first() else { return Ok(()) };
    if let Some(mut inode) = txn.find_inode(*number)?.filter(|inode| inode.kind() == FileKind::Regular) {
        // No client has anything of it cached since it was promised.
        txn.must_not_wait();
        known_size::lose_writer(&mut inode);
        if let InodeData::Regular(layout) = &mut inode.data {
            layout.skip_lost_slots(1 + layout.slot_range().max(era_of(operation.start)));
        }
        txn.put_inode(&inode);
    }
    Ok(())
}
