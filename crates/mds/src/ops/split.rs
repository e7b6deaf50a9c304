//! A directory gets shards (docs/decisions/0062-directories-that-split.md): in the first batch the
//! shards, without names; then its first names with each batch, to all shards. The MDT of the
//! directory decides each of them. Meanwhile the place up to which names have moved says where a
//! name is (`transaction/moving_names.rs`).

use rpc::message::{
    MdtReply,
    mdt_peer::{FollowName, Part, SplitDirectory},
};
use rt::Instant;
use types::{
    Credentials, DirectoryMap, FileKind, FsError, FsResult, InodeNumber, MdtIndex, NameHash, Stripes,
    limits::SPLIT_NAMES_MAX, mdts_from,
};

use super::{copies, merge, root_only::require_root};
use crate::{
    hot_directories::NamesChange,
    tables::{
        COUNTERS, counter,
        decision::{DecidedPart, Decision},
        entry::{COLLISIONS_MAX, NamedInode, Position},
        inode::{Inode, Link, Striping, map_version},
    },
    transaction::{Context, Transaction, entries::FoundEntry},
};

/// Names that move with one batch; fewer if their inodes have large records.
const NAMES_PER_STEP: usize = 96;
/// These records have at most a part of the bytes that one batch can move, and one more record.
const STEP_PART: u64 = 4;
/// Of these, names that lead to other MDTs: each has to be prepared there.
const REMOTE_PER_STEP: usize = 8;
/// Decisions on their way to an MDT from which on no more names are sent there.
const PENDING_MAX: usize = 64;
/// Before the positions of all names.
pub(super) const BEFORE_ALL: Position = Position(1);

