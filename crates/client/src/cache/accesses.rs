//! Accesses that this client made without asking the MDT and that change an access time, until the
//! MDT knows of them.
//!
//! ```text
//! noted -> waiting (at most a second) -> sent -> answered
//! ```
//!
//! An access is noted under the lock on the attributes under which it was decided, and shown here
//! at once. The MDT takes it only under that lock, and one on opens. So no lock on the inode is
//! given back before the answer ([`super::cancels`]): then no other client can set the access time
//! in between, and nothing that this client shows later has an earlier one. What the MDT shows
//! meanwhile does not have it yet: [`Accesses::show`] adds it.
//!
//! Accesses are numbered in the order in which they are noted, so that the return of a lock waits
//! for those before it only, however many are noted meanwhile.
//!
//! Downside: what was not sent is lost with the client, and with a connection, unless the lock is
//! claimed on the next one.

use std::collections::BTreeMap;

use rpc::message::{
    CompoundReply, MdtReply, ReplyExtension, StepReply,
    mdt::{Access, Entry},
};
use types::{InodeNumber, LockHandle, Timestamp, access_time, limits::ACCESSES_PER_MESSAGE_MAX};

/// Accesses that wait. Beyond that the MDT is asked, which sets the access time.
const WAITING_MAX: usize = 4096;

/// How many accesses were noted before one, and with it. One that replaces another keeps its order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Order(u64);

#[derive(Clone, Copy, Debug)]
struct Noted {
    lock: LockHandle,
    at: Timestamp,
    order: Order,
}

/// What is to be done about accesses that wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Due {
    /// Nothing.
    Nothing,
    /// They are to be sent in a while.
    Later,
    /// They fill a request.
    Now,
}

/// See the module documentation.
#[derive(Debug)]
pub(crate) struct Accesses {
    /// The MDT takes them.
    is_supported: bool,
    waiting: BTreeMap<InodeNumber, Noted>,
    sent: BTreeMap<InodeNumber, Noted>,
    last: Order,
    /// A task sends what waits in a while.
    is_scheduled: bool,
    due: Due,
}

impl Default for Accesses {
    fn default() -> Self {
        let (waiting, sent) = (BTreeMap::new(), BTreeMap::new());
        Self { is_supported: false, waiting, sent, last: Order(0), is_scheduled: false, due: Due::Nothing }
    }
}

impl Accesses {
    /// Whether the MDT takes others from now on.
    pub fn set_supported(&mut self, is_supported: bool) {
        self.is_supported = is_supported;
    }

    /// Whether another one may be noted.
    pub fn has_room(&self) -> bool {
        self.is_supported && self.waiting.len() < WAITING_MAX
    }

    /// An access under a lock on the attributes of the inode.
    pub fn note(&mut self, inode: InodeNumber, lock: LockHandle, at: Timestamp) {
        assert!(self.has_room(), "an access is noted if the MDT takes it");
        self.last.0 += 1;
        let order = self.waiting.get(&inode).map_or(self.last, |former| former.order);
        self.waiting.insert(inode, Noted { lock, at, order });
        if self.waiting.len().is_multiple_of(ACCESSES_PER_MESSAGE_MAX) {
            self.due = Due::Now;
        } else if !self.is_scheduled && self.due == Due::Nothing {
            self.due = Due::Later;
        }
    }

    /// What the caller has to do; asked after each use of the cache.
    pub fn take_due(&mut self) -> Due {
        let due = std::mem::replace(&mut self.due, Due::Nothing);
        self.is_scheduled |= due == Due::Later;
        due
    }

    /// Whether the caller has to do anything.
    pub fn is_due(&self) -> bool {
        self.due != Due::Nothing
    }

    /// The task that sends them in a while ends, unless there are any again.
    pub fn ends_schedule(&mut self) -> bool {
        self.is_scheduled = !self.waiting.is_empty();
        !self.is_scheduled
    }

