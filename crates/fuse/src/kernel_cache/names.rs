//! Withdraws names from the kernel, and never waits for a lock that a change of this mount holds.
//!
//! The kernel drops a name under the lock of its directory. A change in that directory, or of it,
//! holds the same lock until it is answered, and may be waiting for another client, which may be
//! waiting for us. So:
//!
//! | when a name is withdrawn | |
//! |---|---|
//! | a change of the directory is not answered | all names are declared outdated: the lock is held, so no READDIRPLUS of this directory is in progress, which could escape that |
//! | a LOOKUP or READDIR in it is not answered | it holds the lock, perhaps as long as a target is down. The thread waits for it, because everything that comes later would queue behind the thread in the kernel; but not for those that began after it and have waited for less than [`LONG_LOOK`], or many in turn would hold it up |
//! | none is known | a thread tells the kernel to drop the name |
//! | and a change arrives meanwhile | all names are declared outdated; the thread may return later |
//! | and nothing happens for [`WITHDRAWAL_TIMEOUT`] | the same, with a line in the log: something holds the lock of which this side does not know. A READDIRPLUS that was answered before the withdrawal has had that long to be processed |
//!
//! One name of a directory is dropped at a time, so a thread hangs for each directory at most, and
//! another one is started whenever all of them may hang.
//!
//! Listings that the kernel keeps are dropped in the same way. That takes no lock of the directory;
//! it waits while names are copied to a program whose memory is slow. After [`WITHDRAWAL_TIMEOUT`]
//! the withdrawal is given up, so that no program can hold up other clients for longer. Any user
//! can have such memory, and many such directories. So listings have threads of their own: names do
//! not wait for them, even if all of these hang.

use std::{
    collections::{BTreeMap, HashMap, VecDeque},
    sync::Arc,
    time::{Duration, Instant},
};

use parking_lot::{Condvar, Mutex};
use rt::real::use_all_processors;

use super::{
    statistics::{Count, Statistics},
    table::Name,
    waiting::Waiting,
    withdrawal::Finished,
};
use crate::session::Notifications;

/// See the module documentation.
pub const WITHDRAWAL_TIMEOUT: Duration = Duration::from_secs(1);
/// Threads for names at most: directories in which changes began while a name was dropped.
const NAMES_MAX: usize = 256;
/// Threads for listings at most. Those beyond wait, and are given up like those with a thread.
const LISTINGS_MAX: usize = 64;
/// A request that has waited for so long for names or attributes may wait for a target that is
/// down: on a busy host, those to other targets take a tenth of that.
const LONG_LOOK: Duration = Duration::from_millis(250);
/// First and longest pause between two looks at whether it still waits.
const LOOK_PAUSES: (Duration, Duration) = (Duration::from_micros(200), Duration::from_millis(10));
/// A thread without work for so long ends.
const IDLE_MAX: Duration = Duration::from_secs(10);

/// How a name is invalidated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Invalidation {
    /// It may lead elsewhere: the kernel drops it.
    Drop,
    /// It leads where it did, to an inode whose attributes are outdated. The kernel looks it up
    /// again and gets the new ones with it: it checks chmod(2) and sticky directories by the owner
    /// that it knows, however old. Where a change holds the lock nobody waits for that, since the
    /// MDT checks, too, and the name expires when the change is answered.
    Expire,
    /// The listing that the kernel keeps of the directory `parent` is outdated, whatever the name.
    Listing,
}

/// What a thread drops.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Kind {
    Name,
    Listing,
}

impl Kind {
    /// Threads at most.
    const fn threads_max(self) -> usize {
        match self {
            Kind::Name => NAMES_MAX,
            Kind::Listing => LISTINGS_MAX,
        }
    }
}

/// What a thread works for: a directory, and what of it.
type Key = (u64, Kind);

impl Invalidation {
    fn kind(self) -> Kind {
        match self {
            Invalidation::Drop | Invalidation::Expire => Kind::Name,
            Invalidation::Listing => Kind::Listing,
        }
    }

