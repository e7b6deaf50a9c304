//! Read-only decoding of a store's files, tolerant of corruption, for `stria inspect`.
//!
//! Nothing here changes anything. Damage is reported as a finding and never ends the walk, which
//! continues with the next record that verifies. For the cold store see
//! [`crate::cold::fjall::FjallCold::open_copy`], since fjall itself cannot be opened without
//! changes. Downside: a segment is read whole into memory.

use std::collections::BTreeMap;

use bytes::Bytes;
use rt::Device;

use crate::{
    batch::{Batch, Lsn, Operation, Table},
    cold::{Checkpoint, ColdStore},
    error::{Error, Result},
    journal::{
        format::{HeaderState, RECORD_HEADER_BYTES, Record, SEGMENT_HEADER_BYTES, decode_batch},
        logged::LoggedOperation,
        patch::Patch,
        recovery::{find_segments, read_range, records, recover},
    },
    superblock::Superblock,
};

/// Bytes of keys and values shown before they are cut off.
const SHOWN_BYTES: usize = 48;

/// One thing found in the journal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Finding {
    /// A segment begins.
    Segment {
        /// File of the device.
        file: String,
        /// Its length.
        bytes: u64,
        /// What its header says.
        header: HeaderState,
    },
    /// A record that verifies.
    Record {
        /// Where in the segment.
        offset: u64,
        /// Its header.
        record: Record,
        /// The operations of its batch, or what is wrong with it; none for a mark.
        operations: std::result::Result<Vec<LoggedOperation>, &'static str>,
        /// It continues what was before: same segment sequence, next number. Records that do not
        /// were left behind by an earlier use of the segment, or follow damage.
        current: bool,
    },
    /// Bytes that are neither zeros nor a record.
    Unknown {
        /// Where in the segment.
        offset: u64,
        /// How many bytes.
        bytes: u64,
    },
}

/// Walks all segments in the order of their sequence numbers, calls `visit` until it returns false.
pub async fn journal(device: &dyn Device, visit: &mut (dyn FnMut(Finding) -> bool + Send)) -> Result<()> {
    let mut segments = find_segments(device).await?;
    segments.sort_by_key(|found| match found.header {
        HeaderState::Valid(header) => (0, header.sequence),
        _ => (1, u64::from(found.slot)),
    });
    for found in segments {
        let file = found.name();
        let content = Bytes::from(read_range(device, &file, 0, found.bytes).await?);
        if !visit(Finding::Segment { file, bytes: found.bytes, header: found.header })
            || !segment(&content, found.header, visit)
        {
            break;
        }
    }
    Ok(())
}

/// Walks one segment's bytes; whether to continue.
fn segment(content: &Bytes, header: HeaderState, visit: &mut (dyn FnMut(Finding) -> bool + Send)) -> bool {
    let (store, sequence, mut next) = match header {
        HeaderState::Valid(header) => (Some(header.store), header.sequence, header.first),
        _ => (None, 0, Lsn(0)),
    };
    let mut end = SEGMENT_HEADER_BYTES;
    for (offset, record) in records(content, SEGMENT_HEADER_BYTES, store) {
        if !unknown(content, end, offset, visit) {
            return false;
        }
        let start = offset as usize + RECORD_HEADER_BYTES;
        let operations = decode_batch(content.slice(start..start + record.payload_bytes as usize));
        let expected = if record.is_mark() { Lsn(next.0.saturating_sub(1)) } else { next };
        let current = store.is_some() && record.sequence == sequence && record.lsn == expected;
        if current && !record.is_mark() {
            next.0 += 1;
        }
        if !visit(Finding::Record { offset, record, operations, current }) {
            return false;
        }
        end = offset + record.space();
    }
    unknown(content, end, content.len() as u64, visit)
}

/// Reports the bytes between two records if they are not zeros; whether to continue.
fn unknown(content: &[u8], from: u64, to: u64, visit: &mut (dyn FnMut(Finding) -> bool + Send)) -> bool {
    let gap = content.get(from as usize..to as usize).unwrap_or(&[]);
    let Some(first) = gap.iter().position(|byte| *byte != 0) else { return true };
    let last = gap.iter().rposition(|byte| *byte != 0).unwrap_or(first);
    visit(Finding::Unknown { offset: from + first as u64, bytes: (last - first + 1) as u64 })
}

/// A table in the cold store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TableReport {
    /// Which.
    pub table: Table,
    /// Number of keys.
    pub keys: u64,
    /// Bytes of all keys.
    pub key_bytes: u64,
    /// Bytes of all values.
    pub value_bytes: u64,
}

/// A store as its files show it.
#[derive(Clone, Debug)]
pub struct StoreReport {
    /// The store's file; `None` if there is none.
    pub superblock: Result<Option<Superblock>>,
    /// What the cold store says about the journal.
    pub checkpoint: Option<Checkpoint>,
    /// Tables of the cold store that are not empty, without what is only in the journal.
    pub tables: Vec<TableReport>,
    /// First and last batch found in the journal, `None` if there is none.
    pub journal: Option<(Lsn, Lsn)>,
    /// Records of the journal that verify and continue what was before.
    pub records: u64,
    /// Places in the journal that are neither zeros nor records.
    pub unknown_places: u64,
}

