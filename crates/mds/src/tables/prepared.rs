//! PREPARED: what this MDT has promised for operations that other MDTs decide. Key: coordinator
//! (2), its start (8), number of the operation (8). Value, version 1:
//!
//! | offset | bytes | field |
//! |---|---|---|
//! | 0 | 1 | version = 1 |
//! | 1 | 1 | 1 removal of a directory, 2 another name for one |
//! | 2 | 8 | inode |

use rpc::message::mdt_peer::OperationId;
use types::{
    Damage, FsResult, InodeNumber, MdtIndex,
    record::{RecordReader, RecordWriter},
};

const VERSION: u8 = 1;
const WHAT: &str = "prepared operation";
const REMOVE_DIRECTORY: u8 = 1;
const RENAME_DIRECTORY: u8 = 2;

/// What is promised of a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Promise {
    /// It can be removed.
    Remove,
    /// It can get another name.
    Rename,
}

/// The key.
pub fn key(operation: OperationId) -> Vec<u8> {
    let OperationId { coordinator, start, number } = operation;
    [&coordinator.0.to_be_bytes()[..], &start.to_be_bytes(), &number.to_be_bytes()].concat()
}

/// The operation of a key.
pub fn decode_key(key: &[u8]) -> FsResult<OperationId> {
    let malformed = || Damage::new(WHAT, "malformed key");
    let (coordinator, rest) = key.split_first_chunk::<2>().ok_or_else(malformed)?;
    let (start, rest) = rest.split_first_chunk::<8>().ok_or_else(malformed)?;
    let number: [u8; 8] = rest.try_into().map_err(|_| malformed())?;
    let (start, number) = (u64::from_be_bytes(*start), u64::from_be_bytes(number));
    Ok(OperationId { coordinator: MdtIndex(u16::from_be_bytes(*coordinator)), start, number })
}

/// The value.
pub fn encode(promise: Promise, inode: InodeNumber) -> Vec<u8> {
    let kind = match promise {
        Promise::Remove => REMOVE_DIRECTORY,
        Promise::Rename => RENAME_DIRECTORY,
    };
    RecordWriter::new(VERSION).u8(kind).u64(inode.0).finish()
}

/// From the value.
pub fn decode(value: &[u8]) -> FsResult<(Promise, InodeNumber)> {
    let mut reader = RecordReader::new(WHAT, value, VERSION)?;
    let kind = reader.u8()?;
    let inode = InodeNumber(reader.u64()?);
    let promise = match kind {
        REMOVE_DIRECTORY => Promise::Remove,
        RENAME_DIRECTORY => Promise::Rename,
        _ => return Err(reader.invalid("unknown kind of part").into()),
    };
    reader.finish()?;
    Ok((promise, inode))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn round_trips() {
        let operation = OperationId { coordinator: MdtIndex(513), start: 1 << 40, number: 3 };
        assert_eq!(decode_key(&key(operation)), Ok(operation));
        assert!(decode_key(&key(operation)[..17]).is_err());
        for promise in [Promise::Remove, Promise::Rename] {
            assert_eq!(decode(&encode(promise, InodeNumber(1 << 50))), Ok((promise, InodeNumber(1 << 50))));
        }
        assert!(decode(&[1, 3, 0, 0, 0, 0, 0, 0, 0, 0]).is_err());
        assert!(decode(&[1, 1]).is_err());
    }
}
