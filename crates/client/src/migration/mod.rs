//! Moves files to other layouts, in the background or at a user's request.

mod migrate;
mod throttle;

pub use migrate::{Background, Rest, Restraint};
pub use throttle::Throttle;
