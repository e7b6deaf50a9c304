//! Shards have the owner, permissions, flags and defaults of their directory, so that the MDT of a
//! shard decides alone whether a name in it may be made or removed. A change of the directory is
//! one of all its shards: the directory's MDT decides.

use lock::{InodeBits, inode_bit};
use rpc::message::{
    mdt_peer::{CopyAttributes, Part},
    session::feature,
};
use types::{
    Attributes, FsError, FsResult, InodeNumber, SetAttributes,
    access_list::{ACCESS_NAME, DEFAULT_NAME},
};

use super::layout_xattrs;
use crate::{
    tables::{
        INODES,
        decision::{CopiedAttributes, DecidedPart, Decision, Xattrs},
        inode::{Brief, Inode},
    },
    transaction::Transaction,
};

/// Names of what is copied besides the record.
const LISTS: [&[u8]; 2] = [ACCESS_NAME, DEFAULT_NAME];

/// Which times were set, and are to be those of the shards, too.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Times {
    pub atime: bool,
    pub mtime: bool,
}

impl Times {
    /// Those that this sets.
    pub fn set_by(changes: &SetAttributes) -> Self {
        Self { atime: changes.atime.is_some(), mtime: changes.mtime.is_some() }
    }
}

/// Shards change with their directory only.
pub(super) fn changeable(inode: InodeNumber) -> FsResult<InodeNumber> {
    if inode.is_shard() { Err(FsError::Invalid) } else { Ok(inode) }
}

/// Whether an inode has shards, without decoding all of it.
pub(super) fn is_striped(txn: &Transaction<'_>, inode: InodeNumber) -> FsResult<bool> {
    let value = txn.get(INODES, &Inode::key(inode))?;
    Ok(value.map(|value| Brief::of(&value)).transpose()?.is_some_and(|brief| brief.is_striped))
}

/// The last step of an operation that changed a directory: its shards take it over.
pub(super) fn to_shards(txn: &mut Transaction<'_>, directory: InodeNumber, times: Times) -> FsResult<()> {
    if !is_striped(txn, directory)? {
        return Ok(());
    }
    let Some(master) = txn.find_inode(directory)? else { return Ok(()) };
    let Some(map) = master.map() else { return Ok(()) };
    let Times { atime, mtime } = times;
    if (atime || mtime) && master.names_return() {
        // Names that are on their way bring former times of their shards.
        return txn.wait_for_peer(txn.mdt);
    }
    if master.is_overstriped() {
        txn.peers_must_know(feature::OVERSTRIPED_DIRECTORIES);
    }
    let copied = CopiedAttributes {
        atime,
        mtime,
        record: txn.with_default(&master)?.encode_at(1),
        xattrs: lists(txn, directory)?,
    };
    let mut shards = map.shards;
    shards.sort();
    for shard in shards {
        if txn.is_here(shard) {
            // Waits if it is in doubt.
            txn.inode(shard)?;
            take_over(txn, shard, &copied)?;
            // The client that asks has named the directory: it does not know what changes here.
            txn.withdraw(shard, InodeBits(inode_bit::ATTRIBUTES));
            continue;
        }
        let part = Part::CopyAttributes(CopyAttributes { shard, master: directory });
        let (operation, _) = txn.prepared(shard.mdt(), part)?;
        let part = DecidedPart::CopyAttributes(copied.clone());
        txn.decide(shard.mdt(), Decision { operation, inode: shard, part });
    }
    Ok(())
}

/// The same if this attribute was set or removed: of most of them shards have nothing.
pub(super) fn attribute_to_shards(txn: &mut Transaction<'_>, directory: InodeNumber, name: &[u8]) -> FsResult<()> {
    match LISTS.contains(&name) || layout_xattrs::is_layout(name) {
        true => to_shards(txn, directory, Times::default()),
        false => Ok(()),
    }
}

/// The access lists of a directory.
pub(super) fn lists(txn: &Transaction<'_>, directory: InodeNumber) -> FsResult<Xattrs> {
    let mut xattrs = Xattrs::new();
    for name in LISTS {
        xattrs.extend(txn.xattr(directory, name)?.map(|value| (name.to_vec(), value)));
    }
    Ok(xattrs)
}

/// The shard has this from now on.
pub(super) fn take_over(txn: &mut Transaction<'_>, shard: InodeNumber, copied: &CopiedAttributes) -> FsResult<()> {
    let Some(mut inode) = txn.find_inode(shard)? else { return Ok(()) };
    let Some(master) = inode.master() else {
        tracing::error!(%shard, "what was to take over attributes of its directory is no shard");
        return Ok(());
    };
    let from = Inode::decode(master, &copied.record)?;
    for name in LISTS {
        let is_stored = txn.xattr(shard, name)?.is_some();
        match copied.xattrs.iter().find(|(of, _)| of == name) {
            Some((_, value)) => txn.put_xattr(shard, name, value),
            None if is_stored => txn.delete_xattr(shard, name),
            None => {}
        }
    }
    (inode.access_list, inode.default_list) = (from.access_list, from.default_list);
    (inode.data, inode.directory_default) = (from.data, from.directory_default);
    inode.change(txn.now());
    let own = inode.attributes;
    let Attributes { mode, uid, gid, flags, project, .. } = from.attributes;
    inode.attributes = Attributes {
        mode,
        uid,
        gid,
        flags,
        project,
        atime: if copied.atime { from.attributes.atime } else { own.atime },
        mtime: if copied.mtime { from.attributes.mtime } else { own.mtime },
        ..own
    };
    txn.put_inode(&inode);
    Ok(())
}
