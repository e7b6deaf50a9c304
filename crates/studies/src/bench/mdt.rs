//! `stria bench mdt`: one metadata target called directly, without clients and network: what its
//! tables and its code cost. The baseline is the local file system, in the same place.
//!
//! Workers make, look up, stat and remove empty files: each in a directory of its own, in the order
//! of their numbers. What a target changes is durable by its commit a second later, as always; what
//! the local file system changes, by its own. Neither is waited for.
//!
//! Files hold their first bytes on the target, so that no object storage target is called. The
//! client of the calls asks for no locks.

use std::{
    io,
    path::{Path, PathBuf},
    sync::Arc,
};

use anyhow::{Context, bail};
use bytes::Bytes;
use clap::{Args, builder::RangedU64ValueParser};
use host::progress;
use mds::Mdt;
use node::{
    config::{Role, TargetConfig},
    format::format_target,
    storage::Storage,
    target::{self, OpenTarget, Threads},
};
use parking_lot::Mutex;
use rpc::{
    Call, Endpoint, Handler, Key, Keyring, SessionEvent,
    message::{
        MdtReply, MdtRequest, Reply, Request,
        mdt::{Create, Lookup, Unlink},
    },
};
use rt::real::{Cores, SystemEntropy};
use types::{ClientId, Credentials, InodeNumber, NodeKind, OstIndex, Slot, Xid};

use super::{
    fdatasync::fdatasync_rate,
    leftovers::Place,
    measurement::Measurement,
    results::Results,
    workers::{self, own_cpu},
};

/// Name of the benchmark in results.
const BENCH: &str = "mdt";
const FSNAME: &str = "bench";
/// The client whose requests these are.
const CLIENT: ClientId = ClientId(1);

/// Options.
#[derive(Clone, Debug, Args)]
pub struct MdtArgs {
    /// Numbers of workers, separated by commas
    #[arg(long, value_delimiter = ',', default_values_t = [1, 2], value_parser = RangedU64ValueParser::<usize>::new().range(1..=256))]
    workers: Vec<usize>,
    /// Files of each worker
    #[arg(long, default_value_t = 50_000, value_parser = clap::value_parser!(u64).range(1..=1 << 32))]
    files: u64,
    /// Memory of the target's tables, in MiB
    #[arg(long, default_value_t = 1024, value_name = "MIB", value_parser = clap::value_parser!(u64).range(64..=1 << 20))]
    memory: u64,
    /// Repetitions, interleaved; the table shows medians
    #[arg(long, default_value_t = 3, value_parser = RangedU64ValueParser::<usize>::new().range(1..))]
    repeat: usize,
    /// Directory on the disk to be used [default: the temporary directory]
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// Write every measurement to this file as a JSON line
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// History file to which the medians are appended, see `stria bench compare` [default:
    /// stria/bench.jsonl in $XDG_STATE_HOME or ~/.local/state]
    #[arg(long, value_name = "FILE")]
    history: Option<PathBuf>,
}

/// Runs `stria bench mdt`.
pub fn run(arguments: MdtArgs) -> anyhow::Result<()> {
    let place = Place::new("stria-bench-", arguments.dir.as_deref())?;
    let mut results = Results::new(arguments.json.as_deref())?;
    for workers in &arguments.workers {
        for round in 1..=arguments.repeat {
            for system in ["local", BENCH] {
                progress::show(format_args!("{system} x{workers}, round {round} of {}", arguments.repeat));
                let directory = place.path().join(system);
                let fdatasync_per_second = fdatasync_rate(place.path())?;
                let namespace: Box<dyn Names> = match system {
                    BENCH => Box::new(Target::start(&directory, arguments.memory << 20, *workers)?),
                    _ => Box::new(LocalDirectories::new(&directory, *workers)?),
                };
                let load = Load { workers: *workers, files: arguments.files };
                let measured =
                    measure(&*namespace, system, load, fdatasync_per_second).with_context(|| format!("on {system}"))?;
                drop(namespace);
                std::fs::remove_dir_all(&directory)
                    .with_context(|| format!("cannot remove {}", directory.display()))?;
                results.record(measured)?;
            }
        }
    }
    progress::done();
    results.finish(arguments.history, |_| None);
    Ok(())
}

