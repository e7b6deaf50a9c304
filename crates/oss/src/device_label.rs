//! The label of a device that has an OST's blocks: to which target it belongs, and how large it is.
//! Everything else that is known of the device is in the target's tables.
//!
//! Two blocks of the device have a copy, the first one and the last one:
//!
//! ```text
//! offset bytes
//!    0   8     "StriaOST"
//!    8   4     version, 1
//!   12   2     OST index
//!   14   16    identity of the target, as in its superblock
//!   30   8     blocks of the device
//!   38   4     bytes of a block, 4096
//!   42   1     bytes of the file system's name
//!   43   8     name, then zeros
//!   51   4041  zeros
//! 4092   4     CRC-32C of the bytes before
//! ```
//!
//! Numbers are little endian. It is written by `format`, and a damaged copy again by an open that
//! finds the other one intact.

use rpc::checksum::crc32c;
use types::{
    OstIndex, RecordDamage,
    limits::{BLOCK_BYTES, FSNAME_BYTES_MAX},
    record::DecodeError,
};

use crate::superblock::{Superblock, device_geometry};

const MAGIC: &[u8; 8] = b"StriaOST";
const VERSION: u32 = 1;
const BYTES: usize = BLOCK_BYTES as usize;
const CHECKSUM_AT: usize = BYTES - 4;

/// Label of a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceLabel {
    /// Index of the target in the cluster map.
    pub index: OstIndex,
    /// Identity of the target.
    pub identity: [u8; 16],
    /// File system it belongs to.
    pub fsname: String,
    /// Blocks of the device.
    pub blocks: u64,
}

fn damaged(damage: RecordDamage) -> DecodeError {
    DecodeError { record: "label of a device", damage }
}

/// `N` bytes of a block.
fn array<const N: usize>(block: &[u8; BYTES], at: usize) -> [u8; N] {
    let mut bytes = [0; N];
    bytes.copy_from_slice(&block[at..at + N]);
    bytes
}

impl DeviceLabel {
    /// Of the device of a target.
    pub fn of(superblock: &Superblock, blocks: u64) -> Self {
        let Superblock { index, identity, fsname, .. } = superblock.clone();
        Self { index, identity, fsname, blocks }
    }

    /// The blocks of the device that have a copy.
    pub fn places(blocks: u64) -> [u64; 2] {
        assert!(blocks >= 2, "the copies are in different blocks");
        [0, blocks - 1]
    }

    /// The block's bytes.
    pub fn encode(&self) -> Vec<u8> {
        assert!(self.fsname.len() <= FSNAME_BYTES_MAX, "the name of a file system has its limit");
        let mut bytes = MAGIC.to_vec();
        bytes.extend(VERSION.to_le_bytes());
        bytes.extend(self.index.0.to_le_bytes());
        bytes.extend(self.identity);
        bytes.extend(self.blocks.to_le_bytes());
        bytes.extend((BLOCK_BYTES as u32).to_le_bytes());
        bytes.push(self.fsname.len() as u8);
        bytes.extend(self.fsname.as_bytes());
        bytes.resize(CHECKSUM_AT, 0);
        let checksum = crc32c(&bytes);
        bytes.extend(checksum.to_le_bytes());
        bytes
    }

    /// The label of these bytes, a block.
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        let block: &[u8; BYTES] = bytes.try_into().map_err(|_| damaged(RecordDamage::Short))?;
        if &array::<8>(block, 0) != MAGIC {
            return Err(damaged(RecordDamage::Invalid("there is none".to_owned())));
        }
        if u32::from_le_bytes(array(block, CHECKSUM_AT)) != crc32c(&block[..CHECKSUM_AT]) {
            return Err(damaged(RecordDamage::Invalid("its checksum does not match".to_owned())));
        }
        let version = u32::from_le_bytes(array(block, 8));
        if version != VERSION {
            let found = u8::try_from(version).unwrap_or(u8::MAX);
            return Err(damaged(RecordDamage::Version { found, expected: VERSION as u8 }));
        }
        if u64::from(u32::from_le_bytes(array(block, 38))) != BLOCK_BYTES {
            return Err(damaged(RecordDamage::OutOfRange("bytes of a block")));
        }
        let name_bytes = usize::from(block[42]);
        if name_bytes == 0 || name_bytes > FSNAME_BYTES_MAX {
            return Err(damaged(RecordDamage::OutOfRange("length of the file system's name")));
        }
        let fsname = std::str::from_utf8(&block[43..43 + name_bytes]);
        let fsname = fsname.map_err(|_| damaged(RecordDamage::OutOfRange("file system name")))?.to_owned();
        let index = OstIndex(u16::from_le_bytes(array(block, 12)));
        let blocks = u64::from_le_bytes(array(block, 30));
        if device_geometry(blocks).is_none() {
            return Err(damaged(RecordDamage::OutOfRange("blocks of the device")));
        }
        Ok(Self { index, identity: array(block, 14), fsname, blocks })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn label() -> DeviceLabel {
        DeviceLabel { index: OstIndex(0x102), identity: [7; 16], fsname: "stria".into(), blocks: 1 << 33 }
    }

    #[test]
    fn golden_bytes() {
        let bytes = label().encode();
        let mut head = b"StriaOST\x01\0\0\0\x02\x01".to_vec();
        head.extend([7; 16]);
        head.extend([0, 0, 0, 0, 2, 0, 0, 0, 0, 16, 0, 0, 5]);
        head.extend(b"stria\0\0\0");
        assert_eq!((&bytes[..head.len()], bytes.len()), (&head[..], 4096));
        assert_eq!(DeviceLabel::decode(&bytes), Ok(label()));
    }

    #[test]
    fn each_flipped_bit_is_noticed() {
        let bytes = label().encode();
        for at in (0..60).chain(4080..4096) {
            let mut damaged = bytes.clone();
            damaged[at] ^= 1;
            assert!(DeviceLabel::decode(&damaged).is_err(), "{at}");
        }
        for blocks in [0, 1, 4095, 1 << 50, u64::MAX] {
            assert!(DeviceLabel::decode(&DeviceLabel { blocks, ..label() }.encode()).is_err(), "{blocks}");
        }
        assert!(DeviceLabel::decode(&bytes[1..]).is_err());
        assert!(DeviceLabel::decode(&[0; 4096]).is_err());
    }
}
