//! Striping arithmetic, composite layouts and placement. Pure: no I/O, no clock, no randomness; all
//! results depend only on arguments.

pub mod automatic;
mod checksum_type;
pub mod component;
pub mod cost;
pub mod extension;
pub mod layout;
pub mod limits;
pub mod lov;
pub mod migration;
pub mod placement;
pub mod plain;
pub mod range;
pub mod reason;
pub mod record;
mod request;
pub mod spec;
pub mod striping;
pub mod swap;
pub mod text;

pub use checksum_type::ChecksumType;
pub use component::{Backing, Component, ComponentId, Extent, Location};
pub use layout::{Coverage, Form, Layout, LayoutError};
pub use limits::END_OF_FILE;
pub use placement::{Placement, PlacementError, PlacementPolicy, TargetStatus, awaited, preferred};
pub use plain::{PlainLayout, PlainLayoutError};
pub use range::{ObjectRange, Piece};
pub use reason::Reason;
pub use spec::{
    BackingSpec, ComponentSpec, FileSystemDefault, LayoutSpec, ResolvedCount, ResolvedSpec, SpecError, StripeCount,
    StripeSpec, check_components, resolve,
};
pub use striping::{StripeRange, Striping};
