//! `stria bench calibrate`: what code costs on this machine, as the table that the lab's processors
//! take ([`lab::processors::Costs`]).
//!
//! Only processor time is measured, so other load on the machine disturbs it little. Copies,
//! checksums, wake-ups of threads and appends are measured by themselves; the data of frames, and
//! the wake-up of a core for one, with frames alone; requests as the difference between a client in
//! the servers' process and one that reaches them over TCP; operations on metadata as what a call
//! in the servers' process costs, those on objects as what is left of a call over TCP.
//!
//! Downside: frames that go out and those that come in get equal parts of their cost, and all that
//! change metadata cost the same. What the client does for an object counts as the OST's.

mod calls;
mod frames;
mod parts;

use std::{io, path::PathBuf, time::Duration};

use anyhow::Context;
use clap::Args;
use lab::processors::{Cost, Costs};
use rt::CpuKind;

use self::{
    calls::{Here, LARGE_BYTES, Remote, SMALL_BYTES, Sizes},
    frames::Frames,
    parts::Parts,
};
use super::{
    both_ends::BothEnds,
    leftovers::Place,
    systems::{System, SystemKind},
};
use crate::study::shape::least_disturbed;

/// Options of the calibration.
#[derive(Clone, Debug, Args)]
pub struct CalibrateArgs {
    /// Directory on the disk to be used [default: the temporary directory]
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// Operations of each kind that is measured with a file system
    #[arg(long, default_value_t = 5000, value_name = "N", value_parser = clap::value_parser!(u32).range(100..))]
    operations: u32,
}

const MIB: usize = 1 << 20;

/// Runs `stria bench calibrate`.
pub fn run(arguments: &CalibrateArgs) -> anyhow::Result<()> {
    let place = Place::new("stria-bench-", arguments.dir.as_deref())?;
    let calibrated = measure(&place, arguments.operations)?;
    println!("processor time on this machine:\n{}", shown(&calibrated.costs));
    println!("delay of a frame: {:.1} us", calibrated.delay.as_nanos() as f64 / 1000.0);
    Ok(())
}

/// What a machine needs, for the lab.
#[derive(Clone, Copy, Debug)]
pub struct Calibrated {
    /// Processor time.
    pub costs: Costs,
    /// Of a frame over TCP on this machine: time that passes without processor time being used.
    pub delay: Duration,
}

/// All that was measured.
#[derive(Clone, Copy, Debug)]
struct Measured {
    parts: Parts,
    frames: Frames,
    here: Here,
    remote: Remote,
}

/// OSTs of the file systems.
const OSTS: u16 = 4;

/// Measures in a directory, with so many operations of each kind.
pub fn measure(place: &Place, operations: u32) -> anyhow::Result<Calibrated> {
    let parts = Parts::measure(place.path())?;
    let frames = Frames::measure(operations)?;
    let here = {
        let kind = SystemKind::Native;
        let system = System::start(kind, place.path().join(kind.name()), OSTS)?;
        Here::measure(&system, operations).context("with the servers in the same process")?
    };
    let remote = {
        let system = BothEnds::start(&place.path().join("both"), OSTS)?;
        Remote::measure(&system, place.path(), operations).context("over TCP")?
    };
    let measured = Measured { parts, frames, here, remote };
    // A stat is two frames, one after the other.
    let delay_ns = ((remote.stat_passes - remote.stat) / 2.0).max(0.0);
    Ok(Calibrated { costs: table(&measured), delay: Duration::from_nanos(delay_ns as u64) })
}

/// A line for each kind.
pub fn shown(costs: &Costs) -> String {
    let line = |kind: CpuKind| {
        let Cost { each_ns, byte_ps } = costs.0[kind as usize];
        format!("{:<16} {each_ns:>8} ns each {byte_ps:>6} ps per byte", kind.name())
    };
    CpuKind::ALL.map(line).join("\n")
}

/// Each time, and for each byte, in nanoseconds.
type EachAndByte = (f64, f64);

