//! Keeps clients from claiming locks at any time (module [`crate::claims`]).

use rpc::message::MdtRequest;
use types::ClientId;

use super::Mdt;
use crate::ops::row::MdtRow;

/// A request that is executed. When this is dropped, it has ended.
pub(super) struct Claiming<'m> {
    mdt: &'m Mdt,
    client: Option<ClientId>,
}

impl Drop for Claiming<'_> {
    fn drop(&mut self) {
        if let Some(client) = self.client {
            self.mdt.claims.write().end(client);
        }
    }
}

impl Mdt {
    /// Notes a request of a client. The error is how many claims are refused: all of its.
    pub(super) fn claiming(
        &self,
        client: ClientId,
        request: &MdtRequest,
        row: &MdtRow<'_>,
    ) -> Result<Claiming<'_>, usize> {
        let MdtRequest::ClaimLocks(claim) = request else {
            if !row.precedes_claims(request) && !self.claims.read().is_over(client) {
                self.claims.write().over(client);
            }
            return Ok(Claiming { mdt: self, client: None });
        };
        let may_claim = self.claims.write().begin(client, claim.locks.len());
        if may_claim { Ok(Claiming { mdt: self, client: Some(client) }) } else { Err(claim.locks.len()) }
    }
}
