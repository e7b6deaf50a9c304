//! LINKS: names of an inode beyond the first, which is in its own record. Key: inode (8), directory
//! (8), name. Value: version 1 (1).

use types::{
    FsResult, InodeNumber,
    record::{RecordReader, RecordWriter},
};

use super::{
    codec::{key_of, split_number},
    inode::Link,
};

const VERSION: u8 = 1;
const WHAT: &str = "link";

/// The key.
pub fn key(inode: InodeNumber, link: &Link) -> Vec<u8> {
    let mut key = key_of(&[inode.0, link.parent.0]);
    key.extend_from_slice(&link.name);
    key
}

/// Inode and link of a key.
pub fn decode_key(key: &[u8]) -> FsResult<(InodeNumber, Link)> {
    let (inode, rest) = split_number(WHAT, key)?;
    let (parent, name) = split_number(WHAT, rest)?;
    Ok((InodeNumber(inode), Link { parent: InodeNumber(parent), name: name.to_vec() }))
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
        let link = Link { parent: InodeNumber(7), name: b"second".to_vec() };
        assert_eq!(decode_key(&key(InodeNumber(300), &link)), Ok((InodeNumber(300), link)));
        assert_eq!(decode_value(&value()), Ok(()));
        assert!(decode_key(&[0; 15]).is_err());
        assert!(decode_value(&[]).is_err());
    }
}
