//! What a request to the MDT asks and changes, as far as the cache is concerned. Pure: one table of
//! all requests.

use rpc::message::{
    LeaveFullOst, LeaveStep, MdtRequest, OstRequest,
    lock::{CacheMode, Enqueue, InodeBits, Resource, inode_bit},
    mdt::{Create, ExclusiveBegin, Instantiate, OpenFlags, RenameMode, open_flag},
};
use types::{
    InodeNumber, ObjectId,
    access_list::{ACCESS_NAME, DEFAULT_NAME},
};

use super::{
    cached_inode::CAPABILITIES_NAME,
    compound_changes,
    name_table::{Name, NameTable},
    subject::Subject,
};

/// What the answer says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Asked {
    /// Nothing that is kept.
    Nothing,
    /// Where a name leads, and the inode.
    Name(InodeNumber, Vec<u8>),
    /// An inode.
    Attributes(InodeNumber),
    /// Target of a symbolic link.
    Target(InodeNumber),
    /// An extended attribute.
    Xattr(InodeNumber, Vec<u8>),
    /// A node that was created, or an existing file that was opened; with these flags, if it was
    /// opened.
    Created(InodeNumber, Vec<u8>, OpenFlags),
    /// An open file.
    Opened(OpenFlags),
    /// The layout of a file.
    Layout(InodeNumber),
    /// Data of an object, from its beginning.
    Data(ObjectId),
    /// An inode, to which this name leads now.
    Linked(InodeNumber, Vec<u8>),
    /// Nothing, but a name is gone; what it led to, if that was known.
    Unlinked((InodeNumber, Vec<u8>), Option<InodeNumber>),
    /// Nothing, but names changed.
    Renamed(Renamed),
    /// A page of a directory after a cookie.
    Page(InodeNumber, u64),
    /// Names of all extended attributes, as root or another user sees them.
    XattrNames(InodeNumber, bool),
    /// Nothing, but the file has no set-id bits that count, and no capabilities.
    Cleared(InodeNumber),
    /// Nothing, but the file has no capabilities.
    WithoutCapabilities(InodeNumber),
}

/// What a renaming does, as far as this client knows the names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Renamed {
    /// What lost its name.
    pub gone: Option<InodeNumber>,
    /// What has the new name, unless two names are exchanged.
    pub moved: Option<InodeNumber>,
    /// The old name.
    pub from: (InodeNumber, Vec<u8>),
    /// The new name.
    pub to: (InodeNumber, Vec<u8>),
}

/// A name that is removed, and what it leads to as far as this client knows.
pub(crate) type Removal = (InodeNumber, Vec<u8>, Name);

/// See the module documentation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Question {
    pub asked: Asked,
    /// What it changes.
    pub changes: Vec<Subject>,
    /// Names that it removes, as far as they are known: if that is not so any more when it is
    /// executed, other inodes are changed.
    pub removals: Vec<Removal>,
    /// What the client would like to cache.
    pub wanted: Option<(InodeNumber, InodeBits)>,
}

/// What is wanted of an inode that an answer shows.
const SHOWN: u32 = inode_bit::LOOKUP | inode_bit::ATTRIBUTES | inode_bit::XATTRS;
/// What is wanted with a name: its directory, too, and to open what it leads to.
const NAMED: u32 = SHOWN | inode_bit::DIRECTORY | inode_bit::OPEN;

/// Whether an open changes more than the access time.
pub(crate) fn changes_data(flags: OpenFlags) -> bool {
    flags.has(open_flag::WRITE) || flags.has(open_flag::TRUNCATE)
}

/// Extended attributes that all users may read, so that no permission has to be checked.
pub(crate) fn is_public(name: &[u8]) -> bool {
    name == ACCESS_NAME || name == DEFAULT_NAME || name.starts_with(b"security.")
}

/// What an open makes stale of a file: size, mode and extended attributes; or the access time.
pub(crate) fn opened(inode: InodeNumber, flags: OpenFlags) -> Subject {
    if changes_data(flags) { Subject::Inode(inode) } else { Subject::Times(inode) }
}

