//! A striped directory gets its names back from its shards, and has none any more
//! (docs/decisions/0065-directories-that-merge.md). The MDT of the directory begins that; each
//! shard gives its names in batches, which its MDT decides, and has a place up to which they have
//! gone (`transaction/returning_names.rs`). When all are back, the directory's MDT ends the shards.

use rpc::message::{
    MdtReply,
    mdt_peer::{GiveNames, Part, SplitDirectory},
};
use rt::Instant;
use types::{
    Damage, DirectoryMap, FileKind, FsError, FsResult, InodeNumber, NameHash, Stripes, limits::SPLIT_NAMES_MAX,
};

use super::split::{self, BEFORE_ALL, Batch};
use crate::{
    options::Parameters,
    tables::{
        COUNTERS, counter,
        decision::{DecidedPart, Decision, ReturnedNames, ShardTimes},
        entry::Position,
        inode::{Inode, Striping, map_version},
    },
    transaction::{Transaction, returning_names::share_of_hash, striping::shard_link},
};

/// A name of a directory is removed.
pub(super) fn note_shrinkage(txn: &mut Transaction<'_>, directory: &Inode) {
    split::note_change(txn, directory);
    let Striping::Shard(place) = &directory.striping else { return };
    let names = small_share(&txn.context.parameters, place.count);
    if names > 0 && directory.master().is_some_and(|master| txn.is_here(master)) && !directory.names_move() {
        txn.volatile.shrinking.lock().made(directory.number(), names);
    }
}

/// How many names one of so many shards has, at most, if its directory is small; 0: none is.
fn small_share(parameters: &Parameters, shards: u16) -> u64 {
    match parameters.merge_names {
        0 => 0,
        // One that splits again at once would never come to rest.
        names => (names.min(parameters.split_names / 4) / u64::from(shards).max(1)).max(1),
    }
}

/// How many names a shard has, and what is to be asked for if its directory is small and has got
/// its shards by itself. Names are spread evenly, so one shard speaks for all.
pub(crate) fn when_small(txn: &Transaction<'_>, shard: InodeNumber) -> FsResult<(u64, Option<SplitDirectory>)> {
    let Some(found) = txn.find_inode(shard)? else { return Ok((0, None)) };
    let (Striping::Shard(place), Some(directory)) = (&found.striping, found.master()) else { return Ok((0, None)) };
    let Some(master) = txn.find_inode(directory)? else { return Ok((0, None)) };
    let small = small_share(&txn.context.parameters, place.count);
    if master.map_version != map_version::SPLIT_BY_ITSELF || found.names_move() || small == 0 {
        return Ok((0, None));
    }
    if !txn.volatile.hot.lock().has_cooled(directory, shard, Instant(txn.context.now_ns)) {
        // It would split again. Later removals are noted.
        return Ok((small, None));
    }
    let mut names = 0;
    txn.visit_entries(shard, Position(0), &mut |_| {
        names += 1;
        Ok(names <= small)
    })?;
    Ok((names, (names <= small).then(|| request(directory))))
}

/// That a directory gets its names back.
fn request(directory: InodeNumber) -> SplitDirectory {
    let stripes = Stripes { hash: NameHash::default(), mdts: vec![directory.mdt()] };
    SplitDirectory { directory, stripes }
}

/// The shards of a striped directory give their names back from now on.
pub(super) fn begin(txn: &mut Transaction<'_>, mut master: Inode, map: DirectoryMap) -> FsResult<MdtReply> {
    let directory = master.number();
    if master.attributes.links == 0 {
        return Err(FsError::NotFound);
    }
    let count = u16::try_from(map.shards.len()).map_err(|_| FsError::TooBig)?;
    let names_max = match txn.volatile.growing.lock().begins(directory) {
        true => small_share(&txn.context.parameters, count).saturating_mul(2),
        // Else what has become one directory could not split or move again.
        false => SPLIT_NAMES_MAX as u64 / u64::from(count.max(1)),
    };
    let mut shards = map.shards;
    shards.sort();
    for shard in shards {
        let part = GiveNames { shard, master: directory, names_max };
        if txn.is_here(shard) {
            check_giving(txn, &part)?;
            give_names(txn, shard)?;
            txn.withdraw(shard, lock::InodeBits::ALL);
            continue;
        }
        let (operation, _) = txn.prepared(shard.mdt(), Part::GiveNames(part))?;
        txn.decide(shard.mdt(), Decision { operation, inode: shard, part: DecidedPart::GiveNames });
    }
    master.map_version = map_version::MERGES;
    txn.put_inode(&master);
    txn.withdraw(directory, lock::InodeBits::ALL);
    Ok(MdtReply::Waiting)
}

/// Whether a shard may give its names: the directory has room for all of them, whatever names the
/// others bring, and they were counted in one transaction.
pub(super) fn check_giving(txn: &Transaction<'_>, part: &GiveNames) -> FsResult<()> {
    let shard = txn.inode(part.shard)?;
    let Striping::Shard(place) = &shard.striping else { return Err(FsError::Stale) };
    if shard.master() != Some(part.master) {
        return Err(FsError::Stale);
    }
    txn.has_all_names(&shard)?;
    let share = share_of_hash(usize::from(place.count));
    if share == 0 {
        return Err(FsError::TooBig);
    }
    let (mut names, mut group, mut last) = (0, Vec::new(), Position(0));
    txn.visit_entries(part.shard, Position(0), &mut |found| {
        let of_group = found.position.with_number(0);
        if of_group != last {
            (last, group) = (of_group, Vec::new());
        }
        let hash = Position::of(&found.target.name);
        let like_it = group.iter().filter(|other| **other == hash).count() as u64;
        group.push(hash);
        names += 1;
        match like_it < share {
            true if names > part.names_max => Err(FsError::TooBig),
            true => Ok(true),
            false => Err(FsError::NoSpace),
        }
    })
}