    /// For a withdrawal that cannot wait for the lock of the directory any longer: returns
    /// `finished` if all names are to be declared outdated.
    fn hand_over(self, finished: Finished) -> Option<Finished> {
        match self {
            Invalidation::Drop => Some(finished),
            Invalidation::Expire | Invalidation::Listing => {
                finished.tell();
                None
            }
        }
    }
}

/// A name to be withdrawn.
#[derive(Debug)]
struct Withdrawal {
    name: Arc<Name>,
    invalidation: Invalidation,
    since: Instant,
    /// `None` once the withdrawal is complete, in another way.
    finished: Option<Finished>,
}

/// Withdrawals of names of one directory.
#[derive(Debug, Default)]
struct Directory {
    queue: VecDeque<Withdrawal>,
    /// What a thread tells the kernel at this moment.
    running: Option<Withdrawal>,
}

impl Directory {
    fn all(&mut self) -> impl Iterator<Item = &mut Withdrawal> {
        self.running.iter_mut().chain(&mut self.queue)
    }
}

/// The threads for names, or for listings.
#[derive(Debug, Default)]
struct Threads {
    /// Directories for which none works.
    ready: VecDeque<u64>,
    count: usize,
    idle: usize,
}

#[derive(Debug, Default)]
struct State {
    /// Directories with changes of this mount that are not answered, and how many.
    changing: HashMap<u64, usize>,
    /// Names in these directories that are to expire then.
    after_changes: HashMap<u64, BTreeMap<Box<[u8]>, Arc<Name>>>,
    withdrawals: HashMap<Key, Directory>,
    of_names: Threads,
    of_listings: Threads,
    has_ended: bool,
}

impl State {
    /// Whether a name is to expire, or a thread is about to tell the kernel so.
    fn is_to_expire(&mut self, name: &Name) -> bool {
        let after = self.after_changes.get(&name.parent).is_some_and(|names| names.contains_key(&name.bytes));
        let mut waiting = self.withdrawals.get_mut(&(name.parent, Kind::Name)).into_iter().flat_map(Directory::all);
        after || waiting.any(|each| each.invalidation == Invalidation::Expire && each.name.bytes == name.bytes)
    }

    fn threads(&mut self, kind: Kind) -> &mut Threads {
        match kind {
            Kind::Name => &mut self.of_names,
            Kind::Listing => &mut self.of_listings,
        }
    }
}

/// Names that took too long.
#[derive(Debug, Default)]
pub struct Overdue {
    pub names: Vec<Arc<Name>>,
    pub finished: Vec<Finished>,
    /// Directories whose listings took too long.
    pub listings: Vec<u64>,
}

/// See the module documentation.
#[derive(Debug)]
pub struct Names {
    state: Mutex<State>,
    names_work: Condvar,
    listings_work: Condvar,
    notifications: Notifications,
    waiting: Arc<Waiting>,
    statistics: Arc<Statistics>,
}

impl Names {
    pub fn new(notifications: Notifications, waiting: Arc<Waiting>, statistics: Arc<Statistics>) -> Arc<Self> {
        let (names_work, listings_work) = (Condvar::new(), Condvar::new());
        Arc::new(Self { state: Mutex::default(), names_work, listings_work, notifications, waiting, statistics })
    }

    /// Withdraws a name. If all names are to be declared outdated for that, gives `finished` back.
    pub fn withdraw(
        self: &Arc<Self>,
        name: Arc<Name>,
        invalidation: Invalidation,
        now: Instant,
        finished: Finished,
    ) -> Option<Finished> {
        let mut state = self.state.lock();
        let (parent, kind) = (name.parent, invalidation.kind());
        if kind == Kind::Name && state.changing.contains_key(&parent) {
            if invalidation == Invalidation::Expire {
                state.after_changes.entry(parent).or_default().insert(name.bytes.clone(), name);
            }
            return invalidation.hand_over(finished);
        }
        self.add(&mut state, Withdrawal { name, invalidation, since: now, finished: Some(finished) });
        None
    }

