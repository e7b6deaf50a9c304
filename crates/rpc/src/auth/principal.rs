//! The caller's end of a connection.

use rt::Entropy;
use types::ClientId;

use super::{Keyring, Role, Secret};

/// The identity of a process that connects, as it shows it to every server.
#[derive(Clone, Debug)]
pub struct Principal {
    pub(crate) secret: Secret,
    pub(crate) client: ClientId,
    pub(crate) role: Role,
    pub(crate) node: String,
    pub(crate) name: String,
    pub(crate) keys: Keyring,
}

impl Principal {
    /// A new one, with a random id. `node`: the host; `name`: host and process, for people.
    pub fn random(entropy: &dyn Entropy, role: Role, node: &str, name: &str, keys: Keyring) -> Self {
        let secret = Secret::random(entropy);
        Self { client: secret.client(role), secret, role, node: node.to_owned(), name: name.to_owned(), keys }
    }

    /// The n-th client of a test, with the keys of servers. Anybody can compute its secret.
    #[cfg(any(test, feature = "testing"))]
    pub fn of_test(number: u64, role: Role) -> Self {
        let (secret, name) = (Secret::of_test(number), "test".to_owned());
        Self { client: secret.client(role), secret, role, node: name.clone(), name, keys: Keyring::of_test() }
    }

    /// What it is.
    pub fn role(&self) -> Role {
        self.role
    }

    /// The same, but claims the id of another client. Servers of the same process believe that,
    /// others do not.
    #[cfg(any(test, feature = "testing"))]
    pub fn claiming(self, client: ClientId) -> Self {
        Self { client, ..self }
    }

    /// The same with these keys.
    #[cfg(any(test, feature = "testing"))]
    pub fn with_keys(self, keys: Keyring) -> Self {
        Self { keys, ..self }
    }

    /// The same under another name.
    #[cfg(any(test, feature = "testing"))]
    pub fn named(self, name: &str) -> Self {
        Self { name: name.to_owned(), ..self }
    }

    /// The same process under a new id.
    pub fn renewed(&self, entropy: &dyn Entropy) -> Self {
        let secret = Secret::random(entropy);
        Self { client: secret.client(self.role), secret, ..self.clone() }
    }

    /// Its id.
    pub fn client(&self) -> ClientId {
        self.client
    }

    /// Host and process, for people.
    pub fn name(&self) -> &str {
        &self.name
    }
}
