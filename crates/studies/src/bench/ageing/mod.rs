//! Study E4, live: an OST of this process on a device, or on one large file, is aged as in the
//! study, through its object store, with the whole engine below it. The steps are those of the run
//! in virtual time ([`crate::study::e4`]), and so is what is shown of them
//! ([`crate::ageing_report`]).
//!
//! For each size of windows the OST is made anew: measure the clean device; fill it with 20 files
//! that grow at once in writes of 1 MiB; remove one after the other, set the allocation pointer
//! back, and measure again, until all is free. What is measured: 4 tasks write a file each, 1 MiB a
//! call, and it is durable; then they read it in calls of 8 MiB.
//!
//! Bitmaps, free space and pieces of files are real, and are judged. Rates are judged only if the
//! device shows what positioning costs: it is asked first ([`positioning`]).
//!
//! Downside: what is measured is small, a hundredth of the device, and other programs use the disk
//! as well; so rates vary from step to step by more than fragmentation changes them on most
//! devices.

mod aged;
mod positioning;

use std::{path::PathBuf, time::Duration};

use anyhow::Context;
use clap::Args;
use host::progress;
use node::storage::Storage;
use serde::Serialize;

use self::{aged::Aged, positioning::Positioning};
use super::{
    fdatasync::fdatasync_rate,
    leftovers::Place,
    study::{describe, show_findings},
};
use crate::{
    ageing_report::{StepLine, draw, rates, show_free},
    figure,
    json_lines::JsonLines,
    study::e4::{
        FILES, Step, Windows,
        findings::{Measured, findings, layout_findings},
    },
};

/// Smallest device: a file then has a few windows of 8 MiB.
const BYTES_MIN: u64 = 256 << 20;
const BYTES_MAX: u64 = 1 << 44;
/// For so long windows of complete files are waited for, which are given back after 30 s.
const WINDOWS_TIMEOUT: Duration = Duration::from_secs(45);

/// Options of the live study.
#[derive(Clone, Debug, Args)]
pub struct LiveAgeingOptions {
    /// Size of the OST, a file in the directory, as 16G
    #[arg(long, default_value = "8G", value_name = "SIZE", value_parser = size, conflicts_with = "device")]
    size: u64,
    /// Block device for the data of the OST, such as a loop device, instead of a file. All that it
    /// holds is lost
    #[arg(long, value_name = "DEV")]
    device: Option<PathBuf>,
    /// With --device: use it even if it seems to hold data, which are lost
    #[arg(long, requires = "device")]
    force: bool,
    /// Pre-allocation windows in MiB, and adaptive ones, separated by commas
    #[arg(long, value_enum, value_delimiter = ',', default_values = ["1", "2", "4", "8", "adaptive"], value_name = "WINDOWS")]
    windows: Vec<Windows>,
    /// Directory on the disk to be used, for the file and for the tables [default: the temporary
    /// directory]
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// Draw figures (SVG) into this directory, which is made if there is none
    #[arg(long, value_name = "DIR")]
    figures: Option<PathBuf>,
    /// Write every step to this file as a JSON line, as soon as it is known
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

fn size(text: &str) -> Result<u64, String> {
    rt::parameters::parse_size(text, 1, &(BYTES_MIN..=BYTES_MAX))
}

/// One step as a JSON line.
#[derive(Serialize)]
struct Line<'a> {
    study: &'static str,
    windows: &'a str,
    device_bytes: u64,
    fdatasync_per_second: f64,
    #[serde(flatten)]
    step: StepLine,
}

/// Runs the study.
pub fn run(options: &LiveAgeingOptions) -> anyhow::Result<()> {
    run_with(options, WINDOWS_TIMEOUT)
}

/// `patience`: for windows of complete files.
fn run_with(options: &LiveAgeingOptions, patience: Duration) -> anyhow::Result<()> {
    let mut json = JsonLines::new(options.json.as_deref())?;
    figure::prepare(options.figures.as_deref())?;
    let place = Place::new("stria-ageing-", options.dir.as_deref())?;
    let (mut measured, mut force, mut positioning) = (Measured::new(), options.force, None);
    for windows in &options.windows {
        progress::show(format_args!("windows {}: making the OST", windows.name()));
        let fdatasync_per_second = fdatasync_rate(place.path())?;
        let directory = place.path().join("ost");
        let aged = Aged::new(&directory, &storage(options, force)?, *windows)?;
        force |= options.device.is_some();
        if measured.is_empty() {
            let gib = aged.bytes() as f64 / f64::from(1 << 30);
            println!(
                "e4 ageing, live: an OST of {gib:.2} GiB; the disk makes {fdatasync_per_second:.0} writes durable a second"
            );
        }
        let mut note = |step: &Step| {
            let (windows, device_bytes, step) = (windows.name(), aged.bytes(), StepLine::new(step));
            json.add(&Line { study: "e4-live", windows, device_bytes, fdatasync_per_second, step })
        };
        let mut steps = vec![aged.step(None)?];
        note(&steps[0])?;
        aged.fill(patience)?;
        if positioning.is_none() {
            positioning = Some(Positioning::of(&aged.device())?);
        }
        for deleted in 1..=FILES {
            progress::show(format_args!("windows {}, {deleted} of {FILES} files removed", windows.name()));
            aged.remove(deleted - 1)?;
            let step = aged.step(Some(deleted))?;
            note(&step)?;
            steps.push(step);
        }
        progress::done();
        show_rates(*windows, &steps, fdatasync_per_second);
        measured.insert(*windows, steps);
        drop(aged);
        std::fs::remove_dir_all(&directory).with_context(|| format!("cannot remove {}", directory.display()))?;
    }
    println!("{}", rates(&measured));
    show_free(&measured);
    judge(&measured, positioning.unwrap_or_default());
    let drawn = options.figures.as_ref().map(|directory| draw(directory, "e4-live", "the OST", &measured));
    drawn.unwrap_or(Ok(()))
}

