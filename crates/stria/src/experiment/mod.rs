//! Experiments in virtual time: a study's jobs on a modelled testbed, as a table, JSON lines and the study's sentences.
//!
//! Jobs are independent worlds, so they run on as many threads as there are cores, and their results do not depend on it.

use std::{
    fs::File,
    io::Write,
    sync::{
        Mutex,
        atomic::{AtomicUsize, Ordering},
    },
};

use anyhow::{Context, anyhow, ensure};
use indicatif::ProgressBar;
use lab::study::{
    Job, Outcome, Scale, Study, blast, e1,
    e3::{self, Aggregate},
    netflow,
    run::{Testbed, run},
    shape::Rates,
};
use serde::Serialize;

use crate::{
    bench::study,
    cli::{E1Workload, ExperimentArgs},
    figure::{BarSeries, write_bars},
};

/// A study on one testbed.
struct Series {
    name: &'static str,
    testbed: Testbed,
    outcomes: Vec<Outcome>,
}

/// One result as a JSON line.
#[derive(Serialize)]
struct Line<'a> {
    study: &'a str,
    series: &'a str,
    scale: Scale,
    seed: u64,
    #[serde(flatten)]
    outcome: &'a Outcome,
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

/// Table 5, with memory for all of the database in the servers, as there was; and once more with the read-ahead of a mount of
/// StriaFS.
fn e1_blast(arguments: &ExperimentArgs) -> anyhow::Result<()> {
    /// One for each part of a dynamic layout: few fragments as large as the published ones show more than many small ones,
    /// whose objects have hardly begun when they end.
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

/// BLAST on growing numbers of nodes.
fn e1_blast_nodes(nodes_max: u32, arguments: &ExperimentArgs) -> anyhow::Result<()> {
    /// One for each part of the dynamic layout: a fragment must have a stripe for every OST.
    const FRAGMENTS_MIN: u64 = 3;
    let study = e1::blast_nodes(Scale { bytes: arguments.scale, ..Scale::FULL }, nodes_max);
    let memory = Testbed::e1_with_memory(SERVER_MEMORY_BYTES / arguments.scale);
    let testbed = Testbed { osts: e1::NODES_OSTS as u16, mapping_ahead_bytes: LUSTRE_AHEAD_BYTES, ..memory };
    let search = |job: &Job, testbed, seed| blast::run(job, testbed, seed, FRAGMENTS_MIN);
    let series = run_all(&study, [("", testbed)], arguments, search)?;
    let (Some(directory), Some(one)) = (&arguments.figures, series.first()) else { return Ok(()) };
    let seconds = |nodes: &u32, layout: &str| {
        let job = e1::on_nodes(*nodes, layout);
        one.outcomes.iter().find(|outcome| outcome.job == job).map_or(f64::NAN, |outcome| outcome.seconds)
    };
    let nodes: Vec<u32> = e1::NODES.into_iter().filter(|nodes| *nodes <= nodes_max).collect();
    let bars = e1::NODES_LAYOUTS.map(|layout| BarSeries {
        name: layout.to_owned(),
        values: nodes.iter().map(|nodes| seconds(nodes, layout)).collect(),
    });
    let groups: Vec<String> = nodes.iter().map(|nodes| format!("{nodes} nodes")).collect();
    let title = "E1: BLAST on growing numbers of nodes, by stripe count";
    write_bars(&directory.join("e1-blast-nodes.svg"), title, "seconds", &groups, &bars)
}

/// Table 3 with the servers' cache and without.
fn e1_ior(arguments: &ExperimentArgs) -> anyhow::Result<()> {
    let study = e1::ior(Scale { bytes: arguments.scale, ..Scale::FULL });
    let testbeds = [("cache", Testbed::e1(true)), ("no cache", Testbed::e1(false))];
    let series = run_all(&study, testbeds, arguments, run)?;
    let [with, without] = series.as_slice() else { return Err(anyhow!("two series")) };
    if let Some(directory) = &arguments.figures {
        let groups: Vec<String> = study.jobs.iter().map(|job| job.name.clone()).collect();
        let bars = bars(&groups, &series, &["write", "read"]);
        write_bars(&directory.join("e1-ior.svg"), "E1, table 3: IOR on one shared file", "MiB/s", &groups, &bars)?;
    }
    for finding in e1::cache_findings(&Rates::of(&with.outcomes), &Rates::of(&without.outcomes)) {
        println!("{}", study::describe(&finding));
    }
    Ok(())
}

/// `stria lab e3`: the whole matrix, or what of it contains `only`.
pub fn e3(only: Option<&str>, arguments: &ExperimentArgs) -> anyhow::Result<()> {
    let mut study = e3::matrix(Scale { bytes: arguments.scale, ..Scale::FULL }, &Aggregate::ALL);
    study.jobs.retain(|job| only.is_none_or(|text| job.name.contains(text)));
    ensure!(!study.jobs.is_empty(), "no configuration has such a name");
    let series = run_all(&study, [("", Testbed::e3())], arguments, run)?;
    let (Some(directory), Some(one)) = (&arguments.figures, series.first()) else { return Ok(()) };
    let rates = Rates::of(&one.outcomes);
    for (aggregate, phase) in Aggregate::ALL.into_iter().flat_map(|bytes| ["write", "read"].map(|phase| (bytes, phase)))
    {
        let cells: Vec<e3::Cell> = e3::cells(&study).into_iter().filter(|cell| cell.aggregate == aggregate).collect();
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

/// Runs every job on every testbed and shows what came out.
fn run_all<const N: usize>(
    study: &Study,
    testbeds: [(&'static str, Testbed); N],
    arguments: &ExperimentArgs,
    run: impl Fn(&Job, Testbed, u64) -> Result<Vec<Outcome>, String> + Sync,
) -> anyhow::Result<Vec<Series>> {
    println!("{} in virtual time: {} OSTs; sizes 1/{}", study.name, study.osts, study.scale.bytes);
    study::warnings(study).iter().for_each(|warning| println!("{warning}"));
    let mut series = testbeds.map(|(name, testbed)| Series { name, testbed, outcomes: Vec::new() });
    let worlds: Vec<(usize, usize)> =
        (0..series.len()).flat_map(|one| (0..study.jobs.len()).map(move |job| (one, job))).collect();
    let results = in_parallel(&worlds, |(one, job)| run(&study.jobs[*job], series[*one].testbed, arguments.seed));
    for ((one, job), result) in worlds.iter().zip(results) {
        match result {
            Ok(outcomes) => series[*one].outcomes.extend(outcomes),
            // What is not measured is shown as such, and no sentence about it holds.
            Err(error) => eprintln!("{} {}: {error}", study.jobs[*job].name, series[*one].name),
        }
    }
    if let Some(path) = &arguments.json {
        let mut file = File::create(path).with_context(|| format!("cannot create {}", path.display()))?;
        for one in &series {
            for outcome in &one.outcomes {
                let (scale, seed) = (study.scale, arguments.seed);
                let line = Line { study: study.name, series: one.name, scale, seed, outcome };
                writeln!(file, "{}", serde_json::to_string(&line)?)?;
            }
        }
    }
    for one in &series {
        println!("\n{}\n{}", one.name, study::table(&study.jobs, &one.outcomes));
    }
    let first = series.first().map(|one| study.findings(&one.outcomes)).unwrap_or_default();
    first.iter().for_each(|finding| println!("{}", study::describe(finding)));
    Ok(series.into())
}

/// `work` of every item, on all cores, in the order of the items.
fn in_parallel<I: Sync, T: Send>(items: &[I], work: impl Fn(&I) -> T + Sync) -> Vec<T> {
    let (next, results) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    let progress = ProgressBar::new(items.len() as u64);
    let threads = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    std::thread::scope(|scope| {
        for _ in 0..threads.min(items.len()) {
            scope.spawn(|| {
                while let Some((index, item)) = Some(next.fetch_add(1, Ordering::Relaxed))
                    .and_then(|index| items.get(index).map(|item| (index, item)))
                {
                    let result = work(item);
                    results.lock().expect("no panic while locked").push((index, result));
                    progress.inc(1);
                }
            });
        }
    });
    progress.finish_and_clear();
    let mut results = results.into_inner().expect("no panic while locked");
    results.sort_by_key(|(index, _)| *index);
    results.into_iter().map(|(_, result)| result).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_come_in_the_order_of_the_items() {
        let items: Vec<u32> = (0..100).collect();
        assert_eq!(in_parallel(&items, |item| item * 2), items.iter().map(|item| item * 2).collect::<Vec<_>>());
    }
}
