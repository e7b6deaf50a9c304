//! The operations of an MDT, one file each. An operation is a function of a transaction, the caller
//! and the request; it changes tables only through the transaction, so that an error leaves nothing
//! behind. Order of checks and errors: those of Linux (fs/namei.c, fs/attr.c, fs/xattr.c) on a
//! local file system.

pub(crate) mod attributes;
pub(crate) mod check;
mod claim_locks;
pub(crate) mod close;
pub(crate) mod compound;
mod copies;
pub(crate) mod create;
pub(crate) mod data;
mod distant_rename;
pub(crate) mod exclusive;
mod given_inodes;
pub(crate) mod layout_changes;
pub(crate) mod layout_xattrs;
pub(crate) mod layouts;
mod leave_full_ost;
pub(crate) mod link;
pub(crate) mod locks;
pub(crate) mod lookup;
pub(crate) mod lost_and_found;
pub(crate) mod merge;
mod move_inode;
mod name_repairs;
mod note_accesses;
pub(crate) mod open;
pub(crate) mod paths;
pub(crate) mod peers;
pub(crate) mod readdir;
mod register_opens;
mod remote_names;
pub(crate) mod rename;
pub(crate) mod root_only;
pub(crate) mod row;
pub(crate) mod scan;
pub(crate) mod sessions;
pub(crate) mod setattr;
mod shard_repairs;
pub(crate) mod split;
pub(crate) mod swap;
pub(crate) mod unlink;
pub(crate) mod xattrs;

use rpc::message::{MdtReply, MdtRequest};
use types::{FsError, FsResult, InodeNumber, SetAttributes};

use crate::transaction::Transaction;

/// Runs one request whose row says [`row::Answering::Operation`].
pub(crate) fn run(txn: &mut Transaction<'_>, request: &MdtRequest) -> FsResult<MdtReply> {
    let outcome = execute(txn, request);
    match txn.take_striped() {
        // MDTs know where names are.
        Some(map) if outcome.is_err() && !matches!(request, MdtRequest::Prepare(_)) && !txn.changes_tables() => {
            Ok(MdtReply::Striped(map))
        }
        _ => outcome,
    }
}

