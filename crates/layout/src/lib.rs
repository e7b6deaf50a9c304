//! Striping arithmetic, composite layouts and placement. Pure: no I/O, no clock, no randomness; all
//! results depend only on arguments.
//!
//! Which bytes of which objects a read needs:
//!
//! ```
//! use layout::Striping;
//!
//! let striping = Striping { stripe_bytes: 1 << 20, stripe_count: 4 };
//! // 3 MiB from offset 2.5 MiB: the second half of stripe 2, then stripes 3 and 4, and half of
//! // stripe 5.
//! let ranges: Vec<(u32, u64, u64)> =
//!     striping.ranges(5 << 19, 3 << 20).map(|range| (range.index, range.offset, range.bytes)).collect();
//! assert_eq!(ranges, [(2, 1 << 19, 1 << 19), (3, 0, 1 << 20), (0, 1 << 20, 1 << 20), (1, 1 << 20, 1 << 19)]);
//! // The file ends where its largest object says.
//! assert_eq!(striping.file_size(1, (1 << 20) + (1 << 19)), 11 << 19);
//! ```
//!
//! A layout that grows with its file, as `lfs setstripe -E 64M -c 1 -E -1 -c 4` asks for it:
//!
//! ```
//! use layout::{BackingSpec, ComponentSpec, Coverage, END_OF_FILE, Layout, StripeCount, StripeSpec};
//!
//! let component = |end, stripe_count| {
//!     let stripes = StripeSpec { stripe_count: StripeCount::Exactly(stripe_count), ..StripeSpec::default() };
//!     ComponentSpec { end, backing: BackingSpec::Striped(stripes) }
//! };
//! let layout = Layout::composite(&[component(64 << 20, 1), component(END_OF_FILE, 4)]);
//! assert!(layout.validate().is_ok());
//! assert_eq!(layout.position_at(64 << 20), Some(1));
//! // Nothing has objects yet: the metadata server instantiates a component when a client first
//! // writes there.
//! assert_eq!(layout.coverage(0, 4096), Coverage::Pending);
//! assert_eq!(layout.ranges(0, 4096).count(), 0);
//! ```

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
pub use placement::{OstStatus, Placement, PlacementError, PlacementPolicy, awaited, preferred};
pub use plain::{PlainLayout, PlainLayoutError};
pub use range::{ObjectRange, Piece};
pub use reason::Reason;
pub use spec::{
    BackingSpec, ComponentSpec, FileSystemDefault, LayoutSpec, ResolvedCount, ResolvedSpec, SpecError, StripeCount,
    StripeSpec, check_components, resolve,
};
pub use striping::{StripeRange, Striping};
