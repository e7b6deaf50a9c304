//! The sentences of the study, and this allocator's own, held against the measured rates.

use std::collections::BTreeMap;

use super::{FILES, Step, Windows};
use crate::study::shape::Finding;

/// Steps of an OST for each size of windows.
pub type Measured = BTreeMap<Windows, Vec<Step>>;

const TABLES: [Windows; 4] = [Windows::Mib1, Windows::Mib2, Windows::Mib4, Windows::Mib8];
/// Of the clean rate, with windows of 8 MiB: the study's.
const WRITE_PART: f64 = 0.89;
const READ_PART: f64 = 0.82;
/// Of the clean rate, with adaptive windows.
const ADAPTIVE_PART: f64 = 0.95;
/// "Slightly": at most so much.
const SLIGHTLY: f64 = 0.15;
/// "Clearly": at least so much.
const CLEARLY: f64 = 0.10;

type Rate = (&'static str, fn(&Step) -> f64);
const RATES: [Rate; 2] = [("write", |step| step.write), ("read", |step| step.read)];

/// The clean rate, and the lowest and highest one of the aged device; NaN if there is none, so that
/// no sentence holds.
fn rates(steps: &[Step], rate: fn(&Step) -> f64) -> (f64, f64, f64) {
    let clean = steps.iter().find(|step| step.deleted.is_none()).map_or(f64::NAN, rate);
    let aged = || steps.iter().filter(|step| step.deleted.is_some()).map(rate);
    match aged().next() {
        None => (clean, f64::NAN, f64::NAN),
        Some(first) => (clean, aged().fold(first, f64::min), aged().fold(first, f64::max)),
    }
}

/// Every sentence and whether it holds.
pub fn findings(measured: &Measured) -> Vec<Finding> {
    let of = |windows: Windows| measured.get(&windows).map_or(&[][..], Vec::as_slice);
    let mut findings: Vec<Finding> = RATES.map(|rate| variation(of, rate)).into();
    let [write, read] = RATES;
    findings.push(lowest("8 MiB", of(Windows::Mib8), write, WRITE_PART));
    findings.push(lowest("8 MiB", of(Windows::Mib8), read, READ_PART));
    findings.push(clean(of, "clean writes are slightly slower with larger windows", write, |small, large| {
        large < small && large >= small * (1.0 - SLIGHTLY)
    }));
    findings.push(clean(of, "clean reads are clearly faster with larger windows", read, |small, large| {
        large >= small * (1.0 + CLEARLY)
    }));
    findings.extend(RATES.map(|rate| restored(of, rate)));
    findings.extend(RATES.map(|rate| lowest("adaptive", of(Windows::Adaptive), rate, ADAPTIVE_PART)));
    findings.extend(RATES.map(|rate| not_below_tables(of, rate)));
    findings
}

/// What can be said of places alone, without rates: of any device.
pub fn layout_findings(measured: &Measured) -> Vec<Finding> {
    let of = |windows: Windows| measured.get(&windows).map_or(&[][..], Vec::as_slice);
    vec![free_space(of), shorter_pieces(of), map_restored(of), no_more_pieces(of)]
}

fn step_of(steps: &[Step], deleted: Option<u32>) -> Option<&Step> {
    steps.iter().find(|step| step.deleted == deleted)
}

/// A value for each table and for adaptive windows, as text.
fn each(values: &[(Windows, f64)], unit: &str) -> String {
    let shown: Vec<String> =
        values.iter().map(|(windows, value)| format!("{} {value:.0}{unit}", windows.name())).collect();
    shown.join(", ")
}

/// What the first deletion leaves is in pieces of the windows' size.
fn free_space<'a>(of: impl Fn(Windows) -> &'a [Step]) -> Finding {
    let score = |windows| step_of(of(windows), Some(1)).map_or(f64::NAN, |step| step.histogram.score());
    let scores = Windows::ALL.map(|windows| (windows, score(windows)));
    let falls = scores.windows(2).all(|pair| pair[1].1 < pair[0].1);
    Finding {
        sentence: "free space is the less fragmented the larger windows are, and least with adaptive ones".to_owned(),
        holds: falls,
        results: format!("of 100, one of {FILES} files deleted: {}", each(&scores, "")),
    }
}

/// Why reads are faster with larger windows.
fn shorter_pieces<'a>(of: impl Fn(Windows) -> &'a [Step]) -> Finding {
    let runs = |windows| step_of(of(windows), None).map_or(f64::NAN, |step| step.runs_per_gib);
    let all = TABLES.map(|windows| (windows, runs(windows)));
    Finding {
        sentence: "on a clean device new files are in fewer pieces with larger windows".to_owned(),
        holds: all.windows(2).all(|pair| pair[1].1 < pair[0].1),
        results: format!("pieces per GiB: {}", each(&all, "")),
    }
}

