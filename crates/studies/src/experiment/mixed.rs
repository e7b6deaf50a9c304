//! `stria study ageing mixed`: ageing by a mixed year of use (E4), as tables against a fresh copy
//! of the same data, free space, figures, JSON lines and what is claimed of it.

use std::{collections::BTreeMap, time::Instant};

use anyhow::{anyhow, ensure};
use clap::Args;
use comfy_table::Table;
use serde::Serialize;
use types::{counted, limits::BLOCK_BYTES};

use super::{ageing_output::AgeingOutput, parallel::in_parallel};
use crate::{
    ageing_report::free_classes,
    bench::{report::STYLE, study::show_findings},
    figure::{self, BarSeries, write_bars},
    study::e4::{
        Windows,
        mixed::{
            Against, Cell, Point, WRITERS,
            findings::{Measured, RATES, Rate, findings},
            profile::Profile,
        },
    },
};

/// Arguments of the ageing by a mixed year of use.
#[derive(Clone, Debug, Args)]
pub struct MixedArgs {
    /// Divide the size of the OST by this: 1 is 23 TB, 23 is 1 TB, 230 is 100 GB. Memory grows with
    /// the number of files: at 23 TB leave small ones out (--smallest)
    #[arg(long, default_value_t = 230, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=2000))]
    scale: u32,
    /// Part of the device that files have, in percent; several, separated by commas
    #[arg(long, default_value = "50,80,95", value_name = "PERCENT", value_delimiter = ',',
        value_parser = clap::value_parser!(u32).range(5..=97))]
    fill: Vec<u32>,
    /// When to measure: after so many times the size of the device was written; several, separated
    /// by commas. 0: when it is filled
    #[arg(long, default_value = "0,1,2,5", value_name = "TIMES", value_delimiter = ',',
        value_parser = clap::value_parser!(u32).range(0..=1000))]
    churn: Vec<u32>,
    /// Writers at once, each of one file after the other
    #[arg(long, default_value_t = 8, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=64))]
    writers: u32,
    /// Sizes of files: those of this profile of Geriatrix, up to a 64th of the device
    #[arg(long, value_enum, default_value_t = Profile::Pramod, value_name = "PROFILE")]
    sizes: Profile,
    /// Lifetimes of files: those that lead to the ages of this profile
    #[arg(long, value_enum, default_value_t = Profile::WangLanl, value_name = "PROFILE")]
    ages: Profile,
    /// Leave files of classes below this size out, in KiB
    #[arg(long, default_value_t = 0, value_name = "KIB", value_parser = clap::value_parser!(u64).range(0..=1 << 20))]
    smallest: u64,
    /// Seed from which files, writers' turns and lifetimes are derived
    #[arg(long, default_value_t = 1)]
    seed: u64,
    #[command(flatten)]
    output: AgeingOutput,
}

/// One point as a JSON line. Pairs are the aged device and the copy.
#[derive(Serialize)]
struct Line<'a> {
    study: &'static str,
    windows: &'a str,
    fill_percent: u32,
    churn: u32,
    scale: u32,
    writers: u32,
    sizes: &'a str,
    ages: &'a str,
    smallest_bytes: u64,
    seed: u64,
    /// MiB/s; of small objects: objects a second.
    write: (f64, f64),
    read_new: (f64, f64),
    read_large: (f64, f64),
    read_small: (f64, f64),
    objects: u64,
    large_objects: u64,
    extents: (u64, u64),
    large_extents: (u64, u64),
    extents_max: (u64, u64),
    layout_score: (f64, f64),
    free_score: f64,
    /// Class, runs and bytes in it.
    free: Vec<(String, u64, u64)>,
    /// Tasks, MiB/s of the aged device and of the copy.
    by_writers: Vec<(u32, f64, f64)>,
    /// Threads, and blocks a second on this host: real time.
    allocated: &'a [(u32, f64)],
}

impl<'a> Line<'a> {
    fn new(cell: &'a Cell, point: &'a Point) -> Self {
        let pair = |rate: Against| (rate.aged, rate.copy);
        let (aged, copy) = (&point.layout, &point.copy_layout);
        Self {
            study: "e4-mixed",
            windows: cell.windows.name(),
            fill_percent: cell.fill_percent,
            churn: point.churn,
            scale: cell.scale,
            writers: cell.writers,
            sizes: cell.sizes.name(),
            ages: cell.ages.name(),
            smallest_bytes: cell.smallest_bytes,
            seed: cell.seed,
            write: pair(point.write),
            read_new: pair(point.read_new),
            read_large: pair(point.read_large),
            read_small: pair(point.read_small),
            objects: aged.objects,
            large_objects: aged.large,
            extents: (aged.extents, copy.extents),
            large_extents: (aged.large_extents, copy.large_extents),
            extents_max: (aged.extents_max, copy.extents_max),
            layout_score: (aged.score, copy.score),
            free_score: point.histogram.score(),
            free: free_classes(&point.histogram),
            by_writers: point.by_writers.iter().map(|(tasks, rate)| (*tasks, rate.aged, rate.copy)).collect(),
            allocated: &point.allocated,
        }
    }
}

