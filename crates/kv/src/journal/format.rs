//! Bytes of the journal. All numbers are little-endian; all checksums are CRC-32C (iSCSI).
//!
//! Segment header, at offset 0, [`SEGMENT_HEADER_BYTES`] long, zeros after byte 64:
//!
//! | offset | bytes | content |
//! |---|---|---|
//! | 0 | 8 | magic `STRIAJNL` |
//! | 8 | 4 | format version, 3 |
//! | 12 | 4 | 0 |
//! | 16 | 8 | store id |
//! | 24 | 8 | sequence number of the segment: grows with each segment that is started, never reused |
//! | 32 | 8 | number of the first batch; batches of earlier segments from here on were cut |
//! | 40 | 8 | size of the segment |
//! | 48 | 12 | 0 |
//! | 60 | 4 | checksum of bytes 0..60 |
//!
//! Record, at multiples of 8, padded with zeros:
//!
//! | offset | bytes | content |
//! |---|---|---|
//! | 0 | 4 | checksum of bytes 4..48 + payload |
//! | 4 | 4 | bytes of the payload; 0 makes it a mark |
//! | 8 | 8 | number of the batch; of a mark: of the batch before it |
//! | 16 | 8 | store id |
//! | 24 | 8 | sequence number of the segment |
//! | 32 | 8 | every batch up to this one had been flushed when the record was made |
//! | 40 | 8 | term of the batch: never lower than that of the batch before it; 0 until stores are replicated |
//! | 48 | n | payload |
//!
//! Payload: operations one after the other:
//!
//! | offset | bytes | content |
//! |---|---|---|
//! | 0 | 1 | 1 put, 2 delete, 3 patch |
//! | 1 | 1 | table |
//! | 2 | 2 | bytes of the key |
//! | 4 | 4 | bytes of the value, 0 for a delete; of a patch: bytes that replace others in the value |
//! | 8 | 4 | patch only: where in the value |
//! | 12 | 4 | patch only: bytes that are replaced |
//! | 16 | 4 | patch only: checksum of the whole value afterwards |
//! | 8 or 20 | n | key, value |
//!
//! A patch changes the value that the key has by an operation before it, after the last checkpoint
//! that was begun before it. A segment of version 2 has none.
//!
//! Version history: 1, first; 2, terms; 3, patches.

use bytes::{BufMut, Bytes, BytesMut};
use crc_fast::{CrcAlgorithm, Digest};

use super::{logged::LoggedOperation, patch::Patch};
use crate::{
    batch::{Batch, Lsn, Operation, Table, Term},
    config::{BATCH_BYTES_MAX, KEY_BYTES_MAX, VALUE_BYTES_MAX},
};

/// Version of the journal's format.
pub const FORMAT_VERSION: u32 = 3;
/// The oldest version that is read: without patches, else the same.
const FORMAT_VERSION_MIN: u32 = 2;
/// Space of a segment's header: a page, so that records begin on one.
pub const SEGMENT_HEADER_BYTES: u64 = 4096;
/// Bytes of a record in front of its payload.
pub const RECORD_HEADER_BYTES: usize = 48;
/// Records begin at multiples of this.
pub const RECORD_ALIGNMENT: u64 = 8;
/// Highest number of a batch or segment that can be: counting up from it never overflows.
pub const NUMBER_MAX: u64 = 1 << 62;
/// Bytes of an operation in front of its key.
const OPERATION_HEADER_BYTES: usize = 8;
/// Further ones of a patch.
const PATCH_HEADER_BYTES: usize = 12;
const MAGIC: &[u8; 8] = b"STRIAJNL";
/// Bytes of the segment header with content.
const HEADER_CONTENT_BYTES: usize = 64;
const PUT: u8 = 1;
const DELETE: u8 = 2;
const PATCH: u8 = 3;

const _: () = assert!(RECORD_HEADER_BYTES.is_multiple_of(RECORD_ALIGNMENT as usize), "marks keep the alignment");
const _: () = assert!(SEGMENT_HEADER_BYTES.is_multiple_of(RECORD_ALIGNMENT), "the first record is aligned");

/// Header of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentHeader {
    /// Store it belongs to.
    pub store: u64,
    /// Sequence number.
    pub sequence: u64,
    /// First batch in it.
    pub first: Lsn,
    /// Size of the segment.
    pub segment_bytes: u64,
}

/// What is where a segment's header should be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeaderState {
    /// A header.
    Valid(SegmentHeader),
    /// A header of a version that this program does not know.
    UnknownVersion(u32),
    /// Nothing yet: zeros, or a file too short.
    Blank,
    /// Something else: torn or damaged.
    Invalid,
}

