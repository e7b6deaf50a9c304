//! What the kernel was given of inodes and names: pure.
//!
//! The kernel counts its lookups of each inode, and says when it forgets them: an inode is in the
//! table as long as the kernel knows it. With each inode are its names as the kernel knows them,
//! whether they are valid or not: a rename in this mount moves a name in the kernel's cache
//! together with its validity.
//!
//! A reply that may make something valid is announced ([`Table::prepare`]) before its contents are
//! decided, and completed ([`Table::complete`]) afterwards. Between the two it counts as if it had
//! made everything valid. Nothing that a change of this mount concerns ([`Table::begin_change`]) is
//! made valid.
//!
//! Access lists stay valid in the kernel indefinitely, whatever the validity of the attributes: an
//! inode whose list was asked for is marked ([`Table::mark_list`]) until the kernel has dropped the
//! list.
//!
//! Memory: about 250 bytes for each inode that the kernel knows, which takes the kernel four times
//! as much.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use parking_lot::Mutex;

use super::listing::Listing;
use crate::protocol::ROOT_NODE;
use listings::Listings;

/// Parts of the table with a lock each.
const SHARDS: usize = 16;
/// Names of an inode from which on those that are not valid are dropped before another is added.
const NAMES_KEPT: usize = 4;
/// Names of an inode at most: no further ones are made valid.
const NAMES_MAX: usize = 64;
/// What is valid for some time may be valid for longer, since the kernel begins to count when it
/// processes the reply. It counts as valid for so many times as long.
const CAUTION: u32 = 2;

/// A name in a directory.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Name {
    pub parent: u64,
    pub bytes: Box<[u8]>,
}

impl Name {
    pub fn new(parent: u64, bytes: &[u8]) -> Self {
        Self { parent, bytes: bytes.into() }
    }
}

/// A name as the kernel knows it.
#[derive(Debug)]
struct KnownName {
    name: Arc<Name>,
    /// Replies that may make it valid.
    preparing: u32,
    until: Option<Instant>,
}

/// An inode as the kernel knows it.
#[derive(Debug, Default)]
struct Node {
    lookups: u64,
    /// Replies that may make its attributes valid.
    preparing: u32,
    /// Changes by this mount that are not answered yet.
    changing: u32,
    until: Option<Instant>,
    /// The kernel may have access lists.
    list: Option<ListMark>,
    names: Vec<KnownName>,
    /// Of a directory that was opened.
    listing: Option<Box<Listing>>,
}

/// Distinguishes requests for access lists of an inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ListMark(u64);

impl Node {
    fn is_needed(&self) -> bool {
        self.lookups > 0 || self.preparing > 0 || self.changing > 0
    }

    fn may_have_attributes(&self, now: Instant) -> bool {
        self.preparing > 0 || self.list.is_some() || is_after(self.until, now)
    }

    fn name(&mut self, name: &Name) -> Option<&mut KnownName> {
        self.names.iter_mut().find(|known| *known.name == *name)
    }

    /// Notes a reply that may make the attributes valid.
    fn prepare(&mut self, counts: bool) {
        self.lookups += u64::from(counts);
        self.preparing += 1;
    }

    /// Notes a name, with a reply that may make it valid. As [`Node::add_name`].
    fn prepare_name(&mut self, name: &Arc<Name>, now: Instant) -> Vec<Arc<Name>> {
        if let Some(known) = self.name(name) {
            known.preparing += 1;
            return Vec::new();
        }
        self.add_name(KnownName { name: name.clone(), preparing: 1, until: None }, now)
    }

    /// Notes a name, unless it is not valid and there are too many. Returns those that are not
    /// noted any more.
    fn add_name(&mut self, name: KnownName, now: Instant) -> Vec<Arc<Name>> {
        let mut dropped = Vec::new();
        if self.names.len() >= NAMES_KEPT {
            let is_over = |known: &mut KnownName| known.preparing == 0 && !is_after(known.until, now);
            dropped.extend(self.names.extract_if(.., is_over).map(|known| known.name));
        }
        if self.names.len() < NAMES_MAX || is_after(name.until, now) {
            self.names.push(name);
        } else {
            dropped.push(name.name);
        }
        dropped
    }
}

/// Names that are not recorded with the inode any more do not lead to it any more.
fn remove_names(names: &mut HashMap<Arc<Name>, u64>, node: u64, dropped: &[Arc<Name>]) {
    for name in dropped {
        if names.get(name) == Some(&node) {
            names.remove(name);
        }
    }
}

fn is_after(until: Option<Instant>, now: Instant) -> bool {
    until.is_some_and(|until| until > now)
}

/// What a reply may make valid, and for how long.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Validity {
    pub attributes: Option<Duration>,
    pub name: Option<Duration>,
}

/// What may be valid of an inode in the kernel.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Valid {
    pub attributes: bool,
    pub names: Vec<Arc<Name>>,
}

/// When names are not valid any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NamesEnd {
    /// To be asked again: a reply is being prepared that may make one valid.
    Soon,
    At(Instant),
}

