//! `stria bench calibrate`: what code costs on this machine, as the table that the lab's processors
//! take ([`lab::processors::Costs`]).
//!
//! Only processor time is measured, so other load on the machine disturbs it little. Copies,
//! checksums, wake-ups and appends are measured by themselves; requests as the difference between a
//! client in the servers' process and one that reaches them over TCP; operations as what is left
//! of a client's call in the servers' process.
//!
//! Downside: frames that go out and those that come in get equal parts of their cost, and so do the
//! three requests of a file that is made, closed and removed.

use std::{
    fs::File,
    hint::black_box,
    io,
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    sync::mpsc,
    time::{Duration, Instant},
};

use anyhow::Context;
use bytes::Bytes;
use clap::Args;
use lab::processors::{Cost, Costs};
use rpc::checksum::checksums;
use rt::CpuKind;

use super::{
    leftovers::Place,
    systems::{System, SystemKind},
    workers::own_cpu,
};
use crate::study::shape::median;

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
/// Large enough that it does not stay in the caches of a core.
const BUFFER_BYTES: usize = 32 * MIB;
/// Bytes of a write that goes to the object's file in place, as bulk data do.
const SMALL_WRITE_BYTES: usize = 64 << 10;

/// What one client's calls cost, in nanoseconds of processor time each.
struct Calls {
    stat: f64,
    /// Nanoseconds that pass, of most stats: the median.
    stat_passes: f64,
    /// A file is made, closed and removed.
    make: f64,
    small_write: f64,
    large_write: f64,
}

/// What parts of the code cost by themselves.
struct Parts {
    copy_byte: f64,
    checksum_byte: f64,
    wake_up: f64,
    append: f64,
    append_byte: f64,
}

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

/// Measures in a directory, with so many operations of each kind.
pub fn measure(place: &Place, operations: u32) -> anyhow::Result<Calibrated> {
    let parts = Parts::measure(place.path())?;
    let calls = |kind: SystemKind| {
        let system = System::start(kind, place.path().join(kind.name()), 4)?;
        Calls::measure(&system, operations).with_context(|| format!("on {}", kind.name()))
    };
    let (here, remote) = (calls(SystemKind::Native)?, calls(SystemKind::TcpNative)?);
    // A stat is two frames, one after the other.
    let delay_ns = ((remote.stat_passes - remote.stat) / 2.0).max(0.0);
    Ok(Calibrated { costs: table(&parts, &here, &remote), delay: Duration::from_nanos(delay_ns as u64) })
}

/// A line for each kind.
pub fn shown(costs: &Costs) -> String {
    let line = |kind: CpuKind| {
        let Cost { each_ns, byte_ps } = costs.0[kind as usize];
        format!("{:<16} {each_ns:>8} ns each {byte_ps:>6} ps per byte", kind.name())
    };
    CpuKind::ALL.map(line).join("\n")
}

