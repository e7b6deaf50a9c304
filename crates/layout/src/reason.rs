//! Why a component of an automatic layout has its number of stripes: the fact that decided it
//! ([`crate::automatic`]). It is stored with the component, because the facts are no longer known
//! when a user asks.
//!
//! Life cycle: set when the component is cut out of an automatic one; it is kept as long as the
//! component, also when the component is extended. An explicitly requested component has none.
//!
//! Downside: only one reason is stored, the last one that changed the number, without the
//! measurements.

use serde::{Deserialize, Serialize};

/// See the module documentation. Variants are only appended (wire format), codes never used twice
/// (disk format).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Reason {
    /// Its position in the file.
    Position,
    /// It was written in large requests.
    LargeRequests,
    /// The file was known to be larger than this position.
    Size,
    /// The last files of such a name became larger.
    Names,
    /// Several wrote the file at a time.
    Writers,
    /// So that writers of equal blocks do not go over the OSTs in step.
    OutOfStep,
    /// Other files that were written at a time took their share of the OSTs.
    Share,
    /// There were no more OSTs that took new objects.
    Osts,
    /// No more OSTs had space for their part of it.
    Space,
}

impl Reason {
    /// All of them, in the order of their codes, from 1.
    pub const ALL: [Reason; 9] = [
        Reason::Position,
        Reason::LargeRequests,
        Reason::Size,
        Reason::Names,
        Reason::Writers,
        Reason::OutOfStep,
        Reason::Share,
        Reason::Osts,
        Reason::Space,
    ];

    /// Its number on disk.
    pub fn code(self) -> u8 {
        self as u8 + 1
    }

    /// The reason of a number on disk.
    pub fn from_code(code: u8) -> Option<Self> {
        Self::ALL.get(usize::from(code).checked_sub(1)?).copied()
    }

    /// One word for programs.
    pub fn name(self) -> &'static str {
        match self {
            Reason::Position => "position",
            Reason::LargeRequests => "large_requests",
            Reason::Size => "size",
            Reason::Names => "names",
            Reason::Writers => "writers",
            Reason::OutOfStep => "out_of_step",
            Reason::Share => "share",
            Reason::Osts => "osts",
            Reason::Space => "space",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_stand_for_their_reasons() {
        for (code, reason) in (1..).zip(Reason::ALL) {
            assert_eq!((reason.code(), Reason::from_code(code)), (code, Some(reason)));
        }
        assert_eq!((Reason::from_code(0), Reason::from_code(10), Reason::from_code(255)), (None, None, None));
    }
}
