//! The part of this MDT in operations that other MDTs decide, and what MDTs tell each other when
//! they start (docs/decisions/0049-namespace-over-several-mdts.md). Each of these may be repeated.

use lock::{InodeBits, inode_bit};
use rpc::message::{
    MdtReply,
    mdt_peer::{
        Above, CopyAttributes, Decisions, DropLink, Join, Joined, MoveLink, MoveName, OperationId, Part, Prepare,
        Prepared,
    },
    session::feature,
};
use types::{
    Attributes, Credentials, Damage, DirectoryMap, FileKind, FsError, FsResult, InodeNumber, MdtIndex, NameHash,
    limits::{self, PREPARED_PER_MDT_MAX},
    permission,
};

use super::{copies, given_inodes, merge, name_repairs, rename::rename_link, split};
use crate::{
    known_size,
    peers::PeerChange,
    protection,
    tables::{
        APPLIED, ORPHANS, PREPARED, applied,
        decision::{DecidedPart, Decision, MovedName},
        inode::{Inode, Link},
        orphan,
        prepared::{self, Promise},
    },
    transaction::Transaction,
};

pub(crate) fn prepare(txn: &mut Transaction<'_>, request: &Prepare) -> FsResult<MdtReply> {
    let operation = request.operation;
    if txn.volatile.peers.start() == 0 {
        // Until then an answer would belong to no start.
        return txn.wait_for_peer(txn.mdt);
    }
    if operation.start < txn.volatile.peers.start_of(operation.coordinator) {
        return Err(FsError::Stale);
    }
    if let Some(inodes) = txn.volatile.peers.prepared(operation) {
        return answer(txn, &request.part, &inodes);
    }
    let inodes = match &request.part {
        Part::MakeDirectory => {
            let inode = txn.reserve_number();
            txn.change_peers(PeerChange::Hold(operation, inode));
            vec![inode]
        }
        Part::MakeShard => {
            let inode = txn.reserve_number().as_shard();
            txn.change_peers(PeerChange::Hold(operation, inode));
            vec![inode]
        }
        Part::CopyAttributes(part) => {
            check_copy(txn, *part)?;
            promise(txn, operation, Promise::Attributes, vec![part.shard])?
        }
        Part::DropLink(part) => {
            check_drop(txn, part)?;
            promise(txn, operation, Promise::DropLink, vec![part.inode])?
        }
        Part::MoveLink(part) => {
            check_move(txn, part)?;
            promise(txn, operation, Promise::MoveLink, vec![part.inode])?
        }
        Part::AddLink(part) => {
            check_addition(txn, &txn.inode(part.inode)?)?;
            promise(txn, operation, Promise::AddLink, vec![part.inode])?
        }
        Part::MoveName(part) => {
            let inodes = check_name(txn, part)?;
            if inodes.is_empty() { inodes } else { promise(txn, operation, Promise::MoveName, inodes)? }
        }
        Part::FollowName(part) => {
            split::check_following(txn, part)?;
            promise(txn, operation, Promise::Follow, vec![part.inode])?
        }
        Part::GiveInode(inode) | Part::GiveStriped(inode) => {
            let may_be_striped = matches!(request.part, Part::GiveStriped(_));
            let locked = given_inodes::check(txn, *inode, may_be_striped)?;
            promise_but(txn, operation, Promise::Give, (locked.inodes, &locked.parents))?
        }
        Part::LeadNames(part) => {
            given_inodes::check_names(txn, part)?;
            promise(txn, operation, Promise::LeadNames, vec![part.parent])?
        }
        Part::GiveNames(part) => {
            merge::check_giving(txn, part)?;
            promise(txn, operation, Promise::Attributes, vec![part.shard])?
        }
        Part::CorrectLink(part) => {
            let inodes = name_repairs::promised(txn, part)?;
            if inodes.is_empty() { inodes } else { promise(txn, operation, Promise::Correct, inodes)? }
        }
        Part::Tree => {
            if let Some(other) = txn.volatile.peers.keeps_tree(txn.mdt) {
                return txn.wait_for_peer(other);
            }
            txn.change_peers(PeerChange::Tree(operation));
            Vec::new()
        }
    };
    answer(txn, &request.part, &inodes)
}

