//! COUNTERS: identity and counters of this MDT. Key: which (1): 1 identity, 2 counters, 3 era, 4
//! with an OST (2): deferred operations, 5 start, 6 with an MDT (2): decisions, 7 with a directory
//! (8): its names move, 8 with a directory (8) and a shard of it (8): names go back. Values,
//! version 1:
//!
//! | key | value |
//! |---|---|
//! | 1 | version (1), MDT index (2), name of the file system (rest) |
//! | 2 | version (1), counter of the next inode (8), inodes in use (8) |
//! | 3 | how often unsynced changes may have been lost: [`kv::era`] |
//! | 4, OST | version (1), sequence number of the last deferred operation that the OST has answered (8) |
//! | 5 | version (1), number of the last start that knew of other MDTs (8): power-loss era in the upper 4 bytes |
//! | 6, MDT | version (1), sequence number of the last decision that the MDT has answered (8) |
//! | 7, directory | version (1), place (8): names of the directory move to its shards, and those up to this position have; 0: nobody uses any of them meanwhile. With a shard: its names go back. With a directory to which names go back: all have come |
//! | 8, directory, shard | version (1), place (8): names of the shard up to this position have come back to the directory |

use bytes::Bytes;
use types::{
    Damage, FsResult, InodeNumber, MdtIndex, OstIndex,
    record::{RecordReader, RecordWriter},
};

const VERSION: u8 = 1;
/// Key of the identity.
pub const IDENTITY: &[u8] = &[1];
/// Key of the counters.
pub const COUNTERS: &[u8] = &[2];
/// Key of the power-loss era.
pub const ERA: &[u8] = &[3];

/// Key of the number of the start.
pub const START: &[u8] = &[5];

/// First byte of the keys of delivered operations.
const DELIVERED: u8 = 4;
/// First byte of the keys of delivered decisions.
const DECIDED: u8 = 6;

/// What keys of directories begin with whose names move to shards.
pub const SPLITS: &[u8] = &[7];

/// The key of a directory whose names move to shards.
pub fn split_key(directory: InodeNumber) -> Vec<u8> {
    [SPLITS, &directory.0.to_be_bytes()].concat()
}

/// The directory, if it is such a key.
pub fn parse_split_key(key: &[u8]) -> Option<InodeNumber> {
    Some(InodeNumber(u64::from_be_bytes(key.strip_prefix(SPLITS)?.try_into().ok()?)))
}

/// What keys of directories begin with to which names come back from shards.
const RETURNS: u8 = 8;

/// The key of a directory to which names come back from a shard.
pub fn return_key(directory: InodeNumber, shard: InodeNumber) -> Vec<u8> {
    [&[RETURNS][..], &directory.0.to_be_bytes(), &shard.0.to_be_bytes()].concat()
}

/// The directory and the shard, if it is such a key.
pub fn parse_return_key(key: &[u8]) -> Option<(InodeNumber, InodeNumber)> {
    let (&RETURNS, numbers) = key.split_first()? else { return None };
    let (directory, shard) = numbers.split_first_chunk()?;
    let [directory, shard] = [*directory, shard.try_into().ok()?].map(u64::from_be_bytes);
    Some((InodeNumber(directory), InodeNumber(shard)))
}

/// The key of what an MDT has answered.
pub fn decided_key(mdt: MdtIndex) -> Vec<u8> {
    [&[DECIDED][..], &mdt.0.to_be_bytes()].concat()
}

/// The MDT, if it is such a key.
pub fn parse_decided_key(key: &[u8]) -> Option<MdtIndex> {
    match key {
        [DECIDED, mdt @ ..] => Some(MdtIndex(u16::from_be_bytes(mdt.try_into().ok()?))),
        _ => None,
    }
}

/// The key of what an OST has answered.
pub fn delivered_key(ost: OstIndex) -> Vec<u8> {
    [&[DELIVERED][..], &ost.0.to_be_bytes()].concat()
}

