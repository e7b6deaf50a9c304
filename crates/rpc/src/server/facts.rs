//! What schedulers may know of a request.

use std::sync::Arc;

use nrs::{DataRange, Direction, Facts};
use types::JobName;

use crate::{
    handler::Call,
    message::{MdtRequest, OstRequest, Request},
    session::SessionCell,
};

/// The address of clients in this process, as in LNet.
pub(super) const NID_OF_THIS_PROCESS: &str = "0@lo";

/// The address of a client, from its connection: `192.168.0.1@tcp` without the port.
pub(super) fn nid(peer: &str) -> Arc<str> {
    let host = peer.rsplit_once(':').map_or(peer, |(host, _)| host);
    format!("{}@tcp", host.trim_matches(['[', ']'])).into()
}

/// The facts of a request to the target with this number. Allocates nothing.
pub(super) fn of(cell: &SessionCell, target: u32, call: &Call) -> Facts {
    let data = match &call.request {
        Request::Ost(request) => data(request),
        Request::Mdt(MdtRequest::ChangeData(request) | MdtRequest::ReadData(request)) => data(request),
        Request::Mdt(_) | Request::Mgs(_) => None,
    };
    Facts {
        client: call.client,
        nid: cell.nid.clone(),
        job: JobName::new(&call.extension.job),
        uid: call.extension.uid,
        gid: call.extension.gid,
        project: call.extension.project,
        opcode: call.request.row().name,
        target,
        data,
    }
}

fn data(request: &OstRequest) -> Option<DataRange> {
    match request {
        OstRequest::Write(write) => {
            Some(DataRange { object: write.object, offset: write.offset, direction: Direction::Write })
        }
        OstRequest::Read(read) => {
            Some(DataRange { object: read.object, offset: read.offset, direction: Direction::Read })
        }
        OstRequest::Space(..)
        | OstRequest::Seek(..)
        | OstRequest::Glimpse(_)
        | OstRequest::Sync(_)
        | OstRequest::Destroy(..)
        | OstRequest::StatFs
        | OstRequest::ListObjects(..)
        | OstRequest::Verify(_)
        | OstRequest::Evict(..)
        | OstRequest::Ping
        | OstRequest::Disconnect
        | OstRequest::Fence(..)
        | OstRequest::Check(_)
        | OstRequest::Extents(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_clients_are_those_of_lnet() {
        for (peer, expected) in [
            ("192.168.0.1:40000", "192.168.0.1@tcp"),
            ("[2001:db8::1]:40000", "2001:db8::1@tcp"),
            ("node3", "node3@tcp"),
        ] {
            assert_eq!(&*nid(peer), expected);
        }
    }
}
