//! Runs the cells of a study - every job on every testbed - and stores each result as soon as it is
//! known.
//!
//! A cell is a world of its own, which is dropped when it is finished, so cells can run on any
//! number of threads, and their results do not depend on that number. Each reports on standard
//! error that it is finished, with its result; by then the `--json` file has the result, so an
//! interrupted run loses only the cells in progress, and `--resume` continues with the rest.
//!
//! Downside: lines of `--json` are in the order in which cells finished, which with several threads
//! is not that of the study; and each thread needs the memory of its cell.

use std::{
    collections::BTreeMap,
    fs::File,
    io::Write,
    path::Path,
    sync::Mutex,
    time::{Duration, Instant},
};

use anyhow::{Context, ensure};
use serde::Serialize;
use serde_json::Value;
use types::counted;

use super::{ExperimentArgs, parallel::in_parallel};
use crate::{
    bench::study,
    figure,
    study::{Job, Outcome, Scale, Study, run::Testbed},
};

/// A study on one testbed.
pub(super) struct Series {
    pub(super) name: &'static str,
    testbed: Testbed,
    /// What is wanted of it.
    pub(super) study: Study,
    pub(super) outcomes: Vec<Outcome>,
}

/// One result as a JSON line.
#[derive(Serialize)]
struct Line<'a> {
    study: &'a str,
    series: &'a str,
    scale: Scale,
    seed: u64,
    /// Results of its cell, this one included: what has fewer lines was not kept to the end.
    results: usize,
    #[serde(flatten)]
    outcome: &'a Outcome,
}

/// What a cell came to.
type Measured = Result<Vec<Outcome>, String>;

