//! Experiments in virtual time: a study's jobs on a modelled testbed, as a table, figures, JSON
//! lines and the study's statements.

mod ageing;
mod ageing_output;
mod metadata;
mod metadata_lines;
mod mixed;
mod parallel;
mod runner;
mod sentences;
mod tuned;

use std::{
    num::NonZero,
    path::{Path, PathBuf},
};

pub use ageing::{AgeingArgs, ageing};
use clap::{Args, ValueEnum};
pub use metadata::{MetadataArgs, metadata};
pub use mixed::{MixedArgs, mixed};
use runner::{Series, run_all, show_findings};

use crate::{
    bench::study,
    figure::{BarSeries, write_bars, write_curves},
    model::costs::APART,
    study::{
        Job, Scale, blast, e1, e2,
        e3::{self, Aggregate},
        netflow,
        run::{Testbed, run},
        service_threads,
        shape::Rates,
    },
};

/// Workloads of study E1.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum E1Workload {
    /// One shared file, written and read in large calls
    Ior,
    /// Flow records, read first in large calls, then one by one
    Netflow,
    /// A database in fragments, searched by every process
    Blast,
    /// The same database on 16 to 512 nodes and 128 OSTs
    BlastNodes,
}

/// Arguments of experiments in virtual time.
#[derive(Clone, Debug, Args)]
pub struct ExperimentArgs {
    /// Divide file sizes by this
    #[arg(long, default_value_t = 1024, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub scale: u64,
    /// Seed from which interleavings and placements are derived
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Draw figures (SVG) into this directory, which is made if there is none
    #[arg(long, value_name = "DIR")]
    pub figures: Option<PathBuf>,
    /// Write every result to this file as a JSON line, as soon as it is known
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Run only configurations whose progress line contains this, such as "IOR.4", "64 nodes", "1
    /// MiB" or "shared x160"; given several times, those that contain one of these
    #[arg(long, value_name = "TEXT")]
    pub only: Vec<String>,
    /// Continue an interrupted run: take its results from the --json file, and run the rest
    #[arg(long, requires = "json")]
    pub resume: bool,
    /// Number of configurations to run in parallel; by default one per core. Each takes memory;
    /// results do not depend on it
    #[arg(long, value_name = "N")]
    pub threads: Option<NonZero<usize>>,
}

impl ExperimentArgs {
    /// Whether `--only` asks for the configuration with this name.
    fn wants(&self, name: &str) -> bool {
        self.only.is_empty() || self.only.iter().any(|text| name.contains(text.as_str()))
    }
}

/// Arguments of E2.
#[derive(Clone, Debug, Args)]
pub struct ServiceThreadsArgs {
    /// Sweep 1 to 64 service threads and requests in flight, with one stripe
    #[arg(long)]
    fine: bool,
    /// Let tuners of the server, of the clients, and of both find the numbers, under loads that
    /// last. Takes about 7 minutes of processor time for each load; `--only '8x1 write'` runs one,
    /// and `--only '8x1 write k1, s=1.. c=64'` a run of it, which is not judged. Nothing is scaled
    #[arg(long, conflicts_with = "fine")]
    tuner: bool,
    /// With --tuner: stripes of the files, 1 to 4. All loads are run with each of these, and are
    /// named "8x1 write k4" and the like
    #[arg(long, value_name = "N[,N]", requires = "tuner", value_delimiter = ',', default_value = "1",
        value_parser = clap::value_parser!(u32).range(1..=i64::from(e2::OSTS)))]
    stripes: Vec<u32>,
    /// Arguments of all experiments.
    #[command(flatten)]
    arguments: ExperimentArgs,
}

/// `stria lab e1`.
pub fn e1(workload: E1Workload, nodes_max: u32, arguments: &ExperimentArgs) -> anyhow::Result<()> {
    match workload {
        E1Workload::Ior => e1_ior(arguments),
        E1Workload::Netflow => e1_netflow(arguments),
        E1Workload::Blast => e1_blast(arguments),
        E1Workload::BlastNodes => e1_blast_nodes(nodes_max, arguments),
    }
}

