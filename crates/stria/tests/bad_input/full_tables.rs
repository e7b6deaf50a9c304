//! Tables alone on a small device, filled to the last byte: everything can be removed, also after a
//! crash, and the space is freed. (Through a mount, names fill a device much more slowly.) Tested
//! with records like names, which cost processor time, and with records like small files, which
//! arrive faster than they are merged.

use std::{
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

use kv::{Batch, Config, Error, FjallCold, Store, Table, cold::fjall::FjallOptions};
use rt::{
    memory::{MemoryTransport, seams},
    real::{Execution, IoThreads, LocalDirectory},
};

use crate::{
    common::{TIMEOUT, programs::program},
    tables::Device,
};

const RECORDS: Table = Table(1);
/// What was removed a moment ago is noted, as an MDT does.
const REMOVED: Table = Table(2);
/// As many removals later the record goes.
const NOTED: u64 = 2000;
/// An inode and its name, and the like.
const VALUE_BYTES: usize = 600;
const MEMORY_BYTES: u64 = 64 << 20;

/// Spread over the table.
fn key(number: u64) -> Vec<u8> {
    let mut key = number.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes().to_vec();
    key.extend_from_slice(&number.to_be_bytes());
    key
}

/// A small file, which no compression makes smaller.
const FILE_BYTES: usize = 60 << 10;
/// What a target of this size has.
const FILES_MEMORY_BYTES: u64 = 256 << 20;

async fn open(directory: &Path) -> Store {
    let config = Config { segment_bytes: 4 << 20, ..Config::for_budget(MEMORY_BYTES) };
    open_with(directory, FjallOptions::for_budget(MEMORY_BYTES), config).await
}

async fn open_with(directory: &Path, options: FjallOptions, config: Config) -> Store {
    let threads = Arc::new(IoThreads::new("io", 1).unwrap());
    let device = LocalDirectory::open(directory.join("journal"), Execution::Inline, threads).unwrap();
    let cold = FjallCold::open(&directory.join("cold"), options).expect("a cold store opens on a full device");
    let seams = seams(&MemoryTransport::new(), 1);
    let store = Store::open(seams, Arc::new(device), Arc::new(cold), config, &mut |_, _| {}).await;
    store.expect("a store opens on a full device")
}

fn put(number: u64) -> Batch {
    let mut batch = Batch::default();
    batch.put(RECORDS, key(number), vec![number as u8; VALUE_BYTES]);
    batch
}

fn note(number: u64) -> Batch {
    let mut batch = put(number);
    batch.put(REMOVED, key(number), Vec::new());
    batch
}

fn remove(number: u64) -> Batch {
    let mut batch = Batch::default();
    batch.delete(RECORDS, key(number));
    batch.delete(REMOVED, key(number));
    batch
}

/// Applies a batch as soon as there is room; one that frees space may have to wait for it, but not
/// forever.
async fn apply(store: &Store, batch: Batch, reserved: bool) {
    let begun = Instant::now();
    loop {
        let batch = batch.clone();
        match if reserved { store.apply_reserved(batch) } else { store.apply(batch) } {
            Ok(lsn) => return store.written(lsn).await.unwrap(),
            Err(Error::Overloaded) => store.ready().await.unwrap(),
            Err(error) => {
                assert!(error.is_no_space(), "{error}");
                assert!(begun.elapsed() < TIMEOUT, "no space comes back: {:?}", store.statistics());
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }
}

/// A record like a small file.
fn put_file(number: u64) -> Batch {
    let mut state = number | 1;
    let byte = || {
        // Xorshift: fast, and random enough for a compressor.
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state as u8
    };
    let value: Vec<u8> = std::iter::repeat_with(byte).take(FILE_BYTES).collect();
    let mut batch = Batch::default();
    batch.put(RECORDS, key(number), value);
    batch
}

/// Puts records until that is refused again and again; how many there are.
async fn fill(store: &Store, put: impl Fn(u64) -> Batch) -> u64 {
    let (mut number, mut refusals) = (0, 0);
    while refusals < 20 {
        match store.apply(put(number)) {
            Ok(lsn) => {
                store.written(lsn).await.unwrap();
                number += 1;
            }
            Err(Error::Overloaded) => store.ready().await.unwrap(),
            Err(error) => {
                assert!(error.is_no_space(), "{error}");
                refusals += 1;
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
        others_run(number).await;
    }
    number
}

/// The store's tasks have their turn, as between requests.
async fn others_run(number: u64) {
    if number.is_multiple_of(64) {
        tokio::task::yield_now().await;
    }
}

async fn empty(store: &Store, count: u64) {
    for number in 0..count + NOTED {
        if number < count {
            apply(store, note(number), true).await;
        }
        if let Some(noted) = number.checked_sub(NOTED) {
            apply(store, remove(noted), true).await;
        }
        others_run(number).await;
    }
}

fn copy_all(from: &Path, to: &Path) {
    program("cp").args(["-a", "--sparse=always"]).arg(from.join(".")).arg(to).succeed();
}

#[tokio::test]
async fn a_device_full_of_names_takes_their_removal_and_as_many_again() {
    let device = Device::new("size=200m");
    let store = open(device.path()).await;
    let first = fill(&store, put).await;
    assert!(first > 50_000, "{first} records on a device of 200 MiB");
    empty(&store, first).await;
    apply(&store, put(0), false).await;
    let second = fill(&store, put).await;
    assert!(second > first / 2, "{second} records after {first}");
    // As after a crash: the journal has what the cold store does not know.
    let copy = Device::new("size=200m");
    copy_all(device.path(), copy.path());
    drop((store, device));
    let store = open(copy.path()).await;
    empty(&store, second).await;
    apply(&store, put(0), false).await;
    assert!(store.failure().is_none());
    store.close().await.unwrap();
}

/// Records came faster than they were merged. The merge of all that had piled up found no room, and
/// was tried again and again, so that no space came back.
#[tokio::test]
async fn a_device_full_of_small_files_takes_their_removal_and_half_as_many_again() {
    let device = Device::new("size=700m");
    let config = Config { memory_bytes: FILES_MEMORY_BYTES, ..Config::default() };
    let store = open_with(device.path(), FjallOptions::for_budget(FILES_MEMORY_BYTES), config).await;
    let mut count = fill(&store, put_file).await;
    assert!(count > 2000, "{count} records on a device of 700 MiB");
    for round in 0..3 {
        for number in 0..count {
            apply(&store, remove(number), true).await;
            others_run(number).await;
        }
        count = count.min(4000) / 2;
        for number in 0..count {
            apply(&store, put_file(number + round), false).await;
            others_run(number).await;
        }
        count += round;
    }
    assert!(store.failure().is_none());
    store.close().await.unwrap();
}
