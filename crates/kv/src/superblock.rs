//! The store's own file: it identifies this directory as a store, its format and its id.
//!
//! | offset | bytes | content |
//! |---|---|---|
//! | 0 | 8 | magic `STRIAKV` and a zero |
//! | 8 | 4 | format version, 2 |
//! | 12 | 4 | 0 |
//! | 16 | 8 | store id: random, never 0; every segment, record and checkpoint repeats it |
//! | 24 | 8 | size of a journal segment |
//! | 32 | 8 | number of times the store was opened |
//! | 40 | 20 | 0 |
//! | 60 | 4 | CRC-32C of bytes 0..60 |
//!
//! It is written at creation and with each opening, within one sector. The number of openings is
//! the upper half of the sequence numbers of the segments started during that time, so no number is
//! used twice, whatever was lost in between. Version history: 1, first; 2, terms in the journal and
//! the checkpoint.

use bytes::Bytes;
use rt::{Device, Entropy};

use crate::{
    config::{SEGMENT_BYTES_MAX, SEGMENT_BYTES_MIN},
    error::{Error, Result},
    journal::{
        format::{NUMBER_MAX, SEGMENT_HEADER_BYTES, checksum, read_u32, read_u64},
        recovery::read_range,
    },
};

/// Name of the file.
pub const STORE_FILE: &str = "store";
/// Version of the format.
pub const STORE_VERSION: u32 = 2;
/// Openings whose segments can be numbered ([`NUMBER_MAX`]).
const OPENS_MAX: u64 = NUMBER_MAX >> 32;
const MAGIC: &[u8; 8] = b"STRIAKV\0";
const BYTES: usize = 64;

/// What the file says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Superblock {
    /// Version of the format.
    pub version: u32,
    /// The store's id.
    pub store: u64,
    /// Size of a journal segment.
    pub segment_bytes: u64,
    /// How often the store was opened.
    pub opens: u64,
}

impl Superblock {
    /// Reads the file; `None` if there is none or it was never completed.
    pub async fn read(device: &dyn Device) -> Result<Option<Superblock>> {
        let bytes = read_range(device, STORE_FILE, 0, BYTES as u64).await?;
        if bytes.len() < BYTES || bytes.iter().all(|byte| *byte == 0) {
            return Ok(None);
        }
        if &bytes[..8] != MAGIC || read_u32(&bytes, 60) != checksum(&[&bytes[..60]]) {
            let reason = "it does not describe a store".to_owned();
            return Err(Error::Corrupt { file: STORE_FILE.to_owned(), offset: 0, reason });
        }
        let version = read_u32(&bytes, 8);
        if version != STORE_VERSION {
            return Err(Error::UnknownVersion {
                file: STORE_FILE.to_owned(),
                found: version,
                supported: STORE_VERSION,
            });
        }
        let superblock = Superblock {
            version,
            store: read_u64(&bytes, 16),
            segment_bytes: read_u64(&bytes, 24),
            opens: read_u64(&bytes, 32),
        };
        if !superblock.is_possible() {
            let reason = "its values are not possible for a store".to_owned();
            return Err(Error::Corrupt { file: STORE_FILE.to_owned(), offset: 16, reason });
        }
        Ok(Some(superblock))
    }

    fn is_possible(&self) -> bool {
        let segments = SEGMENT_BYTES_MIN..=SEGMENT_BYTES_MAX;
        self.store != 0
            && segments.contains(&self.segment_bytes)
            && self.segment_bytes.is_multiple_of(SEGMENT_HEADER_BYTES)
            && self.opens < OPENS_MAX
    }

    /// Invents a store and writes the file, durably.
    pub(crate) async fn create(device: &dyn Device, entropy: &dyn Entropy, segment_bytes: u64) -> Result<Superblock> {
        let store = entropy.next_u64() | 1;
        let superblock = Superblock { version: STORE_VERSION, store, segment_bytes, opens: 0 };
        superblock.write(device).await?;
        Ok(superblock)
    }

    /// Counts an opening, durably; the sequence number after which its segments are numbered.
    /// `used` is the highest in use.
    pub(crate) async fn count_open(&mut self, device: &dyn Device, used: u64) -> Result<u64> {
        self.opens += 1;
        let base = self.opens << 32;
        if used >= base {
            let reason = format!("the store was opened {} times, but segment {used:x} exists", self.opens - 1);
            return Err(Error::Corrupt { file: STORE_FILE.to_owned(), offset: 32, reason });
        }
        self.write(device).await?;
        Ok(base)
    }

    async fn write(&self, device: &dyn Device) -> Result<()> {
        let bytes = Bytes::copy_from_slice(&self.encode());
        device.write(STORE_FILE, 0, vec![bytes]).await.map_err(|error| Error::device("write", STORE_FILE, error))?;
        device.flush(STORE_FILE).await.map_err(|error| Error::device("flush", STORE_FILE, error))
    }

    fn encode(&self) -> [u8; BYTES] {
        let mut bytes = [0; BYTES];
        bytes[..8].copy_from_slice(MAGIC);
        bytes[8..12].copy_from_slice(&self.version.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.store.to_le_bytes());
        bytes[24..32].copy_from_slice(&self.segment_bytes.to_le_bytes());
        bytes[32..40].copy_from_slice(&self.opens.to_le_bytes());
        let sum = checksum(&[&bytes[..60]]);
        bytes[60..].copy_from_slice(&sum.to_le_bytes());
        bytes
    }
}
