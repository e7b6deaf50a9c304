//! Moves files to other layouts, in the background or at a user's request.

mod courtesy;
mod migrate;

pub use courtesy::Courtesy;
pub use migrate::{Background, Rest, Restraint};
