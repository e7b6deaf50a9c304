//! Facts about the whole target: table META.
//!
//! ```text
//! key "superblock"                          key "mark"                        key "totals"
//! offset bytes                              offset bytes                      offset bytes
//!  0  1  version, 2; 3 with a device;        0  1  version, 2                  0  1  version, 2
//!        4 with the tables on it, too
//!  1  2  OST index                           1  8  epoch: in-place blocks      1  8  objects
//!  3  16 identity, random at format time           written up to it were       9  8  blocks that hold data
//! 19  1  bytes of the file system's name           flushed
//! 20  n  name
//! ..  8  with a device: its blocks
//! ..  24 with version 4: the part of the device that has the tables (`tables_part`)
//! ```
//!
//! Key "reserved", with a device only: blocks that are reserved for objects and hold no data (8).
//!
//! Key "scrub", once there was one: see [`scrub_record`](crate::scrub_record).
//!
//! Key "clean", with an empty value, exists while the store is closed and was closed cleanly.
//!
//! Numbers are little endian. The superblock is written once, by `format`; its version is the
//! version of the whole store: the tables, their keys and the names of host files.

use std::ops::Range;

use blocks::Geometry;
use types::{
    OstIndex,
    limits::{BLOCK_BYTES, FSNAME_BYTES_MAX},
    record::{DecodeError, RecordReader},
};

use crate::tables_part::TablesPart;

/// Key of the superblock.
pub const SUPERBLOCK_KEY: &[u8] = b"superblock";
/// Key of the mark.
pub const MARK_KEY: &[u8] = b"mark";
/// Key of the note that the last user closed the store; nothing is in it.
pub const CLEAN_KEY: &[u8] = b"clean";
/// Key of the power-loss era ([`kv::era`]).
pub const ERA_KEY: &[u8] = b"losses";
/// Key of the totals.
pub const TOTALS_KEY: &[u8] = b"totals";
/// Key of the sum of what is reserved on a device and holds no data.
pub const RESERVED_KEY: &[u8] = b"reserved";
/// Key of how far a scrub is ([`crate::scrub_record`]).
pub const SCRUB_KEY: &[u8] = b"scrub";

const VERSION: u8 = 2;
/// Of superblocks that name a device.
const VERSION_DEVICE: u8 = 3;
/// Of those that name a device with the tables.
const VERSION_ONE_DEVICE: u8 = 4;

/// Blocks of the smallest device.
pub const DEVICE_BLOCKS_MIN: u64 = (16 << 20) / BLOCK_BYTES;

/// A device of so many blocks, if a target can have it.
pub fn device_geometry(blocks: u64) -> Option<Geometry> {
    Geometry::new(blocks).filter(|_| blocks >= DEVICE_BLOCKS_MIN)
}

/// Where the data of a target's objects are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Engine {
    /// In a host file for each object.
    #[default]
    Directory,
    /// On a device, or in one large file.
    Blocks {
        /// Blocks of the device.
        blocks: u64,
        /// The part of them that has the tables; `None`: these are elsewhere.
        tables: Option<TablesPart>,
    },
}

impl Engine {
    /// A device without tables.
    pub const fn on_device(blocks: u64) -> Self {
        Engine::Blocks { blocks, tables: None }
    }

    /// Blocks of the device that are no object's: those of the first label and the tables, and that
    /// of the last label.
    pub fn own_blocks(self) -> [Range<u64>; 2] {
        match self {
            Engine::Directory => [0..0, 0..0],
            Engine::Blocks { blocks, tables } => {
                let first = 0..tables.map_or(1, |tables| tables.range().end);
                [first, blocks.saturating_sub(1)..blocks]
            }
        }
    }
}

/// The identity of this target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Superblock {
    /// Index in the cluster map.
    pub index: OstIndex,
    /// Random identity: a target formatted again is another one.
    pub identity: [u8; 16],
    /// File system it belongs to.
    pub fsname: String,
    /// Where the data of its objects are.
    pub engine: Engine,
}

impl Superblock {
    /// Name of the target, as `stria-OST0003`.
    pub fn target(&self) -> String {
        target_name(&self.fsname, self.index)
    }

    /// The identity as text, 8-4-4-4-12 digits.
    pub fn uuid(&self) -> String {
        let digits: String = self.identity.iter().map(|byte| format!("{byte:02x}")).collect();
        [0..8, 8..12, 12..16, 16..20, 20..32].map(|part| &digits[part]).join("-")
    }

    /// The record's bytes.
    pub fn encode(&self) -> Vec<u8> {
        let version = match self.engine {
            Engine::Directory => VERSION,
            Engine::Blocks { tables: None, .. } => VERSION_DEVICE,
            Engine::Blocks { tables: Some(_), .. } => VERSION_ONE_DEVICE,
        };
        let mut bytes = vec![version];
        bytes.extend(self.index.0.to_le_bytes());
        bytes.extend(self.identity);
        bytes.push(self.fsname.len() as u8);
        bytes.extend(self.fsname.as_bytes());
        if let Engine::Blocks { blocks, tables } = self.engine {
            bytes.extend(blocks.to_le_bytes());
            tables.iter().for_each(|tables| bytes.extend(tables.encode()));
        }
        bytes
    }

