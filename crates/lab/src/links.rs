//! Links with bandwidth: what a network costs beyond its delay.
//!
//! Every machine has a link with a direction each way; between machines stand routers, which take turns frame by frame.
//! A frame occupies everything on its way at once (cut-through) and arrives when the slowest part is through with it.
//! Each part serves frames in order. Frames within a machine cost nothing.
//!
//! Downside: a frame that waits for one part already holds its place on the others, as with link-level flow control, but
//! no congestion spreads backwards.

use std::{collections::BTreeMap, time::Duration};

use parking_lot::Mutex;
use rt::Instant;

/// Bandwidths of a network.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
pub struct LinkModel {
    /// Bytes per second of each machine's link, each way.
    pub machine_bytes_per_second: u64,
    /// Routers between machines; 0: none.
    pub routers: u32,
    /// Bytes per second of each router.
    pub router_bytes_per_second: u64,
    /// Object storage servers that share a machine: `oss0` to `oss7` are one machine if this is 8.
    pub osts_per_machine: u16,
}

/// One thing that frames pass in order.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Part {
    Out(String),
    In(String),
    Router(u32),
}

#[derive(Debug, Default)]
struct State {
    free_at: BTreeMap<Part, Instant>,
    next_router: u32,
}

/// The links of a network.
#[derive(Debug)]
pub struct Links {
    model: LinkModel,
    state: Mutex<State>,
}

impl Links {
    /// Idle links.
    pub fn new(model: LinkModel) -> Self {
        Self { model, state: Mutex::default() }
    }

    /// The machine a host of the simulation stands in.
    fn machine(&self, host: &str) -> String {
        let number = host.strip_prefix("oss").and_then(|number| number.parse::<u16>().ok());
        number.map_or_else(|| host.to_owned(), |number| format!("oss machine {}", number / self.model.osts_per_machine))
    }

    /// When a frame that is sent now is through; occupies the links until then.
    pub fn through(&self, now: Instant, from: &str, to: &str, bytes: u64) -> Instant {
        let (from, to) = (self.machine(from), self.machine(to));
        if from == to {
            return now;
        }
        let mut state = self.state.lock();
        let LinkModel { machine_bytes_per_second, routers, router_bytes_per_second, .. } = self.model;
        let mut parts = vec![(Part::Out(from), machine_bytes_per_second), (Part::In(to), machine_bytes_per_second)];
        if routers > 0 {
            state.next_router = (state.next_router + 1) % routers;
            parts.push((Part::Router(state.next_router), router_bytes_per_second));
        }
        let mut through = now;
        for (part, rate) in parts {
            let free_at = state.free_at.entry(part).or_default();
            *free_at = now.max(*free_at) + transfer_time(bytes, rate);
            through = through.max(*free_at);
        }
        through
    }
}

/// Time of so many bytes at so many per second.
pub fn transfer_time(bytes: u64, bytes_per_second: u64) -> Duration {
    let nanoseconds = u128::from(bytes) * 1_000_000_000 / u128::from(bytes_per_second.max(1));
    Duration::from_nanos(u64::try_from(nanoseconds).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MODEL: LinkModel = LinkModel {
        machine_bytes_per_second: 1_000_000_000,
        routers: 2,
        router_bytes_per_second: 500_000_000,
        osts_per_machine: 2,
    };

    #[test]
    fn the_slowest_part_of_the_way_decides_and_routers_take_turns() {
        let links = Links::new(MODEL);
        let send = |from: &str, to: &str| links.through(Instant(100), from, to, 1000).0 - 100;
        assert_eq!(send("client0", "oss0"), 2000, "the router");
        assert_eq!(send("client1", "oss2"), 2000, "the other router");
        assert_eq!(send("client2", "oss4"), 4000, "behind the first frame");
        assert_eq!(send("oss0", "oss1"), 0, "one machine");
    }

    #[test]
    fn servers_of_one_machine_share_its_link() {
        let links = Links::new(LinkModel { routers: 0, ..MODEL });
        let send = |from: &str, to: &str| links.through(Instant(0), from, to, 1000).0;
        assert_eq!((send("client0", "oss0"), send("client1", "oss1"), send("client2", "oss2")), (1000, 2000, 1000));
        assert_eq!(send("oss0", "client0"), 1000, "the other way is free");
    }
}