/// Runs the study.
pub fn mixed(arguments: &MixedArgs) -> anyhow::Result<()> {
    let MixedArgs { scale, writers, sizes, ages, seed, .. } = *arguments;
    let sorted = |values: &[u32]| {
        let mut values = values.to_vec();
        values.sort_unstable();
        values.dedup();
        values
    };
    let (fills, churns) = (sorted(&arguments.fill), sorted(&arguments.churn));
    ensure!(!fills.is_empty() && !churns.is_empty(), "name a fill and a churn at least");
    let cell = |windows, fill_percent| Cell {
        windows,
        fill_percent,
        churns: churns.clone(),
        scale,
        writers,
        sizes,
        ages,
        smallest_bytes: arguments.smallest << 10,
        seed,
    };
    figure::prepare(arguments.output.figures.as_deref())?;
    // The slowest ones first.
    let cells: Vec<Cell> =
        fills.iter().rev().flat_map(|fill| Windows::ALL.map(|windows| cell(windows, *fill))).collect();
    let (sizes, ages) = (sizes.name(), ages.name());
    println!("e4 mixed use: size 1/{scale}, {}, sizes of {sizes}, ages of {ages}", counted(writers, "writer"));
    let begun = Instant::now();
    let results = in_parallel(&cells, arguments.output.threads, |cell| {
        let (windows, fill) = (cell.windows.name(), cell.fill_percent);
        let note = |point: &Point| {
            let seconds = begun.elapsed().as_secs();
            let parts: Vec<String> =
                RATES.iter().map(|(name, _, rate)| format!("{name} {:.0}%", 100.0 * rate(point).part())).collect();
            let churn = point.churn;
            eprintln!("{seconds} s: windows {windows}, {fill}% full, churn {churn}: {} of a copy", parts.join(", "));
        };
        cell.run(note)
    });
    let (mut measured, mut lines) = (Measured::new(), String::new());
    for (cell, points) in cells.iter().zip(results) {
        let (windows, fill) = (cell.windows, cell.fill_percent);
        let points = points.map_err(|error| anyhow!("windows {}, {fill}% full: {error}", windows.name()))?;
        for point in &points {
            lines += &serde_json::to_string(&Line::new(cell, point))?;
            lines.push('\n');
        }
        measured.insert((windows, fill), points);
    }
    arguments.output.write_lines(&lines)?;
    for rate in RATES {
        println!("\n{}, {} on the aged device (percent of a fresh copy)", rate.0, rate.1);
        println!("{}", table(&measured, |point| shown(point, rate)));
    }
    println!("\nextents per object of 1 MiB or more (of the copy); dynamic layout score (of the copy)");
    let placed = |point: &Point| {
        let (aged, copy) = (&point.layout, &point.copy_layout);
        let (extents, of_copy) = (aged.extents_of_large(), copy.extents_of_large());
        format!("{extents:.1} ({of_copy:.1}); {:.4} ({:.4})", aged.score, copy.score)
    };
    println!("{}", table(&measured, placed));
    println!(
        "\nwrite by 1 to 16 tasks, percent of a fresh copy; allocation by 1 and 16 threads on this host, 1000 blocks/s"
    );
    let by_tasks = |point: &Point| {
        let parts: Vec<String> =
            point.by_writers.iter().map(|(_, rate)| format!("{:.0}", 100.0 * rate.part())).collect();
        let thousands = |ended: Option<&(u32, f64)>| ended.map_or(f64::NAN, |(_, rate)| rate / 1000.0);
        let (first, last) = (thousands(point.allocated.first()), thousands(point.allocated.last()));
        format!("{}; {first:.0}, {last:.0}", parts.join(" "))
    };
    println!("{}", table(&measured, by_tasks));
    show_free(&measured);
    show_findings(&findings(&measured));
    draw(arguments, &measured)
}

fn shown(point: &Point, (_, _, rate): Rate) -> String {
    format!("{:.0} ({:.1}%)", rate(point).aged, 100.0 * rate(point).part())
}

/// Fills and churns, in order, and the points of all windows there.
fn rows(measured: &Measured) -> BTreeMap<(u32, u32), BTreeMap<Windows, &Point>> {
    let mut rows: BTreeMap<(u32, u32), BTreeMap<Windows, &Point>> = BTreeMap::new();
    for ((windows, fill), points) in measured {
        for point in points {
            rows.entry((*fill, point.churn)).or_default().insert(*windows, point);
        }
    }
    rows
}

/// Something of every point, by fill, churn and windows.
fn table(measured: &Measured, of: impl Fn(&Point) -> String) -> Table {
    let mut table = Table::new();
    let header = ["full", "churn"].into_iter().chain(Windows::ALL.map(Windows::name));
    table.load_style(STYLE).set_header(header);
    for ((fill, churn), points) in rows(measured) {
        let cells = Windows::ALL.map(|windows| points.get(&windows).map_or_else(String::new, |point| of(point)));
        table.add_row([format!("{fill}%"), churn.to_string()].into_iter().chain(cells));
    }
    table
}

