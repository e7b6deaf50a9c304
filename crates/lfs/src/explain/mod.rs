//! `stria explain` and `stria advise`: why a layout is as it is, its cost and speed, and what would
//! be better, in plain words. The arithmetic is in `layout::cost`, the policy in
//! `layout::automatic`; this module has only the words.

mod advise;
mod directory;
mod file;
mod speeds;

use std::{
    fs::File,
    io::{Read, Write},
    os::unix::fs::{MetadataExt, OpenOptionsExt},
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use anyhow::{Context, bail};
use clap::Args;
use layout::{Extent, StripeCount, StripeSpec, cost::Hardware};
use rpc::message::control::{ControlReply, ControlRequest};
use serde_json::Value;
use types::counted;

use crate::{
    channel::{self, Errno, strerror},
    size,
};

pub use advise::{AdviseArgs, run as advise};
use speeds::{OstSpeeds, Source};

/// Arguments of `stria explain`.
#[derive(Clone, Debug, Args)]
pub struct ExplainArgs {
    /// Files and directories on a mounted file system
    #[arg(required = true, value_name = "PATH")]
    pub paths: Vec<PathBuf>,
    /// Print one JSON object per path
    #[arg(long)]
    pub json: bool,
    /// The speeds to estimate with
    #[command(flatten)]
    pub speeds: Speeds,
}

/// Speeds that the estimates are based on.
#[derive(Clone, Copy, Debug, Args)]
pub struct Speeds {
    /// Speed of an OST's device in MB/s [default: 350; explain prefers measured speeds]
    #[arg(long, value_name = "MB/S", value_parser = clap::value_parser!(u64).range(1..=10_000_000))]
    pub ost_speed: Option<u64>,
    /// Speed of a client's link in MB/s
    #[arg(long, default_value_t = Speeds::default().client_speed, value_name = "MB/S", value_parser = clap::value_parser!(u64).range(1..=10_000_000))]
    pub client_speed: u64,
}

impl Default for Speeds {
    fn default() -> Self {
        Self { ost_speed: None, client_speed: 3000 }
    }
}

impl Speeds {
    /// With so many OSTs.
    pub fn hardware(self, osts: u32) -> Hardware {
        Hardware {
            ost_bytes_per_second: self.ost_bytes_per_second(),
            client_bytes_per_second: self.client_speed * 1_000_000,
            ..Hardware::with_osts(osts)
        }
    }

    /// The given speed, or that of a typical hard disk.
    fn ost_bytes_per_second(self) -> u64 {
        self.ost_speed.map_or(Hardware::with_osts(1).ost_bytes_per_second, |megabytes| megabytes * 1_000_000)
    }

    /// The assumptions of the estimates for a planned job, as one line.
    fn assumption(self, osts: u32) -> String {
        let speed = megabytes(self.ost_bytes_per_second());
        format!(
            "Estimated with {} of {speed} and a link of {} MB/s per client (--ost-speed, --client-speed).",
            counted(osts, "OST"),
            self.client_speed
        )
    }
}

/// An explanation: for people and for programs.
struct Explanation {
    text: String,
    json: Value,
}

/// Runs `stria explain`.
pub fn run(arguments: &ExplainArgs) -> anyhow::Result<()> {
    let mut output = std::io::stdout().lock();
    let mut failures = 0;
    for path in &arguments.paths {
        match explain(path, arguments.speeds) {
            Ok(explained) if arguments.json => writeln!(output, "{}", explained.json)?,
            Ok(explained) => write!(output, "{}", explained.text)?,
            Err(error) => {
                eprintln!("stria explain: {error:#}");
                failures += 1;
            }
        }
    }
    if failures > 0 {
        std::process::exit(1);
    }
    Ok(())
}

/// Explains the file at `path`; symbolic links are followed.
fn explain(path: &Path, speeds: Speeds) -> anyhow::Result<Explanation> {
    let name = path.to_string_lossy();
    let path = &std::fs::canonicalize(path).with_context(|| name.to_string())?;
    let failed = |error: Errno| match elsewhere(path, error) {
        true => anyhow::anyhow!("{name} is not on a StriaFS file system; {}", mounted()),
        false => anyhow::anyhow!("{name}: {}", strerror(error.0)),
    };
    let (opened, subject) = channel::subject(path).map_err(failed)?;
    let reply = channel::call(&opened, &ControlRequest::GetLayout(subject)).map_err(failed)?;
    let targets = channel::targets(&opened).map_err(failed)?;
    let osts = OstSpeeds::of(&targets, speeds);
    match reply {
        ControlReply::Layout { layout: Some(layout), .. } => {
            let attributes = std::fs::symlink_metadata(path).with_context(|| name.to_string())?;
            let extents = file::Extents { size: attributes.len(), data: attributes.blocks().saturating_mul(512) };
            let osts = match osts.source() {
                Source::Assumed if read_some(path) => {
                    OstSpeeds::of(&channel::targets(&opened).map_err(failed)?, speeds).by_reading()
                }
                _ => osts,
            };
            Ok(file::explain(&name, &layout, extents, &osts))
        }
        ControlReply::Layout { directory: true, own_default, effective_default: Some(effective), .. } => {
            Ok(directory::explain(&name, own_default.is_some(), &effective, &osts))
        }
        _ => bail!("{name} has no layout: it is neither a regular file nor a directory"),
    }
}

/// Reads some of a file, so that its targets measure how fast they are: for half a second, at most.
/// Whether anything was read.
fn read_some(path: &Path) -> bool {
    const BYTES: u64 = 64 << 20;
    const TIME: Duration = Duration::from_millis(500);
    // Its owner can look without being noticed.
    let quietly = File::options().read(true).custom_flags(libc::O_NOATIME).open(path);
    let Ok(mut file) = quietly.or_else(|_| File::open(path)) else { return false };
    let (begun, mut buffer, mut bytes) = (Instant::now(), vec![0; 4 << 20], 0);
    while bytes < BYTES && begun.elapsed() < TIME {
        match file.read(&mut buffer) {
            Ok(0) | Err(_) => break,
            Ok(read) => bytes += read as u64,
        }
    }
    bytes > 0
}

/// Whether a request failed because `path` is not on StriaFS.
fn elsewhere(path: &Path, error: Errno) -> bool {
    error == Errno(libc::ENOTTY) || matches!(channel::mount_of(path), Ok(None))
}

/// Where StriaFS is mounted, for users who named another path.
fn mounted() -> String {
    let mounts = channel::mounts().unwrap_or_default();
    let points: Vec<String> = mounts.iter().map(|mount| mount.point.display().to_string()).collect();
    match points.is_empty() {
        true => "none is mounted here".to_owned(),
        false => format!("mounted here: {}", points.join(", ")),
    }
}

/// A number of bytes, shortest.
fn bytes(number: u64) -> String {
    if number < 1024 {
        return format!("{number} B");
    }
    let text = size::human(number);
    let (value, unit) = text.split_at(text.len() - 1);
    format!("{} {unit}iB", value.strip_suffix(".0").unwrap_or(value))
}

/// Where a component ends.
fn position(offset: u64) -> String {
    if offset == layout::END_OF_FILE { "the end".to_owned() } else { bytes(offset) }
}

/// From where to where a component reaches; with all digits where the short ones do not tell its
/// ends apart.
fn range(extent: Extent) -> String {
    let (start, end) = (position(extent.start), position(extent.end));
    if start != end {
        return format!("{start} .. {end}");
    }
    let units = [(40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB"), (0, "B")];
    let divides = |shift: &u32| extent.start.is_multiple_of(1 << shift) && extent.end.is_multiple_of(1 << shift);
    let (shift, unit) = units.into_iter().find(|(shift, _)| divides(shift)).unwrap_or((0, "B"));
    format!("{} .. {} {unit}", extent.start >> shift, extent.end >> shift)
}

/// Requested stripes, in words.
fn stripes_asked(stripes: &StripeSpec) -> String {
    let listed: Vec<String> = stripes.osts.iter().map(|ost| ost.0.to_string()).collect();
    let (count, place) = match stripes.stripe_count {
        _ if !listed.is_empty() => {
            let target = if listed.len() == 1 { "OST" } else { "OSTs" };
            (counted(listed.len(), "stripe"), format!(" on {target} {}", listed.join(", ")))
        }
        StripeCount::Default => ("the default number of stripes".to_owned(), String::new()),
        StripeCount::Exactly(count) => (counted(count, "stripe"), String::new()),
        StripeCount::All => ("a stripe".to_owned(), " on every OST".to_owned()),
        StripeCount::Overstriped(count) => (counted(count, "stripe"), ", several on one OST if necessary".to_owned()),
        StripeCount::PerOst(count) => (counted(count, "stripe"), " on every OST".to_owned()),
    };
    let size = stripes.stripe_bytes.map(|size| format!(" of {}", bytes(size))).unwrap_or_default();
    let pool = stripes.restricted_to().map(|pool| format!(" in pool '{pool}'")).unwrap_or_default();
    format!("{count}{size}{place}{pool}")
}

fn megabytes(bytes_per_second: u64) -> String {
    format!("{} MB/s", bytes_per_second / 1_000_000)
}

fn duration(microseconds: u64) -> String {
    match microseconds {
        0..=9_999 => format!("{:.1} ms", microseconds as f64 / 1e3),
        10_000..=999_999 => format!("{} ms", microseconds / 1000),
        _ => format!("{:.1} s", microseconds as f64 / 1e6),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_short() {
        assert_eq!([bytes(0), bytes(1 << 20), bytes(1536 << 20)], ["0 B", "1 MiB", "1.5 GiB"]);
        assert_eq!([duration(150), duration(20_500), duration(2_500_000)], ["0.1 ms", "20 ms", "2.5 s"]);
        assert_eq!(position(u64::MAX), "the end");
        assert_eq!(range(Extent { start: 64 << 20, end: 1 << 30 }), "64 MiB .. 1 GiB");
        assert_eq!(range(Extent { start: 1 << 30, end: (1 << 30) + (1 << 20) }), "1024 .. 1025 MiB");
        assert_eq!(range(Extent { start: (64 << 40) - (4 << 20), end: 64 << 40 }), "67108860 .. 67108864 MiB");
    }
}
