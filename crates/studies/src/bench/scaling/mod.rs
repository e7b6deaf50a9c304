//! Study E5, live and in miniature: mknod, stat and unlink on metadata servers of this machine,
//! each of which has a small part of a processor ([`cluster`]), so that several fit beside their
//! clients and more of them are more processor time.
//!
//! Tasks, directories and phases are those of virtual time: 64 tasks for each metadata server, in
//! directories of four and in one directory that is striped over all. Rounds go through the numbers
//! of servers forwards and backwards in turn, each on a new file system.
//!
//! Downside: clients have what processor time the servers leave. The report shows how much of its
//! quota each server used: less than nearly all of it means that the clients were the limit.

mod cluster;
mod load;
mod report;

use std::{collections::BTreeMap, path::PathBuf};

use anyhow::{Context, ensure};
use clap::Args;
use host::progress;
use serde::Serialize;

pub use self::report::{add_row, draw_linear, table};
use self::{cluster::Cluster, load::Amount};
use crate::{
    figure,
    json_lines::JsonLines,
    study::e5::{Cell, Outcome, growing_separate, growing_striped},
};

/// Options of the live study.
#[derive(Clone, Debug, Args)]
pub struct ScalingOptions {
    /// Numbers of metadata servers, separated by commas; growth counts from the least
    #[arg(long, value_delimiter = ',', default_values_t = [1, 2, 3, 4], value_name = "N", value_parser = clap::value_parser!(u16).range(1..=16))]
    servers: Vec<u16>,
    /// Hundredths of a processor that each metadata server gets; the kernel gives no less than 10
    #[arg(long, default_value_t = 12, value_name = "N", value_parser = clap::value_parser!(u32).range(10..=10_000))]
    percent: u32,
    /// Native clients, to which tasks are given in turn
    #[arg(long, default_value_t = 8, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=64))]
    clients: u16,
    /// Files of each task
    #[arg(long, default_value_t = 100, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    task_files: u64,
    /// Rounds; the table shows medians
    #[arg(long, default_value_t = 3, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    repeat: u32,
    /// Directory on the disk to be used [default: the temporary directory]
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// Draw a figure (SVG) into this directory, which is made if there is none
    #[arg(long, value_name = "DIR")]
    figures: Option<PathBuf>,
    /// Write every result to this file as a JSON line, as soon as it is known
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// What the phases of a cell came to, in each round.
type Results = BTreeMap<(Cell, &'static str), Vec<Outcome>>;

/// One result as a JSON line.
#[derive(Serialize)]
struct Line<'a> {
    study: &'static str,
    percent: u32,
    clients: u16,
    task_files: u64,
    round: u32,
    #[serde(flatten)]
    outcome: &'a Outcome,
}

/// Runs `stria study metadata-scaling live`.
pub fn run(options: &ScalingOptions) -> anyhow::Result<()> {
    ensure!(rustix::process::geteuid().is_root(), "this study makes control groups: run it as root");
    let mut servers = options.servers.clone();
    servers.sort_unstable();
    servers.dedup();
    let mut json = JsonLines::new(options.json.as_deref())?;
    figure::prepare(options.figures.as_deref())?;
    println!("{}", report::introduction(options, &servers));
    let ScalingOptions { percent, clients, task_files, .. } = *options;
    let mut results = Results::new();
    for round in 1..=options.repeat {
        for number in 0..servers.len() {
            let count = servers[if round % 2 == 1 { number } else { servers.len() - 1 - number }];
            progress::show(format_args!("round {round} of {}, {count} metadata servers", options.repeat));
            for (cell, outcomes) in measure(options, count)? {
                for outcome in outcomes {
                    json.add(&Line { study: "e5 live", percent, clients, task_files, round, outcome: &outcome })?;
                    results.entry((cell, outcome.phase)).or_default().push(outcome);
                }
            }
        }
    }
    progress::done();
    print!("{}", report::shown(&results, &servers));
    options.figures.as_deref().map_or(Ok(()), |directory| report::draw(directory, &results, &servers))
}

/// Both loads on a new file system.
fn measure(options: &ScalingOptions, servers: u16) -> anyhow::Result<Vec<(Cell, Vec<Outcome>)>> {
    let cluster = Cluster::start(options.dir.as_deref(), servers, options.clients)
        .with_context(|| format!("cannot start {servers} metadata servers"))?;
    let cells = [growing_separate(servers), growing_striped(servers)];
    load::run(&cluster, &cells, Amount { task_files: options.task_files, percent: options.percent })
}
