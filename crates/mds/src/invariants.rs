//! What is true of every batch and of the opens that it concerns, whatever a client requests and
//! whatever the tables contain: asserted in all builds, before the batch is applied.
//!
//! Only state that this program alone produces is asserted. A record from a disk may say anything
//! that can be decoded, and a client may request anything: mistakes in these are errors, handled
//! elsewhere. So a violation is a bug of an operation, and its panic comes before anything of the
//! operation is visible or stored.
//!
//! | state | asserted |
//! |---|---|
//! | counters | no number is assigned twice; inodes in use are those before, plus those created, minus those removed |
//! | names | an inode that gets a name is not removed, and has the kind that the name says |
//! | orphans | an inode that is recorded as one exists and has no links; one that is kept after its last name went is recorded |
//! | opens | the inode of a new open exists; if the open writes a regular file, the size is not known |
//! | sizes | a size becomes known only for a file that no client has open for writing |
//!
//! Downside: the rest of the tables is not checked against the batch; module `audit` does that
//! where it may take time.

use kv::{Operation, Table};
use types::{FileKind, InodeNumber};

use crate::{
    opens::OpenTable,
    tables::{
        INODES, ORPHANS,
        codec::inode_of_key,
        counter::Counters,
        inode::{Brief, Inode},
        orphan,
    },
    transaction::Changes,
};

/// What a batch leaves of an inode.
enum Left {
    /// It does not concern it.
    Untouched,
    /// Nothing.
    Removed,
    /// A record.
    Stored(Brief),
}

/// Asserts all of it. `stored`: an inode as the tables have it before the batch.
pub(crate) fn assert_batch(
    changes: &Changes,
    before: Counters,
    opens: &OpenTable,
    stored: impl Fn(InodeNumber) -> Option<Brief>,
) {
    assert_counters(changes, before);
    for (inode, kind) in changes.names.iter().filter_map(|name| name.target) {
        match left(changes, inode) {
            Left::Untouched => {}
            Left::Removed => panic!("inode {inode} gets a name and is removed"),
            Left::Stored(brief) => assert_eq!(brief.kind, kind, "the kind that a new name of inode {inode} says"),
        }
    }
    assert_orphans(changes);
    assert_open(changes);
    assert_sizes(changes, opens, stored);
}

fn assert_counters(changes: &Changes, before: Counters) {
    let after = changes.counters;
    assert!(after.next_inode >= before.next_inode, "numbers of inodes are given once");
    let is_removal = |operation: &&Operation| matches!(operation, Operation::Delete(INODES, _));
    let removed = changes.operations.iter().filter(is_removal).count() as u64;
    // A count that is too low is damage, which the check reports.
    if before.inodes >= removed {
        let made = after.next_inode - before.next_inode + changes.adopted - changes.reserved;
        let expected = before.inodes.wrapping_add(made) - removed;
        assert_eq!(after.inodes, expected, "inodes in use: {} before, {made} made, {removed} removed", before.inodes);
    }
}

fn assert_orphans(changes: &Changes) {
    for operation in &changes.operations {
        let Operation::Put(ORPHANS, key, _) = operation else { continue };
        let inode = orphan::decode_key(key).expect("keys are made by this program");
        if !is_recorded_as_orphan(changes, inode) {
            continue;
        }
        match left(changes, inode) {
            Left::Untouched => {}
            Left::Removed => panic!("inode {inode} is recorded as unlinked and removed"),
            Left::Stored(brief) => assert_eq!(brief.links, 0, "links of inode {inode}, recorded as unlinked"),
        }
    }
    for (inode, _) in &changes.removed {
        assert!(is_recorded_as_orphan(changes, *inode), "inode {inode} is kept, and not recorded as unlinked");
    }
}

fn assert_open(changes: &Changes) {
    let early = changes.early_opens.iter().map(|early| &early.file);
    for file in changes.open.iter().map(|(_, file)| file).chain(early) {
        match left(changes, file.inode) {
            Left::Untouched => {}
            Left::Removed => panic!("inode {} is opened and removed", file.inode),
            Left::Stored(brief) => {
                let is_written = file.writes() && brief.kind == FileKind::Regular;
                assert!(
                    !is_written || !brief.size_known,
                    "the size of inode {} is known, and it is opened to be written",
                    file.inode
                );
            }
        }
    }
}

