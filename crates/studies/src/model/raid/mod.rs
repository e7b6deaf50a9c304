//! A model of a target on a RAID 6 array: drives with queues of their own, and what a write costs
//! that does not cover whole stripes.
//!
//! ```text
//!   write --> parts, one per stripe --> stripe cache --+-- whole ------------------> data, P and Q
//!                                       (stripes.rs)   +-- in part --> reads ------> data, P and Q
//!   read  --> pieces, one per chunk -----------------------------------------------> drives
//!                                                                       (drive.rs, read_ahead.rs)
//! ```
//!
//! Chunks rotate over the drives from stripe to stripe (left-symmetric). A write is acknowledged
//! when the drives have taken its data and their parity, into their write caches if these are on.
//! What a partial stripe reads is the smaller of what it does not write, and of what it writes with
//! its parity. Each file has a part of the array for itself, which begins `misaligned_bytes` after
//! a stripe does.
//!
//! Contents are not stored, as in [`super::spindle`]. Downside: files are never fragmented, and
//! the array's own processor time (parity, its thread) costs nothing.

pub mod drive;
pub mod read_ahead;
pub mod stripes;

use std::{collections::BTreeMap, io, ops::Range, sync::Arc};

use bytes::Bytes;
use lab::{ProcessId, Simulation};
use parking_lot::Mutex;
use rt::{BoxFuture, Device, device::check_range};
use tokio::sync::oneshot;
use types::SpaceUsage;

use self::{
    drive::{Access, Drive, DriveModel, DriveOperation},
    stripes::{Job, Part, StripeCache, WriteId},
};
use super::spindle::is_zeros;

/// Parameters of an array.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
pub struct RaidModel {
    /// Drives with data in each stripe.
    pub data_drives: u64,
    /// Drives with parity in each stripe.
    pub parity_drives: u64,
    /// Bytes of a stripe on each drive.
    pub chunk_bytes: u64,
    /// Stripes that the stripe cache holds.
    pub cache_stripes: usize,
    /// Where files begin, after the beginning of a stripe.
    pub misaligned_bytes: u64,
    /// Each of the drives.
    pub drive: DriveModel,
}

impl RaidModel {
    fn drives(&self) -> u64 {
        self.data_drives + self.parity_drives
    }

    /// Data of a stripe.
    pub fn stripe_bytes(&self) -> u64 {
        self.data_drives * self.chunk_bytes
    }

    /// The drive of a chunk of a stripe; chunks from `data_drives` on are parity.
    fn drive_of(&self, stripe: u64, chunk: u64) -> usize {
        let first_parity = self.drives() - 1 - stripe % self.drives();
        let place = match chunk.checked_sub(self.data_drives) {
            Some(parity) => first_parity + parity,
            None => first_parity + self.parity_drives + chunk,
        };
        (place % self.drives()) as usize
    }

    /// Bytes of a stripe as pieces of its chunks: the chunk, and the range within it.
    fn pieces(&self, bytes: &Range<u64>) -> impl Iterator<Item = (u64, Range<u64>)> + use<> {
        let (chunk_bytes, bytes) = (self.chunk_bytes, bytes.clone());
        (bytes.start / chunk_bytes..bytes.end.div_ceil(chunk_bytes)).map(move |chunk| {
            let start = chunk * chunk_bytes;
            (chunk, bytes.start.max(start) - start..bytes.end.min(start + chunk_bytes) - start)
        })
    }

    /// What writing these bytes of a stripe writes: they, and parity for as much of a chunk as they
    /// touch.
    fn written(&self, covered: &[Range<u64>]) -> Vec<(u64, Range<u64>)> {
        let mut pieces: Vec<_> = covered.iter().flat_map(|bytes| self.pieces(bytes)).collect();
        let first = pieces.iter().map(|(_, bytes)| bytes.start).min().unwrap_or(0);
        let last = pieces.iter().map(|(_, bytes)| bytes.end).max().unwrap_or(0);
        pieces.extend((self.data_drives..self.drives()).map(|parity| (parity, first..last)));
        pieces
    }

    /// What has to be read before: the rest of the stripe, or what is replaced, whichever is on
    /// fewer drives.
    fn read_before(&self, covered: &[Range<u64>]) -> Vec<(u64, Range<u64>)> {
        let mut gaps = Vec::new();
        let mut next = 0;
        for bytes in covered {
            gaps.push(next..bytes.start);
            next = bytes.end;
        }
        gaps.push(next..self.stripe_bytes());
        let rest: Vec<_> = gaps.iter().filter(|gap| !gap.is_empty()).flat_map(|gap| self.pieces(gap)).collect();
        let replaced = self.written(covered);
        if rest.len() <= replaced.len() { rest } else { replaced }
    }
}

