//! How far a scrub has come, and what it found: key "scrub" of table META. It survives restarts.
//!
//! ```text
//! offset bytes
//!  0     1     version, 1
//!  1     1     0: running, 1: stopped, 2: completed, 3: failed
//!  2     12    when it began: seconds (8), nanoseconds (4)
//!  14    12    when it ended; zeros before
//!  26    8     blocks that were compared with their checksums
//!  34    8     damaged blocks
//!  42    8     damaged objects
//!  50    2     n, bytes of the key, or 0 before the first
//!  52    n     key in table CHUNKS that was looked at last
//!  ..    1     m, damaged ranges that are named, at most 100
//!  ..    29 m  object (13), first block (8), first block after it (8)
//! ```
//!
//! Numbers are little endian; an object is as in keys. Ranges are in the order of their objects.
//!
//! Invariant: chunks are looked at in the order of their keys, so the damage of an object is found
//! without that of another in between.

use std::{fmt::Write, ops::Range};

use types::{
    ObjectId, Timestamp,
    limits::BLOCK_BYTES,
    record::{DecodeError, RecordReader, RecordWriter},
};

use crate::tables::{OBJECT_KEY_BYTES, object_key, parse_object_key};

const VERSION: u8 = 1;
/// Ranges that are named, at most. All are counted.
pub const RANGES_MAX: usize = 100;

/// What a scrub does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ScrubStatus {
    /// It reads, also after a restart.
    #[default]
    Running,
    /// An administrator stopped it.
    Stopped,
    /// It has read everything.
    Completed,
    /// The tables could not be read.
    Failed,
}

impl ScrubStatus {
    /// Lustre's word for it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Running => "scanning",
            Self::Stopped => "stopped",
            Self::Completed => "completed",
            Self::Failed => "failed",
        }
    }
}

/// See the module documentation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ScrubRecord {
    /// What it does.
    pub status: ScrubStatus,
    /// When it began.
    pub begun: Timestamp,
    /// When it ended, if it has.
    pub ended: Timestamp,
    /// Blocks that were compared.
    pub blocks: u64,
    /// Those that do not have their checksums, or cannot be read.
    pub damaged_blocks: u64,
    /// Objects that have such blocks.
    pub damaged_objects: u64,
    /// The key that was looked at last.
    pub position: Vec<u8>,
    /// The first damaged blocks.
    ranges: Vec<(ObjectId, Range<u64>)>,
    /// The last object with damage, since the record was read.
    last_damaged: Option<ObjectId>,
}

impl ScrubRecord {
    /// One that begins.
    pub fn begin(now: Timestamp) -> Self {
        Self { begun: now, ..Self::default() }
    }

    /// Notes damaged blocks of an object, in order; whether they are its first.
    pub fn note_damage(&mut self, object: ObjectId, blocks: Range<u64>) -> bool {
        self.damaged_blocks += blocks.end - blocks.start;
        let last = self.last_damaged.or(self.ranges.last().map(|(last, _)| *last));
        let is_first = last != Some(object);
        self.last_damaged = Some(object);
        self.damaged_objects += u64::from(is_first);
        let is_full = self.ranges.len() >= RANGES_MAX;
        match self.ranges.last_mut() {
            Some((last, range)) if *last == object && range.end == blocks.start => range.end = blocks.end,
            _ if is_full => {}
            _ => self.ranges.push((object, blocks)),
        }
        is_first
    }

