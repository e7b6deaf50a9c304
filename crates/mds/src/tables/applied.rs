//! APPLIED: how far the decisions of other MDTs are carried out here. Key: MDT (2). Value, version
//! 1:
//!
//! | offset | bytes | field |
//! |---|---|---|
//! | 0 | 1 | version = 1 |
//! | 1 | 8 | sequence number of the last decision that was carried out |
//!
//! The record is written with what the decisions change: each is carried out once.

use types::{
    Damage, FsResult, MdtIndex,
    record::{RecordReader, RecordWriter},
};

const VERSION: u8 = 1;
const WHAT: &str = "applied decisions";

/// The key.
pub fn key(mdt: MdtIndex) -> Vec<u8> {
    mdt.0.to_be_bytes().to_vec()
}

/// The MDT of a key.
pub fn decode_key(key: &[u8]) -> FsResult<MdtIndex> {
    let number = key.try_into().map_err(|_| Damage::new(WHAT, "malformed key"))?;
    Ok(MdtIndex(u16::from_be_bytes(number)))
}

/// The value.
pub fn encode(sequence: u64) -> Vec<u8> {
    RecordWriter::new(VERSION).u64(sequence).finish()
}

/// From the value.
pub fn decode(value: &[u8]) -> FsResult<u64> {
    let mut reader = RecordReader::new(WHAT, value, VERSION)?;
    let sequence = reader.u64()?;
    reader.finish()?;
    Ok(sequence)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn round_trips() {
        assert_eq!(decode_key(&key(MdtIndex(513))), Ok(MdtIndex(513)));
        assert!(decode_key(&[1]).is_err());
        assert_eq!(decode(&encode(1 << 40)), Ok(1 << 40));
        assert!(decode(&[1, 0]).is_err());
    }
}
