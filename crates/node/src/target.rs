//! Targets in directories of this host: where each keeps its journal, its tables and its objects.
//!
//! ```text
//! DIR/stria-target.toml   identity       DIR/stria-target.lock  held while a process serves it
//! DIR/journal/            kv journal     DIR/cold/              kv cold store (fjall)
//! DIR/objects/            host files of an OST's objects, or
//! DIR/device              one file for all of them, or a link to a block device
//! ```
//!
//! An object storage target may have a device instead of a directory: module `one_device`.

use std::{
    collections::BTreeMap,
    path::Path,
    sync::{Arc, LazyLock, Mutex},
};

use anyhow::{Context, bail};
use kv::{FjallCold, Store, cold::fjall::FjallOptions};
use mds::{Mdt, MdtOptions, NewRoot, ProcessId};
use mgs::Mgs;
use oss::{
    Ost, OstDevices, OstOptions, Throughput,
    directory::{commit::FLUSHES_MAX, device::DEVICE_FILE},
};
use rpc::Keyring;
use rt::{
    Entropy, Seams,
    real::{Cores, Execution, IoThreads, LocalDirectory, SystemEntropy},
};
use rustix::process::{getegid, geteuid};
use types::{Credentials, DeviceId, DirectoryDefault, MdtIndex, OstIndex};

use super::{
    config::{Role, TargetConfig},
    one_device, process,
    storage::Storage,
};

/// Threads that flush journals of this process.
const FLUSH_THREADS: usize = 4;

/// Threads that do the blocking work of a process's targets.
#[derive(Clone)]
pub struct Threads {
    /// Flushes of journals.
    pub flush: Arc<IoThreads>,
    /// I/O on objects: the service threads of `ost_io`.
    pub ost_io: Arc<IoThreads>,
    /// Flushes of objects: as many as a target's commit has in progress, so that reads and writes
    /// wait for none.
    pub ost_flush: Arc<IoThreads>,
    /// How fast the devices below are that targets of this process share.
    throughputs: Arc<Mutex<BTreeMap<DeviceId, Arc<Throughput>>>>,
}

impl Threads {
    /// Starts them.
    pub fn start() -> std::io::Result<Self> {
        let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        Ok(Self {
            flush: Arc::new(IoThreads::new("flush", FLUSH_THREADS)?),
            ost_io: Arc::new(IoThreads::new("ost_io", (2 * cores).clamp(4, 64))?),
            ost_flush: Arc::new(IoThreads::new("ost_flush", FLUSHES_MAX)?),
            throughputs: Arc::default(),
        })
    }

    /// Of a device; without an identity, one of its own.
    fn throughput_of(&self, device: Option<DeviceId>) -> Arc<Throughput> {
        let Some(device) = device else { return Arc::default() };
        let mut known = self.throughputs.lock().expect("no panic while locked");
        known.entry(device).or_default().clone()
    }
}

/// A target that is open.
pub enum OpenTarget {
    /// Management service.
    Mgs(Arc<Mgs>),
    /// Metadata target.
    Mdt(Arc<Mdt>),
    /// Object storage target.
    Ost(Arc<Ost>),
}

pub(super) fn config(memory_bytes: u64) -> kv::Config {
    kv::Config { memory_bytes: memory_bytes / 2, ..kv::Config::default() }
}

fn cold(directory: &Path, memory_bytes: u64) -> anyhow::Result<Arc<FjallCold>> {
    let path = directory.join("cold");
    let cold = FjallCold::open(&path, FjallOptions::for_budget(memory_bytes / 2));
    Ok(Arc::new(cold.with_context(|| format!("cannot open the tables in {}", path.display()))?))
}

fn journal(directory: &Path, threads: &Threads) -> anyhow::Result<Arc<LocalDirectory>> {
    let path = directory.join("journal");
    let device = LocalDirectory::open(&path, Execution::Inline, Arc::clone(&threads.flush));
    Ok(Arc::new(device.with_context(|| format!("cannot open {}", path.display()))?))
}

fn ost_devices(directory: &Path, threads: &Threads, memory_bytes: u64) -> anyhow::Result<OstDevices> {
    // Names of host files begin with `objects/`; a device is `device`.
    let objects = LocalDirectory::open(directory, Execution::Pooled, Arc::clone(&threads.ost_io));
    let objects = objects.with_context(|| format!("cannot open {}", directory.display()))?;
    let throughput = threads.throughput_of(objects.identity());
    Ok(OstDevices {
        throughput,
        objects: Arc::new(objects.with_flushers(Arc::clone(&threads.ost_flush))),
        journal: journal(directory, threads)?,
        cold: cold(directory, memory_bytes)?,
    })
}

