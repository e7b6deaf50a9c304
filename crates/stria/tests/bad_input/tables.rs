//! The tables of a target on a device that becomes full: another program fills and empties it
//! repeatedly while they change, so that fjall's background work fails for lack of space at any
//! moment; or they fill it themselves. `NoSpace` is the only error, nothing is lost, the space of
//! deleted records is freed, and no restart is needed.

use std::{
    collections::BTreeMap,
    fs::{self, File},
    io::Write,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use kv::{Batch, Config, Error, FjallCold, Store, Table, cold::fjall::FjallOptions};
use rt::{
    memory::{MemoryTransport, seams},
    real::{Execution, IoThreads, LocalDirectory},
};
use rustix::mount::{MountFlags, UnmountFlags};

use crate::common::TIMEOUT;

const T: Table = Table(1);
/// Of which the first test's journals, tables and fjall's journals take up to two thirds.
const DEVICE: &str = "size=256m";
/// To be filled by tables: of what is not reserved, fjall's journals take a third at most.
const LARGE_DEVICE: &str = "size=512m";
/// Kept free there, less than compactions take.
const RESERVE: u64 = 16 << 20;
/// Kept free where all of the device is to be used again: as much as compactions take.
const LARGE_RESERVE: u64 = 96 << 20;
const KEYS: u32 = 4096;
const VALUE_BYTES: usize = 16 << 10;
const ROUNDS: usize = 6;
/// Where the device fills slowly.
const ROUNDS_MAX: usize = 60;

/// A device of its own; gone when dropped.
pub struct Device(tempfile::TempDir);

impl Device {
    /// An empty one.
    pub fn new(options: &str) -> Device {
        assert!(rustix::process::geteuid().is_root(), "this test mounts a device and needs root");
        let point = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let options = std::ffi::CString::new(options).unwrap();
        rustix::mount::mount("tables", point.path(), "tmpfs", MountFlags::empty(), Some(options.as_c_str())).unwrap();
        Device(point)
    }

    /// Where it is mounted.
    pub fn path(&self) -> &Path {
        self.0.path()
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        let _ = rustix::mount::unmount(self.path(), UnmountFlags::DETACH);
    }
}

async fn open(directory: &Path, device_reserve_bytes: u64) -> Store {
    let threads = Arc::new(IoThreads::new("io", 1).unwrap());
    let device = LocalDirectory::open(directory.join("journal"), Execution::Inline, threads).unwrap();
    let options = FjallOptions { cache_bytes: 1 << 20, write_buffer_bytes: 1 << 20 };
    let cold = FjallCold::open(&directory.join("cold"), options).unwrap();
    let config = Config {
        segment_bytes: 2 << 20,
        segments_max: 6,
        reserve_bytes: 256 << 10,
        device_reserve_bytes,
        memory_bytes: 2 << 20,
        dirty_bytes: 2 << 20,
        commit_interval: Duration::from_millis(20),
        ..Config::default()
    };
    let seams = seams(&MemoryTransport::new(), 1);
    Store::open(seams, Arc::new(device), Arc::new(cold), config, &mut |_, _| {}).await.unwrap()
}

/// Takes all space there is, however long that takes, holds it for a while, gives it back; until
/// told to end. Counts how often there was none.
fn fill_and_empty(path: &Path, end: &AtomicBool, filled: &AtomicUsize) {
    let piece = vec![1; 256 << 10];
    let ended = || end.load(Ordering::Relaxed);
    while !ended() {
        let mut file = File::create(path).unwrap();
        while !ended() && file.write_all(&piece).is_ok() {}
        // Also what comes free while it is full.
        let until = Instant::now() + Duration::from_millis(300);
        while !ended() && Instant::now() < until {
            if file.write_all(&piece).is_err() {
                filled.fetch_add(1, Ordering::Relaxed);
                std::thread::sleep(Duration::from_millis(2));
            }
        }
        drop(file);
        fs::remove_file(path).unwrap();
        std::thread::sleep(Duration::from_millis(300));
    }
}

/// Puts and removes keys for a while; what the tables must hold then.
async fn change(store: &Store, model: &mut BTreeMap<u32, u32>, round: u32) -> usize {
    let mut refused = 0;
    let until = Instant::now() + Duration::from_secs(2);
    let mut number = 0u32;
    while Instant::now() < until {
        number = number.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        let key = (number >> 8) % KEYS;
        let mut batch = Batch::default();
        let put = number >> 31 == 0;
        if put {
            let mut value = vec![round as u8; VALUE_BYTES];
            value[..4].copy_from_slice(&number.to_be_bytes());
            batch.put(T, key.to_be_bytes().to_vec(), value);
        } else {
            batch.delete(T, key.to_be_bytes().to_vec());
        }
        let applied = if put { store.apply(batch) } else { store.apply_reserved(batch) };
        match applied {
            Ok(lsn) => {
                store.written(lsn).await.unwrap();
                if put {
                    model.insert(key, number)
                } else {
                    model.remove(&key)
                };
            }
            Err(Error::NoSpace | Error::Overloaded) => {
                refused += 1;
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            Err(error) => panic!("{error}"),
        }
        assert!(store.failure().is_none(), "{:?}", store.failure());
    }
    refused
}

fn contents(store: &Store) -> BTreeMap<u32, u32> {
    let mut found = BTreeMap::new();
    let word = |bytes: &[u8]| u32::from_be_bytes(bytes[..4].try_into().unwrap());
    store
        .scan(T, &[], None, &mut |key, value| {
            found.insert(word(key), word(value));
            true
        })
        .unwrap();
    found
}

#[tokio::test]
async fn tables_on_a_device_that_is_full_now_and_then_go_on() {
    let device = Device::new(DEVICE);
    let mut store = open(device.path(), RESERVE).await;
    let mut model = BTreeMap::new();
    let end = Arc::new(AtomicBool::new(false));
    let filled = Arc::new(AtomicUsize::new(0));
    let filler = std::thread::spawn({
        let (path, end, filled) = (device.path().join("ballast"), end.clone(), filled.clone());
        move || fill_and_empty(&path, &end, &filled)
    });
    let (mut refused, mut rounds) = (0, 0);
    // As long as it takes until the device was full, and the store noticed.
    while rounds < ROUNDS || filled.load(Ordering::Relaxed) == 0 || refused == 0 {
        assert!(rounds < ROUNDS_MAX, "the device was never full ({filled:?}, {refused})");
        refused += change(&store, &mut model, rounds as u32).await;
        assert!(contents(&store) == model, "after round {rounds}");
        rounds += 1;
    }
    end.store(true, Ordering::Relaxed);
    filler.join().unwrap();
    // With all space back, everything works again.
    let started = Instant::now();
    loop {
        let mut batch = Batch::default();
        batch.put(T, KEYS.to_be_bytes().to_vec(), 1u32.to_be_bytes().to_vec());
        match store.apply(batch) {
            Ok(lsn) => break store.durable(lsn).await.unwrap(),
            Err(error) => assert!(matches!(error, Error::NoSpace | Error::Overloaded), "{error}"),
        }
        assert!(started.elapsed() < TIMEOUT, "there is space, but it is not used");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    model.insert(KEYS, 1);
    store.checkpoint().await.unwrap();
    assert!(contents(&store) == model);
    store.close().await.unwrap();
    drop(store);
    store = open(device.path(), RESERVE).await;
    assert!(contents(&store) == model, "after a restart");
    store.close().await.unwrap();
}

/// A value of a file of one block.
fn small(number: u32) -> Batch {
    let mut value = vec![number as u8; 4096];
    value[..4].copy_from_slice(&number.to_be_bytes());
    let mut batch = Batch::default();
    batch.put(T, number.to_be_bytes().to_vec(), value);
    batch
}

/// Puts values until there is no space, which may come as late as `timeout` if there are less than
/// `expected`; how many.
async fn fill(store: &Store, expected: u32, timeout: Duration) -> u32 {
    let started = Instant::now();
    let mut number = 0;
    loop {
        match store.apply(small(number)) {
            Ok(lsn) => {
                store.written(lsn).await.unwrap();
                number += 1;
            }
            Err(Error::Overloaded) => store.ready().await.unwrap(),
            Err(Error::NoSpace) if number >= expected || started.elapsed() > timeout => return number,
            Err(Error::NoSpace) => tokio::time::sleep(Duration::from_millis(5)).await,
            Err(error) => panic!("{error}"),
        }
    }
}

/// Removes these keys, which a full device must not prevent.
async fn remove(store: &Store, numbers: impl Iterator<Item = u32>) {
    for number in numbers {
        let mut batch = Batch::default();
        batch.delete(T, number.to_be_bytes().to_vec());
        let lsn = loop {
            match store.apply_reserved(batch.clone()) {
                Ok(lsn) => break lsn,
                Err(Error::Overloaded) => store.ready().await.unwrap(),
                Err(error) => panic!("removal {number}: {error}"),
            }
        };
        store.written(lsn).await.unwrap();
    }
}

#[tokio::test]
async fn a_device_full_of_small_values_takes_as_many_once_they_are_deleted() {
    let device = Device::new(LARGE_DEVICE);
    let mut store = open(device.path(), LARGE_RESERVE).await;
    let filled = fill(&store, 0, TIMEOUT).await;
    assert!(filled > 20_000, "{filled} values of 4 KiB on a device of 512 MiB");
    for round in 0..3 {
        remove(&store, 0..filled).await;
        // Journals of up to 64 MiB are of different lengths each time.
        let again = fill(&store, filled / 2, TIMEOUT).await;
        assert!(again >= filled / 2, "round {round}: {again} of {filled} before");
        remove(&store, filled..again).await;
        let expected: BTreeMap<u32, u32> = (0..filled.min(again)).map(|number| (number, number)).collect();
        assert!(contents(&store) == expected, "after round {round}");
        if round == 1 {
            store.close().await.unwrap();
            drop(store);
            store = open(device.path(), LARGE_RESERVE).await;
            assert!(contents(&store) == expected, "after a restart");
        }
        remove(&store, filled.min(again)..filled).await;
    }
    assert!(store.failure().is_none());
    store.close().await.unwrap();
}
