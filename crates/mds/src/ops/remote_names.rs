//! What fsck needs to compare names with inodes on other MDTs: names here that lead to other MDTs,
//! and inodes here that have names there.
//!
//! Names of inodes are in two tables, INODES and LINKS, one after the other; their keys differ in
//! length.

use rpc::message::{
    MdtReply,
    mdt_peer::{RemoteName, RemoteNames, RemoteNamesAfter},
};
use types::{Credentials, FileKind, FsError, FsResult, InodeNumber, limits};

use super::root_only::require_root;
use crate::{
    tables::{
        ENTRIES, INODES, LINKS,
        codec::{inode_of_key, key_of},
        entry::EntryRecord,
        inode::{Inode, Link},
        link,
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
    let before_links = key_of(&[0, 0]);
    // Shards of striped directories count as names without letters: they follow those in ENTRIES.
    let before_maps = Inode::key(InodeNumber(0));
    let table = match &after.key {
        Some(key) if after.of_names && key.len() == before_maps.len() => INODES,
        _ if after.of_names => ENTRIES,
        Some(key) if key.len() >= before_links.len() => LINKS,
        _ => INODES,
    };
    let page = txn.page(table, after.key.as_deref(), RECORDS_MAX)?;
    let (mut found, mut looked_at, mut directory) = (Vec::new(), 0, None);
    for (key, value) in &page {
        // A directory may have many shards.
        if found.len() >= RECORDS_MAX {
            break;
        }
        looked_at += 1;
        let remote = match table {
            ENTRIES => of_entry(txn, (key, value), &mut directory).map(Vec::from_iter),
            INODES if after.of_names => of_map(txn, key, value),
            LINKS => of_link(txn, key).map(Vec::from_iter),
            _ => of_inode(txn, key, value).map(Vec::from_iter),
        };
        match remote {
            Ok(remote) => found.extend(remote),
            // The check of the namespace reports it.
            Err(FsError::Damaged(_)) => {}
            Err(error) => return Err(error),
        }
    }
    let is_end = page.len() < RECORDS_MAX && looked_at == page.len();
    let last = page.into_iter().take(looked_at).next_back().map(|(key, _)| key).filter(|_| !is_end);
    let next = last.or(match table {
        ENTRIES => Some(before_maps),
        INODES if !after.of_names => Some(before_links),
        _ => None,
    });
    Ok(MdtReply::RemoteNames(RemoteNames { found, next }))
}

/// `directory`: the last one that was looked at, and whether it exists. What is left of one that
/// does not exist is no name, and the check of the namespace removes it.
fn of_entry(
    txn: &Transaction<'_>,
    (key, value): (&[u8], &[u8]),
    directory: &mut Option<(InodeNumber, bool)>,
) -> FsResult<Option<RemoteName>> {
    let (parent, _) = EntryRecord::decode_key(key)?;
    let target = EntryRecord::decode(value)?.target.filter(|target| !txn.is_here(target.inode));
    let Some(target) = target else { return Ok(None) };
    let exists = match *directory {
        Some((known, exists)) if known == parent => exists,
        _ => match txn.find_inode(parent) {
            // Names of a directory whose record is damaged are as good as others.
            Err(FsError::Damaged(_)) => true,
            // A shard may be made again, with these names.
            found => found?.map_or(parent.is_shard(), |inode| inode.is_directory()),
        },
    };
    *directory = Some((parent, exists));
    Ok(exists.then_some(target).map(|target| RemoteName {
        inode: target.inode,
        parent,
        name: target.name,
        kind: target.kind,
    }))
}

fn of_map(txn: &Transaction<'_>, key: &[u8], value: &[u8]) -> FsResult<Vec<RemoteName>> {
    let inode = Inode::decode(inode_of_key("inode", key)?, value)?;
    // One that was removed while it was open has no shards any more.
    let Some(map) = inode.map().filter(|_| inode.attributes.links > 0) else { return Ok(Vec::new()) };
    let named = |inode| RemoteName { inode, parent: map.master, name: Vec::new(), kind: FileKind::Directory };
    Ok(map.shards.into_iter().filter(|shard| !txn.is_here(*shard)).map(named).collect())
}

fn of_inode(txn: &Transaction<'_>, key: &[u8], value: &[u8]) -> FsResult<Option<RemoteName>> {
    let inode = Inode::decode(inode_of_key("inode", key)?, value)?;
    let (number, kind) = (inode.number(), inode.kind());
    let link = inode.first_link.filter(|link| !txn.is_here(link.parent));
    Ok(link.map(|Link { parent, name }| RemoteName { inode: number, parent, name, kind }))
}

fn of_link(txn: &Transaction<'_>, key: &[u8]) -> FsResult<Option<RemoteName>> {
    let (number, Link { parent, name }) = link::decode_key(key)?;
    if txn.is_here(parent) {
        return Ok(None);
    }
    // The check of the namespace reports a missing inode.
    let found = txn.find_inode(number)?;
    Ok(found.map(|inode| RemoteName { inode: number, parent, name, kind: inode.kind() }))
}
