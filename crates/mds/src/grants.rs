//! Which locks a client gets with a reply: those that it asked for, on the inodes of the request
//! and the reply, as far as they can be granted.
//!
//! Attributes are granted only where this MDT and that client alone know them: not while a file's
//! size is not known, another client has it open for writing, or an append or truncation is in
//! progress. Nothing is granted on an inode without a name (no change of its name can withdraw the
//! lock any more), and nothing during a recovery, or before a client has reported its opens on a
//! new connection.
//!
//! Data on this MDT are granted with replies that bring all of them, to opens for reading and to
//! reads, if they are few, and not while another client has the file open for writing: it would
//! take them back at once. They have a lock of their own, because it is not claimed on a new
//! connection.
//!
//! The layout is granted with every reply that shows it, except while it is being changed. Opens
//! are granted on directories by every reply that shows them, and on files by an open for reading,
//! whose reply contains the layout; not on a file whose readers are counted because it may be
//! migrated.
//!
//! A page of a directory comes with locks on each inode that it shows, in its entry. Once a limit
//! of locks is reached, the rest of the page gets none: each refused grant asks for the oldest
//! locks back, and one page must not ask for a client's whole cache.

use lock::{GrantedBits, InodeBits, inode_bit};
use rpc::message::{
    LeaveFullOst, LeaveStep, MdtReply, MdtRequest,
    lock::{CacheMode, Enqueue, Granted, Resource},
    mdt::{DirectoryEntry, Entry, Instantiate, LayoutInfo, LockClaim, open_flag},
};
use types::{ClientId, FileKind, InodeNumber, LockHandle};

use crate::{tables::inode::Brief, transaction::entries::is_dots, volatile::Volatile};

const LOOKUP: InodeBits = InodeBits(inode_bit::LOOKUP);
const DIRECTORY: InodeBits = InodeBits(inode_bit::DIRECTORY);
const ATTRIBUTES: InodeBits = InodeBits(inode_bit::ATTRIBUTES);
const XATTRS: InodeBits = InodeBits(inode_bit::XATTRS);
/// What can be granted on an inode that a reply shows.
const SHOWN: InodeBits = InodeBits(inode_bit::LOOKUP | inode_bit::ATTRIBUTES | inode_bit::XATTRS);
const OPEN: InodeBits = InodeBits(inode_bit::OPEN);
const LAYOUT: InodeBits = InodeBits(inode_bit::LAYOUT);
const DATA: InodeBits = InodeBits(inode_bit::DATA);

/// Grants the locks that a client wants with this reply: returns those that go with it, and enters
/// those of a page of a directory. To be called together with the operation, under the namespace's
/// lock: nothing changes in between, so what the reply shows is what the locks protect. `stored`:
/// an inode as the tables have it; `may_move` is exact.
pub(crate) fn with_reply(
    volatile: &Volatile,
    client: ClientId,
    wanted: Enqueue,
    request: &MdtRequest,
    reply: &mut MdtReply,
    stored: impl Fn(InodeNumber) -> Option<Brief>,
) -> Vec<Granted> {
    let Some((number, wanted_bits)) = grantable(volatile, client, wanted) else { return Vec::new() };
    let is_named = |inode| stored(inode).is_some_and(|inode| inode.links > 0);
    let Some((named, possible)) = about(request, reply, is_named) else { return Vec::new() };
    if named != number {
        return Vec::new();
    }
    let mut granted = Vec::new();
    for (inode, bits) in possible {
        let stored = stored(inode);
        let bits = exact(volatile, client, inode, settled(bits, stored) & wanted_bits);
        for bits in apart(stored.map(|inode| inode.kind), bits) {
            granted.extend(grant(volatile, client, inode, bits).map(|lock| told(lock, stored)));
        }
    }
    if let MdtReply::Directory(page, _) = reply {
        in_page(volatile, client, wanted_bits, page, stored);
    }
    granted
}

/// The same with the data of a file, which are all that it has on this MDT.
pub(crate) fn with_data(
    volatile: &Volatile,
    client: ClientId,
    wanted: Enqueue,
    inode: InodeNumber,
    stored: Option<Brief>,
) -> Option<Granted> {
    let (number, wanted_bits) = grantable(volatile, client, wanted)?;
    let is_named = stored.is_some_and(|inode| inode.links > 0);
    if number != inode || !is_named || !is_still(volatile, client, inode) {
        return None;
    }
    Some(told(grant(volatile, client, inode, wanted_bits & DATA)?, stored))
}

/// The parts of an inode that get a lock each. The name of a directory has one of its own: kernels
/// drop a name whose lock is withdrawn, and with it what is mounted below it, and working
/// directories lose their path. That must not happen whenever other clients change what is in a
/// directory.
fn apart(kind: Option<FileKind>, bits: InodeBits) -> impl Iterator<Item = InodeBits> {
    let name = if kind == Some(FileKind::Directory) { bits & LOOKUP } else { InodeBits::NONE };
    [name, bits & !name].into_iter().filter(|bits| !bits.is_empty())
}