/// When everything is free again, the device is as if it was never used.
fn map_restored<'a>(of: impl Fn(Windows) -> &'a [Step]) -> Finding {
    let is_restored = |windows| {
        let (steps, last) = (of(windows), of(windows).last().filter(|step| step.used_percent() == 0));
        step_of(steps, None)
            .zip(last)
            .is_some_and(|(clean, last)| (&clean.histogram, &clean.picture) == (&last.histogram, &last.picture))
    };
    let not: Vec<&str> = Windows::ALL.into_iter().filter(|one| !is_restored(*one)).map(Windows::name).collect();
    Finding {
        sentence: "bitmap and free space are as on a clean device when everything is free again".to_owned(),
        holds: not.is_empty(),
        results: if not.is_empty() { "for all windows".to_owned() } else { format!("not for {}", not.join(", ")) },
    }
}

/// "At least 95% of clean, whatever the fragmentation", said of pieces.
fn no_more_pieces<'a>(of: impl Fn(Windows) -> &'a [Step]) -> Finding {
    let (clean, _, most) = rates(of(Windows::Adaptive), |step| step.runs_per_gib);
    Finding {
        sentence: "with adaptive windows fragmentation puts new files in no more pieces than a clean device does"
            .to_owned(),
        holds: most <= clean / ADAPTIVE_PART,
        results: format!("pieces per GiB: clean {clean:.0}, at most {most:.0}"),
    }
}

/// "The variation is largest at 1 MiB."
fn variation<'a>(of: impl Fn(Windows) -> &'a [Step], (name, rate): Rate) -> Finding {
    let parts = TABLES.map(|windows| {
        let (clean, lowest, highest) = rates(of(windows), rate);
        (highest.max(clean) - lowest.min(clean)) / clean
    });
    let [first, rest @ ..] = parts;
    let shown: Vec<String> =
        TABLES.iter().zip(parts).map(|(one, part)| format!("{} {:.0}%", one.name(), part * 100.0)).collect();
    Finding {
        sentence: format!("{name}: the variation is largest with windows of 1 MiB"),
        holds: rest.iter().all(|part| first > *part),
        results: shown.join(", "),
    }
}

/// "Whatever the fragmentation, rates stay at so much of the clean one."
fn lowest(windows: &str, steps: &[Step], (name, rate): Rate, part: f64) -> Finding {
    let (clean, lowest, _) = rates(steps, rate);
    let worst =
        steps.iter().filter(|step| step.deleted.is_some()).min_by(|one, other| rate(one).total_cmp(&rate(other)));
    let at = worst.map_or(String::new(), |step| format!(" at {}% full", step.used_percent()));
    Finding {
        sentence: format!(
            "{name}, windows {windows}: at least {:.0}% of clean, whatever the fragmentation",
            part * 100.0
        ),
        holds: lowest >= clean * part,
        results: format!("clean {clean:.0} MiB/s, lowest {lowest:.0} MiB/s ({:.0}%){at}", 100.0 * lowest / clean),
    }
}

/// A statement about the clean rates of the smallest and the largest windows.
fn clean<'a>(
    of: impl Fn(Windows) -> &'a [Step],
    sentence: &str,
    (_, rate): Rate,
    holds: impl Fn(f64, f64) -> bool,
) -> Finding {
    let rates = TABLES.map(|windows| rates(of(windows), rate).0);
    let shown: Vec<String> =
        TABLES.iter().zip(rates).map(|(one, rate)| format!("{} {rate:.0} MiB/s", one.name())).collect();
    Finding { sentence: sentence.to_owned(), holds: holds(rates[0], rates[3]), results: shown.join(", ") }
}

/// When everything is free again, the device is as if it was never used.
fn restored<'a>(of: impl Fn(Windows) -> &'a [Step], (name, rate): Rate) -> Finding {
    let parts = Windows::ALL.map(|windows| {
        let steps = of(windows);
        let last = steps.last().filter(|step| step.used_percent() == 0).map_or(f64::NAN, rate);
        last / rates(steps, rate).0
    });
    let shown: Vec<String> =
        Windows::ALL.iter().zip(parts).map(|(one, part)| format!("{} {:.0}%", one.name(), part * 100.0)).collect();
    Finding {
        sentence: format!("{name}: as on a clean device when everything is free again"),
        holds: parts.iter().all(|part| (part - 1.0).abs() <= 0.02),
        results: shown.join(", "),
    }
}