/// What is done.
#[derive(Clone, Copy)]
struct Load {
    workers: usize,
    files: u64,
}

/// What is done to files, in the order of the phases.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Create,
    Lookup,
    Stat,
    Remove,
}

impl Phase {
    const ALL: [Phase; 4] = [Phase::Create, Phase::Lookup, Phase::Stat, Phase::Remove];

    fn name(self) -> &'static str {
        match self {
            Phase::Create => "create",
            Phase::Lookup => "lookup",
            Phase::Stat => "stat",
            Phase::Remove => "remove",
        }
    }
}

/// Directories of workers, with files by number.
trait Names: Send + Sync {
    /// Does one thing to so many files of a worker, one after the other.
    fn work(&self, rank: usize, phase: Phase, files: u64) -> io::Result<()>;
}

fn measure(
    names: &dyn Names,
    system: &'static str,
    load: Load,
    fdatasync_per_second: f64,
) -> io::Result<Vec<Measurement>> {
    let one = |phase: Phase| {
        let cpu = own_cpu();
        let wall = workers::run(load.workers, |rank| names.work(rank, phase, load.files))?;
        Ok(Measurement {
            bench: BENCH,
            phase: phase.name(),
            system,
            workers: load.workers,
            operations: load.files * load.workers as u64,
            bytes: 0,
            seconds: wall.as_secs_f64(),
            cpu_seconds: own_cpu().saturating_sub(cpu).as_secs_f64(),
            fdatasync_per_second,
            written_bytes: None,
        })
    };
    Phase::ALL.into_iter().map(one).collect()
}

fn file_name(file: u64) -> String {
    format!("file.{file:08}")
}

/// The baseline.
struct LocalDirectories(Vec<PathBuf>);

impl LocalDirectories {
    fn new(root: &Path, workers: usize) -> io::Result<Self> {
        let directories: Vec<_> = (0..workers).map(|rank| root.join(rank.to_string())).collect();
        directories.iter().try_for_each(std::fs::create_dir_all)?;
        Ok(Self(directories))
    }
}

impl Names for LocalDirectories {
    fn work(&self, rank: usize, phase: Phase, files: u64) -> io::Result<()> {
        for file in 0..files {
            let path = self.0[rank].join(file_name(file));
            match phase {
                Phase::Create => rustix::fs::mknodat(
                    rustix::fs::CWD,
                    &path,
                    rustix::fs::FileType::RegularFile,
                    rustix::fs::Mode::from_raw_mode(0o644),
                    0,
                )?,
                Phase::Lookup | Phase::Stat => {
                    std::fs::symlink_metadata(&path)?;
                }
                Phase::Remove => std::fs::remove_file(&path)?,
            }
        }
        Ok(())
    }
}

/// A metadata target of this process.
struct Target {
    mdt: Arc<Mdt>,
    cores: Cores,
    directories: Vec<InodeNumber>,
    /// The files of each worker.
    files: Vec<Mutex<Vec<InodeNumber>>>,
}

impl Target {
    /// A new one in a directory, which is made.
    fn start(directory: &Path, memory_bytes: u64, workers: usize) -> anyhow::Result<Self> {
        let config = TargetConfig { role: Role::Mdt, index: 0, dir: directory.to_owned(), on_device: false };
        let key = Key::random(&SystemEntropy);
        format_target(&config, &Storage::HostFiles, FSNAME, &key, None)?;
        let cores = Cores::start_all()?;
        let (seams, threads) = (node::seams(&cores), Threads::start()?);
        let keys = Keyring::server(key);
        let opened = cores.block_on(target::open(&seams, &config, FSNAME, &threads, memory_bytes, &keys))?;
        let OpenTarget::Mdt(mdt) = opened else { bail!("{} is no metadata target", directory.display()) };
        let begun = SessionEvent::Opened { client: CLIENT, resumed: false, in_process: true, role: rpc::Role::Client };
        cores.block_on(mdt.clone().session_event(begun));
        // Files can be made only where there are object storage targets. None is called.
        mdt.update_map(&[(OstIndex(0), Endpoint::Remote("127.0.0.1:1".into()), true)]);
        // Nor are there other metadata targets, over which directories would be spread.
        mdt.update_mdts(&[]);
        let files = (0..workers).map(|_| Mutex::default()).collect();
        let mut target = Self { mdt, cores, directories: Vec::new(), files };
        let mut session = Session::new(&target, 0);
        for rank in 0..workers {
            let make = create(InodeNumber::ROOT, rank.to_string(), NodeKind::Directory, 0o755);
            let made = target.cores.block_on(session.call(make))?;
            let MdtReply::Created(created) = made else { bail!("a mkdir is answered {made:?}") };
            target.directories.push(created.entry.attributes.inode);
        }
        Ok(target)
    }
}

