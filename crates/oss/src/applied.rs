//! Deferred operations of MDTs that this target has executed: table APPLIED.
//!
//! An MDT sends what is in its log for a target in order, again until it is answered, and after its
//! restarts once more whatever it could not strike off. Each operation has a sequence number, so
//! the target leaves out those that it has executed, across its own restarts too.
//!
//! The record follows the operations; it is not durable with the answer. If a power loss takes it,
//! and the MDT repeats them, they are executed again, which does nothing: objects are gone, and
//! their numbers are never used again. An MDT whose power-loss era is older than the recorded one
//! was restored from a backup: its sequence numbers are counted anew.
//!
//! Value, version 1, of the key MDT (2):
//!
//! ```text
//! offset bytes
//!  0     1    version, 1
//!  1     8    power-loss era of the MDT
//!  9     8    sequence number of the last operation that was executed
//! ```
//!
//! Downside: an MDT restored from a backup of the same era has its first operations left out;
//! `stria fsck` finds the objects that remain.

use std::collections::BTreeMap;

use bytes::Bytes;
use kv::{Batch, Store};
use parking_lot::Mutex;
use rpc::message::ost::DeferredOrigin;
use types::{
    MdtIndex,
    record::{DecodeError, RecordReader, RecordWriter},
};

use crate::tables::{APPLIED, mdt_key, parse_mdt_key};

const VERSION: u8 = 1;

/// How far one MDT's operations were executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AppliedRecord {
    /// Power-loss era of the MDT.
    pub era: u64,
    /// The last one.
    pub sequence: u64,
}

impl AppliedRecord {
    /// The record's bytes.
    pub fn encode(&self) -> Vec<u8> {
        RecordWriter::new(VERSION).u64(self.era).u64(self.sequence).finish()
    }

    /// The record of these bytes.
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        let mut reader = RecordReader::new("applied operations", bytes, VERSION)?;
        let record = Self { era: reader.u64()?, sequence: reader.u64()? };
        reader.finish()?;
        Ok(record)
    }

    /// How many of `count` operations it covers.
    fn covers(&self, origin: &DeferredOrigin, count: usize) -> usize {
        let counted = if origin.era == self.era { self.sequence.saturating_add(1) } else { 0 };
        let covered = counted.saturating_sub(origin.first);
        usize::try_from(covered).map_or(count, |covered| covered.min(count))
    }

    /// After these operations.
    fn after(self, origin: &DeferredOrigin, last: u64) -> Self {
        let counted_anew = origin.era != self.era;
        Self { era: origin.era, sequence: if counted_anew { last } else { self.sequence.max(last) } }
    }
}

/// See the module documentation.
#[derive(Default)]
pub(crate) struct Applied {
    records: Mutex<BTreeMap<MdtIndex, AppliedRecord>>,
}

impl Applied {
    /// Reads the table. A record that cannot be read counts as none: operations may be repeated.
    pub fn load(kv: &Store) -> Result<Self, kv::Error> {
        let mut records = BTreeMap::new();
        kv.scan(APPLIED, &[], None, &mut |key, value| {
            match (parse_mdt_key(key), AppliedRecord::decode(value)) {
                (Some(mdt), Ok(record)) => drop(records.insert(mdt, record)),
                (mdt, record) => tracing::warn!(?mdt, ?record, "a record of applied operations is damaged"),
            }
            true
        })?;
        Ok(Self { records: Mutex::new(records) })
    }

    /// How many operations at the beginning of a request were executed before.
    pub fn covered(&self, origin: Option<&DeferredOrigin>, count: usize) -> usize {
        let Some(origin) = origin else { return 0 };
        self.records.lock().get(&origin.source).map_or(0, |record| record.covers(origin, count))
    }

    /// All `count` operations of a request were executed, or are with this batch.
    pub fn note(&self, origin: Option<&DeferredOrigin>, count: usize, batch: &mut Batch) {
        let (Some(origin), Some(further)) = (origin, (count as u64).checked_sub(1)) else { return };
        let last = origin.first.saturating_add(further);
        let mut records = self.records.lock();
        let record = records.entry(origin.source).or_insert(AppliedRecord { era: origin.era, sequence: last });
        *record = record.after(origin, last);
        batch.put(APPLIED, Bytes::copy_from_slice(&mdt_key(origin.source)), record.encode());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ORIGIN: DeferredOrigin = DeferredOrigin { source: MdtIndex(1), first: 5, era: 2 };

    #[test]
    fn golden_bytes() {
        let record = AppliedRecord { era: 2, sequence: 0x0102 };
        let golden = [1, 2, 0, 0, 0, 0, 0, 0, 0, 2, 1, 0, 0, 0, 0, 0, 0];
        assert_eq!(record.encode(), golden);
        assert_eq!(AppliedRecord::decode(&golden), Ok(record));
        assert!((0..golden.len()).all(|length| AppliedRecord::decode(&golden[..length]).is_err()));
        assert!(AppliedRecord::decode(&[2; 17]).is_err());
    }

    #[test]
    fn what_was_executed_is_left_out() {
        let (applied, mut batch) = (Applied::default(), Batch::default());
        assert_eq!(applied.covered(Some(&ORIGIN), 3), 0);
        applied.note(Some(&ORIGIN), 3, &mut batch);
        assert_eq!(applied.covered(Some(&ORIGIN), 3), 3, "5, 6 and 7");
        assert_eq!(applied.covered(Some(&DeferredOrigin { first: 7, ..ORIGIN }), 3), 1, "7");
        assert_eq!(applied.covered(Some(&DeferredOrigin { first: 8, ..ORIGIN }), 3), 0);
        assert_eq!(
            applied.covered(Some(&DeferredOrigin { era: 3, ..ORIGIN }), 3),
            0,
            "in another era numbers may be used again"
        );
        assert_eq!(applied.covered(Some(&DeferredOrigin { source: MdtIndex(2), ..ORIGIN }), 3), 0);
        assert_eq!(applied.covered(None, 3), 0, "from fsck");
        let operations = batch.operations.len();
        applied.note(None, 3, &mut batch);
        applied.note(Some(&ORIGIN), 0, &mut batch);
        assert_eq!(batch.operations.len(), operations, "nothing was executed");
    }

    #[test]
    fn a_repetition_takes_nothing_back_and_a_restored_mdt_counts_anew() {
        let (applied, mut batch) = (Applied::default(), Batch::default());
        applied.note(Some(&DeferredOrigin { first: 9, ..ORIGIN }), 1, &mut batch);
        applied.note(Some(&ORIGIN), 2, &mut batch);
        assert_eq!(applied.covered(Some(&ORIGIN), 5), 5);
        let restored = DeferredOrigin { era: 1, ..ORIGIN };
        assert_eq!(applied.covered(Some(&restored), 2), 0);
        applied.note(Some(&restored), 2, &mut batch);
        assert_eq!(applied.covered(Some(&DeferredOrigin { first: 7, ..restored }), 1), 0);
    }
}
