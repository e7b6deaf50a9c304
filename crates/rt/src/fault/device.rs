//! A device that fails on command.

use std::{
    io::{self, ErrorKind},
    sync::Arc,
};

use bytes::Bytes;
use parking_lot::Mutex;
use types::SpaceUsage;

use super::network::PPM;
use crate::{BoxFuture, Device, Entropy};

/// The switches of a [`FaultyDevice`]. Clones are the same switches.
#[derive(Clone, Default)]
pub struct DeviceFaults {
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    writes: Countdown,
    flushes: Countdown,
    full: bool,
    quota_used_up: bool,
    read_only: bool,
    bit_flip_ppm: u64,
    bits_flipped: u64,
}

/// Counts operations, and lets one of them fail.
#[derive(Default)]
struct Countdown {
    count: u64,
    fails: Option<(u64, ErrorKind)>,
}

impl Countdown {
    fn arm(&mut self, nth: u64, kind: ErrorKind) {
        assert!(nth > 0, "operations are counted from 1");
        self.fails = Some((self.count + nth, kind));
    }

    fn next(&mut self) -> io::Result<()> {
        self.count += 1;
        match self.fails.take_if(|(at, _)| *at == self.count) {
            Some((_, kind)) => Err(io::Error::new(kind, "injected fault")),
            None => Ok(()),
        }
    }
}

impl DeviceFaults {
    /// The `nth` write from now on (1 is the next) fails with an error of this kind, after the
    /// first half of its bytes.
    pub fn fail_write(&self, nth: u64, kind: ErrorKind) {
        self.state.lock().writes.arm(nth, kind);
    }

    /// The `nth` flush from now on (1 is the next) fails with an error of this kind and flushes
    /// nothing.
    pub fn fail_flush(&self, nth: u64, kind: ErrorKind) {
        self.state.lock().flushes.arm(nth, kind);
    }

    /// While set, whatever may need space fails with `StorageFull`.
    pub fn set_full(&self, full: bool) {
        self.state.lock().full = full;
    }

    /// While set, whatever may need space fails with `QuotaExceeded`, and the device says that it
    /// has room.
    pub fn set_quota_used_up(&self, used_up: bool) {
        self.state.lock().quota_used_up = used_up;
    }

    /// While set, every change fails with `ReadOnlyFilesystem`.
    pub fn set_read_only(&self, read_only: bool) {
        self.state.lock().read_only = read_only;
    }

    /// Probability that a read returns its data with one bit flipped, in ppm.
    pub fn set_bit_flips(&self, ppm: u64) {
        self.state.lock().bit_flip_ppm = ppm;
    }

    /// Writes asked for so far.
    pub fn writes(&self) -> u64 {
        self.state.lock().writes.count
    }

    /// Flushes asked for so far.
    pub fn flushes(&self) -> u64 {
        self.state.lock().flushes.count
    }

    /// Bits flipped so far.
    pub fn bits_flipped(&self) -> u64 {
        self.state.lock().bits_flipped
    }

    fn check_change(&self, needs_space: bool) -> io::Result<()> {
        let state = self.state.lock();
        if state.read_only {
            return Err(ErrorKind::ReadOnlyFilesystem.into());
        }
        if state.full && needs_space {
            return Err(ErrorKind::StorageFull.into());
        }
        if state.quota_used_up && needs_space {
            return Err(ErrorKind::QuotaExceeded.into());
        }
        Ok(())
    }
}

/// A device with faults.
#[derive(Clone)]
pub struct FaultyDevice {
    inner: Arc<dyn Device>,
    entropy: Arc<dyn Entropy>,
    faults: DeviceFaults,
}

impl FaultyDevice {
    /// Wraps `inner`; no fault is switched on.
    pub fn new(inner: Arc<dyn Device>, entropy: Arc<dyn Entropy>) -> Self {
        Self { inner, entropy, faults: DeviceFaults::default() }
    }

    /// The switches.
    pub fn faults(&self) -> DeviceFaults {
        self.faults.clone()
    }

    /// Runs a change unless the switches forbid it when it starts.
    fn change(
        &self,
        needs_space: bool,
        change: BoxFuture<'static, io::Result<()>>,
    ) -> BoxFuture<'static, io::Result<()>> {
        let faults = self.faults.clone();
        Box::pin(async move {
            faults.check_change(needs_space)?;
            change.await
        })
    }
}

