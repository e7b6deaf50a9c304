//! Request schedulers: in which order the requests of a service are executed. Lustre's network
//! request scheduler (NRS), with its names.
//!
//! - [`Scheduler`]: the queue of a service. It has a policy, which can be changed at any time, and
//!   the fallback for what the policy is not for: first in, first out.
//! - [`Policy`]: the trait of a policy. [`fifo`], [`turns`] (crrn, orr, trr), [`tbf`], [`delay`].
//! - [`Facts`]: what policies may know of a request.
//! - [`Selection`] and [`Settings`]: what an administrator chooses, and how it is written.
//!
//! Pure: a policy has no clock, no thread and no random numbers of its own. Time is passed in, in
//! nanoseconds of a clock that does not go back; a policy that holds requests back says until when.
//!
//! Invariants, for every policy (`tests/all/contract.rs`): a request comes out once, unless it is
//! removed; a policy holds back nothing forever; no request waits for an unlimited number of later
//! ones.

pub mod delay;
mod facts;
pub mod fifo;
mod policy;
mod scheduler;
mod selection;
mod settings;
pub mod tbf;
pub mod turns;

pub use facts::{DataRange, Direction, Entry, Facts};
pub use policy::{Next, Policy};
pub use scheduler::{PolicyState, Scheduled, Scheduler};
pub use selection::{ClassBy, Field, PolicyName, Selection};
pub use settings::{BatchSettings, DelaySettings, Settings, Supported};

/// Why a setting was refused, with what is allowed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Refused(pub String);

impl Refused {
    fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }
}
