//! The part of this MDT in operations that other MDTs decide, and what MDTs tell each other when
//! they start (docs/decisions/0049-namespace-over-several-mdts.md). Each of these may be repeated.

use lock::InodeBits;
use rpc::message::{
    MdtReply,
    mdt_peer::{Decisions, Join, Joined, OperationId, Part, Prepare, Prepared},
};
use types::{
    Attributes, Credentials, FsError, FsResult, InodeNumber, MdtIndex, limits::PREPARED_PER_MDT_MAX, permission,
};

use crate::{
    peers::PeerChange,
    protection,
    tables::{
        APPLIED, DECISIONS, PREPARED, applied,
        decision::{self, DecidedPart, Decision},
        inode::{Inode, Link},
        prepared::{self, Promise},
    },
    transaction::Transaction,
};

pub(crate) fn prepare(txn: &mut Transaction<'_>, request: &Prepare) -> FsResult<MdtReply> {
    let operation = request.operation;
    let start = txn.volatile.peers.start();
    if start == 0 {
        // Until then an answer would belong to no start.
        return txn.wait_for_peer(txn.mdt);
    }
    if operation.start < txn.volatile.peers.start_of(operation.coordinator) {
        return Err(FsError::Stale);
    }
    let inode = match (txn.volatile.peers.prepared(operation), &request.part) {
        (Some(inode), _) => inode,
        (None, Part::MakeDirectory) => {
            let inode = txn.reserve_number();
            txn.change_peers(PeerChange::Hold(operation, inode));
            inode
        }
        (None, Part::RemoveDirectory(remove)) => {
            let victim = with_name(txn, &remove.who, remove.inode, (&remove.parent, &remove.name))?;
            if !txn.is_empty_directory(victim.number())? {
                return Err(FsError::NotEmpty);
            }
            promise(txn, operation, Promise::Remove, remove.inode)?;
            remove.inode
        }
        (None, Part::RenameDirectory(rename)) => {
            let directory = with_name(txn, &rename.who, rename.inode, (&rename.parent, &rename.name))?;
            // One that gets another parent is written to: its `..` changes.
            if rename.new_parent != rename.parent.inode {
                txn.require(&rename.who, &directory, permission::WRITE)?;
            }
            promise(txn, operation, Promise::Rename, rename.inode)?;
            rename.inode
        }
    };
    Ok(MdtReply::Prepared(Prepared { inode, start }))
}

/// A directory of which its name in a directory on another MDT may be taken.
fn with_name(
    txn: &Transaction<'_>,
    who: &Credentials,
    inode: InodeNumber,
    (parent, name): (&Attributes, &[u8]),
) -> FsResult<Inode> {
    let directory = txn.inode(inode)?;
    if permission::sticky_forbids(who, parent, &directory.attributes) {
        return Err(FsError::NotPermitted);
    }
    protection::check_change(&directory.attributes)?;
    if !directory.is_directory() {
        return Err(FsError::NotDirectory);
    }
    if directory.first_link.as_ref() != Some(&Link { parent: parent.inode, name: name.to_vec() }) {
        return Err(FsError::Stale);
    }
    Ok(directory)
}

/// From now on nothing of the directory is shown or changed: no client keeps any of it.
fn promise(txn: &mut Transaction<'_>, operation: OperationId, promise: Promise, inode: InodeNumber) -> FsResult<()> {
    if txn.volatile.peers.promised_to(operation.coordinator).count() >= PREPARED_PER_MDT_MAX {
        return Err(FsError::Busy);
    }
    txn.release_space();
    txn.put(PREPARED, prepared::key(operation), prepared::encode(promise, inode));
    txn.withdraw(inode, InodeBits::ALL);
    txn.change_peers(PeerChange::Promise(operation, inode));
    Ok(())
}

/// The operation will not be decided.
pub(crate) fn abort(txn: &mut Transaction<'_>, operation: OperationId) -> FsResult<MdtReply> {
    release(txn, operation)?;
    Ok(MdtReply::Done)
}

fn release(txn: &mut Transaction<'_>, operation: OperationId) -> FsResult<()> {
    txn.release_space();
    let key = prepared::key(operation);
    if txn.get(PREPARED, &key)?.is_some() {
        txn.delete(PREPARED, key);
    }
    txn.change_peers(PeerChange::Release(operation));
    Ok(())
}

/// The last decision of an MDT that was carried out here.
fn applied(txn: &Transaction<'_>, mdt: MdtIndex) -> FsResult<u64> {
    txn.get(APPLIED, &applied::key(mdt))?.map_or(Ok(0), |value| applied::decode(&value))
}

/// Carries out those decisions that were not carried out before.
pub(crate) fn apply(txn: &mut Transaction<'_>, request: &Decisions) -> FsResult<MdtReply> {
    // Clients gave back what they had of these inodes before it was prepared.
    txn.must_not_wait();
    let before = applied(txn, request.source)?;
    let mut last = before;
    for (sequence, record) in (request.first..).zip(&request.records) {
        if sequence <= last {
            continue;
        }
        if last.checked_add(1) != Some(sequence) {
            tracing::error!(source = %request.source, sequence, last, "decisions of another MDT are missing");
            return Err(FsError::Invalid);
        }
        carry_out(txn, Decision::decode(record)?)?;
        last = sequence;
    }
    if last > before {
        txn.release_space();
        txn.put(APPLIED, applied::key(request.source), applied::encode(last));
        txn.change_peers(PeerChange::Applied);
    }
    Ok(MdtReply::Done)
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
        DecidedPart::Remove(name) => remove(txn, inode, &name)?,
        DecidedPart::Rename(old, new) => rename(txn, inode, &old, new)?,
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

fn remove(txn: &mut Transaction<'_>, inode: InodeNumber, name: &Link) -> FsResult<()> {
    let Some(mut victim) = txn.find_inode(inode)? else { return Ok(()) };
    if victim.first_link.as_ref() != Some(name) || !txn.is_empty_directory(inode)? {
        tracing::error!(%inode, "a directory whose removal was decided is not as it was promised; it stays");
        return Ok(());
    }
    txn.drop_link(&mut victim, name)
}

fn rename(txn: &mut Transaction<'_>, inode: InodeNumber, old: &Link, new: Link) -> FsResult<()> {
    let Some(mut directory) = txn.find_inode(inode)? else { return Ok(()) };
    if directory.first_link.as_ref() != Some(old) {
        tracing::error!(%inode, "a directory that was to be renamed does not have the name; it keeps its own");
        return Ok(());
    }
    directory.first_link = Some(new);
    directory.change(txn.now());
    txn.put_inode(&directory);
    Ok(())
}

/// Another MDT has started: what its former starts have not decided is not decided any more.
pub(crate) fn join(txn: &mut Transaction<'_>, request: &Join) -> FsResult<MdtReply> {
    for operation in txn.volatile.peers.of_starts_before(request.source, request.start) {
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
    txn.scan_prefix(DECISIONS, &decision::mdt_key(mdt), &mut |key, _| {
        last = decision::decode_key(key)?.1;
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
        release(txn, *operation)?;
    }
    txn.change_peers(PeerChange::Started(mdt, answer.start));
    txn.change_peers(PeerChange::Heard(mdt));
    Ok(true)
}