/// CRC-32C of some pieces as if they were one.
pub(crate) fn checksum(pieces: &[&[u8]]) -> u32 {
    let mut digest = Digest::new(CrcAlgorithm::Crc32Iscsi);
    for piece in pieces {
        digest.update(piece);
    }
    digest.finalize() as u32
}

pub(crate) fn read_u32(buffer: &[u8], offset: usize) -> u32 {
    u32::from_le_bytes(buffer[offset..offset + 4].try_into().expect("four bytes"))
}

pub(crate) fn read_u64(buffer: &[u8], offset: usize) -> u64 {
    u64::from_le_bytes(buffer[offset..offset + 8].try_into().expect("eight bytes"))
}

impl SegmentHeader {
    /// The header's bytes with the zeros after.
    pub fn encode(&self) -> [u8; SEGMENT_HEADER_BYTES as usize] {
        let mut page = [0; SEGMENT_HEADER_BYTES as usize];
        page[0..8].copy_from_slice(MAGIC);
        page[8..12].copy_from_slice(&FORMAT_VERSION.to_le_bytes());
        page[16..24].copy_from_slice(&self.store.to_le_bytes());
        page[24..32].copy_from_slice(&self.sequence.to_le_bytes());
        page[32..40].copy_from_slice(&self.first.0.to_le_bytes());
        page[40..48].copy_from_slice(&self.segment_bytes.to_le_bytes());
        let sum = checksum(&[&page[..60]]);
        page[60..64].copy_from_slice(&sum.to_le_bytes());
        page
    }

    /// Judges the beginning of a segment.
    pub fn decode(page: &[u8]) -> HeaderState {
        if page.len() < HEADER_CONTENT_BYTES || page[..HEADER_CONTENT_BYTES].iter().all(|byte| *byte == 0) {
            return HeaderState::Blank;
        }
        if &page[0..8] != MAGIC || read_u32(page, 60) != checksum(&[&page[..60]]) {
            return HeaderState::Invalid;
        }
        if !(FORMAT_VERSION_MIN..=FORMAT_VERSION).contains(&read_u32(page, 8)) {
            return HeaderState::UnknownVersion(read_u32(page, 8));
        }
        let header = SegmentHeader {
            store: read_u64(page, 16),
            sequence: read_u64(page, 24),
            first: Lsn(read_u64(page, 32)),
            segment_bytes: read_u64(page, 40),
        };
        let possible = (1..=NUMBER_MAX).contains(&header.first.0) && header.sequence <= NUMBER_MAX;
        if possible { HeaderState::Valid(header) } else { HeaderState::Invalid }
    }
}

/// A record that verifies; the payload is in the buffer it was found in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record {
    /// Number of the batch.
    pub lsn: Lsn,
    /// Store it belongs to.
    pub store: u64,
    /// Sequence number of its segment.
    pub sequence: u64,
    /// What had been flushed when it was made.
    pub flushed: Lsn,
    /// Term of the batch; of a mark: that of the batch before it.
    pub term: Term,
    /// Bytes of the payload; 0 is a mark.
    pub payload_bytes: u32,
}

impl Record {
    /// The record at the beginning of `buffer`, if it verifies.
    pub fn decode(buffer: &[u8]) -> Option<Record> {
        let header = buffer.get(..RECORD_HEADER_BYTES)?;
        let payload_bytes = read_u32(header, 4);
        if u64::from(payload_bytes) > BATCH_BYTES_MAX {
            return None;
        }
        let content = buffer.get(4..RECORD_HEADER_BYTES + payload_bytes as usize)?;
        if read_u32(header, 0) != checksum(&[content]) {
            return None;
        }
        Some(Record {
            lsn: Lsn(read_u64(header, 8)),
            store: read_u64(header, 16),
            sequence: read_u64(header, 24),
            flushed: Lsn(read_u64(header, 32)),
            term: Term(read_u64(header, 40)),
            payload_bytes,
        })
    }

    /// Whether it holds no batch.
    pub fn is_mark(&self) -> bool {
        self.payload_bytes == 0
    }

    /// Bytes from this record to the next.
    pub fn space(&self) -> u64 {
        record_space(u64::from(self.payload_bytes))
    }