/// What a client wants, if anything is granted to it at present.
fn grantable(volatile: &Volatile, client: ClientId, wanted: Enqueue) -> Option<(InodeNumber, InodeBits)> {
    let Resource::Inode(number, bits) = wanted.resource else { return None };
    let is_told = !volatile.recovery.running() && !volatile.opens.presumed.awaits_registration(client);
    (wanted.mode == CacheMode::Read && is_told).then_some((number, bits))
}

/// A lock as its client is told of it.
fn told(GrantedBits { handle, inode, bits }: GrantedBits, stored: Option<Brief>) -> Granted {
    let version = stored.map_or(0, |inode| inode.version);
    Granted { handle, resource: Resource::Inode(inode, bits), mode: CacheMode::Read, version }
}

fn grant(volatile: &Volatile, client: ClientId, inode: InodeNumber, bits: InodeBits) -> Option<GrantedBits> {
    let granted = volatile.cache.lock().grant(client, inode, bits)?;
    note_open(volatile, client, granted.bits);
    Some(granted)
}

/// Grants a lock of a former connection again, under a new handle.
pub(crate) fn claim(volatile: &Volatile, client: ClientId, claim: &LockClaim) -> Option<LockHandle> {
    let handle = volatile.cache.lock().claim(client, claim.handle, claim.inode, claim.bits)?;
    note_open(volatile, client, claim.bits);
    Some(handle)
}

/// When the connection of a client that may open without a request breaks, its opens are presumed.
fn note_open(volatile: &Volatile, client: ClientId, granted: InodeBits) {
    if granted.meets(OPEN) {
        volatile.opens.presumed.may_open(client);
    }
}

/// Names move without asking for what clients have of the shards, and with each batch.
fn settled(bits: InodeBits, stored: Option<Brief>) -> InodeBits {
    if stored.is_some_and(|inode| inode.may_move) { bits & (LOOKUP | OPEN) } else { bits }
}

/// Grants the locks wanted on the inodes that a page shows.
fn in_page(
    volatile: &Volatile,
    client: ClientId,
    wanted: InodeBits,
    page: &mut [DirectoryEntry],
    stored: impl Fn(InodeNumber) -> Option<Brief>,
) {
    if !wanted.meets(SHOWN) {
        return;
    }
    for found in page {
        let Some(entry) = &found.entry else { continue };
        let (inode, bits) = shown(entry);
        let is_directory = entry.attributes.kind == FileKind::Directory;
        let bits = settled(bits, if is_directory { stored(inode) } else { None });
        let bits = exact(volatile, client, inode, bits & wanted);
        for bits in apart(Some(entry.attributes.kind), bits) {
            match grant(volatile, client, inode, bits) {
                Some(GrantedBits { handle, bits, .. }) => found.locks.push((handle, bits)),
                None if volatile.cache.lock().locks_left(client) == 0 => return,
                None => {}
            }
        }
    }
}

/// Without attributes and data, unless they are exact as long as no client asks this MDT; without
/// opens that are counted.
pub(crate) fn exact(volatile: &Volatile, client: ClientId, inode: InodeNumber, bits: InodeBits) -> InodeBits {
    let is_exact = !bits.meets(ATTRIBUTES | DATA) || is_still(volatile, client, inode);
    let bits = if is_exact { bits } else { bits & !(ATTRIBUTES | DATA) };
    if bits.meets(OPEN) && volatile.moves.counts(inode) { bits & !OPEN } else { bits }
}

/// Whether no other client may change the data of an inode without asking this MDT first.
pub(crate) fn is_still(volatile: &Volatile, client: ClientId, inode: InodeNumber) -> bool {
    let own = volatile.opens.of_inode(inode, client).writers;
    volatile.opens.writers(inode).opens == own && volatile.exclusive.holder(inode).is_none()
}

/// Parts of inodes that can be granted.
type Possible = Vec<(InodeNumber, InodeBits)>;

