//! E3, advice on striping (Antypas, NERSC): file per process compared with one shared file, for
//! different numbers of processes and stripe counts, on 80 OSTs of 20 OSS, where the default is 4
//! stripes of 1 MB.
//!
//! What users of that system had to know, as cells: (pattern, processes, bytes of all together),
//! each with every fixed layout and the automatic one. Numbers of OSTs and processes are scaled
//! together; the default of 4 stripes is not scaled, because it is what causes the collisions.

use layout::StripeCount;

use super::{
    Job, Pattern, Scale, Striping, Study,
    shape::{Finding, Rates},
};

/// OSTs of the system.
pub const OSTS: u32 = 80;
/// OSTs of each of its servers.
pub const OSTS_PER_SERVER: u16 = 4;
const MIB: u64 = 1 << 20;

/// Bytes that all processes write together, before scaling: columns of the study's matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Aggregate {
    /// 1 GiB.
    Small,
    /// 10 GiB.
    Medium,
    /// 100 GiB.
    Large,
    /// 1 TiB.
    Huge,
}

impl Aggregate {
    /// All of them.
    pub const ALL: [Aggregate; 4] = [Aggregate::Small, Aggregate::Medium, Aggregate::Large, Aggregate::Huge];

    /// As it was published.
    pub fn name(self) -> &'static str {
        ["1G", "10G", "100G", "1T"][self as usize]
    }

    fn bytes(self) -> u64 {
        [1 << 30, 10 << 30, 100 << 30, 1 << 40][self as usize]
    }
}

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

/// What is written: the layouts compete in every cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cell {
    pattern: Pattern,
    processes: u32,
    /// Bytes of all processes.
    pub aggregate: Aggregate,
}

impl Cell {
    /// Its name without the bytes.
    pub fn name(self) -> String {
        let pattern = match self.pattern {
            Pattern::Shared => "shared",
            Pattern::FilePerTask => "files",
        };
        format!("{pattern} x{}", self.processes)
    }

    /// Names of its jobs, in the order of [`LAYOUTS`].
    pub fn jobs(self) -> [String; LAYOUTS.len()] {
        CHOICES.map(|choice| self.job(choice))
    }

    /// Name of a job, by which its shape finds it again.
    fn job(self, choice: Choice) -> String {
        format!("{} {} {}", self.name(), self.aggregate.name(), choice.name())
    }
}

/// Every cell that a study of so many OSTs could have.
fn all_cells(osts: u32) -> impl Iterator<Item = Cell> {
    let patterns = [Pattern::FilePerTask, Pattern::Shared].into_iter();
    let lines = patterns.flat_map(move |pattern| processes(osts).map(|processes| (pattern, processes)));
    lines.flat_map(|(pattern, processes)| Aggregate::ALL.map(|aggregate| Cell { pattern, processes, aggregate }))
}

/// The cells of a study.
pub fn cells(study: &Study) -> Vec<Cell> {
    let has = |cell: &Cell| study.jobs.iter().any(|job| job.name == cell.job(Choice::One));
    all_cells(study.osts).filter(has).collect()
}

/// Numbers of processes around the two that matter, a quarter of the OSTs (4 stripes each use all)
/// and all OSTs, and the largest jobs of the study: 512 and 4096 on 80 OSTs.
fn processes(osts: u32) -> [u32; 6] {
    [(osts / 8).max(1), (osts / 4).max(1), osts, 2 * osts, osts * 32 / 5, osts * 256 / 5]
}

/// Bytes of each process.
fn share(cell: Cell, scale: Scale) -> u64 {
    cell.aggregate.bytes() / scale.bytes / u64::from(cell.processes)
}