/// The answer, also to a copy: what it says cannot change as long as it is prepared.
fn answer(txn: &Transaction<'_>, part: &Part, inodes: &[InodeNumber]) -> FsResult<MdtReply> {
    if let Part::GiveInode(inode) | Part::GiveStriped(inode) = part {
        let is_overstriped = txn.find_inode(*inode)?.is_some_and(|inode| inode.is_overstriped());
        if is_overstriped && !txn.context.knows(feature::OVERSTRIPED_DIRECTORIES) {
            return Err(FsError::NotSupported);
        }
        return Ok(MdtReply::Given(Box::new(given_inodes::given(txn, *inode)?)));
    }
    if let Part::CorrectLink(part) = part {
        return Ok(MdtReply::Prepared(Box::new(name_repairs::answer(txn, part)?)));
    }
    let first = inodes.first().copied().unwrap_or(InodeNumber::ROOT);
    let (mut inode, mut kind, mut parent, mut parent_shard) = (first, FileKind::Directory, None, None);
    if let Part::MoveName(part) = part {
        let target = txn.entry(part.parent, &part.name)?.target;
        (inode, kind) = (target.inode, target.kind);
        let directory = txn.find_inode(part.parent)?;
        parent_shard = directory.as_ref().and_then(Inode::striped);
        parent = directory.map(|directory| directory.attributes);
    }
    let found = if txn.is_here(inode) && *part != Part::Tree { txn.find_inode(inode)? } else { None };
    kind = found.as_ref().map_or(kind, Inode::kind);
    let undurable = found.as_ref().and_then(known_size::undurable_layout).cloned();
    let start = txn.volatile.peers.start();
    let map = match (part, parent_shard) {
        (Part::MoveName(_), master) => {
            master.map(|master| DirectoryMap { master, hash: NameHash::default(), shards: Vec::new() })
        }
        _ => found.as_ref().and_then(Inode::map),
    };
    if map.as_ref().is_some_and(DirectoryMap::is_overstriped) && !txn.context.knows(feature::OVERSTRIPED_DIRECTORIES) {
        // It would take the map for damaged.
        return Err(FsError::NotSupported);
    }
    let entry = found.as_ref().filter(|_| matches!(part, Part::AddLink(_))).map(|inode| Box::new(inode.entry()));
    Ok(MdtReply::Prepared(Box::new(Prepared { inode, start, kind, undurable, parent, map, entry })))
}

/// A name says something else of what it leads to than that is.
pub(super) fn wrong_kind(inode: InodeNumber) -> FsError {
    let problem = format!("it says another kind than inode {inode} has").into();
    Damage::Record { what: "directory entry".into(), problem }.into()
}

/// Whether a name of an inode may be taken, which is in a directory of another MDT.
fn check_taking(
    txn: &Transaction<'_>,
    who: &Credentials,
    inode: &Inode,
    (parent, name): (&Attributes, &[u8]),
) -> FsResult<()> {
    if permission::sticky_forbids(who, parent, &inode.attributes) {
        return Err(FsError::NotPermitted);
    }
    protection::check_change(&inode.attributes)?;
    match txn.has_link(inode, &Link { parent: parent.inode, name: name.to_vec() })? {
        true => Ok(()),
        false => Err(FsError::Stale),
    }
}

/// Whether a shard is one of this directory.
fn check_copy(txn: &Transaction<'_>, part: CopyAttributes) -> FsResult<()> {
    match txn.inode(part.shard)?.master() {
        Some(master) if master == part.master => Ok(()),
        _ => Err(FsError::Stale),
    }
}

fn check_drop(txn: &Transaction<'_>, part: &DropLink) -> FsResult<()> {
    let victim = match txn.inode(part.inode) {
        // Damage, which fsck reports: it must not keep its directory from being removed.
        Err(FsError::Stale) if part.inode.is_shard() => return Ok(()),
        found => found?,
    };
    txn.has_all_names(&victim)?;
    check_taking(txn, &part.who, &victim, (&part.parent, &part.name))?;
    match (part.directory, victim.is_directory()) {
        (true, false) => Err(FsError::NotDirectory),
        (false, true) => Err(FsError::IsDirectory),
        (true, true) if !txn.is_empty_directory(part.inode)? => Err(FsError::NotEmpty),
        _ => Ok(()),
    }
}

