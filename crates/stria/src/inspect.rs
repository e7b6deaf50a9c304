//! `stria inspect`: what is on disk, decoded, read only.

use crate::cli::InspectArgs;

/// Runs `stria inspect`.
pub fn run(_arguments: &InspectArgs) -> anyhow::Result<()> {
    anyhow::bail!("not yet")
}