    /// Appends the record, whose `payload_bytes` are encoded from `operations` (none for a mark),
    /// with its padding.
    pub fn encode(&self, operations: &[LoggedOperation], into: &mut BytesMut) {
        let start = into.len();
        into.reserve(self.space() as usize);
        into.put_u32_le(0);
        into.put_u32_le(self.payload_bytes);
        into.put_u64_le(self.lsn.0);
        into.put_u64_le(self.store);
        into.put_u64_le(self.sequence);
        into.put_u64_le(self.flushed.0);
        into.put_u64_le(self.term.0);
        for operation in operations {
            encode_operation(operation, into);
        }
        let end = into.len();
        assert_eq!(
            end - start,
            RECORD_HEADER_BYTES + self.payload_bytes as usize,
            "the payload has the size announced"
        );
        let sum = checksum(&[&into[start + 4..end]]);
        into[start..start + 4].copy_from_slice(&sum.to_le_bytes());
        into.put_bytes(0, self.space() as usize - (end - start));
    }
}

/// Space of a record with a payload of this size.
pub fn record_space(payload_bytes: u64) -> u64 {
    (RECORD_HEADER_BYTES as u64 + payload_bytes).next_multiple_of(RECORD_ALIGNMENT)
}

/// Size of the payload of these operations.
pub fn payload_bytes(operations: &[LoggedOperation]) -> u64 {
    operations.iter().map(operation_bytes).sum()
}

/// Size of an operation in a payload.
pub fn operation_bytes(operation: &LoggedOperation) -> u64 {
    let bytes = match operation {
        LoggedOperation::Whole(operation) => OPERATION_HEADER_BYTES + operation.bytes(),
        LoggedOperation::Patched(_, key, patch) => {
            OPERATION_HEADER_BYTES + PATCH_HEADER_BYTES + key.len() + patch.inserted.len()
        }
    };
    bytes as u64
}

/// Most that the payload of a batch may have: with all of its values.
pub fn payload_bytes_max(batch: &Batch) -> u64 {
    batch.operations.iter().map(|operation| (OPERATION_HEADER_BYTES + operation.bytes()) as u64).sum()
}

fn encode_operation(operation: &LoggedOperation, into: &mut BytesMut) {
    let (kind, value): (u8, &[u8]) = match operation {
        LoggedOperation::Whole(Operation::Put(_, _, value)) => (PUT, value),
        LoggedOperation::Whole(Operation::Delete(..)) => (DELETE, &[]),
        LoggedOperation::Patched(_, _, patch) => (PATCH, &patch.inserted),
    };
    let (table, key) = (operation.table(), operation.key());
    into.put_u8(kind);
    into.put_u8(table.0);
    into.put_u16_le(key.len() as u16);
    into.put_u32_le(value.len() as u32);
    if let LoggedOperation::Patched(_, _, Patch { offset, removed, checksum, .. }) = operation {
        [offset, removed, checksum].into_iter().for_each(|number| into.put_u32_le(*number));
    }
    into.put_slice(key);
    into.put_slice(value);
}

