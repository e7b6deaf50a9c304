//! The object storage target (OST): keeps the objects that files are striped over.
//!
//! [`Ost`] answers the requests of [`rpc::message::ost`]; it uses an [`ObjectStore`], at present
//! the [`DirectoryStore`](directory::DirectoryStore): records and small data in kv, large data in
//! one host file per object, or on a device of the target ([`Engine`]). Its rules, and the tables
//! of states after a crash, are in [`directory`].
//!
//! Invariants: data are verified on arrival, stored with their checksums and verified when read;
//! acknowledged changes survive the death of the process; nothing is ever torn. Life cycle:
//! [`Ost::format`] once, then [`Ost::open`], requests, [`Ost::stop`]. Downside: overwritten data go
//! through the journal and are written twice.

pub mod allocator_parameters;
pub mod applied;
pub mod chunk_record;
mod cost;
pub mod device_label;
pub mod device_map;
pub mod device_records;
pub mod directory;
mod error;
mod evictions;
mod format;
pub mod group_record;
pub mod inspect;
pub mod object_record;
pub mod one_device;
pub mod options;
pub mod parameters;
pub mod pending_record;
pub mod range_lock;
pub mod rate_limit;
mod read_buffers;
pub mod replies;
pub mod reserved;
pub mod scrub_parameters;
pub mod scrub_record;
pub mod service_threads;
pub mod statistics;
pub mod store;
pub mod superblock;
pub mod tables;
pub mod tables_part;
mod target;
pub mod throughput;
mod turn;
mod work;

pub use options::OstOptions;
pub use rate_limit::RateLimit;
pub use service_threads::SERVICE_IO;
pub use statistics::{OstCounters, Statistics};
pub use store::ObjectStore;
pub use superblock::{Engine, Superblock};
pub use target::{OpenError, Ost, OstDevices};
pub use throughput::Throughput;
