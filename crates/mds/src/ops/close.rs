//! Close and ReportSize: the end of an open, what the closing client knows about the size, and the
//! deletion of unlinked files.

use layout::{Layout, automatic::BEGINNING_BYTES};
use lock::{LockFamily, LockOwner};
use rpc::message::{
    MdtReply,
    mdt::{Close, Closed, ReportSize, SizeUpdate},
};
use types::{FsError, FsResult};

use super::open::is_quiet;
use crate::{
    known_size,
    opens::{OpenFile, OpenKey},
    tables::inode::Inode,
    transaction::Transaction,
};

/// Never fails for an open or inode that is not known: a close that is repeated after a restart has
/// happened.
pub(crate) fn run(txn: &mut Transaction<'_>, request: &Close) -> FsResult<MdtReply> {
    let client = txn.context.client;
    txn.release_space();
    // Read before anything changes: an attempt that misses it is given up without a trace.
    let open = OpenKey { client, open: request.open };
    txn.find_inode(txn.volatile.opens.get(open).map_or(request.inode, |file| file.inode))?;
    if !txn.opened_early(open) {
        txn.must_not_wait();
    }
    if let Some(owner) = request.flock_owner {
        txn.volatile.release_owner(request.inode, LockFamily::Flock, LockOwner { client, owner });
    }
    let file = txn.remove_open(open);
    // A client that was not answered may not know what it opened.
    let inode = file.as_ref().map_or(request.inode, |file| file.inode);
    let size_wanted = match txn.find_inode(inode)? {
        Some(inode) => end_open(txn, inode, file, SizeUpdate::possible(request.update.as_ref()))?,
        None => None,
    };
    if let Some((epoch, _)) = &size_wanted {
        txn.volatile.invitations.invite(client, inode, *epoch);
    }
    Ok(MdtReply::Closed(Closed { size_wanted }))
}

fn end_open(
    txn: &mut Transaction<'_>,
    mut inode: Inode,
    file: Option<OpenFile>,
    update: Option<&SizeUpdate>,
) -> FsResult<Option<(u64, Layout)>> {
    // The size of a file that is removed is not needed.
    if inode.attributes.links == 0 && (txn.reap(inode.number())? || !txn.is_open(inode.number())) {
        return Ok(None);
    }
    let wrote = match file {
        Some(file) => file.writes() && file.inode == inode.number(),
        // Open before a restart, and not reclaimed. Perhaps it was never open: what the client says
        // of the size is not believed, but it may be asked to look.
        None => update.is_some() && txn.volatile.recovery.in_good_standing(txn.context.client),
    };
    if !wrote || inode.size_known {
        return Ok(None);
    }
    let alone = !txn.volatile.opens.written_by_others(inode.number(), None);
    if let Some(update) = update.filter(|_| file.is_some())
        && known_size::take_report(&mut inode, update, alone)
    {
        note_finished(txn, &inode);
        txn.put_inode(&inode);
        return Ok(None);
    }
    let ask = is_quiet(txn, &inode, None, false);
    Ok(inode.layout().filter(|_| ask).map(|layout| (inode.epoch, layout.clone())))
}

/// A report of a file without writers, by a client that was told to make it: otherwise all clients
/// would accept a size that no writer made.
pub(crate) fn report_size(txn: &mut Transaction<'_>, request: &ReportSize) -> FsResult<MdtReply> {
    if !txn.volatile.invitations.is_invited(txn.context.client, request.inode, request.update.epoch) {
        return Err(FsError::NotPermitted);
    }
    let Some(mut inode) = txn.find_inode(request.inode)? else { return Ok(MdtReply::Done) };
    let quiet = is_quiet(txn, &inode, None, false);
    if known_size::take_report(&mut inode, &request.update, quiet) {
        note_finished(txn, &inode);
        txn.put_inode(&inode);
    }
    Ok(MdtReply::Done)
}

/// The next files with such a name will need as much.
fn note_finished(txn: &mut Transaction<'_>, inode: &Inode) {
    if let Some(name) = &inode.first_link {
        let bytes = inode.attributes.size;
        txn.volatile.history.note(name.parent, &name.name, inode.number(), bytes, bytes > BEGINNING_BYTES);
    }
}

/// Ends the open of a client that is gone: nothing it might say later is believed.
pub(crate) fn abandon(txn: &mut Transaction<'_>, key: OpenKey) -> FsResult<()> {
    txn.must_not_wait();
    let Some(file) = txn.volatile.remove_open(key) else { return Ok(()) };
    let Some(mut inode) = txn.find_inode(file.inode)? else { return Ok(()) };
    if inode.attributes.links == 0 && txn.reap(inode.number())? {
        return Ok(());
    }
    if file.writes() && inode.layout().is_some() {
        known_size::lose_writer(&mut inode);
        txn.put_inode(&inode);
    }
    Ok(())
}
