//! The block allocator of an OST that keeps its objects on a device of its own: which blocks of
//! the device a write gets. Follows ext4's multi-block allocator as ldiskfs (Lustre) tunes it, with
//! its names.
//!
//! - [`Geometry`]: the device as allocation groups of 128 MiB, 32,768 blocks of 4 KiB each.
//! - [`FreeRuns`]: the free blocks of a group; its [`Summary`] is all that is kept of a group that
//!   is not loaded.
//! - [`FreeIndex`]: finds a group with a long enough free run without looking at the others.
//! - [`plan`](fn@plan): the decision, a pure function of all of these.
//! - [`Allocator`]: carries decisions out, and keeps freed blocks until they may be used again.
//! - [`choose_merge`], [`ReadLosses`]: which pieces of objects are merged, and when.
//! - [`Policy`]: the tunables, under ldiskfs's names.
//! - [`Histogram`], [`Picture`]: what a device looks like to an administrator.
//!
//! Pure: no I/O. A group that has to be loaded is named to the caller, which loads its bitmap and
//! asks again.
//!
//! Invariants (`tests/all/model.rs` compares them with a naive map of all blocks): a block is in
//! one of four states (free; held by a window or by a write in progress; used; freed, but not to
//! be used yet), and only free blocks and blocks of the object's own window are given out. Nothing
//! is refused while blocks are free beyond the reserve.

mod allocator;
mod extent;
mod free_index;
mod free_runs;
mod free_space;
mod geometry;
mod histogram;
mod inconsistent;
mod merge;
mod picture;
mod plan;
mod png;
mod policy;
mod range_set;
mod read_losses;
mod recorded;
mod request;
mod retired;
mod window_uses;
mod windows;

pub use allocator::Allocator;
pub use extent::{Extents, layout_score};
pub use free_index::FreeIndex;
pub use free_runs::{BITMAP_BYTES, FreeRuns, GROUP_RUNS_MAX, Summary};
pub use geometry::{GROUP_BLOCKS, Geometry};
pub use histogram::Histogram;
pub use inconsistent::Inconsistent;
pub use merge::{Merge, POSITIONING_BLOCKS, Piece, Pieces, choose_merge};
pub use picture::Picture;
pub use plan::{Plan, Space, find_run, plan};
pub use policy::{InvalidTable, Policy, PreallocTable, TABLE_ENTRIES_MAX};
pub use read_losses::{ReadLosses, SECTION_BLOCKS, Section};
pub use request::{Allocation, Refusal, Request};
pub use retired::ReadTicket;
pub use windows::{Window, Windows};
