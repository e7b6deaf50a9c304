//! The writing side of the journal: where the next record goes, what waits to be written, what is
//! flushed. Pure bookkeeping without I/O; `store` performs the I/O that it requests.

use std::collections::VecDeque;

use bytes::{Bytes, BytesMut};

use super::{
    format::{
        Record, SEGMENT_HEADER_BYTES, SegmentHeader, operation_bytes, payload_bytes, payload_bytes_max, record_space,
    },
    logged::LoggedOperation,
};
use crate::batch::{Batch, Lsn, Table, Term};

/// A segment that is full, or was found at the start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sealed {
    pub slot: u32,
    /// Last batch in it.
    pub last: Lsn,
}

/// Bytes to be written to one segment, in one piece.
#[derive(Debug)]
pub(crate) struct Piece {
    pub slot: u32,
    pub offset: u64,
    pub bytes: Bytes,
}

/// Everything that was appended since the last group.
#[derive(Debug, Default)]
pub(crate) struct Group {
    pub pieces: Vec<Piece>,
    /// The last batch of the group.
    pub last: Lsn,
    /// Number of appended bytes since the start, up to the end of this group.
    pub end: u64,
}

/// Whether the next batch has a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BatchPlace {
    /// In the current segment.
    Current,
    /// In the next one.
    Next,
    /// Nowhere.
    None,
}

struct Pending {
    slot: u32,
    offset: u64,
    bytes: BytesMut,
}

/// The writing side.
pub(crate) struct Writer {
    store: u64,
    segment_bytes: u64,
    slot: u32,
    sequence: u64,
    /// Where the next record goes in the current segment.
    offset: u64,
    /// Segments ready to be written.
    ready: VecDeque<u32>,
    sealed: VecDeque<Sealed>,
    /// Files that exist but must be prepared again.
    unprepared: Vec<u32>,
    /// The lowest slot that never existed.
    slots_end: u32,
    pending: Vec<Pending>,
    /// An emptied buffer to be filled again: fresh memory costs more than the copy.
    spare: BytesMut,
    applied: Lsn,
    /// Of the batches that are appended. No copy of a store starts another one yet.
    term: Term,
    written: Lsn,
    flushed: Lsn,
    /// Flush position that the last record carries.
    announced: Lsn,
    appended_bytes: u64,
    /// Of these, the operations of each table.
    table_bytes: Vec<u64>,
    written_bytes: u64,
    /// Segments written since their last flush.
    unflushed: Vec<u32>,
}

/// What recovery found, for the writer to continue from.
pub(crate) struct Start {
    pub store: u64,
    pub segment_bytes: u64,
    pub last: Lsn,
    /// Its term.
    pub term: Term,
    /// Segments are numbered from the next on. Must never have been given out, not even to a
    /// segment that was lost.
    pub sequence: u64,
    pub sealed: VecDeque<Sealed>,
    pub ready: VecDeque<u32>,
    pub unprepared: Vec<u32>,
    pub slots_end: u32,
}

impl Writer {
    /// Goes on after what was recovered, in the first ready segment. There must be one.
    pub fn new(start: Start) -> Writer {
        let mut ready = start.ready;
        let slot = ready.pop_front().expect("recovery prepares a segment");
        let mut writer = Writer {
            store: start.store,
            segment_bytes: start.segment_bytes,
            slot,
            sequence: start.sequence,
            offset: 0,
            ready,
            sealed: start.sealed,
            unprepared: start.unprepared,
            slots_end: start.slots_end,
            pending: Vec::new(),
            spare: BytesMut::new(),
            applied: start.last,
            term: start.term,
            written: start.last,
            flushed: start.last,
            announced: start.last,
            appended_bytes: 0,
            table_bytes: vec![0; 1 + usize::from(u8::MAX)],
            written_bytes: 0,
            unflushed: Vec::new(),
        };
        writer.begin_segment(slot);
        writer
    }

    fn begin_segment(&mut self, slot: u32) {
        self.slot = slot;
        self.sequence += 1;
        self.offset = SEGMENT_HEADER_BYTES;
        let first = Lsn(self.applied.0 + 1);
        let header =
            SegmentHeader { store: self.store, sequence: self.sequence, first, segment_bytes: self.segment_bytes };
        let mut bytes = std::mem::take(&mut self.spare);
        bytes.extend_from_slice(&header.encode());
        self.pending.push(Pending { slot, offset: 0, bytes });
        self.appended_bytes += SEGMENT_HEADER_BYTES;
    }

    /// Largest payload a segment can take.
    pub fn payload_bytes_max(&self) -> u64 {
        self.segment_bytes - SEGMENT_HEADER_BYTES - record_space(0)
    }

    /// Bytes that can still be appended to allocated segments, waste at their ends not counted.
    pub fn free_bytes(&self) -> u64 {
        let ready = self.ready.len() as u64 * (self.segment_bytes - SEGMENT_HEADER_BYTES);
        self.segment_bytes - self.offset + ready
    }

    /// Where a batch would go if `reserve` bytes must stay free after it.
    pub fn place(&self, batch: &Batch, reserve: u64) -> BatchPlace {
        self.place_for(payload_bytes_max(batch), reserve)
    }

    /// As [`Writer::place`], of a batch with this many bytes.
    pub fn place_for(&self, payload_bytes: u64, reserve: u64) -> BatchPlace {
        let space = record_space(payload_bytes);
        let left = self.segment_bytes - self.offset;
        let ready = self.ready.len() as u64 * (self.segment_bytes - SEGMENT_HEADER_BYTES);
        if space <= left && left - space + ready >= reserve {
            BatchPlace::Current
        } else if space > left && ready >= space + reserve {
            BatchPlace::Next
        } else {
            BatchPlace::None
        }
    }

