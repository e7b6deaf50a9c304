//! Advisory locks, one rule per test.

use lock::{
    AdvisoryLocks, HeldLock, LAST_BYTE, LockAnswer, LockError, LockFamily, LockMode, LockOwner, LockRange, LockRequest,
    TIMEOUT_NS, Wake,
};
use types::{ClientId, InodeNumber};

const FILE: InodeNumber = InodeNumber(300);
const OTHER: InodeNumber = InodeNumber(301);
const GRANTED: Result<LockAnswer, LockError> = Ok(LockAnswer::Granted);
const WAITING: Result<LockAnswer, LockError> = Ok(LockAnswer::Waiting);

/// A lock table with a clock and the wake-ups of the last call.
struct Table {
    locks: AdvisoryLocks,
    now_ns: u64,
    woken: Vec<(InodeNumber, u64)>,
}

fn owner(number: u64) -> LockOwner {
    LockOwner { client: ClientId(number), owner: 7 }
}

impl Table {
    fn new() -> Self {
        Self { locks: AdvisoryLocks::new(1000), now_ns: 0, woken: Vec::new() }
    }

    fn call<T>(&mut self, call: impl FnOnce(&mut AdvisoryLocks, u64, &mut Vec<Wake>) -> T) -> T {
        let mut wake = Vec::new();
        let result = call(&mut self.locks, self.now_ns, &mut wake);
        self.woken = wake.iter().map(|wake| (wake.inode, wake.owner.client.0)).collect();
        result
    }

    fn ask(
        &mut self,
        inode: InodeNumber,
        who: u64,
        (start, end): (u64, u64),
        mode: LockMode,
        wait: bool,
    ) -> Result<LockAnswer, LockError> {
        let family = LockFamily::Posix;
        let range = LockRange { start, end };
        let request = LockRequest { inode, family, owner: owner(who), pid: who as u32, range, mode, wait };
        self.call(|locks, now_ns, wake| locks.set(now_ns, &request, wake))
    }

    fn flock(&mut self, who: u64, mode: LockMode, wait: bool) -> Result<LockAnswer, LockError> {
        let range = LockRange { start: 5, end: 5 };
        let request =
            LockRequest { inode: FILE, family: LockFamily::Flock, owner: owner(who), pid: 1, range, mode, wait };
        self.call(|locks, now_ns, wake| locks.set(now_ns, &request, wake))
    }

    fn shared(&mut self, who: u64, range: (u64, u64)) -> Result<LockAnswer, LockError> {
        self.ask(FILE, who, range, LockMode::Shared, true)
    }

    fn exclusive(&mut self, who: u64, range: (u64, u64)) -> Result<LockAnswer, LockError> {
        self.ask(FILE, who, range, LockMode::Exclusive, true)
    }

    fn unlock(&mut self, who: u64, range: (u64, u64)) -> Result<LockAnswer, LockError> {
        self.ask(FILE, who, range, LockMode::Unlock, false)
    }

    fn held(&self) -> Vec<(u64, u64, u64, LockMode)> {
        let locks = self.locks.held(FILE, LockFamily::Posix);
        locks.map(|lock| (lock.client.0, lock.range.start, lock.range.end, lock.mode)).collect()
    }
}

#[test]
fn ranges_split_merge_upgrade_and_downgrade() {
    let mut table = Table::new();
    assert_eq!(table.exclusive(1, (0, 99)), GRANTED);
    assert_eq!(table.shared(1, (40, 49)), GRANTED);
    let (shared, exclusive) = (LockMode::Shared, LockMode::Exclusive);
    assert_eq!(table.held(), [(1, 0, 39, exclusive), (1, 40, 49, shared), (1, 50, 99, exclusive)]);
    assert_eq!(table.exclusive(1, (45, 60)), GRANTED);
    assert_eq!(table.held(), [(1, 0, 39, exclusive), (1, 40, 44, shared), (1, 45, 99, exclusive)]);
    assert_eq!(table.unlock(1, (10, 19)), GRANTED);
    assert_eq!(table.exclusive(1, (10, 44)), GRANTED);
    assert_eq!(table.held(), [(1, 0, 99, exclusive)]);
    assert_eq!(table.exclusive(1, (100, u64::MAX)), GRANTED);
    assert_eq!(table.held(), [(1, 0, LAST_BYTE, exclusive)]);
    assert_eq!(table.unlock(1, (0, i64::MAX as u64)), GRANTED);
    assert!(table.locks.is_empty());
}