/// What operations of drives belong to, and what follows when all of them are done.
enum Purpose {
    /// A read of a file.
    Read(oneshot::Sender<()>),
    /// What a stripe needs for its parity.
    Parity(u64),
    /// A stripe.
    Stripe(u64),
    /// A flush.
    Flush(oneshot::Sender<()>),
}

struct Group {
    left: usize,
    purpose: Purpose,
}

/// What an array did so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct RaidStatistics {
    /// Stripes written whole.
    pub whole: u64,
    /// Stripes written in part.
    pub partial: u64,
}

struct State {
    lengths: BTreeMap<String, u64>,
    /// Where each file's part of the array begins.
    starts: BTreeMap<String, u64>,
    cache: StripeCache,
    drives: Vec<Drive>,
    groups: BTreeMap<u64, Group>,
    /// Parts of each write that are not on the drives, and who is told when all are.
    writes: BTreeMap<WriteId, (usize, oneshot::Sender<()>)>,
    /// Of groups and writes.
    next_number: u64,
}

struct Shared {
    simulation: Simulation,
    model: RaidModel,
    state: Mutex<State>,
}

/// An array that is the disks of one target. Clones are the same array.
#[derive(Clone)]
pub struct Raid(Arc<Shared>);

/// Bytes of the array for each file: more than any experiment writes to one.
const FILE_BYTES_MAX: u64 = 1 << 40;
/// Space of a target, as it shows.
const CAPACITY_BYTES: u64 = 1 << 46;
/// Objects a target may hold, as it shows.
const FILES_MAX: u64 = 1 << 32;

impl Raid {
    /// An empty array.
    pub fn new(simulation: &Simulation, model: RaidModel) -> Self {
        let state = State {
            lengths: BTreeMap::new(),
            starts: BTreeMap::new(),
            cache: StripeCache::new(model.cache_stripes, model.stripe_bytes()),
            drives: (0..model.drives()).map(|_| Drive::default()).collect(),
            groups: BTreeMap::new(),
            writes: BTreeMap::new(),
            next_number: 0,
        };
        Self(Arc::new(Shared { simulation: simulation.clone(), model, state: Mutex::new(state) }))
    }

    /// What it did so far.
    pub fn statistics(&self) -> RaidStatistics {
        let state = self.0.state.lock();
        RaidStatistics { whole: state.cache.whole, partial: state.cache.partial }
    }

    /// Decides under the lock, then lets the drives begin.
    fn decide<T>(&self, decide: impl FnOnce(&mut State, &RaidModel) -> T) -> T {
        let decided = decide(&mut self.0.state.lock(), &self.0.model);
        self.begin();
        decided
    }

    /// Passes what the stripe cache wants to the drives, and starts the idle ones that have
    /// something to do.
    fn begin(&self) {
        let Shared { simulation, model, state } = &*self.0;
        let idle: Vec<usize> = {
            let state = &mut *state.lock();
            while let Some(job) = state.cache.next() {
                let (stripe, purpose, access, pieces) = match job {
                    Job::Read(stripe, covered) => {
                        (stripe, Purpose::Parity(stripe), Access::Read, model.read_before(&covered))
                    }
                    Job::Write(stripe, covered) => {
                        (stripe, Purpose::Stripe(stripe), Access::Write, model.written(&covered))
                    }
                };
                let pieces = pieces.into_iter().map(|(chunk, bytes)| (stripe, chunk, bytes)).collect();
                state.submit(model, simulation, purpose, access, pieces);
            }
            let to_start = |drive: &mut Drive| drive.has_work() && !std::mem::replace(&mut drive.is_running, true);
            state
                .drives
                .iter_mut()
                .enumerate()
                .filter_map(|(number, drive)| to_start(drive).then_some(number))
                .collect()
        };
        for drive in idle {
            // Drives do not end with the process that uses them.
            simulation.spawn(ProcessId::DRIVER, "drive", Box::pin(self.clone().serve(drive)));
        }
    }

