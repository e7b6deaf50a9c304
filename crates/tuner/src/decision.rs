//! What a tuner decided, and why: for people.

use std::fmt;

/// Decisions that a tuner keeps for people.
pub const LOG_DECISIONS_MAX: usize = 256;

/// How a trial ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The other setting is better, or as good and preferred.
    Changed,
    /// It is worse, or as good and not preferred.
    Kept,
    /// The difference did not stand out from the noise: the setting stays, or the larger one is
    /// chosen where larger ones are preferred.
    Unclear,
    /// The load ended or changed meanwhile.
    Abandoned,
    /// The rate fell some time after the setting was taken: back to the one before, and for some
    /// time nothing beyond that is tried.
    Returned,
    /// Nothing was compared: requests waited, and larger settings are preferred.
    Grown,
    /// Nothing was compared: requests waited, but too few of them ended.
    TooFew,
}

/// The end of a trial, or what was done without one.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Decision {
    /// When.
    pub now_ns: u64,
    /// The setting before.
    pub from: u32,
    /// The setting that was tried.
    pub tried: u32,
    /// The setting from now on.
    pub setting: u32,
    /// Why.
    pub outcome: Outcome,
    /// Relative difference of the rate, other to present setting.
    pub gain: f64,
    /// Standard error of `gain`.
    pub noise: f64,
    /// For how long both settings were measured in the trial.
    pub compared_ns: u64,
    /// Work per second with the setting before.
    pub rate: f64,
    /// Mean time of a request with it, in nanoseconds.
    pub latency_ns: u64,
    /// Requests that waited for their turn at the end.
    pub waiting: u64,
}

impl Decision {
    /// Whether the rates of two settings were compared to the end.
    pub fn is_comparison(&self) -> bool {
        match self.outcome {
            Outcome::Changed | Outcome::Kept | Outcome::Unclear | Outcome::Returned => true,
            Outcome::Abandoned | Outcome::Grown | Outcome::TooFew => false,
        }
    }

    /// A line of a log: the time in seconds, and the rest.
    pub fn line(&self) -> String {
        format!("{:.3} {self}", self.now_ns as f64 / 1e9)
    }
}

impl fmt::Display for Decision {
    /// One line, without the time. Work is bytes.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { from, tried, setting, gain, noise, rate, waiting, .. } = self;
        let compared_s = self.compared_ns as f64 / 1e9;
        let (gain, noise, latency) = (gain * 100.0, noise * 100.0, self.latency_ns / 1000);
        let rate = rate / f64::from(1 << 20);
        match self.outcome {
            Outcome::Changed if gain >= 0.0 => write!(f, "{from} -> {setting}: more work")?,
            Outcome::Changed => write!(f, "{from} -> {setting}: as much work")?,
            Outcome::Kept => write!(f, "{from} stays, not {tried}: no more work")?,
            Outcome::Unclear if setting == from => write!(f, "{from} stays, not {tried}: no clear difference")?,
            Outcome::Unclear => write!(f, "{from} -> {setting}: no clear difference")?,
            Outcome::Returned => write!(f, "{from} -> {setting}: back, the rate had fallen")?,
            Outcome::Grown | Outcome::TooFew => {
                let why = if self.outcome == Outcome::Grown { "requests wait" } else { "too few ended" };
                return write!(f, "{from} -> {setting}: {why} ({rate:.1} MiB/s, {latency} us, {waiting} waiting)");
            }
            Outcome::Abandoned => write!(f, "{from} stays, {tried} not compared: the load changed")?,
        }
        write!(
            f,
            " ({gain:+.1}% +-{noise:.1}%, compared for {compared_s:.1} s; {rate:.1} MiB/s, {latency} us, {waiting} waiting)"
        )
    }
}
