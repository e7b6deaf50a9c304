//! What a tuner does at the moment: it rests at a setting, or compares another one with it.

use crate::{
    measurement::{Change, Measurement},
    noise::Windows,
    trial::Trial,
};

/// See the module documentation.
#[derive(Clone, Debug)]
pub(crate) enum Phase {
    /// The setting stays.
    Resting(Rest),
    /// The setting of a trial's next stay has begun.
    Settling(Comparison),
    /// A window has begun with this measurement.
    Measuring(Comparison, Measurement),
}

/// The setting stays: is it time for a trial, or does the rate change?
#[derive(Clone, Debug, Default)]
pub(crate) struct Rest {
    /// Start of the window; none while the setting settles.
    pub since: Option<Measurement>,
    pub until_ns: u64,
    pub window_ns: u64,
    pub windows: Windows,
    /// How long the rate with the setting was measured since it began, or since the last trial.
    pub seen_ns: u64,
    /// Whether any of it is in the records.
    pub is_recorded: bool,
    /// Windows that are not in the records yet, ...
    pub recent: Change,
    /// ... and some before them, whose rate was that of another load.
    pub odd: Option<Change>,
}

/// What the rate of a rest says.
pub(crate) enum Judgement {
    /// Nothing yet.
    Open,
    /// It is as it was.
    Usual,
    /// It is that of another load.
    OtherLoad(Change),
}

/// A trial under way.
#[derive(Clone, Debug)]
pub(crate) struct Comparison {
    pub trial: Trial,
    pub window_ns: u64,
    pub settle_ns: u64,
    pub windows: Windows,
    /// What the last window with the present setting measured.
    pub present: Change,
}
