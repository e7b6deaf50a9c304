//! Reading and writing the fields of keys and values.

use types::{ClientId, FileKind, FsError, FsResult, InodeNumber, OstIndex, Timestamp};

/// Appends fields to a value.
#[derive(Default)]
pub struct Writer {
    bytes: Vec<u8>,
}

impl Writer {
    /// A value that begins with this version.
    pub fn new(version: u8) -> Self {
        Self { bytes: vec![version] }
    }

    /// One byte.
    pub fn u8(&mut self, value: u8) -> &mut Self {
        self.bytes.push(value);
        self
    }

    /// Two bytes.
    pub fn u16(&mut self, value: u16) -> &mut Self {
        self.bytes.extend_from_slice(&value.to_le_bytes());
        self
    }

    /// Four bytes.
    pub fn u32(&mut self, value: u32) -> &mut Self {
        self.bytes.extend_from_slice(&value.to_le_bytes());
        self
    }

    /// Eight bytes.
    pub fn u64(&mut self, value: u64) -> &mut Self {
        self.bytes.extend_from_slice(&value.to_le_bytes());
        self
    }

    /// Seconds (8 bytes, signed) and nanoseconds (4).
    pub fn time(&mut self, time: Timestamp) -> &mut Self {
        self.bytes.extend_from_slice(&time.seconds.to_le_bytes());
        self.u32(time.nanoseconds)
    }

    /// A length of two bytes, then the bytes. At most 65535.
    pub fn short_bytes(&mut self, value: &[u8]) -> &mut Self {
        let length = u16::try_from(value.len()).expect("names and targets are limited far below 64 KiB");
        self.u16(length).rest(value)
    }

    /// Bytes up to the end of the value.
    pub fn rest(&mut self, value: &[u8]) -> &mut Self {
        self.bytes.extend_from_slice(value);
        self
    }

    /// The value.
    pub fn finish(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.bytes)
    }
}

/// Takes fields from a value. `what` names it in errors.
pub struct Reader<'a> {
    what: &'static str,
    bytes: &'a [u8],
}

impl<'a> Reader<'a> {
    /// Starts behind the version byte, which must be `version`.
    pub fn new(what: &'static str, bytes: &'a [u8], version: u8) -> FsResult<Self> {
        let mut reader = Self { what, bytes };
        let found = reader.u8()?;
        if found != version {
            return Err(FsError::Damaged(format!("{what}: version {found}, expected {version}")));
        }
        Ok(reader)
    }

    /// An error that names this value.
    pub fn damaged(&self, problem: &str) -> FsError {
        FsError::Damaged(format!("{}: {problem}", self.what))
    }

    /// This many bytes.
    pub fn take(&mut self, count: usize) -> FsResult<&'a [u8]> {
        let (taken, rest) = self.bytes.split_at_checked(count).ok_or_else(|| self.damaged("too short"))?;
        self.bytes = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> FsResult<[u8; N]> {
        Ok(self.take(N)?.try_into().expect("take returns as many bytes as asked for"))
    }

    /// One byte.
    pub fn u8(&mut self) -> FsResult<u8> {
        Ok(self.array::<1>()?[0])
    }

    /// Two bytes.
    pub fn u16(&mut self) -> FsResult<u16> {
        Ok(u16::from_le_bytes(self.array()?))
    }

    /// Four bytes.
    pub fn u32(&mut self) -> FsResult<u32> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    /// Eight bytes.
    pub fn u64(&mut self) -> FsResult<u64> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    /// A time; its nanoseconds must be below 10^9.
    pub fn time(&mut self) -> FsResult<Timestamp> {
        let seconds = i64::from_le_bytes(self.array()?);
        let nanoseconds = self.u32()?;
        if nanoseconds >= 1_000_000_000 {
            return Err(self.damaged("nanoseconds out of range"));
        }
        Ok(Timestamp { seconds, nanoseconds })
    }

    /// Bytes with a length of two bytes before them.
    pub fn short_bytes(&mut self) -> FsResult<&'a [u8]> {
        let length = self.u16()?;
        self.take(usize::from(length))
    }

    /// All that is left.
    pub fn rest(&mut self) -> &'a [u8] {
        std::mem::take(&mut self.bytes)
    }

    /// Nothing may be left.
    pub fn finish(self) -> FsResult<()> {
        if self.bytes.is_empty() { Ok(()) } else { Err(self.damaged("bytes behind the end")) }
    }
}

/// Kinds as stored.
const KINDS: [(u8, FileKind); 7] = [
    (1, FileKind::Regular),
    (2, FileKind::Directory),
    (3, FileKind::Symlink),
    (4, FileKind::Fifo),
    (5, FileKind::Socket),
    (6, FileKind::CharacterDevice),
    (7, FileKind::BlockDevice),
];

/// The stored number of a kind.
pub fn kind_number(kind: FileKind) -> u8 {
    KINDS.iter().find(|(_, known)| *known == kind).expect("every kind has a number").0
}

/// The kind with this number.
pub fn kind_of(number: u8) -> FsResult<FileKind> {
    let known = KINDS.iter().find(|(known, _)| *known == number);
    known.map(|(_, kind)| *kind).ok_or_else(|| FsError::Damaged(format!("unknown kind of file {number}")))
}

/// A key of big-endian parts.
pub fn key_of(numbers: &[u64]) -> Vec<u8> {
    numbers.iter().flat_map(|number| number.to_be_bytes()).collect()
}

/// Takes a big-endian number from the front of a key.
pub fn split_number<'a>(what: &'static str, key: &'a [u8]) -> FsResult<(u64, &'a [u8])> {
    let (number, rest) =
        key.split_first_chunk::<8>().ok_or_else(|| FsError::Damaged(format!("{what}: key too short")))?;
    Ok((u64::from_be_bytes(*number), rest))
}

/// A key of exactly one inode number.
pub fn inode_of_key(what: &'static str, key: &[u8]) -> FsResult<InodeNumber> {
    match split_number(what, key)? {
        (number, []) => Ok(InodeNumber(number)),
        _ => Err(FsError::Damaged(format!("{what}: key too long"))),
    }
}

/// A key of exactly one client.
pub fn client_of_key(what: &'static str, key: &[u8]) -> FsResult<ClientId> {
    Ok(ClientId(inode_of_key(what, key)?.0))
}

/// Prefix of an OST's keys.
pub fn ost_key(ost: OstIndex) -> [u8; 2] {
    ost.0.to_be_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_round_trip_and_unknown_ones_are_damage() {
        for (number, kind) in KINDS {
            assert_eq!(kind_number(kind), number);
            assert_eq!(kind_of(number), Ok(kind));
        }
        assert!(matches!(kind_of(0), Err(FsError::Damaged(_))));
        assert!(matches!(kind_of(8), Err(FsError::Damaged(_))));
    }

    #[test]
    fn a_reader_never_reads_past_the_end() {
        let mut reader = Reader::new("test", &[1, 2], 1).unwrap();
        assert!(reader.u16().is_err());
        assert!(Reader::new("test", &[], 1).is_err());
        assert!(Reader::new("test", &[2], 1).is_err());
        assert!(Reader::new("test", &[1, 0], 1).unwrap().finish().is_err());
    }
}
