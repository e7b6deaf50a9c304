//! Space for ranges whose objects already exist: the range of a file that a full OST refuses is
//! left out of its component and gets other objects. This applies to automatic layouts and to
//! components that grow in steps (`layout::extension`); so their files get `NoSpace` only if no OST
//! has space.
//!
//! Other clients may read and write the file meanwhile. The steps:
//!
//! 1. the exclusive data lock: no truncation is in progress, and clients refused by step 2 wait for
//!    step 4;
//! 2. the fence: all objects of the component permanently refuse layouts up to the present one; the
//!    requests that they had accepted are finished;
//! 3. the range: from the first block of the refused change that holds no data to the next data of
//!    any of these objects. No client can write there now. Blocks that hold data are overwritten
//!    where they are, and the block in which an object ends is filled up: OSTs keep space for that;
//! 4. the request to the MDT, which durably gives the layout the generation that the fence
//!    requires.
//!
//! A request that a fence refused has had no effect; its sender asks for the layout and tries again
//! ([`FileSystem::renew_layout`]). If this client dies after step 2, the next one that is refused
//! gets the layout's next generation, without another change.
//!
//! Downside: if there are many small pieces of data after the refused byte, each range is small,
//! and a layout holds only a few hundred components.

use std::{collections::BTreeMap, sync::Arc};

use layout::{Component, Extent, Layout, Location, extension};
use rpc::message::{
    MdtReply, MdtRequest, OstReply, OstRequest,
    mdt::{LayoutInfo, LeaveOut, RenewLayout},
};
use rt::BoxFuture;
use types::{FsError, FsResult, Generation, InodeNumber, ObjectId, ProtocolError, limits::BLOCK_BYTES};

use crate::{
    FileSystem, OpenFile,
    join::join_all,
    locks::exclusive::Section,
    objects::object::{Object, holder_of},
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
        self.fence(open.inode(), &layout, component).await?;
        let Some(hole) = self.hole_at(open, &layout, component, refused).await? else { return Ok(false) };
        let request = LeaveOut {
            inode: open.inode(),
            open: file.id(),
            generation: layout.generation,
            component: component.id,
            hole,
        };
        match self.ask_open(open.inode(), MdtRequest::LeaveOut(request)).await {
            Ok(MdtReply::Layout(LayoutInfo { layout: Some(layout), .. })) => {
                // Durable: no start of the MDT can have lost it.
                open.adopt(&layout, || true)?;
                Ok(true)
            }
            Ok(reply) => Err(unexpected(reply)),
            Err(FsError::NoSpace) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Step 2.
    async fn fence(&self, inode: InodeNumber, layout: &Layout, component: &Component) -> FsResult<()> {
        let mut by_target: BTreeMap<_, Vec<ObjectId>> = BTreeMap::new();
        for slot in component.slots() {
            let Some(location) = layout.location(slot) else { continue };
            by_target.entry(holder_of(inode, location)).or_default().push(layout.object(inode, slot));
        }
        let generation = layout.generation.next().0;
        let fence = async |role, objects: Vec<ObjectId>| {
            let target = self.targets.get(role)?;
            match target.call(OstRequest::Fence(objects, generation)).await?.reply {
                OstReply::Done => Ok(()),
                reply => Err(unexpected(reply)),
            }
        };
        let fences = by_target.into_iter().map(|(role, objects)| fence(role, objects)).collect();
        join_all(fences).await.into_iter().collect()
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
        let behind = empty.next_multiple_of(BLOCK_BYTES);
        let mut start = empty / BLOCK_BYTES * BLOCK_BYTES;
        let mut end = data_from(start).await?;
        if end < behind {
            start = behind;
            end = data_from(start).await?;
        }
        let hole = Extent { start, end: end / BLOCK_BYTES * BLOCK_BYTES };
        Ok((!hole.is_empty()).then_some(hole))
    }

    /// The layout after an object refused the one of this generation as too old. `exclusive`: the
    /// caller has the exclusive data lock.
    pub(crate) fn renew_layout<'a>(
        &'a self,
        inode: InodeNumber,
        open: Option<&'a OpenInode>,
        generation: Generation,
        exclusive: bool,
    ) -> BoxFuture<'a, FsResult<Arc<Layout>>> {
        Box::pin(self.renew_layout_inner(inode, open, generation, exclusive))
    }

    async fn renew_layout_inner(
        &self,
        inode: InodeNumber,
        open: Option<&OpenInode>,
        generation: Generation,
        exclusive: bool,
    ) -> FsResult<Arc<Layout>> {
        let request = RenewLayout { inode, generation, exclusive };
        loop {
            let layout = match self.ask_open(inode, MdtRequest::RenewLayout(request)).await? {
                MdtReply::Layout(LayoutInfo { layout: Some(layout), .. }) => layout,
                reply => return Err(unexpected(reply)),
            };
            if verified(&layout)?.generation <= generation {
                return Err(ProtocolError::LayoutNotRenewed.into());
            }
            let Some(open) = open else { return Ok(Arc::new(layout)) };
            // Durable, as above.
            if let Some(newest) = open.adopt(&layout, || true)? {
                return Ok(newest);
            }
        }
    }
}
