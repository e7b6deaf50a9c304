//! Reading and writing the bytes of records. Reading never panics: what is missing or out of range is `None`, and the
//! record that was read says which object is damaged.

/// Why bytes are not the record they should be. The caller adds whose record it is.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// The record ends too early.
    #[error("the record ends too early")]
    Short,
    /// There are bytes behind the record's end.
    #[error("{0} bytes behind the record's end")]
    Trailing(usize),
    /// Another format version.
    #[error("version {0} of this record is not known to this release")]
    Version(u8),
    /// A field has a value it cannot have.
    #[error("{0} is out of range")]
    OutOfRange(&'static str),
}

/// Takes fields off the front of a record.
pub struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    /// Starts at the record's first byte and takes its version, which must be `version`.
    pub fn with_version(bytes: &'a [u8], version: u8) -> Result<Self, DecodeError> {
        let mut reader = Self { rest: bytes };
        match reader.u8()? {
            found if found == version => Ok(reader),
            found => Err(DecodeError::Version(found)),
        }
    }

    /// Whether everything was taken.
    pub fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    /// `N` bytes.
    pub fn array<const N: usize>(&mut self) -> Result<[u8; N], DecodeError> {
        let (array, rest) = self.rest.split_first_chunk::<N>().ok_or(DecodeError::Short)?;
        self.rest = rest;
        Ok(*array)
    }

    /// `bytes` bytes.
    pub fn slice(&mut self, bytes: usize) -> Result<&'a [u8], DecodeError> {
        let (slice, rest) = self.rest.split_at_checked(bytes).ok_or(DecodeError::Short)?;
        self.rest = rest;
        Ok(slice)
    }

    /// One byte.
    pub fn u8(&mut self) -> Result<u8, DecodeError> {
        self.array::<1>().map(|[byte]| byte)
    }

    /// Little endian.
    pub fn u16(&mut self) -> Result<u16, DecodeError> {
        self.array().map(u16::from_le_bytes)
    }

    /// Little endian.
    pub fn u32(&mut self) -> Result<u32, DecodeError> {
        self.array().map(u32::from_le_bytes)
    }

    /// Little endian.
    pub fn u64(&mut self) -> Result<u64, DecodeError> {
        self.array().map(u64::from_le_bytes)
    }

    /// Little endian.
    pub fn i64(&mut self) -> Result<i64, DecodeError> {
        self.array().map(i64::from_le_bytes)
    }

    /// Seven bits to a byte, lowest first; the highest bit says that more follow.
    pub fn varint(&mut self) -> Result<u64, DecodeError> {
        let mut value = 0u64;
        for shift in (0..64).step_by(7) {
            let byte = self.u8()?;
            let bits = u64::from(byte & 0x7f);
            if bits << shift >> shift != bits {
                return Err(DecodeError::OutOfRange("a variable-length number"));
            }
            value |= bits << shift;
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err(DecodeError::OutOfRange("a variable-length number"))
    }

    /// Ends the record: nothing may be left.
    pub fn finish(self) -> Result<(), DecodeError> {
        if self.rest.is_empty() { Ok(()) } else { Err(DecodeError::Trailing(self.rest.len())) }
    }
}

/// Appends a number as [`Reader::varint`] reads it.
pub fn put_varint(bytes: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        bytes.push(value as u8 | 0x80);
        value >>= 7;
    }
    bytes.push(value as u8);
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn varints_round_trip(value in any::<u64>(), shift in 0u32..64) {
            let value = value >> shift;
            let mut bytes = vec![1];
            put_varint(&mut bytes, value);
            let mut reader = Reader::with_version(&bytes, 1).unwrap();
            prop_assert_eq!(reader.varint(), Ok(value));
            prop_assert_eq!(reader.finish(), Ok(()));
        }
    }

    #[test]
    fn damage_is_an_error() {
        assert_eq!(Reader::with_version(&[], 1).err(), Some(DecodeError::Short));
        assert_eq!(Reader::with_version(&[2], 1).err(), Some(DecodeError::Version(2)));
        let mut reader =
            Reader::with_version(&[1, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x02], 1).unwrap();
        assert!(matches!(reader.varint(), Err(DecodeError::OutOfRange(_))));
        let reader = Reader::with_version(&[1, 2], 1).unwrap();
        assert_eq!(reader.finish(), Err(DecodeError::Trailing(1)));
    }
}
