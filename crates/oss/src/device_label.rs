//! The label of a device that has an OST's blocks: to which target it belongs, and how large it is.
//! Everything else that is known of the device is in the target's tables. If these are on the
//! device as well, the label is all that is known of the target before they are opened: it says
//! where they are, and has the file system's server key.
//!
//! Two blocks of the device have a copy, the first one and the last one:
//!
//! ```text
//! offset bytes
//!    0   8     "StriaOST"
//!    8   4     version, 1; 2 if the tables are on the device
//!   12   2     OST index
//!   14   16    identity of the target, as in its superblock
//!   30   8     blocks of the device
//!   38   4     bytes of a block, 4096
//!   42   1     bytes of the file system's name
//!   43   8     name, then zeros
//!   51   4041  version 1: zeros
//!   51   24    version 2: the part of the tables (module `tables_part`)
//!   75   1     version 2: 1 if the target is complete, 0 while it is formatted
//!   76   32    version 2: server key; zeros while the target is formatted
//!  108   3984  version 2: zeros
//! 4092   4     CRC-32C of the bytes before
//! ```
//!
//! Numbers are little endian. It is written by `format`, and a damaged copy again by an open that
//! finds the other one intact.

use std::io;

use rpc::{Key, checksum::crc32c};
use types::{
    OstIndex, RecordDamage,
    limits::{BLOCK_BYTES, FSNAME_BYTES_MAX},
    record::DecodeError,
};

use crate::{
    superblock::{Engine, Superblock, device_geometry},
    tables_part::{self, TablesPart},
};

const MAGIC: &[u8; 8] = b"StriaOST";
const VERSION: u32 = 1;
/// Of a device with the tables.
const VERSION_TABLES: u32 = 2;
const TABLES_AT: usize = 51;
const COMPLETE_AT: usize = TABLES_AT + tables_part::BYTES;
const KEY_AT: usize = COMPLETE_AT + 1;
const KEY_BYTES: usize = 32;
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
    /// Where the tables are, if they are on the device.
    pub tables: Option<TablesPart>,
    /// With the tables on the device: the file system's server key, once the target is complete.
    pub key: Option<Key>,
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
    /// Of the device of a target, without a key.
    pub fn of(superblock: &Superblock, blocks: u64) -> Self {
        let Superblock { index, identity, fsname, engine } = superblock.clone();
        let tables = match engine {
            Engine::Blocks { tables, .. } => tables,
            Engine::Directory => None,
        };
        Self { index, identity, fsname, blocks, tables, key: None }
    }

    /// Whether it is that of the device of this target, which has so many blocks.
    pub fn is_of(&self, superblock: &Superblock, blocks: u64) -> bool {
        Self { key: None, ..self.clone() } == Self::of(superblock, blocks)
    }

    /// Whether the target, whose tables are on the device, was never completely formatted.
    pub fn is_unfinished(&self) -> bool {
        self.tables.is_some() && self.key.is_none()
    }

    /// The identity as a text.
    pub fn uuid(&self) -> String {
        self.identity.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// The blocks of the device that have a copy.
    pub fn places(blocks: u64) -> [u64; 2] {
        assert!(blocks >= 2, "the copies are in different blocks");
        [0, blocks - 1]
    }

    /// The label of the target that a device of so many blocks is, which has its tables there, too;
    /// `None` if it is none. Of two copies that can be read, the first. An error if the device has
    /// fewer blocks than its label says: nothing of the label may be believed then. `read` reads a
    /// block.
    pub fn find(blocks: u64, mut read: impl FnMut(u64) -> io::Result<Vec<u8>>) -> io::Result<Option<Self>> {
        if blocks < 2 {
            return Ok(None);
        }
        let [first, last] = Self::places(blocks);
        let mut copy = |place| -> io::Result<Option<Self>> {
            Ok(Self::decode(&read(place)?).ok().filter(|label| label.tables.is_some()))
        };
        let found = match copy(first) {
            Ok(Some(label)) => Some(label),
            // The other one may be readable.
            unusable => match (copy(last), unusable) {
                (Ok(Some(label)), _) => Some(label),
                (_, Err(error)) => return Err(error),
                (last, _) => last?,
            },
        };
        if let Some(label) = found.as_ref().filter(|label| label.blocks > blocks) {
            let text = format!(
                "its label says that it has {} blocks of {BLOCK_BYTES} bytes, and it has {blocks}: it was made \
                 smaller, or is a copy of a part of another one",
                label.blocks
            );
            return Err(io::Error::new(io::ErrorKind::InvalidData, text));
        }
        Ok(found)
    }

    /// The block's bytes.
    pub fn encode(&self) -> Vec<u8> {
        assert!(self.fsname.len() <= FSNAME_BYTES_MAX, "the name of a file system has its limit");
        let mut bytes = MAGIC.to_vec();
        bytes.extend(if self.tables.is_some() { VERSION_TABLES } else { VERSION }.to_le_bytes());
        bytes.extend(self.index.0.to_le_bytes());
        bytes.extend(self.identity);
        bytes.extend(self.blocks.to_le_bytes());
        bytes.extend((BLOCK_BYTES as u32).to_le_bytes());
        bytes.push(self.fsname.len() as u8);
        bytes.extend(self.fsname.as_bytes());
        bytes.resize(TABLES_AT, 0);
        if let Some(tables) = &self.tables {
            bytes.extend(tables.encode());
            bytes.push(u8::from(self.key.is_some()));
            self.key.iter().for_each(|key| bytes.extend(key.to_bytes()));
        }
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
        if ![VERSION, VERSION_TABLES].contains(&version) {
            let found = u8::try_from(version).unwrap_or(u8::MAX);
            return Err(damaged(RecordDamage::Version { found, expected: VERSION_TABLES as u8 }));
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
        let tables = (version == VERSION_TABLES).then(|| TablesPart::decode(&array(block, TABLES_AT)));
        if tables.is_some_and(|tables| !tables.is_possible(blocks)) {
            return Err(damaged(RecordDamage::OutOfRange("part of the device with the tables")));
        }
        let is_complete = tables.is_some() && block[COMPLETE_AT] != 0;
        let key = is_complete.then(|| Key::from_bytes(array::<KEY_BYTES>(block, KEY_AT)));
        Ok(Self { index, identity: array(block, 14), fsname, blocks, tables, key })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn label() -> DeviceLabel {
        let (index, fsname) = (OstIndex(0x102), "stria".into());
        DeviceLabel { index, identity: [7; 16], fsname, blocks: 1 << 33, tables: None, key: None }
    }

    #[test]
    fn a_label_says_where_the_tables_are_and_has_the_key() {
        let tables = TablesPart::of_new(1 << 33, None);
        let unfinished = DeviceLabel { tables, ..label() };
        let complete = DeviceLabel { key: Some(Key::from_bytes([9; 32])), ..unfinished.clone() };
        for (label, is_unfinished) in [(&label(), false), (&unfinished, true), (&complete, false)] {
            assert_eq!(DeviceLabel::decode(&label.encode()).as_ref(), Ok(label));
            assert_eq!(label.is_unfinished(), is_unfinished);
        }
        let bytes = complete.encode();
        assert_eq!(
            (bytes[8], &bytes[51..75], &bytes[75..108]),
            (2, &tables.unwrap().encode()[..], &[&[1][..], &[9; 32]].concat()[..])
        );
        assert!(!format!("{complete:?}").contains("9, 9"));
        let beyond = DeviceLabel { blocks: 8192, ..complete };
        assert!(DeviceLabel::decode(&beyond.encode()).is_err());
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
