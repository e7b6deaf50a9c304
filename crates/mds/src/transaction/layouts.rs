//! Layouts within a transaction: of new files, and the instantiation of components as files grow.

use layout::{Backing, FileSystemDefault, Layout, LayoutSpec, StripeSpec};
use types::{FsError, FsResult};

use super::Transaction;
use crate::tables::inode::{Inode, InodeData};

impl Transaction<'_> {
    /// The layout of a new file. The first component has its objects from the start, so that the first write finds them.
    pub fn new_layout(&mut self, spec: &LayoutSpec) -> FsResult<Layout> {
        spec.validate(self.context.parameters.bytes_on_mdt_max)?;
        match spec {
            LayoutSpec::Plain(stripes) => {
                let plain = self.place(stripes)?;
                Ok(Layout::plain(Layout::FIRST_GENERATION, plain, stripes.clone()))
            }
            LayoutSpec::Composite(components) => {
                let mut layout = Layout::composite(components);
                self.instantiate_range(&mut layout, 0, 1)?;
                Ok(layout)
            }
            LayoutSpec::Automatic => Err(FsError::NotSupported),
        }
    }

    /// Chooses targets.
    fn place(&mut self, stripes: &StripeSpec) -> FsResult<layout::PlainLayout> {
        let default: FileSystemDefault = self.context.parameters.default_layout;
        self.volatile.targets.place(&default.fill(stripes), &self.context.parameters.placement)
    }

    /// Gives all components that `start..end` of the file touches their objects; true if anything changed.
    fn instantiate_range(&mut self, layout: &mut Layout, start: u64, end: u64) -> FsResult<bool> {
        let pending = layout.pending(start, end);
        for &position in &pending {
            let Backing::Pending(stripes) = layout.components[position].backing.clone() else {
                return Err(FsError::NotSupported);
            };
            let plain = self.place(&stripes)?;
            layout.instantiate(position, plain, stripes).map_err(|error| FsError::Damaged(error.to_string()))?;
        }
        Ok(!pending.is_empty())
    }

    /// Makes `start..end` of a file writable: its layout may grow. The caller stores the inode.
    pub fn instantiate(&mut self, inode: &mut Inode, start: u64, end: u64) -> FsResult<()> {
        let InodeData::Regular(layout) = &mut inode.data else { return Err(FsError::Invalid) };
        if start < end && end > layout.end() {
            return Err(FsError::NoData);
        }
        let mut grown = layout.clone();
        if self.volatile.recovery.growth_unknown {
            grown.skip_slots();
        }
        if self.instantiate_range(&mut grown, start, end)? {
            grown.generation = grown.generation.next();
            inode.data = InodeData::Regular(grown);
        }
        Ok(())
    }
}
