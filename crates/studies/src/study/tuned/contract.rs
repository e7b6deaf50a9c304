//! What tuners must reach, held against runs: each sentence for each cell, and what is tuned.

use std::collections::BTreeMap;

use super::{Cell, Run, SHIPPED, STAGE_SECONDS, Setting, Subject, course::Course};
use crate::study::shape::Finding;

/// The search may take so many seconds.
const SEARCH_SECONDS: usize = 20;
/// Seconds of a mean.
pub const MEAN_SECONDS: usize = 5;
/// Part of the best rate that must be reached.
const OF_BEST: f64 = 0.95;
/// By how much means may differ from their mean.
const STEADY: f64 = 0.05;
/// Least index of fairness.
const FAIR: f64 = 0.95;
/// Part of the default's rate that must be reached.
const OF_DEFAULT: f64 = 0.97;

/// What all runs came to.
pub type Courses = BTreeMap<Run, Course>;

/// A line of the table: tuners that began with some numbers.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// The load, or the loads.
    pub cell: String,
    /// Where the tuners began.
    pub setting: String,
    /// Whether these are the defaults.
    pub from_default: bool,
    /// The best of the fixed settings that they are compared with.
    pub best: String,
    /// Its rate in MiB/s.
    pub best_rate: f64,
    /// By how much its means over 5 s differ from their mean, as a part of it.
    pub best_spread: f64,
    /// Rate after the search in MiB/s.
    pub rate: f64,
    /// By how much means over 5 s differ from their mean after the search, as a part of it.
    pub spread: f64,
    /// Jain's index of fairness among the clients after the search.
    pub jain: f64,
    /// Rate of the whole run, the search included, as a part of that of the same time with the
    /// defaults.
    pub whole: f64,
    /// Rate after the search, as a part of the rate with the defaults.
    pub of_default: f64,
    /// Numbers at the end: service threads and requests in flight.
    pub numbers: (u16, u16),
}

impl Row {
    fn ratio(&self) -> f64 {
        self.rate / self.best_rate
    }

    /// The columns of the table.
    pub const COLUMNS: [&'static str; 10] = [
        "cell",
        "tuned from",
        "best",
        "MiB/s",
        "tuned",
        "of best",
        "spread (best)",
        "Jain",
        "of default",
        "at the end",
    ];

    /// As text.
    pub fn columns(&self) -> [String; 10] {
        let percent = |part: f64| format!("{:.1}%", part * 100.0);
        [
            self.cell.clone(),
            self.setting.clone(),
            self.best.clone(),
            format!("{:.0}", self.best_rate),
            format!("{:.0}", self.rate),
            percent(self.ratio()),
            format!("{} ({})", percent(self.spread), percent(self.best_spread)),
            format!("{:.3}", self.jain),
            format!("{}, {} in all", percent(self.of_default), percent(self.whole)),
            format!("s={} c={}", self.numbers.0, self.numbers.1),
        ]
    }
}

/// Rate of all clients together, mean of these seconds.
pub(super) fn mean(seconds: &[Vec<f64>]) -> f64 {
    seconds.iter().flatten().sum::<f64>() / seconds.len().max(1) as f64
}

/// By how much means over 5 s differ from their mean, as a part of it.
fn spread(seconds: &[Vec<f64>]) -> f64 {
    let mean_of_all = mean(seconds);
    let means = seconds.chunks_exact(MEAN_SECONDS).map(mean);
    means.map(|one| (one / mean_of_all - 1.0).abs()).fold(0.0, f64::max)
}

/// Jain's index of fairness among the clients: 1 if all are equal.
pub(super) fn jain(seconds: &[Vec<f64>]) -> f64 {
    let clients = seconds.first().map_or(0, Vec::len);
    let rates = (0..clients).map(|client| seconds.iter().map(|second| second[client]).sum::<f64>());
    let (sum, squares) = rates.fold((0.0, 0.0), |(sum, squares), rate| (sum + rate, squares + rate * rate));
    sum * sum / (clients as f64 * squares)
}

/// A part of a run after so many seconds; empty if it was shorter.
fn after(course: &Course, seconds: usize) -> &[Vec<f64>] {
    course.seconds.get(seconds..).unwrap_or_default()
}

/// The fixed setting that does most, with its seconds.
fn best<'a>(courses: &'a Courses, cell: Cell, fixed: &[Setting]) -> Option<(Setting, &'a [Vec<f64>])> {
    let run = |setting: &Setting| {
        let course = courses.get(&Run { cells: vec![cell], setting: *setting })?;
        Some((*setting, after(course, SEARCH_SECONDS)))
    };
    let all: Option<Vec<_>> = fixed.iter().map(run).collect();
    all?.into_iter().max_by(|(_, one), (_, other)| mean(one).total_cmp(&mean(other)))
}

