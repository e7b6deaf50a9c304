//! What the live study shows: medians as a table, what part of linear growth they are, and a
//! figure. The table is that of virtual time, too.

use std::path::Path;

use comfy_table::Table;

use super::{Results, ScalingOptions, counted_mdts};
use crate::{
    bench::{report::empty_table, study::describe},
    figure::{BarSeries, write_curves},
    study::e5::{
        Cell, Outcome, PHASES,
        findings::{Rates, live_findings},
        growing_separate, growing_striped,
    },
};

/// What will be done.
pub fn introduction(options: &ScalingOptions, servers: &[u16], mdts: &[u16]) -> String {
    let listed = |counts: &[u16]| counts.iter().map(u16::to_string).collect::<Vec<_>>().join(", ");
    format!(
        "E5 live: {} metadata servers with {} MDTs and {}% of a processor each, {} native clients; 64 tasks for each \
         server, {} files each; {} rounds",
        listed(servers),
        listed(mdts),
        options.percent,
        options.clients,
        options.task_files,
        options.repeat
    )
}

/// Table, and whether the goal is reached.
pub fn shown(results: &Results, servers: &[u16], mdts: &[u16]) -> String {
    let mut table = table();
    for cell in cells(servers, mdts) {
        let outcomes: Vec<Outcome> = PHASES.into_iter().filter_map(|phase| median(results, cell, phase)).collect();
        add_row(&mut table, cell, &outcomes);
    }
    let rates = rates(results);
    let findings = mdts.iter().flat_map(|each| live_findings(&rates, servers, *each));
    let lines: Vec<String> = findings.map(|finding| describe(&finding)).collect();
    let least = results.values().flatten().map(|outcome| outcome.server_use_min).fold(f64::INFINITY, f64::min);
    format!("{table}\nMDS used {:.0}% of their quotas or more\n{}\n", least * 100.0, lines.join("\n"))
}

fn cells(servers: &[u16], mdts: &[u16]) -> Vec<Cell> {
    let of_load = |load: fn(u16) -> Cell| {
        mdts.iter().flat_map(move |each| servers.iter().map(move |servers| load(*servers).with_mdts(*each)))
    };
    of_load(growing_separate).chain(of_load(growing_striped)).collect()
}

/// The round whose rate is the median; none if the phase was not measured.
fn median(results: &Results, cell: Cell, phase: &'static str) -> Option<Outcome> {
    let mut rounds = results.get(&(cell, phase))?.clone();
    rounds.sort_by(|one, other| one.rate().total_cmp(&other.rate()));
    Some(rounds.swap_remove(rounds.len() / 2))
}

fn rates(results: &Results) -> Rates {
    let mut rates = Rates::default();
    for ((cell, _), rounds) in results {
        rounds.iter().for_each(|outcome| rates.add(*cell, outcome));
    }
    rates
}

/// For outcomes of cells: the first columns are about the load, the rest about each phase.
pub fn table() -> Table {
    let mut header = vec!["configuration".to_owned(), "tasks".to_owned(), "files".to_owned()];
    for phase in PHASES {
        header.extend(["/s", " requests", " MDS", " nodes"].map(|what| format!("{phase}{what}")));
    }
    let header: Vec<&str> = header.iter().map(String::as_str).collect();
    empty_table(&header, &(1..header.len()).collect::<Vec<_>>())
}

/// Rates, requests for each operation, and the use of the busiest machines in percent.
pub fn add_row(table: &mut Table, cell: Cell, outcomes: &[Outcome]) {
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

/// What part of linear growth each load and phase reaches; a figure for each number of MDTs.
pub fn draw(directory: &Path, results: &Results, servers: &[u16], mdts: &[u16]) -> anyhow::Result<()> {
    let rates = rates(results);
    mdts.iter().try_for_each(|each| {
        let (name, of) = match each {
            1 => ("e5-live.svg".to_owned(), String::new()),
            _ => (format!("e5-live-{each}-mdts.svg"), format!(" with {}", counted_mdts(*each))),
        };
        let title = format!("E5 live: 64 tasks for each MDS{of}, part of linear growth");
        draw_linear(&directory.join(name), &title, &rates, servers, *each)
    })
}

/// The same of any rates, from the first of these numbers of MDS, with so many MDTs of each.
pub fn draw_linear(path: &Path, title: &str, rates: &Rates, servers: &[u16], mdts: u16) -> anyhow::Result<()> {
    let groups: Vec<String> = servers.iter().map(|count| format!("{count} MDS")).collect();
    let first = servers.first().copied().unwrap_or(1);
    let curve = |name: &str, cell: fn(u16) -> Cell, phase: &'static str| BarSeries {
        name: format!("{phase}, {name}"),
        values: servers
            .iter()
            .map(|count| (cell(first).with_mdts(mdts), cell(*count).with_mdts(mdts)))
            .map(|pair| 100.0 * rates.of_linear(pair, phase))
            .collect(),
    };
    let separate = PHASES.map(|phase| curve("separate", growing_separate, phase));
    let striped = PHASES.map(|phase| curve("striped", growing_striped, phase));
    let series: Vec<BarSeries> = separate.into_iter().chain(striped).collect();
    write_curves(path, title, "% of linear", &groups, &series)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Three rounds, one of them disturbed; `lost`: of the rate with four servers.
    fn results(lost: f64, mdts: &[u16]) -> Results {
        let mut results = Results::new();
        for cell in cells(&[1, 4], mdts) {
            for phase in PHASES {
                let rate = f64::from(cell.servers) * 1000.0 * if cell.servers == 4 { 1.0 - lost } else { 1.0 };
                let outcome = |rate: f64| Outcome {
                    cell: cell.name(),
                    phase,
                    operations: 6400,
                    seconds: 6400.0 / rate,
                    requests: 1.25,
                    server_use: 0.99,
                    server_use_min: 0.97,
                    node_use: 0.4,
                };
                results.insert((cell, phase), [rate, rate / 3.0, rate * 1.01].map(outcome).into());
            }
        }
        results
    }

    #[test]
    fn the_goal_is_judged_by_medians_and_four_servers_show_it() {
        let text = shown(&results(0.1, &[1]), &[1, 4], &[1]);
        assert_eq!(text.matches("        holds: ").count(), 6, "{text}");
        assert!(text.contains("90% with 4") && text.contains("97% of their quotas"), "{text}");
        assert!(text.contains("4x1, 64 directories") && text.contains("4x1, striped, 256 tasks"), "{text}");
        let text = shown(&results(0.2, &[1, 2]), &[1, 4], &[1, 2]);
        assert_eq!(text.matches("DOES NOT HOLD: ").count(), 12, "{text}");
        assert!(
            text.contains("from 1 to 4 MDS with 2 MDTs each") && text.contains("4x2, striped, 256 tasks"),
            "{text}"
        );
    }

    #[test]
    fn the_figure_has_a_curve_for_each_load_and_phase() {
        let place = tempfile::tempdir().unwrap();
        draw(place.path(), &results(0.1, &[1, 2]), &[1, 4], &[1, 2]).unwrap();
        for name in ["e5-live.svg", "e5-live-2-mdts.svg"] {
            let text = std::fs::read_to_string(place.path().join(name)).unwrap();
            assert_eq!(text.matches("stroke-width=\"2\" points").count(), 6, "{text}");
        }
    }
}
