//! Studies, live and in miniature: the jobs of [`crate::study`] on a mount whose targets are
//! rate-limited, or on any mounted file system. Configurations take turns, so that other load on
//! the machine affects all of them.
//!
//! Results are JSON lines (one per measurement), a table of medians, and the study's statements
//! with whether they hold.

mod blast;
mod interposed;
mod job;
mod netflow;
mod nfdump;
mod segments;

use std::path::{Path, PathBuf};

use anyhow::{Context, bail, ensure};
use clap::{Args, Subcommand};
use comfy_table::{CellAlignment, Table};
use host::progress;
use serde::Serialize;

pub use self::job::io_error;
use self::{
    job::Files,
    segments::{Described, Segments},
};
use super::{leftovers, report::STYLE, systems::System};
use crate::json_lines::JsonLines;
use crate::study::{
    Job, Outcome, Pattern, Scale, Striping, Study, e1, e3,
    shape::{Finding, Rates},
};

/// Where a study runs.
#[derive(Clone, Debug, Args)]
pub struct Place {
    /// Use this directory of a mounted file system instead of starting a file system
    #[arg(long, value_name = "DIR", conflicts_with_all = ["ost_mbps", "ost_latency_us", "oss_mbps"])]
    pub at: Option<PathBuf>,
    /// Limit of each object storage target in MiB/s; 0: none
    #[arg(long, default_value_t = 16, value_name = "N")]
    pub ost_mbps: u64,
    /// Microseconds added to each request to a target
    #[arg(long, default_value_t = 500, value_name = "N")]
    pub ost_latency_us: u64,
    /// Limit of all targets together, as on one server, in MiB/s; 0: none
    #[arg(long, default_value_t = 0, value_name = "N")]
    pub oss_mbps: u64,
}

/// What a study does besides its jobs.
#[derive(Clone, Debug)]
pub struct Session {
    /// Where.
    pub place: Place,
    /// Directory for data.
    pub dir: Option<PathBuf>,
    /// Rounds.
    pub repeat: usize,
    /// JSON lines go here.
    pub json: Option<PathBuf>,
    /// Segments become files in directories.
    pub emulate: bool,
}

/// Options of a preset.
#[derive(Clone, Debug, Args)]
pub struct PresetOptions {
    /// Where to run.
    #[command(flatten)]
    pub place: Place,
    /// Divide file sizes by this [default: depends on the study; for IOR, a file of 128 MiB]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub scale: Option<u64>,
    /// Divide numbers of targets and stripe counts by this
    #[arg(long, default_value_t = 4, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=64))]
    pub scale_osts: u32,
    /// Divide numbers of tasks by this
    #[arg(long, default_value_t = 4, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=64))]
    pub scale_tasks: u32,
    /// Rounds; the table shows medians
    #[arg(long, default_value_t = 3, value_name = "N")]
    pub repeat: usize,
    /// Directory on the disk to be used [default: the temporary directory]
    #[arg(long, value_name = "DIR")]
    pub dir: Option<PathBuf>,
    /// Write every measurement to this file as a JSON line
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Use the study's own emulation: segments are files in directories
    #[arg(long)]
    pub emulate: bool,
}

/// Parts of study E1, dynamic striping.
#[derive(Clone, Debug, Subcommand)]
pub enum E1Command {
    /// Table 3: IOR on one shared file, static layouts against layouts with more stripes after
    /// watermarks
    Ior(PresetOptions),
    /// Table 4: flow records, indexed in large reads, then modelled host by host in very small
    /// random reads
    Netflow(NetflowOptions),
    /// Table 5: blastn over a database in fragments, by many processes (needs ncbi-blast+)
    Blast(BlastOptions),
}

/// Options of the study with flow records.
#[derive(Clone, Debug, Args)]
pub struct NetflowOptions {
    /// Options of all presets.
    #[command(flatten)]
    options: PresetOptions,
    /// Files of nfdump (which must be installed), or files of NetFlow version 5 records of 48
    /// bytes each [default: generated records]
    #[arg(long, value_name = "FILE", num_args = 1..)]
    input: Vec<PathBuf>,
}

/// Options of the study with BLAST.
#[derive(Clone, Debug, Args)]
pub struct BlastOptions {
    /// Options of all presets.
    #[command(flatten)]
    options: PresetOptions,
    /// Sequences for the database [default: random ones]
    #[arg(long, value_name = "FILE")]
    fasta: Option<PathBuf>,
}

