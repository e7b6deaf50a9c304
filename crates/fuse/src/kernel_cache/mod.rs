//! What the kernel caches of names and attributes, and how it is withdrawn.
//!
//! The kernel serves what it was given as valid without asking. It is given only what the client
//! itself may serve, under a lock of the MDT ([`FileSystem::keepable`]). When the client may not
//! serve it any more, the kernel's copy is invalidated before the lock is given back
//! ([`UpperCache`]). Absent names are not given to the kernel: the client answers them. Listings
//! are: [`listing`].
//!
//! Order of a reply: announce it in the [`table`], ask what may be kept, complete it in the table,
//! answer. A withdrawal that comes after the announcement finds it; one that came before has
//! already ended what may be kept.
//!
//! | reply | attributes | name |
//! |---|---|---|
//! | LOOKUP, READDIRPLUS | valid | valid |
//! | GETATTR, STATX | valid | |
//! | CREATE, MKNOD, MKDIR, SYMLINK, LINK | never: the kernel would apply them after a withdrawal | valid: they hold the lock of the directory |
//! | SETATTR | never, for the same reason | |
//!
//! A name is valid only together with the owner that the reply shows: the kernel checks chmod(2)
//! and sticky directories by the owner that it knows, however old.
//!
//! Access lists: the kernel keeps what GETXATTR returns, whatever the validity of the attributes,
//! until the attributes are withdrawn. It is announced in the table before it is asked for; if it
//! may not be kept, the kernel is told so before it is answered ([`KernelCache::gives_list`]).
//!
//! Changes of this mount ([`Change`]): before one is sent, the kernel drops the attributes of what
//! it changes, and until it is about to be answered no reply makes them valid. So no program on
//! this host sees attributes from before a change that others may already have seen. Names that a
//! change removes stay in the kernel until it is answered, because the kernel holds the directory's
//! lock. A change of names of which the kernel does not know drops its listing.
//!
//! Why no withdrawal waits for a lock of the kernel: [`names`]; the cases are in decision note
//! 0031.
//!
//! Life cycle: nothing is given before the session begins, or if the kernel is older than Linux
//! 6.16 or does not check permissions itself. When the adapter is dropped, the threads end.

mod kept_listings;
mod listing;
mod names;
mod statistics;
mod table;
mod teller;
mod waiting;
mod withdrawal;

use std::{
    sync::{Arc, OnceLock, mpsc},
    time::Instant,
};

use client::{FileSystem, Keepable, UpperCache};
use parking_lot::Mutex;
use rpc::message::lock::{InodeBits, inode_bit};
use rt::BoxFuture;
use types::{Attributes, InodeNumber};

use crate::session::{Notifications, Notified};
pub use listing::{Ending, Opening};
use names::{Invalidation, Names, WITHDRAWAL_TIMEOUT};
pub use statistics::{Count, Statistics};
pub use table::Validity;
use table::{Name, Table};
use teller::{Job, Teller, drop_attributes};
pub use waiting::{Waiting, WaitingRequest};
use withdrawal::{Finished, Parts};

/// Parts of an inode that the kernel keeps with its attributes: it caches access lists, too.
const ATTRIBUTE_PARTS: u32 = inode_bit::ATTRIBUTES | inode_bit::XATTRS;

/// Parts of a directory of which its listing consists: `..` is one of its attributes.
const LISTING_PARTS: u32 = inode_bit::DIRECTORY | inode_bit::ATTRIBUTES;

/// A running session.
struct Session {
    notifications: Notifications,
    names: Arc<Names>,
    jobs: mpsc::Sender<Job>,
}

/// See the module documentation.
pub struct KernelCache {
    /// Whether the kernel checks permissions: cached names would bypass search permission
    /// otherwise.
    is_allowed: bool,
    table: Arc<Table>,
    session: OnceLock<Session>,
    /// Of a kernel that caches access lists, whatever else it is given.
    lists: OnceLock<Notifications>,
    waiting: Arc<Waiting>,
    statistics: Arc<Statistics>,
    /// When READDIRPLUS was last answered.
    last_page: Mutex<Option<Instant>>,
}

