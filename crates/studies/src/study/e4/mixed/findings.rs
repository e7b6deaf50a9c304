//! What the issue of ageing asks of the shipped allocator, held against the measured rates.

use std::collections::BTreeMap;

use super::{super::Windows, Against, Point};
use crate::study::shape::Finding;

/// Points of each size of windows at each fill, in percent.
pub type Measured = BTreeMap<(Windows, u32), Vec<Point>>;

/// Of the control's rate, with adaptive windows.
const ADAPTIVE_PART: f64 = 0.95;
/// Fills from which on nothing is claimed.
const FULL_PERCENT: u32 = 95;

/// A rate: its name, its unit, and where it is.
pub type Rate = (&'static str, &'static str, fn(&Point) -> Against);
/// The rates that are compared with the control's.
pub const RATES: [Rate; 4] = [
    ("write", "MiB/s", |point| point.write),
    ("read of new data", "MiB/s", |point| point.read_new),
    ("read of objects of 1 MiB or more", "MiB/s", |point| point.read_large),
    ("read of smaller objects", "objects/s", |point| point.read_small),
];

/// Every sentence and whether it holds.
pub fn findings(measured: &Measured) -> Vec<Finding> {
    let mut findings: Vec<Finding> = RATES.iter().map(|rate| at_least(measured, *rate)).collect();
    findings.extend(RATES.iter().map(|rate| not_below_tables(measured, *rate)));
    findings.push(allocation(measured));
    findings
}

/// Points of these windows below 95%, with their fill.
fn below_full(measured: &Measured, wanted: Windows) -> impl Iterator<Item = (u32, &Point)> {
    let of = measured.iter().filter(move |((windows, fill), _)| *windows == wanted && *fill < FULL_PERCENT);
    of.flat_map(|((_, fill), points)| points.iter().map(move |point| (*fill, point)))
}

/// "At least 95% of the control, at any churn, at any fill below 95%."
fn at_least(measured: &Measured, (name, unit, rate): Rate) -> Finding {
    let points = below_full(measured, Windows::Adaptive);
    let lowest = points.min_by(|(_, one), (_, other)| rate(one).part().total_cmp(&rate(other).part()));
    let results = lowest.map_or("nothing was measured".to_owned(), |(fill, point)| {
        let Against { aged, copy } = rate(point);
        let part = 100.0 * aged / copy;
        let churn = point.churn;
        format!("lowest: {part:.1}% ({aged:.0} of {copy:.0} {unit}) at {fill}% full, churn {churn}")
    });
    Finding {
        sentence: format!("{name}, adaptive windows: at least 95% of a fresh copy at any fill below 95%"),
        holds: lowest.is_some_and(|(_, point)| rate(point).part() >= ADAPTIVE_PART),
        results,
    }
}

/// Adaptive windows must not come near their control by having a slow one.
fn not_below_tables(measured: &Measured, (name, unit, rate): Rate) -> Finding {
    let mut worst: Option<(f64, String)> = None;
    for ((windows, fill), points) in measured.iter().filter(|((windows, _), _)| *windows != Windows::Adaptive) {
        let Some(adaptive) = measured.get(&(Windows::Adaptive, *fill)) else { continue };
        for (table, own) in points.iter().zip(adaptive) {
            let (theirs, own) = (rate(table).aged, rate(own).aged);
            if worst.as_ref().is_none_or(|(part, _)| own / theirs < *part) {
                let (name, churn) = (windows.name(), table.churn);
                let where_ = format!("{own:.0} against {theirs:.0} {unit} with {name} at {fill}% full, churn {churn}");
                worst = Some((own / theirs, where_));
            }
        }
    }
    Finding {
        sentence: format!("{name}: adaptive windows are within 5% of the best table, or better, everywhere"),
        holds: worst.as_ref().is_some_and(|(part, _)| *part >= ADAPTIVE_PART),
        results: worst.map_or("nothing was measured".to_owned(), |(part, at)| format!("{:.1}%: {at}", 100.0 * part)),
    }
}

/// "Sixteen tasks write an aged device as fast as a fresh copy's."
fn allocation(measured: &Measured) -> Finding {
    let all = below_full(measured, Windows::Adaptive).flat_map(|(fill, point)| {
        point.by_writers.iter().map(move |(tasks, rate)| (rate.part(), *tasks, fill, point.churn))
    });
    let lowest = all.min_by(|one, other| one.0.total_cmp(&other.0));
    Finding {
        sentence: "write by 1 to 16 tasks, adaptive windows: at least 95% of a fresh copy at any fill below 95%"
            .to_owned(),
        holds: lowest.is_some_and(|(part, ..)| part >= ADAPTIVE_PART),
        results: lowest.map_or("nothing was measured".to_owned(), |(part, tasks, fill, churn)| {
            format!("lowest: {:.1}% with {tasks} at {fill}% full, churn {churn}", 100.0 * part)
        }),
    }
}

#[cfg(test)]
mod tests {
    use blocks::Histogram;

    use super::{super::Layout, *};

    fn point(part: f64) -> Point {
        let rate = Against { aged: 500.0 * part, copy: 500.0 };
        Point {
            churn: 2,
            write: rate,
            read_new: rate,
            read_large: rate,
            read_small: rate,
            layout: Layout::default(),
            copy_layout: Layout::default(),
            histogram: Histogram::default(),
            by_writers: vec![(1, rate), (16, rate)],
            allocated: Vec::new(),
        }
    }

    fn measured(adaptive: f64, full: f64, table: f64) -> Measured {
        let all = [(Windows::Adaptive, 80, adaptive), (Windows::Adaptive, 95, full), (Windows::Mib8, 80, table)];
        all.into_iter().map(|(windows, fill, part)| ((windows, fill), vec![point(part)])).collect()
    }

    #[test]
    fn sentences_hold_from_95_percent_on_and_say_nothing_of_a_full_device() {
        let holding = |measured: &Measured| findings(measured).iter().map(|one| one.holds).collect::<Vec<_>>();
        assert_eq!(holding(&measured(0.96, 0.3, 1.0)), [true; 9]);
        let worse = holding(&measured(0.94, 1.0, 0.9));
        assert_eq!(worse, [false, false, false, false, true, true, true, true, false]);
        assert_eq!(holding(&measured(0.96, 1.0, 1.2))[4..8], [false; 4]);
        assert_eq!(holding(&Measured::new()), [false; 9]);
    }
}
