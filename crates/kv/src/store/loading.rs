//! Reads that never touch the cold store, for callers that hold a lock of their own: entries that
//! are not in memory are noted ([`Wanted`]), loaded without the lock, and found among the loaded
//! entries ([`Loaded`]) at the next attempt (module `attempt`).
//!
//! Invariant: a loaded entry is used only as long as no entry has become clean since: otherwise a
//! newer value may have been written, moved to the cold store and dropped from memory meanwhile.
//! Then the entry is loaded again. Downside: an attempt during a checkpoint may load in vain.

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Bound,
    sync::Arc,
};

use bytes::Bytes;
use tokio::sync::oneshot;

use super::shared::Shared;
use crate::{
    batch::Table,
    error::{Error, Result},
    key::Key,
    tables::Lookup,
};

/// Entries of a page: of a directory's names about 100 KiB.
const PAGE_ENTRIES: usize = 1024;
/// Bytes after which a page ends, for tables with large values: the pages of an operation stay in
/// memory until it ends.
const PAGE_BYTES: usize = 1 << 20;

/// What an attempt needs from the cold store.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Wanted {
    /// One key.
    Key(Table, Bytes),
    /// Keys from the first on, in order, before the second (`None`: to the table's end); as many as
    /// fit into a page.
    Page(Table, Bytes, Option<Bytes>),
}

/// Entries of the cold store in a range of keys.
#[derive(Debug)]
struct Page {
    table: Table,
    from: Bytes,
    to: Option<Bytes>,
    entries: Vec<(Bytes, Bytes)>,
    /// There may be more after the last entry.
    more: bool,
}

/// What was loaded for the attempts of one operation.
#[derive(Debug, Default)]
pub(super) struct Loaded {
    keys: BTreeMap<(Table, Bytes), Option<Bytes>>,
    pages: Vec<Page>,
    cleanings: u64,
}

/// Entries of a scan in the cold store, and whether there may be more after them.
pub(super) type ColdPart = (Vec<(Bytes, Bytes)>, bool);

impl Page {
    /// Whether it says what comes after `start`, up to `to`.
    fn covers(&self, table: Table, start: &Bound<Bytes>, to: Option<&[u8]>) -> bool {
        let (Bound::Included(start) | Bound::Excluded(start)) = start else { return false };
        let ends_late = match (&self.to, to) {
            (None, _) => true,
            (Some(_), None) => false,
            (Some(end), Some(to)) => to <= end.as_ref(),
        };
        let begins_within = !self.more || self.entries.last().is_some_and(|(last, _)| start < last);
        self.table == table && self.from <= *start && ends_late && begins_within
    }

    /// Value of a key of the cold store, `None`: it does not say.
    fn get(&self, table: Table, key: &[u8]) -> Option<Option<Bytes>> {
        let within = self.table == table
            && self.from.as_ref() <= key
            && self.to.as_ref().is_none_or(|to| key < to.as_ref())
            && (!self.more || self.entries.last().is_some_and(|(last, _)| key <= last.as_ref()));
        let find = || self.entries.binary_search_by(|(entry, _)| entry.as_ref().cmp(key)).ok();
        within.then(|| find().map(|index| self.entries[index].1.clone()))
    }

    /// Whether all it says is of keys before this one.
    fn ends_before(&self, key: &[u8]) -> bool {
        let last = self.entries.last().map(|(last, _)| last.as_ref());
        let is_behind_to = self.to.as_ref().is_some_and(|to| to.as_ref() <= key);
        is_behind_to || (self.more && last.is_some_and(|last| last < key))
    }

    /// At most `count` entries from `start` on.
    fn part(&self, start: &Bound<Bytes>, to: Option<&[u8]>, limit: Option<&Key>, count: usize) -> ColdPart {
        let first = self.entries.partition_point(|(key, _)| match start {
            Bound::Included(start) => key < start,
            Bound::Excluded(start) => key <= start,
            Bound::Unbounded => false,
        });
        let within = |key: &Bytes| {
            limit.is_none_or(|limit| key.as_ref() <= limit.as_slice()) && to.is_none_or(|to| key.as_ref() < to)
        };
        let rest = &self.entries[first..];
        let part: Vec<_> = rest.iter().take_while(|(key, _)| within(key)).take(count).cloned().collect();
        let is_cut = rest.get(part.len()).is_some_and(|(key, _)| within(key));
        let reaches_end = self.entries.last().is_some_and(|(last, _)| within(last));
        (part, is_cut || (self.more && reaches_end))
    }
}

