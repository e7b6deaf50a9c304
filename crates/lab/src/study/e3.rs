//! E3, advice on striping (Antypas, NERSC): file per process against one shared file, over numbers of processes and stripe
//! counts, on 80 OSTs of 20 OSS, where the default is 4 stripes of 1 MB.
//!
//! What users of that system had to know, as cells: (pattern, processes), each with every fixed layout and the automatic one.
//! Numbers of OSTs and processes are scaled together; the default of 4 stripes stays, for it is what collides.

use layout::StripeCount;

use super::{
    Job, Pattern, Scale, Striping, Study,
    shape::{Finding, Rates},
};

/// OSTs of the system.
pub const OSTS: u32 = 80;
/// OSTs of each of its servers.
pub const OSTS_PER_SERVER: u16 = 4;
/// Bytes that all processes write together, before scaling: the third column of the study's matrix.
const AGGREGATE_BYTES: u64 = 100 << 30;
const MIB: u64 = 1 << 20;

/// How much below the best fixed layout an automatic one may be.
const AUTOMATIC_WITHIN: f64 = 0.10;

/// A layout that competes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Choice {
    One,
    Default,
    Some,
    All,
    Automatic,
}

const CHOICES: [Choice; 5] = [Choice::One, Choice::Default, Choice::Some, Choice::All, Choice::Automatic];

/// Names of the layouts of every cell, in order.
pub const LAYOUTS: [&str; CHOICES.len()] = ["1", "4", "some", "all", "auto"];

impl Choice {
    fn name(self) -> &'static str {
        LAYOUTS[self as usize]
    }

    fn striping(self, osts: u32) -> Striping {
        let count = match self {
            Choice::One => StripeCount::Exactly(1),
            Choice::Default => StripeCount::Exactly(4),
            // 11 of 80 in the study's advice.
            Choice::Some => StripeCount::Exactly((osts * 11 / OSTS).max(1)),
            Choice::All => StripeCount::All,
            Choice::Automatic => return Striping::Automatic,
        };
        Striping::plain(count, MIB)
    }
}

/// Name of a job, by which its shape finds it again.
fn name(pattern: Pattern, processes: u32, choice: Choice) -> String {
    let pattern = match pattern {
        Pattern::Shared => "shared",
        Pattern::FilePerTask => "files",
    };
    format!("{pattern} x{processes} {}", choice.name())
}

/// Every cell with its name and the names of its jobs, in the order of [`LAYOUTS`].
pub fn cells(study: &Study) -> Vec<(String, [String; LAYOUTS.len()])> {
    let patterns = [Pattern::FilePerTask, Pattern::Shared].into_iter();
    let all = patterns.flat_map(|pattern| processes(study.osts).map(|tasks| (pattern, tasks)));
    let cell = |(pattern, tasks)| {
        let jobs = CHOICES.map(|choice| name(pattern, tasks, choice));
        let cell = jobs[0].rsplit_once(' ').map_or_else(String::new, |(cell, _)| cell.to_owned());
        (cell, jobs)
    };
    all.map(cell).collect()
}

/// Numbers of processes around the two that matter: a quarter of the OSTs (4 stripes each use all) and all OSTs.
fn processes(osts: u32) -> [u32; 4] {
    [(osts / 8).max(1), (osts / 4).max(1), osts, 2 * osts]
}

/// All cells with all layouts.
pub fn matrix(scale: Scale) -> Study {
    let osts = (OSTS / scale.osts).max(4);
    let mut jobs = Vec::new();
    for pattern in [Pattern::FilePerTask, Pattern::Shared] {
        for tasks in processes(osts) {
            let task_bytes = (AGGREGATE_BYTES / scale.bytes / u64::from(tasks)).next_multiple_of(MIB);
            jobs.extend(CHOICES.into_iter().map(|choice| Job {
                name: name(pattern, tasks, choice),
                striping: choice.striping(osts),
                pattern,
                tasks,
                task_bytes,
                transfer_bytes: MIB,
            }));
        }
    }
    Study { name: "e3", scale, osts, jobs, shape: matrix_shape }
}

