//! E4, ageing of an OST (Swan and Petesch, Cray): what fragmentation costs for different windows of
//! pre-allocation, with the shipped allocator (crate `blocks`) on a modelled array.
//!
//! The method, for each window: measure a clean device; fill it with 20 files that grow at once;
//! then delete one file at a time, set the allocation pointer back to the start, and measure again,
//! until everything is free.
//!
//! OSTs are independent of each other, so each is simulated by itself, from a seed of its own.

pub mod findings;
pub mod mixed;
mod readers;
mod run;
mod workload;

use blocks::{Allocator, FreeRuns, GROUP_BLOCKS, Geometry, Histogram, Picture, Policy};

pub use self::workload::MEASURED_FILES;
use self::workload::{Target, measure};
use crate::model::rotating::ArrayModel;

/// Files that fill an OST.
pub const FILES: u32 = 20;
/// Groups of the study's OST of 23 TB.
const GROUPS: u32 = 171_364;
/// Groups at the start of the device of which there is a picture, with a cell for each MiB.
const PICTURE_GROUPS: u32 = 32;
/// Cells of a group.
const GROUP_CELLS: u32 = 128;
/// Blocks that a measurement writes at most: 51.2 GiB.
const MEASURED_BLOCKS_MAX: u64 = 512 * GROUP_BLOCKS as u64 * 4 / 5;
/// Part of the device that is left free when it is full, in thousandths: files end within windows,
/// and windows must not shrink for want of space. It is at the end, where nothing is measured.
const LEFT_FREE_THOUSANDTHS: u64 = 2;

/// How large windows are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, clap::ValueEnum)]
pub enum Windows {
    /// `32 64 128`: 1 MiB, the size of a write.
    #[value(name = "1")]
    Mib1,
    /// `128 256 512`.
    #[value(name = "2")]
    Mib2,
    /// `256 512 1024`.
    #[value(name = "4")]
    Mib4,
    /// `256 512 1024 2048`.
    #[value(name = "8")]
    Mib8,
    /// This allocator's own.
    Adaptive,
}

impl Windows {
    /// All of them.
    pub const ALL: [Windows; 5] = [Windows::Mib1, Windows::Mib2, Windows::Mib4, Windows::Mib8, Windows::Adaptive];

    /// Its name.
    pub fn name(self) -> &'static str {
        ["1 MiB", "2 MiB", "4 MiB", "8 MiB", "adaptive"][self as usize]
    }

    /// What `prealloc_table` is set to.
    pub fn table(self) -> &'static str {
        match self {
            Windows::Mib1 => "32 64 128",
            Windows::Mib2 => "128 256 512",
            Windows::Mib4 => "256 512 1024",
            Windows::Mib8 => "256 512 1024 2048",
            Windows::Adaptive => "adaptive",
        }
    }

    /// The allocator's tunables.
    fn policy(self) -> Policy {
        match self {
            Windows::Adaptive => Policy::default(),
            table => Policy::with_table(table.table().parse().expect("the study's tables are valid")),
        }
    }
}

/// The study's OST: 8+2 drives of 3 TB. docs/decisions/0011-models.md says where figures are from.
fn array(blocks: u64) -> ArrayModel {
    ArrayModel {
        data_drives: 8,
        seek_seconds_min: 0.0008,
        seek_seconds_max: 0.0141,
        turn_seconds: 60.0 / 7200.0,
        outer_bytes_per_second: 155e6,
        inner_bytes_per_second: 75e6,
        stripe_blocks: 256,
        host_bytes_per_second: 5e9 / 8.0,
        blocks,
    }
}

/// What was measured when so many files were deleted.
#[derive(Clone, Debug)]
pub struct Step {
    /// Files deleted; `None`: the device was never used.
    pub deleted: Option<u32>,
    /// MiB/s of a best-case write.
    pub write: f64,
    /// MiB/s of reading this in calls of 8 MiB.
    pub read: f64,
    /// Runs of the device per GiB that was written.
    pub runs_per_gib: f64,
    /// Free space before the measurement.
    pub histogram: Histogram,
    /// The bitmap of the first groups before the measurement.
    pub picture: Picture,
}

impl Step {
    /// Parts of the device in use, in percent.
    pub fn used_percent(&self) -> u32 {
        self.deleted.map_or(0, |deleted| 100 - 100 * deleted / FILES)
    }
}

/// An OST with these windows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cell {
    /// Windows.
    pub windows: Windows,
    /// Divides the size of the device and of what is measured.
    pub scale: u32,
    /// Where the measured section begins, in percent of the device: drives are slower at their end.
    pub section_percent: u32,
    /// From which the order of writes and reads is derived.
    pub seed: u64,
}

