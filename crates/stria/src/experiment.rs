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

use anyhow::{Context, anyhow};
use indicatif::ProgressBar;
use lab::study::{
    Outcome, Scale, Study, e1, e3,
    run::{Testbed, run},
    shape::Rates,
};
use serde::Serialize;

use crate::{
    bench::study,
    cli::ExperimentArgs,
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

/// `stria lab e1`: table 3 with the servers' cache and without.
pub fn e1(arguments: &ExperimentArgs) -> anyhow::Result<()> {
    let study = e1::ior(Scale { bytes: arguments.scale, ..Scale::FULL });
    let testbeds = [("cache", Testbed::e1(true)), ("no cache", Testbed::e1(false))];
    let series = run_all(&study, testbeds, arguments)?;
    let [with, without] = series.as_slice() else { return Err(anyhow!("two series")) };
    if let Some(directory) = &arguments.figures {
        let groups: Vec<String> = study.jobs.iter().map(|job| job.name.clone()).collect();
        let mut bars = Vec::new();
        for (phase, one) in ["write", "read"].into_iter().flat_map(|phase| series.iter().map(move |one| (phase, one))) {
            let rates = Rates::of(&one.outcomes);
            let values = groups.iter().map(|job| rates.get(job, phase)).collect();
            bars.push(BarSeries { name: format!("{phase}, {}", one.name), values });
        }
        write_bars(&directory.join("e1-ior.svg"), "E1, table 3: IOR on one shared file", "MiB/s", &groups, &bars)?;
    }
    for finding in e1::cache_findings(&Rates::of(&with.outcomes), &Rates::of(&without.outcomes)) {
        println!("{}", study::describe(&finding));
    }
    Ok(())
}

/// `stria lab e3`: the whole matrix.
pub fn e3(arguments: &ExperimentArgs) -> anyhow::Result<()> {
    let study = e3::matrix(Scale { bytes: arguments.scale, ..Scale::FULL });
    let series = run_all(&study, [("", Testbed::e3())], arguments)?;
    let (Some(directory), Some(one)) = (&arguments.figures, series.first()) else { return Ok(()) };
    let (rates, cells) = (Rates::of(&one.outcomes), e3::cells(&study));
    for phase in ["write", "read"] {
        let groups: Vec<String> = cells.iter().map(|(cell, _)| cell.clone()).collect();
        let bars = e3::LAYOUTS.iter().enumerate().map(|(number, layout)| BarSeries {
            name: (*layout).to_owned(),
            values: cells.iter().map(|(_, jobs)| rates.get(&jobs[number], phase)).collect(),
        });
        let title = format!("E3: {phase}, by pattern, processes and stripes");
        write_bars(&directory.join(format!("e3-{phase}.svg")), &title, "MiB/s", &groups, &bars.collect::<Vec<_>>())?;
    }
    Ok(())
}

/// Runs every job on every testbed and shows what came out.
fn run_all<const N: usize>(
    study: &Study,
    testbeds: [(&'static str, Testbed); N],
    arguments: &ExperimentArgs,
) -> anyhow::Result<Vec<Series>> {
    println!("{} in virtual time: {} OSTs; sizes 1/{}", study.name, study.osts, study.scale.bytes);
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
