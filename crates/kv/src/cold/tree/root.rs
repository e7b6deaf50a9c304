//! The root of the tree: what a commit writes last.
//!
//! The first node of the tree's part of the device has two places for it, of a block each. Commits
//! take turns, so that the root before is there until the new one is durable. Numbers are little
//! endian; everything is within one sector.
//!
//! | offset | bytes | content |
//! |---|---|---|
//! | 0 | 8 | magic `STRIATRE` |
//! | 8 | 4 | version, 1 |
//! | 12 | 4 | bytes of a node |
//! | 16 | 8 | the tree's id: random, in every node |
//! | 24 | 8 | number of the commit: 1, 2, 3... |
//! | 32 | 8 | nodes that the tree's part has room for |
//! | 40 | 8 | nodes in use |
//! | 48 | 1 | 1: there is a checkpoint, and it is the following |
//! | 49 | 1 | level of the root node; 255: the tree is empty |
//! | 50 | 6 | 0 |
//! | 56 | 24 | checkpoint: store id, number of the last batch, its term |
//! | 80 | 16 | reference of the root node |
//! | 96 | 412 | 0 |
//! | 508 | 4 | CRC-32C of the bytes before |
//! | 512 | 3584 | 0 |

use std::io;

use bytes::Bytes;

use super::node::{LEVEL_MAX, NODE_BYTES_MAX, NODE_BYTES_MIN, Reference, Shape};
use crate::{
    batch::{Lsn, Term},
    cold::Checkpoint,
    journal::format::{NUMBER_MAX, checksum, read_u32, read_u64},
};

/// Bytes of a place.
pub(super) const PLACE_BYTES: usize = 4096;
/// Places.
pub(super) const PLACES: u64 = 2;
const MAGIC: &[u8; 8] = b"STRIATRE";
const VERSION: u32 = 1;
const SECTOR_BYTES: usize = 512;
const CHECKSUM_AT: usize = SECTOR_BYTES - 4;
const LEVEL_NONE: u8 = u8::MAX;

/// A root as it was committed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Root {
    pub shape: Shape,
    pub commit: u64,
    /// Nodes of the tree's part of the device.
    pub nodes: u64,
    /// Nodes in use.
    pub used: u64,
    pub checkpoint: Option<Checkpoint>,
    /// The root node and its level.
    pub top: Option<(Reference, u8)>,
}

impl Root {
    /// Offset of the place of a commit within the tree's part.
    pub fn place(commit: u64) -> u64 {
        commit % PLACES * PLACE_BYTES as u64
    }

    /// Nodes whose room the places take.
    pub fn nodes_for_places(node_bytes: usize) -> u64 {
        (PLACES * PLACE_BYTES as u64).div_ceil(node_bytes as u64)
    }

    /// The block's bytes.
    pub fn encode(&self) -> Bytes {
        let mut bytes = MAGIC.to_vec();
        bytes.extend(VERSION.to_le_bytes());
        bytes.extend((self.shape.node_bytes as u32).to_le_bytes());
        for number in [self.shape.tree, self.commit, self.nodes, self.used] {
            bytes.extend(number.to_le_bytes());
        }
        bytes.push(u8::from(self.checkpoint.is_some()));
        bytes.push(self.top.map_or(LEVEL_NONE, |(_, level)| level));
        bytes.extend([0; 6]);
        let checkpoint = self.checkpoint.unwrap_or_default();
        for number in [checkpoint.store, checkpoint.lsn.0, checkpoint.term.0] {
            bytes.extend(number.to_le_bytes());
        }
        let (number, commit) = self.top.map_or((0, 0), |(top, _)| (top.number, top.commit));
        bytes.extend(number.to_le_bytes());
        bytes.extend(commit.to_le_bytes());
        bytes.resize(CHECKSUM_AT, 0);
        let sum = checksum(&[&bytes]);
        bytes.extend(sum.to_le_bytes());
        bytes.resize(PLACE_BYTES, 0);
        bytes.into()
    }

    /// The root in a place; `None` if there is none that was written whole.
    pub fn decode(bytes: &[u8]) -> io::Result<Option<Root>> {
        let is_whole = bytes.len() >= SECTOR_BYTES
            && &bytes[..8] == MAGIC
            && read_u32(bytes, CHECKSUM_AT) == checksum(&[&bytes[..CHECKSUM_AT]]);
        if !is_whole {
            return Ok(None);
        }
        let wrong = |text: String| Err(io::Error::new(io::ErrorKind::InvalidData, text));
        let version = read_u32(bytes, 8);
        if version != VERSION {
            return wrong(format!("the tables' tree has version {version}, this program reads version {VERSION}"));
        }
        let reference = Reference { number: read_u64(bytes, 80), commit: read_u64(bytes, 88) };
        let checkpoint =
            Checkpoint { store: read_u64(bytes, 56), lsn: Lsn(read_u64(bytes, 64)), term: Term(read_u64(bytes, 72)) };
        let root = Root {
            shape: Shape { tree: read_u64(bytes, 16), node_bytes: read_u32(bytes, 12) as usize },
            commit: read_u64(bytes, 24),
            nodes: read_u64(bytes, 32),
            used: read_u64(bytes, 40),
            checkpoint: (bytes[48] == 1).then_some(checkpoint),
            top: (bytes[49] != LEVEL_NONE).then_some((reference, bytes[49])),
        };
        match root.is_possible() {
            true => Ok(Some(root)),
            false => wrong("the root of the tables' tree is damaged: its values are impossible".to_owned()),
        }
    }

    fn is_possible(&self) -> bool {
        let node_bytes = self.shape.node_bytes;
        (NODE_BYTES_MIN..=NODE_BYTES_MAX).contains(&node_bytes)
            && node_bytes.is_power_of_two()
            && self.commit > 0
            && self.commit < NUMBER_MAX
            && self.used <= self.nodes
            && self.nodes < NUMBER_MAX / NODE_BYTES_MAX as u64
            && self.top.is_none_or(|(_, level)| level <= LEVEL_MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn roots_are_read_as_they_were_written_and_torn_ones_are_none() {
        let shape = Shape { tree: 7, node_bytes: 16 << 10 };
        let checkpoint = Some(Checkpoint { store: 1, lsn: Lsn(2), term: Term(3) });
        let top = Some((Reference { number: 4, commit: 5 }, 2));
        let root = Root { shape, commit: 5, nodes: 100, used: 17, checkpoint, top };
        for root in [root, Root { checkpoint: None, top: None, ..root }] {
            let bytes = root.encode();
            assert_eq!((bytes.len(), Root::decode(&bytes).unwrap()), (PLACE_BYTES, Some(root)));
            for at in 0..SECTOR_BYTES {
                let mut flipped = bytes.to_vec();
                flipped[at] ^= 1;
                assert_eq!(Root::decode(&flipped).unwrap(), None, "{at}");
            }
        }
        assert_eq!(Root::decode(&[0; PLACE_BYTES]).unwrap(), None);
        assert_eq!(Root::decode(&root.encode()[..100]).unwrap(), None);
        for root in [
            Root { used: 101, ..root },
            Root { commit: 0, ..root },
            Root { shape: Shape { node_bytes: 5000, ..shape }, ..root },
            Root { top: Some((Reference { number: 1, commit: 1 }, 99)), ..root },
        ] {
            assert!(Root::decode(&root.encode()).is_err(), "{root:?}");
        }
    }
}
