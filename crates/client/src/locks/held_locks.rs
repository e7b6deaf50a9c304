//! The advisory locks that this client holds. They are needed to reclaim them when the MDT
//! restarts, to know whether a close must release any, and to restore what an owner held when a
//! granted request turns out to be unwanted.
//!
//! Invariant: the ranges of one owner on one file are disjoint and ordered. A later request of an
//! owner replaces its earlier ones for the same bytes, as POSIX requires. The MDT decides about
//! conflicts; this table has only granted locks.
//!
//! Answers to several threads of one owner may arrive in another order than the MDT sent them, so
//! the last state noted here may be wrong. Therefore a close decides by whether the owner has asked
//! for locks at all.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use parking_lot::Mutex;
use rpc::message::mdt::{HeldLock, LockFamily, LockMode, LockRange};
use types::{ClientId, InodeNumber, MdtIndex};

use super::lock_request::LockRequest;

type Key = (InodeNumber, LockFamily, u64);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Held {
    range: LockRange,
    mode: LockMode,
    pid: u32,
}

/// Tells a request for a lock that all locks of its owner have been released since.
#[derive(Clone, Debug, Default)]
pub(crate) struct Released(Arc<AtomicBool>);

impl Released {
    /// Whether they have, or are about to be.
    pub fn is_set(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}

/// See the module documentation.
#[derive(Debug, Default)]
pub(crate) struct HeldLocks {
    locks: Mutex<BTreeMap<Key, Vec<Held>>>,
    /// The owners that have asked for a lock since their locks were last released as a whole.
    /// Locked after `locks`.
    askers: Mutex<BTreeMap<Key, Released>>,
}

impl HeldLocks {
    /// A lock is about to be asked for. A flock lock that does not include it is given up by that,
    /// whatever becomes of it.
    pub fn asking(&self, inode: InodeNumber, request: &LockRequest) -> Released {
        let mut locks = self.locks.lock();
        let key = (inode, request.family, request.owner);
        let released = self.askers.lock().entry(key).or_default().clone();
        let includes = |held: &Vec<Held>| held.iter().any(|held| held.mode.includes(request.mode));
        if request.family == LockFamily::Flock && !locks.get(&key).is_some_and(includes) {
            locks.remove(&key);
        }
        released
    }

    /// A request is about to be sent that nothing can be in the way of. What it gives up is not
    /// claimed any more: when the MDT restarts before its answer arrives, others may have that
    /// already. Returns the steps that lead back, if the request turns out not to be executed.
    pub fn giving_up(&self, inode: InodeNumber, request: &LockRequest) -> Vec<LockRequest> {
        let before = self.restoring(inode, request);
        match request.mode {
            LockMode::Unlock => self.granted(inode, request),
            LockMode::Shared if before.iter().all(|step| step.mode != LockMode::Unlock) => {
                self.granted(inode, request);
            }
            LockMode::Shared | LockMode::Exclusive => return Vec::new(),
        }
        before
    }

    /// A request was granted.
    pub fn granted(&self, inode: InodeNumber, request: &LockRequest) {
        let mut locks = self.locks.lock();
        let key = (inode, request.family, request.owner);
        if request.mode != LockMode::Unlock {
            self.askers.lock().entry(key).or_default();
        }
        let held = locks.entry(key).or_default();
        let mut kept: Vec<Held> = held.iter().flat_map(|held| outside(held, request.range)).collect();
        if request.mode != LockMode::Unlock {
            kept.push(Held { range: request.range, mode: request.mode, pid: request.pid });
        }
        kept.sort_by_key(|held| held.range.start);
        let are_disjoint = kept.is_sorted_by(|one, next| one.range.end < next.range.start);
        debug_assert!(are_disjoint, "the ranges of one owner on one file are disjoint");
        if kept.is_empty() {
            locks.remove(&key);
        } else {
            *held = kept;
        }
    }

    /// All locks of this family that the owner has on the file are about to be released. False if
    /// it can have none.
    pub fn releasing(&self, inode: InodeNumber, family: LockFamily, owner: u64) -> bool {
        let key = (inode, family, owner);
        let locks = self.locks.lock();
        self.end_asking(key) || locks.contains_key(&key)
    }

    /// Tells the requests for locks of this owner; false if there are none.
    fn end_asking(&self, key: Key) -> bool {
        let asker = self.askers.lock().remove(&key);
        asker.inspect(|released| released.0.store(true, Ordering::Release)).is_some()
    }

    /// That failed.
    pub fn not_released(&self, inode: InodeNumber, family: LockFamily, owner: u64) {
        self.askers.lock().entry((inode, family, owner)).or_default();
    }

