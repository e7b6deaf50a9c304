//! Nodes of the tree: how they are on the device.
//!
//! All have the same size, and are numbered from 0 in the tree's part of the device. Numbers are
//! little endian.
//!
//! | offset | bytes | content |
//! |---|---|---|
//! | 0 | 4 | CRC-32C of the bytes after it |
//! | 4 | 1 | level: 0 leaf, 1 parent of leaves, 2...; 255: part of a long value |
//! | 5 | 1 | 0 |
//! | 6 | 2 | entries |
//! | 8 | 8 | the tree's id |
//! | 16 | 8 | number of the node |
//! | 24 | 8 | number of the commit for which it was written |
//! | 32 | 4 | bytes of the entries, or of the part |
//! | 36 | 4 | 0 |
//! | 40 | n | entries in the order of their keys, or the part; then zeros |
//!
//! An entry begins with the bytes of its key (2), flags (1) and a number (4); then the key, which
//! begins with the table. In a leaf the number is the bytes of the value, which follows; with flag
//! 1 the value is in nodes of its own, and their references follow. In other nodes the number is 0,
//! the key is the first one of the child, and its reference follows; with flag 1 the child is a
//! leaf with values in nodes of their own. A reference is a node (8) and its commit (8): so a node
//! that another one has replaced is noticed.

use std::io;

use bytes::Bytes;

use crate::{
    config::{KEY_BYTES_MAX, VALUE_BYTES_MAX},
    journal::format::{checksum, read_u32, read_u64},
};

/// Bytes before the entries.
pub(super) const HEADER_BYTES: usize = 40;
/// Bytes of an entry before its key.
const ENTRY_BYTES: usize = 7;
const REFERENCE_BYTES: usize = 16;
/// The level of parts of values.
const LEVEL_PART: u8 = u8::MAX;
/// Far more than any tree has.
pub(super) const LEVEL_MAX: u8 = 30;
const FLAG_LONG: u8 = 1;
/// Sizes of nodes that a tree may have.
pub(super) const NODE_BYTES_MIN: usize = 4096;
pub(super) const NODE_BYTES_MAX: usize = 64 << 10;

const _: () = assert!(
    NODE_BYTES_MIN - HEADER_BYTES >= 2 * (ENTRY_BYTES + 1 + KEY_BYTES_MAX + REFERENCE_BYTES),
    "a node has at least two children"
);

/// Where a node is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Reference {
    pub number: u64,
    pub commit: u64,
}

/// What an entry has for its key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Body {
    /// A value.
    Value(Bytes),
    /// A value of so many bytes that is in nodes of its own.
    Long(u32, Vec<Reference>),
    /// A node of the level below, and whether it is a leaf with long values.
    Child(Reference, bool),
}

/// An entry of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    pub key: Bytes,
    pub body: Body,
}

impl Entry {
    /// Bytes that it takes in a node.
    pub fn bytes(&self) -> usize {
        let body = match &self.body {
            Body::Value(value) => value.len(),
            Body::Long(_, parts) => parts.len() * REFERENCE_BYTES,
            Body::Child(..) => REFERENCE_BYTES,
        };
        ENTRY_BYTES + self.key.len() + body
    }

    /// Whether something of it is in nodes that only a leaf names.
    pub fn is_long(&self) -> bool {
        matches!(self.body, Body::Long(..))
    }
}

/// A node in memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Node {
    pub level: u8,
    pub entries: Vec<Entry>,
}

/// The shape of a tree's nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Shape {
    pub tree: u64,
    pub node_bytes: usize,
}

impl Shape {
    /// Bytes of entries that a node takes.
    pub fn room(self) -> usize {
        self.node_bytes - HEADER_BYTES
    }

    /// Longer values are in nodes of their own: so at least two entries fit in a leaf, but for keys
    /// that are nearly as long as the smallest node.
    pub fn value_bytes_max(self) -> usize {
        self.room() * 3 / 8
    }

