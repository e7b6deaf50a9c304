//! Random interleavings of a cache, the MDT and another client. The MDT is a small model: requests
//! of the cache's client arrive and are answered in any order; changes of the other client wait
//! until all locks in their way were given back.
//!
//! Replies to changes contain versions, and show the inodes that were changed, unless they are
//! repeated.
//!
//! Directories are made, moved and removed too, and replies tell which names were changed, mostly.
//!
//! Property: what the cache serves is what the MDT would answer at this moment. The exception is
//! an inode that this client's own request has changed, as long as its answer is under way: the
//! request may have named the inode by a name that led elsewhere before.

use std::collections::{BTreeMap, BTreeSet};

use rpc::message::{
    extension::{Change, ChangedName, InodeVersion},
    lock::{CacheMode, Granted},
    mdt::{
        Create, Created, DirectoryEntry, Link, Lookup, OpenId, ReadDirectory, Rename, RenameMode, SourceData, Unlink,
    },
};
use types::{Attributes, Credentials, FileKind, FsResult, Generation, NodeKind, SetAttributes, SplitMix64};

use self::mdt::Mdt;
use super::*;
use crate::{
    cache::{leaving::Leaving, listings::Listed},
    entry_attributes::EntryAttributes,
    upper_cache::SpanNumber,
};

const ROOT: InodeNumber = InodeNumber(1);
const NAMES: [&[u8]; 3] = [b"a", b"b", b"c"];
/// The name of directories.
const DIRECTORY: &[u8] = b"d";
const CONNECTION: ConnectionId = (ClientId(1), Generation(1));
const NOW: Timestamp = Timestamp { seconds: 1_000_000, nanoseconds: 0 };

/// What is granted of an inode that a page shows.
const SHOWN: u32 = inode_bit::LOOKUP | inode_bit::ATTRIBUTES | inode_bit::XATTRS;

/// A request of the cache's client on its way.
struct InFlight {
    number: u64,
    request: MdtRequest,
    pending: Pending,
    answer: Option<(FsResult<MdtReply>, ReplyExtension)>,
    /// Through which it was sent first.
    connection: ConnectionId,
}

/// Names, their cookies, and where they lead.
type Names = Vec<(Vec<u8>, u64, InodeNumber, FileKind)>;

struct World {
    dice: SplitMix64,
    is_busy: bool,
    mdt: Mdt,
    cache: InodeCache,
    requests: Vec<InFlight>,
    /// Callbacks on their way, of locks that were withdrawn once.
    callbacks: Vec<LockHandle>,
    withdrawn: BTreeSet<LockHandle>,
    /// On their way to the MDT.
    cancels: Vec<LockHandle>,
    /// Not yet: some are taken back.
    leaving: Leaving,
    taken_back: usize,
    served: usize,
    listed: usize,
    /// Changes of a name by this client after which the listing was known.
    followed: usize,
    /// Directories whose attributes were known after a change of this client, without a question.
    brought: usize,
    /// What directories contained in each span.
    spans: BTreeMap<(InodeNumber, u64, Epoch), Names>,
    /// How often a span was seen again.
    spanned: usize,
    connection: ConnectionId,
}

impl World {
    /// A client that makes many changes, mostly alone, and gets the locks that it wants.
    fn busy(seed: u64) -> Self {
        let mut world = Self::new(seed);
        world.is_busy = true;
        world.mdt.is_generous = true;
        world.cache.set_locks_max(64);
        world
    }

    fn new(seed: u64) -> Self {
        let mut cache = InodeCache::default();
        cache.connect(Some(CONNECTION));
        cache.set_locks_max(16);
        let mdt = Mdt::new();
        Self {
            dice: SplitMix64(seed),
            is_busy: false,
            mdt,
            cache,
            requests: Vec::new(),
            callbacks: Vec::new(),
            withdrawn: BTreeSet::new(),
            cancels: Vec::new(),
            leaving: Leaving::default(),
            taken_back: 0,
            served: 0,
            listed: 0,
            followed: 0,
            brought: 0,
            spans: BTreeMap::new(),
            spanned: 0,
            connection: CONNECTION,
        }
    }

    fn below(&mut self, count: usize) -> usize {
        (self.dice.next_u64() % count as u64) as usize
    }

    /// One of the first three.
    fn directory(&mut self) -> InodeNumber {
        let directories = self.mdt.directories();
        let count = directories.len().min(3);
        directories[self.below(count)]
    }

