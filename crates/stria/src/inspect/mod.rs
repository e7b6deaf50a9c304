//! `stria inspect`: what is on disk, decoded, read only.
//!
//! Shows a target's identity, its journal, its tables as opening the target would find them, and an OST's host files; with
//! `--verbose` every record and entry, with `--inode` all that is stored about one inode. Damage is described in its place
//! and counted, and the rest is shown all the same.
//!
//! Nothing is changed: files are read through a device that refuses writing, and the cold store, which its library cannot
//! open without changing files, is copied to a temporary directory (TMPDIR) first. A target that is in use is refused, because
//! its files contradict each other while they change; a single journal segment can be looked at any time, and may then end in
//! a record that is just being written.
//!
//! Downside: the copy needs as much space as the cold store has, and what is in the journal is held in memory.

mod device;
mod host_files;
mod journal;
mod tables;
mod target;

use std::{
    io::{self, BufWriter, Write},
    path::{Path, PathBuf},
};

use anyhow::{Context, bail};
use rt::real::Cores;
use types::{Fid, InodeNumber};

use crate::{cli::InspectArgs, node::format};

/// Runs `stria inspect`. Exit status 0: everything decoded.
pub fn run(arguments: &InspectArgs) -> anyhow::Result<()> {
    let inode = arguments.inode.as_deref().map(parse_inode).transpose()?;
    let mut output = BufWriter::new(io::stdout());
    let mut report = Report { output: &mut output, verbose: arguments.verbose, inode, damage: 0 };
    let outcome = inspect(&arguments.path, &mut report);
    let damage = report.damage;
    match outcome.and_then(|()| Ok(output.flush()?)) {
        Err(error) => Err(error),
        Ok(()) if damage > 0 => bail!("{damage} damaged places"),
        Ok(()) => Ok(()),
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
fn inspect(path: &Path, report: &mut Report<'_>) -> anyhow::Result<()> {
    let cores = Cores::start(1)?;
    let outcome = inspect_on(&cores, path, report);
    cores.shutdown();
    outcome
}

fn inspect_on(cores: &Cores, path: &Path, report: &mut Report<'_>) -> anyhow::Result<()> {
    let metadata = path.metadata().with_context(|| format!("cannot inspect {}", path.display()))?;
    if metadata.is_file() {
        return cores.block_on(journal::inspect_segment(path, report));
    }
    let targets = targets_at(path)?;
    if targets.is_empty() {
        bail!("{} is neither a target, nor a directory of targets, nor a journal segment", path.display());
    }
    for target in targets {
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

/// Where findings go.
pub struct Report<'o> {
    output: &'o mut (dyn Write + Send),
    /// Everything, not only totals.
    pub verbose: bool,
    /// Only what concerns this inode.
    pub inode: Option<InodeNumber>,
    damage: u64,
}

impl Report<'_> {
    /// A line of the report.
    pub fn line(&mut self, text: std::fmt::Arguments<'_>) -> anyhow::Result<()> {
        Ok(writeln!(self.output, "{text}")?)
    }

    /// Something that is not as it should be.
    pub fn damage(&mut self, text: std::fmt::Arguments<'_>) -> anyhow::Result<()> {
        self.damage += 1;
        self.line(format_args!("DAMAGED {text}"))
    }

    /// Whether single records and entries are shown, if they concern the inode asked for.
    pub fn shows_entries(&self) -> bool {
        self.verbose || self.inode.is_some()
    }
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
