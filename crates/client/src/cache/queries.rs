//! What is served from the cache: each answer is what the MDT would answer at this moment, because
//! the locks that protect it are held, and no change by this client that concerns it is under way.

use std::sync::Arc;

use bytes::Bytes;
use layout::Layout;
use rpc::message::{
    lock::{InodeBits, inode_bit},
    mdt::DirectoryEntry,
};
use types::{
    Attributes, Credentials, FileKind, FsError, FsResult, InodeNumber, LockHandle, ObjectId, Timestamp, access_time,
    limits::NAME_BYTES_MAX,
    permission::{self, Decision},
};

use crate::{entry_attributes::EntryAttributes, upper_cache::SpanNumber};

use super::{
    cached_inode::{Base, CachedAttributes, CachedInode},
    inode_cache::InodeCache,
    listings::Listed,
    name_table::Name,
    own_changes::Moment,
    recency::{ONCE_PART, UseMoment},
    statahead::{Looked, Step},
};

/// By how much the clocks of this host and of the MDT may differ, as far as access times are
/// concerned: half of what makes them stale.
pub(super) const CLOCK_SECONDS: u64 = 12 * 60 * 60;

/// So many pages that are asked for ahead fit, at least.
const PAGES_IN_ROOM: usize = 4;

/// Names of a directory, with attributes where they were asked for, and whether it ends after them.
pub(crate) type CachedPage = (Vec<(Listed, Option<Attributes>)>, bool);

/// A lock that was held at a moment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HeldAt {
    lock: LockHandle,
    moment: Moment,
}

impl InodeCache {
    /// What is known of an inode's permissions.
    pub(super) fn permissions(&self, inode: InodeNumber) -> Option<CachedAttributes> {
        let known = self.inodes.get(&inode)?.attributes?;
        self.changes.permissions_stable(inode).then_some(known)
    }

    /// The answer to a lookup, if it is known. `written` as in [`InodeCache::ask`].
    pub fn lookup(
        &mut self,
        who: &Credentials,
        (parent, name): (InodeNumber, &[u8]),
        written: impl Fn(InodeNumber) -> bool,
    ) -> Option<FsResult<Attributes>> {
        if let Err(error) = self.search(who, parent, name)? {
            return Some(Err(error));
        }
        let known = self.names.find(parent, name).filter(|_| self.changes.name_stable(parent, name))?;
        self.used(parent);
        match known {
            Name::Leads(inode) => self.attributes(inode, written).map(Ok),
            Name::Missing => Some(Err(FsError::NotFound)),
        }
    }

    /// Whether a name may be looked up, if that is known.
    fn search(&self, who: &Credentials, parent: InodeNumber, name: &[u8]) -> Option<FsResult<()>> {
        let directory = self.permissions(parent)?;
        let is_special = matches!(name, b"." | b"..") || name.len() > NAME_BYTES_MAX;
        if is_special || directory.permissions().kind != FileKind::Directory {
            return None;
        }
        Some(directory.access(who, permission::EXECUTE)?.or(FsError::AccessDenied))
    }

    /// The inode on another MDT to which a name leads, if that is known and it may be looked up.
    pub fn lookup_elsewhere(&mut self, who: &Credentials, parent: InodeNumber, name: &[u8]) -> Option<InodeNumber> {
        self.search(who, parent, name)?.ok()?;
        let inode = self.names.find_elsewhere(parent, name).filter(|_| self.changes.name_stable(parent, name))?;
        self.used(parent);
        Some(inode)
    }

    /// All attributes of an inode, if they are known. `written` as in [`InodeCache::ask`].
    pub fn attributes(&mut self, number: InodeNumber, written: impl Fn(InodeNumber) -> bool) -> Option<Attributes> {
        let known = *self.inodes.get(&number)?.attributes.as_ref()?.exact(self.epoch)?;
        if !self.changes.attributes_stable(number) || written(number) {
            return None;
        }
        self.used(number);
        Some(known)
    }

    /// Whether shards add to attributes that were found here.
    pub fn is_striped(&self, found: &Attributes) -> bool {
        let known = || self.inodes.get(&found.inode)?.attributes.as_ref();
        found.kind == FileKind::Directory && known().is_some_and(CachedAttributes::is_striped)
    }

    /// Permissions and owner of an inode, if they are known: the rest may be outdated.
    pub fn permissions_of(&self, inode: InodeNumber) -> Option<Attributes> {
        self.permissions(inode).map(|known| *known.permissions())
    }

    /// The layout of a file, if it is known.
    pub fn layout(&mut self, number: InodeNumber) -> Option<Arc<Layout>> {
        let layout = self.inodes.get(&number)?.layout.clone()?;
        if !self.changes.layout_stable(number) {
            return None;
        }
        self.used(number);
        Some(layout)
    }

