//! Visits every state to which a model can come, in any order of its steps.

use std::{
    collections::HashSet,
    fmt::Debug,
    hash::{DefaultHasher, Hash, Hasher},
};

/// A state of a model.
pub trait World: Clone + Eq + Hash + Debug {
    /// What may happen next.
    type Step: Copy;
    /// Which rules of the protocol hold.
    type Without: Copy;

    /// All that may happen. A step that changes nothing is none.
    fn steps(&self, without: Self::Without) -> Vec<Self::Step>;
    fn take(&mut self, step: Self::Step, without: Self::Without);
    /// Whether nobody has to wait for this step.
    fn is_fault(step: Self::Step) -> bool;
    /// What holds in each state.
    fn check(&self) -> Result<(), String>;
    /// What holds when nothing more happens.
    fn check_rest(&self) -> Result<(), String>;
}

/// Whether the run is to take as long as it takes.
pub fn is_long() -> bool {
    std::env::var_os("STRIA_TEST_LONG").is_some_and(|value| value == "1")
}

/// Returns the number of states, of which there are `states_max` at most; or what does not hold in
/// one.
pub fn explore<W: World>(first: W, without: W::Without, states_max: usize) -> Result<usize, String> {
    // Of four million states, no two have the same number of 64 bits, but for one run in two
    // million.
    let mut seen = HashSet::from([number(&first)]);
    let mut next = vec![first];
    while let Some(world) = next.pop() {
        world.check().map_err(|reason| format!("{reason}: {world:#?}"))?;
        let mut goes_on = false;
        for step in world.steps(without) {
            let mut after = world.clone();
            after.take(step, without);
            goes_on |= !W::is_fault(step) && after != world;
            if seen.insert(number(&after)) {
                next.push(after);
            }
        }
        if !goes_on {
            world.check_rest().map_err(|reason| format!("{reason}: {world:#?}"))?;
        }
        assert!(seen.len() <= states_max, "too many states");
    }
    Ok(seen.len())
}

fn number(world: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    world.hash(&mut hasher);
    hasher.finish()
}
