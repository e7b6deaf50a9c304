//! What a tuner may choose from, and what it prefers.

/// Gain in the rate, per e-fold of the setting, below which fewer service threads are preferred:
/// half as many may cost 1% of the rate. With more, a curve that rises slowly from 1 to 256 would
/// cost more than 5%.
const SERVICE_ELASTICITY: f64 = 0.015;
/// The same for requests in flight, where more are preferred: twice as many may cost 1%.
const WINDOW_ELASTICITY: f64 = -0.015;

/// The settings that a tuner may choose, and its preference among those at which equally much work
/// is done.
///
/// Servers and clients must prefer opposite things. If both preferred little, neither would find
/// out that more is better: as long as the client sends one request at a time, a second service
/// thread changes nothing, and as long as there is one service thread, neither does a second
/// request. So clients keep enough in flight that requests wait at the server, and the server
/// decides how many are executed at once.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Limits {
    /// The smallest setting, at least 1.
    pub min: u32,
    /// The largest setting, at least `min`.
    pub max: u32,
    /// Least relative gain in the rate that a larger setting must bring, per e-fold of the setting.
    pub elasticity: f64,
}

/// A client tries fewer requests in flight so much later than a server looks for what is far away,
/// which would take what clients try for an effect of its own.
const CLIENT_LATER_NS: u64 = 8_000_000_000;

impl Limits {
    /// For the threads of a service: few.
    pub fn service_threads(min: u32, max: u32) -> Self {
        Self::new(min, max, SERVICE_ELASTICITY)
    }

    /// For the requests that a client has in flight to one target: many.
    pub fn requests_in_flight(min: u32, max: u32) -> Self {
        Self::new(min, max, WINDOW_ELASTICITY)
    }

    fn new(min: u32, max: u32, elasticity: f64) -> Self {
        let min = min.max(1);
        Self { min, max: max.max(min), elasticity }
    }

    /// Whether larger settings are preferred.
    pub(crate) fn prefers_larger(&self) -> bool {
        self.elasticity < 0.0
    }

    pub(crate) fn clamp(&self, setting: u32) -> u32 {
        setting.clamp(self.min, self.max)
    }

    /// How long after a load has begun the first trial may be.
    pub(crate) fn first_trial_ns(&self) -> u64 {
        if self.prefers_larger() { CLIENT_LATER_NS } else { 0 }
    }
}
