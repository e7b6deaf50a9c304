//! Versions of inodes: each batch that changes an inode raises its version by one. A change is one
//! of its record (attributes, layout, link count, epoch), of its names, of the names in it if it is
//! a directory, or of its extended attributes; data are not included, they belong to objects.
//! Clients claim cache locks with it after a reconnection. (Later it can tell a replay whether the
//! inode is still in the state that the client changed, as in Lustre's version-based recovery.)
//!
//! No operation raises a version itself: [`Transaction::put_inode`] stores every record under the
//! next one, and [`Transaction::seal`], which ends every transaction, stores the records of inodes
//! that were changed otherwise.
//!
//! Invariants: a version is at least 1 and never goes back, unless a power loss takes the batch; in
//! one batch an inode has one version, however often it is stored (module `audit` checks both).
//!
//! Downside: after a power loss a version that was lost is used again, for another change: only
//! together with the power-loss era does it identify one state.

use kv::{Lsn, Table};
use rpc::message::extension::{self, ChangedName, Chosen, InodeVersion, ReplyExtension};
use types::{
    FsError, FsResult, InodeNumber, Timestamp,
    limits::{NAMES_PER_CHANGE_MAX, VERSIONS_PER_CHANGE_MAX},
};

use super::Transaction;
use crate::tables::{ENTRIES, INODES, LINKS, XATTRS, codec::split_number, inode::Inode};

/// What a reply can tell of a change.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Change {
    /// The batch that holds it; `None`: nothing was changed.
    pub batch: Option<Lsn>,
    /// The first inodes that it changed, four at most.
    pub inodes: Vec<InodeVersion>,
    /// Its time.
    pub time: Timestamp,
    /// Names that it changed; none, if they are more than can be told.
    pub names: Vec<ChangedName>,
}

impl Change {
    /// The change that became this batch.
    pub fn applied(batch: Lsn, mut inodes: Vec<InodeVersion>, mut names: Vec<ChangedName>, time: Timestamp) -> Self {
        inodes.truncate(VERSIONS_PER_CHANGE_MAX);
        if names.len() > NAMES_PER_CHANGE_MAX {
            names.clear();
        }
        Self { batch: Some(batch), inodes, time, names }
    }

    /// As it is told to the client; `committed`: what is durable.
    pub fn told(self, era: u64, committed: Lsn) -> ReplyExtension {
        let Some(Lsn(batch)) = self.batch else { return ReplyExtension::default() };
        let chosen = Chosen {
            inode: self.inodes.iter().find(|version| version.before == 0).map(|version| version.inode),
            time: Some(self.time),
        };
        let change = extension::Change { lsn: types::Lsn(batch), era, versions: self.inodes, chosen };
        let (committed, names) = (types::Lsn(committed.0), self.names);
        ReplyExtension { change: Some(change), committed, names, ..ReplyExtension::default() }
    }
}

/// Inodes that a transaction changes.
#[derive(Clone, Default)]
pub(crate) struct Versions {
    /// Their records are stored or removed, in the order of the first time.
    stored: Vec<InodeVersion>,
    /// Something that belongs to them was changed; their records may not have been yet.
    touched: Vec<InodeNumber>,
}

impl Versions {
    /// All of them.
    pub fn into_stored(self) -> Vec<InodeVersion> {
        self.stored
    }

    /// The same, as long as the transaction is not over.
    pub fn stored(&self) -> &[InodeVersion] {
        &self.stored
    }

    fn enter(&mut self, inode: &Inode) -> &mut InodeVersion {
        let (number, before) = (inode.number(), inode.version);
        let at = self.stored.iter().position(|known| known.inode == number).unwrap_or_else(|| {
            self.stored.push(InodeVersion { inode: number, before, after: before + 1 });
            self.stored.len() - 1
        });
        &mut self.stored[at]
    }

    /// A key is put or deleted.
    pub fn touch(&mut self, table: Table, key: &[u8]) {
        let belongs = [ENTRIES, LINKS, XATTRS].contains(&table);
        // A repair also deletes keys that are too short to be of an inode.
        if let (true, Ok((number, _))) = (belongs, split_number("inode", key))
            && !self.touched.contains(&InodeNumber(number))
        {
            self.touched.push(InodeNumber(number));
        }
    }
}

