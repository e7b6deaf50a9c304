//! The cache of one MDT's names, attributes and small files: pure.
//!
//! Everything in it is under a lock of the MDT: it is dropped when the MDT withdraws the lock,
//! before any other client can see a change. What this client itself changes it must drop itself
//! ([`OwnChanges`]). Locks belong to a connection: all of them end with it, and may be claimed on
//! the next one (`claims`).
//!
//! Life cycle of a question: [`InodeCache::ask`] before it is sent, [`InodeCache::answer`] with its
//! outcome. What is served is in `queries`. An answer is kept under locks that came with it, or
//! that were held from before the question was sent: then the MDT gave it while they were held.
//!
//! Memory: about 700 bytes for each inode with one name (estimated from the structures), and about
//! 100 for each name that does not exist. Each of them counts as one towards the limit. Data of
//! small files have a limit of their own.

use std::{collections::BTreeMap, time::Duration};

use bytes::Bytes;
use rpc::message::{
    MdtReply, MdtRequest, ReplyExtension,
    lock::{Enqueue, InodeBits, Resource, inode_bit},
    mdt::Entry,
};
use rt::Instant;
use types::{ClientId, FsError, InodeNumber, LockHandle, ObjectId, Timestamp};

use self::claims::Claims;
use super::{
    accesses::Accesses,
    cached_inode::{CachedInode, Epoch, LISTING_BITS, Privileges},
    connection_id::ConnectionId,
    early_cancels::EarlyCancels,
    keeper::Keeper,
    listings::{ENTRIES_PER_LOCK, Listings},
    name_table::{Name, NameTable},
    own_changes::{Moment, OwnChanges},
    own_versions::{OwnVersions, inodes_of},
    queries::is_access_fresh,
    question::{Asked, Question, Renamed, opened},
    recency::Recency,
    released::Released,
    small_files::SmallFiles,
    statahead::Statahead,
    subject::Subject,
};

/// Locks, and names under those of directories, that are kept, unless another number is set: some
/// 90 MiB.
pub(crate) const LOCKS_MAX_DEFAULT: usize = 128 * 1024;

/// A question that was sent.
#[derive(Debug)]
pub(crate) struct Pending {
    question: Question,
    asked: Moment,
    /// What to ask for with it.
    pub wanted: Option<Enqueue>,
}

impl Pending {
    /// Whether it changes anything that may be cached.
    pub fn is_change(&self) -> bool {
        !self.question.changes.is_empty()
    }
}

/// What becomes of an answer.
pub(crate) struct Answered {
    /// Locks to be given back.
    pub released: Vec<Released>,
    /// Those of them on inodes whose last name it removed, probably.
    pub unnamed: Vec<(InodeNumber, LockHandle)>,
    /// It changed attributes of an inode that could not be named before.
    pub has_doubts: bool,
}

/// A reply, and what came with it.
pub(crate) struct Reply<'a> {
    pub reply: &'a MdtReply,
    pub beside: &'a ReplyExtension,
    /// The connection through which the request was sent first.
    pub connection: ConnectionId,
    /// All bytes of the object of a file on the MDT, verified.
    pub data: Option<&'a Bytes>,
    /// Locks on inodes that it shows, which were given up and are held again.
    pub taken_back: &'a [Released],
}

/// See the module documentation.
#[derive(Debug)]
pub(crate) struct InodeCache {
    /// 0: nothing is cached.
    locks_max: usize,
    /// The present session.
    session: Option<ClientId>,
    pub(super) connection: Option<ConnectionId>,
    pub(super) inodes: BTreeMap<InodeNumber, CachedInode>,
    handles: BTreeMap<LockHandle, InodeNumber>,
    /// The MDT has granted locks.
    grants: bool,
    pub(super) names: NameTable,
    pub(super) listings: Listings,
    pub(super) small_files: SmallFiles,
    pub(super) statahead: Statahead,
    pub(super) changes: OwnChanges,
    pub(super) versions: OwnVersions,
    pub(super) accesses: Accesses,
    claims: Claims,
    early: EarlyCancels,
    pub(super) recency: Recency,
    pub(super) epoch: Epoch,
    /// The last [`CachedInode::span`] that began.
    last_span: u64,
}

impl Default for InodeCache {
    fn default() -> Self {
        Self {
            locks_max: LOCKS_MAX_DEFAULT,
            session: None,
            connection: None,
            inodes: BTreeMap::new(),
            handles: BTreeMap::new(),
            grants: false,
            names: NameTable::default(),
            listings: Listings::default(),
            small_files: SmallFiles::default(),
            statahead: Statahead::default(),
            changes: OwnChanges::default(),
            versions: OwnVersions::default(),
            accesses: Accesses::default(),
            claims: Claims::default(),
            early: EarlyCancels::default(),
            recency: Recency::default(),
            epoch: 0,
            last_span: 0,
        }
    }
}

