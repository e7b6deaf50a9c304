//! What both runs of the study of ageing (E4) show, in virtual time and live: rates, free space,
//! figures, JSON lines.

use std::{collections::BTreeMap, path::Path};

use blocks::Histogram;
use comfy_table::Table;
use serde::Serialize;
use types::limits::BLOCK_BYTES;

use crate::{
    bench::report::STYLE,
    figure::{BarSeries, Panel, write_bars, write_curves, write_maps},
    study::e4::{FILES, Step, Windows, findings::Measured},
};

/// One step of one OST in a JSON line.
#[derive(Serialize)]
pub struct StepLine {
    /// `None`: the device was never used.
    deleted: Option<u32>,
    used_percent: u32,
    write_mib_per_second: f64,
    read_mib_per_second: f64,
    runs_per_gib: f64,
    free_score: f64,
    /// Class, runs and bytes in it.
    free: Vec<(String, u64, u64)>,
}

impl StepLine {
    /// Of a step.
    pub fn new(step: &Step) -> Self {
        Self {
            deleted: step.deleted,
            used_percent: step.used_percent(),
            write_mib_per_second: step.write,
            read_mib_per_second: step.read,
            runs_per_gib: step.runs_per_gib,
            free_score: step.histogram.score(),
            free: free_classes(&step.histogram),
        }
    }
}

/// Classes of the free space that have runs: name, runs and bytes.
pub fn free_classes(histogram: &Histogram) -> Vec<(String, u64, u64)> {
    let classes = histogram.classes().filter(|(_, runs, _)| *runs > 0);
    classes.map(|(name, runs, blocks)| (name, runs, blocks * BLOCK_BYTES)).collect()
}

/// What a step is called.
fn step_name(step: &Step) -> String {
    step.deleted.map_or_else(|| "clean".to_owned(), |_| format!("{}%", step.used_percent()))
}

/// Rates by step and windows.
pub fn rates(measured: &Measured) -> Table {
    let mut table = Table::new();
    let header = measured.keys().map(|windows| format!("{}: write, read, runs/GiB", windows.name()));
    table.load_style(STYLE).set_header(["used".to_owned()].into_iter().chain(header));
    let steps = measured.values().next().map_or(0, Vec::len);
    for number in 0..steps {
        let of = |steps: &Vec<Step>| {
            let step = &steps[number];
            format!("{:.0}, {:.0}, {:.0}", step.write, step.read, step.runs_per_gib)
        };
        let first = measured.values().next().map_or(String::new(), |steps| step_name(&steps[number]));
        table.add_row([first].into_iter().chain(measured.values().map(of)));
    }
    table
}

/// The free space after the first deletion.
pub fn show_free(measured: &Measured) {
    for (windows, steps) in measured {
        let Some(step) = steps.iter().find(|step| step.deleted == Some(1)) else { continue };
        let classes: Vec<String> =
            free_classes(&step.histogram).into_iter().map(|(class, runs, _)| format!("{class} {runs}")).collect();
        let (windows, used, score) = (windows.name(), step.used_percent(), step.histogram.score());
        println!("free runs, windows {windows}, {used}% used: {}; fragmentation {score:.0} of 100", classes.join(", "));
    }
}

/// Draws rates, free space and bitmaps into a directory. `name`: what the names of the figures
/// begin with; `bitmap`: the part of the OST that pictures show.
pub fn draw(directory: &Path, name: &str, bitmap: &str, measured: &Measured) -> anyhow::Result<()> {
    let steps: Vec<String> = measured.values().next().map_or(Vec::new(), |steps| steps.iter().map(step_name).collect());
    let series = |of: &dyn Fn(&Step) -> f64| -> Vec<BarSeries> {
        let one = |(windows, steps): (&Windows, &Vec<Step>)| BarSeries {
            name: windows.name().to_owned(),
            values: steps.iter().map(of).collect(),
        };
        measured.iter().map(one).collect()
    };
    let path = |figure: &str| directory.join(format!("{name}-{figure}.svg"));
    let title = |phase| format!("E4: best-case {phase} of an OST, by the used part of it, for windows of");
    write_curves(&path("write"), &title("write"), "MiB/s", &steps, &series(&|step| step.write))?;
    write_curves(&path("read"), &title("read"), "MiB/s", &steps, &series(&|step| step.read))?;
    let of_step = |steps: &'_ Vec<Step>, deleted| steps.iter().find(|step| step.deleted == Some(deleted)).cloned();
    let first: Vec<(Windows, Step)> =
        measured.iter().filter_map(|(windows, steps)| Some((*windows, of_step(steps, 1)?))).collect();
    let has_runs = |class: usize| {
        first.iter().any(|(_, step)| step.histogram.classes().nth(class).is_some_and(|(_, runs, _)| runs > 0))
    };
    let classes_of_first = first.iter().take(1).flat_map(|(_, step)| step.histogram.classes()).enumerate();
    let groups: Vec<String> =
        classes_of_first.filter(|(class, _)| has_runs(*class)).map(|(_, (name, ..))| name).collect();
    let bars: Vec<BarSeries> = first
        .iter()
        .map(|(windows, step)| {
            let bytes: BTreeMap<String, u64> =
                free_classes(&step.histogram).into_iter().map(|(name, _, bytes)| (name, bytes)).collect();
            let gib = |group| bytes.get(group).map_or(f64::NAN, |bytes| *bytes as f64 / f64::from(1 << 30));
            BarSeries { name: windows.name().to_owned(), values: groups.iter().map(gib).collect() }
        })
        .collect();
    let title = "E4: free space by the length of its runs, one of 20 files deleted, for windows of";
    write_bars(&path("free"), title, "GiB", &groups, &bars)?;
    let panel = |(windows, steps): (&Windows, &Vec<Step>)| {
        let step = of_step(steps, 2)?;
        Some(Panel { name: format!("windows: {}", windows.name()), used: step.picture.used().collect() })
    };
    let panels: Vec<Panel> = measured.iter().filter_map(panel).collect();
    let cell = first.first().map_or(0, |(_, step)| step.picture.cell_bytes());
    let title = format!(
        "E4: {bitmap}, 2 of {FILES} files deleted; a cell is {} MiB, light cells are free",
        cell as f64 / f64::from(1 << 20)
    );
    write_maps(&path("bitmap"), &title, 64, &panels)
}
