//! Moves files to other layouts, and directories to other MDTs, in the background or at a user's
//! request.

mod balancing;
mod directories;
mod first_names;
mod inode_pace;
mod migrate;
mod throttle;
mod tree;

pub use balancing::{Balanced, Balancing};
pub use directories::DirectoryMigration;
pub use inode_pace::InodePace;
pub use migrate::{Background, Rest, Restraint};
pub use throttle::Throttle;
pub use tree::{Cause, Left, Place, Tree, What};
