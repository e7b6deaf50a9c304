//! Data on this MDT: does for the object of a file's first component what an OST does for its
//! objects.
//!
//! An object belongs to the component that names its slot, as long as the file's layout has it: a
//! request under a layout that was replaced, or for a file that is gone, is `Stale` and leaves
//! nothing behind. Only a client that has the file open for writing, or holds its exclusive data
//! lock, changes data; the client checks which of its users may do so, as with an OST.

use layout::{Backing, Location};
use rpc::message::{
    MdtRequest, OstReply, OstRequest,
    lock::{Enqueue, InodeBits, Resource, inode_bit},
    mdt::open_flag,
    ost::{Changed, Read, SpaceChange},
};
use types::{
    FsError, FsResult, InodeNumber, ObjectId,
    limits::{BULK_BYTES_MAX, FILE_BYTES_MAX, SMALL_FILE_BYTES_MAX},
};

use crate::{
    data::{NewData, StoredData},
    grants,
    tables::data::blocks_of,
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

/// The object on this MDT that has, or will have, the first `bytes` of a file; `NotSupported` if
/// its layout puts them elsewhere.
fn object_of(txn: &Transaction<'_>, inode: InodeNumber, bytes: u64) -> FsResult<ObjectId> {
    let inode = txn.inode(inode)?;
    let first = inode.layout().and_then(|layout| layout.components.first());
    match first.map(|first| (&first.backing, first.extent.end)) {
        Some((Backing::Mdt { slot }, end)) if bytes <= end => Ok(ObjectId::new(inode.number(), *slot)),
        Some(_) | None => Err(FsError::NotSupported),
    }
}

/// All bytes of a file's object on this MDT, to be cached; `None` if there is no such object, or it
/// is not small.
pub(crate) fn small_file(txn: &Transaction<'_>, inode: InodeNumber) -> FsResult<Option<StoredData>> {
    let Some(inode) = txn.find_inode(inode)? else { return Ok(None) };
    let first = inode.layout().and_then(|layout| layout.components.first());
    let Some(Backing::Mdt { slot }) = first.map(|first| &first.backing) else { return Ok(None) };
    let object = ObjectId::new(inode.number(), *slot);
    let size = txn.object(object)?.size;
    if size > u64::from(SMALL_FILE_BYTES_MAX) { Ok(None) } else { load(txn, object, size, 0, size).map(Some) }
}

/// The data that go beside the reply to an open for reading, if its client wants to cache them.
/// Before the open itself: what it needs is loaded only before it changes anything.
pub(crate) fn beside_open(
    txn: &Transaction<'_>,
    request: &MdtRequest,
    wanted: Option<Enqueue>,
) -> FsResult<Option<StoredData>> {
    let is_wanted = |inode| {
        matches!(wanted, Some(Enqueue { resource: Resource::Inode(of, InodeBits(bits)), .. })
            if of == inode && bits & inode_bit::DATA != 0)
    };
    match request {
        MdtRequest::Open(_, open)
            if !open.flags.has(open_flag::WRITE)
                && !open.flags.has(open_flag::TRUNCATE)
                && is_wanted(open.inode)
                && grants::is_still(&txn.volatile, txn.context.client, open.inode) =>
        {
            small_file(txn, open.inode)
        }
        _ => Ok(None),
    }
}

/// Writes verified data to a file, all of them on this MDT.
pub(crate) fn write_file(txn: &mut Transaction<'_>, inode: InodeNumber, new: &NewData) -> FsResult<Changed> {
    let object = object_of(txn, inode, new.end())?;
    check_writer(txn, object)?;
    write(txn, object, new)
}

/// Reads a file as far as it is on this MDT.
pub(crate) fn read_file(txn: &Transaction<'_>, inode: InodeNumber, offset: u64, bytes: u32) -> FsResult<StoredData> {
    let object = object_of(txn, inode, 0)?;
    read(txn, &Read { object, offset, bytes, layout_generation: 0 })
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
        | OstRequest::Check(_)
        | OstRequest::Extents(_) => return Err(txn.misdirected("reads of data on an MDT")),
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
