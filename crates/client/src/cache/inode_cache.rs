//! The cache of one MDT's names and attributes: pure.
//!
//! Everything in it is under a lock of the MDT: it is dropped when the MDT withdraws the lock, before
//! anybody else can see a change. What this client changes itself it has to drop on its own
//! ([`OwnChanges`]). Locks belong to a connection: all of them end with it.
//!
//! Life cycle of a question: [`InodeCache::ask`] before it is sent, [`InodeCache::answer`] with its
//! outcome. An answer is kept under locks that came with it, or that were held from before the
//! question was sent: then the MDT gave it while they were held.
//!
//! Memory: about 700 bytes for each inode with one name (estimated from the structures), and about
//! 100 for each name that does not exist. Each of both counts as one of the limit.

use std::collections::BTreeMap;

use rpc::message::{
    MdtReply, MdtRequest,
    lock::{Enqueue, Granted, InodeBits, Resource, inode_bit},
    mdt::Entry,
};
use types::{
    Attributes, ClientId, Credentials, FileKind, FsError, FsResult, Generation, InodeNumber, LockHandle, Timestamp,
    limits::NAME_BYTES_MAX, permission,
};

use super::{
    cached_inode::{CachedAttributes, CachedInode, Epoch},
    early_cancels::EarlyCancels,
    name_table::{Name, NameTable},
    own_changes::{Moment, OwnChanges},
    question::{Asked, Question, changes_data, opened},
    recency::Recency,
    subject::Subject,
};

/// Locks and missing names that are kept, unless another number is set: some 90 MiB.
pub(crate) const LOCKS_MAX_DEFAULT: usize = 128 * 1024;

/// A connection of an incarnation of this client.
pub(crate) type ConnectionId = (ClientId, Generation);

/// A question that was sent.
#[derive(Debug)]
pub(crate) struct Pending {
    question: Question,
    asked: Moment,
    /// What to ask for beside it.
    pub wanted: Option<Enqueue>,
}

impl Pending {
    /// Whether it changes anything that may be cached.
    pub fn is_change(&self) -> bool {
        !self.question.changes.is_empty()
    }
}

/// A reply, and what came with it.
pub(crate) struct Reply<'a> {
    pub reply: &'a MdtReply,
    pub granted: &'a [Granted],
    /// The connection through which the request was sent first.
    pub connection: ConnectionId,
}

/// See the module documentation.
#[derive(Debug)]
pub(crate) struct InodeCache {
    /// 0: nothing is cached.
    locks_max: usize,
    connection: Option<ConnectionId>,
    inodes: BTreeMap<InodeNumber, CachedInode>,
    handles: BTreeMap<LockHandle, InodeNumber>,
    names: NameTable,
    changes: OwnChanges,
    early: EarlyCancels,
    recency: Recency,
    epoch: Epoch,
}

impl Default for InodeCache {
    fn default() -> Self {
        Self {
            locks_max: LOCKS_MAX_DEFAULT,
            connection: None,
            inodes: BTreeMap::new(),
            handles: BTreeMap::new(),
            names: NameTable::default(),
            changes: OwnChanges::default(),
            early: EarlyCancels::default(),
            recency: Recency::default(),
            epoch: 0,
        }
    }
}

impl InodeCache {
    /// The connection at present, if there is one: all that was cached through another one is
    /// dropped.
    pub fn connect(&mut self, connection: Option<ConnectionId>) {
        if self.connection == connection {
            return;
        }
        self.connection = connection;
        self.inodes.clear();
        self.handles.clear();
        self.names = NameTable::default();
        self.early.clear();
        self.recency.clear();
    }

    /// Whether what is cached came through a session of this mount under another id.
    pub fn is_of_other_session(&self, client: ClientId) -> bool {
        self.connection.is_some_and(|(present, _)| present != client)
    }

    /// How many locks and missing names are kept at most.
    pub fn locks_max(&self) -> usize {
        self.locks_max
    }

    /// Locks held.
    pub fn lock_count(&self) -> usize {
        self.handles.len()
    }

    /// Changes the limit; returns locks to be given back.
    pub fn set_locks_max(&mut self, locks_max: usize) -> Vec<LockHandle> {
        self.locks_max = locks_max;
        self.shrink()
    }

    fn inode(&mut self, inode: InodeNumber) -> &mut CachedInode {
        self.inodes.get_mut(&inode).expect("what is kept is under a lock")
    }

    /// Gives up the inodes that were not used for the longest time.
    fn shrink(&mut self) -> Vec<LockHandle> {
        let mut cancelled = Vec::new();
        while self.handles.len() + self.names.missing_count() > self.locks_max {
            let Some(oldest) = self.recency.oldest() else { break };
            cancelled.extend(self.give_up(oldest));
        }
        cancelled
    }