impl Question {
    /// `names`: what is known of them. `written`: whether this client has an open for writing of an
    /// inode.
    pub fn of(request: &MdtRequest, names: &NameTable, written: impl Fn(InodeNumber) -> bool) -> Self {
        let (asked, wanted) = asked(request, names);
        let mut changes = changed(request, names, written);
        let mut removals = Vec::new();
        for (parent, name) in removed(&asked) {
            match names.find(*parent, name) {
                Some(known) => {
                    changes.extend(known.inode().map(Subject::Inode));
                    if matches!(asked, Asked::Renamed(_)) {
                        changes.extend(known.inode().map(Subject::Above));
                    }
                    removals.push((*parent, name.clone(), known));
                }
                None => changes.push(Subject::AllAttributes),
            }
        }
        let wanted = wanted.map(|(inode, bits)| (inode, InodeBits(bits)));
        Self { asked, changes, removals, wanted }
    }

    /// What to ask for with the request, if this much is held already.
    pub fn enqueue(&self, held: InodeBits) -> Option<Enqueue> {
        let (inode, InodeBits(wanted)) = self.wanted?;
        let missing = match self.asked {
            // Most of it is about another inode than the one that is named.
            // A new directory is wanted with its names.
            Asked::Created(.., OpenFlags(0)) => wanted,
            Asked::Name(..) | Asked::Created(..) | Asked::Page(..) => wanted & !(held.0 & inode_bit::DIRECTORY),
            Asked::Nothing
            | Asked::Attributes(_)
            | Asked::Target(_)
            | Asked::Xattr(..)
            | Asked::Opened(_)
            | Asked::Layout(_)
            | Asked::Data(_)
            | Asked::Linked(..)
            | Asked::Unlinked(..)
            | Asked::XattrNames(..)
            | Asked::Cleared(_)
            | Asked::WithoutCapabilities(_)
            | Asked::Renamed(_) => wanted & !held.0,
        };
        let resource = Resource::Inode(inode, InodeBits(missing));
        (missing != 0).then_some(Enqueue { resource, mode: CacheMode::Read, opportunistic: true })
    }
}

