//! Names of a directory within a transaction: one hash chain per 56-bit hash (see
//! [`crate::tables::entry`]).

use rpc::message::extension::ChangedName;
use types::{FileKind, FsError, FsResult, InodeNumber, limits};

use super::Transaction;
use crate::tables::{
    ENTRIES,
    entry::{COLLISIONS_MAX, EntryRecord, NamedInode, Position},
};

/// A name that exists.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FoundEntry {
    /// Where.
    pub position: Position,
    /// What it leads to.
    pub target: NamedInode,
}

/// Whether a name can be one; `.` and `..` are the caller's business.
fn check_name(name: &[u8]) -> FsResult<()> {
    if name.is_empty() || name.contains(&0) || name.contains(&b'/') {
        return Err(FsError::Invalid);
    }
    if name.len() > limits::NAME_BYTES_MAX { Err(FsError::NameTooLong) } else { Ok(()) }
}

/// Whether a name is `.` or `..`.
pub(crate) fn is_dots(name: &[u8]) -> bool {
    name == b"." || name == b".."
}

impl Transaction<'_> {
    /// Looks a name up.
    pub fn find_entry(&self, directory: InodeNumber, name: &[u8]) -> FsResult<Option<FoundEntry>> {
        check_name(name)?;
        self.find_entry_at(directory, Position::of_name_in(directory, name), name)
    }

    /// A name that must exist.
    pub fn entry(&self, directory: InodeNumber, name: &[u8]) -> FsResult<FoundEntry> {
        self.find_entry(directory, name)?.ok_or(FsError::NotFound)
    }

    fn find_entry_at(&self, directory: InodeNumber, first: Position, name: &[u8]) -> FsResult<Option<FoundEntry>> {
        let Some(record) = self.entry_record(directory, first)? else { return Ok(None) };
        if let Some(target) = record.target.filter(|target| target.name == name) {
            return Ok(Some(FoundEntry { position: first, target }));
        }
        if !record.more {
            return Ok(None);
        }
        let found = self.chain(directory, first)?.into_iter().find(|entry| entry.target.name == name);
        Ok(found)
    }

    fn entry_record(&self, directory: InodeNumber, position: Position) -> FsResult<Option<EntryRecord>> {
        let value = self.get(ENTRIES, &EntryRecord::key(directory, position))?;
        value.map(|value| EntryRecord::decode(&value)).transpose()
    }

    /// The names after number 0 of a hash.
    fn chain(&self, directory: InodeNumber, first: Position) -> FsResult<Vec<FoundEntry>> {
        let from = EntryRecord::key(directory, first.with_number(1));
        let to = EntryRecord::key(directory, Position(first.with_number(COLLISIONS_MAX - 1).0 + 1));
        let mut entries = Vec::new();
        self.scan(ENTRIES, &from, Some(&to), &mut |key, value| {
            let (_, position) = EntryRecord::decode_key(key)?;
            entries.extend(EntryRecord::decode(value)?.target.map(|target| FoundEntry { position, target }));
            Ok(true)
        })?;
        Ok(entries)
    }

    /// Adds a name that does not exist yet.
    pub fn insert_entry(&mut self, directory: InodeNumber, target: NamedInode) -> FsResult<()> {
        self.check_place(directory, &target.name)?;
        self.insert_entry_at(directory, Position::of_name_in(directory, &target.name), target)
    }

    fn insert_entry_at(&mut self, directory: InodeNumber, first: Position, target: NamedInode) -> FsResult<()> {
        let Some(head) = self.entry_record(directory, first)? else {
            self.name_changes(directory, first, &target, true);
            self.put_entry(directory, first, EntryRecord { more: false, target: Some(target) });
            return Ok(());
        };
        let taken: Vec<u64> = self.chain(directory, first)?.iter().map(|entry| entry.position.number()).collect();
        let free = (1..COLLISIONS_MAX).find(|number| !taken.contains(number)).ok_or(FsError::NoSpace)?;
        if !head.more {
            self.put_entry(directory, first, EntryRecord { more: true, ..head });
        }
        let position = first.with_number(free);
        self.name_changes(directory, position, &target, true);
        self.put_entry(directory, position, EntryRecord { more: false, target: Some(target) });
        Ok(())
    }

    /// Removes a name that exists.
    pub fn remove_entry(&mut self, directory: InodeNumber, found: &FoundEntry) -> FsResult<()> {
        self.name_changes(directory, found.position, &found.target, false);
        let first = found.position.with_number(0);
        if found.position == first {
            let more = self.entry_record(directory, first)?.is_some_and(|head| head.more);
            if more {
                self.put_entry(directory, first, EntryRecord { more, target: None });
            } else {
                self.delete(ENTRIES, EntryRecord::key(directory, first));
            }
            return Ok(());
        }
        self.delete(ENTRIES, EntryRecord::key(directory, found.position));
        if !self.chain(directory, first)?.is_empty() {
            return Ok(());
        }
        match self.entry_record(directory, first)?.and_then(|head| head.target) {
            Some(target) => self.put_entry(directory, first, EntryRecord { more: false, target: Some(target) }),
            None => self.delete(ENTRIES, EntryRecord::key(directory, first)),
        }
        Ok(())
    }

    /// Lets a name that exists lead elsewhere; its place stays.
    pub fn retarget_entry(
        &mut self,
        directory: InodeNumber,
        found: &FoundEntry,
        inode: InodeNumber,
        kind: FileKind,
    ) -> FsResult<()> {
        let more = self.entry_record(directory, found.position)?.is_some_and(|record| record.more);
        let target = NamedInode { name: found.target.name.clone(), inode, kind };
        self.name_changes(directory, found.position, &target, true);
        self.put_entry(directory, found.position, EntryRecord { more, target: Some(target) });
        Ok(())
    }

    /// Notes that a name leads there from now on, or does not exist any more.
    fn name_changes(&mut self, directory: InodeNumber, position: Position, named: &NamedInode, exists: bool) {
        let NamedInode { name, inode, kind } = named;
        let target = exists.then_some((*inode, *kind));
        self.changes.names.push(ChangedName { directory, name: name.clone(), cookie: position.0, target });
    }

    fn put_entry(&mut self, directory: InodeNumber, position: Position, record: EntryRecord) {
        self.put(ENTRIES, EntryRecord::key(directory, position), record.encode());
    }

    /// Visits the names of a directory after a position, in order, until `visit` returns false.
    pub fn visit_entries(
        &self,
        directory: InodeNumber,
        after: Position,
        visit: &mut dyn FnMut(FoundEntry) -> FsResult<bool>,
    ) -> FsResult<()> {
        let from = EntryRecord::key(directory, Position(after.0.saturating_add(1)));
        let to = crate::tables::prefix_end(&directory.0.to_be_bytes());
        self.scan(ENTRIES, &from, to.as_deref(), &mut |key, value| {
            let (_, position) = EntryRecord::decode_key(key)?;
            match EntryRecord::decode(value)?.target {
                Some(target) => visit(FoundEntry { position, target }),
                None => Ok(true),
            }
        })
    }

    /// How many links a directory has: its name, `.` and its subdirectories.
    pub fn links_of_directory(&self, directory: InodeNumber) -> FsResult<u32> {
        let mut links = 2;
        self.visit_entries(directory, Position(0), &mut |found| {
            links += u32::from(found.target.kind == FileKind::Directory);
            Ok(true)
        })?;
        Ok(links)
    }

    /// Whether a directory has no names.
    pub fn is_empty_directory(&self, directory: InodeNumber) -> FsResult<bool> {
        let mut empty = true;
        self.visit_entries(directory, Position(0), &mut |_| {
            empty = false;
            Ok(false)
        })?;
        Ok(empty)
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::sync::Arc;

    use kv::{MemoryCold, Store};
    use rt::memory::{MemoryDevice, MemoryTransport, seams};
    use types::{ClientId, MdtIndex, Timestamp};

    use super::*;
    use crate::{options::Parameters, tables::counter::Counters, transaction::Context, volatile::Volatile};

    const DIRECTORY: InodeNumber = InodeNumber(1);

    fn target(name: &str) -> NamedInode {
        NamedInode { name: name.as_bytes().to_vec(), inode: InodeNumber(name.len() as u64), kind: FileKind::Regular }
    }

    /// Runs `operate` in a transaction over an empty store.
    pub(in crate::transaction) async fn with_transaction(operate: impl FnOnce(&mut Transaction<'_>)) {
        let seams = seams(&MemoryTransport::new(), 1);
        let (device, cold) = (Arc::new(MemoryDevice::new()), Arc::new(MemoryCold::new()));
        let store = Store::open(seams, device, cold, kv::Config::small(), &mut |_, _| {}).await.unwrap();
        let context = Context {
            client: ClientId(1),
            features: 0,
            now: Timestamp::default(),
            now_ns: 0,
            parameters: Parameters::default(),
            era: 0,
            moved_bytes_max: 0,
            supply: kv::Supply::default(),
        };
        let mut volatile = Volatile::new(Timestamp::default(), 0, 10);
        let counters = Counters { next_inode: 1, inodes: 0 };
        operate(&mut Transaction::new(&mut volatile, context, MdtIndex(0), &store, "test", counters, None));
    }

    fn find(txn: &Transaction<'_>, first: Position, name: &str) -> Option<u64> {
        let found = txn.find_entry_at(DIRECTORY, first, name.as_bytes()).unwrap();
        found.map(|entry| entry.position.number())
    }

    #[tokio::test]
    async fn names_with_equal_hashes_are_told_apart() {
        with_transaction(|txn| {
            let first = Position::of(b"any");
            for name in ["a", "bb", "ccc"] {
                assert_eq!(find(txn, first, name), None);
                txn.insert_entry_at(DIRECTORY, first, target(name)).unwrap();
            }
            assert_eq!(["a", "bb", "ccc"].map(|name| find(txn, first, name)), [Some(0), Some(1), Some(2)]);
            let head = txn.find_entry_at(DIRECTORY, first, b"a").unwrap().unwrap();
            txn.remove_entry(DIRECTORY, &head).unwrap();
            assert_eq!(["a", "bb", "ccc"].map(|name| find(txn, first, name)), [None, Some(1), Some(2)]);
            let mut seen = Vec::new();
            txn.visit_entries(DIRECTORY, Position(0), &mut |entry| {
                seen.push(entry.position.number());
                Ok(true)
            })
            .unwrap();
            assert_eq!(seen, [1, 2], "a name that is gone is not read");
            for name in ["bb", "ccc"] {
                let found = txn.find_entry_at(DIRECTORY, first, name.as_bytes()).unwrap().unwrap();
                txn.remove_entry(DIRECTORY, &found).unwrap();
            }
            assert!(txn.is_empty_directory(DIRECTORY).unwrap());
            assert_eq!(txn.get(ENTRIES, &EntryRecord::key(DIRECTORY, first)).unwrap(), None, "nothing is left behind");
        })
        .await;
    }

    #[tokio::test]
    async fn a_chain_is_bounded() {
        with_transaction(|txn| {
            let first = Position::of(b"any");
            for number in 0..COLLISIONS_MAX {
                txn.insert_entry_at(DIRECTORY, first, target(&format!("n{number}"))).unwrap();
            }
            assert_eq!(txn.insert_entry_at(DIRECTORY, first, target("more")), Err(FsError::NoSpace));
            assert_eq!(find(txn, first, "n127"), Some(127));
        })
        .await;
    }
}
