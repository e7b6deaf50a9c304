//! Random histories against naive models: a table of bytes for what is held, and the promise that
//! each waiter gets its turn when those before it are done.

use std::collections::{BTreeMap, BTreeSet};

use lock::{
    AdvisoryLocks, Completion, LockAnswer, LockError, LockFamily, LockMode, LockOwner, LockRange, LockRequest,
    WaitTicket,
};
use proptest::prelude::*;
use types::{ClientId, InodeNumber};

const BYTES: u64 = 16;

/// Mode of each byte of each file, by owner.
type Model = BTreeMap<(InodeNumber, LockOwner), [Option<LockMode>; BYTES as usize]>;

fn conflicts(model: &Model, request: &LockRequest) -> bool {
    model.iter().any(|((inode, owner), bytes)| {
        (*inode, *owner) != (request.inode, request.owner)
            && *inode == request.inode
            && bytes[request.range.start as usize..=request.range.end as usize]
                .iter()
                .flatten()
                .any(|mode| mode.conflicts(request.mode))
    })
}

fn apply(model: &mut Model, request: &LockRequest) {
    let bytes = model.entry((request.inode, request.owner)).or_default();
    let mode = (request.mode != LockMode::Unlock).then_some(request.mode);
    bytes[request.range.start as usize..=request.range.end as usize].fill(mode);
}

fn assert_equal(model: &Model, locks: &AdvisoryLocks) {
    let mut found = Model::new();
    for inode in model.keys().map(|(inode, _)| *inode).collect::<BTreeSet<_>>() {
        let mut last: Option<(LockOwner, LockRange, LockMode)> = None;
        for lock in locks.held(inode, LockFamily::Posix) {
            let owner = LockOwner { client: lock.client, owner: lock.owner };
            let bytes = found.entry((inode, owner)).or_default();
            for byte in lock.range.start..=lock.range.end {
                assert!(bytes[byte as usize].replace(lock.mode).is_none(), "byte {byte} is held twice by {owner:?}");
            }
            if let Some((before, range, mode)) = last {
                let touches = before == owner && range.end + 1 == lock.range.start;
                assert!(!touches || mode != lock.mode, "{range:?} and {:?} should be one", lock.range);
            }
            last = Some((owner, lock.range, lock.mode));
        }
    }
    let nothing = [None; BYTES as usize];
    let expected: Model =
        model.iter().filter(|(_, bytes)| **bytes != nothing).map(|(key, bytes)| (*key, *bytes)).collect();
    assert_eq!(found, expected);
}

fn requests(wait: bool) -> impl Strategy<Value = LockRequest> {
    let mode = prop_oneof![3 => Just(LockMode::Shared), 3 => Just(LockMode::Exclusive), 2 => Just(LockMode::Unlock)];
    (0u64..2, 0u64..3, 0u64..2, 0..BYTES, 0..BYTES, mode).prop_map(move |(inode, client, owner, a, b, mode)| {
        LockRequest {
            inode: InodeNumber(300 + inode),
            family: LockFamily::Posix,
            owner: LockOwner { client: ClientId(client), owner },
            pid: 1,
            range: LockRange { start: a.min(b), end: a.max(b) },
            mode,
            // A process waits for one lock at a time.
            ticket: (wait && mode != LockMode::Unlock).then_some(WaitTicket(owner)),
        }
    })
}

/// Processes that wait for one lock at a time, as one thread would.
#[derive(Default)]
struct Processes {
    model: Model,
    waiting: BTreeMap<LockOwner, LockRequest>,
}

impl Processes {
    fn ask(&mut self, locks: &mut AdvisoryLocks, request: &LockRequest) {
        let mut completed = Vec::new();
        let outcome = locks.set(request, &mut completed);
        match outcome {
            Ok(LockAnswer::Granted) => {
                assert!(!conflicts(&self.model, request), "granted in spite of a conflict: {request:?}");
                apply(&mut self.model, request);
            }
            Ok(LockAnswer::Queued) => assert!(self.waiting.insert(request.owner, *request).is_none()),
            Err(error) => assert_eq!(error, LockError::Deadlock, "{request:?}"),
        }
        self.complete(completed);
        assert_equal(&self.model, locks);
    }

    fn complete(&mut self, completed: Vec<Completion>) {
        for Completion { client, ticket, outcome } in completed {
            let owner = LockOwner { client, owner: ticket.0 };
            let request = self.waiting.remove(&owner).expect("what is completed has waited");
            assert_eq!(outcome, Ok(()), "a process with one thread is refused at once or never: {request:?}");
            assert!(!conflicts(&self.model, &request), "granted in spite of a conflict: {request:?}");
            apply(&mut self.model, &request);
        }
    }

    fn cancel(&mut self, locks: &mut AdvisoryLocks, owner: LockOwner) {
        let request = self.waiting.remove(&owner).expect("it waits");
        let ticket = request.ticket.expect("it waits");
        let mut completed = Vec::new();
        assert!(locks.cancel(request.inode, request.family, owner.client, ticket, &mut completed));
        self.complete(completed);
        assert_equal(&self.model, locks);
    }

    /// Everybody who does not wait releases everything, until nobody waits.
    fn drain(&mut self, locks: &mut AdvisoryLocks) {
        for _ in 0..1000 {
            if self.waiting.is_empty() {
                return;
            }
            let held = self.model.keys().copied();
            let runs = |owner: &LockOwner| !self.waiting.contains_key(owner);
            let released: Vec<(InodeNumber, LockOwner)> = held.filter(|(_, owner)| runs(owner)).collect();
            for (inode, owner) in released {
                let range = LockRange { start: 0, end: BYTES - 1 };
                let (family, mode) = (LockFamily::Posix, LockMode::Unlock);
                self.ask(locks, &LockRequest { inode, family, owner, pid: 1, range, mode, ticket: None });
            }
        }
        panic!("these wait for ever: {:?}", self.waiting);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn tried_locks_equal_the_byte_model(history in prop::collection::vec(requests(false), 1..80)) {
        let (mut locks, mut model) = (AdvisoryLocks::new(1000), Model::new());
        let mut completed = Vec::new();
        for request in history {
            let expected = if conflicts(&model, &request) { Err(LockError::Conflict) } else { Ok(LockAnswer::Granted) };
            let test = locks.test(request.inode, request.owner, request.range, request.mode).unwrap();
            prop_assert_eq!(test.is_some(), expected.is_err());
            prop_assert_eq!(locks.set(&request, &mut completed), expected);
            if expected.is_ok() {
                apply(&mut model, &request);
            }
            assert_equal(&model, &locks);
        }
        (0..3).for_each(|client| locks.drop_client(ClientId(client), &mut completed));
        prop_assert!(locks.is_empty());
        prop_assert_eq!(completed, []);
    }

    #[test]
    fn each_waiter_gets_its_turn(history in prop::collection::vec((requests(true), 0u8..4), 1..60)) {
        let (mut locks, mut processes) = (AdvisoryLocks::new(1000), Processes::default());
        for (request, cancelled) in history {
            match processes.waiting.contains_key(&request.owner) {
                true if cancelled == 0 => processes.cancel(&mut locks, request.owner),
                true => {}
                false => processes.ask(&mut locks, &request),
            }
        }
        processes.drain(&mut locks);
        prop_assert_eq!(locks.queued(), 0);
    }
}
