//! Reading a directory: `.` and `..`, then names in the order of their positions, which are also
//! their cookies. So a name that stays is seen exactly once however the directory changes between
//! two requests.

use layout::Layout;
use rpc::message::{
    MdtReply,
    mdt::{COOKIE_PARENT, COOKIE_SELF, DirectoryEntry, MovingNames, OpenFlags, ReadDirectory, open_flag},
    session::feature,
};
use types::{FileKind, FsError, FsResult, limits};

use super::attributes;
use crate::{
    tables::{entry::Position, inode::Inode},
    transaction::Transaction,
};

/// Bytes of names and attributes in one answer: far below what a message may have, whatever the
/// layouts.
const ANSWER_BYTES_MAX: usize = limits::BODY_BYTES_MAX / 4;
/// Estimate of an entry besides its name, and of one with attributes.
const ENTRY_BYTES: usize = 32;
const ATTRIBUTES_BYTES: usize = 128;
/// Entries in one answer, whatever the caller asks for: one transaction does not hold the MDT for
/// long.
const ENTRIES_MAX: usize = 4096;

pub(crate) fn run(txn: &mut Transaction<'_>, request: &ReadDirectory) -> FsResult<MdtReply> {
    let mut directory = txn.directory(request.inode)?;
    let place = moving_place(txn, &directory)?;
    let flags = flags_of_open(txn, request)?;
    if !flags.has(open_flag::READ) {
        return Err(FsError::BadHandle);
    }
    if request.entries_max == 0 {
        return Err(FsError::Invalid);
    }
    let count = (request.entries_max as usize).min(ENTRIES_MAX);
    let mut page = dots(txn, &directory, request.cookie, count)?;
    let mut complete = false;
    if page.len() < count {
        // Those up to the place have gone, and the tables take time to pass them.
        let gone = place.filter(|_| !request.inode.is_shard()).map_or(0, |place| place.0);
        let rest = ReadDirectory { cookie: request.cookie.max(gone), ..*request };
        complete = names(txn, &rest, count, &mut page)?;
    }
    let quiet = flags.has(open_flag::NO_ACCESS_TIME);
    if request.cookie == 0 && !quiet && attributes::note_access(txn, &mut directory) {
        txn.put_inode(&directory);
    }
    Ok(match place {
        None => MdtReply::Directory(page, complete),
        Some(place) => {
            // No client is told here that it may report sizes.
            page.iter_mut().filter_map(|found| found.entry.as_mut()).for_each(|entry| entry.quiet = None);
            MdtReply::MovingNames(MovingNames { entries: page, end: complete, place: place.0 })
        }
    })
}

/// The place up to which names have moved, if the caller lists what is here and what is there.
/// Others wait until it is known which names are here.
fn moving_place(txn: &Transaction<'_>, directory: &Inode) -> FsResult<Option<Position>> {
    if directory.names_move() && txn.context.knows(feature::MOVING_NAMES) {
        return match txn.moved_to(directory)? {
            Position(0) => txn.wait_for_peer(txn.mdt),
            place => Ok(Some(place)),
        };
    }
    txn.has_own_names(directory)?;
    txn.has_all_names(directory)?;
    Ok(None)
}

/// How the caller has the directory open.
fn flags_of_open(txn: &Transaction<'_>, request: &ReadDirectory) -> FsResult<OpenFlags> {
    match request.unasked {
        // The client has the striped directory open, which is perhaps on another MDT.
        Some(flags) if request.inode.is_shard() => Ok(flags),
        Some(flags) if txn.volatile.may_open_unasked(txn.context.client, request.inode) => Ok(flags),
        Some(_) => Err(FsError::BadHandle),
        None => {
            let key = txn.own_open(request.inode, request.open)?;
            txn.volatile.opens.get(key).map(|file| file.flags).ok_or(FsError::BadHandle)
        }
    }
}

fn dots(txn: &Transaction<'_>, directory: &Inode, cookie: u64, count: usize) -> FsResult<Vec<DirectoryEntry>> {
    if directory.number().is_shard() {
        return Ok(Vec::new());
    }
    let parent = txn.visible_parent(directory)?;
    let dot = |name: &[u8], inode, cookie| DirectoryEntry {
        name: name.to_vec(),
        inode,
        kind: FileKind::Directory,
        cookie,
        entry: None,
        locks: Vec::new(),
        version: 0,
    };
    let both = [dot(b".", directory.number(), COOKIE_SELF), dot(b"..", parent, COOKIE_PARENT)];
    Ok(both.into_iter().filter(|entry| entry.cookie > cookie).take(count).collect())
}

/// Inodes of names after the cookie are loaded together.
fn need_inodes(txn: &Transaction<'_>, request: &ReadDirectory, count: usize) -> FsResult<()> {
    let (mut inodes, mut names) = (Vec::new(), 0);
    txn.visit_entries(request.inode, Position(request.cookie.max(COOKIE_PARENT)), &mut |found| {
        inodes.extend(Some(found.target.inode).filter(|inode| txn.is_here(*inode)));
        names += 1;
        Ok(names < count)
    })?;
    txn.need_inodes(inodes.into_iter())
}

/// Adds names after the cookie; true if the directory ends after them.
fn names(
    txn: &Transaction<'_>,
    request: &ReadDirectory,
    count: usize,
    page: &mut Vec<DirectoryEntry>,
) -> FsResult<bool> {
    let (mut bytes, mut complete) = (0, true);
    if request.attributes {
        need_inodes(txn, request, count - page.len())?;
    }
    txn.visit_entries(request.inode, Position(request.cookie.max(COOKIE_PARENT)), &mut |found| {
        if page.len() >= count || bytes >= ANSWER_BYTES_MAX {
            complete = false;
            return Ok(false);
        }
        let target = found.target;
        // What is in doubt is not shown either.
        let is_locked = txn.volatile.peers.locked_by(target.inode).is_some();
        let shown = request.attributes && txn.is_here(target.inode) && !is_locked;
        let inode = if shown { txn.find_inode(target.inode)? } else { None };
        let version = inode.as_ref().map_or(0, |inode| inode.version);
        let entry = inode.map(|inode| attributes::entry(txn, &inode));
        bytes += target.name.len() + ENTRY_BYTES;
        if let Some(entry) = &entry {
            bytes += ATTRIBUTES_BYTES + entry.size_unknown.as_deref().map_or(0, Layout::bytes_estimate);
        }
        let cookie = found.position.0;
        page.push(DirectoryEntry {
            name: target.name,
            inode: target.inode,
            kind: target.kind,
            cookie,
            entry,
            locks: Vec::new(),
            version,
        });
        Ok(true)
    })?;
    Ok(complete)
}
