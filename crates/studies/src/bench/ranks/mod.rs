//! Workers as processes: the ranks of an MPI job, or processes that this program starts.
//!
//! ```text
//!   mpirun, or this program (--processes) --- rank 0: starts the file system, works, shows results
//!                                         \-- rank 1: works
//!                                         \-- ...
//! ```
//!
//! Ranks meet by what process managers offer the processes that they start ([`pmi`]): values, which
//! all can read after the next barrier. So no MPI library is linked. Rank 0 tells the others where
//! the file system is; they tell it what each phase took. A rank that fails ends, and the process
//! manager ends the others.
//!
//! Downside: a file system that rank 0 starts is reached on its host only. Ranks of several hosts
//! use a directory that all of them have mounted.

mod access;
mod manager;
mod pmi;
mod team;

use anyhow::{Context, ensure};
use host::progress;

pub use self::access::{Access, connect};
use self::{access::Joined, pmi::Pmi, team::Ranks};
use super::{
    Common,
    fdatasync::fdatasync_rate,
    leftovers::Place,
    mdsrate::{LoadOptions, MdsRate},
    measurement::Run,
    results::Results,
    systems::{Size, System, SystemKind},
};

/// Runs mdsrate in processes, if this process is one of them or is told to start them; otherwise
/// workers are threads.
pub fn mdsrate(common: &Common, options: &LoadOptions) -> anyhow::Result<bool> {
    let load = options.load()?;
    let counts: Vec<usize> = common.workers.iter().map(|workers| workers * load.directories).collect();
    let most = counts.iter().copied().max().unwrap_or(1);
    match Pmi::from_environment()? {
        Some(pmi) => {
            let ranks = pmi.size();
            ensure!(
                !options.processes || most <= ranks,
                "{most} workers are {most} processes, and there are {ranks} ranks: start more, or leave out \
                 --processes, and each is a worker"
            );
            let counts = if options.processes { counts } else { vec![ranks] };
            let size = Size { mdts: options.mdts, clients: options.clients, osts: common.osts };
            Session { common, size, load, counts }.run(pmi)?;
        }
        None if options.processes => manager::run(most)?,
        None => return Ok(false),
    }
    Ok(true)
}

struct Session<'c> {
    common: &'c Common,
    size: Size,
    load: MdsRate,
    /// Numbers of workers.
    counts: Vec<usize>,
}

impl Session<'_> {
    fn run(self, mut pmi: Pmi) -> anyhow::Result<()> {
        let kinds = self.kinds(pmi.rank() == 0)?;
        let mut leader = match pmi.rank() {
            0 => Some(Leader::new(self.common)?),
            _ => None,
        };
        for workers in &self.counts {
            for round in 1..=self.common.repeat {
                for kind in &kinds {
                    match &mut leader {
                        Some(leader) => {
                            let of = self.common.repeat;
                            progress::show(format_args!("{} x{workers}, round {round} of {of}", kind.name()));
                            pmi = leader.run(&self, *kind, *workers, pmi)?;
                        }
                        None => pmi = self.follow(*workers, pmi)?,
                    }
                }
            }
        }
        pmi.finalize()?;
        if let Some(Leader { results, .. }) = leader {
            progress::done();
            results.finish(self.common.history.clone(), |_| None);
        }
        Ok(())
    }

    /// All but that whose servers would be in one of the processes.
    fn kinds(&self, tells: bool) -> anyhow::Result<Vec<SystemKind>> {
        let (kinds, alone): (Vec<_>, Vec<_>) =
            self.common.systems.iter().copied().partition(|kind| *kind != SystemKind::Native);
        ensure!(!kinds.is_empty(), "the servers of 'native' are in the client's process: with several use tcp-native");
        if tells && !alone.is_empty() {
            progress::tell(format_args!("leaving out 'native', whose servers are in the process of its client"));
        }
        Ok(kinds)
    }

    /// A rank that works on what rank 0 has started.
    fn follow(&self, workers: usize, mut pmi: Pmi) -> anyhow::Result<Pmi> {
        pmi.barrier()?;
        let access: Access = serde_json::from_str(&pmi.value_from(0)?)?;
        let joined = Joined::new(&access).context("cannot use the file system that rank 0 has started")?;
        let ranks = Ranks::following(pmi, workers, &*joined.target);
        self.load.run(&ranks)?;
        let mut pmi = ranks.into_pmi();
        drop(joined);
        pmi.barrier()?;
        Ok(pmi)
    }
}

/// What rank 0 has besides.
struct Leader {
    results: Results,
    place: Place,
}

impl Leader {
    fn new(common: &Common) -> anyhow::Result<Self> {
        let place = Place::new("stria-bench-", common.dir.as_deref())?;
        Ok(Self { results: Results::new(common.json.as_deref())?, place })
    }

    fn run(&mut self, session: &Session<'_>, kind: SystemKind, workers: usize, mut pmi: Pmi) -> anyhow::Result<Pmi> {
        let fdatasync_per_second = fdatasync_rate(self.place.path())?;
        // Other ranks are native clients of their own.
        let clients = if kind == SystemKind::TcpNative { 1 } else { session.size.clients };
        let size = Size { clients, ..session.size };
        let system = System::start_sized(kind, self.place.path().join(kind.name()), size)?;
        for rank in 1..pmi.size() {
            let access = &system.access[rank % system.access.len()];
            pmi.give_to(rank, &serde_json::to_string(access)?)?;
        }
        pmi.barrier()?;
        let run = Run { target: &*system.target, workers, system: &system, fdatasync_per_second };
        let ranks = Ranks::leading(pmi, &run);
        let measured = session.load.run(&ranks).with_context(|| format!("on {}", kind.name()))?;
        pmi = ranks.into_pmi();
        // Until other clients have ended.
        pmi.barrier()?;
        self.results.record(measured)?;
        Ok(pmi)
    }
}