impl Loaded {
    /// Value of a key; `None`: it was not loaded.
    fn get(&self, table: Table, key: &[u8]) -> Option<Option<Bytes>> {
        let single = || self.keys.get(&(table, Bytes::copy_from_slice(key))).cloned();
        self.pages.iter().find_map(|page| page.get(table, key)).or_else(single)
    }

    /// Lets go of the pages of a table that end before a key. Whether there were any.
    pub(super) fn forget_before(&mut self, table: Table, key: &[u8]) -> bool {
        let before = self.pages.len();
        self.pages.retain(|page| page.table != table || !page.ends_before(key));
        self.pages.len() < before
    }
}

impl Shared {
    /// Value of a key as memory or what was loaded know it; `None`: neither does.
    pub(super) fn get_loaded(&self, table: Table, key: &[u8], loaded: &Loaded) -> Option<Option<Bytes>> {
        let tables = self.tables.read();
        match tables.get(table, key) {
            Lookup::Found(value) => Some(Some(value)),
            Lookup::Absent => Some(None),
            Lookup::Unknown if tables.cleanings() != loaded.cleanings => None,
            Lookup::Unknown => loaded.get(table, key),
        }
    }

    /// As [`Shared::scan`]; ends with what is wanted where neither memory nor what was loaded
    /// continues.
    pub(super) fn scan_loaded(
        &self,
        table: Table,
        from: &[u8],
        to: Option<&[u8]>,
        loaded: &Loaded,
        visit: &mut dyn FnMut(&[u8], &Bytes) -> bool,
    ) -> Result<Option<Wanted>> {
        let mut wanted = None;
        let mut cold = |start: &Bound<Bytes>, limit: Option<&Key>, count: usize, cleanings: u64| {
            let fresh = cleanings == loaded.cleanings;
            let page = loaded.pages.iter().find(|page| fresh && page.covers(table, start, to));
            if page.is_none() {
                let (Bound::Included(from) | Bound::Excluded(from)) = start else {
                    unreachable!("a scan has a beginning")
                };
                wanted = Some(Wanted::Page(table, from.clone(), to.map(Bytes::copy_from_slice)));
            }
            Ok(page.map(|page| page.part(start, to, limit, count)))
        };
        self.scan_by(table, from, to, &mut cold, visit)?;
        Ok(wanted)
    }

    /// Adds what is wanted. Reads the cold store, and blocks.
    fn load(&self, wanted: BTreeSet<Wanted>, mut loaded: Loaded) -> Result<Loaded> {
        let cleanings = self.tables.read().cleanings();
        if cleanings != loaded.cleanings {
            loaded = Loaded { cleanings, ..Loaded::default() };
        }
        for wanted in wanted {
            match wanted {
                Wanted::Key(table, key) => {
                    // Memory remembers it as well: the next operation need not load it.
                    let value = self.get(table, &key)?;
                    loaded.keys.insert((table, key), value);
                }
                Wanted::Page(table, from, to) => {
                    let start = Bound::Included(from.clone());
                    let (entries, more) =
                        self.cold_part(table, &start, to.as_deref(), None, (PAGE_ENTRIES, PAGE_BYTES))?;
                    loaded.pages.push(Page { table, from, to, entries, more });
                }
            }
        }
        Ok(loaded)
    }
}

/// Adds what is wanted to what was loaded. The cold store is read where this delays no other task.
pub(super) async fn load(shared: &Arc<Shared>, wanted: BTreeSet<Wanted>, loaded: Loaded) -> Result<Loaded> {
    let (reply, answer) = oneshot::channel();
    let reader = Arc::clone(shared);
    shared.cold.run_blocking(Box::new(move || {
        // No caller waits any more if the operation was dropped.
        let _ = reply.send(reader.load(wanted, loaded));
    }));
    answer.await.map_err(|_| Error::Closed)?
}
