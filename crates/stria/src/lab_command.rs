//! `stria lab`: the simulation for people.

use crate::cli::LabCommand;

/// Runs `stria lab`.
pub fn run(_command: &LabCommand) -> anyhow::Result<()> {
    anyhow::bail!("the lab is not part of this build")
}