/// See the module documentation.
#[derive(Debug)]
pub struct Table {
    nodes: [Mutex<HashMap<u64, Node>>; SHARDS],
    /// The inode to which a name leads in the kernel's cache.
    names: Mutex<HashMap<Arc<Name>, u64>>,
    lists_marked: AtomicU64,
    listings: Listings,
}

impl Default for Table {
    fn default() -> Self {
        let table = Self {
            nodes: Default::default(),
            names: Mutex::default(),
            lists_marked: AtomicU64::new(0),
            listings: Listings::default(),
        };
        // The kernel never looks it up, and never forgets it.
        table.shard(ROOT_NODE).lock().insert(ROOT_NODE, Node { lookups: 1, ..Node::default() });
        table
    }
}

impl Table {
    fn shard(&self, node: u64) -> &Mutex<HashMap<u64, Node>> {
        &self.nodes[(node ^ node >> 32) as usize % SHARDS]
    }

    /// A reply about this inode is prepared: it may make the attributes valid, and the name.
    /// `counts`: the kernel counts it as a lookup.
    pub fn prepare(&self, node: u64, counts: bool, name: Option<&Arc<Name>>, now: Instant) {
        match name {
            Some(name) => self.prepare_name(&mut self.names.lock(), (node, name), counts, now),
            None => self.shard(node).lock().entry(node).or_default().prepare(counts),
        }
    }

