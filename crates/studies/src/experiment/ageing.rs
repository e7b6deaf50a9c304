//! `stria study ageing lab`: study E4 as a table of rates, histograms of the free space, figures,
//! JSON lines and the study's statements.

use std::collections::BTreeMap;

use anyhow::anyhow;
use clap::Args;
use serde::Serialize;
use types::counted;

use super::{ageing_output::AgeingOutput, parallel::in_parallel};
use crate::{
    ageing_report::{StepLine, draw, rates, show_free},
    bench::study::show_findings,
    figure,
    study::e4::{
        Cell, Step, Windows,
        findings::{Measured, findings},
    },
};

/// Arguments of the ageing of an OST.
#[derive(Clone, Debug, Args)]
pub struct AgeingArgs {
    /// Divide the size of the OST by this; 1 is 23 TB. Statements are about the published size: a
    /// small OST has less free space after a deletion than large windows need
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=2000))]
    scale: u32,
    /// OSTs; each is simulated by itself, from a seed of its own
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=64))]
    osts: u32,
    /// Where the section begins that is written and read, in percent of the OST: drives are slower
    /// at their end
    #[arg(long, default_value_t = 0, value_name = "PERCENT", value_parser = clap::value_parser!(u32).range(0..=90))]
    section: u32,
    /// Seed from which the order of writes and reads is derived
    #[arg(long, default_value_t = 1)]
    seed: u64,
    #[command(flatten)]
    output: AgeingOutput,
}

/// One step of one OST as a JSON line.
#[derive(Serialize)]
struct Line<'a> {
    study: &'static str,
    windows: &'a str,
    scale: u32,
    section_percent: u32,
    seed: u64,
    #[serde(flatten)]
    step: StepLine,
}

impl<'a> Line<'a> {
    fn new(cell: &'a Cell, step: &'a Step) -> Self {
        let Cell { windows, scale, section_percent, seed } = *cell;
        Self { study: "e4", windows: windows.name(), scale, section_percent, seed, step: StepLine::new(step) }
    }
}

/// Runs the study.
pub fn ageing(arguments: &AgeingArgs) -> anyhow::Result<()> {
    let AgeingArgs { scale, osts, section: section_percent, seed, .. } = *arguments;
    figure::prepare(arguments.output.figures.as_deref())?;
    let seeds = (0..u64::from(osts)).map(|ost| seed.wrapping_add(ost));
    let cells: Vec<Cell> =
        seeds.flat_map(|seed| Windows::ALL.map(|windows| Cell { windows, scale, section_percent, seed })).collect();
    println!("e4 ageing: {}, sizes 1/{scale}, section at {section_percent}%", counted(osts, "OST"));
    let results = in_parallel(&cells, arguments.output.threads, |cell| {
        let steps = cell.run();
        eprintln!(
            "windows {}, seed {}: {}",
            cell.windows.name(),
            cell.seed,
            if steps.is_ok() { "done" } else { "failed" }
        );
        steps
    });
    let mut all: BTreeMap<Windows, Vec<Vec<Step>>> = BTreeMap::new();
    let mut lines = String::new();
    for (cell, steps) in cells.iter().zip(results) {
        let steps = steps.map_err(|error| anyhow!("windows {}, seed {}: {error}", cell.windows.name(), cell.seed))?;
        for step in &steps {
            lines += &serde_json::to_string(&Line::new(cell, step))?;
            lines.push('\n');
        }
        all.entry(cell.windows).or_default().push(steps);
    }
    arguments.output.write_lines(&lines)?;
    let spread = all.values().map(|osts| spread(osts)).fold(0.0, f64::max);
    let measured: Measured = all.into_iter().map(|(windows, osts)| (windows, mean(osts))).collect();
    println!("{}", rates(&measured));
    if osts > 1 {
        println!("rates of the OSTs differ from their mean by at most {:.1}%", 100.0 * spread);
    }
    show_free(&measured);
    show_findings(&findings(&measured));
    let bitmap = "the first 4 GiB of the OST";
    arguments.output.figures.as_ref().map_or(Ok(()), |directory| draw(directory, "e4", bitmap, &measured))
}

/// The largest part by which a rate of an OST differs from the mean of all.
fn spread(osts: &[Vec<Step>]) -> f64 {
    let mean = mean(osts.to_vec());
    let of_step = |(step, mean): (&Step, &Step)| {
        let part = |rate: f64, mean: f64| (rate / mean - 1.0).abs();
        part(step.write, mean.write).max(part(step.read, mean.read))
    };
    osts.iter().flat_map(|steps| steps.iter().zip(&mean).map(of_step)).fold(0.0, f64::max)
}

/// Rates as the mean over the OSTs; maps and histograms are those of the first one.
fn mean(osts: Vec<Vec<Step>>) -> Vec<Step> {
    let count = osts.len() as f64;
    let mut osts = osts.into_iter();
    let mut mean = osts.next().unwrap_or_default();
    for (sum, step) in osts.flat_map(|steps| steps.into_iter().enumerate()) {
        let sum = &mut mean[sum];
        (sum.write, sum.read, sum.runs_per_gib) =
            (sum.write + step.write, sum.read + step.read, sum.runs_per_gib + step.runs_per_gib);
    }
    for step in &mut mean {
        (step.write, step.read, step.runs_per_gib) = (step.write / count, step.read / count, step.runs_per_gib / count);
    }
    mean
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::study::e4::FILES;

    #[test]
    fn a_run_leaves_lines_and_figures_and_osts_are_alike() {
        let place = tempfile::tempdir().unwrap();
        let arguments = AgeingArgs {
            scale: 2000,
            osts: 2,
            section: 0,
            seed: 5,
            output: AgeingOutput::of_test(place.path(), "lines.json"),
        };
        ageing(&arguments).unwrap();
        let text = std::fs::read_to_string(place.path().join("lines.json")).unwrap();
        let lines: Vec<serde_json::Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!(lines.len(), 2 * Windows::ALL.len() * (1 + FILES as usize));
        let first = &lines[0];
        assert_eq!(
            (&first["windows"], &first["deleted"], &first["used_percent"]),
            (&"1 MiB".into(), &().into(), &0.into())
        );
        assert!(first["write_mib_per_second"].as_f64().is_some_and(|rate| (100.0..1000.0).contains(&rate)), "{first}");
        for name in ["write", "read", "free", "bitmap"] {
            let figure = std::fs::read_to_string(place.path().join(format!("e4-{name}.svg"))).unwrap();
            assert!(Windows::ALL.iter().all(|windows| figure.contains(windows.name())), "{name}");
        }
        assert!(ageing(&AgeingArgs { output: AgeingOutput::of_test(place.path(), "no/where"), ..arguments }).is_err());
    }

    #[test]
    fn the_mean_is_over_the_osts_and_the_spread_is_the_largest_difference() {
        let of = |seed| Cell { windows: Windows::Mib8, scale: 2000, section_percent: 0, seed }.run().unwrap();
        let (one, other) = (of(1), of(2));
        let both = mean(vec![one.clone(), other.clone()]);
        assert!((both[3].write - (one[3].write + other[3].write) / 2.0).abs() < 1e-9);
        let spread = spread(&[one.clone(), other]);
        assert!(spread > 0.0 && spread < 0.2, "{spread}");
        assert_eq!(mean(vec![one.clone()])[5].read, one[5].read);
    }
}
