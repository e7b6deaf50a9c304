//! Two files swap their layouts, and with them their data: `lfs swap_layouts`; and `lfs migrate`,
//! whose second file is an unnamed one into which the data were copied.
//!
//! No client may use a layout that no longer belongs to a file. So all of the following is required
//! of both files, otherwise nothing happens (`Busy`):
//! - the epoch that the caller learned earlier is still the file's (module `known_size`): no client
//!   has started to write since;
//! - only the caller has it open, once: clients that open it later get the new layout, and the
//!   caller adopts it;
//! - no truncation is in progress, and no late write of an evicted client can reach its OSTs.
//!
//! A swap allows the caller to read one file through the other, and writes to both: so it requires
//! read and write permission on both, and, since a file is named by its number, a path whose
//! directories the caller may search; an unnamed file must be open for the caller. Directories of
//! the path that are on other MDTs are checked by the client before it asks.
//!
//! One open at a time holds writers off. Its owner waits for all clients that have the file open,
//! so a client that is refused the same (`WouldBlock`) must not wait with the file open. A client
//! that also has the file open is not held off (`must_wait` of module `volatile`): a program that
//! reads a file and then opens it for writing would wait for itself.
//!
//! While the MDT recovers, it is not known which files are open: then the answer is to wait.
//!
//! Objects keep their names (module `layout::swap`). Data on this MDT are named by their file, so
//! they are moved from key to key, in the same batch as the layouts. Times stay with the files: the
//! earlier times of the objects no longer count.
//!
//! Downside: a reader who keeps a file open keeps its layout from being swapped. The data of both
//! files on this MDT must fit into one batch together.

use rpc::message::{
    MdtReply,
    mdt::{DataVersion, SwapLayouts, SwapSide},
};
use types::{Credentials, FileKind, FsError, FsResult, InodeNumber, permission};

use super::{layout_changes::is_at_rest, open::is_quiet, paths};
use crate::{
    known_size,
    opens::{OpenFile, OpenKey},
    protection,
    tables::inode::{Inode, InodeData},
    transaction::Transaction,
};

pub(crate) fn version(txn: &mut Transaction<'_>, who: &Credentials, request: &DataVersion) -> FsResult<MdtReply> {
    let inode = regular(txn, who, request.inode, permission::WRITE)?;
    if txn.volatile.recovery.running() {
        txn.wait_for_recovery();
        return Ok(MdtReply::Waiting);
    }
    let holder = request.hold_writers.map(|open| txn.own_open(request.inode, open)).transpose()?;
    let begins = holder.is_some() && !txn.volatile.opens.is_held(request.inode);
    if begins && !txn.volatile.writers_held_off.begin(request.inode) {
        return Err(FsError::WouldBlock);
    }
    // Even if writers are there: the caller asks again until they are gone, and no new ones come.
    if holder.is_some_and(|key| !txn.volatile.opens.hold(key)) {
        return Err(FsError::WouldBlock);
    }
    if !inode.size_known || !is_quiet(txn, &inode, None, false) {
        return Err(FsError::Busy);
    }
    Ok(MdtReply::Version(inode.epoch))
}

/// A regular file on which the caller has these permissions.
fn regular(txn: &Transaction<'_>, who: &Credentials, number: InodeNumber, wanted: u32) -> FsResult<Inode> {
    let inode = txn.inode(number)?;
    match inode.kind() {
        FileKind::Regular => {}
        FileKind::Directory => return Err(FsError::IsDirectory),
        _ => return Err(FsError::Invalid),
    }
    // Its data may move, if they stay the same: see `check_flags`.
    txn.require_mode(who, &inode, wanted)?;
    Ok(inode)
}

