//! The table: medians of repetitions, each next to that of the local file system in the same
//! session.

use comfy_table::{CellAlignment, ContentLineStyle, LineStyle, Table, TableStyle};
use serde::{Deserialize, Serialize};

use super::measurement::Measurement;

/// A line below the header, nothing else.
pub const STYLE: TableStyle = TableStyle::new()
    .header_lines(ContentLineStyle::none())
    .header_separator(LineStyle::none().fill('─').junction('─'))
    .content_lines(ContentLineStyle::none());

type Key = (&'static str, &'static str, usize, &'static str);

/// Medians of one phase of a benchmark on one system.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Line {
    /// Benchmark.
    pub bench: String,
    /// Phase of it.
    pub phase: String,
    /// Workers.
    pub workers: usize,
    /// File system.
    pub system: String,
    /// MiB per second for transfers, operations per second for the rest.
    pub rate: f64,
    /// Whether bytes count rather than operations.
    pub is_transfer: bool,
    /// Rate as a multiple of the local file system's, if that was measured too.
    pub ratio: Option<f64>,
    /// Processor time per operation in microseconds, or per GiB in seconds.
    pub cpu_cost: f64,
    /// Bytes that the disks wrote for each byte of data, if that was measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub amplification: Option<f64>,
    /// fdatasyncs per second of the disk.
    pub fdatasync_per_second: f64,
}

impl Line {
    /// Unit of the rate.
    pub fn unit(&self) -> &'static str {
        if self.is_transfer { "MiB/s" } else { "ops/s" }
    }

    /// Processor time, with its unit.
    pub fn cpu(&self) -> String {
        match self.is_transfer {
            true => format!("{:.2} s/GiB", self.cpu_cost),
            false => format!("{:.0} us/op", self.cpu_cost),
        }
    }
}

/// Medians of all results, in the order they were first measured.
pub fn lines(results: &[Measurement]) -> Vec<Line> {
    let mut keys: Vec<Key> = Vec::new();
    for result in results {
        if !keys.contains(&key(result)) {
            keys.push(key(result));
        }
    }
    keys.sort_by_key(|(bench, phase, workers, _)| position(results, bench, phase, *workers));
    keys.into_iter().map(|key| line(results, key)).collect()
}

/// A table with this header; numbers are in these columns.
pub fn empty_table(header: &[&str], numbers: &[usize]) -> Table {
    let mut table = Table::new();
    table.load_style(STYLE);
    table.set_header(header.to_vec());
    for column in numbers {
        if let Some(column) = table.column_mut(*column) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table
}

/// The lines as a table.
pub fn table(lines: &[Line]) -> Table {
    let mut header = vec!["benchmark", "phase", "workers", "system", "rate", "unit", "ratio", "CPU", "fdatasync/s"];
    let has_written = lines.iter().any(|line| line.amplification.is_some());
    header.extend(has_written.then_some("written"));
    let mut table = empty_table(&header, &[2, 4, 6, 7, 8, 9][..5 + usize::from(has_written)]);
    for line in lines {
        let mut cells = vec![
            line.bench.clone(),
            line.phase.clone(),
            line.workers.to_string(),
            line.system.clone(),
            format!("{:.0}", line.rate),
            line.unit().to_owned(),
            shown_ratio(line.ratio),
            line.cpu(),
            format!("{:.0}", line.fdatasync_per_second),
        ];
        let written = line.amplification.map_or_else(|| "-".to_owned(), |times| format!("{times:.2}x"));
        cells.extend(has_written.then_some(written));
        table.add_row(cells);
    }
    table
}

/// A ratio, or that there is none.
pub fn shown_ratio(ratio: Option<f64>) -> String {
    ratio.map_or_else(|| "-".to_owned(), |ratio| format!("{ratio:.2}"))
}

fn key(result: &Measurement) -> Key {
    (result.bench, result.phase, result.workers, result.system)
}

fn position(results: &[Measurement], bench: &str, phase: &str, workers: usize) -> usize {
    let same = |result: &Measurement| (result.bench, result.phase, result.workers) == (bench, phase, workers);
    results.iter().position(same).unwrap_or(usize::MAX)
}

fn line(results: &[Measurement], (bench, phase, workers, system): Key) -> Line {
    let of = |system: &str| -> Vec<&Measurement> {
        results.iter().filter(|result| key(result) == (bench, phase, workers, system_name(results, system))).collect()
    };
    let (own, local) = (of(system), of("local"));
    let rate = median(own.iter().map(|result| result.rate())).unwrap_or_default();
    let base = median(local.iter().map(|result| result.rate()));
    Line {
        bench: bench.to_owned(),
        phase: phase.to_owned(),
        workers,
        system: system.to_owned(),
        rate,
        is_transfer: own.first().is_some_and(|result| result.is_transfer()),
        ratio: base.filter(|base| *base > 0.0).map(|base| rate / base),
        cpu_cost: median(own.iter().map(|result| result.cpu_cost())).unwrap_or_default(),
        amplification: median(own.iter().filter_map(|result| result.amplification())),
        fdatasync_per_second: median(own.iter().map(|result| result.fdatasync_per_second)).unwrap_or_default(),
    }
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
            written_bytes: None,
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
        let text = table(&lines(&results)).to_string();
        assert!(text.contains("0.50") && text.contains("500 us/op"), "{text}");
        assert!(!text.contains("written"), "{text}");
    }

    #[test]
    fn what_disks_wrote_is_shown_where_it_was_counted() {
        let counted = Measurement { bytes: 1000, written_bytes: Some(2500), ..result("local", 1.0) };
        let text = table(&lines(&[counted, result("mount", 1.0)])).to_string();
        assert!(text.contains("written") && text.contains("2.50x"), "{text}");
        assert_eq!(text.lines().count(), 4, "{text}");
    }
}
