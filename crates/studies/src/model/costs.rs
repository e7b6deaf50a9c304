//! Tables of what code costs on processors, as data: where each figure comes from is in
//! docs/decisions/0047-processor-time.md.

use std::time::Duration;

use lab::processors::{Cost, Costs, ProcessorModel};

use super::namespace_lock::LockCosts;

/// The table of E5: what StriaFS costs on the machine on which it is developed, as `stria bench
/// calibrate` printed it there, rounded; before reads and writes of objects, and wake-ups of cores,
/// were measured apart: so the former have the same cost, and the latter are a part of each frame.
pub const MEASURED: Costs = Costs([
    // frame_in
    Cost { each_ns: 5_900, byte_ps: 0 },
    // frame_out
    Cost { each_ns: 5_900, byte_ps: 0 },
    // frame_data
    Cost { each_ns: 0, byte_ps: 400 },
    // core_wake_up
    Cost { each_ns: 0, byte_ps: 0 },
    // wake_up
    Cost { each_ns: 4_000, byte_ps: 0 },
    // metadata_read
    Cost { each_ns: 4_500, byte_ps: 0 },
    // metadata_change
    Cost { each_ns: 10_200, byte_ps: 0 },
    // object_read
    Cost { each_ns: 39_000, byte_ps: 0 },
    // object_write
    Cost { each_ns: 39_000, byte_ps: 0 },
    // object_other
    Cost { each_ns: 4_500, byte_ps: 0 },
    // copy
    Cost { each_ns: 0, byte_ps: 54 },
    // checksum
    Cost { each_ns: 0, byte_ps: 52 },
    // journal_append
    Cost { each_ns: 840, byte_ps: 500 },
]);

/// The table of E2, from which nothing in it is derived: what `stria bench calibrate` printed since
/// all kinds are measured apart, rounded, without the request to the MDT that each write was
/// measured with. The machine had become slower by then, at frames most of all.
pub const APART: Costs = Costs([
    // frame_in
    Cost { each_ns: 19_800, byte_ps: 0 },
    // frame_out
    Cost { each_ns: 19_800, byte_ps: 0 },
    // frame_data
    Cost { each_ns: 0, byte_ps: 101 },
    // core_wake_up
    Cost { each_ns: 6_700, byte_ps: 0 },
    // wake_up
    Cost { each_ns: 16_600, byte_ps: 0 },
    // metadata_read
    Cost { each_ns: 8_100, byte_ps: 0 },
    // metadata_change
    Cost { each_ns: 17_300, byte_ps: 0 },
    // object_read
    Cost { each_ns: 23_000, byte_ps: 88 },
    // object_write
    Cost { each_ns: 50_000, byte_ps: 331 },
    // object_other
    Cost { each_ns: 8_100, byte_ps: 0 },
    // copy
    Cost { each_ns: 0, byte_ps: 57 },
    // checksum
    Cost { each_ns: 0, byte_ps: 29 },
    // journal_append
    Cost { each_ns: 1_150, byte_ps: 630 },
]);

/// The lock of an MDT's namespace: what `stria bench mdt` shows with two workers and one on the
/// same machine (docs/experiments.md, "One metadata target"). Look-ups and stats take 0.5 us longer
/// beside each other. Between two changes, creations and removals alike, pass 12.6 us instead of
/// 11.0, and they take 20.5 us of processor time instead of 11.
pub const NAMESPACE_LOCK: LockCosts = LockCosts {
    beside: Duration::from_nanos(470),
    handed_over: Duration::from_nanos(1_600),
    waited: Duration::from_nanos(7_900),
};

/// A node with so many cores.
pub fn node(cores: u32, costs: Costs) -> ProcessorModel {
    ProcessorModel {
        cores,
        costs,
        // CFS: sched_latency 6 ms * (1 + log2 of 8 CPUs) among 8 tasks.
        slice: Duration::from_millis(3),
        switch: Duration::from_nanos(3_800),
        working_set_bytes: 1 << 20,
        cache_bytes: 15 << 20,
        refill_bytes_per_second: 10_000_000_000,
        hand_over: Duration::from_nanos(100),
    }
}
