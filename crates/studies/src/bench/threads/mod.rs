//! Study E2, live and in miniature: numbers of service threads and of requests in flight, and the
//! tuner, on a file system of this machine ([`cluster`]).
//!
//! For each load:
//!
//! 1. a sweep: every setting in turn, again and again, while the load goes on;
//! 2. the best of the sweep against the tuner, in pairs: fixed, tuned from a start, fixed again. A
//!    pair's ratio cancels what the machine does meanwhile, and the best is measured again, so
//!    that it is not the luckiest of the sweep.
//!
//! Downside: everything shares the processors of one machine, and the targets are imitated
//! ([`oss::RateLimit`]).

mod cluster;
mod load;
mod report;

use std::{path::PathBuf, time::Duration};

use anyhow::{Context, ensure};
use clap::{Args, ValueEnum};
use host::progress;
use serde::Serialize;

use self::{
    cluster::{Cluster, Limits},
    load::{Direction, Load},
};
use super::interval::Interval;
use crate::{figure, json_lines::JsonLines};

/// Time for requests that began under the setting before.
const SETTLE: Duration = Duration::from_millis(250);

/// Loads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum LoadKind {
    /// 16 KiB are overwritten at random on targets of limited speed.
    Writes,
    /// 16 KiB are read at random from targets of limited speed.
    Reads,
    /// 16 KiB are read at random; the server has a part of a processor.
    Processor,
}

/// Options of the live study.
#[derive(Clone, Debug, Args)]
pub struct LiveOptions {
    /// Loads, separated by commas
    #[arg(long, value_enum, value_delimiter = ',', default_values = ["writes", "processor"])]
    loads: Vec<LoadKind>,
    /// Service threads of the sweep, separated by commas
    #[arg(long, value_delimiter = ',', default_values_t = [1, 4, 16, 64], value_name = "N", value_parser = clap::value_parser!(u16).range(1..=256))]
    threads: Vec<u16>,
    /// Requests in flight of each client to each target in the sweep, separated by commas
    #[arg(long, value_delimiter = ',', default_values_t = [1, 8, 64], value_name = "N", value_parser = clap::value_parser!(u16).range(1..=64))]
    in_flight: Vec<u16>,
    /// Clients, each in a network namespace of its own
    #[arg(long, default_value_t = 2, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=16))]
    clients: u16,
    /// Tasks of each client
    #[arg(long, default_value_t = 48, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=256))]
    tasks: u16,
    /// Object storage targets
    #[arg(long, default_value_t = 4, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=16))]
    osts: u16,
    /// Limit of each target in MiB/s, for loads that have one
    #[arg(long, default_value_t = 16, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    ost_mbps: u64,
    /// Microseconds added to each request to a target, for loads with limited targets
    #[arg(long, default_value_t = 1000, value_name = "N")]
    ost_latency_us: u64,
    /// Hundredths of a processor that the server gets, for loads that limit it
    #[arg(long, default_value_t = 20, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    processor_percent: u32,
    /// Seconds of each measurement
    #[arg(long, default_value_t = 1.0, value_name = "S", value_parser = seconds)]
    seconds: f64,
    /// Seconds that a tuner has before it is measured
    #[arg(long, default_value_t = 12.0, value_name = "S", value_parser = seconds)]
    search: f64,
    /// Rounds of the sweep
    #[arg(long, default_value_t = 2, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,
    /// Comparisons of the tuner with the best of the sweep, from each start
    #[arg(long, default_value_t = 3, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    repeat: u32,
    /// Show the tuners' decisions
    #[arg(long)]
    decisions: bool,
    /// Directory on the disk to be used [default: the temporary directory]
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// Draw figures (SVG) into this directory, which is made if there is none
    #[arg(long, value_name = "DIR")]
    figures: Option<PathBuf>,
    /// Write every measurement to this file as a JSON line
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

fn seconds(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(seconds) if (0.05..=3600.0).contains(&seconds) => Ok(seconds),
        _ => Err("expected seconds from 0.05 to 3600".to_owned()),
    }
}

