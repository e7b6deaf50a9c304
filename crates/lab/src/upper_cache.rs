//! A cache above a client, as the kernel's over a mount: it answers from copies without asking the
//! client, and takes its time to drop them when they are withdrawn.
//!
//! It keeps what the kernel keeps (`fuse::kernel_cache`): names that lead to an inode and
//! attributes, each only as long as the client says that it is valid. A copy may be served until it
//! is dropped or its validity has passed, also while the client's process is suspended, and after
//! the client was evicted: so each copy knows under which client id it was given.
//!
//! An answer is given from copies only if all that it shows is valid at that moment. (The kernel
//! also combines a name that it has with attributes that it asks for.)
//!
//! Life cycle: as long as the mount. Before a change by this mount is sent, it looks up the names
//! that the change concerns, as the kernel does, and drops the copies of what they lead to; none is
//! taken before the change is answered.
//!
//! Downside: a mount does one operation at a time, and no listings are kept.

use std::{
    collections::BTreeMap,
    sync::{Arc, Weak},
    time::Duration,
};

use client::{FileSystem, Served, UpperCache};
use parking_lot::Mutex;
use rpc::message::lock::{InodeBits, inode_bit};
use rt::{BoxFuture, Clock, Instant, Seams};
use types::{Attributes, ClientId, Credentials, FsResult, InodeNumber};

use crate::{Random, faults::spread};

/// The shortest time in which copies are dropped.
const FASTEST: Duration = Duration::from_micros(10);
/// The kernel drops names with the attributes that permissions depend on.
const PARTS_OF_NAMES: InodeBits = InodeBits(inode_bit::LOOKUP | inode_bit::ATTRIBUTES);
const PARTS_OF_ATTRIBUTES: InodeBits = InodeBits(inode_bit::ATTRIBUTES);

/// How upper caches behave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UpperPlan {
    /// The longest time that it takes to drop copies.
    pub slowest: Duration,
}

/// Something that may be served for a while.
#[derive(Clone, Copy, Debug)]
struct Copied<T> {
    value: T,
    /// Who was told so.
    client: ClientId,
    until: Instant,
}

type Name = (InodeNumber, Vec<u8>);

#[derive(Debug, Default)]
struct Copies {
    attributes: BTreeMap<InodeNumber, Copied<Attributes>>,
    names: BTreeMap<Name, Copied<InodeNumber>>,
    /// A change by this mount is not answered yet.
    is_changing: bool,
}

impl Copies {
    /// Drops what may not be kept without these parts of an inode.
    fn drop_parts(&mut self, inode: InodeNumber, parts: InodeBits) {
        if parts.meets(PARTS_OF_NAMES) {
            self.names.retain(|_, copy| copy.value != inode);
        }
        if parts.meets(PARTS_OF_ATTRIBUTES) {
            self.attributes.remove(&inode);
        }
    }

    /// Until when some of that may be served.
    fn valid_until(&self, inode: InodeNumber, parts: InodeBits) -> Option<Instant> {
        let names = self.names.values().filter(|copy| copy.value == inode && parts.meets(PARTS_OF_NAMES));
        let attributes = self.attributes.get(&inode).filter(|_| parts.meets(PARTS_OF_ATTRIBUTES));
        names.map(|copy| copy.until).chain(attributes.map(|copy| copy.until)).max()
    }

    fn attributes_of(&self, inode: InodeNumber, now: Instant) -> Option<Attributes> {
        self.attributes.get(&inode).filter(|copy| copy.until > now).map(|copy| copy.value)
    }

    fn look(&self, name: &Name, now: Instant) -> Option<Attributes> {
        let named = self.names.get(name).filter(|copy| copy.until > now)?;
        self.attributes_of(named.value, now)
    }
}

/// See the module documentation.
pub struct UpperCopies {
    clock: Arc<dyn Clock>,
    random: Random,
    plan: UpperPlan,
    copies: Arc<Mutex<Copies>>,
}

impl UpperCopies {
    /// A cache above a client that has just mounted. `seams`: of the client's process.
    pub fn above(file_system: &FileSystem, seams: &Seams, random: Random, plan: UpperPlan) -> Arc<UpperCopies> {
        let copies = Arc::new(UpperCopies { clock: seams.clock.clone(), random, plan, copies: Arc::default() });
        let cache: Weak<UpperCopies> = Arc::downgrade(&copies);
        file_system.set_upper_cache(cache);
        copies
    }

