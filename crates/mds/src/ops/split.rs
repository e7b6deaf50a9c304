//! A directory gets shards (docs/decisions/0062-directories-that-split.md): in the first batch the
//! shards, without names and closed to all; then some names with each batch, to one shard; with the
//! last batch all shards open. The MDT of the directory decides each of them. No name changes in
//! between, and none is looked at.

use rpc::message::{
    MdtReply,
    mdt_peer::{FollowName, Part, SplitDirectory},
};
use types::{
    Credentials, DirectoryMap, FileKind, FsError, FsResult, InodeNumber, MdtIndex, NameHash, Stripes,
    limits::{LINKS_MAX, SPLIT_NAMES_MAX},
    mdts_from,
};

use super::{copies, rename::replace_link, root_only::require_root};
use crate::{
    options::Parameters,
    tables::{
        COUNTERS, DECISIONS, counter,
        decision::{self, DecidedPart, Decision},
        entry::{COLLISIONS_MAX, NamedInode, Position},
        inode::{Inode, Link, Striping},
    },
    transaction::{Transaction, entries::FoundEntry},
};

/// Names that move with one batch: with their inodes it is one for any store.
const NAMES_PER_STEP: usize = 96;
/// Of these, names that lead to other MDTs: each has to be prepared there.
const REMOTE_PER_STEP: usize = 8;
/// Decisions on their way to an MDT from which on no more names are sent there.
const PENDING_MAX: usize = 64;
/// Names that are looked at for one batch.
const NAMES_SEEN_PER_STEP: usize = 4096;

/// Without stripes: some names move; `Waiting` if there is more to do. This MDT asks itself that.
pub(crate) fn run(txn: &mut Transaction<'_>, who: &Credentials, request: &SplitDirectory) -> FsResult<MdtReply> {
    require_root(who)?;
    let SplitDirectory { directory, stripes } = request;
    copies::changeable(*directory)?;
    if stripes.mdts.is_empty() {
        return go_on(txn, *directory);
    }
    let master = txn.directory(*directory)?;
    if master.names_move() {
        return txn.wait_for_peer(txn.mdt);
    }
    match master.map() {
        None => begin(txn, master, request),
        Some(map) if is_as_asked(&map, request) => Ok(MdtReply::Done),
        Some(_) => Err(FsError::NotSupported),
    }
}

fn is_as_asked(map: &DirectoryMap, SplitDirectory { stripes, .. }: &SplitDirectory) -> bool {
    let mdts = map.shards.iter().map(|shard| shard.mdt());
    map.hash == stripes.hash && mdts.eq(stripes.mdts.iter().copied())
}

/// A name is made in a directory.
pub(super) fn note_growth(txn: &Transaction<'_>, directory: &Inode) {
    let parameters = &txn.context.parameters;
    if parameters.splits_directories && may_split(directory) && txn.volatile.peers.has_others() {
        txn.volatile.growing.lock().made(directory.number(), parameters.split_names);
    }
}

fn may_split(directory: &Inode) -> bool {
    directory.striping == Striping::None && directory.number() != InodeNumber::ROOT && directory.attributes.links > 0
}

/// How a directory is to be split that has become large; `None`: it has not, or there is no other
/// MDT.
pub(crate) fn when_large(txn: &Transaction<'_>, directory: InodeNumber) -> FsResult<Option<SplitDirectory>> {
    let Parameters { split_names, split_delta, .. } = txn.context.parameters;
    let (Some(found), Some(there)) = (txn.find_inode(directory)?, txn.volatile.peers.in_use(txn.mdt)) else {
        return Ok(None);
    };
    let count = there.len().min(1 + usize::from(split_delta));
    if !found.is_directory() || !may_split(&found) || count < 2 {
        return Ok(None);
    }
    let mut names = 0;
    txn.visit_entries(directory, Position(0), &mut |_| {
        names += 1;
        Ok(names < split_names)
    })?;
    let stripes = Stripes { hash: NameHash::default(), mdts: mdts_from(&there, txn.mdt, count) };
    Ok((names >= split_names).then_some(SplitDirectory { directory, stripes }))
}

