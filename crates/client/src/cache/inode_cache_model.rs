//! Random interleavings of a cache, the MDT and another client. The MDT is a small model: requests
//! of the cache's client arrive and are answered in any order; changes of the other client wait
//! until all locks in their way were given back.
//!
//! Replies to changes contain versions, and show the inodes that were changed, unless they are
//! repeated.
//!
//! Property: what the cache serves is what the MDT would answer at this moment. The exception is
//! an inode that this client's own request has changed, as long as its answer is under way: the
//! request may have named the inode by a name that led elsewhere before.

use std::collections::{BTreeMap, BTreeSet};

use rpc::message::{
    extension::{Change, InodeVersion},
    lock::{CacheMode, Granted},
    mdt::{
        Create, Created, DirectoryEntry, Link, Lookup, OpenId, ReadDirectory, Rename, RenameMode, SourceData, Unlink,
    },
};
use types::{Attributes, Credentials, FileKind, FsResult, NodeKind, SetAttributes, SplitMix64};

use super::*;
use crate::upper_cache::SpanNumber;

const DIRECTORIES: [InodeNumber; 2] = [InodeNumber(1), InodeNumber(2)];
const NAMES: [&[u8]; 3] = [b"a", b"b", b"c"];
const CONNECTION: ConnectionId = (ClientId(1), Generation(1));
const NOW: Timestamp = Timestamp { seconds: 1_000_000, nanoseconds: 0 };

/// What is granted of an inode that a page shows.
const SHOWN: u32 = inode_bit::LOOKUP | inode_bit::ATTRIBUTES | inode_bit::XATTRS;

/// A part of an inode that a change concerns.
type Part = (InodeNumber, u32);

#[derive(Clone, Debug)]
struct Node {
    entry: Entry,
    version: u64,
    /// The request of this client that changed it last.
    changed_by: Option<u64>,
}

#[derive(Debug, Default)]
struct Mdt {
    nodes: BTreeMap<InodeNumber, Node>,
    names: BTreeMap<(InodeNumber, Vec<u8>), InodeNumber>,
    locks: BTreeMap<LockHandle, Part>,
    /// A change of the other client waits.
    waiting: Option<MdtRequest>,
    next: u64,
}

fn parts(inode: InodeNumber, bits: u32) -> Part {
    (inode, bits)
}

impl Mdt {
    fn new() -> Self {
        let mut mdt = Self { next: 100, ..Self::default() };
        mdt.add(DIRECTORIES[0], FileKind::Directory);
        mdt
    }

    /// The cache's client makes the second directory, so that it knows that it is empty.
    fn make_directory(&mut self, cache: &mut InodeCache) {
        let (parent, name, kind) = (DIRECTORIES[0], b"directory".to_vec(), NodeKind::Directory);
        let create = Create { parent, name, kind, mode: 0, umask: 0, layout: None, open: None };
        let pending = cache.ask(&MdtRequest::Create(Credentials::root(), create), NOW, |_| false);
        self.add(DIRECTORIES[1], FileKind::Directory);
        let (handle, bits) = (LockHandle(self.number()), inode_bit::LOOKUP | inode_bit::ATTRIBUTES);
        self.locks.insert(handle, (DIRECTORIES[1], bits));
        let resource = Resource::Inode(DIRECTORIES[1], InodeBits(bits));
        let granted = [Granted { handle, resource, mode: CacheMode::Read, version: 1 }];
        let entry = self.nodes[&DIRECTORIES[1]].entry.clone();
        let reply = MdtReply::Created(Created { entry, created: true, opened: None });
        let beside = ReplyExtension { granted: granted.to_vec(), ..ReplyExtension::default() };
        cache.answer(pending, Ok(Reply { reply: &reply, beside: &beside, connection: CONNECTION, data: None }));
        assert!(cache.names.is_complete(DIRECTORIES[1]));
    }

    fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    fn add(&mut self, inode: InodeNumber, kind: FileKind) {
        let attributes = Attributes { links: 1, mode: 0o755, ..Attributes::zeroed(inode, kind) };
        let entry = Entry { accounted: NOW, ..Entry::of(attributes) };
        self.nodes.insert(inode, Node { entry, version: 1, changed_by: None });
    }

