//! The reader of an import's replies moves to the core that calls.

use crate::common;

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use common::*;
use parking_lot::Mutex;
use rpc::{Endpoint, Import, ImportOptions, Server};
use rt::{
    Address, BoxFuture, Seams, Spawn,
    buffer::BufferPool,
    real::{Cores, TcpOptions, TcpTransport},
};
use tokio::sync::oneshot;

/// Cores that note where readers begin.
struct Noting {
    cores: Cores,
    readers: Mutex<Vec<usize>>,
}

impl Spawn for Noting {
    fn spawn(&self, name: &'static str, future: BoxFuture<'static, ()>) {
        self.cores.spawn(name, future);
    }

    fn spawn_spread(&self, name: &'static str, future: BoxFuture<'static, ()>) {
        self.cores.spawn_spread(name, future);
    }

    fn spawn_on(&self, core: usize, name: &'static str, future: BoxFuture<'static, ()>) {
        if name == "replies" {
            self.readers.lock().push(core);
        }
        self.cores.spawn_on(core, name, future);
    }

    fn here(&self) -> usize {
        self.cores.here()
    }

    fn all_cores_ran(&self) -> BoxFuture<'static, ()> {
        self.cores.all_cores_ran()
    }
}

/// Two cores, a server and what it counts, over TCP.
struct Site {
    cores: Cores,
    noting: Arc<Noting>,
    seams: Seams,
    handler: Arc<Counter>,
    server: Arc<Server>,
    address: Address,
}

impl Site {
    fn start(yields: usize) -> Self {
        let cores = Cores::start(2).unwrap();
        let transport = TcpTransport::new(TcpOptions::default(), BufferPool::new(1 << 24));
        let noting = Arc::new(Noting { cores: cores.clone(), readers: Mutex::default() });
        let seams = Seams { spawn: noting.clone(), ..rt::real::seams(&cores, transport) };
        let handler = Arc::new(Counter { yields, ..Counter::base(&Arc::default()) });
        let server = server(&seams, &handler, LONG_LEASE);
        let address = cores.block_on(server.listen(&Address::from("127.0.0.1:0"))).unwrap();
        Self { cores, noting, seams, handler, server, address }
    }

    fn import(&self, number: u64) -> Import {
        let endpoint = Endpoint::Remote(self.address.clone().into());
        let options = ImportOptions { resend: Duration::from_millis(500), ..quick() };
        Import::new(self.seams.clone(), TARGET, endpoint, principal(number), options, None)
    }

    /// Runs `work` on a core to its end.
    fn on(&self, core: usize, work: impl Future<Output = ()> + Send + 'static) {
        let (tell, told) = oneshot::channel();
        let work = async move {
            work.await;
            tell.send(()).unwrap();
        };
        self.cores.spawn_on(core, "test", Box::pin(work));
        self.cores.block_on(told).expect("the work on the core succeeded");
    }

    /// Calls the mutations of a range one after the other on a core.
    fn call_on(&self, core: usize, import: &Import, effects: std::ops::Range<u64>) {
        let import = import.clone();
        self.on(core, async move {
            for n in effects {
                assert_eq!(call(&import, effect(n)).await, Ok(done()));
            }
        });
    }

    fn assert_each_once(&self, effects: std::ops::Range<u64>) {
        let counted = self.handler.disk.effects.lock();
        for n in effects {
            assert_eq!(counted.get(&n), Some(&1), "effect {n}");
        }
    }

    fn stop(self) {
        self.cores.block_on(self.server.stop());
        self.cores.shutdown();
    }
}

#[test]
fn the_reader_moves_to_the_core_that_calls_and_back() {
    let site = Site::start(0);
    let import = site.import(1);
    site.call_on(0, &import, 0..50);
    site.call_on(1, &import, 50..100);
    site.call_on(0, &import, 100..150);
    site.assert_each_once(0..150);
    let readers = site.noting.readers.lock().clone();
    assert!(readers.ends_with(&[0, 1, 0]), "{readers:?}");
    assert_eq!(import.statistics().resent, 0, "no reply was lost on the way");
    site.stop();
}

/// A connection may break at any moment of a move, and calls may be given up.
#[test]
fn moves_lose_nothing_when_connections_break_and_calls_are_given_up() {
    const ROUNDS: u64 = 40;
    const CALLS: u64 = 25;
    let site = Site::start(2);
    let imports = [site.import(1), site.import(2)];
    let stop = Arc::new(AtomicBool::new(false));
    let breaks = Arc::new(AtomicU64::new(0));
    let breaker = {
        let (seams, address) = (site.seams.clone(), site.address.clone());
        let (imports, stop, breaks) = (imports.clone(), stop.clone(), breaks.clone());
        async move {
            let mut toggle = false;
            while !stop.load(Ordering::SeqCst) {
                rt::clock::sleep(&*seams.clock, Duration::from_millis(7)).await;
                // Another spelling of the same place: the import connects again.
                toggle = !toggle;
                let port = address.0.rsplit(':').next().unwrap();
                let host = if toggle { "localhost" } else { "127.0.0.1" };
                for import in &imports {
                    import.set_address(Endpoint::Remote(Address::from(format!("{host}:{port}").as_str()).into()));
                }
                breaks.fetch_add(1, Ordering::SeqCst);
            }
        }
    };
    site.cores.spawn_on(0, "breaker", Box::pin(breaker));
    for round in 0..ROUNDS {
        let first = round * 2 * CALLS;
        let given_up = {
            let import = imports[0].clone();
            async move {
                let mut call = Box::pin(call(&import, read()));
                let mut context = std::task::Context::from_waker(std::task::Waker::noop());
                let _ = call.as_mut().poll(&mut context);
            }
        };
        site.on((round as usize + 1) % 2, given_up);
        site.call_on(round as usize % 2, &imports[0], first..first + CALLS);
        site.call_on(round as usize % 2, &imports[1], first + CALLS..first + 2 * CALLS);
    }
    stop.store(true, Ordering::SeqCst);
    site.assert_each_once(0..ROUNDS * 2 * CALLS);
    assert!(breaks.load(Ordering::SeqCst) > 3, "connections did break");
    assert!(site.noting.readers.lock().len() as u64 > ROUNDS / 2, "readers moved");
    site.stop();
}