/// Makes the tables of a new target.
pub async fn format(cores: &Cores, target: &TargetConfig, storage: &Storage, fsname: &str) -> anyhow::Result<()> {
    /// Memory is not needed for a handful of records.
    const MEMORY_BYTES: u64 = 64 << 20;
    let (seams, threads) = (process::seams(cores), Threads::start()?);
    let directory = target.dir.as_path();
    match target.role {
        Role::Mgs => {
            let mgs = open_mgs(&seams, directory, fsname, &threads, MEMORY_BYTES).await?;
            mgs.close().await?;
        }
        Role::Mdt => {
            let (journal, cold) = (journal(directory, &threads)?, cold(directory, MEMORY_BYTES)?);
            // The user who creates a file system must be able to use it: without root, no other
            // user could grant access.
            let owner = Credentials { uid: geteuid().as_raw(), gid: getegid().as_raw(), groups: None };
            let root = NewRoot { owner, default: Some(DirectoryDefault::OF_NEW_ROOT) };
            let index = MdtIndex(target.index);
            Mdt::format(&seams, journal, cold, config(MEMORY_BYTES), fsname, index, &root).await?;
        }
        Role::Ost => {
            let engine = storage.make(directory)?;
            let devices = ost_devices(directory, &threads, MEMORY_BYTES)?;
            let (index, config) = (OstIndex(target.index), config(MEMORY_BYTES));
            Ost::format_with(&seams, &devices, fsname, index, engine, config).await?;
        }
    }
    Ok(())
}

/// Refuses a target that has lost a part, which opening would make again: a directory of its own
/// that is not mounted.
fn expect_whole(target: &TargetConfig) -> anyhow::Result<()> {
    if one_device::is_device(&target.dir) {
        return Ok(());
    }
    // Whether what it leads to is there shows when it is read.
    let has_device = target.dir.join(DEVICE_FILE).symlink_metadata().is_ok();
    let objects = (target.role == Role::Ost && !has_device).then_some("objects");
    for part in ["journal", "cold"].into_iter().chain(objects) {
        let path = target.dir.join(part);
        if !path.is_dir() {
            bail!("{} is missing: the target is incomplete", path.display());
        }
    }
    Ok(())
}

/// This process, for its targets.
fn process() -> ProcessId {
    static PROCESS: LazyLock<ProcessId> = LazyLock::new(|| {
        let random = SystemEntropy.next_u64();
        ProcessId::new(random).unwrap_or(ProcessId::MAX)
    });
    *PROCESS
}

/// Opens a formatted target; its directory is locked by the caller.
pub async fn open(
    seams: &Seams,
    target: &TargetConfig,
    fsname: &str,
    threads: &Threads,
    memory_bytes: u64,
    keys: &Keyring,
) -> anyhow::Result<OpenTarget> {
    let directory = target.dir.as_path();
    expect_whole(target)?;
    Ok(match target.role {
        Role::Mgs => OpenTarget::Mgs(open_mgs(seams, directory, fsname, threads, memory_bytes).await?),
        Role::Mdt => {
            let (journal, cold) = (journal(directory, threads)?, cold(directory, memory_bytes)?);
            let mut options = MdtOptions::new(fsname, MdtIndex(target.index));
            options.process = process();
            options.keys = keys.clone();
            options.node = process::host_name();
            options.store = config(memory_bytes);
            OpenTarget::Mdt(Mdt::open(seams.clone(), journal, cold, options).await?)
        }
        Role::Ost => {
            let (devices, config) = match one_device::is_device(directory) {
                true => one_device::open(directory, threads, memory_bytes)?,
                false => (ost_devices(directory, threads, memory_bytes)?, config(memory_bytes)),
            };
            let (index, options) = (OstIndex(target.index), OstOptions::default());
            OpenTarget::Ost(Ost::open(seams.clone(), devices, fsname, index, options, config).await?)
        }
    })
}

async fn open_mgs(
    seams: &Seams,
    directory: &Path,
    fsname: &str,
    threads: &Threads,
    memory_bytes: u64,
) -> anyhow::Result<Arc<Mgs>> {
    let (journal, cold) = (journal(directory, threads)?, cold(directory, memory_bytes)?);
    let store = Store::open(seams.clone(), journal, cold, config(memory_bytes), &mut |_, _| {}).await?;
    Ok(Mgs::open(seams, store, fsname).await?)
}