impl InodeCache {
    /// A session begins; what was cached through an earlier one ended with it.
    pub fn begin_session(&mut self, client: ClientId) {
        assert_ne!(self.session, Some(client), "a session has an id of its own");
        self.session = Some(client);
        self.connect(None);
    }

    /// Whether the present session of this mount has another id.
    pub fn is_of_other_session(&self, client: ClientId) -> bool {
        self.session.is_some_and(|present| present != client)
    }

    /// What a write to a file has to clear, if that is known: who changes it needs this client's
    /// lock on extended attributes.
    pub fn privileges(&mut self, number: InodeNumber) -> Option<Privileges> {
        let known = self.inodes.get(&number)?.privileges?;
        self.used(number);
        Some(known)
    }

    /// Whether the MDT grants locks, as far as is known.
    pub fn grants(&self) -> bool {
        self.grants || self.locks_max == 0
    }

    /// How many locks, names under those of directories, and further names of inodes are kept at
    /// most.
    pub fn locks_max(&self) -> usize {
        self.locks_max
    }

    /// Locks held.
    pub fn lock_count(&self) -> usize {
        self.handles.len()
    }

    /// Inodes on which locks are held.
    pub fn inode_count(&self) -> usize {
        self.inodes.len()
    }

    /// Changes the limit; returns locks to be given back.
    pub fn set_locks_max(&mut self, locks_max: usize) -> Vec<Released> {
        self.locks_max = locks_max;
        self.shrink(locks_max)
    }

    /// Gives up everything; returns locks to be given back.
    pub fn give_up_all(&mut self) -> Vec<Released> {
        self.shrink(0)
    }

    pub(super) fn inode(&mut self, inode: InodeNumber) -> &mut CachedInode {
        self.inodes.get_mut(&inode).expect("what is kept is under a lock")
    }

    /// What counts towards the limit. A lock covers an inode and one name of it: an inode may have
    /// 65,000 further ones. Names of which nothing is known take as little as those of listings.
    fn weight(&self) -> usize {
        let names = self.names.by_directory_count()
            + self.names.further_count()
            + self.names.unknown_count() / ENTRIES_PER_LOCK;
        self.handles.len() + names + self.listings.weight()
    }

    /// How much of the limit is left for inodes with their names, as long as listings and names of
    /// nothing stay.
    pub(super) fn room_for_inodes(&self) -> usize {
        self.locks_max.saturating_sub(self.weight() - self.handles.len())
    }

    /// Whether a listing may add names that lead to other MDTs: they stay as long as the lock on
    /// the directory, and would drive out everything else.
    pub(super) fn has_room_elsewhere(&self) -> bool {
        self.names.by_directory_count() < self.locks_max / 4
    }

    /// Gives up the least recently used inodes until no more than this is left.
    fn shrink(&mut self, locks_max: usize) -> Vec<Released> {
        let mut released = Vec::new();
        while self.weight() > locks_max {
            let Some(oldest) = self.recency.oldest() else { break };
            released.extend(self.give_up(oldest));
        }
        released
    }

    /// Gives up the inodes that were not used for longer than `age_max`.
    pub fn give_up_unused(&mut self, now: Instant, age_max: Duration) -> Vec<Released> {
        let mut released = Vec::new();
        while let Some(oldest) = self.recency.oldest_unused(now, age_max) {
            released.extend(self.give_up(oldest));
        }
        self.recency.mark(now, age_max);
        released
    }

    /// All locks of an inode, which are to be given back.
    fn give_up(&mut self, inode: InodeNumber) -> Vec<Released> {
        let handles: Vec<_> = self.inodes.get(&inode).into_iter().flat_map(CachedInode::handles).collect();
        handles.into_iter().filter_map(|handle| self.revoke(handle)).collect()
    }

    /// The MDT withdraws a lock: nothing is served under it from now on. It is to be given back
    /// whether it is known or not.
    pub fn withdraw(&mut self, handle: LockHandle) -> Option<Released> {
        let known = self.revoke(handle);
        if known.is_none() && self.changes.oldest_question() != self.changes.next_question() {
            self.early.note(handle, self.changes.next_question());
        }
        known
    }