    fn add(self: &Arc<Self>, state: &mut State, withdrawal: Withdrawal) {
        let (parent, kind) = (withdrawal.name.parent, withdrawal.invalidation.kind());
        // One that is there is ready, or a thread works for it.
        let is_new = !state.withdrawals.contains_key(&(parent, kind));
        state.withdrawals.entry((parent, kind)).or_default().queue.push_back(withdrawal);
        if is_new {
            state.threads(kind).ready.push_back(parent);
            self.employ(kind, state);
        }
    }

    /// Sees to it that there is a thread for the directory that became ready.
    fn employ(self: &Arc<Self>, kind: Kind, state: &mut State) {
        let threads = state.threads(kind);
        if threads.idle >= threads.ready.len() || threads.count >= kind.threads_max() {
            self.has_work(kind).notify_one();
            return;
        }
        let this = self.clone();
        let thread = std::thread::Builder::new().name("fuse names".to_owned());
        let work = move || {
            use_all_processors();
            this.work(kind);
        };
        match thread.spawn(work) {
            Ok(_) => threads.count += 1,
            Err(error) => tracing::error!(%error, "cannot start a thread that withdraws names from the kernel"),
        }
    }

    /// Tells a thread that there is something to do.
    fn has_work(&self, kind: Kind) -> &Condvar {
        match kind {
            Kind::Name => &self.names_work,
            Kind::Listing => &self.listings_work,
        }
    }

    /// The work of a thread.
    fn work(&self, kind: Kind) {
        let mut state = self.state.lock();
        loop {
            if let Some(parent) = state.threads(kind).ready.pop_front() {
                let key = (parent, kind);
                let directory = state.withdrawals.get_mut(&key).expect("it is ready");
                directory.running = directory.queue.pop_front();
                let Some((name, invalidation)) =
                    directory.running.as_ref().map(|running| (running.name.clone(), running.invalidation))
                else {
                    state.withdrawals.remove(&key);
                    continue;
                };
                drop(state);
                if kind == Kind::Listing || self.waits_for_lookups(key, invalidation) {
                    self.tell(&name, invalidation);
                }
                state = self.state.lock();
                let directory = state.withdrawals.get_mut(&key).expect("a thread works for it");
                if let Some(Withdrawal { finished: Some(finished), .. }) = directory.running.take() {
                    finished.tell();
                }
                state.threads(kind).ready.push_back(parent);
                continue;
            }
            if state.has_ended {
                break;
            }
            state.threads(kind).idle += 1;
            let timed_out = self.has_work(kind).wait_for(&mut state, IDLE_MAX).timed_out();
            let threads = state.threads(kind);
            threads.idle -= 1;
            if timed_out && threads.ready.is_empty() {
                break;
            }
        }
        state.threads(kind).count -= 1;
    }

    /// Waits while a request may hold the lock of the directory that was there before, or that has
    /// waited for long. False if the name need not be withdrawn any more: all were declared
    /// outdated.
    fn waits_for_lookups(&self, key: Key, invalidation: Invalidation) -> bool {
        let began = Instant::now();
        let (mut pause, longest) = LOOK_PAUSES;
        let is_awaited = |oldest: Instant| oldest <= began || oldest.elapsed() >= LONG_LOOK;
        while self.waiting.holds_directory(key.0).is_some_and(is_awaited) {
            let state = self.state.lock();
            let running = state.withdrawals.get(&key).and_then(|directory| directory.running.as_ref());
            let is_over = running.is_none_or(|running| running.finished.is_none());
            if state.has_ended || is_over && invalidation == Invalidation::Drop {
                return false;
            }
            drop(state);
            std::thread::sleep(pause);
            pause = longest.min(2 * pause);
        }
        true
    }

