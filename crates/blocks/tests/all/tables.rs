//! The tables of study E4, with its way of filling a device: 20 files grow at once, 1 MiB at a
//! time.

use std::ops::Range;

use blocks::{Allocator, Extents, Geometry, Histogram, Policy, Refusal, Request, Summary};

use types::SplitMix64;

use super::{append, object, write, write_all};

const FILES: u64 = 20;
/// 1 MiB.
const CALL: u32 = 256;

/// Lets the files grow until each has so many blocks; where they are.
fn fill(allocator: &mut Allocator, blocks: u64) -> Vec<Vec<Range<u64>>> {
    let mut files = vec![Vec::new(); FILES as usize];
    for size in (0..blocks).step_by(CALL as usize) {
        for (number, runs) in files.iter_mut().enumerate() {
            let goal = runs.last().map(|run: &Range<u64>| run.end);
            runs.extend(write(allocator, (number as u64, size), CALL, goal));
        }
    }
    files
}

/// Lengths of the runs of the free space after one file of the 20 is deleted, in MiB.
fn holes(table: &str) -> Vec<u32> {
    let geometry = Geometry::new(20 * 32_768).unwrap();
    let mut allocator = Allocator::new(geometry, Policy::with_table(table.parse().unwrap()));
    let files = fill(&mut allocator, 16 * 1024);
    for run in &files[7] {
        allocator.free(run, 1).unwrap();
    }
    allocator.durable(1, usize::MAX).unwrap();
    let (histogram, left_out) = allocator.histogram();
    assert_eq!(left_out, 0);
    lengths(&histogram)
}

/// Classes with runs, by their lower end in MiB, without what was never used.
fn lengths(histogram: &Histogram) -> Vec<u32> {
    let classes = (0..).zip(histogram.classes()).filter(|(class, (_, runs, _))| *runs > 0 && *class < 17);
    classes.map(|(class, _)| (1 << class) / 256).collect()
}

#[test]
fn a_deleted_file_leaves_holes_as_long_as_the_largest_window() {
    assert_eq!(holes("32 64 128"), [1]);
    // The first window of a file is smaller than the later ones.
    assert_eq!(holes("128 256 512"), [1, 2]);
    assert_eq!(holes("256 512 1024"), [1, 2, 4]);
    assert_eq!(holes("256 512 1024 2048"), [1, 2, 4, 8]);
}

#[test]
fn adaptive_windows_keep_files_that_grow_together_apart() {
    let geometry = Geometry::new(64 * 32_768).unwrap();
    let extents = |policy: Policy| -> f64 {
        let mut allocator = Allocator::new(geometry, policy);
        let files = fill(&mut allocator, 64 * 1024);
        let runs_of = |runs: &Vec<Range<u64>>| {
            let mut extents = Extents::default();
            runs.iter().for_each(|run| extents.push(run.clone()));
            assert_eq!(extents.blocks(), 64 * 1024);
            extents.runs().len()
        };
        files.iter().map(runs_of).sum::<usize>() as f64 / FILES as f64
    };
    let table = extents(Policy::with_table("256 512 1024 2048".parse().unwrap()));
    assert!((30.0..40.0).contains(&table), "256 MiB in windows of 8 MiB: {table}");
    let adaptive = extents(Policy::default());
    assert!(adaptive < 14.0, "{adaptive}");
}

#[test]
fn a_lone_writer_is_in_one_piece_with_every_policy() {
    let table = Policy::with_table("32 64 128".parse().unwrap());
    // A short first call is in the window of the locality.
    for (policy, call, pieces) in [(Policy::default(), CALL, 1), (Policy::default(), 16, 2), (table, CALL, 1)] {
        let mut allocator = Allocator::new(Geometry::new(4 * 32_768).unwrap(), policy);
        let mut extents = Extents::default();
        for size in (0..3 * 32_768).step_by(call as usize) {
            let goal = extents.runs().last().map(|run| run.end);
            write(&mut allocator, (1, size), call, goal).into_iter().for_each(|run| extents.push(run));
        }
        assert_eq!(extents.runs().len(), pieces, "in calls of {call} blocks");
    }
}

/// Pieces of each of so many objects of one locality that grow together, in calls of these blocks.
fn pieces_of_small_writers(policy: Policy, blocks: u64, call: u32) -> usize {
    let mut allocator = Allocator::new(Geometry::new(64 * 32_768).unwrap(), policy);
    let mut objects: Vec<Extents> = (0..8).map(|_| Extents::default()).collect();
    let mut random = SplitMix64(3);
    for _ in 0..8 * blocks / u64::from(call) {
        let growing: Vec<usize> = (0..8).filter(|number| objects[*number].blocks() < blocks).collect();
        let number = growing[(random.next_u64() % growing.len() as u64) as usize];
        let extents = &mut objects[number];
        let (size, goal) = (extents.blocks(), extents.runs().last().map(|run| run.end));
        let request = Request { locality: 0, ..append(number as u64, size, call, goal) };
        let device = allocator.allocate(&request).unwrap().device;
        allocator.record(&device).unwrap();
        extents.push(device);
    }
    allocator.audit();
    objects.iter().map(|extents| extents.runs().len()).max().unwrap()
}