    fn revoke(&mut self, handle: LockHandle) -> Option<Released> {
        let number = self.handles.remove(&handle)?;
        let inode = self.inodes.get_mut(&number).expect("a lock that is held is about an inode in the table");
        let (parts @ InodeBits(gone), since) = inode.revoke(handle);
        if gone & inode_bit::LOOKUP != 0 {
            self.names.forget_leading_to(number);
        }
        if gone & inode_bit::DIRECTORY != 0 {
            self.names.forget_by_directory(number);
        }
        if gone & inode_bit::ATTRIBUTES != 0 {
            self.names.forget_complete(number);
            self.versions.doubt(number);
        }
        if gone & LISTING_BITS != 0 {
            self.listings.forget(number);
        }
        if gone & inode_bit::DATA != 0 {
            self.small_files.forget(number);
        }
        if inode.bits() == InodeBits(0) {
            self.recency.remove(inode.uses);
            self.inodes.remove(&number);
        }
        Some(Released { handle, inode: number, parts, since })
    }

    /// A question that is about to be sent. `written`: whether this client has an inode open for
    /// writing; `wall`: the present time.
    pub fn ask(&mut self, request: &MdtRequest, wall: Timestamp, written: impl Fn(InodeNumber) -> bool) -> Pending {
        let mut question = Question::of(request, &self.names, written);
        question.changes.retain(|subject| !self.is_fresh(request, subject, wall));
        self.changes.begin(&question.changes);
        self.versions.begin(&inodes_of(&question.changes));
        self.forget(&question.changes);
        let asked = self.changes.asked();
        let held = question.wanted.map_or(InodeBits(0), |(inode, _)| self.need_not_ask(inode));
        let wanted = question.enqueue(held).filter(|_| self.locks_max > 0);
        Pending { question, asked, wanted }
    }

    /// Parts of an inode that are held, or that are of no use. Data whose lock is held may be
    /// missing.
    fn need_not_ask(&self, inode: InodeNumber) -> InodeBits {
        const DATA: InodeBits = InodeBits(inode_bit::DATA);
        let held = self.inodes.get(&inode).map_or(InodeBits(0), CachedInode::bits);
        let keeps_data = self.small_files.usage().1 > 0 && !self.small_files.has(inode, self.epoch);
        if keeps_data { held & !DATA } else { held | DATA }
    }

    /// Whether this access does not change the access time, so that it changes nothing.
    fn is_fresh(&self, request: &MdtRequest, subject: &Subject, wall: Timestamp) -> bool {
        match (request, subject) {
            (MdtRequest::Open(..) | MdtRequest::ReadLink(_) | MdtRequest::ReadDirectory(_), Subject::Times(inode)) => {
                let known = self.inodes.get(inode).and_then(|inode| inode.attributes.as_ref());
                known.and_then(|known| known.exact(self.epoch)).is_some_and(|known| is_access_fresh(known, wall))
            }
            _ => false,
        }
    }

    fn forget(&mut self, subjects: &[Subject]) {
        for subject in subjects {
            match subject {
                Subject::AllAttributes => self.epoch += 1,
                Subject::Inode(inode) => {
                    self.small_files.forget(*inode);
                    if let Some(inode) = self.inodes.get_mut(inode) {
                        inode.forget();
                    }
                }
                Subject::Times(inode) => {
                    if let Some(inode) = self.inodes.get_mut(inode) {
                        inode.forget_times();
                    }
                }
                Subject::Layout(inode) => {
                    if let Some(inode) = self.inodes.get_mut(inode) {
                        inode.layout = None;
                    }
                }
                Subject::Data(inode) => self.small_files.forget(*inode),
                Subject::Name(parent, name) => self.names.forget(*parent, name),
                Subject::Above(directory) => {
                    self.listings.forget(*directory);
                    self.renew_span(*directory);
                }
                // What is known to its end follows the change (`own_names`).
                Subject::Names(directory) => {
                    self.listings.forget_begun(*directory);
                    self.renew_span(*directory);
                }
            }
        }
    }

    /// The listing of a directory is another one from now on.
    fn renew_span(&mut self, directory: InodeNumber) {
        if let Some(inode) = self.inodes.get_mut(&directory).filter(|inode| inode.span != 0) {
            self.last_span += 1;
            inode.span = self.last_span;
        }
    }

