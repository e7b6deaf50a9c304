//! What calls of one client cost, one after the other, with the servers in its own process and with
//! servers that it reaches over TCP.
//!
//! Writes come in a burst; what follows it makes its data durable and is not measured. So a
//! write costs what it takes to have the data in the host's memory, and flushes are no part of it.

use std::{io, path::Path};

use bytes::Bytes;
use client::{NewNode, WriteOptions};
use layout::StripeCount;
use rpc::message::mdt::{OpenFlags, open_flag};
use types::{Credentials, FsError, FsResult, InodeNumber, MdtIndex, NodeKind};

use super::{
    super::{
        both_ends::BothEnds,
        systems::System,
        target::BenchTarget,
        workers::{self, own_cpu},
    },
    MIB, cost,
};
use crate::{model::spindle::zeros, study::Striping};

/// The file that stats ask for.
const STATED: &str = "stat";
/// Calls of one measurement: as many as rows of `stria lab predict` have.
const STATS: u32 = 2000;
const CHANGES: u32 = 500;
/// Bytes of the smaller calls: large enough that they are done as the larger ones are.
pub const SMALL_BYTES: usize = 128 << 10;
/// Bytes of the larger calls.
pub const LARGE_BYTES: usize = MIB;

/// In nanoseconds of processor time each, the servers in the same process.
#[derive(Clone, Copy, Debug, Default)]
pub struct Here {
    /// A request that changes nothing.
    pub stat: f64,
}

/// Calls of two sizes.
#[derive(Clone, Copy, Debug, Default)]
pub struct Sizes {
    /// Of [`SMALL_BYTES`].
    pub small: f64,
    /// Of [`LARGE_BYTES`].
    pub large: f64,
}

/// In nanoseconds of processor time of both ends each, over TCP.
#[derive(Clone, Copy, Debug, Default)]
pub struct Remote {
    /// A request that changes nothing.
    pub stat: f64,
    /// Nanoseconds that pass with one.
    pub stat_passes: f64,
    /// A directory is made or removed.
    pub change: f64,
    /// Reads of what the servers' host has in memory.
    pub read: Sizes,
    /// Writes into the memory of the servers' host.
    pub write: Sizes,
}

/// Makes the file that stats ask for, long before they do: what its creation leaves to be done is
/// no part of them. It is never written, so the MDT knows its size, and is asked alone.
pub fn prepare(target: &dyn BenchTarget) -> io::Result<()> {
    target.create(STATED)?.close()
}

impl Here {
    /// Measures once.
    pub fn measure(system: &System) -> anyhow::Result<Self> {
        let (target, cpu) = (&*system.target, || system.cpu());
        // Each stat is a request.
        target.cache_nothing()?;
        workers::settle();
        let stat = cost(cpu, STATS, |_| target.stat(STATED).map(drop))?.cpu;
        Ok(Self { stat })
    }
}

impl Remote {
    /// Measures once; `directory` is on the disk of the servers.
    pub fn measure(system: &BothEnds, directory: &Path) -> anyhow::Result<Self> {
        let (file_system, mdt) = (&system.file_system, MdtIndex(0));
        let locks_max = file_system.cached_locks(mdt).map_or(0, |(_, most)| most);
        file_system.set_cached_locks_max(mdt, 0).map_err(io_error)?;
        let credentials = Credentials::root();
        workers::settle();
        let stat = cost(own_cpu, STATS, |_| {
            wait(system, file_system.lookup(&credentials, InodeNumber::ROOT, STATED.as_bytes())).map(drop)
        })?;
        workers::settle();
        let both = cost(own_cpu, CHANGES / 2, |number| {
            let (target, name) = (&system.target, format!("made.{number}"));
            target.make_directory(&name)?;
            target.remove_directory(&name)
        })?
        .cpu;
        // Without locks every write would also be a request to the MDT: whether the file has
        // capabilities.
        file_system.set_cached_locks_max(mdt, locks_max).map_err(io_error)?;
        let (small, large) = (burst(system, directory, SMALL_BYTES)?, burst(system, directory, LARGE_BYTES)?);
        let read = Sizes { small: small.read, large: large.read };
        let write = Sizes { small: small.write, large: large.write };
        Ok(Self { stat: stat.cpu, stat_passes: stat.passes, change: both / 2.0, read, write })
    }
}

fn io_error(error: FsError) -> io::Error {
    io::Error::from_raw_os_error(host::errno::of(&error).0)
}

fn wait<T>(system: &BothEnds, call: impl Future<Output = FsResult<T>>) -> io::Result<T> {
    system.client_cores.block_on(call).map_err(io_error)
}

/// A file on one OST.
fn new_file(name: &str) -> NewNode {
    NewNode {
        parent: InodeNumber::ROOT,
        name: name.as_bytes().to_vec(),
        kind: NodeKind::Regular,
        mode: 0o600,
        umask: 0,
        layout: Some(Striping::plain(StripeCount::Exactly(1), MIB as u64).spec()),
    }
}

/// Bytes that are written before they are made durable: few enough that the host's memory takes
/// them.
const BURST_BYTES: usize = 16 * MIB;

/// Of calls of one size.
struct Burst {
    read: f64,
    write: f64,
}

/// Calls of this size, one after the other, to a file of their own: nothing is overwritten.
fn burst(system: &BothEnds, directory: &Path, bytes: usize) -> io::Result<Burst> {
    const NAME: &str = "burst";
    let (file_system, credentials, calls) = (&system.file_system, Credentials::root(), (BURST_BYTES / bytes) as u32);
    let offset = |number: u32| u64::from(number) * bytes as u64;
    workers::warm_memory(directory, 2 * BURST_BYTES as u64)?;
    let made = wait(system, file_system.create(&credentials, new_file(NAME)))?;
    let file = wait(system, file_system.open(&credentials, made.inode, OpenFlags(open_flag::READ | open_flag::WRITE)))?;
    let write = |number: u32| {
        let written = file_system.write(&file, offset(number), zeros(bytes), WriteOptions::default());
        match wait(system, written)? == bytes {
            true => Ok(()),
            false => Err(io::Error::from(io::ErrorKind::WriteZero)),
        }
    };
    // The first one asks the MDT what it may take to be known afterwards.
    write(0)?;
    workers::settle();
    let write = cost(own_cpu, calls - 1, |number| write(number + 1))?.cpu;
    wait(system, file_system.fsync(&file, false))?;
    workers::settle();
    let read = cost(own_cpu, calls, |number| {
        let data = wait(system, file_system.read(&file, offset(number), bytes))?;
        match data.into_pieces().iter().map(Bytes::len).sum::<usize>() == bytes {
            true => Ok(()),
            false => Err(io::ErrorKind::UnexpectedEof.into()),
        }
    })?
    .cpu;
    wait(system, file_system.close(file, None))?;
    wait(system, file_system.unlink(&credentials, InodeNumber::ROOT, NAME.as_bytes()))?;
    Ok(Burst { read, write })
}
