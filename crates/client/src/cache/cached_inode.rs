//! What is cached of one inode, besides the names that lead to it, and under which locks.
//!
//! Invariant: everything here is under a lock that is held; it goes with the lock.

use std::collections::BTreeMap;

use rpc::message::{
    lock::{InodeBits, inode_bit},
    mdt::Entry,
};
use types::{
    Attributes, Credentials, LockHandle,
    permission::{self, Decision},
};

use super::own_changes::Moment;

/// Extended attributes of one inode that are kept, and the bytes of a value.
const XATTRS_MAX: usize = 8;
const XATTR_VALUE_BYTES_MAX: usize = 256;

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
    /// Times, size and links are as the MDT has them, as long as this is the present [`Epoch`].
    exact: Option<Epoch>,
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

    /// All attributes, if all are known in this epoch.
    pub fn exact(&self, epoch: Epoch) -> Option<&Attributes> {
        (self.exact == Some(epoch)).then_some(&self.attributes)
    }
}

/// See the module documentation.
#[derive(Debug, Default)]
pub(crate) struct CachedInode {
    locks: Vec<Held>,
    pub attributes: Option<CachedAttributes>,
    /// Target of a symbolic link.
    pub target: Option<Vec<u8>>,
    /// Extended attributes; `None`: it does not exist.
    xattrs: BTreeMap<Vec<u8>, Option<Vec<u8>>>,
    /// When it was used last: see [`super::recency`].
    pub used: u64,
}

impl CachedInode {
    /// A lock is held from now on.
    pub fn grant(&mut self, handle: LockHandle, InodeBits(bits): InodeBits, since: Moment) {
        self.locks.push(Held { handle, bits, since });
    }

    /// A lock is not held any more: drops what was under it alone. Returns the bits that went.
    pub fn revoke(&mut self, handle: LockHandle) -> InodeBits {
        let before = self.bits().0;
        self.locks.retain(|lock| lock.handle != handle);
        let gone = before & !self.bits().0;
        if gone & inode_bit::ATTRIBUTES != 0 {
            (self.attributes, self.target) = (None, None);
        }
        if gone & inode_bit::XATTRS != 0 {
            self.xattrs.clear();
        }
        InodeBits(gone)
    }

    /// All locks.
    pub fn handles(&self) -> impl Iterator<Item = LockHandle> + '_ {
        self.locks.iter().map(|lock| lock.handle)
    }

    /// What is covered by locks.
    pub fn bits(&self) -> InodeBits {
        InodeBits(self.locks.iter().fold(0, |bits, lock| bits | lock.bits))
    }

    /// What is covered by locks that were held when a question was asked, or that came with its
    /// answer.
    pub fn bits_since(&self, asked: Moment, granted: &[LockHandle]) -> u32 {
        let covers = |lock: &&Held| lock.since <= asked || granted.contains(&lock.handle);
        self.locks.iter().filter(covers).fold(0, |bits, lock| bits | lock.bits)
    }

    /// Keeps attributes. `exact`: the epoch, if nothing can have changed of them since the answer
    /// was given.
    pub fn keep(&mut self, entry: &Entry, exact: Option<Epoch>) {
        let exact = exact.filter(|_| entry.size_unknown.is_none());
        if exact.is_some() || self.attributes.is_none() {
            let Entry { attributes, access_list, .. } = *entry;
            self.attributes = Some(CachedAttributes { attributes, access_list, exact });
        }
    }

    /// Times, size and links are not known any more.
    pub fn forget_times(&mut self) {
        if let Some(attributes) = &mut self.attributes {
            attributes.exact = None;
        }
    }

    /// Nothing is known any more; the locks stay.
    pub fn forget(&mut self) {
        (self.attributes, self.target) = (None, None);
        self.xattrs.clear();
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
        self.xattrs.get(name).map(Option::as_deref)
    }
}
