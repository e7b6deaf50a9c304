//! ORPHANS: inodes without a name that live until their last close. Key: inode (8). Value: version
//! 1 (1).

use types::{
    FsResult, InodeNumber,
    record::{RecordReader, RecordWriter},
};

use super::codec::inode_of_key;

const VERSION: u8 = 1;
const WHAT: &str = "orphan";

/// The key.
pub fn key(inode: InodeNumber) -> Vec<u8> {
    inode.0.to_be_bytes().to_vec()
}

/// The inode of a key.
pub fn decode_key(key: &[u8]) -> FsResult<InodeNumber> {
    inode_of_key(WHAT, key)
}

/// The value.
pub fn value() -> Vec<u8> {
    RecordWriter::new(VERSION).finish()
}

/// Checks a value.
pub fn decode_value(value: &[u8]) -> FsResult<()> {
    Ok(RecordReader::new(WHAT, value, VERSION)?.finish()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn round_trips() {
        assert_eq!(decode_key(&key(InodeNumber(5))), Ok(InodeNumber(5)));
        assert_eq!(decode_value(&value()), Ok(()));
        assert!(decode_key(&[0; 9]).is_err());
    }
}
