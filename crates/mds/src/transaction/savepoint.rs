//! Savepoints: the changes of a transaction up to a step of a compound, so that a step that fails
//! is undone and the steps before it are not.
//!
//! Volatile state is not restored: as with an operation alone, what it changes directly persists.

use rpc::message::mdt::OpenId;
use types::InodeNumber;

use super::{Changes, Transaction, versions::Versions};
use crate::{opens::OpenKey, tables::counter::Counters};

/// What a transaction has changed so far.
pub(crate) struct Savepoint {
    operations: usize,
    versions: Versions,
    counters: Counters,
    names: usize,
    deferred_operations: usize,
    changed_directories: usize,
    removed: usize,
    releases: bool,
    lengthened: Option<InodeNumber>,
}

impl Transaction<'_> {
    /// To be taken before a step.
    pub fn savepoint(&self) -> Savepoint {
        let Changes {
            operations,
            versions,
            counters,
            names,
            deferred_operations,
            open,
            early_opens: _,
            changed_directories,
            removed,
            truncated,
            is_final: _,
            precedes_others: _,
            exclusive,
            decided_layout: _,
            ended_holds: _,
            releases,
            lengthened,
            reserved: _,
            adopted: _,
            decisions,
            peers,
            withdrawn: _,
        } = &self.changes;
        assert!(decisions.is_empty() && peers.is_empty(), "a compound is an operation of one MDT");
        let is_pending = open.is_some() || truncated.is_some() || exclusive.is_some();
        assert!(!is_pending, "nothing is pending between two steps");
        Savepoint {
            operations: operations.len(),
            versions: versions.clone(),
            counters: *counters,
            names: names.len(),
            deferred_operations: deferred_operations.len(),
            changed_directories: changed_directories.len(),
            removed: removed.len(),
            releases: *releases,
            lengthened: *lengthened,
        }
    }

    /// Takes back what was changed after this.
    pub fn return_to(&mut self, savepoint: Savepoint) {
        let changes = &mut self.changes;
        changes.operations.truncate(savepoint.operations);
        changes.versions = savepoint.versions;
        changes.counters = savepoint.counters;
        changes.names.truncate(savepoint.names);
        changes.deferred_operations.truncate(savepoint.deferred_operations);
        changes.changed_directories.truncate(savepoint.changed_directories);
        changes.removed.truncate(savepoint.removed);
        changes.releases = savepoint.releases;
        changes.lengthened = savepoint.lengthened;
        changes.open = None;
    }

    /// The step is done: what it opened is open for the steps after it.
    pub fn open_early(&mut self) {
        if let Some((key, file)) = self.changes.open.take() {
            let early = self.volatile.open_early(key, file);
            self.changes.early_opens.push(early);
        }
    }

    /// The transaction failed: what its steps opened is not open.
    pub fn take_back_opens(&mut self) {
        while let Some(early) = self.changes.early_opens.pop() {
            self.volatile.take_back(early);
        }
    }

    /// Whether the caller has an open of this id.
    pub fn is_open_of_caller(&self, open: OpenId) -> bool {
        self.volatile.opens.get(OpenKey { client: self.context.client, open }).is_some()
    }

    /// Whether an earlier step of this compound opened it.
    pub fn opened_early(&self, key: OpenKey) -> bool {
        self.changes.early_opens.iter().any(|early| early.key == key)
    }

    /// Whether the attempt has missed something: what it fails with is no answer.
    pub fn is_given_up(&self) -> bool {
        self.awaits_peer().is_some() || self.loading.is_some_and(kv::Loading::is_given_up)
    }
}

#[cfg(test)]
mod tests {
    use rpc::message::mdt::OpenFlags;
    use types::{ClientId, FileKind};

    use crate::{opens::OpenFile, tables::inode::tests::sample, transaction::entries::tests::with_transaction};

    use super::*;

    const KEY: OpenKey = OpenKey { client: ClientId(1), open: OpenId(1) };

    fn file(flags: u32) -> OpenFile {
        OpenFile { inode: InodeNumber(5), flags: OpenFlags(flags), epoch: None, began: false }
    }

    #[tokio::test]
    async fn what_came_after_is_taken_back() {
        with_transaction(|txn| {
            let before = sample(FileKind::Regular);
            txn.put_inode(&before);
            let savepoint = txn.savepoint();
            let number = txn.new_number();
            let mut changed = txn.inode(before.number()).unwrap();
            changed.attributes.mode = 0o111;
            txn.put_inode(&changed);
            txn.put_xattr(number, b"user.a", b"1");
            txn.open_at_commit(KEY, file(1));
            txn.release_space();
            txn.return_to(savepoint);
            assert_eq!(txn.inode(before.number()).unwrap().attributes.mode, before.attributes.mode);
            assert_eq!(txn.new_number(), number, "nobody has seen it");
            txn.seal().unwrap();
            assert_eq!(txn.changes.versions.stored().len(), 1);
            assert!(txn.changes.open.is_none() && !txn.changes.releases);
        })
        .await;
    }

    #[tokio::test]
    async fn opens_of_a_failed_transaction_are_taken_back() {
        with_transaction(|txn| {
            txn.volatile.opens.insert(KEY, file(1));
            let other = OpenKey { open: OpenId(2), ..KEY };
            for (key, flags) in [(KEY, 2), (other, 1), (other, 3)] {
                txn.open_at_commit(key, file(flags));
                txn.open_early();
            }
            assert_eq!(txn.volatile.opens.get(KEY), Some(&file(2)), "later steps see it");
            txn.take_back_opens();
            assert_eq!((txn.volatile.opens.get(KEY), txn.volatile.opens.get(other)), (Some(&file(1)), None));
            txn.volatile.opens.assert_counted();
            txn.open_at_commit(KEY, file(2));
            txn.open_early();
            assert_eq!(txn.remove_open(KEY), Some(file(2)));
            txn.take_back_opens();
            assert_eq!(txn.volatile.opens.get(KEY), None, "it was closed, whatever becomes of the rest");
        })
        .await;
    }
}