/// Reads everything. Takes as long as reading the whole store does.
pub async fn store(device: &dyn Device, cold: &dyn ColdStore) -> Result<StoreReport> {
    let mut report = StoreReport {
        superblock: Superblock::read(device).await,
        checkpoint: cold.checkpoint().map_err(|error| Error::cold("read", error))?,
        tables: Vec::new(),
        journal: None,
        records: 0,
        unknown_places: 0,
    };
    let mut visit = |finding| {
        match finding {
            Finding::Record { record, current: true, .. } => {
                report.records += 1;
                let (first, last) = report.journal.unwrap_or((record.lsn, record.lsn));
                report.journal = Some((first.min(record.lsn), last.max(record.lsn)));
            }
            Finding::Unknown { .. } => report.unknown_places += 1,
            Finding::Segment { .. } | Finding::Record { .. } => {}
        }
        true
    };
    journal(device, &mut visit).await?;
    for number in 0..=u8::MAX {
        report.tables.extend(table(cold, Table(number))?);
    }
    Ok(report)
}

fn table(cold: &dyn ColdStore, table: Table) -> Result<Option<TableReport>> {
    let mut report = TableReport { table, keys: 0, key_bytes: 0, value_bytes: 0 };
    let mut visit = |key: &[u8], value: &[u8]| {
        report.keys += 1;
        report.key_bytes += key.len() as u64;
        report.value_bytes += value.len() as u64;
        true
    };
    cold.scan(table, &[], None, &mut visit).map_err(|error| Error::cold("scan", error))?;
    Ok((report.keys > 0).then_some(report))
}

/// What the owner of a store knows of its tables. Reads only, never panics; errors say what is
/// wrong with the bytes.
pub trait Schema {
    /// Name of a table; `None` for one that should not be there.
    fn table(&self, table: Table) -> Option<&'static str>;
    /// A key in words.
    fn key(&self, table: Table, key: &[u8]) -> std::result::Result<String, String>;
    /// The value of a key in words.
    fn value(&self, table: Table, key: &[u8], value: &[u8]) -> std::result::Result<String, String>;
    /// Whether an entry is about this inode.
    fn concerns(&self, table: Table, key: &[u8], value: &[u8], inode: u64) -> bool;
}

/// An entry, or its removal (`None`), in one line; an error has the line as well, with what is
/// wrong.
pub fn describe(
    schema: &dyn Schema,
    table: Table,
    key: &[u8],
    value: Option<&[u8]>,
) -> std::result::Result<String, String> {
    let entry = entry(schema, table, key)?;
    let Some(value) = value else { return Ok(format!("{entry}: removed")) };
    match schema.value(table, key, value) {
        Ok(text) if text.is_empty() => Ok(entry),
        Ok(text) => Ok(format!("{entry}: {text}")),
        Err(problem) => Err(format!("{entry}: {problem}: {}", hexadecimal(value))),
    }
}

/// A change of the value of a key, in one line; an error has the line as well, with what is wrong.
pub fn describe_patch(
    schema: &dyn Schema,
    table: Table,
    key: &[u8],
    patch: &Patch,
) -> std::result::Result<String, String> {
    let Patch { offset, removed, inserted, .. } = patch;
    let entry = entry(schema, table, key)?;
    Ok(format!("{entry}: {removed} bytes at {offset} replaced by {}: {}", inserted.len(), hexadecimal(inserted)))
}

/// Table and key in words.
fn entry(schema: &dyn Schema, table: Table, key: &[u8]) -> std::result::Result<String, String> {
    let Some(name) = schema.table(table) else {
        return Err(format!("unknown table {}, key {}", table.0, hexadecimal(key)));
    };
    let key_text = schema.key(table, key).map_err(|problem| format!("{name} {}: {problem}", hexadecimal(key)))?;
    Ok(if key_text.is_empty() { name.to_owned() } else { format!("{name} {key_text}") })
}

/// Calls `replay` with the batches after `checkpoint`, as opening the store would, without changing
/// anything. An error tells why opening would refuse; by then, everything before the damage has
/// been replayed.
pub async fn replay(
    device: &dyn Device,
    store: u64,
    checkpoint: Checkpoint,
    replay: &mut (dyn FnMut(Lsn, &Batch) + Send),
) -> Result<Lsn> {
    let mut values: BTreeMap<(Table, Bytes), Bytes> = BTreeMap::new();
    let mut visit = |lsn, operations: Vec<LoggedOperation>| {
        let mut batch = Batch::default();
        for operation in operations {
            let operation =
                operation.resolve(|table, key| values.get(&(table, Bytes::copy_from_slice(key))).cloned())?;
            let key = (operation.table(), operation.key().clone());
            match &operation {
                Operation::Put(_, _, value) => values.insert(key, value.clone()),
                Operation::Delete(..) => values.remove(&key),
            };
            batch.operations.push(operation);
        }
        replay(lsn, &batch);
        Ok(())
    };
    Ok(recover(device, store, checkpoint, None, &mut visit).await?.last)
}

/// Bytes as digits, cut off when long.
fn hexadecimal(bytes: &[u8]) -> String {
    let mut text: String = bytes.iter().take(SHOWN_BYTES).map(|byte| format!("{byte:02x}")).collect();
    if bytes.len() > SHOWN_BYTES {
        text.push_str("...");
    }
    text
}