    /// The record of these bytes.
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        let version = bytes.first().copied().filter(|first| [VERSION_DEVICE, VERSION_ONE_DEVICE].contains(first));
        let mut reader = RecordReader::new("superblock", bytes, version.unwrap_or(VERSION))?;
        let index = OstIndex(reader.u16()?);
        let identity = reader.array()?;
        let name_bytes = usize::from(reader.u8()?);
        let name = reader.take(name_bytes)?;
        let engine = match version {
            Some(VERSION_ONE_DEVICE) => {
                Engine::Blocks { blocks: reader.u64()?, tables: Some(TablesPart::decode(&reader.array()?)) }
            }
            Some(_) => Engine::on_device(reader.u64()?),
            None => Engine::Directory,
        };
        reader.finish()?;
        if let Engine::Blocks { blocks, tables } = engine {
            if device_geometry(blocks).is_none() {
                return Err(reader.out_of_range("blocks of the device"));
            }
            if tables.is_some_and(|tables| !tables.is_possible(blocks)) {
                return Err(reader.out_of_range("part of the device with the tables"));
            }
        }
        let fsname = std::str::from_utf8(name).map_err(|_| reader.out_of_range("file system name"))?;
        if fsname.is_empty() || fsname.len() > FSNAME_BYTES_MAX {
            return Err(reader.out_of_range("length of the file system name"));
        }
        Ok(Self { index, identity, fsname: fsname.to_owned(), engine })
    }
}

/// Name of a target, as `stria-OST0003`.
pub fn target_name(fsname: &str, index: OstIndex) -> String {
    format!("{fsname}-{index}")
}

/// The epoch up to which in-place blocks were flushed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Mark {
    /// The epoch.
    pub epoch: u64,
}

impl Mark {
    /// The record's bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = vec![VERSION];
        bytes.extend(self.epoch.to_le_bytes());
        bytes
    }

    /// The record of these bytes.
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        let mut reader = RecordReader::new("flush mark", bytes, VERSION)?;
        let epoch = reader.u64()?;
        reader.finish()?;
        Ok(Self { epoch })
    }
}

/// Sums over all objects, kept with every batch that changes them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Objects.
    pub objects: u64,
    /// Blocks that hold data.
    pub blocks: u64,
}

impl Totals {
    /// The record's bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = vec![VERSION];
        bytes.extend(self.objects.to_le_bytes());
        bytes.extend(self.blocks.to_le_bytes());
        bytes
    }

    /// The record of these bytes.
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        let mut reader = RecordReader::new("totals", bytes, VERSION)?;
        let totals = Self { objects: reader.u64()?, blocks: reader.u64()? };
        reader.finish()?;
        Ok(totals)
    }
}

#[cfg(test)]
mod tests {
    use types::RecordDamage;

    use super::*;

    #[test]
    fn records_round_trip() {
        let engine = Engine::Directory;
        let superblock = Superblock { index: OstIndex(0x1f), identity: [0xab; 16], fsname: "stria".into(), engine };
        let of_device = Superblock { engine: Engine::on_device(1 << 33), ..superblock.clone() };
        assert_eq!(Superblock::decode(&of_device.encode()), Ok(of_device));
        assert_eq!(Superblock::decode(&superblock.encode()), Ok(superblock.clone()));
        assert_eq!(superblock.target(), "stria-OST001f");
        assert_eq!(superblock.uuid(), "abababab-abab-abab-abab-abababababab");
        let mark = Mark { epoch: 1 << 40 };
        assert_eq!(Mark::decode(&mark.encode()), Ok(mark));
        let totals = Totals { objects: 7, blocks: 1 << 33 };
        assert_eq!(Totals::decode(&totals.encode()), Ok(totals));
    }

    #[test]
    fn damage_is_an_error() {
        let tables = TablesPart::of_new(1 << 17, None);
        for engine in [Engine::Directory, Engine::on_device(4096), Engine::Blocks { blocks: 1 << 17, tables }] {
            let bytes = Superblock { index: OstIndex(1), identity: [0; 16], fsname: "a".into(), engine }.encode();
            for length in 0..bytes.len() {
                assert!(Superblock::decode(&bytes[..length]).is_err(), "{length}");
            }
        }
        assert_eq!(
            Superblock::decode(&[9]),
            Err(DecodeError { record: "superblock", damage: RecordDamage::Version { found: 9, expected: VERSION } })
        );
        for (blocks, is_possible) in
            [(0, false), (1, false), (4095, false), (4096, true), (1 << 50, false), (u64::MAX, false)]
        {
            let engine = Engine::on_device(blocks);
            let bytes = Superblock { index: OstIndex(1), identity: [0; 16], fsname: "a".into(), engine }.encode();
            assert_eq!(Superblock::decode(&bytes).is_ok(), is_possible, "{blocks}");
        }
        assert!(Mark::decode(&[1, 2]).is_err());
        assert!(Totals::decode(&[]).is_err());
    }
}
