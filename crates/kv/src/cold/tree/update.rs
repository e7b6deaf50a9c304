//! Changes of the tree: new nodes instead of those that change, up to the top.
//!
//! Nodes that become small are joined with a neighbour below the same parent. A node that becomes
//! too large is split evenly, or, if all that is new comes after its entries, filled: tables whose
//! keys grow fill their nodes. Nothing of this is written here, and nothing that the tree has is
//! changed: an update that is given up leaves no trace.

use std::{collections::BTreeMap, io, sync::Arc};

use bytes::Bytes;

use super::{
    node::{Body, Entry, LEVEL_MAX, Node, Reference, Shape, damaged},
    search::Reader,
    space::Space,
};

/// A node with less than this part of its room is joined with a neighbour, if both fit in one.
const SMALL_PARTS: usize = 3;

/// A new value of a key, or its end.
#[derive(Clone, Debug)]
pub(super) struct Change {
    /// Table and key.
    pub key: Bytes,
    pub value: Option<Bytes>,
}

/// A node that is to be written.
#[derive(Debug)]
enum New {
    Node(Reference, Arc<Node>),
    Part(Reference, Bytes),
}

/// See the module documentation. Gives back the nodes that it took, unless it is finished.
pub(super) struct Update<'a> {
    reader: &'a Reader,
    space: &'a mut Space,
    /// The commit for which nodes are written.
    commit: u64,
    new: BTreeMap<u64, New>,
    /// Nodes of the tree as it is, that the changed one does not have.
    replaced: Vec<u64>,
}

/// Entries that follow each other and are not in a node yet.
#[derive(Default)]
struct Gathered {
    entries: Vec<Entry>,
    bytes: usize,
}

impl Gathered {
    fn extend(&mut self, entries: impl IntoIterator<Item = Entry>) {
        for entry in entries {
            self.bytes += entry.bytes();
            self.entries.push(entry);
        }
    }
}

fn no_space() -> io::Error {
    io::Error::new(io::ErrorKind::StorageFull, "the part of the device that is kept for the tables is full")
}