/// The table that explains what was measured.
fn table(parts: &Parts, here: &Calls, remote: &Calls) -> Costs {
    // A request costs the client a frame out and one in, and the server one in and one out.
    let frame = (remote.stat - here.stat) / 4.0;
    let bulk = (remote.large_write - here.large_write) - 4.0 * frame;
    let frame_byte = bulk / 2.0 / MIB as f64;
    // The client and the OST compute checksums; the OST copies.
    let data_byte = 2.0 * parts.checksum_byte + parts.copy_byte;
    let object_io = here.small_write - SMALL_WRITE_BYTES as f64 * data_byte - parts.append;
    let change = here.make / 3.0 - parts.append;
    let each = |kind: CpuKind| match kind {
        CpuKind::FrameIn | CpuKind::FrameOut => (frame, frame_byte),
        CpuKind::WakeUp => (parts.wake_up, 0.0),
        // The small requests to an OST look something up, too.
        CpuKind::MetadataRead | CpuKind::ObjectOther => (here.stat, 0.0),
        CpuKind::MetadataChange => (change, 0.0),
        CpuKind::ObjectIo => (object_io, 0.0),
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

/// Nanoseconds of processor time, by this clock, for each of `count` times that `work` is done: the
/// median of parts, of which some are disturbed by other load.
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
    Ok(median(costs).unwrap_or(0.0))
}

impl Parts {
    fn measure(directory: &Path) -> io::Result<Self> {
        const ROUNDS: u32 = 8;
        const HOPS: u32 = 20_000;
        const APPENDS: u32 = 20_000;
        let (from, mut to) = (Bytes::from(vec![1; BUFFER_BYTES]), vec![2; BUFFER_BYTES]);
        let copy = cost(own_cpu, ROUNDS, |_| {
            to.copy_from_slice(black_box(&from));
            black_box(&mut to);
            Ok(())
        })?;
        let checksum = cost(own_cpu, ROUNDS, |_| {
            black_box(checksums(0, black_box(&from)));
            Ok(())
        })?;
        let file = File::create(directory.join("append"))?;
        let mut end = 0;
        let mut append = |bytes: usize| {
            cost(own_cpu, APPENDS, |_| {
                file.write_all_at(&from[..bytes], end)?;
                end += bytes as u64;
                Ok(())
            })
        };
        let (small, large) = (append(512)?, append(4096)?);
        Ok(Self {
            copy_byte: copy / BUFFER_BYTES as f64,
            checksum_byte: checksum / BUFFER_BYTES as f64,
            wake_up: wake_up(HOPS)?,
            append: small,
            append_byte: ((large - small) / (4096.0 - 512.0)).max(0.0),
        })
    }
}

/// One thread wakes another, which wakes it in turn.
fn wake_up(hops: u32) -> io::Result<f64> {
    let ((there, arrived), (back, returned)) = (mpsc::channel(), mpsc::channel());
    let other = std::thread::spawn(move || {
        while let Ok(token) = arrived.recv() {
            if back.send(token).is_err() {
                return;
            }
        }
    });
    let gone = |_| io::Error::other("a thread ended");
    let both = cost(own_cpu, hops / 2, |hop| {
        there.send(hop).map_err(|error| gone(error.to_string()))?;
        returned.recv().map(drop).map_err(|error| gone(error.to_string()))
    });
    drop(there);
    other.join().map_err(|_| io::Error::other("a thread panicked"))?;
    Ok(both? / 2.0)
}

impl Calls {
    fn measure(system: &System, count: u32) -> anyhow::Result<Self> {
        let (target, cpu) = (&*system.target, || system.cpu());
        // Each stat is a request.
        target.cache_nothing()?;
        target.create("stat")?.close()?;
        let mut passed = Vec::new();
        let stat = cost(cpu, count, |_| {
            let begun = Instant::now();
            target.stat("stat")?;
            passed.push(begun.elapsed().as_nanos() as f64);
            Ok(())
        })?;
        let stat_passes = median(passed).unwrap_or(stat);
        let make = cost(cpu, count, |number| {
            let name = format!("made.{number}");
            target.create(&name)?.close()?;
            target.unlink(&name)
        })?;
        let file = target.create("data")?;
        let data = Bytes::from(vec![3; MIB]);
        let small = data.slice(..SMALL_WRITE_BYTES);
        let small_write =
            cost(cpu, count, |number| file.write_at(&small, u64::from(number) * SMALL_WRITE_BYTES as u64))?;
        file.close()?;
        target.unlink("data")?;
        let file = target.create("large")?;
        let large_write = cost(cpu, count / 10, |number| file.write_at(&data, u64::from(number) << 20))?;
        file.close()?;
        target.unlink("large")?;
        Ok(Self { stat, stat_passes, make, small_write, large_write })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_explains_the_calls_that_it_was_made_from() {
        let parts = Parts { copy_byte: 0.1, checksum_byte: 0.2, wake_up: 4000.0, append: 2000.0, append_byte: 0.25 };
        let here =
            Calls { stat: 3000.0, stat_passes: 3000.0, make: 30_000.0, small_write: 60_000.0, large_write: 900_000.0 };
        let bulk = 2.0 * 0.3 * MIB as f64;
        let remote = Calls { stat: 3000.0 + 36_000.0, large_write: 936_000.0 + bulk, ..here };
        let costs = table(&parts, &here, &remote);
        let of = |kind: CpuKind| costs.0[kind as usize];
        assert_eq!(of(CpuKind::FrameIn), Cost { each_ns: 9000, byte_ps: 300 });
        assert_eq!(of(CpuKind::FrameOut), of(CpuKind::FrameIn));
        assert_eq!(of(CpuKind::MetadataChange), Cost { each_ns: 8000, byte_ps: 0 });
        let data = SMALL_WRITE_BYTES as f64 * 0.5;
        assert_eq!(of(CpuKind::ObjectIo).each_ns, (60_000.0 - data - 2000.0_f64).round() as u32);
        assert_eq!(of(CpuKind::JournalAppend), Cost { each_ns: 2000, byte_ps: 250 });
        assert!(shown(&costs).lines().count() == CpuKind::ALL.len() && shown(&costs).contains("frame_in"));
        // What was measured too small does not become a cost below nothing.
        let nothing = Calls { stat: 0.0, stat_passes: 0.0, make: 0.0, small_write: 0.0, large_write: 0.0 };
        assert_eq!(table(&parts, &nothing, &nothing).0[CpuKind::ObjectIo as usize], Cost::default());
    }

    #[test]
    fn parts_of_the_code_cost_something() {
        let place = tempfile::tempdir().unwrap();
        let parts = Parts::measure(place.path()).unwrap();
        assert!(parts.copy_byte > 0.0 && parts.checksum_byte > 0.0 && parts.append > 0.0 && parts.wake_up > 0.0);
    }
}
