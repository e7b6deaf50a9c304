//! The table of requests to a metadata target.

use types::limits::SMALL_FILE_BYTES_MAX;

use super::row::{Effect, Permission as P, ReplySize, RequestRow};
use crate::message::{
    MdtRequest,
    mdt::{LockMode, open_flag},
};

/// Kinds of [`MdtRequest`], in the order of its variants: the place is the number on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[expect(missing_docs, reason = "each is the variant of [`MdtRequest`] of that name")]
pub enum MdtKind {
    Lookup,
    GetAttributes,
    SetAttributes,
    Access,
    Create,
    CreateUnnamed,
    Open,
    Close,
    ReportSize,
    ExclusiveBegin,
    ExclusiveEnd,
    ClearPrivileges,
    Unlink,
    Rename,
    Link,
    ReadLink,
    ReadDirectory,
    GetXattr,
    ListXattr,
    SetXattr,
    RemoveXattr,
    GetLayout,
    SetDefaultLayout,
    InodePaths,
    SetLock,
    CancelLock,
    GetLock,
    StatFs,
    Commit,
    Reclaim,
    Ping,
    Check,
    ScanInodes,
    RepairSize,
    Disconnect,
    Instantiate,
    ChangeData,
    ReadData,
    Compound,
    ChangeLayout,
    ReportFull,
    PlaceElsewhere,
    DataVersion,
    SwapLayouts,
    RenewLayout,
    LeaveOut,
    DropPrivileges,
    CancelLocks,
    RegisterOpens,
    ClaimLocks,
    LeaveFullOst,
    NoteAccesses,
}

impl MdtKind {
    /// All of them, in order.
    pub const ALL: [MdtKind; 52] = [
        MdtKind::Lookup,
        MdtKind::GetAttributes,
        MdtKind::SetAttributes,
        MdtKind::Access,
        MdtKind::Create,
        MdtKind::CreateUnnamed,
        MdtKind::Open,
        MdtKind::Close,
        MdtKind::ReportSize,
        MdtKind::ExclusiveBegin,
        MdtKind::ExclusiveEnd,
        MdtKind::ClearPrivileges,
        MdtKind::Unlink,
        MdtKind::Rename,
        MdtKind::Link,
        MdtKind::ReadLink,
        MdtKind::ReadDirectory,
        MdtKind::GetXattr,
        MdtKind::ListXattr,
        MdtKind::SetXattr,
        MdtKind::RemoveXattr,
        MdtKind::GetLayout,
        MdtKind::SetDefaultLayout,
        MdtKind::InodePaths,
        MdtKind::SetLock,
        MdtKind::CancelLock,
        MdtKind::GetLock,
        MdtKind::StatFs,
        MdtKind::Commit,
        MdtKind::Reclaim,
        MdtKind::Ping,
        MdtKind::Check,
        MdtKind::ScanInodes,
        MdtKind::RepairSize,
        MdtKind::Disconnect,
        MdtKind::Instantiate,
        MdtKind::ChangeData,
        MdtKind::ReadData,
        MdtKind::Compound,
        MdtKind::ChangeLayout,
        MdtKind::ReportFull,
        MdtKind::PlaceElsewhere,
        MdtKind::DataVersion,
        MdtKind::SwapLayouts,
        MdtKind::RenewLayout,
        MdtKind::LeaveOut,
        MdtKind::DropPrivileges,
        MdtKind::CancelLocks,
        MdtKind::RegisterOpens,
        MdtKind::ClaimLocks,
        MdtKind::LeaveFullOst,
        MdtKind::NoteAccesses,
    ];