impl Cell {
    /// Groups of the device.
    fn groups(self) -> u32 {
        (GROUPS / self.scale).max(FILES)
    }

    /// Runs it: a step for the clean device, and one after each deletion.
    pub fn run(self) -> Result<Vec<Step>, String> {
        let blocks = u64::from(self.groups()) * u64::from(GROUP_BLOCKS);
        let geometry = Geometry::new(blocks).ok_or("the device is too large")?;
        let mut target = Target::new(Allocator::new(geometry, self.windows.policy()));
        let mut steps = vec![self.step(&mut target, None)?];
        target.reset_pointer(0);
        let used = blocks * (1000 - LEFT_FREE_THOUSANDTHS) / 1000;
        let mut files = target.write(FILES, used / u64::from(FILES), self.seed, |_| {})?;
        for deleted in 1..=FILES {
            target.delete(files.pop().ok_or("no file is left")?)?;
            steps.push(self.step(&mut target, Some(deleted))?);
        }
        Ok(steps)
    }

    /// Measures the device as it is; it is the same afterwards.
    fn step(self, target: &mut Target, deleted: Option<u32>) -> Result<Step, String> {
        let geometry = target.allocator().geometry();
        let (histogram, left_out) = target.allocator().histogram();
        if left_out > 0 {
            return Err(format!("{left_out} groups are not loaded"));
        }
        let picture = picture(target.allocator());
        target.reset_pointer((u64::from(self.groups()) * u64::from(self.section_percent) / 100) as u32);
        // At most a fifth of what is free after a deletion, so that it is at the start of the
        // section.
        let blocks = (geometry.blocks() / u64::from(5 * FILES)).min(MEASURED_BLOCKS_MAX);
        let seed = self.seed ^ u64::from(deleted.unwrap_or(0)) << 32;
        let measured = measure(target, array(geometry.blocks()), (MEASURED_FILES, blocks), seed)?;
        Ok(Step {
            deleted,
            write: measured.write,
            read: measured.read,
            runs_per_gib: measured.runs_per_gib,
            histogram,
            picture,
        })
    }
}

/// The bitmap at the start of a device.
fn picture(allocator: &Allocator) -> Picture {
    let groups = allocator.geometry().groups().min(PICTURE_GROUPS);
    let blocks = u64::from(groups) * u64::from(GROUP_BLOCKS);
    let mut picture = Picture::new(Geometry::new(blocks).expect("a part of a device"), groups * GROUP_CELLS);
    for group in 0..groups {
        let never_used = || (allocator.summary(group).free == GROUP_BLOCKS).then(|| FreeRuns::all(GROUP_BLOCKS));
        if let Some(runs) = allocator.recorded(group).or_else(never_used) {
            picture.add(group, &runs);
        }
    }
    picture
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(windows: Windows, seed: u64) -> Vec<Step> {
        Cell { windows, scale: 200, section_percent: 0, seed }.run().expect("the device is large enough")
    }

    #[test]
    fn a_run_is_the_same_for_the_same_seed_and_ends_with_a_free_device() {
        let steps = run(Windows::Mib2, 1);
        assert_eq!(steps.len(), 1 + FILES as usize);
        let used: Vec<u32> = steps.iter().map(Step::used_percent).collect();
        assert_eq!((used[..3].to_vec(), used[20]), (vec![0, 95, 90], 0));
        let rates = |steps: &[Step]| steps.iter().map(|step| (step.write, step.read)).collect::<Vec<_>>();
        assert_eq!(rates(&steps), rates(&run(Windows::Mib2, 1)));
        assert_ne!(rates(&steps), rates(&run(Windows::Mib2, 2)));
        let (clean, last) = (&steps[0], &steps[20]);
        assert_eq!((&clean.histogram, &clean.picture), (&last.histogram, &last.picture));
        assert_eq!(clean.histogram.score(), 0.0);
    }

    #[test]
    fn small_windows_age_and_adaptive_ones_do_not() {
        let lowest = |windows| {
            let steps = run(windows, 3);
            let aged = steps[1..].iter().map(|step| step.write / steps[0].write);
            (aged.fold(f64::INFINITY, f64::min), steps[1].histogram.score())
        };
        let (small, adaptive) = (lowest(Windows::Mib1), lowest(Windows::Adaptive));
        assert!(small.0 < 0.5 && small.1 > 40.0, "{small:?}");
        assert!(adaptive.0 > 0.8 && adaptive.1 < 10.0, "{adaptive:?}");
    }
}
