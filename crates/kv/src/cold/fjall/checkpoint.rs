//! The checkpoint that a fjall store contains: the only value of the keyspace `meta`.
//!
//! | offset | bytes | content |
//! |---|---|---|
//! | 0 | 4 | format version, 2 |
//! | 4 | 4 | 0 |
//! | 8 | 8 | store id |
//! | 16 | 8 | number of the last batch contained |
//! | 24 | 8 | its term |

use std::io;

use crate::{
    batch::{Lsn, Term},
    cold::Checkpoint,
    journal::format::{read_u32, read_u64},
};

/// Its key.
pub(super) const KEY: &str = "checkpoint";
const VERSION: u32 = 2;
const BYTES: usize = 32;

/// As it is stored.
pub(super) fn encode(checkpoint: Checkpoint) -> [u8; BYTES] {
    let mut value = [0; BYTES];
    value[..4].copy_from_slice(&VERSION.to_le_bytes());
    value[8..16].copy_from_slice(&checkpoint.store.to_le_bytes());
    value[16..24].copy_from_slice(&checkpoint.lsn.0.to_le_bytes());
    value[24..].copy_from_slice(&checkpoint.term.0.to_le_bytes());
    value
}

/// An error if another version of this program wrote it.
pub(super) fn decode(value: &[u8]) -> io::Result<Checkpoint> {
    if value.len() != BYTES || read_u32(value, 0) != VERSION {
        let text = "the cold store was written by another version of this program";
        return Err(io::Error::new(io::ErrorKind::InvalidData, text));
    }
    Ok(Checkpoint { store: read_u64(value, 8), lsn: Lsn(read_u64(value, 16)), term: Term(read_u64(value, 24)) })
}