fn check_move(txn: &Transaction<'_>, part: &MoveLink) -> FsResult<()> {
    let inode = txn.inode(part.inode)?;
    check_taking(txn, &part.who, &inode, (&part.parent, &part.name))?;
    let differs = part.parent.inode != part.new_parent && !part.same_directory;
    check_new_parent(txn, &part.who, &inode, differs)
}

/// A directory that gets another parent is written to: its `..` changes.
fn check_new_parent(txn: &Transaction<'_>, who: &Credentials, inode: &Inode, differs: bool) -> FsResult<()> {
    if inode.is_directory() && differs { txn.require(who, inode, permission::WRITE) } else { Ok(()) }
}

/// Whether a file may get one more name in a directory of another MDT.
fn check_addition(txn: &Transaction<'_>, inode: &Inode) -> FsResult<()> {
    protection::check_change(&inode.attributes)?;
    if inode.is_directory() {
        return Err(FsError::NotPermitted);
    }
    match inode.attributes.links {
        0 if inode.not_linkable => {
            let passed_by = txn.volatile.removed.contains(inode.number()) && !txn.is_open(inode.number());
            Err(if passed_by { FsError::Stale } else { FsError::NotFound })
        }
        limits::LINKS_MAX.. => Err(FsError::TooManyLinks),
        _ => Ok(()),
    }
}

/// Whether a name here may end, or lead to what a name of another MDT leads to. Returns what is
/// locked for that; nothing if nothing will change.
fn check_name(txn: &Transaction<'_>, part: &MoveName) -> FsResult<Vec<InodeNumber>> {
    let (who, directory) = (&part.who, txn.enterable(&part.who, part.parent)?);
    // Its client does not know yet which directory or shard has the name.
    txn.has_name_for_peer(&directory, &part.name)?;
    let moved = txn.entry(part.parent, &part.name)?.target;
    if moved.inode == part.parent {
        return Err(Damage::Cycle(part.parent).into());
    }
    let is_target = |inode| part.target.is_some_and(|(target, _)| target == inode);
    // What it replaces, or is exchanged with, would have it.
    if is_target(part.parent) || directory.master().is_some_and(is_target) {
        return Err(if part.exchange { FsError::Invalid } else { FsError::NotEmpty });
    }
    let required = txn.require(who, &directory, permission::WRITE | permission::EXECUTE);
    let permitted = required.and_then(|()| protection::check_change(&directory.attributes));
    if is_target(moved.inode) {
        // Both names are those of one file: nothing will change, whatever is permitted. But only a
        // caller that might change it can lock the directory.
        return match permitted {
            Err(FsError::AccessDenied | FsError::NotPermitted) => Ok(Vec::new()),
            permitted => permitted.map(|()| vec![part.parent]),
        };
    }
    permitted?;
    let exchanged = part.target.filter(|_| part.exchange);
    let mut inodes = vec![part.parent];
    if txn.is_here(moved.inode) {
        let inode = txn.inode(moved.inode)?;
        check_taking(txn, who, &inode, (&directory.attributes, &part.name))?;
        check_new_parent(txn, who, &inode, !part.same_directory)?;
        let may_have_lost = part.target.is_some() && part.era.is_some_and(|era| era < txn.context.era);
        if !part.exchange && may_have_lost && inode.kind() == FileKind::Regular {
            return Err(txn.lost_changes());
        }
        inodes.push(moved.inode);
    }
    if let Some((target, kind)) = exchanged {
        if txn.is_here(target) {
            let inode = txn.inode(target)?;
            if inode.kind() != kind {
                return Err(wrong_kind(target));
            }
            check_taking(txn, who, &inode, (&part.new_parent, &part.new_name))?;
            check_new_parent(txn, who, &inode, !part.same_directory)?;
            inodes.push(target);
        }
        let grows = kind == FileKind::Directory && moved.kind != FileKind::Directory;
        if grows && directory.attributes.links >= limits::LINKS_MAX {
            return Err(FsError::TooManyLinks);
        }
    }
    Ok(inodes)
}