    /// What the owner of `request` holds within its range, as requests that cover the range and
    /// lead back to it.
    pub fn restoring(&self, inode: InodeNumber, request: &LockRequest) -> Vec<LockRequest> {
        let locks = self.locks.lock();
        let held = locks.get(&(inode, request.family, request.owner)).map_or(&[][..], Vec::as_slice);
        let mut steps = Vec::new();
        let mut next = Some(request.range.start);
        let step = |start, end, mode| LockRequest { range: LockRange { start, end }, mode, wait: false, ..*request };
        for held in held.iter().filter_map(|held| within(held, request.range)) {
            let Some(start) = next else { break };
            if start < held.range.start {
                steps.push(step(start, held.range.start - 1, LockMode::Unlock));
            }
            steps.push(step(held.range.start, held.range.end, held.mode));
            next = held.range.end.checked_add(1).filter(|next| *next <= request.range.end);
        }
        if let Some(start) = next {
            steps.push(step(start, request.range.end, LockMode::Unlock));
        }
        let ends_at = steps.last().map(|step| step.range.end);
        debug_assert_eq!(ends_at, Some(request.range.end), "the steps back cover the range of the request");
        steps
    }

    /// The owner's locks of this family on the file ended.
    pub fn released(&self, inode: InodeNumber, family: LockFamily, owner: u64) {
        let key = (inode, family, owner);
        self.locks.lock().remove(&key);
        self.end_asking(key);
    }

    /// All locks are lost.
    pub fn lost(&self) {
        self.locks.lock().clear();
        self.askers.lock().clear();
    }

    /// All locks on this file are lost.
    pub fn lost_inode(&self, inode: InodeNumber) {
        self.locks.lock().retain(|(of, _, _), _| *of != inode);
        self.askers.lock().retain(|(of, _, _), _| *of != inode);
    }

