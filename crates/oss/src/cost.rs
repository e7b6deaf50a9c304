//! What requests cost in processor time, stated for the lab ([`rt::Cpu`]).

use rpc::message::{OstRequest, Request};
use rt::{Cpu, CpuKind};

/// A request begins: all but its data.
pub(crate) async fn spend_on_request(cpu: &Cpu, request: &Request) {
    let kind = match request {
        Request::Ost(OstRequest::Write(_) | OstRequest::Read(_)) => CpuKind::ObjectIo,
        _ => CpuKind::ObjectOther,
    };
    cpu.spend(kind, 0).await;
}

/// Data of a request: their checksums, and a copy to or from the page cache.
pub(crate) async fn spend_on_data(cpu: &Cpu, bytes: u64) {
    cpu.spend(CpuKind::Checksum, bytes).await;
    cpu.spend(CpuKind::Copy, bytes).await;
}
