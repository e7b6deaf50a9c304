//! Reference tests: the same generated operations on several file systems must give the same
//! results and errors.
//!
//! [`Operation`]s come from the [`Generator`]; [`Model`] gives the result that POSIX requires, in
//! the simplest way; [`Local`] runs them on a directory of any mounted file system (a local one, or
//! a StriaFS mount); the lab runs them on the client.

mod generator;
mod local;
mod model;
mod operation;

pub use generator::{Generator, Shape};
pub use local::Local;
pub use model::Model;
pub use operation::{Facts, Operation, Outcome, RenameFlag, Subject, pattern};