    /// What is known of all requests of this kind.
    pub const fn row(self) -> RequestRow<'static> {
        use MdtKind as K;
        let (name, effect, reply, permission) = match self {
            K::Lookup => ("mdt_lookup", Effect::Nothing, ReplySize::Small, P::Everybody),
            K::GetAttributes => ("mdt_getattr", Effect::Nothing, ReplySize::Small, P::Everybody),
            K::SetAttributes => ("mdt_setattr", Effect::Namespace, ReplySize::Small, P::Everybody),
            K::Access => ("mdt_access", Effect::Nothing, ReplySize::Small, P::Everybody),
            K::Create => ("mdt_create", Effect::Namespace, ReplySize::Small, P::Everybody),
            K::CreateUnnamed => ("mdt_create_unnamed", Effect::Namespace, ReplySize::Small, P::Everybody),
            K::Open => ("mdt_open", Effect::State, ReplySize::Small, P::Everybody),
            K::Close => ("mdt_close", Effect::State, ReplySize::Small, P::Everybody),
            K::ReportSize => ("mdt_report_size", Effect::State, ReplySize::Small, P::Everybody),
            K::ExclusiveBegin => ("mdt_exclusive_begin", Effect::State, ReplySize::Small, P::Everybody),
            K::ExclusiveEnd => ("mdt_exclusive_end", Effect::State, ReplySize::Small, P::Everybody),
            K::ClearPrivileges => ("mdt_clear_privileges", Effect::Namespace, ReplySize::Small, P::Everybody),
            K::Unlink => ("mdt_unlink", Effect::Namespace, ReplySize::Small, P::Everybody),
            K::Rename => ("mdt_rename", Effect::Namespace, ReplySize::Small, P::Everybody),
            K::Link => ("mdt_link", Effect::Namespace, ReplySize::Small, P::Everybody),
            K::ReadLink => ("mdt_readlink", Effect::Nothing, ReplySize::Small, P::Everybody),
            K::ReadDirectory => ("mdt_readdir", Effect::Nothing, ReplySize::Body, P::Everybody),
            K::GetXattr => ("mdt_getxattr", Effect::Nothing, ReplySize::Xattr, P::Everybody),
            K::ListXattr => ("mdt_listxattr", Effect::Nothing, ReplySize::Xattr, P::Everybody),
            K::SetXattr => ("mdt_setxattr", Effect::Namespace, ReplySize::Small, P::Everybody),
            K::RemoveXattr => ("mdt_removexattr", Effect::Namespace, ReplySize::Small, P::Everybody),
            K::GetLayout => ("mdt_get_layout", Effect::Nothing, ReplySize::Small, P::Everybody),
            K::SetDefaultLayout => ("mdt_set_default_layout", Effect::Namespace, ReplySize::Small, P::Everybody),
            K::InodePaths => ("mdt_inode_paths", Effect::Nothing, ReplySize::Body, P::Everybody),
            K::SetLock => ("mdt_set_lock", Effect::State, ReplySize::Small, P::Everybody),
            K::CancelLock => ("mdt_cancel_lock", Effect::State, ReplySize::Small, P::Everybody),
            K::GetLock => ("mdt_get_lock", Effect::Nothing, ReplySize::Small, P::Everybody),
            K::StatFs => ("mdt_statfs", Effect::Nothing, ReplySize::Small, P::Everybody),
            K::Commit => ("mdt_commit", Effect::Nothing, ReplySize::Small, P::Everybody),
            K::Reclaim => ("mdt_reclaim", Effect::State, ReplySize::Small, P::Everybody),
            K::Ping => ("mdt_ping", Effect::Nothing, ReplySize::Small, P::Everybody),
            K::Check => ("mdt_check", Effect::State, ReplySize::Body, P::Tools),
            K::ScanInodes => ("mdt_scan_inodes", Effect::Nothing, ReplySize::Body, P::Tools),
            K::RepairSize => ("mdt_repair_size", Effect::State, ReplySize::Small, P::Repair),
            K::Disconnect => ("mdt_disconnect", Effect::State, ReplySize::Small, P::Everybody),
            K::Instantiate => ("mdt_instantiate", Effect::State, ReplySize::Small, P::Everybody),
            K::ChangeData => ("mdt_change_data", Effect::Data, ReplySize::Small, P::Everybody),
            K::ReadData => ("mdt_read_data", Effect::Nothing, ReplySize::DATA_MAX, P::Everybody),
            K::Compound => ("mdt_compound", Effect::Namespace, ReplySize::COMPOUND_MAX, P::Everybody),
            K::ChangeLayout => ("mdt_change_layout", Effect::State, ReplySize::Small, P::Everybody),
            K::ReportFull => ("mdt_report_full", Effect::Nothing, ReplySize::Small, P::Everybody),
            K::PlaceElsewhere => ("mdt_place_elsewhere", Effect::State, ReplySize::Small, P::Everybody),
            K::DataVersion => ("mdt_data_version", Effect::State, ReplySize::Small, P::Everybody),
            K::SwapLayouts => ("mdt_swap_layouts", Effect::State, ReplySize::Small, P::Everybody),
            K::RenewLayout => ("mdt_renew_layout", Effect::State, ReplySize::Small, P::Everybody),
            K::LeaveOut => ("mdt_leave_out", Effect::State, ReplySize::Small, P::Everybody),
            K::DropPrivileges => ("mdt_drop_privileges", Effect::Namespace, ReplySize::Small, P::Everybody),
            K::CancelLocks => ("mdt_cancel_locks", Effect::Nothing, ReplySize::Small, P::Everybody),
            K::RegisterOpens => ("mdt_register_opens", Effect::State, ReplySize::Small, P::Everybody),
            K::ClaimLocks => ("mdt_claim_locks", Effect::State, ReplySize::Small, P::Everybody),
            K::LeaveFullOst => ("mdt_leave_full_ost", Effect::State, ReplySize::Small, P::Everybody),
            // Repeated late it could come after an access time that was set.
            K::NoteAccesses => ("mdt_note_accesses", Effect::State, ReplySize::Small, P::Everybody),
        };
        RequestRow::new(self as u8, name, effect, reply, permission)
    }
}

