//! E4, second part: ageing by a mixed year of use. Files of published sizes and lifetimes are
//! written and removed at a constant fill ([`year`]); after every so many times the size of the
//! device, what is there is measured against a control: a fresh copy of the same data on a device
//! that was never used.
//!
//! | measured | how |
//! |---|---|
//! | write | new data, best case as in the first part: 4 tasks, 1 MiB a call; on the aged device, and on that of the copy, which is as full |
//! | read of new data | what was just written, in calls of 8 MiB |
//! | read of large objects | all files of 1 MiB or more, in the order of a walk; and the same of the copy |
//! | read of small objects | all others |
//! | layout | extents, dynamic layout score, free space by the length of its runs |
//! | parallel allocation | new data by 1 to 16 tasks in the model; blocks a second on this host |

pub mod findings;
mod parallel;
pub mod profile;
mod walk;
mod year;

use blocks::{Allocator, GROUP_BLOCKS, Geometry, Histogram};
use types::limits::BLOCK_BYTES;

pub use self::{parallel::WRITERS, walk::Layout};
use self::{
    profile::{Lifetimes, Profile, Sizes},
    walk::{Rates, Walk},
    year::{Use, Year},
};
use super::{
    FILES, GROUPS, MEASURED_BLOCKS_MAX, Windows, array,
    run::Run,
    workload::{MEASURED_FILES, Measured, Target, WRITE_BLOCKS, measure},
};

/// A file has at most this part of the device: others would be removed in masses for it.
const FILE_PART: u64 = 64;

/// Files of a copy after which windows that small ones shared are given back.
const COPIES_IDLE: u64 = 64;

/// A rate on the aged device, and that of the control.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Against {
    /// Aged.
    pub aged: f64,
    /// The fresh copy's.
    pub copy: f64,
}

impl Against {
    /// The part of the control's rate.
    pub fn part(self) -> f64 {
        self.aged / self.copy
    }
}

/// The runs of each object of a walk.
type Placed = Vec<Box<[Run]>>;

/// What was measured after so much use.
#[derive(Clone, Debug)]
pub struct Point {
    /// What was written since the device was filled, in sizes of the device.
    pub churn: u32,
    /// MiB/s of a best-case write.
    pub write: Against,
    /// MiB/s of reading what was just written.
    pub read_new: Against,
    /// MiB/s of reading objects of 1 MiB or more.
    pub read_large: Against,
    /// Objects below 1 MiB that are read in a second.
    pub read_small: Against,
    /// Placement of the aged data.
    pub layout: Layout,
    /// Placement of the copy.
    pub copy_layout: Layout,
    /// Free space of the aged device.
    pub histogram: Histogram,
    /// MiB/s of a best-case write by 1 to 16 tasks.
    pub by_writers: Vec<(u32, Against)>,
    /// Blocks that the allocator gives out on this host in a second, to 1 to 16 threads. Real time.
    pub allocated: Vec<(u32, f64)>,
}

/// A device with these windows that is used.
#[derive(Clone, Debug, PartialEq)]
pub struct Cell {
    /// Windows.
    pub windows: Windows,
    /// Part of the device that files have.
    pub fill_percent: u32,
    /// When it is measured: after so many times the size of the device.
    pub churns: Vec<u32>,
    /// Divides the size of the device.
    pub scale: u32,
    /// Writers at once.
    pub writers: u32,
    /// Sizes of files.
    pub sizes: Profile,
    /// Their lifetimes.
    pub ages: Profile,
    /// Smaller files are left out.
    pub smallest_bytes: u64,
    /// From which everything is derived.
    pub seed: u64,
}

impl Cell {
    fn geometry(&self) -> Result<Geometry, String> {
        let blocks = u64::from((GROUPS / self.scale).max(FILES)) * u64::from(GROUP_BLOCKS);
        Geometry::new(blocks).ok_or_else(|| "the device is too large".to_owned())
    }

    fn target(&self) -> Result<Target, String> {
        Ok(Target::new(Allocator::new(self.geometry()?, self.windows.policy())))
    }

    /// Runs it; `note` is told every point when it is known.
    pub fn run(&self, note: impl Fn(&Point)) -> Result<Vec<Point>, String> {
        let blocks = self.geometry()?.blocks();
        let file_max = blocks / FILE_PART * BLOCK_BYTES;
        let sizes = Sizes::new(self.sizes, self.smallest_bytes, file_max)
            .ok_or("the profile has no files between the smallest that is wanted and a 64th of the device")?;
        let host = array(blocks).host_bytes_per_second / BLOCK_BYTES as f64;
        let using = Use {
            writers: self.writers,
            used_max: blocks * u64::from(self.fill_percent) / 100,
            // The clock of a small device goes faster, so that its windows are the same part of it.
            blocks_per_second: (host / f64::from(self.scale)) as u64,
        };
        let mut year = Year::new(self.target()?, using, (sizes, Lifetimes::new(self.ages)), self.seed);
        year.run(0)?;
        let begun = year.written();
        let mut points = Vec::new();
        for &churn in &self.churns {
            year.run(begun + u64::from(churn) * blocks)?;
            let point = self.point(&mut year, churn)?;
            note(&point);
            points.push(point);
        }
        Ok(points)
    }

