//! One drive of an array: what waits for it, in which order it is served, and how long that takes.
//!
//! | operation | takes, besides its bytes at the streaming rate |
//! |---|---|
//! | continues where the head is | nothing; a write that comes after a pause waits until the place comes round again |
//! | a little further on | the time in which the head passes over what is between |
//! | anywhere else | a positioning |
//!
//! Order: upwards from the head, then again from the lowest (C-LOOK), but what has waited for
//! longer than its limit goes first, as in Linux's deadline scheduler.
//!
//! A drive may have a write cache. A write that fits in is done at once; it reaches the platter
//! when nothing else waits, when the cache is full, or when a flush waits for it. Reads may be read
//! ahead ([`super::read_ahead`]); what is in memory is served at once. Downside: seek distance
//! makes no difference, and nothing is read from the write cache.

use std::{ops::Range, time::Duration};

use rt::Instant;
use types::time::transfer_time;

use super::read_ahead::{ReadAhead, ReadAheadModel};

/// Parameters of a drive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
pub struct DriveModel {
    /// Moving the head to another place, with half a turn.
    pub positioning: Duration,
    /// A turn of the platters.
    pub rotation: Duration,
    /// Streaming rate.
    pub bytes_per_second: u64,
    /// Bytes of the write cache; 0: it is off.
    pub write_cache_bytes: u64,
    /// What is read ahead; `None`: nothing.
    pub read_ahead: Option<ReadAheadModel>,
}

/// Reads that have waited for so long go first (Linux: `read_expire` of the deadline scheduler).
const READ_EXPIRES: Duration = Duration::from_millis(500);
/// Writes that have waited for so long go first (Linux: `write_expire`).
const WRITE_EXPIRES: Duration = Duration::from_secs(5);

/// What is done with bytes of a drive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// From the platter.
    Read,
    /// To the platter.
    Write,
}

/// A range of a drive, and why.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DriveOperation {
    /// First byte.
    pub start: u64,
    /// Bytes.
    pub bytes: u64,
    /// What is done.
    pub access: Access,
    /// The group of operations that it belongs to.
    pub group: u64,
    /// When it arrived.
    pub arrived: Instant,
}

impl DriveOperation {
    fn range(&self) -> Range<u64> {
        self.start..self.start + self.bytes
    }
}

/// Where the next operation is.
#[derive(Clone, Copy)]
enum Place {
    Waiting(usize),
    Cached(usize),
}

/// A drive.
#[derive(Debug, Default)]
pub struct Drive {
    /// Operations that somebody waits for.
    waiting: Vec<DriveOperation>,
    /// Writes in the cache, in order of arrival, each with its number.
    cached: Vec<(u64, DriveOperation)>,
    cached_bytes: u64,
    next_cached: u64,
    reads: ReadAhead,
    /// What is read ahead next, while the head is there.
    ahead: Option<Range<u64>>,
    /// Groups that wait until all before this number are on the platter.
    flushes: Vec<(u64, u64)>,
    /// After the last byte that was served.
    head: u64,
    /// When that was.
    head_at: Instant,
    /// Whether something serves it.
    pub is_running: bool,
}

impl Drive {
    /// Adds an operation; true if it is done, because it is in the write cache, or was read ahead.
    #[must_use = "an operation in the cache is done"]
    pub fn add(&mut self, model: &DriveModel, operation: DriveOperation) -> bool {
        match operation.access {
            Access::Read if self.reads.holds(&operation.range(), operation.arrived) => return true,
            Access::Read => {}
            Access::Write => self.reads.forget(&operation.range()),
        }
        let fits = self.cached_bytes + operation.bytes <= model.write_cache_bytes;
        if operation.access == Access::Read || !fits {
            self.waiting.push(operation);
            return false;
        }
        self.cached_bytes += operation.bytes;
        self.cached.push((self.next_cached, operation));
        self.next_cached += 1;
        true
    }

    /// Lets a group wait until all that is in the cache now is on the platter; true if it is.
    #[must_use = "a flush of nothing is done"]
    pub fn flush(&mut self, group: u64) -> bool {
        if self.cached.is_empty() {
            return true;
        }
        self.flushes.push((self.next_cached, group));
        false
    }

    /// Groups whose flush is done.
    pub fn flushed(&mut self) -> Vec<u64> {
        let first = self.cached.first().map_or(self.next_cached, |(number, _)| *number);
        let done = self.flushes.extract_if(.., |(before, _)| *before <= first);
        done.map(|(_, group)| group).collect()
    }

    /// Whether there is something to do.
    pub fn has_work(&self) -> bool {
        !self.waiting.is_empty() || !self.cached.is_empty()
    }