/// Bars of these phases for every series.
fn bars(groups: &[String], series: &[Series], phases: &[&'static str]) -> Vec<BarSeries> {
    let pairs = phases.iter().flat_map(|phase| series.iter().map(move |one| (*phase, one)));
    let bar = |(phase, one): (&'static str, &Series)| {
        let rates = Rates::of(&one.outcomes);
        let values = groups.iter().map(|job| rates.get(job, phase)).collect();
        BarSeries { name: format!("{phase}, {}", one.name), values }
    };
    pairs.map(bar).collect()
}

/// Memory of a server in E1 (assumed).
const SERVER_MEMORY_BYTES: u64 = 64 << 30;
/// How far Lustre's clients read ahead in a file, at most: the study's.
const LUSTRE_AHEAD_BYTES: u64 = 40 << 20;

/// Table 4, with all records in the servers' memory after the first phase, and without cache.
fn e1_netflow(arguments: &ExperimentArgs) -> anyhow::Result<()> {
    let study = e1::netflow(Scale { bytes: arguments.scale, ..Scale::FULL });
    let testbeds =
        [("memory", Testbed::e1_with_memory(SERVER_MEMORY_BYTES / arguments.scale)), ("no cache", Testbed::e1(false))];
    let series = run_all(&study, testbeds, arguments, netflow::run)?;
    let Some(directory) = &arguments.figures else { return Ok(()) };
    let names = |synchronous| study.jobs.iter().map(move |job| e1::scheduled(&job.name, synchronous));
    let groups: Vec<String> = names(true).chain(names(false)).collect();
    for (phase, title) in [("index", "large sequential reads"), ("model", "very small random reads")] {
        let title = format!("E1, table 4: netflow, {phase} ({title})");
        let path = directory.join(format!("e1-netflow-{phase}.svg"));
        write_bars(&path, &title, "MiB/s", &groups, &bars(&groups, &series, &[phase]))?;
    }
    Ok(())
}

/// Table 5, with memory for all of the database in the servers, as there was; and once more with
/// the read-ahead of a mount of StriaFS.
fn e1_blast(arguments: &ExperimentArgs) -> anyhow::Result<()> {
    /// One for each part of a dynamic layout: few fragments as large as the published ones show
    /// more than many small ones, whose objects have hardly begun when they end.
    const FRAGMENTS_MIN: u64 = 3;
    let study = e1::blast(Scale { bytes: arguments.scale, ..Scale::FULL });
    let mount = Testbed::e1_with_memory(SERVER_MEMORY_BYTES / arguments.scale);
    let lustre = Testbed { mapping_ahead_bytes: LUSTRE_AHEAD_BYTES, ..mount };
    let search = |job: &Job, testbed, seed| blast::run(job, testbed, seed, FRAGMENTS_MIN);
    let testbeds = [("clients read 40 MiB ahead", lustre), ("clients read 1 MiB ahead", mount)];
    let series = run_all(&study, testbeds, arguments, search)?;
    let groups: Vec<String> = study.jobs.iter().map(|job| job.name.clone()).collect();
    let bar = |one: &Series| {
        let rates = Rates::of(&one.outcomes);
        let values = (1..=groups.len()).map(|number| e1::speed_up(&rates, number)).collect();
        BarSeries { name: one.name.to_owned(), values }
    };
    let bars: Vec<BarSeries> = series.iter().map(bar).collect();
    for (number, job) in groups.iter().enumerate() {
        let values: Vec<String> = bars.iter().map(|bar| format!("{:.3}", bar.values[number])).collect();
        println!("{job} {}", values.join(" "));
    }
    let Some(directory) = &arguments.figures else { return Ok(()) };
    let title = "E1, table 5: BLAST, speed-up against blast.1";
    write_bars(&directory.join("e1-blast.svg"), title, "times as fast", &groups, &bars)
}

/// BLAST on growing numbers of nodes, with the read-ahead of the study's clients, and with that of
/// a mount of StriaFS.
fn e1_blast_nodes(nodes_max: u32, arguments: &ExperimentArgs) -> anyhow::Result<()> {
    /// One for each part of the dynamic layout: a fragment must have a stripe for every OST.
    const FRAGMENTS_MIN: u64 = 3;
    let study = e1::blast_nodes(Scale { bytes: arguments.scale, ..Scale::FULL }, nodes_max);
    let memory = Testbed::e1_with_memory(SERVER_MEMORY_BYTES / arguments.scale);
    let mount = Testbed { osts: e1::NODES_OSTS as u16, ..memory };
    let lustre = Testbed { mapping_ahead_bytes: LUSTRE_AHEAD_BYTES, ..mount };
    let search = |job: &Job, testbed, seed| blast::run(job, testbed, seed, FRAGMENTS_MIN);
    let testbeds = [("clients read 40 MiB ahead", lustre), ("clients read 1 MiB ahead", mount)];
    let series = run_all(&study, testbeds, arguments, search)?;
    let [ahead, little] = &series;
    println!("\n{}", little.name);
    show_findings(little);
    let Some(directory) = &arguments.figures else { return Ok(()) };
    let nodes: Vec<u32> = e1::NODES.into_iter().filter(|nodes| *nodes <= nodes_max).collect();
    let groups: Vec<String> = nodes.iter().map(|nodes| format!("{nodes} nodes")).collect();
    let figures = [(ahead, "e1-blast-nodes.svg"), (little, "e1-blast-nodes-1M.svg")];
    for (one, file) in figures.into_iter().filter(|(one, _)| !one.outcomes.is_empty()) {
        let seconds = |nodes: &u32, layout: &str| {
            let job = e1::on_nodes(*nodes, layout);
            one.outcomes.iter().find(|outcome| outcome.job == job).map_or(f64::NAN, |outcome| outcome.seconds)
        };
        let bars = e1::NODES_LAYOUTS.map(|layout| BarSeries {
            name: layout.to_owned(),
            values: nodes.iter().map(|nodes| seconds(nodes, layout)).collect(),
        });
        let title = format!("E1: BLAST on many nodes, by stripe count ({})", one.name);
        write_bars(&directory.join(file), &title, "seconds", &groups, &bars)?;
    }
    Ok(())
}

/// Table 3 with the servers' cache and without.
fn e1_ior(arguments: &ExperimentArgs) -> anyhow::Result<()> {
    let study = e1::ior(Scale { bytes: arguments.scale, ..Scale::FULL });
    let testbeds = [("cache", Testbed::e1(true)), ("no cache", Testbed::e1(false))];
    let series = run_all(&study, testbeds, arguments, run)?;
    let [with, without] = &series;
    if let Some(directory) = &arguments.figures {
        let groups: Vec<String> = study.jobs.iter().map(|job| job.name.clone()).collect();
        let bars = bars(&groups, &series, &["write", "read"]);
        write_bars(&directory.join("e1-ior.svg"), "E1, table 3: IOR on one shared file", "MiB/s", &groups, &bars)?;
    }
    if with.outcomes.is_empty() || without.outcomes.is_empty() {
        return Ok(());
    }
    study::show_findings(&e1::cache_findings(&Rates::of(&with.outcomes), &Rates::of(&without.outcomes)));
    Ok(())
}

/// `stria lab e2 --fine`: 1 to 64 service threads and requests in flight.
fn e2_fine(arguments: &ExperimentArgs) -> anyhow::Result<()> {
    let study = e2::fine_sweep(Scale { bytes: arguments.scale, ..Scale::FULL });
    let testbed = Testbed::e2(Some(APART), MISALIGNED_BYTES);
    let [one] = run_all(&study, [("", testbed)], arguments, service_threads::run)?;
    let rates = Rates::of(&one.outcomes);
    for phase in ["write", "read"] {
        let tables = e2::fine_tables(&rates, phase);
        println!("\nMiB/s\n{}", e2::fine_lines(&tables, phase).join("\n"));
        if let Some(directory) = &arguments.figures {
            tables.iter().try_for_each(|table| draw_fine(directory, table, phase))?;
        }
    }
    Ok(())
}

/// A curve for each number of service threads.
fn draw_fine(directory: &Path, table: &e2::FineTable, phase: &str) -> anyhow::Result<()> {
    let curve = |(threads, rates): &(u16, [f64; e2::FINE.len()])| BarSeries {
        name: format!("s={threads}"),
        values: rates.to_vec(),
    };
    let curves: Vec<BarSeries> = table.rows.iter().map(curve).collect();
    let title = format!("E2: {phase}s of {} with one stripe, by requests in flight and service threads", table.load);
    let steps = e2::FINE.map(|in_flight| format!("c={in_flight}"));
    let path = directory.join(format!("e2-fine-{phase}-{}.svg", table.load));
    write_curves(&path, &title, "MiB/s", &steps, &curves)
}

/// Where files begin on the arrays of E2, after a stripe does: two chunks and a block. A host file
/// system that does not know the array begins anywhere (assumed).
const MISALIGNED_BYTES: u64 = (256 << 10) + 4096;

/// `stria lab e2`: the sweep, also with another table of costs, without costs, with files that
/// begin where stripes do, with clients that send out of order, without write caches in the drives,
/// and with arrays that read ahead.
pub fn e2(ServiceThreadsArgs { fine, tuner, stripes, arguments }: &ServiceThreadsArgs) -> anyhow::Result<()> {
    if *tuner {
        return tuned::tuned(arguments, stripes);
    }
    if *fine {
        return e2_fine(arguments);
    }
    let study = e2::sweep(Scale { bytes: arguments.scale, ..Scale::FULL });
    let testbeds = [
        ("as measured", Testbed::e2(Some(APART), MISALIGNED_BYTES)),
        ("costs +30%", Testbed::e2(Some(APART.scaled(130)), MISALIGNED_BYTES)),
        ("costs -30%", Testbed::e2(Some(APART.scaled(70)), MISALIGNED_BYTES)),
        ("without costs", Testbed::e2(None, MISALIGNED_BYTES)),
        ("aligned", Testbed::e2(Some(APART), 0)),
        ("out of order", Testbed::e2(Some(APART), MISALIGNED_BYTES).with_requests_out_of_order()),
        ("write caches off", Testbed::e2(Some(APART), MISALIGNED_BYTES).without_write_caches()),
        ("arrays read ahead", Testbed::e2(Some(APART), MISALIGNED_BYTES).with_read_ahead()),
    ];
    let series = run_all(&study, testbeds, arguments, service_threads::run)?;
    for other in series[1..].iter().filter(|one| !one.study.jobs.is_empty()) {
        println!("\n{}", other.name);
        show_findings(other);
    }
    let [measured, more, less, ..] = &series;
    let by_costs = [measured, more, less];
    let has_costs = by_costs.iter().all(|one| !one.outcomes.is_empty());
    if has_costs {
        let findings = by_costs.map(|one| one.study.findings(&one.outcomes));
        let table = sentences::side_by_side(&by_costs.map(|one| one.name), &findings);
        println!("\neach sentence, with costs of code that are off by 30%\n{table}");
    }
    let Some(directory) = &arguments.figures else { return Ok(()) };
    if has_costs {
        let bar =
            |one: &Series| BarSeries { name: one.name.to_owned(), values: e2::of_default(&Rates::of(&one.outcomes)) };
        let title = "E2: what s=8, c=4 writes with one stripe, by clients x threads and costs of code";
        let path = directory.join("e2-costs.svg");
        write_bars(&path, title, "% of the default", &e2::loads(), &by_costs.map(bar))?;
    }
    for one in series.iter().filter(|one| !one.outcomes.is_empty()) {
        let rates = Rates::of(&one.outcomes);
        for phase in ["write", "read"] {
            let bars = e2::bars(&rates, phase);
            let bars: Vec<BarSeries> = bars.into_iter().map(|(name, values)| BarSeries { name, values }).collect();
            let title = format!("E2: {phase}s with one stripe, by clients x threads ({})", one.name);
            let name = one.name.replace(' ', "-").replace('%', "");
            write_bars(&directory.join(format!("e2-{phase}-{name}.svg")), &title, "MiB/s", &e2::loads(), &bars)?;
        }
    }
    Ok(())
}

/// `stria lab e3`: the matrix.
pub fn e3(arguments: &ExperimentArgs) -> anyhow::Result<()> {
    let study = e3::matrix(Scale { bytes: arguments.scale, ..Scale::FULL }, &Aggregate::ALL);
    let [one] = run_all(&study, [("", Testbed::e3())], arguments, run)?;
    let Some(directory) = &arguments.figures else { return Ok(()) };
    let rates = Rates::of(&one.outcomes);
    for (aggregate, phase) in Aggregate::ALL.into_iter().flat_map(|bytes| ["write", "read"].map(|phase| (bytes, phase)))
    {
        let cells: Vec<e3::Cell> =
            e3::cells(&one.study).into_iter().filter(|cell| cell.aggregate == aggregate).collect();
        let groups: Vec<String> = cells.iter().map(|cell| cell.name()).collect();
        let bars = e3::LAYOUTS.iter().enumerate().map(|(number, layout)| BarSeries {
            name: (*layout).to_owned(),
            values: cells.iter().map(|cell| rates.get(&cell.jobs()[number], phase)).collect(),
        });
        let bytes = aggregate.name();
        let title = format!("E3: {phase} of {bytes} in all, by pattern, processes and stripes");
        let path = directory.join(format!("e3-{phase}-{bytes}.svg"));
        write_bars(&path, &title, "MiB/s", &groups, &bars.collect::<Vec<_>>())?;
    }
    Ok(())
}