    /// stat(2) by a name.
    pub async fn look(
        &self,
        file_system: &Arc<FileSystem>,
        (parent, name): (InodeNumber, &[u8]),
    ) -> FsResult<Attributes> {
        let found = self.copies.lock().look(&(parent, name.to_vec()), self.clock.now());
        if let Some(attributes) = found {
            return Ok(attributes);
        }
        let shown = file_system.lookup(&Credentials::root(), parent, name).await?;
        Ok(self.give(file_system, shown, Some((parent, name)), true))
    }

    /// stat(2) of an inode that is known.
    pub async fn stat(&self, file_system: &Arc<FileSystem>, inode: InodeNumber) -> FsResult<Attributes> {
        let found = self.copies.lock().attributes_of(inode, self.clock.now());
        if let Some(attributes) = found {
            return Ok(attributes);
        }
        let shown = file_system.get_attributes(inode, None).await?;
        Ok(self.give(file_system, shown, None, true))
    }

    /// A change by this mount that concerns these names and inodes, and what they lead to.
    pub async fn change<T>(
        &self,
        file_system: &Arc<FileSystem>,
        names: &[(InodeNumber, &[u8])],
        inodes: &[InodeNumber],
        change: impl Future<Output = FsResult<T>>,
    ) -> FsResult<T> {
        let mut inodes = inodes.to_vec();
        for name in names {
            // The change will say what is wrong.
            inodes.extend(self.look(file_system, *name).await.ok().map(|found| found.inode));
        }
        self.begin_change(names, &inodes);
        let outcome = change.await;
        self.copies.lock().is_changing = false;
        outcome
    }

    fn begin_change(&self, names: &[(InodeNumber, &[u8])], inodes: &[InodeNumber]) {
        let mut copies = self.copies.lock();
        copies.names.retain(|(parent, name), _| !names.contains(&(*parent, name.as_slice())));
        copies.attributes.retain(|inode, _| !inodes.contains(inode));
        copies.is_changing = true;
    }

    /// A reply to a change made this name for this inode.
    pub fn made(&self, file_system: &FileSystem, shown: Attributes, name: (InodeNumber, &[u8])) {
        self.give(file_system, shown, Some(name), false);
    }

    /// Takes what may be kept of a reply; returns what is known at this moment. `with_attributes`:
    /// the reply is none to a change, to which the kernel would apply attributes after they are
    /// withdrawn.
    fn give(
        &self,
        file_system: &FileSystem,
        shown: Attributes,
        name: Option<(InodeNumber, &[u8])>,
        with_attributes: bool,
    ) -> Attributes {
        let inode = shown.inode;
        let Some(keepable) = file_system.keepable(inode, name) else { return shown };
        let (client, until) = (file_system.client_id(), self.clock.now() + keepable.validity);
        let mut copies = self.copies.lock();
        let known = keepable.attributes.filter(|_| with_attributes);
        if let Some(value) = known {
            copies.attributes.insert(inode, Copied { value, client, until });
        }
        // Otherwise the name and the attributes may not have been there at one moment.
        let is_named = name.is_none() || keepable.name;
        if let Some((parent, name)) = name.filter(|_| keepable.name) {
            copies.names.insert((parent, name.to_vec()), Copied { value: inode, client, until });
        }
        known.filter(|_| is_named).unwrap_or(shown)
    }

    /// What may be served at this moment, with what the client that was told so needs a lock on.
    pub fn needed(&self) -> Vec<(ClientId, InodeNumber, InodeBits)> {
        let (copies, now) = (self.copies.lock(), self.clock.now());
        let lookup = InodeBits(inode_bit::LOOKUP);
        let attributes = copies.attributes.iter().filter(|(_, copy)| copy.until > now);
        let names = copies.names.values().filter(|copy| copy.until > now);
        let of_attributes = attributes.map(|(inode, copy)| (copy.client, *inode, PARTS_OF_ATTRIBUTES));
        of_attributes.chain(names.map(|copy| (copy.client, copy.value, lookup))).collect()
    }

    /// What is served at this moment; nothing while a change by this mount is on its way, whose
    /// reply alone tells which of the copies it concerns. That is not seen: a mount does one
    /// operation at a time.
    pub fn served(&self) -> Served {
        let (copies, now) = (self.copies.lock(), self.clock.now());
        if copies.is_changing {
            return Served::default();
        }
        let attributes = copies.attributes.values().filter(|copy| copy.until > now).map(|copy| copy.value);
        let names = copies.names.iter().filter(|(_, copy)| copy.until > now);
        let names = names.map(|((parent, name), copy)| (*parent, name.clone(), Some(copy.value)));
        Served { attributes: attributes.collect(), names: names.collect(), ..Served::default() }
    }

