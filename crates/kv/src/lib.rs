//! Journaled tables: a journal with group commit is authoritative, memory holds the changed entries
//! and as many of the others as fit, a cold store holds checkpoints.
//!
//! A [`Batch`] is applied in memory at once ([`Store::apply`]); [`Store::written`] hands the
//! journal to the kernel, so that it survives the death of the process; [`Store::durable`] flushes
//! it, so that it survives a power loss. A checkpoint copies changed entries to the [`ColdStore`]
//! and frees the journal. Formats: [`journal::format`], [`superblock`].

pub mod batch;
pub mod cold;
pub mod config;
pub mod era;
pub mod error;
pub mod inspect;
pub mod journal;
mod key;
mod pipeline;
pub mod region;
mod store;
pub mod superblock;
mod supply;
mod tables;

pub use batch::{Batch, Lsn, Operation, Table, Term};
pub use cold::{Checkpoint, ColdStore, fjall::FjallCold, memory::MemoryCold, tree::TreeCold};
pub use config::{Config, KEY_BYTES_MAX, VALUE_BYTES_MAX};
pub use era::PowerLossEra;
pub use error::{Error, Result};
pub use store::{Loading, Reads, Statistics, Store};
pub use supply::Supply;
