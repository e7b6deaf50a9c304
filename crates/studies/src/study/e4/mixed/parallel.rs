//! Allocation by several threads at once: how many blocks a second the allocator gives out on this
//! host, in the state in which the device is. Unlike everything else of the study this is real
//! time, and differs from run to run.

use std::time::Instant;

use blocks::Allocator;
use parking_lot::Mutex;

use super::super::workload::{Target, WRITE_BLOCKS};

/// Threads.
pub const WRITERS: [u32; 5] = [1, 2, 4, 8, 16];
/// Calls of all threads together, at most.
const CALLS_MAX: u64 = 16_384;

/// Blocks a second for each number of threads, which append 1 MiB a call to an object each. The
/// allocator behind its mutex is a copy: the device stays as it is.
pub(super) fn blocks_per_second(allocator: &Allocator) -> Result<Vec<(u32, f64)>, String> {
    WRITERS.into_iter().map(|threads| Ok((threads, measure(allocator.clone(), threads)?))).collect()
}

fn measure(allocator: Allocator, threads: u32) -> Result<f64, String> {
    // Windows must find space, too.
    let calls = (allocator.free_blocks() / WRITE_BLOCKS / 4).clamp(1, CALLS_MAX) / u64::from(threads);
    let target = Mutex::new(Target::new(allocator));
    let work = || -> Result<u64, String> {
        let mut file = target.lock().create_anew();
        for _ in 0..calls {
            target.lock().call(&mut file, WRITE_BLOCKS)?;
        }
        Ok(file.blocks)
    };
    let begun = Instant::now();
    let blocks: Result<u64, String> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        let ended = threads.into_iter().map(|thread| thread.join().map_err(|_| "a thread panicked".to_owned())?);
        ended.sum()
    });
    Ok(blocks? as f64 / begun.elapsed().as_secs_f64())
}

#[cfg(test)]
mod tests {
    use blocks::{Geometry, Policy};

    use super::*;

    #[test]
    fn every_number_of_threads_gets_blocks() {
        let allocator = Allocator::new(Geometry::new(8 * 32_768).unwrap(), Policy::default());
        let rates = blocks_per_second(&allocator).unwrap();
        assert_eq!(rates.iter().map(|(threads, _)| *threads).collect::<Vec<_>>(), WRITERS);
        assert!(rates.iter().all(|(_, rate)| *rate > 0.0), "{rates:?}");
    }
}
