//! The exclusive data lock of a file: appends and truncations.

use lock::ExclusiveAnswer;
use rpc::message::{
    MdtReply,
    mdt::{ExclusiveBegin, ExclusiveEnd, ExclusiveGranted, ExclusivePurpose, SizeUpdate},
};
use types::{Credentials, FileKind, FsError, FsResult, InodeNumber, limits, permission};

use super::open::is_quiet;
use crate::{
    known_size,
    opens::{OpenFile, OpenKey},
    protection,
    tables::inode::Inode,
    transaction::Transaction,
};

/// Asks for the lock on behalf of the caller; false: its client is told when to ask again. Asking
/// again while holding is granted again: a client orders its own users. None is newly granted while
/// a holder of a former start may come back.
pub(crate) fn take(txn: &mut Transaction<'_>, inode: InodeNumber) -> FsResult<bool> {
    let client = txn.context.client;
    let volatile = &mut txn.volatile;
    if volatile.exclusive.holder(inode) == Some(client) {
        return Ok(true);
    }
    if volatile.recovery.running() {
        txn.wait_for_recovery();
        return Ok(false);
    }
    let granted = volatile.exclusive.begin(inode, client)? == ExclusiveAnswer::Granted;
    if granted {
        txn.took_exclusive(inode);
    }
    Ok(granted)
}

pub(crate) fn begin(txn: &mut Transaction<'_>, who: &Credentials, request: &ExclusiveBegin) -> FsResult<MdtReply> {
    let mut inode = txn.inode(request.inode)?;
    let open = request.open.map(|open| txn.own_open(request.inode, open)).transpose()?;
    check(txn, who, &inode, open, request.purpose)?;
    if matches!(request.purpose, ExclusivePurpose::Truncate(_)) {
        // Needed below, when what is missing is not loaded any more: the lock changes the volatile
        // state.
        txn.has_capabilities(&inode)?;
    }
    // By path: clients that have it open for writing were there before.
    if open.is_none() && txn.volatile.must_wait(request.inode, txn.context.client) {
        txn.wait_for(request.inode);
        return Ok(MdtReply::Waiting);
    }
    if !take(txn, request.inode)? {
        return Ok(MdtReply::Waiting);
    }
    let epoch = match request.purpose {
        ExclusivePurpose::Append => inode.epoch,
        ExclusivePurpose::Truncate(size) => {
            // An object must keep the size: one that the file has, or one of the component that it
            // will end in.
            if inode.layout().is_none_or(|layout| layout.keeper_of_length(size).is_none()) {
                txn.instantiate(&mut inode, size.saturating_sub(1), size)?;
            }
            txn.drop_privileges(who, &mut inode)?;
            let epoch = truncate(txn, &mut inode, open);
            // Not certain until it is reported, but the next component is chosen by it.
            inode.attributes.size = size;
            txn.put_inode(&inode);
            epoch
        }
    };
    let layout = inode.layout().cloned().expect("checked to be a regular file");
    Ok(MdtReply::ExclusiveGranted(Box::new(ExclusiveGranted { entry: inode.entry(), layout, epoch })))
}

/// Kind, permission and limits.
fn check(
    txn: &Transaction<'_>,
    who: &Credentials,
    inode: &Inode,
    open: Option<OpenKey>,
    purpose: ExclusivePurpose,
) -> FsResult<()> {
    match inode.kind() {
        FileKind::Regular => {}
        FileKind::Directory => return Err(FsError::IsDirectory),
        _ => return Err(FsError::Invalid),
    }
    if matches!(purpose, ExclusivePurpose::Truncate(_)) {
        protection::check_change(&inode.attributes)?;
    }
    match (open, purpose) {
        (Some(key), _) if txn.volatile.opens.get(key).is_some_and(OpenFile::writes) => {}
        (Some(_), _) | (None, ExclusivePurpose::Append) => return Err(FsError::BadHandle),
        (None, ExclusivePurpose::Truncate(_)) => txn.require(who, inode, permission::WRITE)?,
    }
    match purpose {
        ExclusivePurpose::Truncate(size) if size > limits::FILE_BYTES_MAX => Err(FsError::FileTooLarge),
        _ => Ok(()),
    }
}

/// Marks the inode as being truncated; returns the epoch given to the caller.
fn truncate(txn: &mut Transaction<'_>, inode: &mut Inode, open: Option<OpenKey>) -> u64 {
    let given = open.and_then(|key| txn.volatile.opens.get(key)).and_then(|file| file.epoch);
    let quiet = is_quiet(txn, inode, open, true);
    let now = txn.now();
    inode.change_contents(now);
    let epoch = known_size::begin_truncation(inode, given == Some(inode.epoch), quiet);
    if let Some(key) = open {
        txn.truncate_at_commit(key, epoch);
    }
    epoch
}

/// Succeeds without the lock too: it may have ended with the session. Only the report of the holder
/// is accepted.
pub(crate) fn end(txn: &mut Transaction<'_>, request: &ExclusiveEnd) -> FsResult<MdtReply> {
    let client = txn.context.client;
    txn.must_not_wait();
    if !txn.volatile.end_exclusive(request.inode, client) {
        return Ok(MdtReply::Done);
    }
    let update = SizeUpdate::possible(request.update.as_ref());
    let (Some(update), Some(mut inode)) = (update, txn.find_inode(request.inode)?) else {
        return Ok(MdtReply::Done);
    };
    let quiet = is_quiet(txn, &inode, None, false);
    if known_size::take_report(&mut inode, update, quiet) {
        txn.put_inode(&inode);
    }
    Ok(MdtReply::Done)
}
