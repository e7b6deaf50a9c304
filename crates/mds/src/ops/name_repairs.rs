//! Repairs of names and inodes on different MDTs that contradict each other, for fsck
//! (docs/decisions/0068-repairs-over-several-mdts.md).
//!
//! The MDT of the name decides, and the MDT of the inode promises its part, as in any operation on
//! names. So both look again with everything locked that could change the result, and what has
//! become right since fsck looked is left as it is. Directories have precedence over inodes: what a
//! directory says is reachable. The exceptions are names that no inode can have, which are removed.
//!
//! A directory gets a parent only while the tree is held, and only if it is not above that parent.

use rpc::message::{
    MdtReply,
    mdt::Finding,
    mdt_peer::{Part, Prepared, RemoteName},
    name_repair::{CorrectLink, NAMELESS, NameRepair, NameState},
};
use types::{Credentials, FileKind, FsError, FsResult, InodeNumber};

use super::{
    check::{FirstLink, first_link},
    lost_and_found,
    root_only::require_root,
    shard_repairs,
};
use crate::{
    tables::{
        ORPHANS,
        decision::{DecidedPart, Decision},
        entry::NamedInode,
        inode::{Inode, Link},
        orphan,
    },
    transaction::{Transaction, entries::FoundEntry},
};

/// In an answer: no inode can have the name.
const NO_INODE: InodeNumber = InodeNumber(0);

/// As the MDT of the name.
pub(crate) fn run(txn: &mut Transaction<'_>, who: &Credentials, repair: &NameRepair) -> FsResult<MdtReply> {
    require_root(who)?;
    let repaired = match repair {
        NameRepair::Settle(named) => settle(txn, named)?,
        NameRepair::Rescue(inode) => rescue(txn, *inode)?,
    };
    Ok(MdtReply::Findings(Vec::from_iter(repaired)))
}

pub(super) fn repaired(inode: InodeNumber, problem: String) -> Finding {
    Finding { inode, problem, repaired: true }
}

fn settle(txn: &mut Transaction<'_>, named: &RemoteName) -> FsResult<Option<Finding>> {
    let RemoteName { inode, parent, name, .. } = named;
    if !txn.is_here(*parent) || txn.is_here(*inode) {
        return Err(FsError::Invalid);
    }
    if shard_repairs::concerns(*inode, name) {
        return shard_repairs::settle(txn, named);
    }
    if txn.takes_tree_first() {
        txn.hold_tree()?;
    }
    let directory = match txn.inode(*parent) {
        Err(FsError::Stale) => None,
        found => Some(found?).filter(Inode::is_directory),
    };
    if directory.as_ref().is_some_and(Inode::names_move) {
        // The name may be on its way.
        return Err(FsError::Busy);
    }
    let found = match &directory {
        Some(_) => txn.find_entry(*parent, name)?.filter(|found| found.target.inode == *inode),
        None => None,
    };
    let state = if found.is_some() { NameState::Exists } else { NameState::Absent };
    let link = Link { parent: *parent, name: name.clone() };
    let (decision, prepared) = prepare(txn, *inode, &link, state)?;
    if let (Some(directory), Some(found)) = (directory, found) {
        return settle_existing(txn, directory, &found, decision, &prepared);
    }
    if prepared.entry.is_none() {
        return Ok(None);
    }
    txn.decide(inode.mdt(), decision);
    let name = String::from_utf8_lossy(name);
    let problem = format!("name '{name}' in directory {parent} on {} does not refer to it", parent.mdt());
    Ok(Some(repaired(*inode, problem)))
}

/// Has the MDT of the inode promise its part. Returns what is to be decided if the inode has to
/// change.
pub(super) fn prepare(
    txn: &mut Transaction<'_>,
    inode: InodeNumber,
    link: &Link,
    state: NameState,
) -> FsResult<(Decision, Prepared)> {
    let Link { parent, name } = link.clone();
    let part = Part::CorrectLink(CorrectLink { inode, parent, name: name.clone(), state });
    let (operation, prepared) = txn.prepared(inode.mdt(), part)?;
    let part = match state {
        NameState::Exists | NameState::Rescues => DecidedPart::AddLink(link.clone()),
        NameState::Absent => DecidedPart::DropLink(link.clone()),
    };
    Ok((Decision { operation, inode, part }, prepared))
}