    /// The record's bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut writer = RecordWriter::new(VERSION);
        writer.u8(self.status as u8).time(self.begun).time(self.ended);
        writer.u64(self.blocks).u64(self.damaged_blocks).u64(self.damaged_objects).short_bytes(&self.position);
        writer.u8(self.ranges.len() as u8);
        for (object, blocks) in &self.ranges {
            writer.rest(&object_key(*object)).u64(blocks.start).u64(blocks.end);
        }
        writer.finish()
    }

    /// The record of these bytes.
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        let mut reader = RecordReader::new("scrub", bytes, VERSION)?;
        let status = match reader.u8()? {
            0 => ScrubStatus::Running,
            1 => ScrubStatus::Stopped,
            2 => ScrubStatus::Completed,
            3 => ScrubStatus::Failed,
            _ => return Err(reader.out_of_range("status")),
        };
        let (begun, ended) = (reader.time()?, reader.time()?);
        let (blocks, damaged_blocks, damaged_objects) = (reader.u64()?, reader.u64()?, reader.u64()?);
        let position = reader.short_bytes()?.to_vec();
        let mut ranges = Vec::new();
        for _ in 0..reader.u8()? {
            let object = parse_object_key(reader.take(OBJECT_KEY_BYTES)?);
            let (Some(object), start, end) = (object, reader.u64()?, reader.u64()?) else {
                return Err(reader.out_of_range("object"));
            };
            ranges.push((object, start..end));
        }
        reader.finish()?;
        let last_damaged = None;
        Ok(Self { status, begun, ended, blocks, damaged_blocks, damaged_objects, position, ranges, last_damaged })
    }

    /// A line for each number and each damaged range. `total`: blocks that hold data now.
    pub fn describe(&self, total: u64) -> String {
        let mut text = format!("{:<17}{}", "status", self.status.name());
        let percent = match self.status {
            ScrubStatus::Completed => 100,
            _ => self.blocks.saturating_mul(100).checked_div(total).unwrap_or(0).min(99),
        };
        for (name, value) in [
            ("time_started", self.begun.seconds),
            ("time_ended", self.ended.seconds),
            ("progress_pct", percent as i64),
            ("bytes_checked", self.blocks.saturating_mul(BLOCK_BYTES) as i64),
            ("damaged_blocks", self.damaged_blocks as i64),
            ("damaged_objects", self.damaged_objects as i64),
        ] {
            // Writing to a string does not fail.
            let _ = write!(text, "\n{name:<17}{value}");
        }
        for (object, blocks) in &self.ranges {
            let [start, end] = [blocks.start, blocks.end].map(|block| block.saturating_mul(BLOCK_BYTES));
            let _ = write!(text, "\n{:<17}object {object} bytes {start}..{end}", "damage");
        }
        let named: u64 = self.ranges.iter().map(|(_, blocks)| blocks.end.saturating_sub(blocks.start)).sum();
        if named < self.damaged_blocks {
            let _ = write!(text, "\n{:<17}{} blocks", "damage_unnamed", self.damaged_blocks - named);
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use types::InodeNumber;

    use super::*;

    fn object(number: u64) -> ObjectId {
        ObjectId::new(InodeNumber(number), 0)
    }

    #[test]
    fn a_record_round_trips_and_damage_is_an_error() {
        let mut record = ScrubRecord::begin(Timestamp { seconds: 77, nanoseconds: 5 });
        assert_eq!(ScrubRecord::decode(&record.encode()), Ok(record.clone()));
        assert!(record.note_damage(object(7), 3..5));
        (record.position, record.blocks, record.status) = (vec![1; 21], 99, ScrubStatus::Failed);
        let bytes = record.encode();
        record.last_damaged = None;
        assert_eq!(ScrubRecord::decode(&bytes), Ok(record));
        for length in 0..bytes.len() {
            assert!(ScrubRecord::decode(&bytes[..length]).is_err(), "{length}");
        }
        for (at, value) in [(0, 9), (1, 4), (73, 2)] {
            let mut other = bytes.clone();
            other[at] = value;
            assert!(ScrubRecord::decode(&other).is_err(), "byte {at}");
        }
    }

    #[test]
    fn each_object_counts_once_and_ranges_are_limited() {
        let mut record = ScrubRecord::default();
        assert!(record.note_damage(object(1), 0..1));
        assert!(!record.note_damage(object(1), 1..256), "the same one");
        let mut record = ScrubRecord::decode(&record.encode()).unwrap();
        assert!(!record.note_damage(object(1), 300..301), "also after a restart");
        for number in 2..=200 {
            assert!(record.note_damage(object(number), 0..2));
            assert!(!record.note_damage(object(number), 4..5));
        }
        assert_eq!((record.damaged_objects, record.damaged_blocks), (200, 257 + 199 * 3));
        let text = record.describe(0);
        assert!(text.contains(&format!("object {} bytes 0..1048576", object(1))), "{text}");
        assert_eq!(text.lines().filter(|line| line.starts_with("damage ")).count(), RANGES_MAX);
        assert!(text.contains("damage_unnamed"), "{text}");
    }

    #[test]
    fn progress_ends_with_the_scrub() {
        let mut record = ScrubRecord { blocks: 50, ..ScrubRecord::default() };
        assert!(record.describe(200).contains("progress_pct     25"));
        assert!(record.describe(20).contains("progress_pct     99"), "blocks were removed meanwhile");
        record.status = ScrubStatus::Completed;
        assert!(record.describe(0).contains("progress_pct     100"));
    }
}
