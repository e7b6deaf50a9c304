//! Rename, with RENAME_NOREPLACE and RENAME_EXCHANGE.
//!
//! A rename that replaces a file is how programs change a file as a whole, often without fsync. So
//! that a power loss leaves either the old data or the new, the source's objects on OSTs must be
//! durable before the rename can be (ext4: auto_da_alloc). The MDT decides whether they are and has
//! the client make them durable ([`MdtReply::SyncFirst`]), because the client knows what it wrote
//! and which power losses it has noticed. Data on the MDT are in the same journal as the rename,
//! before it; if the MDT lost some of them after the rename was requested, the rename fails.
//!
//! Here are renames of which all is on this MDT; for others see [`super::distant_rename`].
//!
//! Both directories may be the same. All checks come first (order of do_renameat2 and vfs_rename of
//! Linux); then, in order: the old name is removed, the target's name is replaced or created, the
//! moved inodes get their new names, directories get their new link counts, the replaced inode
//! loses a link, and the directories get their times.

use layout::Layout;
use rpc::message::{
    MdtReply,
    mdt::{Rename, RenameMode, SourceData, SyncFirst},
};
use types::{Credentials, FileKind, FsError, FsResult, InodeNumber, limits, permission};

use super::{
    distant_rename::{self, Found},
    unlink::may_remove,
};
use crate::{
    known_size,
    tables::{
        entry::NamedInode,
        inode::{Inode, Link},
    },
    transaction::{
        Transaction,
        entries::{FoundEntry, is_dots},
    },
};

/// Both ends of a rename, as found.
struct Plan<'a> {
    request: &'a Rename,
    from: Inode,
    /// `None`: the same directory.
    to: Option<Inode>,
    source: Inode,
    source_entry: FoundEntry,
    target: Option<(Inode, FoundEntry)>,
}

impl Plan<'_> {
    fn exchanges(&self) -> bool {
        self.request.mode == RenameMode::Exchange
    }

    /// Whether the source gets another parent. A directory whose names move, and its shards, are
    /// one.
    fn moves(&self) -> bool {
        self.to.as_ref().is_some_and(|to| to.whole() != self.from.whole())
    }

    fn target_inode(&self) -> Option<&Inode> {
        self.target.as_ref().map(|(inode, _)| inode)
    }

    fn target_directory(&self) -> Option<&Inode> {
        self.target_inode().filter(|inode| inode.is_directory())
    }

    fn replaces(&self) -> bool {
        self.target.is_some() && !self.exchanges()
    }

    /// Whether the MDT may have lost data of the source since the rename was asked for.
    fn may_have_lost(&self, era: u64) -> bool {
        let known = self.request.mdt_era.unwrap_or(era);
        self.replaces() && self.source.kind() == FileKind::Regular && known < era
    }

    /// The layout of the source, if its objects must be made durable first: see the module
    /// documentation.
    fn undurable_layout(&self) -> Option<&Layout> {
        let asked = is_sync_asked(self.request, self.source.number());
        if self.replaces() && asked { known_size::undurable_layout(&self.source) } else { None }
    }
}

/// Whether the objects of this source have to be durable before it replaces a file.
pub(super) fn is_sync_asked(request: &Rename, source: InodeNumber) -> bool {
    match request.source_data {
        SourceData::AsIs => false,
        SourceData::SyncIfAsked => true,
        SourceData::Synced(inode) => inode != source,
    }
}

