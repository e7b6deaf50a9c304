//! Moving files to other layouts, in the background or because a user asks.

mod courtesy;
mod migrate;

pub use courtesy::Courtesy;
pub use migrate::{Background, Rest, Restraint};
