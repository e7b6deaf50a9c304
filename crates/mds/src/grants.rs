//! Which locks a client gets with a reply: what it asked for, of the inodes that request and reply
//! are about, as far as it can keep it.
//!
//! Attributes are granted only where this MDT alone knows them: not while a file's size is not
//! known, anybody has it open for writing, or an append or truncation is in progress. Nothing is
//! granted of an inode without a name (nothing can be withdrawn with its name any more), and
//! nothing during a recovery. Layouts, opens and data are not granted yet.

use lock::{InodeBits, inode_bit};
use rpc::message::{
    MdtReply, MdtRequest,
    lock::{CacheMode, Enqueue, Granted, Resource},
    mdt::Entry,
};
use types::{ClientId, FileKind, InodeNumber};

use crate::{transaction::entries::is_dots, volatile::Volatile};

const DIRECTORY: InodeBits = InodeBits(inode_bit::DIRECTORY);
const ATTRIBUTES: InodeBits = InodeBits(inode_bit::ATTRIBUTES);
const XATTRS: InodeBits = InodeBits(inode_bit::XATTRS);
/// What can be granted of an inode that a reply shows.
const SHOWN: InodeBits = InodeBits(inode_bit::LOOKUP | inode_bit::ATTRIBUTES | inode_bit::XATTRS);

/// Grants the locks that a client wants with this reply. To be called together with the operation,
/// under the namespace's mutex: what the reply shows is what the locks protect.
pub(crate) fn with_reply(
    volatile: &mut Volatile,
    client: ClientId,
    wanted: Enqueue,
    request: &MdtRequest,
    reply: &MdtReply,
) -> Vec<Granted> {
    let Resource::Inode(number, wanted_bits) = wanted.resource else { return Vec::new() };
    if wanted.mode != CacheMode::Read || volatile.recovery.running() {
        return Vec::new();
    }
    let Some((named, possible)) = about(request, reply) else { return Vec::new() };
    if named != number {
        return Vec::new();
    }
    let mut granted = Vec::new();
    for (inode, bits) in possible {
        let bits = bits & wanted_bits;
        let bits = if bits.meets(ATTRIBUTES) && !is_still(volatile, inode) { bits & !ATTRIBUTES } else { bits };
        granted.extend(volatile.cache.grant(client, inode, bits));
    }
    granted
}

/// Whether nobody may change the data of an inode without asking this MDT first.
fn is_still(volatile: &Volatile, inode: InodeNumber) -> bool {
    !volatile.opens.written_by_others(inode, None) && volatile.exclusive.holder(inode).is_none()
}

/// The inode that a request names, and what its reply shows of which inodes; `None`: it is none with
/// which locks are granted.
fn about(request: &MdtRequest, reply: &MdtReply) -> Option<(InodeNumber, Vec<(InodeNumber, InodeBits)>)> {
    use MdtRequest as R;
    match (request, reply) {
        (R::Lookup(_, lookup), MdtReply::Entry(entry)) if is_dots(&lookup.name) => {
            // Not found by a name.
            let (inode, bits) = shown(entry);
            Some((lookup.parent, vec![(inode, bits & !InodeBits(inode_bit::LOOKUP))]))
        }
        (R::Lookup(_, lookup), MdtReply::Entry(entry)) => Some((lookup.parent, child(lookup.parent, entry))),
        (R::Create(_, create), MdtReply::Created(created)) => {
            Some((create.parent, child(create.parent, &created.entry)))
        }
        (R::GetAttributes(inode), MdtReply::Entry(entry)) => Some((*inode, vec![itself(entry)])),
        (R::Open(_, open), MdtReply::Opened(opened)) => Some((open.inode, vec![itself(&opened.entry)])),
        (R::ReadDirectory(read), MdtReply::Directory(..)) => Some((read.inode, vec![(read.inode, DIRECTORY | XATTRS)])),
        (R::ReadLink(inode), MdtReply::Target(_)) => Some((*inode, vec![(*inode, ATTRIBUTES | XATTRS)])),
        (R::GetXattr(_, inode, _), MdtReply::Value(_)) | (R::ListXattr(_, inode), MdtReply::Names(_)) => {
            Some((*inode, vec![(*inode, XATTRS)]))
        }
        _ => None,
    }
}

/// Of an inode that a reply shows.
fn shown(entry: &Entry) -> (InodeNumber, InodeBits) {
    let inode = entry.attributes.inode;
    if entry.attributes.links == 0 {
        return (inode, InodeBits::NONE);
    }
    let bits = if entry.size_unknown.is_some() { SHOWN & !ATTRIBUTES } else { SHOWN };
    (inode, bits)
}

/// Of an inode that a reply shows and the request names: also its names, if it is a directory.
fn itself(entry: &Entry) -> (InodeNumber, InodeBits) {
    let (inode, bits) = shown(entry);
    match entry.attributes.kind {
        FileKind::Directory if !bits.is_empty() => (inode, bits | DIRECTORY),
        _ => (inode, bits),
    }
}

/// Of a directory and of the inode that was found in it.
fn child(parent: InodeNumber, entry: &Entry) -> Vec<(InodeNumber, InodeBits)> {
    vec![(parent, DIRECTORY), shown(entry)]
}