fn matrix_shape(study: &Study, rates: &Rates) -> Vec<Finding> {
    let [few, quarter, matching, many] = processes(study.osts);
    let mut findings = Vec::new();
    for tasks in [matching, many] {
        let sentence = format!("{tasks} writers with a file each: 1 stripe is equal to or better than 4");
        let of = |choice| name(Pattern::FilePerTask, tasks, choice);
        findings.push(rates.not_worse(&sentence, "write", &of(Choice::One), &of(Choice::Default)));
    }
    let shared = |choice| name(Pattern::Shared, matching, choice);
    let sentence = format!("{matching} writers of one file: all OSTs beat 4 stripes");
    findings.push(rates.beats(&sentence, "write", &[&shared(Choice::All)], &[&shared(Choice::Default)]));
    for pattern in [Pattern::FilePerTask, Pattern::Shared] {
        for tasks in [few, quarter, matching, many] {
            findings.extend(["write", "read"].map(|phase| automatic(rates, pattern, tasks, phase)));
        }
    }
    findings
}

/// "The automatic layout is within 10% of the best fixed one", in one cell.
fn automatic(rates: &Rates, pattern: Pattern, tasks: u32, phase: &'static str) -> Finding {
    let rate = |choice| rates.get(&name(pattern, tasks, choice), phase);
    let fixed = CHOICES.into_iter().filter(|choice| *choice != Choice::Automatic);
    let best = fixed.max_by(|one, other| rate(*one).total_cmp(&rate(*other))).unwrap_or(Choice::One);
    let cell = name(pattern, tasks, Choice::Automatic);
    Finding {
        sentence: format!("{cell}, {phase}: within 10% of the best fixed layout"),
        holds: rate(Choice::Automatic) >= rate(best) * (1.0 - AUTOMATIC_WITHIN),
        figures: format!("{:.0} MiB/s, {} stripes {:.0} MiB/s", rate(Choice::Automatic), best.name(), rate(best)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::study::Outcome;

    #[test]
    fn cells_are_those_of_the_study_and_of_any_scale() {
        for osts in [1, 4, 10, 20] {
            let study = matrix(Scale { bytes: 1000, osts, tasks: 1 });
            let named: Vec<String> = cells(&study).into_iter().flat_map(|(_, jobs)| jobs).collect();
            assert!(named.iter().eq(study.jobs.iter().map(|job| &job.name)), "{named:?}");
            for job in &study.jobs {
                assert_eq!(job.striping.spec().validate(0), Ok(()), "{}", job.name);
            }
        }
        assert_eq!(processes(80), [10, 20, 80, 160]);
        assert_eq!(cells(&matrix(Scale { bytes: 1000, osts: 1, tasks: 1 }))[0].0, "files x10");
        assert_eq!(CHOICES.map(Choice::name), LAYOUTS);
    }

    #[test]
    fn an_automatic_layout_is_held_against_the_best_fixed_one() {
        let study = matrix(Scale { bytes: 1000, osts: 4, tasks: 1 });
        let outcomes = |automatic: f64| -> Vec<Outcome> {
            let outcome = |job: &Job| {
                let seconds = match job.striping {
                    Striping::Automatic => 1.0 / automatic,
                    _ if job.name.ends_with(" 1") => 1.0,
                    _ => 1.5,
                };
                let (job, bytes) = (job.name.clone(), 1 << 30);
                ["write", "read"].map(|phase| Outcome { job: job.clone(), phase, bytes, operations: 1, seconds })
            };
            study.jobs.iter().flat_map(outcome).collect()
        };
        let holding = |automatic| {
            let findings = matrix_shape(&study, &Rates::of(&outcomes(automatic)));
            findings.iter().filter(|finding| finding.sentence.contains("within 10%") && finding.holds).count()
        };
        assert_eq!((holding(0.95), holding(0.85)), (16, 0));
    }
}