    fn find(&self, parent: InodeNumber, name: &[u8]) -> Option<InodeNumber> {
        self.names.get(&(parent, name.to_vec())).copied()
    }

    /// What a change makes visible, in parts of inodes.
    fn concerned(&self, request: &MdtRequest) -> Vec<Part> {
        let directory = |inode| parts(inode, inode_bit::DIRECTORY | inode_bit::ATTRIBUTES);
        let named = |parent, name: &[u8]| {
            let found = self.find(parent, name);
            found.map(|inode| parts(inode, inode_bit::LOOKUP | inode_bit::ATTRIBUTES))
        };
        match request {
            MdtRequest::SetAttributes(_, inode, _) => vec![parts(*inode, inode_bit::ATTRIBUTES)],
            MdtRequest::Create(_, create) => vec![directory(create.parent)],
            MdtRequest::Link(_, link) => vec![directory(link.parent), parts(link.inode, inode_bit::ATTRIBUTES)],
            MdtRequest::Unlink(_, unlink) => {
                [directory(unlink.parent)].into_iter().chain(named(unlink.parent, &unlink.name)).collect()
            }
            MdtRequest::Rename(_, rename) => [directory(rename.parent), directory(rename.new_parent)]
                .into_iter()
                .chain(named(rename.parent, &rename.name))
                .chain(named(rename.new_parent, &rename.new_name))
                .collect(),
            _ => Vec::new(),
        }
    }

    /// The locks of the cache's client in the way of the change that waits.
    fn in_the_way(&self) -> Vec<LockHandle> {
        let concerned = self.waiting.as_ref().map(|request| self.concerned(request)).unwrap_or_default();
        let conflicts = |(inode, bits): &Part| concerned.iter().any(|(other, of)| other == inode && of & bits != 0);
        self.locks.iter().filter(|(_, part)| conflicts(part)).map(|(handle, _)| *handle).collect()
    }

    fn change(&mut self, inode: InodeNumber, by: Option<u64>, links: i64) {
        let Some(node) = self.nodes.get_mut(&inode) else { return };
        node.entry.attributes.size += 1;
        node.entry.attributes.links = (i64::from(node.entry.attributes.links) + links) as u32;
        node.changed_by = by;
        node.version += 1;
        if node.entry.attributes.links == 0 {
            self.nodes.remove(&inode);
        }
    }

    fn execute(&mut self, request: &MdtRequest, by: Option<u64>) -> FsResult<MdtReply> {
        let entry = |mdt: &Self, inode| mdt.nodes.get(&inode).map(|node| node.entry.clone()).ok_or(FsError::Stale);
        match request {
            MdtRequest::Lookup(_, lookup) => {
                let inode = self.find(lookup.parent, &lookup.name).ok_or(FsError::NotFound)?;
                Ok(MdtReply::Entry(entry(self, inode)?))
            }
            MdtRequest::GetAttributes(inode) => Ok(MdtReply::Entry(entry(self, *inode)?)),
            MdtRequest::ReadDirectory(read) => {
                let rest: Vec<_> =
                    self.listing(read.inode).into_iter().filter(|found| found.cookie > read.cookie).collect();
                let count = rest.len().min(read.entries_max as usize);
                let end = count == rest.len();
                Ok(MdtReply::Directory(rest.into_iter().take(count).collect(), end))
            }
            MdtRequest::SetAttributes(_, inode, _) => {
                entry(self, *inode)?;
                self.change(*inode, by, 0);
                Ok(MdtReply::Entry(entry(self, *inode)?))
            }
            MdtRequest::Create(_, create) => {
                if self.find(create.parent, &create.name).is_some() {
                    return Err(FsError::Exists);
                }
                let inode = InodeNumber(self.number());
                self.add(inode, FileKind::Regular);
                self.names.insert((create.parent, create.name.clone()), inode);
                self.change(create.parent, by, 0);
                Ok(MdtReply::Created(Created { entry: entry(self, inode)?, created: true, opened: None }))
            }
            MdtRequest::Link(_, link) => {
                entry(self, link.inode)?;
                if self.find(link.parent, &link.name).is_some() {
                    return Err(FsError::Exists);
                }
                self.names.insert((link.parent, link.name.clone()), link.inode);
                self.change(link.parent, by, 0);
                self.change(link.inode, by, 1);
                Ok(MdtReply::Entry(entry(self, link.inode)?))
            }
            MdtRequest::Unlink(_, unlink) => {
                let inode = self.names.remove(&(unlink.parent, unlink.name.clone())).ok_or(FsError::NotFound)?;
                self.change(unlink.parent, by, 0);
                self.change(inode, by, -1);
                Ok(MdtReply::Done)
            }
            MdtRequest::Rename(_, rename) => {
                let (from, to) = ((rename.parent, rename.name.clone()), (rename.new_parent, rename.new_name.clone()));
                let inode = *self.names.get(&from).ok_or(FsError::NotFound)?;
                let replaced = self.names.get(&to).copied();
                if replaced == Some(inode) {
                    return Ok(MdtReply::Done);
                }
                self.names.remove(&from);
                self.names.insert(to, inode);
                self.change(rename.parent, by, 0);
                self.change(rename.new_parent, by, 0);
                self.change(inode, by, 0);
                if let Some(replaced) = replaced {
                    self.change(replaced, by, -1);
                }
                Ok(MdtReply::Done)
            }
            other => panic!("the model does not know {other:?}"),
        }
    }

