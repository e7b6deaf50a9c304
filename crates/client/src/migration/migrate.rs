//! Moves a finished file to another layout: the steps of [`crate::operations::layout_changes`], in
//! pieces, for a file that is not being written.
//!
//! In the background ([`Background`]) it yields to other users of the targets
//! ([`crate::migration::throttle`]), asks before each piece whether it may continue, and gives up
//! early: as soon as a client has started to write, the rest is not copied. If the file is in use
//! when the copy is finished, the copy is kept for a while and only the swap is tried again.

use std::{sync::Arc, time::Duration};

use layout::{LayoutSpec, Location};
use rpc::message::mdt::{OpenFlags, open_flag};
use rt::{BoxFuture, clock};
use types::{Credentials, FileKind, FsError, FsResult, InodeNumber, OstIndex};

use crate::{CreatedFile, FileSystem, OpenFile, SeekTarget, WriteOptions, migration::throttle::Throttle};

/// Bytes copied at once.
const PIECE_BYTES: u64 = 4 << 20;

/// What is still to be copied of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rest {
    /// Where it begins. At the size: all is copied, and the file waits until it is not in use.
    pub start: u64,
    /// Size of the file.
    pub size: u64,
    /// OSTs that the copy is on by now, as far as the client knows: none once a swap was tried.
    pub osts: Vec<OstIndex>,
}

/// Decides how much a background migration may take.
pub trait Restraint: Send + Sync {
    /// Bytes per second it may copy at the moment; 0: it gives up. Asked before each piece, and
    /// before each swap but the first.
    fn allowance(&self, rest: Rest) -> BoxFuture<'_, u64>;
}

/// How a move in the background goes about it.
pub struct Background<'a> {
    /// How it gives way.
    pub throttle: Throttle,
    /// What it may take.
    pub restraint: &'a dyn Restraint,
    /// Before the swap is tried again of a file that is in use.
    pub swap_pauses: &'a [Duration],
}

/// A file that is moved, and its copy.
struct Move<'a> {
    credentials: &'a Credentials,
    from: &'a Arc<OpenFile>,
    /// Of the data that are copied.
    version: u64,
    to: &'a Arc<OpenFile>,
    size: u64,
}

impl Move<'_> {
    fn rest(&self, start: u64) -> Rest {
        // Without a layout that holds, nothing was copied since.
        let layout = self.to.open.layout().ok().flatten();
        let on_ost = |(_, location)| match location {
            Location::Ost(ost) => Some(ost),
            Location::Mdt => None,
        };
        let mut osts: Vec<OstIndex> = layout.iter().flat_map(|layout| layout.objects()).filter_map(on_ost).collect();
        osts.sort_unstable();
        osts.dedup();
        Rest { start, size: self.size, osts }
    }

    /// What it may copy now; `Interrupted` if it is to give up.
    async fn allowance(&self, restraint: &dyn Restraint, start: u64) -> FsResult<u64> {
        match restraint.allowance(self.rest(start)).await {
            0 => Err(FsError::Interrupted),
            bytes_per_second => Ok(bytes_per_second),
        }
    }
}

