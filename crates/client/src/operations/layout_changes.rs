//! Layouts as users see and change them: the operations that implement `lfs getstripe`, `lfs
//! setstripe`, `lfs swap_layouts` and `lfs migrate`.
//!
//! A file's data move to another layout in these steps; it is safe to stop after any of them:
//!
//! 1. [`FileSystem::data_version`]: the file's write epoch, while no client writes to it;
//! 2. an unnamed file is created and opened (O_TMPFILE), and [`FileSystem::begin_layout`] gives it
//!    the layout;
//! 3. the data are copied into it;
//! 4. [`FileSystem::swap_layouts`]: both are made durable, and the MDT swaps the layouts if the
//!    epoch still holds;
//! 5. the unnamed file is closed, and the old objects are removed with it. If the client dies on
//!    the way, the unnamed file is removed.
//!
//! The opens that this client has of the two files, one each, adopt the new layouts: no operation
//! is in progress while the MDT swaps ([`crate::open_state::open_inode::OpenInode::changing`]), and
//! the client asks for the layouts before it uses them again.

use std::sync::Arc;

use layout::LayoutSpec;
use rpc::message::{
    MdtReply, MdtRequest,
    mdt::{DataVersion, LayoutChange, LayoutInfo, OpenId, SizeUpdate, SwapLayouts, SwapSide},
};
use types::{Credentials, FsError, FsResult, InodeNumber};

use crate::{FileSystem, open_state::open_inode::OpenInode, targets::connection::unexpected};

impl FileSystem {
    /// Layout of an inode, once nobody is about to change it because an OST is full; and of a
    /// directory the defaults for new files.
    pub async fn layout_info(&self, inode: InodeNumber) -> FsResult<LayoutInfo> {
        match self.ask_open(inode, MdtRequest::GetLayout(inode)).await? {
            MdtReply::Layout(info) => Ok(info),
            reply => Err(unexpected(reply)),
        }
    }

    /// Changes the layout of a file.
    pub async fn change_layout(
        &self,
        credentials: &Credentials,
        inode: InodeNumber,
        change: LayoutChange,
    ) -> FsResult<()> {
        match self.ask_open(inode, MdtRequest::ChangeLayout(credentials.clone(), inode, change)).await? {
            MdtReply::Done => Ok(()),
            reply => Err(unexpected(reply)),
        }
    }

    /// The number that changes whenever the file's data may have changed; `Busy` while a client has
    /// it open for writing. With `hold_writers`, an open of the caller, writers wait for that
    /// open's end from now on, even after `Busy`. `WouldBlock` if another open holds them off: that
    /// one's owner waits for this one's end.
    pub async fn data_version(
        &self,
        credentials: &Credentials,
        inode: InodeNumber,
        hold_writers: Option<OpenId>,
    ) -> FsResult<u64> {
        // If a dead writer left the size unknown, this look makes it known.
        self.get_attributes(inode, None).await?;
        let request = MdtRequest::DataVersion(credentials.clone(), DataVersion { inode, hold_writers });
        match self.ask_open(inode, request).await? {
            MdtReply::Version(version) => Ok(version),
            reply => Err(unexpected(reply)),
        }
    }

    /// What this client has open of a file, which is open once.
    fn only_open(&self, inode: InodeNumber) -> FsResult<(Arc<OpenInode>, OpenId)> {
        let open = self.client_state.opens.find(inode).ok_or(FsError::BadHandle)?;
        let id = open.only_id().ok_or(FsError::Busy)?;
        Ok((open, id))
    }

    /// Gives the layout to an unnamed file that this client has open once and never changed.
    pub async fn begin_layout(
        &self,
        credentials: &Credentials,
        inode: InodeNumber,
        spec: LayoutSpec,
        like: InodeNumber,
    ) -> FsResult<()> {
        let (open, _) = self.only_open(inode)?;
        let _alone = open.changing.write().await;
        open.check()?;
        let known = open.state().tracker.update();
        let unchanged = known.filter(|known| known.size == 0 && known.blocks == 0 && known.changes == 0);
        let epoch = unchanged.ok_or(FsError::Busy)?.epoch;
        open.outdate_layout();
        self.change_layout(credentials, inode, LayoutChange::Begin { epoch, spec, like }).await
    }

    /// Swaps the layouts of two files, and so their data. Of the first the version must still hold;
    /// `opened`: the caller has it open, once. The second either has a version too, and no client
    /// has it open; or the caller has it open, once, and is its only writer: the caller of this
    /// function has checked the descriptor, because the MDT requires no path to an unnamed file.
    /// `WouldBlock`: what became of one of its changes is unknown; it must be written again.
    pub async fn swap_layouts(
        &self,
        credentials: &Credentials,
        (first, version, opened): (InodeNumber, u64, bool),
        (second, second_version): (InodeNumber, Option<u64>),
    ) -> FsResult<()> {
        if first == second || first.mdt() != second.mdt() {
            return Err(FsError::Invalid);
        }
        // They are named by their numbers. Their MDT looks at those directories only that it has.
        self.require_path(credentials, first).await?;
        self.require_path(credentials, second).await?;
        let first_open = if opened { Some(self.only_open(first)?) } else { None };
        let second_open = if second_version.is_none() { Some(self.only_open(second)?) } else { None };
        let open = |open: &Option<(Arc<OpenInode>, OpenId)>| open.as_ref().map(|(open, _)| open.clone());
        let mut opens: Vec<Arc<OpenInode>> = [open(&first_open), open(&second_open)].into_iter().flatten().collect();
        // In one order, whichever is the first: two swaps of the same files wait for each other,
        // not in a cycle.
        opens.sort_by_key(|open| open.inode());
        let mut alone = Vec::new();
        for open in &opens {
            alone.push(open.changing.write().await);
            // What the old objects of the other go for must not be lost.
            self.sync_inode(open, false).await?;
        }
        let size_known = |epoch: u64| SizeUpdate { epoch, size: 0, blocks: 0, mtime: None, changes: 0 };
        let known = match (second_version, &second_open) {
            (Some(epoch), _) => size_known(epoch),
            (None, Some((open, _))) => open.state().tracker.update().ok_or(FsError::WouldBlock)?,
            (None, None) => return Err(FsError::BadHandle),
        };
        let id = |open: &Option<(Arc<OpenInode>, OpenId)>| open.as_ref().map(|(_, id)| *id);
        let swap = SwapLayouts {
            first: SwapSide { inode: first, open: id(&first_open), known: size_known(version) },
            second: SwapSide { inode: second, open: id(&second_open), known },
        };
        opens.iter().for_each(|open| open.outdate_layout());
        let swapped = match self.ask_open(first, MdtRequest::SwapLayouts(credentials.clone(), swap)).await {
            Ok(MdtReply::Done) => Ok(()),
            Ok(reply) => Err(unexpected(reply)),
            Err(error) => Err(error),
        };
        match &swapped {
            Ok(()) => {
                // What was known is of the other file now.
                opens.iter().for_each(|open| open.state().tracker.forget());
                self.client_state.opens.exchange_unsynced(first, second, true);
            }
            // What became of it is unknown.
            Err(FsError::Stale) => self.client_state.opens.exchange_unsynced(first, second, false),
            Err(_) => {}
        }
        swapped
    }
}