    /// The names of a directory, in the order of their cookies.
    fn listing(&self, directory: InodeNumber) -> Vec<DirectoryEntry> {
        let found = |(name, inode): (&[u8], InodeNumber)| DirectoryEntry {
            name: name.to_vec(),
            inode,
            kind: FileKind::Regular,
            cookie: u64::from(name[0]),
            entry: self.nodes.get(&inode).map(|node| node.entry.clone()),
            locks: Vec::new(),
            version: self.nodes.get(&inode).map_or(0, |node| node.version),
        };
        let names = NAMES.iter().filter_map(|name| Some((*name, self.find(directory, name)?)));
        names.map(found).collect()
    }

    /// Grants locks on some inodes of a page.
    fn grant_page(&mut self, page: &mut [DirectoryEntry], dice: &mut SplitMix64) {
        let concerned = self.waiting.as_ref().map(|request| self.concerned(request)).unwrap_or_default();
        for found in page {
            let bits = self.grantable(found.inode, SHOWN, &concerned) & dice.next_u64() as u32;
            if bits != 0 {
                let handle = LockHandle(self.number());
                self.locks.insert(handle, (found.inode, bits));
                found.locks = vec![(handle, InodeBits(bits))];
            }
        }
    }

    /// Bits of an inode that neither the client holds nor a change concerns.
    fn grantable(&self, inode: InodeNumber, bits: u32, concerned: &[Part]) -> u32 {
        let taken = self.locks.values().chain(concerned).filter(|part| part.0 == inode);
        bits & !taken.fold(0, |all, part| all | part.1)
    }

    /// What comes with the reply to a change: versions, and inodes of whose attributes the client
    /// has the lock.
    fn beside(&self, number: u64, before: &BTreeMap<InodeNumber, u64>) -> ReplyExtension {
        let changed = |(inode, node): &(&InodeNumber, &Node)| {
            node.changed_by == Some(number) && before.get(inode) != Some(&node.version)
        };
        let version = |(inode, node): (&InodeNumber, &Node)| InodeVersion {
            inode: *inode,
            before: before.get(inode).copied().unwrap_or(0),
            after: node.version,
        };
        let versions = self.nodes.iter().filter(changed).map(version).collect();
        let held = |inode: &InodeNumber| self.grantable(*inode, inode_bit::ATTRIBUTES, &[]) == 0;
        let shown = self.nodes.iter().filter(changed).filter(|(inode, _)| held(inode));
        let changed = shown.map(|(_, node)| node.entry.clone()).collect();
        ReplyExtension { change: Some(Change { versions, ..Change::default() }), changed, ..ReplyExtension::default() }
    }