    /// A question was answered, or failed with an error (whatever it asked for has happened by now,
    /// or never will).
    pub fn answer(&mut self, pending: Pending, outcome: Result<Reply<'_>, &FsError>) -> Answered {
        let Pending { question, asked, .. } = pending;
        let mut released = Vec::new();
        let is_certain = !self.is_removal_uncertain(&question, asked);
        let has_doubts = !is_certain || question.changes.contains(&Subject::AllAttributes);
        if has_doubts {
            self.versions.doubt_all();
        }
        if !is_certain {
            self.forget(&[Subject::AllAttributes]);
            self.changes.note(&[Subject::AllAttributes]);
        }
        let mut granted = Vec::new();
        let (mut shown, mut beside) = (None, None);
        if let Ok(reply) = &outcome {
            granted = self.take_grants(reply, &mut released);
            let mut found = found_changed(&question, reply.reply);
            found.extend(told_changed(&question, reply.beside));
            self.forget(&found);
            inodes_of(&found).into_iter().for_each(|inode| self.versions.doubt(inode));
            self.changes.note(&found);
            (shown, beside) = (shown_by(reply.reply), Some(reply.beside));
        }
        let data = outcome.as_ref().ok().and_then(|reply| reply.data);
        let mut keeper = Keeper { cache: self, question: &question, asked, granted: &granted, is_certain, data };
        match &outcome {
            Ok(reply) => keeper.keep(reply.reply),
            Err(error) => keeper.keep_absence(error),
        }
        for inode in inodes_of(&question.changes) {
            keeper.keep_changed(inode, shown, beside);
        }
        self.follow_names(&question, asked, &granted, outcome.as_ref().ok());
        let lost = outcome.as_ref().map_or(Vec::new(), |reply| self.without_names(&question, reply));
        let unnamed = lost.iter().map(|lock| (lock.inode, lock.handle)).collect();
        released.extend(lost);
        self.changes.end(&question.changes);
        self.changes.answered(asked);
        self.early.answered(self.changes.oldest_question());
        released.extend(self.shrink(self.locks_max));
        Answered { released, unnamed, has_doubts }
    }

    /// The outcome of a question will not become known. What it may still change is not served any
    /// more.
    pub fn abandon(&mut self, pending: Pending) {
        self.changes.answered(pending.asked);
        self.early.answered(self.changes.oldest_question());
    }

    /// What is covered by locks of an inode that were held when a question was asked and are still,
    /// or that came with its answer.
    pub(super) fn bits_since(&self, inode: InodeNumber, asked: Moment, granted: &[LockHandle]) -> u32 {
        let inode = self.inodes.get(&inode).filter(|_| self.connection.is_some());
        inode.map_or(0, |inode| inode.bits_since(asked, granted))
    }

    /// Whether a name that was removed may have led to another inode than was known: another client
    /// may have changed it, or another change of this client.
    fn is_removal_uncertain(&self, question: &Question, asked: Moment) -> bool {
        question.removals.iter().any(|(parent, name, known)| {
            // Each of the bits suffices.
            let (inode, bits) = match known {
                Name::Leads(inode) => (inode, inode_bit::LOOKUP),
                Name::Missing => (parent, inode_bit::DIRECTORY | inode_bit::ATTRIBUTES),
            };
            self.bits_since(*inode, asked, &[]) & bits == 0
                || !self.changes.name_holds(*parent, name, asked, &question.changes)
        })
    }

    /// Gives up the locks on inodes that lost a name, and probably their last: the MDT waits for
    /// those on opens, without asking for them at first. If the name was not known, the versions
    /// that changed tell the inode.
    fn without_names(&mut self, question: &Question, reply: &Reply<'_>) -> Vec<Released> {
        let (gone, others) = match (&question.asked, reply.reply) {
            (Asked::Unlinked((parent, _), gone), MdtReply::Done) => (*gone, [Some(*parent), None, None]),
            (Asked::Renamed(Renamed { gone, moved, from, to }), MdtReply::Done) => {
                (*gone, [Some(from.0), Some(to.0), *moved])
            }
            _ => return Vec::new(),
        };
        let has_names = |inode: &InodeNumber| {
            let mut shown = reply.beside.changed.iter();
            others.contains(&Some(*inode))
                || shown.any(|entry| entry.attributes.inode == *inode && entry.attributes.links > 0)
        };
        let told = told_changed(question, reply.beside).filter_map(|subject| match subject {
            Subject::Times(inode) => Some(inode),
            _ => None,
        });
        let lost: Vec<_> = gone.into_iter().chain(told).filter(|inode| !has_names(inode)).collect();
        lost.into_iter().flat_map(|inode| self.give_up(inode)).collect()
    }