    fn page(self, reference: Reference, level: u8, count: u16, content: &[u8]) -> Bytes {
        assert!(content.len() <= self.room(), "the tree keeps to the size of its nodes");
        let mut page = Vec::with_capacity(self.node_bytes);
        page.extend([0; 4]);
        page.extend([level, 0]);
        page.extend(count.to_le_bytes());
        page.extend(self.tree.to_le_bytes());
        page.extend(reference.number.to_le_bytes());
        page.extend(reference.commit.to_le_bytes());
        page.extend((content.len() as u32).to_le_bytes());
        page.extend([0; 4]);
        page.extend(content);
        page.resize(self.node_bytes, 0);
        let sum = checksum(&[&page[4..]]);
        page[..4].copy_from_slice(&sum.to_le_bytes());
        page.into()
    }

    /// The bytes of a node.
    pub fn encode(self, reference: Reference, node: &Node) -> Bytes {
        let mut content = Vec::with_capacity(self.room());
        for entry in &node.entries {
            let (flags, number) = match &entry.body {
                Body::Value(value) => (0, value.len() as u32),
                Body::Long(bytes, _) => (FLAG_LONG, *bytes),
                Body::Child(_, long) => (if *long { FLAG_LONG } else { 0 }, 0),
            };
            content.extend((entry.key.len() as u16).to_le_bytes());
            content.push(flags);
            content.extend(number.to_le_bytes());
            content.extend(&entry.key);
            let mut put = |reference: &Reference| {
                content.extend(reference.number.to_le_bytes());
                content.extend(reference.commit.to_le_bytes());
            };
            match &entry.body {
                Body::Long(_, parts) => parts.iter().for_each(put),
                Body::Child(child, _) => put(child),
                Body::Value(value) => content.extend(value),
            }
        }
        self.page(reference, node.level, node.entries.len() as u16, &content)
    }

    /// The bytes of a part of a value.
    pub fn encode_part(self, reference: Reference, part: &[u8]) -> Bytes {
        self.page(reference, LEVEL_PART, 0, part)
    }

    /// What a page has, if it is that of this node: its level, its count of entries, its content.
    fn open(self, reference: Reference, page: &Bytes) -> io::Result<(u8, usize, Bytes)> {
        let wrong = |found: &str| damaged(reference, found);
        if page.len() != self.node_bytes {
            return Err(wrong("it ends early"));
        }
        if read_u32(page, 0) != checksum(&[&page[4..]]) {
            return Err(wrong("its checksum does not match"));
        }
        let found = (read_u64(page, 8), read_u64(page, 16), read_u64(page, 24));
        if found != (self.tree, reference.number, reference.commit) {
            return Err(wrong("another node is there"));
        }
        let bytes = read_u32(page, 32) as usize;
        if bytes > self.room() {
            return Err(wrong("its length is impossible"));
        }
        let count = usize::from(u16::from_le_bytes([page[6], page[7]]));
        Ok((page[4], count, page.slice(HEADER_BYTES..HEADER_BYTES + bytes)))
    }

    /// The node of a page.
    pub fn decode(self, reference: Reference, level: u8, page: &Bytes) -> io::Result<Node> {
        let (found, count, content) = self.open(reference, page)?;
        if found != level || level > LEVEL_MAX {
            return Err(damaged(reference, "it is of another level"));
        }
        let mut content = Content { reference, bytes: content };
        let mut entries: Vec<Entry> = Vec::with_capacity(count);
        for _ in 0..count {
            let entry = content.entry(level, self)?;
            if entries.last().is_some_and(|before| before.key >= entry.key) {
                return Err(damaged(reference, "its keys are not in order"));
            }
            entries.push(entry);
        }
        if !content.bytes.is_empty() || entries.is_empty() {
            return Err(damaged(reference, "its length does not fit its entries"));
        }
        Ok(Node { level, entries })
    }

    /// The part of a value in a page.
    pub fn decode_part(self, reference: Reference, page: &Bytes) -> io::Result<Bytes> {
        match self.open(reference, page)? {
            (LEVEL_PART, 0, content) => Ok(content),
            _ => Err(damaged(reference, "it is no part of a value")),
        }
    }
}

/// The error that a node is damaged.
pub(super) fn damaged(reference: Reference, found: &str) -> io::Error {
    let text = format!("node {} of the tables' tree is damaged: {found}", reference.number);
    io::Error::new(io::ErrorKind::InvalidData, text)
}

/// What is left of a node's entries.
struct Content {
    reference: Reference,
    bytes: Bytes,
}

impl Content {
    fn take(&mut self, bytes: usize) -> io::Result<Bytes> {
        if bytes > self.bytes.len() {
            return Err(damaged(self.reference, "an entry ends after it"));
        }
        Ok(self.bytes.split_to(bytes))
    }