/// The free space at the end.
fn show_free(measured: &Measured) {
    for ((windows, fill), points) in measured {
        let Some(point) = points.last() else { continue };
        let classes: Vec<String> =
            free_classes(&point.histogram).iter().map(|(class, runs, _)| format!("{class} {runs}")).collect();
        let (windows, churn, score) = (windows.name(), point.churn, point.histogram.score());
        let classes = classes.join(", ");
        println!(
            "free runs, windows {windows}, {fill}% full, churn {churn}: {classes}; fragmentation {score:.0} of 100"
        );
    }
}

fn draw(arguments: &MixedArgs, measured: &Measured) -> anyhow::Result<()> {
    let Some(directory) = &arguments.output.figures else { return Ok(()) };
    let rows = rows(measured);
    let groups: Vec<String> = rows.keys().map(|(fill, churn)| format!("{fill}%, x{churn}")).collect();
    let bars = |of: &dyn Fn(&Point) -> f64| -> Vec<BarSeries> {
        let series = |windows: Windows| BarSeries {
            name: windows.name().to_owned(),
            values: rows.values().map(|points| points.get(&windows).map_or(f64::NAN, |point| of(point))).collect(),
        };
        Windows::ALL.map(series).into()
    };
    let names = ["write", "read-new", "read-large", "read-small"];
    for ((name, _, rate), file) in RATES.into_iter().zip(names) {
        let title = format!("E4, mixed use: {name}, percent of a fresh copy, by fill and churn, for windows of");
        let bars = bars(&|point| 100.0 * rate(point).part());
        write_bars(&directory.join(format!("e4-mixed-{file}.svg")), &title, "%", &groups, &bars)?;
    }
    let title = "E4, mixed use: extents of objects of 1 MiB or more, by fill and churn, for windows of";
    let path = directory.join("e4-mixed-extents.svg");
    write_bars(&path, title, "extents", &groups, &bars(&|point| point.layout.extents_of_large()))?;
    // The end of the fill in the middle.
    let fills: Vec<u32> =
        measured.keys().filter(|(windows, _)| *windows == Windows::Adaptive).map(|key| key.1).collect();
    let Some(fill) = fills.get(fills.len() / 2).copied() else { return Ok(()) };
    let ends: Vec<(Windows, &Point)> = Windows::ALL
        .into_iter()
        .filter_map(|windows| Some((windows, measured.get(&(windows, fill))?.last()?)))
        .collect();
    let Some((_, first)) = ends.first() else { return Ok(()) };
    let churn = first.churn;
    let groups: Vec<String> = first.histogram.classes().map(|(name, ..)| name).collect();
    let series = ends.iter().map(|(windows, point)| BarSeries {
        name: windows.name().to_owned(),
        values: point.histogram.classes().map(|(_, _, blocks)| (blocks * BLOCK_BYTES) as f64 / 1e9).collect(),
    });
    let title =
        format!("E4, mixed use: free space by the length of its runs, {fill}% full, churn {churn}, for windows of");
    write_bars(&directory.join("e4-mixed-free.svg"), &title, "GB", &groups, &series.collect::<Vec<_>>())?;
    let groups: Vec<String> = WRITERS.iter().map(|tasks| counted(*tasks, "task")).collect();
    let series = ends.iter().map(|(windows, point)| BarSeries {
        name: windows.name().to_owned(),
        values: point.by_writers.iter().map(|(_, rate)| rate.aged).collect(),
    });
    let title = format!("E4, mixed use: writes of an aged device, {fill}% full, churn {churn}, for windows of");
    write_bars(&directory.join("e4-mixed-writers.svg"), &title, "MiB/s", &groups, &series.collect::<Vec<_>>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_leaves_lines_and_figures() {
        let place = tempfile::tempdir().unwrap();
        let arguments = MixedArgs {
            scale: 2000,
            fill: vec![80, 50],
            churn: vec![1, 0, 1],
            writers: 4,
            sizes: Profile::Pramod,
            ages: Profile::Agrawal,
            smallest: 0,
            seed: 5,
            output: AgeingOutput::of_test(place.path(), "lines.json"),
        };
        mixed(&arguments).unwrap();
        let text = std::fs::read_to_string(place.path().join("lines.json")).unwrap();
        let lines: Vec<serde_json::Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!(lines.len(), 2 * 2 * Windows::ALL.len());
        assert_eq!((&lines[0]["windows"], &lines[0]["churn"]), (&"1 MiB".into(), &0.into()));
        assert_eq!((&lines[0]["fill_percent"], &lines[0]["ages"]), (&80.into(), &"agrawal".into()));
        assert!(lines[0]["write"][1].as_f64().is_some_and(|rate| rate > 100.0), "{}", lines[0]);
        for name in ["write", "read-new", "read-large", "read-small", "extents", "free", "writers"] {
            let figure = std::fs::read_to_string(place.path().join(format!("e4-mixed-{name}.svg"))).unwrap();
            assert!(Windows::ALL.iter().all(|windows| figure.contains(windows.name())), "{name}");
        }
        assert!(mixed(&MixedArgs { output: AgeingOutput::of_test(place.path(), "no/where"), ..arguments }).is_err());
    }
}
