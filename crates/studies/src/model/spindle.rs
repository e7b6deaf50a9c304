//! A model of a target's disks for predicting performance: one arm that positions and streams, a
//! queue, and the effect of a server's cache. Contents are not stored: bulk data of an experiment
//! are zeros, and everything reads as zeros.
//!
//! | operation | occupies the disks for |
//! |---|---|
//! | write | its bytes at the streaming rate, and its share of one positioning per `gather_bytes` (neighbours are gathered) |
//! | read of what the server's memory holds | nothing |
//! | read that continues a stream, with cache | nothing: it waits for the read-ahead, which fetches a window per positioning |
//! | any other read | a positioning and its bytes |
//! | flush | a positioning |
//!
//! Operations are served in order. A stream is a file read in order of offsets; the cache follows
//! the `streams_max` most recently used ones. If more readers than that take turns, they find
//! nothing read ahead: each evicts data that another will need.
//!
//! A stream's window is as large as what the stream has read so far, within the bounds of
//! [`ReadAhead`], and the next one is fetched when half a window is left (ZFS fetches twice what is
//! read of a stream, until it is `zfetch_max_distance` ahead). Fetched data are in the server's
//! memory too, for other readers of the same data.
//!
//! Downside: one arm for all drives of a target; no seek distance; nothing is evicted by writes.
//! Writing anything but zeros fails, so that no experiment can lose data without noticing.

use std::{
    collections::{BTreeMap, VecDeque},
    io,
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;
use lab::Simulation;
use parking_lot::Mutex;
use rt::{BoxFuture, Device, Instant, device::check_range};
use types::{SpaceUsage, time::transfer_time};

use super::block_cache::{BlockCache, ServerMemory};

/// Parameters of a target's disks.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize)]
pub struct SpindleModel {
    /// Moving the arm to another place.
    pub positioning: Duration,
    /// Streaming rate of all drives of the target.
    pub bytes_per_second: u64,
    /// Neighbouring writes that are done in one positioning.
    pub gather_bytes: u64,
    /// What the server's cache does for reads; `None`: it is off.
    pub read_ahead: Option<ReadAhead>,
    /// Bytes that the server's memory keeps for repeated reads, for all its targets together.
    pub memory_bytes: u64,
}

/// A cache that reads ahead.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
pub struct ReadAhead {
    /// Bytes fetched in one positioning when a stream has just begun.
    pub window_bytes_min: u64,
    /// Bytes fetched in one positioning when a stream has gone on for long.
    pub window_bytes_max: u64,
    /// Streams that are followed.
    pub streams_max: usize,
}

/// Zeros to compare with, and to write from.
static ZEROS: [u8; 4 << 20] = [0; 4 << 20];

/// Zeros to be written, as many as a study's largest call has at most: all of them are the same
/// memory, which stays in the processor's cache.
pub fn zeros(bytes: usize) -> Bytes {
    ZEROS.get(..bytes).map_or_else(|| vec![0; bytes].into(), Bytes::from_static)
}

/// The same bytes; if all of them are zeros, those that [`zeros`] shares. So memory that holds what
/// is in progress does not grow with the number of machines.
pub fn share_zeros(bytes: Bytes) -> Bytes {
    if is_zeros(&bytes) { zeros(bytes.len()) } else { bytes }
}

/// Compared as memory is compared, which is several times as fast as byte by byte.
pub fn is_zeros(bytes: &[u8]) -> bool {
    bytes.chunks(ZEROS.len()).all(|chunk| *chunk == ZEROS[..chunk.len()])
}

/// Space of a target; the contents are not kept, so any number will do that no experiment reaches.
const CAPACITY_BYTES: u64 = 1 << 46;
/// Objects a target may hold, as statfs shows it.
const FILES_MAX: u64 = 1 << 32;

/// One reader's way through a file.
#[derive(Debug)]
struct Stream {
    file: String,
    /// Where it began.
    start: u64,
    /// Where its next read begins.
    next: u64,
    /// Read ahead: where each window ends, and when it is there.
    windows: VecDeque<(u64, Instant)>,
}

impl Stream {
    /// After the last byte that was read ahead.
    fn fetched(&self) -> u64 {
        self.windows.back().map_or(self.next, |(end, _)| *end)
    }

    /// Whether a read there continues with it: calls that are in progress at a time may pass each
    /// other, as far as it was read ahead (ZFS: `zfetch_max_reorder`).
    fn continues_at(&self, offset: u64) -> bool {
        (self.next..=self.fetched()).contains(&offset)
    }
}

/// A read, and what decides when it is done besides the state of the disks.
struct Reading<'a> {
    model: &'a SpindleModel,
    memory: &'a mut BlockCache,
    now: Instant,
    file: &'a str,
    /// The file's name in the server's memory.
    key: &'a Arc<str>,
    offset: u64,
    bytes: u64,
}

