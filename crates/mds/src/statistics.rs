//! Counts of operations, under the names of Lustre's `mdt.*.md_stats` where it has one.

use std::sync::atomic::{AtomicU64, Ordering};

use rpc::message::{MdtRequest, OstRequest};
use types::NodeKind;

/// Names, in the order of the counters.
const NAMES: [&str; 31] = [
    "open",
    "close",
    "create",
    "mknod",
    "mkdir",
    "symlink",
    "link",
    "unlink",
    "rmdir",
    "rename",
    "lookup",
    "getattr",
    "setattr",
    "access",
    "readlink",
    "readdir",
    "getxattr",
    "setxattr",
    "settle",
    "exclusive",
    "layout",
    "path",
    "lock",
    "statfs",
    "sync",
    "session",
    "check",
    "ping",
    "read",
    "write",
    "punch",
];

/// Counts since the MDT was opened.
#[derive(Debug, Default)]
pub struct Statistics {
    counts: [AtomicU64; NAMES.len()],
}

impl Statistics {
    /// Counts one request.
    pub(crate) fn count(&self, request: &MdtRequest) {
        let name = name_of(request);
        let position = NAMES.iter().position(|known| *known == name).expect("every request has a counter");
        self.counts[position].fetch_add(1, Ordering::Relaxed);
    }

    /// Names and counts.
    pub fn read(&self) -> Vec<(&'static str, u64)> {
        NAMES.iter().zip(&self.counts).map(|(name, count)| (*name, count.load(Ordering::Relaxed))).collect()
    }

    /// Sets all counts to zero.
    pub fn clear(&self) {
        self.counts.iter().for_each(|count| count.store(0, Ordering::Relaxed));
    }
}

fn name_of(request: &MdtRequest) -> &'static str {
    match request {
        MdtRequest::Lookup(..) => "lookup",
        MdtRequest::GetAttributes(_) => "getattr",
        MdtRequest::SetAttributes(..) | MdtRequest::ClearPrivileges(_) => "setattr",
        MdtRequest::Access(..) => "access",
        MdtRequest::Create(_, create) => match create.kind {
            _ if create.open.is_some() => "create",
            NodeKind::Directory => "mkdir",
            NodeKind::Symlink(_) => "symlink",
            _ => "mknod",
        },
        MdtRequest::CreateUnnamed(..) => "create",
        MdtRequest::Open(..) => "open",
        MdtRequest::Close(_) => "close",
        MdtRequest::Settle(_) | MdtRequest::RepairSize(..) => "settle",
        MdtRequest::ExclusiveBegin(..) | MdtRequest::ExclusiveEnd(_) => "exclusive",
        MdtRequest::Unlink(_, unlink) if unlink.directory => "rmdir",
        MdtRequest::Unlink(..) => "unlink",
        MdtRequest::Rename(..) => "rename",
        MdtRequest::Link(..) => "link",
        MdtRequest::ReadLink(_) => "readlink",
        MdtRequest::ReadDirectory(_) => "readdir",
        MdtRequest::GetXattr(..) | MdtRequest::ListXattr(..) => "getxattr",
        MdtRequest::SetXattr(..) | MdtRequest::RemoveXattr(..) => "setxattr",
        MdtRequest::GetLayout(_)
        | MdtRequest::SetDefaultLayout(..)
        | MdtRequest::Instantiate(_)
        | MdtRequest::ChangeLayout(..)
        | MdtRequest::PlaceElsewhere(_)
        | MdtRequest::DataVersion(..)
        | MdtRequest::SwapLayouts(..)
        | MdtRequest::RenewLayout(_)
        | MdtRequest::LeaveOut(_) => "layout",
        MdtRequest::InodePaths(..) => "path",
        MdtRequest::SetLock(_) | MdtRequest::CancelLock(_) | MdtRequest::GetLock(_) => "lock",
        MdtRequest::StatFs | MdtRequest::ReportFull(_) => "statfs",
        MdtRequest::Commit => "sync",
        MdtRequest::Reclaim(_) | MdtRequest::Disconnect => "session",
        MdtRequest::Ping => "ping",
        MdtRequest::CreateWithData(..) => "create",
        MdtRequest::ReadData(_) | MdtRequest::ReadFile(..) => "read",
        MdtRequest::ChangeData(OstRequest::Write(_)) => "write",
        MdtRequest::ChangeData(_) => "punch",
        MdtRequest::Check(..) | MdtRequest::ScanInodes(..) => "check",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_by_name() {
        let statistics = Statistics::default();
        statistics.count(&MdtRequest::Ping);
        statistics.count(&MdtRequest::Ping);
        let counted: Vec<_> = statistics.read().into_iter().filter(|(_, count)| *count > 0).collect();
        assert_eq!(counted, [("ping", 2)]);
        statistics.clear();
        assert!(statistics.read().iter().all(|(_, count)| *count == 0));
    }
}