/// The inode that a request names, and what its reply shows of which inodes; `None`: it is none
/// with which locks are granted.
fn about(
    request: &MdtRequest,
    reply: &MdtReply,
    is_named: impl Fn(InodeNumber) -> bool,
) -> Option<(InodeNumber, Possible)> {
    use MdtRequest as R;
    // Of an inode whose attributes the reply does not show.
    let unseen =
        |inode: InodeNumber, bits| Some((inode, if is_named(inode) { vec![(inode, bits)] } else { Vec::new() }));
    match (request, reply) {
        (R::Lookup(_, lookup), MdtReply::Entry(entry)) if is_dots(&lookup.name) => {
            // Not found by a name.
            let (inode, bits) = shown(entry);
            Some((lookup.parent, vec![(inode, bits & !LOOKUP)]))
        }
        (R::Lookup(_, lookup), MdtReply::Entry(entry)) => Some((lookup.parent, child(lookup.parent, entry))),
        (R::Lookup(_, lookup), MdtReply::Absent) => unseen(lookup.parent, DIRECTORY),
        // On what is elsewhere, its MDT grants locks: the name is covered as one that is absent.
        (R::Lookup(_, lookup), MdtReply::Remote(_)) if !is_dots(&lookup.name) => unseen(lookup.parent, DIRECTORY),
        (R::Create(_, create), MdtReply::Created(created)) => {
            let (inode, bits) = shown(&created.entry);
            let has_layout = created.opened.as_ref().is_some_and(|opened| opened.layout.is_some());
            let bits = if has_layout && !bits.is_empty() { bits | LAYOUT } else { bits };
            // A new directory has no names yet, which is all that there is to know of them.
            let is_directory = created.entry.attributes.kind == FileKind::Directory && !bits.is_empty();
            let bits = if is_directory { bits | DIRECTORY } else { bits };
            Some((create.parent, vec![(create.parent, DIRECTORY), (inode, bits)]))
        }
        (R::GetAttributes(inode), MdtReply::Entry(entry)) => Some((*inode, vec![itself(entry)])),
        (R::Open(_, open), MdtReply::Opened(opened)) => {
            let (inode, bits) = itself(&opened.entry);
            let has_layout = !bits.is_empty() && opened.layout.is_some();
            let bits = if has_layout { bits | LAYOUT } else { bits };
            let reads = has_layout && !open.flags.has(open_flag::WRITE);
            let (bits, data) = if reads { (bits | OPEN, DATA) } else { (bits, InodeBits::NONE) };
            Some((open.inode, vec![(inode, bits), (inode, data)]))
        }
        (R::ExclusiveBegin(_, begin), MdtReply::ExclusiveGranted(_)) => unseen(begin.inode, LAYOUT),
        (R::GetLayout(inode), MdtReply::Layout(LayoutInfo { layout: Some(_), .. })) => unseen(*inode, LAYOUT),
        (
            R::Instantiate(Instantiate { inode, .. })
            | R::LeaveFullOst(LeaveFullOst { inode, step: LeaveStep::LeaveOut(..) | LeaveStep::Relocate(_), .. }),
            MdtReply::Layout(_),
        ) => unseen(*inode, LAYOUT),
        (R::ReadDirectory(read), MdtReply::Directory(..)) => unseen(read.inode, DIRECTORY | XATTRS),
        (R::ReadLink(inode), MdtReply::Target(_)) => unseen(*inode, ATTRIBUTES | XATTRS),
        (R::GetXattr(_, inode, _), MdtReply::Value(_) | MdtReply::Absent)
        | (R::ListXattr(_, inode), MdtReply::Names(_))
        | (R::ClearPrivileges(inode), MdtReply::Done) => unseen(*inode, XATTRS),
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
    let bits = if entry.attributes.kind == FileKind::Directory { bits | OPEN } else { bits };
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

#[cfg(test)]
mod tests {
    use lock::LockLimits;
    use parking_lot::Mutex;
    use types::{LockHandle, Timestamp};

    use super::*;
    use crate::{cache_locks::CacheLocks, tables::inode::tests::sample};

    const CLIENT: ClientId = ClientId(1);

    fn page(inodes: std::ops::Range<u64>) -> Vec<DirectoryEntry> {
        let found = |number: u64| {
            let mut inode = sample(FileKind::Fifo);
            inode.attributes.inode = InodeNumber(number);
            let (inode, entry) = (inode.number(), Some(inode.entry()));
            DirectoryEntry {
                name: b"name".to_vec(),
                inode,
                kind: FileKind::Fifo,
                cookie: number,
                entry,
                locks: Vec::new(),
                version: 1,
            }
        };
        inodes.map(found).collect()
    }

    /// Each grant that a limit refuses asks for some of the oldest locks back.
    #[test]
    fn a_page_at_the_limit_does_not_ask_for_everything_back() {
        let mut volatile = Volatile::new(Timestamp::default(), 0, 10);
        volatile.cache = Mutex::new(CacheLocks::limited(LockHandle(1), LockLimits { per_client: 100, total: 1000 }));
        let mut pages = [page(0..60), page(60..160)];
        pages.iter_mut().for_each(|page| in_page(&volatile, CLIENT, SHOWN, page, |_| None));
        let locked = pages.iter().flatten().filter(|found| !found.locks.is_empty()).count();
        assert_eq!((locked, volatile.cache.lock().locks_left(CLIENT)), (100, 0));
        assert_eq!(volatile.cache.lock().take_asked().len(), 16);
        in_page(&volatile, CLIENT, SHOWN, &mut page(0..60), |_| None);
        assert_eq!(volatile.cache.lock().take_asked().len(), 0, "it has them");
    }
}
