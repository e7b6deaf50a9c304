//! Renames of which not all is on this MDT: the directory of the old name, what it leads to, or
//! what has the new name. The new name is here: this MDT decides. Others prepare their parts, and
//! each attempt goes as far as what they have prepared
//! (docs/decisions/0049-namespace-over-several-mdts.md).
//!
//! Order: the tree, if a directory gets another parent or is to be replaced; an old name at another
//! MDT, since both names may be those of one file; the ways to the root, so that a caller gets the
//! error that it would get from one MDT; inodes at other MDTs, as far as they are known in the
//! order of these; a directory that is replaced. What is here is checked last, with all else
//! prepared, and is not locked before: what has changed meanwhile is seen.
//!
//! Downside: a directory that has the old name on another MDT is locked as a whole until the
//! decision. If permissions forbid a rename that is impossible for another reason, too, the error
//! may be another one than on one MDT.

use layout::Layout;
use rpc::message::{
    MdtReply,
    mdt::{Rename, RenameMode, SyncFirst},
    mdt_peer::{DropLink, MoveLink, MoveName, OperationId, Part, Prepared},
};
use types::{Attributes, Credentials, DirectoryMap, FileKind, FsError, FsResult, InodeNumber, limits, permission};

use super::{
    peers,
    rename::{check_mode, is_refused_anyway, is_sync_asked, put_directories, rename_link},
};
use crate::{
    known_size, protection,
    tables::{
        decision::{DecidedPart, Decision, MovedName},
        entry::NamedInode,
        inode::{Inode, Link},
    },
    transaction::{
        Transaction,
        entries::{FoundEntry, is_dots},
        striping::EndingShards,
    },
};

/// What is here of both names.
pub(super) struct Found {
    /// The directory of the old name, and the name.
    pub from: Option<(Inode, FoundEntry)>,
    /// The directory of the new name, if it is another one.
    pub to: Option<Inode>,
    /// The new name, if it exists.
    pub target: Option<FoundEntry>,
}

/// What the old name leads to.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Moved {
    inode: InodeNumber,
    kind: FileKind,
    /// The directory of the old name.
    parent: Attributes,
}

impl Moved {
    fn is_directory(self) -> bool {
        self.kind == FileKind::Directory
    }
}

/// A rename, and who wants it.
struct Wish<'a> {
    who: &'a Credentials,
    request: &'a Rename,
    target: Option<FoundEntry>,
    /// The directory of the new name.
    to: Attributes,
    /// The striped directory of which that is a shard, or which it is, while names move.
    to_master: Option<InodeNumber>,
    /// The old name is in another shard of the same directory, or one of them in the directory
    /// itself.
    same_directory: bool,
}

impl Wish<'_> {
    fn exchanges(&self) -> bool {
        self.request.mode == RenameMode::Exchange
    }

    fn moves(&self) -> bool {
        self.request.parent != self.request.new_parent && !self.same_directory
    }

    fn target_is_directory(&self) -> bool {
        self.target.as_ref().is_some_and(|target| target.target.kind == FileKind::Directory)
    }

    fn target_inode(&self) -> Option<InodeNumber> {
        self.target.as_ref().map(|target| target.target.inode)
    }

    /// What has the new name, if it is on another MDT, and not part of the old name there.
    fn distant_target(&self, txn: &Transaction<'_>, known: Option<Moved>) -> Option<InodeNumber> {
        let target = self.target_inode().filter(|inode| !txn.is_here(*inode))?;
        let is_exchanged_there = self.exchanges() && known.is_none() && target.mdt() == self.request.parent.mdt();
        (!is_exchanged_there).then_some(target)
    }

    fn old_link(&self) -> Link {
        Link { parent: self.request.parent, name: self.request.name.clone() }
    }

    fn new_link(&self) -> Link {
        Link { parent: self.request.new_parent, name: self.request.new_name.clone() }
    }
}

/// Parts of other MDTs, with what is decided of them.
type Parts = Vec<(InodeNumber, OperationId, DecidedPart)>;

