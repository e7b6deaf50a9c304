//! `stria study metadata-scaling lab`: study E5 as a table, figures, JSON lines and the study's
//! statements.

use std::{
    collections::BTreeMap,
    num::NonZero,
    path::{Path, PathBuf},
    sync::Mutex,
    time::Instant,
};

use anyhow::{Context, anyhow, ensure};
use clap::Args;

use super::{
    metadata_lines::{Conditions, Lines},
    parallel::in_parallel,
};
use crate::{
    bench::{
        scaling::{add_row, draw_linear, table},
        study::show_findings,
    },
    figure::{self, BarSeries, write_curves},
    model::costs::{MEASURED, NAMESPACE_LOCK},
    study::e5::{
        Amount, Cell, DIRECTORIES, FILES, MANY_SERVERS, MDT_DIRECTORIES, MDTS, MOUNTS, NODES, Outcome, PHASES, SERVERS,
        STRIPED_FILES, cells,
        findings::{Rates, findings},
        run::{Hardware, run},
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
    /// Let a metadata target execute changes on all cores of its server at once. As shipped, it
    /// executes reads beside each other and each change alone, since a lock guards its namespace
    #[arg(long)]
    without_lock: bool,
    /// Seed from which interleavings are derived
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Run only configurations whose name contains this, such as "4x1" or "striped"; given several
    /// times, those that contain one of these
    #[arg(long, value_name = "TEXT")]
    only: Vec<String>,
    /// Draw figures (SVG) into this directory, which is made if there is none
    #[arg(long, value_name = "DIR")]
    figures: Option<PathBuf>,
    /// Write every result to this file as a JSON line, as soon as it is known
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Continue a run with the same options that was ended: take the results that --json has, and
    /// run the rest
    #[arg(long, requires = "json")]
    resume: bool,
    /// Number of configurations to run in parallel; by default one per core. Results do not depend
    /// on it
    #[arg(long, value_name = "N")]
    threads: Option<NonZero<usize>>,
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
        Hardware { costs: MEASURED, namespace_lock: (!self.without_lock).then_some(NAMESPACE_LOCK) }
    }

    fn wants(&self, cell: Cell) -> bool {
        let name = cell.name();
        self.only.is_empty() || self.only.iter().any(|text| name.contains(text.as_str()))
    }

    fn conditions(&self) -> Conditions {
        let Self { scale, striped_scale, task_files, mounts, seed, without_lock, .. } = *self;
        Conditions { study: "e5", scale, striped_scale, task_files, mounts, namespace_lock: !without_lock, seed }
    }
}

/// Runs the study.
pub fn metadata(arguments: &MetadataArgs) -> anyhow::Result<()> {
    let cells: Vec<Cell> = cells(arguments.servers_max).into_iter().filter(|cell| arguments.wants(*cell)).collect();
    ensure!(!cells.is_empty(), "no configuration matches --only");
    figure::prepare(arguments.figures.as_deref())?;
    let (amount, published) = (arguments.amount(), u32::from(NODES) * u32::from(MOUNTS));
    println!(
        "e5 in virtual time: {NODES} client nodes with up to {} mounts each (published: {published} in all); {} files \
         (published: {FILES}), {} in the striped directory (published: {STRIPED_FILES}), {} for each task at least",
        amount.mounts, amount.files, amount.striped_files, amount.task_files_min
    );
    let lines = Lines::open(arguments.json.as_deref(), arguments.conditions(), arguments.resume)?;
    let earlier: BTreeMap<Cell, Vec<Outcome>> =
        cells.iter().filter_map(|cell| Some((*cell, lines.earlier(*cell)?))).collect();
    let missing: Vec<Cell> = cells.iter().copied().filter(|cell| !earlier.contains_key(cell)).collect();
    let progress = Mutex::new((0, lines));
    let begun = Instant::now();
    let results = in_parallel(&missing, arguments.threads, |cell| -> anyhow::Result<Vec<Outcome>> {
        let outcomes = run(*cell, amount, arguments.hardware(), arguments.seed).map_err(|error| anyhow!(error))?;
        let mut progress = progress.lock().expect("no panic while locked");
        progress.0 += 1;
        let rates: Vec<String> = outcomes.iter().map(|one| format!("{} {:.0}/s", one.phase, one.rate())).collect();
        let (done, all, elapsed) = (progress.0, missing.len(), begun.elapsed().as_secs());
        eprintln!("{done} of {all} ({elapsed} s): {}: {}", cell.name(), rates.join(", "));
        progress.1.keep(&outcomes)?;
        Ok(outcomes)
    });
    let mut known = earlier;
    for (cell, outcomes) in missing.into_iter().zip(results) {
        known.insert(cell, outcomes.with_context(|| cell.name())?);
    }
    let (mut rates, mut table) = (Rates::default(), table());
    for (cell, outcomes) in cells.iter().filter_map(|cell| Some((*cell, known.get(cell)?))) {
        add_row(&mut table, cell, outcomes);
        outcomes.iter().for_each(|outcome| rates.add(cell, outcome));
    }
    println!("{table}");
    show_findings(&findings(&rates));
    arguments.figures.as_deref().map_or(Ok(()), |directory| draw(directory, &rates))
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
    let curves = |name: &str, title: &str, groups: &[String], cells: &[Cell]| {
        let values = |phase| cells.iter().map(|cell| rates.get(*cell, phase)).collect();
        let series = PHASES.map(|phase| BarSeries { name: phase.to_owned(), values: values(phase) });
        write_curves(&directory.join(name), title, "operations/s", groups, &series)
    };
    let (groups, cells) =
        (MDTS.map(|mdts| format!("1x{mdts}")), MDTS.map(|mdts| Cell::separate(1, mdts, MDT_DIRECTORIES)));
    curves("e5-mdts.svg", "E5: MDTs of one MDS, 64 directories", &groups, &cells)?;
    let (groups, cells) =
        (SERVERS.map(|servers| format!("{servers}x6")), SERVERS.map(|servers| Cell::separate(servers, 6, 128)));
    curves("e5-six.svg", "E5: MDS with 6 MDTs each, 128 directories", &groups, &cells)?;
    let title = "E5: 64 tasks for each MDS, part of linear growth";
    draw_linear(&directory.join("e5-linear.svg"), title, rates, &MANY_SERVERS, 1)
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
        for name in ["linear", "mdts", "six", "mknod"] {
            assert!(place.path().join(format!("e5-{name}.svg")).exists(), "{name}");
        }
        // What is there is not run again.
        arguments.resume = true;
        std::fs::write(&json, text.replace("\"operations\":100", "\"operations\":100000")).unwrap();
        metadata(&arguments).unwrap();
        assert_eq!(std::fs::read_to_string(&json).unwrap().lines().filter(|line| !line.is_empty()).count(), 3);
        arguments.resume = false;
        arguments.only = vec!["9x9".to_owned()];
        assert_eq!(metadata(&arguments).unwrap_err().to_string(), "no configuration matches --only");
    }
}
