//! `stria inspect`: decodes what is on disk, read only.
//!
//! Shows a target's identity, its journal, its tables as opening the target would find them, and an
//! OST's host files; with `--verbose` every record and entry, with `--inode` everything that is
//! stored about one inode. Damage is described where it is found and counted, and the rest is shown
//! nevertheless.
//!
//! Nothing is changed: files are read through a device that refuses writes, and the cold store,
//! which its library cannot open without changing files, is copied to a temporary directory
//! (TMPDIR) first. A target that is in use is refused, because its files contradict each other
//! while they change; a single journal segment can be inspected at any time, and may then end in a
//! record that is just being written.
//!
//! Downside: the copy needs as much space as the cold store, and the contents of the journal are
//! held in memory.

mod device;
mod host_files;
mod journal;
mod map;
mod parts;
mod report;
mod tables;
mod target;

use std::{
    io::{self, BufWriter},
    path::{Path, PathBuf},
};

use anyhow::{Context, bail};
use clap::Args;
use rt::real::Cores;
use types::{Fid, InodeNumber};

use crate::format;
use map::Drawings;
use report::{Fact, InspectionReport};

/// Fields of the JSON lines of `stria inspect`.
const INSPECT_JSON: &str = "\
JSON (--json): one object per line, with target (the path; null in the summary)
and kind:
  identity    name, fsname, format_version, uuid
  store       store, version, segment_bytes, opened (number of times)
  segment     file, bytes, sequence, first_batch, store; the last three are null
              if it is prepared, but unused
  batches     file, first, last, batches, marks, stale (records of earlier use)
  unknown     offset, bytes, stale (after the journal's end: of an earlier use,
              or of a write that was cut off)
  cold_store  batch (the last one in it), store
  replay      batches, last: what opening the target would replay
  table       table, entries, bytes, damaged
  host_files  files, bytes, of_no_object
  map         (of --map) name, blocks, free, free_runs, longest, fragmentation
              (0 to 100), free_classes (class, runs, blocks), objects, pieces,
              layout_score (0 to 1), piece_classes (min, max, objects)
  damage      text
  summary     targets, damage: the last line
With --verbose, --inode or of a segment also:
  record      offset, batch, flushed, mark, stale; operation: text
  entry       table, text
  host_file   file, object, bytes, of_no_object
              (of its blocks: object, verified, blocks)
text is for human readers: its wording may change.

Exit status: 0 if everything decodes, 1 if anything is damaged or cannot be read.";

/// Arguments of `stria inspect`.
#[derive(Clone, Debug, Args)]
#[command(after_help = INSPECT_JSON)]
pub struct InspectArgs {
    /// Directory or device of a target (not in use), directory of several, or a journal segment
    pub path: PathBuf,
    /// Show every record and key, not only totals
    #[arg(short, long)]
    pub verbose: bool,
    /// Only this inode (a FID or a number): all its records, and a check of its blocks against
    /// their checksums
    #[arg(long, value_name = "FID")]
    pub inode: Option<String>,
    /// Show a map of an OST's device instead: its bitmap as a picture, its free space by the length
    /// of runs, and in how many pieces objects are. Of a target that is served:
    /// `stria ctl get_param obdfilter.*.mb_stats obdfilter.*.mb_groups`
    #[arg(long, conflicts_with_all = ["inode", "verbose"])]
    pub map: bool,
    /// Drawings of the map.
    #[command(flatten)]
    pub drawings: Drawings,
    /// Print findings as JSON lines
    #[arg(long)]
    pub json: bool,
}

/// Runs `stria inspect`. Exit status 0: everything decoded.
pub fn run(arguments: &InspectArgs) -> anyhow::Result<()> {
    let inode = arguments.inode.as_deref().map(parse_inode).transpose()?;
    let mut output = BufWriter::new(io::stdout());
    let mut report = InspectionReport::new(&mut output, arguments.json, arguments.verbose, inode);
    let cores = Cores::start(1)?;
    let outcome = match arguments.map {
        true => cores.block_on(map::inspect(&arguments.path, &arguments.drawings, &mut report)),
        false => inspect(&cores, &arguments.path, &mut report),
    };
    cores.shutdown();
    outcome?;
    match report.finish()? {
        0 => Ok(()),
        damage => bail!("damage found in {damage} places"),
    }
}

/// A FID, or an inode's number in decimal or hexadecimal.
fn parse_inode(text: &str) -> anyhow::Result<InodeNumber> {
    if let Some(inode) = text.parse::<Fid>().ok().and_then(Fid::inode) {
        return Ok(inode);
    }
    let number = match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16).ok(),
        None => text.parse().ok(),
    };
    let number =
        number.with_context(|| format!("'{text}' is neither a FID, as [0x200000400:0x100:0x0], nor a number"))?;
    Ok(InodeNumber(number))
}

/// A segment, a target, or all targets below a directory.
fn inspect(cores: &Cores, path: &Path, report: &mut InspectionReport<'_>) -> anyhow::Result<()> {
    let metadata = path.metadata().with_context(|| format!("cannot inspect {}", path.display()))?;
    if metadata.is_file() && !format::is_target(path) {
        report.begin(path);
        return cores.block_on(journal::inspect_segment(path, report));
    }
    let targets = targets_at(path)?;
    if targets.is_empty() {
        bail!("{} is neither a target, nor a directory of targets, nor a journal segment", path.display());
    }
    for target in targets {
        report.begin(&target);
        cores.block_on(target::inspect(&target, report))?;
    }
    Ok(())
}

/// The directory itself, or those in it that are targets, by name.
fn targets_at(path: &Path) -> anyhow::Result<Vec<PathBuf>> {
    if format::is_target(path) {
        return Ok(vec![path.to_owned()]);
    }
    let entries = path.read_dir().with_context(|| format!("cannot read {}", path.display()))?;
    let mut targets = Vec::new();
    for entry in entries {
        let path = entry?.path();
        if path.is_dir() && format::is_target(&path) {
            targets.push(path);
        }
    }
    targets.sort();
    Ok(targets)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inodes_are_named_by_fid_or_number() {
        let inode = InodeNumber(0x100);
        for text in ["[0x200000400:0x100:0x0]", "0x200000400:0x100:0x0", "256", "0x100"] {
            assert_eq!(parse_inode(text).unwrap(), inode, "{text}");
        }
        for text in ["", "x", "[0x1:0x1:0x0]", "-1"] {
            assert!(parse_inode(text).is_err(), "{text}");
        }
    }
}
