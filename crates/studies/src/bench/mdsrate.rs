//! mdsrate: rates of single metadata operations over many metadata targets, as Lustre's test
//! program of that name measures them.
//!
//! Directories are on the MDTs in turn; each may be striped over several. Workers are spread over
//! directories and clients in turn, so a directory has workers on several clients, as MPI ranks
//! would be; they are threads, or processes ([`super::ranks`]). Each phase lets another client use
//! a worker's names than the phase before it did, if there are several: so what an operation costs
//! is seen, and not what a client has cached. With one client, `lookup` and `stat` show what its
//! caches hold.
//!
//! mknod makes a file without objects and without opening it; create opens and closes it too.
//! readdir lists whole directories, every worker its own; its operations are names.
//!
//! Files are renamed to names of the same stripe of their directory first, then to names of another
//! one, if it has several, then to another directory, which is on another MDT if there are several.
//! These files are made and removed for this: a name whose inode is elsewhere costs more to remove.

use std::{fmt::Write, io};

use anyhow::ensure;
use clap::{Args, builder::RangedU64ValueParser};
use types::{NameHash, counted};

use super::{
    measurement::Measurement,
    target::BenchTarget,
    team::{Spent, Team},
};
use crate::directory_places::in_turn;

/// Above all directories.
const ROOT: &str = "mdsrate";

/// What to run.
#[derive(Clone, Copy, Debug)]
pub struct MdsRate {
    /// Files of each worker.
    pub files: usize,
    /// Directories.
    pub directories: usize,
    /// MDTs over which each directory is striped; 1: not striped.
    pub stripes: u16,
    /// MDTs that there are.
    pub mdts: u16,
}

/// Options of a run.
#[derive(Clone, Copy, Debug, Args)]
pub struct LoadOptions {
    /// Number of metadata targets
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=64))]
    pub mdts: u16,
    /// Number of directories; 1: all workers share one [default: one on each metadata target]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=4096))]
    directories: Option<u16>,
    /// Number of metadata targets over which each directory is striped; 0: all of them
    #[arg(long, default_value_t = 1, value_name = "N")]
    stripes: u16,
    /// Number of clients, among which workers are shared out: native ones, or mounts, each a
    /// process of its own. Workers that are processes have a native client each
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=64))]
    pub clients: u16,
    /// Run workers as processes instead of threads. Under mpirun, each of its processes is a worker
    /// also without this option; with it, as many as --workers says
    #[arg(long)]
    pub processes: bool,
    /// Number of files per worker
    #[arg(long, default_value_t = 1000, value_parser = RangedU64ValueParser::<usize>::new().range(1..=10_000_000))]
    files: usize,
}

impl LoadOptions {
    /// The load that they describe.
    pub fn load(&self) -> anyhow::Result<MdsRate> {
        let Self { mdts, directories, stripes, files, .. } = *self;
        ensure!(
            stripes <= mdts,
            "--stripes {stripes}: the file system has {}; more need --mdts {stripes}",
            counted(mdts, "metadata target")
        );
        let stripes = if stripes == 0 { mdts } else { stripes };
        Ok(MdsRate { files, directories: directories.unwrap_or(mdts).into(), stripes, mdts })
    }
}

impl MdsRate {
    fn name(self) -> &'static str {
        match (self.directories, self.stripes) {
            (1, 1) => "mdsrate-shared",
            (1, _) => "mdsrate-shared-striped",
            (_, 1) => "mdsrate",
            _ => "mdsrate-striped",
        }
    }

    fn directory(number: usize) -> String {
        format!("{ROOT}/dir.{number}")
    }

    fn path(self, rank: usize, file: usize) -> String {
        let mut path = String::with_capacity(48);
        let directory = rank % self.directories;
        write!(path, "{ROOT}/dir.{directory}/file.{rank}.{file}").expect("writing to a string");
        path
    }

    /// What `path` is renamed to in its directory: a name of the same stripe, or of another one.
    fn renamed(self, path: &str, to_same_stripe: bool) -> String {
        let stripe_of = |path: &str| {
            let name = path.rsplit_once('/').map_or(path, |(_, name)| name);
            NameHash::default().shard(name.as_bytes(), self.stripes.into())
        };
        let candidates = (0..).map(|number| format!("{path}.{number}"));
        let fits = |new: &String| (stripe_of(new) == stripe_of(path)) == to_same_stripe;
        candidates.into_iter().find(fits).expect("each stripe has some of the names")
    }

    /// Runs all phases and removes everything again. What was measured, where results are kept.
    pub fn run(self, team: &dyn Team) -> io::Result<Vec<Measurement>> {
        let target = team.run().map(|run| run.target);
        if let Some(target) = target {
            target.make_directory(ROOT)?;
            for directory in 0..self.directories {
                target.make_directory_at(&Self::directory(directory), &in_turn(directory, self.mdts, self.stripes))?;
            }
        }
        let mut phases = Phases { of: self, team, done: 0, results: Vec::new() };
        phases.files("mknod", |target, path| target.make_node(path))?;
        phases.files("lookup", |target, path| target.lookup(path))?;
        phases.files("stat", |target, path| target.stat(path).map(drop))?;
        phases.files("setattr", |target, path| target.set_times(path))?;
        phases.listings()?;
        phases.files("unlink", |target, path| target.unlink(path))?;
        phases.files("create", |target, path| target.create(path)?.close())?;
        phases.files("unlink created", |target, path| target.unlink(path))?;
        phases.renames()?;
        let results = phases.results;
        if let Some(target) = target {
            (0..self.directories).try_for_each(|number| target.remove_directory(&Self::directory(number)))?;
            target.remove_directory(ROOT)?;
        }
        Ok(results)
    }
}