    /// All locks at this MDT.
    pub fn at(&self, mdt: MdtIndex, client: ClientId) -> Vec<HeldLock> {
        let locks = self.locks.lock();
        let lock = |(&(inode, family, owner), held): (&Key, &Held)| HeldLock {
            inode,
            family,
            client,
            owner,
            pid: held.pid,
            range: held.range,
            mode: held.mode,
        };
        let of_mdt = locks.iter().filter(|((inode, _, _), _)| inode.mdt() == mdt);
        of_mdt.flat_map(|(key, held)| held.iter().map(move |held| lock((key, held)))).collect()
    }
}

/// The parts of a lock outside a range.
fn outside(held: &Held, range: LockRange) -> impl Iterator<Item = Held> + use<> {
    let held = *held;
    let (start, end) = (held.range.start, held.range.end);
    let disjoint = end < range.start || start > range.end;
    let whole = disjoint.then_some(held);
    let before =
        (!disjoint && start < range.start).then(|| Held { range: LockRange { start, end: range.start - 1 }, ..held });
    let after = (!disjoint && end > range.end).then(|| Held { range: LockRange { start: range.end + 1, end }, ..held });
    [whole, before, after].into_iter().flatten()
}

/// The part of a lock within a range.
fn within(held: &Held, range: LockRange) -> Option<Held> {
    let (start, end) = (held.range.start.max(range.start), held.range.end.min(range.end));
    (start <= end).then_some(Held { range: LockRange { start, end }, ..*held })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const FILE: InodeNumber = InodeNumber(9);

    fn request(start: u64, end: u64, mode: LockMode) -> LockRequest {
        let range = LockRange { start, end };
        LockRequest { family: LockFamily::Posix, owner: 1, pid: 2, range, mode, wait: true }
    }

    fn modes() -> impl Strategy<Value = LockMode> {
        prop_oneof![Just(LockMode::Shared), Just(LockMode::Exclusive), Just(LockMode::Unlock)]
    }

    /// Mode of each byte.
    fn bytes(locks: &HeldLocks) -> Vec<Option<LockMode>> {
        let mut modes = vec![None; 64];
        for lock in locks.at(MdtIndex(0), ClientId(3)) {
            for byte in lock.range.start..=lock.range.end {
                assert_eq!(modes[byte as usize], None, "ranges overlap");
                modes[byte as usize] = Some(lock.mode);
            }
        }
        modes
    }

    proptest! {
        #[test]
        fn agrees_with_a_model_and_restores(
            requests in prop::collection::vec((0u64..64, 0u64..64, modes()), 1..20),
            unwanted in (0u64..64, 0u64..64, modes()),
        ) {
            let locks = HeldLocks::default();
            let mut model = vec![None; 64];
            for (a, b, mode) in requests {
                let (start, end) = (a.min(b), a.max(b));
                locks.granted(FILE, &request(start, end, mode));
                let value = (mode != LockMode::Unlock).then_some(mode);
                model[start as usize..=end as usize].fill(value);
                prop_assert_eq!(&bytes(&locks), &model);
            }
            let (a, b, mode) = unwanted;
            let unwanted = request(a.min(b), a.max(b), mode);
            let steps = locks.restoring(FILE, &unwanted);
            locks.granted(FILE, &unwanted);
            for step in steps {
                prop_assert!(!step.wait && step.range.start <= step.range.end);
                locks.granted(FILE, &step);
            }
            prop_assert_eq!(&bytes(&locks), &model);
        }
    }

    #[test]
    fn what_is_given_up_is_not_claimed() {
        let locks = HeldLocks::default();
        let claimed = || bytes(&locks)[..10].to_vec();
        locks.granted(FILE, &request(0, 9, LockMode::Exclusive));
        assert!(locks.giving_up(FILE, &request(0, 20, LockMode::Shared)).is_empty(), "it may have to wait");
        assert_eq!(claimed(), [Some(LockMode::Exclusive); 10]);
        let back = locks.giving_up(FILE, &request(0, 9, LockMode::Shared));
        assert_eq!(claimed(), [Some(LockMode::Shared); 10]);
        back.iter().for_each(|step| locks.granted(FILE, step));
        assert_eq!(claimed(), [Some(LockMode::Exclusive); 10]);
        let back = locks.giving_up(FILE, &request(5, 20, LockMode::Unlock));
        assert_eq!(claimed()[4..6], [Some(LockMode::Exclusive), None]);
        back.iter().for_each(|step| locks.granted(FILE, step));
        assert_eq!(claimed(), [Some(LockMode::Exclusive); 10]);
    }

    #[test]
    fn whole_file_ranges_do_not_overflow() {
        let locks = HeldLocks::default();
        locks.granted(FILE, &request(0, u64::MAX, LockMode::Shared));
        assert_eq!(locks.at(MdtIndex(0), ClientId(3)).len(), 1);
        let upgrade = request(5, u64::MAX, LockMode::Exclusive);
        assert_eq!(locks.restoring(FILE, &upgrade), [LockRequest { mode: LockMode::Shared, wait: false, ..upgrade }]);
        locks.granted(FILE, &request(0, u64::MAX, LockMode::Unlock));
        assert!(locks.at(MdtIndex(0), ClientId(3)).is_empty());
        assert_eq!(locks.restoring(FILE, &upgrade), [LockRequest { mode: LockMode::Unlock, wait: false, ..upgrade }]);
    }

    #[test]
    fn a_flock_that_is_converted_is_not_held_before_it_is_granted() {
        let locks = HeldLocks::default();
        let flock = |mode| LockRequest { family: LockFamily::Flock, ..request(0, LockRange::WHOLE.end, mode) };
        let held = || locks.at(MdtIndex(0), ClientId(3)).first().map(|lock| lock.mode);
        let (shared, exclusive) = (flock(LockMode::Shared), flock(LockMode::Exclusive));
        locks.granted(FILE, &shared);
        locks.asking(FILE, &shared);
        assert_eq!(held(), Some(LockMode::Shared));
        locks.asking(FILE, &exclusive);
        assert_eq!(held(), None);
        locks.granted(FILE, &exclusive);
        locks.asking(FILE, &shared);
        assert_eq!(held(), Some(LockMode::Exclusive), "it can always be weakened");
    }

    #[test]
    fn who_has_asked_is_released_whatever_was_noted_last() {
        let locks = HeldLocks::default();
        let releasing = || locks.releasing(FILE, LockFamily::Posix, 1);
        assert!(!releasing(), "nothing was asked for");
        let lock = request(0, 9, LockMode::Exclusive);
        locks.asking(FILE, &lock);
        // One thread unlocked, then another one locked; their answers came the other way round.
        locks.granted(FILE, &lock);
        locks.granted(FILE, &request(0, 9, LockMode::Unlock));
        assert!(releasing());
        assert!(!releasing(), "until something is asked for again");
        locks.not_released(FILE, LockFamily::Posix, 1);
        assert!(releasing());
        locks.granted(FILE, &lock);
        locks.released(FILE, LockFamily::Posix, 1);
        assert!(!releasing());
    }

    #[test]
    fn locks_belong_to_their_mdt_until_all_are_lost() {
        let locks = HeldLocks::default();
        locks.granted(FILE, &request(0, 9, LockMode::Shared));
        assert!(locks.at(MdtIndex(1), ClientId(3)).is_empty());
        assert_eq!(locks.at(MdtIndex(0), ClientId(3)).len(), 1);
        locks.lost();
        assert!(locks.at(MdtIndex(0), ClientId(3)).is_empty());
    }
}
