//! A lock for state that is mostly read: readers take one of several locks, each thread its own, so
//! readers of several processors share no cache line; a change takes all of them.
//!
//! Invariant: a change excludes all readers and all other changes, as with any reader-writer lock.
//! A waiting change keeps later readers of each part out, so it does not starve.
//!
//! Downsides: a change takes as many locks as there are parts, about ten nanoseconds each; a thread
//! that reads must not begin to read again before it has ended, because a change may wait in
//! between.

use std::{
    cell::Cell,
    sync::{
        OnceLock,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
};

use parking_lot::{
    RawRwLock,
    lock_api::{self, GuardNoSend},
};

/// Most parts of a lock.
const PARTS_MAX: usize = 16;

/// State behind such a lock.
pub type ReadMostly<T> = lock_api::RwLock<Parts, T>;
/// As long as it exists, the state is not changed.
pub type ReadGuard<'a, T> = lock_api::RwLockReadGuard<'a, Parts, T>;
/// As long as it exists, no other thread uses the state.
pub type ChangeGuard<'a, T> = lock_api::RwLockWriteGuard<'a, Parts, T>;

/// A lock with a cache line of its own, and the one beside it, which processors load together.
#[repr(align(128))]
struct Part(RawRwLock);

/// See the module documentation.
pub struct Parts([Part; PARTS_MAX]);

/// Parts in use: two for each processor, so that few threads share one.
fn in_use() -> usize {
    static IN_USE: OnceLock<usize> = OnceLock::new();
    *IN_USE.get_or_init(|| {
        let processors = thread::available_parallelism().map_or(PARTS_MAX, usize::from);
        (2 * processors).clamp(1, PARTS_MAX)
    })
}

/// The number of the calling thread: threads that begin one after the other have different ones.
fn thread_number() -> usize {
    static THREADS: AtomicUsize = AtomicUsize::new(0);
    thread_local! {
        static NUMBER: Cell<Option<usize>> = const { Cell::new(None) };
    }
    NUMBER.with(|number| {
        number.get().unwrap_or_else(|| {
            let new = THREADS.fetch_add(1, Ordering::Relaxed);
            number.set(Some(new));
            new
        })
    })
}

impl Parts {
    fn own(&self) -> &RawRwLock {
        &self.0[thread_number() % in_use()].0
    }

    fn all(&self) -> impl DoubleEndedIterator<Item = &RawRwLock> {
        self.0[..in_use()].iter().map(|part| &part.0)
    }
}

// SAFETY: a writer holds all parts exclusively, and a reader holds one of them shared. Guards stay
// on their thread, so a reader releases the part that it locked.
unsafe impl lock_api::RawRwLock for Parts {
    const INIT: Self = Self([const { Part(RawRwLock::INIT) }; PARTS_MAX]);

    type GuardMarker = GuardNoSend;

    fn lock_shared(&self) {
        self.own().lock_shared();
    }

    fn try_lock_shared(&self) -> bool {
        self.own().try_lock_shared()
    }

    unsafe fn unlock_shared(&self) {
        // SAFETY: the caller holds it, on this thread.
        unsafe { self.own().unlock_shared() }
    }

    fn lock_exclusive(&self) {
        // All in the same order.
        self.all().for_each(|part| part.lock_exclusive());
    }

    fn try_lock_exclusive(&self) -> bool {
        for (taken, part) in self.all().enumerate() {
            if !part.try_lock_exclusive() {
                // SAFETY: these were taken just now.
                self.all().take(taken).for_each(|part| unsafe { part.unlock_exclusive() });
                return false;
            }
        }
        true
    }

    unsafe fn unlock_exclusive(&self) {
        // SAFETY: the caller holds them all.
        self.all().rev().for_each(|part| unsafe { part.unlock_exclusive() });
    }
}

// SAFETY: as above.
unsafe impl lock_api::RawRwLockFair for Parts {
    unsafe fn unlock_shared_fair(&self) {
        // SAFETY: the caller holds it, on this thread.
        unsafe { self.own().unlock_shared_fair() }
    }

    unsafe fn unlock_exclusive_fair(&self) {
        // SAFETY: the caller holds them all.
        self.all().rev().for_each(|part| unsafe { part.unlock_exclusive_fair() });
    }
}

#[cfg(test)]
mod tests {
    use std::{sync::atomic::AtomicBool, thread::scope};

    use super::*;

    const CHANGES: u64 = 300;

    #[test]
    fn readers_of_all_threads_see_whole_changes_which_do_not_starve() {
        let state = ReadMostly::new((0_u64, 0_u64));
        let is_over = AtomicBool::new(false);
        scope(|threads| {
            for _ in 0..3 {
                threads.spawn(|| {
                    let mut last = 0;
                    while !is_over.load(Ordering::Relaxed) {
                        let state = state.read();
                        assert_eq!(state.0, state.1, "half of a change is seen");
                        assert!(last <= state.0, "a change is undone");
                        last = state.0;
                        drop(state);
                        thread::yield_now();
                    }
                });
            }
            for count in 1..=CHANGES {
                let mut state = state.write();
                state.0 = count;
                thread::yield_now();
                state.1 = count;
            }
            is_over.store(true, Ordering::Relaxed);
        });
        assert_eq!(*state.read(), (CHANGES, CHANGES));
    }

    #[test]
    fn a_change_excludes_readers_and_other_changes_and_readers_exclude_changes() {
        let state = ReadMostly::new(());
        let tries = || {
            let may_read = state.try_read().is_some();
            (may_read, state.try_write().is_some())
        };
        let elsewhere = || scope(|threads| threads.spawn(tries).join().expect("it does not panic"));
        let reader = state.read();
        assert_eq!(elsewhere(), (true, false));
        drop(reader);
        assert_eq!(elsewhere(), (true, true), "what was tried in vain is given back");
        let change = state.write();
        assert_eq!(elsewhere(), (false, false));
        lock_api::RwLockWriteGuard::unlock_fair(change);
        assert_eq!(elsewhere(), (true, true));
    }
}