#[test]
fn a_range_must_not_be_empty() {
    let mut table = Table::new();
    assert_eq!(table.shared(1, (10, 9)), Err(LockError::Invalid));
    assert_eq!(table.shared(1, (u64::MAX, u64::MAX)), Err(LockError::Invalid));
}

#[test]
fn nobody_passes_an_earlier_conflicting_request() {
    let mut table = Table::new();
    assert_eq!(table.shared(1, (0, 9)), GRANTED);
    assert_eq!(table.exclusive(2, (5, 14)), WAITING);
    assert_eq!(table.shared(3, (0, 4)), GRANTED, "no conflict with what waits");
    assert_eq!(table.shared(3, (8, 9)), WAITING, "behind the exclusive request");
    assert_eq!(table.ask(FILE, 4, (8, 9), LockMode::Shared, false), Err(LockError::Conflict));
    assert_eq!(table.unlock(1, (0, 9)), GRANTED);
    assert_eq!(table.woken, [(FILE, 2)]);
    assert_eq!(table.shared(3, (8, 9)), WAITING, "2 has not asked yet but is still first");
    assert_eq!(table.exclusive(2, (5, 14)), GRANTED);
    assert_eq!(table.woken, []);
    assert_eq!(table.unlock(2, (0, 99)), GRANTED);
    assert_eq!(table.woken, [(FILE, 3)]);
    assert_eq!(table.shared(3, (8, 9)), GRANTED);
    assert_eq!(table.locks.queued(), 0);
}

#[test]
fn a_holder_passes_those_who_wait_for_it() {
    let mut table = Table::new();
    assert_eq!(table.exclusive(1, (0, 9)), GRANTED);
    assert_eq!(table.exclusive(2, (0, 99)), WAITING);
    assert_eq!(table.exclusive(1, (10, 19)), GRANTED, "waiting behind 2 would be waiting for itself");
    assert_eq!(table.exclusive(3, (20, 29)), WAITING);
}

#[test]
fn circles_through_queues_are_dissolved() {
    let mut table = Table::new();
    assert_eq!(table.ask(OTHER, 2, (0, 0), LockMode::Exclusive, true), GRANTED);
    assert_eq!(table.exclusive(1, (0, 9)), GRANTED);
    assert_eq!(table.exclusive(3, (5, 14)), WAITING, "for 1");
    assert_eq!(table.exclusive(2, (10, 19)), WAITING, "behind 3");
    assert_eq!(table.ask(OTHER, 1, (0, 0), LockMode::Exclusive, true), WAITING, "for 2, no deadlock: 2 may pass 3");
    assert_eq!(table.woken, [(FILE, 2)]);
    assert_eq!(table.exclusive(2, (10, 19)), GRANTED);
}

#[test]
fn deadlocks_are_refused() {
    let mut table = Table::new();
    for who in 1..=3 {
        assert_eq!(table.ask(InodeNumber(400 + who), who, (0, 0), LockMode::Exclusive, true), GRANTED);
    }
    assert_eq!(table.ask(InodeNumber(402), 1, (0, 0), LockMode::Exclusive, true), WAITING);
    assert_eq!(table.ask(InodeNumber(403), 2, (0, 0), LockMode::Shared, true), WAITING);
    assert_eq!(table.ask(InodeNumber(401), 3, (0, 0), LockMode::Shared, true), Err(LockError::Deadlock));
    assert_eq!(table.ask(InodeNumber(401), 3, (0, 0), LockMode::Shared, false), Err(LockError::Conflict));
    assert_eq!(table.ask(InodeNumber(403), 3, (0, 0), LockMode::Unlock, false), GRANTED);
    assert_eq!(table.woken, [(InodeNumber(403), 2)]);

    assert_eq!(table.shared(4, (0, 9)), GRANTED);
    assert_eq!(table.shared(5, (0, 9)), GRANTED);
    assert_eq!(table.exclusive(4, (0, 9)), WAITING);
    assert_eq!(table.exclusive(5, (0, 9)), Err(LockError::Deadlock), "two upgrades");
}

