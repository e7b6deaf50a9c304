//! XATTRS: extended attributes, access lists among them (under their names
//! `system.posix_acl_access` and `_default`, in the form the Linux system calls use). Key: inode
//! (8), name. Value: version 1 (1), then the attribute's bytes.

use types::{
    Damage, FsResult, InodeNumber, limits,
    record::{RecordReader, RecordWriter},
};

use super::codec::split_number;

const VERSION: u8 = 1;
const WHAT: &str = "extended attribute";

const _: () =
    assert!(limits::XATTR_VALUE_BYTES_MAX < kv::VALUE_BYTES_MAX, "an attribute and its version fit in one value");

/// The key.
pub fn key(inode: InodeNumber, name: &[u8]) -> Vec<u8> {
    let mut key = inode.0.to_be_bytes().to_vec();
    key.extend_from_slice(name);
    key
}

/// Inode and name of a key.
pub fn decode_key(key: &[u8]) -> FsResult<(InodeNumber, &[u8])> {
    match split_number(WHAT, key)? {
        (_, []) => Err(Damage::new(WHAT, "no name").into()),
        (inode, name) => Ok((InodeNumber(inode), name)),
    }
}

/// The value.
pub fn encode(value: &[u8]) -> Vec<u8> {
    RecordWriter::new(VERSION).rest(value).finish()
}

/// The attribute's bytes.
pub fn decode(value: &[u8]) -> FsResult<&[u8]> {
    Ok(RecordReader::new(WHAT, value, VERSION)?.rest())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn round_trips() {
        for value in [&b""[..], b"x", &[7; limits::XATTR_VALUE_BYTES_MAX]] {
            assert_eq!(decode(&encode(value)), Ok(value));
        }
        assert_eq!(decode_key(&key(InodeNumber(9), b"user.x")), Ok((InodeNumber(9), &b"user.x"[..])));
        assert!(decode(&[]).is_err());
        assert!(decode_key(&[0; 8]).is_err());
    }
}
