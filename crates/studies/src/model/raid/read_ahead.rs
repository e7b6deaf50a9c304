//! What an array's cache does for reads: of each stream that a drive sees, it reads on for some
//! bytes while the head is there, and serves the reads that follow from memory.
//!
//! A stream is known by where its next read begins; parity that lies between its chunks is passed
//! over. The least recently used stream is forgotten. Downside: what is read ahead is in memory
//! only when all of it is, and a stream has it on each drive by itself.

use std::{collections::VecDeque, ops::Range};

use rt::Instant;

/// Parameters of read-ahead.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
pub struct ReadAheadModel {
    /// Bytes that a drive reads on for a stream.
    pub bytes: u64,
    /// Streams that are followed on a drive.
    pub streams_max: usize,
    /// Bytes between two reads of a stream, at most: parity.
    pub gap_bytes: u64,
}

/// What a stream's reads got from the drive last.
#[derive(Debug)]
struct Stream {
    held: Range<u64>,
    ready: Instant,
}

/// Streams of one drive, least recently used first.
#[derive(Debug, Default)]
pub struct ReadAhead {
    streams: VecDeque<Stream>,
}

impl ReadAhead {
    /// Whether these bytes are in memory.
    pub fn holds(&mut self, bytes: &Range<u64>, now: Instant) -> bool {
        let holds =
            |stream: &Stream| stream.ready <= now && stream.held.start <= bytes.start && bytes.end <= stream.held.end;
        let Some(place) = self.streams.iter().position(holds) else { return false };
        if let Some(stream) = self.streams.remove(place) {
            self.streams.push_back(stream);
        }
        true
    }

    /// The drive has read these bytes: what it reads on, if they continue a stream.
    pub fn read(&mut self, model: &ReadAheadModel, bytes: Range<u64>, ready: Instant) -> Option<Range<u64>> {
        let continues =
            |stream: &Stream| (stream.held.start..=stream.held.end + model.gap_bytes).contains(&bytes.start);
        let known = self.streams.iter().position(continues).and_then(|place| self.streams.remove(place));
        if known.is_none() && self.streams.len() >= model.streams_max {
            self.streams.pop_front();
        }
        let ahead = known.is_some().then(|| bytes.end..bytes.end + model.bytes);
        self.streams.push_back(Stream { held: bytes, ready });
        ahead
    }

    /// What [`ReadAhead::read`] has asked for will be in memory then.
    pub fn fetched(&mut self, ahead: Range<u64>, ready: Instant) {
        if let Some(stream) = self.streams.iter_mut().find(|stream| stream.held.end == ahead.start) {
            stream.held.end = ahead.end;
            stream.ready = ready;
        }
    }

    /// These bytes are written, so what memory holds of them is no longer true.
    pub fn forget(&mut self, written: &Range<u64>) {
        self.streams.retain(|stream| stream.held.end <= written.start || written.end <= stream.held.start);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MODEL: ReadAheadModel = ReadAheadModel { bytes: 1000, streams_max: 2, gap_bytes: 20 };

    #[test]
    fn a_stream_is_read_ahead_from_its_second_read_on() {
        let mut ahead = ReadAhead::default();
        let now = Instant(0);
        assert_eq!(ahead.read(&MODEL, 0..10, now), None);
        assert!(!ahead.holds(&(10..20), now));
        assert_eq!(ahead.read(&MODEL, 30..40, now), Some(40..1040), "parity is passed over");
        let ready = Instant(5);
        ahead.fetched(40..1040, ready);
        assert!(!ahead.holds(&(40..50), now), "it is on its way");
        assert!(ahead.holds(&(1030..1040), ready) && !ahead.holds(&(1035..1045), ready));
        assert_eq!(ahead.read(&MODEL, 1040..1050, ready), Some(1050..2050));
        ahead.forget(&(1045..1046));
        assert!(!ahead.holds(&(1040..1050), ready), "it is written");
    }

    #[test]
    fn the_stream_that_was_used_least_recently_is_forgotten() {
        let mut ahead = ReadAhead::default();
        let now = Instant(0);
        for start in [0, 5000] {
            ahead.read(&MODEL, start..start + 10, now);
        }
        assert!(ahead.holds(&(0..10), now));
        ahead.read(&MODEL, 9000..9010, now);
        assert!(ahead.holds(&(0..10), now) && !ahead.holds(&(5000..5010), now));
        assert_eq!(ahead.read(&MODEL, 5010..5020, now), None, "it begins again");
    }
}
