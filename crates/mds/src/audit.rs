//! Checks the state after each commit, for tests and simulations
//! ([`MdtOptions::audits`](crate::MdtOptions::audits)): everything that a batch touched must pass
//! the check that an administrator runs ([`crate::ops::check`]), nothing must be left of what it
//! removed, and the opens must be consistent.
//!
//! Downside: each commit costs the reads that check its records, under the namespace's lock; and
//! damage that the tables had before counts as a violation. So the audit is off by default.

use std::collections::BTreeSet;

use kv::Operation;
use rpc::message::extension::InodeVersion;
use types::{FileKind, FsResult, InodeNumber, OstIndex};

use crate::{
    ops::check::{self, CheckReport},
    tables::{
        DATA, ENTRIES, INODES, LINKS, ORPHANS, XATTRS,
        codec::{inode_of_key, split_number},
        deferred_log::DeferredOperation,
        inode::{Brief, Inode},
        orphan,
    },
    transaction::{Changes, Transaction},
};

/// What a batch touches, noted before it is applied.
pub(crate) struct Touched {
    operations: Vec<Operation>,
    deferred_operations: Vec<(OstIndex, DeferredOperation)>,
    versions: Vec<InodeVersion>,
}

impl Touched {
    /// By these changes.
    pub fn by(changes: &Changes) -> Self {
        let (operations, deferred_operations) = (changes.operations.clone(), changes.deferred_operations.clone());
        Self { operations, deferred_operations, versions: changes.versions.stored().to_vec() }
    }

    /// Asserts that the batch raises the version of each inode that it changes, by one. `stored`:
    /// an inode as the tables have it before the batch.
    pub fn assert_versions(&self, stored: impl Fn(InodeNumber) -> Option<Brief>) {
        for InodeVersion { inode, before, after } in &self.versions {
            let found = stored(*inode).map_or(0, |brief| brief.version);
            assert_eq!(found, *before, "the version of inode {inode} before a batch");
            assert!(*after == 0 || *after == before + 1, "inode {inode} goes from version {before} to {after}");
        }
        for operation in &self.operations {
            let belongs = [INODES, ENTRIES, LINKS, XATTRS].contains(&operation.table());
            let Some(inode) = belongs.then(|| split_number("inode", operation.key()).ok()).flatten() else { continue };
            let inode = InodeNumber(inode.0);
            let known = self.versions.iter().find(|version| version.inode == inode);
            match operation {
                Operation::Put(INODES, _, value) => {
                    let version = Brief::of(value).expect("values are made by this program").version;
                    let expected = known.map(|known| known.after);
                    assert!(expected == Some(version) || expected == Some(0), "inode {inode} is stored as {version}");
                }
                _ => assert!(known.is_some() || stored(inode).is_none(), "inode {inode} changes, and not its version"),
            }
        }
    }

    /// Asserts that what the batch left is sound; `txn` begins after it. Where the tables cannot be
    /// read, nothing can be said.
    pub fn assert_sound(&self, txn: &mut Transaction<'_>) {
        txn.volatile.opens.assert_counted();
        txn.volatile.cache.lock().check();
        let outcome = self.check_records(txn).and_then(|()| self.check_inodes(txn));
        if let Err(error) = outcome {
            tracing::warn!(%error, "cannot audit a commit");
        }
    }

    /// Inodes that the batch has changed or removed.
    fn inodes(&self) -> BTreeSet<InodeNumber> {
        let of_inodes = self.operations.iter().filter(|operation| operation.table() == INODES);
        of_inodes.filter_map(|operation| inode_of_key("inode", operation.key()).ok()).collect()
    }

    fn check_records(&self, txn: &mut Transaction<'_>) -> FsResult<()> {
        let counts_directories = self.directories() > 1;
        let keys: BTreeSet<_> = self.operations.iter().map(|operation| (operation.table(), operation.key())).collect();
        for (table, key) in keys {
            if table == INODES && !counts_directories && self.is_directory(key) {
                continue;
            }
            let mut report = CheckReport::new(false);
            for (_, pass) in check::PASSES.into_iter().filter(|(of, _)| *of == table) {
                check::record(txn, &mut report, table, key, pass)?;
            }
            let findings = report.into_findings();
            assert!(findings.is_empty(), "a commit left {findings:?}");
        }
        Ok(())
    }

    /// Directories whose records change. One alone has no other subdirectories than before: its
    /// names need not be counted.
    fn directories(&self) -> usize {
        let changed: BTreeSet<_> =
            self.operations.iter().filter(|operation| operation.table() == INODES).map(Operation::key).collect();
        let is_directory = |key: &&bytes::Bytes| {
            let is_removed = |operation: &Operation| matches!(operation, Operation::Delete(INODES, of) if of == *key);
            self.is_directory(key) || self.operations.iter().any(is_removed)
        };
        changed.iter().filter(|key| is_directory(key)).count()
    }

    fn is_directory(&self, key: &[u8]) -> bool {
        self.operations.iter().any(|operation| {
            matches!(operation, Operation::Put(INODES, of, value)
                if of == key && Brief::of(value).is_ok_and(|brief| brief.kind == FileKind::Directory))
        })
    }

    fn check_inodes(&self, txn: &Transaction<'_>) -> FsResult<()> {
        for number in self.inodes() {
            match txn.find_inode(number)? {
                Some(inode) => self.assert_inode(txn, &inode),
                None => assert_nothing_left(txn, number)?,
            }
        }
        Ok(())
    }

    fn assert_inode(&self, txn: &Transaction<'_>, inode: &Inode) {
        let number = inode.number();
        let is_written = inode.layout().is_some() && txn.volatile.opens.written_by_others(number, None);
        assert!(!is_written || !inode.size_known, "the size of inode {number} is known, and it is open for writing");
        for (ost, object) in inode.objects() {
            let is_destroyed = self.deferred_operations.contains(&(ost, DeferredOperation::Destroy(object)));
            assert!(!is_destroyed, "object {object} of inode {number} is destroyed on {ost}");
        }
    }
}

fn assert_nothing_left(txn: &Transaction<'_>, number: InodeNumber) -> FsResult<()> {
    assert!(!txn.is_open(number), "inode {number} is open and removed");
    assert!(!txn.volatile.removed.contains(number), "inode {number} is kept and removed");
    assert!(txn.get(ORPHANS, &orphan::key(number))?.is_none(), "inode {number} is recorded as unlinked and removed");
    for (table, what) in [(LINKS, "a name"), (XATTRS, "an attribute"), (DATA, "data")] {
        txn.scan_prefix(table, &number.0.to_be_bytes(), &mut |key, _| {
            panic!("{what} is left of inode {number}: {key:?}")
        })?;
    }
    assert!(txn.is_empty_directory(number)?, "names are left in directory {number}");
    Ok(())
}