/// The shard gives its names back from now on.
pub(super) fn give_names(txn: &mut Transaction<'_>, shard: InodeNumber) -> FsResult<()> {
    let Some(mut inode) = txn.find_inode(shard)? else {
        tracing::error!(%shard, "a shard is missing that was to give its names back");
        return Ok(());
    };
    inode.map_version = map_version::SHARD_GIVES;
    txn.put_inode(&inode);
    txn.put(COUNTERS, counter::split_key(shard), counter::encode_number(BEFORE_ALL.0));
    txn.volatile.growing.lock().wakeup().notify_one();
    Ok(())
}

/// One more batch of a shard; or all names are back in the directory.
pub(super) fn go_on(txn: &mut Transaction<'_>, found: Inode) -> FsResult<MdtReply> {
    match (found.map(), found.master()) {
        (Some(map), _) => finish(txn, found, map),
        (None, Some(directory)) => give(txn, found, directory),
        (None, None) => Err(Damage::new("inode", "a shard without its directory").into()),
    }
}

fn give(txn: &mut Transaction<'_>, mut shard: Inode, directory: InodeNumber) -> FsResult<MdtReply> {
    let number = shard.number();
    let Batch { names, place } = split::next_names(txn, number, txn.gone_from(number)?)?;
    if !txn.is_here(directory) {
        split::has_room(txn, directory.mdt())?;
    }
    for found in &names {
        split::take_out(txn, &mut shard, found, directory)?;
    }
    let attributes = &shard.attributes;
    let times = ShardTimes { atime: attributes.atime, mtime: attributes.mtime, ctime: attributes.ctime };
    let names = names.into_iter().map(|found| found.target).collect();
    let returned = ReturnedNames { shard: number, times, names, place };
    match txn.is_here(directory) {
        true => take_back(txn, directory, returned)?,
        false => txn.decide_unprepared(directory.mdt(), directory, DecidedPart::ReturnNames(returned)),
    }
    txn.put_inode(&shard);
    if place == Position::END {
        // Until the directory's MDT ends it, it says of each name that it is there.
        split::forget(txn, number)?;
        return Ok(MdtReply::Done);
    }
    txn.put(COUNTERS, counter::split_key(number), counter::encode_number(place.0));
    Ok(MdtReply::Waiting)
}

/// The directory has these names of a shard, and with them all up to the place.
pub(super) fn take_back(txn: &mut Transaction<'_>, directory: InodeNumber, returned: ReturnedNames) -> FsResult<()> {
    let ReturnedNames { shard, times, names, place } = returned;
    let found = txn.find_inode(directory)?.filter(Inode::names_return);
    let Some((mut master, map)) = found.and_then(|master| master.map().map(|map| (master, map))) else {
        tracing::error!(%directory, %shard, names = names.len(), "names come back to a directory that does not expect them; fsck finds their inodes");
        return Ok(());
    };
    for mut named in names {
        if txn.find_entry(directory, &named.name)?.is_some() {
            tracing::error!(%directory, %shard, "a name that came back from a shard is there already; it stays as it is");
            continue;
        }
        // What is said of another inode in the batch that changes it has to be true.
        named.kind = txn.kind_here(named.inode, named.kind)?;
        if named.kind == FileKind::Directory {
            master.attributes.links = master.attributes.links.saturating_add(1);
        }
        txn.insert_entry(directory, named)?;
    }
    let ShardTimes { atime, mtime, ctime } = times;
    let attributes = &mut master.attributes;
    attributes.atime = attributes.atime.max(atime);
    attributes.mtime = attributes.mtime.max(mtime);
    attributes.ctime = attributes.ctime.max(ctime);
    txn.put(COUNTERS, counter::return_key(directory, shard), counter::encode_number(place.0));
    txn.put_inode(&master);
    if place == Position::END && all_are_back(txn, &map)? {
        txn.put(COUNTERS, counter::split_key(directory), counter::encode_number(place.0));
        txn.volatile.growing.lock().wakeup().notify_one();
    }
    Ok(())
}

fn all_are_back(txn: &Transaction<'_>, map: &DirectoryMap) -> FsResult<bool> {
    for shard in &map.shards {
        if txn.back_from(map.master, *shard)? != Position::END {
            return Ok(false);
        }
    }
    Ok(true)
}

/// The directory has all its names, and no shards any more.
fn finish(txn: &mut Transaction<'_>, mut master: Inode, map: DirectoryMap) -> FsResult<MdtReply> {
    let directory = master.number();
    if !all_are_back(txn, &map)? {
        return Err(FsError::Invalid);
    }
    let link = shard_link(directory);
    for shard in map.shards {
        txn.delete(COUNTERS, counter::return_key(directory, shard));
        if !txn.is_here(shard) {
            txn.decide_unprepared(shard.mdt(), shard, DecidedPart::DropLink(link.clone()));
        } else if let Some(mut inode) = txn.find_inode(shard)? {
            txn.drop_link(&mut inode, &link)?;
        }
    }
    (master.striping, master.map_version) = (Striping::None, 0);
    txn.put_inode(&master);
    txn.withdraw(directory, lock::InodeBits::ALL);
    split::forget(txn, directory)?;
    Ok(MdtReply::Done)
}
