//! The options with which an MDT is opened, and the parameters that may change while it runs.

use std::{num::NonZeroU64, time::Duration};

use layout::{FileSystemDefault, PlacementPolicy};
use rpc::{ImportOptions, Keyring};
use types::{
    MdtIndex,
    limits::{LOCKS_PER_CLIENT_MAX, OPENS_PER_CLIENT_MAX},
};

use crate::balance::BalancePolicy;

/// Lustre's default of `dom_stripesize`.
const BYTES_ON_MDT_MAX_DEFAULT: u64 = 1 << 20;

/// One of all processes that ever serve a target: random, drawn when it starts.
pub type ProcessId = NonZeroU64;

/// What an MDT is opened with.
#[derive(Clone, Debug)]
pub struct MdtOptions {
    /// Name of the file system, 1-8 characters; must equal the one the store was formatted with.
    pub fsname: String,
    /// Index; must equal the one the store was formatted with.
    pub index: MdtIndex,
    /// The process that opens it: of the clients that live in it, none outlives it.
    pub process: ProcessId,
    /// How long clients of a former start have to come back. Not below the lease: a client that
    /// still has a session notices a restart within it.
    pub recovery_window: Duration,
    /// The tables' store: commit interval, memory budget and so on.
    pub store: kv::Config,
    /// Calls to OSTs.
    pub import: ImportOptions,
    /// What it proves to OSTs.
    pub keys: Keyring,
    /// Name of its host, for people.
    pub node: String,
    /// Parameters at the start.
    pub parameters: Parameters,
    /// Files one client may have open.
    pub opens_per_client_max: usize,
    /// Notices that may be pending for one client before it is evicted. Not below the locks that it
    /// may wait for.
    pub notices_per_client_max: usize,
    /// Whether what each commit leaves is checked, and a breach is a panic: for tests and
    /// simulations, since it takes time.
    pub audits: bool,
}

impl MdtOptions {
    /// Defaults for this file system and index. Clients in one process with the MDT are taken to
    /// outlive it. Without keys, the MDT reaches the OSTs of its own process only.
    pub fn new(fsname: &str, index: MdtIndex) -> Self {
        Self {
            fsname: fsname.to_owned(),
            index,
            process: ProcessId::MIN,
            recovery_window: Duration::from_secs(30),
            store: kv::Config::default(),
            import: ImportOptions::default(),
            keys: Keyring::default(),
            node: String::new(),
            parameters: Parameters::default(),
            opens_per_client_max: OPENS_PER_CLIENT_MAX,
            notices_per_client_max: LOCKS_PER_CLIENT_MAX,
            audits: false,
        }
    }
}

/// What may change while an MDT runs ([`crate::Mdt::parameters`], [`crate::Mdt::set_parameters`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parameters {
    /// Layout of new files without a requested one (`lod.*.automatic`, `stripecount`,
    /// `stripesize`).
    pub default_layout: FileSystemDefault,
    /// Most bytes of a file on this MDT (`lod.*.dom_stripesize`).
    pub bytes_on_mdt_max: u64,
    /// Placement (`lod.*.qos_threshold_rr`, `qos_prio_free`, `osp.*.reserved`).
    pub placement: PlacementPolicy,
    /// On which MDTs directories go that are spread (`lod.*.mdt_qos_threshold_rr`,
    /// `mdt_qos_prio_free`).
    pub directory_placement: PlacementPolicy,
    /// How often OSTs are asked for their space and condition, and other MDTs for their space.
    pub ost_refresh: Duration,
    /// How long an OST may be silent before new files avoid it.
    pub ost_silence: Duration,
    /// Bytes per second that finished files are moved with in the background
    /// (`lod.*.migrate_mbps`); 0: none is moved.
    pub migration_bytes_per_second: u64,
    /// Whether clients are granted locks under which they cache (`mdt.*.cache_locks`).
    pub cache_locks: bool,
    /// Whether these include the right to open for reading without a request (`mdt.*.open_locks`).
    pub open_locks: bool,
    /// How long a client may keep a lock that it was asked to give back, before it is evicted
    /// (`ldlm_timeout`).
    pub lock_timeout: Duration,
    /// How long another MDT may be silent before what depends on it fails (`mdt.*.mdt_timeout`);
    /// 0: that waits as long as its caller does.
    pub mdt_silence: Duration,
    /// How long an inode stays after its last name went (`mdt.*.removal_grace_ms`); 0: not at all.
    pub removal_grace: Duration,
    /// Whether a directory gets shards when it has become large (`mdt.*.enable_dir_auto_split`).
    pub splits_directories: bool,
    /// With how many names it is large (`mdt.*.dir_split_count`).
    pub split_names: u64,
    /// With how many changes of names per second by several clients it splits, if that lasts
    /// (`mdt.*.dir_split_hot`); 0: with none.
    pub hot_changes_per_second: u64,
    /// Shards that it gets on other MDTs (`mdt.*.dir_split_delta`).
    pub split_delta: u16,
    /// With how many names a directory that has split by itself gets them back from its shards
    /// (`mdt.*.dir_merge_count`); 0: never.
    pub merge_names: u64,
    /// When directories move to other MDTs by themselves (`mdt.*.balance_*`).
    pub balance: BalancePolicy,
}

impl Default for Parameters {
    fn default() -> Self {
        Self {
            default_layout: FileSystemDefault::default(),
            bytes_on_mdt_max: BYTES_ON_MDT_MAX_DEFAULT,
            placement: PlacementPolicy::default(),
            // A directory takes next to nothing.
            directory_placement: PlacementPolicy { reserved_bytes: 0, ..PlacementPolicy::default() },
            ost_refresh: Duration::from_secs(5),
            ost_silence: Duration::from_secs(15),
            // A tenth of the rate of one disk: other users of it hardly notice.
            migration_bytes_per_second: 32_000_000,
            cache_locks: true,
            open_locks: true,
            // Lustre's.
            lock_timeout: Duration::from_secs(20),
            // As long as a client waits for a server.
            mdt_silence: Duration::from_secs(100),
            // Several hundred times the interval between two requests for one path on a busy host.
            // The kernel tries once more.
            removal_grace: Duration::from_secs(1),
            splits_directories: true,
            // Twice Lustre's: directories that only programs make so large, mostly. With several
            // MDTs each look at a file that was there takes two requests afterwards.
            split_names: 100_000,
            // See decision 0062.
            hot_changes_per_second: 5000,
            // Lustre's.
            split_delta: 4,
            // Far below what splits it again.
            merge_names: 10_000,
            balance: BalancePolicy::default(),
        }
    }
}