/// From now on nothing of these inodes is shown or changed: no client keeps any of it. But where
/// the first one is found stays as it is if only names in it, or its copied attributes, change.
fn promise(
    txn: &mut Transaction<'_>,
    operation: OperationId,
    promise: Promise,
    inodes: Vec<InodeNumber>,
) -> FsResult<Vec<InodeNumber>> {
    let keeps_name = matches!(promise, Promise::MoveName | Promise::LeadNames | Promise::Attributes);
    let found = inodes.first().copied().filter(|_| keeps_name);
    promise_but(txn, operation, promise, (inodes, found.as_slice()))
}

/// The same; `found`: those of them that are found where they were, whatever becomes of the
/// operation. Kernels would drop what is mounted below them.
fn promise_but(
    txn: &mut Transaction<'_>,
    operation: OperationId,
    promise: Promise,
    (inodes, found): (Vec<InodeNumber>, &[InodeNumber]),
) -> FsResult<Vec<InodeNumber>> {
    if txn.volatile.peers.promised_to(operation.coordinator).count() >= PREPARED_PER_MDT_MAX {
        return Err(FsError::Busy);
    }
    txn.release_space();
    txn.put(PREPARED, prepared::key(operation), prepared::encode(promise, &inodes));
    for inode in &inodes {
        let kept = if found.contains(inode) { InodeBits(inode_bit::LOOKUP) } else { InodeBits::NONE };
        txn.withdraw(*inode, InodeBits::ALL & !kept);
    }
    txn.change_peers(PeerChange::Promise(operation, promise, inodes.clone()));
    Ok(inodes)
}

/// What is known here of the way from a directory to the root.
pub(crate) fn above(txn: &Transaction<'_>, request: &Above) -> FsResult<MdtReply> {
    Ok(MdtReply::Ancestry(txn.way_up(request.directory, request.from)?))
}

/// The operation will not be decided.
pub(crate) fn abort(txn: &mut Transaction<'_>, operation: OperationId) -> FsResult<MdtReply> {
    release(txn, operation)?;
    Ok(MdtReply::Done)
}

fn release(txn: &mut Transaction<'_>, operation: OperationId) -> FsResult<()> {
    txn.release_space();
    let key = prepared::key(operation);
    if let Some(value) = txn.get(PREPARED, &key)? {
        let (promise, inodes) = prepared::decode(&value)?;
        txn.delete(PREPARED, key);
        if let (Promise::AddLink, [inode]) = (promise, &inodes[..])
            && txn.find_inode(*inode)?.is_some_and(|inode| inode.attributes.links == 0)
        {
            // It got no name. Its last close may have come meanwhile.
            txn.reap_released(*inode)?;
        }
    }
    txn.change_peers(PeerChange::Release(operation));
    Ok(())
}

/// The last decision of an MDT that was carried out here.
fn applied(txn: &Transaction<'_>, mdt: MdtIndex) -> FsResult<u64> {
    txn.get(APPLIED, &applied::key(mdt))?.map_or(Ok(0), |value| applied::decode(&value))
}

/// Carries out those decisions that were not carried out before, as many of them as fit into one
/// batch: `Waiting` if there are more. This MDT asks itself for those before it answers.
pub(crate) fn apply(txn: &mut Transaction<'_>, request: &Decisions) -> FsResult<MdtReply> {
    // Clients gave back what they had of these inodes before it was prepared.
    txn.must_not_wait();
    let before = applied(txn, request.source)?;
    let (mut last, mut reply) = (before, MdtReply::Done);
    for (sequence, record) in (request.first..).zip(&request.records) {
        if sequence <= last {
            continue;
        }
        if last.checked_add(1) != Some(sequence) {
            tracing::error!(source = %request.source, sequence, last, "decisions of another MDT are missing");
            return Err(FsError::Invalid);
        }
        if last > before && txn.is_large() {
            reply = MdtReply::Waiting;
            break;
        }
        carry_out(txn, Decision::decode(record)?)?;
        last = sequence;
    }
    if last > before {
        txn.release_space();
        txn.put(APPLIED, applied::key(request.source), applied::encode(last));
        txn.change_peers(PeerChange::Applied);
    }
    Ok(reply)
}