/// The first half of the bytes.
fn first_half(pieces: Vec<Bytes>) -> Vec<Bytes> {
    let mut rest = pieces.iter().map(Bytes::len).sum::<usize>() / 2;
    let cut = |piece: Bytes| {
        let part = piece.slice(..rest.min(piece.len()));
        rest -= part.len();
        part
    };
    pieces.into_iter().map(cut).collect()
}

impl FaultyDevice {
    fn write_by(
        &self,
        pieces: Vec<Bytes>,
        write: impl FnOnce(Vec<Bytes>) -> BoxFuture<'static, io::Result<()>> + Send + 'static,
    ) -> BoxFuture<'static, io::Result<()>> {
        let faults = self.faults.clone();
        Box::pin(async move {
            faults.check_change(true)?;
            let next = faults.state.lock().writes.next();
            match next {
                Ok(()) => write(pieces).await,
                Err(error) => {
                    write(first_half(pieces)).await?;
                    Err(error)
                }
            }
        })
    }
}

impl Device for FaultyDevice {
    fn read(&self, file: &str, offset: u64, buffer: Vec<u8>) -> BoxFuture<'static, io::Result<(Vec<u8>, usize)>> {
        let read = self.inner.read(file, offset, buffer);
        let (entropy, faults) = (self.entropy.clone(), self.faults.clone());
        Box::pin(async move {
            let (mut buffer, bytes) = read.await?;
            let mut state = faults.state.lock();
            if bytes > 0 && state.bit_flip_ppm > 0 && entropy.below(PPM) < state.bit_flip_ppm {
                buffer[entropy.below(bytes as u64) as usize] ^= 1 << entropy.below(8);
                state.bits_flipped += 1;
            }
            drop(state);
            Ok((buffer, bytes))
        })
    }

    fn write(&self, file: &str, offset: u64, pieces: Vec<Bytes>) -> BoxFuture<'static, io::Result<()>> {
        let (inner, file) = (self.inner.clone(), file.to_owned());
        self.write_by(pieces, move |pieces| inner.write(&file, offset, pieces))
    }

    fn write_cached(&self, file: &str, offset: u64, pieces: Vec<Bytes>) -> BoxFuture<'static, io::Result<()>> {
        let (inner, file) = (self.inner.clone(), file.to_owned());
        self.write_by(pieces, move |pieces| inner.write_cached(&file, offset, pieces))
    }

    fn cached_area_bytes(&self) -> u64 {
        self.inner.cached_area_bytes()
    }

    fn flush(&self, file: &str) -> BoxFuture<'static, io::Result<()>> {
        let flush = self.inner.flush(file);
        let faults = self.faults.clone();
        Box::pin(async move {
            let next = faults.state.lock().flushes.next();
            next?;
            flush.await
        })
    }

    fn length(&self, file: &str) -> BoxFuture<'static, io::Result<Option<u64>>> {
        self.inner.length(file)
    }

    fn truncate(&self, file: &str, length: u64) -> BoxFuture<'static, io::Result<()>> {
        self.change(false, self.inner.truncate(file, length))
    }

    fn punch(&self, file: &str, offset: u64, bytes: u64) -> BoxFuture<'static, io::Result<()>> {
        self.change(false, self.inner.punch(file, offset, bytes))
    }

    fn discard(&self, file: &str, offset: u64, bytes: u64) -> BoxFuture<'static, io::Result<()>> {
        self.change(false, self.inner.discard(file, offset, bytes))
    }

    fn takes_discards(&self, file: &str) -> BoxFuture<'static, io::Result<bool>> {
        self.inner.takes_discards(file)
    }

    fn allocate(&self, file: &str, offset: u64, bytes: u64) -> BoxFuture<'static, io::Result<()>> {
        self.change(true, self.inner.allocate(file, offset, bytes))
    }

    fn remove(&self, file: &str) -> BoxFuture<'static, io::Result<()>> {
        self.change(false, self.inner.remove(file))
    }

    fn list(&self, prefix: &str) -> BoxFuture<'static, io::Result<Vec<String>>> {
        self.inner.list(prefix)
    }

    fn space(&self) -> BoxFuture<'static, io::Result<SpaceUsage>> {
        let space = self.inner.space();
        let faults = self.faults.clone();
        Box::pin(async move {
            let mut space = space.await?;
            if faults.state.lock().full {
                (space.bytes_free, space.bytes_available) = (0, 0);
            }
            Ok(space)
        })
    }
}
