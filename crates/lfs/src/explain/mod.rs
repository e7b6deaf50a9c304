//! `stria explain` and `stria advise`: why a layout is as it is, its cost and speed, and what would
//! be better, in plain words. The arithmetic is in `layout::cost`, the policy in
//! `layout::automatic`; this module has only the words.

mod advise;
mod directory;
mod file;
mod speeds;
mod words;

use std::{
    fs::File,
    io::{Read, Write},
    os::unix::fs::{MetadataExt, OpenOptionsExt},
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use anyhow::{Context, bail};
use clap::Args;
use rpc::message::control::{ControlReply, ControlRequest};

use crate::channel::{self, Errno, strerror};

pub use advise::{AdviseArgs, run as advise};
pub use speeds::Speeds;
use speeds::{OstSpeeds, Source};
use words::Explanation;

/// Arguments of `stria explain`.
#[derive(Clone, Debug, Args)]
pub struct ExplainArgs {
    /// Files and directories on a mounted file system
    #[arg(required_unless_present = "service", value_name = "PATH")]
    pub paths: Vec<PathBuf>,
    /// Explain the number of threads of a service of this host's servers instead, as ost_io
    #[arg(long, value_name = "NAME", conflicts_with_all = ["paths", "ost_speed"])]
    pub service: Option<String>,
    /// Directory of the servers' control sockets (/run/stria)
    #[arg(long, value_name = "DIR", requires = "service")]
    pub run_dir: Option<PathBuf>,
    /// Print one JSON object per path, or per parameter of the service
    #[arg(long)]
    pub json: bool,
    /// The speeds to estimate with
    #[command(flatten)]
    pub speeds: Speeds,
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
