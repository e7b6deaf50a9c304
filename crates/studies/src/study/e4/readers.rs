//! Tasks that read files at once, and what that takes on the modelled array.

use std::ops::Range;

use types::SplitMix64;

use super::run::Run;
use crate::model::rotating::{Access, Array, ArrayModel, Pipeline};

/// Blocks of a read: 8 MiB.
const READ_BLOCKS: u64 = 2048;

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

/// Seconds in which tasks read their objects, each as its runs, with so many calls in flight. They
/// do not keep step: whose turn is next is random.
pub(super) fn seconds_of_reading<'a>(
    tasks: impl Iterator<Item = &'a [&'a [Run]]>,
    model: ArrayModel,
    in_flight: usize,
    seed: u64,
) -> f64 {
    let mut readers: Vec<Reader<'_>> = tasks.map(|objects| Reader { objects, run: 0, within: 0 }).collect();
    let (mut order, mut array, mut pipeline) = (SplitMix64(!seed), Array::new(model), Pipeline::default());
    let turns = readers.len();
    while !readers.is_empty() {
        let mut batch = Vec::new();
        for _ in 0..turns {
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
    fn a_reader_reads_every_block_once_and_a_call_one_object() {
        let objects = [vec![run(0, 3000), run(9000, 1)], vec![run(5000, 10)], vec![run(6000, 2048)]];
        let walk: Vec<&[Run]> = objects.iter().map(Vec::as_slice).collect();
        let mut reader = Reader { objects: &walk, run: 0, within: 0 };
        let calls: Vec<_> = std::iter::from_fn(|| Some(reader.next()).filter(|places| !places.is_empty())).collect();
        let bounds = |places: &Vec<Range<u64>>| places.iter().map(|place| (place.start, place.end)).collect::<Vec<_>>();
        let calls: Vec<_> = calls.iter().map(bounds).collect();
        let wanted = [vec![(0, 2048)], vec![(2048, 3000), (9000, 9001)], vec![(5000, 5010)], vec![(6000, 8048)]];
        assert_eq!(calls, wanted);
    }
}
