//! `stria lab`: the command line of the simulation.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use anyhow::bail;
use indicatif::{ProgressBar, ProgressStyle};
use lab::{Drawn, Mode, SeedOptions, SeedReport, move_counts::MoveCounts, run_seed};
use types::counted;

use crate::cli::LabCommand;

/// Seeds to a line of progress.
const LINE_EVERY: u64 = 50;

/// Runs `stria lab`.
pub fn run(command: &LabCommand) -> anyhow::Result<()> {
    match command {
        &LabCommand::Run { seed: Some(seed), operations, mode, .. } => {
            run_one(SeedOptions { seed, operations, mode, faults: None })
        }
        &LabCommand::Run { seeds, first, operations, mode, seed: None } => {
            let options = |seed| SeedOptions { seed, operations, mode, faults: None };
            run_many((first..first.saturating_add(seeds)).map(options), seeds)
        }
        LabCommand::Predict(arguments) => studies::predict(arguments),
        LabCommand::E1 { workload, nodes_max, arguments } => studies::e1(*workload, *nodes_max, arguments),
        LabCommand::E2 { arguments } => studies::e2(arguments),
        LabCommand::E3 { arguments } => studies::e3(arguments),
        LabCommand::E5 { arguments } => studies::metadata(arguments),
        LabCommand::Ageing { arguments } => studies::ageing(arguments),
    }
}

/// One seed, with its event log.
fn run_one(options: SeedOptions) -> anyhow::Result<()> {
    println!("{}", Drawn::by(&options));
    match run_seed(options) {
        Ok(report) => {
            print!("{}", report.log);
            println!("{}", describe(options.seed, &report));
            Ok(())
        }
        Err(failure) => {
            print!("{}", failure.log);
            bail!("{failure}")
        }
    }
}

/// What the seeds of one mode came to.
#[derive(Default)]
struct Tally {
    seeds: u64,
    faults: u64,
    looks: u64,
    moves: MoveCounts,
    virtual_time: Duration,
    real_time: Duration,
}

/// Seeds one after the other; the first that fails ends the run and says how to repeat it.
fn run_many(all: impl Iterator<Item = SeedOptions>, seeds: u64) -> anyhow::Result<()> {
    let progress = ProgressBar::new(seeds);
    if let Ok(style) = ProgressStyle::with_template("{bar:40} {pos}/{len} seeds {elapsed} {msg}") {
        progress.set_style(style);
    }
    let mut tallies: BTreeMap<Mode, Tally> = BTreeMap::new();
    for (done, options) in (1..).zip(all) {
        // In the log before it runs: a seed that hangs or aborts cannot show it afterwards.
        tracing::debug!("{}", Drawn::by(&options));
        let begun = Instant::now();
        let report = match run_seed(options) {
            Ok(report) => report,
            Err(failure) => {
                progress.abandon();
                bail!("{failure}");
            }
        };
        let tally = tallies.entry(report.mode).or_default();
        tally.seeds += 1;
        tally.faults += report.faults;
        tally.looks += report.looks;
        tally.moves += report.moves;
        tally.virtual_time += report.virtual_time;
        tally.real_time += begun.elapsed();
        progress.set_message(counted(tallies.values().map(|tally| tally.faults).sum::<u64>(), "fault"));
        progress.inc(1);
        // Where no bar is visible.
        if progress.is_hidden() && done % LINE_EVERY == 0 {
            eprintln!("{done} of {} held", counted(seeds, "seed"));
        }
    }
    progress.finish_and_clear();
    for (mode, tally) in &tallies {
        println!(
            "{mode}: {} held: {}, {} at all invariants, in {:.0} s of virtual time, {:.0} s of real time",
            counted(tally.seeds, "seed"),
            counted(tally.faults, "fault"),
            counted(tally.looks, "look"),
            tally.virtual_time.as_secs_f64(),
            tally.real_time.as_secs_f64()
        );
        println!("{mode}: moves between metadata targets: {}", tally.moves);
        if tally.moves.all_stayed() {
            bail!("{mode}: nothing has moved between metadata targets, though much was to: this tests nothing of it");
        }
    }
    Ok(())
}

fn describe(seed: u64, report: &SeedReport) -> String {
    format!(
        "seed {seed} ({}) held: {}, {} at all invariants, {}, {:.3} s of virtual time; {}",
        report.mode,
        counted(report.faults, "fault"),
        counted(report.looks, "look"),
        counted(report.steps, "step"),
        report.virtual_time.as_secs_f64(),
        report.moves
    )
}