#[derive(Debug, Default)]
struct State {
    lengths: BTreeMap<String, u64>,
    free_at: Instant,
    /// Least recently used first.
    streams: VecDeque<Stream>,
}

impl State {
    /// Occupies the arm; when it is done.
    fn occupy(&mut self, now: Instant, time: Duration) -> Instant {
        self.free_at = self.free_at.max(now) + time;
        self.free_at
    }

    /// Brings `bytes` from `offset` on into memory, in one positioning; when they are there.
    fn fetch(&mut self, reading: &mut Reading<'_>, offset: u64, bytes: u64) -> Instant {
        let Reading { model, memory, now, key, .. } = reading;
        let ready = self.occupy(*now, model.positioning + transfer_time(bytes, model.bytes_per_second));
        memory.hold(key, offset, bytes, ready);
        ready
    }

    /// When what is read is there.
    fn read(&mut self, mut reading: Reading<'_>) -> Instant {
        let Reading { now, file, offset, bytes, .. } = reading;
        let ready = self.follow(&mut reading);
        let ready = ready.or_else(|| reading.memory.hit(reading.key, offset, bytes)).unwrap_or_else(|| {
            if let Some(ahead) = reading.model.read_ahead {
                let (file, next) = (file.to_owned(), offset + bytes);
                self.remember(Stream { file, start: offset, next, windows: VecDeque::new() }, ahead);
            }
            self.fetch(&mut reading, offset, bytes)
        });
        ready.max(now)
    }

    /// Notes a stream as the one used last.
    fn remember(&mut self, stream: Stream, ahead: ReadAhead) {
        if self.streams.len() >= ahead.streams_max {
            self.streams.pop_front();
        }
        self.streams.push_back(stream);
    }

    /// A read that continues where a stream is: when it is there. The stream is read ahead.
    fn follow(&mut self, reading: &mut Reading<'_>) -> Option<Instant> {
        let ahead = reading.model.read_ahead?;
        let Reading { now, file, offset, bytes, .. } = *reading;
        let end = offset + bytes;
        let known = self.streams.iter().position(|stream| stream.file == file && stream.continues_at(offset))?;
        let mut stream = self.streams.remove(known)?;
        let mut fetched = stream.fetched();
        let length = self.lengths.get(file).copied().unwrap_or(0);
        let window_bytes = (end - stream.start).clamp(ahead.window_bytes_min, ahead.window_bytes_max);
        // Half a window ahead of what is wanted, as far as the file goes.
        while fetched < (end + window_bytes / 2).min(length) {
            // What another stream has brought into memory is not fetched again.
            let window = window_bytes.min(length - fetched);
            let (bytes, held) = reading.memory.run(reading.key, fetched, window);
            let ready = held.unwrap_or_else(|| self.fetch(reading, fetched, bytes));
            fetched += bytes;
            stream.windows.push_back((fetched, ready));
        }
        while stream.windows.front().is_some_and(|(window_end, _)| *window_end < end) {
            stream.windows.pop_front();
        }
        let ready = stream.windows.front().map_or(now, |(_, ready)| *ready);
        stream.next = end;
        self.remember(stream, ahead);
        Some(ready)
    }

