//! When clients may claim the locks of their former connections. Pure.
//!
//! A claim reads inodes, perhaps from the disk, in the service in which clients reclaim what they
//! had before a restart; and nobody remembers which locks a client had. So a client claims
//! - before anything else on a connection, except what tells this MDT of its opens and locks;
//! - with one request at a time, so it takes one thread;
//! - no more locks on a connection than it can have.
//!
//! Clients of all versions do. Other claims are refused without a look at their inodes.
//!
//! Life cycle: a client is known from its first request until its session ends.

use std::collections::BTreeMap;

use types::{ClientId, limits::CACHE_LOCKS_PER_CLIENT_MAX};

/// What a client has done on its connection.
#[derive(Debug, Default)]
struct Connection {
    /// It has sent another request.
    is_over: bool,
    /// A request with claims runs.
    is_claiming: bool,
    /// Locks that it has claimed.
    claimed: usize,
}

/// See the module documentation.
#[derive(Debug, Default)]
pub(crate) struct Claims {
    connections: BTreeMap<ClientId, Connection>,
}

impl Claims {
    /// A connection of a client begins.
    pub fn connection_begun(&mut self, client: ClientId) {
        if let Some(connection) = self.connections.get_mut(&client) {
            (connection.is_over, connection.claimed) = (false, 0);
        }
    }

    /// Whether a client has sent a request that comes after all claims.
    pub fn is_over(&self, client: ClientId) -> bool {
        self.connections.get(&client).is_some_and(|connection| connection.is_over)
    }

    /// A client sent a request that comes after all claims.
    pub fn over(&mut self, client: ClientId) {
        self.connections.entry(client).or_default().is_over = true;
    }

    /// A client claims so many locks; whether it may. Then it does until [`Claims::end`].
    pub fn begin(&mut self, client: ClientId, locks: usize) -> bool {
        let connection = self.connections.entry(client).or_default();
        let claimed = connection.claimed.saturating_add(locks);
        let may = !connection.is_over && !connection.is_claiming && claimed <= CACHE_LOCKS_PER_CLIENT_MAX;
        if may {
            (connection.is_claiming, connection.claimed) = (true, claimed);
        }
        may
    }

    /// The request of a client that claimed locks has ended.
    pub fn end(&mut self, client: ClientId) {
        if let Some(connection) = self.connections.get_mut(&client) {
            connection.is_claiming = false;
        }
    }

    /// The session of a client ended, and none of its requests runs.
    pub fn session_ended(&mut self, client: ClientId) {
        self.connections.remove(&client);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CLIENT: ClientId = ClientId(1);

    #[test]
    fn claims_come_first_and_one_after_the_other() {
        let mut claims = Claims::default();
        assert!(claims.begin(CLIENT, 256));
        assert!(!claims.begin(CLIENT, 1), "one runs");
        assert!(claims.begin(ClientId(2), 1));
        claims.end(CLIENT);
        assert!(claims.begin(CLIENT, 256));
        claims.end(CLIENT);
        assert!(!claims.is_over(CLIENT));
        claims.over(CLIENT);
        assert!(claims.is_over(CLIENT) && !claims.is_over(ClientId(2)));
        assert!(!claims.begin(CLIENT, 1));
        claims.connection_begun(CLIENT);
        assert!(claims.begin(CLIENT, 1));
        claims.connection_begun(CLIENT);
        assert!(!claims.begin(CLIENT, 1), "that one still runs");
        claims.end(CLIENT);
        claims.session_ended(CLIENT);
        claims.session_ended(ClientId(2));
        assert!(claims.connections.is_empty());
    }

    #[test]
    fn no_more_are_claimed_than_a_client_can_have() {
        let mut claims = Claims::default();
        assert!(claims.begin(CLIENT, CACHE_LOCKS_PER_CLIENT_MAX - 1));
        claims.end(CLIENT);
        assert!(!claims.begin(CLIENT, 2) && !claims.begin(CLIENT, usize::MAX));
        assert!(claims.begin(CLIENT, 1));
    }
}