    /// All locks of an inode, which are to be given back.
    fn give_up(&mut self, inode: InodeNumber) -> Vec<LockHandle> {
        let handles: Vec<_> = self.inodes.get(&inode).into_iter().flat_map(CachedInode::handles).collect();
        for handle in &handles {
            self.revoke(*handle);
        }
        handles
    }

    /// The MDT withdraws a lock: nothing is served under it from now on. It is to be given back
    /// whether it is known or not. True if it was.
    pub fn withdraw(&mut self, handle: LockHandle) -> bool {
        let known = self.revoke(handle);
        if !known && self.changes.oldest_question() != self.changes.next_question() {
            self.early.note(handle, self.changes.next_question());
        }
        known
    }

    fn revoke(&mut self, handle: LockHandle) -> bool {
        let Some(number) = self.handles.remove(&handle) else { return false };
        let inode = self.inodes.get_mut(&number).expect("a lock that is held is about an inode in the table");
        let InodeBits(gone) = inode.revoke(handle);
        if gone & inode_bit::LOOKUP != 0 {
            self.names.forget_leading_to(number);
        }
        if gone & inode_bit::DIRECTORY != 0 {
            self.names.forget_missing(number);
        }
        if gone & inode_bit::ATTRIBUTES != 0 {
            self.names.forget_complete(number);
        }
        if inode.bits() == InodeBits(0) {
            self.recency.remove(inode.used);
            self.inodes.remove(&number);
        }
        true
    }

