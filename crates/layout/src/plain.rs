//! A plain layout: stripes over a fixed list of targets. Its arithmetic is [`Striping`]'s.
//!
//! Whatever comes from disk or wire is checked ([`PlainLayout::validate`]) before it is used.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};
use types::{
    OstIndex,
    limits::{STRIPE_BYTES_MAX, STRIPE_BYTES_MIN, STRIPE_COUNT_MAX},
};

use crate::striping::Striping;

/// See the module documentation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlainLayout {
    /// Bytes per stripe; a multiple of 64 KiB below 4 GiB.
    pub stripe_bytes: u64,
    /// The OST of each slot; 1..=2000 entries. An OST that is named twice holds two objects
    /// (overstriping).
    pub osts: Vec<OstIndex>,
}

/// Why a plain layout cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PlainLayoutError {
    /// Not a multiple of 64 KiB, or zero.
    #[error("stripe size {0} is not a positive multiple of 65536")]
    StripeBytesUnaligned(u64),
    /// 4 GiB or more.
    #[error("stripe size {0} is not below 4 GiB")]
    StripeBytesTooLarge(u64),
    /// No slot at all.
    #[error("layout has no stripes")]
    NoStripes,
    /// More slots than a layout may have.
    #[error("stripe count {0} exceeds 2000")]
    TooManyStripes(usize),
}

/// Checks a stripe size against its limits.
pub(crate) fn check_stripe_bytes(stripe_bytes: u64) -> Result<(), PlainLayoutError> {
    if stripe_bytes == 0 || !stripe_bytes.is_multiple_of(STRIPE_BYTES_MIN) {
        return Err(PlainLayoutError::StripeBytesUnaligned(stripe_bytes));
    }
    if stripe_bytes > STRIPE_BYTES_MAX {
        return Err(PlainLayoutError::StripeBytesTooLarge(stripe_bytes));
    }
    Ok(())
}

/// Whether an OST is listed more than once.
pub(crate) fn has_repeated(osts: &[OstIndex]) -> bool {
    let mut seen = BTreeSet::new();
    !osts.iter().all(|ost| seen.insert(ost))
}

impl PlainLayout {
    /// Whether it is within the limits.
    pub fn validate(&self) -> Result<(), PlainLayoutError> {
        check_stripe_bytes(self.stripe_bytes)?;
        match self.osts.len() {
            0 => Err(PlainLayoutError::NoStripes),
            count if count > STRIPE_COUNT_MAX as usize => Err(PlainLayoutError::TooManyStripes(count)),
            _ => Ok(()),
        }
    }

    /// Number of stripes.
    pub fn stripe_count(&self) -> u32 {
        self.osts.len() as u32
    }

    /// Whether an OST holds more than one of its objects.
    pub fn is_overstriped(&self) -> bool {
        has_repeated(&self.osts)
    }

    /// Its arithmetic.
    pub fn striping(&self) -> Striping {
        Striping { stripe_bytes: self.stripe_bytes, stripe_count: self.stripe_count() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refuses_what_lustre_refuses() {
        let check = |stripe_bytes, count: u32| {
            PlainLayout { stripe_bytes, osts: (0..count).map(|index| OstIndex(index as u16)).collect() }.validate()
        };
        assert_eq!(check(65537, 1), Err(PlainLayoutError::StripeBytesUnaligned(65537)));
        assert_eq!(check(0, 1), Err(PlainLayoutError::StripeBytesUnaligned(0)));
        assert_eq!(check(4 << 30, 1), Err(PlainLayoutError::StripeBytesTooLarge(4 << 30)));
        assert_eq!(check(65536, 0), Err(PlainLayoutError::NoStripes));
        assert_eq!(check(65536, 2001), Err(PlainLayoutError::TooManyStripes(2001)));
        assert_eq!(check((4 << 30) - 65536, 2000), Ok(()));
    }
}
