//! Data on this MDT: does for the object of a file's first component what an OST does for its
//! objects.
//!
//! An object belongs to the component that names its slot, as long as the file's layout has it: a
//! request under a layout that was replaced, or for a file that is gone, is `Stale` and leaves
//! nothing behind. Only a client that has the file open for writing, or holds its exclusive data
//! lock, changes data; the client checks which of its users may do so, as with an OST.

use layout::{Backing, Location};
use rpc::message::{
    OstReply, OstRequest,
    mdt::{Entry, ReadFile},
    ost::{Changed, Read, SpaceChange},
};
use types::{Credentials, FsError, FsResult, ObjectId, limits::BULK_BYTES_MAX, limits::FILE_BYTES_MAX};

use super::{attributes, open};
use crate::{
    data::{NewData, StoredData},
    settlement,
    tables::{data::blocks_of, inode::Inode},
    transaction::Transaction,
};

/// Most objects in one answer.
const OBJECTS_MAX: u32 = 8192;

/// An answer, or what it is to be made of once the namespace is released.
pub(crate) enum Found {
    /// Complete.
    Reply(OstReply),
    /// Of a read.
    Data(StoredData),
}

/// Where the component of an object ends: it has no byte there or after.
fn end_of(txn: &Transaction<'_>, object: ObjectId) -> FsResult<u64> {
    let inode = txn.find_inode(object.inode)?.ok_or(FsError::Stale)?;
    let layout = inode.layout().ok_or(FsError::Stale)?;
    match layout.location(object.slot) {
        Some(Location::Mdt) if layout.object(object.inode, object.slot) == object => {
            Ok(layout.extent_of(object.slot).end)
        }
        Some(Location::Mdt | Location::Ost(_)) | None => Err(FsError::Stale),
    }
}

/// The object on this MDT that can hold the first `bytes` of a file, if its layout has one.
pub(crate) fn object_for(inode: &Inode, bytes: u64) -> Option<ObjectId> {
    let first = inode.layout()?.components.first()?;
    match first.backing {
        Backing::Mdt { slot } if bytes <= first.extent.end => Some(ObjectId::new(inode.number(), slot)),
        _ => None,
    }
}

/// Reads a whole file, if all of it is here and it is not too large: the size is known, or this MDT
/// holds its only object.
pub(crate) fn read_file(txn: &mut Transaction<'_>, who: &Credentials, request: &ReadFile) -> FsResult<WholeFile> {
    let number = match &request.name {
        None => request.inode,
        Some(name) => super::lookup::find(txn, who, request.inode, name)?.number(),
    };
    let mut inode = txn.inode(number)?;
    open::check_read(txn, who, &inode)?;
    if inode.is_directory() {
        return Err(FsError::IsDirectory);
    }
    if attributes::note_access(txn, &mut inode) {
        txn.put_inode(&inode);
    }
    let mut entry = inode.entry();
    let Some(object) = object_for(&inode, 0) else { return Ok(WholeFile { entry, stored: None }) };
    let record = txn.object(object)?.attributes();
    if inode.layout().is_some_and(|layout| layout.object_count() == 1) {
        settlement::complete(&mut entry, &record);
    }
    let size = entry.attributes.size;
    let fits = entry.size_unknown.is_none() && size <= u64::from(request.bytes_max).min(BULK_BYTES_MAX as u64);
    let stored = match object_for(&inode, size).filter(|_| fits) {
        Some(object) => Some(load(txn, object, size, 0, size)?),
        None => None,
    };
    Ok(WholeFile { entry, stored })
}

/// What [`read_file`] found.
pub(crate) struct WholeFile {
    /// The inode.
    pub entry: Entry,
    /// All its data.
    pub stored: Option<StoredData>,
}

/// Fails unless the caller's client may change an object; `Stale` if the object is not here.
pub(crate) fn check_writer(txn: &Transaction<'_>, object: ObjectId) -> FsResult<()> {
    end_of(txn, object)?;
    txn.require_writer(object.inode)
}

