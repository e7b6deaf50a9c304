//! Sessions: their start, their end, and what a client reclaims after a restart.

use std::collections::BTreeSet;

use layout::Layout;
use lock::{InodeBits, inode_bit};
use rpc::message::{
    MdtReply,
    mdt::{NotReclaimed, OpenFlags, OpenId, Reclaim, open_flag},
};
use types::{ClientId, FsError, FsResult, InodeNumber};

use super::close;
use crate::{
    known_size,
    opens::{OpenFile, OpenKey},
    options::ProcessId,
    tables::{
        EVICTED, REPLIES, SESSIONS,
        deferred_log::DeferredOperation,
        evicted::EvictedRecord,
        inode::{Inode, InodeData},
        session::{self, SessionRecord},
    },
    transaction::Transaction,
};

const ATTRIBUTES: InodeBits = InodeBits(inode_bit::ATTRIBUTES);
/// Opens ended in one transaction.
pub(crate) const OPENS_PER_BATCH: usize = 256;
/// Changes of one layout that may be lost with the power at once, and more: a client that tells of
/// later ones is wrong.
const GENERATIONS_LOST_MAX: u64 = 1 << 32;
/// Likewise numbers of components and of slots, which never come round.
const NUMBERS_LOST_MAX: u32 = 1 << 20;

/// Records a session, so that its client may come back after a restart; one that lives in a
/// process, not after its end.
pub(crate) fn begin(txn: &mut Transaction<'_>, client: ClientId, process: Option<ProcessId>) -> FsResult<()> {
    let key = session::session_key(client);
    if txn.get(SESSIONS, &key)?.is_none() {
        let value = SessionRecord { opened: txn.now(), process }.encode();
        txn.put(SESSIONS, key, value);
    }
    Ok(())
}

/// Forgets a session and its replies. With `is_refused`, all OSTs are told to refuse the client;
/// with `is_leased`, it may serve what it was granted until [`lease_ended`].
pub(crate) fn forget(
    txn: &mut Transaction<'_>,
    client: ClientId,
    (is_refused, is_leased): (bool, bool),
) -> FsResult<()> {
    txn.release_space();
    let key = session::session_key(client);
    if is_refused || is_leased {
        // It may have begun to end before: what was open then is closed.
        let before = txn.get(EVICTED, &key)?.map(|value| EvictedRecord::decode(&value)).transpose()?;
        let is_refused = is_refused || before.is_some_and(|before| before.is_refused);
        let record = EvictedRecord { is_refused, is_leased, time: txn.now() };
        txn.put(EVICTED, key.clone(), record.encode());
    }
    if txn.get(SESSIONS, &key)?.is_some() {
        txn.delete(SESSIONS, key.clone());
    }
    txn.delete_prefix(REPLIES, &key)?;
    if is_refused {
        let osts: Vec<_> = txn.volatile.targets.views().map(|(ost, _)| ost).collect();
        osts.into_iter().for_each(|ost| txn.tell(ost, DeferredOperation::Evict(client)));
    }
    Ok(())
}

/// The lease of an evicted client has ended.
pub(crate) fn lease_ended(txn: &mut Transaction<'_>, client: ClientId) -> FsResult<()> {
    let key = session::session_key(client);
    let Some(value) = txn.get(EVICTED, &key)? else { return Ok(()) };
    let record = EvictedRecord::decode(&value)?;
    txn.release_space();
    match record.is_refused {
        true => txn.put(EVICTED, key, EvictedRecord { is_leased: false, ..record }.encode()),
        false => txn.delete(EVICTED, key),
    }
    Ok(())
}

/// Whether a client may have writes in progress that no caller waits for.
pub(crate) fn may_write(txn: &Transaction<'_>, client: ClientId) -> bool {
    txn.volatile.recovery.expected.contains(&client)
        || txn.volatile.opens.of_client(client).any(|(_, file)| file.writes())
        || txn.volatile.exclusive.holds_any(client)
}

/// Ends some opens of a client that is gone; false when there are none left.
pub(crate) fn abandon_some(txn: &mut Transaction<'_>, client: ClientId) -> FsResult<bool> {
    let some: Vec<(OpenKey, InodeNumber)> =
        txn.volatile.opens.of_client(client).take(OPENS_PER_BATCH).map(|(key, file)| (key, file.inode)).collect();
    txn.need_inodes(some.iter().map(|(_, inode)| *inode))?;
    for (key, _) in &some {
        close::abandon(txn, *key)?;
        if txn.is_large() {
            break;
        }
    }
    Ok(!some.is_empty())
}

