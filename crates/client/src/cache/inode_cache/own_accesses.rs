//! Accesses that this client decides, and notes if they change an access time.

use rpc::message::{
    lock::inode_bit,
    mdt::{Access, NotedAccess},
};
use types::{Attributes, FileKind, InodeNumber, LockHandle, Timestamp, access_time};

use super::InodeCache;
use crate::cache::{
    accesses::Order,
    queries::{CLOCK_SECONDS, is_access_fresh},
    subject::Subject,
};

impl InodeCache {
    /// Something is read whose attributes are known, at this moment by this client's clock: notes
    /// the access if it changes the access time. False: the MDT is to be asked, which sets it.
    pub(in crate::cache) fn accessed(&mut self, number: InodeNumber, known: &mut Attributes, wall: Timestamp) -> bool {
        if is_access_fresh(known, wall) {
            return true;
        }
        let Some(inode) = self.inodes.get_mut(&number) else { return false };
        let lock = inode.locks().find(|(_, bits)| bits.0 & inode_bit::ATTRIBUTES != 0);
        let (Some((lock, _)), true) = (lock, self.accesses.has_room()) else { return false };
        let may_read = known.kind == FileKind::Symlink || inode.bits().0 & inode_bit::OPEN != 0;
        // It comes after the last change, even if the clock of this host is behind.
        let at = wall.max(known.mtime.next()).max(known.ctime.next());
        let is_clock_far_off = at.seconds.abs_diff(wall.seconds) > CLOCK_SECONDS;
        // Where the MDT may decide otherwise, it is asked.
        if !may_read || is_clock_far_off || at <= known.atime || access_time::is_fresh(known, at) {
            return false;
        }
        known.atime = at;
        inode.set_access_time(at);
        self.accesses.note(number, lock, at);
        true
    }

    /// Whether the MDT takes accesses on the present connection.
    pub fn set_accesses_supported(&mut self, is_supported: bool) {
        self.accesses.set_supported(is_supported);
        if !is_supported {
            self.drop_accesses();
        }
    }

    /// The MDT will not be told of any access so far.
    pub(super) fn drop_accesses(&mut self) {
        for inode in self.accesses.clear() {
            self.doubt_access(inode);
        }
    }

    /// The same of those that were noted under a lock that ended.
    pub(super) fn forget_access(&mut self, inode: InodeNumber, lock: LockHandle) {
        if self.accesses.forget(inode, lock) {
            self.doubt_access(inode);
        }
    }

    /// An access does not count: another client may have set the access time since. It was shown
    /// with replies, too, which are kept under whatever lock came with them.
    fn doubt_access(&mut self, inode: InodeNumber) {
        if let Some(cached) = self.inodes.get_mut(&inode) {
            cached.forget_times();
        }
        self.versions.doubt(inode);
        self.changes.note(&[Subject::Times(inode)]);
    }

    /// The next accesses that the MDT is told of, of those until `last`.
    pub fn begin_telling_accesses(&mut self, last: Order) -> Vec<Access> {
        self.accesses.begin_sending(last)
    }

    /// The MDT knows of these accesses: of each, the inode after it, or that the lock was gone.
    pub fn told_accesses(&mut self, told: &[Access], noted: &[Option<NotedAccess>]) {
        for (access, noted) in told.iter().zip(noted) {
            let number = access.inode;
            let is_lost = self.accesses.answered(access, noted.is_some());
            let cached = self.inodes.get_mut(&number).filter(|inode| inode.handles().any(|held| held == access.lock));
            match noted {
                Some(noted) => {
                    if let Some(inode) = cached {
                        inode.version = inode.version.max(noted.version);
                        inode.correct_access_time(access.time, noted.time);
                    } else if noted.time != access.time {
                        self.doubt_access(number);
                    }
                    // What is on its way may be from before.
                    self.versions.doubt(number);
                    self.changes.note(&[Subject::Times(number)]);
                }
                None if is_lost => self.doubt_access(number),
                None => {}
            }
        }
    }

    /// The MDT may not know of what it was told last: it is told again, if it can be and the locks
    /// are held.
    pub fn failed_to_tell_accesses(&mut self, may_repeat: bool) {
        let Self { inodes, accesses, .. } = self;
        let is_held = |number: InodeNumber, lock: LockHandle| {
            inodes.get(&number).is_some_and(|inode| inode.handles().any(|held| held == lock))
        };
        for inode in accesses.failed(|number, lock| may_repeat && is_held(number, lock)) {
            self.doubt_access(inode);
        }
    }
}
