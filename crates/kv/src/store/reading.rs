//! Reads: memory first, the cold store for what memory does not know.
//!
//! The cold store is read without the lock. A key may therefore change between the look into memory and the one into the
//! cold store; either answer was true at a moment during the call.

use std::ops::Bound;

use bytes::Bytes;

use super::{EVICTION_STEPS, Shared};
use crate::{
    batch::Table,
    error::{Error, Result},
    key::Key,
    tables::{Lookup, Range},
};

/// Entries taken under one lock: few at first, as most scans are short.
const SCAN_ENTRIES_FIRST: usize = 16;
const SCAN_ENTRIES_MAX: usize = 512;

impl Shared {
    pub(super) fn get(&self, table: Table, key: &[u8]) -> Result<Option<Bytes>> {
        let cleanings = {
            let mut state = self.state.lock();
            match state.tables.get(table, key) {
                Lookup::Found(value) => return Ok(Some(value)),
                Lookup::Absent => return Ok(None),
                Lookup::Unknown => {}
            }
            state.statistics.cold_reads += 1;
            state.tables.cleanings()
        };
        let value = self.cold.get(table, key).map_err(|error| Error::cold("read", error))?;
        if let Some(value) = &value {
            let mut state = self.state.lock();
            state.tables.fill(table, key, value.clone(), cleanings);
            state.tables.evict(self.config.memory_bytes as usize, EVICTION_STEPS);
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
        let mut count = SCAN_ENTRIES_FIRST;
        let mut start = Bound::Included(Bytes::copy_from_slice(from));
        loop {
            let part = self.part(table, &start, to, count)?;
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

    /// The next entries of a scan.
    fn part(&self, table: Table, start: &Bound<Bytes>, to: Option<&[u8]>, count: usize) -> Result<Part> {
        let from = start.as_ref().map(Bytes::as_ref);
        let range = self.state.lock().tables.range(table, from, to, count);
        if range.complete {
            return Ok(resident_part(range));
        }
        // Memory is known up to its last entry if there are more, else to the end of the scan.
        let limit = range.more.then(|| range.entries.last().expect("more follows something").0.clone());
        let (cold, cold_more) = self.cold_part(table, start, to, limit.as_ref(), count)?;
        let cold_end = cold.last().map(|(key, _)| key.clone()).filter(|_| cold_more);
        let limit = limit.map(|key| Bytes::copy_from_slice(key.as_slice()));
        let end = match (limit, cold_end) {
            (Some(limit), Some(cold_end)) => Some(limit.min(cold_end)),
            (limit, cold_end) => limit.or(cold_end),
        };
        Ok(Part { entries: merge(range, cold, end.as_ref()), end })
    }

    /// Up to `count` entries of the cold store, none behind `limit`; and whether there may be more within it.
    fn cold_part(
        &self,
        table: Table,
        start: &Bound<Bytes>,
        to: Option<&[u8]>,
        limit: Option<&Key>,
        count: usize,
    ) -> Result<(Vec<(Bytes, Bytes)>, bool)> {
        let (Bound::Included(from) | Bound::Excluded(from)) = start else {
            unreachable!("a scan has a beginning");
        };
        let excluded = matches!(start, Bound::Excluded(_));
        let mut entries: Vec<(Bytes, Bytes)> = Vec::new();
        let mut more = false;
        let mut visit = |key: &[u8], value: &[u8]| {
            if limit.is_some_and(|limit| key > limit.as_slice()) {
                return false;
            }
            if excluded && key == from.as_ref() {
                return true;
            }
            if entries.len() == count {
                more = true;
                return false;
            }
            entries.push((Bytes::copy_from_slice(key), Bytes::copy_from_slice(value)));
            true
        };
        self.cold.scan(table, from, to, &mut visit).map_err(|error| Error::cold("scan", error))?;
        Ok((entries, more))
    }
}

/// Entries of a scan, and the key behind which it goes on.
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