#[test]
fn small_objects_that_are_written_together_do_not_alternate() {
    for (blocks, call, pieces) in [(64, 16, 3), (1024, 16, 7), (1024, 32, 6), (1024, 128, 4), (16_384, 16, 13)] {
        let adaptive = pieces_of_small_writers(Policy::default(), blocks, call);
        assert!(adaptive <= pieces, "{blocks} blocks in calls of {call}: {adaptive} pieces");
    }
    let table = pieces_of_small_writers(Policy::with_table("256 512 1024 2048".parse().unwrap()), 1024, 16);
    assert!(table > 40, "as on ldiskfs, where those of a locality alternate until they are large: {table}");
}

#[test]
fn small_objects_of_one_locality_are_together_and_those_of_another_elsewhere() {
    let mut allocator = Allocator::new(Geometry::new(4 * 32_768).unwrap(), Policy::default());
    let mut of_localities = [Extents::default(), Extents::default()];
    for number in 0..100 {
        let locality = number % 2;
        let request = Request { locality, ..append(number, 0, 4, None) };
        let device = allocator.allocate(&request).unwrap().device;
        allocator.record(&device).unwrap();
        of_localities[locality as usize].push(device);
    }
    for extents in of_localities {
        assert_eq!((extents.runs().len(), extents.blocks()), (1, 200));
    }
}

/// The window of a locality ends within an object now and then: the rest of that is no writer that
/// goes on. Each such rest got a window of its own.
#[test]
fn objects_of_one_request_are_packed_and_leave_no_windows() {
    let mut allocator = Allocator::new(Geometry::new(4 * 32_768).unwrap(), Policy::default());
    let mut all = Extents::default();
    // 24 do not divide 512.
    for number in 0..200 {
        write_all(&mut allocator, Request { locality: 0, ..append(number, 0, 24, None) })
            .into_iter()
            .for_each(|run| all.push(run));
        let held = allocator.window_blocks();
        allocator.drop_windows(object(number)).unwrap();
        assert_eq!(allocator.window_blocks(), held, "object {number} is complete");
    }
    assert_eq!((all.runs().len(), all.blocks()), (1, 4800));
}

/// A device of 4 groups, of which the first has holes of so many blocks after as many used ones,
/// beginning with `first` used ones.
fn with_holes(first: u64, blocks: u64) -> Allocator {
    let mut allocator = Allocator::new(Geometry::new(4 * 32_768).unwrap(), Policy::default());
    allocator.claim(&(0..first)).unwrap();
    for start in (first + blocks..32_768).step_by(2 * blocks as usize) {
        allocator.claim(&(start..32_768.min(start + blocks))).unwrap();
    }
    allocator
}

/// A year of use had left no run of 4 MiB: small objects took long runs while short ones were left.
#[test]
fn small_objects_fill_what_others_have_left_and_long_runs_remain() {
    let mut allocator = with_holes(8, 8);
    for number in 0..1000 {
        let request = Request { locality: number / 64, ..append(number, 0, 8, None) };
        let device = allocator.allocate(&request).unwrap().device;
        assert!(device.end <= 32_768 && device.end - device.start == 8, "{device:?}");
        allocator.record(&device).unwrap();
    }
    assert_eq!(allocator.summary(1).longest, 32_768);
    allocator.audit();
}

#[test]
fn adaptive_windows_of_objects_are_whole_stripes_while_there_are_such_places() {
    // Holes of almost two stripes, which have one at most, at their end or at their beginning.
    let mut allocator = with_holes(300, 500);
    for size in (0..3 * 32_768 + 20 * u64::from(CALL)).step_by(CALL as usize) {
        for device in write(&mut allocator, (1, size), CALL, None) {
            assert_eq!((device.start % 256, device.end % 256), (0, 0), "{device:?}");
        }
    }
    allocator.audit();
}

