//! What is cached of one inode, besides the names that lead to it, and under which locks.
//!
//! Invariant: everything here is under a lock that is held; it goes with the lock.

use std::{collections::BTreeMap, sync::Arc};

use layout::Layout;
use rpc::message::{
    lock::{InodeBits, inode_bit},
    mdt::Entry,
};
use types::{
    Attributes, Credentials, LockHandle, Timestamp,
    permission::{self, Decision},
};

use super::{own_changes::Moment, question::is_public, recency::Uses};

/// Extended attributes of one inode that are kept, and the bytes of a value.
const XATTRS_MAX: usize = 8;
const XATTR_VALUE_BYTES_MAX: usize = 256;

/// What covers the listing of a directory: the directory above it (`..`) is one of its attributes.
pub(super) const LISTING_BITS: u32 = inode_bit::DIRECTORY | inode_bit::ATTRIBUTES;

/// A lock that this client holds.
#[derive(Clone, Copy, Debug)]
struct Held {
    handle: LockHandle,
    bits: u32,
    /// Questions that were asked later are answered while it is held.
    since: Moment,
}

/// Attributes, and what else permissions depend on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CachedAttributes {
    attributes: Attributes,
    /// There is an access list, which is not cached.
    access_list: bool,
    /// Of a directory with shards, which add to them.
    is_striped: bool,
    /// Times, size and links are as the MDT has them, as long as this is the present [`Epoch`].
    exact: Option<Epoch>,
}

/// The attribute in which Linux keeps a file's capabilities.
pub const CAPABILITIES_NAME: &[u8] = b"security.capability";

/// What gives those rights who execute a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Privileges {
    /// It may have set-id bits.
    pub set_id: bool,
    /// It may have capabilities.
    pub capabilities: bool,
}

/// How often this client changed attributes of inodes that it could not name.
pub(crate) type Epoch = u64;

impl CachedAttributes {
    /// Whether a user may do this; `None`: the MDT has to be asked.
    pub fn access(&self, who: &Credentials, wanted: u32) -> Option<Decision> {
        let known = !self.access_list || permission::owns(who, &self.attributes);
        known.then(|| permission::access(who, &self.attributes, None, wanted))
    }

    /// The attributes without times, size and links.
    pub fn permissions(&self) -> &Attributes {
        &self.attributes
    }

    /// Whether shards add to them.
    pub fn is_striped(&self) -> bool {
        self.is_striped
    }

    /// All attributes, if all are known in this epoch.
    pub fn exact(&self, epoch: Epoch) -> Option<&Attributes> {
        (self.exact == Some(epoch)).then_some(&self.attributes)
    }
}

/// What the MDT knows of a file whose data only this client changes.
#[derive(Clone, Debug)]
pub(crate) struct Base {
    /// As it was told last.
    pub entry: Entry,
    /// The write epoch in which the MDT told it.
    pub write_epoch: u64,
    known_in: Epoch,
}

/// See the module documentation.
#[derive(Debug, Default)]
pub(crate) struct CachedInode {
    locks: Vec<Held>,
    /// The highest version that was told since the locks are held: what is known is true as of it.
    /// 0: none was.
    pub version: u64,
    /// The time for which the listing of a directory has been covered by locks and not changed by
    /// this client, by its number; 0: it is not covered.
    pub span: u64,
    pub attributes: Option<CachedAttributes>,
    /// Of a file that this client alone has open for writing.
    base: Option<Box<Base>>,
    /// Target of a symbolic link.
    pub target: Option<Vec<u8>>,
    /// Of a file: as the MDT has it.
    pub layout: Option<Arc<Layout>>,
    /// Extended attributes; `None`: it does not exist.
    xattrs: BTreeMap<Vec<u8>, Option<Vec<u8>>>,
    /// There is no extended attribute that every user may read.
    no_public_xattrs: bool,
    /// Names of all extended attributes, as users other than root and as root sees them.
    xattr_names: [Option<Box<[Vec<u8>]>>; 2],
    /// What a write to the file has to clear: of a file that was opened for writing.
    pub privileges: Option<Privileges>,
    /// See [`super::recency`].
    pub uses: Uses,
}

impl CachedInode {
    /// A lock is held from now on.
    pub fn grant(&mut self, handle: LockHandle, InodeBits(bits): InodeBits, since: Moment, version: u64) {
        assert!(self.handles().all(|held| held != handle), "a lock is granted once");
        self.locks.push(Held { handle, bits, since });
        self.version = self.version.max(version);
    }

    /// A lock is held under another handle, as if it were granted now.
    pub fn renew(&mut self, former: LockHandle, handle: LockHandle, since: Moment) {
        for lock in self.locks.iter_mut().filter(|lock| lock.handle == former) {
            (lock.handle, lock.since) = (handle, since);
        }
    }

