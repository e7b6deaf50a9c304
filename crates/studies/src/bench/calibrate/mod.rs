//! `stria bench calibrate`: what code costs on this machine, as the table that the lab's processors
//! take ([`lab::processors::Costs`]).
//!
//! Only processor time is measured, so other load on the machine disturbs it little. Copies,
//! checksums, wake-ups of threads and appends are measured by themselves; the data of frames, and
//! the wake-up of a core for one, with frames alone; requests as the difference between a client in
//! the servers' process and one that reaches them over TCP; operations that only look at metadata
//! as what a call in the servers' process costs, all others as what is left of a call over TCP.
//!
//! Downside: frames that go out and those that come in get equal parts of their cost, and all that
//! change metadata cost the same. What the client does for an object counts as the OST's.

mod calls;
mod frames;
mod parts;

use std::{io, path::PathBuf, time::Duration};

use anyhow::Context;
use clap::Args;
use host::progress;
use lab::processors::{Cost, Costs};
use rt::CpuKind;

use self::{
    calls::{Here, LARGE_BYTES, Remote, SMALL_BYTES, Sizes},
    frames::{Frames, Lines},
    parts::Parts,
};
use super::{
    both_ends::BothEnds,
    leftovers::Place,
    systems::{System, SystemKind},
    workers,
};
use crate::study::shape::least_disturbed;

/// Options of the calibration.
#[derive(Clone, Debug, Args)]
pub struct CalibrateArgs {
    /// Directory on the disk to be used [default: the temporary directory]
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// Rounds, of which everything is measured once; lower quartiles are used
    #[arg(long, default_value_t = 15, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
}

const MIB: usize = 1 << 20;

/// Runs `stria bench calibrate`.
pub fn run(arguments: &CalibrateArgs) -> anyhow::Result<()> {
    let place = Place::new("stria-bench-", arguments.dir.as_deref())?;
    let system = BothEnds::start(&place.path().join("both"), OSTS)?;
    let mut calibration = Calibration::start(&place, &system)?;
    for round in 1..=arguments.rounds {
        progress::show(format_args!("calibrating, round {round} of {}", arguments.rounds));
        calibration.round()?;
    }
    progress::done();
    let calibrated = calibration.calibrated();
    println!("processor time on this machine:\n{}", shown(&calibrated.costs));
    println!("{}", calibrated.shown_delays());
    Ok(())
}

/// What a machine needs, for the lab.
#[derive(Clone, Copy, Debug)]
pub struct Calibrated {
    /// Processor time.
    pub costs: Costs,
    /// Of a frame over TCP on this machine: time that passes without processor time being used.
    pub delay: Duration,
    /// The same for each byte of its data, in picoseconds.
    pub delay_byte_ps: u32,
}

impl Calibrated {
    /// A line for what passes without processor time.
    pub fn shown_delays(&self) -> String {
        let each_us = self.delay.as_nanos() as f64 / 1000.0;
        format!("delay of a frame: {each_us:.1} us, and {} ps per byte of its data", self.delay_byte_ps)
    }
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
pub const OSTS: u16 = 4;

/// A calibration, round after round: what is compared with it can be measured in between, under the
/// same conditions.
pub struct Calibration<'a> {
    directory: PathBuf,
    lines: Lines,
    here: System,
    remote: &'a BothEnds,
    rounds: Vec<Measured>,
}

impl<'a> Calibration<'a> {
    /// Starts what it needs, in this place, beside servers with a client.
    pub fn start(place: &Place, remote: &'a BothEnds) -> anyhow::Result<Self> {
        let kind = SystemKind::Native;
        let here = System::start(kind, place.path().join(kind.name()), OSTS)?;
        calls::prepare(&*here.target)?;
        calls::prepare(&remote.target)?;
        Ok(Self { directory: place.path().to_owned(), lines: Lines::connect()?, here, remote, rounds: Vec::new() })
    }

    /// Measures everything once.
    pub fn round(&mut self) -> anyhow::Result<()> {
        self.rounds.push(Measured {
            parts: Parts::measure(&self.directory)?,
            frames: self.lines.measure()?,
            here: Here::measure(&self.here).context("with the servers in the same process")?,
            remote: Remote::measure(self.remote, &self.directory).context("over TCP")?,
        });
        Ok(())
    }

    /// What the least disturbed rounds tell.
    pub fn calibrated(&self) -> Calibrated {
        let measured = least_disturbed_of(&self.rounds);
        let Measured { frames, remote, .. } = &measured;
        // A stat is two frames, one after the other.
        let delay_ns = ((remote.stat_passes - remote.stat) / 2.0).max(0.0);
        let costs = table(&measured);
        let delay_byte_ps = delay_byte_ps(frames, &costs);
        Calibrated { costs, delay: Duration::from_nanos(delay_ns as u64), delay_byte_ps }
    }
}

