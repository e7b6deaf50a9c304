//! What the parameters of tuners take and show.

use rpc::{Mode, Tuning};

/// Whether a tuner is to be on.
pub fn parse(text: &str) -> Result<bool, String> {
    match text {
        "on" | "1" => Ok(true),
        "off" | "0" => Ok(false),
        _ => Err("expected on or off".to_owned()),
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
    for line in tuning.log() {
        text.push_str(&line);
        text.push('\n');
    }
    text
}
