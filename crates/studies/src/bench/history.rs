//! The history of benchmarks, so that a change can be compared with what was before it: a file of
//! JSON lines, one for each run, appended and never rewritten.
//!
//! Downside: rates of different hours are not comparable on shared machines. So the comparison is
//! of ratios to the local file system of the same run, and shows the disk's fdatasync rates beside
//! them.

use std::{
    fs::File,
    io::{self, Write},
    path::{Path, PathBuf},
};

use anyhow::{Context, bail, ensure};
use comfy_table::Table;
use serde::{Deserialize, Serialize};

use super::report::{Line, empty_table, shown_ratio};

/// One run of `stria bench`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Record {
    /// When it ended, UTC.
    pub time: String,
    /// Version of the program.
    pub version: String,
    /// Its command line.
    pub command: String,
    /// What it measured.
    pub lines: Vec<Line>,
}

/// A history file.
pub struct History {
    path: PathBuf,
}

impl History {
    /// The file that the user names, or `stria/bench.jsonl` in the user's directory for state.
    pub fn at(path: Option<PathBuf>) -> anyhow::Result<History> {
        let of_user = || {
            let state = std::env::var_os("XDG_STATE_HOME").filter(|state| Path::new(state).is_absolute());
            let home = || Some(Path::new(&std::env::var_os("HOME")?).join(".local/state"));
            state.map(PathBuf::from).or_else(home).map(|state| state.join("stria/bench.jsonl"))
        };
        let path =
            path.or_else(of_user).context("neither HOME nor XDG_STATE_HOME is set: name a file with --history")?;
        Ok(History { path })
    }

    /// Appends a run; its number.
    pub fn append(&self, lines: Vec<Line>) -> anyhow::Result<usize> {
        let record = Record {
            time: jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            command: std::env::args().skip(1).collect::<Vec<_>>().join(" "),
            lines,
        };
        let add = || -> io::Result<()> {
            if let Some(directory) = self.path.parent() {
                std::fs::create_dir_all(directory)?;
            }
            let mut file = File::options().create(true).append(true).open(&self.path)?;
            file.write_all(format!("{}\n", serde_json::to_string(&record)?).as_bytes())
        };
        add().with_context(|| format!("cannot append to {}", self.path.display()))?;
        // Only counted: the run is in the history, whatever the lines before it are.
        Ok(self.text()?.lines().count())
    }

    fn text(&self) -> anyhow::Result<String> {
        std::fs::read_to_string(&self.path).with_context(|| format!("cannot read {}", self.path.display()))
    }

    /// All runs, the oldest first.
    fn read(&self) -> anyhow::Result<Vec<Record>> {
        let (path, text) = (self.path.display(), self.text()?);
        let parse = |(number, line): (usize, &str)| {
            let number = number + 1;
            serde_json::from_str(line).with_context(|| format!("{path}: line {number} is not a run; remove it"))
        };
        text.lines().enumerate().map(parse).collect()
    }

    /// All runs, a line each.
    pub fn list(&self) -> anyhow::Result<Table> {
        let mut table = empty_table(&["run", "time", "version", "command"], &[0]);
        for (index, record) in self.read()?.into_iter().enumerate() {
            table.add_row([(index + 1).to_string(), record.time, record.version, record.command]);
        }
        Ok(table)
    }

    /// Two runs side by side, by their numbers; the last two if none are given.
    pub fn compare(&self, runs: &[usize]) -> anyhow::Result<String> {
        let records = self.read()?;
        let (one, other) = match *runs {
            [] if records.len() < 2 => bail!("{} has fewer than two runs", self.path.display()),
            [] => (records.len() - 1, records.len()),
            [one, other] => (one, other),
            _ => bail!("a comparison needs two runs: name two numbers, or none for the last two"),
        };
        let record = |number: usize| {
            let record = number.checked_sub(1).and_then(|index| records.get(index));
            record.with_context(|| format!("there is no run {number}; the last one is {}", records.len()))
        };
        let (old, new) = (record(one)?, record(other)?);
        let table = differences(old, new);
        ensure!(table.row_iter().next().is_some(), "runs {one} and {other} have no measurement in common");
        let about =
            |number, record: &Record| format!("{number}: {} {} {}", record.time, record.version, record.command);
        Ok(format!("{}\n{}\n\n{table}", about(one, old), about(other, new)))
    }
}