    /// Serves what waits for a drive, until nothing does.
    async fn serve(self, drive: usize) {
        loop {
            let (group, time) = {
                let state = &mut *self.0.state.lock();
                let now = self.0.simulation.now();
                match state.drives[drive].begin(&self.0.model.drive, now) {
                    Some((operation, time, waits)) => (waits.then_some(operation.group), time),
                    None => {
                        state.drives[drive].is_running = false;
                        return;
                    }
                }
            };
            self.0.simulation.sleep(time).await;
            self.decide(|state, _| {
                let flushed = state.drives[drive].flushed();
                group.into_iter().chain(flushed).for_each(|group| state.done(group));
            });
        }
    }
}

impl State {
    fn number(&mut self) -> u64 {
        self.next_number += 1;
        self.next_number
    }

    /// Where a file begins.
    fn start(&mut self, model: &RaidModel, file: &str) -> u64 {
        let number = self.starts.len() as u64;
        let part = (number * FILE_BYTES_MAX).next_multiple_of(model.stripe_bytes());
        *self.starts.entry(file.to_owned()).or_insert(part + model.misaligned_bytes)
    }

    /// Adds operations of drives that belong together: stripe, chunk and range of each. What is
    /// done when the drives' caches have taken all of it is done at once.
    fn submit(
        &mut self,
        model: &RaidModel,
        simulation: &Simulation,
        purpose: Purpose,
        access: Access,
        pieces: Vec<(u64, u64, Range<u64>)>,
    ) {
        assert!(!pieces.is_empty(), "a group has operations");
        let (group, arrived) = (self.number(), simulation.now());
        self.groups.insert(group, Group { left: pieces.len(), purpose });
        for (stripe, chunk, bytes) in pieces {
            let start = stripe * model.chunk_bytes + bytes.start;
            let bytes = bytes.end - bytes.start;
            let drive = &mut self.drives[model.drive_of(stripe, chunk)];
            if drive.add(&model.drive, DriveOperation { start, bytes, access, group, arrived }) {
                self.done(group);
            }
        }
    }

    /// Makes what the drives' caches hold durable.
    fn flush(&mut self) -> oneshot::Receiver<()> {
        let (waiter, done) = oneshot::channel();
        let group = self.number();
        self.groups.insert(group, Group { left: self.drives.len(), purpose: Purpose::Flush(waiter) });
        for drive in 0..self.drives.len() {
            if self.drives[drive].flush(group) {
                self.done(group);
            }
        }
        done
    }

    /// An operation of this group is done.
    fn done(&mut self, group: u64) {
        let state = self.groups.get_mut(&group).expect("an operation belongs to a group");
        state.left -= 1;
        if state.left > 0 {
            return;
        }
        let finished = self.groups.remove(&group).map(|group| group.purpose);
        match finished.expect("it was there") {
            // The task that waited may be gone.
            Purpose::Read(waiter) | Purpose::Flush(waiter) => drop(waiter.send(())),
            Purpose::Parity(stripe) => self.cache.read(stripe),
            Purpose::Stripe(stripe) => {
                for write in self.cache.written(stripe) {
                    let (left, _) = self.writes.get_mut(&write).expect("a write waits for its parts");
                    *left -= 1;
                    if *left == 0
                        && let Some((_, waiter)) = self.writes.remove(&write)
                    {
                        let _ = waiter.send(());
                    }
                }
            }
        }
    }

    /// A range of a file, stripe by stripe.
    fn stripes(&mut self, model: &RaidModel, file: &str, offset: u64, bytes: u64) -> Vec<(u64, Range<u64>)> {
        let start = self.start(model, file) + offset;
        let (end, stripe_bytes) = (start + bytes, model.stripe_bytes());
        let within = |stripe: u64| {
            let first = stripe * stripe_bytes;
            (stripe, start.max(first) - first..end.min(first + stripe_bytes) - first)
        };
        (start / stripe_bytes..end.div_ceil(stripe_bytes)).map(within).collect()
    }

    fn write(&mut self, model: &RaidModel, file: String, offset: u64, bytes: u64) -> oneshot::Receiver<()> {
        let (waiter, done) = oneshot::channel();
        let parts = self.stripes(model, &file, offset, bytes);
        let length = self.lengths.entry(file).or_default();
        *length = (*length).max(offset + bytes);
        let write = self.number();
        self.writes.insert(write, (parts.len(), waiter));
        for (stripe, bytes) in parts {
            self.cache.add(Part { write, stripe, bytes });
        }
        done
    }
}

/// Waits for the drives. They outlive every process, so an answer comes as long as the run lasts.
async fn finished(done: oneshot::Receiver<()>) -> io::Result<()> {
    done.await.map_err(|_| io::Error::from(io::ErrorKind::Interrupted))
}

