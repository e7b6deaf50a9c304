//! Reading the journal back after a start, clean or not.
//!
//! Segments are read in the order of their sequence numbers, from the one that holds the first
//! batch after the checkpoint. In each, records must carry consecutive numbers; a segment is left
//! when the next one's first batch is reached, because the rest of it was cut off by an earlier
//! recovery. The first record that does not verify ends the journal.
//!
//! Then the bytes after the end, later segments, and segments without a readable header are
//! searched for any record of this store that was made when a missing batch had already been
//! flushed. A power loss cannot cause this; so if there is such a record, the medium lost or
//! changed durable data, and recovery refuses to continue.
//!
//! Downside: damage to the last durable batches is taken for a torn tail if nothing was ever
//! written after their flush. Marks, written after a flush when the store becomes idle, make that
//! window small.

use std::collections::VecDeque;

use bytes::Bytes;
use rt::Device;

use super::{
    SEGMENT_PREFIX,
    format::{
        FORMAT_VERSION, HeaderState, RECORD_ALIGNMENT, RECORD_HEADER_BYTES, Record, SEGMENT_HEADER_BYTES,
        SegmentHeader, decode_batch, read_u64,
    },
    logged::LoggedOperation,
    segment_name, segment_slot,
    writer::Sealed,
};
use crate::{
    batch::{Lsn, Term},
    cold::Checkpoint,
    error::{Error, Result},
};

/// A segment file as it was found.
#[derive(Debug)]
pub(crate) struct Found {
    pub slot: u32,
    pub bytes: u64,
    pub header: HeaderState,
}

impl Found {
    pub fn name(&self) -> String {
        segment_name(self.slot)
    }

    /// See [`recover`].
    fn is_prepared(&self, prepared_bytes: Option<u64>) -> bool {
        match self.header {
            HeaderState::Valid(_) => true,
            HeaderState::Blank => prepared_bytes == Some(self.bytes),
            HeaderState::UnknownVersion(_) | HeaderState::Invalid => false,
        }
    }
}

/// The result of a recovery, apart from the batches.
#[derive(Debug)]
pub(crate) struct Recovered {
    /// Last batch of the journal, or the checkpoint if that is later.
    pub last: Lsn,
    /// Its term.
    pub term: Term,
    /// Highest sequence number in use.
    pub sequence: u64,
    /// Segments with batches after the checkpoint.
    pub sealed: VecDeque<Sealed>,
    /// Their slots, and how many bytes of each were read.
    pub contents: Vec<(u32, u64)>,
    /// Segments without, and whether they were prepared in full: they have a header, or are of full
    /// length where that tells.
    pub free: Vec<(u32, bool)>,
    /// Those of them whose header speaks of batches that were cut, and must be wiped before
    /// anything is written.
    pub discarded: Vec<u32>,
    pub slots_end: u32,
}

/// Lists segments and reads their headers.
pub(crate) async fn find_segments(device: &dyn Device) -> Result<Vec<Found>> {
    let names = device.list(SEGMENT_PREFIX).await.map_err(|error| Error::device("list", SEGMENT_PREFIX, error))?;
    let mut found = Vec::new();
    for name in names {
        let Some(slot) = segment_slot(&name) else { continue };
        let length = device.length(&name).await.map_err(|error| Error::device("examine", &name, error))?;
        let page = read_range(device, &name, 0, SEGMENT_HEADER_BYTES).await?;
        found.push(Found { slot, bytes: length.unwrap_or(0), header: SegmentHeader::decode(&page) });
    }
    Ok(found)
}

/// Bytes of a file, fewer at its end.
pub(crate) async fn read_range(device: &dyn Device, name: &str, offset: u64, bytes: u64) -> Result<Vec<u8>> {
    let buffer = vec![0; bytes as usize];
    let (mut buffer, count) =
        device.read(name, offset, buffer).await.map_err(|error| Error::device("read", name, error))?;
    buffer.truncate(count);
    Ok(buffer)
}

/// What takes a recovered batch, or says what is wrong with it.
pub(crate) type Replay<'a> = dyn FnMut(Lsn, Vec<LoggedOperation>) -> std::result::Result<(), &'static str> + Send + 'a;