fn carry_out(txn: &mut Transaction<'_>, decision: Decision) -> FsResult<()> {
    let Decision { operation, inode, part } = decision;
    if inode.mdt() != txn.mdt {
        return Err(FsError::Invalid);
    }
    match part {
        DecidedPart::Make { record, xattrs } => {
            if txn.find_inode(inode)?.is_none() {
                make(txn, inode, &record, &xattrs)?;
            }
        }
        DecidedPart::DropLink(name) => match promised(txn, operation)? {
            Some(Promise::Correct) => name_repairs::forget(txn, inode, &name)?,
            _ => drop_link(txn, inode, &name)?,
        },
        DecidedPart::MoveLink(old, new) => match promised(txn, operation)? {
            Some(Promise::Follow) => follow_name(txn, inode, &old, new)?,
            _ => move_link(txn, inode, &old, new)?,
        },
        DecidedPart::AddLink(new) => match promised(txn, operation)? {
            Some(Promise::Correct) => name_repairs::take(txn, inode, new)?,
            _ => add_link(txn, inode, new)?,
        },
        DecidedPart::MoveName(moved) => move_name(txn, inode, moved)?,
        DecidedPart::CopyAttributes(copied) => copies::take_over(txn, inode, &copied)?,
        DecidedPart::AddNames { names, place } => split::add_names(txn, inode, names, place)?,
        DecidedPart::Give(to) => given_inodes::give(txn, inode, to)?,
        DecidedPart::LeadNames(led) => given_inodes::lead(txn, inode, &led)?,
        DecidedPart::GiveNames => merge::give_names(txn, inode)?,
        DecidedPart::ReturnNames(returned) => merge::take_back(txn, inode, returned)?,
        DecidedPart::Tree => {}
    }
    release(txn, operation)
}

fn make(txn: &mut Transaction<'_>, inode: InodeNumber, record: &[u8], xattrs: &[(Vec<u8>, Vec<u8>)]) -> FsResult<()> {
    // It has never been stored here.
    let made = Inode { version: 0, ..Inode::decode(inode, record)? };
    txn.adopt_number(inode);
    xattrs.iter().for_each(|(name, value)| txn.put_xattr(inode, name, value));
    txn.put_inode(&made);
    Ok(())
}

fn drop_link(txn: &mut Transaction<'_>, inode: InodeNumber, name: &Link) -> FsResult<()> {
    let Some(mut victim) = txn.find_inode(inode)? else { return Ok(()) };
    if !txn.has_link(&victim, name)? || !txn.is_empty_directory(inode)? {
        tracing::error!(%inode, "an inode whose name has ended is not as it was promised; it keeps the name");
        return Ok(());
    }
    txn.drop_link(&mut victim, name)
}

fn promised(txn: &Transaction<'_>, operation: OperationId) -> FsResult<Option<Promise>> {
    let value = txn.get(PREPARED, &prepared::key(operation))?;
    value.map(|value| Ok(prepared::decode(&value)?.0)).transpose()
}

/// A name is in another directory, or its directory has another number. Nobody has renamed the
/// inode: no time changes, as where the name is on the same MDT. One that does not know its name is
/// as damaged as before.
pub(super) fn follow_name(txn: &mut Transaction<'_>, inode: InodeNumber, old: &Link, new: Link) -> FsResult<()> {
    match txn.find_inode(inode)? {
        Some(mut named) if txn.has_link(&named, old)? => txn.replace_link(&mut named, old, new),
        _ => Ok(()),
    }
}

fn move_link(txn: &mut Transaction<'_>, inode: InodeNumber, old: &Link, new: Link) -> FsResult<()> {
    let Some(mut moved) = txn.find_inode(inode)? else { return Ok(()) };
    if !txn.has_link(&moved, old)? {
        tracing::error!(%inode, "an inode that was to get another name does not have the old one; it keeps its own");
        return Ok(());
    }
    rename_link(txn, &mut moved, old, new)
}

