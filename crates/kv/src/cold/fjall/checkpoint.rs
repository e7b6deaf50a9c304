//! The checkpoint that a fjall store contains: the only value of the keyspace `meta`.
//!
//! | offset | bytes | content |
//! |---|---|---|
//! | 0 | 4 | format version, 1 |
//! | 4 | 4 | 0 |
//! | 8 | 8 | store id |
//! | 16 | 8 | number of the last batch contained |

use std::io;

use crate::{
    batch::Lsn,
    cold::Checkpoint,
    journal::format::{read_u32, read_u64},
};

/// Its key.
pub(super) const KEY: &str = "checkpoint";
const VERSION: u32 = 1;
const BYTES: usize = 24;

/// As it is stored.
pub(super) fn encode(checkpoint: Checkpoint) -> [u8; BYTES] {
    let mut value = [0; BYTES];
    value[..4].copy_from_slice(&VERSION.to_le_bytes());
    value[8..16].copy_from_slice(&checkpoint.store.to_le_bytes());
    value[16..].copy_from_slice(&checkpoint.lsn.0.to_le_bytes());
    value
}

/// An error if another version of this program wrote it.
pub(super) fn decode(value: &[u8]) -> io::Result<Checkpoint> {
    if value.len() != BYTES || read_u32(value, 0) != VERSION {
        let text = "the cold store was written by another version of this program";
        return Err(io::Error::new(io::ErrorKind::InvalidData, text));
    }
    Ok(Checkpoint { store: read_u64(value, 8), lsn: Lsn(read_u64(value, 16)) })
}
