//! Links with bandwidth: the cost of a network beyond its delay.
//!
//! Every machine has a link in each direction; routers connect machines and take turns frame by
//! frame. A frame occupies all parts of its path at once (cut-through) and arrives when the slowest
//! part has finished with it. Each part serves frames in order. Frames within a machine cost
//! nothing.
//!
//! Downside: a frame that waits for one part already holds its place on the others, as with
//! link-level flow control, but no congestion spreads backwards.

use std::collections::BTreeMap;

use bytes::Bytes;
use parking_lot::Mutex;
use rt::Instant;
use types::time::transfer_time;

use super::{machines::Machines, spindle::share_zeros};

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
    machines: Machines,
    state: Mutex<State>,
}

impl Links {
    /// Idle links.
    pub fn new(model: LinkModel) -> Self {
        Self { model, machines: Machines::SEPARATE, state: Mutex::default() }
    }

    /// The same with machines that have several MDTs or clients.
    pub fn of_machines(self, machines: Machines) -> Self {
        Self { machines, ..self }
    }

    /// The machine a host of the simulation stands in.
    fn machine(&self, host: &str) -> String {
        let number = host.strip_prefix("oss").and_then(|number| number.parse::<u16>().ok());
        let oss = number.map(|number| format!("oss machine {}", number / self.model.osts_per_machine));
        oss.or_else(|| self.machines.of(host)).unwrap_or_else(|| host.to_owned())
    }
}

impl lab::hardware::Links for Links {
    /// Frames wait for links, in large experiments for gigabytes of them.
    fn under_way(&self, data: Bytes) -> Bytes {
        share_zeros(data)
    }

    fn through(&self, now: Instant, from: &str, to: &str, bytes: u64) -> Instant {
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

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use lab::{Process, ProcessId, Simulation, executor::RunLimits, hardware::Links as _, network::Network};
    use rt::{Frame, FrameHeader};

    use super::*;
    use crate::model::spindle::zeros;

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
        assert_eq!(send("client2", "oss4"), 4000, "after the first frame");
        assert_eq!(send("oss0", "oss1"), 0, "one machine");
    }

    #[test]
    fn servers_of_one_machine_share_its_link() {
        let links = Links::new(LinkModel { routers: 0, ..MODEL });
        let send = |from: &str, to: &str| links.through(Instant(0), from, to, 1000).0;
        assert_eq!((send("client0", "oss0"), send("client1", "oss1"), send("client2", "oss2")), (1000, 2000, 1000));
        assert_eq!(send("oss0", "client0"), 1000, "the other way is free");
    }

    /// A run with many nodes held each of the zeros in flight to them in memory of their own, and
    /// was ended for it.
    #[test]
    fn zeros_under_way_on_links_share_their_memory_and_other_data_arrive_as_they_are() {
        let simulation = Simulation::new(1);
        let network = Network::new(&simulation, 1).with_links(Arc::new(Links::new(MODEL)));
        let server = Process::start(&simulation, &network, ProcessId(1), "server", 1).seams();
        let client = Process::start(&simulation, &network, ProcessId(2), "client", 1).seams();
        let run = simulation.run(RunLimits::default(), async move {
            let mut listener = server.transport.listen(&"server:1".into()).await.unwrap();
            let near = client.transport.connect(&"server:1".into()).await.unwrap();
            let mut far = listener.accept().await.unwrap();
            let other: Bytes = [vec![0; 4095], vec![1]].concat().into();
            for bulk in [vec![0; 4096].into(), other.clone(), Bytes::new()] {
                near.sender.send(Frame { header: FrameHeader::default(), body: Bytes::new(), bulk }).await.unwrap();
            }
            let mut bulks = Vec::new();
            while bulks.len() < 3 {
                bulks.push(far.receiver.receive().await.unwrap().unwrap().bulk);
            }
            assert_eq!(bulks, [zeros(4096), other, Bytes::new()]);
            assert_eq!(bulks[0].as_ptr(), zeros(4096).as_ptr());
        });
        run.unwrap();
    }
}
