//! Advisory locks, one rule per test.

use lock::{
    AdvisoryLocks, Completion, HeldLock, LAST_BYTE, LockAnswer, LockError, LockFamily, LockMode, LockOwner, LockRange,
    LockRequest, WaitTicket,
};
use types::{ClientId, InodeNumber};

const FILE: InodeNumber = InodeNumber(300);
const OTHER: InodeNumber = InodeNumber(301);
const GRANTED: Result<LockAnswer, LockError> = Ok(LockAnswer::Granted);
const QUEUED: Result<LockAnswer, LockError> = Ok(LockAnswer::Queued);

/// A lock table with the completions of the last call.
struct Table {
    locks: AdvisoryLocks,
    /// Client and outcome.
    completed: Vec<(u64, Result<(), LockError>)>,
}

fn owner(number: u64) -> LockOwner {
    LockOwner { client: ClientId(number), owner: 7 }
}

impl Table {
    fn new() -> Self {
        Self { locks: AdvisoryLocks::new(1000), completed: Vec::new() }
    }

    fn call<T>(&mut self, call: impl FnOnce(&mut AdvisoryLocks, &mut Vec<Completion>) -> T) -> T {
        let mut completed = Vec::new();
        let result = call(&mut self.locks, &mut completed);
        self.completed = completed.iter().map(|completion| (completion.client.0, completion.outcome)).collect();
        result
    }

    /// A request that waits has the file's number as its ticket: a client asks once for each file.
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
        let ticket = wait.then_some(WaitTicket(inode.0));
        let request = LockRequest { inode, family, owner: owner(who), pid: who as u32, range, mode, ticket };
        self.call(|locks, completed| locks.set(&request, completed))
    }

    fn flock(&mut self, who: u64, mode: LockMode, wait: bool) -> Result<LockAnswer, LockError> {
        let range = LockRange { start: 5, end: 5 };
        let ticket = wait.then_some(WaitTicket(0));
        let request =
            LockRequest { inode: FILE, family: LockFamily::Flock, owner: owner(who), pid: 1, range, mode, ticket };
        self.call(|locks, completed| locks.set(&request, completed))
    }

    fn cancel(&mut self, who: u64) -> bool {
        self.call(|locks, completed| {
            locks.cancel(FILE, LockFamily::Posix, ClientId(who), WaitTicket(FILE.0), completed)
        })
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
    assert_eq!(table.exclusive(2, (5, 14)), QUEUED);
    assert_eq!(table.shared(3, (0, 4)), GRANTED, "no conflict with what waits");
    assert_eq!(table.shared(3, (8, 9)), QUEUED, "after the exclusive request");
    assert_eq!(table.shared(3, (8, 9)), QUEUED, "the same request again has one place");
    assert_eq!(table.locks.queued(), 2);
    assert_eq!(table.ask(FILE, 4, (8, 9), LockMode::Shared, false), Err(LockError::Conflict));
    assert_eq!(table.unlock(1, (0, 9)), GRANTED);
    assert_eq!(table.completed, [(2, Ok(()))]);
    assert_eq!(table.unlock(2, (0, 99)), GRANTED);
    assert_eq!(table.completed, [(3, Ok(()))]);
    assert_eq!(table.held(), [(3, 0, 4, LockMode::Shared), (3, 8, 9, LockMode::Shared)]);
    assert_eq!(table.locks.queued(), 0);
}

#[test]
fn a_holder_passes_those_who_wait_for_it() {
    let mut table = Table::new();
    assert_eq!(table.exclusive(1, (0, 9)), GRANTED);
    assert_eq!(table.exclusive(2, (0, 99)), QUEUED);
    assert_eq!(table.exclusive(1, (10, 19)), GRANTED, "waiting for 2 would be waiting for itself");
    assert_eq!(table.exclusive(3, (20, 29)), QUEUED);
}