    /// Grants some of what is wanted and not held, unless the change that waits is in the way.
    fn grant(&mut self, wanted: Enqueue, shown: Option<InodeNumber>, dice: &mut SplitMix64) -> Vec<Granted> {
        let Resource::Inode(named, InodeBits(bits)) = wanted.resource else { return Vec::new() };
        let concerned = self.waiting.as_ref().map(|request| self.concerned(request)).unwrap_or_default();
        let mut granted = Vec::new();
        let of_shown = shown.map(|inode| (inode, bits & !inode_bit::DIRECTORY));
        for (inode, bits) in [(named, bits & inode_bit::DIRECTORY)].into_iter().chain(of_shown) {
            let grantable = self.grantable(inode, bits, &concerned) & dice.next_u64() as u32;
            if grantable != 0 {
                let handle = LockHandle(self.number());
                self.locks.insert(handle, (inode, grantable));
                let resource = Resource::Inode(inode, InodeBits(grantable));
                let version = self.nodes.get(&inode).map_or(0, |node| node.version);
                granted.push(Granted { handle, resource, mode: CacheMode::Read, version });
            }
        }
        granted
    }
}

/// A request of the cache's client on its way.
struct InFlight {
    number: u64,
    request: MdtRequest,
    pending: Pending,
    answer: Option<(FsResult<MdtReply>, ReplyExtension)>,
    /// Through which it was sent first.
    connection: ConnectionId,
}

/// Names, and where they lead.
type Names = Vec<(Vec<u8>, InodeNumber)>;

struct World {
    dice: SplitMix64,
    mdt: Mdt,
    cache: InodeCache,
    requests: Vec<InFlight>,
    /// Callbacks on their way, of locks that were withdrawn once.
    callbacks: Vec<LockHandle>,
    withdrawn: BTreeSet<LockHandle>,
    /// On their way to the MDT.
    cancels: Vec<LockHandle>,
    served: usize,
    listed: usize,
    /// Directories whose attributes were known after a change of this client, without a question.
    brought: usize,
    /// What directories contained in each span.
    spans: BTreeMap<(InodeNumber, u64, Epoch), Names>,
    /// How often a span was seen again.
    spanned: usize,
    connection: ConnectionId,
}

impl World {
    fn new(seed: u64) -> Self {
        let mut cache = InodeCache::default();
        cache.connect(Some(CONNECTION));
        cache.set_locks_max(10);
        let mut mdt = Mdt::new();
        mdt.make_directory(&mut cache);
        Self {
            dice: SplitMix64(seed),
            mdt,
            cache,
            requests: Vec::new(),
            callbacks: Vec::new(),
            withdrawn: BTreeSet::new(),
            cancels: Vec::new(),
            served: 0,
            listed: 0,
            brought: 0,
            spans: BTreeMap::new(),
            spanned: 0,
            connection: CONNECTION,
        }
    }

    fn below(&mut self, count: usize) -> usize {
        (self.dice.next_u64() % count as u64) as usize
    }

    fn name(&mut self) -> (InodeNumber, Vec<u8>) {
        (DIRECTORIES[self.below(2)], NAMES[self.below(3)].to_vec())
    }

    fn some_inode(&mut self) -> InodeNumber {
        if self.below(2) == 0 {
            return DIRECTORIES[self.below(2)];
        }
        let index = self.below(self.mdt.nodes.len());
        *self.mdt.nodes.keys().nth(index).expect("it is below their number")
    }

    fn change(&mut self) -> MdtRequest {
        let root = Credentials::root();
        let (parent, name) = self.name();
        match self.below(5) {
            0 => MdtRequest::SetAttributes(root, self.some_inode(), SetAttributes::default()),
            1 => {
                let (kind, mode, umask, layout, open) = (NodeKind::Regular, 0, 0, None, None);
                MdtRequest::Create(root, Create { parent, name, kind, mode, umask, layout, open })
            }
            2 => MdtRequest::Unlink(root, Unlink { parent, name, directory: false }),
            3 => {
                let files = self.mdt.names.values().copied().collect::<Vec<_>>();
                let inode = files.first().copied().unwrap_or(InodeNumber(99));
                MdtRequest::Link(root, Link { inode, parent, name })
            }
            _ => {
                let (new_parent, new_name) = self.name();
                let (mode, source_data, mdt_era) = (RenameMode::Replace, SourceData::SyncIfAsked, None);
                MdtRequest::Rename(root, Rename { parent, name, new_parent, new_name, mode, source_data, mdt_era })
            }
        }
    }

