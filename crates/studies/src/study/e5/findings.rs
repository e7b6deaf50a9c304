//! The sentences of the study, and what StriaFS has to reach beyond it, held against the measured
//! rates.

use std::collections::BTreeMap;

use super::{
    Cell, MANY_SERVERS, MDT_DIRECTORIES, MDTS, Outcome, PHASES, SERVERS, STRIPED_TASKS, growing_separate,
    growing_striped,
};
use crate::study::shape::{EQUAL_WITHIN, Finding, median};

/// "Linear": at least this part of it.
const LINEAR: f64 = 0.90;
/// What one striped directory has to reach of it.
const LINEAR_STRIPED: f64 = 0.80;
/// The same on one host, whose MDS have a part of a processor each.
const LINEAR_LIVE: f64 = 0.85;
/// MDS up to which this has to be reached, and how many there were in the study.
const GOAL_SERVERS: u16 = 16;
/// See [`GOAL_SERVERS`].
const STUDY_SERVERS: u16 = 6;
/// "Close": they differ by at most so much.
const CLOSE: f64 = 0.15;
/// "Far apart": one is at least so much faster.
const FAR: f64 = 0.25;
/// What processors of one MDS with many MDTs peak at: between these parts of their time.
const PEAK: [f64; 2] = [0.70, 0.90];

