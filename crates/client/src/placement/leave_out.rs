//! Space for ranges whose objects already exist: the range of a file that a full OST refuses is
//! left out of its component and gets other objects. This applies to automatic layouts and to
//! components that grow in steps (`layout::extension`); so their files get `NoSpace` only if no OST
//! has space.
//!
//! Other clients may read and write the file meanwhile. The steps:
//!
//! 1. the exclusive data lock: no truncation is in progress;
//! 2. the fence: the MDT gives the layout its next generation, and has all objects of the component
//!    refuse earlier ones; the requests that they had accepted are finished. Clients that are
//!    refused, and opens of the file, wait for step 4;
//! 3. the range: from the first block of the refused change that holds no data to the next data of
//!    any of these objects. No client can write there now. Blocks that hold data are overwritten
//!    where they are, and the block in which an object ends is filled up: OSTs keep space for that;
//! 4. the request to the MDT to leave it out.
//!
//! A request that a fence refused has had no effect; its sender asks for the layout and tries again
//! ([`FileSystem::newer_layout`]). If this client dies after step 2, the layout stays as it was,
//! but for its generation.
//!
//! Downside: if there are many small pieces of data after the refused byte, each range is small,
//! and a layout holds only a few hundred components.

use layout::{Component, Extent, Layout, Location, extension};
use rpc::message::{LeaveFullOst, LeaveStep, MdtReply, MdtRequest, mdt::LayoutInfo};
use types::{FsError, FsResult, Generation, limits::BLOCK_BYTES};

use crate::{
    FileSystem, OpenFile,
    join::join_all,
    locks::exclusive::Section,
    objects::object::Object,
    open_state::open_inode::{OpenInode, verified},
    placement::no_space::Refused,
    targets::connection::unexpected,
};

impl FileSystem {
    /// Lets what was refused have other objects; true if the layout is another one now than that of
    /// the refusal.
    pub(crate) async fn leave_out(&self, file: &OpenFile, refused: Refused, _section: &Section) -> FsResult<bool> {
        let open = &*file.open;
        let layout = self.layout_as_of_now(open).await?;
        if !layout.position_at(refused.offset).is_some_and(|position| extension::may_leave_out(&layout, position)) {
            return Ok(false);
        }
        let present = |component: &&Component| {
            component.slots().contains(&refused.slot)
                && layout.location(refused.slot) == Some(Location::Ost(refused.ost))
        };
        let Some(component) = layout.component_at(refused.offset).filter(present) else { return Ok(true) };
        let fenced = self.leave_full_ost(file, layout.generation, LeaveStep::Fence(component.id)).await?;
        if (fenced.generation, &fenced.components) != (layout.generation.next(), &layout.components) {
            // It changed before.
            open.adopt(&fenced, || true)?;
            return Ok(true);
        }
        let Some(hole) = self.hole_at(open, &layout, component, refused).await? else { return Ok(false) };
        match self.leave_full_ost(file, fenced.generation, LeaveStep::LeaveOut(component.id, hole)).await {
            Ok(layout) => {
                // Durable: no start of the MDT can have lost it.
                open.adopt(&layout, || true)?;
                Ok(true)
            }
            Err(FsError::NoSpace) => Ok(false),
            // The MDT does not know of the fence any more: once more from the beginning.
            Err(FsError::WouldBlock) => Ok(true),
            Err(error) => Err(error),
        }
    }

    /// Asks the MDT for a change of the layout of this generation, because an OST is full; the
    /// layout after it.
    pub(super) async fn leave_full_ost(
        &self,
        file: &OpenFile,
        generation: Generation,
        step: LeaveStep,
    ) -> FsResult<Layout> {
        let inode = file.inode();
        let request = LeaveFullOst { inode, open: file.id(), generation, step };
        match self.ask_open(inode, MdtRequest::LeaveFullOst(request)).await? {
            MdtReply::Layout(LayoutInfo { layout: Some(layout), .. }) => {
                verified(&layout)?;
                Ok(layout)
            }
            reply => Err(unexpected(reply)),
        }
    }

    /// Step 3.
    async fn hole_at(
        &self,
        open: &OpenInode,
        layout: &Layout,
        component: &Component,
        refused: Refused,
    ) -> FsResult<Option<Extent>> {
        let object = |slot: u32| {
            let location = layout.location(slot).expect("a slot of the layout");
            Object::new(open.inode(), layout, (slot, location), Some(open))
        };
        let data_from = async |start: u64| -> FsResult<u64> {
            let seek = |slot: u32| self.seek_slot(object(slot), layout, start, true);
            let mut next = component.extent.end;
            for found in join_all(component.slots().map(seek).collect()).await {
                next = next.min(found?.unwrap_or(next));
            }
            Ok(next)
        };
        // What has no hole was refused although it takes nothing new: no other place helps.
        let empty = self.seek_slot(object(refused.slot), layout, refused.offset, false).await?;
        let Some(empty) = empty.filter(|empty| *empty < refused.end) else { return Ok(None) };
        let after = empty.next_multiple_of(BLOCK_BYTES);
        let mut start = empty / BLOCK_BYTES * BLOCK_BYTES;
        let mut end = data_from(start).await?;
        if end < after {
            start = after;
            end = data_from(start).await?;
        }
        let hole = Extent { start, end: end / BLOCK_BYTES * BLOCK_BYTES };
        Ok((!hole.is_empty()).then_some(hole))
    }
}