/// What a request asks, and which locks are wanted with the answer.
fn asked(request: &MdtRequest, names: &NameTable) -> (Asked, Option<(InodeNumber, u32)>) {
    use MdtRequest as R;
    let inode_of = |parent, name: &[u8]| names.find(parent, name).and_then(Name::inode);
    match request {
        R::Lookup(_, lookup) if matches!(&*lookup.name, b"." | b"..") => (Asked::Nothing, None),
        R::Lookup(_, lookup) => (Asked::Name(lookup.parent, lookup.name.clone()), Some((lookup.parent, NAMED))),
        // It may be a directory.
        R::GetAttributes(inode) => (Asked::Attributes(*inode), Some((*inode, NAMED))),
        R::SetAttributes(_, inode, _) | R::DropPrivileges(_, inode) => (Asked::Attributes(*inode), None),
        R::ReadLink(inode) => (Asked::Target(*inode), Some((*inode, SHOWN))),
        R::ReadDirectory(read) => {
            let bits = if read.attributes { NAMED } else { inode_bit::DIRECTORY };
            (Asked::Page(read.inode, read.cookie), Some((read.inode, bits)))
        }
        R::ListXattr(who, inode) => (Asked::XattrNames(*inode, who.is_root()), Some((*inode, inode_bit::XATTRS))),
        R::GetXattr(_, inode, name) if is_public(name) => {
            (Asked::Xattr(*inode, name.clone()), Some((*inode, inode_bit::XATTRS)))
        }
        R::Create(_, create) => {
            let flags = create.open.map_or(OpenFlags::default(), |(_, flags)| flags);
            let layout = create.open.map_or(0, |_| inode_bit::LAYOUT);
            (Asked::Created(create.parent, create.name.clone(), flags), Some((create.parent, NAMED | layout)))
        }
        R::Open(_, open) if changes_data(open.flags) => {
            (Asked::Opened(open.flags), Some((open.inode, inode_bit::LAYOUT)))
        }
        R::Open(_, open) => {
            let bits = NAMED | inode_bit::LAYOUT | inode_bit::DATA;
            (Asked::Opened(open.flags), Some((open.inode, bits)))
        }
        R::ReadData(OstRequest::Read(read)) if read.offset == 0 => {
            (Asked::Data(read.object), Some((read.object.inode, inode_bit::DATA)))
        }
        R::GetLayout(inode)
        | R::Instantiate(Instantiate { inode, .. })
        | R::LeaveFullOst(LeaveFullOst { inode, step: LeaveStep::LeaveOut(..) | LeaveStep::Relocate(_), .. })
        | R::ExclusiveBegin(_, ExclusiveBegin { inode, .. }) => {
            (Asked::Layout(*inode), Some((*inode, inode_bit::LAYOUT)))
        }
        R::ClearPrivileges(inode) => (Asked::Cleared(*inode), Some((*inode, inode_bit::XATTRS))),
        R::RemoveXattr(_, inode, name) if name == CAPABILITIES_NAME => (Asked::WithoutCapabilities(*inode), None),
        R::Link(_, link) => (Asked::Linked(link.parent, link.name.clone()), None),
        R::Unlink(_, unlink) => {
            let victim = inode_of(unlink.parent, &unlink.name);
            (Asked::Unlinked((unlink.parent, unlink.name.clone()), victim), None)
        }
        R::Rename(_, rename) => {
            let moved = inode_of(rename.parent, &rename.name);
            let replaced = inode_of(rename.new_parent, &rename.new_name);
            // With an exchange both go on existing; and one file may have both names.
            let exchanges = rename.mode == RenameMode::Exchange;
            let gone = replaced.filter(|inode| !exchanges && Some(*inode) != moved);
            let (from, to) = ((rename.parent, rename.name.clone()), (rename.new_parent, rename.new_name.clone()));
            (Asked::Renamed(Renamed { gone, moved: moved.filter(|_| !exchanges), from, to }), None)
        }
        // Of a directory on another MDT this one grants nothing.
        R::MakeDirectory(..)
        | R::Access(..)
        | R::CreateUnnamed(..)
        | R::Close(_)
        | R::ReportSize(_)
        | R::ExclusiveEnd(_)
        | R::GetXattr(..)
        | R::SetXattr(..)
        | R::RemoveXattr(..)
        | R::SetDefaultLayout(..)
        | R::SetDirectoryDefault(..)
        | R::SplitDirectory(..)
        | R::MoveInode(..)
        | R::RepairName(..)
        | R::InodePaths(..)
        | R::SetLock(_)
        | R::CancelLock(_)
        | R::GetLock(_)
        | R::StatFs
        | R::Commit
        | R::Reclaim(_)
        | R::Ping
        | R::Check(..)
        | R::ScanInodes(..)
        | R::RepairSize(..)
        | R::Disconnect
        | R::ChangeData(_)
        | R::ReadData(_)
        | R::Compound(_)
        | R::ChangeLayout(..)
        | R::ReportFull(_)
        | R::DataVersion(..)
        | R::SwapLayouts(..)
        | R::CancelLocks(_)
        | R::RegisterOpens(_)
        | R::NoteAccesses(_)
        | R::ClaimLocks(_)
        | R::Prepare(_)
        | R::Abort(_)
        | R::Decisions(_)
        | R::Join(_)
        | R::RemoteNames(..)
        | R::Above(_)
        // Others of this client are not shown the layout before the next step.
        | R::LeaveFullOst(LeaveFullOst { step: LeaveStep::Fence(_), .. }) => (Asked::Nothing, None),
        R::PlaceElsewhere(removed) | R::RenewLayout(removed) | R::LeaveOut(removed) => removed.never(),
    }
}