#[test]
fn a_flock_upgrade_gives_the_old_lock_up() {
    let mut table = Table::new();
    assert_eq!(table.flock(1, LockMode::Shared, true), GRANTED);
    assert_eq!(table.flock(2, LockMode::Shared, true), GRANTED);
    assert_eq!(table.exclusive(3, (0, 9)), GRANTED, "the families do not meet");
    assert_eq!(table.flock(1, LockMode::Exclusive, true), WAITING);
    assert_eq!(table.flock(2, LockMode::Exclusive, true), WAITING);
    assert_eq!(table.woken.first(), Some(&(FILE, 1)), "2 no longer holds anything");
    assert_eq!(table.flock(1, LockMode::Exclusive, true), GRANTED);
    assert_eq!(table.flock(1, LockMode::Shared, true), GRANTED, "a downgrade needs nobody's leave");
    let range = table.locks.held(FILE, LockFamily::Flock).next().unwrap().range;
    assert_eq!(range, LockRange::WHOLE);
    assert_eq!(table.flock(1, LockMode::Unlock, false), GRANTED);
    assert_eq!(table.woken, [(FILE, 2)]);
}

#[test]
fn test_reports_the_first_conflict() {
    let mut table = Table::new();
    assert_eq!(table.shared(1, (50, 59)), GRANTED);
    assert_eq!(table.shared(2, (20, 29)), GRANTED);
    let test = |table: &Table, who, start, mode| {
        let range = LockRange { start, end: u64::MAX };
        table.locks.test(FILE, owner(who), range, mode).unwrap().map(|lock| (lock.client.0, lock.pid, lock.range.start))
    };
    assert_eq!(test(&table, 3, 0, LockMode::Exclusive), Some((2, 2, 20)));
    assert_eq!(test(&table, 3, 30, LockMode::Exclusive), Some((1, 1, 50)));
    assert_eq!(test(&table, 3, 0, LockMode::Shared), None);
    assert_eq!(test(&table, 1, 30, LockMode::Exclusive), None, "one's own locks do not conflict");
}

#[test]
fn clients_that_leave_free_their_places() {
    let mut table = Table::new();
    assert_eq!(table.exclusive(1, (0, 9)), GRANTED);
    assert_eq!(table.exclusive(2, (0, 9)), WAITING);
    assert_eq!(table.shared(3, (0, 9)), WAITING);
    assert_eq!(table.shared(4, (0, 9)), WAITING);
    table.call(|locks, _, wake| locks.cancel(FILE, LockFamily::Posix, owner(2), wake));
    assert_eq!(table.woken, [], "1 still holds it");
    table.call(|locks, _, wake| locks.drop_client(ClientId(1), wake));
    assert_eq!(table.woken, [(FILE, 3), (FILE, 4)]);
    table.now_ns = TIMEOUT_NS - 1;
    assert_eq!(table.shared(4, (0, 9)), GRANTED);
    table.call(|locks, now_ns, wake| locks.expire(now_ns + 1, wake));
    assert_eq!(table.locks.queued(), 0, "3 was silent");
    table.call(|locks, _, wake| locks.drop_owner(FILE, LockFamily::Posix, owner(4), wake));
    assert!(table.locks.is_empty());
}

#[test]
fn silence_of_the_first_lets_the_next_go_on() {
    let mut table = Table::new();
    assert_eq!(table.shared(1, (0, 9)), GRANTED);
    assert_eq!(table.exclusive(2, (0, 9)), WAITING);
    table.now_ns = TIMEOUT_NS / 2;
    assert_eq!(table.shared(3, (0, 9)), WAITING);
    table.call(|locks, _, wake| locks.expire(TIMEOUT_NS, wake));
    assert_eq!(table.woken, [(FILE, 3)]);
}