/// Adaptive windows must not come near their clean rate by having a low one.
fn not_below_tables<'a>(of: impl Fn(Windows) -> &'a [Step], (name, rate): Rate) -> Finding {
    let adaptive = of(Windows::Adaptive);
    let below = |table: &Windows| {
        let steps = of(*table).iter().zip(adaptive);
        steps.map(|(theirs, own)| rate(own) / rate(theirs)).fold(f64::INFINITY, f64::min)
    };
    let is_complete = !adaptive.is_empty() && TABLES.iter().all(|table| of(*table).len() == adaptive.len());
    let lowest = TABLES.iter().map(below).fold(f64::INFINITY, f64::min);
    Finding {
        sentence: format!("{name}: at every step adaptive windows are within 5% of the best table, or better"),
        holds: is_complete && lowest >= ADAPTIVE_PART,
        results: format!("lowest part of a table's rate: {:.0}%", 100.0 * lowest),
    }
}

#[cfg(test)]
mod tests {
    use blocks::{Geometry, Histogram, Picture};

    use super::*;
    use crate::study::e4::Cell;

    fn steps(clean: (f64, f64), aged: (f64, f64)) -> Vec<Step> {
        let step = |deleted, (write, read)| Step {
            deleted,
            write,
            read,
            runs_per_gib: 1.0,
            histogram: Histogram::default(),
            picture: Picture::new(Geometry::new(1).expect("a block"), 1),
        };
        vec![step(None, clean), step(Some(1), aged), step(Some(20), clean)]
    }

    fn as_published() -> Measured {
        let of = |windows| match windows {
            Windows::Mib1 => steps((600.0, 300.0), (150.0, 200.0)),
            Windows::Mib2 => steps((598.0, 400.0), (300.0, 300.0)),
            Windows::Mib4 => steps((595.0, 500.0), (500.0, 450.0)),
            Windows::Mib8 => steps((590.0, 550.0), (540.0, 500.0)),
            Windows::Adaptive => steps((600.0, 600.0), (590.0, 600.0)),
        };
        Windows::ALL.into_iter().map(|windows| (windows, of(windows))).collect()
    }

    #[test]
    fn the_published_shape_holds_and_its_opposite_does_not() {
        let holding = |measured: &Measured| findings(measured).iter().map(|finding| finding.holds).collect::<Vec<_>>();
        assert_eq!(holding(&as_published()), [true; 12]);
        let mut other = as_published();
        other.insert(Windows::Mib8, steps((620.0, 310.0), (100.0, 20.0)));
        assert_eq!(holding(&other)[..6], [false; 6]);
        let mut other = as_published();
        other.insert(Windows::Adaptive, steps((600.0, 600.0), (569.0, 569.0)));
        assert_eq!(holding(&other)[8..10], [false; 2]);
        other.insert(Windows::Adaptive, steps((500.0, 400.0), (500.0, 400.0)));
        assert_eq!(holding(&other)[8..], [true, true, false, false]);
        if let Some(steps) = other.get_mut(&Windows::Mib2) {
            steps.pop();
        }
        assert_eq!(holding(&other)[6..8], [false; 2]);
    }

    /// What an engine in virtual time does with places is judged as the one of a target.
    #[test]
    fn places_are_judged_without_rates() {
        let run = |windows| {
            (windows, Cell { windows, scale: 200, section_percent: 0, seed: 1 }.run().expect("it is large enough"))
        };
        let mut measured: Measured = Windows::ALL.into_iter().map(run).collect();
        let verdicts = |measured: &Measured| {
            let findings = layout_findings(measured);
            findings.iter().for_each(|finding| println!("{finding:?}"));
            findings.iter().map(|finding| finding.holds).collect::<Vec<_>>()
        };
        assert_eq!(verdicts(&measured), [true; 4]);
        let smallest = measured[&Windows::Mib1].clone();
        measured.insert(Windows::Adaptive, smallest.clone());
        assert_eq!(verdicts(&measured), [false, true, true, false]);
        measured.insert(Windows::Mib8, smallest[..smallest.len() - 1].to_vec());
        assert_eq!(verdicts(&measured), [false; 4]);
    }

    #[test]
    fn nothing_holds_without_a_measurement() {
        assert!(findings(&Measured::new()).iter().all(|finding| !finding.holds));
        assert!(layout_findings(&Measured::new()).iter().all(|finding| !finding.holds));
    }
}