/// The directory has its shards from now on, and nobody uses its names until all have moved.
fn begin(txn: &mut Transaction<'_>, master: Inode, request: &SplitDirectory) -> FsResult<MdtReply> {
    let directory = master.number();
    if directory == InodeNumber::ROOT {
        // The root is found without its name, and lost+found in it.
        return Err(FsError::Invalid);
    }
    if master.attributes.links == 0 {
        return Err(FsError::NotFound);
    }
    let lists = copies::lists(txn, directory)?;
    txn.begin_split(master, &request.stripes, &lists)?;
    check_names(txn, directory)?;
    txn.put(COUNTERS, counter::split_key(directory), counter::encode_number(0));
    txn.withdraw(directory, lock::InodeBits::ALL);
    Ok(MdtReply::Waiting)
}

/// Shards have room for all names, and these can be moved in time.
fn check_names(txn: &Transaction<'_>, directory: InodeNumber) -> FsResult<()> {
    let (mut names, mut equal, mut last) = (0, 0, Position(0));
    txn.visit_entries(directory, Position(0), &mut |found| {
        // In the order of these, too: they are shorter.
        let place = Position::of_name_in(directory.as_shard(), &found.target.name);
        equal = if place == last { equal + 1 } else { 1 };
        (last, names) = (place, names + 1);
        if equal > COLLISIONS_MAX {
            return Err(FsError::NoSpace);
        }
        if names > SPLIT_NAMES_MAX { Err(FsError::TooBig) } else { Ok(true) }
    })
}

/// One more batch.
fn go_on(txn: &mut Transaction<'_>, directory: InodeNumber) -> FsResult<MdtReply> {
    let found = match txn.inode(directory) {
        Ok(found) => Some(found).filter(Inode::names_move),
        Err(FsError::Stale) => None,
        Err(error) => return Err(error),
    };
    let Some((master, map)) = found.and_then(|master| master.map().map(|map| (master, map))) else {
        forget(txn, directory)?;
        return Ok(MdtReply::Done);
    };
    match next_names(txn, &map)? {
        Some((shard, names)) => {
            move_names(txn, master, shard, &names)?;
            Ok(MdtReply::Waiting)
        }
        None => {
            open_shards(txn, master, map)?;
            forget(txn, directory)?;
            Ok(MdtReply::Done)
        }
    }
}

fn forget(txn: &mut Transaction<'_>, directory: InodeNumber) -> FsResult<()> {
    let key = counter::split_key(directory);
    if txn.get(COUNTERS, &key)?.is_some() {
        txn.release_space();
        txn.delete(COUNTERS, key);
    }
    Ok(())
}

/// A shard, and names that belong there; `None`: all names have moved.
fn next_names(txn: &Transaction<'_>, map: &DirectoryMap) -> FsResult<Option<(InodeNumber, Vec<FoundEntry>)>> {
    let (mut of_shard, mut names, mut remote) = (None, Vec::<FoundEntry>::new(), Vec::new());
    let mut seen = 0;
    txn.visit_entries(map.master, Position(0), &mut |found| {
        seen += 1;
        let place = map.shard_of(&found.target.name);
        of_shard = of_shard.or(place);
        if place != of_shard {
            return Ok(seen < NAMES_SEEN_PER_STEP);
        }
        let inode = found.target.inode;
        if !txn.is_here(inode) {
            // Two names of one inode come one after the other.
            if remote.len() >= REMOTE_PER_STEP || remote.contains(&inode) {
                return Ok(false);
            }
            remote.push(inode);
        }
        names.push(found);
        Ok(names.len() < NAMES_PER_STEP && seen < NAMES_SEEN_PER_STEP)
    })?;
    Ok(of_shard.filter(|_| !names.is_empty()).map(|shard| (shard, names)))
}