#[test]
fn clients_have_a_limit() {
    let mut table = Table { locks: AdvisoryLocks::new(4), ..Table::new() };
    assert_eq!(table.exclusive(1, (0, 9)), GRANTED);
    assert_eq!(table.shared(1, (20, 29)), GRANTED);
    assert_eq!(table.unlock(1, (4, 5)), GRANTED, "splits: three locks");
    assert_eq!(table.shared(1, (1, 2)), Err(LockError::NoLocks), "weaker in the middle: would be two more");
    assert_eq!(table.shared(1, (0, 1)), GRANTED, "the fourth");
    assert_eq!(table.shared(1, (40, 49)), Err(LockError::NoLocks));
    assert_eq!(table.exclusive(1, (0, 1)), GRANTED, "three again");
    assert_eq!(table.exclusive(2, (100, 109)), GRANTED);
    assert_eq!(table.exclusive(1, (100, 109)), WAITING, "the fourth");
    assert_eq!(table.exclusive(1, (105, 109)), Err(LockError::NoLocks));
    assert_eq!(table.unlock(1, (1, 1)), Err(LockError::NoLocks), "would split");
    assert_eq!(table.unlock(1, (0, 1)), GRANTED);
    assert_eq!(table.unlock(1, (0, 99)), GRANTED);
    assert_eq!(table.held(), [(2, 100, 109, LockMode::Exclusive)]);
}

#[test]
fn all_that_the_limit_allows_is_reclaimed() {
    let mut table = Table { locks: AdvisoryLocks::new(3), ..Table::new() };
    assert_eq!(table.exclusive(1, (0, 9)), GRANTED);
    assert_eq!(table.shared(1, (4, 5)), GRANTED);
    let mut restarted = AdvisoryLocks::new(3);
    let locks: Vec<HeldLock> = table.locks.held_by(ClientId(1)).collect();
    assert_eq!(locks.len(), 3);
    locks.iter().for_each(|lock| assert_eq!(restarted.reclaim(lock), Ok(())));
    let more = HeldLock { range: LockRange { start: 20, end: 20 }, ..locks[0] };
    assert_eq!(restarted.reclaim(&more), Err(LockError::NoLocks));
}

/// A request that joins a queue does not look at how everybody in it waits for everybody before.
#[test]
fn thousands_wait_for_one_range() {
    const COUNT: u64 = 1000;
    let mut table = Table { locks: AdvisoryLocks::new(1 << 20), ..Table::new() };
    assert_eq!(table.exclusive(1, (0, 9)), GRANTED);
    for who in 2..2 + COUNT {
        // All of them hold something, but nothing that anybody waits for.
        assert_eq!(table.exclusive(who, (100 * who, 100 * who)), GRANTED);
        assert_eq!(table.exclusive(who, (0, 9)), WAITING);
        assert_eq!(table.woken, []);
    }
    assert_eq!(table.locks.queued() as u64, COUNT);
    assert_eq!(table.unlock(1, (0, 9)), GRANTED);
    assert_eq!(table.woken, [(FILE, 2)]);
}

#[test]
fn locks_are_reclaimed_as_they_were() {
    let mut table = Table::new();
    assert_eq!(table.exclusive(1, (0, 9)), GRANTED);
    assert_eq!(table.shared(1, (10, 19)), GRANTED);
    assert_eq!(table.flock(1, LockMode::Shared, true), GRANTED);
    assert_eq!(table.shared(2, (10, 19)), GRANTED);
    let mut restarted = AdvisoryLocks::new(1000);
    for client in [1, 2] {
        let locks: Vec<HeldLock> = table.locks.held_by(ClientId(client)).collect();
        assert_eq!(locks.len(), if client == 1 { 3 } else { 1 });
        locks.iter().for_each(|lock| assert_eq!(restarted.reclaim(lock), Ok(())));
        assert_eq!(restarted.held_by(ClientId(client)).collect::<Vec<_>>(), locks);
    }
    let thief = HeldLock {
        inode: FILE,
        family: LockFamily::Posix,
        client: ClientId(3),
        owner: 7,
        pid: 3,
        range: LockRange { start: 9, end: 9 },
        mode: LockMode::Shared,
    };
    assert_eq!(restarted.reclaim(&thief), Err(LockError::Conflict));
}

#[test]
fn a_file_that_is_full_of_owners_refuses_newcomers_only() {
    let mut table = Table { locks: AdvisoryLocks::new(1000).with_parties_max(3), ..Table::new() };
    for number in 0..3 {
        assert_eq!(table.shared(number, (number, number)), GRANTED);
    }
    let newcomer = 3;
    assert_eq!(table.shared(newcomer, (0, 9)), Err(LockError::NoLocks));
    assert_eq!(table.shared(0, (0, 100)), GRANTED, "its owner goes on");
    assert_eq!(table.unlock(1, (1, 1)), GRANTED);
    assert_eq!(table.shared(newcomer, (0, 9)), GRANTED);
}
