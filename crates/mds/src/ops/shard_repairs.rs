//! Repairs of striped directories whose map and shards contradict each other, for fsck
//! (docs/decisions/0068-repairs-over-several-mdts.md). The MDT of the directory decides, as
//! [`super::name_repairs`] describes.
//!
//! A shard whose record is lost is made again under its number, with the names that are left of it.
//! Maps do not change: clients keep them for as long as their shards exist.

use rpc::message::{
    mdt::Finding,
    mdt_peer::RemoteName,
    name_repair::{CorrectLink, NameState},
};
use types::{FsError, FsResult, InodeNumber};

use super::{
    copies,
    name_repairs::{Verdict, prepare, repaired},
};
use crate::{
    tables::{
        decision::{DecidedPart, Decision},
        inode::{Inode, Striping},
    },
    transaction::{Transaction, striping::shard_link},
};

/// What the difference is about: the link from a shard to its directory, which has no name.
pub(super) fn concerns(inode: InodeNumber, name: &[u8]) -> bool {
    inode.is_shard() && name.is_empty()
}

/// As the MDT of the directory.
pub(super) fn settle(
    txn: &mut Transaction<'_>,
    RemoteName { inode: shard, parent, .. }: &RemoteName,
) -> FsResult<Option<Finding>> {
    let directory = match txn.inode(*parent) {
        Err(FsError::Stale) => None,
        found => Some(found?),
    };
    if directory.as_ref().is_some_and(Inode::names_move) {
        return Err(FsError::Busy);
    }
    let has_it = |directory: &Inode| {
        let map = directory.map().filter(|_| directory.attributes.links > 0);
        map.is_some_and(|map| map.is_possible() && map.shards.contains(shard))
    };
    let listing = directory.filter(has_it);
    let state = if listing.is_some() { NameState::Exists } else { NameState::Absent };
    let (decision, prepared) = prepare(txn, *shard, &shard_link(*parent), state)?;
    let problem = match listing {
        Some(directory) if prepared.inode != *shard => {
            let made = txn.lost_shard(&directory, *shard)?;
            let part = DecidedPart::Make { record: made.encode_at(1), xattrs: copies::lists(txn, *parent)? };
            txn.decide(shard.mdt(), Decision { part, ..decision });
            return Ok(Some(repaired(*parent, lost(*shard))));
        }
        _ if prepared.entry.is_none() => return Ok(None),
        Some(_) => format!("a shard that does not know its directory {parent}"),
        None => format!("an empty shard that directory {parent} does not know"),
    };
    txn.decide(shard.mdt(), decision);
    Ok(Some(repaired(*shard, problem)))
}

/// A shard that does not exist, in words.
pub(super) fn lost(shard: InodeNumber) -> String {
    format!("its shard {shard} does not exist: names in it may be lost")
}

/// As the MDT of the shard. `Exists`: it belongs to another directory; `NotEmpty`: it has names,
/// and its directory does not know it.
pub(super) fn verdict(txn: &Transaction<'_>, part: &CorrectLink, shard: Option<&Inode>) -> FsResult<Verdict> {
    let link = shard_link(part.parent);
    let holds = shard.is_some_and(|shard| shard.first_link.as_ref() == Some(&link));
    match (part.state, shard) {
        (NameState::Exists, None) => Ok(Verdict::Missing),
        (NameState::Exists, Some(_)) if holds => Ok(Verdict::Agrees),
        (NameState::Exists, Some(shard)) => match (&shard.striping, &shard.first_link) {
            (Striping::Shard(_), None) => Ok(Verdict::Differs),
            _ => Err(FsError::Exists),
        },
        (NameState::Absent, _) if holds => match txn.is_empty_directory(part.inode)? {
            true => Ok(Verdict::Differs),
            false => Err(FsError::NotEmpty),
        },
        (NameState::Absent | NameState::Rescues, _) => Ok(Verdict::Agrees),
    }
}

/// Makes a lost shard of this MDT again, as its directory is.
pub(super) fn make_here(txn: &mut Transaction<'_>, directory: &Inode, shard: InodeNumber) -> FsResult<()> {
    let mut made = txn.lost_shard(directory, shard)?;
    made.attributes.links = txn.links_of_directory(shard)?;
    txn.adopt_number(shard);
    for (name, value) in copies::lists(txn, directory.number())? {
        txn.put_xattr(shard, &name, &value);
    }
    txn.put_inode(&made);
    Ok(())
}
