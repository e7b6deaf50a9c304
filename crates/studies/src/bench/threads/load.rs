//! A load that goes on while settings change: tasks on every client read or write records at random
//! places of the client's file, with direct I/O, and count what they have done.
//!
//! Downside: closed loops. While a setting is slow, fewer requests arrive.

use std::{
    io,
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

use anyhow::{Context, ensure};
use bytes::Bytes;
use layout::StripeCount;
use lfs::channel;
use parking_lot::Mutex;
use rpc::message::control::ControlRequest;

use crate::{
    bench::{
        study::io_error,
        target::{BenchTarget, PosixTarget, TargetFile},
    },
    study::Striping,
};

/// Of a record: small, so that enough of them are counted in a short time.
const RECORD_BYTES: u64 = 16 << 10;
/// Of a client's file: it stays in the server's memory.
const FILE_BYTES: u64 = 32 << 20;
/// A load that does nothing for longer has failed.
const STALL_MAX: Duration = Duration::from_secs(10);
const MIB: u64 = 1 << 20;
const NAME: &str = "load";

/// What tasks do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// They read.
    Read,
    /// They overwrite.
    Write,
}

/// A file of its own for each client, on all targets.
pub fn make_files(mounts: &[PathBuf]) -> anyhow::Result<()> {
    for (number, mount) in mounts.iter().enumerate() {
        let spec = Striping::plain(StripeCount::All, MIB).spec();
        let name = format!("{NAME}{number}");
        let request = ControlRequest::CreateWithLayout { name: name.clone().into_bytes(), mode: 0o600, spec };
        channel::call(mount, &request).map_err(io_error).context("cannot make a file on all targets")?;
        let file = PosixTarget::new(mount, true).open(&name)?;
        let data = Bytes::from(vec![1; MIB as usize]);
        (0..FILE_BYTES / MIB).try_for_each(|index| file.write_at(&data, index * MIB))?;
        file.sync()?;
        file.close()?;
    }
    Ok(())
}

/// What tasks share.
#[derive(Default)]
struct Shared {
    bytes: AtomicU64,
    records: AtomicU64,
    ends: AtomicBool,
    failed: Mutex<Option<io::Error>>,
}

/// A load that is going on; it ends when this is dropped.
pub struct Load {
    shared: Arc<Shared>,
    tasks: Vec<JoinHandle<()>>,
}

impl Load {
    /// Begins so many tasks on each client.
    pub fn start(mounts: &[PathBuf], direction: Direction, tasks: u16) -> anyhow::Result<Self> {
        let targets = mounts.iter().map(|mount| PosixTarget::new(mount, true));
        Self::start_on(targets, direction, tasks)
    }

    fn start_on(targets: impl Iterator<Item = PosixTarget>, direction: Direction, tasks: u16) -> anyhow::Result<Self> {
        let mut load = Self { shared: Arc::default(), tasks: Vec::new() };
        for (number, target) in targets.enumerate() {
            for _ in 0..tasks {
                let file = target.open(&format!("{NAME}{number}"))?;
                let shared = load.shared.clone();
                let task = move || shared.work(file, direction);
                load.tasks.push(std::thread::Builder::new().name("load".to_owned()).spawn(task)?);
            }
        }
        Ok(load)
    }

    /// MiB per second during this time; longer while nothing moves, as on a host that is busy with
    /// other work.
    pub fn measure(&self, time: Duration) -> anyhow::Result<f64> {
        let (start, before) = (Instant::now(), self.shared.bytes.load(Ordering::Relaxed));
        let (bytes, took) = loop {
            std::thread::sleep(time);
            let (bytes, took) = (self.shared.bytes.load(Ordering::Relaxed) - before, start.elapsed());
            if bytes > 0 || took > time + STALL_MAX || self.shared.failed.lock().is_some() {
                break (bytes, took);
            }
        };
        if let Some(error) = self.shared.failed.lock().take() {
            return Err(error).context("a task of the load failed");
        }
        ensure!(bytes > 0, "nothing was read or written in {:.1} s", took.as_secs_f64());
        Ok(bytes as f64 / MIB as f64 / took.as_secs_f64())
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.shared.ends.store(true, Ordering::Relaxed);
        for task in self.tasks.drain(..) {
            // What failed in it was kept.
            let _ = task.join();
        }
    }
}

impl Shared {
    fn work(&self, file: Box<dyn TargetFile>, direction: Direction) {
        let data = Bytes::from(vec![2; RECORD_BYTES as usize]);
        let mut buffer = vec![0; RECORD_BYTES as usize];
        while !self.ends.load(Ordering::Relaxed) {
            let record = scattered(self.records.fetch_add(1, Ordering::Relaxed)) % (FILE_BYTES / RECORD_BYTES);
            let done = match direction {
                Direction::Read => file.read_at(&mut buffer, record * RECORD_BYTES),
                Direction::Write => file.write_at(&data, record * RECORD_BYTES),
            };
            if let Err(error) = done {
                self.failed.lock().get_or_insert(error);
                return;
            }
            self.bytes.fetch_add(RECORD_BYTES, Ordering::Relaxed);
        }
        if let Err(error) = file.close() {
            self.failed.lock().get_or_insert(error);
        }
    }
}

/// A number that looks random (SplitMix64): the same places in every run.
fn scattered(number: u64) -> u64 {
    let mut mixed = number.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_load_counts_what_it_does_and_ends() {
        let place = tempfile::tempdir().unwrap();
        let file = place.path().join("load0");
        // Direct I/O on a disk needs aligned buffers.
        let start = |direction, tasks| {
            let target = PosixTarget::new(place.path(), false);
            Load::start_on(std::iter::once(target), direction, tasks).unwrap()
        };
        std::fs::write(&file, vec![0; FILE_BYTES as usize]).unwrap();
        for direction in [Direction::Read, Direction::Write] {
            let load = start(direction, 2);
            assert!(load.measure(Duration::from_millis(50)).unwrap() > 0.0);
        }
        assert!(std::fs::read(&file).unwrap().contains(&2));
        // What a task cannot do is an error of the measurement, not a rate.
        std::fs::write(&file, b"short").unwrap();
        let load = start(Direction::Read, 1);
        assert!(load.measure(Duration::from_millis(50)).is_err());
    }

    #[test]
    fn records_are_scattered_over_the_whole_file() {
        let records = FILE_BYTES / RECORD_BYTES;
        let stripes: std::collections::BTreeSet<u64> =
            (0..200).map(|number| scattered(number) % records * RECORD_BYTES / MIB).collect();
        assert!(stripes.len() > 25, "{stripes:?}");
    }
}
