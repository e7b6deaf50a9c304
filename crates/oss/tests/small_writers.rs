//! Objects that are written together, in writes that are shorter than 1 MiB: in how many pieces
//! they are on a device. The table is in docs/decisions/0048.

use crate::common;

use std::time::Duration;

use common::{KIB, MIB, TestOst, cold_config, extents, is_filled, object, parameters, pattern, quiet_options, run};
use kv::Config;
use oss::{Engine, OstOptions};
use rt::memory::MemoryDevice;
use types::SplitMix64;

/// 256 MiB.
const DEVICE: Engine = Engine::on_device(2 * 32_768);

const WRITERS: u64 = 8;

/// Pieces of an object at most, and on average, of eight of one size that are written in writes of
/// so many bytes, whose order is random. Write-back has its defaults.
async fn pieces(size: u64, bytes: u64) -> (usize, f64) {
    let write_back_bytes = OstOptions::default().write_back_bytes;
    let write_back_idle = Duration::from_secs(3600);
    let options = OstOptions { write_back_bytes, write_back_idle, audits: false, ..quiet_options() };
    let config = Config { dirty_bytes: Config::default().dirty_bytes, memory_bytes: 256 << 20, ..cold_config() };
    let target = TestOst::with_all(DEVICE, 1, MemoryDevice::new(), options, config).await;
    let (mut random, mut written) = (SplitMix64(7), 0);
    let mut growing: Vec<(u64, u64)> = (0..WRITERS).map(|number| (number, 0)).collect();
    while !growing.is_empty() {
        let next = (random.next_u64() % growing.len() as u64) as usize;
        let (number, offset) = growing[next];
        let bytes = bytes.min(size - offset);
        target.write(object(number), offset, &pattern(number, offset, bytes)).await;
        growing[next].1 += bytes;
        if growing[next].1 == size {
            growing.swap_remove(next);
        }
        written += bytes;
        if written >= MIB {
            target.ost.work().await;
            written = 0;
        }
    }
    // Everything that is inline is due now.
    parameters(&target).set("obdfilter.*.writeback_mb", "0").unwrap();
    target.ost.work().await;
    target.sync().await;
    assert_eq!(target.ost.check_device(), Ok(Vec::new()));
    let (mut most, mut sum) = (0, 0);
    for number in 0..WRITERS {
        assert!(is_filled(&target, number, number, 0..size).await);
        let extents = extents(&target, number).await;
        (most, sum) = (most.max(extents), sum + extents);
    }
    (most, sum as f64 / WRITERS as f64)
}

/// Less than 64 KiB wait in the tables, and get their places together when they are written back.
/// What is longer gets its place at once, in a window that the object has for itself.
#[test]
fn objects_that_are_written_together_are_in_few_pieces() {
    for (size, bytes, most) in [
        (256 * KIB, 4 * KIB, 1),
        (256 * KIB, 64 * KIB, 3),
        (4 * MIB, 16 * KIB, 8),
        (4 * MIB, 64 * KIB, 7),
        (4 * MIB, 128 * KIB, 6),
        (4 * MIB, 512 * KIB, 4),
        (16 * MIB, 64 * KIB, 14),
    ] {
        let (found, average) = run(pieces(size, bytes));
        println!("{} KiB in writes of {bytes} bytes: {average:.1} pieces, {found} at most", size / KIB);
        assert!(found <= most, "{} KiB in writes of {bytes} bytes: {found} pieces", size / KIB);
    }
}
