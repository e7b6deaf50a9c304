//! The layout of an open file, as it grows.
//!
//! This client learns a layout with the open and asks again only where its own layout may be
//! incomplete: before a write into a component that has no objects (the MDT instantiates it once,
//! for the first client that asks), and before it answers from a hole or an end that another
//! client's objects could fill. Its knowledge of objects stays true as long as the file is open:
//! objects are added; they are moved only before they are created, and only by this client (see
//! [`crate::placement::no_space`]).

use std::sync::Arc;

use layout::{Coverage, Layout};
use rpc::message::{
    MdtReply, MdtRequest,
    mdt::{Instantiate, LayoutInfo},
};
use rt::BoxFuture;
use types::{FsError, FsResult, ProtocolError};

use crate::{FileSystem, OpenFile, open_state::open_inode::OpenInode, targets::connection::unexpected};

impl FileSystem {
    /// The layout of an open regular file, as far as this client needs to know it.
    pub(crate) async fn layout_of(&self, open: &OpenInode) -> FsResult<Arc<Layout>> {
        match open.layout()? {
            Some(layout) => Ok(layout),
            None => {
                let doubts = open.layout_doubts();
                let layout = self.ask_layout(open).await?;
                open.trust_layout(doubts);
                Ok(layout)
            }
        }
    }

    fn ask_layout<'a>(&'a self, open: &'a OpenInode) -> BoxFuture<'a, FsResult<Arc<Layout>>> {
        Box::pin(self.ask_layout_inner(open))
    }

    async fn ask_layout_inner(&self, open: &OpenInode) -> FsResult<Arc<Layout>> {
        let target = self.targets.mdt_of(open.inode())?;
        loop {
            let restarts = target.restarts();
            let layout = self.layout_info(open.inode()).await?.layout.ok_or(FsError::Invalid)?;
            if let Some(layout) = open.adopt(&layout, || target.restarts() == restarts)? {
                return Ok(layout);
            }
        }
    }

    /// A layout in which `bytes` from `offset` have objects; `NoData` if they are beyond its end.
    pub(crate) async fn writable(&self, file: &OpenFile, offset: u64, bytes: u64) -> FsResult<Arc<Layout>> {
        let layout = self.layout_of(&file.open).await?;
        // Beyond the end too: another client may have added components.
        if layout.coverage(offset, bytes) == Coverage::Complete {
            return Ok(layout);
        }
        let request = Instantiate { inode: file.inode(), open: file.id(), start: offset, end: offset + bytes };
        let target = self.targets.mdt_of(file.inode())?;
        let layout = loop {
            let restarts = target.restarts();
            let layout = match self.call(file.inode(), MdtRequest::Instantiate(request)).await?.reply {
                MdtReply::Layout(LayoutInfo { layout: Some(layout), .. }) => layout,
                MdtReply::Waiting => continue,
                reply => return Err(unexpected(reply)),
            };
            if let Some(layout) = file.open.adopt(&layout, || target.restarts() == restarts)? {
                break layout;
            }
        };
        match layout.coverage(offset, bytes) {
            Coverage::Complete => Ok(layout),
            _ => Err(ProtocolError::LayoutNotGrown.into()),
        }
    }

    /// The layout with all components that have been instantiated up to now.
    pub(crate) async fn layout_as_of_now(&self, open: &OpenInode) -> FsResult<Arc<Layout>> {
        let layout = self.layout_of(open).await?;
        if layout.may_grow() { self.ask_layout(open).await } else { Ok(layout) }
    }
}