/// The old name is on another MDT.
pub(super) fn from_elsewhere(txn: &mut Transaction<'_>, who: &Credentials, request: &Rename) -> FsResult<MdtReply> {
    let to = txn.searchable(who, request.new_parent, &request.new_name)?;
    if is_dots(&request.name) || is_dots(&request.new_name) {
        return Err(FsError::Busy);
    }
    let target = txn.find_entry(request.new_parent, &request.new_name)?;
    if let Err(refused) = check_mode(request, target.as_ref()) {
        // If there is no old name, that is the error.
        let (to_master, same_directory) = (to.striped(), request.same_directory);
        let wish = Wish { who, request, target: None, to: to.attributes, to_master, same_directory };
        prepare_name(txn, &wish, &mut Parts::new())?;
        return Err(refused);
    }
    run(txn, who, request, Found { from: None, to: Some(to), target })
}

/// With at least one inode or directory on another MDT.
pub(super) fn run(
    txn: &mut Transaction<'_>,
    who: &Credentials,
    request: &Rename,
    Found { mut from, to, mut target }: Found,
) -> FsResult<MdtReply> {
    let here = from.iter_mut().map(|(_, entry)| entry).chain(&mut target);
    for NamedInode { inode, kind, .. } in here.map(|entry| &mut entry.target) {
        *kind = txn.kind_here(*inode, *kind)?;
    }
    let new_directory = to.as_ref().or(from.as_ref().map(|(from, _)| from)).expect("the new name is here");
    let same_directory = match (&from, &to) {
        (Some((from, _)), Some(to)) => from.whole() == to.whole(),
        (from, _) => request.same_directory && from.is_none(),
    };
    let to_master = new_directory.striped();
    let wish = Wish { who, request, target, to: new_directory.attributes, to_master, same_directory };
    let known = from.as_ref().map(|(from, entry)| Moved {
        inode: entry.target.inode,
        kind: entry.target.kind,
        parent: from.attributes,
    });
    // If the directory that has the new name is to be replaced, the way to it decides what is
    // wrong.
    let concerns_ways = known.is_some_and(Moved::is_directory) || wish.target_is_directory();
    if wish.moves() && (concerns_ways || txn.takes_tree_first()) {
        txn.hold_tree()?;
    }
    let mut parts = Parts::new();
    let (moved, undurable) = match known {
        Some(moved) => (moved, Undurable::Unknown),
        None => prepare_name(txn, &wish, &mut parts)?,
    };
    check_ways(txn, &wish, moved)?;
    // Two names of one file: there is nothing to do, whatever is permitted.
    if Some(moved.inode) == wish.target_inode() {
        return Ok(MdtReply::Done);
    }
    check_directories(txn, &wish, new_directory, from.as_ref().map(|(from, _)| from))?;
    check_kinds(&wish, moved)?;
    let undurable = prepare_inodes(txn, &wish, (known, moved, undurable), &mut parts)?;
    let mut map = None;
    if let Some(directory) = wish.distant_target(txn, known).filter(|_| wish.target_is_directory()) {
        let (part, of_target) = prepare_target(txn, &wish, directory)?;
        parts.push(part);
        map = of_target;
    }
    let undurable = match undurable {
        Undurable::Unknown => prepare_moved(txn, &wish, moved, &mut parts)?,
        Undurable::Known(layout) => layout,
    };
    let replaces = wish.target.is_some() && !wish.exchanges();
    if let Some(layout) = undurable
        && replaces
        && is_sync_asked(request, moved.inode)
    {
        return Ok(MdtReply::SyncFirst(SyncFirst { inode: moved.inode, layout }));
    }
    let shards = promise_shards(txn, &wish, map)?;
    change(txn, &wish, moved, (from, to))?;
    shards.map_or(Ok(()), |shards| txn.end_shards(shards))?;
    for (inode, operation, part) in parts {
        txn.decide(inode.mdt(), Decision { operation, inode, part });
    }
    txn.give_tree_back();
    Ok(MdtReply::Done)
}

