//! The layout of an open file, as it grows.
//!
//! This client gets the layout, and the lock on it, with the open. Before another client changes
//! the layout the MDT withdraws the lock: then the layout is outdated, and this client asks for it
//! again before it uses it (decision 0033). Changes by this client whose answer does not show the
//! layout make it outdated in the same way.
//!
//! There may be no lock (locks are limited, and an unnamed file has none). Then the layout is used
//! for bytes that have objects: objects refuse a layout that is too old for them. A hole or an end
//! that another client's objects could fill is trusted only under the lock; without it, the MDT is
//! asked first. Before a write into a component that has no objects it is asked in any case: it
//! instantiates the component once, for the first client that asks.

use std::sync::Arc;

use layout::{Coverage, Layout};
use rpc::message::{
    MdtReply, MdtRequest,
    mdt::{Instantiate, LayoutInfo},
};
use rt::BoxFuture;
use types::{Damage, FsError, FsResult, Generation, InodeNumber, ProtocolError};

use crate::{
    FileSystem, OpenFile,
    open_state::open_inode::{OpenInode, verified},
    targets::connection::unexpected,
};

impl FileSystem {
    /// The layout of an open regular file, as far as this client needs to know it.
    pub(crate) async fn layout_of(&self, open: &OpenInode) -> FsResult<Arc<Layout>> {
        match open.layout()? {
            Some(layout) => Ok(layout),
            None => {
                let outdated = open.layout_outdated();
                let layout = self.ask_layout(open).await?;
                open.layout_asked(outdated);
                Ok(layout)
            }
        }
    }

    /// The layout as of now, if this client has the lock on it.
    fn locked_layout(&self, open: &OpenInode) -> FsResult<Option<Arc<Layout>>> {
        let target = self.targets.mdt_of(open.inode())?;
        let restarts = target.restarts();
        match target.serve(&self.seams, |cache| cache.layout(open.inode())) {
            Some(layout) => open.adopt(&layout, || target.restarts() == restarts),
            None => Ok(None),
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
            let layout = match self.ask_open(file.inode(), MdtRequest::Instantiate(request)).await? {
                MdtReply::Layout(LayoutInfo { layout: Some(layout), .. }) => layout,
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

    /// The layout after an object refused the one of this generation as too old. The MDT answers
    /// once nobody is about to change the layout any more.
    pub(crate) fn newer_layout<'a>(
        &'a self,
        inode: InodeNumber,
        open: Option<&'a OpenInode>,
        refused: Generation,
    ) -> BoxFuture<'a, FsResult<Arc<Layout>>> {
        Box::pin(self.newer_layout_inner(inode, open, refused))
    }

    async fn newer_layout_inner(
        &self,
        inode: InodeNumber,
        open: Option<&OpenInode>,
        refused: Generation,
    ) -> FsResult<Arc<Layout>> {
        let layout = match open {
            Some(open) => {
                open.outdate_layout();
                self.layout_of(open).await?
            }
            None => {
                let layout = self.layout_info(inode).await?.layout.ok_or(FsError::Invalid)?;
                Arc::new(verified(&layout)?.clone())
            }
        };
        // No object refuses the layout that its MDT has.
        if layout.generation <= refused { Err(Damage::LayoutsRefused(inode).into()) } else { Ok(layout) }
    }

    /// The layout with all components that have been instantiated up to now.
    pub(crate) async fn layout_as_of_now(&self, open: &OpenInode) -> FsResult<Arc<Layout>> {
        let layout = self.layout_of(open).await?;
        if !layout.may_grow() {
            return Ok(layout);
        }
        match self.locked_layout(open)? {
            Some(layout) => Ok(layout),
            None => self.ask_layout(open).await,
        }
    }
}