    fn reference(&mut self) -> io::Result<Reference> {
        let bytes = self.take(REFERENCE_BYTES)?;
        Ok(Reference { number: read_u64(&bytes, 0), commit: read_u64(&bytes, 8) })
    }

    fn entry(&mut self, level: u8, shape: Shape) -> io::Result<Entry> {
        let head = self.take(ENTRY_BYTES)?;
        let (key_bytes, flags) = (usize::from(u16::from_le_bytes([head[0], head[1]])), head[2]);
        let number = read_u32(&head, 3);
        if key_bytes == 0 || key_bytes > 1 + KEY_BYTES_MAX || flags > FLAG_LONG || number as usize > VALUE_BYTES_MAX {
            return Err(damaged(self.reference, "an entry is impossible"));
        }
        let key = self.take(key_bytes)?;
        let body = match (level, flags) {
            (0, FLAG_LONG) => {
                let parts = (number as usize).div_ceil(shape.room());
                Body::Long(number, (0..parts).map(|_| self.reference()).collect::<io::Result<_>>()?)
            }
            (0, _) => Body::Value(self.take(number as usize)?),
            (_, _) => Body::Child(self.reference()?, flags == FLAG_LONG),
        };
        Ok(Entry { key, body })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHAPE: Shape = Shape { tree: 7, node_bytes: NODE_BYTES_MIN };
    const HERE: Reference = Reference { number: 3, commit: 9 };

    fn leaf() -> Node {
        let parts = vec![Reference { number: 1, commit: 2 }, Reference { number: 5, commit: 2 }];
        let bodies = [Body::Value(Bytes::from_static(b"one")), Body::Long(5000, parts), Body::Value(Bytes::new())];
        let keys = [&b"\x01a"[..], b"\x01b", b"\x02"].map(Bytes::from_static);
        let entries = keys.into_iter().zip(bodies).map(|(key, body)| Entry { key, body }).collect();
        Node { level: 0, entries }
    }

    #[test]
    fn nodes_are_read_as_they_were_written_and_damage_is_an_error() {
        let inner = Node {
            level: 2,
            entries: vec![Entry { key: Bytes::from_static(b"\x01a"), body: Body::Child(HERE, true) }],
        };
        for node in [leaf(), inner] {
            let page = SHAPE.encode(HERE, &node);
            assert_eq!(SHAPE.decode(HERE, node.level, &page).unwrap(), node);
            let bytes: usize = node.entries.iter().map(Entry::bytes).sum();
            assert_eq!(bytes, read_u32(&page, 32) as usize);
            assert!(SHAPE.decode(HERE, node.level + 1, &page).is_err());
            assert!(SHAPE.decode(Reference { commit: 8, ..HERE }, node.level, &page).is_err());
            assert!(Shape { tree: 8, ..SHAPE }.decode(HERE, node.level, &page).is_err());
            for at in (0..HEADER_BYTES + bytes).chain([NODE_BYTES_MIN - 1]) {
                let mut flipped = page.to_vec();
                flipped[at] ^= 1;
                assert!(SHAPE.decode(HERE, node.level, &flipped.into()).is_err(), "{at}");
            }
        }
        let page = SHAPE.encode_part(HERE, b"part");
        assert_eq!(SHAPE.decode_part(HERE, &page).unwrap(), "part");
        assert!(SHAPE.decode(HERE, 0, &page).is_err() && SHAPE.decode(HERE, LEVEL_PART, &page).is_err());
    }

    /// What a checksum does not find: nodes that a defect wrote.
    #[test]
    fn nonsense_with_a_checksum_is_an_error() {
        let mut nodes = vec![Node { level: 0, entries: Vec::new() }, leaf(), leaf(), leaf()];
        nodes[1].entries.swap(0, 1);
        nodes[2].entries[0].key = Bytes::new();
        nodes[3].entries[1].body = Body::Long(200 << 10, Vec::new());
        for node in nodes {
            let page = SHAPE.encode(HERE, &node);
            assert!(SHAPE.decode(HERE, node.level, &page).is_err(), "{node:?}");
        }
        let page = SHAPE.page(HERE, 0, u16::MAX, &[0xff; 100]);
        assert!(SHAPE.decode(HERE, 0, &page).is_err());
    }
}