/// What a reply shows.
#[derive(Clone, Copy, Debug)]
pub enum Shown<'a> {
    /// An inode found by its name in a directory, while no lock protects the reply.
    Found(InodeNumber, &'a [u8]),
    /// An inode made, or a name made for it, under the lock of the directory.
    Made(InodeNumber, &'a [u8]),
    /// An inode found by its number.
    Inode,
    /// A new inode without a name.
    Unnamed,
}

/// A change by this mount that is not answered yet. Ends when dropped: before it is answered.
pub struct Change {
    cache: Arc<KernelCache>,
    directories: Vec<u64>,
    inodes: Vec<u64>,
    /// Complete when the kernel has dropped the listings that it changes.
    listings: Parts,
    /// Directories in which it makes names of which the kernel does not know.
    named: Vec<u64>,
}

impl KernelCache {
    /// Nothing is given to the kernel before the session begins; afterwards only if `is_allowed`.
    pub fn new(is_allowed: bool) -> Arc<Self> {
        Arc::new(Self {
            is_allowed,
            table: Arc::default(),
            session: OnceLock::new(),
            lists: OnceLock::new(),
            waiting: Arc::default(),
            statistics: Arc::default(),
            last_page: Mutex::default(),
        })
    }

    /// The session begins.
    pub fn begin(&self, notifications: Notifications) {
        if self.is_allowed {
            drop(self.lists.set(notifications.clone()));
        }
        if !self.is_allowed || !notifications.has_epochs() {
            return;
        }
        let (jobs, receiver) = mpsc::channel();
        let names = Names::new(notifications.clone(), self.waiting.clone(), self.statistics.clone());
        let (table, waiting, statistics) = (self.table.clone(), self.waiting.clone(), self.statistics.clone());
        let teller = Teller::new(notifications.clone(), table, names.clone(), waiting, statistics);
        let thread = std::thread::Builder::new().name("fuse attributes".to_owned());
        match thread.spawn(move || teller.run(&receiver)) {
            Ok(_) => drop(self.session.set(Session { notifications, names, jobs })),
            Err(error) => tracing::warn!(%error, "cannot start a thread; the kernel caches no names and attributes"),
        }
    }

    /// Requests that wait.
    pub fn waiting(&self) -> &Arc<Waiting> {
        &self.waiting
    }

    /// Counters.
    pub fn statistics(&self) -> &Statistics {
        &self.statistics
    }

    /// Inodes and names that the kernel knows; the root is always one.
    pub fn counts(&self) -> (usize, usize) {
        self.table.counts()
    }

    /// Names that the kernel is asked to drop at this moment, with their directories, while a
    /// client waits for it.
    pub fn leaving(&self) -> Vec<(InodeNumber, Vec<u8>)> {
        let names = self.session.get().map_or(Vec::new(), |session| session.names.leaving());
        names.iter().map(|name| (InodeNumber(name.parent), name.bytes.to_vec())).collect()
    }

    /// What the kernel may keep of a reply that shows an inode, with the attributes that it shows.
    /// `counts`: the kernel counts it as a lookup.
    pub fn give(
        &self,
        file_system: &FileSystem,
        attributes: &Attributes,
        shown: Shown<'_>,
        counts: bool,
    ) -> (Attributes, Validity) {
        if self.session.get().is_none() {
            return (*attributes, Validity::default());
        }
        let (inode, now) = (attributes.inode, Instant::now());
        let (place, protects_attributes) = match shown {
            Shown::Found(parent, name) => (Some((parent, name)), true),
            Shown::Made(parent, name) => (Some((parent, name)), false),
            Shown::Inode => (None, true),
            Shown::Unnamed => (None, false),
        };
        let name = place.map(|(parent, name)| Arc::new(Name::new(parent.0, name)));
        self.table.prepare(inode.0, counts, name.as_ref(), now);
        let keepable = file_system.keepable(inode, place);
        self.complete(attributes, name.as_ref(), keepable, protects_attributes, now)
    }

    /// The same of found names in a directory, in order; each counts as a lookup.
    pub fn give_page(
        &self,
        file_system: &FileSystem,
        directory: InodeNumber,
        found: &[(&[u8], &Attributes)],
    ) -> Vec<(Attributes, Validity)> {
        if self.session.get().is_none() {
            return found.iter().map(|(_, attributes)| (**attributes, Validity::default())).collect();
        }
        let now = Instant::now();
        let names: Vec<_> = found.iter().map(|(name, _)| Arc::new(Name::new(directory.0, name))).collect();
        let nodes = found.iter().map(|(_, attributes)| attributes.inode.0);
        self.table.prepare_page(nodes.zip(&names), now);
        let places: Vec<_> = found.iter().map(|(name, attributes)| (*name, attributes.inode)).collect();
        let keepable = file_system.keepable_in(directory, &places);
        let complete = |(((_, attributes), name), keepable): ((&(&[u8], &Attributes), _), _)| {
            self.complete(attributes, Some(name), keepable, true, now)
        };
        found.iter().zip(&names).zip(keepable).map(complete).collect()
    }

    /// Decides what the kernel may keep of a reply that was announced.
    fn complete(
        &self,
        attributes: &Attributes,
        name: Option<&Arc<Name>>,
        keepable: Option<Keepable>,
        protects_attributes: bool,
        now: Instant,
    ) -> (Attributes, Validity) {
        let (mut may, mut newest) = (Validity::default(), None);
        if let Some(Keepable { attributes: known, permissions, name, validity }) = keepable {
            newest = known.filter(|_| protects_attributes);
            let shown = newest.unwrap_or(*attributes);
            let is_current = permissions.is_some_and(|known| has_same_permissions(&known, &shown));
            may = Validity { attributes: newest.map(|_| validity), name: (name && is_current).then_some(validity) };
        }
        let validity = self.table.complete(attributes.inode.0, name, may, now);
        if validity.attributes.is_some() {
            self.statistics.add(Count::AttributesGiven);
        }
        if validity.name.is_some() {
            self.statistics.add(Count::NamesGiven);
        }
        (newest.unwrap_or(*attributes), validity)
    }

    /// A reply to READDIRPLUS is about to be sent.
    pub fn gives_page(&self) {
        *self.last_page.lock() = Some(Instant::now());
    }

    /// An access list of an inode is about to be asked for. `false`: the kernel may not keep it. A
    /// lock has to be held from now on until it is given; if it is withdrawn meanwhile, that finds
    /// the mark.
    pub fn asks_for_list(&self, file_system: &FileSystem, inode: InodeNumber) -> bool {
        self.session.get().is_some() && self.table.mark_list(inode.0) && is_locked(file_system, inode)
    }

    /// It is about to be given, or that there is none. `was_locked`: what was said when it was
    /// asked for.
    pub fn gives_list(&self, file_system: &FileSystem, inode: InodeNumber, was_locked: bool) {
        let Some(notifications) = self.lists.get() else { return };
        if !was_locked || !self.table.may_keep_list(inode.0) || !is_locked(file_system, inode) {
            // The kernel does not keep the answer to a request that it sent before.
            self.statistics.add(Count::AttributesDropped);
            drop_attributes(notifications, &self.table, inode.0);
        }
    }

    /// What is known of the attributes of an inode that is about to be opened, if the kernel may
    /// have them; see [`KernelCache::opened`].
    pub fn opens(&self, file_system: &FileSystem, inode: InodeNumber) -> Option<Attributes> {
        self.session.get()?;
        file_system.keepable(inode, None)?.attributes
    }

    /// An inode was opened, and its access time may have changed: the kernel drops its attributes,
    /// unless they are `before`.
    pub fn opened(&self, file_system: &FileSystem, inode: InodeNumber, before: Option<Attributes>) {
        let Some(session) = self.session.get() else { return };
        if !self.table.valid(inode.0, Instant::now()).attributes {
            return;
        }
        let after = file_system.keepable(inode, None).and_then(|keepable| keepable.attributes);
        if after.is_none() || after != before {
            self.statistics.add(Count::AttributesDropped);
            drop_attributes(&session.notifications, &self.table, inode.0);
        }
    }

    /// The kernel forgets lookups of an inode.
    pub fn forget(&self, node: u64, lookups: u64) {
        if self.session.get().is_some() {
            self.table.forget(node, lookups);
        }
    }

    /// The inode to which a name leads in the kernel's cache, if the kernel knows the name.
    pub fn named(&self, parent: u64, name: &[u8]) -> Option<u64> {
        self.table.named(parent, name)
    }

    /// A name by which the kernel knows an inode, with its directory.
    pub fn name_of(&self, inode: InodeNumber) -> Option<(InodeNumber, Vec<u8>)> {
        let name = self.table.name_of(inode.0)?;
        Some((InodeNumber(name.parent), name.bytes.to_vec()))
    }

    /// The directories of the names by which the kernel knows an inode.
    pub fn parents(&self, node: u64) -> Vec<u64> {
        self.table.parents(node)
    }

    /// A change by this mount is about to begin. `directories`: those whose locks the kernel holds
    /// until it is answered; `inodes`: those whose attributes it changes.
    pub fn begin_change(self: &Arc<Self>, directories: Vec<u64>, inodes: Vec<u64>) -> Option<Change> {
        let session = self.session.get()?;
        let now = Instant::now();
        for directory in &directories {
            let finished = session.names.begin_change(*directory);
            if !finished.is_empty() {
                session.send(Job::Epoch(finished, None));
            }
        }
        for inode in &inodes {
            if self.table.begin_change(*inode, now) {
                self.statistics.add(Count::AttributesDropped);
                if drop_attributes(&session.notifications, &self.table, *inode) == Notified::Done {
                    self.table.dropped(*inode);
                }
            }
        }
        Some(Change { cache: self.clone(), directories, inodes, listings: Parts::default(), named: Vec::new() })
    }

    /// This mount has renamed something, and is about to answer.
    pub fn renamed(&self, from: (u64, &[u8]), to: (u64, &[u8]), exchanged: bool) {
        if let Some(session) = self.session.get() {
            let (from, to) = (Name::new(from.0, from.1), Name::new(to.0, to.1));
            session.names.renamed(&from, &to, exchanged);
            self.table.renamed(&from, &to, exchanged, Instant::now());
        }
    }

    /// It is not known what has become of a change of names by this mount, which is about to be
    /// answered with an error: the kernel would keep the names.
    pub fn is_uncertain(&self) {
        if let Some(session) = self.session.get() {
            session.notifications.epoch();
            self.statistics.add(Count::Epochs);
            // Nothing waits for it.
            self.end_listings(session, &mut Parts::default());
        }
    }
}

impl KernelCache {
    /// The kernel may serve something for longer than was decided, and than the [`table`] knows: it
    /// drops everything. What is returned completes when it has been told so; that need not be
    /// waited for.
    pub fn is_overdue(&self) -> BoxFuture<'static, ()> {
        let mut parts = Parts::default();
        let Some(session) = self.session.get() else { return parts.complete() };
        tracing::warn!("this process was stopped while it answered the kernel, which drops what it caches");
        session.notifications.epoch();
        self.statistics.add(Count::Epochs);
        session.send(Job::Attributes(self.table.all(), parts.add()));
        self.end_listings(session, &mut parts);
        parts.complete()
    }
}