/// Without stripes: some names move; `Waiting` if there is more to do. This MDT asks itself that.
/// With its own MDT alone, the directory gets its names back.
pub(crate) fn run(txn: &mut Transaction<'_>, who: &Credentials, request: &SplitDirectory) -> FsResult<MdtReply> {
    require_root(who)?;
    let SplitDirectory { directory, stripes } = request;
    if stripes.mdts.is_empty() {
        return go_on(txn, *directory);
    }
    copies::changeable(*directory)?;
    let master = txn.directory(*directory)?;
    if master.names_move() {
        return txn.wait_for_peer(txn.mdt);
    }
    match master.map() {
        map if stripes.mdts[..] == [directory.mdt()] => match map {
            None => Ok(MdtReply::Done),
            Some(map) => merge::begin(txn, master, map),
        },
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
pub(super) fn note_growth(txn: &mut Transaction<'_>, directory: &Inode) {
    let parameters = &txn.context.parameters;
    if parameters.splits_directories && may_split(directory) && txn.volatile.peers.has_others() {
        txn.volatile.growing.lock().made(directory.number(), parameters.split_names);
    }
    note_change(txn, directory);
}

/// A name is made or removed in a directory; that counts once the batch exists, however many
/// attempts it takes.
pub(super) fn note_change(txn: &mut Transaction<'_>, directory: &Inode) {
    let Context { parameters, client, now_ns, .. } = txn.context;
    let parts = match &directory.striping {
        Striping::None if may_split(directory) => 1,
        Striping::Shard(place) => u64::from(place.count),
        Striping::None | Striping::Over(..) => return,
    };
    let rate = parameters.hot_changes_per_second;
    if rate > 0 && parameters.splits_directories && txn.volatile.peers.has_others() {
        let (directory, at) = (directory.number(), Instant(now_ns));
        txn.names_change_in(NamesChange { directory, parts, client, at, hot_per_second: rate });
    }
}

fn may_split(directory: &Inode) -> bool {
    directory.striping == Striping::None && directory.number() != InodeNumber::ROOT && directory.attributes.links > 0
}

/// How many names a directory has, and how it is to be split if it is large. Without another MDT,
/// or if it cannot split, that is not looked at.
pub(crate) fn when_large(txn: &Transaction<'_>, directory: InodeNumber) -> FsResult<(u64, Option<SplitDirectory>)> {
    let split_names = txn.context.parameters.split_names;
    let Some(split) = split_by_itself(txn, directory)? else { return Ok((0, None)) };
    let mut names = 0;
    txn.visit_entries(directory, Position(0), &mut |_| {
        names += 1;
        Ok(names < split_names)
    })?;
    Ok((names, (names >= split_names).then_some(split)))
}

/// How a directory splits for which nobody has asked; `None`: it cannot.
pub(crate) fn split_by_itself(txn: &Transaction<'_>, directory: InodeNumber) -> FsResult<Option<SplitDirectory>> {
    let (Some(found), Some(there)) = (txn.find_inode(directory)?, txn.volatile.peers.in_use(txn.mdt)) else {
        return Ok(None);
    };
    let count = there.len().min(1 + usize::from(txn.context.parameters.split_delta));
    if !found.is_directory() || !may_split(&found) || count < 2 {
        return Ok(None);
    }
    let stripes = Stripes { hash: NameHash::default(), mdts: mdts_from(&there, txn.mdt, count) };
    Ok(Some(SplitDirectory { directory, stripes }))
}

/// The directory has its shards from now on, and all of its names.
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
    let version = match txn.volatile.growing.lock().begins(directory) {
        true => map_version::SPLITS_BY_ITSELF,
        false => map_version::SPLITS,
    };
    txn.begin_split(master, &request.stripes, (version, &lists))?;
    check_names(txn, directory)?;
    txn.put(COUNTERS, counter::split_key(directory), counter::encode_number(BEFORE_ALL.0));
    txn.withdraw(directory, lock::InodeBits::ALL);
    Ok(MdtReply::Waiting)
}

/// Shards have room for all names, and these can be moved in time.
fn check_names(txn: &Transaction<'_>, directory: InodeNumber) -> FsResult<()> {
    let (mut names, mut group, mut last) = (0, 0, Position(0));
    txn.visit_entries(directory, Position(0), &mut |found| {
        group = if found.position <= last { group + 1 } else { 1 };
        (last, names) = (found.position.group().1, names + 1);
        if group > COLLISIONS_MAX {
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
    if let Some(found) = found.as_ref().filter(|found| found.names_return()) {
        return merge::go_on(txn, found.clone());
    }
    let Some((master, map)) = found.and_then(|master| master.map().map(|map| (master, map))) else {
        forget(txn, directory)?;
        return Ok(MdtReply::Done);
    };
    let batch = next_names(txn, directory, txn.moved_to(&master)?)?;
    let is_last = batch.place == Position::END;
    move_names(txn, master, map, batch)?;
    if is_last {
        forget(txn, directory)?;
    }
    Ok(if is_last { MdtReply::Done } else { MdtReply::Waiting })
}

pub(super) fn forget(txn: &mut Transaction<'_>, directory: InodeNumber) -> FsResult<()> {
    let key = counter::split_key(directory);
    if txn.get(COUNTERS, &key)?.is_some() {
        txn.release_space();
        txn.delete(COUNTERS, key);
    }
    Ok(())
}

/// Names that move together, the first ones of a directory; then those up to the place have moved.
pub(super) struct Batch {
    pub names: Vec<FoundEntry>,
    pub place: Position,
}

/// The next names of a directory, or a shard, of which those up to `moved` have moved.
pub(super) fn next_names(txn: &Transaction<'_>, source: InodeNumber, moved: Position) -> FsResult<Batch> {
    let (mut names, mut remote, mut next) = (Vec::<FoundEntry>::new(), Vec::new(), None);
    // Not from the beginning: the tables take time to pass what was deleted.
    let after = if source.is_shard() { moved.in_shard() } else { moved };
    txn.visit_entries(source, after, &mut |found| {
        let inode = found.target.inode;
        let is_here = txn.is_here(inode);
        // Two names of one inode come one after the other.
        let has_room = is_here || remote.len() < REMOTE_PER_STEP && !remote.contains(&inode);
        if names.len() >= NAMES_PER_STEP || !has_room {
            next = Some(found.position);
            return Ok(false);
        }
        remote.extend(Some(inode).filter(|_| !is_here));
        names.push(found);
        Ok(true)
    })?;
    let count = count_that_fits(txn, &names)?;
    if let Some(found) = names.drain(count..).next() {
        next = Some(found.position);
    }
    let in_directory = |position: Position| if source.is_shard() { position.of_shard() } else { position };
    let last = names.last().map_or(Position(0), |found| in_directory(found.position));
    let place = match next.map(in_directory) {
        None => Position::END,
        // Nobody uses the names until all have moved.
        Some(_) if moved == Position(0) => Position(0),
        Some(next) if next.group() == last.group() => last,
        // No name is in between.
        Some(next) => Position(next.group().0.0 - 1),
    };
    Ok(Batch { names, place })
}

fn move_names(txn: &mut Transaction<'_>, mut master: Inode, map: DirectoryMap, batch: Batch) -> FsResult<()> {
    let (directory, Batch { names, place }) = (master.number(), batch);
    for shard in map.shards.iter().filter(|shard| !txn.is_here(**shard)) {
        has_room(txn, shard.mdt())?;
    }
    let mut of_shards: Vec<Vec<NamedInode>> = vec![Vec::new(); map.shards.len()];
    for found in &names {
        let index = map.hash.shard(&found.target.name, map.shards.len());
        take_out(txn, &mut master, found, map.shards[index])?;
        of_shards[index].push(found.target.clone());
    }
    // Also those that get no name: then others may be made there.
    for (shard, names) in map.shards.iter().zip(of_shards) {
        send_names(txn, *shard, names, place)?;
    }
    match place {
        Position::END => master.map_version += 1,
        Position(place) => txn.put(COUNTERS, counter::split_key(directory), counter::encode_number(place)),
    }
    txn.put_inode(&master);
    Ok(())
}

/// How many of these names move with one batch, in which inodes here to which they lead change.
fn count_that_fits(txn: &Transaction<'_>, names: &[FoundEntry]) -> FsResult<usize> {
    let here = |found: &FoundEntry| Some(found.target.inode).filter(|inode| txn.is_here(*inode));
    txn.need_inodes(names.iter().filter_map(here))?;
    let mut bytes = 0;
    for (count, found) in names.iter().enumerate() {
        if bytes >= txn.context.moved_bytes_max / STEP_PART && count > 0 {
            return Ok(count);
        }
        bytes += here(found).map_or(Ok(0), |inode| txn.record_bytes(inode))?;
    }
    Ok(names.len())
}

/// A name is taken out of a directory or a shard, and what it leads to knows where it is then.
pub(super) fn take_out(
    txn: &mut Transaction<'_>,
    source: &mut Inode,
    found: &FoundEntry,
    to: InodeNumber,
) -> FsResult<()> {
    let (from, NamedInode { name, inode, kind }) = (source.number(), found.target.clone());
    let (old, new) = (Link { parent: from, name: name.clone() }, Link { parent: to, name: name.clone() });
    if !txn.is_here(inode) {
        let part = Part::FollowName(FollowName { inode, parent: from, name, shard: to });
        let (operation, _) = txn.prepared(inode.mdt(), part)?;
        txn.decide(inode.mdt(), Decision { operation, inode, part: DecidedPart::MoveLink(old, new) });
    } else {
        follow(txn, inode, &old, new)?;
    }
    txn.remove_entry(from, found)?;
    let is_directory = u32::from(kind == FileKind::Directory);
    source.attributes.links = source.attributes.links.saturating_sub(is_directory).max(2);
    Ok(())
}

/// An inode here is named elsewhere. One that does not know its name is as damaged as before.
fn follow(txn: &mut Transaction<'_>, inode: InodeNumber, old: &Link, new: Link) -> FsResult<()> {
    let mut named = match txn.inode(inode) {
        Ok(named) => named,
        Err(FsError::Stale) => return Ok(()),
        Err(error) => return Err(error),
    };
    match txn.has_link(&named, old)? {
        true => txn.replace_link(&mut named, old, new),
        false => Ok(()),
    }
}

/// The MDT of a shard gets names, in the order in which they are decided. Nothing is prepared for
/// that: until then no such name is made in a shard, so nothing can be in the way.
fn send_names(txn: &mut Transaction<'_>, shard: InodeNumber, names: Vec<NamedInode>, place: Position) -> FsResult<()> {
    if txn.is_here(shard) {
        return add_names(txn, shard, names, place);
    }
    txn.decide_unprepared(shard.mdt(), shard, DecidedPart::AddNames { names, place });
    Ok(())
}

/// Waits while many names are on their way to an MDT, which may be absent.
pub(super) fn has_room(txn: &Transaction<'_>, mdt: MdtIndex) -> FsResult<()> {
    let mut pending = 0;
    txn.visit_decisions(mdt, &mut |_, _| {
        pending += 1;
        Ok(pending < PENDING_MAX)
    })?;
    if pending < PENDING_MAX { Ok(()) } else { txn.wait_for_peer(mdt) }
}

/// Nothing that is found keeps a name from moving; only what is in doubt is waited for.
pub(super) fn check_following(txn: &Transaction<'_>, part: &FollowName) -> FsResult<()> {
    match txn.inode(part.inode) {
        Ok(_) | Err(FsError::Stale) => Ok(()),
        Err(error) => Err(error),
    }
}

/// The shard has these names, and with them all up to the place.
pub(super) fn add_names(
    txn: &mut Transaction<'_>,
    shard: InodeNumber,
    names: Vec<NamedInode>,
    place: Position,
) -> FsResult<()> {
    let Some(mut inode) = txn.find_inode(shard)? else {
        tracing::error!(%shard, names = names.len(), "a shard is missing to which names have moved; fsck finds their inodes");
        return Ok(());
    };
    for mut named in names {
        if txn.find_entry(shard, &named.name)?.is_some() {
            tracing::error!(%shard, "a name that came to a shard is there already; it stays as it is");
            continue;
        }
        // What is said of another inode in the batch that changes it has to be true.
        named.kind = txn.kind_here(named.inode, named.kind)?;
        if named.kind == FileKind::Directory {
            inode.attributes.links = inode.attributes.links.saturating_add(1);
        }
        txn.insert_entry(shard, named)?;
    }
    inode.map_version = if place == Position::END { 0 } else { inode.map_version.max(place.0) };
    txn.put_inode(&inode);
    Ok(())
}