/// Of each figure by itself.
fn least_disturbed_of(rounds: &[Measured]) -> Measured {
    let of = |figure: fn(&Measured) -> f64| least_disturbed(rounds.iter().map(figure).collect()).unwrap_or(0.0);
    Measured {
        parts: Parts {
            copy_byte: of(|one| one.parts.copy_byte),
            checksum_byte: of(|one| one.parts.checksum_byte),
            wake_up: of(|one| one.parts.wake_up),
            append: of(|one| one.parts.append),
            append_byte: of(|one| one.parts.append_byte),
        },
        frames: Frames {
            alone: of(|one| one.frames.alone),
            among: of(|one| one.frames.among),
            data_alone: of(|one| one.frames.data_alone),
            data_passes: of(|one| one.frames.data_passes),
            data_among: of(|one| one.frames.data_among),
        },
        here: Here { stat: of(|one| one.here.stat) },
        remote: Remote {
            stat: of(|one| one.remote.stat),
            stat_passes: of(|one| one.remote.stat_passes),
            change: of(|one| one.remote.change),
            read: Sizes { small: of(|one| one.remote.read.small), large: of(|one| one.remote.read.large) },
            write: Sizes { small: of(|one| one.remote.write.small), large: of(|one| one.remote.write.large) },
        },
    }
}

/// What passes with each byte of a frame's data while nobody works on it. Were both ends to work on
/// all of the data at once, the processor time of one end would pass, and no more.
fn delay_byte_ps(frames: &Frames, costs: &Costs) -> u32 {
    let byte_ps = |kind: CpuKind| f64::from(costs.0[kind as usize].byte_ps);
    let passes_ps = frames.data_passes / 2.0 / MIB as f64 * 1000.0;
    (passes_ps - byte_ps(CpuKind::FrameData) - byte_ps(CpuKind::CoreWakeUp)).max(0.0).round() as u32
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
        CpuKind::MetadataChange => (remote.change - call - parts.append, 0.0),
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

/// Nanoseconds of one call.
#[derive(Clone, Copy, Debug)]
struct Took {
    /// Of processor time.
    cpu: f64,
    /// That pass.
    passes: f64,
}

/// `count` calls one after the other, by this clock of processor time. They are made by a thread of
/// their own, as those of benchmarks are: which processor a thread runs on, and so what waking it
/// up costs, depends on what it did before.
fn cost(clock: impl Fn() -> Duration, count: u32, work: impl Fn(u32) -> io::Result<()> + Sync) -> io::Result<Took> {
    let before = clock();
    let passed = workers::run(1, |_| (0..count).try_for_each(&work))?;
    let each = |time: Duration| time.as_nanos() as f64 / f64::from(count);
    Ok(Took { cpu: each(clock().saturating_sub(before)), passes: each(passed) })
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
            data_passes: 0.1 * mib,
            data_among: 20_000.0 + 0.12 * mib,
        };
        let here = Here { stat: 3000.0 };
        // Four frames of 8 us, and two wake-ups.
        let stat = 3000.0 + 32_000.0 + 10_000.0;
        let call = stat - 3000.0;
        let read = |bytes: usize| call + 7000.0 + bytes as f64 * (0.06 + 0.01 + 0.5 + 0.05);
        let write = |bytes: usize| call + 2000.0 + 9000.0 + bytes as f64 * (0.06 + 0.01 + 0.5 + 0.08);
        let sizes = |of: &dyn Fn(usize) -> f64| Sizes { small: of(SMALL_BYTES), large: of(LARGE_BYTES) };
        let change = call + 10_000.0 + 2000.0;
        let remote = Remote { stat, stat_passes: 0.0, change, read: sizes(&read), write: sizes(&write) };
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
        // 50 ps for each byte one way, of which 30 + 10 are work.
        assert_eq!(delay_byte_ps(&frames, &costs), 10);
        assert!(shown(&costs).lines().count() == CpuKind::ALL.len() && shown(&costs).contains("frame_in"));
        // What was measured too small does not become a cost below nothing.
        let nothing = Remote::default();
        let costs = table(&Measured { parts, frames, here: Here::default(), remote: nothing });
        assert_eq!(costs.0[CpuKind::ObjectRead as usize], Cost::default());
        assert_eq!(costs.0[CpuKind::FrameIn as usize], Cost::default());
    }
}
