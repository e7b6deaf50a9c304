//! Rename, with RENAME_NOREPLACE and RENAME_EXCHANGE.
//!
//! A rename that replaces a file is how programs change a file as a whole, often without fsync. So
//! that a power loss leaves either the old data or the new, the source's objects on OSTs must be
//! durable before the rename can be (ext4: auto_da_alloc). The MDT decides whether they are and has
//! the client make them durable ([`MdtReply::SyncFirst`]), because the client knows what it wrote
//! and which power losses it has noticed. Data on the MDT are in the same journal as the rename,
//! before it; if the MDT lost some of them after the rename was requested, the rename fails.
//!
//! Both directories may be the same. All checks come first (order of do_renameat2 and vfs_rename of
//! Linux); then, in order: the old name is removed, the target's name is replaced or created, the
//! moved inodes get their new names, directories get their new link counts, the replaced inode
//! loses a link, and the directories get their times.

use layout::{Layout, Location};
use rpc::message::{
    MdtReply,
    mdt::{Rename, RenameMode, SourceData, SyncFirst},
    mdt_peer::{Part, RenameDirectory},
};
use types::{Credentials, FileKind, FsError, FsResult, InodeNumber, limits, permission};

use super::unlink::may_remove;
use crate::{
    known_size, protection,
    tables::{
        decision::{DecidedPart, Decision},
        entry::NamedInode,
        inode::{Inode, Link},
    },
    transaction::{
        Transaction,
        entries::{FoundEntry, is_dots},
        inodes::Ancestry,
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
        let asked = match self.request.source_data {
            SourceData::AsIs => false,
            SourceData::SyncIfAsked => true,
            SourceData::Synced(inode) => inode != self.source.number(),
        };
        let empty = self.source.size_known && self.source.attributes.size == 0 && self.source.attributes.blocks == 0;
        if !self.replaces() || !asked || empty || !known_size::may_have_objects(&self.source) {
            return None;
        }
        let on_osts = |layout: &&Layout| layout.objects().any(|(_, location)| matches!(location, Location::Ost(_)));
        self.source.layout().filter(on_osts)
    }
}

pub(crate) fn run(txn: &mut Transaction<'_>, who: &Credentials, request: &Rename) -> FsResult<MdtReply> {
    let from = txn.searchable(who, request.parent)?;
    if !txn.is_here(request.new_parent) {
        return Err(FsError::CrossDevice);
    }
    let same = request.parent == request.new_parent;
    let to = if same { None } else { Some(txn.searchable(who, request.new_parent)?) };
    if is_dots(&request.name) || is_dots(&request.new_name) {
        return Err(FsError::Busy);
    }
    let source_entry = txn.entry(request.parent, &request.name)?;
    let target_entry = txn.find_entry(request.new_parent, &request.new_name)?;
    match (request.mode, &target_entry) {
        (RenameMode::NoReplace, Some(_)) => return Err(FsError::Exists),
        (RenameMode::Exchange, None) => return Err(FsError::NotFound),
        _ => {}
    }
    if let Some(done) = with_other_mdts(txn, who, request, (&source_entry, target_entry.as_ref())) {
        return done;
    }
    let source = txn.inode(source_entry.target.inode)?;
    let target = target_entry.map(|entry| txn.inode(entry.target.inode).map(|inode| (inode, entry))).transpose()?;
    let plan = Plan { request, from, to, source, source_entry, target };
    check_circles(txn, &plan)?;
    if plan.target_inode().is_some_and(|target| target.number() == plan.source.number()) {
        return Ok(MdtReply::Done);
    }
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
    Ok(MdtReply::Done)
}

/// A rename of what is on another MDT, or to its place. (The same name needs no change.) Of a
/// directory there its name is changed, if nothing has the new one; else programs copy instead.
fn with_other_mdts(
    txn: &mut Transaction<'_>,
    who: &Credentials,
    request: &Rename,
    (source, target): (&FoundEntry, Option<&FoundEntry>),
) -> Option<FsResult<MdtReply>> {
    let inode = source.target.inode;
    match target.map(|target| target.target.inode) {
        Some(target) if target == inode && !txn.is_here(inode) => Some(Ok(MdtReply::Done)),
        Some(target) if !txn.is_here(target) || !txn.is_here(inode) => Some(Err(FsError::CrossDevice)),
        None if !txn.is_here(inode) => Some(rename_elsewhere(txn, who, request, source)),
        _ => None,
    }
}