impl<'a> Update<'a> {
    pub fn new(reader: &'a Reader, space: &'a mut Space, commit: u64) -> Update<'a> {
        Update { reader, space, commit, new: BTreeMap::new(), replaced: Vec::new() }
    }

    fn shape(&self) -> Shape {
        self.reader.shape
    }

    fn is_small(&self, bytes: usize) -> bool {
        bytes < self.shape().room() / SMALL_PARTS
    }

    fn node(&self, at: Reference, level: u8) -> io::Result<Arc<Node>> {
        match self.new.get(&at.number) {
            Some(New::Node(_, node)) if node.level == level => Ok(node.clone()),
            Some(_) => Err(damaged(at, "it is of another level")),
            None => self.reader.node(at, level),
        }
    }

    fn allocate(&mut self) -> io::Result<Reference> {
        let number = self.space.allocate().ok_or_else(no_space)?;
        Ok(Reference { number, commit: self.commit })
    }

    /// The changed tree does not have this node.
    fn drop_node(&mut self, number: u64) {
        if self.new.remove(&number).is_some() {
            self.space.give_back(number);
        } else {
            self.replaced.push(number);
        }
    }

    /// Changes the tree with this top; its new top. The keys of `changes` ascend.
    pub fn apply(&mut self, top: Option<(Reference, u8)>, changes: &[Change]) -> io::Result<Option<(Reference, u8)>> {
        let (mut entries, mut level) = match top {
            Some((top, level)) => (self.rewritten(top, level, changes)?, level),
            None => (self.merged(Vec::new(), changes)?, 0),
        };
        loop {
            if let ([Entry { body: Body::Child(child, _), .. }], true) = (&entries[..], level > 0) {
                return self.lowered(*child, level - 1).map(Some);
            }
            let mut above = Vec::new();
            let mut gathered = Gathered::default();
            gathered.extend(entries);
            self.emit(level, &mut gathered, false, &mut above)?;
            match &above[..] {
                [] => return Ok(None),
                [Entry { body: Body::Child(top, _), .. }] => return Ok(Some((*top, level))),
                _ => {}
            }
            if level == LEVEL_MAX {
                // Each level has half as many nodes as the one below it, or less.
                return Err(io::Error::new(io::ErrorKind::InvalidData, "the tables' tree is damaged: it is too high"));
            }
            (entries, level) = (above, level + 1);
        }
    }

    /// The top of a tree whose top is this node: parents of one child are left out.
    fn lowered(&mut self, mut top: Reference, mut level: u8) -> io::Result<(Reference, u8)> {
        while level > 0 {
            let node = self.node(top, level)?;
            let [Entry { body: Body::Child(child, _), .. }] = &node.entries[..] else { break };
            self.drop_node(top.number);
            (top, level) = (*child, level - 1);
        }
        Ok((top, level))
    }

    /// The entries of a node after changes; they are in no node yet.
    fn rewritten(&mut self, at: Reference, level: u8, changes: &[Change]) -> io::Result<Vec<Entry>> {
        let node = self.node(at, level)?;
        self.drop_node(at.number);
        if level == 0 {
            return self.merged(node.entries.clone(), changes);
        }
        let (mut result, mut gathered, mut rest) = (Vec::new(), Gathered::default(), changes);
        for (place, entry) in node.entries.iter().enumerate() {
            let Body::Child(child, _) = entry.body else { return Err(damaged(at, "a parent has a value")) };
            let count = match node.entries.get(place + 1) {
                Some(next) => rest.partition_point(|change| change.key < next.key),
                None => rest.len(),
            };
            let (own, later) = rest.split_at(count);
            rest = later;
            let Some(first) = own.first() else {
                if !self.join(child, level - 1, &mut gathered, false)? {
                    self.emit(level - 1, &mut gathered, false, &mut result)?;
                    result.push(entry.clone());
                }
                continue;
            };
            let before = self.node(child, level - 1)?;
            let appends = before.entries.last().is_some_and(|last| last.key < first.key);
            gathered.extend(self.rewritten(child, level - 1, own)?);
            if !self.is_small(gathered.bytes) {
                self.emit(level - 1, &mut gathered, appends, &mut result)?;
            }
        }
        if let Some(Entry { body: Body::Child(last, _), .. }) = result.last()
            && self.join(*last, level - 1, &mut gathered, true)?
        {
            result.pop();
        }
        self.emit(level - 1, &mut gathered, false, &mut result)?;
        Ok(result)
    }

    /// Joins what was gathered with a node that comes after it, or before it, if it is small and
    /// both fit in one.
    fn join(&mut self, at: Reference, level: u8, gathered: &mut Gathered, is_before: bool) -> io::Result<bool> {
        if gathered.entries.is_empty() || !self.is_small(gathered.bytes) {
            return Ok(false);
        }
        let node = self.node(at, level)?;
        let bytes: usize = node.entries.iter().map(Entry::bytes).sum();
        if gathered.bytes + bytes > self.shape().room() {
            return Ok(false);
        }
        self.drop_node(at.number);
        let small = std::mem::take(gathered);
        match is_before {
            true => {
                gathered.extend(node.entries.iter().cloned());
                gathered.extend(small.entries);
            }
            false => {
                gathered.extend(small.entries);
                gathered.extend(node.entries.iter().cloned());
            }
        }
        Ok(true)
    }

    /// Puts what was gathered in nodes. `fill`: as few as possible.
    fn emit(&mut self, level: u8, gathered: &mut Gathered, fill: bool, result: &mut Vec<Entry>) -> io::Result<()> {
        let Gathered { entries, bytes: total } = std::mem::take(gathered);
        if entries.is_empty() {
            return Ok(());
        }
        let room = self.shape().room();
        let enough = if fill { room } else { total.div_ceil(total.div_ceil(room)) };
        let (mut part, mut bytes) = (Vec::new(), 0);
        for entry in entries {
            let more = entry.bytes();
            if !part.is_empty() && (bytes >= enough || bytes + more > room) {
                result.push(self.new_node(level, std::mem::take(&mut part))?);
                bytes = 0;
            }
            bytes += more;
            part.push(entry);
        }
        result.push(self.new_node(level, part)?);
        Ok(())
    }

    /// A new node, as its parent has it.
    fn new_node(&mut self, level: u8, entries: Vec<Entry>) -> io::Result<Entry> {
        let key = entries.first().expect("a node has entries").key.clone();
        let has_long = entries.iter().any(Entry::is_long);
        let at = self.allocate()?;
        self.new.insert(at.number, New::Node(at, Arc::new(Node { level, entries })));
        Ok(Entry { key, body: Body::Child(at, has_long) })
    }

    /// The entries of a leaf after changes.
    fn merged(&mut self, entries: Vec<Entry>, changes: &[Change]) -> io::Result<Vec<Entry>> {
        let mut merged = Vec::with_capacity(entries.len() + changes.len());
        let mut old = entries.into_iter().peekable();
        for change in changes {
            while let Some(entry) = old.next_if(|entry| entry.key < change.key) {
                merged.push(entry);
            }
            if let Some(replaced) = old.next_if(|entry| entry.key == change.key) {
                self.drop_parts(&replaced);
            }
            if let Some(value) = &change.value {
                let body = self.body(value)?;
                merged.push(Entry { key: change.key.clone(), body });
            }
        }
        merged.extend(old);
        Ok(merged)
    }

    fn drop_parts(&mut self, entry: &Entry) {
        if let Body::Long(_, parts) = &entry.body {
            parts.iter().for_each(|part| self.drop_node(part.number));
        }
    }

    fn body(&mut self, value: &Bytes) -> io::Result<Body> {
        if value.len() <= self.shape().value_bytes_max() {
            return Ok(Body::Value(value.clone()));
        }
        let room = self.shape().room();
        let mut parts = Vec::new();
        for start in (0..value.len()).step_by(room) {
            let at = self.allocate()?;
            self.new.insert(at.number, New::Part(at, value.slice(start..value.len().min(start + room))));
            parts.push(at);
        }
        Ok(Body::Long(value.len() as u32, parts))
    }

    /// The pages to be written, in the order of their numbers.
    pub fn pages(&self) -> Vec<(u64, Bytes)> {
        let page = |new: &New| match new {
            New::Node(at, node) => self.shape().encode(*at, node),
            New::Part(at, part) => self.shape().encode_part(*at, part),
        };
        self.new.iter().map(|(number, new)| (*number, page(new))).collect()
    }

    /// The changed tree is the one that is read from now on.
    pub fn finish(mut self) {
        for number in std::mem::take(&mut self.replaced) {
            self.reader.forget(number);
            self.space.retire(number);
        }
        for new in std::mem::take(&mut self.new).into_values() {
            if let New::Node(at, node) = new {
                self.reader.keep(at, node);
            }
        }
    }
}

impl Drop for Update<'_> {
    fn drop(&mut self) {
        self.new.keys().for_each(|number| self.space.give_back(*number));
    }
}
