//! What the live study shows: the sweep as a table, the tuner's ratios with their intervals, and a
//! figure.

use std::{collections::BTreeSet, path::Path};

use types::counted;

use super::{Comparison, LiveOptions, LoadKind, Outcome, Setting, starts, tuned_seconds};
use crate::{
    bench::{
        interval::{Interval, Verdict},
        report::empty_table,
    },
    figure::{BarSeries, write_curves},
};

/// How close to the best of the sweep the tuner has to be.
const WITHIN: f64 = 0.95;

/// What will be done, and how long it takes.
pub fn introduction(options: &LiveOptions) -> String {
    let settings = options.threads.len() * options.in_flight.len();
    let settle = super::SETTLE.as_secs_f64();
    let sweep = f64::from(options.rounds) * settings as f64 * (options.seconds + settle);
    let comparison = options.search + tuned_seconds(options) + 2.0 * (options.seconds + settle);
    let all = sweep + f64::from(options.repeat) * starts(options).len() as f64 * comparison;
    format!(
        "E2 live: 1 server with {} targets, {} clients with {} tasks each; {} x {settings} settings, then {} \
         comparisons with the tuner; about {:.0} s",
        options.osts,
        options.clients,
        options.tasks,
        options.rounds,
        options.repeat * starts(options).len() as u32,
        all * options.loads.len() as f64
    )
}

fn title(load: LoadKind) -> &'static str {
    match load {
        LoadKind::Writes => "writes of 16 KiB, targets of limited speed",
        LoadKind::Reads => "reads of 16 KiB, targets of limited speed",
        LoadKind::Processor => "reads of 16 KiB, a part of a processor for the server",
    }
}

/// The different values of the sweep, in order.
fn values(outcome: &Outcome, value: impl Fn(&Setting) -> u16) -> Vec<u16> {
    let all: BTreeSet<u16> = outcome.sweep.iter().map(|swept| value(&swept.setting)).collect();
    all.into_iter().collect()
}

/// The rate of a setting; not a number if it was not measured.
fn rate(outcome: &Outcome, threads: u16, in_flight: u16) -> f64 {
    let setting = Setting { threads, in_flight };
    outcome.sweep.iter().find(|swept| swept.setting == setting).map_or(f64::NAN, |swept| swept.mean())
}

/// Everything about one load, as lines.
pub fn shown(outcome: &Outcome) -> String {
    let (threads, in_flight) = (values(outcome, |one| one.threads), values(outcome, |one| one.in_flight));
    let header: Vec<String> = in_flight.iter().map(|count| format!("c={count}")).collect();
    let header: Vec<&str> = std::iter::once("MiB/s").chain(header.iter().map(String::as_str)).collect();
    let mut table = empty_table(&header, &(1..header.len()).collect::<Vec<_>>());
    for threads in &threads {
        let rates = in_flight.iter().map(|in_flight| format!("{:.1}", rate(outcome, *threads, *in_flight)));
        table.add_row(std::iter::once(format!("s={threads}")).chain(rates));
    }
    let mut text = format!("\n{}\n{table}\n", title(outcome.load));
    text.push_str(&format!("{}\n{}", tuned(outcome), verdict(outcome)));
    text
}

/// The best of the sweep, and the tuner from each start.
fn tuned(outcome: &Outcome) -> String {
    let Setting { threads, in_flight } = outcome.best;
    let fixed: Vec<f64> = outcome.comparisons.iter().flat_map(|one| one.fixed).collect();
    let header = ["", "MiB/s", "of the best", "95% first after", "threads", "in flight"];
    let mut table = empty_table(&header, &[1, 2]);
    let shown = |interval: Option<Interval>| interval.map_or_else(|| "-".to_owned(), |one| one.to_string());
    let best = format!("best of the sweep: s={threads}, c={in_flight}");
    table.add_row([best, shown(Interval::of(&fixed)), String::new(), String::new(), String::new(), String::new()]);
    for start in starts_of(outcome) {
        let meant: Vec<&Comparison> = outcome.comparisons.iter().filter(|one| one.start == start).collect();
        let rates = |rate: fn(&Comparison) -> f64| Interval::of(&meant.iter().map(|one| rate(one)).collect::<Vec<_>>());
        let reached =
            |one: &&Comparison| one.reached(WITHIN).map_or_else(|| "-".to_owned(), |after| format!("{after} s"));
        let reached: Vec<String> = meant.iter().map(reached).collect();
        let threads: Vec<String> = meant.iter().map(|one| one.chosen.0.to_string()).collect();
        let in_flight = meant.iter().flat_map(|one| one.chosen.1.iter().copied());
        let range = in_flight.clone().min().zip(in_flight.max());
        table.add_row([
            format!("tuner from s={start}, c={start}"),
            shown(rates(|one| one.tuned)),
            shown(outcome.ratio(start)),
            reached.join(", "),
            threads.join(", "),
            range.map_or_else(String::new, |(least, most)| format!("{least} to {most}")),
        ]);
    }
    table.to_string()
}

