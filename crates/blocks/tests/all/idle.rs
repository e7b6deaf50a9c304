//! Windows of objects that are complete: what they cost the objects that come after them.

use std::ops::Range;

use blocks::{Allocator, Geometry, Policy};
use types::SplitMix64;

use super::{append, object};

/// 4 GiB.
const BLOCKS: u64 = 32 * 32_768;
/// Blocks of a write: 1 MiB.
const WRITE_BLOCKS: u32 = 256;
/// Objects that are written at once.
const WRITERS: u64 = 4;
/// Rounds, of that many objects each.
const ROUNDS: u64 = 400;
/// Rounds after which windows are idle.
const IDLE: u64 = 3;

struct File {
    number: u64,
    runs: Vec<Range<u64>>,
    blocks: u64,
    wanted: u64,
}

/// What a year of use leads to.
#[derive(Debug)]
struct Aged {
    /// Runs per 100 objects, of the second half of the rounds.
    runs: u64,
    /// Blocks in windows at the end of a round, on average.
    in_windows: u64,
}

/// Objects of 3 to 48 MiB are written, and random ones removed, so that the device stays 90% full.
fn age(gives_back: bool) -> Aged {
    let mut allocator = Allocator::new(Geometry::new(BLOCKS).unwrap(), Policy::default());
    let (mut random, mut files, mut used, mut number, mut changes) = (SplitMix64(5), Vec::new(), 0, 0, 0);
    let (mut runs, mut objects, mut in_windows) = (0, 0, 0);
    for round in 0..ROUNDS {
        if gives_back {
            allocator.set_time(round);
        }
        let mut growing: Vec<File> = Vec::new();
        for _ in 0..WRITERS {
            number += 1;
            let wanted = 768 + random.next_u64() % 11_500;
            growing.push(File { number, runs: Vec::new(), blocks: 0, wanted });
        }
        while !growing.is_empty() {
            let next = (random.next_u64() % growing.len() as u64) as usize;
            let file = &mut growing[next];
            let mut rest = WRITE_BLOCKS;
            while rest > 0 {
                let goal = file.runs.last().map(|run| run.end);
                let device = allocator.allocate(&append(file.number, file.blocks, rest, goal)).unwrap().device;
                allocator.record(&device).unwrap();
                let blocks = device.end - device.start;
                (file.blocks, rest, used) = (file.blocks + blocks, rest - blocks as u32, used + blocks);
                match file.runs.last_mut() {
                    Some(last) if last.end == device.start => last.end = device.end,
                    _ => file.runs.push(device),
                }
            }
            if file.blocks >= file.wanted {
                files.push(growing.swap_remove(next));
            }
        }
        if round >= ROUNDS / 2 {
            runs += files.iter().rev().take(WRITERS as usize).map(|file| file.runs.len() as u64).sum::<u64>();
            objects += WRITERS;
        }
        while used > BLOCKS * 9 / 10 {
            let file = files.swap_remove((random.next_u64() % files.len() as u64) as usize);
            changes += 1;
            allocator.drop_windows(object(file.number)).unwrap();
            file.runs.iter().for_each(|run| allocator.free(run, changes).unwrap());
            used -= file.blocks;
        }
        allocator.durable(changes, usize::MAX).unwrap();
        if gives_back {
            allocator.give_up_idle((round + 1).saturating_sub(IDLE), u64::MAX).unwrap();
        }
        in_windows += allocator.window_blocks();
    }
    allocator.audit();
    Aged { runs: runs * 100 / objects, in_windows: in_windows / ROUNDS }
}

#[test]
fn windows_of_complete_objects_do_not_cut_the_free_space_into_pieces() {
    let (kept, given_back) = (age(false), age(true));
    println!("kept: {kept:?}, given back: {given_back:?}");
    assert!(given_back.in_windows < kept.in_windows, "{kept:?}, {given_back:?}");
    assert!(given_back.runs < kept.runs, "{kept:?}, {given_back:?}");
}
