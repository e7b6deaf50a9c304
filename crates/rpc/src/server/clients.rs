//! The clients of a target, as its handler reaches them.

use std::sync::Weak;

use rt::{BoxFuture, Instant};
use types::{ClientId, FsError, FsResult};

use super::served_target::ServedTarget;
use crate::{
    handler::Clients,
    message::{ClientReply, ClientRequest},
    service::Parked,
};

/// Weak, because the target holds its handler.
pub(super) struct ServedClients(pub(super) Weak<ServedTarget>);

impl Clients for ServedClients {
    fn call_back(&self, client: ClientId, request: ClientRequest) -> BoxFuture<'static, FsResult<ClientReply>> {
        let target = self.0.upgrade();
        Box::pin(async move { target.ok_or(FsError::NoDevice)?.call_back(client, request).await })
    }

    fn evict(&self, client: ClientId) -> BoxFuture<'static, bool> {
        let target = self.0.upgrade();
        Box::pin(async move {
            match target {
                Some(target) => target.evict(client).await,
                None => false,
            }
        })
    }

    fn name(&self, client: ClientId) -> Option<String> {
        Some(self.0.upgrade()?.session(client)?.client_name.clone())
    }

    fn lease_end(&self, client: ClientId) -> Option<Instant> {
        self.0.upgrade()?.lease_end(client)
    }

    fn left(&self, client: ClientId) -> BoxFuture<'static, ()> {
        match self.0.upgrade() {
            Some(target) => Box::pin(target.left(client)),
            None => Box::pin(std::future::ready(())),
        }
    }

    fn stopped(&self) -> BoxFuture<'static, ()> {
        match self.0.upgrade() {
            Some(target) => Box::pin(target.stopped()),
            None => Box::pin(std::future::ready(())),
        }
    }

    fn park(&self, service: &'static str) -> Option<Parked> {
        Some(self.0.upgrade()?.park(service))
    }
}
