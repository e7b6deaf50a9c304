//! Journaled tables: the truth is a journal with group commit, memory tables hold what is recent, a cold store the rest.

pub mod batch;
pub mod cold;

pub use batch::{Batch, Lsn, Operation, Table};
pub use cold::ColdStore;