pub(crate) fn run(txn: &mut Transaction<'_>, who: &Credentials, request: &Rename) -> FsResult<MdtReply> {
    if !txn.is_here(request.new_parent) {
        // Its client does not know which MDT decides.
        return Err(FsError::CrossDevice);
    }
    if !txn.is_here(request.parent) {
        return distant_rename::from_elsewhere(txn, who, request);
    }
    let from = txn.enterable(who, request.parent)?;
    txn.has_old_name(&from, &request.name)?;
    let to = match request.parent == request.new_parent {
        true => {
            txn.has_name(&from, &request.new_name)?;
            None
        }
        false => Some(txn.searchable(who, request.new_parent, &request.new_name)?),
    };
    if is_dots(&request.name) || is_dots(&request.new_name) {
        return Err(FsError::Busy);
    }
    let source_entry = txn.entry(request.parent, &request.name)?;
    let target_entry = txn.find_entry(request.new_parent, &request.new_name)?;
    check_mode(request, target_entry.as_ref())?;
    let is_elsewhere = |entry: &FoundEntry| !txn.is_here(entry.target.inode);
    let is_distant = is_elsewhere(&source_entry) || target_entry.as_ref().is_some_and(is_elsewhere);
    let replaced = target_entry.as_ref().filter(|_| request.mode != RenameMode::Exchange);
    if is_distant || replaced.map_or(Ok(false), |entry| has_shards(txn, entry))? {
        let found = Found { from: Some((from, source_entry)), to, target: target_entry };
        return distant_rename::run(txn, who, request, found);
    }
    let source = txn.inode(source_entry.target.inode)?;
    let target = target_entry.map(|entry| txn.inode(entry.target.inode).map(|inode| (inode, entry))).transpose()?;
    let plan = Plan { request, from, to, source, source_entry, target };
    if plan.target_inode().is_some_and(|target| target.number() == plan.source.number()) {
        return Ok(MdtReply::Done);
    }
    check_circles(txn, &plan)?;
    check_permission(txn, who, &plan)?;
    check_counts(txn, &plan)?;
    if plan.may_have_lost(txn.context.era) {
        return Err(txn.lost_changes());
    }
    if let Some(layout) = plan.undurable_layout() {
        return Ok(MdtReply::SyncFirst(SyncFirst { inode: plan.source.number(), layout: layout.clone() }));
    }
    if plan.exchanges() {
        exchange(txn, plan)?
    } else {
        replace(txn, plan)?
    }
    txn.give_tree_back();
    Ok(MdtReply::Done)
}

/// Whether a name leads to a striped directory: shards of it are on other MDTs.
fn has_shards(txn: &Transaction<'_>, entry: &FoundEntry) -> FsResult<bool> {
    let is_directory = entry.target.kind == FileKind::Directory;
    Ok(is_directory && txn.inode(entry.target.inode)?.is_striped())
}

/// What the mode says of the new name.
pub(super) fn check_mode(request: &Rename, target: Option<&FoundEntry>) -> FsResult<()> {
    match (request.mode, target) {
        (RenameMode::NoReplace, Some(_)) => Err(FsError::Exists),
        (RenameMode::Exchange, None) => Err(FsError::NotFound),
        _ => Ok(()),
    }
}

/// No directory may become its own descendant.
fn check_circles(txn: &mut Transaction<'_>, plan: &Plan<'_>) -> FsResult<()> {
    if !plan.moves() {
        return Ok(());
    }
    let (from, to) = (plan.request.parent, plan.request.new_parent);
    if plan.source.is_directory() || plan.target_directory().is_some() {
        txn.hold_tree()?;
    }
    if plan.source.is_directory() && txn.is_above(plan.source.number(), to)? {
        return Err(FsError::Invalid);
    }
    let Some(target) = plan.target_directory() else { return Ok(()) };
    if plan.exchanges() {
        return if txn.is_above(target.number(), from)? { Err(FsError::Invalid) } else { Ok(()) };
    }
    let is_full = !txn.is_empty_directory(target.number())?;
    match is_refused_anyway(plan.source.is_directory(), is_full) && txn.is_above(target.number(), from)? {
        true => Err(FsError::NotEmpty),
        false => Ok(()),
    }
}

/// Whether what is moved cannot replace a directory. Only then its way to the root has to be known
/// for the right error; an empty directory is above nothing.
pub(super) fn is_refused_anyway(is_directory: bool, is_full: bool) -> bool {
    !is_directory || is_full
}

