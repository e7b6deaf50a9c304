//! Authentication of peers: roles, keys, and the proof that opens a session.
//!
//! A file system has a server key and a client key. The client key is derived from the server key,
//! so a server needs one file, and no client can compute the server key from the client key. A
//! process may claim the roles of the keys that it has ([`Role::key`]).
//!
//! The handshake ([`transcript`]): the client names itself and sends a random number; the server
//! answers with a random number of its own and proves the key of the client's role; only then does
//! the client prove it, and show the secret of which its id is the hash. All proofs cover all that
//! both sides said before, so no message of another handshake fits. Nothing secret but the
//! session's secret is sent, and that only to a server that has proved its key.
//!
//! An id is the hash of a secret ([`Secret::client`]), so no client continues a session of another
//! client, also after a restart of a server that remembers nothing but ids. A client that continues
//! a session shows the [`Ticket`] that it got with it, so none claims a session that it never had.
//!
//! Downside: keys are shared. Any holder of the client key can pose as a server towards clients
//! that it can redirect, and the frames after the handshake are not protected (docs/security.md).

mod handshake;
mod key;
mod keyring;
mod principal;
mod role;
mod secret;
mod ticket;
mod transcript;

pub use handshake::Handshake;
pub use key::{Key, KeyTextError};
pub use keyring::{KeyKind, Keyring};
pub use principal::Principal;
pub use role::Role;
pub use secret::Secret;
pub use ticket::Ticket;
pub use transcript::{Nonce, Proof, Side, Transcript, nonce};
