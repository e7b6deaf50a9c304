//! The keys a process has.

use std::fmt;

use rt::Entropy;

use super::{Key, Role};

/// Which of the file system's keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyKind {
    /// That of its servers.
    Server,
    /// That of its clients and tools.
    Client,
}

impl fmt::Display for KeyKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            KeyKind::Server => "server key",
            KeyKind::Client => "client key",
        })
    }
}

/// The keys a process has: both, that of clients, or none. Without the key of a role no process
/// connects over a network under that role, and no such connection is accepted.
#[derive(Clone, Debug, Default)]
pub struct Keyring {
    server: Option<Key>,
    client: Option<Key>,
}

impl Keyring {
    /// Of a server, or a tool that repairs: the client key is derived.
    pub fn server(key: Key) -> Self {
        Self { client: Some(client_key(&key)), server: Some(key) }
    }

    /// Of a client.
    pub fn client(key: Key) -> Self {
        Self { server: None, client: Some(key) }
    }

    /// Without the server key.
    pub fn of_clients(self) -> Self {
        Self { server: None, ..self }
    }

    /// Of the servers of a test: everybody knows it.
    #[cfg(any(test, feature = "testing"))]
    pub fn of_test() -> Self {
        Self::server("5a".repeat(32).parse().expect("a key has 64 digits"))
    }

    /// The key of this kind, if the process has it.
    pub fn key(&self, kind: KeyKind) -> Option<&Key> {
        match kind {
            KeyKind::Server => self.server.as_ref(),
            KeyKind::Client => self.client.as_ref(),
        }
    }

    /// The key of tickets, which only servers can have. Without the server key it is a random one,
    /// and no session continues after a restart.
    pub(crate) fn of_tickets(&self, entropy: &dyn Entropy) -> Key {
        self.server.as_ref().map_or_else(|| Key::random(entropy), |key| key.derive("session tickets"))
    }

    /// The key that proves a role, if the process has it.
    pub(crate) fn of_role(&self, role: Role) -> Option<&Key> {
        self.key(role.key())
    }
}

/// The client key that belongs to a server key.
fn client_key(server: &Key) -> Key {
    server.derive("client key")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_have_the_client_key_and_clients_not_the_servers() {
        let key: Key = "11".repeat(32).parse().unwrap();
        let servers = Keyring::server(key.clone());
        let clients = Keyring::client(servers.key(KeyKind::Client).unwrap().clone());
        assert_eq!(servers.of_role(Role::Client), clients.of_role(Role::Tool));
        assert_eq!(servers.of_role(Role::Mdt), Some(&key));
        for role in [Role::Mdt, Role::Ost, Role::Mgs, Role::Mover, Role::Repair] {
            assert_eq!(clients.of_role(role), None);
        }
        assert_ne!(servers.key(KeyKind::Client), Some(&key));
    }
}