    /// Locks that were held when a question was asked at that moment.
    pub fn locks_at(&self, asked: Moment) -> impl Iterator<Item = LockHandle> + '_ {
        self.locks.iter().filter(move |lock| lock.since <= asked).map(|lock| lock.handle)
    }

    /// A lock is not held any more: drops what was under it alone. Returns the bits that went, and
    /// since when it was held.
    pub fn revoke(&mut self, handle: LockHandle) -> (InodeBits, Moment) {
        let before = self.bits().0;
        let at = self.locks.iter().position(|lock| lock.handle == handle).expect("the lock is held");
        let Held { since, .. } = self.locks.remove(at);
        let gone = before & !self.bits().0;
        if gone & LISTING_BITS != 0 {
            self.span = 0;
        }
        if gone & inode_bit::ATTRIBUTES != 0 {
            (self.attributes, self.target, self.base) = (None, None, None);
            self.xattr_names = [None, None];
        }
        if gone & inode_bit::LAYOUT != 0 {
            self.layout = None;
        }
        if gone & inode_bit::XATTRS != 0 {
            self.forget_xattrs();
        }
        (InodeBits(gone), since)
    }

    /// All locks.
    pub fn handles(&self) -> impl Iterator<Item = LockHandle> + '_ {
        self.locks.iter().map(|lock| lock.handle)
    }

    /// All locks, and what is covered by each.
    pub fn locks(&self) -> impl Iterator<Item = (LockHandle, InodeBits)> + '_ {
        self.locks.iter().map(|lock| (lock.handle, InodeBits(lock.bits)))
    }

    /// Whether a listing is covered by locks.
    pub fn covers_listing(&self) -> bool {
        self.bits().0 & LISTING_BITS == LISTING_BITS
    }

    /// A lock that covers these parts.
    pub fn lock_on(&self, parts: InodeBits) -> Option<LockHandle> {
        self.locks.iter().find(|lock| lock.bits & parts.0 == parts.0).map(|lock| lock.handle)
    }

    /// What is covered by locks.
    pub fn bits(&self) -> InodeBits {
        InodeBits(self.locks.iter().fold(0, |bits, lock| bits | lock.bits))
    }

    /// What is covered by locks that were held when a question was asked, or that came with its
    /// answer, in order.
    pub fn bits_since(&self, asked: Moment, granted: &[LockHandle]) -> u32 {
        debug_assert!(granted.is_sorted(), "granted locks are in order");
        let covers = |lock: &&Held| lock.since <= asked || granted.binary_search(&lock.handle).is_ok();
        self.locks.iter().filter(covers).fold(0, |bits, lock| bits | lock.bits)
    }

    /// Keeps attributes. `exact`: the epoch, if nothing can have changed of them since the answer
    /// was given.
    pub fn keep(&mut self, entry: &Entry, exact: Option<Epoch>) {
        let exact = exact.filter(|_| entry.size_unknown.is_none());
        if exact.is_some() || self.attributes.is_none() {
            let Entry { attributes, access_list, map_version, .. } = *entry;
            let is_striped = map_version > 0;
            self.attributes = Some(CachedAttributes { attributes, access_list, is_striped, exact });
        }
    }

    /// Keeps what the MDT says of a file in a write epoch.
    pub fn keep_base(&mut self, entry: &Entry, write_epoch: u64, known_in: Epoch) {
        self.base = Some(Box::new(Base { entry: entry.clone(), write_epoch, known_in }));
    }

    /// What the MDT knows of the file besides its data, if that is known in this epoch.
    pub fn base(&self, epoch: Epoch) -> Option<&Base> {
        self.base.as_deref().filter(|base| base.known_in == epoch)
    }

    /// This client has read it.
    pub fn set_access_time(&mut self, at: Timestamp) {
        if let Some(known) = &mut self.attributes {
            known.attributes.atime = at;
        }
    }

    /// The MDT set this access time instead of the one that was noted.
    pub fn correct_access_time(&mut self, noted: Timestamp, told: Timestamp) {
        if let Some(known) = self.attributes.as_mut().filter(|known| known.attributes.atime == noted) {
            known.attributes.atime = told;
        }
    }

    /// Times, size and links are not known any more.
    pub fn forget_times(&mut self) {
        self.base = None;
        // The layout is one of them.
        self.xattr_names = [None, None];
        if let Some(attributes) = &mut self.attributes {
            attributes.exact = None;
        }
    }

    /// Nothing is known any more; the locks stay.
    pub fn forget(&mut self) {
        (self.attributes, self.target, self.base, self.layout) = (None, None, None, None);
        self.forget_xattrs();
    }

    fn forget_xattrs(&mut self) {
        self.xattrs.clear();
        self.no_public_xattrs = false;
        self.xattr_names = [None, None];
        self.privileges = None;
    }

    /// It has no extended attribute that every user may read.
    pub fn keep_no_public_xattrs(&mut self) {
        self.no_public_xattrs = true;
    }

    /// Keeps the names of all extended attributes, if they are few.
    pub fn keep_xattr_names(&mut self, is_root: bool, names: &[Vec<u8>]) {
        if names.len() <= XATTRS_MAX && names.iter().all(|name| name.len() <= XATTR_VALUE_BYTES_MAX) {
            self.xattr_names[usize::from(is_root)] = Some(names.into());
        }
    }

    /// Names of all extended attributes, if they are known.
    pub fn xattr_names(&self, is_root: bool) -> Option<&[Vec<u8>]> {
        self.xattr_names[usize::from(is_root)].as_deref()
    }

    /// Keeps an extended attribute, or that it does not exist, if it is small.
    pub fn keep_xattr(&mut self, name: &[u8], value: Option<&[u8]>) {
        let is_small = value.is_none_or(|value| value.len() <= XATTR_VALUE_BYTES_MAX);
        if is_small && (self.xattrs.len() < XATTRS_MAX || self.xattrs.contains_key(name)) {
            self.xattrs.insert(name.to_vec(), value.map(<[u8]>::to_vec));
        }
    }

    /// An extended attribute, if it is known; `Some(None)`: it does not exist.
    pub fn xattr(&self, name: &[u8]) -> Option<Option<&[u8]>> {
        match self.xattrs.get(name) {
            Some(known) => Some(known.as_deref()),
            None => (self.no_public_xattrs && is_public(name)).then_some(None),
        }
    }
}
