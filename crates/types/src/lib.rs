//! The vocabulary every other crate shares: identifiers, units, attributes, errors and limits.
//!
//! Nothing here does I/O, takes a lock or knows a format on disk. Values are plain data that are
//! sent in messages (serde) and stored in journals (each store encodes them by its own byte tables,
//! with the cursors of [`record`]).

pub mod access_list;
pub mod access_time;
pub mod accounted;
pub mod attributes;
pub mod counted;
pub mod credentials;
pub mod error;
pub mod fid;
pub mod id;
mod job_name;
pub mod limits;
pub mod mode;
pub mod permission;
pub mod record;
mod shard_count;
pub mod size;
pub mod space;
pub mod split_mix;
pub mod striping;
pub mod time;

pub use accounted::{Accounted, DataChanges, DataTimes, SeenChanges, SeenProof};
pub use attributes::{Attributes, Owner, SetAttributes, SetTime};
pub use counted::counted;
pub use credentials::Credentials;
pub use error::{Damage, FsError, FsResult, ProtocolError, RecordDamage, Refusal, TooMany};
pub use fid::Fid;
pub use id::{ClientId, Generation, InodeNumber, LockHandle, Lsn, MdtIndex, ObjectId, OstIndex, Slot, Xid};
pub use job_name::JobName;
pub use mode::{FileKind, NodeKind};
pub use shard_count::ShardCount;
pub use space::{DeviceId, SpaceUsage};
pub use split_mix::SplitMix64;
pub use striping::{DirectoryDefault, DirectoryMap, DirectoryPlace, NameHash, ShardPlace, Stripes, mdts_from};
pub use time::Timestamp;