impl FileSystem {
    /// Moves the file to the layout; returns the bytes copied. `Busy` if a client is writing to it,
    /// has changed it meanwhile, or has it open at the end; `Interrupted` if `background` has given
    /// up. It keeps its layout then, and all that is left is a file without a name, until its last
    /// close. With `hold_writers`, writers that come meanwhile wait. Without `background` it
    /// continues as fast as it can, and tries the swap once.
    pub fn migrate<'a>(
        self: &'a Arc<Self>,
        credentials: &'a Credentials,
        inode: InodeNumber,
        spec: LayoutSpec,
        hold_writers: bool,
        background: Option<&'a mut Background<'_>>,
    ) -> BoxFuture<'a, FsResult<u64>> {
        Box::pin(self.migrate_inner(credentials, inode, spec, hold_writers, background))
    }

    async fn migrate_inner(
        self: &Arc<Self>,
        credentials: &Credentials,
        inode: InodeNumber,
        spec: LayoutSpec,
        hold_writers: bool,
        background: Option<&mut Background<'_>>,
    ) -> FsResult<u64> {
        let flags = OpenFlags(open_flag::READ | open_flag::NO_ACCESS_TIME | open_flag::UNCOUNTED);
        let file = self.open(credentials, inode, flags).await?;
        let moved = match self.data_version(credentials, inode, hold_writers.then(|| file.id())).await {
            Ok(version) => self.migrate_opened(credentials, (&file, version), spec, background).await,
            Err(error) => Err(error),
        };
        let closed = self.close(file, None).await;
        moved.and_then(|bytes| closed.map(|()| bytes))
    }

    async fn migrate_opened(
        self: &Arc<Self>,
        credentials: &Credentials,
        (from, version): (&Arc<OpenFile>, u64),
        spec: LayoutSpec,
        mut background: Option<&mut Background<'_>>,
    ) -> FsResult<u64> {
        let inode = from.inode();
        let size = self.get_attributes(inode, Some(from)).await?.size;
        let flags = OpenFlags(open_flag::READ | open_flag::WRITE | open_flag::EXCLUSIVE);
        let unnamed = self.create_beside(credentials, inode, flags).await?.file;
        let second = unnamed.inode();
        let moved = async {
            self.begin_layout(credentials, second, spec, inode).await?;
            // First: an automatic layout goes by it, and the end may be a hole.
            self.truncate(credentials, second, Some(&unnamed), size).await?;
            let moving = Move { credentials, from, version, to: &unnamed, size };
            let bytes = self.copy_data(&moving, background.as_deref_mut()).await?;
            self.swap_when_free(&moving, background.as_deref()).await?;
            Ok(bytes)
        }
        .await;
        let closed = self.close(unnamed, None).await;
        moved.and_then(|bytes| closed.map(|()| bytes))
    }

    /// Makes an unnamed file on the MDT of another one: layouts are swapped within an MDT. In one
    /// of the directories of that, or a shard of one, if any is there.
    async fn create_beside(
        self: &Arc<Self>,
        credentials: &Credentials,
        inode: InodeNumber,
        flags: OpenFlags,
    ) -> FsResult<CreatedFile> {
        if let Some(directory) = self.directory_beside(credentials, inode).await? {
            match self.create_unnamed_on(credentials, (directory, inode.mdt()), 0o600, 0, flags).await {
                // Its shard there has ended, or it has moved to another MDT meanwhile.
                Err(FsError::NoDeviceOrAddress | FsError::Stale) => {}
                created => return created,
            }
        }
        match self.create_unnamed_beside(credentials, inode, 0o600, 0, flags).await {
            Err(FsError::NoDeviceOrAddress) => Err(FsError::Busy),
            created => created,
        }
    }

    /// A directory on the MDT of a file, or with a shard there; `None` if its names change
    /// meanwhile, or all are on other MDTs.
    async fn directory_beside(&self, credentials: &Credentials, inode: InodeNumber) -> FsResult<Option<InodeNumber>> {
        if inode.mdt() == InodeNumber::ROOT.mdt() {
            return Ok(Some(InodeNumber::ROOT));
        }
        let paths = match self.paths(credentials, inode).await {
            // A directory above it has moved meanwhile.
            Err(FsError::Stale) => return Ok(None),
            paths => paths?,
        };
        for path in paths {
            let mut names: Vec<&[u8]> = path.split(|byte| *byte == b'/').collect();
            names.pop();
            match self.walk(credentials, InodeNumber::ROOT, &names).await {
                Ok(found) if found.kind == FileKind::Directory => {
                    match self.part_on(found.inode, inode.mdt()).await {
                        Ok(Some(_)) => return Ok(Some(found.inode)),
                        // It has moved to another MDT meanwhile.
                        Ok(None) | Err(FsError::Stale) => {}
                        Err(error) => return Err(error),
                    }
                }
                Ok(_) | Err(FsError::NotFound | FsError::NotDirectory | FsError::Stale) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(None)
    }

    /// Copies the data, not the holes.
    async fn copy_data(
        self: &Arc<Self>,
        moving: &Move<'_>,
        mut background: Option<&mut Background<'_>>,
    ) -> FsResult<u64> {
        let Move { from, to, size, .. } = *moving;
        let (mut at, mut copied) = (0, 0);
        while at < size {
            at = match self.seek(from, at, SeekTarget::Data).await {
                Ok(start) if start < size => start,
                Ok(_) | Err(FsError::NoDeviceOrAddress) => break,
                Err(error) => return Err(error),
            };
            let end = match self.seek(from, at, SeekTarget::Hole).await {
                Ok(end) => end.min(size),
                // Cut off meanwhile.
                Err(FsError::NoDeviceOrAddress) => return Err(FsError::Busy),
                Err(error) => return Err(error),
            };
            while at < end {
                let wanted = (end - at).min(PIECE_BYTES);
                let bytes = match &mut background {
                    None => self.copy_range((from, at), (to, at), wanted, WriteOptions::default()).await?,
                    Some(background) => self.copy_gently(moving, at, wanted, background).await?,
                };
                if bytes == 0 {
                    // Cut off meanwhile.
                    return Err(FsError::Busy);
                }
                assert!(bytes <= wanted, "no more is copied than the piece");
                (at, copied) = (at + bytes, copied + bytes);
            }
        }
        Ok(copied)
    }

    /// Copies a piece if that may still be of use, and pauses.
    async fn copy_gently(
        self: &Arc<Self>,
        moving: &Move<'_>,
        at: u64,
        wanted: u64,
        background: &mut Background<'_>,
    ) -> FsResult<u64> {
        let bytes_per_second = moving.allowance(background.restraint, at).await?;
        self.require_version(moving).await?;
        let begun = self.seams.clock.now();
        let bytes = self.copy_range((moving.from, at), (moving.to, at), wanted, WriteOptions::default()).await?;
        let pause = background.throttle.after_piece(bytes, self.seams.clock.now().since(begun), bytes_per_second);
        if pause > Duration::ZERO {
            clock::sleep(&*self.seams.clock, pause).await;
        }
        Ok(bytes)
    }

    /// `Busy` if a client has started to write since the version was read.
    async fn require_version(&self, moving: &Move<'_>) -> FsResult<()> {
        let now = self.data_version(moving.credentials, moving.from.inode(), None).await?;
        if now == moving.version { Ok(()) } else { Err(FsError::Busy) }
    }

    /// Swaps the layouts; in the background as soon as no client has the file open, within bounds.
    async fn swap_when_free(self: &Arc<Self>, moving: &Move<'_>, background: Option<&Background<'_>>) -> FsResult<()> {
        let (first, second) = ((moving.from.inode(), moving.version, true), (moving.to.inode(), None));
        let mut pauses = background.map_or(&[][..], |background| background.swap_pauses).iter();
        loop {
            let swapped = self.swap_layouts(moving.credentials, first, second).await;
            let (Err(FsError::Busy), Some(background), Some(pause)) = (&swapped, background, pauses.next()) else {
                return swapped;
            };
            clock::sleep(&*self.seams.clock, *pause).await;
            moving.allowance(background.restraint, moving.size).await?;
            self.require_version(moving).await?;
        }
    }
}