/// Reads the journal after `checkpoint`, hands every batch after it to `replay`, in order. A
/// segment that nothing was written to yet was prepared in full if it has `prepared_bytes`.
pub(crate) async fn recover(
    device: &dyn Device,
    store: u64,
    checkpoint: Checkpoint,
    prepared_bytes: Option<u64>,
    replay: &mut Replay<'_>,
) -> Result<Recovered> {
    let found = find_segments(device).await?;
    let live = order_segments(judge_headers(&found, store)?)?;
    let mut reader = Reader {
        device,
        store,
        checkpoint,
        term: Term(0),
        expected: Lsn(checkpoint.lsn.0 + 1),
        sealed: VecDeque::new(),
        contents: Vec::new(),
        after: Vec::new(),
        end: None,
    };
    // The segment to begin with: the last whose first batch is not after the one wanted.
    let begin = live.iter().rposition(|(_, header)| header.first <= reader.expected);
    if let Some(begin) = begin {
        reader.read_all(&live[begin..], replay).await?;
    }
    let unread = &live[begin.unwrap_or(0)..];
    let headless = found.iter().filter(|found| matches!(found.header, HeaderState::Invalid | HeaderState::Blank));
    reader.search_evidence(unread.iter().map(|(found, _)| *found).chain(headless)).await?;
    let ahead = unread.iter().filter(|(_, header)| header.first >= reader.expected);
    Ok(Recovered {
        last: Lsn(reader.expected.0 - 1),
        term: reader.term.max(checkpoint.term),
        sequence: live.last().map_or(0, |(_, header)| header.sequence),
        discarded: ahead.map(|(found, _)| found.slot).collect(),
        free: found
            .iter()
            .filter(|found| !reader.sealed.iter().any(|sealed| sealed.slot == found.slot))
            .map(|found| (found.slot, found.is_prepared(prepared_bytes)))
            .collect(),
        slots_end: found.iter().map(|found| found.slot + 1).max().unwrap_or(0),
        contents: reader.contents,
        sealed: reader.sealed,
    })
}

type Headed<'a> = (&'a Found, SegmentHeader);

/// Sorts segments by sequence. Their first batches then grow as well, since headers of batches that
/// were cut are wiped before a new segment is begun.
fn order_segments(mut live: Vec<Headed<'_>>) -> Result<Vec<Headed<'_>>> {
    live.sort_by_key(|(_, header)| header.sequence);
    for pair in live.windows(2) {
        let [(_, one), (found, other)] = pair else { unreachable!("windows of two") };
        if one.sequence == other.sequence || one.first >= other.first {
            let reason = format!(
                "segment {} does not begin after batch {}, where an earlier one begins",
                other.sequence, one.first.0
            );
            return Err(corrupt(found, 0, reason));
        }
    }
    Ok(live)
}

/// Segments with a header, or the reason why the journal must not be touched.
fn judge_headers(found: &[Found], store: u64) -> Result<Vec<Headed<'_>>> {
    let mut live = Vec::new();
    for found in found {
        match found.header {
            HeaderState::Valid(header) if header.store == store => live.push((found, header)),
            HeaderState::Valid(header) => {
                return Err(Error::WrongStore { file: found.name(), found: header.store, expected: store });
            }
            HeaderState::UnknownVersion(version) => {
                return Err(Error::UnknownVersion { file: found.name(), found: version, supported: FORMAT_VERSION });
            }
            HeaderState::Blank | HeaderState::Invalid => {}
        }
    }
    Ok(live)
}

fn corrupt(found: &Found, offset: u64, reason: String) -> Error {
    Error::Corrupt { file: found.name(), offset, reason }
}

struct Reader<'a> {
    device: &'a dyn Device,
    store: u64,
    checkpoint: Checkpoint,
    /// Term of the last record.
    term: Term,
    /// Number of the next batch.
    expected: Lsn,
    sealed: VecDeque<Sealed>,
    /// See [`Recovered`].
    contents: Vec<(u32, u64)>,
    /// Segments that were read, and of the records after the end of each the one that says most of
    /// what was flushed, with its offset.
    after: Vec<(u32, Option<(u64, Record)>)>,
    /// Where the journal ended.
    end: Option<(String, u64)>,
}

