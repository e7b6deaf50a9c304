//! What opening costs after a crash, when both journals are long:
//! `cargo run --release -p stria-kv --example opening [MiB] [directory]`.
//!
//! The journal of a store has the given size in MiB (at most 240 for a target), in values of 64 KiB
//! as in an OST, and in values of 160 bytes as in an MDT; fjall's journal has about its maximum
//! length. Opening reads both, applies their contents, and writes them again: once while the kernel
//! has the files in memory, as after the death of a process, and once when it has not, as after a
//! power loss. Prints one JSON line per opening.

use std::{
    fs::File,
    path::{Path, PathBuf},
    sync::Arc,
    time::Instant,
};

use kv::{Batch, ColdStore, Config, FjallCold, Operation, Store, Table, cold::fjall::FjallOptions};
use rt::{
    Seams,
    memory::{MemoryTransport, RuntimeSpawn, SeededEntropy},
    real::{Execution, IoThreads, LocalDirectory, SystemClock},
};

/// The allocator of the `stria` binary.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const TABLE: Table = Table(1);
/// fjall continues in another file after 64 MB.
const COLD_BYTES: u64 = 60 << 20;
/// What a value takes in the journal besides its bytes, roughly.
const RECORD_BYTES: u64 = 80;

fn value_key(number: u64) -> Vec<u8> {
    number.to_be_bytes().to_vec()
}

fn open_cold(directory: &Path) -> FjallCold {
    // Nothing goes to tables by itself.
    let options = FjallOptions { write_buffer_bytes: 128 << 20, ..FjallOptions::default() };
    FjallCold::open(&directory.join("cold"), options).expect("a cold store")
}

async fn open(directory: &Path, cold: FjallCold) -> Store {
    let threads = Arc::new(IoThreads::new("kv-io", 2).expect("threads"));
    let device = LocalDirectory::open(directory.join("journal"), Execution::Inline, threads).expect("a device");
    let seams = Seams {
        clock: Arc::new(SystemClock),
        spawn: Arc::new(RuntimeSpawn),
        entropy: Arc::new(SeededEntropy::new(1)),
        transport: Arc::new(MemoryTransport::new()),
        cpu: rt::Cpu::default(),
    };
    // No checkpoint shall shorten the journal.
    let config = Config { memory_bytes: 4 << 30, dirty_bytes: 2 << 30, segments_max: 40, ..Config::default() };
    Store::open(seams, Arc::new(device), Arc::new(cold), config, &mut |_, _| {}).await.expect("the store opens")
}

/// Runs it in a runtime that is dropped after it, with all tasks: what is not closed then has
/// crashed.
fn until_crash<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime").block_on(future)
}

async fn fill(directory: &Path, journal_bytes: u64, value_bytes: u64) {
    let cold = open_cold(directory);
    let puts = (0..COLD_BYTES / (value_bytes + RECORD_BYTES))
        .map(|number| Operation::Put(Table(2), value_key(number).into(), vec![1; value_bytes as usize].into()));
    cold.write(puts.collect()).await.expect("written");
    let store = open(directory, cold).await;
    for number in 0..journal_bytes / (value_bytes + RECORD_BYTES) {
        let mut batch = Batch::default();
        batch.put(TABLE, value_key(number), vec![number as u8; value_bytes as usize]);
        let lsn = store.apply(batch).expect("room");
        if number.is_multiple_of(32) {
            store.written(lsn).await.expect("written");
            store.ready().await.expect("room");
        }
    }
    store.durable(store.last()).await.expect("durable");
}

/// Files below a directory, and their bytes.
fn files(directory: &Path) -> Vec<(PathBuf, u64)> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(directory).expect("a directory") {
        let entry = entry.expect("an entry");
        match entry.metadata().expect("metadata") {
            metadata if metadata.is_dir() => found.extend(files(&entry.path())),
            metadata => found.push((entry.path(), metadata.len())),
        }
    }
    found
}

fn forget_pages(directory: &Path) {
    for (path, _) in files(directory) {
        let file = File::open(path).expect("a file");
        file.sync_all().expect("synced");
        rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).expect("advised");
    }
}

async fn measure(directory: &Path, value_bytes: u64, what: &str) {
    let journals = |part: &str| {
        let files = files(directory).into_iter();
        files.filter(|(path, _)| path.to_string_lossy().contains(part)).map(|(_, bytes)| bytes >> 20).sum::<u64>()
    };
    let (journal, cold_journal) = (journals("/journal/"), journals(".jnl"));
    let begin = Instant::now();
    let cold = open_cold(directory);
    let cold_seconds = begin.elapsed().as_secs_f64();
    let begin = Instant::now();
    let store = open(directory, cold).await;
    let seconds = begin.elapsed().as_secs_f64();
    let last = store.last().0;
    print!(r#"{{"value_bytes":{value_bytes},"pages":"{what}","batches":{last},"#);
    print!(r#""journal_mib":{journal},"seconds":{seconds:.2},"#);
    println!(r#""cold_journal_mib":{cold_journal},"cold_seconds":{cold_seconds:.2}}}"#);
}

fn main() {
    let mut arguments = std::env::args().skip(1);
    let journal_mib: u64 = arguments.next().map_or(240, |text| text.parse().expect("a number of MiB"));
    let parent = arguments.next().map_or_else(std::env::temp_dir, PathBuf::from);
    for value_bytes in [64 << 10, 160] {
        let directory = tempfile::tempdir_in(&parent).expect("a directory");
        until_crash(fill(directory.path(), journal_mib << 20, value_bytes));
        until_crash(measure(directory.path(), value_bytes, "in memory"));
        forget_pages(directory.path());
        until_crash(measure(directory.path(), value_bytes, "on disk"));
    }
}