/// The lines of a cell; none if a run is missing.
pub fn rows(courses: &Courses, cell: Cell, subject: Subject) -> Option<Vec<Row>> {
    let (setting, seconds) = best(courses, cell, &subject.fixed())?;
    let default = courses.get(&Run { cells: vec![cell], setting: subject.default() })?;
    let row = |start: Setting| {
        let course = courses.get(&Run { cells: vec![cell], setting: start })?;
        let found = after(course, SEARCH_SECONDS);
        Some(Row {
            cell: cell.name(),
            setting: start.name(),
            from_default: start.is_from_default(),
            best: setting.name(),
            best_rate: mean(seconds),
            best_spread: spread(seconds),
            rate: mean(found),
            spread: spread(found),
            jain: jain(found),
            whole: mean(&course.seconds) / mean(&default.seconds),
            of_default: mean(found) / mean(after(default, SEARCH_SECONDS)),
            numbers: course.numbers.last().copied().unwrap_or_default(),
        })
    };
    subject.tuned().into_iter().map(row).collect()
}

/// The lines of a load that changes, one for each load: after the search that begins when it does.
pub fn changing_rows(courses: &Courses, run: &Run) -> Option<Vec<Row>> {
    let course = courses.get(run)?;
    let row = |(number, cell): (usize, &Cell)| {
        let (setting, fixed) = best(courses, *cell, &Subject::Both.fixed())?;
        let default = courses.get(&Run { cells: vec![*cell], setting: SHIPPED })?;
        let stage = course.seconds.get(number * STAGE_SECONDS..(number + 1) * STAGE_SECONDS)?;
        let found = &stage[SEARCH_SECONDS..];
        // Clients without a load have no share.
        let with_load: Vec<Vec<f64>> =
            found.iter().map(|second| second[..cell.load.clients().into()].to_vec()).collect();
        Some(Row {
            cell: format!("{}. {}", number + 1, cell.name()),
            setting: run.setting.name(),
            from_default: run.setting.is_from_default(),
            best: setting.name(),
            best_rate: mean(fixed),
            best_spread: spread(fixed),
            rate: mean(found),
            spread: spread(found),
            jain: jain(&with_load),
            whole: mean(stage) / mean(&default.seconds),
            of_default: mean(found) / mean(after(default, SEARCH_SECONDS)),
            numbers: course.numbers.get((number + 1) * STAGE_SECONDS - 1).copied().unwrap_or_default(),
        })
    };
    run.cells.iter().enumerate().map(row).collect()
}

/// The sentences about these lines. `what`: the cell, and what is tuned.
pub fn findings(what: &str, rows: &[Row]) -> Vec<Finding> {
    let of = |value: &dyn Fn(&Row) -> f64| rows.iter().map(value).collect::<Vec<f64>>();
    let finding = |sentence: &str, holds: &dyn Fn(&Row) -> bool, results: String| Finding {
        sentence: format!("{what}: {sentence}"),
        holds: !rows.is_empty() && rows.iter().all(holds),
        results,
    };
    let percents =
        |values: Vec<f64>| values.iter().map(|value| format!("{:.1}%", value * 100.0)).collect::<Vec<_>>().join(", ");
    let mut findings = vec![
        finding(
            "within 5% of the best fixed setting after 20 s",
            &|row| row.ratio() >= OF_BEST,
            percents(of(&Row::ratio)),
        ),
        finding(
            "steady afterwards: means over 5 s within 5%, or as steady as with the best fixed setting",
            &|row| row.spread <= STEADY.max(row.best_spread),
            format!("{}; with the best {}", percents(of(&|row| row.spread)), percents(of(&|row| row.best_spread))),
        ),
        finding(
            "not worse than the defaults by more than 3% after 20 s",
            &|row| row.of_default >= OF_DEFAULT,
            percents(of(&|row| row.of_default)),
        ),
    ];
    let jain = of(&|row| row.jain);
    let shown = jain.iter().map(|index| format!("{index:.3}")).collect::<Vec<_>>().join(", ");
    findings.push(finding("fair: Jain's index among the clients at least 0.95", &|row| row.jain >= FAIR, shown));
    findings
}

