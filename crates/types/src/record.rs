//! Byte cursors for records, the values of a store's tables.
//!
//! Every record begins with one byte, the version of its format; numbers are little endian. Which
//! fields follow is in the byte tables of the crate that owns the record (docs/disk_format.md);
//! nothing here knows a format.
//!
//! Reading never panics and never reads past the end: a field that is missing or out of range is a
//! [`DecodeError`], which names the record. Downside: an offset is not in the error;
//! `stria inspect` shows the bytes.

use crate::{Damage, FsError, RecordDamage, Timestamp};

/// A number's bits that are in one byte of its variable-length form.
const VARINT_BITS: usize = 7;

/// Bytes that are not the record they should be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{record}: {damage}")]
pub struct DecodeError {
    /// Kind of record, as "directory entry".
    pub record: &'static str,
    /// What is wrong with it.
    pub damage: RecordDamage,
}

impl From<DecodeError> for FsError {
    fn from(error: DecodeError) -> Self {
        Damage::new(error.record, error.damage).into()
    }
}

/// Takes fields off the front of a record.
pub struct RecordReader<'a> {
    record: &'static str,
    rest: &'a [u8],
}

impl<'a> RecordReader<'a> {
    /// Starts after the version byte, which must be `version`. `record` names the record in errors.
    pub fn new(record: &'static str, bytes: &'a [u8], version: u8) -> Result<Self, DecodeError> {
        let mut reader = Self { record, rest: bytes };
        match reader.u8()? {
            found if found == version => Ok(reader),
            found => Err(reader.error(RecordDamage::Version { found, expected: version })),
        }
    }

    fn error(&self, damage: RecordDamage) -> DecodeError {
        DecodeError { record: self.record, damage }
    }

    /// The error that this field has a value it cannot have.
    pub fn out_of_range(&self, field: &'static str) -> DecodeError {
        self.error(RecordDamage::OutOfRange(field))
    }

    /// The error that what was read is not valid.
    pub fn invalid(&self, problem: impl ToString) -> DecodeError {
        self.error(RecordDamage::Invalid(problem.to_string()))
    }

    /// Whether everything was taken.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    /// This many bytes.
    #[inline]
    pub fn take(&mut self, count: usize) -> Result<&'a [u8], DecodeError> {
        let (taken, rest) = self.rest.split_at_checked(count).ok_or_else(|| self.error(RecordDamage::Short))?;
        self.rest = rest;
        Ok(taken)
    }

    /// `N` bytes.
    #[inline]
    pub fn array<const N: usize>(&mut self) -> Result<[u8; N], DecodeError> {
        let (array, rest) = self.rest.split_first_chunk::<N>().ok_or_else(|| self.error(RecordDamage::Short))?;
        self.rest = rest;
        Ok(*array)
    }

    /// One byte.
    #[inline]
    pub fn u8(&mut self) -> Result<u8, DecodeError> {
        self.array::<1>().map(|[byte]| byte)
    }

    /// Two bytes.
    #[inline]
    pub fn u16(&mut self) -> Result<u16, DecodeError> {
        self.array().map(u16::from_le_bytes)
    }

    /// Four bytes.
    #[inline]
    pub fn u32(&mut self) -> Result<u32, DecodeError> {
        self.array().map(u32::from_le_bytes)
    }

    /// Eight bytes.
    #[inline]
    pub fn u64(&mut self) -> Result<u64, DecodeError> {
        self.array().map(u64::from_le_bytes)
    }

    /// Seven bits to a byte, lowest first; the highest bit says that more follow.
    #[inline]
    pub fn varint(&mut self) -> Result<u64, DecodeError> {
        let mut value = 0u64;
        for shift in (0..u64::BITS).step_by(VARINT_BITS) {
            let byte = self.u8()?;
            let bits = u64::from(byte & 0x7f);
            if bits << shift >> shift != bits {
                break;
            }
            value |= bits << shift;
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err(self.out_of_range("a variable-length number"))
    }

    /// Seconds (8 bytes, signed) and nanoseconds (4), which must be below 10^9.
    pub fn time(&mut self) -> Result<Timestamp, DecodeError> {
        let seconds = self.array().map(i64::from_le_bytes)?;
        let nanoseconds = self.u32()?;
        if nanoseconds >= 1_000_000_000 {
            return Err(self.out_of_range("nanoseconds"));
        }
        Ok(Timestamp { seconds, nanoseconds })
    }

    /// Bytes with a length of two bytes before them.
    pub fn short_bytes(&mut self) -> Result<&'a [u8], DecodeError> {
        let length = self.u16()?;
        self.take(usize::from(length))
    }

    /// UTF-8 with a length of two bytes before it.
    pub fn short_text(&mut self) -> Result<String, DecodeError> {
        let bytes = self.short_bytes()?.to_vec();
        String::from_utf8(bytes).map_err(|_| self.invalid("text is not UTF-8"))
    }

    /// All that is left.
    pub fn rest(&mut self) -> &'a [u8] {
        std::mem::take(&mut self.rest)
    }

    /// Nothing may be left.
    pub fn finish(&self) -> Result<(), DecodeError> {
        if self.rest.is_empty() { Ok(()) } else { Err(self.error(RecordDamage::Trailing(self.rest.len()))) }
    }
}