fn assert_sizes(changes: &Changes, opens: &OpenTable, stored: impl Fn(InodeNumber) -> Option<Brief>) {
    for operation in &changes.operations {
        let Operation::Put(INODES, key, value) = operation else { continue };
        let after = brief(value);
        if after.kind != FileKind::Regular || !after.size_known {
            continue;
        }
        let inode = inode_of_key("inode", key).expect("keys are made by this program");
        // A client may claim an open of a file whose size is known.
        // A later step of a compound may have opened the file again.
        let is_last = || last(changes, INODES, key).is_some_and(|last| std::ptr::eq(last, operation));
        if opens.written_by_others(inode, None) && stored(inode).is_some_and(|before| !before.size_known) && is_last() {
            panic!("the size of inode {inode} becomes known while it is open for writing");
        }
    }
}

fn is_recorded_as_orphan(changes: &Changes, inode: InodeNumber) -> bool {
    matches!(last(changes, ORPHANS, &orphan::key(inode)), Some(Operation::Put(..)))
}

fn left(changes: &Changes, inode: InodeNumber) -> Left {
    match last(changes, INODES, &Inode::key(inode)) {
        None => Left::Untouched,
        Some(Operation::Delete(..)) => Left::Removed,
        Some(Operation::Put(_, _, value)) => Left::Stored(brief(value)),
    }
}

fn brief(value: &[u8]) -> Brief {
    Brief::of(value).expect("values are made by this program")
}

