//! `stria study service-threads lab --tuner`: whether tuners find the best of the numbers of the
//! sweep, as a table, figures, JSON lines and what they must reach.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Mutex,
    time::Instant,
};

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
    /// Stripes of the file.
    stripes: u32,
    seed: u64,
    /// MiB of each client in each second.
    seconds: &'a [Vec<f64>],
    /// Service threads and requests in flight at the end of each second.
    numbers: &'a [(u16, u16)],
    decisions: &'a [String],
}

/// Runs what `--only` asks for, with files of each of these numbers of stripes.
pub(super) fn tuned(arguments: &ExperimentArgs, stripes: &[u32]) -> anyhow::Result<()> {
    ensure!(!arguments.resume, "runs with tuners cannot be resumed");
    let (cells, changes) = wanted(arguments, stripes);
    let mut runs = runs(&cells, &changes);
    if runs.is_empty() {
        runs = single(arguments, stripes);
    }
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
    if !found.is_empty() {
        println!("{table}");
        show_findings(&found);
    }
    draw(arguments, &courses)
}

/// The loads, and those that change, that `--only` asks for, with each of these numbers of stripes.
fn wanted(arguments: &ExperimentArgs, stripes: &[u32]) -> (Vec<Cell>, Vec<Run>) {
    let cells = cells(stripes).into_iter().filter(|cell| arguments.wants(&cell.name())).collect();
    // A load that begins as another one is not meant by the name of that one.
    let wants_changes = arguments.only.is_empty() || arguments.only.iter().any(|text| text.contains("then"));
    let changes = distinct(stripes).flat_map(|count| CHANGES.map(|cells| cells.map(|cell| cell.with_stripes(count))));
    let changes = changes.flat_map(|cells| Run::of_change(&cells));
    (cells, changes.filter(|run| wants_changes && arguments.wants(&run.name())).collect())
}

/// Runs with these names, which are compared with no others: `8x1 write k1, s=1.. c=64`.
fn single(arguments: &ExperimentArgs, stripes: &[u32]) -> Vec<Run> {
    runs(&cells(stripes), &[]).into_iter().filter(|run| arguments.wants(&run.name())).collect()
}

/// All loads on files of each of these numbers of stripes.
fn cells(stripes: &[u32]) -> Vec<Cell> {
    distinct(stripes).flat_map(|count| CELLS.map(|cell| cell.with_stripes(count))).collect()
}

fn distinct(stripes: &[u32]) -> impl Iterator<Item = u32> {
    stripes.iter().copied().collect::<BTreeSet<u32>>().into_iter()
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
        let plan = run.plan().ok_or("no load")?;
        let stripes = plan.stripes;
        let course = plan.run(Testbed::e2(Some(APART), MISALIGNED_BYTES), arguments.seed)?;
        let mut done = done.lock().expect("no panic while locked");
        *done += 1;
        let rate = course.seconds.iter().flatten().sum::<f64>() / course.seconds.len().max(1) as f64;
        let elapsed = begun.elapsed().as_secs();
        eprintln!("{done} of {} ({elapsed} s): {}: {rate:.0} MiB/s", runs.len(), run.name());
        let Course { seconds, numbers, decisions } = &course;
        let line =
            Line { study: "e2 tuned", run: run.name(), stripes, seed: arguments.seed, seconds, numbers, decisions };
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
    use clap::Parser;

    use super::*;
    use crate::experiment::ServiceThreadsArgs;

    fn of(only: &[&str]) -> ExperimentArgs {
        ExperimentArgs {
            scale: 1,
            seed: 1,
            figures: None,
            json: None,
            only: only.iter().map(|text| (*text).to_owned()).collect(),
            resume: false,
            threads: None,
        }
    }

    /// The runs themselves take minutes; those of some loads are tests of `study::tuned`.
    #[test]
    fn a_load_that_does_not_exist_and_an_interrupted_run_are_refused() {
        let arguments = of(&["9x9 write", "9x8 read", "8x1 write k2"]);
        let refused = |arguments: &ExperimentArgs| tuned(arguments, &[1]).unwrap_err().to_string();
        assert_eq!(refused(&arguments), "no configuration matches --only");
        assert_eq!(refused(&ExperimentArgs { resume: true, ..arguments }), "runs with tuners cannot be resumed");
    }

    #[test]
    fn a_run_can_be_named() {
        let names = |only: &str, stripes: &[u32]| -> Vec<String> {
            single(&of(&[only]), stripes).iter().map(Run::name).collect()
        };
        assert_eq!(names("8x1 write k1, s=1 c=64", &[1]), ["8x1 write k1, s=1 c=64"]);
        assert_eq!(names("8x1 write k4, s=1.. c=1", &[1, 4]), ["8x1 write k4, s=1.. c=1.."]);
        assert!(names("8x1 write k1, s=3 c=3", &[1]).is_empty());
    }

    #[test]
    fn each_load_is_run_with_each_number_of_stripes_and_the_names_of_all_runs_tell_it() {
        let all = of(&[]);
        let (cells, changes) = wanted(&all, &[4, 1, 4]);
        assert_eq!((cells.len(), changes.len()), (2 * CELLS.len(), 4 * CHANGES.len()));
        assert_eq!(wanted(&all, &[1]).0, CELLS);

        let (cells, changes) = wanted(&of(&["8x1 write k4"]), &[1, 4]);
        assert_eq!((cells.as_slice(), changes.len()), ([CELLS[2].with_stripes(4)].as_slice(), 0));
        let of_cell = runs(&cells, &[]);
        assert!(
            of_cell.iter().all(|run| run.plan().unwrap().stripes == 4 && run.name().starts_with("8x1 write k4, s="))
        );
        assert_eq!(of_cell.iter().filter(|run| run.setting.is_tuned()).count(), 10);

        let (cells, changes) = wanted(&of(&["k3 then"]), &[1, 3]);
        assert_eq!((cells.len(), changes.len()), (0, 2 * CHANGES.len()));
        assert!(changes.iter().all(|run| run.plan().unwrap().stripes == 3));
    }

    #[derive(clap::Parser)]
    struct Command {
        #[command(flatten)]
        arguments: ServiceThreadsArgs,
    }

    #[test]
    fn one_to_four_stripes_are_taken_with_tuners_only() {
        let parse = |text: &str| {
            let command = Command::try_parse_from(["lab"].into_iter().chain(text.split_whitespace()));
            command.map(|command| command.arguments.stripes).map_err(|error| error.to_string())
        };
        assert_eq!(parse("--tuner"), Ok(vec![1]));
        assert_eq!(parse(""), Ok(vec![1]));
        assert_eq!(parse("--tuner --stripes 2,4"), Ok(vec![2, 4]));
        for number in ["0", "5", "-1"] {
            let refused = parse(&format!("--tuner --stripes=1,{number}")).unwrap_err();
            assert!(refused.contains(&format!("{number} is not in 1..=4")), "{refused}");
        }
        assert!(parse("--tuner --stripes=all").unwrap_err().contains("invalid value 'all'"));
        assert!(parse("--stripes 2").unwrap_err().contains("--tuner"));
    }
}
