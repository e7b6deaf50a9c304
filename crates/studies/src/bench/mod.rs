//! `stria bench`: measurements compared with a local file system on the same disk, in the same run,
//! interleaved. Machines are shared and the speed of disks varies, so only ratios of neighbouring
//! runs mean something.
//!
//! Results are JSON lines (one per measurement) and a table of medians. Every figure that includes
//! durability is shown with the disk's fdatasync rate at that moment.

pub mod ageing;
pub mod both_ends;
pub mod caches;
pub mod calibrate;
mod disk;
pub mod fdatasync;
pub mod history;
mod interval;
mod ior;
pub mod leftovers;
mod mdsrate;
mod mdt;
mod mdtest;
pub mod measurement;
mod network;
mod objects;
mod processor_quota;
mod queues;
mod random;
pub mod ranks;
mod records;
pub mod report;
mod results;
pub mod scaling;
pub mod study;
pub mod systems;
mod target;
mod team;
pub mod threads;
pub mod tree;
pub mod workers;

use std::{io, path::PathBuf, process::Command};

use anyhow::Context;
use clap::{Args, Subcommand, builder::RangedU64ValueParser};
use host::progress;

use fdatasync::fdatasync_rate;
use history::History;
use leftovers::Place;
use measurement::{Measurement, Run};
use results::Results;
use systems::{Size, System, SystemKind};

/// Benchmarks.
#[derive(Clone, Debug, Subcommand)]
pub enum BenchCommand {
    /// Metadata rates: create, stat (also again, and with the kernel's caches dropped), read,
    /// remove (easy: own directories; hard: one shared, 3901-byte files)
    Mdtest {
        /// Common options.
        #[command(flatten)]
        common: Common,
        /// Number of files per worker
        #[arg(long, default_value_t = 2000)]
        files: usize,
        /// Hard variant: put this many KiB of each file on the metadata target; each file is
        /// created and read with one call
        #[arg(long, value_name = "KIB", value_parser = clap::value_parser!(u64).range(64..=4096))]
        on_mdt: Option<u64>,
    },
    /// Rates of single metadata operations over several metadata targets: mknod, lookup, stat,
    /// setattr, readdir, unlink, create with open and close, and rename. Directories are on the
    /// metadata targets in turn. Each phase uses another client than the one before it, if there
    /// are several. Under mpirun its processes are the workers, and the first one starts the file
    /// systems on its host and shows the results; on several hosts, name a directory that all have
    /// mounted: --systems local --dir DIR
    Mdsrate {
        /// Common options. `--workers`: in each directory.
        #[command(flatten)]
        common: Common,
        /// Size of the file system, and of the load.
        #[command(flatten)]
        load: mdsrate::LoadOptions,
    },
    /// Transfer rates (easy: own files, large transfers; hard: one shared file, 47008-byte records)
    Ior {
        /// Common options.
        #[command(flatten)]
        common: Common,
        /// MiB that each worker writes and reads
        #[arg(long, default_value_t = 256)]
        mib: u64,
        /// KiB per transfer of the easy variant
        #[arg(long, default_value_t = 1024, value_parser = RangedU64ValueParser::<usize>::new().range(1..=1 << 20))]
        transfer_kib: usize,
        /// Measure one shared file of --mib in segments instead, such as
        /// 4x1M:1G,8x1M:1G,16x1M:rest; repeat the option to compare. Segments that are directories
        /// (DIR:SIZE) need --emulate
        #[arg(long, value_name = "LIST", conflicts_with = "systems")]
        segments: Vec<String>,
        /// With --segments: each segment is a file in a directory of its own, and all are shown as
        /// one file; works on any mounted file system
        #[arg(long, requires = "segments")]
        emulate: bool,
        /// With --segments: where to run.
        #[command(flatten)]
        place: study::Place,
    },
    /// `stria study`, live
    #[command(hide = true)]
    E1 {
        /// Which part.
        #[command(subcommand)]
        command: study::E1Command,
    },
    /// `stria study service-threads live`
    #[command(hide = true)]
    E2(threads::LiveOptions),
    /// `stria study stripe-advice live`
    #[command(hide = true)]
    E3(study::PresetOptions),
    /// `stria study metadata-scaling live`
    #[command(hide = true)]
    E5(scaling::ScalingOptions),
    /// Random reads and writes of 4 KiB
    Random {
        /// Common options.
        #[command(flatten)]
        common: Common,
        /// Number of records per worker
        #[arg(long, default_value_t = 8192)]
        records: u64,
    },
    /// Work on a source tree: tar, find, ls -lR and rm -rf (through mounts only)
    Tree {
        /// Common options.
        #[command(flatten)]
        common: Common,
        /// Directory whose tree is used [default: sources or headers of Rust or C found on this
        /// host]
        #[arg(long)]
        source: Option<PathBuf>,
    },
    /// Measure what code costs in processor time on this machine, for the lab
    Calibrate(calibrate::CalibrateArgs),
    /// Measure the processor time that queues, request schedulers and tuners add to a create and to
    /// a read of 4 KiB
    Queues(queues::QueuesArgs),
    /// Compare the kinds of object stores with each other and with the local file system, without
    /// clients: rates, write amplification and processor time
    Objects(objects::ObjectsArgs),
    /// Call one metadata target directly, without clients and network: creations, look-ups, stats
    /// and removals per second, with the local file system beside them
    Mdt(mdt::MdtArgs),
    /// All of the above that compare file systems, with sizes for a run of a few minutes
    All {
        /// Common options.
        #[command(flatten)]
        common: Common,
    },
    /// Compare two earlier runs: ratios to the local file system, processor time, and how both
    /// changed
    Compare {
        /// Numbers of two runs [default: the last two]
        #[arg(num_args = 0..=2)]
        runs: Vec<usize>,
        /// List the runs instead
        #[arg(long, conflicts_with = "runs")]
        list: bool,
        /// History file [default: stria/bench.jsonl in $XDG_STATE_HOME or ~/.local/state]
        #[arg(long, value_name = "FILE")]
        history: Option<PathBuf>,
    },
}

