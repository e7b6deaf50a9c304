//! Whether what clients were told fits one order of their operations: linearizability (Herlihy and
//! Wing, 1990).
//!
//! Each client does one operation after the other. An order explains a history if each operation
//! takes effect at one moment between its beginning and its end, and all of them have the outcomes
//! that they had. An operation of unknown outcome, whose client was evicted meanwhile, took effect
//! then or not at all. The search goes through all positions of all clients, breadth first, and
//! keeps the states that are possible at each: there are few, since few names are fought over.

use std::collections::BTreeSet;

use types::InodeNumber;

use super::state::{Operation, Outcome, State};

/// One operation of a client.
#[derive(Clone, Debug)]
pub struct Event {
    /// What it did.
    pub operation: Operation,
    /// What it was told.
    pub outcome: Outcome,
    /// Before it was begun, and after it had ended: moments in the order in which things happen.
    pub begun: u64,
    /// See `begun`.
    pub ended: u64,
}

/// The operations of each client, in the order in which it did them.
pub type History = Vec<Vec<Event>>;

/// How far each client is, and what there is then.
type Position = (Vec<usize>, State);

/// The states in which a history may leave what was in one of these states before; none: no order
/// explains it. Also how many operations could be explained at most. `known`: files that there were
/// before.
pub fn explain(history: &History, before: &BTreeSet<State>, known: &BTreeSet<InodeNumber>) -> (BTreeSet<State>, usize) {
    let created = possibly_created(history, known);
    let total: usize = history.iter().map(Vec::len).sum();
    let mut reached: BTreeSet<Position> = before.iter().map(|state| (vec![0; history.len()], state.clone())).collect();
    for explained in 0..total {
        let next: BTreeSet<Position> = reached.iter().flat_map(|position| steps(history, position, &created)).collect();
        if next.is_empty() {
            return (BTreeSet::new(), explained);
        }
        reached = next;
    }
    (reached.into_iter().map(|(_, state)| state).collect(), total)
}

/// Files that a creation of unknown outcome may have made: those that were seen for the first time
/// and that no client was told to have made; and for each such creation one that was never seen,
/// because it was removed before.
fn possibly_created(history: &History, known: &BTreeSet<InodeNumber>) -> BTreeSet<InodeNumber> {
    let (mut seen, mut made, mut unknown) = (BTreeSet::new(), BTreeSet::new(), 0);
    for Event { operation, outcome, .. } in history.iter().flatten() {
        seen.extend(outcome.files());
        match (operation, outcome) {
            (Operation::Create(..), Outcome::Unknown) => unknown += 1,
            (Operation::Create(..), Outcome::Shown(shown)) => drop(made.insert(shown.inode)),
            _ => {}
        }
    }
    if unknown == 0 {
        return BTreeSet::new();
    }
    let never_seen = (0..unknown).map(|number| InodeNumber(u64::MAX - number));
    seen.into_iter().filter(|inode| !known.contains(inode) && !made.contains(inode)).chain(never_seen).collect()
}

/// Where one more operation leads.
fn steps(history: &History, (done, state): &Position, created: &BTreeSet<InodeNumber>) -> Vec<Position> {
    let next = |client: usize| history[client].get(done[client]);
    let mut reached = Vec::new();
    for client in 0..history.len() {
        let Some(event) = next(client) else { continue };
        // What ended before it was begun took effect before it.
        let is_late = (0..history.len()).filter_map(next).any(|other| other.ended < event.begun);
        if is_late {
            continue;
        }
        for after in state.after(&event.operation, &event.outcome, created) {
            let mut done = done.clone();
            done[client] += 1;
            reached.push((done, after));
        }
    }
    reached
}

#[cfg(test)]
mod tests {
    use types::{FsError, InodeNumber};

    use super::*;
    use crate::workload::contended::state::Shown;

    const FILE: InodeNumber = InodeNumber(0x100);
    const NAME: (u8, u8) = (0, 0);
    const OTHER: (u8, u8) = (1, 0);

    fn shown(mode: u32, links: u32) -> Outcome {
        Outcome::Shown(Shown { inode: FILE, mode, links })
    }

    fn event(operation: Operation, outcome: Outcome, (begun, ended): (u64, u64)) -> Event {
        Event { operation, outcome, begun, ended }
    }

    fn explains(history: History) -> bool {
        !explain(&history, &[State::default()].into(), &BTreeSet::new()).0.is_empty()
    }

    fn created() -> Event {
        event(Operation::Create(NAME, 0o600), shown(0o600, 1), (1, 4))
    }