/// Appends fields to a record, as [`RecordReader`] takes them off.
#[derive(Default)]
pub struct RecordWriter {
    bytes: Vec<u8>,
}

impl RecordWriter {
    /// A record of this version.
    pub fn new(version: u8) -> Self {
        Self { bytes: vec![version] }
    }

    /// As [`RecordWriter::new`], for a record of about so many bytes.
    pub fn with_capacity(version: u8, bytes: usize) -> Self {
        let mut writer = Self { bytes: Vec::with_capacity(bytes) };
        writer.u8(version);
        writer
    }

    /// One byte.
    #[inline]
    pub fn u8(&mut self, value: u8) -> &mut Self {
        self.bytes.push(value);
        self
    }

    /// Two bytes.
    #[inline]
    pub fn u16(&mut self, value: u16) -> &mut Self {
        self.rest(&value.to_le_bytes())
    }

    /// Four bytes.
    #[inline]
    pub fn u32(&mut self, value: u32) -> &mut Self {
        self.rest(&value.to_le_bytes())
    }

    /// Eight bytes.
    #[inline]
    pub fn u64(&mut self, value: u64) -> &mut Self {
        self.rest(&value.to_le_bytes())
    }

    /// One to ten bytes: see [`RecordReader::varint`].
    #[inline]
    pub fn varint(&mut self, mut value: u64) -> &mut Self {
        while value >= 0x80 {
            self.bytes.push(value as u8 | 0x80);
            value >>= VARINT_BITS;
        }
        self.u8(value as u8)
    }

    /// Seconds (8 bytes, signed) and nanoseconds (4).
    pub fn time(&mut self, time: Timestamp) -> &mut Self {
        self.rest(&time.seconds.to_le_bytes()).u32(time.nanoseconds)
    }

    /// A length of two bytes, then the bytes. At most 65535.
    pub fn short_bytes(&mut self, value: &[u8]) -> &mut Self {
        let length = u16::try_from(value.len()).expect("what is stored is checked against limits far below 64 KiB");
        self.u16(length).rest(value)
    }

    /// Bytes without a length.
    #[inline]
    pub fn rest(&mut self, value: &[u8]) -> &mut Self {
        self.bytes.extend_from_slice(value);
        self
    }

    /// The record.
    pub fn finish(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.bytes)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const RECORD: &str = "test record";

    fn reader(bytes: &[u8]) -> RecordReader<'_> {
        RecordReader::new(RECORD, bytes, 1).unwrap()
    }

    proptest! {
        #[test]
        fn varints_round_trip(value in any::<u64>(), shift in 0u32..64) {
            let value = value >> shift;
            let bytes = RecordWriter::new(1).varint(value).finish();
            let mut reader = reader(&bytes);
            prop_assert_eq!(reader.varint(), Ok(value));
            prop_assert_eq!(reader.finish(), Ok(()));
        }
    }

    #[test]
    fn fields_round_trip() {
        let time = Timestamp { seconds: -5, nanoseconds: 999_999_999 };
        let mut writer = RecordWriter::new(1);
        writer.u8(1).u16(2).u32(3).u64(4).time(time).short_bytes(b"name").rest(b"rest");
        let bytes = writer.finish();
        let mut reader = reader(&bytes);
        assert_eq!((reader.u8(), reader.u16(), reader.u32(), reader.u64()), (Ok(1), Ok(2), Ok(3), Ok(4)));
        assert_eq!((reader.time(), reader.short_text()), (Ok(time), Ok("name".to_owned())));
        assert_eq!((reader.rest(), reader.finish()), (&b"rest"[..], Ok(())));
    }

    #[test]
    fn damage_is_an_error_that_names_the_record() {
        let opened = |bytes| RecordReader::new(RECORD, bytes, 1).err().map(|error| error.damage);
        assert_eq!(opened(&[]), Some(RecordDamage::Short));
        assert_eq!(opened(&[2]), Some(RecordDamage::Version { found: 2, expected: 1 }));
        assert_eq!(reader(&[1, 2]).finish().unwrap_err().to_string(), "test record: 1 bytes after the end");
        let mut short = reader(&[1, 2]);
        assert_eq!(short.u16().unwrap_err().damage, RecordDamage::Short);
        assert_eq!(short.u8(), Ok(2), "a field that is too short takes nothing");
        let mut large = reader(&[1, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x02]);
        assert!(matches!(large.varint().unwrap_err().damage, RecordDamage::OutOfRange(_)));
        let late = RecordWriter::new(1).rest(&[0; 8]).u32(1_000_000_000).finish();
        assert!(matches!(reader(&late).time().unwrap_err().damage, RecordDamage::OutOfRange(_)));
        let name = RecordWriter::new(1).short_bytes(&[0xff]).finish();
        let error = FsError::from(reader(&name).short_text().unwrap_err());
        assert_eq!(error.to_string(), "damaged metadata: test record: text is not UTF-8");
    }
}