/// Options of all benchmarks.
#[derive(Clone, Debug, Args)]
pub struct Common {
    /// Systems to compare, separated by commas; local is the baseline
    #[arg(long, value_delimiter = ',', default_values = ["local", "mount", "tcp-mount", "native", "tcp-native"])]
    pub systems: Vec<SystemKind>,
    /// Numbers of workers, separated by commas
    #[arg(long, value_delimiter = ',', default_values_t = [1, 2, 8], value_parser = RangedU64ValueParser::<usize>::new().range(1..))]
    pub workers: Vec<usize>,
    /// Repetitions, interleaved between systems; the table shows medians
    #[arg(long, default_value_t = 3, value_parser = RangedU64ValueParser::<usize>::new().range(1..))]
    pub repeat: usize,
    /// Directory on the disk to be measured [default: the temporary directory]
    #[arg(long, value_name = "DIR")]
    pub dir: Option<PathBuf>,
    /// Number of object storage targets
    #[arg(long, default_value_t = 4, value_name = "N")]
    pub osts: u16,
    /// Write every measurement to this file as a JSON line
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// History file to which the medians are appended, see `stria bench compare` [default:
    /// stria/bench.jsonl in $XDG_STATE_HOME or ~/.local/state]
    #[arg(long, value_name = "FILE")]
    pub history: Option<PathBuf>,
}

type Workload<'w> = dyn Fn(&Run<'_>) -> io::Result<Vec<Measurement>> + 'w;

/// Runs `stria bench`.
pub fn run(command: BenchCommand) -> anyhow::Result<()> {
    match command {
        BenchCommand::Compare { runs, list, history } => {
            let history = History::at(history)?;
            match list {
                true => println!("{}", history.list()?),
                false => println!("{}", history.compare(&runs)?),
            }
            Ok(())
        }
        BenchCommand::Mdtest { common, files, on_mdt } => {
            Session::new(common)?.mdtest(files, on_mdt.map(|kib| kib << 10))?.finish()
        }
        BenchCommand::Mdsrate { common, load } => match ranks::mdsrate(&common, &load)? {
            true => Ok(()),
            false => Session::new(common)?.mdsrate(&load)?.finish(),
        },
        BenchCommand::Ior { common, mib, transfer_kib, segments, emulate, place } => match segments.is_empty() {
            true => {
                anyhow::ensure!(place.at.is_none(), "--at can only be used with --segments");
                Session::new(common)?.ior(mib, transfer_kib)?.finish()
            }
            false => ior_in_segments(&common, mib, transfer_kib, &segments, emulate, place),
        },
        BenchCommand::E1 { command } => study::run_e1(&command),
        BenchCommand::E2(options) => threads::run(&options),
        BenchCommand::E3(options) => study::run_e3(&options),
        BenchCommand::E5(options) => scaling::run(&options),
        BenchCommand::Calibrate(arguments) => calibrate::run(&arguments),
        BenchCommand::Queues(arguments) => queues::run(&arguments),
        BenchCommand::Objects(arguments) => objects::run(arguments),
        BenchCommand::Mdt(arguments) => mdt::run(arguments),
        BenchCommand::Random { common, records } => Session::new(common)?.random(records)?.finish(),
        BenchCommand::Tree { common, source } => Session::new(common)?.tree(source)?.finish(),
        BenchCommand::All { common } => {
            Session::new(common)?.mdtest(1000, None)?.ior(128, 1024)?.random(4096)?.tree(None)?.finish()
        }
    }
}

