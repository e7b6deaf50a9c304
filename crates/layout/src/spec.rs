//! What a user asks of a layout (`lfs setstripe`), before targets are chosen: a file's request or a directory's default.
//!
//! [`resolve`] fills what was left open, from the directory's default and then from the file system's; what comes out
//! ([`ResolvedSpec`]) is complete and valid and goes to [`crate::placement`].

use serde::{Deserialize, Serialize};
use types::{
    FsError, OstIndex,
    limits::{STRIPE_BYTES_DEFAULT, STRIPE_COUNT_MAX},
};

use crate::plain::{PlainLayoutError, check_stripe_bytes};

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

/// Why a requested layout is impossible.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SpecError {
    /// The stripe size is out of bounds.
    #[error(transparent)]
    StripeBytes(#[from] PlainLayoutError),
    /// Exactly 0, or more than 2000.
    #[error("stripe count {0} is not within 1..=2000")]
    StripeCount(u32),
}

impl From<SpecError> for FsError {
    /// EINVAL, as Lustre answers.
    fn from(_: SpecError) -> Self {
        FsError::Invalid
    }
}

impl LayoutSpec {
    /// Whether every field that is set is within its limits. Whether `first_ost` exists is for the placement to say.
    pub fn validate(&self) -> Result<(), SpecError> {
        if let StripeCount::Exactly(count) = self.stripe_count
            && !(1..=STRIPE_COUNT_MAX).contains(&count)
        {
            return Err(SpecError::StripeCount(count));
        }
        Ok(self.stripe_bytes.map_or(Ok(()), check_stripe_bytes)?)
    }

    /// This spec, its open fields filled from `other`.
    pub fn or(&self, other: &LayoutSpec) -> LayoutSpec {
        LayoutSpec {
            stripe_count: if self.stripe_count == StripeCount::Default {
                other.stripe_count
            } else {
                self.stripe_count
            },
            stripe_bytes: self.stripe_bytes.or(other.stripe_bytes),
            first_ost: self.first_ost.or(other.first_ost),
        }
    }
}

/// How many stripes a file shall get, decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResolvedCount {
    /// This many (1..=2000), fewer if there are fewer usable OSTs.
    AtMost(u32),
    /// One on every usable OST, at most 2000.
    All,
}

/// A complete, valid request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResolvedSpec {
    /// Number of stripes.
    pub stripe_count: ResolvedCount,
    /// Stripe size in bytes.
    pub stripe_bytes: u64,
    /// The OST of the first stripe; `None`: any.
    pub first_ost: Option<OstIndex>,
}

impl Default for ResolvedSpec {
    /// What an untouched file system gives: one stripe, 4 MiB, anywhere (Lustre's `lod.*.stripecount`, `stripesize`,
    /// `stripeoffset`).
    fn default() -> Self {
        Self { stripe_count: ResolvedCount::AtMost(1), stripe_bytes: STRIPE_BYTES_DEFAULT, first_ost: None }
    }
}

impl From<ResolvedSpec> for LayoutSpec {
    fn from(resolved: ResolvedSpec) -> Self {
        let stripe_count = match resolved.stripe_count {
            ResolvedCount::AtMost(count) => StripeCount::Exactly(count),
            ResolvedCount::All => StripeCount::All,
        };
        LayoutSpec { stripe_count, stripe_bytes: Some(resolved.stripe_bytes), first_ost: resolved.first_ost }
    }
}

/// What a new file gets: its own request, else the directory's default, else the file system's, field by field.
pub fn resolve(
    request: Option<&LayoutSpec>,
    directory: Option<&LayoutSpec>,
    file_system: &ResolvedSpec,
) -> Result<ResolvedSpec, SpecError> {
    let open = LayoutSpec::default();
    let merged = request.unwrap_or(&open).or(directory.unwrap_or(&open));
    merged.validate()?;
    Ok(ResolvedSpec {
        stripe_count: match merged.stripe_count {
            StripeCount::Default => file_system.stripe_count,
            StripeCount::Exactly(count) => ResolvedCount::AtMost(count),
            StripeCount::All => ResolvedCount::All,
        },
        stripe_bytes: merged.stripe_bytes.unwrap_or(file_system.stripe_bytes),
        first_ost: merged.first_ost.or(file_system.first_ost),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn request_beats_directory_beats_file_system() {
        let file_system = ResolvedSpec::default();
        let directory =
            LayoutSpec { stripe_count: StripeCount::All, stripe_bytes: Some(1 << 20), first_ost: Some(OstIndex(3)) };
        let request = LayoutSpec { stripe_count: StripeCount::Exactly(2), ..LayoutSpec::default() };
        assert_eq!(resolve(None, None, &file_system), Ok(file_system));
        let resolved = resolve(Some(&request), Some(&directory), &file_system).unwrap();
        assert_eq!(
            resolved,
            ResolvedSpec {
                stripe_count: ResolvedCount::AtMost(2),
                stripe_bytes: 1 << 20,
                first_ost: Some(OstIndex(3))
            }
        );
        let inherited = resolve(None, Some(&directory), &file_system).unwrap();
        assert_eq!(inherited.stripe_count, ResolvedCount::All);
        assert_eq!(LayoutSpec::from(inherited), directory);
    }

    #[test]
    fn impossible_fields_are_named() {
        let spec = |stripe_count, stripe_bytes| LayoutSpec { stripe_count, stripe_bytes, first_ost: None };
        let unaligned = PlainLayoutError::StripeBytesUnaligned;
        assert_eq!(spec(StripeCount::Exactly(2001), None).validate(), Err(SpecError::StripeCount(2001)));
        assert_eq!(spec(StripeCount::Exactly(0), None).validate(), Err(SpecError::StripeCount(0)));
        assert_eq!(spec(StripeCount::All, Some(100_000)).validate(), Err(unaligned(100_000).into()));
        assert_eq!(spec(StripeCount::All, Some(0)).validate(), Err(unaligned(0).into()));
        assert_eq!(
            spec(StripeCount::All, Some(4 << 30)).validate(),
            Err(PlainLayoutError::StripeBytesTooLarge(4 << 30).into())
        );
        assert_eq!(spec(StripeCount::Exactly(2000), Some(65536)).validate(), Ok(()));
    }
}