    /// A question that is about to be sent. `written`: whether this client has an inode open for
    /// writing; `wall`: the present time.
    pub fn ask(&mut self, request: &MdtRequest, wall: Timestamp, written: impl Fn(InodeNumber) -> bool) -> Pending {
        let mut question = Question::of(request, &self.names, written);
        question.changes.retain(|subject| !self.is_fresh(request, subject, wall));
        self.changes.begin(&question.changes);
        self.forget(&question.changes);
        let asked = self.changes.asked();
        let held = |(inode, _)| self.inodes.get(&inode).map_or(InodeBits(0), CachedInode::bits);
        let wanted = question.enqueue(question.wanted.map_or(InodeBits(0), held)).filter(|_| self.locks_max > 0);
        Pending { question, asked, wanted }
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
                    if let Some(inode) = self.inodes.get_mut(inode) {
                        inode.forget();
                    }
                }
                Subject::Times(inode) => {
                    if let Some(inode) = self.inodes.get_mut(inode) {
                        inode.forget_times();
                    }
                }
                Subject::Name(parent, name) => self.names.forget(*parent, name),
            }
        }
    }

    /// A question was answered, or failed with an error (whatever it asked for has happened by now,
    /// or never will). Returns locks to be given back.
    pub fn answer(&mut self, pending: Pending, outcome: Result<Reply<'_>, &FsError>) -> Vec<LockHandle> {
        let Pending { question, asked, .. } = pending;
        let mut cancelled = Vec::new();
        if self.is_removal_uncertain(&question, asked) {
            self.forget(&[Subject::AllAttributes]);
            self.changes.note(&[Subject::AllAttributes]);
        }
        match outcome {
            Ok(reply) => {
                let granted = self.take_grants(&reply, &mut cancelled);
                let found = found_changed(&question, reply.reply);
                self.forget(&found);
                Keeper { cache: self, question: &question, asked, granted: &granted }.keep(reply.reply);
                self.changes.note(&found);
                cancelled.extend(self.without_names(&question, reply.reply));
            }
            Err(error) => Keeper { cache: self, question: &question, asked, granted: &[] }.keep_absence(error),
        }
        self.changes.end(&question.changes);
        self.changes.answered(asked);
        self.early.answered(self.changes.oldest_question());
        cancelled.extend(self.shrink());
        cancelled
    }

    /// Nobody will know the outcome of a question. What it may still change is not served any more.
    pub fn abandon(&mut self, pending: Pending) {
        self.changes.answered(pending.asked);
        self.early.answered(self.changes.oldest_question());
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
            let held = self.inodes.get(inode).is_some_and(|inode| inode.bits_since(asked, &[]) & bits != 0);
            !held || !self.changes.name_holds(*parent, name, asked, &question.changes)
        })
    }

    /// Inodes that lost a name, and probably their last: their locks are given back.
    fn without_names(&mut self, question: &Question, reply: &MdtReply) -> Vec<LockHandle> {
        match (&question.asked, reply) {
            (Asked::Unlinked(_, _, Some(inode)) | Asked::Renamed(Some(inode)), MdtReply::Done) => self.give_up(*inode),
            _ => Vec::new(),
        }
    }

    /// Takes over the locks that came with a reply; returns those that are held from now on.
    fn take_grants(&mut self, reply: &Reply<'_>, cancelled: &mut Vec<LockHandle>) -> Vec<LockHandle> {
        // Locks of another connection ended with it.
        if self.connection != Some(reply.connection) {
            return Vec::new();
        }
        let since = self.changes.next_question();
        let mut held = Vec::with_capacity(reply.granted.len());
        for Granted { handle, resource, .. } in reply.granted {
            match resource {
                _ if self.early.contains(*handle) || self.handles.contains_key(handle) => {}
                Resource::Inode(number, bits) if self.locks_max > 0 => {
                    let inode = self.inodes.entry(*number).or_default();
                    inode.grant(*handle, *bits, since);
                    self.recency.use_now(*number, &mut inode.used);
                    self.handles.insert(*handle, *number);
                    held.push(*handle);
                }
                Resource::Inode(..) | Resource::Object(..) => cancelled.push(*handle),
            }
        }
        held
    }

    fn used(&mut self, number: InodeNumber) {
        if let Some(inode) = self.inodes.get_mut(&number) {
            self.recency.use_now(number, &mut inode.used);
        }
    }

    /// What is known of an inode's permissions.
    fn permissions(&self, inode: InodeNumber) -> Option<CachedAttributes> {
        let known = self.inodes.get(&inode)?.attributes?;
        self.changes.permissions_settled(inode).then_some(known)
    }

    /// The answer to a lookup, if it is known. `written` as in [`InodeCache::ask`].
    pub fn lookup(
        &mut self,
        who: &Credentials,
        (parent, name): (InodeNumber, &[u8]),
        written: impl Fn(InodeNumber) -> bool,
    ) -> Option<FsResult<Attributes>> {
        let directory = self.permissions(parent)?;
        let is_special = matches!(name, b"." | b"..") || name.len() > NAME_BYTES_MAX;
        if is_special || directory.permissions().kind != FileKind::Directory {
            return None;
        }
        if let Err(error) = directory.access(who, permission::EXECUTE)?.or(FsError::AccessDenied) {
            return Some(Err(error));
        }
        let known = self.names.find(parent, name).filter(|_| self.changes.name_settled(parent, name))?;
        self.used(parent);
        match known {
            Name::Leads(inode) => self.attributes(inode, written).map(Ok),
            Name::Missing => Some(Err(FsError::NotFound)),
        }
    }

    /// All attributes of an inode, if they are known. `written` as in [`InodeCache::ask`].
    pub fn attributes(&mut self, number: InodeNumber, written: impl Fn(InodeNumber) -> bool) -> Option<Attributes> {
        let known = *self.inodes.get(&number)?.attributes.as_ref()?.exact(self.epoch)?;
        if !self.changes.attributes_settled(number) || written(number) {
            return None;
        }
        self.used(number);
        Some(known)
    }

    /// The answer to access(2), if it is known.
    pub fn access(&mut self, who: &Credentials, inode: InodeNumber, mask: u32) -> Option<FsResult<()>> {
        // Whether something can be written depends on more than permissions.
        if mask & !(permission::READ | permission::EXECUTE) != 0 {
            return None;
        }
        let decision = self.permissions(inode)?.access(who, mask)?;
        self.used(inode);
        Some(decision.or(FsError::AccessDenied))
    }

    /// The target of a symbolic link, if it is known and reading it does not change the access time.
    pub fn target(&mut self, number: InodeNumber, wall: Timestamp) -> Option<Vec<u8>> {
        let attributes = self.attributes(number, |_| false)?;
        let target = self.inodes.get(&number)?.target.clone()?;
        is_access_fresh(&attributes, wall).then_some(target)
    }

    /// The value of an extended attribute that everybody may read, or that it does not exist.
    pub fn xattr(&mut self, number: InodeNumber, name: &[u8]) -> Option<FsResult<Vec<u8>>> {
        if !self.changes.permissions_settled(number) {
            return None;
        }
        let value = self.inodes.get(&number)?.xattr(name)?.map(<[u8]>::to_vec);
        self.used(number);
        Some(value.ok_or(FsError::NoData))
    }
}

/// Whether reading something does not change its access time (relatime, as the MDT decides it), with
/// room for clocks that differ.
fn is_access_fresh(attributes: &Attributes, wall: Timestamp) -> bool {
    const FRESH_SECONDS: u64 = 12 * 60 * 60;
    attributes.atime > attributes.mtime
        && attributes.atime > attributes.ctime
        && wall.seconds.abs_diff(attributes.atime.seconds) < FRESH_SECONDS
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

/// Keeps what one answer says.
struct Keeper<'a> {
    cache: &'a mut InodeCache,
    question: &'a Question,
    asked: Moment,
    granted: &'a [LockHandle],
}