#[test]
fn windows_shrink_before_anything_is_refused_and_the_reserve_is_kept() {
    let policy = Policy { reserve_blocks: 100, ..Policy::with_table("256 512 1024 2048".parse().unwrap()) };
    let mut allocator = Allocator::new(Geometry::new(10_000).unwrap(), policy);
    for number in 0..4 {
        write(&mut allocator, (number, 4096), CALL, None);
    }
    assert!(allocator.window_blocks() >= 4 * 1792, "{}", allocator.window_blocks());
    let mut written = 4 * u64::from(CALL);
    while let Ok(allocation) = allocator.allocate(&append(9, written, CALL, None)) {
        allocator.record(&allocation.device).unwrap();
        written += allocation.device.end - allocation.device.start;
    }
    assert_eq!((written, allocator.window_blocks(), allocator.free_blocks()), (9_900, 0, 100));
    let mut urgent = Vec::new();
    while let Ok(allocation) = allocator.allocate(&Request { may_use_reserve: true, ..append(9, written, 60, None) }) {
        urgent.push(allocation.device);
        assert_eq!(allocator.window_blocks(), 0, "the reserve is for no windows");
    }
    assert_eq!((urgent.iter().map(|device| device.end - device.start).sum::<u64>(), allocator.free_blocks()), (100, 0));
    urgent.iter().for_each(|device| allocator.abandon(device).unwrap());
    assert_eq!(allocator.free_blocks(), 100);
}

#[test]
fn an_object_written_out_of_order_is_in_order_on_the_device() {
    let mut allocator = Allocator::new(Geometry::new(32_768).unwrap(), Policy::default());
    let ask = |logical, blocks| Request { write_start: logical, logical, size: 8192, ..append(1, 0, blocks, None) };
    let first = allocator.allocate(&ask(0, 256)).unwrap().device;
    let later = allocator.allocate(&ask(512, 256)).unwrap().device;
    let between = allocator.allocate(&ask(256, 256)).unwrap().device;
    assert_eq!((later.start - first.start, between.start - first.start), (512, 256));
    allocator.drop_windows(object(1)).unwrap();
    assert_eq!((allocator.window_blocks(), allocator.free_blocks()), (0, 32_768 - 768));
}

/// After a power loss records may name blocks again that they named before.
#[test]
fn free_blocks_that_a_record_names_again_are_used() {
    let mut allocator = Allocator::new(Geometry::new(70_000).unwrap(), Policy::default());
    let written = write(&mut allocator, (1, 0), 10, None);
    assert_eq!(allocator.unrecorded_blocks(), 69_990);
    // Across two groups.
    let again = 32_760..32_780;
    allocator.claim(&again).unwrap();
    assert_eq!(allocator.unrecorded_blocks(), 69_970);
    assert_eq!(allocator.recorded(1).unwrap().run_at(11), None);
    for wrong in [again.clone(), 32_700..32_761, written[0].clone(), 69_999..70_001, 5..5] {
        assert!(matches!(allocator.claim(&wrong), Err(Refusal::Inconsistent(_))), "{wrong:?}");
    }
    allocator.audit();
    allocator.free(&again, 1).unwrap();
    assert_eq!(allocator.unrecorded_blocks(), 69_990);
    allocator.durable(1, usize::MAX).unwrap();
    allocator.audit();
}

#[test]
fn freed_blocks_become_free_in_as_many_ranges_as_the_caller_wants() {
    let mut allocator = Allocator::new(Geometry::new(70_000).unwrap(), Policy::default());
    let ranges = [10..20, 30..40, 50..60];
    for range in &ranges {
        allocator.claim(range).unwrap();
        allocator.free(range, 1).unwrap();
    }
    assert_eq!(allocator.durable(1, 2), Ok(ranges[..2].to_vec()));
    assert_eq!(allocator.retired_blocks(), 10);
    allocator.audit();
    assert_eq!(allocator.durable(1, 2), Ok(ranges[2..].to_vec()));
    assert_eq!(allocator.free_blocks(), 70_000);
    allocator.audit();
}

#[test]
fn summaries_that_no_group_can_have_are_refused() {
    let open = |free, longest, runs| {
        let summary = Summary { free, longest, runs };
        Allocator::open(Geometry::new(1000).unwrap(), Policy::default(), vec![summary]).is_ok()
    };
    for possible in [(0, 0, 0), (1000, 1000, 1), (999, 999, 1), (999, 500, 2), (10, 4, 3), (500, 1, 500), (10, 10, 1)] {
        assert!(open(possible.0, possible.1, possible.2), "{possible:?}");
    }
    for (free, longest, runs) in [
        // All of it is free, in pieces; more than there is.
        (1000, 500, 2),
        (1000, 999, 1),
        (1001, 1001, 1),
        // No runs, or no blocks.
        (10, 10, 0),
        (0, 0, 1),
        (10, 0, 1),
        // The runs are shorter, or longer, than what is free; they would touch each other.
        (10, 4, 2),
        (10, 9, 3),
        (999, 998, 3),
        (501, 1, 501),
    ] {
        assert!(!open(free, longest, runs), "{free} {longest} {runs}");
    }
}