fn create(parent: InodeNumber, name: String, kind: NodeKind, mode: u32) -> MdtRequest {
    let create = Create { parent, name: name.into_bytes(), kind, mode, umask: 0, layout: None, open: None };
    MdtRequest::Create(Credentials::root(), create)
}

/// The requests of a worker, in a slot of its own.
struct Session {
    mdt: Arc<Mdt>,
    slot: Slot,
    xid: u64,
}

impl Session {
    fn new(target: &Target, rank: usize) -> Self {
        // Slot 0 is for what is made before.
        let slot = Slot(u16::try_from(rank).unwrap_or(u16::MAX));
        Self { mdt: target.mdt.clone(), slot, xid: 0 }
    }

    async fn call(&mut self, request: MdtRequest) -> io::Result<MdtReply> {
        self.xid += 1;
        let call = Call::plain(CLIENT, self.slot, Xid(self.xid), Request::Mdt(request), Bytes::new());
        match self.mdt.clone().handle(call).await.reply {
            Ok(Reply::Mdt(reply)) => Ok(reply),
            Ok(other) => Err(io::Error::other(format!("a metadata target answers {other:?}"))),
            Err(error) => Err(io::Error::other(error)),
        }
    }
}

impl Names for Target {
    /// All on the worker's thread: the target's own tasks have cores of their own.
    fn work(&self, rank: usize, phase: Phase, files: u64) -> io::Result<()> {
        let mut session = Session::new(self, rank + 1);
        let parent = self.directories[rank];
        let mut known = self.files[rank].lock();
        let inodes = &mut *known;
        let work = async {
            for (file, index) in (0..files).zip(0..) {
                let request = match phase {
                    Phase::Create => create(parent, file_name(file), NodeKind::Regular, 0o644),
                    Phase::Lookup => {
                        let lookup = Lookup { parent, name: file_name(file).into_bytes() };
                        MdtRequest::Lookup(Credentials::root(), lookup)
                    }
                    Phase::Stat => MdtRequest::GetAttributes(inodes[index]),
                    Phase::Remove => {
                        let unlink = Unlink { parent, name: file_name(file).into_bytes(), directory: false };
                        MdtRequest::Unlink(Credentials::root(), unlink)
                    }
                };
                match (phase, session.call(request).await?) {
                    (Phase::Create, MdtReply::Created(created)) => inodes.push(created.entry.attributes.inode),
                    (Phase::Lookup | Phase::Stat, MdtReply::Entry(_)) | (Phase::Remove, MdtReply::Done) => {}
                    (phase, reply) => {
                        return Err(io::Error::other(format!("{} is answered {reply:?}", phase.name())));
                    }
                }
            }
            Ok(())
        };
        self.cores.block_on(work)
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        if let Err(error) = self.cores.block_on(self.mdt.stop()) {
            eprintln!("stopping: {error}");
        }
        self.cores.shutdown();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Both do all of the work.
    #[test]
    fn the_target_and_the_baseline_do_the_same() {
        let place = tempfile::tempdir().unwrap();
        let path = |name: &str| place.path().join(name);
        let load = Load { workers: 2, files: 30 };
        let target = Target::start(&path("mdt"), 64 << 20, load.workers).unwrap();
        let local = LocalDirectories::new(&path("local"), load.workers).unwrap();
        for names in [&target as &dyn Names, &local] {
            let amounts: Vec<_> =
                measure(names, BENCH, load, 1.0).unwrap().into_iter().map(|one| (one.phase, one.operations)).collect();
            assert_eq!(amounts, [("create", 60), ("lookup", 60), ("stat", 60), ("remove", 60)]);
            // What was removed is gone.
            assert!(names.work(0, Phase::Remove, 1).is_err());
            assert!(names.work(1, Phase::Lookup, 1).is_err());
        }
    }
}