fn add_link(txn: &mut Transaction<'_>, inode: InodeNumber, new: Link) -> FsResult<()> {
    let Some(mut linked) = txn.find_inode(inode)? else { return Ok(()) };
    if linked.attributes.links == 0 {
        txn.delete(ORPHANS, orphan::key(inode));
    }
    linked.attributes.links = linked.attributes.links.saturating_add(1);
    linked.change(txn.now());
    txn.add_link(&mut linked, new);
    txn.put_inode(&linked);
    Ok(())
}

/// A name of a directory ends or leads elsewhere, and what is here of both gets its other name.
fn move_name(txn: &mut Transaction<'_>, directory: InodeNumber, moved: MovedName) -> FsResult<()> {
    let MovedName { name, inode, kind, new, target } = moved;
    let found = txn.find_entry(directory, &name)?.filter(|found| found.target.inode == inode);
    let (Some(mut parent), Some(found)) = (txn.find_inode(directory)?, found) else {
        tracing::error!(%directory, %inode, "a name that was to end is not as it was promised; it stays");
        return Ok(());
    };
    match target {
        // What is said of another inode in the batch that changes it has to be true.
        Some((target, kind)) => {
            let kind = txn.kind_here(target, kind)?;
            txn.retarget_entry(directory, &found, target, kind)?;
        }
        None => txn.remove_entry(directory, &found)?,
    }
    let comes = target.is_some_and(|(_, kind)| kind == FileKind::Directory);
    let links = parent.attributes.links + u32::from(comes);
    parent.attributes.links = links.saturating_sub(u32::from(kind == FileKind::Directory));
    txn.touch_directory(&mut parent);
    txn.put_inode(&parent);
    let old = Link { parent: directory, name };
    if let Some((target, _)) = target.filter(|(target, _)| txn.is_here(*target)) {
        move_link(txn, target, &new, old.clone())?;
    }
    if txn.is_here(inode) { move_link(txn, inode, &old, new) } else { Ok(()) }
}

/// Another MDT has started: what its former starts have not decided is not decided any more.
pub(crate) fn join(txn: &mut Transaction<'_>, request: &Join) -> FsResult<MdtReply> {
    if txn.volatile.peers.start() == 0 {
        // Until then the answer would say that this MDT has lost no power.
        return txn.wait_for_peer(txn.mdt);
    }
    for operation in txn.volatile.peers.of_starts_before(request.source, request.start) {
        given_inodes::doubt(txn, operation, request.start)?;
        release(txn, operation)?;
    }
    txn.change_peers(PeerChange::Started(request.source, request.start));
    let last = last_decision(txn, request.source)?;
    let peers = &txn.volatile.peers;
    let is_over = |operation: &&OperationId| operation.coordinator != txn.mdt || !peers.is_running(**operation);
    let ended = request.promised.iter().filter(is_over).copied().collect();
    Ok(MdtReply::Joined(Joined { start: peers.start(), last, ended }))
}

/// Sequence number of the last decision for another MDT; 0: none is on its way.
pub(crate) fn last_decision(txn: &Transaction<'_>, mdt: MdtIndex) -> FsResult<u64> {
    let mut last = 0;
    txn.visit_decisions(mdt, &mut |sequence, _| {
        last = sequence;
        Ok(true)
    })?;
    Ok(last)
}

/// An MDT has answered this one; false: some of its decisions are still on their way.
pub(crate) fn joined(txn: &mut Transaction<'_>, mdt: MdtIndex, answer: &Joined) -> FsResult<bool> {
    if applied(txn, mdt)? < answer.last {
        return Ok(false);
    }
    for operation in &answer.ended {
        given_inodes::doubt(txn, *operation, answer.start)?;
        release(txn, *operation)?;
    }
    txn.change_peers(PeerChange::Started(mdt, answer.start));
    txn.change_peers(PeerChange::Heard(mdt));
    Ok(true)
}