    fn write(&mut self, model: &SpindleModel, now: Instant, file: String, offset: u64, bytes: u64) -> Instant {
        let share = model.positioning.as_nanos() * u128::from(bytes) / u128::from(model.gather_bytes.max(1));
        let positioning = Duration::from_nanos(u64::try_from(share).unwrap_or(u64::MAX)).min(model.positioning);
        let length = self.lengths.entry(file).or_default();
        *length = (*length).max(offset + bytes);
        self.occupy(now, positioning + transfer_time(bytes, model.bytes_per_second))
    }
}

/// The disks of one target. Clones are the same disks.
#[derive(Clone)]
pub struct Spindle {
    simulation: Simulation,
    model: SpindleModel,
    /// The target's name in the server's memory.
    name: Arc<str>,
    memory: ServerMemory,
    state: Arc<Mutex<State>>,
}

impl Spindle {
    /// Empty disks of a target of this name, in a server with this memory.
    pub fn new(simulation: &Simulation, name: &str, model: SpindleModel, memory: ServerMemory) -> Self {
        Self { simulation: simulation.clone(), model, name: name.into(), memory, state: Arc::default() }
    }

    /// A file's name in the server's memory.
    fn key(&self, file: &str) -> Arc<str> {
        format!("{}/{file}", self.name).into()
    }

    /// An operation: decided at once, done when the arm is through with it.
    fn run<T: Send + 'static>(
        &self,
        operate: impl FnOnce(&mut State, &SpindleModel, Instant) -> io::Result<(T, Instant)> + Send + 'static,
    ) -> BoxFuture<'static, io::Result<T>> {
        let this = self.clone();
        Box::pin(async move {
            let (result, done) = operate(&mut this.state.lock(), &this.model, this.simulation.now())?;
            this.simulation.sleep_until(done).await;
            Ok(result)
        })
    }
}

