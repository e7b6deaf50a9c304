//! fallocate(2) and lseek(2) for data and holes, over stripes.

use layout::{ObjectRange, PlainLayout};
use rpc::message::ost::SpaceChange;
use types::{FsError, FsResult, limits::FILE_BYTES_MAX};

use crate::{
    AllocateMode, FileSystem, OpenFile, SeekTarget, join::join_all, objects::Object, open_inode::OpenInode,
    statistics::Operation,
};

/// What a mode does to one object's part of the range.
fn object_change(mode: AllocateMode, range: &ObjectRange) -> SpaceChange {
    let (offset, bytes) = (range.offset, range.bytes);
    match mode {
        AllocateMode::Allocate { extend } => SpaceChange::Allocate { offset, bytes, extend },
        AllocateMode::Punch => SpaceChange::Punch { offset, bytes },
        AllocateMode::Zero { extend } => SpaceChange::Zero { offset, bytes, extend },
    }
}

impl FileSystem {
    /// fallocate(2). Each object gets its part of the range, which is contiguous there. After an error some parts may
    /// have been changed; what they read as is the same in any case except for `Punch` and `Zero`.
    pub async fn allocate(&self, file: &OpenFile, mode: AllocateMode, offset: u64, bytes: u64) -> FsResult<()> {
        self.count(Operation::Fallocate);
        file.check_writable()?;
        if bytes == 0 {
            return Err(FsError::Invalid);
        }
        let end = offset.checked_add(bytes).ok_or(FsError::FileTooLarge)?;
        if end > FILE_BYTES_MAX && mode != AllocateMode::Punch {
            return Err(FsError::FileTooLarge);
        }
        let open = &*file.open;
        let (_, layout) = open.layout()?;
        let inode = open.inode();
        let change = |range: ObjectRange| {
            let object = Object { inode, slot: range.slot, ost: range.ost, open: Some(open) };
            self.space_object(object, layout, object_change(mode, &range))
        };
        let outcomes = join_all(layout.ranges(offset, bytes).map(change).collect()).await;
        outcomes.into_iter().try_for_each(|outcome| outcome.map(|_| ()))
    }

    /// Offset of the next data or hole at or after `offset`; `NoDeviceOrAddress` if there is none before the end of the
    /// file. The end of the file counts as a hole.
    pub async fn seek(&self, file: &OpenFile, offset: u64, target: SeekTarget) -> FsResult<u64> {
        self.count(Operation::Seek);
        file.check_regular()?;
        let open = &*file.open;
        let (_, layout) = open.layout()?;
        let size = self.glimpse(open.inode(), layout).await?.size;
        if offset >= size {
            return Err(FsError::NoDeviceOrAddress);
        }
        let wants_data = target == SeekTarget::Data;
        let slots: Vec<u32> = (0..layout.stripe_count()).collect();
        let seek = |&slot: &u32| self.seek_slot(open, layout, slot, offset, wants_data);
        let mut nearest = None;
        for outcome in join_all(slots.iter().map(seek).collect()).await {
            nearest = [nearest, outcome?].into_iter().flatten().min();
        }
        match (target, nearest) {
            (SeekTarget::Data, Some(found)) if found < size => Ok(found),
            (SeekTarget::Data, _) => Err(FsError::NoDeviceOrAddress),
            (SeekTarget::Hole, found) => Ok(found.unwrap_or(size).min(size)),
        }
    }

    /// The first byte of the file at or after `offset` that lies in `slot` and is data (or, if not `wants_data`, is not).
    /// Data and holes of the file are those of its objects, so the nearest over all slots is the file's.
    async fn seek_slot(
        &self,
        open: &OpenInode,
        layout: &PlainLayout,
        slot: u32,
        offset: u64,
        wants_data: bool,
    ) -> FsResult<Option<u64>> {
        // Bytes of the file before `offset` in this object: the first of its bytes at or after it.
        let start = layout.object_size(slot, offset);
        let object = Object { inode: open.inode(), slot, ost: layout.osts[slot as usize], open: Some(open) };
        let found = self.seek_object(object, start, wants_data).await?;
        // Nothing found when looking for a hole: `start` is at or behind the object's end.
        let found = if wants_data { found } else { Some(found.unwrap_or(start)) };
        Ok(found.map(|found| layout.file_offset(slot, found)))
    }
}

#[cfg(test)]
mod tests {
    use types::OstIndex;

    use super::*;

    #[test]
    fn each_object_gets_its_part() {
        let layout = PlainLayout { stripe_bytes: 65536, osts: (0..3).map(OstIndex).collect() };
        let changes: Vec<_> = layout
            .ranges(65536 + 100, 2 * 65536)
            .map(|range| (range.slot, object_change(AllocateMode::Punch, &range)))
            .collect();
        let punch = |offset, bytes| SpaceChange::Punch { offset, bytes };
        assert_eq!(changes, [(1, punch(100, 65436)), (2, punch(0, 65536)), (0, punch(65536, 100))]);
    }
}
