//! How it stands with a tuner, for programs: the value of the parameters `*.tuner_state`, a line of
//! JSON. `tuner_log` says the same and more for people.

use rpc::{Mode, Tuning};
use serde::{Deserialize, Serialize};

/// How it stands with a tuner.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TunerState {
    /// Whether it may change the setting.
    pub mode: Mode,
    /// The number at present: service threads, or requests outstanding at once.
    pub setting: u32,
    /// The most that it may be.
    pub most: u32,
    /// Decisions in the log.
    pub decisions: usize,
    /// Of these, the comparisons of two settings.
    pub comparisons: usize,
}

impl TunerState {
    /// Of this tuner.
    pub(crate) fn of(tuning: &Tuning, setting: usize, most: usize) -> Self {
        let log = tuning.log();
        let number = |number: usize| u32::try_from(number).unwrap_or(u32::MAX);
        Self {
            mode: tuning.mode(),
            setting: number(setting),
            most: number(most),
            decisions: log.len(),
            comparisons: log.iter().filter(|decision| decision.is_comparison()).count(),
        }
    }

    /// As the value of a parameter.
    pub(crate) fn to_text(self) -> String {
        serde_json::to_string(&self).expect("names and numbers can be written")
    }

    /// The value of a parameter.
    pub fn parse(text: &str) -> serde_json::Result<Self> {
        serde_json::from_str(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_read_what_daemons_write() {
        let state = TunerState { mode: Mode::ByHand, setting: 7, most: 256, decisions: 3, comparisons: 2 };
        let text = state.to_text();
        assert_eq!(text, r#"{"mode":"by_hand","setting":7,"most":256,"decisions":3,"comparisons":2}"#);
        assert_eq!(TunerState::parse(&format!("{text}\n")).unwrap(), state);
        for wrong in ["", "{}", "tuner on: 7 threads of at most 256", &text.replace("by_hand", "perhaps")] {
            assert!(TunerState::parse(wrong).is_err(), "{wrong}");
        }
    }
}
