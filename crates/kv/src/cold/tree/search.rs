//! Reads of the tree.

use std::{io, sync::Arc};

use bytes::{Bytes, BytesMut};
use parking_lot::Mutex;

use super::{
    cache::Cache,
    node::{Body, Entry, Node, Reference, Shape, damaged},
    part::TreePart,
    space::Space,
};

/// Called with the entries that are found, until it returns false.
type Visit<'v> = &'v mut dyn FnMut(&[u8], &[u8]) -> bool;

/// Reads nodes, from memory or the device. Blocks.
pub(super) struct Reader {
    pub media: TreePart,
    pub shape: Shape,
    pub cache: Mutex<Cache>,
}

impl Reader {
    /// The node there.
    pub fn node(&self, at: Reference, level: u8) -> io::Result<Arc<Node>> {
        if let Some(node) = self.cache.lock().get(at, level) {
            return Ok(node);
        }
        let page = self.media.read_page(at.number, self.shape.node_bytes)?;
        let node = Arc::new(self.shape.decode(at, level, &page)?);
        self.keep(at, node.clone());
        Ok(node)
    }

    /// Keeps a node in memory.
    pub fn keep(&self, at: Reference, node: Arc<Node>) {
        self.cache.lock().insert(at, node);
    }

    /// The tree has this node no more.
    pub fn forget(&self, number: u64) {
        self.cache.lock().remove(number);
    }

    fn value(&self, body: &Body) -> io::Result<Bytes> {
        match body {
            Body::Value(value) => Ok(value.clone()),
            Body::Long(bytes, parts) => {
                let mut value = BytesMut::with_capacity(*bytes as usize);
                for part in parts {
                    let page = self.media.read_page(part.number, self.shape.node_bytes)?;
                    value.extend_from_slice(&self.shape.decode_part(*part, &page)?);
                }
                match (parts.first(), value.len() == *bytes as usize) {
                    (Some(first), false) => Err(damaged(*first, "the value has another length")),
                    _ => Ok(value.freeze()),
                }
            }
            Body::Child(child, _) => Err(damaged(*child, "it is named where a value should be")),
        }
    }

    /// The value of a key (with its table) below this node.
    pub fn get(&self, (mut at, mut level): (Reference, u8), key: &[u8]) -> io::Result<Option<Bytes>> {
        loop {
            let node = self.node(at, level)?;
            if level == 0 {
                let found = node.entries.binary_search_by(|entry| entry.key[..].cmp(key));
                return found.ok().map(|place| self.value(&node.entries[place].body)).transpose();
            }
            let after = node.entries.partition_point(|entry| entry.key[..] <= *key);
            let Some(Entry { body: Body::Child(child, _), .. }) = node.entries.get(after.saturating_sub(1)) else {
                return Err(damaged(at, "a parent has a value"));
            };
            (at, level) = (*child, level - 1);
        }
    }

    /// Visits the entries from `from` on, and before `to`, below this node; false once `visit` does
    /// not want more, or there are no more.
    pub fn scan(
        &self,
        (at, level): (Reference, u8),
        from: &[u8],
        to: Option<&[u8]>,
        visit: Visit<'_>,
    ) -> io::Result<bool> {
        let node = self.node(at, level)?;
        let start = match level {
            0 => node.entries.partition_point(|entry| entry.key[..] < *from),
            _ => node.entries.partition_point(|entry| entry.key[..] <= *from).saturating_sub(1),
        };
        for entry in &node.entries[start..] {
            if to.is_some_and(|to| entry.key[..] >= *to) {
                return Ok(false);
            }
            let goes_on = match &entry.body {
                Body::Child(child, _) if level > 0 => self.scan((*child, level - 1), from, to, visit)?,
                body => visit(&entry.key, &self.value(body)?),
            };
            if !goes_on {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Marks all nodes from this one down. Leaves are read only if they have values in nodes of
    /// their own.
    pub fn mark(&self, space: &mut Space, at: Reference, level: u8, has_long: bool) -> io::Result<()> {
        if !space.take(at.number) {
            return Err(damaged(at, "it is used twice, or is not in the tree's part of the device"));
        }
        if level == 0 && !has_long {
            return Ok(());
        }
        let node = self.node(at, level)?;
        for entry in &node.entries {
            match &entry.body {
                Body::Child(child, long) if level > 0 => self.mark(space, *child, level - 1, *long)?,
                Body::Long(_, parts) => {
                    if let Some(twice) = parts.iter().find(|part| !space.take(part.number)) {
                        return Err(damaged(*twice, "it is used twice, or is not in the tree's part of the device"));
                    }
                }
                Body::Value(_) => {}
                Body::Child(..) => return Err(damaged(at, "a leaf has a child")),
            }
        }
        Ok(())
    }
}
