//! The attributes of a file that depend on its data: size, blocks, and the time of the last change.

use layout::Layout;
use rpc::message::{
    MdtRequest,
    mdt::{Entry, ReportSize, SizeUpdate},
    ost::ObjectAttributes,
};
use types::{Attributes, DataChanges, InodeNumber};

/// Of a file, or of some of its objects.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct DataAttributes {
    pub size: u64,
    pub blocks: u64,
    /// Of all objects.
    pub changes: DataChanges,
}

impl DataAttributes {
    /// Adds what one object says.
    pub fn add(&mut self, layout: &Layout, slot: u32, object: &ObjectAttributes) {
        self.size = self.size.max(layout.file_size(slot, object.size));
        self.blocks = self.blocks.saturating_add(object.blocks);
        self.add_changes(object);
    }

    /// Adds what one object says of its changes.
    pub fn add_changes(&mut self, object: &ObjectAttributes) {
        self.changes = together(self.changes, DataChanges { count: object.changes, last: object.mtime });
    }

    /// Of these objects and others.
    pub fn and(self, others: DataAttributes) -> DataAttributes {
        let blocks = self.blocks.saturating_add(others.blocks);
        DataAttributes { size: self.size.max(others.size), blocks, changes: together(self.changes, others.changes) }
    }

    /// As a report under this epoch.
    pub fn update(self, epoch: u64) -> SizeUpdate {
        let DataChanges { count, last } = self.changes;
        SizeUpdate { epoch, size: self.size, blocks: self.blocks, mtime: Some(last), changes: count }
    }

    /// What the MDT knows of a file with an unknown size, with what its objects know; times as the
    /// MDT will know them.
    pub fn complete(self, entry: &Entry) -> Attributes {
        entry.completed(self.size, self.blocks, &self.changes)
    }

    /// The report of the data attributes to the MDT.
    pub fn report(self, inode: InodeNumber, epoch: u64) -> MdtRequest {
        MdtRequest::ReportSize(ReportSize { inode, update: self.update(epoch) })
    }
}

/// Changes of different objects.
fn together(some: DataChanges, others: DataChanges) -> DataChanges {
    DataChanges { count: some.count.saturating_add(others.count), last: some.last.max(others.last) }
}
