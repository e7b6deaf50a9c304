//! The tables of a target on a device that somebody else fills and empties, again and again, while they change: fjall's
//! background work fails for want of space at any moment. Nothing but `NoSpace` is seen, nothing is lost, and no restart
//! is needed.

use std::{
    collections::BTreeMap,
    fs::{self, File},
    io::Write,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use kv::{Batch, Config, Error, FjallCold, Store, Table, cold::fjall::FjallOptions};
use rt::{
    memory::{MemoryTransport, seams},
    real::{Execution, IoThreads, LocalDirectory},
};
use rustix::mount::{MountFlags, UnmountFlags};

use crate::common::PATIENCE;

const T: Table = Table(1);
/// Of which the test's journals, tables and fjall's journals take up to two thirds.
const DEVICE: &str = "size=256m";
const KEYS: u32 = 4096;
const VALUE_BYTES: usize = 16 << 10;
const ROUNDS: usize = 6;

/// A device of its own; gone when dropped.
struct Device(tempfile::TempDir);

impl Device {
    fn new() -> Device {
        assert!(rustix::process::geteuid().is_root(), "this test mounts a device and needs root");
        let point = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let options = std::ffi::CString::new(DEVICE).unwrap();
        rustix::mount::mount("tables", point.path(), "tmpfs", MountFlags::empty(), Some(options.as_c_str())).unwrap();
        Device(point)
    }

    fn path(&self) -> &Path {
        self.0.path()
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        let _ = rustix::mount::unmount(self.path(), UnmountFlags::DETACH);
    }
}

async fn open(directory: &Path) -> Store {
    let threads = Arc::new(IoThreads::new("io", 1).unwrap());
    let device = LocalDirectory::open(directory.join("journal"), Execution::Inline, threads).unwrap();
    let options = FjallOptions { cache_bytes: 1 << 20, write_buffer_bytes: 1 << 20 };
    let cold = FjallCold::open(&directory.join("cold"), options).unwrap();
    let config = Config {
        segment_bytes: 2 << 20,
        segments_max: 6,
        reserve_bytes: 256 << 10,
        device_reserve_bytes: 16 << 20,
        memory_bytes: 2 << 20,
        dirty_bytes: 2 << 20,
        commit_interval: Duration::from_millis(20),
        ..Config::default()
    };
    let seams = seams(&MemoryTransport::new(), 1);
    Store::open(seams, Arc::new(device), Arc::new(cold), config, &mut |_, _| {}).await.unwrap()
}

/// Takes all space there is, holds it for a while, gives it back; until told to end.
fn fill_and_empty(path: &Path, end: &AtomicBool) -> usize {
    let piece = vec![1; 256 << 10];
    let mut filled = 0;
    while !end.load(Ordering::Relaxed) {
        let mut file = File::create(path).unwrap();
        // Also what comes free while it is full.
        let until = Instant::now() + Duration::from_millis(300);
        while Instant::now() < until {
            if file.write_all(&piece).is_err() {
                filled += 1;
                std::thread::sleep(Duration::from_millis(2));
            }
        }
        drop(file);
        fs::remove_file(path).unwrap();
        std::thread::sleep(Duration::from_millis(300));
    }
    filled
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
    let device = Device::new();
    let mut store = open(device.path()).await;
    let mut model = BTreeMap::new();
    let end = Arc::new(AtomicBool::new(false));
    let filler = std::thread::spawn({
        let (path, end) = (device.path().join("ballast"), end.clone());
        move || fill_and_empty(&path, &end)
    });
    let mut refused = 0;
    for round in 0..ROUNDS {
        refused += change(&store, &mut model, round as u32).await;
        assert!(contents(&store) == model, "after round {round}");
    }
    end.store(true, Ordering::Relaxed);
    let filled = filler.join().unwrap();
    assert!(filled > 0 && refused > 0, "the device was never full ({filled}, {refused})");
    // With all space back, everything works again.
    let started = Instant::now();
    loop {
        let mut batch = Batch::default();
        batch.put(T, KEYS.to_be_bytes().to_vec(), 1u32.to_be_bytes().to_vec());
        match store.apply(batch) {
            Ok(lsn) => break store.durable(lsn).await.unwrap(),
            Err(error) => assert!(matches!(error, Error::NoSpace | Error::Overloaded), "{error}"),
        }
        assert!(started.elapsed() < PATIENCE, "there is space, but it is not used");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    model.insert(KEYS, 1);
    store.checkpoint().await.unwrap();
    assert!(contents(&store) == model);
    store.close().await.unwrap();
    drop(store);
    store = open(device.path()).await;
    assert!(contents(&store) == model, "after a restart");
    store.close().await.unwrap();
}