/// The shards of a striped directory that is replaced; `distant`: its map, if it is on another MDT.
fn promise_shards(
    txn: &mut Transaction<'_>,
    wish: &Wish<'_>,
    distant: Option<DirectoryMap>,
) -> FsResult<Option<EndingShards>> {
    let Some(target) = wish.target_inode().filter(|_| wish.target_is_directory() && !wish.exchanges()) else {
        return Ok(None);
    };
    let map = match distant {
        None if txn.is_here(target) => txn.inode(target)?.map(),
        distant => distant,
    };
    match map {
        // The old name is in it, and locked.
        Some(map) if map.shards.contains(&wish.request.parent) => Err(FsError::NotEmpty),
        Some(map) if map.master == target => Ok(Some(txn.promise_shards(map)?)),
        Some(_) => Err(FsError::Invalid),
        None => Ok(None),
    }
}

/// Whether the names in the directories that are here may change.
fn check_directories(txn: &Transaction<'_>, wish: &Wish<'_>, to: &Inode, from: Option<&Inode>) -> FsResult<()> {
    let write = permission::WRITE | permission::EXECUTE;
    if let Some(from) = from {
        txn.require(wish.who, from, write)?;
        protection::check_change(&from.attributes)?;
    }
    if wish.target.is_none() && to.attributes.links == 0 {
        return Err(FsError::NotFound);
    }
    txn.require(wish.who, to, write)?;
    if wish.target.is_some() { protection::check_change(&to.attributes) } else { Ok(()) }
}

/// A directory replaces a directory, and nothing else.
fn check_kinds(wish: &Wish<'_>, moved: Moved) -> FsResult<()> {
    if wish.target.is_none() || wish.exchanges() {
        return Ok(());
    }
    match (moved.is_directory(), wish.target_is_directory()) {
        (true, false) => Err(FsError::NotDirectory),
        (false, true) => Err(FsError::IsDirectory),
        _ => Ok(()),
    }
}

/// No directory may become its own descendant, or replace one that has it.
fn check_ways(txn: &mut Transaction<'_>, wish: &Wish<'_>, moved: Moved) -> FsResult<()> {
    if !wish.moves() {
        return Ok(());
    }
    if moved.is_directory() {
        txn.hold_tree_first()?;
        if txn.is_above(moved.inode, wish.request.new_parent)? {
            return Err(FsError::Invalid);
        }
    }
    let Some(target) = wish.target_inode().filter(|_| wish.target_is_directory()) else { return Ok(()) };
    if wish.exchanges() {
        return if txn.is_above(target, wish.request.parent)? { Err(FsError::Invalid) } else { Ok(()) };
    }
    let is_full = txn.is_here(target) && !txn.is_empty_directory(target)?;
    match is_refused_anyway(moved.is_directory(), is_full) && txn.is_above(target, wish.request.parent)? {
        true => Err(FsError::NotEmpty),
        false => Ok(()),
    }
}

/// What is known of the data of what is moved.
enum Undurable {
    /// Its MDT has not been asked yet.
    Unknown,
    /// This layout has objects that may not be durable.
    Known(Option<Layout>),
}

/// Has inodes prepared at other MDTs: that of the old name, if that is here, and of the new name.
fn prepare_inodes(
    txn: &mut Transaction<'_>,
    wish: &Wish<'_>,
    (known, moved, undurable): (Option<Moved>, Moved, Undurable),
    parts: &mut Parts,
) -> FsResult<Undurable> {
    // Whether a directory is empty comes last.
    let target = wish.distant_target(txn, known).filter(|_| !wish.target_is_directory());
    let (before, after) = match target {
        Some(target) if known.is_some() && target.mdt() <= moved.inode.mdt() => (Some(target), None),
        target => (None, target),
    };
    if let Some(target) = before {
        parts.push(prepare_target(txn, wish, target)?.0);
    }
    let undurable = match undurable {
        Undurable::Unknown if known.is_some() && !txn.is_here(moved.inode) => {
            Undurable::Known(prepare_moved(txn, wish, moved, parts)?)
        }
        undurable => undurable,
    };
    if let Some(target) = after {
        parts.push(prepare_target(txn, wish, target)?.0);
    }
    Ok(undurable)
}