/// The table that explains what was measured.
fn table(measured: &Measured) -> Costs {
    let Measured { parts, frames, here, remote } = measured;
    // A frame that comes back wakes a core at both ends, and its data pass both ends twice.
    let wake = (frames.alone - frames.among).max(0.0) / 2.0;
    let wake_byte =
        ((frames.data_alone - frames.alone) - (frames.data_among - frames.among)).max(0.0) / 2.0 / MIB as f64;
    let data_byte = ((frames.data_alone - frames.alone) / MIB as f64 - 2.0 * wake_byte) / 4.0;
    // A request costs the client a frame out and one in, and the server one in and one out.
    let frame = (remote.stat - here.stat - 2.0 * wake) / 4.0;
    // Data pass both ends once. The client and the OST compute checksums; the OST copies.
    let call = 4.0 * frame + 2.0 * wake;
    let call_byte = 2.0 * data_byte + wake_byte + 2.0 * parts.checksum_byte + parts.copy_byte;
    let object = |sizes: Sizes, append: f64| -> EachAndByte {
        let (small_bytes, large_bytes) = (SMALL_BYTES as f64, LARGE_BYTES as f64);
        let small = sizes.small - call - append - small_bytes * call_byte;
        let large = sizes.large - call - append - large_bytes * call_byte;
        let byte = ((large - small) / (large_bytes - small_bytes)).max(0.0);
        let each = small - small_bytes * byte;
        // Where the smaller call shows nothing but its bytes, the larger one tells what these cost.
        if each < 0.0 { (0.0, large / large_bytes) } else { (each, byte) }
    };
    let each = |kind: CpuKind| match kind {
        CpuKind::FrameIn | CpuKind::FrameOut => (frame, 0.0),
        CpuKind::FrameData => (0.0, data_byte),
        CpuKind::CoreWakeUp => (wake, wake_byte),
        CpuKind::WakeUp => (parts.wake_up, 0.0),
        // The small requests to an OST look something up, too.
        CpuKind::MetadataRead | CpuKind::ObjectOther => (here.stat, 0.0),
        CpuKind::MetadataChange => (here.change - parts.append, 0.0),
        CpuKind::ObjectRead => object(remote.read, 0.0),
        CpuKind::ObjectWrite => object(remote.write, parts.append),
        CpuKind::Copy => (0.0, parts.copy_byte),
        CpuKind::Checksum => (0.0, parts.checksum_byte),
        CpuKind::JournalAppend => (parts.append, parts.append_byte),
    };
    Costs(CpuKind::ALL.map(|kind| {
        let (each_ns, byte_ns) = each(kind);
        // What is below the error of the measurement may be negative.
        Cost { each_ns: each_ns.max(0.0).round() as u32, byte_ps: (byte_ns.max(0.0) * 1000.0).round() as u32 }
    }))
}

/// Nanoseconds of processor time, by this clock, for each of `count` times that `work` is done, in
/// the parts that other load disturbs least.
fn cost(clock: impl Fn() -> Duration, count: u32, mut work: impl FnMut(u32) -> io::Result<()>) -> io::Result<f64> {
    const PARTS: u32 = 20;
    let parts = PARTS.min(count).max(1);
    let mut costs = Vec::new();
    for part in 0..parts {
        let mut numbers = count * part / parts..count * (part + 1) / parts;
        let (before, done) = (clock(), numbers.len());
        numbers.try_for_each(&mut work)?;
        costs.push(clock().saturating_sub(before).as_nanos() as f64 / done as f64);
    }
    Ok(least_disturbed(costs).unwrap_or(0.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What calls cost with the costs of this table.
    #[test]
    fn a_table_explains_the_calls_that_it_was_made_from() {
        let parts = Parts { copy_byte: 0.1, checksum_byte: 0.2, wake_up: 4000.0, append: 2000.0, append_byte: 0.25 };
        let mib = MIB as f64;
        // A core wakes up in 5 us, and in 10 ps for each byte; a byte costs 30 ps at each end.
        let frames = Frames {
            alone: 30_000.0,
            among: 20_000.0,
            data_alone: 30_000.0 + 0.14 * mib,
            data_among: 20_000.0 + 0.12 * mib,
        };
        let here = Here { stat: 3000.0, change: 12_000.0 };
        // Four frames of 8 us, and two wake-ups.
        let stat = 3000.0 + 32_000.0 + 10_000.0;
        let call = stat - 3000.0;
        let read = |bytes: usize| call + 7000.0 + bytes as f64 * (0.06 + 0.01 + 0.5 + 0.05);
        let write = |bytes: usize| call + 2000.0 + 9000.0 + bytes as f64 * (0.06 + 0.01 + 0.5 + 0.08);
        let sizes = |of: &dyn Fn(usize) -> f64| Sizes { small: of(SMALL_BYTES), large: of(LARGE_BYTES) };
        let remote = Remote { stat, stat_passes: 0.0, read: sizes(&read), write: sizes(&write) };
        let costs = table(&Measured { parts, frames, here, remote });
        let of = |kind: CpuKind| costs.0[kind as usize];
        assert_eq!(of(CpuKind::FrameIn), Cost { each_ns: 8000, byte_ps: 0 });
        assert_eq!(of(CpuKind::FrameOut), of(CpuKind::FrameIn));
        assert_eq!(of(CpuKind::FrameData), Cost { each_ns: 0, byte_ps: 30 });
        assert_eq!(of(CpuKind::CoreWakeUp), Cost { each_ns: 5000, byte_ps: 10 });
        assert_eq!(of(CpuKind::MetadataChange), Cost { each_ns: 10_000, byte_ps: 0 });
        assert_eq!(of(CpuKind::ObjectRead), Cost { each_ns: 7000, byte_ps: 50 });
        assert_eq!(of(CpuKind::ObjectWrite), Cost { each_ns: 9000, byte_ps: 80 });
        assert_eq!(of(CpuKind::JournalAppend), Cost { each_ns: 2000, byte_ps: 250 });
        assert!(shown(&costs).lines().count() == CpuKind::ALL.len() && shown(&costs).contains("frame_in"));
        // What was measured too small does not become a cost below nothing.
        let nothing = Remote::default();
        let costs = table(&Measured { parts, frames, here: Here::default(), remote: nothing });
        assert_eq!(costs.0[CpuKind::ObjectRead as usize], Cost::default());
        assert_eq!(costs.0[CpuKind::FrameIn as usize], Cost::default());
    }
}