impl MdtRequest {
    /// Its kind's row, with what its contents add.
    pub fn row(&self) -> RequestRow<'_> {
        use MdtKind as K;
        use MdtRequest as R;
        match self {
            R::Lookup(..) => K::Lookup.row(),
            R::GetAttributes(..) => K::GetAttributes.row(),
            R::SetAttributes(..) => K::SetAttributes.row(),
            R::Access(..) => K::Access.row(),
            R::Create(..) => K::Create.row(),
            R::CreateUnnamed(..) => K::CreateUnnamed.row(),
            // It may bring the data of a small file.
            R::Open(_, open) if !open.flags.has(open_flag::WRITE) => {
                K::Open.row().answered_by(ReplySize::Data(SMALL_FILE_BYTES_MAX))
            }
            R::Open(..) => K::Open.row(),
            R::Close(..) => K::Close.row(),
            R::ReportSize(..) => K::ReportSize.row(),
            R::ExclusiveBegin(..) => K::ExclusiveBegin.row(),
            R::ExclusiveEnd(..) => K::ExclusiveEnd.row().urgent_if(true),
            R::ClearPrivileges(..) => K::ClearPrivileges.row(),
            R::Unlink(..) => K::Unlink.row(),
            R::Rename(..) => K::Rename.row(),
            R::Link(..) => K::Link.row(),
            R::ReadLink(..) => K::ReadLink.row(),
            R::ReadDirectory(..) => K::ReadDirectory.row(),
            R::GetXattr(..) => K::GetXattr.row(),
            R::ListXattr(..) => K::ListXattr.row(),
            R::SetXattr(..) => K::SetXattr.row(),
            R::RemoveXattr(..) => K::RemoveXattr.row(),
            R::GetLayout(..) => K::GetLayout.row(),
            R::SetDefaultLayout(..) => K::SetDefaultLayout.row(),
            R::InodePaths(..) => K::InodePaths.row(),
            R::SetLock(set) => K::SetLock.row().urgent_if(set.mode == LockMode::Unlock),
            R::CancelLock(..) => K::CancelLock.row().urgent_if(true),
            R::GetLock(..) => K::GetLock.row(),
            R::StatFs => K::StatFs.row(),
            R::Commit => K::Commit.row(),
            R::Reclaim(..) => K::Reclaim.row(),
            R::Ping => K::Ping.row(),
            R::Check(_, true) => K::Check.row().only(P::Repair),
            R::Check(_, false) => K::Check.row(),
            R::ScanInodes(..) => K::ScanInodes.row(),
            R::RepairSize(..) => K::RepairSize.row(),
            R::Disconnect => K::Disconnect.row(),
            R::Instantiate(..) => K::Instantiate.row(),
            R::ChangeData(change) => {
                let change = change.row();
                K::ChangeData.row().of_data(change.data).durable_if(change.durable).only(change.permission)
            }
            R::ReadData(question) => {
                let question = question.row();
                let row = K::ReadData.row().of_data(question.data.unchanging());
                row.answered_by(question.reply).only(question.permission)
            }
            R::Compound(compound) => {
                let reply = ReplySize::Compound(u32::try_from(compound.bytes_read()).unwrap_or(u32::MAX));
                K::Compound.row().changing(compound.effect()).answered_by(reply)
            }
            R::ChangeLayout(..) => K::ChangeLayout.row(),
            R::ReportFull(..) => K::ReportFull.row(),
            R::DataVersion(..) => K::DataVersion.row(),
            R::SwapLayouts(..) => K::SwapLayouts.row(),
            R::DropPrivileges(..) => K::DropPrivileges.row(),
            R::CancelLocks(..) => K::CancelLocks.row().urgent_if(true),
            R::RegisterOpens(..) => K::RegisterOpens.row().urgent_if(true),
            R::ClaimLocks(..) => K::ClaimLocks.row(),
            R::LeaveFullOst(..) => K::LeaveFullOst.row(),
            R::NoteAccesses(..) => K::NoteAccesses.row().urgent_if(true),
            R::PlaceElsewhere(removed) | R::RenewLayout(removed) | R::LeaveOut(removed) => removed.never(),
        }
    }
}
