//! Rates of a store whose tables are in memory: `cargo run --release -p stria-kv --example rates
//! [keys] [directory]`.
//!
//! Keys of 24 bytes and values of 160, like those of inodes; one thread; the journal in a local
//! directory. Prints one JSON line per measurement.

use std::{path::PathBuf, sync::Arc, time::Instant};

use kv::{Batch, Config, FjallCold, Lsn, Store, Table, cold::fjall::FjallOptions};
use rt::{
    Entropy, Seams,
    memory::{MemoryTransport, RuntimeSpawn, SeededEntropy},
    real::{Execution, IoThreads, LocalDirectory, SystemClock},
};

/// The allocator of the `stria` binary.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const TABLE: Table = Table(1);
const VALUE_BYTES: usize = 160;
/// Puts between two waits for the kernel when they are grouped.
const GROUP: u64 = 32;

fn key(number: u64) -> [u8; 24] {
    let mut key = [0; 24];
    // Spread over the key space, as inode numbers of many directories are.
    key[..8].copy_from_slice(&number.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes());
    key[16..].copy_from_slice(&number.to_be_bytes());
    key
}

/// The beginning of a measurement.
struct Start {
    wall: Instant,
    cpu_ns: u64,
}

impl Start {
    fn now() -> Start {
        Start { wall: Instant::now(), cpu_ns: cpu_ns() }
    }
}

/// Time this thread was on a processor: what a machine shared with others does not distort.
fn cpu_ns() -> u64 {
    let statistics = std::fs::read_to_string("/proc/thread-self/schedstat").expect("Linux");
    statistics.split_whitespace().next().and_then(|text| text.parse().ok()).expect("a number")
}

fn report(what: &str, count: u64, start: Start) {
    let seconds = start.wall.elapsed().as_secs_f64();
    let cpu = (cpu_ns() - start.cpu_ns) as f64 / 1e9;
    println!(
        r#"{{"what":"{what}","count":{count},"seconds":{seconds:.3},"per_second":{:.0},"per_cpu_second":{:.0}}}"#,
        count as f64 / seconds,
        count as f64 / cpu
    );
}

async fn puts(store: &Store, keys: u64, group: u64, what: &str) {
    let start = Start::now();
    let mut last = Lsn(0);
    for number in 0..keys {
        let mut batch = Batch::default();
        batch.put(TABLE, key(number).to_vec(), vec![number as u8; VALUE_BYTES]);
        last = store.apply(batch).expect("room");
        if number % group == group - 1 {
            store.written(last).await.expect("written");
        }
    }
    store.written(last).await.expect("written");
    report(what, keys, start);
}

fn gets(store: &Store, keys: u64) {
    let entropy = SeededEntropy::new(3);
    let start = Start::now();
    for _ in 0..keys {
        let found = store.get(TABLE, &key(entropy.below(keys))).expect("readable");
        assert_eq!(found.expect("present").len(), VALUE_BYTES);
    }
    report("get, random", keys, start);
    let start = Start::now();
    for number in 0..keys {
        assert!(store.get(TABLE, &key(keys + number)).expect("readable").is_none());
    }
    report("get, missing", keys, start);
    let start = Start::now();
    let mut seen = 0;
    let mut visit = |_: &[u8], _: &bytes::Bytes| {
        seen += 1;
        true
    };
    store.scan(TABLE, &[], None, &mut visit).expect("readable");
    assert_eq!(seen, keys);
    report("scan, whole table", keys, start);
}

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let mut arguments = std::env::args().skip(1);
    let keys = arguments.next().map_or(1_000_000, |text| text.parse().expect("a number of keys"));
    let parent = arguments.next().map_or_else(std::env::temp_dir, PathBuf::from);
    let directory = tempfile::tempdir_in(parent).expect("a directory");
    let threads = Arc::new(IoThreads::new("kv-io", 2).expect("threads"));
    let device = LocalDirectory::open(directory.path().join("journal"), Execution::Inline, threads).expect("a device");
    let cold = FjallCold::open(&directory.path().join("cold"), FjallOptions::default()).expect("a cold store");
    let seams = Seams {
        clock: Arc::new(SystemClock),
        spawn: Arc::new(RuntimeSpawn),
        entropy: Arc::new(SeededEntropy::new(1)),
        transport: Arc::new(MemoryTransport::new()),
        cpu: rt::Cpu::default(),
    };
    // No checkpoint shall come in between: what is measured is the store, not fjall.
    let config = Config { memory_bytes: 4 << 30, dirty_bytes: 2 << 30, segments_max: 256, ..Config::default() };
    let store =
        Store::open(seams, Arc::new(device), Arc::new(cold), config, &mut |_, _| {}).await.expect("the store opens");
    puts(&store, keys, 1, "put, each written").await;
    // From here on segments are used again.
    store.checkpoint().await.expect("checkpoint");
    puts(&store, keys, GROUP, "put again, 32 written together").await;
    gets(&store, keys);
    let start = Start::now();
    store.durable(store.last()).await.expect("durable");
    report("flush", 1, start);
    let start = Start::now();
    store.checkpoint().await.expect("checkpoint");
    report("checkpoint", keys, start);
    store.close().await.expect("closed");
}
