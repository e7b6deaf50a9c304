//! Visits all states that a model can come to.

use std::{
    collections::HashSet,
    fmt::Debug,
    hash::{DefaultHasher, Hash, Hasher},
};

/// A state of a model.
pub trait State: Debug + Hash + Sized {
    /// All states that can follow.
    fn next(&self) -> Vec<Self>;

    /// Asserts what holds in every state.
    fn check(&self);

    /// Whether something follows that no participant has to begin.
    fn goes_on(&self) -> bool;

    /// Asserts what holds when nothing goes on any more.
    fn check_end(&self);
}

/// States are too many to be kept. That two of some million have the same hash is unlikely.
fn fingerprint(state: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    state.hash(&mut hasher);
    hasher.finish()
}

/// Visits all states that can follow; returns how many there are.
pub fn explore(start: impl State) -> usize {
    let (mut seen, mut pending) = (HashSet::new(), vec![start]);
    while let Some(state) = pending.pop() {
        if !seen.insert(fingerprint(&state)) {
            continue;
        }
        state.check();
        if !state.goes_on() {
            state.check_end();
        }
        pending.extend(state.next());
    }
    seen.len()
}
