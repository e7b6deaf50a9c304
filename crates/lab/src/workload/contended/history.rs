//! Whether what clients were told fits one order of their operations: linearizability (Herlihy and
//! Wing, 1990).
//!
//! Each client does one operation after the other. An order explains a history if each operation
//! takes effect at one moment between its beginning and its end, and all of them have the outcomes
//! that they had. The search goes through all positions of all clients, breadth first, and keeps
//! the states that are possible at each: there are few, since few names are fought over.

use std::collections::BTreeSet;

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
/// explains it. Also how many operations could be explained at most.
pub fn explain(history: &History, before: &BTreeSet<State>) -> (BTreeSet<State>, usize) {
    let total: usize = history.iter().map(Vec::len).sum();
    let mut reached: BTreeSet<Position> = before.iter().map(|state| (vec![0; history.len()], state.clone())).collect();
    for explained in 0..total {
        let next: BTreeSet<Position> = reached.iter().flat_map(|position| steps(history, position)).collect();
        if next.is_empty() {
            return (BTreeSet::new(), explained);
        }
        reached = next;
    }
    (reached.into_iter().map(|(_, state)| state).collect(), total)
}

/// Where one more operation leads.
fn steps(history: &History, (done, state): &Position) -> Vec<Position> {
    let next = |client: usize| history[client].get(done[client]);
    let mut reached = Vec::new();
    for client in 0..history.len() {
        let Some(event) = next(client) else { continue };
        // What ended before it was begun took effect before it.
        let is_late = (0..history.len()).filter_map(next).any(|other| other.ended < event.begun);
        if is_late {
            continue;
        }
        if let Some(after) = state.after(&event.operation, &event.outcome) {
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
        !explain(&history, &[State::default()].into()).0.is_empty()
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
    fn two_creations_cannot_both_succeed() {
        let other = Outcome::Shown(Shown { inode: InodeNumber(0x101), mode: 0o600, links: 1 });
        let second = event(Operation::Create(NAME, 0o600), other, (2, 3));
        assert!(!explains(vec![vec![created()], vec![second]]));
    }
}