fn check_permission(txn: &Transaction<'_>, who: &Credentials, plan: &Plan<'_>) -> FsResult<()> {
    let to = plan.to.as_ref().unwrap_or(&plan.from);
    let moves_directory = plan.source.is_directory();
    may_remove(txn, who, &plan.from, &plan.source, moves_directory)?;
    match plan.target_inode() {
        Some(target) => {
            let as_directory = if plan.exchanges() { target.is_directory() } else { moves_directory };
            may_remove(txn, who, to, target, as_directory)?;
        }
        None if to.attributes.links == 0 => return Err(FsError::NotFound),
        None => txn.require(who, to, permission::WRITE | permission::EXECUTE)?,
    }
    if !plan.moves() {
        return Ok(());
    }
    // A directory that gets another parent is written to: its `..` changes.
    if moves_directory {
        txn.require(who, &plan.source, permission::WRITE)?;
    }
    match plan.target_directory() {
        Some(target) if plan.exchanges() => txn.require(who, target, permission::WRITE),
        _ => Ok(()),
    }
}

fn check_counts(txn: &Transaction<'_>, plan: &Plan<'_>) -> FsResult<()> {
    if let Some(target) = plan.target_directory()
        && !plan.exchanges()
        && !txn.is_empty_directory(target.number())?
    {
        return Err(FsError::NotEmpty);
    }
    let Some(to) = &plan.to else { return Ok(()) };
    let full = |directory: &Inode| directory.attributes.links >= limits::LINKS_MAX;
    let grows_to = plan.source.is_directory() && plan.target_directory().is_none();
    let grows_from = plan.exchanges() && plan.target_directory().is_some() && !plan.source.is_directory();
    if (grows_to && full(to)) || (grows_from && full(&plan.from)) {
        return Err(FsError::TooManyLinks);
    }
    Ok(())
}

fn replace(txn: &mut Transaction<'_>, plan: Plan<'_>) -> FsResult<()> {
    let replaces_directory = plan.target_directory().is_some();
    let Plan { request, mut from, mut to, mut source, source_entry, target } = plan;
    let old = Link { parent: request.parent, name: request.name.clone() };
    let new = Link { parent: request.new_parent, name: request.new_name.clone() };
    txn.remove_entry(request.parent, &source_entry)?;
    match &target {
        Some((_, entry)) => txn.retarget_entry(request.new_parent, entry, source.number(), source.kind())?,
        None => {
            let target = NamedInode { name: new.name.clone(), inode: source.number(), kind: source.kind() };
            txn.insert_entry(request.new_parent, target)?;
        }
    }
    rename_link(txn, &mut source, &old, new.clone())?;
    if source.is_directory() {
        from.attributes.links = from.attributes.links.saturating_sub(1);
        let to = to.as_mut().unwrap_or(&mut from);
        to.attributes.links += u32::from(!replaces_directory);
    }
    if let Some((mut target, _)) = target {
        txn.drop_link(&mut target, &new)?;
    }
    put_directories(txn, from, to);
    Ok(())
}

fn exchange(txn: &mut Transaction<'_>, plan: Plan<'_>) -> FsResult<()> {
    let Plan { request, mut from, mut to, mut source, source_entry, target } = plan;
    let (mut target, target_entry) = target.expect("an exchange without a target was refused");
    let old = Link { parent: request.parent, name: request.name.clone() };
    let new = Link { parent: request.new_parent, name: request.new_name.clone() };
    txn.retarget_entry(request.parent, &source_entry, target.number(), target.kind())?;
    txn.retarget_entry(request.new_parent, &target_entry, source.number(), source.kind())?;
    if let Some(to) = &mut to {
        let (leaves, comes) = (u32::from(source.is_directory()), u32::from(target.is_directory()));
        from.attributes.links = (from.attributes.links + comes).saturating_sub(leaves);
        to.attributes.links = (to.attributes.links + leaves).saturating_sub(comes);
    }
    rename_link(txn, &mut source, &old, new.clone())?;
    rename_link(txn, &mut target, &new, old)?;
    put_directories(txn, from, to);
    Ok(())
}

/// The inode has a new name instead of an old one.
pub(super) fn rename_link(txn: &mut Transaction<'_>, inode: &mut Inode, old: &Link, new: Link) -> FsResult<()> {
    inode.change(txn.now());
    txn.replace_link(inode, old, new)
}

pub(super) fn put_directories(txn: &mut Transaction<'_>, from: Inode, to: Option<Inode>) {
    for mut directory in std::iter::once(from).chain(to) {
        txn.touch_directory(&mut directory);
        txn.put_inode(&directory);
    }
}