/// A client that survived a restart of this MDT tells what it has. `Evicted` if it is too late.
pub(crate) fn reclaim(txn: &mut Transaction<'_>, request: &Reclaim) -> FsResult<MdtReply> {
    let client = txn.context.client;
    if txn.volatile.recovery.recovered.contains(&client) {
        // It has all of this: the connection broke before the client heard so, and on the next one
        // it begins again. What it has not, it heard before it said that it was done. Until it
        // hears so it opens nothing, so all its opens are known.
        txn.volatile.opens.presumed.registered(client);
        return Ok(MdtReply::Done);
    }
    if !txn.volatile.recovery.expected.contains(&client) {
        // Also if it has nothing to claim: an answer that all is well would make it use opens and
        // locks that are gone.
        return Err(FsError::Evicted);
    }
    // After a restart hardly any inode is in memory, and the first open that is entered ends the
    // loading.
    let claimed = request.opens.iter().map(|(inode, ..)| *inode);
    let claimed = claimed.chain(request.exclusives.iter().map(|(inode, _)| *inode));
    txn.need_inodes(claimed.chain(request.layouts.iter().map(|(inode, _)| *inode)))?;
    let doubtful = doubtful(txn, request)?;
    if doubtful.is_empty() {
        txn.must_not_wait();
    } else {
        // All that follows can be repeated.
        txn.must_not_wait_for_clients();
    }
    for mut inode in doubtful {
        tracing::info!(%client, inode = %inode.number(), "reclaimed to be written: others knew its attributes");
        known_size::lose_writer(&mut inode);
        txn.put_inode(&inode);
    }
    let mut refused = NotReclaimed::default();
    for (inode, open, flags) in &request.opens {
        if !reclaim_open(txn, *inode, *open, *flags)? {
            tracing::warn!(%client, %inode, "an open file was lost: its inode does not exist");
            refused.lost.push(*inode);
        }
    }
    for held in &request.locks {
        let held = lock::HeldLock { client, ..*held };
        // Its opens came first.
        if txn.require_open(held.inode).is_err() {
            tracing::warn!(%client, inode = %held.inode, "a lock was reclaimed for a file that is not open");
            continue;
        }
        if let Err(error) = txn.volatile.locks.reclaim(&held) {
            tracing::warn!(%client, inode = %held.inode, ?error, "cannot reclaim a lock");
        }
    }
    for (inode, _) in &request.exclusives {
        if txn.volatile.exclusive.try_begin(*inode, client).is_err() {
            tracing::warn!(%client, %inode, "cannot reclaim an exclusive data lock");
        }
    }
    for (inode, layout) in &request.layouts {
        if !reclaim_layout(txn, *inode, layout)? {
            refused.undone.push(*inode);
        }
    }
    Ok(if refused == NotReclaimed::default() { MdtReply::Done } else { MdtReply::NotReclaimed(refused) })
}

/// Files that the client says it changes, although that cannot be: the first open for writing and
/// the first exclusive lock make the size unknown on disk, and withdraw the attributes from others.
/// So either a close was executed whose answer the client did not hear, or the client is wrong.
/// Neither is told apart here. The objects are asked for the size, which is right in both cases,
/// and others give back the attributes before the client goes on.
fn doubtful(txn: &Transaction<'_>, request: &Reclaim) -> FsResult<Vec<Inode>> {
    let written = request.opens.iter().filter(|(.., flags)| flags.has(open_flag::WRITE)).map(|(inode, ..)| *inode);
    let changed: BTreeSet<InodeNumber> = written.chain(request.exclusives.iter().map(|(inode, _)| *inode)).collect();
    let mut doubtful = Vec::new();
    for number in changed {
        let Some(inode) = txn.find_inode(number)? else { continue };
        let is_cached = txn.volatile.cache.lock().others_hold_some(txn.context.client, &[(number, ATTRIBUTES)]);
        if inode.layout().is_some() && (inode.size_known || is_cached) {
            doubtful.push(inode);
        }
    }
    Ok(doubtful)
}

/// A layout that grew, and whose growth this MDT may have lost with its power: the client, and
/// other clients that will report the same, may have written to the new objects. Their slots must
/// not be given again. False if the layout that holds is not one that this can have grown to, also
/// if that was so before, since the client may not have heard: a change it knows of is undone, or
/// another client has replaced the layout.
fn reclaim_layout(txn: &mut Transaction<'_>, number: InodeNumber, told: &Layout) -> FsResult<bool> {
    let client = txn.context.client;
    let holds = txn.volatile.opens.of_client(client).any(|(_, file)| file.inode == number)
        || txn.volatile.exclusive.holder(number) == Some(client);
    let Some(mut inode) = txn.find_inode(number)? else { return Ok(true) };
    let InodeData::Regular(known) = &mut inode.data else { return Ok(true) };
    let possible = told.generation.0.saturating_sub(known.generation.0) <= GENERATIONS_LOST_MAX
        && told.ids_next.saturating_sub(known.ids_next) <= NUMBERS_LOST_MAX
        && told.slots_next.saturating_sub(known.slots_next) <= NUMBERS_LOST_MAX;
    if !holds || told.validate().is_err() || !possible {
        tracing::warn!(%client, inode = %number, "rejected a reclaimed layout that the client cannot have received");
        return Ok(true);
    }
    // Slots may have been skipped since.
    let skipped = known.slots_next.max(told.slots_next);
    if told.generation <= known.generation {
        return Ok(Layout { slots_next: skipped, ..told.clone() } == *known || known.has_grown_from(told));
    }
    let is_beyond = known.slot_range() > told.slot_range();
    let grown = match is_beyond {
        true => told.has_grown_from(&Layout { slots_next: known.slots_end(), ..known.clone() }),
        false => told.has_grown_from(known),
    };
    if grown {
        *known = Layout { slots_next: skipped, ..told.clone() };
    } else {
        // A change that removed something was lost. The state known here is valid; clients with
        // another state learn this.
        tracing::warn!(%client, inode = %number, "undoing a change of the layout that was lost");
        known.generation = told.generation.next();
    }
    txn.put_inode(&inode);
    Ok(grown)
}

/// False if there is no such inode. One that may be given away was not open when that was promised:
/// its close was executed, and the client did not hear so.
fn reclaim_open(txn: &mut Transaction<'_>, inode: InodeNumber, open: OpenId, flags: OpenFlags) -> FsResult<bool> {
    let known = txn.find_inode(inode)?.is_some() && !txn.volatile.peers.is_given(inode);
    if known {
        let key = OpenKey { client: txn.context.client, open };
        txn.check_limit_of_claimed_opens(key, inode)?;
        txn.volatile.opens.insert(key, OpenFile { inode, flags, epoch: None, began: false });
    }
    Ok(known)
}