    /// Bytes of an object on the MDT from `offset` on, fewer than asked for only at its end, and
    /// its size, if they are known.
    pub fn data(&mut self, object: ObjectId, offset: u64, bytes: u64) -> Option<(Bytes, u64)> {
        if !self.changes.data_stable(object.inode) {
            return None;
        }
        let found = self.small_files.read(object, offset, bytes, self.epoch)?;
        self.used(object.inode);
        Some(found)
    }

    /// What the MDT knows of a file that this client alone has open for writing.
    pub fn base(&mut self, number: InodeNumber) -> Option<Base> {
        let base = self.inodes.get(&number)?.base(self.epoch)?.clone();
        if !self.changes.attributes_stable(number) {
            return None;
        }
        self.used(number);
        Some(base)
    }

    /// Whether a name is known to lead to this inode.
    pub fn leads(&self, parent: InodeNumber, name: &[u8], inode: InodeNumber) -> bool {
        self.names.find(parent, name) == Some(Name::Leads(inode)) && self.changes.name_stable(parent, name)
    }

    /// Whether a name is known to lead to this inode on another MDT.
    pub fn leads_elsewhere(&self, parent: InodeNumber, name: &[u8], inode: InodeNumber) -> bool {
        self.names.find_elsewhere(parent, name) == Some(inode) && self.changes.name_stable(parent, name)
    }

    /// A lock that is held and covers the names of an inode, at this moment.
    pub fn lock_on_names_of(&self, inode: InodeNumber) -> Option<HeldAt> {
        let lock = self.inodes.get(&inode)?.lock_on(InodeBits(inode_bit::LOOKUP))?;
        Some(HeldAt { lock, moment: self.changes.next_question() })
    }

    /// After this moment, a name on another MDT led to this inode: it does as long as the lock is
    /// held. The MDT of the inode does not ask this client for it where this client makes a change
    /// that the same MDT decides; so not if it has asked there for anything since.
    pub fn learn_name(&mut self, parent: InodeNumber, name: &[u8], inode: InodeNumber, held: HeldAt) {
        let is_held = |cached: &CachedInode| cached.locks().any(|(handle, _)| handle == held.lock);
        let has_asked = self.changes.next_question() != held.moment;
        if !has_asked && self.inodes.get(&inode).is_some_and(is_held) && self.changes.name_stable(parent, name) {
            self.names.lead(parent, name, inode);
        }
    }

