//! The client's half of the handshake, without a network.

use bytes::Bytes;
use types::{FsError, FsResult, ProtocolError, Refusal};

use super::{Key, Principal, Side, Ticket, Transcript};
use crate::{
    codec,
    message::session::{Challenge, Connect, Demand, Evidence, Prove},
};

/// A client that has made its `Connect` and waits for the server's challenge.
pub struct Handshake<'p> {
    principal: &'p Principal,
    key: &'p Key,
    connect: Connect,
    /// As it is sent.
    body: Bytes,
    /// Of the session to continue.
    ticket: Option<Ticket>,
}

impl<'p> Handshake<'p> {
    /// Of this `Connect`, which claims a key. Fails if the process does not have that key.
    pub fn begin(principal: &'p Principal, connect: Connect) -> FsResult<Self> {
        let Some(key) = principal.keys.of_role(connect.role) else {
            return Err(Refusal::Unproven(format!(
                "a {} needs the {} of the file system to connect to {}",
                connect.role,
                connect.role.key(),
                connect.target
            ))
            .into());
        };
        let body = codec::encode(&connect)?;
        Ok(Self { principal, key, connect, body, ticket: None })
    }

    /// With the ticket of the session that the client wants to continue.
    pub fn with_ticket(self, ticket: Option<Ticket>) -> Self {
        Self { ticket, ..self }
    }

    /// The body of the `Connect`.
    pub fn connect(&self) -> Bytes {
        self.body.clone()
    }

    /// Checks the server's challenge and makes the body of the `Prove` that answers it. `Refused`:
    /// the server does not have the key.
    pub fn answer(&self, challenge: &[u8]) -> FsResult<Bytes> {
        let challenge: Challenge = codec::decode(challenge).map_err(|error| {
            let target = &self.connect.target;
            ProtocolError::Told(format!(
                "{target} did not answer the handshake in this version of the protocol; it runs another one: {error}"
            ))
        })?;
        let Connect { version_min, version_max, role, target, .. } = &self.connect;
        if !(*version_min..=*version_max).contains(&challenge.version) {
            let text = format!("the server chose protocol version {}", challenge.version);
            return Err(FsError::from(ProtocolError::Told(text)));
        }
        let Demand::Key { nonce, proof } = challenge.demand;
        let transcript = Transcript::new(&self.body, challenge.version, nonce);
        if !transcript.verify(self.key, Side::Server, &proof) {
            return Err(Refusal::Unproven(format!(
                "{target} and this {role} have different {}s: one of them belongs to another file system, or has an outdated key",
                role.key()
            ))
            .into());
        }
        let evidence = Evidence::Key { proof: transcript.prove(self.key, Side::Client) };
        Ok(codec::encode(&Prove { evidence, secret: self.principal.secret.clone(), ticket: self.ticket })?)
    }
}
