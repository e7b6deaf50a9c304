//! A cache above this client: the kernel's, over a mount. It serves names and attributes without
//! asking this client, so a lock is given back only when the cache above has dropped what is under
//! it.
//!
//! Order: this client stops serving; then the upper cache withdraws; then the lock is given back.
//! If the upper cache registers something before it asks what it may keep
//! ([`FileSystem::keepable`](crate::FileSystem::keepable)), it is told of every lock on it that
//! ends later.
//!
//! A shard of a striped directory is unknown above: what ends there ends of the directory.

use std::{collections::BTreeMap, sync::Weak, time::Duration};

use parking_lot::{Mutex, RwLock};
use rpc::message::lock::{InodeBits, inode_bit};
use rt::{BoxFuture, Instant};
use types::{Attributes, InodeNumber};

/// A cache above this client (the kernel's, over a mount), which serves without asking.
pub trait UpperCache: Send + Sync + 'static {
    /// The client may not serve these parts of an inode any more: completes when the upper cache
    /// does not either. The lock is given back only after that. Called on the runtime; must not
    /// block its thread.
    fn withdraw(&self, inode: InodeNumber, parts: InodeBits) -> BoxFuture<'static, ()>;

    /// The same, for a lock that no client waits for: it may take as long as what was kept is
    /// valid. If the MDT asks for the lock meanwhile, [`UpperCache::withdraw`] is called, too.
    fn let_go(&self, inode: InodeNumber, parts: InodeBits) -> BoxFuture<'static, ()> {
        self.withdraw(inode, parts)
    }

    /// The same for everything: the connection is lost and a new one is about to begin (at which
    /// the target drops this client's locks), or it is not known what a change concerned.
    fn withdraw_all(&self) -> BoxFuture<'static, ()>;
}

/// What the upper cache may keep of an inode, decided under the cache's mutex at the moment of the
/// call.
#[derive(Clone, Copy, Debug)]
pub struct Keepable {
    /// The attributes as they are, if they are known exactly, under a lock, and this client has the
    /// inode not open for writing.
    pub attributes: Option<Attributes>,
    /// Permissions and owner, if they are known, under a lock: of a file that is open for writing,
    /// too. Times, size and links may be others.
    pub permissions: Option<Attributes>,
    /// Whether the name leads to this inode, under a lock (LOOKUP of the inode).
    pub name: bool,
    /// For how long: never beyond the lease, at most a third of it.
    pub validity: Duration,
}

/// An inode, and the directory or shard and the name through which it was found, if that is to be
/// kept, too.
pub(crate) type Place<'n> = (InodeNumber, Option<(InodeNumber, &'n [u8])>);

/// What the cache of one MDT knows of that.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Known {
    /// All.
    All(Keepable),
    /// Its attributes are those of a striped directory, without what its shards add.
    WithoutShards(Keepable),
}

/// A time for which the listing of a directory (its names, and which directory is above it) has
/// been covered by locks and has not changed. Never used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpanNumber(pub u64, pub u64);

/// Such a time, which has not ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LockSpan {
    /// Its number, among those of the directory.
    pub number: SpanNumber,
    /// For how long others may rely on it without asking; as [`Keepable::validity`].
    pub validity: Duration,
}

/// Nothing is kept above for so long.
const FORGOTTEN: Duration = Duration::from_secs(60 * 60);

/// The directories of shards whose attributes are part of what may be kept above.
#[derive(Default)]
struct Followed {
    /// Those that were so since this moment, at least.
    recent: BTreeMap<InodeNumber, InodeNumber>,
    since: Option<Instant>,
    /// The others, until it is over.
    former: BTreeMap<InodeNumber, InodeNumber>,
}

impl Followed {
    fn note(&mut self, shard: InodeNumber, directory: InodeNumber, now: Instant) {
        let since = self.since.get_or_insert(now);
        if now.since(*since) >= FORGOTTEN {
            *since = now;
            self.former = std::mem::take(&mut self.recent);
        }
        self.recent.insert(shard, directory);
    }

    fn get(&self, shard: InodeNumber) -> Option<InodeNumber> {
        self.recent.get(&shard).or_else(|| self.former.get(&shard)).copied()
    }
}

/// The upper cache, if there is one.
#[derive(Default)]
pub(crate) struct Above {
    cache: RwLock<Option<Weak<dyn UpperCache>>>,
    followed: Mutex<Followed>,
}

impl Above {
    pub fn set(&self, cache: Weak<dyn UpperCache>) {
        *self.cache.write() = Some(cache);
    }

    /// Whether there is one.
    pub fn is_there(&self) -> bool {
        self.cache.read().as_ref().is_some_and(|cache| cache.strong_count() > 0)
    }

    /// The attributes of a directory that may be kept from now on depend on this shard.
    pub fn follow(&self, shard: InodeNumber, directory: InodeNumber, now: Instant) {
        self.followed.lock().note(shard, directory, now);
    }

    /// What is known above of these parts of an inode; `None`: nothing.
    fn known_as(&self, inode: InodeNumber, parts: InodeBits) -> Option<(InodeNumber, InodeBits)> {
        if !inode.is_shard() {
            return Some((inode, parts));
        }
        let attributes = parts & InodeBits(inode_bit::ATTRIBUTES);
        let directory = self.followed.lock().get(inode);
        directory.filter(|_| !attributes.is_empty()).map(|directory| (directory, attributes))
    }

    /// Completes when the cache above does not serve these parts of an inode; `None`: there is
    /// none.
    pub fn withdraw(&self, inode: InodeNumber, parts: InodeBits) -> Option<BoxFuture<'static, ()>> {
        let cache = self.cache.read().as_ref()?.upgrade()?;
        let (known, of_it) = self.known_as(inode, parts)?;
        Some(cache.withdraw(known, of_it))
    }

    /// The same, for a lock that no client waits for.
    pub fn let_go(&self, inode: InodeNumber, parts: InodeBits) -> Option<BoxFuture<'static, ()>> {
        let cache = self.cache.read().as_ref()?.upgrade()?;
        let (known, of_it) = self.known_as(inode, parts)?;
        Some(cache.let_go(known, of_it))
    }

    /// Completes when the cache above serves nothing; `None`: there is none.
    pub fn withdraw_all(&self) -> Option<BoxFuture<'static, ()>> {
        let cache = self.cache.read().as_ref()?.upgrade()?;
        Some(cache.withdraw_all())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shards_are_followed_for_long_enough_and_not_for_ever() {
        let hour = |hours: u64| Instant(hours * FORGOTTEN.as_nanos() as u64);
        let shard = |number: u64| InodeNumber(100 + number);
        let mut followed = Followed::default();
        for hours in 0..5 {
            followed.note(shard(hours), InodeNumber(hours), hour(hours));
            let known: Vec<u64> = (0..5).filter(|number| followed.get(shard(*number)).is_some()).collect();
            let expected: Vec<u64> = (hours.saturating_sub(1)..=hours).collect();
            assert_eq!(known, expected, "after {hours} hours");
        }
        followed.note(shard(4), InodeNumber(7), hour(4));
        assert_eq!(followed.get(shard(4)), Some(InodeNumber(7)));
    }
}
