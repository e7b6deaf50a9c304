//! Study E5, live and in miniature: mknod, stat and unlink on metadata servers of this machine,
//! each of which has a small part of a processor ([`cluster`]), so that several fit beside their
//! clients and more of them are more processor time.
//!
//! Tasks, directories and phases are those of virtual time: 64 tasks for each metadata server, in
//! directories of four and in one directory that is striped over all. Numbers of servers are
//! compared within some seconds, because a second of a virtual processor is not always the same
//! work: all run on one file system, which has the servers of the largest number, phase by phase,
//! forwards and backwards in turn in rounds. Growth is the median of what it is in each round. A
//! phase is measured until its first task has ended. Servers with other numbers of MDTs are other
//! file systems, one after the other in each round.
//!
//! Downsides: clients have what processor time the servers leave. The report shows how much of its
//! quota each server used: less than nearly all of it means that the clients were the limit. With
//! fewer servers than there are the others are idle, which takes little of their quotas.

mod cluster;
mod load;
mod report;

use std::{
    collections::{BTreeMap, BTreeSet},
    path::PathBuf,
};

use anyhow::{Context, ensure};
use clap::Args;
use host::progress;
use serde::Serialize;
use types::counted;

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
    /// Numbers of metadata targets of each server, separated by commas. They share its processor
    /// time
    #[arg(long, value_delimiter = ',', default_values_t = [1], value_name = "N", value_parser = clap::value_parser!(u16).range(1..=16))]
    mdts: Vec<u16>,
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
    let (servers, mdts) = (in_order(&options.servers), in_order(&options.mdts));
    let mut json = JsonLines::new(options.json.as_deref())?;
    figure::prepare(options.figures.as_deref())?;
    println!("{}", report::introduction(options, &servers, &mdts));
    let ScalingOptions { percent, clients, task_files, .. } = *options;
    let mut results = Results::new();
    for round in 1..=options.repeat {
        // Forwards and backwards in turn.
        let mut order = servers.clone();
        if round % 2 == 0 {
            order.reverse();
        }
        let loads = [growing_separate as fn(u16) -> Cell, growing_striped];
        for (each, load) in mdts.iter().flat_map(|each| loads.map(|load| (*each, load))) {
            let cells: Vec<Cell> = order.iter().map(|servers| load(*servers).with_mdts(each)).collect();
            let name = cells.first().map(|cell| cell.load.name()).unwrap_or_default();
            let of = options.repeat;
            progress::show(format_args!("round {round} of {of}, {}, {name}", counted_mdts(each)));
            for (cell, outcome) in measure(options, &cells)? {
                json.add(&Line { study: "e5 live", percent, clients, task_files, round, outcome: &outcome })?;
                results.entry((cell, outcome.phase)).or_default().push(outcome);
            }
        }
    }
    progress::done();
    print!("{}", report::shown(&results, &servers, &mdts));
    options.figures.as_deref().map_or(Ok(()), |directory| report::draw(directory, &results, &servers, &mdts))
}

/// Numbers in order, each once.
fn in_order(numbers: &[u16]) -> Vec<u16> {
    numbers.iter().copied().collect::<BTreeSet<u16>>().into_iter().collect()
}

/// How many MDTs each server has.
fn counted_mdts(each: u16) -> String {
    format!("{} each", counted(each, "MDT"))
}

/// Cells on a new file system, which has the servers of the largest.
fn measure(options: &ScalingOptions, cells: &[Cell]) -> anyhow::Result<Vec<(Cell, Outcome)>> {
    let most = |number: fn(&Cell) -> u16| cells.iter().map(number).max().unwrap_or(1);
    let (servers, mdts) = (most(|cell| cell.servers), most(|cell| cell.mdts));
    let cluster = Cluster::start(options.dir.as_deref(), (servers, mdts), options.clients)
        .with_context(|| format!("cannot start {servers} metadata servers"))?;
    load::run(&cluster, cells, Amount { task_files: options.task_files, percent: options.percent })
}
