//! What a write asks the allocator for, and what it gets.

use std::ops::Range;

use types::ObjectId;

use crate::Inconsistent;

/// What a write asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// The object that is written.
    pub object: ObjectId,
    /// First block of the write that it is for, within the object: `logical`, or one before if the
    /// write has got blocks for its beginning already.
    pub write_start: u64,
    /// First block, within the object.
    pub logical: u64,
    /// Blocks, at least one.
    pub blocks: u32,
    /// Blocks of the object, as large as it is known to be.
    pub size: u64,
    /// The block of the device after the one that holds the object's block before `logical`.
    pub goal: Option<u64>,
    /// Small objects of one locality (a directory, a writer) are kept together.
    pub locality: u64,
    /// For changes that must succeed on a full device.
    pub may_use_reserve: bool,
}

/// Blocks in progress, for the first blocks of a request. Ends with [`crate::Allocator::record`] or
/// [`crate::Allocator::abandon`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use = "blocks in progress are recorded or abandoned"]
pub struct Allocation {
    /// Blocks of the device; at least one, at most as many as were asked for.
    pub device: Range<u64>,
}

/// Why a request was not fulfilled. Nothing was changed but windows, which may be smaller.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// A group has to be loaded first.
    #[error("allocation group {0} is not loaded")]
    Load(u32),
    /// All blocks are used or reserved.
    #[error("no free blocks")]
    NoSpace,
    /// The records of the device are wrong.
    #[error(transparent)]
    Inconsistent(#[from] Inconsistent),
}