/// What is varied.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Setting {
    /// Service threads of `ost_io`.
    pub threads: u16,
    /// Requests in flight of each client to each target.
    pub in_flight: u16,
}

/// Rates that a setting had in the sweep.
#[derive(Clone, Debug)]
pub struct Swept {
    /// The setting.
    pub setting: Setting,
    /// MiB per second, of each round.
    pub rates: Vec<f64>,
}

impl Swept {
    /// Mean rate.
    pub fn mean(&self) -> f64 {
        self.rates.iter().sum::<f64>() / self.rates.len().max(1) as f64
    }
}

/// The tuner between two measurements of the best of the sweep.
#[derive(Clone, Debug, Serialize)]
pub struct Comparison {
    /// Service threads, and requests in flight, that the tuners began with.
    pub start: u16,
    /// MiB per second of the fixed setting, before and after.
    pub fixed: [f64; 2],
    /// Of the tuner, in each second of its search.
    pub searching: Vec<f64>,
    /// Of the tuner, after it.
    pub tuned: f64,
    /// Threads at the end, and requests in flight of each client to each target.
    pub chosen: (u32, Vec<u32>),
}

impl Comparison {
    /// The tuned rate as a part of the fixed one.
    pub fn ratio(&self) -> f64 {
        self.tuned / self.best()
    }

    /// The rate of the fixed setting.
    pub fn best(&self) -> f64 {
        (self.fixed[0] + self.fixed[1]) / 2.0
    }

    /// After how many seconds of its search the tuner first had so much of the fixed rate; `None`:
    /// not before it was measured.
    pub fn reached(&self, part: f64) -> Option<usize> {
        self.searching.iter().position(|rate| *rate >= part * self.best()).map(|before| before + 1)
    }
}

/// What came out of one load.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// The load.
    pub load: LoadKind,
    /// All settings.
    pub sweep: Vec<Swept>,
    /// The best of them.
    pub best: Setting,
    /// The tuner against it.
    pub comparisons: Vec<Comparison>,
}

impl Outcome {
    /// Ratios of the tuner to the best, from this start.
    pub fn ratio(&self, start: u16) -> Option<Interval> {
        let meant = self.comparisons.iter().filter(|one| one.start == start);
        Interval::of(&meant.map(Comparison::ratio).collect::<Vec<_>>())
    }
}

/// Starts of the tuners: the fewest, and the most of the sweep.
fn starts(options: &LiveOptions) -> [u16; 2] {
    [1, options.threads.iter().chain(&options.in_flight).copied().max().unwrap_or(1)]
}

/// Runs `stria study service-threads live`.
pub fn run(options: &LiveOptions) -> anyhow::Result<()> {
    ensure!(
        rustix::process::geteuid().is_root(),
        "this study makes network namespaces, control groups and mounts: run it as root"
    );
    let mut json = JsonLines::new(options.json.as_deref())?;
    figure::prepare(options.figures.as_deref())?;
    println!("{}", report::introduction(options));
    progress::show("starting servers and clients");
    let cluster = Cluster::start(options.dir.as_deref(), options.osts, options.clients)?;
    load::make_files(&cluster.mounts)?;
    for kind in &options.loads {
        let outcome = run_load(options, &cluster, *kind, &mut json)?;
        progress::done();
        print!("{}", report::shown(&outcome));
        if let Some(directory) = &options.figures {
            report::draw(&outcome, directory)?;
        }
    }
    Ok(())
}

/// A measurement as a JSON line.
#[derive(Serialize)]
#[serde(untagged)]
enum Line<'a> {
    Swept { load: LoadKind, round: u32, setting: Setting, mib_per_second: f64 },
    Compared { load: LoadKind, best: Setting, comparison: &'a Comparison },
}

