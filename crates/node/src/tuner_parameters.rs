//! What the parameters of tuners take and show.

use rpc::{Mode, Tuning};
use rt::parameters::parse_number;

/// Of the parameters `tuner_state`.
pub const STATE_DOC: &str = "for programs, as JSON: mode (on, off, by_hand), the number at present and the most, decisions and comparisons in tuner_log";

/// What becomes of a tuner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Switch {
    /// Off.
    Off,
    /// On, beginning with the present number.
    On,
    /// On, beginning with this number.
    From(u16),
}

/// What a tuner is to do: on, off, or on:N.
pub fn parse(text: &str) -> Result<Switch, String> {
    match (text, text.strip_prefix("on:")) {
        ("on" | "1", _) => Ok(Switch::On),
        ("off" | "0", _) => Ok(Switch::Off),
        (_, Some(number)) => parse_number(number, &(1..=u64::from(u16::MAX))).map(|number| Switch::From(number as u16)),
        _ => Err("expected on or off, or on:N to begin with N".to_owned()),
    }
}

/// Whether a tuner is on, and if not, why.
pub fn mode(tuning: &Tuning) -> String {
    match tuning.mode() {
        Mode::On => "on",
        Mode::Off => "off",
        Mode::ByHand => "off (the value was set by hand)",
    }
    .to_owned()
}

/// The setting, and the last decisions, each with its time in seconds.
pub fn log(tuning: &Tuning, setting: usize, most: usize, unit: &str) -> String {
    let mut text = format!("tuner {}: {setting} {unit} of at most {most}\n", mode(tuning));
    for decision in tuning.log() {
        text.push_str(&decision.line());
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tuners_are_switched_by_word_and_begin_where_they_are_told_to() {
        for (text, expected) in [("on", Switch::On), ("1", Switch::On), ("off", Switch::Off), ("on:1", Switch::From(1))]
        {
            assert_eq!(parse(text), Ok(expected), "{text}");
        }
        for text in ["", "on:", "on:0", "on:x", "on:65536", "perhaps"] {
            assert!(parse(text).is_err(), "{text}");
        }
    }
}
