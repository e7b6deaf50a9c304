//! The share of a node's processor time that was used recently, as `rt::ProcessorTime` tells it on
//! real hosts.

use std::time::Duration;

use parking_lot::Mutex;
use rt::Instant;

use super::NodeProcessors;

/// Shorter times show little: on real hosts the counters are in hundredths of a second.
const INTERVAL: Duration = Duration::from_millis(200);

/// See the module documentation.
pub struct RecentUse {
    processors: NodeProcessors,
    last: Mutex<Last>,
}

struct Last {
    at: Instant,
    /// Busy time of all cores together up to then.
    busy: Duration,
    share: Option<f64>,
}

impl RecentUse {
    /// Nothing is known before the first interval has passed.
    pub fn new(processors: NodeProcessors) -> Self {
        let last = Last { at: processors.0.simulation.now(), busy: processors.busy_time(), share: None };
        Self { processors, last: Mutex::new(last) }
    }

    /// Share that was used recently, 0 to 1: since the last call some time ago.
    pub fn used(&self) -> Option<f64> {
        let (now, busy) = (self.processors.0.simulation.now(), self.processors.busy_time());
        let mut last = self.last.lock();
        let elapsed = now.since(last.at);
        if elapsed >= INTERVAL {
            let cores = f64::from(self.processors.0.model.cores);
            // Work is counted when it ends: what began before counts as well.
            let share = ((busy - last.busy).as_secs_f64() / (elapsed.as_secs_f64() * cores)).min(1.0);
            *last = Last { at: now, busy, share: Some(share) };
        }
        last.share
    }
}

#[cfg(test)]
mod tests {
    use rt::{CpuKind, Processors};

    use super::*;
    use crate::{
        ProcessId, Simulation,
        executor::RunLimits,
        processors::{Cost, Costs, ProcessorModel},
    };

    #[test]
    fn half_of_the_cores_is_half_of_the_time() {
        let simulation = Simulation::new(1);
        let model = ProcessorModel {
            cores: 2,
            costs: Costs([Cost { each_ns: 0, byte_ps: 1000 }; CpuKind::ALL.len()]),
            slice: Duration::from_millis(1),
            switch: Duration::ZERO,
            working_set_bytes: 0,
            cache_bytes: 1,
            refill_bytes_per_second: 1,
            hand_over: Duration::ZERO,
        };
        let processors = NodeProcessors::new(&simulation, model);
        let recent = RecentUse::new(processors.clone());
        let clock = simulation.clone();
        let ran = simulation.run(RunLimits::default(), async move {
            let mut shares = vec![recent.used()];
            clock.spawn(ProcessId(1), "copy", processors.spend(CpuKind::Copy, 200_000_000));
            clock.sleep(INTERVAL / 2).await;
            shares.push(recent.used());
            clock.sleep(INTERVAL / 2).await;
            shares.push(recent.used());
            clock.sleep(INTERVAL / 2).await;
            shares.push(recent.used());
            clock.sleep(INTERVAL / 2).await;
            shares.push(recent.used());
            shares
        });
        let [before, early, half, kept, idle] = ran.unwrap()[..] else { panic!("five shares") };
        assert_eq!((before, early, kept), (None, None, half));
        // The last millisecond of work may count in the next interval.
        assert!(half.is_some_and(|share| (0.49..=0.5).contains(&share)), "{half:?}");
        assert!(idle.is_some_and(|share| share <= 0.01), "{idle:?}");
    }
}