/// What has the new name, on another MDT: it loses that, or gets the old one.
fn prepare_target(
    txn: &mut Transaction<'_>,
    wish: &Wish<'_>,
    inode: InodeNumber,
) -> FsResult<((InodeNumber, OperationId, DecidedPart), Option<DirectoryMap>)> {
    let (who, parent, name) = (wish.who.clone(), wish.to, wish.request.new_name.clone());
    let (part, decided) = if wish.exchanges() {
        let (new_parent, new_name) = (wish.request.parent, wish.request.name.clone());
        let same_directory = wish.same_directory;
        let part = Part::MoveLink(MoveLink { inode, parent, name, new_parent, new_name, who, same_directory });
        (part, DecidedPart::MoveLink(wish.new_link(), wish.old_link()))
    } else {
        let directory = wish.target_is_directory();
        (Part::DropLink(DropLink { inode, parent, name, directory, who }), DecidedPart::DropLink(wish.new_link()))
    };
    let (operation, prepared) = txn.prepared(inode.mdt(), part)?;
    check_stated(inode, wish.target.as_ref().map(|target| target.target.kind), &prepared)?;
    Ok(((inode, operation, decided), prepared.map))
}

/// A name that says something else than the MDT of its inode is damaged.
fn check_stated(inode: InodeNumber, stated: Option<FileKind>, prepared: &Prepared) -> FsResult<()> {
    if stated == Some(prepared.kind) { Ok(()) } else { Err(peers::wrong_kind(inode)) }
}

/// The old name on another MDT, with what it leads to if that is there.
fn prepare_name(txn: &mut Transaction<'_>, wish: &Wish<'_>, parts: &mut Parts) -> FsResult<(Moved, Undurable)> {
    let Rename { parent, name, new_name, mdt_era, .. } = wish.request.clone();
    let target = wish.target.as_ref().map(|target| (target.target.inode, target.target.kind));
    let part = MoveName {
        parent,
        name: name.clone(),
        new_parent: wish.to,
        new_name,
        target,
        exchange: wish.exchanges(),
        era: mdt_era,
        who: wish.who.clone(),
        same_directory: wish.same_directory,
    };
    let (operation, prepared) = txn.prepared(parent.mdt(), Part::MoveName(part))?;
    let Prepared { inode, kind, undurable, parent: directory, map, .. } = prepared;
    if wish.same_directory && (wish.to_master.is_none() || map.map(|map| map.master) != wish.to_master) {
        return Err(FsError::Invalid);
    }
    let directory = directory.filter(|directory| directory.inode == parent).ok_or(FsError::Invalid)?;
    let kind = txn.kind_here(inode, kind)?;
    let exchanged = target.filter(|_| wish.exchanges());
    let decided = DecidedPart::MoveName(MovedName { name, inode, kind, new: wish.new_link(), target: exchanged });
    parts.push((parent, operation, decided));
    let is_there = inode.mdt() == parent.mdt();
    let undurable = if is_there { Undurable::Known(undurable) } else { Undurable::Unknown };
    Ok((Moved { inode, kind, parent: directory }, undurable))
}

/// What is moved, if its MDT was not asked yet: another one prepares that it gets its new name.
/// Returns the layout of objects that may not be durable.
fn prepare_moved(
    txn: &mut Transaction<'_>,
    wish: &Wish<'_>,
    moved: Moved,
    parts: &mut Parts,
) -> FsResult<Option<Layout>> {
    let Rename { name, new_parent, new_name, .. } = wish.request.clone();
    if txn.is_here(moved.inode) {
        let inode = txn.inode(moved.inode)?;
        return check_moved(txn, wish, &inode, moved);
    }
    let (inode, parent, who) = (moved.inode, moved.parent, wish.who.clone());
    let same_directory = wish.same_directory;
    let part = Part::MoveLink(MoveLink { inode, parent, name, new_parent, new_name, who, same_directory });
    let (operation, prepared) = txn.prepared(inode.mdt(), part)?;
    check_stated(inode, Some(moved.kind), &prepared)?;
    parts.push((inode, operation, DecidedPart::MoveLink(wish.old_link(), wish.new_link())));
    Ok(prepared.undurable)
}

/// The same of what is here.
fn check_moved(txn: &Transaction<'_>, wish: &Wish<'_>, inode: &Inode, moved: Moved) -> FsResult<Option<Layout>> {
    check_taking(txn, wish, inode, &moved.parent)?;
    let knows_era = txn.is_here(wish.request.parent);
    let may_have_lost = knows_era && wish.request.mdt_era.is_some_and(|known| known < txn.context.era);
    let replaces = wish.target.is_some() && !wish.exchanges();
    if replaces && may_have_lost && inode.kind() == FileKind::Regular {
        return Err(txn.lost_changes());
    }
    Ok(known_size::undurable_layout(inode).cloned())
}

