//! What a user asks of a layout (`lfs setstripe`), before targets are chosen: a file's request or a directory's default.

use serde::{Deserialize, Serialize};
use types::OstIndex;

/// Number of stripes asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum StripeCount {
    /// The file system's default (`-c 0`).
    #[default]
    Default,
    /// This many (1..=2000), fewer if there are fewer usable OSTs.
    Exactly(u32),
    /// One on every usable OST (`-c -1`).
    All,
}

/// A requested layout. Fields left at their default are filled from the parent directory's default, then from the
/// file system's.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LayoutSpec {
    /// `-c`
    pub stripe_count: StripeCount,
    /// `-S`, bytes; a multiple of 64 KiB below 4 GiB.
    pub stripe_bytes: Option<u64>,
    /// `-i`: the OST of the first stripe; `None` (`-1`) lets the placement choose.
    pub first_ost: Option<OstIndex>,
}
