//! `stria explain --service`: how many threads a service has, and what its tuner did and why.

use std::path::PathBuf;

use anyhow::bail;

use super::{
    daemons::Daemons,
    parameters::{self, Question},
    run_dir,
    show::{self, Headings, Style},
};
use crate::service_parameters::SERVICES;

/// Explains a service of the servers of this host.
pub fn explain_service(service: &str, run_dir: Option<PathBuf>, json: bool) -> anyhow::Result<()> {
    let tuned = || SERVICES.iter().filter(|known| known.is_tuned());
    let Some(known) = tuned().find(|known| known.name == service) else {
        let names: Vec<&str> = tuned().map(|known| known.name).collect();
        bail!("no service '{service}' has a tuner; allowed: {}", names.join(", "));
    };
    let daemons = Daemons::find(&run_dir.unwrap_or_else(run_dir::default_path), None)?;
    let style = Style { json, headings: Headings::OfSeveral };
    let leaves = ["threads_min", "threads_max", "threads_started", "tuner", "tuner_log", "stats"];
    let patterns: Vec<String> = leaves.iter().map(|leaf| format!("{}.{leaf}", known.prefix)).collect();
    parameters::show(&daemons.all(), &patterns, Question::Values, style, show::assignment)
}
