//! What makes a client's id its own.

use std::fmt;

use rt::Entropy;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use types::ClientId;

use super::{Role, key::random_bytes};

/// Bytes of a secret.
const BYTES: usize = 32;

/// A random number that only its client knows, and the servers it has sessions with. The client's
/// id is the hash of it and of its role.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Secret([u8; BYTES]);

impl Secret {
    /// A new one.
    pub fn random(entropy: &dyn Entropy) -> Self {
        Self(random_bytes(entropy))
    }

    /// The secret of the n-th client of a test: anybody can compute it.
    #[cfg(any(test, feature = "testing"))]
    pub fn of_test(number: u64) -> Self {
        let mut bytes = [0; BYTES];
        bytes[..size_of::<u64>()].copy_from_slice(&number.to_le_bytes());
        Self(bytes)
    }

    /// The id of the client that has it in this role: the first 64 bits of a SHA-256 of both. So no
    /// session continues in another role than that in which it was opened.
    pub fn client(&self, role: Role) -> ClientId {
        let hash =
            Sha256::new_with_prefix(b"StriaFS client id").chain_update([role as u8]).chain_update(self.0).finalize();
        ClientId(u64::from_le_bytes(*hash.first_chunk().expect("SHA-256 has more than eight bytes")))
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}