/// The operations of a payload, whose memory they share.
pub fn decode_batch(mut payload: Bytes) -> Result<Vec<LoggedOperation>, &'static str> {
    let mut operations = Vec::new();
    while !payload.is_empty() {
        if payload.len() < OPERATION_HEADER_BYTES {
            return Err("an operation is cut off");
        }
        let header = payload.split_to(OPERATION_HEADER_BYTES);
        let key_bytes = usize::from(u16::from_le_bytes([header[2], header[3]]));
        let value_bytes = read_u32(&header, 4) as usize;
        if key_bytes > KEY_BYTES_MAX || value_bytes > VALUE_BYTES_MAX {
            return Err("a key or value is above its limit");
        }
        let patched = header[0] == PATCH;
        if patched && payload.len() < PATCH_HEADER_BYTES {
            return Err("an operation is cut off");
        }
        let patch = payload.split_to(if patched { PATCH_HEADER_BYTES } else { 0 });
        if payload.len() < key_bytes + value_bytes {
            return Err("a key or value is cut off");
        }
        let key = payload.split_to(key_bytes);
        let value = payload.split_to(value_bytes);
        let table = Table(header[1]);
        operations.push(match header[0] {
            PUT => LoggedOperation::Whole(Operation::Put(table, key, value)),
            DELETE if value.is_empty() => LoggedOperation::Whole(Operation::Delete(table, key)),
            PATCH => {
                let number = |at| read_u32(&patch, at);
                let patch = Patch { offset: number(0), removed: number(4), checksum: number(8), inserted: value };
                LoggedOperation::Patched(table, key, patch)
            }
            _ => return Err("an operation is of unknown kind"),
        });
    }
    Ok(operations)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> (Record, Vec<LoggedOperation>, BytesMut) {
        let mut batch = Batch::default();
        batch.put(Table(1), &b"key"[..], &b"value"[..]);
        batch.delete(Table(200), &b"gone"[..]);
        let mut batch: Vec<_> = batch.operations.iter().map(|one| LoggedOperation::new(one, None)).collect();
        let patch = Patch { offset: 9, removed: 2, checksum: 0x0403_0201, inserted: Bytes::from_static(b"new") };
        batch.push(LoggedOperation::Patched(Table(2), Bytes::from_static(b"old"), patch));
        let record = Record {
            lsn: Lsn(7),
            store: 0x1122_3344_5566_7788,
            sequence: 3,
            flushed: Lsn(5),
            term: Term(6),
            payload_bytes: payload_bytes(&batch) as u32,
        };
        let mut bytes = BytesMut::new();
        record.encode(&batch, &mut bytes);
        (record, batch, bytes)
    }

    #[test]
    fn a_record_survives_its_encoding() {
        let (record, batch, bytes) = sample();
        assert_eq!(bytes.len() as u64, record.space());
        assert_eq!(Record::decode(&bytes), Some(record));
        let end = RECORD_HEADER_BYTES + record.payload_bytes as usize;
        assert_eq!(decode_batch(bytes.freeze().slice(RECORD_HEADER_BYTES..end)), Ok(batch));
    }

    #[test]
    fn the_bytes_of_a_record_are_those_of_the_table() {
        let (_, _, bytes) = sample();
        let text: String = bytes[4..RECORD_HEADER_BYTES].iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(
            text,
            "36000000070000000000000088776655443322110300000000000000".to_owned() + "05000000000000000600000000000000"
        );
        assert_eq!(bytes[RECORD_HEADER_BYTES..RECORD_HEADER_BYTES + 16], *b"\x01\x01\x03\0\x05\0\0\0keyvalue");
        assert_eq!(bytes[RECORD_HEADER_BYTES + 16..RECORD_HEADER_BYTES + 28], *b"\x02\xc8\x04\0\0\0\0\0gone");
        let patch = b"\x03\x02\x03\0\x03\0\0\0\x09\0\0\0\x02\0\0\0\x01\x02\x03\x04oldnew";
        assert_eq!(bytes[RECORD_HEADER_BYTES + 28..RECORD_HEADER_BYTES + 54], *patch);
    }

    #[test]
    fn every_flipped_bit_is_noticed() {
        let (record, _, bytes) = sample();
        for bit in 0..(RECORD_HEADER_BYTES + record.payload_bytes as usize) * 8 {
            let mut damaged = bytes.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(Record::decode(&damaged), None, "bit {bit}");
        }
    }

    #[test]
    fn every_flipped_bit_of_a_header_is_noticed() {
        let header = SegmentHeader { store: 1, sequence: 2, first: Lsn(3), segment_bytes: 4096 * 4 };
        let page = header.encode();
        assert_eq!(SegmentHeader::decode(&page), HeaderState::Valid(header));
        for bit in 0..HEADER_CONTENT_BYTES * 8 {
            let mut damaged = page;
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(SegmentHeader::decode(&damaged), HeaderState::Invalid, "bit {bit}");
        }
        for first in [0, NUMBER_MAX + 1] {
            let impossible = SegmentHeader { first: Lsn(first), ..header };
            assert_eq!(SegmentHeader::decode(&impossible.encode()), HeaderState::Invalid, "batches begin with 1");
        }
        for (version, expected) in
            [(1, HeaderState::UnknownVersion(1)), (2, HeaderState::Valid(header)), (4, HeaderState::UnknownVersion(4))]
        {
            let mut other = page;
            other[8] = version;
            let sum = checksum(&[&other[..60]]);
            other[60..64].copy_from_slice(&sum.to_le_bytes());
            assert_eq!(SegmentHeader::decode(&other), expected);
        }
        assert_eq!(SegmentHeader::decode(&[0; 4096]), HeaderState::Blank);
        assert_eq!(SegmentHeader::decode(&[]), HeaderState::Blank);
    }

    #[test]
    fn nonsense_payloads_are_errors() {
        for payload in [
            &b"\x01"[..],
            b"\x03\0\0\0\0\0\0\0",
            b"\x04\0\0\0\0\0\0\0",
            b"\x01\0\xff\xff\0\0\0\0",
            b"\x02\0\x01\0\x01\0\0\0kv",
        ] {
            assert!(decode_batch(Bytes::from_static(payload)).is_err(), "{payload:?}");
        }
    }
}