    fn name(&mut self) -> (InodeNumber, Vec<u8>) {
        let name = if self.below(8) == 0 { DIRECTORY } else { NAMES[self.below(3)] };
        (self.directory(), name.to_vec())
    }

    fn some_inode(&mut self) -> InodeNumber {
        if self.below(2) == 0 {
            return self.directory();
        }
        let index = self.below(self.mdt.nodes.len());
        *self.mdt.nodes.keys().nth(index).expect("it is below their number")
    }

    fn change(&mut self) -> MdtRequest {
        let root = Credentials::root();
        let (parent, name) = self.name();
        match self.below(6) {
            0 => MdtRequest::SetAttributes(root, self.some_inode(), SetAttributes::default()),
            1 | 5 => {
                let kind = if name == DIRECTORY { NodeKind::Directory } else { NodeKind::Regular };
                let (mode, umask, layout, open) = (0, 0, None, None);
                MdtRequest::Create(root, Create { parent, name, kind, mode, umask, layout, open })
            }
            2 => MdtRequest::Unlink(root, Unlink { parent, name, directory: false }),
            3 => {
                let mut named = self.mdt.names.values().map(|(inode, _)| *inode);
                let inode = named.find(|inode| !self.mdt.is_directory(*inode)).unwrap_or(InodeNumber(99));
                MdtRequest::Link(root, Link { inode, parent, name })
            }
            _ => {
                let (new_parent, new_name) = self.name();
                let (mode, source_data, mdt_era) = (RenameMode::Replace, SourceData::SyncIfAsked, None);
                MdtRequest::Rename(
                    root,
                    Rename { parent, name, new_parent, new_name, mode, source_data, mdt_era, same_directory: false },
                )
            }
        }
    }

    /// Whether it fails, or concerns attributes of inodes that the client cannot name, which ends
    /// all listings.
    fn is_in_vain(&self, request: &MdtRequest) -> bool {
        let changes = Question::of(request, &self.cache.names, |_| false).changes;
        self.mdt.clone().execute(request, None).is_err() || changes.contains(&Subject::AllAttributes)
    }

