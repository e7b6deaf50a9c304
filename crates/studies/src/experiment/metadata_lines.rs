//! The file of `stria study metadata-scaling lab --json`: a line for every result, those of a cell
//! in one piece, so that an ended run loses only the cells in progress; and what an earlier run has
//! left there.

use std::{fs::File, io::Write, path::Path};

use anyhow::Context;
use serde::Serialize;
use serde_json::Value;

use crate::study::e5::{Cell, Outcome, PHASES};

/// What results depend on; the same gives the same results.
#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct Conditions {
    pub(super) study: &'static str,
    pub(super) scale: u64,
    pub(super) striped_scale: u64,
    pub(super) task_files: u64,
    pub(super) mounts: u16,
    pub(super) namespace_lock: bool,
    pub(super) seed: u64,
}

/// One result.
#[derive(Serialize)]
struct Line<'a> {
    #[serde(flatten)]
    conditions: Conditions,
    #[serde(flatten)]
    outcome: &'a Outcome,
}

/// See the module documentation.
#[derive(Default)]
pub(super) struct Lines {
    conditions: Option<Conditions>,
    file: Option<File>,
    earlier: Vec<Outcome>,
}

impl Lines {
    /// A file; it is emptied unless a run is resumed. `None`: nothing is kept.
    pub(super) fn open(path: Option<&Path>, conditions: Conditions, resume: bool) -> anyhow::Result<Self> {
        let Some(path) = path else { return Ok(Self::default()) };
        let earlier = if resume && path.exists() { read(path, conditions)? } else { Vec::new() };
        let opened = File::options().create(true).write(true).append(resume).truncate(!resume).open(path);
        let mut file = opened.with_context(|| format!("cannot create {}", path.display()))?;
        if resume {
            // Whatever the earlier run left of its last line ends here.
            file.write_all(b"\n")?;
        }
        Ok(Self { conditions: Some(conditions), file: Some(file), earlier })
    }

    /// What a cell came to in the earlier run; `None` if it was not run to its end.
    pub(super) fn earlier(&self, cell: Cell) -> Option<Vec<Outcome>> {
        let name = cell.name();
        let of_phase = |phase| self.earlier.iter().find(|one| one.cell == name && one.phase == phase).cloned();
        PHASES.into_iter().map(of_phase).collect()
    }

    /// All results of a cell.
    pub(super) fn keep(&mut self, outcomes: &[Outcome]) -> anyhow::Result<()> {
        let (Some(conditions), Some(file)) = (self.conditions, &mut self.file) else { return Ok(()) };
        let mut text = String::new();
        for outcome in outcomes {
            text += &serde_json::to_string(&Line { conditions, outcome })?;
            text.push('\n');
        }
        Ok(file.write_all(text.as_bytes())?)
    }
}

/// Results under these conditions. The last line may be half of one.
fn read(path: &Path, conditions: Conditions) -> anyhow::Result<Vec<Outcome>> {
    let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    let Value::Object(conditions) = serde_json::to_value(conditions)? else { return Ok(Vec::new()) };
    let is_same = |line: &Value| conditions.iter().all(|(name, value)| line[name] == *value);
    let lines = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok()).filter(is_same);
    Ok(lines.filter_map(|line| outcome_of(&line)).collect())
}

fn outcome_of(line: &Value) -> Option<Outcome> {
    let number = |name: &str| line[name].as_f64();
    Some(Outcome {
        cell: line["cell"].as_str()?.to_owned(),
        phase: PHASES.into_iter().find(|phase| line["phase"] == *phase)?,
        operations: line["operations"].as_u64()?,
        seconds: number("seconds")?,
        requests: number("requests")?,
        server_use: number("server_use")?,
        server_use_min: number("server_use_min")?,
        node_use: number("node_use")?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONDITIONS: Conditions =
        Conditions { study: "e5", scale: 1, striped_scale: 1, task_files: 1, mounts: 1, namespace_lock: true, seed: 1 };

    #[test]
    fn a_resumed_run_knows_whole_cells_of_the_same_conditions_and_no_others() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("lines.json");
        let (whole, half) = (Cell::separate(2, 1, 16), Cell::separate(4, 1, 16));
        let outcome = |cell: Cell, phase| Outcome {
            cell: cell.name(),
            phase,
            operations: 10,
            seconds: 0.5,
            requests: 1.25,
            server_use: 0.5,
            server_use_min: 0.25,
            node_use: 0.125,
        };
        let open = |conditions, resume| Lines::open(Some(&path), conditions, resume).unwrap();
        let all = PHASES.map(|phase| outcome(whole, phase));
        let mut lines = open(CONDITIONS, false);
        lines.keep(&all).unwrap();
        lines.keep(&[outcome(half, "mknod")]).unwrap();
        drop(lines);
        // Ended within a line.
        let text = std::fs::read_to_string(&path).unwrap();
        std::fs::write(&path, format!("{text}{{\"study\":\"e5\",\"sc")).unwrap();
        let mut lines = open(CONDITIONS, true);
        assert_eq!((lines.earlier(whole), lines.earlier(half)), (Some(all.to_vec()), None));
        lines.keep(&PHASES.map(|phase| outcome(half, phase))).unwrap();
        drop(lines);
        assert!(open(CONDITIONS, true).earlier(half).is_some());
        assert_eq!(open(Conditions { seed: 2, ..CONDITIONS }, true).earlier(whole), None);
        assert_eq!(open(CONDITIONS, false).earlier(whole), None);
        assert_eq!(open(CONDITIONS, true).earlier(whole), None, "a run that is not resumed begins anew");
    }
}
