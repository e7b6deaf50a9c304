//! File identifiers in Lustre's notation, `[0x200000403:0x11f:0x0]`: how inode numbers are shown to
//! people and tools.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};

use crate::{InodeNumber, MdtIndex};

/// First sequence of MDT 0 (Lustre's FID_SEQ_NORMAL, 0x200000400) and the distance from one MDT to
/// the next.
const SEQUENCE_FIRST: u64 = 0x2_0000_0400;
const SEQUENCES_PER_MDT: u64 = 0x4000_0000;

/// Sequence, object id, version. The mapping to [`InodeNumber`] is a bijection: the sequence holds
/// the MDT and the local number's upper 16 bits, the object id its lower 32 bits; the version is
/// always 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Fid {
    /// Sequence.
    pub sequence: u64,
    /// Object id within the sequence.
    pub object: u32,
    /// Version; 0.
    pub version: u32,
}

impl From<InodeNumber> for Fid {
    fn from(inode: InodeNumber) -> Self {
        Fid {
            sequence: SEQUENCE_FIRST + u64::from(inode.mdt().0) * SEQUENCES_PER_MDT + (inode.local() >> 32),
            object: inode.local() as u32,
            version: 0,
        }
    }
}

impl Fid {
    /// The inode this FID names, or `None` if no inode can have it.
    pub fn inode(self) -> Option<InodeNumber> {
        let relative = self.sequence.checked_sub(SEQUENCE_FIRST)?;
        let mdt = u16::try_from(relative / SEQUENCES_PER_MDT).ok()?;
        let upper = relative % SEQUENCES_PER_MDT;
        if upper > 0xffff || self.version != 0 {
            return None;
        }
        Some(InodeNumber::new(MdtIndex(mdt), upper << 32 | u64::from(self.object)))
    }
}

impl fmt::Display for Fid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "[{:#x}:{:#x}:{:#x}]", self.sequence, self.object, self.version)
    }
}

/// Why a text is not a FID.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("'{0}' is not a FID; expected [0xSEQUENCE:0xOBJECT:0xVERSION]")]
pub struct ParseFidError(pub String);

impl FromStr for Fid {
    type Err = ParseFidError;

    /// Accepts the notation with or without brackets.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let error = || ParseFidError(text.to_owned());
        let inner = text.strip_prefix('[').map_or(Some(text), |rest| rest.strip_suffix(']')).ok_or_else(error)?;
        let mut parts = inner.split(':').map(|part| u64::from_str_radix(part.strip_prefix("0x")?, 16).ok());
        let mut next = || parts.next().flatten().ok_or_else(error);
        let (sequence, object, version) = (next()?, next()?, next()?);
        if inner.split(':').count() != 3 {
            return Err(error());
        }
        let narrow = |value: u64| u32::try_from(value).map_err(|_| error());
        Ok(Fid { sequence, object: narrow(object)?, version: narrow(version)? })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn every_inode_has_one_fid(raw in any::<u64>()) {
            let inode = InodeNumber(raw);
            let fid = Fid::from(inode);
            prop_assert_eq!(fid.inode(), Some(inode));
            prop_assert_eq!(fid.to_string().parse::<Fid>().unwrap(), fid);
        }
    }

    #[test]
    fn wrong_text_is_refused() {
        for text in ["", "[", "[0x1:0x2]", "[0x1:0x2:0x0:0x0]", "[1:2:0]", "[0x1:0x1ffffffff:0x0]"] {
            assert!(text.parse::<Fid>().is_err(), "{text}");
        }
    }
}