    /// Takes over the locks that came with a reply; returns those that are held from now on, in
    /// order.
    fn take_grants(&mut self, reply: &Reply<'_>, released: &mut Vec<Released>) -> Vec<LockHandle> {
        // Locks of another connection ended with it.
        if self.connection != Some(reply.connection) {
            return Vec::new();
        }
        let since = self.changes.next_question();
        let mut held = Vec::with_capacity(reply.beside.granted.len());
        for (handle, resource, version) in granted_by(reply) {
            match resource {
                _ if self.early.contains(handle) || self.handles.contains_key(&handle) => {}
                Resource::Inode(number, bits) if self.locks_max > 0 => {
                    self.grants = true;
                    self.hold(number, (handle, bits), since, version);
                    held.push(handle);
                }
                Resource::Inode(inode, _) | Resource::Object(ObjectId { inode, .. }, _) => {
                    released.push(Released { handle, inode, parts: InodeBits(0), since });
                }
            }
        }
        for Released { handle, inode, parts, since } in reply.taken_back.iter().copied() {
            // An answer may tell no version beside a lock that it does not grant.
            self.hold(inode, (handle, parts), since, 0);
        }
        // Other changes did not concern what is cached under the locks: as long as a lock is held,
        // only this client changes what is under it.
        for told in reply.beside.change.iter().flat_map(|change| &change.versions) {
            if let Some(inode) = self.inodes.get_mut(&told.inode) {
                inode.version = inode.version.max(told.after);
            }
        }
        held.sort_unstable();
        held
    }

    /// A lock on an inode is held from now on.
    fn hold(&mut self, number: InodeNumber, (handle, bits): (LockHandle, InodeBits), since: Moment, version: u64) {
        let inode = self.inodes.entry(number).or_default();
        inode.grant(handle, bits, since, version);
        if inode.span == 0 && inode.covers_listing() {
            self.last_span += 1;
            inode.span = self.last_span;
        }
        self.recency.use_now(number, &mut inode.uses);
        let former = self.handles.insert(handle, number);
        assert!(former.is_none(), "a lock is about one inode");
    }

    pub(super) fn used(&mut self, number: InodeNumber) {
        if let Some(inode) = self.inodes.get_mut(&number) {
            self.recency.use_now(number, &mut inode.uses);
        }
    }
}

/// What a question changed that could not be named before it was answered: a file that was found by
/// its name was opened.
fn found_changed(question: &Question, reply: &MdtReply) -> Vec<Subject> {
    match (&question.asked, reply) {
        (Asked::Created(.., flags), MdtReply::Created(created)) if !created.created => {
            vec![opened(created.entry.attributes.inode, *flags)]
        }
        _ => Vec::new(),
    }
}

/// What else a reply says that the request changed: an access that seemed to change nothing when it
/// was sent sets the access time if another client has changed the inode meanwhile.
fn told_changed<'a>(question: &Question, beside: &'a ReplyExtension) -> impl Iterator<Item = Subject> + 'a {
    let known = inodes_of(&question.changes);
    let versions = beside.change.iter().flat_map(|change| &change.versions);
    let others = versions.filter(move |version| version.before != 0 && !known.contains(&version.inode));
    others.map(|version| Subject::Times(version.inode))
}

/// The locks that came with a reply, in its extension or with the names of a directory, and the
/// versions of their inodes.
fn granted_by<'a>(reply: &'a Reply<'_>) -> impl Iterator<Item = (LockHandle, Resource, u64)> + 'a {
    let page = match reply.reply {
        MdtReply::Directory(page, _) => page.as_slice(),
        _ => &[],
    };
    let of_page = page.iter().flat_map(|found| {
        found.locks.iter().map(|(handle, bits)| (*handle, Resource::Inode(found.inode, *bits), found.version))
    });
    reply.beside.granted.iter().map(|granted| (granted.handle, granted.resource, granted.version)).chain(of_page)
}

/// The inodes that a reply shows, but for those without a name: the MDT waits for their locks.
pub(super) fn named_by(reply: &MdtReply) -> impl Iterator<Item = InodeNumber> {
    let page = match reply {
        MdtReply::Directory(page, _) => page.as_slice(),
        _ => &[],
    };
    let single = match reply {
        MdtReply::Entry(entry) => Some(entry),
        MdtReply::Created(created) => Some(&created.entry),
        MdtReply::Opened(opened) => Some(&opened.entry),
        _ => None,
    };
    let shown = page.iter().filter_map(|found| found.entry.as_ref()).chain(single);
    shown.filter(|entry| entry.attributes.links > 0).map(|entry| entry.attributes.inode)
}

/// The inode that a reply shows.
fn shown_by(reply: &MdtReply) -> Option<&Entry> {
    match reply {
        MdtReply::Entry(entry) => Some(entry),
        _ => None,
    }
}

mod claims;
mod known_opens;
mod own_accesses;
mod own_names;

#[cfg(test)]
#[path = "inode_cache_tests.rs"]
pub(crate) mod tests;

#[cfg(test)]
#[path = "inode_cache_model.rs"]
mod model;