impl Reader<'_> {
    async fn read_all(&mut self, segments: &[Headed<'_>], replay: &mut Replay<'_>) -> Result<()> {
        for (index, (found, header)) in segments.iter().enumerate() {
            if index == 0 {
                self.expected = header.first;
            } else if header.first != self.expected {
                break;
            }
            let cut = segments.get(index + 1).map_or(Lsn(u64::MAX), |(_, next)| next.first);
            let before = self.expected;
            self.read_segment(found, header, cut, replay).await?;
            let last = Lsn(self.expected.0 - 1);
            if self.expected > before && last > self.checkpoint.lsn {
                self.sealed.push_back(Sealed { slot: found.slot, last });
                self.contents.extend(self.end.iter().map(|(_, end)| (found.slot, *end)));
            }
        }
        self.expected = self.expected.max(Lsn(self.checkpoint.lsn.0 + 1));
        Ok(())
    }

    /// Reads one segment up to the batch where it was cut or to its end.
    async fn read_segment(
        &mut self,
        found: &Found,
        header: &SegmentHeader,
        cut: Lsn,
        replay: &mut Replay<'_>,
    ) -> Result<()> {
        let content = Bytes::from(read_range(self.device, &found.name(), 0, found.bytes).await?);
        let mut offset = SEGMENT_HEADER_BYTES;
        while self.expected < cut {
            let Some(record) = self.record_at(&content, offset, header.sequence) else { break };
            let newest = if record.lsn > self.checkpoint.lsn { self.term.max(self.checkpoint.term) } else { self.term };
            if record.term < newest {
                let reason = format!("batch {} is of term {}, after term {}", record.lsn.0, record.term.0, newest.0);
                return Err(corrupt(found, offset, reason));
            }
            self.term = record.term;
            if !record.is_mark() {
                let start = offset as usize + RECORD_HEADER_BYTES;
                let payload = content.slice(start..start + record.payload_bytes as usize);
                let wrong = |reason: &'static str| corrupt(found, offset, reason.to_owned());
                let operations = decode_batch(payload).map_err(wrong)?;
                if record.lsn > self.checkpoint.lsn {
                    replay(record.lsn, operations).map_err(wrong)?;
                }
                self.expected.0 += 1;
            }
            offset += record.space();
        }
        let newest = records(&content, offset, Some(self.store)).max_by_key(|(_, record)| record.flushed);
        self.after.push((found.slot, newest));
        self.end = Some((found.name(), offset));
        Ok(())
    }

    /// The record at `offset` if it is the one that belongs there.
    fn record_at(&self, content: &[u8], offset: u64, sequence: u64) -> Option<Record> {
        let record = Record::decode(content.get(offset as usize..)?)?;
        let number = if record.is_mark() { self.expected.0 - 1 } else { self.expected.0 };
        (record.store == self.store && record.sequence == sequence && record.lsn.0 == number).then_some(record)
    }

    /// Looks for records that prove that the next batch had been flushed.
    async fn search_evidence(&self, suspects: impl Iterator<Item = &Found>) -> Result<()> {
        for found in suspects {
            let newest = match self.after.iter().find(|(slot, _)| *slot == found.slot) {
                Some((_, newest)) => *newest,
                None => {
                    let content = read_range(self.device, &found.name(), 0, found.bytes).await?;
                    records(&content, SEGMENT_HEADER_BYTES, Some(self.store)).max_by_key(|(_, record)| record.flushed)
                }
            };
            let Some((offset, record)) = newest.filter(|(_, record)| record.flushed >= self.expected) else {
                continue;
            };
            let (file, at) = self.end.clone().unwrap_or((found.name(), 0));
            let reason = format!(
                "batch {} does not verify there, but was flushed before batch {} was written, which is in {} at byte {offset}",
                self.expected.0,
                record.lsn.0,
                found.name(),
            );
            return Err(Error::Corrupt { file, offset: at, reason });
        }
        Ok(())
    }
}

/// All records of a store (of any, if `None`) in a segment's bytes from an offset on, wherever they
/// begin.
pub(crate) fn records(content: &[u8], from: u64, store: Option<u64>) -> impl Iterator<Item = (u64, Record)> {
    let mut offset = from as usize;
    std::iter::from_fn(move || {
        while offset + RECORD_HEADER_BYTES <= content.len() {
            let at = offset;
            // Checked first because it is cheap: the checksum of zeros is not worth computing.
            let plausible = match store {
                Some(store) => read_u64(content, at + 16) == store,
                None => read_u64(content, at + 16) != 0,
            };
            if plausible && let Some(record) = Record::decode(&content[at..]) {
                offset += record.space() as usize;
                return Some((at as u64, record));
            }
            offset += RECORD_ALIGNMENT as usize;
        }
        None
    })
}
