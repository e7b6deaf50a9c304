//! What fsck needs to compare files with their objects: all inodes in order, and setting a size
//! that it found.
//!
//! A size reported by the objects was true at the moment they were asked. So each file that no
//! client can be writing to is listed with its write epoch, and a size is set only under that
//! epoch: a client that has opened the file for writing since, or truncated it, has increased the
//! epoch, even if it has left again (module `known_size`). A record that does not decode is
//! reported as such, and the scan continues after it.

use layout::Layout;
use rpc::message::{
    MdtReply,
    mdt::{Entry, ScannedInode, SizeUpdate},
};
use types::{Attributes, Credentials, FileKind, FsError, FsResult, InodeNumber, limits};

use super::{open::is_quiet, root_only::require_root};
use crate::{
    known_size,
    tables::{INODES, codec::inode_of_key, inode::Inode},
    transaction::Transaction,
};

/// Inodes in one answer.
const INODES_MAX: usize = 64;
/// Bytes of inodes in one answer from which on it takes no further one: as estimated, far below
/// what a message may have.
const ANSWER_BYTES_MAX: usize = limits::BODY_BYTES_MAX / 4;
/// Estimate of an inode besides its layout.
const INODE_BYTES: usize = 256;
/// The heaviest layout, as estimated ([`Layout::bytes_estimate`]): what its inode's record has room
/// for, where an OST takes two bytes and not three, and a component, of which there are 256 at
/// most, 128 bytes less.
const LAYOUT_BYTES_MAX: usize = kv::VALUE_BYTES_MAX / 2 * 3 + 256 * 128;

const _: () = assert!(
    ANSWER_BYTES_MAX + 2 * LAYOUT_BYTES_MAX + INODE_BYTES <= limits::BODY_BYTES_MAX,
    "the last inode of an answer fits too, with its layout and that of an entry whose size is unknown"
);

/// At least one inode, if there are any: whatever their layouts weigh, the scan continues.
pub(crate) fn run(txn: &mut Transaction<'_>, who: &Credentials, after: InodeNumber, count: u32) -> FsResult<MdtReply> {
    require_root(who)?;
    let count = (count as usize).clamp(1, INODES_MAX);
    let (mut scanned, mut bytes) = (Vec::new(), 0);
    for (key, value) in &txn.page(INODES, Some(&Inode::key(after)), count)? {
        let number = inode_of_key("inode", key)?;
        let found = match txn.decode_inode(number, value) {
            Ok(inode) => look_at(txn, &inode),
            Err(FsError::Damaged(_)) => damaged(number),
            Err(error) => return Err(error),
        };
        bytes += INODE_BYTES
            + [found.layout.as_ref(), found.entry.size_unknown.as_deref()]
                .into_iter()
                .flatten()
                .map(Layout::bytes_estimate)
                .sum::<usize>();
        scanned.push(found);
        if bytes >= ANSWER_BYTES_MAX {
            break;
        }
    }
    Ok(MdtReply::Scanned(scanned))
}

fn look_at(txn: &Transaction<'_>, inode: &Inode) -> ScannedInode {
    let busy = inode.attributes.links == 0 || txn.is_open(inode.number()) || txn.volatile.recovery.running();
    let quiet = inode.layout().is_some() && !busy && is_quiet(txn, inode, None, false);
    let entry = Entry { quiet: quiet.then_some(inode.epoch), ..inode.entry() };
    ScannedInode { entry, layout: inode.layout().cloned(), busy, damaged: false }
}

/// What is left of an inode whose record does not decode.
fn damaged(inode: InodeNumber) -> ScannedInode {
    let attributes = Attributes::zeroed(inode, FileKind::Regular);
    let entry = Entry::of(attributes);
    ScannedInode { entry, layout: None, busy: true, damaged: true }
}

/// Accepted as long as no client has written since the epoch was given; else the objects have to be
/// asked again.
pub(crate) fn repair_size(
    txn: &mut Transaction<'_>,
    who: &Credentials,
    inode: InodeNumber,
    update: &SizeUpdate,
) -> FsResult<MdtReply> {
    require_root(who)?;
    let mut inode = txn.inode(inode)?;
    if inode.layout().is_none() {
        return Err(FsError::Invalid);
    }
    if update.epoch != inode.epoch || !is_quiet(txn, &inode, None, false) {
        return Err(FsError::Busy);
    }
    known_size::apply(&mut inode, update);
    txn.put_inode(&inode);
    Ok(MdtReply::Done)
}
