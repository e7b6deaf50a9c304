//! An OST with windows of one size, while it is filled and emptied.

use std::{
    io,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use anyhow::Context;
use bytes::Bytes;
use node::storage::Storage;
use oss::directory::device::DEVICE_FILE;
use types::limits::BLOCK_BYTES;

use crate::{
    bench::{
        caches::{CacheKind, drop_caches},
        objects::{
            self,
            store::{Store, Target, WriteMode},
        },
        workers,
    },
    study::e4::{FILES, MEASURED_FILES, Step, Windows},
};

/// Bytes of a write.
const WRITE_BYTES: usize = 1 << 20;
/// Bytes of a read.
const READ_BYTES: usize = 8 << 20;
/// Part of the device that is left free when it is full, in thousandths.
const LEFT_FREE_THOUSANDTHS: u64 = 5;
/// Cells of the bitmap's picture, at most; otherwise one for each MiB.
const CELLS_MAX: u64 = 4096;
/// The objects of measurements: those below are the files.
const MEASURED: u64 = 1000;

/// See the module documentation.
pub struct Aged {
    target: Target,
    device: PathBuf,
    data: Bytes,
    /// Free blocks of the device when it was new.
    blocks: u64,
    cells: u32,
    is_block_device: bool,
}

impl Aged {
    /// A new one.
    pub fn new(directory: &Path, storage: &Storage, windows: Windows) -> anyhow::Result<Self> {
        let target = Target::start(directory, storage)?;
        target.set("prealloc_table", windows.table())?;
        // Nothing moves but what the study moves.
        target.set("defrag_mbps", "0")?;
        let map = target.map(1)?;
        let cells = ((map.blocks() * BLOCK_BYTES) >> 20).clamp(1, CELLS_MAX) as u32;
        let data = objects::data(WRITE_BYTES);
        let (device, blocks) = (directory.join(DEVICE_FILE), map.free.blocks());
        Ok(Self { target, device, data, blocks, cells, is_block_device: matches!(storage, Storage::Device { .. }) })
    }

    /// Bytes of the device.
    pub fn bytes(&self) -> u64 {
        self.blocks * BLOCK_BYTES
    }

    /// The device.
    pub fn device(&self) -> PathBuf {
        self.device.clone()
    }

    /// Writes all files at once, and makes them durable. Windows that they do not need any more are
    /// waited for.
    pub fn fill(&self, patience: Duration) -> anyhow::Result<()> {
        let used = self.bytes() / 1000 * (1000 - LEFT_FREE_THOUSANDTHS);
        let calls = used / u64::from(FILES) / WRITE_BYTES as u64;
        self.write((FILES as usize, 0), calls).context("filling the OST")?;
        let end = Instant::now() + patience;
        while Instant::now() < end && self.blocks_in_windows()? > 0 {
            std::thread::sleep(Duration::from_millis(200));
        }
        Ok(())
    }

    fn blocks_in_windows(&self) -> anyhow::Result<u64> {
        let stats = self.target.shown("mb_stats")?;
        let line = stats.lines().find_map(|line| line.strip_prefix("in_windows"));
        line.and_then(|value| value.trim().parse().ok()).context("mb_stats has no blocks in windows")
    }

    /// So many tasks write an object each, in so many calls, and make them durable; how long that
    /// takes.
    fn write(&self, (tasks, first): (usize, u64), calls: u64) -> io::Result<Duration> {
        let wall = workers::run(tasks, |rank| {
            (0..calls).try_for_each(|call| {
                let (object, offset) = (first + rank as u64, call * WRITE_BYTES as u64);
                self.target.write(rank, object, offset, &self.data, WriteMode::Buffered)
            })
        })?;
        let begun = Instant::now();
        self.target.commit()?;
        Ok(wall + begun.elapsed())
    }

    /// Removes a file; its blocks are free afterwards.
    pub fn remove(&self, file: u32) -> io::Result<()> {
        self.target.remove(0, u64::from(FILES - 1 - file))?;
        self.target.commit()
    }

    /// Measures the device as it is; it is the same afterwards.
    pub fn step(&self, deleted: Option<u32>) -> anyhow::Result<Step> {
        let map = self.target.map(self.cells)?;
        self.target.set("mb_last_group", "0")?;
        self.target.set("mb_last_start", "0")?;
        let tasks = MEASURED_FILES as usize;
        // At most a fifth of what is free after a deletion.
        let calls = (self.bytes() / u64::from(5 * FILES * MEASURED_FILES) / WRITE_BYTES as u64).max(1);
        let mib = (calls * u64::from(MEASURED_FILES)) as f64;
        let written = self.write((tasks, MEASURED), calls).context("measuring a write")?;
        let mut pieces = 0;
        for object in MEASURED..MEASURED + u64::from(MEASURED_FILES) {
            pieces += self.target.pieces(object)?;
        }
        if self.is_block_device {
            // Below a loop device there may be a file that the kernel has in memory.
            drop_caches(CacheKind::Pages);
        }
        let bytes = calls * WRITE_BYTES as u64;
        let read = workers::run(tasks, |rank| {
            (0..bytes).step_by(READ_BYTES).try_for_each(|offset| {
                let part = (bytes - offset).min(READ_BYTES as u64) as usize;
                self.target.read_call(rank, MEASURED + rank as u64, offset, part)
            })
        });
        let read = read.context("measuring a read")?;
        for object in MEASURED..MEASURED + u64::from(MEASURED_FILES) {
            self.target.remove(0, object)?;
        }
        self.target.commit()?;
        Ok(Step {
            deleted,
            write: mib / written.as_secs_f64(),
            read: mib / read.as_secs_f64(),
            runs_per_gib: pieces as f64 / (mib / 1024.0),
            histogram: map.free.clone(),
            picture: map.picture().clone(),
        })
    }
}