impl PresetOptions {
    /// The scale, where `bytes` is the default for sizes.
    fn scale(&self, bytes: u64) -> Scale {
        Scale { bytes: self.scale.unwrap_or(bytes), osts: self.scale_osts, tasks: self.scale_tasks }
    }

    fn session(&self) -> Session {
        Session {
            place: self.place.clone(),
            dir: self.dir.clone(),
            repeat: self.repeat,
            json: self.json.clone(),
            emulate: self.emulate,
        }
    }
}

/// Runs `stria bench e1`.
pub fn run_e1(command: &E1Command) -> anyhow::Result<()> {
    /// 4 TiB become 128 MiB.
    const IOR_BYTES: u64 = 1 << 15;
    match command {
        E1Command::Ior(options) => run_study(&e1::ior(options.scale(IOR_BYTES)), &options.session()),
        E1Command::Netflow(NetflowOptions { options, input }) => run_netflow(options, input),
        E1Command::Blast(BlastOptions { options, fasta }) => run_blast(options, fasta.as_deref()),
    }
}

fn run_blast(options: &PresetOptions, fasta: Option<&Path>) -> anyhow::Result<()> {
    /// 78 GB become 8 MB, fragments of 1 GB 100 kB.
    const BLAST_BYTES: u64 = 10_000;
    blast::check_installed()?;
    ensure!(!options.emulate, "each fragment is a file with its own layout: there is nothing to emulate");
    let study = e1::blast(options.scale(BLAST_BYTES));
    let bytes = study.jobs.first().map_or(0, |job| job.task_bytes);
    let fasta = fasta.map_or(blast::Fasta::Generated(bytes), blast::Fasta::File);
    let volume_bytes = (e1::BLAST_FRAGMENT_BYTES / study.scale.bytes).max(1);
    let database = blast::Database::make(&fasta, volume_bytes, options.dir.as_deref())?;
    run_jobs(&study, &options.session(), |place, job| database.search(place, job))
}

fn run_netflow(options: &PresetOptions, input: &[PathBuf]) -> anyhow::Result<()> {
    /// 55 GB become 13 MB.
    const NETFLOW_BYTES: u64 = 1 << 12;
    let study = e1::netflow(options.scale(NETFLOW_BYTES));
    let wanted = study.jobs.first().map_or(0, Job::bytes);
    let (source, bytes) = netflow::Source::new(input, wanted, options.dir.as_deref())?;
    run_workload(&study, &options.session(), |job, files| {
        netflow::write(&source, bytes, files)?;
        let mut outcomes = Vec::new();
        for schedule in netflow::Schedule::ALL {
            outcomes.extend(netflow::run(job, bytes, files, schedule)?.0);
        }
        Ok(outcomes)
    })
}

/// Runs `stria bench e3`.
pub fn run_e3(options: &PresetOptions) -> anyhow::Result<()> {
    /// 100 GiB become 100 MiB.
    const BYTES: u64 = 1 << 10;
    run_study(&e3::matrix(options.scale(BYTES), &[e3::Aggregate::Large]), &options.session())
}

/// Runs `stria bench ior --segments`.
pub fn run_segments(session: &Session, lists: &[String], sizes: &Sizes, osts: u16) -> anyhow::Result<()> {
    let mut configurations = Vec::new();
    for list in lists {
        let segments: Segments = list.parse().with_context(|| format!("--segments {list}"))?;
        let job = Job {
            name: list.clone(),
            setting: String::new(),
            striping: segments.striping().unwrap_or(Striping::Automatic),
            pattern: Pattern::Shared,
            tasks: sizes.tasks,
            task_bytes: sizes.bytes / u64::from(sizes.tasks.max(1)),
            transfer_bytes: sizes.transfer_bytes,
        };
        ensure!(job.task_bytes > 0 && job.transfer_bytes > 0, "nothing to write");
        configurations.push((job, segments));
    }
    if configurations.iter().any(|(_, segments)| matches!(segments, Segments::Directories(_))) {
        ensure!(session.emulate, "segments that are directories need --emulate");
    }
    let (place, _system) = start(session, osts)?;
    let outcomes = interleave(session, None, &configurations, |(job, segments)| {
        let make = || Files::for_segments(&place, job, segments, session.emulate);
        job::measure(job, make, |files| job::run(job, files))
    })?;
    let layout = |job: &Job| {
        let found = configurations.iter().find(|(known, _)| known.name == job.name);
        found.map(|(_, segments)| segments.to_string()).unwrap_or_default()
    };
    println!("{}", table_of(configurations.iter().map(|(job, _)| job), &outcomes, layout));
    Ok(())
}

