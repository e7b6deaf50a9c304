//! The object storage target (OST): keeps the objects that files are striped over.
//!
//! [`Ost`] answers the requests of [`rpc::message::ost`]; behind it stands an [`ObjectStore`], which today is the
//! [`DirectoryStore`](directory::DirectoryStore): records and small data in kv, large data in one host file per object.
//! Its rules, and the table of what a crash finds, are in [`directory`].
//!
//! Invariants: data are verified on arrival, stored with their checksums and verified when read; what was acknowledged
//! survives the death of the process; nothing is ever torn. Life cycle: [`Ost::format`] once, then [`Ost::open`], requests,
//! [`Ost::stop`]. Downside: overwritten data go through the journal and are written twice.

pub mod chunk_record;
pub mod codec;
pub mod directory;
mod evictions;
pub mod inspect;
pub mod object_record;
pub mod options;
pub mod parameters;
pub mod pending_record;
pub mod range_lock;
pub mod rate_limit;
mod read_buffers;
pub mod replies;
pub mod statistics;
pub mod store;
pub mod superblock;
pub mod tables;
mod target;
mod work;

pub use options::OstOptions;
pub use rate_limit::RateLimit;
pub use statistics::{Figures, Statistics};
pub use store::ObjectStore;
pub use superblock::Superblock;
pub use target::{OpenError, Ost, OstDevices};

use types::FsError;

/// An error of the kv store as users of the target see it.
fn kv_error(target: &str, error: kv::Error) -> FsError {
    match error {
        kv::Error::NoSpace => FsError::NoSpace,
        kv::Error::Corrupt { .. } => FsError::Damaged(format!("tables of {target}: {error}")),
        error => FsError::Device { target: target.to_owned(), detail: error.to_string() },
    }
}
