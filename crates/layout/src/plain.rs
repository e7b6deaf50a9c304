//! RAID-0 striping.

use serde::{Deserialize, Serialize};
use types::OstIndex;

/// Stripe `n` of the file (bytes `n*stripe_bytes..(n+1)*stripe_bytes`) lies in slot `n % osts.len()`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlainLayout {
    /// Bytes per stripe; a multiple of 64 KiB below 4 GiB.
    pub stripe_bytes: u64,
    /// The OST of each slot; 1..=2000 entries. Slot `i`'s object is named `(inode, i)`.
    pub osts: Vec<OstIndex>,
}