fn move_names(txn: &mut Transaction<'_>, master: Inode, shard: InodeNumber, names: &[FoundEntry]) -> FsResult<()> {
    let directory = master.number();
    let here = names.iter().map(|found| found.target.inode).filter(|inode| txn.is_here(*inode));
    txn.need_inodes(here.collect::<Vec<_>>().into_iter())?;
    has_room(txn, shard.mdt())?;
    for found in names {
        let (name, inode) = (found.target.name.clone(), found.target.inode);
        let (old, new) = (Link { parent: directory, name: name.clone() }, Link { parent: shard, name: name.clone() });
        if !txn.is_here(inode) {
            let part = Part::FollowName(FollowName { inode, parent: directory, name, shard });
            let (operation, _) = txn.prepared(inode.mdt(), part)?;
            txn.decide(inode.mdt(), Decision { operation, inode, part: DecidedPart::MoveLink(old, new) });
        } else {
            follow(txn, inode, &old, new)?;
        }
        txn.remove_entry(directory, found)?;
    }
    let names = names.iter().map(|found| found.target.clone()).collect();
    send_names(txn, shard, names, false)?;
    txn.put_inode(&master);
    Ok(())
}

/// An inode here is named in the shard. One that does not know its name is as damaged as before.
fn follow(txn: &mut Transaction<'_>, inode: InodeNumber, old: &Link, new: Link) -> FsResult<()> {
    let mut named = match txn.inode(inode) {
        Ok(named) => named,
        Err(FsError::Stale) => return Ok(()),
        Err(error) => return Err(error),
    };
    match txn.has_link(&named, old)? {
        true => replace_link(txn, &mut named, old, new),
        false => Ok(()),
    }
}

/// The MDT of a shard gets names, in the order in which they are decided. Nothing is prepared for
/// that: a shard is closed until it has all of them, so nothing can be in the way.
fn send_names(txn: &mut Transaction<'_>, shard: InodeNumber, names: Vec<NamedInode>, complete: bool) -> FsResult<()> {
    if txn.is_here(shard) {
        return add_names(txn, shard, names, complete);
    }
    txn.decide_unprepared(shard.mdt(), shard, DecidedPart::AddNames { names, complete });
    Ok(())
}

/// Waits while many names are on their way to an MDT, which may be absent.
fn has_room(txn: &Transaction<'_>, mdt: MdtIndex) -> FsResult<()> {
    let mut pending = 0;
    txn.scan_prefix(DECISIONS, &decision::mdt_key(mdt), &mut |_, _| {
        pending += 1;
        Ok(pending < PENDING_MAX)
    })?;
    if pending < PENDING_MAX { Ok(()) } else { txn.wait_for_peer(mdt) }
}

/// All names are in the shards.
fn open_shards(txn: &mut Transaction<'_>, mut master: Inode, map: DirectoryMap) -> FsResult<()> {
    for shard in map.shards {
        send_names(txn, shard, Vec::new(), true)?;
    }
    master.map_version += 1;
    txn.put_inode(&master);
    Ok(())
}

/// Nothing that is found keeps a name from moving; only what is in doubt is waited for.
pub(super) fn check_following(txn: &Transaction<'_>, part: &FollowName) -> FsResult<()> {
    match txn.inode(part.inode) {
        Ok(_) | Err(FsError::Stale) => Ok(()),
        Err(error) => Err(error),
    }
}

/// The shard has these names; `complete`: it has all.
pub(super) fn add_names(
    txn: &mut Transaction<'_>,
    shard: InodeNumber,
    names: Vec<NamedInode>,
    complete: bool,
) -> FsResult<()> {
    let Some(mut inode) = txn.find_inode(shard)? else {
        tracing::error!(%shard, names = names.len(), "a shard is missing to which names have moved; fsck finds their inodes");
        return Ok(());
    };
    for named in names {
        if txn.find_entry(shard, &named.name)?.is_some() {
            tracing::error!(%shard, "a name that came to a shard is there already; it stays as it is");
            continue;
        }
        if named.kind == FileKind::Directory {
            inode.attributes.links = (inode.attributes.links + 1).min(LINKS_MAX);
        }
        txn.insert_entry(shard, named)?;
    }
    if complete {
        inode.map_version = 0;
    }
    txn.put_inode(&inode);
    Ok(())
}