/// Whether a name of an inode here may be taken out of a directory.
fn check_taking(txn: &Transaction<'_>, wish: &Wish<'_>, inode: &Inode, directory: &Attributes) -> FsResult<()> {
    if permission::sticky_forbids(wish.who, directory, &inode.attributes) {
        return Err(FsError::NotPermitted);
    }
    protection::check_change(&inode.attributes)?;
    // A directory that gets another parent is written to: its `..` changes.
    match inode.is_directory() && wish.moves() {
        true => txn.require(wish.who, inode, permission::WRITE),
        false => Ok(()),
    }
}

/// What has the new name, if it is here.
fn target_here(txn: &Transaction<'_>, wish: &Wish<'_>) -> FsResult<Option<Inode>> {
    let Some(target) = wish.target_inode().filter(|inode| txn.is_here(*inode)) else { return Ok(None) };
    let target = txn.inode(target)?;
    if wish.exchanges() {
        check_taking(txn, wish, &target, &wish.to)?;
        return Ok(Some(target));
    }
    if permission::sticky_forbids(wish.who, &wish.to, &target.attributes) {
        return Err(FsError::NotPermitted);
    }
    protection::check_change(&target.attributes)?;
    match target.is_directory() && !txn.is_empty_directory(target.number())? {
        true => Err(FsError::NotEmpty),
        false => Ok(Some(target)),
    }
}

/// The links of a directory that loses and gets a subdirectory, or none.
fn count(directory: &mut Inode, leaves: bool, comes: bool) -> FsResult<()> {
    let links = directory.attributes.links.saturating_sub(u32::from(leaves));
    if comes && !leaves && links >= limits::LINKS_MAX {
        return Err(FsError::TooManyLinks);
    }
    directory.attributes.links = links + u32::from(comes);
    Ok(())
}

/// Changes what is here.
fn change(
    txn: &mut Transaction<'_>,
    wish: &Wish<'_>,
    moved: Moved,
    (from, to): (Option<(Inode, FoundEntry)>, Option<Inode>),
) -> FsResult<()> {
    let target = target_here(txn, wish)?;
    let (old, new, exchanges) = (wish.old_link(), wish.new_link(), wish.exchanges());
    let (leaves, comes) = (moved.is_directory(), wish.target_is_directory());
    let (mut from, source_entry) = from.map_or((None, None), |(from, entry)| (Some(from), Some(entry)));
    let mut to = to;
    match (&mut from, &mut to) {
        (Some(only), None) => count(only, !exchanges && comes, false)?,
        (from, to) => {
            from.iter_mut().try_for_each(|from| count(from, leaves, exchanges && comes))?;
            to.iter_mut().try_for_each(|to| count(to, comes, leaves))?;
        }
    }
    if let Some(entry) = source_entry {
        match wish.target.as_ref().filter(|_| exchanges) {
            Some(target) => txn.retarget_entry(old.parent, &entry, target.target.inode, target.target.kind)?,
            None => txn.remove_entry(old.parent, &entry)?,
        }
    }
    match &wish.target {
        Some(entry) => txn.retarget_entry(new.parent, entry, moved.inode, moved.kind)?,
        None => {
            let target = NamedInode { name: new.name.clone(), inode: moved.inode, kind: moved.kind };
            txn.insert_entry(new.parent, target)?;
        }
    }
    if txn.is_here(moved.inode) {
        let mut inode = txn.inode(moved.inode)?;
        rename_link(txn, &mut inode, &old, new.clone())?;
    }
    match target {
        Some(mut target) if exchanges => rename_link(txn, &mut target, &new, old)?,
        Some(mut target) => txn.drop_link(&mut target, &new)?,
        None => {}
    }
    let mut directories = from.into_iter().chain(to);
    if let Some(first) = directories.next() {
        let second = directories.next();
        put_directories(txn, first, second);
    }
    Ok(())
}