/// The name exists: the inode gets it, or it is removed.
fn settle_existing(
    txn: &mut Transaction<'_>,
    mut directory: Inode,
    found: &FoundEntry,
    decision: Decision,
    prepared: &Prepared,
) -> FsResult<Option<Finding>> {
    let NamedInode { name, inode, kind } = &found.target;
    let (parent, mdt) = (directory.number(), inode.mdt());
    let shown = format!("name '{}' in directory {parent}", String::from_utf8_lossy(name));
    // Number 0 in the answer says that no inode can have it; one in a damaged entry is no inode.
    let mut can_have_it = prepared.inode == *inode && *inode != NO_INODE;
    if can_have_it && prepared.entry.is_some() && prepared.kind == FileKind::Directory {
        txn.hold_tree_first()?;
        can_have_it = !txn.is_above(*inode, parent)?;
    }
    let is_directory = |kind: FileKind| u32::from(kind == FileKind::Directory);
    let others = directory.attributes.links.saturating_sub(is_directory(*kind));
    let problem = if !can_have_it {
        txn.remove_entry(parent, found)?;
        directory.attributes.links = others;
        format!("{shown} refers to no inode on {mdt} that can have it")
    } else if *kind != prepared.kind {
        txn.retarget_entry(parent, found, *inode, prepared.kind)?;
        directory.attributes.links = others + is_directory(prepared.kind);
        format!("{shown} says {kind:?}, the inode on {mdt} is {:?}", prepared.kind)
    } else if prepared.entry.is_some() {
        format!("{shown} is unknown to its inode on {mdt}")
    } else {
        return Ok(None);
    };
    txn.release_space();
    if can_have_it && prepared.entry.is_some() {
        txn.decide(mdt, decision);
    }
    txn.give_tree_back();
    txn.touch_directory(&mut directory);
    txn.put_inode(&directory);
    Ok(Some(repaired(*inode, problem)))
}

/// Gives an inode on another MDT a name in `lost+found`.
fn rescue(txn: &mut Transaction<'_>, inode: InodeNumber) -> FsResult<Option<Finding>> {
    if !txn.is_here(InodeNumber::ROOT) || txn.is_here(inode) {
        return Err(FsError::Invalid);
    }
    // Else lost+found might come below a directory that goes into it.
    txn.hold_tree()?;
    let directory = lost_and_found::open(txn)?;
    // As if lost+found were unusable: it has to be renamed too.
    let link = lost_and_found::free_name(txn, directory.number(), inode)?.ok_or(FsError::NotSupported)?;
    let (decision, prepared) = prepare(txn, inode, &link, NameState::Rescues)?;
    if prepared.entry.is_none() {
        return Ok(None);
    }
    let problem = format!("{NAMELESS}; it is '{}' in lost+found now", String::from_utf8_lossy(&link.name));
    lost_and_found::add(txn, directory, NamedInode { name: link.name, inode, kind: prepared.kind })?;
    txn.decide(inode.mdt(), decision);
    txn.give_tree_back();
    Ok(Some(repaired(inode, problem)))
}

/// What the MDT of the inode says of a name.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    /// No inode can have it.
    Impossible,
    /// A shard that has to exist does not.
    Missing,
    /// The inode is as it should be.
    Agrees,
    /// The inode has to change.
    Differs,
}

/// As the MDT of the inode. `Exists`: a directory that has another name on another MDT.
fn verdict(txn: &Transaction<'_>, part: &CorrectLink, inode: Option<&Inode>) -> FsResult<Verdict> {
    if shard_repairs::concerns(part.inode, &part.name) {
        return shard_repairs::verdict(txn, part, inode);
    }
    let link = Link { parent: part.parent, name: part.name.clone() };
    let holds = inode.map_or(Ok(false), |inode| txn.has_link(inode, &link))?;
    Ok(match (part.state, inode) {
        (NameState::Exists, _) if holds => Verdict::Agrees,
        (NameState::Exists, None) => Verdict::Impossible,
        (NameState::Exists, Some(inode)) if inode.number() == InodeNumber::ROOT || inode.number().is_shard() => {
            Verdict::Impossible
        }
        (NameState::Exists, Some(inode)) if inode.is_directory() => match first_link(txn, inode)? {
            FirstLink::Holds => Verdict::Impossible,
            FirstLink::Absent => Verdict::Differs,
            // It may be wrong, and this name the only one.
            FirstLink::Elsewhere(_) => return Err(FsError::Exists),
        },
        (NameState::Exists, Some(_)) => Verdict::Differs,
        (NameState::Absent, _) if holds => Verdict::Differs,
        (NameState::Rescues, Some(inode)) if is_nameless(txn, inode)? => Verdict::Differs,
        (NameState::Absent | NameState::Rescues, _) => Verdict::Agrees,
    })
}