/// `ior --segments`: as many tasks as the largest number of workers.
fn ior_in_segments(
    common: &Common,
    mib: u64,
    transfer_kib: usize,
    segments: &[String],
    emulate: bool,
    place: study::Place,
) -> anyhow::Result<()> {
    let tasks = common.workers.iter().copied().max().unwrap_or(1);
    let sizes = study::Sizes {
        tasks: u32::try_from(tasks).context("too many workers")?,
        bytes: mib << 20,
        transfer_bytes: (transfer_kib as u64) << 10,
    };
    let (dir, json) = (common.dir.clone(), common.json.clone());
    let session = study::Session { place, dir, repeat: common.repeat, json, emulate };
    study::run_segments(&session, segments, &sizes, common.osts)
}

/// Benchmarks that share systems and results.
struct Session {
    common: Common,
    size: Size,
    place: Place,
    results: Results,
}

impl Session {
    fn new(common: Common) -> anyhow::Result<Self> {
        let place = Place::new("stria-bench-", common.dir.as_deref())?;
        let (size, results) = (Size::with_osts(common.osts), Results::new(common.json.as_deref())?);
        Ok(Self { common, size, place, results })
    }

    fn mdsrate(mut self, options: &mdsrate::LoadOptions) -> anyhow::Result<Self> {
        let load = options.load()?;
        self.size = Size { mdts: options.mdts, clients: options.clients, ..self.size };
        self.common.workers.iter_mut().for_each(|workers| *workers *= load.directories);
        self.interleave(&|run| load.run(&team::Threads(run)), false)?;
        Ok(self)
    }

    fn mdtest(mut self, files: usize, on_mdt: Option<u64>) -> anyhow::Result<Self> {
        for hard in [false, true] {
            let workload = mdtest::Mdtest { hard, files, on_mdt };
            self.interleave(
                &|run| mdtest::Mdtest { files: workload.files.div_ceil(run.workers), ..workload }.run(run),
                false,
            )?;
        }
        Ok(self)
    }

    fn ior(mut self, mib: u64, transfer_kib: usize) -> anyhow::Result<Self> {
        for hard in [false, true] {
            let all = mib << 20;
            self.interleave(
                &|run| {
                    let worker_bytes = all / run.workers as u64;
                    ior::Ior { hard, transfer_bytes: transfer_kib << 10, worker_bytes }.run(run)
                },
                false,
            )?;
        }
        Ok(self)
    }

    fn random(mut self, records: u64) -> anyhow::Result<Self> {
        self.interleave(&|run| random::RandomIo { records: records / run.workers as u64 }.run(run), false)?;
        Ok(self)
    }

    fn tree(mut self, source: Option<PathBuf>) -> anyhow::Result<Self> {
        let source = source.map_or_else(crate::demo::find_tree, Ok)?;
        let archive = self.place.path().join("tree.tar");
        let status = Command::new("tar").arg("-cf").arg(&archive).arg("-C").arg(&source).arg(".").status();
        anyhow::ensure!(status.context("cannot run tar")?.success(), "tar cannot pack {}", source.display());
        let entries = tree::walk(&source)?;
        let workload = |run: &Run<'_>| match &run.system.directory {
            Some(directory) => tree::run(run, directory, &archive, entries),
            None => Ok(Vec::new()),
        };
        self.interleave(&workload, true)?;
        Ok(self)
    }

    /// Runs the workload on every system in turn, again and again, for each number of workers (or
    /// one).
    fn interleave(&mut self, workload: &Workload<'_>, single: bool) -> anyhow::Result<()> {
        let kinds = self.common.systems.clone();
        let counts = if single { vec![1] } else { self.common.workers.clone() };
        for workers in counts {
            for repetition in 0..self.common.repeat {
                for kind in &kinds {
                    let (round, of) = (repetition + 1, self.common.repeat);
                    progress::show(format_args!("{} x{workers}, round {round} of {of}", kind.name()));
                    let fdatasync_per_second = fdatasync_rate(self.place.path())?;
                    let place = self.place.path().join(kind.name());
                    let system = System::start_sized(*kind, place, self.size)?;
                    let run = Run { target: &*system.target, workers, system: &system, fdatasync_per_second };
                    let results = workload(&run).with_context(|| format!("on {}", kind.name()))?;
                    self.results.record(results)?;
                }
            }
        }
        progress::done();
        Ok(())
    }

    fn finish(self) -> anyhow::Result<()> {
        self.results.finish(self.common.history, |measured| {
            measured.iter().any(|one| one.bench == random::NAME).then_some(random::NOTE)
        });
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(subcommand)]
        _command: BenchCommand,
    }

    #[test]
    fn segments_run_on_one_system_and_others_are_refused() {
        let parse = |words: &str| Line::try_parse_from(["bench"].into_iter().chain(words.split(' '))).map(drop);
        parse("ior --segments 4x1M:rest --emulate").unwrap();
        parse("ior --systems local").unwrap();
        let refused = parse("ior --segments 4x1M:rest --systems local").unwrap_err();
        assert_eq!(refused.kind(), clap::error::ErrorKind::ArgumentConflict);
    }
}