impl Keeper<'_> {
    /// Whether the answer was given while this client had these bits.
    fn covers(&self, inode: InodeNumber, bits: u32) -> bool {
        let inode = self.cache.inodes.get(&inode);
        inode.is_some_and(|inode| inode.bits_since(self.asked, self.granted) & bits == bits)
    }

    /// Whether nothing of the inode but its times can have changed since.
    fn holds(&self, inode: InodeNumber) -> bool {
        self.cache.changes.permissions_hold(inode, self.asked, &self.question.changes)
    }

    fn keep(&mut self, reply: &MdtReply) {
        match (&self.question.asked, reply) {
            (Asked::Name(parent, name) | Asked::Linked(parent, name), MdtReply::Entry(entry)) => {
                self.keep_name(*parent, name, entry);
                self.keep_entry(entry, true);
            }
            (Asked::Attributes(_), MdtReply::Entry(entry)) => self.keep_entry(entry, true),
            (Asked::Created(parent, name, flags), MdtReply::Created(created)) => {
                self.keep_name(*parent, name, &created.entry);
                self.keep_entry(&created.entry, !changes_data(*flags));
                if created.created && created.entry.attributes.kind == FileKind::Directory {
                    self.keep_complete(created.entry.attributes.inode);
                }
            }
            (Asked::Opened(flags), MdtReply::Opened(opened)) => self.keep_entry(&opened.entry, !changes_data(*flags)),
            (Asked::Target(inode), MdtReply::Target(target)) => self.keep_target(*inode, target),
            (Asked::Xattr(inode, name), MdtReply::Value(value)) => self.keep_xattr(*inode, name, Some(value)),
            (Asked::Unlinked(parent, name, _), MdtReply::Done) => self.keep_missing(*parent, name),
            _ => {}
        }
    }

    fn keep_absence(&mut self, error: &FsError) {
        match (&self.question.asked, error) {
            (Asked::Name(parent, name), FsError::NotFound) => self.keep_missing(*parent, name),
            (Asked::Xattr(inode, name), FsError::NoData) => self.keep_xattr(*inode, name, None),
            _ => {}
        }
    }

    fn keep_name(&mut self, parent: InodeNumber, name: &[u8], entry: &Entry) {
        let inode = entry.attributes.inode;
        if self.covers(inode, inode_bit::LOOKUP)
            && self.cache.changes.name_holds(parent, name, self.asked, &self.question.changes)
        {
            self.cache.names.lead(parent, name, inode);
        }
    }

    fn keep_missing(&mut self, parent: InodeNumber, name: &[u8]) {
        let complete = self.cache.names.is_complete(parent) && self.covers(parent, inode_bit::ATTRIBUTES);
        if (complete || self.covers(parent, inode_bit::DIRECTORY))
            && self.cache.changes.name_holds(parent, name, self.asked, &self.question.changes)
        {
            self.cache.names.miss(parent, name);
        }
    }

    /// A new directory has no names that this client does not know.
    fn keep_complete(&mut self, inode: InodeNumber) {
        if self.covers(inode, inode_bit::ATTRIBUTES)
            && self.cache.changes.attributes_hold(inode, self.asked, &self.question.changes)
        {
            self.cache.names.complete(inode);
        }
    }

    /// An inode without a name may be gone at any time.
    fn keep_entry(&mut self, entry: &Entry, exact: bool) {
        let inode = entry.attributes.inode;
        if entry.attributes.links > 0 && self.covers(inode, inode_bit::ATTRIBUTES) && self.holds(inode) {
            let exact = exact && self.cache.changes.attributes_hold(inode, self.asked, &self.question.changes);
            let exact = exact.then_some(self.cache.epoch);
            self.cache.inode(inode).keep(entry, exact);
        }
    }

    fn keep_target(&mut self, inode: InodeNumber, target: &[u8]) {
        if self.covers(inode, inode_bit::ATTRIBUTES) && self.holds(inode) {
            self.cache.inode(inode).target = Some(target.to_vec());
        }
    }

    fn keep_xattr(&mut self, inode: InodeNumber, name: &[u8], value: Option<&[u8]>) {
        if self.covers(inode, inode_bit::XATTRS) && self.holds(inode) {
            self.cache.inode(inode).keep_xattr(name, value);
        }
    }
}

#[cfg(test)]
#[path = "inode_cache_tests.rs"]
mod tests;

#[cfg(test)]
#[path = "inode_cache_model.rs"]
mod model;
