//! What both sides of a handshake have said, and the proofs over it.

use std::fmt;

use rt::Entropy;
use serde::{Deserialize, Serialize};

use super::{Key, key::random_bytes};

/// A random number that is used once.
pub type Nonce = [u8; 32];

/// A new random number.
pub fn nonce(entropy: &dyn Entropy) -> Nonce {
    random_bytes(entropy)
}

/// An authentication code: proves a key to those who have it, and tells others nothing.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Proof(pub(super) [u8; 32]);

impl fmt::Debug for Proof {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Proof(..)")
    }
}

/// Which end of the connection proves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The end that answers.
    Server,
    /// The end that began.
    Client,
}

/// What both ends of a connection said until the server's challenge.
#[derive(Clone, Debug)]
pub struct Transcript {
    /// The body of the client's `Connect`, as it was sent.
    connect: Vec<u8>,
    /// The server's random number.
    nonce: Nonce,
    /// The protocol version that the server chose.
    version: u16,
}

impl Transcript {
    /// Of the client's `Connect` (its encoded body) and what the server chose.
    pub fn new(connect: &[u8], version: u16, nonce: Nonce) -> Self {
        Self { connect: connect.to_vec(), nonce, version }
    }

    /// The proof that this end has the key.
    pub fn prove(&self, key: &Key, side: Side) -> Proof {
        self.with_parts(side, |parts| key.authenticate(parts))
    }

    /// Whether this is the proof of that end.
    pub fn verify(&self, key: &Key, side: Side, proof: &Proof) -> bool {
        self.with_parts(side, |parts| key.verify(parts, proof))
    }

    fn with_parts<T>(&self, side: Side, use_parts: impl FnOnce(&[&[u8]]) -> T) -> T {
        let label: &[u8] = match side {
            Side::Server => b"StriaFS server",
            Side::Client => b"StriaFS client",
        };
        use_parts(&[label, &self.connect, &self.version.to_le_bytes(), &self.nonce])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_proof_holds_for_its_key_side_and_transcript_only() {
        let key = |digit: &str| digit.repeat(64).parse::<Key>().unwrap();
        let said = Transcript::new(b"connect", 2, [7; 32]);
        let proof = said.prove(&key("1"), Side::Server);
        assert!(said.verify(&key("1"), Side::Server, &proof));
        assert!(!said.verify(&key("1"), Side::Client, &proof), "sent back to its sender");
        assert!(!said.verify(&key("2"), Side::Server, &proof));
        for other in [
            Transcript::new(b"Connect", 2, [7; 32]),
            Transcript::new(b"connect", 3, [7; 32]),
            Transcript::new(b"connect", 2, [8; 32]),
        ] {
            assert!(!other.verify(&key("1"), Side::Server, &proof), "{other:?}");
        }
    }
}