    fn question(&mut self) -> MdtRequest {
        match self.below(6) {
            0 | 1 => return MdtRequest::GetAttributes(self.some_inode()),
            2 => {
                let (inode, name) = self.name();
                let cookie = if self.below(3) == 0 { u64::from(name[0]) } else { 0 };
                let (open, entries_max) = (OpenId(1), 1 + self.below(3) as u32);
                return MdtRequest::ReadDirectory(ReadDirectory {
                    inode,
                    open,
                    cookie,
                    entries_max,
                    attributes: true,
                    unasked: None,
                });
            }
            _ => {}
        }
        let (parent, name) = self.name();
        MdtRequest::Lookup(Credentials::root(), Lookup { parent, name })
    }

    fn step(&mut self) {
        match self.below(12) {
            0..=2 if self.requests.len() < 4 => {
                let request = if self.below(6) == 0 { self.change() } else { self.question() };
                let pending = self.cache.ask(&request, NOW, |_| false);
                let number = self.mdt.number();
                let connection = self.connection;
                self.requests.push(InFlight { number, request, pending, answer: None, connection });
            }
            0..=4 => self.execute_one(),
            5..=7 => self.deliver_one(),
            8 if self.mdt.waiting.is_none() && self.below(4) == 0 => {
                let change = self.change();
                self.mdt.waiting = Some(change);
            }
            8 | 9 => self.call_back(),
            10 => {
                let count = self.cancels.len();
                if count > 0 {
                    let cancel = self.below(count);
                    self.mdt.locks.remove(&self.cancels.swap_remove(cancel));
                }
            }
            _ => {}
        }
        self.change_by_other();
        self.check();
    }

    /// Makes the change of the other client that waits, if no lock is in its way.
    fn change_by_other(&mut self) {
        if let Some(change) = self.mdt.waiting.clone().filter(|_| self.mdt.in_the_way().is_empty()) {
            self.mdt.waiting = None;
            // It may fail.
            let _ = self.mdt.execute(&change, None);
        }
    }

    fn execute_one(&mut self) {
        let waiting: Vec<usize> = (0..self.requests.len()).filter(|at| self.requests[*at].answer.is_none()).collect();
        if waiting.is_empty() {
            return;
        }
        let at = waiting[self.below(waiting.len())];
        let (number, request) = (self.requests[at].number, self.requests[at].request.clone());
        let before = self.mdt.nodes.iter().map(|(inode, node)| (*inode, node.version)).collect();
        let mut outcome = self.mdt.execute(&request, Some(number));
        let shown = match &outcome {
            Ok(MdtReply::Entry(entry)) => Some(entry.attributes.inode),
            Ok(MdtReply::Created(created)) => Some(created.entry.attributes.inode),
            Ok(_) | Err(_) => None,
        };
        let mut beside = self.mdt.beside(number, &before);
        match (self.requests[at].pending.wanted, &mut outcome) {
            (Some(_), Ok(MdtReply::Directory(page, _))) if self.below(4) == 0 => {
                self.mdt.grant_page(page, &mut self.dice);
            }
            (Some(wanted), Ok(_)) => beside.granted = self.mdt.grant(wanted, shown, &mut self.dice),
            _ => {}
        }
        if let (true, Err(FsError::NotFound), MdtRequest::Lookup(..)) = (self.below(2) == 0, &outcome, &request) {
            outcome = Ok(MdtReply::Absent);
            if let Some(wanted) = self.requests[at].pending.wanted {
                beside.granted = self.mdt.grant(wanted, None, &mut self.dice);
            }
        }
        if self.below(8) == 0 {
            // It is repeated: nothing comes with it, and the locks are of the connection before.
            if beside.granted.is_empty() {
                beside = ReplyExtension::default();
            }
        }
        self.requests[at].answer = Some((outcome, beside));
    }

    fn deliver_one(&mut self) {
        let answered: Vec<usize> = (0..self.requests.len()).filter(|at| self.requests[*at].answer.is_some()).collect();
        if answered.is_empty() {
            return;
        }
        let at = answered[self.below(answered.len())];
        let InFlight { number, pending, answer, connection, .. } = self.requests.swap_remove(at);
        let (outcome, beside) = answer.expect("it was answered");
        let reply = outcome.as_ref().map(|reply| Reply { reply, beside: &beside, connection, data: None });
        let is_change = pending.is_change();
        let answer = self.cache.answer(pending, reply);
        self.cancels.extend(answer.released.iter().map(|released| released.handle));
        if is_change && outcome.is_ok() {
            let known = |inode: &&InodeNumber| self.cache.attributes(**inode, |_| false).is_some();
            self.brought += DIRECTORIES.iter().filter(known).count();
        }
        for node in self.mdt.nodes.values_mut().filter(|node| node.changed_by == Some(number)) {
            node.changed_by = None;
        }
    }

