//! Striping arithmetic and placement. Pure: no I/O, no clock, no randomness; everything is decided from arguments.

pub mod placement;
pub mod plain;
pub mod spec;

pub use placement::{Placement, PlacementError, PlacementPolicy, TargetStatus};
pub use plain::{ObjectRange, Piece, PlainLayout, PlainLayoutError};
pub use spec::{LayoutSpec, ResolvedCount, ResolvedSpec, SpecError, StripeCount, resolve};

use serde::{Deserialize, Serialize};
use types::Generation;

/// How a file's bytes are spread over objects. `open` and `create` return it; the client maps by it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Layout {
    /// Grows with every change of the layout; a request that carries an old one is refused.
    pub generation: Generation,
    /// The arrangement.
    pub kind: LayoutKind,
}

/// Arrangements. Variants are only appended (wire format).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum LayoutKind {
    /// RAID-0 over a fixed list of objects.
    Plain(PlainLayout),
}
