//! lseek(2) for data and holes, over stripes.

use layout::Layout;
use rt::BoxFuture;
use types::{FsError, FsResult, limits::BLOCK_BYTES};

use crate::{FileSystem, OpenFile, SeekTarget, join::join_all, objects::object::Object, statistics::Operation};

impl FileSystem {
    /// Offset of the next data or hole at or after `offset`; `NoDeviceOrAddress` if there is none
    /// before the end of the file. The end of the file counts as a hole.
    ///
    /// ```
    /// # mod cluster { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/doc/cluster.rs")); }
    /// # use cluster::with_file_system;
    ///
    /// use client::{SeekTarget, WriteOptions};
    /// use rpc::message::mdt::{OpenFlags, open_flag};
    /// use types::{Credentials, FsError, InodeNumber};
    ///
    /// # with_file_system(async |file_system| {
    /// let (root, flags) = (Credentials::root(), OpenFlags(open_flag::READ | open_flag::WRITE));
    /// let made = file_system.create_open(&root, InodeNumber::ROOT, b"sparse", 0o600, 0, flags).await?;
    /// file_system.write(&made.file, 1 << 20, vec![1; 4096].into(), WriteOptions::default()).await?;
    /// assert_eq!(file_system.seek(&made.file, 0, SeekTarget::Data).await?, 1 << 20);
    /// let hole = file_system.seek(&made.file, 1 << 20, SeekTarget::Hole).await?;
    /// assert_eq!(hole, (1 << 20) + 4096, "the end of the file");
    /// let beyond = file_system.seek(&made.file, hole, SeekTarget::Data).await;
    /// assert_eq!(beyond, Err(FsError::NoDeviceOrAddress));
    /// file_system.close(made.file, None).await
    /// # });
    /// ```
    pub async fn seek(&self, file: &OpenFile, offset: u64, target: SeekTarget) -> FsResult<u64> {
        self.count(Operation::Seek);
        file.check_regular()?;
        let open = &*file.open;
        let layout = self.layout_as_of_now(open).await?;
        let size = self.glimpse(open.inode(), &layout).await?.size;
        if offset >= size {
            return Err(FsError::NoDeviceOrAddress);
        }
        let wants_data = target == SeekTarget::Data;
        let seek = |found| {
            let object = Object::new(open.inode(), &layout, found, Some(open));
            self.seek_slot(object, &layout, offset, wants_data)
        };
        let following = layout.objects().filter(|(slot, _)| layout.extent_of(*slot).end > offset);
        // What has no objects is a hole.
        let mut nearest = if wants_data { None } else { layout.next_gap(offset) };
        for outcome in join_all(following.map(seek).collect()).await {
            nearest = [nearest, outcome?].into_iter().flatten().min();
        }
        match (target, nearest) {
            (SeekTarget::Data, Some(found)) if found < size => Ok(found),
            (SeekTarget::Data, _) => Err(FsError::NoDeviceOrAddress),
            (SeekTarget::Hole, found) => Ok(found.unwrap_or(size).min(size)),
        }
    }

    /// The first byte of the file at or after `offset` that is in this object and is data (or, if
    /// not `wants_data`, is not). Data and holes of the file are those of its objects, so the
    /// nearest over all of them is the file's.
    pub(crate) fn seek_slot<'a>(
        &'a self,
        object: Object<'a>,
        layout: &'a Layout,
        offset: u64,
        wants_data: bool,
    ) -> BoxFuture<'a, FsResult<Option<u64>>> {
        Box::pin(self.seek_slot_inner(object, layout, offset, wants_data))
    }

    async fn seek_slot_inner(
        &self,
        object: Object<'_>,
        layout: &Layout,
        offset: u64,
        wants_data: bool,
    ) -> FsResult<Option<u64>> {
        let mut from = layout.next_of(object.id.slot, offset);
        while let Some(at) = from {
            let start = layout.object_position(object.id.slot, at);
            let found = self.seek_object(object, start, wants_data).await?;
            // Nothing found when looking for a hole: `start` is at or after the object's end. Found
            // at `start`: it is within a hole, in the middle of a block perhaps. Else a block that
            // an object ends in is data as a whole if the file continues.
            let hole = |found| if found == start { start } else { next_block(found) };
            let found = if wants_data { found } else { Some(found.map_or(start, hole)) };
            let Some(position) = found.map(|found| layout.file_offset(object.id.slot, found)) else { return Ok(None) };
            // Between parts of a component, and after its extent, the object's hole or end is not
            // the file's.
            from = layout.next_of(object.id.slot, position);
            if from == Some(position) {
                return Ok(from);
            }
        }
        Ok(None)
    }
}

fn next_block(offset: u64) -> u64 {
    offset.next_multiple_of(BLOCK_BYTES)
}