    /// Takes the next operation, how long it takes from now on, and whether somebody waits for it.
    pub fn begin(&mut self, model: &DriveModel, now: Instant) -> Option<(DriveOperation, Duration, bool)> {
        if let Some(ahead) = self.ahead.take() {
            return Some(self.read_ahead(model, now, ahead));
        }
        let reads = &mut self.reads;
        let held = |one: &DriveOperation| one.access == Access::Read && reads.holds(&one.range(), now);
        if let Some(place) = self.waiting.iter().position(held) {
            return Some((self.waiting.remove(place), Duration::ZERO, true));
        }
        let may_wait = self.flushes.is_empty() && self.cached_bytes < model.write_cache_bytes / 2;
        let (waits, operation) = match self.next(now, may_wait)? {
            Place::Waiting(place) => (true, self.waiting.remove(place)),
            Place::Cached(place) => (false, self.cached.remove(place).1),
        };
        if !waits {
            self.cached_bytes -= operation.bytes;
        }
        let lost = self.time_to(model, now, &operation);
        let time = lost + transfer_time(operation.bytes, model.bytes_per_second);
        self.head = operation.start + operation.bytes;
        self.head_at = now + time;
        if let (Access::Read, Some(model)) = (operation.access, &model.read_ahead) {
            self.ahead = self.reads.read(model, operation.range(), self.head_at);
        }
        Some((operation, time, waits))
    }

    /// Reads on where the head is. Nobody waits for it, but what is read meanwhile may be part of
    /// it.
    fn read_ahead(&mut self, model: &DriveModel, now: Instant, ahead: Range<u64>) -> (DriveOperation, Duration, bool) {
        let bytes = ahead.end - ahead.start;
        let time = transfer_time(bytes, model.bytes_per_second);
        self.head = ahead.end;
        self.head_at = now + time;
        let operation = DriveOperation { start: ahead.start, bytes, access: Access::Read, group: 0, arrived: now };
        self.reads.fetched(ahead, self.head_at);
        (operation, time, false)
    }

    /// The next operation. `cached_may_wait`: what is in the cache is written only if nothing else
    /// waits.
    fn next(&self, now: Instant, cached_may_wait: bool) -> Option<Place> {
        let limit = |operation: &DriveOperation| match operation.access {
            Access::Read => READ_EXPIRES,
            Access::Write => WRITE_EXPIRES,
        };
        let waiting = || self.waiting.iter().enumerate().map(|(place, one)| (Place::Waiting(place), one));
        let expired = waiting().filter(|(_, one)| now.since(one.arrived) >= limit(one));
        if let Some((place, _)) = expired.min_by_key(|(_, one)| (one.arrived, one.start)) {
            return Some(place);
        }
        let with_cached = self.waiting.is_empty() || !cached_may_wait;
        let cached = self.cached.iter().enumerate().filter(|_| with_cached);
        let cached = cached.map(|(place, (_, one))| (Place::Cached(place), one));
        let all: Vec<(Place, &DriveOperation)> = waiting().chain(cached).collect();
        let upwards = all.iter().filter(|(_, one)| one.start >= self.head).min_by_key(|(_, one)| one.start);
        upwards.or_else(|| all.iter().min_by_key(|(_, one)| one.start)).map(|(place, _)| *place)
    }

