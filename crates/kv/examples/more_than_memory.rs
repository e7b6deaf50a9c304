//! More records than memory: five million of 24 + 160 bytes in a store that may use 256 MiB.
//! `cargo run --release -p stria-kv --example more_than_memory [records] [directory]`.
//!
//! Prints rates as JSON lines and, at the end, the peak resident memory of the process.

use std::{path::PathBuf, sync::Arc, time::Instant};

use kv::{Batch, Config, FjallCold, Store, Table, cold::fjall::FjallOptions};
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
/// Records of one batch, as a client that creates files at full speed has them in flight.
const BATCH: u64 = 16;
const READS: u64 = 200_000;

fn key(number: u64) -> [u8; 24] {
    let mut key = [0; 24];
    key[..8].copy_from_slice(&number.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes());
    key[16..].copy_from_slice(&number.to_be_bytes());
    key
}

fn value(number: u64) -> Vec<u8> {
    let mut value = vec![number as u8; VALUE_BYTES];
    value[..8].copy_from_slice(&number.to_le_bytes());
    value
}

fn report(what: &str, count: u64, since: Instant) {
    let seconds = since.elapsed().as_secs_f64();
    println!(
        r#"{{"what":"{what}","count":{count},"seconds":{seconds:.3},"per_second":{:.0},"rss_mib":{}}}"#,
        count as f64 / seconds,
        memory("VmRSS:") >> 10
    );
}

/// A line of /proc/self/status in KiB.
fn memory(name: &str) -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("Linux");
    let line = status.lines().find(|line| line.starts_with(name)).expect("every process has it");
    line.split_whitespace().nth(1).and_then(|text| text.parse().ok()).expect("a number")
}

async fn open(directory: &std::path::Path) -> Store {
    let threads = Arc::new(IoThreads::new("kv-io", 2).expect("threads"));
    let device = LocalDirectory::open(directory.join("journal"), Execution::Inline, threads).expect("a device");
    let cold = FjallCold::open(&directory.join("cold"), FjallOptions::for_budget(256 << 20)).expect("a cold store");
    let seams = Seams {
        clock: Arc::new(SystemClock),
        spawn: Arc::new(RuntimeSpawn),
        entropy: Arc::new(SeededEntropy::new(1)),
        transport: Arc::new(MemoryTransport::new()),
        cpu: rt::Cpu::default(),
    };
    let config = Config::for_budget(256 << 20);
    Store::open(seams, Arc::new(device), Arc::new(cold), config, &mut |_, _| {}).await.expect("the store opens")
}

async fn write(store: &Store, records: u64) {
    let since = Instant::now();
    for first in (0..records).step_by(BATCH as usize) {
        let mut batch = Batch::default();
        for number in first..(first + BATCH).min(records) {
            batch.put(TABLE, key(number).to_vec(), value(number));
        }
        let lsn = store.apply(batch).expect("room");
        store.written(lsn).await.expect("written");
    }
    report("put", records, since);
    let since = Instant::now();
    store.checkpoint().await.expect("checkpoint");
    report("last checkpoint", 1, since);
}

fn read(store: &Store, records: u64) {
    let entropy = SeededEntropy::new(5);
    let since = Instant::now();
    for _ in 0..READS {
        let number = entropy.below(records);
        let found = store.get(TABLE, &key(number)).expect("readable").expect("present");
        assert_eq!(found, value(number));
    }
    report("get, random", READS, since);
    let since = Instant::now();
    for number in 0..READS {
        assert!(store.get(TABLE, &key(records + number)).expect("readable").is_none());
    }
    report("get, missing", READS, since);
    let since = Instant::now();
    let (mut seen, mut sum) = (0u64, 0u64);
    let mut visit = |_: &[u8], value: &bytes::Bytes| {
        seen += 1;
        sum = sum.wrapping_add(u64::from_le_bytes(value[..8].try_into().expect("eight bytes")));
        true
    };
    store.scan(TABLE, &[], None, &mut visit).expect("readable");
    assert_eq!((seen, sum), (records, records * (records - 1) / 2), "every record once");
    report("scan, whole table", records, since);
}

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let mut arguments = std::env::args().skip(1);
    let records = arguments.next().map_or(5_000_000, |text| text.parse().expect("a number of records"));
    let parent = arguments.next().map_or_else(std::env::temp_dir, PathBuf::from);
    let directory = tempfile::tempdir_in(parent).expect("a directory");
    let since = Instant::now();
    let store = open(directory.path()).await;
    report("open, new", 1, since);
    write(&store, records).await;
    read(&store, records);
    println!("{:?}", store.statistics());
    store.close().await.expect("closed");
    drop(store);
    let since = Instant::now();
    let store = open(directory.path()).await;
    report("open, again", 1, since);
    read(&store, records);
    println!(r#"{{"what":"peak resident memory","mib":{}}}"#, memory("VmHWM:") >> 10);
}