#[test]
fn circles_through_queues_are_dissolved() {
    let mut table = Table::new();
    assert_eq!(table.ask(OTHER, 2, (0, 0), LockMode::Exclusive, true), GRANTED);
    assert_eq!(table.exclusive(1, (0, 9)), GRANTED);
    assert_eq!(table.exclusive(3, (5, 14)), QUEUED, "for 1");
    assert_eq!(table.exclusive(2, (10, 19)), QUEUED, "after 3");
    assert_eq!(table.ask(OTHER, 1, (0, 0), LockMode::Exclusive, true), QUEUED, "for 2, no deadlock: 2 may pass 3");
    assert_eq!(table.completed, [(2, Ok(()))]);
}

#[test]
fn deadlocks_are_refused() {
    let mut table = Table::new();
    for who in 1..=3 {
        assert_eq!(table.ask(InodeNumber(400 + who), who, (0, 0), LockMode::Exclusive, true), GRANTED);
    }
    assert_eq!(table.ask(InodeNumber(402), 1, (0, 0), LockMode::Exclusive, true), QUEUED);
    assert_eq!(table.ask(InodeNumber(403), 2, (0, 0), LockMode::Shared, true), QUEUED);
    assert_eq!(table.ask(InodeNumber(401), 3, (0, 0), LockMode::Shared, true), Err(LockError::Deadlock));
    assert_eq!(table.ask(InodeNumber(401), 3, (0, 0), LockMode::Shared, false), Err(LockError::Conflict));
    assert_eq!(table.ask(InodeNumber(403), 3, (0, 0), LockMode::Unlock, false), GRANTED);
    assert_eq!(table.completed, [(2, Ok(()))]);

    assert_eq!(table.shared(4, (0, 9)), GRANTED);
    assert_eq!(table.shared(5, (0, 9)), GRANTED);
    assert_eq!(table.exclusive(4, (0, 9)), QUEUED);
    assert_eq!(table.exclusive(5, (0, 9)), Err(LockError::Deadlock), "two upgrades");
}

/// 2 has two threads: one waits for a lock of 3, the other one is granted what 3 waits for, too.
#[test]
fn a_deadlock_that_comes_with_a_grant_is_refused() {
    let mut table = Table::new();
    assert_eq!(table.ask(OTHER, 3, (0, 0), LockMode::Exclusive, true), GRANTED);
    assert_eq!(table.exclusive(1, (0, 9)), GRANTED);
    assert_eq!(table.exclusive(2, (0, 9)), QUEUED);
    assert_eq!(table.exclusive(3, (0, 9)), QUEUED);
    assert_eq!(table.ask(OTHER, 2, (0, 0), LockMode::Exclusive, true), QUEUED);
    assert_eq!(table.unlock(1, (0, 9)), GRANTED);
    assert_eq!(table.completed, [(2, Ok(())), (3, Err(LockError::Deadlock))]);
}

