//! How data are placed, and what it takes to read all of them on the modelled array.

use std::ops::Range;

use blocks::layout_score;
use types::SplitMix64;

use super::super::{
    run::Run,
    workload::{CALLS_IN_FLIGHT, MEASURED_FILES, READ_BLOCKS, WRITE_BLOCKS},
};
use crate::model::rotating::{Access, Array, ArrayModel, Pipeline};

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

/// How far a task has come.
struct Reader<'a> {
    objects: &'a [&'a [Run]],
    run: usize,
    /// Blocks of the run that were read.
    within: u64,
}

impl Reader<'_> {
    /// The places of the next call, which reads at most 8 MiB of one object; none at the end.
    fn next(&mut self) -> Vec<Range<u64>> {
        let (mut places, mut wanted) = (Vec::new(), READ_BLOCKS);
        while let [runs, rest @ ..] = self.objects {
            let Some(run) = runs.get(self.run) else {
                (self.objects, self.run) = (rest, 0);
                if places.is_empty() {
                    continue;
                }
                break;
            };
            let start = run.range().start + self.within;
            let end = run.range().end.min(start + wanted);
            places.push(start..end);
            wanted -= end - start;
            self.within += end - start;
            if end == run.range().end {
                (self.run, self.within) = (self.run + 1, 0);
            }
            if wanted == 0 {
                break;
            }
        }
        places
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

/// Seconds in which four tasks read everything, each with so many calls in flight. They do not keep
/// step: whose turn is next is random.
fn seconds(walk: &Walk<'_>, model: ArrayModel, in_flight: usize, seed: u64) -> f64 {
    let part = walk.len().div_ceil(MEASURED_FILES as usize).max(1);
    let mut readers: Vec<Reader<'_>> = walk.chunks(part).map(|objects| Reader { objects, run: 0, within: 0 }).collect();
    let (mut order, mut array, mut pipeline) = (SplitMix64(!seed), Array::new(model), Pipeline::default());
    while !readers.is_empty() {
        let mut batch = Vec::new();
        for _ in 0..MEASURED_FILES {
            if readers.is_empty() {
                break;
            }
            let number = (order.next_u64() % readers.len() as u64) as usize;
            for _ in 0..in_flight {
                let places = readers[number].next();
                if places.is_empty() {
                    readers.swap_remove(number);
                    break;
                }
                batch.extend(places);
            }
        }
        let travel = array.travel(batch.iter().map(|place| place.end - place.start).sum());
        pipeline.pass(array.serve(Access::Read, batch), travel);
    }
    pipeline.seconds()
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

    #[test]
    fn a_reader_reads_every_block_once_and_a_call_one_object() {
        let objects = [vec![run(0, 3000), run(9000, 1)], vec![run(5000, 10)], vec![run(6000, 2048)]];
        let walk: Walk<'_> = objects.iter().map(Vec::as_slice).collect();
        let mut reader = Reader { objects: &walk, run: 0, within: 0 };
        let calls: Vec<_> = std::iter::from_fn(|| Some(reader.next()).filter(|places| !places.is_empty())).collect();
        let bounds = |places: &Vec<Range<u64>>| places.iter().map(|place| (place.start, place.end)).collect::<Vec<_>>();
        let calls: Vec<_> = calls.iter().map(bounds).collect();
        let wanted = [vec![(0, 2048)], vec![(2048, 3000), (9000, 9001)], vec![(5000, 5010)], vec![(6000, 8048)]];
        assert_eq!(calls, wanted);
    }
}