/// The OST, if it is such a key.
pub fn parse_delivered_key(key: &[u8]) -> Option<OstIndex> {
    match key {
        [DELIVERED, ost @ ..] => Some(OstIndex(u16::from_be_bytes(ost.try_into().ok()?))),
        _ => None,
    }
}

/// The value: sequence number of the last operation that the OST has answered, or decision that
/// the MDT has; or a number of a start.
pub fn encode_number(sequence: u64) -> Vec<u8> {
    RecordWriter::new(VERSION).u64(sequence).finish()
}

/// From the value.
pub fn decode_number(value: &[u8]) -> FsResult<u64> {
    let mut reader = RecordReader::new("delivered operations", value, VERSION)?;
    let sequence = reader.u64()?;
    reader.finish()?;
    Ok(sequence)
}

/// What a store was formatted as.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// Index of the MDT.
    pub mdt: MdtIndex,
    /// Name of the file system.
    pub fsname: String,
}

impl Identity {
    /// The value.
    pub fn encode(&self) -> Vec<u8> {
        RecordWriter::new(VERSION).u16(self.mdt.0).rest(self.fsname.as_bytes()).finish()
    }

    /// From the value.
    pub fn decode(value: &[u8]) -> FsResult<Self> {
        let mut reader = RecordReader::new("identity", value, VERSION)?;
        let mdt = MdtIndex(reader.u16()?);
        let fsname = String::from_utf8(reader.rest().to_vec()).map_err(|_| reader.invalid("name is not UTF-8"))?;
        Ok(Self { mdt, fsname })
    }
}

/// Counters that change with every creation and removal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counters {
    /// Counter of the next inode; never goes back, so numbers are never used again.
    pub next_inode: u64,
    /// Inodes in use.
    pub inodes: u64,
}

impl Counters {
    /// The value.
    pub fn encode(&self) -> Vec<u8> {
        RecordWriter::new(VERSION).u64(self.next_inode).u64(self.inodes).finish()
    }

    /// From what a formatted store has under their key.
    pub fn found(value: Option<Bytes>) -> FsResult<Self> {
        Self::decode(&value.ok_or_else(|| Damage::new("counters", "missing"))?)
    }

    /// From the value.
    pub fn decode(value: &[u8]) -> FsResult<Self> {
        let mut reader = RecordReader::new("counters", value, VERSION)?;
        let counters = Self { next_inode: reader.u64()?, inodes: reader.u64()? };
        reader.finish()?;
        Ok(counters)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn round_trips() {
        let identity = Identity { mdt: MdtIndex(3), fsname: "stria".to_owned() };
        assert_eq!(Identity::decode(&identity.encode()), Ok(identity));
        let counters = Counters { next_inode: 1 << 40, inodes: 12 };
        assert_eq!(Counters::decode(&counters.encode()), Ok(counters));
        assert_eq!(decode_number(&encode_number(1 << 40)), Ok(1 << 40));
        assert!(decode_number(&[1, 0]).is_err());
        assert_eq!(parse_delivered_key(&delivered_key(OstIndex(513))), Some(OstIndex(513)));
        assert_eq!([IDENTITY, COUNTERS, ERA, &[DELIVERED, 0]].map(parse_delivered_key), [None; 4]);
        assert_eq!(parse_decided_key(&decided_key(MdtIndex(513))), Some(MdtIndex(513)));
        assert_eq!([START, &delivered_key(OstIndex(513)), &[DECIDED, 0]].map(parse_decided_key), [None; 3]);
        let (directory, shard) = (InodeNumber(513), InodeNumber(514).as_shard());
        assert_eq!(parse_return_key(&return_key(directory, shard)), Some((directory, shard)));
        assert_eq!([START, &split_key(directory), &[RETURNS, 0]].map(parse_return_key), [None; 3]);
        assert!(Identity::decode(&[1, 0]).is_err());
        assert!(Identity::decode(&[1, 0, 0, 255]).is_err());
        assert!(Counters::decode(&[1, 0]).is_err());
        assert!(Counters::found(None).is_err());
    }
}
