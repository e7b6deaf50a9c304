//! How a file's data are checked, on the wire and on disk: one type for the whole file, for its
//! whole life, since objects keep the checksums that they were written with.

use serde::{Deserialize, Serialize};

/// The type of a file's checksums. Variants are only appended (wire format).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum ChecksumType {
    /// CRC-32C (Castagnoli) of each block of 4096 bytes: the only one today.
    #[default]
    Crc32c,
}

impl ChecksumType {
    /// Its number in records.
    pub fn code(self) -> u8 {
        match self {
            ChecksumType::Crc32c => 0,
        }
    }

    /// The type of a number; `None`: this program does not have it.
    pub fn from_code(code: u8) -> Option<Self> {
        match code {
            0 => Some(ChecksumType::Crc32c),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_name_types() {
        assert_eq!(ChecksumType::from_code(ChecksumType::Crc32c.code()), Some(ChecksumType::Crc32c));
        assert_eq!((1..=u8::MAX).find_map(ChecksumType::from_code), None);
    }
}