impl Device for Spindle {
    /// Thousands of reads wait at a time for the disks of a large experiment, so none of them keeps
    /// its buffer meanwhile: it gets another one in the end.
    fn read(&self, file: &str, offset: u64, buffer: Vec<u8>) -> BoxFuture<'static, io::Result<(Vec<u8>, usize)>> {
        let wanted = buffer.len();
        drop(buffer);
        let (file, key, memory) = (file.to_owned(), self.key(file), self.memory.clone());
        let read = self.run(move |state, model, now| {
            let length = state.lengths.get(&file).copied().unwrap_or(0);
            let bytes = length.saturating_sub(offset).min(wanted as u64);
            if bytes == 0 {
                return Ok((0, now));
            }
            let memory = &mut memory.lock();
            let done = state.read(Reading { model, memory, now, file: &file, key: &key, offset, bytes });
            Ok((bytes as usize, done))
        });
        Box::pin(async move { read.await.map(|bytes| (vec![0; wanted], bytes)) })
    }

    fn write(&self, file: &str, offset: u64, pieces: Vec<Bytes>) -> BoxFuture<'static, io::Result<()>> {
        let file = file.to_owned();
        self.run(move |state, model, now| {
            if !pieces.iter().all(|piece| is_zeros(piece)) {
                return Err(io::Error::new(io::ErrorKind::InvalidInput, "modelled disks keep zeros only"));
            }
            let bytes = pieces.iter().map(|piece| piece.len() as u64).sum();
            check_range(offset, bytes)?;
            Ok(((), state.write(model, now, file, offset, bytes)))
        })
    }

    fn flush(&self, _file: &str) -> BoxFuture<'static, io::Result<()>> {
        self.run(|state, model, now| Ok(((), state.occupy(now, model.positioning))))
    }

    fn length(&self, file: &str) -> BoxFuture<'static, io::Result<Option<u64>>> {
        let file = file.to_owned();
        self.run(move |state, _, now| Ok((state.lengths.get(&file).copied(), now)))
    }

    fn truncate(&self, file: &str, length: u64) -> BoxFuture<'static, io::Result<()>> {
        let file = file.to_owned();
        self.run(move |state, _, now| {
            state.lengths.insert(file, length);
            Ok(((), now))
        })
    }

    fn punch(&self, _file: &str, _offset: u64, _bytes: u64) -> BoxFuture<'static, io::Result<()>> {
        self.run(|_, _, now| Ok(((), now)))
    }

    fn allocate(&self, file: &str, _offset: u64, _bytes: u64) -> BoxFuture<'static, io::Result<()>> {
        let file = file.to_owned();
        self.run(move |state, _, now| {
            state.lengths.entry(file).or_default();
            Ok(((), now))
        })
    }

    fn remove(&self, file: &str) -> BoxFuture<'static, io::Result<()>> {
        let (file, key, memory) = (file.to_owned(), self.key(file), self.memory.clone());
        self.run(move |state, _, now| {
            state.lengths.remove(&file);
            state.streams.retain(|stream| stream.file != file);
            memory.lock().forget(&key);
            Ok(((), now))
        })
    }

    fn list(&self, prefix: &str) -> BoxFuture<'static, io::Result<Vec<String>>> {
        let prefix = prefix.to_owned();
        self.run(move |state, _, now| {
            let names = state.lengths.range(prefix.clone()..).map(|(name, _)| name);
            Ok((names.take_while(|name| name.starts_with(&prefix)).cloned().collect(), now))
        })
    }

    fn space(&self) -> BoxFuture<'static, io::Result<SpaceUsage>> {
        self.run(|state, _, now| {
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
            Ok((usage, now))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;
    const MODEL: SpindleModel = SpindleModel {
        positioning: Duration::from_millis(8),
        bytes_per_second: 100 * MIB,
        gather_bytes: 8 * MIB,
        read_ahead: Some(ReadAhead { window_bytes_min: 4 * MIB, window_bytes_max: 4 * MIB, streams_max: 4 }),
        memory_bytes: 0,
    };

    /// A read of file "f".
    fn read(
        state: &mut State,
        model: &SpindleModel,
        memory: &mut BlockCache,
        now: Instant,
        (offset, bytes): (u64, u64),
    ) -> Instant {
        state.read(Reading { model, memory, now, file: "f", key: &"t/f".into(), offset, bytes })
    }

    /// Time that `readers` take to read 32 MiB each of one file, taking turns, 1 MiB at a time.
    fn reading(model: SpindleModel, readers: u64) -> Duration {
        let mut state = State::default();
        state.lengths.insert("f".to_owned(), readers * 32 * MIB);
        let (mut now, mut memory) = (Instant(0), BlockCache::new(0));
        for call in 0..32 {
            for reader in 0..readers {
                now = read(&mut state, &model, &mut memory, now, ((reader * 32 + call) * MIB, MIB));
            }
        }
        now.since(Instant(0))
    }

    #[test]
    fn a_stream_positions_once_a_window_and_without_cache_at_every_read() {
        let cold = SpindleModel { read_ahead: None, ..MODEL };
        assert_eq!(reading(cold, 1), Duration::from_millis(32 * 18));
        let streamed = reading(MODEL, 1);
        assert!(streamed < Duration::from_millis(32 * 13) && streamed > Duration::from_millis(320), "{streamed:?}");
    }

    #[test]
    fn the_longer_a_stream_is_the_more_is_fetched_at_once() {
        let grows = ReadAhead { window_bytes_min: MIB, window_bytes_max: 8 * MIB, streams_max: 4 };
        let growing = SpindleModel { read_ahead: Some(grows), ..MODEL };
        let (mut state, mut memory) = (State::default(), BlockCache::new(0));
        state.lengths.insert("f".to_owned(), 64 * MIB);
        let mut ends = Vec::new();
        for call in 0..32 {
            read(&mut state, &growing, &mut memory, Instant(0), (call * MIB, MIB));
            let fetched = state.streams[0].windows.back().map(|(end, _)| end / MIB);
            ends.extend(fetched.filter(|end| ends.last() != Some(end)));
        }
        assert_eq!(ends, [3, 6, 11, 19, 27, 35, 43], "2, 3 and 5 MiB after the first, then 8 each");
    }

    #[test]
    fn calls_that_pass_each_other_remain_one_stream() {
        let (mut state, mut memory) = (State::default(), BlockCache::new(32 * MIB));
        state.lengths.insert("f".to_owned(), 32 * MIB);
        for call in [0, 1, 3, 2, 4] {
            read(&mut state, &MODEL, &mut memory, Instant(0), (call * MIB, MIB));
        }
        assert_eq!((state.streams.len(), state.streams[0].next), (1, 5 * MIB));
        read(&mut state, &MODEL, &mut memory, Instant(0), (20 * MIB, MIB));
        assert_eq!(state.streams.len(), 2, "nothing was read ahead there");
    }

    #[test]
    fn more_readers_than_the_cache_follows_find_nothing_read_ahead() {
        let (few, many) = (reading(MODEL, 4) / 4, reading(MODEL, 5) / 5);
        assert!(few < Duration::from_millis(32 * 15), "{few:?}");
        assert_eq!(many, Duration::from_millis(32 * 18));
    }

    #[test]
    fn what_the_memory_holds_costs_the_disks_nothing() {
        let (mut state, mut memory) = (State::default(), BlockCache::new(MIB));
        state.lengths.insert("f".to_owned(), 32 * MIB);
        let mut reading = |now, offset, bytes| read(&mut state, &MODEL, &mut memory, now, (offset, bytes));
        let first = reading(Instant(0), 5 * MIB, 4096);
        assert!(first > Instant(0));
        assert_eq!(reading(Instant(1), 5 * MIB + 8192, 4096), first, "its record is on its way");
        assert_eq!(reading(first, 5 * MIB + 16384, 4096), first, "its record came with it");
        let second = reading(first, 9 * MIB, 2 * MIB);
        assert!(second > first);
        assert!(reading(second, 5 * MIB, 4096) > second, "it had to leave");
    }

    #[test]
    fn what_one_stream_has_read_ahead_serves_another_reader() {
        let (mut state, mut memory) = (State::default(), BlockCache::new(32 * MIB));
        state.lengths.insert("f".to_owned(), 32 * MIB);
        let mut reading = |now, call: u64| read(&mut state, &MODEL, &mut memory, now, (call * MIB, MIB));
        let alone = (0..16).fold(Instant(0), &mut reading);
        assert_eq!((0..16).fold(alone, &mut reading), alone, "all of it is in memory");
        assert!(reading(alone, 30) > alone);
    }

    #[test]
    fn what_another_stream_has_read_ahead_is_not_fetched_again() {
        let (mut state, mut memory) = (State::default(), BlockCache::new(64 * MIB));
        state.lengths.insert("f".to_owned(), 64 * MIB);
        let mut reading = |call: u64| read(&mut state, &MODEL, &mut memory, Instant(0), (call * MIB, MIB));
        // Two streams, of which the first one runs into what the second has fetched.
        for call in [0, 6, 7, 1, 2, 3, 4] {
            reading(call);
        }
        let fetched = (1 + 1 + 4) + 4 + 1;
        let positionings = 5;
        assert_eq!(state.free_at.since(Instant(0)), Duration::from_millis(fetched * 10 + positionings * 8));
    }

    #[test]
    fn writes_share_their_positioning() {
        let mut state = State::default();
        let mut done = Instant(0);
        for call in 0..8 {
            done = state.write(&MODEL, Instant(0), "f".to_owned(), call * MIB, MIB);
        }
        assert_eq!(done.since(Instant(0)), Duration::from_millis(80 + 8));
        assert_eq!(state.lengths["f"], 8 * MIB);
    }

    #[test]
    fn contents_other_than_zeros_are_refused() {
        let simulation = Simulation::new(1);
        let disks = Spindle::new(&simulation, "t", MODEL, Arc::new(Mutex::new(BlockCache::new(0))));
        let outcome = simulation.run(lab::executor::RunLimits::default(), async move {
            disks.write("f", 0, vec![vec![0; 5000].into()]).await.unwrap();
            let (data, bytes) = disks.read("f", 1000, vec![7; 9000]).await.unwrap();
            assert!(bytes == 4000 && data[..bytes].iter().all(|byte| *byte == 0));
            disks.write("f", 0, vec![vec![0, 1].into()]).await.map_err(|error| error.kind())
        });
        assert_eq!(outcome.unwrap(), Err(io::ErrorKind::InvalidInput));
    }
}
