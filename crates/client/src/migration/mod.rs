//! Moves files to other layouts, and directories to other MDTs, in the background or at a user's
//! request.

mod balancing;
mod directories;
mod inode_pace;
mod migrate;
mod throttle;
mod tree;

pub use balancing::{Balanced, Balancing};
pub use directories::{DirectoryMigration, Left, What};
pub use inode_pace::InodePace;
pub use migrate::{Background, Rest, Restraint};
pub use throttle::Throttle;
pub use tree::{Cause, Place, Tree};