/// The sentence about tuners that begin with the defaults, the search included.
pub fn default_is_kept(what: &str, rows: &[Row]) -> Finding {
    let from_default: Vec<&Row> = rows.iter().filter(|row| row.from_default).collect();
    Finding {
        sentence: format!(
            "{what}: from the defaults, the whole run with the search is not worse than the defaults by more than 3%"
        ),
        holds: !from_default.is_empty() && from_default.iter().all(|row| row.whole >= OF_DEFAULT),
        results: from_default.iter().map(|row| format!("{:.1}%", row.whole * 100.0)).collect::<Vec<_>>().join(", "),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::study::{
        e2::Load,
        tuned::{
            course::{Access, Number},
            runs,
        },
    };

    const CELL: Cell = Cell::new(Load(2, 1), Access::Write);

    /// What each client moves in each second of a run.
    fn courses(rate: impl Fn(&Run, usize) -> [f64; 2], runs: Vec<Run>) -> Courses {
        let course = |run: Run| {
            let seconds = (0..run.cells.len() * STAGE_SECONDS).map(|second| rate(&run, second).to_vec()).collect();
            let numbers = vec![(8, 16); run.cells.len() * STAGE_SECONDS];
            (run, Course { seconds, numbers, decisions: Vec::new() })
        };
        runs.into_iter().map(course).collect()
    }

    fn is_fixed(run: &Run, threads: u16) -> bool {
        !run.setting.is_tuned() && run.setting.threads == Number::Fixed(threads)
    }

    /// 16 threads are best; tuners find them after 20 s.
    fn good(run: &Run, second: usize) -> [f64; 2] {
        match run.setting.is_tuned() {
            true if second < SEARCH_SECONDS => [70.0; 2],
            false if !is_fixed(run, 16) => [60.0; 2],
            _ => [100.0; 2],
        }
    }

    fn held(rows: &[Row]) -> Vec<bool> {
        findings("", rows).iter().map(|finding| finding.holds).collect()
    }

    #[test]
    fn what_tuners_must_reach_is_held_against_the_best_and_the_default() {
        let of = |courses: &Courses| rows(courses, CELL, Subject::Server).unwrap();
        let all = courses(good, runs(&[CELL], &[]));
        let found = of(&all);
        assert_eq!(found.len(), 3);
        assert_eq!((found[0].best.as_str(), found[0].best_rate, found[0].rate), ("s=16 c=64", 200.0, 200.0));
        assert_eq!((found[0].spread, found[0].jain, found[0].numbers), (0.0, 1.0, (8, 16)));
        assert!((found[0].whole - 85.0 / 60.0).abs() < 1e-9);
        assert_eq!(held(&found), [true; 4]);
        assert!(default_is_kept("", &found).holds);

        let with = |change: fn([f64; 2], usize) -> [f64; 2]| {
            let rate = |run: &Run, second| {
                if run.setting.is_tuned() { change(good(run, second), second) } else { good(run, second) }
            };
            of(&courses(rate, runs(&[CELL], &[])))
        };
        assert_eq!(held(&with(|[one, other], _| [one * 0.94, other * 0.94])), [false, true, true, true]);
        assert_eq!(
            held(&with(|[one, other], second| if second < 25 { [one * 0.9, other * 0.9] } else { [one, other] })),
            [true, false, true, true]
        );
        assert_eq!(held(&with(|[one, other], _| [one * 1.4, other * 0.6])), [true, true, true, false]);
        let poor = with(|rates, _| rates.map(|rate| rate * 0.5));
        assert_eq!(held(&poor), [false, true, false, true]);
        assert!(!default_is_kept("", &poor).holds);
        assert_eq!(held(&[]), [false; 4], "what was not run does not hold");
    }

    #[test]
    fn a_missing_run_is_told_and_a_load_that_changes_has_a_line_for_each() {
        let change = Run::of_change(&[CELL, Cell::new(Load(1, 1), Access::Write), CELL]).remove(0);
        let all = courses(
            |run, second| {
                let [one, other] = good(run, second % STAGE_SECONDS);
                // The second load has one client.
                if (STAGE_SECONDS..2 * STAGE_SECONDS).contains(&second) { [one + other, 0.0] } else { [one, other] }
            },
            runs(&[], std::slice::from_ref(&change)),
        );
        let found = changing_rows(&all, &change).unwrap();
        assert_eq!(
            found.iter().map(|row| row.cell.as_str()).collect::<Vec<_>>(),
            ["1. 2x1 write k1", "2. 1x1 write k1", "3. 2x1 write k1"]
        );
        assert_eq!(held(&found), [true; 4]);
        assert_eq!(rows(&all, CELL, Subject::Clients), None);
    }
}
