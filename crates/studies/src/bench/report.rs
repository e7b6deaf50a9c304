//! The table: medians of repetitions, each beside the local file system's in the same session.

use comfy_table::{CellAlignment, ContentLineStyle, LineStyle, Table, TableStyle};

use super::Measurement;

/// A line below the header, nothing else.
pub const STYLE: TableStyle = TableStyle::new()
    .header_lines(ContentLineStyle::none())
    .header_separator(LineStyle::none().fill('─').junction('─'))
    .content_lines(ContentLineStyle::none());

type Key = (&'static str, &'static str, usize, &'static str);

/// All results as a table, in the order they were first measured.
pub fn table(results: &[Measurement]) -> Table {
    let mut table = Table::new();
    table.load_style(STYLE);
    table.set_header(["benchmark", "phase", "workers", "system", "rate", "unit", "ratio", "CPU", "fdatasync/s"]);
    for column in [2, 4, 6, 7, 8] {
        if let Some(column) = table.column_mut(column) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    let mut keys: Vec<Key> = Vec::new();
    for result in results {
        if !keys.contains(&key(result)) {
            keys.push(key(result));
        }
    }
    keys.sort_by_key(|(bench, phase, workers, _)| position(results, bench, phase, *workers));
    for key in keys {
        table.add_row(row(results, key));
    }
    table
}

fn key(result: &Measurement) -> Key {
    (result.bench, result.phase, result.workers, result.system)
}

fn position(results: &[Measurement], bench: &str, phase: &str, workers: usize) -> usize {
    let same = |result: &Measurement| (result.bench, result.phase, result.workers) == (bench, phase, workers);
    results.iter().position(same).unwrap_or(usize::MAX)
}

fn row(results: &[Measurement], (bench, phase, workers, system): Key) -> [String; 9] {
    let of = |system: &str| -> Vec<&Measurement> {
        results.iter().filter(|result| key(result) == (bench, phase, workers, system_name(results, system))).collect()
    };
    let (own, local) = (of(system), of("local"));
    let rate = median(own.iter().map(|result| result.rate()));
    let ratio = match median(local.iter().map(|result| result.rate())) {
        Some(base) if base > 0.0 => rate.map(|rate| format!("{:.2}", rate / base)),
        _ => None,
    };
    let transfer = own.first().is_some_and(|result| result.is_transfer());
    let cost = median(own.iter().map(|result| result.cpu_cost())).unwrap_or_default();
    let sync = median(own.iter().map(|result| result.fdatasync_per_second)).unwrap_or_default();
    [
        bench.to_owned(),
        phase.to_owned(),
        workers.to_string(),
        system.to_owned(),
        format!("{:.0}", rate.unwrap_or_default()),
        if transfer { "MiB/s" } else { "ops/s" }.to_owned(),
        ratio.unwrap_or_else(|| "-".to_owned()),
        if transfer { format!("{cost:.2} s/GiB") } else { format!("{cost:.0} us/op") },
        format!("{sync:.0}"),
    ]
}

/// The static name equal to `name`, for comparing keys.
fn system_name(results: &[Measurement], name: &str) -> &'static str {
    results.iter().map(|result| result.system).find(|known| *known == name).unwrap_or_default()
}

fn median(values: impl Iterator<Item = f64>) -> Option<f64> {
    let mut sorted: Vec<f64> = values.collect();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn result(system: &'static str, seconds: f64) -> Measurement {
        Measurement {
            bench: "mdtest-easy",
            phase: "create",
            system,
            workers: 1,
            operations: 1000,
            bytes: 0,
            seconds,
            cpu_seconds: 0.5,
            fdatasync_per_second: 100.0,
        }
    }

    #[test]
    fn ratios_are_of_medians() {
        let results = [
            result("local", 1.0),
            result("mount", 4.0),
            result("local", 3.0),
            result("mount", 2.0),
            result("local", 1.0),
            result("mount", 2.0),
        ];
        let text = table(&results).to_string();
        assert!(text.contains("0.50") && text.contains("500 us/op"), "{text}");
    }
}
