//! The share of processor time that is used: of the host's, or, if a limit of a control group is
//! closer, of what the group may use.

mod control_group;
mod host;

use std::time::{Duration, Instant};

use parking_lot::Mutex;

use control_group::{ControlGroups, Periods};
use host::Times;

/// The counters are in hundredths of a second: shorter times show little.
const INTERVAL: Duration = Duration::from_millis(200);

/// See the module documentation.
#[derive(Debug, Default)]
pub struct ProcessorTime(Mutex<Option<Last>>);

#[derive(Debug)]
struct Last {
    at: Instant,
    groups: ControlGroups,
    times: Times,
    periods: Vec<Periods>,
    used: Option<f64>,
}

impl ProcessorTime {
    /// Share of the processor time that was used recently, 0 to 1: since the last call some time
    /// ago. `None` if it is not known (yet).
    pub fn used(&self) -> Option<f64> {
        let mut last = self.0.lock();
        let now = Instant::now();
        if let Some(last) = last.as_ref().filter(|last| now.duration_since(last.at) < INTERVAL) {
            return last.used;
        }
        let times = Times::now()?;
        let before = last.take();
        let (groups, before) = match before {
            Some(Last { groups, times, periods, .. }) => (groups, Some((times, periods))),
            None => (ControlGroups::of_host(), None),
        };
        let periods = groups.periods();
        let used = before.and_then(|(times_before, periods_before)| {
            let of_host = times.used_since(times_before)?;
            let of_groups = periods.iter().filter_map(|periods| periods.exhausted_since(&periods_before));
            Some(of_groups.fold(of_host, f64::max))
        });
        *last = Some(Last { at: now, groups, times, periods, used });
        used
    }
}
