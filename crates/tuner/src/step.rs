//! What a tuner answers.

/// What to do after a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    /// The setting from now on.
    pub setting: u32,
    /// When to make the next step.
    pub next_ns: u64,
}
