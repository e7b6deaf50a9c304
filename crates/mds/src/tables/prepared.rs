//! PREPARED: what this MDT has promised for operations that other MDTs decide. Key: coordinator
//! (2), its start (8), number of the operation (8). Value, version 1:
//!
//! | offset | bytes | field |
//! |---|---|---|
//! | 0 | 1 | version = 1 |
//! | 1 | 1 | 1 the end of a name, 2 another name instead of one, 3 one more name, 4 a name in a directory here, 5 attributes of a shard, 6 that an inode is given away, 7 that names of a directory lead elsewhere, 8 that an inode follows its name, 9 that a name of an inode is corrected |
//! | 2 | 8 | inode; with 4 and 7: the directory |
//! | 10 | 8 each | with 4: what the name leads to and is to lead to, as far as it is on this MDT; with 6: the directories of its names, and what is named in it, as far as they are |

use rpc::message::mdt_peer::OperationId;
use types::{
    Damage, FsResult, InodeNumber, MdtIndex,
    record::{RecordReader, RecordWriter},
};

const VERSION: u8 = 1;
const WHAT: &str = "prepared operation";
const DROP_LINK: u8 = 1;
const MOVE_LINK: u8 = 2;
const ADD_LINK: u8 = 3;
const MOVE_NAME: u8 = 4;
const ATTRIBUTES: u8 = 5;
const GIVE: u8 = 6;
const LEAD_NAMES: u8 = 7;
const FOLLOW: u8 = 8;
const CORRECT: u8 = 9;

/// What is promised of an inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Promise {
    /// It can lose a name.
    DropLink,
    /// It can get another name instead of one.
    MoveLink,
    /// It can get one more name.
    AddLink,
    /// A name in this directory can end or lead elsewhere; further inodes get other names with it.
    MoveName,
    /// It can get other attributes.
    Attributes,
    /// It can go to another MDT; further inodes have its names, or are named in it.
    Give,
    /// Names in this directory can lead elsewhere.
    LeadNames,
    /// It can follow its name to another directory, as `MoveLink`; it does not change otherwise.
    Follow,
    /// It can get or lose a name because of damage, so that it agrees with the directory.
    Correct,
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
pub fn encode(promise: Promise, inodes: &[InodeNumber]) -> Vec<u8> {
    let kind = match promise {
        Promise::DropLink => DROP_LINK,
        Promise::MoveLink => MOVE_LINK,
        Promise::AddLink => ADD_LINK,
        Promise::MoveName => MOVE_NAME,
        Promise::Attributes => ATTRIBUTES,
        Promise::Give => GIVE,
        Promise::LeadNames => LEAD_NAMES,
        Promise::Follow => FOLLOW,
        Promise::Correct => CORRECT,
    };
    let mut writer = RecordWriter::new(VERSION);
    writer.u8(kind);
    for inode in inodes {
        writer.u64(inode.0);
    }
    writer.finish()
}

/// From the value.
pub fn decode(value: &[u8]) -> FsResult<(Promise, Vec<InodeNumber>)> {
    let mut reader = RecordReader::new(WHAT, value, VERSION)?;
    let promise = match reader.u8()? {
        DROP_LINK => Promise::DropLink,
        MOVE_LINK => Promise::MoveLink,
        ADD_LINK => Promise::AddLink,
        MOVE_NAME => Promise::MoveName,
        ATTRIBUTES => Promise::Attributes,
        GIVE => Promise::Give,
        LEAD_NAMES => Promise::LeadNames,
        FOLLOW => Promise::Follow,
        CORRECT => Promise::Correct,
        _ => return Err(reader.invalid("unknown kind of part").into()),
    };
    let mut inodes = vec![InodeNumber(reader.u64()?)];
    while matches!(promise, Promise::MoveName | Promise::Give) && !reader.is_empty() {
        inodes.push(InodeNumber(reader.u64()?));
    }
    reader.finish()?;
    Ok((promise, inodes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn round_trips() {
        let operation = OperationId { coordinator: MdtIndex(513), start: 1 << 40, number: 3 };
        assert_eq!(decode_key(&key(operation)), Ok(operation));
        assert!(decode_key(&key(operation)[..17]).is_err());
        let inodes = [InodeNumber(1 << 50), InodeNumber(7)];
        use Promise::{AddLink, Attributes, Correct, DropLink, Follow, Give, LeadNames, MoveLink, MoveName};
        for promise in [DropLink, MoveLink, AddLink, MoveName, Attributes, Give, LeadNames, Follow, Correct] {
            assert_eq!(decode(&encode(promise, &inodes[..1])), Ok((promise, inodes[..1].to_vec())));
        }
        for promise in [MoveName, Give] {
            assert_eq!(decode(&encode(promise, &inodes)), Ok((promise, inodes.to_vec())));
        }
        assert!(decode(&encode(Promise::DropLink, &inodes)).is_err());
        assert!(decode(&[1, 10, 0, 0, 0, 0, 0, 0, 0, 0]).is_err());
        assert!(decode(&[1, 1]).is_err());
    }
}
