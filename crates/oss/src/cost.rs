//! What requests cost in processor time, stated for the lab ([`rt::Cpu`]).

use rpc::{
    Call,
    message::{OstRequest, Request},
};
use rt::{Cpu, CpuKind};

/// A request begins: all but its data.
pub(crate) async fn spend_on_request(cpu: &Cpu, call: &Call) {
    let (kind, bytes) = match &call.request {
        Request::Ost(OstRequest::Write(_)) => (CpuKind::ObjectWrite, call.bulk.len() as u64),
        Request::Ost(OstRequest::Read(read)) => (CpuKind::ObjectRead, read.bytes.into()),
        _ => (CpuKind::ObjectOther, 0),
    };
    cpu.spend(kind, bytes).await;
}

/// Data of a request: their checksums, and a copy to or from the page cache.
pub(crate) async fn spend_on_data(cpu: &Cpu, bytes: u64) {
    cpu.spend(CpuKind::Checksum, bytes).await;
    cpu.spend(CpuKind::Copy, bytes).await;
}