    fn question(&mut self) -> MdtRequest {
        match self.below(6) {
            0 | 1 => return MdtRequest::GetAttributes(self.some_inode()),
            2 => {
                let (inode, name) = self.name();
                let known = self.mdt.names.get(&(inode, name)).map_or(2, |(_, cookie)| *cookie);
                let cookie = if self.below(3) == 0 { known } else { 0 };
                let (open, entries_max) = (OpenId(1), 1 + self.below(6) as u32);
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
                let changes_of = if self.is_busy { 2 } else { 6 };
                let mut request = if self.below(changes_of) == 0 { self.change() } else { self.question() };
                while self.is_busy && self.is_in_vain(&request) {
                    request = self.change();
                }
                let pending = self.cache.ask(&request, NOW, |_| false);
                let number = self.mdt.number();
                let connection = self.connection;
                self.requests.push(InFlight { number, request, pending, answer: None, connection });
            }
            0..=4 => self.execute_one(),
            5..=7 => self.deliver_one(),
            8 if self.mdt.waiting.is_none() && self.below(if self.is_busy { 16 } else { 4 }) == 0 => {
                let change = self.change();
                self.mdt.waiting = Some(change);
            }
            8 | 9 => self.call_back(),
            10 => {
                if self.below(16) == 0 {
                    let left = self.leaving.take_untold();
                    self.cancels.extend(left.iter().map(|parting| parting.released.handle));
                    left.iter().for_each(|parting| assert!(self.leaving.left(parting), "none was taken back"));
                }
                let count = self.cancels.len();
                if count > 0 {
                    let cancel = self.below(count);
                    self.mdt.locks.remove(&self.cancels.swap_remove(cancel));
                }
            }
            _ if !self.is_busy && self.below(16) == 0 => {
                let released = self.cache.give_up_all();
                self.give_back(released);
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
        if self.below(16) == 0 {
            // Of an MDT that does not tell, or too many.
            beside.names.clear();
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
        let taken_back = outcome.as_ref().map_or(Vec::new(), |reply| self.take_back(reply, connection));
        self.taken_back += taken_back.len();
        let reply = outcome.as_ref().map(|reply| Reply {
            reply,
            beside: &beside,
            connection,
            data: None,
            taken_back: &taken_back,
        });
        let is_change = pending.is_change();
        let answer = self.cache.answer(pending, reply);
        self.give_back(answer.released);
        for named in beside.names.iter().filter(|_| is_change && outcome.is_ok()) {
            let kept = self.cache.listings.page(named.directory, 0, 0, self.cache.epoch);
            self.followed += usize::from(kept.is_some());
        }
        if is_change && outcome.is_ok() {
            let known = |inode: &&InodeNumber| self.cache.attributes(**inode, |_| false).is_some();
            self.brought += self.mdt.directories().iter().filter(known).count();
        }
        for node in self.mdt.nodes.values_mut().filter(|node| node.changed_by == Some(number)) {
            node.changed_by = None;
        }
    }

    fn give_back(&mut self, released: Vec<Released>) {
        for released in released {
            if released.parts.is_empty() {
                self.cancels.push(released.handle);
            } else {
                self.leaving.begin(released, self.cache.connection());
            }
        }
    }

    /// Of locks that were given up and that no callback has asked for.
    fn take_back(&mut self, reply: &MdtReply, connection: ConnectionId) -> Vec<Released> {
        match self.cache.connection() == Some(connection) {
            true => {
                named_by(reply).flat_map(|inode| self.leaving.take_back(inode, connection, &BTreeSet::new())).collect()
            }
            false => Vec::new(),
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
            self.leaving.end(handle);
            self.cancels.push(handle);
        }
    }

    fn check(&mut self) {
        let root = Credentials::root();
        let directories = self.mdt.directories();
        let names = || NAMES.iter().chain([&DIRECTORY]);
        for (parent, name) in directories.iter().flat_map(|parent| names().map(|name| (*parent, *name))) {
            let Some(served) = self.cache.lookup(&root, (parent, name), |_| false) else { continue };
            self.served += 1;
            let inode = self.mdt.find(parent, name);
            assert_eq!(served.as_ref().ok().map(|found| found.inode), inode, "where {name:?} in {parent} leads");
            if let Ok(found) = served {
                self.check_attributes(&found);
            }
        }
        for directory in directories {
            let found = self.mdt.listing(directory).into_iter();
            let names: Names = found.map(|found| (found.name, found.cookie, found.inode, found.kind)).collect();
            if let Some(SpanNumber(span, epoch)) = self.cache.span(directory) {
                match self.spans.get(&(directory, span, epoch)) {
                    Some(before) => assert_eq!(*before, names, "names of {directory} in one span"),
                    None => drop(self.spans.insert((directory, span, epoch), names.clone())),
                }
                self.spanned += 1;
            }
            for wanted in [EntryAttributes::None, EntryAttributes::OfDirectories, EntryAttributes::OfAll] {
                let page = self.cache.page((directory, 0), 10, wanted, None, |_| false);
                let Some((page, end)) = page else { continue };
                let is_complete = |(found, shown): &(Listed, _)| {
                    !wanted.includes(found.kind) || matches!(&*found.name, b"." | b"..") || Option::is_some(shown)
                };
                assert!(page.iter().all(is_complete), "attributes are missing in {directory}");
                self.listed += 1;
                let served = |(found, _): &(Listed, _)| (found.name.to_vec(), found.cookie, found.inode, found.kind);
                let served: Names = page.iter().map(served).collect();
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
fn listings_follow_the_changes_of_a_busy_client() {
    let (mut listed, mut followed) = (0, 0);
    for seed in 0..500 {
        let mut world = World::busy(seed);
        for _ in 0..400 {
            world.step();
        }
        listed += world.listed;
        followed += world.followed;
    }
    assert!(followed > 1_000, "only {followed} listings were known after a change of a name");
    assert!(listed > 10_000, "only {listed} directories came from the cache");
}

#[test]
fn what_is_served_is_what_the_mdt_would_answer() {
    const SEEDS: u64 = 1000;
    const STEPS: usize = 400;
    let (mut served, mut listed, mut brought, mut spanned, mut taken_back) = (0, 0, 0, 0, 0);
    for seed in 0..SEEDS {
        let mut world = World::new(seed);
        for _ in 0..STEPS {
            world.step();
        }
        served += world.served;
        listed += world.listed;
        brought += world.brought;
        spanned += world.spanned - world.spans.len();
        taken_back += world.taken_back;
    }
    assert!(taken_back > 1_000, "only {taken_back} locks were taken back");
    assert!(listed > 5_000, "only {listed} directories came from the cache");
    assert!(spanned > 5_000, "only {spanned} spans were seen again");
    assert!(brought > 1_000, "only {brought} directories were known after a change");
    assert!(served > 50_000, "only {served} answers came from the cache");
}

#[path = "inode_cache_model_mdt.rs"]
mod mdt;

#[path = "inode_cache_reconnects.rs"]
mod reconnects;
