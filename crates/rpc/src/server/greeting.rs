//! The server's half of the handshake that opens a connection (module [`auth`](crate::auth)).

use bytes::Bytes;
use types::{FsResult, Refusal};

use super::shared::Shared;
use crate::{
    auth::{self, Key, Side, Transcript},
    codec,
    message::session::{Challenge, Claim, Connect, Demand, Evidence, Prove},
};

/// A client that has been challenged and has proved nothing yet.
pub(super) struct Greeting {
    /// What the client says of itself.
    pub(super) connect: Connect,
    challenge: Challenge,
    /// What both sides have said.
    transcript: Transcript,
    key: Key,
}

impl Greeting {
    /// Challenges a client. `body`: its `Connect` as it was sent.
    pub(super) fn begin(shared: &Shared, connect: Connect, body: &[u8]) -> FsResult<Self> {
        let version = shared.options.negotiate(&connect)?;
        connect.check()?;
        let Some(Claim::Key { nonce: _ }) = connect.claim else {
            return Err(Refusal::Unproven("a client must prove a key of the file system".to_owned()).into());
        };
        let Some(key) = shared.options.keys.of_role(connect.role) else {
            let (kind, role) = (connect.role.key(), connect.role);
            return Err(Refusal::Unproven(format!(
                "this server has no {kind} that a {role} could prove: it serves its own process only"
            ))
            .into());
        };
        let nonce = auth::nonce(&*shared.seams.entropy);
        let transcript = Transcript::new(body, version, nonce);
        let proof = transcript.prove(key, Side::Server);
        let challenge = Challenge { version, demand: Demand::Key { nonce, proof } };
        Ok(Self { connect, challenge, transcript, key: key.clone() })
    }

    /// The challenge, encoded.
    pub(super) fn challenge(&self) -> Bytes {
        codec::encode(&self.challenge).expect("a few numbers fit any frame")
    }

    /// Whether the client is what it says.
    pub(super) fn admit(&self, prove: &Prove) -> FsResult<()> {
        let Evidence::Key { proof } = &prove.evidence;
        if !self.transcript.verify(&self.key, Side::Client, proof) {
            let (kind, role) = (self.connect.role.key(), self.connect.role);
            return Err(Refusal::Unproven(format!("the {role} does not have the {kind} of this file system")).into());
        }
        if prove.secret.client(self.connect.role) != self.connect.client {
            let client = self.connect.client;
            return Err(Refusal::Unproven(format!("the id {client} belongs to another client")).into());
        }
        Ok(())
    }
}