    fn call_back(&mut self) {
        let in_the_way = self.mdt.in_the_way();
        let new: Vec<_> = in_the_way.into_iter().filter(|handle| self.withdrawn.insert(*handle)).collect();
        self.callbacks.extend(new);
        if !self.callbacks.is_empty() {
            let at = self.below(self.callbacks.len());
            let handle = self.callbacks.swap_remove(at);
            self.cache.withdraw(handle);
            self.cancels.push(handle);
        }
    }

    fn check(&mut self) {
        let root = Credentials::root();
        for (parent, name) in DIRECTORIES.iter().flat_map(|parent| NAMES.iter().map(|name| (*parent, *name))) {
            let Some(served) = self.cache.lookup(&root, (parent, name), |_| false) else { continue };
            self.served += 1;
            let inode = self.mdt.find(parent, name);
            assert_eq!(served.as_ref().ok().map(|found| found.inode), inode, "where {name:?} in {parent} leads");
            if let Ok(found) = served {
                self.check_attributes(&found);
            }
        }
        for directory in DIRECTORIES {
            let names: Names = self.mdt.listing(directory).into_iter().map(|found| (found.name, found.inode)).collect();
            if let Some(SpanNumber(span, epoch)) = self.cache.span(directory) {
                match self.spans.get(&(directory, span, epoch)) {
                    Some(before) => assert_eq!(*before, names, "names of {directory} in one span"),
                    None => drop(self.spans.insert((directory, span, epoch), names.clone())),
                }
                self.spanned += 1;
            }
            for with_attributes in [false, true] {
                let page = self.cache.page((directory, 0), 10, with_attributes, None, |_| false);
                let Some((page, end)) = page else { continue };
                self.listed += 1;
                let served: Vec<_> = page.iter().map(|(found, _)| (found.name.to_vec(), found.inode)).collect();
                assert_eq!((served, end), (names.clone(), true), "names of {directory}");
                page.iter().filter_map(|(_, shown)| *shown).for_each(|shown| self.check_attributes(&shown));
            }
        }
        let known: Vec<InodeNumber> = self.cache.inodes.keys().copied().collect();
        for inode in known {
            if let Some(found) = self.cache.attributes(inode, |_| false) {
                self.check_attributes(&found);
            }
        }
        for inode in self.cache.inodes.keys() {
            let held = |handle: &LockHandle| self.mdt.locks.get(handle).is_some_and(|(of, _)| of == inode);
            let mut handles = self.cache.inodes[inode].handles();
            assert!(handles.all(|handle| held(&handle)), "the MDT knows every lock that is held");
        }
    }

    fn check_attributes(&self, found: &Attributes) {
        match self.mdt.nodes.get(&found.inode) {
            Some(node) if node.changed_by.is_some() => {}
            Some(node) => assert_eq!(*found, node.entry.attributes),
            None => {
                // This client removed it by a request that is not answered yet.
                let removes = |sent: &InFlight| matches!(sent.request, MdtRequest::Unlink(..) | MdtRequest::Rename(..));
                assert!(self.requests.iter().any(removes), "{} does not exist", found.inode);
            }
        }
    }
}

#[test]
fn what_is_served_is_what_the_mdt_would_answer() {
    const SEEDS: u64 = 500;
    const STEPS: usize = 400;
    let (mut served, mut listed, mut brought, mut spanned) = (0, 0, 0, 0);
    for seed in 0..SEEDS {
        let mut world = World::new(seed);
        for _ in 0..STEPS {
            world.step();
        }
        served += world.served;
        listed += world.listed;
        brought += world.brought;
        spanned += world.spanned - world.spans.len();
    }
    assert!(listed > 5_000, "only {listed} directories came from the cache");
    assert!(spanned > 5_000, "only {spanned} spans were seen again");
    assert!(brought > 1_000, "only {brought} directories were known after a change");
    assert!(served > 50_000, "only {served} answers came from the cache");
}

#[path = "inode_cache_reconnects.rs"]
mod reconnects;
