//! Executes the requests of the control channel (`rpc::message::control`), which `lfs` sends to a
//! mount.

use layout::Location;
use rpc::message::{
    MdtRequest,
    control::{ControlReply, ControlRequest, Subject},
    mdt::{LayoutInfo, OpenId},
    mdt_peer::MakeDirectory,
    ost::FoundExtents,
};
use types::{Attributes, Credentials, FileKind, FsError, FsResult, InodeNumber, NodeKind};

use crate::{
    FileSystem, NewNode,
    name_places::NamePlaces,
    objects::object::Object,
    targets::connection::{done, stale_if_evicted},
};

/// Executes a request for the caller of the ioctl on `inode`. A reply `Error(GroupsNeeded)` means
/// what it means everywhere: ask again with the caller's supplementary groups. `open` is the open
/// file the ioctl came through, where known.
pub async fn execute(
    file_system: &FileSystem,
    credentials: &Credentials,
    (inode, open): (InodeNumber, Option<OpenId>),
    request: ControlRequest,
) -> ControlReply {
    file_system.control(credentials, (inode, open), request).await.unwrap_or_else(ControlReply::Error)
}

impl FileSystem {
    async fn control(
        &self,
        credentials: &Credentials,
        (inode, open): (InodeNumber, Option<OpenId>),
        request: ControlRequest,
    ) -> FsResult<ControlReply> {
        match request {
            ControlRequest::CreateWithLayout { name, mode, spec } => {
                let kind = NodeKind::Regular;
                let node = NewNode { parent: inode, name, kind, mode, umask: 0, layout: Some(spec) };
                Ok(ControlReply::Created(self.create(credentials, node).await?.inode))
            }
            ControlRequest::SetDefaultLayout(spec) => {
                let request = MdtRequest::SetDefaultLayout(credentials.clone(), inode, spec);
                self.call(inode, request).await.and_then(done)?;
                Ok(ControlReply::Done)
            }
            ControlRequest::SetDirectoryDefault(default) => {
                if default.is_some_and(|default| default.is_overstriped()) {
                    self.can_overstripe([inode.mdt()])?;
                }
                let request = MdtRequest::SetDirectoryDefault(credentials.clone(), inode, default);
                // It may have to be asked again with one MDT, too.
                let asked = self.call_placed(inode, request.into(), &mut NamePlaces::default()).await;
                asked.map_err(stale_if_evicted).and_then(done)?;
                Ok(ControlReply::Done)
            }
            ControlRequest::GetLayout(subject) => {
                let attributes = self.subject(credentials, inode, subject).await?;
                let info = self.layout_info(attributes.inode).await?;
                let LayoutInfo { layout, own_default, effective_default, map, directory_default } = info;
                let directory = attributes.kind == FileKind::Directory;
                let inode = attributes.inode;
                Ok(ControlReply::Layout {
                    inode,
                    directory,
                    layout,
                    own_default: own_default.map(|default| *default),
                    effective_default: effective_default.map(|default| *default),
                    map: map.map(Box::new),
                    directory_default,
                })
            }
            ControlRequest::ChangeLayout(subject, change) => {
                let attributes = self.subject(credentials, inode, subject).await?;
                self.change_layout(credentials, attributes.inode, change).await?;
                Ok(ControlReply::Done)
            }
            ControlRequest::GetInode(subject) => {
                Ok(ControlReply::Inode(self.subject(credentials, inode, subject).await?.inode))
            }
            ControlRequest::InodePaths(inode) => Ok(ControlReply::Paths(self.paths(credentials, inode).await?)),
            ControlRequest::Pools => Ok(ControlReply::Pools(self.targets.pools())),
            ControlRequest::Targets => Ok(ControlReply::Targets(self.target_statuses().await)),
            ControlRequest::DataVersion { subject, hold_writers } => {
                let holder = match (hold_writers, &subject) {
                    (false, _) => None,
                    (true, Subject::This) => Some(open.ok_or(FsError::BadHandle)?),
                    (true, Subject::Name(_)) => return Err(FsError::Invalid),
                };
                let inode = self.subject(credentials, inode, subject).await?.inode;
                let version = self.data_version(credentials, inode, holder).await?;
                Ok(ControlReply::Version(version))
            }
            ControlRequest::BeginLayout { spec, like } => {
                self.begin_layout(credentials, inode, spec, like).await?;
                Ok(ControlReply::Done)
            }
            ControlRequest::SwapLayouts { second: (_, None), .. } => Err(FsError::Invalid),
            ControlRequest::SwapLayouts { first: (subject, version), second } => {
                let opened = subject == Subject::This;
                let first = self.subject(credentials, inode, subject).await?.inode;
                self.swap_layouts(credentials, (first, version, opened), second).await?;
                Ok(ControlReply::Done)
            }
            ControlRequest::TakeLayout { of, version } => {
                self.swap_layouts(credentials, (of, version, true), (inode, None)).await?;
                Ok(ControlReply::Done)
            }
            ControlRequest::SplitDirectory(stripes) => {
                self.split_directory(credentials, inode, stripes).await?;
                Ok(ControlReply::Done)
            }
            ControlRequest::MoveInode(subject, mdt) => {
                let moved = self.subject(credentials, inode, subject).await?.inode;
                self.move_inode(credentials, moved, mdt).await?;
                Ok(ControlReply::Done)
            }
            ControlRequest::MakeDirectory { name, mode, umask, mdt, stripes } => {
                let Some(mdt) = mdt.or(stripes.mdts.first().copied()) else {
                    let node = NewNode { parent: inode, name, kind: NodeKind::Directory, mode, umask, layout: None };
                    return Ok(ControlReply::Created(self.create(credentials, node).await?.inode));
                };
                let make = MakeDirectory { parent: inode, name, mode, umask, mdt, stripes };
                Ok(ControlReply::Created(self.make_directory(credentials, make).await?))
            }
            ControlRequest::Extents { slot, offset } => {
                Ok(ControlReply::Extents(self.extents(inode, slot, offset).await?))
            }
            ControlRequest::SyncAll => {
                self.sync_all().await?;
                Ok(ControlReply::Done)
            }
            ControlRequest::Name => Ok(ControlReply::Name(self.fsname().to_owned(), self.name())),
        }
    }

    /// Where data of an object of a file are. `NotFound`: the file's layout has no such object;
    /// `NotSupported`: it is on an MDT, in whose tables data have no places.
    async fn extents(&self, inode: InodeNumber, slot: u32, offset: u64) -> FsResult<FoundExtents> {
        let layout = self.layout_info(inode).await?.layout.ok_or(FsError::Invalid)?;
        let location = layout.location(slot).ok_or(FsError::NotFound)?;
        if location == Location::Mdt {
            return Err(FsError::NotSupported);
        }
        self.object_extents(Object::new(inode, &layout, (slot, location), None), offset).await
    }

    /// The inode a request is about.
    async fn subject(&self, credentials: &Credentials, inode: InodeNumber, subject: Subject) -> FsResult<Attributes> {
        match subject {
            Subject::This => self.get_attributes(inode, None).await,
            Subject::Name(name) if name.is_empty() || name.contains(&b'/') => Err(FsError::Invalid),
            Subject::Name(name) => self.lookup(credentials, inode, &name).await,
        }
    }
}
