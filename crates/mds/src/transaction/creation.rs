//! Creating inodes within a transaction: owner, group, mode, access lists and layout of the new
//! inode.

use layout::LayoutSpec;
use types::{
    Accounted, Attributes, Credentials, DirectoryDefault, FileKind, FsError, FsResult, InodeNumber, NodeKind,
    access_list::{ACCESS_NAME, AccessList, DEFAULT_NAME},
    attributes::file_flag,
    limits,
    mode::{PERMISSIONS, S_ISGID, S_ISVTX},
    permission::{self, Decision},
};

use super::Transaction;
use crate::{
    known_size,
    tables::{
        decision::Xattrs,
        inode::{Inode, InodeData, Link, Striping},
    },
};

/// What stat shows as the size of a directory, in bytes, and as its space.
pub(crate) const DIRECTORY_BYTES: u64 = 4096;
const BLOCK_UNIT_BYTES: u64 = 512;

/// What to make, and by whose wish.
pub(crate) struct NewInode<'a> {
    /// The caller.
    pub who: &'a Credentials,
    /// What.
    pub kind: &'a NodeKind,
    /// Permission bits asked for.
    pub mode: u32,
    /// Bits to clear unless the directory has a default access list.
    pub umask: u32,
    /// Layout asked for.
    pub layout: Option<&'a LayoutSpec>,
    /// Its first name; `None` for an unnamed file.
    pub link: Option<Link>,
}

/// What a new inode gets by the rules of its directory.
struct Inherited {
    gid: u32,
    mode: u32,
    list: Option<AccessList>,
    defaults: Option<AccessList>,
}

impl Transaction<'_> {
    /// Makes an inode by the rules of `directory` and stores its access lists. Inode and name are
    /// the caller's to store.
    pub fn make_inode(&mut self, directory: &Inode, new: NewInode<'_>) -> FsResult<Inode> {
        let inherited = self.inherited(directory, &new)?;
        let data = self.new_data(directory, &new)?;
        let number = self.new_number();
        let mut inode = self.blank_inode(directory, &new, number, &inherited, data);
        self.put_access_list(&mut inode, inherited.list.as_ref());
        if inode.is_directory() {
            self.put_default_list(&mut inode, inherited.defaults.as_ref());
        }
        Ok(inode)
    }

    /// The same of a directory that another MDT is to have, under this number: with its extended
    /// attributes, and with a default layout that holds without the root directory.
    pub fn make_elsewhere(
        &self,
        directory: &Inode,
        new: &NewInode<'_>,
        number: InodeNumber,
    ) -> FsResult<(Inode, Xattrs)> {
        assert_eq!(new.kind, &NodeKind::Directory, "only directories are made on other MDTs");
        let inherited = self.inherited(directory, new)?;
        let data = InodeData::Directory(self.stored_default(directory)?);
        let mut inode = self.blank_inode(directory, new, number, &inherited, data);
        let list = inherited.list.filter(|list| !list.is_minimal());
        (inode.access_list, inode.default_list) = (list.is_some(), inherited.defaults.is_some());
        let lists = [(ACCESS_NAME, list), (DEFAULT_NAME, inherited.defaults)];
        let xattrs = lists.into_iter().filter_map(|(name, list)| Some((name.to_vec(), list?.encode())));
        Ok((inode, xattrs.collect()))
    }

    fn inherited(&self, directory: &Inode, new: &NewInode<'_>) -> FsResult<Inherited> {
        let kind = new.kind.file_kind();
        let (gid, mode) = group_and_mode(directory, new)?;
        let defaults = if directory.default_list && kind != FileKind::Symlink {
            self.stored_list(directory.number(), DEFAULT_NAME)?
        } else {
            None
        };
        let (list, mode) = match &defaults {
            Some(defaults) => {
                let (list, bits) = defaults.for_child(mode);
                (Some(list), mode & !0o777 | bits)
            }
            None if kind == FileKind::Symlink => (None, mode),
            None => (None, mode & !(new.umask & 0o777)),
        };
        Ok(Inherited { gid, mode, list, defaults })
    }

    fn new_data(&mut self, directory: &Inode, new: &NewInode<'_>) -> FsResult<InodeData> {
        Ok(match new.kind {
            NodeKind::Regular => {
                new.layout.map_or(Ok(()), |asked| self.check_named(asked))?;
                let default = self.default_layout(directory)?;
                let spec = layout::resolve(new.layout, default.as_ref(), &self.context.parameters.default_layout);
                InodeData::Regular(self.new_layout(&spec)?)
            }
            NodeKind::Directory => InodeData::Directory(own_default(directory).cloned()),
            NodeKind::Symlink(target) => InodeData::Symlink(target.clone()),
            _ => InodeData::Special,
        })
    }

    /// The default layout that holds for new files in a directory: its own (set on it, or inherited
    /// when it was made), completed by the root's; with as much on the MDT as is allowed now, which
    /// may be less than when it was set: by today's limit, or because the MDT runs out of space.
    pub fn default_layout(&self, directory: &Inode) -> FsResult<Option<LayoutSpec>> {
        let bytes_on_mdt_max = self.context.bytes_on_mdt_by_default();
        Ok(self.stored_default(directory)?.map(|default| default.with_at_most_on_mdt(bytes_on_mdt_max)))
    }

    /// The same without today's limit.
    pub fn stored_default(&self, directory: &Inode) -> FsResult<Option<LayoutSpec>> {
        let own = own_default(directory).cloned();
        if directory.number() == InodeNumber::ROOT {
            return Ok(own);
        }
        let root = self.find_inode(InodeNumber::ROOT)?;
        Ok(match (own, root.as_ref().and_then(own_default)) {
            (Some(LayoutSpec::Plain(own)), Some(LayoutSpec::Plain(root))) => Some(LayoutSpec::Plain(own.or(root))),
            (own, root) => own.or_else(|| root.cloned()),
        })
    }

    /// What a new file gets that asks for `request` where `default` holds, complete as far as it is
    /// plain.
    pub fn effective(&self, request: Option<&LayoutSpec>, default: Option<&LayoutSpec>) -> LayoutSpec {
        let file_system = &self.context.parameters.default_layout;
        match layout::resolve(request, default, file_system) {
            LayoutSpec::Plain(stripes) => LayoutSpec::Plain(file_system.fill(&stripes).into()),
            other => other,
        }
    }

    fn blank_inode(
        &self,
        directory: &Inode,
        new: &NewInode<'_>,
        number: InodeNumber,
        inherited: &Inherited,
        data: InodeData,
    ) -> Inode {
        let Inherited { gid, mode, .. } = *inherited;
        let now = self.now();
        let kind = new.kind.file_kind();
        let size = match (&data, kind) {
            (InodeData::Symlink(target), _) => target.len() as u64,
            (_, FileKind::Directory) => DIRECTORY_BYTES,
            _ => 0,
        };
        let links = match (kind, &new.link) {
            (FileKind::Directory, _) => 2,
            (_, Some(_)) => 1,
            (_, None) => 0,
        };
        let mut inode = Inode {
            attributes: Attributes {
                inode: number,
                kind,
                mode,
                links,
                uid: new.who.uid,
                gid,
                device: device_of(new.kind),
                size,
                blocks: if kind == FileKind::Directory { DIRECTORY_BYTES / BLOCK_UNIT_BYTES } else { 0 },
                atime: now,
                mtime: now,
                ctime: now,
                btime: now,
                flags: 0,
                project: 0,
            },
            version: 0,
            size_known: true,
            epoch: known_size::first_epoch(self.context.era),
            map_version: 0,
            striping: Striping::None,
            accounted: Accounted { time: now, ..Accounted::default() },
            access_list: false,
            default_list: false,
            xattrs: false,
            not_linkable: false,
            directory_default: match kind {
                FileKind::Directory => directory.directory_default.and_then(DirectoryDefault::inherited),
                _ => None,
            },
            first_link: new.link.clone(),
            data,
        };
        inherit_project(directory, &mut inode);
        inode
    }
}

