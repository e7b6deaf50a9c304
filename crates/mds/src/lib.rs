//! The metadata target (MDT): the namespace of a file system, as a request handler.
//!
//! - [`tables`]: what is stored, byte by byte.
//! - `transaction`: what one operation sees and changes; `ops`: the operations, one file each.
//! - `known_size`: when the MDT knows a file's size; `protection`: what no user may do (who may do
//!   what is decided by [`types::permission`]). Pure.
//! - `namespace`: tables and volatile state, under one lock: many readers or one change.
//! - `invariants`: what is asserted of every batch; `audit`: what is checked after each one in
//!   tests.
//! - `data`: bytes of files that are stored on this MDT.
//! - `balance`: what this MDT has to give to others. Pure.
//! - `peers`: operations on names and inodes of several MDTs, as far as they are in memory.
//! - `mdt`: [`Mdt`], the handler around the namespace; in it `recovery`: sessions, restarts,
//!   evictions; `ost_proxy`, `space`: what the MDT tells OSTs and asks them; `mdt_proxy`, `peers`:
//!   the same with other MDTs. Nothing outside of `mdt` names `Mdt`.
//!
//! Invariants: an operation happens whole or not at all; the batch of a mutation contains its
//! reply, so that a repetition has no second effect even after a crash; no reply shows anything
//! that a killed process could forget.
//!
//! Downside: one lock for changes and one journal per MDT: more changes than one core can do need
//! more MDTs.

mod audit;
mod balance;
mod cache_locks;
mod cached_parts;
mod claims;
mod data;
mod error;
mod grants;
mod growing_directories;
mod history;
mod hold_ups;
mod hot_directories;
pub mod inspect;
mod invariants;
mod invitations;
mod known_size;
mod load;
mod lock_callbacks;
mod lock_deadlines;
mod mdt;
mod moves;
mod namespace;
mod new_root;
mod opens;
mod ops;
mod options;
pub mod pace;
mod peers;
mod placement;
mod pools;
mod presumed_opens;
mod protection;
mod removed;
mod shown_changes;
mod spread;
mod statistics;
pub mod tables;
mod transaction;
mod transfers;
mod volatile;
mod waiters;

pub use balance::{BalancePolicy, Surplus};
pub use error::OpenError;
pub use lock::inode_locks::LockCounters;
pub use mdt::Mdt;
pub use mdt::balance::{BalancePlan, BalancePlanner, BalanceState};
pub use new_root::NewRoot;
pub use options::{MdtOptions, Parameters, ProcessId};
pub use placement::{OstReport, OstView, Refusal};
pub use pools::{Spill, SpillError};
pub use statistics::Statistics;
pub use transfers::Transfers;