    /// Appends the operations of a batch for which there is room; its number.
    pub fn append(&mut self, operations: &[LoggedOperation]) -> Lsn {
        let payload_bytes = payload_bytes(operations);
        assert!(payload_bytes <= self.payload_bytes_max(), "the caller checks the limits");
        if record_space(payload_bytes) > self.segment_bytes - self.offset {
            let next = self.ready.pop_front().expect("the caller checks the room");
            self.sealed.push_back(Sealed { slot: self.slot, last: self.applied });
            self.begin_segment(next);
        }
        for operation in operations {
            self.table_bytes[usize::from(operation.table().0)] += operation_bytes(operation);
        }
        self.applied.0 += 1;
        self.push(payload_bytes as u32, operations);
        self.applied
    }

    /// Appends a mark that says what is flushed, if that is news and fits; the position to be
    /// written.
    pub fn append_mark(&mut self) -> Option<u64> {
        let news = self.announced < self.flushed && self.applied == self.flushed;
        if !news || record_space(0) > self.segment_bytes - self.offset {
            return None;
        }
        self.push(0, &[]);
        Some(self.appended_bytes)
    }

    fn push(&mut self, payload_bytes: u32, operations: &[LoggedOperation]) {
        let record = Record {
            lsn: self.applied,
            store: self.store,
            sequence: self.sequence,
            flushed: self.flushed,
            term: self.term,
            payload_bytes,
        };
        if self.pending.last().is_none_or(|pending| pending.slot != self.slot) {
            let bytes = std::mem::take(&mut self.spare);
            self.pending.push(Pending { slot: self.slot, offset: self.offset, bytes });
        }
        let pending = self.pending.last_mut().expect("just made sure");
        record.encode(operations, &mut pending.bytes);
        self.announced = self.flushed;
        self.offset += record.space();
        self.appended_bytes += record.space();
        assert!(self.offset <= self.segment_bytes, "records stay within their segment");
    }

    /// Takes everything that waits to be written. A group is taken only after the one before it was
    /// written.
    pub fn take_group(&mut self) -> Option<Group> {
        if self.pending.is_empty() {
            return None;
        }
        let pieces = self
            .pending
            .drain(..)
            .map(|pending| Piece { slot: pending.slot, offset: pending.offset, bytes: pending.bytes.freeze() })
            .collect();
        Some(Group { pieces, last: self.applied, end: self.appended_bytes })
    }

    /// The group is with the device.
    pub fn group_written(&mut self, group: Group) {
        assert!(group.last >= self.written && group.end > self.written_bytes, "groups are written in order");
        self.written = group.last;
        self.written_bytes = group.end;
        for piece in group.pieces {
            if !self.unflushed.contains(&piece.slot) {
                self.unflushed.push(piece.slot);
            }
            if let Ok(mut buffer) = piece.bytes.try_into_mut() {
                buffer.clear();
                if buffer.capacity() > self.spare.capacity() {
                    self.spare = buffer;
                }
            }
        }
    }

    /// Segments that must be flushed to make everything written durable.
    pub fn take_unflushed(&mut self) -> (Vec<u32>, Lsn) {
        (std::mem::take(&mut self.unflushed), self.written)
    }

    /// The flush up to there succeeded.
    pub fn flushed_to(&mut self, lsn: Lsn) {
        assert!(lsn >= self.flushed && lsn <= self.written, "flushes follow writes");
        self.flushed = lsn;
    }

    /// A segment that may be prepared next if fewer than `segments_max` exist; it belongs to the
    /// caller.
    pub fn claim_slot(&mut self, segments_max: u32) -> Option<u32> {
        let used = 1 + self.ready.len() + self.sealed.len();
        if used >= segments_max as usize {
            return None;
        }
        self.unprepared.pop().or_else(|| {
            self.slots_end += 1;
            Some(self.slots_end - 1)
        })
    }

    /// A claimed slot whose segment could not be prepared.
    pub fn give_back(&mut self, slot: u32) {
        self.unprepared.push(slot);
    }

    /// A prepared segment.
    pub fn add_ready(&mut self, slot: u32) {
        assert!(slot != self.slot && !self.ready.contains(&slot), "a segment has one use at a time");
        self.ready.push_back(slot);
    }

    /// Everything up to `lsn` is in the cold store: older segments may be used again.
    pub fn release(&mut self, lsn: Lsn) {
        assert!(lsn <= self.flushed, "only durable batches are checkpointed");
        while let Some(oldest) = self.sealed.front()
            && oldest.last <= lsn
        {
            self.ready.push_back(oldest.slot);
            self.sealed.pop_front();
        }
    }

    pub fn ready_segments(&self) -> usize {
        self.ready.len()
    }

    /// Segments with batches, the current one included.
    pub fn live_segments(&self) -> usize {
        1 + self.sealed.len()
    }

    /// Last batch accepted.
    pub fn applied(&self) -> Lsn {
        self.applied
    }

    /// Term of the last batch accepted.
    pub fn term(&self) -> Term {
        self.term
    }

    /// Last batch with the device.
    pub fn written(&self) -> Lsn {
        self.written
    }

    /// Last durable batch.
    pub fn flushed(&self) -> Lsn {
        self.flushed
    }

    /// Bytes appended since the start, with headers and padding.
    pub fn appended_bytes(&self) -> u64 {
        self.appended_bytes
    }

    /// Of these, the operations of each table that has some.
    pub fn table_bytes(&self) -> Vec<(Table, u64)> {
        let tables = (0..=u8::MAX).map(Table).zip(self.table_bytes.iter().copied());
        tables.filter(|(_, bytes)| *bytes > 0).collect()
    }

    /// Position up to which appended bytes are with the device.
    pub fn written_bytes(&self) -> u64 {
        self.written_bytes
    }
}