    /// The same of names in a page, each of which counts.
    pub fn prepare_page<'n>(&self, page: impl Iterator<Item = (u64, &'n Arc<Name>)>, now: Instant) {
        let mut names = self.names.lock();
        page.for_each(|named| self.prepare_name(&mut names, named, true, now));
    }

    /// The lock on names is held as long as the inode's: what leads to it is there if and only if
    /// it is.
    fn prepare_name(
        &self,
        names: &mut HashMap<Arc<Name>, u64>,
        (node, name): (u64, &Arc<Name>),
        counts: bool,
        now: Instant,
    ) {
        names.insert(name.clone(), node);
        let mut shard = self.shard(node).lock();
        let known = shard.entry(node).or_default();
        known.prepare(counts);
        remove_names(names, node, &known.prepare_name(name, now));
    }

    /// It is decided what the reply may make valid; returns what it does.
    pub fn complete(&self, node: u64, name: Option<&Arc<Name>>, may: Validity, now: Instant) -> Validity {
        let mut shard = self.shard(node).lock();
        let known = shard.get_mut(&node).expect("a reply about it is being prepared");
        let until = |validity: Option<Duration>, before: Option<Instant>| {
            validity.map(|validity| now + CAUTION * validity).max(before)
        };
        let attributes = may.attributes.filter(|_| known.changing == 0);
        known.until = until(attributes, known.until);
        known.preparing -= 1;
        let mut named = None;
        if let Some(name) = name.and_then(|name| known.name(name)) {
            named = may.name;
            name.until = until(named, name.until);
            name.preparing -= 1;
        }
        if !known.is_needed() {
            let known = shard.remove(&node);
            drop(shard);
            self.unname(node, known);
        }
        Validity { attributes, name: named }
    }

    /// The kernel forgets lookups.
    pub fn forget(&self, node: u64, lookups: u64) {
        let mut shard = self.shard(node).lock();
        let Some(known) = shard.get_mut(&node) else {
            return tracing::error!(node, lookups, "the kernel forgets an inode that it was never given");
        };
        if known.lookups < lookups {
            tracing::error!(node, lookups, known.lookups, "the kernel forgets more lookups than it was given");
        }
        known.lookups = known.lookups.saturating_sub(lookups);
        if !known.is_needed() {
            let known = shard.remove(&node);
            drop(shard);
            self.unname(node, known);
        }
    }

    /// Removes the names of an inode that the kernel has forgotten, but for those that it was given
    /// again meanwhile.
    fn unname(&self, node: u64, known: Option<Node>) {
        let Some(known) = known.filter(|known| !known.names.is_empty()) else { return };
        let mut names = self.names.lock();
        let mut shard = self.shard(node).lock();
        for KnownName { name, .. } in known.names {
            let is_back = shard.get_mut(&node).is_some_and(|known| known.name(&name).is_some());
            if !is_back && names.get(&name) == Some(&node) {
                names.remove(&name);
            }
        }
    }

    /// Whether the kernel knows an inode, or will when it has processed its replies.
    pub fn knows(&self, node: u64) -> bool {
        self.shard(node).lock().get(&node).is_some_and(|known| known.lookups > 0)
    }

    /// The inode to which a name leads in the kernel's cache.
    pub fn named(&self, parent: u64, name: &[u8]) -> Option<u64> {
        self.names.lock().get(&Name::new(parent, name)).copied()
    }

    /// The last name by which the kernel came to know an inode.
    pub fn name_of(&self, node: u64) -> Option<Arc<Name>> {
        self.shard(node).lock().get(&node)?.names.last().map(|known| known.name.clone())
    }

    /// The directories of the names by which the kernel knows an inode.
    pub fn parents(&self, node: u64) -> Vec<u64> {
        let shard = self.shard(node).lock();
        shard.get(&node).map_or(Vec::new(), |known| known.names.iter().map(|known| known.name.parent).collect())
    }

    /// What may be valid of an inode.
    pub fn valid(&self, node: u64, now: Instant) -> Valid {
        let shard = self.shard(node).lock();
        let Some(known) = shard.get(&node) else { return Valid::default() };
        let names = known.names.iter().filter(|name| name.preparing > 0 || is_after(name.until, now));
        Valid { attributes: known.may_have_attributes(now), names: names.map(|known| known.name.clone()).collect() }
    }

    /// The inodes with valid attributes.
    pub fn all_with_attributes(&self, now: Instant) -> Vec<u64> {
        let mut all = Vec::new();
        for shard in &self.nodes {
            let shard = shard.lock();
            let valid = shard.iter().filter(|(_, known)| known.may_have_attributes(now));
            all.extend(valid.map(|(node, _)| *node));
        }
        all
    }

    /// All inodes that the kernel knows.
    pub fn all(&self) -> Vec<u64> {
        self.nodes.iter().flat_map(|shard| shard.lock().keys().copied().collect::<Vec<_>>()).collect()
    }

    /// An access list of an inode is asked for, and the kernel may keep it. `false`: it is not
    /// known.
    pub fn mark_list(&self, node: u64) -> bool {
        let mark = ListMark(self.lists_marked.fetch_add(1, Ordering::Relaxed));
        let mut shard = self.shard(node).lock();
        let known = shard.get_mut(&node);
        known.map(|known| known.list = Some(mark)).is_some()
    }

    /// Whether a list that was asked for may be kept: the inode is not under a change.
    pub fn may_keep_list(&self, node: u64) -> bool {
        self.shard(node).lock().get(&node).is_some_and(|known| known.changing == 0)
    }

    /// The last request for an access list that the kernel may have kept.
    pub fn list_mark(&self, node: u64) -> Option<ListMark> {
        self.shard(node).lock().get(&node)?.list
    }

    /// The kernel has dropped the access lists of an inode, and those on their way, that were asked
    /// for until this mark.
    pub fn list_dropped(&self, node: u64, until: ListMark) {
        if let Some(known) = self.shard(node).lock().get_mut(&node)
            && known.list == Some(until)
        {
            known.list = None;
        }
    }

    /// When the names that may be valid now are not any more, if there are any.
    pub fn names_end(&self, node: u64, now: Instant) -> Option<NamesEnd> {
        let shard = self.shard(node).lock();
        let names = &shard.get(&node)?.names;
        if names.iter().any(|name| name.preparing > 0) {
            return Some(NamesEnd::Soon);
        }
        names.iter().filter_map(|name| name.until).filter(|until| *until > now).max().map(NamesEnd::At)
    }

    /// A change of this inode by this mount begins: its attributes are not made valid before it
    /// ends. Whether they may be valid now.
    pub fn begin_change(&self, node: u64, now: Instant) -> bool {
        let mut shard = self.shard(node).lock();
        let known = shard.entry(node).or_default();
        known.changing += 1;
        known.may_have_attributes(now)
    }

    /// The kernel has dropped the attributes of an inode under a change.
    pub fn dropped(&self, node: u64) {
        if let Some(known) = self.shard(node).lock().get_mut(&node)
            && known.changing > 0
            && known.preparing == 0
        {
            known.until = None;
        }
    }

    /// A change ends.
    pub fn end_change(&self, node: u64) {
        let mut shard = self.shard(node).lock();
        let Some(known) = shard.get_mut(&node) else { return };
        known.changing -= 1;
        if !known.is_needed() {
            let known = shard.remove(&node);
            drop(shard);
            self.unname(node, known);
        }
    }

    /// This mount has renamed something: the kernel moves what it has cached of the name.
    /// `exchanged`: of both.
    pub fn renamed(&self, from: &Name, to: &Name, exchanged: bool, now: Instant) {
        let mut names = self.names.lock();
        let (source, target) = (names.remove(from), names.remove(to));
        let (from, to) = (Arc::new(from.clone()), Arc::new(to.clone()));
        let mut moves = vec![(source, &from, &to)];
        if exchanged {
            moves.push((target, &to, &from));
        }
        for (node, before, after) in moves {
            let Some(node) = node else { continue };
            let mut shard = self.shard(node).lock();
            let Some(known) = shard.get_mut(&node) else { continue };
            names.insert(after.clone(), node);
            let until = known.name(before).and_then(|name| name.until);
            match known.name(after) {
                Some(name) => name.until = name.until.max(until),
                None => {
                    known.names.retain(|known| known.preparing > 0 || *known.name != **before);
                    let dropped = known.add_name(KnownName { name: after.clone(), preparing: 0, until }, now);
                    remove_names(&mut names, node, &dropped);
                }
            }
        }
    }

    /// Inodes and names that the kernel knows.
    pub fn counts(&self) -> (usize, usize) {
        (self.nodes.iter().map(|shard| shard.lock().len()).sum(), self.names.lock().len())
    }
}

mod listings;

#[cfg(test)]
#[path = "table_tests.rs"]
mod tests;
