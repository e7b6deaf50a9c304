//! Where the results of the studies of ageing go.

use std::{num::NonZero, path::PathBuf};

use anyhow::Context;
use clap::Args;

/// Options of every study of ageing.
#[derive(Clone, Debug, Args)]
pub struct AgeingOutput {
    /// Draw figures (SVG) into this directory, which is made if there is none
    #[arg(long, value_name = "DIR")]
    pub figures: Option<PathBuf>,
    /// Write every result to this file as a JSON line
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Number of devices to simulate in parallel; by default one per core
    #[arg(long, value_name = "N")]
    pub threads: Option<NonZero<usize>>,
}

impl AgeingOutput {
    /// Writes the lines of all results, if they are wanted.
    pub(super) fn write_lines(&self, lines: &str) -> anyhow::Result<()> {
        let Some(path) = &self.json else { return Ok(()) };
        std::fs::write(path, lines).with_context(|| format!("cannot write {}", path.display()))
    }
}

#[cfg(test)]
impl AgeingOutput {
    /// Everything into this directory, by two threads.
    pub(super) fn of_test(directory: &std::path::Path, json: &str) -> Self {
        let (figures, json) = (Some(directory.to_owned()), Some(directory.join(json)));
        Self { figures, json, threads: NonZero::new(2) }
    }
}