impl Device for Raid {
    /// As in `Spindle`, a waiting read keeps no buffer.
    fn read(&self, file: &str, offset: u64, buffer: Vec<u8>) -> BoxFuture<'static, io::Result<(Vec<u8>, usize)>> {
        let (wanted, this, file) = (buffer.len(), self.clone(), file.to_owned());
        drop(buffer);
        Box::pin(async move {
            let (bytes, done) = this.decide(|state, model| {
                let length = state.lengths.get(&file).copied().unwrap_or(0);
                let bytes = length.saturating_sub(offset).min(wanted as u64);
                if bytes == 0 {
                    return (0, None);
                }
                let (waiter, done) = oneshot::channel();
                let stripes = state.stripes(model, &file, offset, bytes).into_iter();
                let pieces = stripes
                    .flat_map(|(stripe, bytes)| model.pieces(&bytes).map(move |(chunk, bytes)| (stripe, chunk, bytes)));
                state.submit(model, &this.0.simulation, Purpose::Read(waiter), Access::Read, pieces.collect());
                (bytes as usize, Some(done))
            });
            if let Some(done) = done {
                finished(done).await?;
            }
            Ok((vec![0; wanted], bytes))
        })
    }

    fn write(&self, file: &str, offset: u64, pieces: Vec<Bytes>) -> BoxFuture<'static, io::Result<()>> {
        let (this, file) = (self.clone(), file.to_owned());
        Box::pin(async move {
            if !pieces.iter().all(|piece| is_zeros(piece)) {
                return Err(io::Error::new(io::ErrorKind::InvalidInput, "modelled disks keep zeros only"));
            }
            let bytes = pieces.iter().map(|piece| piece.len() as u64).sum();
            check_range(offset, bytes)?;
            if offset + bytes > FILE_BYTES_MAX {
                return Err(io::Error::from(io::ErrorKind::StorageFull));
            }
            if bytes == 0 {
                return Ok(());
            }
            finished(this.decide(|state, model| state.write(model, file, offset, bytes))).await
        })
    }

    /// The host file system's own writes cost nothing.
    fn flush(&self, _file: &str) -> BoxFuture<'static, io::Result<()>> {
        let this = self.clone();
        Box::pin(async move { finished(this.decide(|state, _| state.flush())).await })
    }

    fn length(&self, file: &str) -> BoxFuture<'static, io::Result<Option<u64>>> {
        let length = self.0.state.lock().lengths.get(file).copied();
        Box::pin(std::future::ready(Ok(length)))
    }

    fn truncate(&self, file: &str, length: u64) -> BoxFuture<'static, io::Result<()>> {
        let (this, file) = (self.clone(), file.to_owned());
        Box::pin(async move {
            this.0.state.lock().lengths.insert(file, length);
            Ok(())
        })
    }

    fn punch(&self, _file: &str, _offset: u64, _bytes: u64) -> BoxFuture<'static, io::Result<()>> {
        Box::pin(std::future::ready(Ok(())))
    }

    fn allocate(&self, file: &str, _offset: u64, _bytes: u64) -> BoxFuture<'static, io::Result<()>> {
        let (this, file) = (self.clone(), file.to_owned());
        Box::pin(async move {
            this.0.state.lock().lengths.entry(file).or_default();
            Ok(())
        })
    }

    fn remove(&self, file: &str) -> BoxFuture<'static, io::Result<()>> {
        let (this, file) = (self.clone(), file.to_owned());
        Box::pin(async move {
            // Its part of the array is not used again.
            this.0.state.lock().lengths.remove(&file);
            Ok(())
        })
    }

    fn list(&self, prefix: &str) -> BoxFuture<'static, io::Result<Vec<String>>> {
        let state = self.0.state.lock();
        let names = state.lengths.range(prefix.to_owned()..).map(|(name, _)| name);
        let names = names.take_while(|name| name.starts_with(prefix)).cloned().collect();
        Box::pin(std::future::ready(Ok(names)))
    }

    fn space(&self) -> BoxFuture<'static, io::Result<SpaceUsage>> {
        let state = self.0.state.lock();
        let used: u64 = state.lengths.values().sum();
        let bytes_free = CAPACITY_BYTES.saturating_sub(used);
        let usage = SpaceUsage {
            bytes_total: CAPACITY_BYTES,
            bytes_free,
            bytes_available: bytes_free,
            inodes_total: FILES_MAX,
            inodes_free: FILES_MAX - state.lengths.len() as u64,
            device: None,
        };
        Box::pin(std::future::ready(Ok(usage)))
    }
}

#[cfg(test)]
mod tests;
