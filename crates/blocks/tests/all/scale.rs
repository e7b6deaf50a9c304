//! The device of study E4: 23 TB, 171,364 groups.

use blocks::{Allocator, FreeRuns, Geometry, Picture, Policy, Refusal, Summary};

use super::{append, bitmap, write};

const BLOCKS: u64 = 23_000_000_000_000 / 4096;

fn geometry() -> Geometry {
    Geometry::new(BLOCKS).unwrap()
}

#[test]
fn a_device_takes_3_mb_of_memory_and_one_group_per_window() {
    let mut allocator = Allocator::new(geometry(), Policy::default());
    assert_eq!(allocator.loaded_groups(), 0);
    assert!(allocator.memory_bytes() < 5 << 20, "{}", allocator.memory_bytes());
    for number in 0..100 {
        let request = append(number, 0, 256, None);
        let device = allocator.allocate(&request).unwrap().device;
        allocator.record(&device).unwrap();
    }
    assert_eq!(allocator.loaded_groups(), 1, "100 MiB are in one group");
}

/// A group that has to be loaded is the one that is used: no bitmap is looked at in vain.
#[test]
fn the_only_long_run_is_found_with_one_group_loaded() {
    let geometry = geometry();
    let mut fragmented = FreeRuns::all(32_768);
    for piece in 0..128 {
        fragmented.take(&(256 * piece..256 * piece + 128)).unwrap();
    }
    let mut with_run = fragmented.clone();
    for piece in 8..16 {
        with_run.give(&(256 * piece..256 * piece + 128)).unwrap();
    }
    const GROUP: u32 = 123_456;
    let mut summaries: Vec<Summary> = (0..geometry.groups() - 1).map(|_| fragmented.summary()).collect();
    summaries.push(Summary::default());
    summaries[GROUP as usize] = with_run.summary();
    let policy = Policy::with_table("256 512 1024 2048".parse().unwrap());
    let mut allocator = Allocator::open(geometry, policy, summaries).unwrap();
    let request = append(1, 4096, 256, None);
    assert_eq!(allocator.allocate(&request), Err(Refusal::Load(GROUP)));
    allocator.load(GROUP, &bitmap(&with_run)).unwrap();
    let device = allocator.allocate(&request).unwrap().device;
    let start = geometry.start_of(GROUP);
    assert_eq!(device, start + 2048..start + 2304);
    allocator.record(&device).unwrap();
    assert_eq!(allocator.loaded_groups(), 1);
    assert_eq!(allocator.window_blocks(), 2048 - 256);
    let (histogram, left_out) = allocator.histogram();
    assert_eq!(left_out, geometry.groups() - 2, "all but this one and the full one");
    assert!(histogram.blocks() < 32_768);
}

/// Full of 20 files in pieces of 1 MiB, one of them deleted: about as many runs as a device of the
/// study can have. All groups are loaded, and most are dropped again.
#[test]
fn an_aged_device_fits_in_memory_and_groups_are_dropped() {
    let geometry = geometry();
    let mut aged = FreeRuns::default();
    for hole in 0..6 {
        aged.give(&(5120 * hole..5120 * hole + 256)).unwrap();
    }
    let summaries = vec![aged.summary(); geometry.groups() as usize - 1];
    let last = Summary::default();
    let summaries = summaries.into_iter().chain([last]).collect();
    let mut allocator = Allocator::open(geometry, Policy::with_table("32 64 128".parse().unwrap()), summaries).unwrap();
    let image = bitmap(&aged);
    for group in 0..geometry.groups() - 1 {
        allocator.load(group, &image).unwrap();
    }
    let all = allocator.memory_bytes();
    assert!(all < 40 << 20, "a bitmap for each would be 700 MB: {all}");
    write(&mut allocator, (1, 0), 256, None);
    allocator.unload(1000);
    assert_eq!(allocator.loaded_groups(), 500);
    assert!(allocator.memory_bytes() < 5 << 20);
    let mut picture = Picture::new(geometry, 100);
    picture.add(0, &allocator.recorded(0).unwrap());
    assert_eq!(picture.used().count(), 100);
    allocator.audit();
}
