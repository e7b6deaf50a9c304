//! `stria format`: makes the targets of a configuration.

use std::path::Path;

use anyhow::{Context, bail};
use rt::{Entropy, real::SystemEntropy};

use super::{
    config::{Config, TargetConfig},
    identity::{Identity, IdentityError},
    parameter_names,
    status::say,
    target,
};
use crate::cli::FormatArgs;

/// Runs `stria format`.
pub fn run(arguments: &FormatArgs) -> anyhow::Result<()> {
    let config = Config::read(&arguments.config)?;
    parameter_names::check(&config.assignments(), &config.targets, &config.fsname, false)
        .with_context(|| format!("configuration {}", arguments.config.display()))?;
    let chosen: Vec<&TargetConfig> =
        config.targets.iter().filter(|target| arguments.role.is_none_or(|role| role == target.role)).collect();
    if chosen.is_empty() {
        bail!("{} has no target of that role", arguments.config.display());
    }
    for target in chosen {
        match format_target(target, &config.fsname) {
            Err(error) if arguments.missing_only && is_formatted(&error) => {
                say(format_args!("{} in {}: already there", target.name(&config.fsname), target.dir.display()));
            }
            formatted => {
                formatted.with_context(|| format!("cannot format {}", target.name(&config.fsname)))?;
                say(format_args!("{} in {}: formatted", target.name(&config.fsname), target.dir.display()));
            }
        }
    }
    Ok(())
}

fn is_formatted(error: &anyhow::Error) -> bool {
    matches!(error.downcast_ref(), Some(IdentityError::Formatted(..)))
}

/// Formats one target; its directory must be new, empty, or left behind by an interrupted formatting.
pub fn format_target(target: &TargetConfig, fsname: &str) -> anyhow::Result<()> {
    let identity = Identity::new(fsname, target.role, target.index, uuid());
    let _lock = Identity::begin(&target.dir)?;
    let cores = rt::real::Cores::start(1)?;
    let made = cores.block_on(target::format(&cores, target, fsname));
    cores.shutdown();
    made?;
    identity.store(&target.dir)?;
    Ok(())
}

/// Whether a directory already holds a target.
pub fn is_target(directory: &Path) -> bool {
    !matches!(Identity::load(directory), Err(IdentityError::NotFormatted(_)))
}

fn uuid() -> String {
    let random = SystemEntropy;
    format!("{:016x}{:016x}", random.next_u64(), random.next_u64())
}