/// What is made in a directory that passes its project id on has this id, too, and directories also
/// pass it on (ext4_new_inode).
fn inherit_project(directory: &Inode, inode: &mut Inode) {
    if directory.attributes.flags & file_flag::PROJECT_INHERIT == 0 {
        return;
    }
    inode.attributes.project = directory.attributes.project;
    if inode.is_directory() {
        inode.attributes.flags |= file_flag::PROJECT_INHERIT;
    }
}

/// The default layout on a directory itself.
pub(crate) fn own_default(directory: &Inode) -> Option<&LayoutSpec> {
    match &directory.data {
        InodeData::Directory(spec) => spec.as_ref(),
        _ => None,
    }
}

/// Whether `who` may make such a node at all, and whether it is within limits.
pub(crate) fn check_kind(who: &Credentials, kind: &NodeKind) -> FsResult<()> {
    match kind {
        NodeKind::CharacterDevice(_) | NodeKind::BlockDevice(_) if !who.is_root() => Err(FsError::NotPermitted),
        NodeKind::Symlink(target) if target.is_empty() => Err(FsError::NotFound),
        NodeKind::Symlink(target) if target.len() > limits::SYMLINK_BYTES_MAX => Err(FsError::NameTooLong),
        NodeKind::Symlink(target) if target.contains(&0) => Err(FsError::Invalid),
        _ => Ok(()),
    }
}

fn device_of(kind: &NodeKind) -> u32 {
    match kind {
        NodeKind::CharacterDevice(device) | NodeKind::BlockDevice(device) => *device,
        _ => 0,
    }
}

/// Group and mode of what is made in `directory` (inode_init_owner and mode_strip_sgid of Linux): a
/// directory with the set-group-id bit gives its group on, and to directories the bit; a file keeps
/// the bit only for a member.
fn group_and_mode(directory: &Inode, new: &NewInode<'_>) -> FsResult<(u32, u32)> {
    let mode = new.mode & PERMISSIONS;
    let inherits = directory.attributes.mode & S_ISGID != 0;
    let gid = if inherits { directory.attributes.gid } else { new.who.gid };
    match new.kind {
        NodeKind::Symlink(_) => Ok((gid, 0o777)),
        NodeKind::Directory => {
            let mode = mode & (0o777 | S_ISVTX);
            Ok((gid, if inherits { mode | S_ISGID } else { mode }))
        }
        _ if inherits && mode & S_ISGID != 0 && mode & 0o010 != 0 => match permission::may_set_group_id(new.who, gid) {
            Decision::Allow => Ok((gid, mode)),
            Decision::Deny => Ok((gid, mode & !S_ISGID)),
            Decision::GroupsNeeded => Err(FsError::GroupsNeeded),
        },
        _ => Ok((gid, mode)),
    }
}