fn execute(txn: &mut Transaction<'_>, request: &MdtRequest) -> FsResult<MdtReply> {
    match request {
        MdtRequest::Lookup(who, lookup) => or_absent(lookup::run(txn, who, lookup), &FsError::NotFound),
        MdtRequest::GetAttributes(inode) => attributes::get(txn, *inode),
        MdtRequest::SetAttributes(who, inode, changes) => {
            let reply = setattr::run(txn, who, copies::changeable(*inode)?, changes)?;
            if *changes != SetAttributes::default() {
                copies::to_shards(txn, *inode, copies::Times::set_by(changes))?;
            }
            Ok(reply)
        }
        MdtRequest::Access(who, inode, mask) => attributes::access(txn, who, *inode, *mask),
        MdtRequest::Create(who, create) => create::run(txn, who, create),
        MdtRequest::CreateUnnamed(who, create) => create::unnamed(txn, who, create),
        MdtRequest::Open(who, open) => open::run(txn, who, open),
        MdtRequest::Close(close) => close::run(txn, close),
        MdtRequest::ReportSize(report) => close::report_size(txn, report),
        MdtRequest::ExclusiveBegin(who, begin) => exclusive::begin(txn, who, begin),
        MdtRequest::ExclusiveEnd(end) => exclusive::end(txn, end),
        MdtRequest::DropPrivileges(who, inode) => setattr::drop_privileges(txn, who, *inode),
        MdtRequest::ClearPrivileges(inode) => setattr::clear_privileges(txn, *inode),
        MdtRequest::Unlink(who, unlink) => unlink::run(txn, who, unlink),
        MdtRequest::Rename(who, rename) => rename::run(txn, who, rename),
        MdtRequest::Link(who, link) => link::run(txn, who, link),
        MdtRequest::ReadLink(inode) => attributes::read_link(txn, *inode),
        MdtRequest::ReadDirectory(read) => readdir::run(txn, read),
        MdtRequest::GetXattr(who, inode, name) if xattrs::is_public(name) => {
            or_absent(xattrs::get(txn, who, *inode, name), &FsError::NoData)
        }
        MdtRequest::GetXattr(who, inode, name) => xattrs::get(txn, who, *inode, name),
        MdtRequest::ListXattr(who, inode) => xattrs::list(txn, who, *inode),
        MdtRequest::SetXattr(who, set) => {
            copies::changeable(set.inode)?;
            let reply = xattrs::set(txn, who, set)?;
            copies::attribute_to_shards(txn, set.inode, &set.name)?;
            Ok(reply)
        }
        MdtRequest::RemoveXattr(who, inode, name) => {
            copies::changeable(*inode)?;
            let reply = xattrs::remove(txn, who, *inode, name)?;
            copies::attribute_to_shards(txn, *inode, name)?;
            Ok(reply)
        }
        MdtRequest::GetLayout(inode) => layouts::get(txn, *inode),
        MdtRequest::SetDefaultLayout(who, inode, spec) => {
            copies::changeable(*inode)?;
            with_copies(txn, *inode, |txn| layouts::set_default(txn, who, *inode, spec.as_ref()))
        }
        MdtRequest::SetDirectoryDefault(who, inode, default) => {
            copies::changeable(*inode)?;
            layouts::require_default_setter(txn, who, *inode)?;
            with_copies(txn, *inode, |txn| layouts::set_directory_default(txn, *inode, *default))
        }
        MdtRequest::SplitDirectory(who, request) => split::run(txn, who, request),
        MdtRequest::MoveInode(who, inode) => move_inode::run(txn, who, *inode),
        MdtRequest::RepairName(who, repair) => name_repairs::run(txn, who, repair),
        MdtRequest::Instantiate(request) => layouts::instantiate(txn, request),
        MdtRequest::ChangeLayout(who, inode, change) => layout_changes::run(txn, who, *inode, change),
        MdtRequest::InodePaths(who, inode) => paths::run(txn, who, *inode),
        MdtRequest::SetLock(set) => locks::set(txn, set),
        MdtRequest::CancelLock(cancel) => locks::cancel(txn, cancel),
        MdtRequest::GetLock(get) => locks::get(txn, get),
        MdtRequest::Reclaim(reclaim) => sessions::reclaim(txn, reclaim),
        MdtRequest::DataVersion(who, request) => swap::version(txn, who, request),
        MdtRequest::SwapLayouts(who, request) => swap::run(txn, who, request),
        MdtRequest::LeaveFullOst(request) => leave_full_ost::run(txn, request),
        MdtRequest::RegisterOpens(register) => register_opens::run(txn, register),
        MdtRequest::NoteAccesses(accesses) => note_accesses::run(txn, accesses),
        MdtRequest::ClaimLocks(claim) => claim_locks::run(txn, claim),
        MdtRequest::Ping => Ok(MdtReply::Done),
        MdtRequest::ScanInodes(who, after, count) => scan::run(txn, who, *after, *count),
        MdtRequest::RepairSize(who, inode, update) => scan::repair_size(txn, who, *inode, update),
        MdtRequest::RemoteNames(who, after) => remote_names::run(txn, who, after),
        MdtRequest::MakeDirectory(who, make) => create::make_directory(txn, who, make),
        MdtRequest::Prepare(prepare) => peers::prepare(txn, prepare),
        MdtRequest::Abort(operation) => peers::abort(txn, *operation),
        MdtRequest::Decisions(decisions) => peers::apply(txn, decisions),
        MdtRequest::Join(join) => peers::join(txn, join),
        MdtRequest::Above(above) => peers::above(txn, above),
        MdtRequest::PlaceElsewhere(removed) | MdtRequest::RenewLayout(removed) | MdtRequest::LeaveOut(removed) => {
            removed.never()
        }
        MdtRequest::StatFs
        | MdtRequest::CancelLocks(_)
        | MdtRequest::Commit
        | MdtRequest::Check(..)
        | MdtRequest::Disconnect
        | MdtRequest::ReportFull(_)
        | MdtRequest::ChangeData(_)
        | MdtRequest::ReadData(_)
        | MdtRequest::Compound(_) => {
            unreachable!("answered by the handler, outside of a transaction")
        }
    }
}

/// What an operation changes of a striped directory, its shards take over.
fn with_copies(
    txn: &mut Transaction<'_>,
    inode: InodeNumber,
    operate: impl FnOnce(&mut Transaction<'_>) -> FsResult<MdtReply>,
) -> FsResult<MdtReply> {
    let reply = operate(txn)?;
    copies::to_shards(txn, inode, copies::Times::default())?;
    Ok(reply)
}

/// With `absence`, the error for what does not exist, as a reply: locks come with replies only.
fn or_absent(outcome: FsResult<MdtReply>, absence: &FsError) -> FsResult<MdtReply> {
    outcome.or_else(|error| if error == *absence { Ok(MdtReply::Absent) } else { Err(error) })
}