/// Rates of one size of windows beside that of the disk in the same minute.
fn show_rates(windows: Windows, steps: &[Step], fdatasync_per_second: f64) {
    let range = |rate: fn(&Step) -> f64| {
        let rates = steps.iter().map(rate);
        let (lowest, highest) = (rates.clone().fold(f64::INFINITY, f64::min), rates.fold(0.0, f64::max));
        format!("{lowest:.0} to {highest:.0} MiB/s")
    };
    println!(
        "windows {}: writes {}, reads {}; fdatasync {fdatasync_per_second:.0}/s",
        windows.name(),
        range(|step| step.write),
        range(|step| step.read)
    );
}

/// The sentences: those about places in any case, those about rates if the device shows
/// positioning.
fn judge(measured: &Measured, positioning: Positioning) {
    if measured.len() < Windows::ALL.len() {
        println!("sentences compare all windows: none is judged of some");
        return;
    }
    show_findings(&layout_findings(measured));
    println!("{positioning}");
    for finding in findings(measured) {
        if positioning.is_shown() {
            println!("{}", describe(&finding));
        } else {
            println!("{:>13}: {} ({})", "not judged", finding.sentence, finding.results);
        }
    }
}

fn storage(options: &LiveAgeingOptions, force: bool) -> anyhow::Result<Storage> {
    Ok(match &options.device {
        Some(device) => Storage::Device { path: std::path::absolute(device)?, force },
        None => Storage::File(options.size),
    })
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeMap, path::Path};

    use super::*;

    fn options(place: &Path) -> LiveAgeingOptions {
        LiveAgeingOptions {
            size: BYTES_MIN,
            device: None,
            force: false,
            windows: Windows::ALL.to_vec(),
            dir: Some(place.to_owned()),
            figures: Some(place.to_owned()),
            json: Some(place.join("lines.json")),
        }
    }

    fn lines(place: &Path) -> Vec<serde_json::Value> {
        let text = std::fs::read_to_string(place.join("lines.json")).unwrap();
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    /// In miniature: with files of 12 MiB next to nothing can be said of windows, but all steps are
    /// done.
    #[test]
    fn an_ost_is_filled_emptied_and_measured_at_each_step() {
        let place = tempfile::tempdir().unwrap();
        let options = LiveAgeingOptions { windows: vec![Windows::Mib1, Windows::Adaptive], ..options(place.path()) };
        run_with(&options, Duration::ZERO).unwrap();
        let lines = lines(place.path());
        assert_eq!(lines.len(), 2 * (1 + FILES as usize));
        let free = |line: &serde_json::Value| -> u64 {
            let classes = line["free"].as_array().unwrap();
            classes.iter().map(|class| class[2].as_u64().unwrap()).sum()
        };
        let steps: BTreeMap<String, Vec<&serde_json::Value>> = lines.iter().fold(BTreeMap::new(), |mut all, line| {
            all.entry(line["windows"].as_str().unwrap().to_owned()).or_insert_with(Vec::new).push(line);
            all
        });
        for (windows, steps) in &steps {
            assert_eq!((&steps[0]["deleted"], steps[20]["used_percent"].as_u64()), (&().into(), Some(0)), "{windows}");
            assert_eq!(steps[0]["free"], steps[20]["free"], "{windows}: all is free again");
            let part = free(steps[5]) as f64 / free(steps[0]) as f64;
            assert!((0.2..0.35).contains(&part), "{windows}: 5 of 20 files are removed, and {part} is free");
            for step in steps {
                let rate = |name: &str| step[name].as_f64().unwrap();
                assert!(rate("write_mib_per_second") > 0.0 && rate("read_mib_per_second") > 0.0, "{step}");
                assert!(rate("fdatasync_per_second") > 0.0 && rate("runs_per_gib") > 0.0, "{step}");
            }
        }
        let score = |windows: &str| steps[windows][1]["free_score"].as_f64().unwrap();
        assert!(score("1 MiB") > score("adaptive"), "{} {}", score("1 MiB"), score("adaptive"));
        for figure in ["write", "read", "free", "bitmap"] {
            let drawn = std::fs::read_to_string(place.path().join(format!("e4-live-{figure}.svg"))).unwrap();
            assert!(drawn.contains("1 MiB") && drawn.contains("adaptive"), "{figure}");
        }
        assert!(!place.path().read_dir().unwrap().any(|entry| entry.unwrap().path().is_dir()), "nothing is left");
    }

    #[test]
    fn what_cannot_be_is_refused_before_anything_is_made() {
        assert!(size("255M").is_err() && size("1G") == Ok(1 << 30));
        let place = tempfile::tempdir().unwrap();
        std::fs::write(place.path().join("file"), "").unwrap();
        let options = LiveAgeingOptions { figures: Some(place.path().join("file/none")), ..options(place.path()) };
        let error = run(&options).unwrap_err().to_string();
        assert!(error.contains("file/none, the directory for figures: "), "{error}");
    }
}
