//! How data are placed, and what it takes to read all of them on the modelled array.

use blocks::layout_score;

use super::super::{
    readers::seconds_of_reading,
    run::Run,
    workload::{CALLS_IN_FLIGHT, MEASURED_FILES, WRITE_BLOCKS},
};
use crate::model::rotating::ArrayModel;

/// An object of at least so many blocks is a large one: 1 MiB.
const LARGE_BLOCKS: u64 = WRITE_BLOCKS;

/// Objects that are read one after the other, each as its runs.
pub(super) type Walk<'a> = Vec<&'a [Run]>;

fn blocks_of(runs: &[Run]) -> u64 {
    runs.iter().map(|run| run.range().end - run.range().start).sum()
}

/// How objects are placed.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Layout {
    /// Objects.
    pub objects: u64,
    /// Extents of all of them.
    pub extents: u64,
    /// Objects of 1 MiB or more.
    pub large: u64,
    /// Extents of these.
    pub large_extents: u64,
    /// Of the object that has most.
    pub extents_max: u64,
    /// Dynamic layout score (Conway and others, FAST 2017): of the blocks in the order in which a
    /// walk reads them, except the first, the part that follow the block that was read before them
    /// on the device.
    pub score: f64,
}

impl Layout {
    pub(super) fn of(walk: &Walk<'_>) -> Self {
        let (mut layout, mut all, mut pieces, mut end) = (Self::default(), 0, 0, None);
        for runs in walk {
            let (blocks, extents) = (blocks_of(runs), runs.len() as u64);
            layout.objects += 1;
            layout.extents += extents;
            layout.extents_max = layout.extents_max.max(extents);
            if blocks >= LARGE_BLOCKS {
                layout.large += 1;
                layout.large_extents += extents;
            }
            all += blocks;
            for run in *runs {
                pieces += u64::from(end != Some(run.range().start));
                end = Some(run.range().end);
            }
        }
        Self { score: layout_score(all, pieces), ..layout }
    }

    /// Extents of an object of 1 MiB or more, on average.
    pub fn extents_of_large(&self) -> f64 {
        self.large_extents as f64 / self.large.max(1) as f64
    }
}

/// What reading all objects takes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Rates {
    /// MiB/s of the large ones.
    pub(super) large: f64,
    /// Small ones in a second.
    pub(super) small: f64,
}

impl Rates {
    /// Large objects in calls of 8 MiB, small ones in a call each. There are four tasks; each reads
    /// a part of the walk.
    pub(super) fn of(walk: &Walk<'_>, model: ArrayModel, seed: u64) -> Self {
        let (large, small): (Walk<'_>, Walk<'_>) = walk.iter().partition(|runs| blocks_of(runs) >= LARGE_BLOCKS);
        let mib = large.iter().map(|runs| blocks_of(runs)).sum::<u64>() as f64 / 256.0;
        Self {
            large: mib / seconds(&large, model, 1, seed),
            small: small.len() as f64 / seconds(&small, model, CALLS_IN_FLIGHT, seed),
        }
    }
}

/// Seconds in which four tasks read everything, each with so many calls in flight.
fn seconds(walk: &Walk<'_>, model: ArrayModel, in_flight: usize, seed: u64) -> f64 {
    let part = walk.len().div_ceil(MEASURED_FILES as usize).max(1);
    seconds_of_reading(walk.chunks(part), model, in_flight, seed)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(start: u64, blocks: u64) -> Run {
        Run::new(&(start..start + blocks))
    }

    #[test]
    fn the_score_counts_breaks_within_objects_and_between_them() {
        let objects = [vec![run(0, 300)], vec![run(300, 10), run(500, 10)], vec![run(510, 1)]];
        let layout = Layout::of(&objects.iter().map(Vec::as_slice).collect());
        assert_eq!((layout.objects, layout.extents, layout.extents_max), (3, 4, 2));
        assert_eq!((layout.large, layout.large_extents), (1, 1));
        assert!((layout.score - (1.0 - 1.0 / 320.0)).abs() < 1e-12, "only 500 does not follow: {}", layout.score);
    }
}
