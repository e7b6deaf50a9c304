//! The management service (MGS): the targets of a file system, their addresses, and the settings
//! for all of them.
//!
//! Server side: [`Mgs`] answers requests and stores the cluster map; the decisions are those of
//! [`cluster::Cluster`]. Client side: [`Watcher`] keeps a copy of the map up to date; [`Registrar`]
//! keeps a target registered.
//!
//! The MGS is needed for mounting, for new and moved targets and for changes of state; while it is
//! down, existing mounts continue with the map that they have.

pub mod cluster;
mod holders;
pub mod inspect;
mod race;
pub mod registrar;
pub mod service;
mod tables;
pub mod watcher;

pub use registrar::{Registrar, Registration};
pub use service::{Mgs, TargetReport};
pub use watcher::Watcher;

/// Name under which the management service is connected to.
pub const TARGET_NAME: &str = "MGS";