/// What was measured, by cell and phase: once in virtual time, in each round live.
#[derive(Clone, Debug, Default)]
pub struct Rates(BTreeMap<(Cell, &'static str), Vec<Measured>>);

#[derive(Clone, Copy, Debug)]
struct Measured {
    /// Operations per second.
    rate: f64,
    /// Of the processor time of the busiest MDS.
    server_use: f64,
}

impl Rates {
    /// Adds what a phase of a cell came to, in the next round.
    pub fn add(&mut self, cell: Cell, outcome: &Outcome) {
        let measured = Measured { rate: outcome.rate(), server_use: outcome.server_use };
        self.0.entry((cell, outcome.phase)).or_default().push(measured);
    }

    /// Operations per second, the median of the rounds; NaN if it was not measured, so that no
    /// sentence about it holds.
    pub fn get(&self, cell: Cell, phase: &'static str) -> f64 {
        middle(self.rounds(cell, phase).iter().map(|measured| measured.rate))
    }

    /// The part of its processor time that the busiest MDS used; the same.
    fn server_use(&self, cell: Cell, phase: &'static str) -> f64 {
        middle(self.rounds(cell, phase).iter().map(|measured| measured.server_use))
    }

    /// How much of linear growth from one cell to another one is reached; the growth is that of
    /// the number of MDS. Of several rounds the median: cells that are compared ran one after the
    /// other in each.
    pub fn of_linear(&self, (from, to): (Cell, Cell), phase: &'static str) -> f64 {
        let growth = f64::from(to.servers) / f64::from(from.servers);
        let rounds = self.rounds(from, phase).iter().zip(self.rounds(to, phase));
        middle(rounds.map(|(from, to)| to.rate / from.rate / growth))
    }

    fn rounds(&self, cell: Cell, phase: &'static str) -> &[Measured] {
        self.0.get(&(cell, phase)).map_or(&[], Vec::as_slice)
    }

    fn was_measured(&self, cell: Cell) -> bool {
        PHASES.into_iter().all(|phase| self.0.contains_key(&(cell, phase)))
    }
}

/// Every sentence about cells of which some were measured, and whether it holds.
pub fn findings(rates: &Rates) -> Vec<Finding> {
    type Sentence = fn(&Rates, &'static str) -> (Finding, Vec<Cell>);
    let sentences: [Sentence; 12] = [
        more_mdts_help,
        diminishing_returns,
        processors_peak,
        linear_from_2_to_4,
        linear_with_256_tasks,
        two_are_close,
        four_are_far_apart,
        six_each_scale,
        striped_scales,
        |rates, phase| goal(rates, phase, growing_separate, LINEAR),
        |rates, phase| goal(rates, phase, growing_striped, LINEAR_STRIPED),
        open_question,
    ];
    let of_sentence = |sentence: Sentence| PHASES.map(|phase| sentence(rates, phase));
    let all = sentences.into_iter().flat_map(of_sentence);
    all.filter(|(_, cells)| cells.iter().any(|cell| rates.was_measured(*cell))).map(|(finding, _)| finding).collect()
}

fn middle(values: impl Iterator<Item = f64>) -> f64 {
    median(values.collect()).unwrap_or(f64::NAN)
}

fn one_server(mdts: u16) -> Cell {
    Cell::separate(1, mdts, MDT_DIRECTORIES)
}

fn shown(rates: &[f64]) -> String {
    let shown: Vec<String> = rates.iter().map(|rate| format!("{:.0}", rate / 1e3)).collect();
    format!("{} thousand/s", shown.join(", "))
}

fn percent(parts: &[f64]) -> String {
    let shown: Vec<String> = parts.iter().map(|part| format!("{:.0}%", part * 100.0)).collect();
    shown.join(", ")
}

/// What is not a number is least: no sentence about it holds.
fn least(values: &[f64]) -> f64 {
    if values.iter().any(|value| value.is_nan()) {
        f64::NAN
    } else {
        values.iter().copied().fold(f64::INFINITY, f64::min)
    }
}

fn more_mdts_help(rates: &Rates, phase: &'static str) -> (Finding, Vec<Cell>) {
    let cells = [1, 2, 4].map(one_server);
    let finding = grows(rates, phase, "more MDTs on one MDS help (1, 2, 4)", &cells);
    (finding, cells.into())
}

fn diminishing_returns(rates: &Rates, phase: &'static str) -> (Finding, Vec<Cell>) {
    let cells = [1, 4, 6].map(one_server);
    let [one, four, six] = cells.map(|cell| rates.get(cell, phase));
    // What an MDT adds.
    let (before, beyond) = ((four - one) / 3.0, (six - four) / 2.0);
    let finding = Finding {
        sentence: format!("{phase}: with diminishing returns beyond 4 MDTs"),
        holds: beyond < before / 2.0,
        results: format!("an MDT more adds {} up to 4, {} beyond", shown(&[before]), shown(&[beyond])),
    };
    (finding, cells.into())
}

fn processors_peak(rates: &Rates, phase: &'static str) -> (Finding, Vec<Cell>) {
    let cells = MDTS.map(one_server);
    let uses = cells.map(|cell| rates.server_use(cell, phase));
    let [low, high] = PEAK;
    let peak = if uses.iter().any(|part| part.is_nan()) { f64::NAN } else { uses.iter().copied().fold(0.0, f64::max) };
    let finding = Finding {
        sentence: format!("{phase}: processors of one MDS peak at 80% with more MDTs"),
        holds: (low..=high).contains(&peak),
        results: format!("{} with {}", percent(&uses), MDTS.map(|mdts| mdts.to_string()).join(", ")),
    };
    (finding, cells.into())
}

fn linear_from_2_to_4(rates: &Rates, phase: &'static str) -> (Finding, Vec<Cell>) {
    let pairs = [64, 128].map(|directories| [2, 4].map(|servers| Cell::separate(servers, 1, directories)));
    let parts = pairs.map(|[two, four]| rates.of_linear((two, four), phase));
    let finding = Finding {
        sentence: format!("{phase}: one MDT on each MDS scales linearly from 2 to 4 beyond 64 threads"),
        holds: least(&parts) >= LINEAR,
        results: format!("{} of linear with 256 and 512 threads", percent(&parts)),
    };
    (finding, pairs.concat())
}

fn linear_with_256_tasks(rates: &Rates, phase: &'static str) -> (Finding, Vec<Cell>) {
    let cells = SERVERS.map(|servers| Cell::separate(servers, 1, MDT_DIRECTORIES));
    let parts = cells.map(|cell| rates.of_linear((cells[0], cell), phase));
    let finding = Finding {
        sentence: format!("{phase}: with 256 threads it is linear in the number of MDS (1, 2, 4, 6)"),
        holds: least(&parts) >= LINEAR,
        results: format!("{} of linear", percent(&parts[1..])),
    };
    (finding, cells.into())
}

fn two_are_close(rates: &Rates, phase: &'static str) -> (Finding, Vec<Cell>) {
    let cells = [one_server(2), Cell::separate(2, 1, MDT_DIRECTORIES)];
    let [one, two] = cells.map(|cell| rates.get(cell, phase));
    let finding = Finding {
        sentence: format!("{phase}: 1x2 and 2x1 are close"),
        holds: (two / one - 1.0).abs() <= CLOSE,
        results: format!("2x1 is {:+.0}%", (two / one - 1.0) * 100.0),
    };
    (finding, cells.into())
}

fn four_are_far_apart(rates: &Rates, phase: &'static str) -> (Finding, Vec<Cell>) {
    let cells = [one_server(4), Cell::separate(4, 1, MDT_DIRECTORIES)];
    let [one, four] = cells.map(|cell| rates.get(cell, phase));
    let finding = Finding {
        sentence: format!("{phase}: 1x4 and 4x1 are far apart"),
        holds: four / one - 1.0 >= FAR,
        results: format!("4x1 is {:+.0}%", (four / one - 1.0) * 100.0),
    };
    (finding, cells.into())
}

fn six_each_scale(rates: &Rates, phase: &'static str) -> (Finding, Vec<Cell>) {
    let cells = SERVERS.map(|servers| Cell::separate(servers, 6, 128));
    let finding = grows(rates, phase, "with 6 MDTs on each MDS more MDS help (1, 2, 4, 6)", &cells);
    (finding, cells.into())
}

fn striped_scales(rates: &Rates, phase: &'static str) -> (Finding, Vec<Cell>) {
    let cells = SERVERS.map(|servers| Cell::striped(servers, 1, STRIPED_TASKS));
    let finding = grows(rates, phase, "one striped directory scales too (1, 2, 4, 6 MDS)", &cells);
    (finding, cells.into())
}

/// Whether each of these cells does more than the one before it.
fn grows(rates: &Rates, phase: &'static str, sentence: &str, cells: &[Cell]) -> Finding {
    let all: Vec<f64> = cells.iter().map(|cell| rates.get(*cell, phase)).collect();
    Finding {
        sentence: format!("{phase}: {sentence}"),
        holds: all.windows(2).all(|pair| pair[1] > pair[0] * (1.0 + EQUAL_WITHIN)),
        results: shown(&all),
    }
}

/// What StriaFS has to reach up to [`GOAL_SERVERS`].
fn goal(rates: &Rates, phase: &'static str, cell: fn(u16) -> Cell, part: f64) -> (Finding, Vec<Cell>) {
    let servers: Vec<u16> = MANY_SERVERS.into_iter().filter(|servers| *servers <= GOAL_SERVERS).collect();
    let finding = scales(rates, phase, cell, &servers, part);
    (finding, servers.into_iter().map(cell).collect())
}

/// The goal of a run on one host, with these numbers of MDS, the least first, and so many MDTs of
/// each.
pub fn live_findings(rates: &Rates, servers: &[u16], mdts: u16) -> Vec<Finding> {
    let of_load = |cell: fn(u16) -> Cell| {
        PHASES.map(|phase| scales(rates, phase, |servers| cell(servers).with_mdts(mdts), servers, LINEAR_LIVE))
    };
    of_load(growing_separate).into_iter().chain(of_load(growing_striped)).collect()
}

/// Whether so much of linear is reached with each of these numbers of MDS, from the first of them.
fn scales(rates: &Rates, phase: &'static str, cell: impl Fn(u16) -> Cell, servers: &[u16], part: f64) -> Finding {
    let [first, others @ ..] = servers else { return Finding::default() };
    let parts: Vec<f64> = others.iter().map(|to| rates.of_linear((cell(*first), cell(*to)), phase)).collect();
    let names: Vec<String> = others.iter().map(u16::to_string).collect();
    Finding {
        sentence: format!(
            "{phase}: in {} at least {:.0}% of linear from {first} to {} MDS{} (goal of StriaFS)",
            cell(*first).load.name(),
            part * 100.0,
            servers[servers.len() - 1],
            of_mdts(cell(*first).mdts)
        ),
        holds: least(&parts) >= part,
        results: format!("{} with {}", percent(&parts), names.join(", ")),
    }
}

/// Said of MDS with more than one MDT.
fn of_mdts(mdts: u16) -> String {
    if mdts > 1 { format!(" with {mdts} MDTs each") } else { String::new() }
}

fn open_question(rates: &Rates, phase: &'static str) -> (Finding, Vec<Cell>) {
    let beyond: Vec<u16> = MANY_SERVERS.into_iter().filter(|servers| *servers > STUDY_SERVERS).collect();
    let parts_of = |cell: fn(u16) -> Cell| -> Vec<f64> {
        beyond.iter().map(|servers| rates.of_linear((cell(STUDY_SERVERS), cell(*servers)), phase)).collect()
    };
    let (separate, striped) = (parts_of(growing_separate), parts_of(growing_striped));
    let names: Vec<String> = beyond.iter().map(u16::to_string).collect();
    let finding = Finding {
        sentence: format!("{phase}: it stays linear beyond 6 MDS (open question of the study)"),
        holds: least(&separate) >= LINEAR && least(&striped) >= LINEAR_STRIPED,
        results: format!(
            "of linear from 6 MDS with {}: {} in separate directories, {} in a striped one",
            names.join(", "),
            percent(&separate),
            percent(&striped)
        ),
    };
    let cells = beyond.iter().flat_map(|servers| [growing_separate(*servers), growing_striped(*servers)]).collect();
    (finding, cells)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::study::e5::cells;

    /// Rates in which an MDT has so much, an MDS not more than four times that.
    fn rates(servers_max: u16) -> Rates {
        let mut rates = Rates::default();
        for (cell, phase) in cells(servers_max).into_iter().flat_map(|cell| PHASES.map(|phase| (cell, phase))) {
            let rate = f64::from(cell.servers) * 100e3 * f64::from(cell.mdts.min(4));
            let outcome = Outcome {
                cell: cell.name(),
                phase,
                operations: rate as u64,
                seconds: 1.0,
                requests: 1.0,
                server_use: 0.2 * f64::from(cell.mdts.min(4)),
                server_use_min: 0.2,
                node_use: 0.1,
            };
            rates.add(cell, &outcome);
        }
        rates
    }

    #[test]
    fn a_testbed_that_scales_fulfils_all_but_what_it_contradicts() {
        let found = findings(&rates(64));
        assert_eq!(found.len(), 12 * PHASES.len());
        let failing: Vec<&str> =
            found.iter().filter(|finding| !finding.holds).map(|finding| finding.sentence.as_str()).collect();
        // 4 MDTs of one MDS do as much as 4 MDS here.
        assert_eq!(failing, PHASES.map(|phase| format!("{phase}: 1x4 and 4x1 are far apart")));
    }

    /// A host that is half as fast in one of three rounds.
    #[test]
    fn growth_is_that_within_rounds() {
        let mut rates = Rates::default();
        for (round, speed) in [1.0, 0.5, 0.9].into_iter().enumerate() {
            for (cell, rate) in [(growing_separate(1), 1000.0), (growing_separate(4), [3600.0, 3640.0, 3800.0][round])]
            {
                let outcome = Outcome {
                    cell: cell.name(),
                    phase: "stat",
                    operations: (rate * speed) as u64,
                    seconds: 1.0,
                    requests: 1.0,
                    server_use: 1.0,
                    server_use_min: 1.0,
                    node_use: 0.3,
                };
                rates.add(cell, &outcome);
            }
        }
        let part = rates.of_linear((growing_separate(1), growing_separate(4)), "stat");
        assert!((part - 0.91).abs() < 1e-3, "{part}");
        assert!(rates.of_linear((growing_separate(1), growing_separate(2)), "stat").is_nan(), "not measured");
    }

    #[test]
    fn what_was_not_measured_fails_or_is_left_out() {
        assert!(findings(&Rates::default()).is_empty(), "nothing was run");
        let found = findings(&rates(8));
        let of = |text: &str| found.iter().find(|finding| finding.sentence.contains(text)).unwrap();
        assert!(of("scales linearly from 2 to 4").holds);
        assert!(!of("goal of StriaFS").holds && !of("open question").holds, "16 MDS are missing: {found:?}");
    }
}