impl Transaction<'_> {
    /// Stores an inode, under its next version.
    pub fn put_inode(&mut self, inode: &Inode) {
        let version = self.changes.versions.enter(inode).after;
        self.put(INODES, Inode::key(inode.number()), inode.encode_at(version));
    }

    /// Removes the record of an inode.
    pub(super) fn remove_inode(&mut self, inode: &Inode) {
        self.changes.versions.enter(inode).after = 0;
        self.delete(INODES, Inode::key(inode.number()));
    }

    /// Ends the operation: every inode that it changed has its next version.
    pub fn seal(&mut self) -> FsResult<()> {
        for number in std::mem::take(&mut self.changes.versions.touched) {
            if self.changes.versions.stored.iter().any(|known| known.inode == number) {
                continue;
            }
            match self.find_inode(number) {
                Ok(Some(inode)) => self.put_inode(&inode),
                // What belongs to no inode, or to a damaged one, is being repaired.
                Ok(None) | Err(FsError::Damaged(_)) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use types::FileKind;

    use super::*;
    use crate::{tables::inode::tests::sample, transaction::entries::tests::with_transaction};

    fn versions(txn: &Transaction<'_>) -> Vec<(u64, u64)> {
        txn.changes.versions.stored().iter().map(|known| (known.before, known.after)).collect()
    }

    #[tokio::test]
    async fn a_batch_raises_a_version_once() {
        with_transaction(|txn| {
            let mut inode = sample(FileKind::Regular);
            inode.version = 7;
            txn.put_inode(&inode);
            let stored = txn.inode(inode.number()).unwrap();
            assert_eq!(stored.version, 8);
            txn.put_inode(&stored);
            txn.put_xattr(inode.number(), b"user.a", b"1");
            txn.put_inode(&inode);
            txn.seal().unwrap();
            assert_eq!(txn.inode(inode.number()).unwrap().version, 8);
            assert_eq!(versions(txn), [(7, 8)]);
        })
        .await;
    }

    #[tokio::test]
    async fn what_belongs_to_an_inode_changes_it() {
        with_transaction(|txn| {
            let mut inode = sample(FileKind::Regular);
            inode.version = 7;
            txn.put(INODES, Inode::key(inode.number()), inode.encode());
            txn.put_xattr(inode.number(), b"user.a", b"1");
            txn.delete(LINKS, b"short".to_vec());
            txn.put_xattr(InodeNumber(0x999), b"user.a", b"1");
            assert_eq!(versions(txn), []);
            txn.seal().unwrap();
            assert_eq!(versions(txn), [(7, 8)], "and nothing for an inode that does not exist");
            assert_eq!(txn.inode(inode.number()).unwrap().version, 8);
        })
        .await;
    }

    #[tokio::test]
    async fn making_and_removing_are_versions_too() {
        with_transaction(|txn| {
            let mut inode = sample(FileKind::Symlink);
            inode.version = 0;
            txn.put_inode(&inode);
            assert_eq!(versions(txn), [(0, 1)]);
            let stored = txn.inode(inode.number()).unwrap();
            txn.remove_inode(&stored);
            txn.delete_xattr(inode.number(), b"user.a");
            txn.seal().unwrap();
            assert_eq!(versions(txn), [(0, 0)]);
            assert_eq!(txn.find_inode(inode.number()), Ok(None));
        })
        .await;
    }

    #[test]
    fn a_reply_tells_of_two_names_or_none() {
        let name = |cookie| ChangedName { directory: InodeNumber(1), name: vec![b'n'], cookie, target: None };
        let told = |count| {
            Change::applied(Lsn(9), Vec::new(), (0..count).map(name).collect(), Timestamp::default())
                .told(1, Lsn(8))
                .names
        };
        assert_eq!(told(2), [name(0), name(1)]);
        assert_eq!(told(3), []);
    }

    #[test]
    fn a_reply_tells_of_four_inodes() {
        let changed = |inode| InodeVersion { inode: InodeNumber(inode), before: 1, after: 2 };
        let change = Change::applied(Lsn(9), (1..=6).map(changed).collect(), Vec::new(), Timestamp::default());
        assert_eq!(change.batch, Some(Lsn(9)));
        assert_eq!(change.inodes, (1..=4).map(changed).collect::<Vec<_>>());
    }
}