pub(crate) fn run(txn: &mut Transaction<'_>, who: &Credentials, request: &SwapLayouts) -> FsResult<MdtReply> {
    let SwapLayouts { first, second } = request;
    if first.inode == second.inode {
        return Err(FsError::Invalid);
    }
    if !txn.is_here(first.inode) || !txn.is_here(second.inode) {
        return Err(FsError::CrossDevice);
    }
    if txn.volatile.recovery.running() {
        txn.wait_for_recovery();
        return Ok(MdtReply::Waiting);
    }
    let (mut one, mut other) = (side(txn, who, first)?, side(txn, who, second)?);
    check_flags(who, &one, &other)?;
    let (InodeData::Regular(of_one), InodeData::Regular(of_other)) = (&one.data, &other.data) else {
        return Err(FsError::Invalid);
    };
    let (to_one, to_other) = layout::swap::swapped((one.number(), of_one), (other.number(), of_other));
    let (here, there) = (txn.take_data(one.number())?, txn.take_data(other.number())?);
    if here.bytes() + there.bytes() > txn.context.moved_bytes_max {
        return Err(FsError::TooBig);
    }
    txn.give_data(other.number(), here);
    txn.give_data(one.number(), there);
    one.data = InodeData::Regular(to_one);
    other.data = InodeData::Regular(to_other);
    exchange_data_attributes(&mut one, &mut other);
    for (inode, side) in [(&mut one, first), (&mut other, second)] {
        finish(txn, who, inode, side)?;
    }
    Ok(MdtReply::Done)
}

/// An immutable file keeps its data: only root moves them, from the unnamed copy that it has
/// made.
fn check_flags(who: &Credentials, one: &Inode, other: &Inode) -> FsResult<()> {
    let protected = [one, other].into_iter().find_map(|inode| protection::check_change(&inode.attributes).err());
    let moves = who.is_root() && (one.attributes.links == 0) != (other.attributes.links == 0);
    protected.filter(|_| !moves).map_or(Ok(()), Err)
}

/// One of the files, with its data attributes; see the module documentation for what is checked.
fn side(txn: &Transaction<'_>, who: &Credentials, side: &SwapSide) -> FsResult<Inode> {
    let mut inode = regular(txn, who, side.inode, permission::READ | permission::WRITE)?;
    let open = side.open.map(|open| txn.own_open(side.inode, open)).transpose()?;
    // Even with an open: it may be another user's of the same client.
    if open.is_none() || inode.attributes.links > 0 {
        paths::require_path(txn, who, &inode)?;
    }
    let alone = txn.volatile.opens.is_open_only_by(side.inode, open);
    if inode.epoch != side.known.epoch || !alone || !is_at_rest(txn, &inode) {
        return Err(FsError::Busy);
    }
    if !inode.size_known {
        // The caller has been the only source of changes since it got the epoch, so it knows.
        if !open.and_then(|key| txn.volatile.opens.get(key)).is_some_and(OpenFile::writes) {
            return Err(FsError::Busy);
        }
        (inode.attributes.size, inode.attributes.blocks) = (side.known.size, side.known.blocks);
        known_size::account(&mut inode, &side.known.data_changes());
    }
    Ok(inode)
}

/// Size and space go with the data; so does which changes of the objects are accounted for.
fn exchange_data_attributes(one: &mut Inode, other: &mut Inode) {
    std::mem::swap(&mut one.attributes.size, &mut other.attributes.size);
    std::mem::swap(&mut one.attributes.blocks, &mut other.attributes.blocks);
    std::mem::swap(&mut one.accounted.changes, &mut other.accounted.changes);
    let time = one.accounted.time.max(other.accounted.time);
    (one.accounted.time, other.accounted.time) = (time, time);
}

/// Stores one of the files, whose data attributes are exact now. No earlier report is
/// believed any more, and writers continue.
fn finish(txn: &mut Transaction<'_>, who: &Credentials, inode: &mut Inode, side: &SwapSide) -> FsResult<()> {
    txn.drop_privileges(who, inode)?;
    inode.change(txn.now());
    known_size::lose_writer(inode);
    let key = side.open.map(|open| OpenKey { client: txn.context.client, open });
    let writes = key.and_then(|key| txn.volatile.opens.get(key)).is_some_and(OpenFile::writes);
    inode.size_known = !writes;
    txn.put_inode(inode);
    txn.end_hold(inode.number());
    Ok(())
}
