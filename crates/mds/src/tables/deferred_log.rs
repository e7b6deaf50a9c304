//! DEFERRED_LOG: the deferred operation log, in order for each OST. Key: OST (2), sequence (8).
//! Sequence numbers of one OST follow each other without a gap, from 1 on, and are never used
//! twice: COUNTERS has the last one that was removed. Value, version 2:
//!
//! | offset | bytes | field |
//! |---|---|---|
//! | 0 | 1 | version = 2 |
//! | 1 | 1 | 1 destroy an object, 2 refuse an evicted client |
//! | 2 | 8 | inode of the object, or client |
//! | 10 | 4 | slot of the object; 0 for a client |
//! | 14 | 1 | mirror of the object; 0 for a client |

use types::{
    ClientId, Damage, FsResult, InodeNumber, ObjectId, OstIndex,
    record::{RecordReader, RecordWriter},
};

use super::codec::{ost_key, split_number};

const VERSION: u8 = 2;
const WHAT: &str = "deferred operation";

/// One thing to tell an OST. An OST leaves out what it was told before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeferredOperation {
    /// The file is gone.
    Destroy(ObjectId),
    /// This client's session ended by force: refuse it.
    Evict(ClientId),
}

/// The key.
pub fn key(ost: OstIndex, sequence: u64) -> Vec<u8> {
    let mut key = ost_key(ost).to_vec();
    key.extend_from_slice(&sequence.to_be_bytes());
    key
}

/// OST and sequence of a key.
pub fn decode_key(key: &[u8]) -> FsResult<(OstIndex, u64)> {
    let malformed = || Damage::new(WHAT, "malformed key");
    let (ost, rest) = key.split_first_chunk::<2>().ok_or_else(malformed)?;
    match split_number(WHAT, rest)? {
        (sequence, []) => Ok((OstIndex(u16::from_be_bytes(*ost)), sequence)),
        _ => Err(malformed().into()),
    }
}

impl DeferredOperation {
    /// The value.
    pub fn encode(&self) -> Vec<u8> {
        let mut writer = RecordWriter::new(VERSION);
        match self {
            DeferredOperation::Destroy(object) => writer.u8(1).u64(object.inode.0).u32(object.slot).u8(object.mirror),
            DeferredOperation::Evict(client) => writer.u8(2).u64(client.0).u32(0).u8(0),
        };
        writer.finish()
    }

    /// From the value.
    pub fn decode(value: &[u8]) -> FsResult<Self> {
        let mut reader = RecordReader::new(WHAT, value, VERSION)?;
        let (kind, number, slot, mirror) = (reader.u8()?, reader.u64()?, reader.u32()?, reader.u8()?);
        let deferred_operation = match kind {
            1 => DeferredOperation::Destroy(ObjectId { inode: InodeNumber(number), slot, mirror }),
            2 => DeferredOperation::Evict(ClientId(number)),
            _ => return Err(reader.invalid("unknown kind of deferred operation").into()),
        };
        reader.finish()?;
        Ok(deferred_operation)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn round_trips() {
        let key = key(OstIndex(513), 1 << 40);
        assert_eq!(decode_key(&key), Ok((OstIndex(513), 1 << 40)));
        assert!(decode_key(&key[..9]).is_err());
        let object = ObjectId { mirror: 3, ..ObjectId::new(InodeNumber(7), 1999) };
        for deferred_operation in [DeferredOperation::Destroy(object), DeferredOperation::Evict(ClientId(u64::MAX))] {
            assert_eq!(DeferredOperation::decode(&deferred_operation.encode()), Ok(deferred_operation));
        }
        assert!(DeferredOperation::decode(&[2, 3, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]).is_err());
        assert!(DeferredOperation::decode(&[2, 1]).is_err());
    }
}