/// Phases of a run, one after the other.
struct Phases<'t> {
    of: MdsRate,
    team: &'t dyn Team,
    /// Phases so far: the next one uses the clients after those of the last one.
    done: usize,
    results: Vec<Measurement>,
}

impl Phases<'_> {
    /// Every worker does this to all of its files.
    fn files(
        &mut self,
        phase: &'static str,
        operation: impl Fn(&dyn BenchTarget, &str) -> io::Result<()> + Sync,
    ) -> io::Result<()> {
        let (of, workers) = (self.of, self.team.workers());
        self.measure(phase, (of.files * workers) as u64, |target, rank| {
            (0..of.files).try_for_each(|file| operation(target, &of.path(rank, file)))
        })
    }

    /// Every worker lists its directory.
    fn listings(&mut self) -> io::Result<()> {
        let (of, workers) = (self.of, self.team.workers());
        let names_in =
            |directory: usize| of.files * (0..workers).filter(|rank| rank % of.directories == directory).count();
        let names = (0..workers).map(|rank| names_in(rank % of.directories) as u64).sum();
        self.measure("readdir", names, |target, rank| {
            let directory = rank % of.directories;
            match target.list(&MdsRate::directory(directory))? {
                found if found == names_in(directory) => Ok(()),
                found => Err(io::Error::other(format!("directory {directory} has {found} names in its listing"))),
            }
        })
    }

    /// Of files that are made for it, and removed again; neither of both is measured.
    fn renames(&mut self) -> io::Result<()> {
        let (of, team) = (self.of, self.team);
        let all = |work: &(dyn Fn(&dyn BenchTarget, usize, usize) -> io::Result<()> + Sync)| {
            team.work(0, &|target, rank| (0..of.files).try_for_each(|file| work(target, rank, file)))
        };
        all(&|target, rank, file| target.make_node(&of.path(rank, file)))?;
        let beside = |rank, file| of.renamed(&of.path(rank, file), true);
        let across = |rank, file| match of.stripes {
            1 => beside(rank, file),
            _ => of.renamed(&beside(rank, file), false),
        };
        let away = |rank, file| match of.directories {
            1 => across(rank, file),
            directories => format!("{}/file.{rank}.{file}", MdsRate::directory((rank + 1) % directories)),
        };
        let operations = (of.files * team.workers()) as u64;
        let mut rename =
            |phase, from: &(dyn Fn(usize, usize) -> String + Sync), to: &(dyn Fn(usize, usize) -> String + Sync)| {
                self.measure(phase, operations, |target, rank| {
                    (0..of.files).try_for_each(|file| target.rename(&from(rank, file), &to(rank, file)))
                })
            };
        rename("rename", &|rank, file| of.path(rank, file), &beside)?;
        if of.stripes > 1 {
            rename("rename to stripe", &beside, &across)?;
        }
        if of.directories > 1 {
            rename("rename to directory", &across, &away)?;
        }
        all(&|target, rank, file| target.unlink(&away(rank, file))).map(drop)
    }

    fn measure(
        &mut self,
        phase: &'static str,
        operations: u64,
        work: impl Fn(&dyn BenchTarget, usize) -> io::Result<()> + Sync,
    ) -> io::Result<()> {
        let Spent { wall, cpu } = self.team.work(self.done, &work)?;
        self.done += 1;
        let (of, team) = (self.of, self.team);
        self.results.extend(team.run().map(|run| run.measured(of.name(), phase, operations, 0, (wall, cpu))));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::{
        measurement::Run,
        systems::{Size, System, SystemKind},
        team::Threads,
    };

    /// Every phase does what it counts, by every client, on striped directories and others, and
    /// leaves nothing.
    #[test]
    fn all_phases_run_on_a_local_directory_and_over_several_mdts() {
        for (kind, mdts, stripes) in [(SystemKind::Local, 1, 1), (SystemKind::Native, 3, 1), (SystemKind::Native, 3, 2)]
        {
            let place = tempfile::tempdir().unwrap();
            let size = Size { mdts, osts: 1, clients: 2 };
            let system = System::start_sized(kind, place.path().join("system"), size).unwrap();
            let run = Run { target: &*system.target, workers: 4, system: &system, fdatasync_per_second: 1.0 };
            let load = MdsRate { files: 5, directories: 3, stripes, mdts };
            let results = load.run(&Threads(&run)).unwrap();
            let counts: Vec<(&str, u64)> = results.iter().map(|result| (result.phase, result.operations)).collect();
            // Directory 0 has the names of two workers, each of whom lists them.
            let readdir = 2 * 10 + 5 + 5;
            let each = ["mknod", "lookup", "stat", "setattr"].map(|phase| (phase, 20));
            let rest = [("readdir", readdir), ("unlink", 20), ("create", 20), ("unlink created", 20), ("rename", 20)];
            let to_stripe = [("rename to stripe", 20)];
            let to_stripe = if stripes > 1 { &to_stripe[..] } else { &[] };
            assert_eq!(counts, [&each[..], &rest, to_stripe, &[("rename to directory", 20)]].concat());
            assert!(results.iter().all(|result| result.rate() > 0.0));
            assert_eq!(run.client(1).list("").unwrap(), 0, "nothing is left");
        }
    }
}