/// Writes verified data.
pub(crate) fn write(txn: &mut Transaction<'_>, object: ObjectId, new: &NewData) -> FsResult<Changed> {
    if new.end() > end_of(txn, object)? {
        return Err(FsError::Invalid);
    }
    if new.is_empty() {
        let attributes = txn.object(object)?.attributes();
        return Ok(Changed { before: attributes, after: attributes });
    }
    txn.write_object(object, new)
}

/// Changes the space of an object.
pub(crate) fn space(txn: &mut Transaction<'_>, object: ObjectId, change: SpaceChange) -> FsResult<Changed> {
    let end = match change {
        // It may keep the length of its file (`Layout::keeper_of_length`).
        SpaceChange::Truncate { size } if size <= FILE_BYTES_MAX => Some(0),
        SpaceChange::Truncate { .. } => return Err(FsError::FileTooLarge),
        SpaceChange::Allocate { bytes: 0, .. }
        | SpaceChange::Punch { bytes: 0, .. }
        | SpaceChange::Zero { bytes: 0, .. } => None,
        SpaceChange::Allocate { offset, bytes, .. }
        | SpaceChange::Punch { offset, bytes }
        | SpaceChange::Zero { offset, bytes, .. } => offset.checked_add(bytes),
    };
    if end.ok_or(FsError::Invalid)? > end_of(txn, object)? {
        return Err(FsError::Invalid);
    }
    txn.change_object_space(object, change)
}

/// What is asked of data; everything else is refused.
pub(crate) fn find(txn: &Transaction<'_>, request: &OstRequest) -> FsResult<Found> {
    let reply = match request {
        OstRequest::Read(request) => return read(txn, request).map(Found::Data),
        OstRequest::Seek(object, offset, data) => {
            end_of(txn, *object)?;
            OstReply::Found(txn.seek_object(*object, *offset, *data)?)
        }
        OstRequest::Glimpse(objects) => {
            let attributes = |object: &ObjectId| Ok(txn.object(*object)?.attributes());
            OstReply::Attributes(objects.iter().map(attributes).collect::<FsResult<_>>()?)
        }
        OstRequest::ListObjects(after, count) => {
            let objects = txn.list_objects(*after, (*count).min(OBJECTS_MAX) as usize)?;
            OstReply::Objects(objects.into_iter().map(|(object, record)| (object, record.attributes())).collect())
        }
        OstRequest::Verify(object) => {
            txn.verify_object(*object)?;
            OstReply::Done
        }
        OstRequest::Write(_)
        | OstRequest::Space(..)
        | OstRequest::Sync(_)
        | OstRequest::Destroy(..)
        | OstRequest::StatFs
        | OstRequest::Evict(..)
        | OstRequest::Ping
        | OstRequest::Disconnect
        | OstRequest::Fence(..)
        | OstRequest::Check(_) => return Err(txn.misdirected("reads of data on an MDT")),
    };
    Ok(Found::Reply(reply))
}

fn read(txn: &Transaction<'_>, request: &Read) -> FsResult<StoredData> {
    let Read { object, offset, bytes, layout_generation: _ } = *request;
    if bytes as usize > BULK_BYTES_MAX {
        return Err(FsError::Invalid);
    }
    end_of(txn, object)?;
    let size = txn.object(object)?.size;
    load(txn, object, size, offset, size.saturating_sub(offset).min(u64::from(bytes)))
}

fn load(txn: &Transaction<'_>, object: ObjectId, size: u64, offset: u64, bytes: u64) -> FsResult<StoredData> {
    let mut blocks = Vec::new();
    if bytes > 0 {
        txn.visit_blocks(object, blocks_of(offset, bytes), |block, value| {
            blocks.push((block, value.to_vec()));
            Ok(true)
        })?;
    }
    Ok(StoredData { object, size, offset, bytes, blocks })
}
