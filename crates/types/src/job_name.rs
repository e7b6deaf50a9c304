//! The name of a job.

use std::fmt;

use crate::limits::JOB_NAME_BYTES_MAX;

/// Name of the job that a request belongs to: printable ASCII, at most [`JOB_NAME_BYTES_MAX`]
/// bytes; empty: none.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct JobName {
    bytes: [u8; JOB_NAME_BYTES_MAX],
    length: u8,
}

const _: () = assert!(JOB_NAME_BYTES_MAX <= u8::MAX as usize, "the length fits");

impl JobName {
    /// No job.
    pub const NONE: Self = Self { bytes: [0; JOB_NAME_BYTES_MAX], length: 0 };

    /// The name for a text: cut to its length, with `_` for each byte that is not printable.
    pub fn new(text: &str) -> Self {
        let mut name = Self::NONE;
        for (place, byte) in name.bytes.iter_mut().zip(text.bytes()) {
            *place = if byte.is_ascii_graphic() { byte } else { b'_' };
            name.length += 1;
        }
        name
    }

    /// The name as text.
    pub fn as_str(&self) -> &str {
        std::str::from_utf8(&self.bytes[..usize::from(self.length)]).expect("only ASCII is put in")
    }
}

impl fmt::Debug for JobName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.as_str(), f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_short_and_printable() {
        assert_eq!(JobName::new("dd.0").as_str(), "dd.0");
        assert_eq!(JobName::new("a b\n\u{e4}").as_str(), "a_b___");
        assert_eq!(JobName::new(&"x".repeat(99)).as_str(), "x".repeat(JOB_NAME_BYTES_MAX));
        assert_eq!((JobName::new(""), JobName::default()), (JobName::NONE, JobName::NONE));
    }
}