    fn point(&self, year: &mut Year, churn: u32) -> Result<Point, String> {
        let blocks = self.geometry()?.blocks();
        let model = array(blocks);
        let files = year.files();
        let aged: Walk<'_> = files.iter().map(|file| file.runs()).collect();
        let (mut control, copied) = self.copy(&aged)?;
        let copied: Walk<'_> = copied.iter().map(AsRef::as_ref).collect();
        let (layout, copy_layout) = (Layout::of(&aged), Layout::of(&copied));
        let (of_aged, of_copy) = (Rates::of(&aged, model, self.seed), Rates::of(&copied, model, self.seed));
        drop(aged);
        let allocator = year.target().allocator();
        let (histogram, left_out) = allocator.histogram();
        if left_out > 0 {
            return Err(format!("{left_out} groups are not loaded"));
        }
        let allocated = parallel::blocks_per_second(allocator)?;
        // A fifth of what is free, as in the first part.
        let free = blocks - blocks * u64::from(self.fill_percent) / 100;
        let measured = (free / 5).min(MEASURED_BLOCKS_MAX);
        let mut new_data = |tasks: u32| -> Result<(Measured, Measured), String> {
            let aged = measure(year.target(), model, (tasks, measured), self.seed)?;
            Ok((aged, measure(&mut control, model, (tasks, measured), self.seed)?))
        };
        let (aged, copy) = new_data(MEASURED_FILES)?;
        let mut by_writers = Vec::new();
        for tasks in WRITERS {
            let (aged, copy) = new_data(tasks)?;
            by_writers.push((tasks, Against { aged: aged.write, copy: copy.write }));
        }
        Ok(Point {
            churn,
            write: Against { aged: aged.write, copy: copy.write },
            read_new: Against { aged: aged.read, copy: copy.read },
            read_large: Against { aged: of_aged.large, copy: of_copy.large },
            read_small: Against { aged: of_aged.small, copy: of_copy.small },
            layout,
            copy_layout,
            histogram,
            by_writers,
            allocated,
        })
    }

    /// A fresh copy of these objects, written one after the other.
    fn copy(&self, walk: &Walk<'_>) -> Result<(Target, Placed), String> {
        let mut target = self.target()?;
        let mut copied = Vec::new();
        for (time, runs) in (0..).zip(walk) {
            let mut rest: u64 = runs.iter().map(|run| run.range().end - run.range().start).sum();
            let mut file = target.create();
            while rest > 0 {
                let blocks = rest.min(WRITE_BLOCKS);
                target.call(&mut file, blocks)?;
                rest -= blocks;
            }
            target.complete(&file)?;
            copied.push(file.runs.into_boxed_slice());
            target.give_up_idle(time, time.saturating_sub(COPIES_IDLE), u64::MAX)?;
        }
        target.give_up_idle(u64::MAX, u64::MAX, u64::MAX)?;
        Ok((target, copied))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cell(windows: Windows, fill_percent: u32, seed: u64) -> Cell {
        Cell {
            windows,
            fill_percent,
            churns: vec![0, 2],
            scale: 1000,
            writers: 8,
            sizes: Profile::Pramod,
            ages: Profile::WangLanl,
            smallest_bytes: 0,
            seed,
        }
    }

    #[test]
    fn a_run_is_the_same_for_the_same_seed() {
        let rates = |points: &[Point]| {
            points
                .iter()
                .map(|point| (point.write, point.read_large, point.read_small, point.layout))
                .collect::<Vec<_>>()
        };
        let run = |seed| rates(&cell(Windows::Mib4, 80, seed).run(|_| {}).unwrap());
        assert_eq!(run(1), run(1));
        assert_ne!(run(1), run(2));
    }

    #[test]
    fn use_ages_a_device_and_the_copy_is_as_good_as_new() {
        let points = cell(Windows::Mib1, 80, 1).run(|_| {}).unwrap();
        let aged = &points[1];
        assert_eq!((aged.churn, aged.layout.objects), (2, aged.copy_layout.objects));
        assert!(aged.layout.large_extents > 2 * aged.copy_layout.large_extents, "{aged:?}");
        assert!(aged.layout.score < aged.copy_layout.score && aged.copy_layout.score > 0.9, "{aged:?}");
        assert!(aged.read_large.part() < 0.9, "{aged:?}");
    }

    #[test]
    fn what_cannot_be_is_an_error() {
        let none = Cell { smallest_bytes: 1 << 40, ..cell(Windows::Mib1, 50, 1) };
        assert!(none.run(|_| {}).is_err_and(|error| error.contains("no files")));
    }
}
