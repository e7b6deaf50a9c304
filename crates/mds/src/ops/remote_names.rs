//! What fsck needs to compare names with inodes on other MDTs: names here that lead to other MDTs,
//! and inodes here that have their name there.

use rpc::message::{
    MdtReply,
    mdt_peer::{RemoteName, RemoteNames, RemoteNamesAfter},
};
use types::{Credentials, FsError, FsResult, limits};

use super::require_root;
use crate::{
    tables::{
        ENTRIES, INODES,
        codec::inode_of_key,
        entry::EntryRecord,
        inode::{Inode, Link},
    },
    transaction::Transaction,
};

/// Records looked at for one answer.
const RECORDS_MAX: usize = 1024;
/// Estimate of a name besides its bytes.
const NAME_BYTES: usize = 32;

const _: () = assert!(
    RECORDS_MAX * (limits::NAME_BYTES_MAX + NAME_BYTES) < limits::BODY_BYTES_MAX,
    "what is found fits the answer"
);

pub(crate) fn run(txn: &mut Transaction<'_>, who: &Credentials, after: &RemoteNamesAfter) -> FsResult<MdtReply> {
    require_root(who)?;
    let table = if after.of_names { ENTRIES } else { INODES };
    let page = txn.page(table, after.key.as_deref(), RECORDS_MAX)?;
    let mut found = Vec::new();
    for (key, value) in &page {
        let remote = if after.of_names { of_entry(txn, key, value) } else { of_inode(txn, key, value) };
        match remote {
            Ok(remote) => found.extend(remote),
            // The check of the namespace reports it.
            Err(FsError::Damaged(_)) => {}
            Err(error) => return Err(error),
        }
    }
    let is_end = page.len() < RECORDS_MAX;
    let next = page.into_iter().next_back().map(|(key, _)| key).filter(|_| !is_end);
    Ok(MdtReply::RemoteNames(RemoteNames { found, next }))
}

fn of_entry(txn: &Transaction<'_>, key: &[u8], value: &[u8]) -> FsResult<Option<RemoteName>> {
    let (parent, _) = EntryRecord::decode_key(key)?;
    let target = EntryRecord::decode(value)?.target.filter(|target| !txn.is_here(target.inode));
    Ok(target.map(|target| RemoteName { inode: target.inode, parent, name: target.name, kind: target.kind }))
}

fn of_inode(txn: &Transaction<'_>, key: &[u8], value: &[u8]) -> FsResult<Option<RemoteName>> {
    let inode = Inode::decode(inode_of_key("inode", key)?, value)?;
    let (number, kind) = (inode.number(), inode.kind());
    let link = inode.first_link.filter(|link| !txn.is_here(link.parent));
    Ok(link.map(|Link { parent, name }| RemoteName { inode: number, parent, name, kind }))
}
