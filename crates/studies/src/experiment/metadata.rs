//! `stria study metadata-scaling lab`: study E5 as a table, figures, JSON lines and the study's
//! statements.

use std::{
    fs::File,
    io::Write,
    num::NonZero,
    path::{Path, PathBuf},
    sync::Mutex,
    time::Instant,
};

use anyhow::{Context, anyhow, ensure};
use clap::Args;
use comfy_table::Table;
use serde::Serialize;

use super::parallel::in_parallel;
use crate::{
    bench::{report::empty_table, study::describe},
    figure::{BarSeries, write_curves},
    model::costs::MEASURED,
    study::e5::{
        Amount, Cell, DIRECTORIES, FILES, MANY_SERVERS, MOUNTS, NODES, PHASES, SERVERS, STRIPED_FILES, cells,
        findings::{Rates, findings},
        growing_separate, growing_striped,
        run::{Hardware, Outcome, run},
    },
};

/// Arguments of the study.
#[derive(Clone, Debug, Args)]
pub struct MetadataArgs {
    /// Divide the number of files in separate directories by this; 1: 200,000
    #[arg(long, default_value_t = 50, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=200_000))]
    scale: u64,
    /// Divide the number of files in the striped directory by this; 1: 6.4 million, which takes
    /// hours
    #[arg(long, default_value_t = 1600, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=6_400_000))]
    striped_scale: u64,
    /// Least number of files of a task. With few, phases show how tasks begin and end; with as many
    /// for all tasks, numbers of metadata servers can be compared
    #[arg(long, default_value_t = 64, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    task_files: u64,
    /// Number of mounts on each of the 20 client nodes, at most; published are 32. Each takes
    /// memory for every metadata target
    #[arg(long, default_value_t = 8, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=128))]
    mounts: u16,
    /// Largest number of metadata servers
    #[arg(long, default_value_t = 64, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=64))]
    servers_max: u16,
    /// Let a metadata target use all cores of its server at once. As shipped, it executes one
    /// operation at a time, since one mutex guards its namespace
    #[arg(long)]
    without_mutex: bool,
    /// Seed from which interleavings are derived
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Run only configurations whose name contains this, such as "4x1" or "striped"; given several
    /// times, those that contain one of these
    #[arg(long, value_name = "TEXT")]
    only: Vec<String>,
    /// Draw figures (SVG) into this directory, which must exist
    #[arg(long, value_name = "DIR")]
    figures: Option<PathBuf>,
    /// Write every result to this file as a JSON line, as soon as it is known
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Number of configurations to run in parallel; by default one per core. Results do not depend
    /// on it
    #[arg(long, value_name = "N")]
    threads: Option<NonZero<usize>>,
}

/// One result as a JSON line.
#[derive(Serialize)]
struct Line<'a> {
    study: &'static str,
    scale: u64,
    striped_scale: u64,
    task_files: u64,
    mounts: u16,
    one_at_a_time: bool,
    seed: u64,
    #[serde(flatten)]
    outcome: &'a Outcome,
}

impl MetadataArgs {
    fn amount(&self) -> Amount {
        Amount {
            files: FILES / self.scale,
            striped_files: STRIPED_FILES / self.striped_scale,
            task_files_min: self.task_files,
            mounts: self.mounts,
        }
    }

    fn hardware(&self) -> Hardware {
        Hardware { costs: MEASURED, one_at_a_time: !self.without_mutex }
    }

    fn wants(&self, cell: Cell) -> bool {
        let name = cell.name();
        self.only.is_empty() || self.only.iter().any(|text| name.contains(text.as_str()))
    }

    fn keep(&self, file: &mut File, outcomes: &[Outcome]) -> anyhow::Result<()> {
        let mut text = String::new();
        for outcome in outcomes {
            let Self { scale, striped_scale, task_files, mounts, seed, without_mutex, .. } = *self;
            let line = Line {
                study: "e5",
                scale,
                striped_scale,
                task_files,
                mounts,
                one_at_a_time: !without_mutex,
                seed,
                outcome,
            };
            text += &serde_json::to_string(&line)?;
            text.push('\n');
        }
        Ok(file.write_all(text.as_bytes())?)
    }
}