impl Session {
    fn send(&self, job: Job) {
        if self.jobs.send(job).is_err() {
            tracing::error!("the thread that withdraws attributes from the kernel has ended");
        }
    }
}

/// Whether the kernel would check the same by both.
fn has_same_permissions(one: &Attributes, other: &Attributes) -> bool {
    (one.uid, one.gid, one.mode, one.kind) == (other.uid, other.gid, other.mode, other.kind)
}

/// Whether a lock of the MDT protects access lists and permissions.
fn is_locked(file_system: &FileSystem, inode: InodeNumber) -> bool {
    file_system.keepable(inode, None).is_some_and(|keepable| keepable.permissions.is_some())
}

impl UpperCache for KernelCache {
    fn withdraw(&self, inode: InodeNumber, parts: InodeBits) -> BoxFuture<'static, ()> {
        let (mut complete, now) = (Parts::default(), Instant::now());
        if let Some(session) = self.session.get() {
            let valid = self.table.valid(inode.0, now);
            let attributes = parts.0 & ATTRIBUTE_PARTS != 0 && valid.attributes;
            let has = |part: u32| parts.0 & part != 0;
            let invalidation = match (has(inode_bit::LOOKUP), has(inode_bit::ATTRIBUTES)) {
                (true, _) => Some(Invalidation::Drop),
                (false, true) => Some(Invalidation::Expire),
                (false, false) => None,
            };
            let names = invalidation
                .into_iter()
                .flat_map(|invalidation| valid.names.iter().map(move |name| (name, invalidation)));
            let withdraw = |(name, invalidation): (&Arc<Name>, Invalidation)| {
                session.names.withdraw(name.clone(), invalidation, now, complete.add())
            };
            let uncovered: Vec<Finished> = names.filter_map(withdraw).collect();
            let has_names = invalidation == Some(Invalidation::Drop) && !valid.names.is_empty();
            if !uncovered.is_empty() {
                session.send(Job::Epoch(uncovered, None));
            }
            // With a name always: it makes the thread look after it.
            if attributes || has_names {
                session.send(Job::Attributes(vec![inode.0], complete.add()));
            }
            if parts.0 & LISTING_PARTS != 0 {
                self.end_listing(session, inode.0, &mut complete);
            }
        }
        complete.complete()
    }

    fn let_go(&self, inode: InodeNumber, parts: InodeBits) -> BoxFuture<'static, ()> {
        let (mut complete, now) = (Parts::default(), Instant::now());
        if let Some(session) = self.session.get() {
            if parts.0 & ATTRIBUTE_PARTS != 0 && self.table.valid(inode.0, now).attributes {
                session.send(Job::Attributes(vec![inode.0], complete.add()));
            }
            // Names would be dropped with what is mounted below them, and with working directories;
            // those that are valid will not be for long.
            if parts.0 & (inode_bit::LOOKUP | inode_bit::ATTRIBUTES) != 0 {
                session.send(Job::Names(inode.0, complete.add()));
            }
            if parts.0 & LISTING_PARTS != 0 {
                self.end_listing(session, inode.0, &mut complete);
            }
        }
        complete.complete()
    }

    fn withdraw_all(&self) -> BoxFuture<'static, ()> {
        let (mut complete, now) = (Parts::default(), Instant::now());
        if let Some(session) = self.session.get() {
            session.send(Job::Attributes(self.table.all_with_attributes(now), complete.add()));
            // Requests that wait for the connection hold locks of directories, so no name can be
            // dropped by itself. A page of a listing that the kernel is still processing would
            // escape; it has had long enough after that time.
            let not_before = self.last_page.lock().map(|page| page + WITHDRAWAL_TIMEOUT).filter(|end| *end > now);
            session.send(Job::Epoch(vec![complete.add()], not_before));
            self.end_listings(session, &mut complete);
        }
        complete.complete()
    }
}

impl Drop for Change {
    fn drop(&mut self) {
        let cache = self.cache.clone();
        let Some(session) = cache.session.get() else { return };
        // Nothing waits for it: the caller is gone.
        self.end_named(session);
        self.directories.iter().for_each(|directory| session.names.end_change(*directory));
        self.inodes.iter().for_each(|inode| cache.table.end_change(*inode));
    }
}
