//! Reads: memory first, then the cold store for entries that are not in memory.
//!
//! The cold store is read without the lock. A key may therefore change between the look-up in
//! memory and the one in the cold store; either answer was true at some moment during the call.

use std::ops::Bound;

use bytes::Bytes;

use super::{
    loading::ColdPart,
    shared::{EVICTION_STEPS, Shared},
};
use crate::{
    batch::Table,
    error::{Error, Result},
    key::Key,
    tables::{Lookup, Range},
};

/// Entries taken under one lock: few at first, as most scans are short.
const SCAN_ENTRIES_FIRST: usize = 16;
const SCAN_ENTRIES_MAX: usize = 512;

/// See [`Shared::scan_by`].
type ReadCold<'a> = &'a mut dyn FnMut(&Bound<Bytes>, Option<&Key>, usize, u64) -> Result<Option<ColdPart>>;

impl Shared {
    pub(super) fn get(&self, table: Table, key: &[u8]) -> Result<Option<Bytes>> {
        let cleanings = {
            let tables = self.tables.read();
            match tables.get(table, key) {
                Lookup::Found(value) => return Ok(Some(value)),
                Lookup::Absent => return Ok(None),
                Lookup::Unknown => {}
            }
            tables.cleanings()
        };
        self.state.lock().statistics.cold_reads += 1;
        let value = self.cold.get(table, key).map_err(|error| Error::cold("read", error))?;
        if let Some(value) = &value {
            let mut tables = self.tables.write();
            tables.fill(table, key, value.clone(), cleanings);
            tables.evict(self.config.memory_bytes as usize, EVICTION_STEPS);
        }
        Ok(value)
    }

    pub(super) fn scan(
        &self,
        table: Table,
        from: &[u8],
        to: Option<&[u8]>,
        visit: &mut dyn FnMut(&[u8], &Bytes) -> bool,
    ) -> Result<()> {
        let mut cold = |start: &Bound<Bytes>, limit: Option<&Key>, count: usize, _cleanings: u64| {
            self.cold_part(table, start, to, limit, (count, usize::MAX)).map(Some)
        };
        self.scan_by(table, from, to, &mut cold, visit)
    }

    /// A scan that asks `cold` for what memory does not know: for entries after a key, none after
    /// another one, of about so many, with the number of cleanings when memory was looked at. Ends
    /// where `cold` knows nothing.
    pub(super) fn scan_by(
        &self,
        table: Table,
        from: &[u8],
        to: Option<&[u8]>,
        cold: ReadCold<'_>,
        visit: &mut dyn FnMut(&[u8], &Bytes) -> bool,
    ) -> Result<()> {
        let mut count = SCAN_ENTRIES_FIRST;
        let mut start = Bound::Included(Bytes::copy_from_slice(from));
        loop {
            let Some(part) = self.part(table, &start, to, count, cold)? else { return Ok(()) };
            for (key, value) in &part.entries {
                if !visit(key, value) {
                    return Ok(());
                }
            }
            let Some(end) = part.end else { return Ok(()) };
            start = Bound::Excluded(end);
            count = (count * 2).min(SCAN_ENTRIES_MAX);
        }
    }

    /// The next entries of a scan; `None`: `cold` does not know.
    fn part(
        &self,
        table: Table,
        start: &Bound<Bytes>,
        to: Option<&[u8]>,
        count: usize,
        cold: ReadCold<'_>,
    ) -> Result<Option<Part>> {
        let from = start.as_ref().map(Bytes::as_ref);
        let (range, cleanings) = {
            let tables = self.tables.read();
            (tables.range(table, from, to, count), tables.cleanings())
        };
        if range.complete {
            return Ok(Some(resident_part(range)));
        }
        // Memory is known up to its last entry if there are more, else to the end of the scan.
        let limit = range.more.then(|| range.entries.last().expect("more follows something").0.clone());
        let Some((cold, cold_more)) = cold(start, limit.as_ref(), count, cleanings)? else { return Ok(None) };
        let cold_end = cold.last().map(|(key, _)| key.clone()).filter(|_| cold_more);
        let limit = limit.map(|key| Bytes::copy_from_slice(key.as_slice()));
        let end = match (limit, cold_end) {
            (Some(limit), Some(cold_end)) => Some(limit.min(cold_end)),
            (limit, cold_end) => limit.or(cold_end),
        };
        Ok(Some(Part { entries: merge(range, cold, end.as_ref()), end }))
    }

    /// Entries of the cold store, none after `limit`, and whether there may be more up to it. Ends
    /// at the given number of entries, or once it has the given number of bytes.
    pub(super) fn cold_part(
        &self,
        table: Table,
        start: &Bound<Bytes>,
        to: Option<&[u8]>,
        limit: Option<&Key>,
        (count, bytes_max): (usize, usize),
    ) -> Result<ColdPart> {
        let (Bound::Included(from) | Bound::Excluded(from)) = start else {
            unreachable!("a scan has a beginning");
        };
        let excluded = matches!(start, Bound::Excluded(_));
        let mut entries: Vec<(Bytes, Bytes)> = Vec::new();
        let (mut bytes, mut more) = (0, false);
        let mut visit = |key: &[u8], value: &[u8]| {
            if limit.is_some_and(|limit| key > limit.as_slice()) {
                return false;
            }
            if excluded && key == from.as_ref() {
                return true;
            }
            if entries.len() == count || bytes >= bytes_max {
                more = true;
                return false;
            }
            bytes += key.len() + value.len();
            entries.push((Bytes::copy_from_slice(key), Bytes::copy_from_slice(value)));
            true
        };
        self.cold.scan(table, from, to, &mut visit).map_err(|error| Error::cold("scan", error))?;
        Ok((entries, more))
    }
}

/// Entries of a scan, and the key after which it continues.
struct Part {
    entries: Vec<(Bytes, Bytes)>,
    end: Option<Bytes>,
}

fn resident_part(range: Range) -> Part {
    let end =
        range.more.then(|| Bytes::copy_from_slice(range.entries.last().expect("more follows something").0.as_slice()));
    let entries = range
        .entries
        .into_iter()
        .filter_map(|(key, value)| value.map(|value| (Bytes::copy_from_slice(key.as_slice()), value)))
        .collect();
    Part { entries, end }
}

/// Both in order up to and including `end`; memory wins, removed keys vanish.
fn merge(range: Range, cold: Vec<(Bytes, Bytes)>, end: Option<&Bytes>) -> Vec<(Bytes, Bytes)> {
    let mut merged = Vec::with_capacity(range.entries.len() + cold.len());
    let mut cold = cold.into_iter().peekable();
    for (key, value) in range.entries {
        while let Some(entry) = cold.next_if(|(cold_key, _)| cold_key.as_ref() < key.as_slice()) {
            merged.push(entry);
        }
        let _ = cold.next_if(|(cold_key, _)| cold_key.as_ref() == key.as_slice());
        if let Some(value) = value {
            merged.push((Bytes::copy_from_slice(key.as_slice()), value));
        }
    }
    merged.extend(cold);
    if let Some(end) = end {
        merged.truncate(merged.partition_point(|(key, _)| key <= end));
    }
    merged
}