/// Runs the study.
pub fn metadata(arguments: &MetadataArgs) -> anyhow::Result<()> {
    let cells: Vec<Cell> = cells(arguments.servers_max).into_iter().filter(|cell| arguments.wants(*cell)).collect();
    ensure!(!cells.is_empty(), "no configuration matches --only");
    let (amount, published) = (arguments.amount(), u32::from(NODES) * u32::from(MOUNTS));
    println!(
        "e5 in virtual time: {NODES} client nodes with up to {} mounts each (published: {published} in all); {} files \
         (published: {FILES}), {} in the striped directory (published: {STRIPED_FILES}), {} for each task at least",
        amount.mounts, amount.files, amount.striped_files, amount.task_files_min
    );
    let create = |path: &PathBuf| File::create(path).with_context(|| format!("cannot create {}", path.display()));
    let progress = Mutex::new((0, arguments.json.as_ref().map(create).transpose()?));
    let begun = Instant::now();
    let results = in_parallel(&cells, arguments.threads, |cell| -> anyhow::Result<Vec<Outcome>> {
        let outcomes = run(*cell, amount, arguments.hardware(), arguments.seed).map_err(|error| anyhow!(error))?;
        let mut progress = progress.lock().expect("no panic while locked");
        progress.0 += 1;
        let rates: Vec<String> = outcomes.iter().map(|one| format!("{} {:.0}/s", one.phase, one.rate())).collect();
        let (done, all, elapsed) = (progress.0, cells.len(), begun.elapsed().as_secs());
        eprintln!("{done} of {all} ({elapsed} s): {}: {}", cell.name(), rates.join(", "));
        if let Some(file) = &mut progress.1 {
            arguments.keep(file, &outcomes)?;
        }
        Ok(outcomes)
    });
    let (mut rates, mut table) = (Rates::default(), table());
    for (cell, outcomes) in cells.iter().zip(results) {
        let outcomes = outcomes.with_context(|| cell.name())?;
        add_row(&mut table, *cell, &outcomes);
        rates.0.extend(outcomes.iter().map(|outcome| ((*cell, outcome.phase), outcome.rate())));
    }
    println!("{table}");
    findings(&rates).iter().for_each(|finding| println!("{}", describe(finding)));
    arguments.figures.as_deref().map_or(Ok(()), |directory| draw(directory, &rates))
}

/// The first columns are about the load, the rest about each phase.
fn table() -> Table {
    let mut header = vec!["configuration".to_owned(), "tasks".to_owned(), "files".to_owned()];
    for phase in PHASES {
        header.extend(["/s", " requests", " MDS", " nodes"].map(|what| format!("{phase}{what}")));
    }
    let header: Vec<&str> = header.iter().map(String::as_str).collect();
    empty_table(&header, &(1..header.len()).collect::<Vec<_>>())
}

/// Rates, requests for each operation, and the use of the busiest machines in percent.
fn add_row(table: &mut Table, cell: Cell, outcomes: &[Outcome]) {
    let files = outcomes.first().map_or(0, |outcome| outcome.operations);
    let mut row = vec![cell.name(), cell.load.tasks().to_string(), files.to_string()];
    for outcome in outcomes {
        let percent = |part: f64| format!("{:.0}%", part * 100.0);
        row.extend([
            format!("{:.0}", outcome.rate()),
            format!("{:.2}", outcome.requests),
            percent(outcome.server_use),
            percent(outcome.node_use),
        ]);
    }
    table.add_row(row);
}

/// For each phase: the study's cells by the number of directories, and what comes beyond as a part
/// of linear growth.
fn draw(directory: &Path, rates: &Rates) -> anyhow::Result<()> {
    for phase in PHASES {
        let groups = DIRECTORIES.map(|directories| format!("{directories} dirs"));
        let series = SERVERS.map(|servers| BarSeries {
            name: format!("{servers}x1"),
            values: DIRECTORIES.map(|directories| rates.get(Cell::separate(servers, 1, directories), phase)).to_vec(),
        });
        let title = format!("E5: {phase}, by directories (4 tasks each) and MDS");
        write_curves(&directory.join(format!("e5-{phase}.svg")), &title, "operations/s", &groups, &series)?;
    }
    let groups = MANY_SERVERS.map(|servers| format!("{servers} MDS"));
    let curve = |name: &str, cell: fn(u16) -> Cell, phase: &'static str| BarSeries {
        name: format!("{phase}, {name}"),
        values: MANY_SERVERS.map(|servers| 100.0 * rates.of_linear((cell(1), cell(servers)), phase)).to_vec(),
    };
    let separate = PHASES.map(|phase| curve("separate", growing_separate, phase));
    let striped = PHASES.map(|phase| curve("striped", growing_striped, phase));
    let series: Vec<BarSeries> = separate.into_iter().chain(striped).collect();
    let title = "E5: 64 tasks for each MDS, part of linear growth";
    write_curves(&directory.join("e5-linear.svg"), title, "% of linear", &groups, &series)
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Command {
        #[command(flatten)]
        arguments: MetadataArgs,
    }

    #[test]
    fn a_part_of_the_study_runs_and_keeps_its_results_and_figures() {
        let place = tempfile::tempdir().unwrap();
        let json = place.path().join("lines.json");
        let words = [
            "study",
            "--task-files",
            "25",
            "--scale",
            "2000",
            "--mounts",
            "1",
            "--only",
            "2x1, 1 directory",
            "--only",
            "nothing",
        ];
        let mut arguments = Command::parse_from(words).arguments;
        arguments.json = Some(json.clone());
        arguments.figures = Some(place.path().to_owned());
        metadata(&arguments).unwrap();
        let text = std::fs::read_to_string(&json).unwrap();
        let lines: Vec<serde_json::Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!((lines.len(), &lines[1]["phase"], &lines[1]["operations"]), (3, &"stat".into(), &100.into()));
        assert!(lines.iter().all(|line| line["cell"] == "2x1, 1 directory" && line["seconds"].as_f64() > Some(0.0)));
        assert!(place.path().join("e5-linear.svg").exists());
        arguments.only = vec!["9x9".to_owned()];
        assert_eq!(metadata(&arguments).unwrap_err().to_string(), "no configuration matches --only");
    }
}
