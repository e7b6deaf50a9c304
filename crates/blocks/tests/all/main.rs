//! Tests of the allocator: against a naive map of all blocks, with the tables of study E4, and at
//! the size of its device.

mod idle;
mod model;
mod scale;
mod tables;

use blocks::{Allocator, BITMAP_BYTES, FreeRuns, Request};
use types::{InodeNumber, ObjectId};

/// An object by number.
fn object(number: u64) -> ObjectId {
    ObjectId::new(InodeNumber(number), 0)
}

/// The next blocks of an object that grows at its end.
fn append(number: u64, size: u64, blocks: u32, goal: Option<u64>) -> Request {
    Request {
        object: object(number),
        write_start: size,
        logical: size,
        blocks,
        size,
        goal,
        locality: number,
        may_use_reserve: false,
    }
}

/// A group's bitmap as the device would have it.
fn bitmap(runs: &FreeRuns) -> [u8; BITMAP_BYTES] {
    let pieces: Vec<u8> = (0..64).flat_map(|piece| runs.used_piece(piece)).collect();
    pieces.try_into().expect("64 pieces of 64 bytes")
}

/// Writes `blocks` at the end of an object, and records them; where they went.
fn write(
    allocator: &mut Allocator,
    (number, size): (u64, u64),
    blocks: u32,
    goal: Option<u64>,
) -> Vec<std::ops::Range<u64>> {
    write_all(allocator, append(number, size, blocks, goal))
}

/// Writes what is asked for, and records it; where it went.
fn write_all(allocator: &mut Allocator, mut request: Request) -> Vec<std::ops::Range<u64>> {
    let mut runs = Vec::new();
    while request.blocks > 0 {
        let device = allocator.allocate(&request).expect("there is space").device;
        allocator.record(&device).expect("it was in progress");
        let blocks = device.end - device.start;
        request.logical += blocks;
        request.size = request.size.max(request.logical);
        request.blocks -= blocks as u32;
        request.goal = Some(device.end);
        runs.push(device);
    }
    runs
}