    /// Until the head is where the operation begins.
    fn time_to(&self, model: &DriveModel, now: Instant, operation: &DriveOperation) -> Duration {
        let Some(gap) = operation.start.checked_sub(self.head) else { return model.positioning };
        let passing = transfer_time(gap, model.bytes_per_second);
        if passing >= model.positioning {
            return model.positioning;
        }
        if operation.access == Access::Read {
            // The drive has read on while it had nothing to do.
            return passing;
        }
        let pause = now.since(self.head_at).as_nanos();
        let turn = model.rotation.as_nanos().max(1);
        // How far the place still is, in time: what the pause has already brought past is a turn
        // away.
        let wait = (passing.as_nanos() + turn - pause % turn) % turn;
        Duration::from_nanos(u64::try_from(wait).unwrap_or(u64::MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KIB: u64 = 1 << 10;
    /// 128 KiB take 1.28 ms.
    const MODEL: DriveModel = DriveModel {
        positioning: Duration::from_millis(8),
        rotation: Duration::from_millis(8),
        bytes_per_second: 100_000 * KIB,
        write_cache_bytes: 0,
        read_ahead: None,
    };

    fn operation(start_kib: u64, access: Access) -> DriveOperation {
        DriveOperation { start: start_kib * KIB, bytes: 128 * KIB, access, group: 0, arrived: Instant(0) }
    }

    /// Serves all that waits, from `now` on; the places in order, and the time of each.
    fn served(drive: &mut Drive, mut now: Instant) -> Vec<(u64, Duration)> {
        let mut served = Vec::new();
        while let Some((operation, time, _)) = drive.begin(&MODEL, now) {
            now = now + time;
            served.push((operation.start / KIB, time));
        }
        served
    }

    #[test]
    fn what_waits_is_served_upwards_and_neighbours_cost_their_bytes_only() {
        let mut drive = Drive::default();
        for start in [1_000_128, 128, 1_000_000, 0, 256] {
            assert!(!drive.add(&MODEL, operation(start, Access::Write)));
        }
        let bytes = Duration::from_micros(1280);
        let far = bytes + MODEL.positioning;
        let expected = [(0, bytes), (128, bytes), (256, bytes), (1_000_000, far), (1_000_128, bytes)];
        assert_eq!(served(&mut drive, Instant(0)), expected);
        // And again from the lowest.
        assert!(!drive.add(&MODEL, operation(512, Access::Write)));
        assert_eq!(served(&mut drive, Instant(0)), [(512, far)]);
    }

    #[test]
    fn a_gap_is_passed_over_if_that_is_faster() {
        let mut drive = Drive::default();
        assert!(!drive.add(&MODEL, operation(400, Access::Read)));
        assert_eq!(served(&mut drive, Instant(0)), [(400, Duration::from_micros(4000 + 1280))]);
    }

    #[test]
    fn a_write_after_a_pause_waits_for_its_place_and_a_read_does_not() {
        let pause = |access, micros: u64| {
            let mut drive = Drive::default();
            assert!(!drive.add(&MODEL, operation(0, access)));
            let (_, first, _) = drive.begin(&MODEL, Instant(0)).unwrap();
            assert!(!drive.add(&MODEL, operation(128, access)));
            drive.begin(&MODEL, Instant(0) + first + Duration::from_micros(micros)).unwrap().1
        };
        let bytes = Duration::from_micros(1280);
        assert_eq!(pause(Access::Write, 0), bytes);
        assert_eq!(pause(Access::Write, 1000), bytes + Duration::from_millis(7));
        assert_eq!(pause(Access::Write, 9000), bytes + Duration::from_millis(7), "a turn later");
        assert_eq!(pause(Access::Read, 1000), bytes);
    }

    #[test]
    fn what_has_waited_too_long_goes_first() {
        let mut drive = Drive::default();
        assert!(!drive.add(&MODEL, operation(0, Access::Read)));
        drive.begin(&MODEL, Instant(0)).unwrap();
        assert!(!drive.add(&MODEL, operation(900_000, Access::Read)));
        let now = Instant(0) + READ_EXPIRES;
        assert!(!drive.add(&MODEL, DriveOperation { arrived: now, ..operation(128, Access::Read) }));
        assert_eq!(drive.begin(&MODEL, now).unwrap().0.start, 900_000 * KIB);
    }

    #[test]
    fn a_cache_takes_writes_at_once_and_sorts_them() {
        let model = DriveModel { write_cache_bytes: 512 * KIB, ..MODEL };
        let mut drive = Drive::default();
        for start in [256, 128, 384, 0] {
            assert!(drive.add(&model, operation(start, Access::Write)));
        }
        assert!(!drive.add(&model, operation(512, Access::Write)), "it is full");
        assert!(!drive.flush(7) && drive.flushed().is_empty());
        let mut now = Instant(0);
        let mut places = Vec::new();
        while let Some((operation, time, waits)) = drive.begin(&model, now) {
            now = now + time;
            places.push((operation.start / KIB, waits, drive.flushed()));
        }
        let expected = [
            (0, false, vec![]),
            (128, false, vec![]),
            (256, false, vec![]),
            (384, false, vec![7]),
            (512, true, vec![]),
        ];
        assert_eq!(places, expected);
        assert!(drive.flush(8), "nothing is in the cache");
    }

    #[test]
    fn reads_go_before_what_is_cached_until_the_cache_is_half_full() {
        let model = DriveModel { write_cache_bytes: 512 * KIB, ..MODEL };
        let mut drive = Drive::default();
        assert!(drive.add(&model, operation(0, Access::Write)));
        assert!(!drive.add(&model, operation(1000, Access::Read)));
        assert_eq!(drive.begin(&model, Instant(0)).unwrap().0.access, Access::Read);
        assert!(drive.add(&model, operation(128, Access::Write)));
        assert!(!drive.add(&model, operation(2000, Access::Read)));
        assert_eq!(drive.begin(&model, Instant(0)).unwrap().0.start, 2000 * KIB, "upwards from 1128");
        assert_eq!(drive.begin(&model, Instant(0)).unwrap().0.start, 0);
    }

    #[test]
    fn a_stream_that_is_read_ahead_costs_a_positioning_for_many_reads() {
        let read_ahead = ReadAheadModel { bytes: 512 * KIB, streams_max: 4, gap_bytes: 0 };
        let model = DriveModel { read_ahead: Some(read_ahead), ..MODEL };
        let bytes = Duration::from_micros(1280);
        let mut drive = Drive::default();
        let mut now = Instant(0);
        let mut times = Vec::new();
        // Two streams take turns.
        for call in 0..6 {
            for start in [call * 128, 1_000_000 + call * 128] {
                if drive.add(&model, DriveOperation { arrived: now, ..operation(start, Access::Read) }) {
                    times.push(Duration::ZERO);
                    continue;
                }
                while let Some((_, time, waits)) = drive.begin(&model, now) {
                    now = now + time;
                    if waits {
                        times.push(time);
                    }
                }
            }
        }
        let far = bytes + MODEL.positioning;
        let zero = Duration::ZERO;
        let expected = [bytes, far, far, far, zero, zero, zero, zero, zero, zero, zero, zero];
        assert_eq!(times, expected);
    }
}