/// Renames a directory on another MDT, which has to promise that it keeps its name until then. Both
/// names are here: this MDT decides.
fn rename_elsewhere(
    txn: &mut Transaction<'_>,
    who: &Credentials,
    request: &Rename,
    source: &FoundEntry,
) -> FsResult<MdtReply> {
    let (inode, parent, new_parent) = (source.target.inode, request.parent, request.new_parent);
    let mut from = txn.directory(parent)?;
    let mut to = if parent == new_parent { None } else { Some(txn.directory(new_parent)?) };
    if to.is_some() && is_above(txn, inode, parent, new_parent)? {
        return Err(FsError::Invalid);
    }
    let write = permission::WRITE | permission::EXECUTE;
    txn.require(who, &from, write)?;
    protection::check_change(&from.attributes)?;
    if let Some(to) = &mut to {
        if to.attributes.links == 0 {
            return Err(FsError::NotFound);
        }
        txn.require(who, to, write)?;
        txn.count_subdirectory(to)?;
        from.attributes.links = from.attributes.links.saturating_sub(1);
    }
    let (name, new_name) = (request.name.clone(), request.new_name.clone());
    let (old, new) = (Link { parent, name: name.clone() }, Link { parent: new_parent, name: new_name.clone() });
    let part = RenameDirectory { inode, parent: from.attributes, name, new_parent, new_name, who: who.clone() };
    let (operation, _) = txn.prepared(inode.mdt(), Part::RenameDirectory(part))?;
    txn.remove_entry(parent, source)?;
    txn.insert_entry(new_parent, NamedInode { name: new.name.clone(), inode, kind: source.target.kind })?;
    put_directories(txn, from, to);
    txn.decide(inode.mdt(), Decision { operation, inode, part: DecidedPart::Rename(old, new) });
    Ok(MdtReply::Done)
}

/// No directory may become its own descendant.
fn check_circles(txn: &Transaction<'_>, plan: &Plan<'_>) -> FsResult<()> {
    if plan.to.is_none() {
        return Ok(());
    }
    let (from, to) = (plan.request.parent, plan.request.new_parent);
    if plan.source.is_directory() && is_above(txn, plan.source.number(), from, to)? {
        return Err(FsError::Invalid);
    }
    let Some(target) = plan.target_directory() else { return Ok(()) };
    if is_above(txn, target.number(), to, from)? {
        return Err(if plan.exchanges() { FsError::Invalid } else { FsError::NotEmpty });
    }
    Ok(())
}

/// Whether a directory, which `parent` has, is above another one. The way to the root may lead over
/// other MDTs: what comes before that is known here. If both directories are below the same one
/// whose name is on another MDT, the rest of the way is the same, so it does not pass through
/// either; otherwise it is not known.
fn is_above(txn: &Transaction<'_>, directory: InodeNumber, parent: InodeNumber, other: InodeNumber) -> FsResult<bool> {
    match txn.ancestry(directory, other)? {
        Ancestry::Above => Ok(true),
        Ancestry::NotAbove => Ok(false),
        Ancestry::NotBelow(top) => match txn.ancestry(top, parent)? {
            Ancestry::Above => Ok(false),
            Ancestry::NotAbove | Ancestry::NotBelow(_) => Err(FsError::CrossDevice),
        },
    }
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
    if plan.to.is_none() {
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
fn rename_link(txn: &mut Transaction<'_>, inode: &mut Inode, old: &Link, new: Link) -> FsResult<()> {
    if inode.first_link.as_ref() == Some(old) {
        inode.first_link = Some(new);
    } else {
        txn.remove_link(inode, old)?;
        txn.add_link(inode, new);
    }
    inode.change(txn.now());
    txn.put_inode(inode);
    Ok(())
}

fn put_directories(txn: &mut Transaction<'_>, from: Inode, to: Option<Inode>) {
    for mut directory in std::iter::once(from).chain(to) {
        txn.touch_directory(&mut directory);
        txn.put_inode(&directory);
    }
}