#[test]
fn a_flock_upgrade_gives_the_old_lock_up() {
    let mut table = Table::new();
    assert_eq!(table.flock(1, LockMode::Shared, true), GRANTED);
    assert_eq!(table.flock(2, LockMode::Shared, true), GRANTED);
    assert_eq!(table.exclusive(3, (0, 9)), GRANTED, "the families do not meet");
    assert_eq!(table.flock(1, LockMode::Exclusive, true), QUEUED);
    assert_eq!(table.flock(2, LockMode::Exclusive, true), QUEUED);
    assert_eq!(table.completed, [(1, Ok(()))], "2 no longer holds anything");
    assert_eq!(table.flock(1, LockMode::Shared, true), GRANTED, "a downgrade needs nobody's leave");
    let range = table.locks.held(FILE, LockFamily::Flock).next().unwrap().range;
    assert_eq!(range, LockRange::WHOLE);
    assert_eq!(table.flock(1, LockMode::Unlock, false), GRANTED);
    assert_eq!(table.completed, [(2, Ok(()))]);
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
    assert_eq!(table.exclusive(2, (0, 9)), QUEUED);
    assert_eq!(table.shared(3, (0, 9)), QUEUED);
    assert_eq!(table.shared(4, (0, 9)), QUEUED);
    assert!(table.cancel(2));
    assert_eq!(table.completed, [], "1 still holds it");
    assert!(!table.cancel(2), "it has left");
    table.call(|locks, completed| locks.drop_client(ClientId(1), completed));
    assert_eq!(table.completed, [(3, Ok(())), (4, Ok(()))]);
    assert!(!table.cancel(3), "it was granted before");
    assert_eq!(table.exclusive(3, (0, 9)), QUEUED);
    table.call(|locks, completed| locks.drop_owner(FILE, LockFamily::Posix, owner(4), completed));
    assert_eq!(table.completed, [(3, Ok(()))]);
    assert_eq!(table.exclusive(4, (0, 9)), QUEUED);
    table.call(|locks, completed| locks.drop_owner(FILE, LockFamily::Posix, owner(4), completed));
    assert_eq!(table.completed, [(4, Err(LockError::Released))]);
    table.call(|locks, completed| locks.drop_owner(FILE, LockFamily::Posix, owner(3), completed));
    assert!(table.locks.is_empty());
}

#[test]
fn a_place_that_is_cancelled_lets_the_next_go_on() {
    let mut table = Table::new();
    assert_eq!(table.shared(1, (0, 9)), GRANTED);
    assert_eq!(table.exclusive(2, (0, 9)), QUEUED);
    assert_eq!(table.shared(3, (0, 9)), QUEUED);
    assert!(table.cancel(2));
    assert_eq!(table.completed, [(3, Ok(()))]);
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
    assert_eq!(table.exclusive(1, (100, 109)), QUEUED, "the fourth");
    let second = table.ask(FILE, 1, (105, 109), LockMode::Exclusive, false);
    assert_eq!(second, Err(LockError::Conflict));
    assert_eq!(table.ask(OTHER, 1, (0, 9), LockMode::Exclusive, false), Err(LockError::NoLocks));
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
        assert_eq!(table.exclusive(who, (0, 9)), QUEUED);
        assert_eq!(table.completed, []);
    }
    assert_eq!(table.locks.queued() as u64, COUNT);
    assert_eq!(table.unlock(1, (0, 9)), GRANTED);
    assert_eq!(table.completed, [(2, Ok(()))]);
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

/// A request does not hold up those of others by a search through all owners.
#[test]
fn a_circle_of_too_many_is_not_found() {
    const OWNERS: u64 = 20;
    let file = |number: u64| InodeNumber(400 + number);
    let circle = |visits_max: usize| {
        let mut table = Table { locks: AdvisoryLocks::new(1000).with_visits_max(visits_max), ..Table::new() };
        for number in 0..OWNERS {
            assert_eq!(table.ask(file(number), number, (0, 0), LockMode::Exclusive, true), GRANTED);
        }
        for number in 1..OWNERS {
            assert_eq!(table.ask(file(number - 1), number, (0, 0), LockMode::Exclusive, true), QUEUED);
        }
        let last = table.ask(file(OWNERS - 1), 0, (0, 0), LockMode::Exclusive, true);
        // The one that is killed lets the others go on.
        let ticket = WaitTicket(file(OWNERS - 2).0);
        let killed = table.call(|locks, completed| {
            let killed = locks.cancel(file(OWNERS - 2), LockFamily::Posix, ClientId(OWNERS - 1), ticket, completed);
            locks.drop_client(ClientId(OWNERS - 1), completed);
            killed
        });
        assert!(killed);
        (last, table.completed)
    };
    assert_eq!(circle(100), (Err(LockError::Deadlock), vec![]));
    assert_eq!(circle(10), (QUEUED, vec![(0, Ok(()))]));
}