/// Whether the tuner is within 5% of the best, from each start: a start from which it is not must
/// not be hidden by another one.
fn verdict(outcome: &Outcome) -> String {
    let of_start = |start| {
        let count = outcome.comparisons.iter().filter(|one| one.start == start).count();
        let ratio = outcome.ratio(start)?;
        let verdict = ratio.at_least(WITHIN);
        let advice = if verdict == Verdict::Open { "; raise --repeat to find out" } else { "" };
        Some(format!(
            "{verdict:>13}: the tuner from s={start}, c={start} is within 5% of the best of the sweep ({ratio} of it, \
             95% confidence, {}{advice})\n",
            counted(count, "comparison")
        ))
    };
    starts_of(outcome).into_iter().filter_map(of_start).collect()
}

/// Where tuners began.
fn starts_of(outcome: &Outcome) -> BTreeSet<u16> {
    outcome.comparisons.iter().map(|one| one.start).collect()
}

/// A curve for each number of requests in flight, over service threads, with the tuner's rates.
pub fn draw(outcome: &Outcome, directory: &Path) -> anyhow::Result<()> {
    let threads = values(outcome, |one| one.threads);
    let groups: Vec<String> = threads.iter().map(|count| format!("s={count}")).collect();
    let curve = |in_flight: u16| BarSeries {
        name: format!("c={in_flight}"),
        values: threads.iter().map(|threads| rate(outcome, *threads, in_flight)).collect(),
    };
    let mut series: Vec<BarSeries> = values(outcome, |one| one.in_flight).into_iter().map(curve).collect();
    let tuned: Vec<f64> = outcome.comparisons.iter().map(|one| one.tuned).collect();
    if let Some(mean) = Interval::of(&tuned) {
        series.push(BarSeries { name: "tuner".to_owned(), values: vec![mean.mean; threads.len()] });
    }
    let name = format!("e2-live-{}.svg", format!("{:?}", outcome.load).to_lowercase());
    write_curves(&directory.join(name), &format!("E2 live: {}", title(outcome.load)), "MiB/s", &groups, &series)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::threads::Swept;

    fn outcome(tuned: f64) -> Outcome {
        let swept = |threads, in_flight, rate: f64| Swept {
            setting: Setting { threads, in_flight },
            rates: vec![rate - 1.0, rate + 1.0],
        };
        let comparison = |start, wobble: f64| Comparison {
            start,
            fixed: [40.0 + wobble, 40.0 - wobble],
            searching: vec![10.0, 37.9, 38.1],
            tuned: tuned + wobble,
            chosen: (8, vec![16, 64]),
        };
        Outcome {
            load: LoadKind::Writes,
            sweep: vec![swept(1, 8, 10.0), swept(16, 8, 40.0), swept(1, 1, 9.0), swept(16, 1, 20.0)],
            best: Setting { threads: 16, in_flight: 8 },
            comparisons: [0.1, -0.1, -0.2, 0.2].map(|wobble| [comparison(1, wobble), comparison(64, -wobble)]).concat(),
        }
    }

    #[test]
    fn the_tuner_is_judged_by_the_interval_of_its_ratio() {
        for start in [1, 64] {
            let judged = |tuned, verdict: &str| {
                let text = shown(&outcome(tuned));
                assert!(
                    text.contains(&format!("{verdict}: the tuner from s={start}, c={start} is within 5%")),
                    "{text}"
                );
            };
            judged(39.5, "        holds");
            judged(36.0, "DOES NOT HOLD");
            // The bound itself.
            judged(38.0, "OPEN");
        }
        // One start does not hide the other.
        let mut one = outcome(39.5);
        one.comparisons.iter_mut().filter(|one| one.start == 64).for_each(|one| one.tuned -= 4.0);
        let text = shown(&one);
        assert!(
            text.contains("        holds: the tuner from s=1,") && text.contains("DOES NOT HOLD: the tuner from s=64,")
        );
        let text = shown(&outcome(39.5));
        for part in [
            "s=16",
            "c=8",
            "40.0",
            "best of the sweep: s=16, c=8",
            "tuner from s=1, c=1",
            "16 to 64",
            "8, 8",
            "3 s, 3 s",
        ] {
            assert!(text.contains(part), "{part} in {text}");
        }
    }

    #[test]
    fn the_figure_has_a_curve_for_each_number_of_requests_and_one_for_the_tuner() {
        let place = tempfile::tempdir().unwrap();
        draw(&outcome(39.0), place.path()).unwrap();
        let text = std::fs::read_to_string(place.path().join("e2-live-writes.svg")).unwrap();
        // Axes are thinner.
        assert_eq!(text.matches("stroke-width=\"2\" points").count(), 3, "{text}");
        assert!(text.contains("tuner") && text.contains("c=8"));
    }
}