/// Runs every job on every testbed (or what of it `--only` asks for, and an earlier run has not
/// measured) and shows what came out, with the study's sentences for the first of them.
pub(super) fn run_all<const N: usize>(
    study: &Study,
    testbeds: [(&'static str, Testbed); N],
    arguments: &ExperimentArgs,
    run: impl Fn(&Job, Testbed, u64) -> Measured + Sync,
) -> anyhow::Result<[Series; N]> {
    let wanted = |series: &str, job: &Job| arguments.wants(&label(job, series));
    let mut series = testbeds.map(|(name, testbed)| {
        let mut study = study.clone();
        study.jobs.retain(|job| wanted(name, job));
        Series { name, testbed, study, outcomes: Vec::new() }
    });
    ensure!(series.iter().any(|one| !one.study.jobs.is_empty()), "no configuration matches --only");
    figure::prepare(arguments.figures.as_deref())?;
    println!("{} in virtual time: {}; sizes 1/{}", study.name, counted(study.osts, "OST"), study.scale.bytes);
    study::warnings(study).iter().for_each(|warning| println!("{warning}"));
    let earlier = Earlier::of(study, arguments)?;
    let mut cells = Vec::new();
    for (number, one) in series.iter_mut().enumerate() {
        for job in &one.study.jobs {
            match earlier.outcomes(one.name, job) {
                found if found.is_empty() => cells.push((number, job.clone())),
                found => one.outcomes.extend(found),
            }
        }
    }
    let ledger = Mutex::new(Ledger::new(study, arguments, cells.len())?);
    let results = in_parallel(&cells, arguments.threads, |(number, job)| {
        let Series { name, testbed, .. } = series[*number];
        let measured = run(job, testbed, arguments.seed);
        let kept = ledger.lock().expect("no panic while locked").note(job, name, &measured);
        (measured, kept)
    });
    let mut not_kept = None;
    for ((number, _), (measured, kept)) in cells.iter().zip(results) {
        // What is not measured is shown as such, and no sentence about it holds.
        series[*number].outcomes.extend(measured.into_iter().flatten());
        not_kept = not_kept.or(kept.err());
    }
    for one in series.iter().filter(|one| !one.study.jobs.is_empty()) {
        println!("\n{}\n{}", one.name, study::table(&one.study.jobs, &one.outcomes));
    }
    if let Some(first) = series.first() {
        show_findings(first);
    }
    match not_kept {
        Some(error) => Err(error),
        None => Ok(series),
    }
}

/// Says of every sentence of the study whether it holds on this testbed.
pub(super) fn show_findings(series: &Series) {
    if series.study.jobs.is_empty() {
        return;
    }
    study::show_findings(&series.study.findings(&series.outcomes));
}

/// Name of a cell, for people.
fn label(job: &Job, series: &str) -> String {
    if series.is_empty() { job.name.clone() } else { format!("{} ({series})", job.name) }
}

/// What an earlier run has left in its file; the same seed gives the same results.
#[derive(Default)]
struct Earlier(Vec<EarlierLine>);

struct EarlierLine {
    series: String,
    /// See [`Line`].
    results: usize,
    outcome: Outcome,
}

/// Phases that a study may have.
const PHASES: [&str; 6] = ["write", "read", "index", "model", "total", "search"];

impl Earlier {
    /// What there is of this study; nothing unless `--resume` asks for it.
    fn of(study: &Study, arguments: &ExperimentArgs) -> anyhow::Result<Self> {
        let Some(path) = arguments.json.as_deref().filter(|path| arguments.resume && path.exists()) else {
            return Ok(Self::default());
        };
        let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
        let scale = serde_json::to_value(study.scale)?;
        let is_same =
            |line: &Value| line["study"] == study.name && line["scale"] == scale && line["seed"] == arguments.seed;
        // The last line may be half of one, if the run was ended; its cell is run again.
        let lines = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok()).filter(is_same);
        Ok(Self(lines.filter_map(|line| EarlierLine::of(&line)).collect()))
    }

    /// What a cell came to, none if it was not run to its end.
    fn outcomes(&self, series: &str, job: &Job) -> Vec<Outcome> {
        // Outcomes of a job under two schedules have names that begin with the job's.
        let is_of = |outcome: &Outcome| {
            outcome.job.strip_prefix(&job.name).is_some_and(|rest| rest.is_empty() || rest.starts_with(' '))
        };
        let lines = self.0.iter().filter(|line| line.series == series && is_of(&line.outcome));
        // By what they are of: of a cell that was run again after a part of it was kept, some are
        // there twice.
        let found: BTreeMap<(&str, &str), &EarlierLine> =
            lines.map(|line| ((line.outcome.job.as_str(), line.outcome.phase), line)).collect();
        if found.values().any(|line| line.results != found.len()) {
            return Vec::new();
        }
        found.into_values().map(|line| line.outcome.clone()).collect()
    }
}

impl EarlierLine {
    fn of(line: &Value) -> Option<Self> {
        let outcome = Outcome {
            job: line["job"].as_str()?.to_owned(),
            phase: PHASES.into_iter().find(|phase| line["phase"] == *phase)?,
            bytes: line["bytes"].as_u64()?,
            operations: line["operations"].as_u64()?,
            seconds: line["seconds"].as_f64()?,
        };
        let results = usize::try_from(line["results"].as_u64()?).ok()?;
        Some(Self { series: line["series"].as_str()?.to_owned(), results, outcome })
    }
}

/// Where results go while others are still to come.
struct Ledger<'a> {
    study: &'a Study,
    seed: u64,
    json: Option<(&'a Path, File)>,
    cells: usize,
    done: usize,
    begun: Instant,
}

impl<'a> Ledger<'a> {
    fn new(study: &'a Study, arguments: &'a ExperimentArgs, cells: usize) -> anyhow::Result<Self> {
        let create = |path: &'a Path| {
            let opened = match arguments.resume {
                // Whatever the earlier run left of its last line ends here.
                true => File::options().append(true).create(true).open(path).and_then(|mut file| {
                    file.write_all(b"\n")?;
                    Ok(file)
                }),
                false => File::create(path),
            };
            anyhow::Ok((path, opened.with_context(|| format!("cannot create {}", path.display()))?))
        };
        let json = arguments.json.as_deref().map(create).transpose()?;
        Ok(Self { study, seed: arguments.seed, json, cells, done: 0, begun: Instant::now() })
    }

    /// A cell is finished: its results go to the file, then to the terminal.
    fn note(&mut self, job: &Job, series: &str, measured: &Measured) -> anyhow::Result<()> {
        self.done += 1;
        let kept = measured.as_deref().map_or(Ok(()), |outcomes| self.keep(series, outcomes));
        eprintln!("{}", self.progress(job, series, measured, self.begun.elapsed()));
        kept
    }

    /// All results of a cell, in one piece.
    fn keep(&mut self, series: &str, outcomes: &[Outcome]) -> anyhow::Result<()> {
        let Some((path, file)) = &mut self.json else { return Ok(()) };
        let mut text = String::new();
        for outcome in outcomes {
            let (study, scale, seed, results) = (self.study.name, self.study.scale, self.seed, outcomes.len());
            text += &serde_json::to_string(&Line { study, series, scale, seed, results, outcome })?;
            text.push('\n');
        }
        file.write_all(text.as_bytes()).with_context(|| format!("cannot write {}", path.display()))
    }

    /// A line for a cell: `3 of 24 (95 s): 16 nodes, 128: search 77855 MiB/s`.
    fn progress(&self, job: &Job, series: &str, measured: &Measured, elapsed: Duration) -> String {
        let came = match measured {
            Ok(outcomes) => {
                let shown = |one: &Outcome| match one.job == job.name {
                    true => format!("{} {:.0} MiB/s", one.phase, one.rate()),
                    false => format!("{} {} {:.0} MiB/s", one.job, one.phase, one.rate()),
                };
                outcomes.iter().map(shown).collect::<Vec<_>>().join(", ")
            }
            Err(error) => error.clone(),
        };
        let label = label(job, series);
        format!("{} of {} ({:.0} s): {label}: {came}", self.done, self.cells, elapsed.as_secs_f64())
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZero;

    use crate::study::e1;

    use super::*;

    fn arguments() -> ExperimentArgs {
        ExperimentArgs {
            scale: 512,
            seed: 3,
            figures: None,
            json: None,
            only: Vec::new(),
            resume: false,
            threads: None,
        }
    }

    #[test]
    fn a_run_that_was_ended_goes_on_with_what_is_not_whole_and_only_what_is_asked_for_runs() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("lines.json");
        let mut arguments = ExperimentArgs { threads: NonZero::new(1), json: Some(path.clone()), ..arguments() };
        arguments.only = vec!["no cache".to_owned()];
        let study = e1::ior(Scale { bytes: arguments.scale, ..Scale::FULL });
        let ran = |arguments: &ExperimentArgs| {
            let ran = Mutex::new(Vec::new());
            let run = |job: &Job, testbed: Testbed, _| {
                let read_ahead = testbed.hardware.spindle.read_ahead;
                ran.lock().unwrap().push(format!("{} {}", job.name, read_ahead.is_some()));
                Ok(vec![outcome(job, "write"), outcome(job, "read")])
            };
            let testbeds = [("with", Testbed::e1(true)), ("no cache", Testbed::e1(false))];
            let series = run_all(&study, testbeds, arguments, run).unwrap();
            (ran.into_inner().unwrap(), series.map(|one| one.outcomes.len()))
        };
        let (all, counts) = ran(&arguments);
        assert_eq!((all.len(), all[5].as_str(), counts), (6, "IOR.6 false", [0, 12]));
        // Ended within the fourth cell's lines.
        let text = std::fs::read_to_string(&path).unwrap();
        let lines: Vec<&str> = text.split_inclusive('\n').collect();
        std::fs::write(&path, [&lines[..7].concat(), &lines[7][..20]].concat()).unwrap();
        arguments.resume = true;
        assert_eq!(ran(&arguments), (all[3..].to_vec(), [0, 12]));
        assert_eq!(ran(&arguments), (vec![], [0, 12]), "nothing is left to do");
        assert_eq!(ran(&ExperimentArgs { seed: 4, ..arguments.clone() }).0.len(), 6, "another seed is another run");
        arguments.only = vec!["IOR.6 (with)".to_owned()];
        assert_eq!(ran(&arguments), (vec!["IOR.6 true".to_owned()], [2, 0]));
    }

    fn outcome(job: &Job, phase: &'static str) -> Outcome {
        Outcome { job: job.name.clone(), phase, bytes: 10 << 20, operations: 10, seconds: 2.0 }
    }

    /// A run of half an hour was ended by the system, and nothing was left of it.
    #[test]
    fn what_a_cell_came_to_is_in_the_file_before_the_next_one_begins() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("lines.json");
        let arguments = ExperimentArgs { threads: NonZero::new(1), json: Some(path.clone()), ..arguments() };
        let study = e1::ior(Scale { bytes: arguments.scale, ..Scale::FULL });
        let lines = || -> Vec<serde_json::Value> {
            let text = std::fs::read_to_string(&path).unwrap();
            text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
        };
        let before = Mutex::new(Vec::new());
        let run = |job: &Job, _, seed| {
            before.lock().unwrap().push(lines().len());
            assert_eq!(seed, 3);
            if job.name == "IOR.2" {
                Err("lost".to_owned())
            } else {
                Ok(vec![outcome(job, "write"), outcome(job, "read")])
            }
        };
        let testbeds = [("cache", Testbed::e1(true)), ("no cache", Testbed::e1(false))];
        let series = run_all(&study, testbeds, &arguments, run).unwrap();
        assert_eq!(*before.lock().unwrap(), [0, 2, 2, 4, 6, 8, 10, 12, 12, 14, 16, 18]);
        assert_eq!(series.each_ref().map(|one| one.outcomes.len()), [10, 10]);
        let lines = lines();
        assert_eq!((lines.len(), &lines[2]["job"], &lines[2]["phase"]), (20, &"IOR.3".into(), &"write".into()));
        assert_eq!((&lines[19]["series"], &lines[19]["seed"]), (&"no cache".into(), &3.into()));
    }

    #[test]
    fn a_line_of_progress_says_how_far_and_what_came_out() {
        let (study, arguments) = (e1::ior(Scale::FULL), arguments());
        let mut ledger = Ledger::new(&study, &arguments, 12).unwrap();
        let job = &study.jobs[2];
        ledger.done = 3;
        let (elapsed, both) = (Duration::from_secs(95), vec![outcome(job, "write"), outcome(job, "read")]);
        assert_eq!(
            ledger.progress(job, "no cache", &Ok(both), elapsed),
            "3 of 12 (95 s): IOR.3 (no cache): write 5 MiB/s, read 5 MiB/s"
        );
        let other = Outcome { job: "IOR.3 sync".to_owned(), ..outcome(job, "index") };
        assert_eq!(
            ledger.progress(job, "", &Ok(vec![other]), elapsed),
            "3 of 12 (95 s): IOR.3: IOR.3 sync index 5 MiB/s"
        );
        assert_eq!(ledger.progress(job, "", &Err("no client".to_owned()), elapsed), "3 of 12 (95 s): IOR.3: no client");
    }
}
