//! Every call has exactly one effect, whatever the network does and however often the server is
//! killed.

use crate::common;

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use bytes::Bytes;
use common::*;
use rpc::{Endpoint, Import, ImportOptions, Question, Server};
use rt::{
    Address, BoxFuture, Entropy, Seams, Spawn, Transport,
    buffer::BufferPool,
    fault::{FaultyTransport, NetworkRules},
    memory::{self, MemoryTransport, SeededEntropy},
    real::{TcpOptions, TcpTransport},
};
use tokio::runtime::{Handle, Runtime};
use types::FsError;

const WORKERS: u64 = 8;
const CALLS: u64 = 30;

fn bad() -> NetworkRules {
    NetworkRules {
        loss_ppm: 80_000,
        duplicate_ppm: 100_000,
        delay_ppm: 300_000,
        delay_min: Duration::ZERO,
        delay_max: Duration::from_millis(15),
        reorder: true,
    }
}

fn options() -> ImportOptions {
    ImportOptions { resend: Duration::from_millis(20), rpcs_in_flight_max: 5, ..quick() }
}

/// Tasks on a given runtime, so that a server can die with it.
struct On(Handle);

impl Spawn for On {
    fn spawn(&self, _: &'static str, future: BoxFuture<'static, ()>) {
        self.0.spawn(future);
    }

    fn all_cores_ran(&self) -> BoxFuture<'static, ()> {
        Box::pin(std::future::ready(()))
    }
}

/// A server process: dies without a word when killed.
struct Process {
    runtime: Runtime,
    _server: Arc<Server>,
}

impl Process {
    async fn start(seams: &Seams, address: &Address, disk: &Arc<Disk>) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let seams = Seams { spawn: Arc::new(On(runtime.handle().clone())), ..seams.clone() };
        let handler = Arc::new(Counter { yields: 3, ..Counter::base(disk) });
        let server = server(&seams, &handler, LONG_LEASE);
        let (listening, address) = (server.clone(), address.clone());
        runtime.spawn(async move { listening.listen(&address).await.unwrap() }).await.unwrap();
        Self { runtime, _server: server }
    }

    async fn kill(self) {
        let runtime = self.runtime;
        tokio::task::spawn_blocking(move || runtime.shutdown_timeout(Duration::from_secs(10))).await.unwrap();
    }
}

/// Which calls were answered, and which were given up by their callers.
#[derive(Default)]
struct Outcome {
    answered: Vec<u64>,
    dropped: Vec<u64>,
}

/// One worker: mutations with numbers of its own, some of them given up.
async fn work(import: Import, seed: u64, worker: u64) -> Outcome {
    let chance = SeededEntropy::new(seed * 1000 + worker);
    let mut outcome = Outcome::default();
    for call in 0..CALLS {
        let number = worker * CALLS + call;
        let bulk = Bytes::from(vec![number as u8; chance.below(5000) as usize]);
        let calling = import.call(Question::with_bulk(effect(number), bulk.clone()));
        if chance.below(10) == 0 {
            let brief = Duration::from_millis(chance.below(3));
            match tokio::time::timeout(brief, calling).await {
                Ok(result) => assert!(result.is_ok()),
                Err(_) => {
                    outcome.dropped.push(number);
                    continue;
                }
            }
        } else {
            let answered = calling.await.expect("no call fails");
            assert_eq!(answered.reply, done(), "seed {seed}");
            // A reply kept across a restart has no bulk data.
            let back = answered.bulk;
            assert!(back == bulk || back.is_empty(), "seed {seed}: bulk data of another call");
        }
        outcome.answered.push(number);
    }
    outcome
}

async fn work_all(import: &Import, seed: u64) -> Outcome {
    let workers: Vec<_> = (0..WORKERS).map(|worker| tokio::spawn(work(import.clone(), seed, worker))).collect();
    let mut all = Outcome::default();
    for worker in workers {
        let one = worker.await.unwrap();
        all.answered.extend(one.answered);
        all.dropped.extend(one.dropped);
    }
    all
}

fn check(disk: &Disk, outcome: &Outcome, seed: u64) {
    let effects: BTreeMap<u64, u32> = disk.effects.lock().clone();
    for number in &outcome.answered {
        assert_eq!(effects.get(number), Some(&1), "seed {seed}: answered call {number}");
    }
    for number in &outcome.dropped {
        let count = effects.get(number).copied().unwrap_or(0);
        assert!(count <= 1, "seed {seed}: dropped call {number} had {count} effects");
    }
    assert_eq!(outcome.answered.len() + outcome.dropped.len(), (WORKERS * CALLS) as usize);
}

fn faulty(inner: Arc<dyn Transport>, seed: u64) -> (FaultyTransport, Seams) {
    let base = memory::seams(&MemoryTransport::new(), seed);
    let base = Seams { transport: inner, ..base };
    let network = FaultyTransport::new(&base);
    let seams = Seams { transport: Arc::new(network.clone()), ..base };
    (network, seams)
}

