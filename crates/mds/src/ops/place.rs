//! Other OSTs for objects that were never created, because theirs turned out to be full.
//!
//! This is safe because the new layout is the file's only one from then on: clients that open the
//! file later get it, and only the caller has the old one. All of the following is required,
//! otherwise the objects stay where they are:
//! - the caller holds the exclusive data lock: no truncation is in progress that was granted with
//!   the old layout;
//! - it reports under the inode's epoch (module `settlement`): it is the only source of changes,
//!   and none is in progress;
//! - no other client has the file open, not even for reading;
//! - no late write of an evicted client can reach the file's OSTs.
//!
//! The caller itself has found out that the objects do not exist. Downside: a file that two clients
//! have open keeps its objects, and its writers get `NoSpace`.

use std::collections::BTreeSet;

use layout::Location;
use rpc::message::{
    MdtReply,
    mdt::{LayoutInfo, PlaceElsewhere},
};
use types::{FsError, FsResult};

use super::open::is_quiet;
use crate::{
    opens::{OpenFile, OpenKey},
    tables::inode::{Inode, InodeData},
    transaction::Transaction,
};

pub(crate) fn elsewhere(txn: &mut Transaction<'_>, request: &PlaceElsewhere) -> FsResult<MdtReply> {
    let key = txn.own_open(request.inode, request.open)?;
    let mut inode = txn.inode(request.inode)?;
    let mut layout = inode.layout().cloned().ok_or(FsError::Invalid)?;
    if layout.generation == request.generation {
        let slots: BTreeSet<u32> = request.slots.iter().copied().collect();
        let on_ost = |slot: &u32| matches!(layout.location(*slot), Some(Location::Ost(_)));
        if slots.is_empty() || !slots.iter().all(on_ost) {
            return Err(FsError::Invalid);
        }
        if !is_alone(txn, &inode, key, request.epoch) {
            return Err(FsError::NoSpace);
        }
        txn.relocate(&mut layout, &slots, &request.refused.iter().copied().collect())?;
        inode.data = InodeData::Regular(layout);
        txn.put_inode(&inode);
    }
    Ok(MdtReply::Layout(LayoutInfo { layout: inode.layout().cloned(), own_default: None, effective_default: None }))
}

/// See the module documentation.
fn is_alone(txn: &Transaction<'_>, inode: &Inode, key: OpenKey, epoch: u64) -> bool {
    let volatile = &txn.volatile;
    volatile.opens.get(key).is_some_and(OpenFile::writes)
        && volatile.exclusive.holder(inode.number()) == Some(key.client)
        && !inode.size_known
        && inode.epoch == epoch
        && !volatile.opens.opened_by_others(inode.number(), key.client)
        && is_quiet(txn, inode, Some(key), true)
}
