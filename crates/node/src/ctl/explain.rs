//! `stria explain --service`: how many threads a service has, and what its tuner did and why.

use std::path::PathBuf;

use anyhow::bail;
use rpc::Mode;

use super::{
    daemons::Daemons,
    parameters::{self, Question},
    protocol::Parameter,
    run_dir,
    show::{self, Headings, Style},
};
use crate::{service_parameters::SERVICES, tuner_state::TunerState};

/// Explains a service of the servers of this host.
pub fn explain_service(service: &str, run_dir: Option<PathBuf>, json: bool) -> anyhow::Result<()> {
    let tuned = || SERVICES.iter().filter(|known| known.is_tuned());
    let Some(known) = tuned().find(|known| known.name == service || known.prefix == service) else {
        let names: Vec<&str> = tuned().map(|known| known.name).collect();
        bail!("no service '{service}' has a tuner; allowed: {}", names.join(", "));
    };
    let daemons = Daemons::find(&run_dir.unwrap_or_else(run_dir::default_path), None)?;
    let style = Style { json, headings: Headings::OfSeveral };
    let leaves = ["threads_min", "threads_max", "threads_started", "tuner", "tuner_log", "tuner_state", "stats"];
    let patterns: Vec<String> = leaves.iter().map(|leaf| format!("{}.{leaf}", known.prefix)).collect();
    let text = |parameter: &Parameter| {
        let is_state = parameter.name.ends_with(".tuner_state");
        let state = is_state.then(|| TunerState::parse(&parameter.value).ok()).flatten();
        state.map_or_else(|| show::assignment(parameter), |state| format!("# {}", told(&state)))
    };
    parameters::show(&daemons.all(), &patterns, Question::Values, style, text)
}

/// What the decisions of a tuner come to.
fn told(state: &TunerState) -> String {
    match (state.mode, state.comparisons) {
        (Mode::Off | Mode::ByHand, _) => "The number of threads is fixed.".to_owned(),
        (Mode::On, 0) => "Nothing was compared yet: settings are while requests wait for a thread, or more than 16 are executed at once."
            .to_owned(),
        (Mode::On, 1) => "Two settings were compared.".to_owned(),
        (Mode::On, count) => format!("The last {count} comparisons of settings, the newest last."),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_tuner_did_is_told_in_a_sentence() {
        let of = |mode, decisions, comparisons| TunerState { mode, setting: 8, most: 256, decisions, comparisons };
        assert!(told(&of(Mode::On, 0, 0)).starts_with("Nothing was compared yet"));
        assert!(told(&of(Mode::On, 3, 0)).starts_with("Nothing was compared yet"), "only abandoned ones");
        assert!(told(&of(Mode::On, 2, 1)).starts_with("Two settings"));
        assert!(told(&of(Mode::On, 3, 2)).starts_with("The last 2 comparisons of settings"));
        for mode in [Mode::Off, Mode::ByHand] {
            assert!(told(&of(mode, 3, 2)).contains("is fixed"));
        }
    }
}