/// Sizes of a run with segments.
#[derive(Clone, Copy, Debug)]
pub struct Sizes {
    /// Tasks that share the file.
    pub tasks: u32,
    /// Bytes of the file.
    pub bytes: u64,
    /// Bytes of each call.
    pub transfer_bytes: u64,
}

fn run_study(study: &Study, session: &Session) -> anyhow::Result<()> {
    run_workload(study, session, job::run)
}

/// Every job of a study as `work` does it on its files.
fn run_workload(
    study: &Study,
    session: &Session,
    work: impl Fn(&Job, &Files) -> std::io::Result<Vec<Outcome>>,
) -> anyhow::Result<()> {
    run_jobs(study, session, |place, job| {
        let make = || match session.emulate {
            true => Files::emulate(place, &job.striping),
            false => Files::create(place, job),
        };
        job::measure(job, make, |files| work(job, files))
    })
}

/// Every job of a study as `work` does it in a directory, and what came out.
fn run_jobs(
    study: &Study,
    session: &Session,
    work: impl Fn(&Path, &Job) -> std::io::Result<Vec<Outcome>>,
) -> anyhow::Result<()> {
    let Scale { bytes, osts, tasks } = study.scale;
    println!("{}: {} OSTs; sizes 1/{bytes}, OSTs and stripe counts 1/{osts}, tasks 1/{tasks}", study.name, study.osts);
    warnings(study).iter().for_each(|warning| println!("{warning}"));
    let (place, _system) = start(session, u16::try_from(study.osts).context("too many OSTs")?)?;
    let outcomes = interleave(session, Some(study), &study.jobs, |job| work(&place, job))?;
    println!("{}", table(&study.jobs, &outcomes));
    show_findings(&study.findings(&outcomes));
    Ok(())
}

/// What the scale takes away from a study, a line each: to be said before a user waits for its
/// results.
pub fn warnings(study: &Study) -> Vec<String> {
    let line = |kind: Vec<&Job>| {
        let names: Vec<&str> = kind.iter().map(|job| job.name.as_str()).collect();
        let layout = kind.first().map(|job| Described(&job.striping).to_string()).unwrap_or_default();
        format!(
            "warning: identical at this scale: {} ({layout}); differences between them are chance",
            names.join(", ")
        )
    };
    study.indistinguishable().into_iter().map(line).collect()
}

/// Prints the sentences, and how many could not be judged.
pub fn show_findings(findings: &[Finding]) {
    let (measured, open): (Vec<_>, Vec<_>) = findings.iter().partition(|finding| finding.is_measured());
    measured.iter().for_each(|finding| println!("{}", describe(finding)));
    match open.len() {
        0 => {}
        1 => println!("1 sentence is about what was not measured"),
        count => println!("{count} sentences are about what was not measured"),
    }
}

/// A finding as a line.
pub fn describe(finding: &Finding) -> String {
    let verdict = if finding.holds { "holds" } else { "DOES NOT HOLD" };
    format!("{verdict:>13}: {} ({})", finding.sentence, finding.results)
}

/// The directory to work in; a file system is started for it, unless one is given.
fn start(session: &Session, osts: u16) -> anyhow::Result<(PathBuf, Option<(System, leftovers::Place)>)> {
    if let Some(at) = &session.place.at {
        ensure!(at.is_dir(), "{} is not a directory", at.display());
        return Ok((at.clone(), None));
    }
    let place = leftovers::Place::new("stria-bench-", session.dir.as_deref())?;
    let Place { ost_mbps, ost_latency_us, oss_mbps, .. } = session.place;
    let parameters = [
        format!("obdfilter.*.limit_mbps={ost_mbps}"),
        format!("obdfilter.*.limit_latency_us={ost_latency_us}"),
        format!("oss.*.limit_mbps={oss_mbps}"),
    ];
    let system = System::up(place.path().join("system"), osts, &parameters)?;
    let Some(directory) = system.directory.clone() else { bail!("the file system is not mounted") };
    Ok((directory, Some((system, place))))
}

