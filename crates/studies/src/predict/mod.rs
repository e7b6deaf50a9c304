//! `stria lab predict`: one workload live on this machine, and in virtual time with what
//! `stria bench calibrate` measures on it, side by side.
//!
//! The calibration has runs of its own, in turns with the rows, so that both meet the same machine.
//! Rows from which a cost is derived are marked,
//! and their errors are not counted; nothing is fitted to the others. Times that pass are compared,
//! and processor time, which other load on the machine disturbs less. Both are those of the least
//! disturbed rounds.
//!
//! Writes go to the memory of the host: what makes their data durable follows each row, and is not
//! measured.
//!
//! Downside: a row is one kind of call at a time; the model is of a machine on which nothing else
//! runs.

mod live;
mod virtual_time;
mod work;

use std::path::PathBuf;

use clap::Args;
use host::progress;

use self::{
    live::Live,
    work::{ROWS, Row},
};
use crate::{
    bench::{
        both_ends::BothEnds,
        calibrate::{self, Calibration},
        leftovers::Place,
        report::empty_table,
    },
    study::shape::least_disturbed,
};

/// How far predictions may be off, in the mean.
const BOUND: f64 = 0.10;

/// Options.
#[derive(Clone, Debug, Args)]
pub struct PredictArgs {
    /// Rounds of the calibration and of the live runs, in turns; lower quartiles are compared
    #[arg(long, default_value_t = 15, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Divide the calls of each row by this
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=100))]
    scale: u64,
    /// Directory on the disk to be used [default: the temporary directory]
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
}

/// What a call takes.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Cost {
    /// Time that passes, divided by the calls of all streams.
    seconds: f64,
    /// Processor time of both ends.
    cpu_seconds: f64,
}

/// A row, measured and predicted.
struct Compared {
    row: Row,
    live: Cost,
    predicted: Cost,
}

impl Compared {
    /// By how much the predicted rate differs from the measured one, as a part of it.
    fn error(&self) -> f64 {
        self.live.seconds / self.predicted.seconds - 1.0
    }

    /// The same for processor time.
    fn cpu_error(&self) -> f64 {
        self.predicted.cpu_seconds / self.live.cpu_seconds - 1.0
    }
}

/// Runs `stria lab predict`.
pub fn run(arguments: &PredictArgs) -> anyhow::Result<()> {
    let place = Place::new("stria-bench-", arguments.dir.as_deref())?;
    let system = BothEnds::start(&place.path().join("live"), calibrate::OSTS)?;
    let mut calibration = Calibration::start(&place, &system)?;
    let mut live = Live::start(&place, &system, arguments.scale)?;
    for round in 1..=arguments.rounds {
        progress::show(format_args!("calibrating and measuring, round {round} of {}", arguments.rounds));
        calibration.round()?;
        live.round()?;
    }
    progress::done();
    let calibrated = calibration.calibrated();
    let rounds = live.end()?;
    println!("{}", calibrate::shown(&calibrated.costs));
    println!("{}", calibrated.shown_delays());
    progress::show("predicting");
    let cores = u32::try_from(std::thread::available_parallelism()?.get())?;
    let predicted = virtual_time::run(calibrated, cores, arguments.scale).map_err(anyhow::Error::msg)?;
    progress::done();
    let compared: Vec<Compared> = (0..ROWS.len())
        .map(|number| {
            let of = |value: fn(&Cost) -> f64| {
                least_disturbed(rounds.iter().map(|costs| value(&costs[number])).collect()).unwrap_or(f64::NAN)
            };
            let live = Cost { seconds: of(|cost| cost.seconds), cpu_seconds: of(|cost| cost.cpu_seconds) };
            Compared { row: ROWS[number], live, predicted: predicted[number] }
        })
        .collect();
    print!("{}", shown(&compared));
    Ok(())
}

/// The table, and the mean error.
fn shown(compared: &[Compared]) -> String {
    let header = ["", "live /s", "predicted /s", "error", "live CPU us", "predicted", "error", ""];
    let mut table = empty_table(&header, &[1, 2, 3, 4, 5, 6]);
    for one in compared {
        let note = match (one.row.is_calibrated, one.row.is_counted()) {
            (true, _) => "calibrated with it, not counted",
            (false, true) => "",
            (false, false) => "not counted",
        };
        table.add_row([
            one.row.name(),
            format!("{:.0}", 1.0 / one.live.seconds),
            format!("{:.0}", 1.0 / one.predicted.seconds),
            format!("{:+.0}%", one.error() * 100.0),
            format!("{:.1}", one.live.cpu_seconds * 1e6),
            format!("{:.1}", one.predicted.cpu_seconds * 1e6),
            format!("{:+.0}%", one.cpu_error() * 100.0),
            note.to_owned(),
        ]);
    }
    let mean = |error: fn(&Compared) -> f64| {
        let counted: Vec<f64> =
            compared.iter().filter(|one| one.row.is_counted()).map(|one| error(one).abs()).collect();
        counted.iter().sum::<f64>() / counted.len().max(1) as f64
    };
    let (rates, cpu) = (mean(Compared::error), mean(Compared::cpu_error));
    let verdict = if rates <= BOUND { "holds" } else { "DOES NOT HOLD" };
    format!(
        "{table}\n{verdict:>13}: the mean error over sequential and metadata rows is at most 10% ({:.0}%; of processor \
         time {:.0}%)\n",
        rates * 100.0,
        cpu * 100.0
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mean_error_is_that_of_held_out_rows() {
        let compared = |counted: f64, others: f64| -> Vec<Compared> {
            let cost = |seconds| Cost { seconds, cpu_seconds: seconds };
            ROWS.iter()
                .map(|row| Compared {
                    row: *row,
                    live: cost(1e-4),
                    predicted: cost(1e-4 / (1.0 + if row.is_counted() { counted } else { others })),
                })
                .collect()
        };
        let text = shown(&compared(0.08, 3.0));
        assert!(text.contains("holds: the mean error") && text.contains("(8%; "), "{text}");
        assert!(text.contains("+300%") && text.contains("calibrated with it, not counted"), "{text}");
        assert!(shown(&compared(-0.2, 0.0)).contains("DOES NOT HOLD: the mean error"), "below counts as above does");
    }

    #[test]
    fn a_short_run_measures_and_predicts_every_row() {
        let place = Place::new("stria-test-", None).unwrap();
        let system = BothEnds::start(&place.path().join("live"), calibrate::OSTS).unwrap();
        let mut live = Live::start(&place, &system, 100).unwrap();
        live.round().and_then(|()| live.round()).unwrap();
        let rounds = live.end().unwrap();
        assert_eq!(rounds.len(), 2);
        assert!(rounds.iter().flatten().all(|cost| cost.seconds > 0.0 && cost.cpu_seconds > 0.0), "{rounds:?}");
    }
}
