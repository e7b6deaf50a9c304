//! `stria study service-threads lab --tuner`: whether tuners find the best of the numbers of the
//! sweep, as a table, figures, JSON lines and what they must reach.

use std::{collections::BTreeMap, sync::Mutex, time::Instant};

use anyhow::{anyhow, ensure};
use comfy_table::Table;
use serde::Serialize;

use super::{ExperimentArgs, MISALIGNED_BYTES, parallel::in_parallel};
use crate::{
    bench::{report::STYLE, study::show_findings},
    figure::{self, BarSeries, write_curves},
    json_lines::JsonLines,
    model::costs::APART,
    study::{
        run::Testbed,
        tuned::{
            CELLS, CHANGES, Cell, Run, Subject,
            contract::{Courses, MEAN_SECONDS, Row, changing_rows, default_is_kept, findings, rows},
            course::Course,
            runs,
        },
    },
};

/// A run as a JSON line.
#[derive(Serialize)]
struct Line<'a> {
    study: &'static str,
    run: String,
    seed: u64,
    /// MiB of each client in each second.
    seconds: &'a [Vec<f64>],
    /// Service threads and requests in flight at the end of each second.
    numbers: &'a [(u16, u16)],
    decisions: &'a [String],
}

/// Runs what `--only` asks for.
pub(super) fn tuned(arguments: &ExperimentArgs) -> anyhow::Result<()> {
    ensure!(!arguments.resume, "runs with tuners cannot be resumed");
    let cells: Vec<Cell> = CELLS.into_iter().filter(|cell| arguments.wants(&cell.name())).collect();
    // A load that begins as another one is not meant by the name of that one.
    let wants_changes = arguments.only.is_empty() || arguments.only.iter().any(|text| text.contains("then"));
    let changes = CHANGES.iter().flat_map(Run::of_change).filter(|run| wants_changes && arguments.wants(&run.name()));
    let changes: Vec<Run> = changes.collect();
    let runs = runs(&cells, &changes);
    ensure!(!runs.is_empty(), "no configuration matches --only");
    figure::prepare(arguments.figures.as_deref())?;
    println!("e2 with tuners in virtual time: {} runs", runs.len());
    let courses = run_all(&runs, arguments)?;
    let mut table = Table::new();
    table.load_style(STYLE).set_header(Row::COLUMNS);
    let mut found = Vec::new();
    for (cell, subject) in cells.iter().flat_map(|cell| Subject::ALL.map(|subject| (*cell, subject))) {
        let rows = rows(&courses, cell, subject).ok_or_else(|| anyhow!("a run of {} is missing", cell.name()))?;
        show(&mut table, &rows);
        let what = format!("{}, {} tuned", cell.name(), subject.name());
        found.extend(findings(&what, &rows));
        found.push(default_is_kept(&what, &rows));
    }
    for run in &changes {
        let rows = changing_rows(&courses, run).ok_or_else(|| anyhow!("a run of {} is missing", run.name()))?;
        show(&mut table, &rows);
        found.extend(findings(&run.name(), &rows));
    }
    println!("{table}");
    show_findings(&found);
    draw(arguments, &courses)
}

fn show(table: &mut Table, rows: &[Row]) {
    for row in rows {
        table.add_row(row.columns());
    }
}

/// Runs all of them, and reports each when it is finished.
fn run_all(runs: &[Run], arguments: &ExperimentArgs) -> anyhow::Result<Courses> {
    let json = Mutex::new(JsonLines::new(arguments.json.as_deref())?);
    let (begun, done) = (Instant::now(), Mutex::new(0));
    let results = in_parallel(runs, arguments.threads, |run| {
        let course = run.plan().ok_or("no load")?.run(Testbed::e2(Some(APART), MISALIGNED_BYTES), arguments.seed)?;
        let mut done = done.lock().expect("no panic while locked");
        *done += 1;
        let rate = course.seconds.iter().flatten().sum::<f64>() / course.seconds.len().max(1) as f64;
        let elapsed = begun.elapsed().as_secs();
        eprintln!("{done} of {} ({elapsed} s): {}: {rate:.0} MiB/s", runs.len(), run.name());
        let Course { seconds, numbers, decisions } = &course;
        let line = Line { study: "e2 tuned", run: run.name(), seed: arguments.seed, seconds, numbers, decisions };
        json.lock().expect("no panic while locked").add(&line).map_err(|error| format!("{error:#}"))?;
        Ok::<Course, String>(course)
    });
    let named = |(run, result): (&Run, Result<Course, String>)| {
        result.map(|course| (run.clone(), course)).map_err(|error| anyhow!("{}: {error}", run.name()))
    };
    runs.iter().zip(results).map(named).collect()
}

/// A figure of each load: the runs with tuners, by means over 5 s.
fn draw(arguments: &ExperimentArgs, courses: &Courses) -> anyhow::Result<()> {
    let Some(directory) = &arguments.figures else { return Ok(()) };
    let mut figures: BTreeMap<Vec<Cell>, Vec<BarSeries>> = BTreeMap::new();
    for (run, course) in courses.iter().filter(|(run, _)| run.setting.is_tuned()) {
        let mean = |seconds: &[Vec<f64>]| seconds.iter().flatten().sum::<f64>() / seconds.len() as f64;
        let values = course.seconds.chunks(MEAN_SECONDS).map(mean).collect();
        figures.entry(run.cells.clone()).or_default().push(BarSeries { name: run.setting.name(), values });
    }
    for (cells, series) in figures {
        let steps = series.iter().map(|one| one.values.len()).max().unwrap_or(0);
        let groups: Vec<String> = (1..=steps).map(|step| format!("{} s", step * MEAN_SECONDS)).collect();
        let names: Vec<String> = cells.iter().map(|cell| cell.name()).collect();
        let path = directory.join(format!("e2-tuned-{}.svg", names.join("-").replace(' ', "-")));
        let title = format!("E2: {} with tuners, by where they began", names.join(", then "));
        write_curves(&path, &title, "MiB/s", &groups, &series)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The runs themselves take minutes; those of some loads are tests of `study::tuned`.
    #[test]
    fn a_load_that_does_not_exist_and_an_interrupted_run_are_refused() {
        let arguments = ExperimentArgs {
            scale: 1,
            seed: 1,
            figures: None,
            json: None,
            only: vec!["9x9 write".to_owned(), "9x8 read".to_owned()],
            resume: false,
            threads: None,
        };
        let refused = |arguments: &ExperimentArgs| tuned(arguments).unwrap_err().to_string();
        assert_eq!(refused(&arguments), "no configuration matches --only");
        assert_eq!(refused(&ExperimentArgs { resume: true, ..arguments }), "runs with tuners cannot be resumed");
    }
}
