//! How a file leaves an OST that has no space: the one change of a layout that is made while other
//! clients use the file.
//!
//! *Ranges without data of objects that exist* are left out of their component and decided again,
//! so that what is written there goes to OSTs with space. Clients that use the old layout must be
//! kept out:
//! 1. [`LeaveStep::Fence`]: the layout gets its next generation, durably, and all others lose their
//!    locks on it. Then this MDT has the component's objects refuse older layouts
//!    (`mdt/layout_fences.rs`). Nobody is shown the layout from now on: opens and questions for it
//!    wait ([`Volatile::is_layout_changing`](crate::volatile::Volatile::is_layout_changing)).
//! 2. The client looks for the range: nobody can write there.
//! 3. [`LeaveStep::LeaveOut`]: the range is decided again; all others continue.
//!
//! The wait ends with step 3, with the exclusive data lock of the client, with its session, or
//! after a minute: then step 3 is refused, and the client begins again. Since no fence is above the
//! layout that this MDT has, a client that an object refused only has to ask for the layout,
//! whatever ended in between. A restart forgets step 1: then step 3 is refused.
//!
//! *Objects that were never created* get other OSTs under their own names. That is safe because the
//! new layout is the file's only one from then on: clients that open the file later get it, and
//! only the caller has the old one. All of the following is required, otherwise the objects stay
//! where they are:
//! - the caller holds the exclusive data lock: no truncation is in progress that was granted with
//!   the old layout;
//! - it reports under the inode's epoch (module `known_size`): it is the only source of changes,
//!   and none is in progress;
//! - no other client has the file open, not even for reading;
//! - no late write of an evicted client can reach the file's OSTs.
//!
//! The caller itself has found out that the objects do not exist. Downside: a file with a fixed
//! layout that two clients have open keeps its objects, and its writers get `NoSpace`.

use std::collections::BTreeSet;

use layout::{Backing, ComponentId, Extent, Layout, Location, automatic, extension};
use rpc::message::{LeaveFullOst, LeaveStep, MdtReply, Relocation, mdt::LayoutInfo};
use types::{Damage, FsError, FsResult, limits::BLOCK_BYTES};

use super::open::is_quiet;
use crate::{
    opens::{OpenFile, OpenKey},
    tables::inode::{Inode, InodeData},
    transaction::Transaction,
};

pub(crate) fn run(txn: &mut Transaction<'_>, request: &LeaveFullOst) -> FsResult<MdtReply> {
    let key = txn.own_open(request.inode, request.open)?;
    if !txn.volatile.opens.get(key).is_some_and(OpenFile::writes) {
        return Err(FsError::BadHandle);
    }
    let mut inode = txn.inode(request.inode)?;
    if txn.volatile.recovery.running() {
        // Somebody may come back with a layout that has grown.
        txn.wait_for_recovery();
        return Ok(MdtReply::Waiting);
    }
    let mut layout = inode.layout().cloned().ok_or(FsError::Invalid)?;
    if txn.volatile.layout_changing_by(request.inode).is_some_and(|client| client != txn.context.client) {
        txn.wait_for(request.inode);
        return Ok(MdtReply::Waiting);
    }
    if layout.generation != request.generation {
        txn.decide_layout(request.inode);
        return Ok(reply(&inode));
    }
    if txn.volatile.exclusive.holder(request.inode) != Some(txn.context.client) {
        return Err(FsError::NoLocks);
    }
    match &request.step {
        LeaveStep::Fence(component) => {
            position_of(&layout, *component)?;
            check_fits(txn, &layout)?;
            if !txn.volatile.layouts_withheld.begin(request.inode) {
                txn.wait_for(request.inode);
                return Ok(MdtReply::Waiting);
            }
            txn.volatile.begin_layout_change(request.inode, txn.context.client, *component, txn.context.now_ns);
        }
        LeaveStep::LeaveOut(component, hole) => {
            if txn.volatile.layout_changing_by(request.inode) != Some(txn.context.client) {
                return Err(FsError::WouldBlock);
            }
            txn.decide_layout(request.inode);
            if !txn.volatile.may_leave_out(request.inode, txn.context.client, *component) {
                return Err(FsError::Invalid);
            }
            leave_out(txn, &mut layout, *component, *hole)?;
        }
        LeaveStep::Relocate(relocation) => {
            check_slots(&layout, relocation)?;
            if !is_alone(txn, &inode, key, relocation.epoch) {
                return Err(FsError::NoSpace);
            }
            let (slots, refused) = (&relocation.slots, &relocation.refused);
            txn.relocate(&mut layout, &slots.iter().copied().collect(), &refused.iter().copied().collect())?;
        }
    }
    put_next(txn, &mut inode, layout)?;
    Ok(reply(&inode))
}

/// Where a component is that something can be left out of.
fn position_of(layout: &Layout, component: ComponentId) -> FsResult<usize> {
    let position = layout.components.iter().position(|one| one.id == component);
    let is_striped = |position: &usize| matches!(layout.components[*position].backing, Backing::Striped { .. });
    let position = position.filter(|position| extension::may_leave_out(layout, *position)).filter(is_striped);
    position.ok_or(FsError::Invalid)
}

/// Whether the layout can have more components.
fn check_fits(txn: &Transaction<'_>, layout: &Layout) -> FsResult<()> {
    let components = layout.components_counted(txn.volatile.targets.count());
    if components < automatic::COMPONENTS_LEFT_OUT_MAX { Ok(()) } else { Err(FsError::NoSpace) }
}

fn leave_out(txn: &mut Transaction<'_>, layout: &mut Layout, component: ComponentId, hole: Extent) -> FsResult<()> {
    let position = position_of(layout, component)?;
    let (whole, Extent { start, end }) = (layout.components[position].extent, hole);
    let is_part = whole.start <= start && start < end && end <= whole.end;
    if !is_part || !start.is_multiple_of(BLOCK_BYTES) || !end.is_multiple_of(BLOCK_BYTES) {
        return Err(FsError::Invalid);
    }
    check_fits(txn, layout)?;
    if extension::is_growing(layout, position) {
        txn.end_growth(layout, position, hole)
    } else {
        layout.leave_out(position, hole).map_err(|error| Damage::new("layout", error.to_string()).into())
    }
}

/// All of them are on OSTs.
fn check_slots(layout: &Layout, relocation: &Relocation) -> FsResult<()> {
    let on_ost = |slot: &u32| matches!(layout.location(*slot), Some(Location::Ost(_)));
    let slots: BTreeSet<u32> = relocation.slots.iter().copied().collect();
    if !slots.is_empty() && slots.iter().all(on_ost) { Ok(()) } else { Err(FsError::Invalid) }
}

/// See the module documentation.
fn is_alone(txn: &Transaction<'_>, inode: &Inode, key: OpenKey, epoch: u64) -> bool {
    !inode.size_known
        && inode.epoch == epoch
        && !txn.volatile.opens.opened_by_others(inode.number(), key.client)
        && is_quiet(txn, inode, Some(key), true)
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
    MdtReply::Layout(LayoutInfo {
        layout: inode.layout().cloned(),
        own_default: None,
        directory_default: None,
        effective_default: None,
        map: None,
    })
}