fn run_load(options: &LiveOptions, cluster: &Cluster, kind: LoadKind, json: &mut JsonLines) -> anyhow::Result<Outcome> {
    let (limits, direction) = match kind {
        LoadKind::Processor => {
            (Limits { processor_percent: Some(options.processor_percent), ..Limits::default() }, Direction::Read)
        }
        LoadKind::Reads | LoadKind::Writes => {
            let limits =
                Limits { ost_mbps: options.ost_mbps, ost_latency_us: options.ost_latency_us, ..Limits::default() };
            (limits, if kind == LoadKind::Reads { Direction::Read } else { Direction::Write })
        }
    };
    cluster.limit(limits)?;
    let load = Load::start(&cluster.mounts, direction, options.tasks)?;
    let sweep = sweep(options, cluster, &load, |round, setting, mib_per_second| {
        json.add(&Line::Swept { load: kind, round, setting, mib_per_second })
    })?;
    let best = sweep.iter().max_by(|one, other| one.mean().total_cmp(&other.mean()));
    let best = best.context("no setting was measured")?.setting;
    let mut comparisons = Vec::new();
    for repetition in 1..=options.repeat {
        for start in starts(options) {
            let what = format!("comparison {repetition} of {}", options.repeat);
            progress::show(format_args!("{kind:?}: {what}, the tuner from {start}"));
            let comparison = compare(options, cluster, &load, best, start)?;
            json.add(&Line::Compared { load: kind, best, comparison: &comparison })?;
            comparisons.push(comparison);
        }
    }
    drop(load);
    cluster.limit(Limits::default())?;
    Ok(Outcome { load: kind, sweep, best, comparisons })
}

/// Every setting in turn, again and again; every other round backwards.
fn sweep(
    options: &LiveOptions,
    cluster: &Cluster,
    load: &Load,
    mut note: impl FnMut(u32, Setting, f64) -> anyhow::Result<()>,
) -> anyhow::Result<Vec<Swept>> {
    let with = |threads: u16| options.in_flight.iter().map(move |in_flight| Setting { threads, in_flight: *in_flight });
    let settings: Vec<Setting> = options.threads.iter().copied().flat_map(with).collect();
    let mut swept: Vec<Swept> = settings.iter().map(|setting| Swept { setting: *setting, rates: Vec::new() }).collect();
    for round in 1..=options.rounds {
        for number in 0..swept.len() {
            let place = if round % 2 == 1 { number } else { swept.len() - 1 - number };
            let Swept { setting, rates } = &mut swept[place];
            let (done, count) = (number + 1, settings.len());
            progress::show(format_args!("round {round} of {}, setting {done} of {count}", options.rounds));
            rates.push(fixed(options, cluster, load, *setting)?);
            note(round, *setting, rates[rates.len() - 1])?;
        }
    }
    Ok(swept)
}

/// The rate with a fixed setting.
fn fixed(options: &LiveOptions, cluster: &Cluster, load: &Load, setting: Setting) -> anyhow::Result<f64> {
    cluster.fix(setting)?;
    std::thread::sleep(SETTLE);
    load.measure(Duration::from_secs_f64(options.seconds))
}

/// How long a tuner is measured: as long as it had before, because its trials, and the rests
/// between them, are part of its rate.
fn tuned_seconds(options: &LiveOptions) -> f64 {
    options.search.max(2.0 * options.seconds)
}

/// The tuner from a start, between two measurements of the best setting.
fn compare(
    options: &LiveOptions,
    cluster: &Cluster,
    load: &Load,
    best: Setting,
    start: u16,
) -> anyhow::Result<Comparison> {
    let most = starts(options)[1];
    let both = |count: u16| Setting { threads: count, in_flight: count.min(64) };
    let before = fixed(options, cluster, load, best)?;
    cluster.tune(both(start), both(most))?;
    let (mut searching, mut left) = (Vec::new(), options.search);
    while left > 0.0 {
        searching.push(load.measure(Duration::from_secs_f64(left.min(1.0)))?);
        left -= 1.0;
    }
    let tuned = load.measure(Duration::from_secs_f64(tuned_seconds(options)))?;
    let chosen = cluster.chosen()?;
    if options.decisions {
        progress::tell(cluster.decisions()?);
    }
    let after = fixed(options, cluster, load, best)?;
    Ok(Comparison { start, fixed: [before, after], searching, tuned, chosen })
}