    fn tell(&self, name: &Name, invalidation: Invalidation) {
        if invalidation == Invalidation::Listing {
            self.notifications.listing(name.parent);
            self.statistics.add(Count::ListingsDropped);
        } else {
            self.notifications.name(name.parent, &name.bytes, invalidation == Invalidation::Expire);
            self.statistics.add(Count::NamesDropped);
        }
    }

    /// A change in a directory, or of it, begins: it holds the directory's lock until it is
    /// answered. Returns the withdrawals for which all names are to be declared outdated.
    pub fn begin_change(&self, parent: u64) -> Vec<Finished> {
        let mut state = self.state.lock();
        *state.changing.entry(parent).or_default() += 1;
        let directory = state.withdrawals.get_mut(&(parent, Kind::Name));
        let waiting = directory.into_iter().flat_map(Directory::all);
        waiting.filter_map(|waiting| waiting.invalidation.hand_over(waiting.finished.take()?)).collect()
    }

    /// It is about to be answered. After the last one names expire that could not before.
    pub fn end_change(self: &Arc<Self>, parent: u64) {
        let mut state = self.state.lock();
        let Some(count) = state.changing.get_mut(&parent) else { return };
        *count -= 1;
        if *count > 0 {
            return;
        }
        state.changing.remove(&parent);
        let names = state.after_changes.remove(&parent).unwrap_or_default();
        for name in names.into_values() {
            let (invalidation, since) = (Invalidation::Expire, Instant::now());
            self.add(&mut state, Withdrawal { name, invalidation, since, finished: None });
        }
    }

    /// A change that is not answered has renamed something: the kernel keeps the validity of a name
    /// that it moves, so what was to expire expires where it is now.
    pub fn renamed(&self, from: &Name, to: &Name, exchanged: bool) {
        let mut state = self.state.lock();
        let expires = [from, to].map(|name| state.is_to_expire(name));
        for (name, expires) in [(to, expires[0]), (from, expires[1] && exchanged)] {
            if expires && state.changing.contains_key(&name.parent) {
                let name = Arc::new(Name::new(name.parent, &name.bytes));
                state.after_changes.entry(name.parent).or_default().insert(name.bytes.clone(), name);
            }
        }
    }

    /// Withdrawals that have taken longer than [`WITHDRAWAL_TIMEOUT`].
    pub fn overdue(&self, now: Instant) -> Overdue {
        let mut overdue = Overdue::default();
        for ((node, kind), directory) in &mut self.state.lock().withdrawals {
            for withdrawal in directory.all() {
                let is_overdue = now.saturating_duration_since(withdrawal.since) >= WITHDRAWAL_TIMEOUT;
                let Some(finished) = withdrawal.finished.take_if(|_| is_overdue) else { continue };
                if *kind == Kind::Listing {
                    overdue.listings.push(*node);
                }
                if let Some(finished) = withdrawal.invalidation.hand_over(finished) {
                    overdue.names.push(withdrawal.name.clone());
                    overdue.finished.push(finished);
                }
            }
        }
        overdue
    }

    /// Names that a thread asks the kernel to drop at this moment, while a client waits for it.
    pub fn leaving(&self) -> Vec<Arc<Name>> {
        let state = self.state.lock();
        let running = state.withdrawals.iter().filter(|((_, kind), _)| *kind == Kind::Name);
        let waited_for = running.filter_map(|(_, directory)| directory.running.as_ref());
        waited_for.filter(|running| running.finished.is_some()).map(|running| running.name.clone()).collect()
    }

    /// Whether there are withdrawals.
    pub fn is_busy(&self) -> bool {
        !self.state.lock().withdrawals.is_empty()
    }

    /// The threads end as soon as they have nothing to do.
    pub fn end(&self) {
        self.state.lock().has_ended = true;
        self.names_work.notify_all();
        self.listings_work.notify_all();
    }
}

#[cfg(test)]
#[path = "names_tests.rs"]
mod tests;