/// What both runs measured.
fn differences(old: &Record, new: &Record) -> Table {
    let header = [
        "benchmark",
        "phase",
        "workers",
        "system",
        "old ratio",
        "new",
        "change",
        "old CPU",
        "new",
        "change",
        "old fdatasync/s",
        "new",
    ];
    let mut table = empty_table(&header, &[2, 4, 5, 6, 7, 8, 9, 10, 11]);
    for after in &new.lines {
        let same = |before: &&Line| {
            (&before.bench, &before.phase, before.workers, &before.system)
                == (&after.bench, &after.phase, after.workers, &after.system)
        };
        let Some(before) = old.lines.iter().find(same) else { continue };
        table.add_row([
            after.bench.clone(),
            after.phase.clone(),
            after.workers.to_string(),
            after.system.clone(),
            shown_ratio(before.ratio),
            shown_ratio(after.ratio),
            change(before.ratio, after.ratio),
            before.cpu(),
            after.cpu(),
            change(Some(before.cpu_cost), Some(after.cpu_cost)),
            format!("{:.0}", before.fdatasync_per_second),
            format!("{:.0}", after.fdatasync_per_second),
        ]);
    }
    table
}

/// By how much, in percent.
fn change(before: Option<f64>, after: Option<f64>) -> String {
    match (before, after) {
        (Some(before), Some(after)) if before > 0.0 => format!("{:+.0}%", (after / before - 1.0) * 100.0),
        _ => "-".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(system: &str, ratio: Option<f64>) -> Line {
        Line {
            bench: "mdtest-easy".to_owned(),
            phase: "create".to_owned(),
            workers: 1,
            system: system.to_owned(),
            rate: 1000.0,
            is_transfer: false,
            ratio,
            cpu_cost: 100.0,
            amplification: None,
            fdatasync_per_second: 5000.0,
        }
    }

    #[test]
    fn runs_are_appended_and_two_of_them_compared() {
        let directory = tempfile::tempdir().unwrap();
        let history = History::at(Some(directory.path().join("state/bench.jsonl"))).unwrap();
        assert!(history.compare(&[]).unwrap_err().to_string().contains("cannot read"));
        assert_eq!(history.append(vec![line("mount", Some(0.5))]).unwrap(), 1);
        assert!(history.compare(&[]).unwrap_err().to_string().contains("fewer than two runs"));
        assert_eq!(history.append(vec![line("mount", Some(0.75)), line("native", None)]).unwrap(), 2);
        for runs in [&[][..], &[1, 2]] {
            let text = history.compare(runs).unwrap();
            assert!(text.contains("0.50") && text.contains("0.75") && text.contains("+50%"), "{text}");
            assert!(!text.contains("native"), "only what both have: {text}");
        }
        assert!(history.compare(&[1, 3]).unwrap_err().to_string().contains("there is no run 3; the last one is 2"));
        assert!(history.compare(&[1]).is_err());
        assert!(history.list().unwrap().to_string().contains("2"));
    }

    #[test]
    fn a_line_that_is_no_run_is_named() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("bench.jsonl");
        std::fs::write(&path, "torn\n").unwrap();
        let history = History::at(Some(path)).unwrap();
        assert_eq!(history.append(vec![line("mount", None)]).unwrap(), 2, "a run is kept nevertheless");
        let error = history.list().unwrap_err();
        assert!(error.to_string().contains("line 1 is not a run; remove it"), "{error}");
    }
}