async fn one_effect_each(inner: Arc<dyn Transport>, address: &str, seed: u64) {
    let (network, seams) = faulty(inner, seed);
    let disk: Arc<Disk> = Arc::default();
    let handler = Arc::new(Counter { yields: 3, ..Counter::base(&disk) });
    let server = server(&seams, &handler, LONG_LEASE);
    let address = server.listen(&Address::from(address)).await.unwrap();
    network.set_rules(bad());
    let import = import(&seams, Endpoint::Remote(address.into()), options());
    let outcome = work_all(&import, seed).await;
    network.set_rules(NetworkRules::default());
    assert_eq!(call(&import, read()).await, Ok(done()), "it heals");
    check(&disk, &outcome, seed);
    assert!(network.statistics().lost > 0 && network.statistics().duplicated > 0);
    assert!(import.statistics().resent > 0);
    until(|| import.statistics().in_flight == 0).await;
    import.close().await;
    server.stop().await;
}

#[tokio::test]
async fn one_effect_each_on_a_bad_network() {
    for seed in 0..12 {
        one_effect_each(Arc::new(MemoryTransport::new()), "mds:1", seed).await;
    }
}

#[tokio::test]
async fn one_effect_each_over_bad_tcp() {
    for seed in 100..103 {
        let transport = TcpTransport::new(TcpOptions::default(), BufferPool::new(1 << 24));
        one_effect_each(Arc::new(transport), "127.0.0.1:0", seed).await;
    }
}

#[tokio::test]
async fn one_effect_each_while_connections_break() {
    for seed in 200..206 {
        let (network, seams) = faulty(Arc::new(MemoryTransport::new()), seed);
        let address = Address::from("mds:1");
        let disk: Arc<Disk> = Arc::default();
        let handler = Arc::new(Counter { yields: 3, ..Counter::base(&disk) });
        let server = server(&seams, &handler, LONG_LEASE);
        server.listen(&address).await.unwrap();
        network.set_rules(bad());
        let import = import(&seams, Endpoint::Remote(address.clone().into()), options());
        let breaking = tokio::spawn({
            let (network, clock) = (network.clone(), seams.clock.clone());
            async move {
                let chance = SeededEntropy::new(seed);
                loop {
                    rt::clock::sleep(&*clock, Duration::from_millis(chance.below(60))).await;
                    if chance.below(3) == 0 {
                        network.cut(&address);
                        rt::clock::sleep(&*clock, Duration::from_millis(chance.below(150))).await;
                        network.heal(&address);
                    } else {
                        network.reset(&address);
                    }
                }
            }
        });
        let outcome = work_all(&import, seed).await;
        breaking.abort();
        check(&disk, &outcome, seed);
        assert!(import.statistics().connections > 1, "seed {seed} broke nothing");
        server.stop().await;
    }
}

#[tokio::test]
async fn one_effect_each_while_the_server_is_killed() {
    for seed in 300..304 {
        let (network, seams) = faulty(Arc::new(MemoryTransport::new()), seed);
        let address = Address::from("mds:1");
        let disk: Arc<Disk> = Arc::default();
        let mut process = Process::start(&seams, &address, &disk).await;
        network.set_rules(bad());
        let import = import(&seams, Endpoint::Remote(address.clone().into()), options());
        let mut working = tokio::spawn({
            let import = import.clone();
            async move { work_all(&import, seed).await }
        });
        let chance = SeededEntropy::new(seed);
        let mut kills = 0;
        let outcome = loop {
            let life = Duration::from_millis(30 + chance.below(100));
            match tokio::time::timeout(life, &mut working).await {
                Ok(outcome) => break outcome.unwrap(),
                Err(_) => {
                    process.kill().await;
                    kills += 1;
                    process = Process::start(&seams, &address, &disk).await;
                }
            }
        };
        assert!(kills > 0, "seed {seed} killed nobody");
        check(&disk, &outcome, seed);
        process.kill().await;
    }
}

#[tokio::test]
async fn a_server_that_stays_dead_is_reported() {
    let (_, seams) = faulty(Arc::new(MemoryTransport::new()), 1);
    let address = Address::from("mds:1");
    let process = Process::start(&seams, &address, &Arc::default()).await;
    let options = ImportOptions { timeout: Duration::from_millis(150), ..options() };
    let import = import(&seams, Endpoint::Remote(address.into()), options);
    assert_eq!(call(&import, effect(1)).await, Ok(done()));
    process.kill().await;
    let started = seams.clock.now();
    assert!(matches!(call(&import, effect(2)).await, Err(FsError::Unreachable { .. })));
    assert!(seams.clock.now().since(started) >= Duration::from_millis(150));
}