/// What a request changes, besides the inodes that lose a name.
fn changed(request: &MdtRequest, names: &NameTable, written: impl Fn(InodeNumber) -> bool) -> Vec<Subject> {
    use MdtRequest as R;
    match request {
        // The access time.
        R::ReadLink(inode) => vec![Subject::Times(*inode)],
        R::ReadDirectory(read) if read.cookie == 0 => vec![Subject::Times(read.inode)],
        R::Open(_, open) => vec![opened(open.inode, open.flags)],
        R::Create(_, create) => created(create, names),
        R::MakeDirectory(_, make) => named(make.parent, &make.name),
        R::Compound(compound) => compound_changes::changed(&compound.steps, names),
        R::Unlink(_, unlink) => named(unlink.parent, &unlink.name),
        R::Rename(_, rename) => {
            let (from, to) = (named(rename.parent, &rename.name), named(rename.new_parent, &rename.new_name));
            from.into_iter().chain(to).collect()
        }
        R::Link(_, link) => named(link.parent, &link.name).into_iter().chain([Subject::Times(link.inode)]).collect(),
        R::SetAttributes(_, inode, _)
        | R::DropPrivileges(_, inode)
        | R::ClearPrivileges(inode)
        | R::RemoveXattr(_, inode, _)
        | R::SetDefaultLayout(_, inode, _)
        | R::SetDirectoryDefault(_, inode, _)
        | R::ChangeLayout(_, inode, _) => vec![Subject::Inode(*inode)],
        R::SetXattr(_, set) => vec![Subject::Inode(set.inode)],
        R::SplitDirectory(_, split) => vec![Subject::Inode(split.directory)],
        R::ExclusiveBegin(_, begin) => vec![Subject::Inode(begin.inode)],
        R::ExclusiveEnd(end) => vec![Subject::Inode(end.inode)],
        R::SwapLayouts(_, swap) => vec![Subject::Inode(swap.first.inode), Subject::Inode(swap.second.inode)],
        R::Close(close) if close.update.is_some() || written(close.inode) => vec![Subject::Times(close.inode)],
        R::ReportSize(report) => vec![Subject::Times(report.inode)],
        R::DataVersion(_, version) => vec![Subject::Times(version.inode)],
        R::Instantiate(Instantiate { inode, .. }) | R::LeaveFullOst(LeaveFullOst { inode, .. }) => {
            vec![Subject::Times(*inode), Subject::Layout(*inode)]
        }
        R::ChangeData(request) => {
            // Its size is served from nowhere else while this client can change it.
            request.row().changed_object().map(|object| Subject::Data(object.inode)).into_iter().collect()
        }
        // What others have of it there is asked back; names that led to it may be anywhere.
        R::RepairSize(..) | R::Check(_, true) | R::MoveInode(..) | R::RepairName(..) => vec![Subject::AllAttributes],
        R::Lookup(..)
        | R::GetAttributes(_)
        | R::Access(..)
        | R::CreateUnnamed(..)
        | R::Close(_)
        | R::ReadDirectory(_)
        | R::GetXattr(..)
        | R::ListXattr(..)
        | R::GetLayout(_)
        | R::InodePaths(..)
        | R::SetLock(_)
        | R::CancelLock(_)
        | R::GetLock(_)
        | R::StatFs
        | R::Commit
        | R::Reclaim(_)
        | R::Ping
        | R::Check(_, false)
        | R::ScanInodes(..)
        | R::Disconnect
        | R::ReadData(_)
        | R::ReportFull(_)
        | R::CancelLocks(_)
        | R::RegisterOpens(_)
        | R::NoteAccesses(_)
        | R::ClaimLocks(_)
        | R::Prepare(_)
        | R::Abort(_)
        | R::Decisions(_)
        | R::Join(_)
        | R::RemoteNames(..)
        | R::Above(_) => Vec::new(),
        R::PlaceElsewhere(removed) | R::RenewLayout(removed) | R::LeaveOut(removed) => removed.never(),
    }
}

/// Names that a question removes or makes lead elsewhere.
fn removed(asked: &Asked) -> Vec<&(InodeNumber, Vec<u8>)> {
    match asked {
        Asked::Unlinked(name, _) => vec![name],
        Asked::Renamed(Renamed { from, to, .. }) => vec![from, to],
        Asked::Nothing
        | Asked::Name(..)
        | Asked::Attributes(_)
        | Asked::Target(_)
        | Asked::Xattr(..)
        | Asked::Created(..)
        | Asked::Opened(_)
        | Asked::Layout(_)
        | Asked::Data(_)
        | Asked::Linked(..)
        | Asked::Page(..)
        | Asked::XattrNames(..)
        | Asked::Cleared(_)
        | Asked::WithoutCapabilities(_) => Vec::new(),
    }
}

/// A creation may open an existing file.
fn created(create: &Create, names: &NameTable) -> Vec<Subject> {
    let existing = match create.open {
        Some((_, flags)) if !flags.has(open_flag::EXCLUSIVE) => {
            let found = names.find(create.parent, &create.name).and_then(Name::inode);
            found.map(|inode| opened(inode, flags))
        }
        Some(_) | None => None,
    };
    named(create.parent, &create.name).into_iter().chain(existing).collect()
}

/// A name, all names of its directory, and the directory's times.
pub(super) fn named(parent: InodeNumber, name: &[u8]) -> Vec<Subject> {
    vec![Subject::Name(parent, name.to_vec()), Subject::Names(parent), Subject::Times(parent)]
}
