//! What a client shows to continue a session.

use std::fmt;

use serde::{Deserialize, Serialize};
use types::ClientId;

use super::{Key, Proof};

/// Proves that a target gave its client a session in one of its starts: an authentication code,
/// with a key that only servers have. So a target that keeps nothing of its sessions on disk
/// recognises returning clients after a restart.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ticket(Proof);

impl Ticket {
    /// For the session of a client that this target has in the start of this incarnation.
    pub fn issue(key: &Key, target: &str, client: ClientId, incarnation: u64) -> Self {
        Self(with_parts(target, client, incarnation, |parts| key.authenticate(parts)))
    }

    /// Whether it was issued with this key, for this session.
    pub fn is_of(&self, key: &Key, target: &str, client: ClientId, incarnation: u64) -> bool {
        with_parts(target, client, incarnation, |parts| key.verify(parts, &self.0))
    }
}

fn with_parts<T>(target: &str, client: ClientId, incarnation: u64, use_parts: impl FnOnce(&[&[u8]]) -> T) -> T {
    let (client, incarnation) = (client.0.to_le_bytes(), incarnation.to_le_bytes());
    use_parts(&[b"StriaFS ticket", target.as_bytes(), &client, &incarnation])
}

impl fmt::Debug for Ticket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Ticket(..)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ticket_is_good_for_its_session_only() {
        let key = |digit: &str| digit.repeat(64).parse::<Key>().unwrap();
        let ticket = Ticket::issue(&key("1"), "stria-OST0000", ClientId(7), 9);
        assert!(ticket.is_of(&key("1"), "stria-OST0000", ClientId(7), 9));
        assert!(!ticket.is_of(&key("2"), "stria-OST0000", ClientId(7), 9));
        assert!(!ticket.is_of(&key("1"), "stria-OST0001", ClientId(7), 9));
        assert!(!ticket.is_of(&key("1"), "stria-OST0000", ClientId(8), 9));
        assert!(!ticket.is_of(&key("1"), "stria-OST0000", ClientId(7), 8));
        assert_eq!(format!("{ticket:?}"), "Ticket(..)");
    }
}