    #[test]
    fn what_overlaps_has_either_order() {
        let missing = || event(Operation::Look(NAME), Outcome::Failed(FsError::NotFound), (2, 3));
        let found = || event(Operation::Look(NAME), shown(0o600, 1), (2, 3));
        assert!(explains(vec![vec![created()], vec![missing()]]));
        assert!(explains(vec![vec![created()], vec![found()]]));
    }

    #[test]
    fn a_stale_look_is_found() {
        let missing = event(Operation::Look(NAME), Outcome::Failed(FsError::NotFound), (5, 6));
        assert!(!explains(vec![vec![created()], vec![missing]]));
    }

    #[test]
    fn nobody_sees_the_old_state_after_another_saw_the_new_one() {
        let change = event(Operation::SetMode(FILE, 0o644), shown(0o644, 1), (5, 20));
        let new = event(Operation::Stat(FILE), shown(0o644, 1), (6, 7));
        let old = |begun| event(Operation::Stat(FILE), shown(0o600, 1), (begun, begun + 1));
        assert!(explains(vec![vec![created(), change.clone()], vec![new.clone()], vec![old(5)]]));
        assert!(!explains(vec![vec![created(), change], vec![new], vec![old(8)]]));
    }

    #[test]
    fn links_and_renames_are_followed() {
        let link = event(Operation::Link(FILE, OTHER), shown(0o600, 2), (5, 6));
        let rename = event(Operation::Rename(NAME, OTHER), Outcome::Done, (7, 8));
        let unlink = event(Operation::Unlink(NAME), Outcome::Done, (9, 10));
        let list = |names| event(Operation::List(1), Outcome::Names(names), (11, 12));
        let all = |last| vec![vec![created(), link.clone(), rename.clone(), unlink.clone(), last]];
        assert!(explains(all(list(vec![(0, FILE)]))), "a rename between two names of a file does nothing");
        assert!(!explains(all(list(vec![]))));
    }

    #[test]
    fn what_an_evicted_client_began_was_done_then_or_never() {
        let unlink = |outcome| event(Operation::Unlink(NAME), outcome, (5, 8));
        let look = |outcome, begun| event(Operation::Look(NAME), outcome, (begun, begun + 1));
        let missing = |begun| look(Outcome::Failed(FsError::NotFound), begun);
        let found = |begun| look(shown(0o600, 1), begun);
        let all = |unlinked, looks: &[Event]| vec![vec![created(), unlink(unlinked)], looks.to_vec()];
        for looks in [[missing(6), missing(10)], [found(6), missing(10)], [found(6), found(10)], [found(10), found(12)]]
        {
            assert!(explains(all(Outcome::Unknown, &looks)), "{looks:?}");
        }
        assert!(!explains(all(Outcome::Unknown, &[found(10), missing(12)])), "later");
        assert!(!explains(all(Outcome::Unknown, &[missing(10), found(12)])), "undone");
        assert!(!explains(all(Outcome::Done, &[found(10), found(12)])), "it was told that it was done");
    }

    #[test]
    fn a_file_that_an_evicted_client_made_is_a_new_one() {
        let create = event(Operation::Create(NAME, 0o600), Outcome::Unknown, (1, 4));
        let look = |outcome, begun| event(Operation::Look(NAME), outcome, (begun, begun + 1));
        let other = Outcome::Shown(Shown { inode: InodeNumber(0x101), mode: 0o600, links: 1 });
        assert!(explains(vec![vec![create.clone()], vec![look(shown(0o600, 1), 5)]]));
        assert!(!explains(vec![vec![create.clone()], vec![look(shown(0o644, 1), 5)]]), "its mode");
        assert!(!explains(vec![vec![create.clone()], vec![look(shown(0o600, 1), 5), look(other, 7)]]), "one file");
        let unlink = event(Operation::Unlink(NAME), Outcome::Done, (5, 6));
        assert!(explains(vec![vec![create.clone()], vec![unlink]]), "it was never seen");
        let history = vec![vec![create, look(shown(0o600, 1), 5)]];
        let (possible, _) = explain(&history, &[State::default()].into(), &[FILE].into());
        assert!(possible.is_empty(), "it was there before");
    }

    #[test]
    fn two_creations_cannot_both_succeed() {
        let other = Outcome::Shown(Shown { inode: InodeNumber(0x101), mode: 0o600, links: 1 });
        let second = event(Operation::Create(NAME, 0o600), other, (2, 3));
        assert!(!explains(vec![vec![created()], vec![second]]));
    }
}