/// The last change of a key.
fn last<'a>(changes: &'a Changes, table: Table, key: &[u8]) -> Option<&'a Operation> {
    changes.operations.iter().rev().find(|operation| operation.table() == table && operation.key() == key)
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use rpc::message::{
        extension::ChangedName,
        mdt::{OpenFlags, OpenId, open_flag},
    };
    use rt::Instant;
    use types::ClientId;

    use super::*;
    use crate::{
        opens::{OpenFile, OpenKey},
        tables::inode::tests::sample,
    };

    const BEFORE: Counters = Counters { next_inode: 10, inodes: 3 };
    const KEY: OpenKey = OpenKey { client: ClientId(1), open: OpenId(1) };

    fn nothing() -> Changes {
        Changes::none(BEFORE)
    }

    fn put(inode: &Inode) -> Operation {
        Operation::Put(INODES, Inode::key(inode.number()).into(), inode.encode().into())
    }

    fn delete(inode: &Inode) -> Operation {
        Operation::Delete(INODES, Inode::key(inode.number()).into())
    }

    fn record_orphan(inode: &Inode) -> Operation {
        Operation::Put(ORPHANS, orphan::key(inode.number()).into(), orphan::value().into())
    }

    fn unlinked() -> Inode {
        let mut inode = sample(FileKind::Regular);
        inode.attributes.links = 0;
        inode
    }

    fn size_known() -> Inode {
        Inode { size_known: true, ..sample(FileKind::Regular) }
    }

    fn for_writing(inode: &Inode) -> OpenFile {
        OpenFile { inode: inode.number(), flags: OpenFlags(open_flag::WRITE), epoch: None, began: false }
    }

    /// What is asserted of these changes and opens, of an inode whose size was not known; empty if
    /// all of it holds.
    fn breach(changes: &Changes, opens: &OpenTable) -> String {
        let stored = |_| {
            Some(Brief {
                kind: FileKind::Regular,
                size_known: false,
                links: 1,
                is_striped: false,
                may_move: false,
                version: 1,
            })
        };
        let Err(panic) = catch_unwind(AssertUnwindSafe(|| assert_batch(changes, BEFORE, opens, stored))) else {
            return String::new();
        };
        let text = panic.downcast_ref::<String>().cloned();
        text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned())).expect("a panic with a text")
    }

    fn named(inode: InodeNumber, kind: FileKind) -> ChangedName {
        ChangedName { directory: InodeNumber(1), name: b"name".to_vec(), cookie: 9, target: Some((inode, kind)) }
    }

    fn breach_alone(changes: Changes) -> String {
        breach(&changes, &OpenTable::new(10))
    }

    #[test]
    fn sound_batches_pass() {
        let (file, unlinked) = (sample(FileKind::Regular), unlinked());
        let number = file.number();
        let made = Counters { next_inode: 11, inodes: 4 };
        let sound = [
            nothing(),
            Changes {
                counters: made,
                operations: vec![put(&file)],
                names: vec![named(number, FileKind::Regular)],
                ..nothing()
            },
            Changes {
                counters: Counters { inodes: 2, ..BEFORE },
                operations: vec![put(&file), delete(&file)],
                ..nothing()
            },
            Changes {
                operations: vec![record_orphan(&unlinked), put(&unlinked)],
                removed: vec![(number, Instant(1))],
                ..nothing()
            },
            Changes { operations: vec![put(&file)], open: Some((KEY, for_writing(&file))), ..nothing() },
            Changes { operations: vec![put(&size_known())], ..nothing() },
        ];
        for changes in sound {
            assert_eq!(breach_alone(changes), "");
        }
    }

    #[test]
    fn counters_go_with_what_is_made_and_removed() {
        let file = sample(FileKind::Regular);
        let back = Changes { counters: Counters { next_inode: 9, ..BEFORE }, ..nothing() };
        assert!(breach_alone(back).contains("given once"));
        let removed = Changes { operations: vec![delete(&file)], ..nothing() };
        assert!(breach_alone(removed).contains("3 before, 0 made, 1 removed"));
        let made = Changes { counters: Counters { next_inode: 12, inodes: 4 }, ..nothing() };
        assert!(breach_alone(made).contains("3 before, 2 made, 0 removed"));
    }

    #[test]
    fn a_name_leads_to_an_inode_of_its_kind() {
        let file = sample(FileKind::Regular);
        let names = |kind| vec![named(file.number(), kind)];
        let counters = Counters { inodes: 2, ..BEFORE };
        let removed =
            Changes { counters, operations: vec![delete(&file)], names: names(FileKind::Regular), ..nothing() };
        assert!(breach_alone(removed).contains("gets a name and is removed"));
        let other = Changes { operations: vec![put(&file)], names: names(FileKind::Directory), ..nothing() };
        assert!(breach_alone(other).contains("the kind that a new name"));
    }

    #[test]
    fn orphans_exist_without_links() {
        let (file, unlinked) = (sample(FileKind::Regular), unlinked());
        let linked = Changes { operations: vec![record_orphan(&file), put(&file)], ..nothing() };
        assert!(breach_alone(linked).contains("recorded as unlinked"));
        let operations = vec![record_orphan(&unlinked), delete(&unlinked)];
        let removed = Changes { counters: Counters { inodes: 2, ..BEFORE }, operations, ..nothing() };
        assert!(breach_alone(removed).contains("recorded as unlinked and removed"));
        let kept = Changes { removed: vec![(file.number(), Instant(1))], ..nothing() };
        assert!(breach_alone(kept).contains("is kept, and not recorded"));
    }

    #[test]
    fn no_size_is_known_of_a_file_that_is_written() {
        let size_known = size_known();
        let opened =
            Changes { operations: vec![put(&size_known)], open: Some((KEY, for_writing(&size_known))), ..nothing() };
        assert!(breach_alone(opened).contains("opened to be written"));
        let mut opens = OpenTable::new(10);
        opens.insert(KEY, for_writing(&size_known));
        let put = Changes { operations: vec![put(&size_known)], ..nothing() };
        assert!(breach(&put, &opens).contains("becomes known while it is open"));
    }

    #[test]
    fn an_open_inode_is_not_removed() {
        let file = sample(FileKind::Regular);
        let counters = Counters { inodes: 2, ..BEFORE };
        let open = Some((KEY, for_writing(&file)));
        let removed = Changes { counters, operations: vec![delete(&file)], open, ..nothing() };
        assert!(breach_alone(removed).contains("is opened and removed"));
    }
}
