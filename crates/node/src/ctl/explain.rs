//! `stria explain --service`: how many threads a service has, and what its tuner did and why.

use std::path::PathBuf;

use anyhow::bail;

use super::{
    daemons::Daemons,
    parameters::{self, Question},
    protocol::Parameter,
    run_dir,
    show::{self, Headings, Style},
};
use crate::service_parameters::SERVICES;

/// Explains a service of the servers of this host.
pub fn explain_service(service: &str, run_dir: Option<PathBuf>, json: bool) -> anyhow::Result<()> {
    let tuned = || SERVICES.iter().filter(|known| known.is_tuned());
    let Some(known) = tuned().find(|known| known.name == service || known.prefix == service) else {
        let names: Vec<&str> = tuned().map(|known| known.name).collect();
        bail!("no service '{service}' has a tuner; allowed: {}", names.join(", "));
    };
    let daemons = Daemons::find(&run_dir.unwrap_or_else(run_dir::default_path), None)?;
    let style = Style { json, headings: Headings::OfSeveral };
    let leaves = ["threads_min", "threads_max", "threads_started", "tuner", "tuner_log", "stats"];
    let patterns: Vec<String> = leaves.iter().map(|leaf| format!("{}.{leaf}", known.prefix)).collect();
    let text = |parameter: &Parameter| match parameter.name.ends_with(".tuner_log") {
        true => format!("{}\n{}", show::assignment(parameter), told(&parameter.value)),
        false => show::assignment(parameter),
    };
    parameters::show(&daemons.all(), &patterns, Question::Values, style, text)
}

/// What a tuner's log comes to.
fn told(log: &str) -> String {
    let mut lines = log.lines();
    let first = lines.next().unwrap_or_default();
    if first.starts_with("tuner off") {
        return "# The number of threads is fixed.".to_owned();
    }
    match lines.filter(|line| line.contains(" compared for ") && !line.contains(" not compared: ")).count() {
        0 => "# Nothing was compared yet: settings are while requests wait for a thread, or more than 16 are executed at once."
            .to_owned(),
        1 => "# Two settings were compared.".to_owned(),
        count => format!("# The last {count} comparisons of settings, the newest last."),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_is_told_in_a_sentence() {
        let line = "\n5.1 16 -> 8: more work (+14.2% +-2.1%, compared for 1.2 s; 51 MiB/s, 18203 us, 41 waiting)";
        let abandoned = line.replace("16 -> 8: more work", "16 stays, 8 not compared: the load changed");
        for log in ["", &abandoned] {
            let log = format!("tuner on: 256 threads of at most 256{log}");
            assert!(told(&log).starts_with("# Nothing was compared yet"), "{log}");
        }
        assert!(told("tuner off (the value was set by hand): 7 threads").contains("is fixed"));
        assert!(
            told(&format!("tuner on: 8 threads of at most 256{line}{line}"))
                .starts_with("# The last 2 comparisons of settings")
        );
    }
}
