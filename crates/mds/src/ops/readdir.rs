//! Reading a directory: `.` and `..`, then names in the order of their positions, which are also
//! their cookies. So a name that stays is seen exactly once however the directory changes between
//! two requests.

use layout::Layout;
use rpc::message::{
    MdtReply,
    mdt::{
        COOKIE_PARENT, COOKIE_SELF, DirectoryEntry, MovingNames, OpenFlags, ReadDirectory, ReturningNames, open_flag,
    },
    session::feature,
};
use types::{FileKind, FsError, FsResult, InodeNumber, limits};

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
    let names_move = NamesMove::of(txn, &directory)?;
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
        let rest = ReadDirectory { cookie: request.cookie.max(names_move.gone(request.inode)), ..*request };
        complete = names(txn, &rest, count, &mut page)?;
    }
    let quiet = flags.has(open_flag::NO_ACCESS_TIME);
    if request.cookie == 0 && !quiet && attributes::note_access(txn, &mut directory) {
        txn.put_inode(&directory);
    }
    if names_move != NamesMove::No {
        // No client is told here that it may report sizes.
        page.iter_mut().filter_map(|found| found.entry.as_mut()).for_each(|entry| entry.quiet = None);
    }
    Ok(match names_move {
        NamesMove::No => MdtReply::Directory(page, complete),
        NamesMove::ToShards(Position(place)) => {
            MdtReply::MovingNames(MovingNames { entries: page, end: complete, place })
        }
        NamesMove::Back(places) => {
            let places = places.into_iter().map(|(shard, place)| (shard, place.0)).collect();
            MdtReply::ReturningNames(ReturningNames { entries: page, end: complete, places })
        }
    })
}

/// Whether names are on the move, for a caller that lists what is here and what is there. Others
/// wait until it is known which names are here.
#[derive(Debug, PartialEq, Eq)]
enum NamesMove {
    No,
    /// The place up to which they have moved.
    ToShards(Position),
    /// The places up to which they have come back from the shards, or have gone from this one.
    Back(Vec<(InodeNumber, Position)>),
}

impl NamesMove {
    fn of(txn: &Transaction<'_>, directory: &Inode) -> FsResult<Self> {
        if directory.names_return() {
            if !txn.context.knows(feature::RETURNING_NAMES) {
                return txn.wait_for_peer(txn.mdt);
            }
            let number = directory.number();
            let places = match directory.map() {
                Some(map) => {
                    let back = |shard| Ok((shard, txn.back_from(number, shard)?));
                    map.shards.into_iter().map(back).collect::<FsResult<_>>()?
                }
                None => vec![(number, txn.gone_from(number)?)],
            };
            return Ok(Self::Back(places));
        }
        if directory.names_move() && txn.context.knows(feature::MOVING_NAMES) {
            return match txn.moved_to(directory)? {
                Position(0) => txn.wait_for_peer(txn.mdt),
                place => Ok(Self::ToShards(place)),
            };
        }
        txn.has_own_names(directory)?;
        txn.has_all_names(directory)?;
        Ok(Self::No)
    }

    /// Names up to this position have gone from here.
    fn gone(&self, directory: InodeNumber) -> u64 {
        match (self, directory.is_shard()) {
            (Self::ToShards(place), false) => place.0,
            (Self::Back(places), true) => places.first().map_or(0, |(_, place)| place.in_shard().0),
            _ => 0,
        }
    }
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