    /// The inode to which a name leads, if it is known.
    pub fn target_of(&self, parent: InodeNumber, name: &[u8]) -> Option<InodeNumber> {
        match self.names.find(parent, name)? {
            Name::Leads(inode) => Some(inode).filter(|inode| self.leads(parent, name, *inode)),
            Name::Missing => None,
        }
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

    /// Whether permissions let this user change names in a directory, if that is known: other
    /// reasons may forbid it.
    pub fn may_change_names(&self, who: &Credentials, directory: InodeNumber) -> Option<bool> {
        match self.permissions(directory)?.access(who, permission::WRITE | permission::EXECUTE)? {
            Decision::Allow => Some(true),
            Decision::Deny => Some(false),
            Decision::GroupsNeeded => None,
        }
    }

    /// The target of a symbolic link, if it is known and the MDT need not be asked to change the
    /// access time.
    pub fn target(&mut self, number: InodeNumber, wall: Timestamp) -> Option<Vec<u8>> {
        let mut attributes = self.attributes(number, |_| false)?;
        let target = self.inodes.get(&number)?.target.clone()?;
        self.accessed(number, &mut attributes, wall).then_some(target)
    }

    /// The value of an extended attribute that every user may read, or that it does not exist.
    pub fn xattr(&mut self, number: InodeNumber, name: &[u8]) -> Option<FsResult<Vec<u8>>> {
        if !self.changes.permissions_stable(number) {
            return None;
        }
        let value = self.inodes.get(&number)?.xattr(name)?.map(<[u8]>::to_vec);
        self.used(number);
        Some(value.ok_or(FsError::NoData))
    }

    /// The names of all extended attributes as a user sees them, if they are known. `written` as in
    /// [`InodeCache::ask`].
    pub fn xattr_names(
        &mut self,
        who: &Credentials,
        number: InodeNumber,
        written: impl Fn(InodeNumber) -> bool,
    ) -> Option<Vec<Vec<u8>>> {
        if !self.changes.permissions_stable(number) || written(number) {
            return None;
        }
        let names = self.inodes.get(&number)?.xattr_names(who.is_root())?.to_vec();
        self.used(number);
        Some(names)
    }

    /// A page of a directory, if it is known, with attributes where they were asked for. `wall`:
    /// the present time; `None`: reading does not change the access time.
    pub fn page(
        &mut self,
        (directory, cookie): (InodeNumber, u64),
        entries_max: usize,
        wanted: EntryAttributes,
        wall: Option<Timestamp>,
        written: impl Fn(InodeNumber) -> bool,
    ) -> Option<CachedPage> {
        if !self.changes.listing_stable(directory) {
            return None;
        }
        let accessed = match wall.filter(|_| cookie == 0) {
            Some(wall) => Some((self.attributes(directory, |_| false)?, wall)),
            None => None,
        };
        let (page, is_end) = self.listings.page(directory, cookie, entries_max, self.epoch)?;
        self.used(directory);
        let complete = |listed: Listed| {
            // As in the page of the MDT: it does not know attributes of inodes on others.
            let is_here = listed.inode.mdt() == directory.mdt();
            let is_wanted = is_here && wanted.includes(listed.kind) && !matches!(&*listed.name, b"." | b"..");
            let attributes = if is_wanted { Some(self.attributes(listed.inode, &written)?) } else { None };
            Some((listed, attributes.filter(|found| !self.is_striped(found))))
        };
        let page = page.into_iter().map(complete).collect::<Option<_>>()?;
        if let Some((mut attributes, wall)) = accessed
            && !self.accessed(directory, &mut attributes, wall)
        {
            return None;
        }
        Some((page, is_end))
    }

    /// The number of the time for which the listing of a directory has been covered by locks and
    /// not changed. `None`: it is not covered, or changes.
    pub fn span(&self, directory: InodeNumber) -> Option<SpanNumber> {
        let span = self.inodes.get(&directory).filter(|_| self.connection.is_some())?.span;
        let is_stable = span != 0 && self.changes.listing_stable(directory);
        is_stable.then_some(SpanNumber(span, self.epoch))
    }

    /// The same, if names that the MDT showed after a cookie are kept as part of the listing: then
    /// they are those of this time. `page`: the names, and whether the directory ends after them.
    pub fn span_of_page(
        &self,
        (directory, cookie): (InodeNumber, u64),
        (page, is_end): (&[DirectoryEntry], bool),
    ) -> Option<SpanNumber> {
        let mut kept = self.listings.begun(directory, cookie, self.epoch)?;
        let is_listed = |found: &DirectoryEntry| {
            kept.next().is_some_and(|Listed { name, inode, kind, cookie }| {
                (&**name, inode, kind, cookie) == (&*found.name, &found.inode, &found.kind, &found.cookie)
            })
        };
        let is_kept = page.iter().all(is_listed) && (!is_end || kept.next().is_none());
        self.span(directory).filter(|_| is_kept)
    }

    /// Whether reading a directory changes no access time of it.
    pub fn is_read_unseen(&mut self, directory: InodeNumber, wall: Timestamp) -> bool {
        self.attributes(directory, |_| false).is_some_and(|known| is_access_fresh(&known, wall))
    }

    /// A name is about to be asked for: what is to be asked for instead, at most `names_max` names.
    /// `None`: the names of the directory are not known, or this one is known, and the MDT decides
    /// whether it may be looked up.
    pub fn ahead(&mut self, directory: InodeNumber, name: &[u8], names_max: u32) -> Option<Step> {
        if !self.changes.listing_stable(directory) {
            return None;
        }
        let room = self.room_ahead();
        let names_max = names_max.min(u32::try_from(room / PAGES_IN_ROOM).unwrap_or(u32::MAX));
        let has_room = self.recency.ahead() + names_max as usize <= room;
        let Self { inodes, names, listings, statahead, recency, epoch, .. } = self;
        let is_known = |inode: InodeNumber| {
            let known = inodes.get(&inode).and_then(|inode| inode.attributes.as_ref());
            known.is_some_and(|known| known.exact(*epoch).is_some())
        };
        if names.find(directory, name).and_then(Name::inode).is_some_and(is_known) {
            return None;
        }
        let (entries, index) = listings.so_far(directory, *epoch)?;
        if !has_room {
            recency.missed();
        }
        let is_useful = recency.ahead_is_useful();
        Some(statahead.step(directory, Looked { name, entries, index, names_max, has_room, is_useful, is_known }))
    }

    /// How many inodes that were asked for ahead may wait for their use: as many as fit beside
    /// listings and what was used.
    fn room_ahead(&self) -> usize {
        self.room_for_inodes() * (ONCE_PART - 1) / ONCE_PART
    }

    /// A moment from which on locks may come with what was asked for ahead.
    pub fn use_moment(&self) -> UseMoment {
        self.recency.moment()
    }

    /// A page that was asked for ahead at a moment has come.
    pub fn expect(&mut self, page: &[DirectoryEntry], since: UseMoment) {
        for entry in page.iter().filter(|entry| !matches!(&*entry.name, b"." | b"..")) {
            if let Some(inode) = self.inodes.get_mut(&entry.inode) {
                self.recency.expect(entry.inode, &mut inode.uses, since);
            }
        }
    }
}

/// Whether reading something does not change its access time (relatime, as the MDT decides it),
/// with room for clocks that differ.
pub(super) fn is_access_fresh(attributes: &Attributes, wall: Timestamp) -> bool {
    access_time::is_fresh(attributes, wall) && wall.seconds.abs_diff(attributes.atime.seconds) < CLOCK_SECONDS
}