/// Whether no name leads to an inode that was not removed. Shards never have one.
fn is_nameless(txn: &Transaction<'_>, inode: &Inode) -> FsResult<bool> {
    let number = inode.number();
    let may_be = inode.attributes.links > 0 && inode.first_link.is_none() && !number.is_shard();
    Ok(may_be && number != InodeNumber::ROOT && txn.further_links(number, 1)?.is_empty())
}

/// As the MDT of the inode: what is promised. Waits while another operation has the inode in doubt.
pub(super) fn promised(txn: &Transaction<'_>, part: &CorrectLink) -> FsResult<Vec<InodeNumber>> {
    let inode = match txn.inode(part.inode) {
        Err(FsError::Stale) => None,
        found => Some(found?),
    };
    match verdict(txn, part, inode.as_ref())? {
        // The number of a shard is given to nothing else meanwhile.
        Verdict::Differs | Verdict::Missing => Ok(vec![part.inode]),
        Verdict::Impossible | Verdict::Agrees => Ok(Vec::new()),
    }
}

/// The answer to the MDT of the name.
pub(super) fn answer(txn: &Transaction<'_>, part: &CorrectLink) -> FsResult<Prepared> {
    let inode = txn.find_inode(part.inode)?;
    let verdict = verdict(txn, part, inode.as_ref())?;
    Ok(Prepared {
        inode: if matches!(verdict, Verdict::Impossible | Verdict::Missing) { NO_INODE } else { part.inode },
        start: txn.volatile.peers.start(),
        kind: inode.as_ref().map_or(FileKind::Directory, Inode::kind),
        undurable: None,
        parent: None,
        map: None,
        entry: inode.filter(|_| verdict == Verdict::Differs).map(|inode| Box::new(inode.entry())),
    })
}

/// It is decided: the inode has this name.
pub(super) fn take(txn: &mut Transaction<'_>, number: InodeNumber, link: Link) -> FsResult<()> {
    let Some(mut inode) = txn.find_inode(number)? else { return Ok(()) };
    if inode.is_directory() {
        inode.first_link = Some(link);
    } else if !txn.has_link(&inode, &link)? {
        txn.add_link(&mut inode, link);
    }
    if inode.attributes.links == 0 {
        txn.delete(ORPHANS, orphan::key(number));
        inode.not_linkable = false;
    }
    store_counted(txn, inode)
}

/// It is decided: the inode does not have this name. Without any name it stays, for
/// `lost+found`.
pub(super) fn forget(txn: &mut Transaction<'_>, number: InodeNumber, link: &Link) -> FsResult<()> {
    let Some(mut inode) = txn.find_inode(number)? else { return Ok(()) };
    if number.is_shard() {
        // It is empty.
        return txn.drop_link(&mut inode, link);
    }
    txn.remove_link(&mut inode, link)?;
    store_counted(txn, inode)
}

/// Stores an inode with the right count of links. That of a directory counts what is in it.
fn store_counted(txn: &mut Transaction<'_>, mut inode: Inode) -> FsResult<()> {
    if !inode.is_directory() {
        let names = txn.further_links(inode.number(), usize::MAX)?.len() + usize::from(inode.first_link.is_some());
        inode.attributes.links = u32::try_from(names.max(1)).unwrap_or(u32::MAX);
    } else if inode.attributes.links == 0 {
        inode.attributes.links = txn.links_of_directory(inode.number())?;
    }
    inode.change(txn.now());
    txn.put_inode(&inode);
    Ok(())
}