    /// Whether there are any of which the MDT does not know.
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty() && self.sent.is_empty()
    }

    /// Whether the MDT does not know of an access to this inode.
    pub fn has(&self, inode: InodeNumber) -> bool {
        self.waiting.contains_key(&inode) || self.sent.contains_key(&inode)
    }

    /// The last one that was noted.
    pub fn last(&self) -> Order {
        self.last
    }

    /// The next ones to be sent, of those until `last`.
    pub fn begin_sending(&mut self, last: Order) -> Vec<Access> {
        assert!(self.sent.is_empty(), "they are sent one request after the other");
        let next = self.waiting.extract_if(.., |_, noted| noted.order <= last);
        self.sent.extend(next.take(ACCESSES_PER_MESSAGE_MAX));
        let access =
            |(inode, Noted { lock, at, .. }): (&InodeNumber, &Noted)| Access { inode: *inode, lock: *lock, time: *at };
        self.sent.iter().map(access).collect()
    }

    /// One that was sent waits again; a later one replaces it.
    fn wait_again(&mut self, inode: InodeNumber, noted: Noted) {
        let waiting = self.waiting.entry(inode).or_insert(noted);
        waiting.order = waiting.order.min(noted.order);
    }

    /// The MDT took or refused one. True if it was refused and is not to be sent again: because it
    /// was sent under a handle that has changed since.
    pub fn answered(&mut self, access: &Access, is_taken: bool) -> bool {
        match self.sent.remove(&access.inode) {
            Some(noted) if !is_taken && noted.lock != access.lock => {
                self.wait_again(access.inode, noted);
                false
            }
            _ => !is_taken,
        }
    }

    /// What was sent may not have arrived: it is sent again if `is_held` says that its lock is.
    /// Returns the inodes of the others.
    pub fn failed(&mut self, is_held: impl Fn(InodeNumber, LockHandle) -> bool) -> Vec<InodeNumber> {
        let mut dropped = Vec::new();
        for (inode, noted) in std::mem::take(&mut self.sent) {
            match is_held(inode, noted.lock) {
                true => self.wait_again(inode, noted),
                false => dropped.push(inode),
            }
        }
        dropped
    }

    /// A lock has another handle from now on.
    pub fn renewed(&mut self, inode: InodeNumber, former: LockHandle, handle: LockHandle) {
        for table in [&mut self.waiting, &mut self.sent] {
            if let Some(noted) = table.get_mut(&inode).filter(|noted| noted.lock == former) {
                noted.lock = handle;
            }
        }
    }

    /// A lock ended without this client. Whether an access is dropped with it.
    pub fn forget(&mut self, inode: InodeNumber, lock: LockHandle) -> bool {
        let mut has_dropped = false;
        for table in [&mut self.waiting, &mut self.sent] {
            if table.get(&inode).is_some_and(|noted| noted.lock == lock) {
                table.remove(&inode);
                has_dropped = true;
            }
        }
        has_dropped
    }

    /// All of them are dropped. Returns their inodes.
    pub fn clear(&mut self) -> Vec<InodeNumber> {
        let waiting = std::mem::take(&mut self.waiting).into_keys();
        waiting.chain(std::mem::take(&mut self.sent).into_keys()).collect()
    }

    /// The MDT may have made a reply before it knew of accesses.
    pub fn show(&self, reply: &mut MdtReply, beside: &mut ReplyExtension) {
        if self.is_empty() {
            return;
        }
        beside.changed.iter_mut().for_each(|entry| self.show_in(entry));
        match reply {
            MdtReply::Entry(entry) => self.show_in(entry),
            MdtReply::Opened(opened) => self.show_in(&mut opened.entry),
            MdtReply::Created(created) => {
                self.show_in(&mut created.entry);
                created.opened.iter_mut().for_each(|opened| self.show_in(&mut opened.entry));
            }
            MdtReply::Directory(page, _) => {
                page.iter_mut().filter_map(|found| found.entry.as_mut()).for_each(|entry| self.show_in(entry));
            }
            MdtReply::Compound(CompoundReply { replies, .. }) => replies.iter_mut().for_each(|step| match step {
                StepReply::Entry(entry) => self.show_in(entry),
                StepReply::Opened(opened) => self.show_in(&mut opened.entry),
                StepReply::Created(created) => self.show_in(&mut created.entry),
                _ => {}
            }),
            _ => {}
        }
    }

    /// As the MDT decides it.
    fn show_in(&self, entry: &mut Entry) {
        let attributes = &mut entry.attributes;
        for table in [&self.sent, &self.waiting] {
            if let Some(Noted { at, .. }) = table.get(&attributes.inode)
                && *at > attributes.atime
                && !access_time::is_fresh(attributes, *at)
            {
                attributes.atime = *at;
            }
        }
    }
}

#[cfg(test)]
#[path = "accesses_tests.rs"]
mod tests;
