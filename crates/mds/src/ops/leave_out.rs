//! Ranges of components whose OSTs are full: they are decided again, so that data written there go
//! to OSTs with space.
//!
//! A fence at each of the component's objects keeps out clients that use the old layout. The caller
//! raised the fences to the generation that the layout gets here, before it looked for data in the
//! range. So after the fence no client can have written data there, and no client reads stale data
//! there. Since the fence is one above the present generation, it refuses all layouts that ever had
//! this range, and no later one.
//!
//! The exclusive data lock orders this with respect to truncations, and makes clients that a fence
//! refused wait for the new layout. If the caller dies in between, the fences are above the
//! layout's generation: then the layout gets the next generation without another change.

use layout::{Backing, Extent, Layout, automatic, extension};
use rpc::message::{
    MdtReply,
    mdt::{LayoutInfo, LeaveOut, RenewLayout},
};
use types::{
    Damage, FsError, FsResult, Generation,
    limits::{BLOCK_BYTES, FENCE_GENERATION_MAX},
};

use crate::{
    opens::OpenFile,
    tables::inode::{Inode, InodeData},
    transaction::Transaction,
};

pub(crate) fn run(txn: &mut Transaction<'_>, request: &LeaveOut) -> FsResult<MdtReply> {
    let key = txn.own_open(request.inode, request.open)?;
    if !txn.volatile.opens.get(key).is_some_and(OpenFile::writes) {
        return Err(FsError::BadHandle);
    }
    let mut inode = txn.inode(request.inode)?;
    if txn.volatile.recovery.running() {
        // A client may come back with a layout that has grown.
        txn.wait_for_recovery();
        return Ok(MdtReply::Waiting);
    }
    let mut layout = inode.layout().cloned().ok_or(FsError::Invalid)?;
    if layout.generation == request.generation {
        if txn.volatile.exclusive.holder(request.inode) != Some(txn.context.client) {
            return Err(FsError::NoLocks);
        }
        let position = position_of(&layout, request)?;
        if layout.components_counted(txn.volatile.targets.count()) >= automatic::COMPONENTS_LEFT_OUT_MAX {
            return Err(FsError::NoSpace);
        }
        if extension::is_growing(&layout, position) {
            txn.end_growth(&mut layout, position, request.hole)?;
        } else {
            layout.leave_out(position, request.hole).map_err(|error| Damage::new("layout", error.to_string()))?;
        }
        put_next(txn, &mut inode, layout)?;
    }
    Ok(reply(&inode))
}

/// The component that a part is left out of, if that is possible.
fn position_of(layout: &Layout, request: &LeaveOut) -> FsResult<usize> {
    let Extent { start, end } = request.hole;
    let component = layout.components.iter().position(|component| component.id == request.component);
    let position = component.filter(|position| extension::may_leave_out(layout, *position)).ok_or(FsError::Invalid)?;
    let whole = &layout.components[position];
    let is_part = whole.extent.start <= start && start < end && end <= whole.extent.end;
    let in_blocks = start.is_multiple_of(BLOCK_BYTES) && end.is_multiple_of(BLOCK_BYTES);
    let possible = matches!(whole.backing, Backing::Striped { .. }) && is_part && in_blocks;
    possible.then_some(position).ok_or(FsError::Invalid)
}

/// Answers a client that was refused by a fence, once no client is about to change the layout any
/// more: one that has the file open, or truncates it. The generation told may be larger than the
/// layout's, from a client that was refused again and again: the layout gets past every possible
/// fence, whichever client raised it.
pub(crate) fn renew(txn: &mut Transaction<'_>, request: &RenewLayout) -> FsResult<MdtReply> {
    let mut inode = txn.inode(request.inode)?;
    let mut layout = inode.layout().cloned().ok_or(FsError::Invalid)?;
    txn.require_open(request.inode).or_else(|_| txn.require_writer(request.inode))?;
    if layout.generation <= request.generation {
        let holder = txn.volatile.exclusive.holder(request.inode);
        let is_own = request.exclusive && holder == Some(txn.context.client);
        if txn.volatile.recovery.running() || (holder.is_some() && !is_own) {
            match txn.volatile.recovery.running() {
                true => txn.wait_for_recovery(),
                false => txn.wait_for(request.inode),
            }
            return Ok(MdtReply::Waiting);
        }
        let refused = request.generation.0.min(FENCE_GENERATION_MAX);
        layout.generation = layout.generation.max(Generation(refused));
        put_next(txn, &mut inode, layout)?;
    }
    Ok(reply(&inode))
}

/// The layout's next generation.
fn put_next(txn: &mut Transaction<'_>, inode: &mut Inode, mut layout: Layout) -> FsResult<()> {
    if layout.generation >= Layout::GENERATION_MAX {
        return Err(FsError::Overflow);
    }
    layout.generation = layout.generation.next();
    inode.data = InodeData::Regular(layout);
    txn.put_inode(inode);
    Ok(())
}

fn reply(inode: &Inode) -> MdtReply {
    MdtReply::Layout(LayoutInfo { layout: inode.layout().cloned(), own_default: None, effective_default: None })
}
