//! The rows in virtual time: the shipped code on a model of one machine. Servers and client share
//! its cores, which cost what was calibrated; frames between them have the delay that was
//! calibrated; disks cost nothing, because live nothing waits for them.

use std::{sync::Arc, time::Duration};

use lab::{
    Simulation,
    cluster::{Cluster, ClusterOptions},
    hardware::{Hardware, Links},
    log::EventLog,
    processors::{NodeProcessors, ProcessorModel},
};
use parking_lot::Mutex;
use rt::{Cpu, Device, Instant};
use types::FsResult;

use super::{
    Cost,
    work::{ROWS, Row, Subject},
};
use crate::{
    bench::calibrate::{Calibrated, OSTS},
    model::{
        block_cache::BlockCache,
        costs,
        spindle::{Spindle, SpindleModel, share_zeros},
    },
    study::run::{LIMITS, all_osts_known, settings},
};

/// One machine.
struct Machine {
    calibrated: Calibrated,
    cores: u32,
    /// Of all hosts of the simulation.
    processors: Mutex<Option<NodeProcessors>>,
}

/// Links within a machine: nothing but delays, which frames do not share.
struct Loopback(Calibrated);

impl Links for Loopback {
    fn under_way(&self, data: bytes::Bytes) -> bytes::Bytes {
        share_zeros(data)
    }

    fn through(&self, now: Instant, _: &str, _: &str, bytes: u64) -> Instant {
        now + Duration::from_nanos(bytes.saturating_mul(u64::from(self.0.delay_byte_ps)) / 1000)
    }

    fn delay(&self) -> Option<Duration> {
        Some(self.0.delay)
    }
}

impl Hardware for Machine {
    fn links(&self) -> Arc<dyn Links> {
        Arc::new(Loopback(self.calibrated))
    }

    fn objects(&self, simulation: &Simulation, ost: u16) -> Arc<dyn Device> {
        let model = SpindleModel {
            positioning: Duration::ZERO,
            bytes_per_second: u64::MAX,
            gather_bytes: 1 << 20,
            read_ahead: None,
            memory_bytes: 0,
        };
        let memory = Arc::new(Mutex::new(BlockCache::new(0)));
        Arc::new(Spindle::new(simulation, &format!("oss{ost}"), model, memory))
    }

    fn tables_take_no_time(&self) -> bool {
        true
    }

    fn processors(&self, simulation: &Simulation, _: &str) -> Cpu {
        let mut processors = self.processors.lock();
        // What changing between threads takes is a part of the calibrated costs.
        let model = ProcessorModel { switch: Duration::ZERO, ..costs::node(self.cores, self.calibrated.costs) };
        Cpu::on(Arc::new(processors.get_or_insert_with(|| NodeProcessors::new(simulation, model)).clone()))
    }
}

impl Machine {
    fn worked(&self) -> Duration {
        let used = self.processors.lock().as_ref().map(NodeProcessors::used).unwrap_or_default();
        used.worked + used.switching
    }
}

/// Far more than the servers need to have nothing left to do, such as objects of removed files.
const SETTLING: Duration = Duration::from_secs(10);

/// What every row costs on a machine with so many cores.
pub fn run(calibrated: Calibrated, cores: u32, scale: u64) -> Result<[Cost; ROWS.len()], String> {
    /// Interleavings hardly matter: most rows have one stream.
    const SEED: u64 = 1;
    let simulation = Simulation::new(SEED);
    let inner = simulation.clone();
    let ran = simulation.run(LIMITS, async move {
        let machine = Machine { calibrated, cores, processors: Mutex::default() };
        let log = EventLog::new(&inner);
        let options = ClusterOptions { mdts: 1, osts: OSTS, osts_per_server: OSTS, clients: 1, settings: settings() };
        let cluster = Cluster::start_on(Some(&machine), &inner, &log, SEED, options).await?;
        all_osts_known(&cluster, OSTS).await?;
        let (file_system, _) = cluster.file_system(0).ok_or("no client")?;
        let made = cluster.on_client(0, async move { Subject::new(file_system, 0, scale).await }).await;
        let subject = made.ok_or("the client died")?.map_err(|error| error.to_string())?;
        let mut costs = [Cost::default(); ROWS.len()];
        for (row, cost) in ROWS.into_iter().zip(&mut costs) {
            *cost = block(&cluster, &machine, &subject, row, scale).await?;
        }
        Ok::<_, String>(costs)
    });
    simulation.end();
    ran.map_err(|stuck| stuck.to_string())?
}

async fn block(cluster: &Cluster, machine: &Machine, subject: &Subject, row: Row, scale: u64) -> Result<Cost, String> {
    let count = row.count(scale);
    subject.begin(row).map_err(|error| error.to_string())?;
    // What this sends, and what the row before has left, is not counted.
    cluster.simulation().sleep(SETTLING).await;
    let (begun, worked) = (cluster.simulation().now(), machine.worked());
    let stream = |stream: u16| {
        let subject = subject.clone();
        let work = async move {
            for number in 0..count {
                subject.call(row, stream, number).await?;
            }
            FsResult::Ok(())
        };
        cluster.begin_on_client(0, work)
    };
    let running: Vec<_> = (0..row.streams).map(stream).collect();
    for outcome in running {
        outcome.await.ok_or("the client died")?.map_err(|error| format!("{}: {error}", row.name()))?;
    }
    let calls = (count * u64::from(row.streams)) as f64;
    let cost = Cost {
        seconds: cluster.simulation().now().since(begun).as_secs_f64() / calls,
        cpu_seconds: (machine.worked() - worked).as_secs_f64() / calls,
    };
    let subject = subject.clone();
    let settled = cluster.on_client(0, async move { subject.settle(row).await }).await;
    settled.ok_or("the client died")?.map_err(|error| error.to_string())?;
    Ok(cost)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{model::costs::MEASURED, predict::work::Calls};

    #[test]
    fn what_is_calibrated_comes_out() {
        let calibrated = Calibrated { costs: MEASURED, delay: Duration::from_micros(10), delay_byte_ps: 0 };
        let costs = run(calibrated, 2, 10).unwrap();
        assert_eq!(costs, run(calibrated, 2, 10).unwrap(), "it repeats");
        let [stat, ..] = costs;
        // Four frames of 5.9 us, the operation with 4.5 us, and two delays.
        let expected = 4.0 * 5.9e-6 + 4.5e-6;
        assert!((0.999 * expected..1.2 * expected).contains(&stat.cpu_seconds), "{stat:?}");
        assert!((stat.seconds - stat.cpu_seconds - 20e-6).abs() < 2e-6, "{stat:?}");
        assert_eq!(ROWS[0].calls, Calls::Stat);
        // Four frames, the operation, the data at both ends, and their checksums and copy: no other
        // request, except that the first of 25 writes asks the MDT.
        let bytes = (64 << 10) as f64 * 1e-12;
        let expected = 4.0 * 5.9e-6 + 39e-6 + bytes * (2.0 * 400.0 + 2.0 * 52.0 + 54.0) + 0.84e-6;
        let write = costs[6];
        assert!((expected..1.1 * expected).contains(&write.cpu_seconds), "{write:?}, not {expected}");
        assert_eq!(ROWS[6].calls, Calls::Write(64 << 10));
        assert!(costs.iter().all(|cost| cost.seconds > 0.0 && cost.cpu_seconds > 0.0), "{costs:?}");
    }
}
