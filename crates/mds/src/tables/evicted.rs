//! EVICTED: clients whose session ended here and that may live. Key: client (8). Value, version 1:
//!
//! | offset | bytes | field |
//! |---|---|---|
//! | 0 | 1 | version = 1 |
//! | 1 | 1 | 1: OSTs refuse it permanently, 2: its lease may not have ended, 3: both |
//! | 2 | 12 | time of the eviction |
//!
//! A record is written with the end of the session. That its lease has ended is noted then: the
//! record stays if OSTs refuse the client, which has no session here any more, else it is removed.

use types::{
    FsResult, Timestamp,
    record::{RecordReader, RecordWriter},
};

const VERSION: u8 = 1;
const WHAT: &str = "evicted client";
const IS_REFUSED: u8 = 1;
const IS_LEASED: u8 = 2;

/// A client that was evicted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EvictedRecord {
    /// OSTs refuse it permanently, or are to be told so.
    pub is_refused: bool,
    /// It may still serve what it was granted: its lease has not ended, as far as is known.
    pub is_leased: bool,
    /// When its session ended.
    pub time: Timestamp,
}

impl EvictedRecord {
    /// The value.
    pub fn encode(&self) -> Vec<u8> {
        let refused = if self.is_refused { IS_REFUSED } else { 0 };
        let leased = if self.is_leased { IS_LEASED } else { 0 };
        RecordWriter::new(VERSION).u8(refused | leased).time(self.time).finish()
    }

    /// The record of a value.
    pub fn decode(value: &[u8]) -> FsResult<Self> {
        let mut reader = RecordReader::new(WHAT, value, VERSION)?;
        let (bits, time) = (reader.u8()?, reader.time()?);
        if !(IS_REFUSED..=IS_REFUSED | IS_LEASED).contains(&bits) {
            return Err(reader.out_of_range("what holds of it").into());
        }
        reader.finish()?;
        Ok(Self { is_refused: bits & IS_REFUSED != 0, is_leased: bits & IS_LEASED != 0, time })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn round_trips() {
        let time = Timestamp { seconds: 5, nanoseconds: 6 };
        for (is_refused, is_leased) in [(true, false), (false, true), (true, true)] {
            let record = EvictedRecord { is_refused, is_leased, time };
            assert_eq!(EvictedRecord::decode(&record.encode()), Ok(record));
        }
        let nothing = RecordWriter::new(VERSION).u8(0).time(time).finish();
        let unknown = RecordWriter::new(VERSION).u8(4).time(time).finish();
        let long = RecordWriter::new(VERSION).u8(1).time(time).u8(0).finish();
        assert!(
            [&[][..], &[1, 1], &nothing, &unknown, &long]
                .into_iter()
                .all(|value| EvictedRecord::decode(value).is_err())
        );
    }
}
