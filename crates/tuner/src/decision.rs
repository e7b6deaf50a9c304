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
    /// Pairs of windows that were compared.
    pub pairs: u32,
    /// Work per second with the setting before.
    pub rate: f64,
    /// Mean time of a request with it, in nanoseconds.
    pub latency_ns: u64,
    /// Requests that waited for their turn at the end.
    pub waiting: u64,
}

impl fmt::Display for Decision {
    /// One line, without the time.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { from, tried, setting, gain, noise, pairs, rate, waiting, .. } = self;
        let (gain, noise, latency) = (gain * 100.0, noise * 100.0, self.latency_ns / 1000);
        match self.outcome {
            Outcome::Changed if gain >= 0.0 => write!(f, "{from} -> {setting}: more work")?,
            Outcome::Changed => write!(f, "{from} -> {setting}: as much work")?,
            Outcome::Kept => write!(f, "{from} stays, not {tried}: no more work")?,
            Outcome::Unclear if setting == from => write!(f, "{from} stays, not {tried}: no clear difference")?,
            Outcome::Unclear => write!(f, "{from} -> {setting}: no clear difference")?,
            Outcome::TooFew => {
                return write!(f, "{from} -> {setting}: too few ended ({rate:.0}/s, {latency} us, {waiting} waiting)");
            }
            Outcome::Abandoned => write!(f, "{from} stays, {tried} not compared: the load changed")?,
        }
        write!(f, " ({gain:+.1}% +-{noise:.1}%, compared {pairs} times; {rate:.0}/s, {latency} us, {waiting} waiting)")
    }
}