    /// Drops copies after a while that the seed draws, and completes then; at once if none of them
    /// may be served. `until`: when the last one may.
    fn drop_later(
        &self,
        until: Option<Instant>,
        drop_them: impl FnOnce(&mut Copies) + Send + 'static,
    ) -> BoxFuture<'static, ()> {
        let now = self.clock.now();
        let is_served = until.is_some_and(|until| until > now);
        let takes = if is_served { spread(&self.random, FASTEST, self.plan.slowest) } else { Duration::ZERO };
        self.drop_at(now + takes, drop_them)
    }

    fn drop_at(&self, at: Instant, drop_them: impl FnOnce(&mut Copies) + Send + 'static) -> BoxFuture<'static, ()> {
        let (copies, sleep) = (self.copies.clone(), self.clock.sleep_until(at));
        Box::pin(async move {
            sleep.await;
            drop_them(&mut copies.lock());
        })
    }
}

impl UpperCache for UpperCopies {
    fn withdraw(&self, inode: InodeNumber, parts: InodeBits) -> BoxFuture<'static, ()> {
        let until = self.copies.lock().valid_until(inode, parts);
        self.drop_later(until, move |copies| copies.drop_parts(inode, parts))
    }

    fn let_go(&self, inode: InodeNumber, parts: InodeBits) -> BoxFuture<'static, ()> {
        let until = self.copies.lock().valid_until(inode, parts);
        self.drop_at(until.unwrap_or_default(), move |copies| copies.drop_parts(inode, parts))
    }

    fn withdraw_all(&self) -> BoxFuture<'static, ()> {
        let until = {
            let copies = self.copies.lock();
            let attributes = copies.attributes.values().map(|copy| copy.until);
            attributes.chain(copies.names.values().map(|copy| copy.until)).max()
        };
        self.drop_later(until, |copies| {
            copies.attributes.clear();
            copies.names.clear();
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        Simulation,
        executor::RunLimits,
        invariants::sample::{CLIENT, FILE, NEXT, inode, sound},
        process::Process,
    };

    const NAME: &[u8] = b"name";

    /// A cache that has a name and attributes of a file for ten seconds.
    fn filled(clock: Arc<dyn Clock>) -> UpperCopies {
        let plan = UpperPlan { slowest: Duration::from_secs(1) };
        let cache = UpperCopies { clock, random: Random::new(1), plan, copies: Arc::default() };
        let until = cache.clock.now() + Duration::from_secs(10);
        let attributes = inode(&mut sound(), FILE).attributes;
        {
            let mut copies = cache.copies.lock();
            copies.attributes.insert(FILE, Copied { value: attributes, client: CLIENT, until });
            copies.names.insert((NEXT, NAME.to_vec()), Copied { value: FILE, client: CLIENT, until });
        }
        cache
    }

    fn counts(cache: &UpperCopies) -> (usize, usize, usize) {
        let served = cache.served();
        (served.attributes.len(), served.names.len(), cache.needed().len())
    }

    #[test]
    fn copies_are_served_until_they_are_dropped_or_their_time_is_over() {
        let simulation = Simulation::new(1);
        let network = crate::network::Network::new(&simulation, 1);
        let process = Process::start(&simulation, &network, crate::ProcessId::DRIVER, "client0", 1);
        let clock = process.seams().clock;
        let main = async move {
            let cache = filled(clock.clone());
            assert_eq!(counts(&cache), (1, 1, 2));
            let begun = clock.now();
            let withdrawn = cache.withdraw(FILE, InodeBits(inode_bit::LOOKUP));
            assert_eq!(counts(&cache), (1, 1, 2), "it takes its time");
            withdrawn.await;
            assert!(clock.now() > begun && counts(&cache) == (1, 0, 1));
            cache.withdraw(FILE, InodeBits(inode_bit::XATTRS)).await;
            assert_eq!(counts(&cache), (1, 0, 1), "none of these");
            cache.let_go(FILE, InodeBits(inode_bit::ATTRIBUTES)).await;
            assert_eq!((clock.now().since(begun), counts(&cache)), (Duration::from_secs(10), (0, 0, 0)));

            let cache = filled(clock.clone());
            cache.begin_change(&[(NEXT, NAME)], &[]);
            assert_eq!((cache.served().attributes.len(), cache.needed().len()), (0, 1), "nothing while it changes");
            cache.begin_change(&[], &[FILE]);
            assert_eq!(cache.needed().len(), 0);

            let cache = filled(clock.clone());
            cache.withdraw_all().await;
            assert_eq!(counts(&cache), (0, 0, 0));
        };
        simulation.run(RunLimits::default(), main).expect("it ends");
    }
}
