//! Moving a finished file to another layout in the background: the steps of [`crate::swap`], for a file that nobody writes
//! to, in pieces that give way to whoever else uses the targets ([`crate::courtesy`]).

use std::{sync::Arc, time::Duration};

use layout::LayoutSpec;
use rpc::message::mdt::{OpenFlags, open_flag};
use rt::clock;
use types::{Credentials, FsError, FsResult, InodeNumber};

use crate::{FileSystem, OpenFile, SeekTarget, WriteOptions, courtesy::Courtesy};

/// Bytes copied at once.
const PIECE_BYTES: u64 = 4 << 20;

impl FileSystem {
    /// Moves the file to the layout; returns the bytes copied. `Busy` if somebody writes to it, has changed it meanwhile, or
    /// has it open at the end. It keeps its layout then, and all that is left is a file without a name that ends. With
    /// `hold_writers` those who come meanwhile wait. Without `courtesy` it goes on as fast as it can.
    pub async fn migrate(
        self: &Arc<Self>,
        credentials: &Credentials,
        inode: InodeNumber,
        spec: LayoutSpec,
        hold_writers: bool,
        courtesy: Option<&mut Courtesy>,
    ) -> FsResult<u64> {
        let flags = OpenFlags(open_flag::READ | open_flag::NO_ACCESS_TIME | open_flag::UNCOUNTED);
        let file = self.open(credentials, inode, flags).await?;
        let moved = match self.data_version(credentials, inode, hold_writers.then(|| file.id())).await {
            Ok(version) => self.migrate_opened(credentials, (&file, version), spec, courtesy).await,
            Err(error) => Err(error),
        };
        let closed = self.close(file, None).await;
        moved.and_then(|bytes| closed.map(|()| bytes))
    }

    async fn migrate_opened(
        self: &Arc<Self>,
        credentials: &Credentials,
        (file, version): (&Arc<OpenFile>, u64),
        spec: LayoutSpec,
        courtesy: Option<&mut Courtesy>,
    ) -> FsResult<u64> {
        let inode = file.inode();
        let size = self.get_attributes(inode, Some(file)).await?.size;
        let flags = OpenFlags(open_flag::READ | open_flag::WRITE | open_flag::EXCLUSIVE);
        let unnamed = self.create_unnamed(credentials, InodeNumber::ROOT, 0o600, 0, flags).await?.file;
        let second = unnamed.inode();
        let moved = async {
            self.begin_layout(credentials, second, spec, inode).await?;
            // First: an automatic layout goes by it, and the end may be a hole.
            self.truncate(credentials, second, Some(&unnamed), size).await?;
            let bytes = self.copy_data(file, &unnamed, size, courtesy).await?;
            self.swap_layouts(credentials, (inode, version, true), (second, None)).await?;
            Ok(bytes)
        }
        .await;
        let closed = self.close(unnamed, None).await;
        moved.and_then(|bytes| closed.map(|()| bytes))
    }

    /// Copies the data, not the holes.
    async fn copy_data(
        self: &Arc<Self>,
        from: &Arc<OpenFile>,
        to: &Arc<OpenFile>,
        size: u64,
        mut courtesy: Option<&mut Courtesy>,
    ) -> FsResult<u64> {
        let (mut at, mut copied) = (0, 0);
        while at < size {
            at = match self.seek(from, at, SeekTarget::Data).await {
                Ok(start) if start < size => start,
                Ok(_) | Err(FsError::NoDeviceOrAddress) => break,
                Err(error) => return Err(error),
            };
            let end = self.seek(from, at, SeekTarget::Hole).await?.min(size);
            while at < end {
                let begun = self.seams.clock.now();
                let wanted = (end - at).min(PIECE_BYTES);
                let bytes = self.copy_range((from, at), (to, at), wanted, WriteOptions::default()).await?;
                if bytes == 0 {
                    // Cut off meanwhile.
                    return Err(FsError::Busy);
                }
                (at, copied) = (at + bytes, copied + bytes);
                let Some(courtesy) = &mut courtesy else { continue };
                let pause = courtesy.after_piece(bytes, self.seams.clock.now().since(begun));
                if pause > Duration::ZERO {
                    clock::sleep(&*self.seams.clock, pause).await;
                }
            }
        }
        Ok(copied)
    }
}
