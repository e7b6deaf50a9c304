//! `stria lab`: the simulation for people.

use std::time::{Duration, Instant};

use anyhow::bail;
use indicatif::{ProgressBar, ProgressStyle};
use lab::{Report, SeedOptions, run_seed};

use crate::{cli::LabCommand, experiment};

/// Runs `stria lab`.
pub fn run(command: &LabCommand) -> anyhow::Result<()> {
    match command {
        LabCommand::Run { seed: Some(seed), operations, .. } => run_one(*seed, *operations),
        LabCommand::Run { seeds, first, operations, seed: None } => run_many(*first, *seeds, *operations),
        LabCommand::E1(arguments) => experiment::e1(arguments),
        LabCommand::E3(arguments) => experiment::e3(arguments),
    }
}

fn options(seed: u64, operations: u64) -> SeedOptions {
    SeedOptions { seed, operations, mode: None, faults: None }
}

/// One seed, with its event log.
fn run_one(seed: u64, operations: u64) -> anyhow::Result<()> {
    match run_seed(options(seed, operations)) {
        Ok(report) => {
            print!("{}", report.log);
            println!("{}", describe(seed, &report));
            Ok(())
        }
        Err(failure) => {
            print!("{}", failure.log);
            bail!("{failure}")
        }
    }
}

/// Seeds one after the other; the first that fails ends the run and says how to repeat it.
fn run_many(first: u64, seeds: u64, operations: u64) -> anyhow::Result<()> {
    let begun = Instant::now();
    let progress = ProgressBar::new(seeds);
    if let Ok(style) = ProgressStyle::with_template("{bar:40} {pos}/{len} seeds {elapsed} {msg}") {
        progress.set_style(style);
    }
    let (mut virtual_time, mut faults) = (Duration::ZERO, 0);
    for seed in first..first.saturating_add(seeds) {
        let report = match run_seed(options(seed, operations)) {
            Ok(report) => report,
            Err(failure) => {
                progress.abandon();
                bail!("{failure}");
            }
        };
        virtual_time += report.virtual_time;
        faults += report.faults;
        progress.set_message(format!("{faults} faults"));
        progress.inc(1);
    }
    progress.finish_and_clear();
    println!(
        "{seeds} seeds held: {faults} faults in {:.0} s of virtual time, {:.0} s of real time",
        virtual_time.as_secs_f64(),
        begun.elapsed().as_secs_f64()
    );
    Ok(())
}

fn describe(seed: u64, report: &Report) -> String {
    format!(
        "seed {seed} held: {} faults, {} steps, {:.3} s of virtual time",
        report.faults,
        report.steps,
        report.virtual_time.as_secs_f64()
    )
}