/// All cells of these columns with all layouts. A process writes a call at least; where it has less
/// at this scale, the largest jobs are left out, for they would be the same in every column.
pub fn matrix(scale: Scale, aggregates: &[Aggregate]) -> Study {
    let osts = (OSTS / scale.osts).max(4);
    let mut jobs = Vec::new();
    let is_told_apart = |cell: &Cell| cell.processes <= 2 * osts || share(*cell, scale) >= MIB;
    for cell in all_cells(osts).filter(|cell| aggregates.contains(&cell.aggregate)).filter(is_told_apart) {
        jobs.extend(CHOICES.into_iter().map(|choice| Job {
            name: cell.job(choice),
            setting: String::new(),
            striping: choice.striping(osts),
            pattern: cell.pattern,
            tasks: cell.processes,
            task_bytes: share(cell, scale).max(1).next_multiple_of(MIB),
            transfer_bytes: MIB,
        }));
    }
    Study { name: "e3", scale, osts, jobs, shape: matrix_shape }
}

fn matrix_shape(study: &Study, rates: &Rates) -> Vec<Finding> {
    let [_, _, matching, ..] = processes(study.osts);
    let cells = cells(study);
    let mut findings = Vec::new();
    for cell in &cells {
        let (tasks, bytes, of) = (cell.processes, cell.aggregate.name(), |choice| cell.job(choice));
        if cell.pattern == Pattern::FilePerTask && tasks >= matching {
            let sentence = format!("{tasks} writers with a file each, {bytes}: 1 stripe is equal to or better than 4");
            findings.push(rates.not_worse(&sentence, "write", &of(Choice::One), &of(Choice::Default)));
        }
        if cell.pattern == Pattern::Shared && tasks == matching {
            let sentence = format!("{tasks} writers of one file, {bytes}: all OSTs beat 4 stripes");
            findings.push(rates.beats(&sentence, "write", &[&of(Choice::All)], &[&of(Choice::Default)]));
        }
    }
    findings.extend(cells.iter().flat_map(|cell| ["write", "read"].map(|phase| automatic(rates, *cell, phase))));
    findings
}

/// "The automatic layout is within 10% of the best fixed one", in one cell.
fn automatic(rates: &Rates, cell: Cell, phase: &'static str) -> Finding {
    let rate = |choice| rates.get(&cell.job(choice), phase);
    let fixed = CHOICES.into_iter().filter(|choice| *choice != Choice::Automatic);
    let best = fixed.max_by(|one, other| rate(*one).total_cmp(&rate(*other))).unwrap_or(Choice::One);
    Finding {
        sentence: format!("{}, {phase}: within 10% of the best fixed layout", cell.job(Choice::Automatic)),
        holds: rate(Choice::Automatic) >= rate(best) * (1.0 - AUTOMATIC_WITHIN),
        results: format!("{:.0} MiB/s, {} stripes {:.0} MiB/s", rate(Choice::Automatic), best.name(), rate(best)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::study::Outcome;

    #[test]
    fn cells_are_those_of_the_study_and_of_any_scale() {
        for osts in [1, 4, 10, 20] {
            let study = matrix(Scale { bytes: 1000, osts, tasks: 1 }, &[Aggregate::Small, Aggregate::Large]);
            let named: Vec<String> = cells(&study).into_iter().flat_map(Cell::jobs).collect();
            assert!(named.iter().eq(study.jobs.iter().map(|job| &job.name)), "{named:?}");
            for job in &study.jobs {
                assert_eq!(job.striping.spec().validate(0), Ok(()), "{}", job.name);
            }
        }
        assert_eq!(processes(80), [10, 20, 80, 160, 512, 4096]);
        let of_huge = |bytes| cells(&matrix(Scale { bytes, ..Scale::FULL }, &[Aggregate::Huge])).len();
        assert_eq!((of_huge(64), of_huge(512), of_huge(4096)), (12, 10, 8), "processes that have a MiB");
        let first = cells(&matrix(Scale::FULL, &[Aggregate::Medium]))[0];
        assert_eq!((first.name().as_str(), first.job(Choice::One).as_str()), ("files x10", "files x10 10G 1"));
        assert_eq!(CHOICES.map(Choice::name), LAYOUTS);
    }

    #[test]
    fn an_automatic_layout_is_held_against_the_best_fixed_one() {
        let study = matrix(Scale { bytes: 1000, osts: 4, tasks: 1 }, &[Aggregate::Large]);
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