/// One measurement as a JSON line.
#[derive(Serialize)]
struct Line<'a> {
    study: &'a str,
    scale: Option<Scale>,
    repetition: usize,
    #[serde(flatten)]
    outcome: &'a Outcome,
}

/// Runs every configuration in turn, again and again.
fn interleave<C>(
    session: &Session,
    study: Option<&Study>,
    configurations: &[C],
    run: impl Fn(&C) -> std::io::Result<Vec<Outcome>>,
) -> anyhow::Result<Vec<Outcome>> {
    let mut json = JsonLines::new(session.json.as_deref())?;
    let mut all = Vec::new();
    for repetition in 0..session.repeat {
        for (number, configuration) in configurations.iter().enumerate() {
            let (round, count) = (repetition + 1, configurations.len());
            let (of, number) = (session.repeat, number + 1);
            progress::show(format_args!("round {round} of {of}, configuration {number} of {count}"));
            let outcomes = match run(configuration) {
                Ok(outcomes) => outcomes,
                // What is not measured is shown as such, and no sentence about it holds.
                Err(error) => {
                    progress::tell(format_args!("configuration {number} failed: {error}"));
                    continue;
                }
            };
            for outcome in &outcomes {
                let (name, scale) = (study.map_or("ior", |study| study.name), study.map(|study| study.scale));
                json.add(&Line { study: name, scale, repetition, outcome })?;
            }
            all.extend(outcomes);
        }
    }
    progress::done();
    ensure!(!all.is_empty(), "no configuration could be measured");
    Ok(all)
}

/// Medians, one row per job, one column per phase.
pub fn table<'a>(jobs: impl IntoIterator<Item = &'a Job>, outcomes: &[Outcome]) -> Table {
    table_of(jobs, outcomes, |job| Described(&job.striping).to_string())
}

/// [`table`] with layouts as another place describes them. What is the job's name already is not
/// said twice.
fn table_of<'a>(
    jobs: impl IntoIterator<Item = &'a Job>,
    outcomes: &[Outcome],
    layout: impl Fn(&Job) -> String,
) -> Table {
    let rates = Rates::of(outcomes);
    let mut phases: Vec<&'static str> = Vec::new();
    for outcome in outcomes {
        if !phases.contains(&outcome.phase) {
            phases.push(outcome.phase);
        }
    }
    let mut table = Table::new();
    table.load_style(STYLE);
    let head = ["configuration", "layout", "tasks", "MiB"].map(str::to_owned);
    table.set_header(head.into_iter().chain(phases.iter().map(|phase| format!("{phase} MiB/s"))));
    for column in 2..4 + phases.len() {
        if let Some(column) = table.column_mut(column) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    for job in jobs {
        let layout = layout(job);
        let layout = if layout == job.name { String::new() } else { layout };
        let row =
            |name: &str| [name.to_owned(), layout.clone(), job.tasks.to_string(), (job.bytes() >> 20).to_string()];
        // A job has one row, or one for each of its schedules.
        let schedules = [true, false].map(|synchronous| e1::scheduled(&job.name, synchronous));
        let names = schedules.into_iter().filter(|name| outcomes.iter().any(|outcome| outcome.job == *name));
        let mut names: Vec<String> = names.collect();
        if names.is_empty() {
            names.push(job.name.clone());
        }
        for name in names {
            let cells = phases.iter().map(|phase| rate_cell(rates.get(&name, phase)));
            table.add_row(row(&name).into_iter().chain(cells));
        }
    }
    table
}

/// A rate with three digits that mean something; nothing for what was not measured.
fn rate_cell(rate: f64) -> String {
    match rate {
        rate if rate.is_nan() => "-".to_owned(),
        rate if rate < 10.0 => format!("{rate:.2}"),
        rate => format!("{rate:.0}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scale_that_makes_two_configurations_one_is_told() {
        let warned = warnings(&e1::ior(Scale { osts: 8, ..Scale::FULL }));
        let expected =
            "warning: identical at this scale: IOR.1, IOR.2 (1x1M:rest); differences between them are chance";
        assert_eq!(warned, [expected]);
        assert!(warnings(&e1::ior(Scale { osts: 4, ..Scale::FULL })).is_empty(), "the default");
    }
}
