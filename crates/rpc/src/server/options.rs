//! Settings of a server.

use types::{
    FsResult, ProtocolError,
    limits::{SESSION_SLOTS_MAX, SESSIONS_PER_TARGET_MAX},
};

use crate::{
    auth::Keyring,
    message::{
        bounds,
        session::{Connect, VERSION_MAX, VERSION_MIN, feature},
    },
};

/// Settings of a [`Server`](super::Server).
#[derive(Clone, Debug)]
pub struct ServerOptions {
    /// What clients of other processes must prove, and what this server proves to them.
    pub keys: Keyring,
    /// Slots each session gets,
    /// [`SLOTS_MIN`](crate::message::session::SLOTS_MIN)..=[`SESSION_SLOTS_MAX`].
    pub slots: u16,
    /// Oldest protocol version this server speaks.
    pub version_min: u16,
    /// Newest protocol version this server speaks.
    pub version_max: u16,
    /// Feature bits this server supports.
    pub features: u64,
    /// Service threads of a service at its creation.
    pub service_threads: usize,
    /// Requests that may wait in one service.
    pub queue_max: usize,
    /// Sessions of clients in other processes that one target keeps. Those who come back to a
    /// session of an earlier start have as much room again, so that newcomers cannot take their
    /// places.
    pub sessions_max: usize,
    /// A panic in a target's work takes this target out of service, and nothing else (module
    /// `failing`). Without it, it continues to the caller that polls: a simulation wants to stop
    /// where it is.
    pub contain_panics: bool,
}

impl ServerOptions {
    /// The usual settings, with these keys. Without keys, only clients of the same process can
    /// connect.
    pub fn new(keys: Keyring) -> Self {
        Self {
            keys,
            slots: SESSION_SLOTS_MAX,
            version_min: VERSION_MIN,
            version_max: VERSION_MAX,
            features: feature::ALL,
            service_threads: 256,
            queue_max: 65536,
            sessions_max: SESSIONS_PER_TARGET_MAX,
            contain_panics: true,
        }
    }

    /// The newest protocol version that both sides speak.
    pub(super) fn negotiate(&self, connect: &Connect) -> FsResult<u16> {
        let version = connect.version_max.min(self.version_max);
        if version < connect.version_min.max(self.version_min) {
            return Err(ProtocolError::Versions {
                client: bounds::client_name(&connect.client_name),
                client_versions: connect.version_min..=connect.version_max,
                server: bounds::client_name(&connect.target),
                server_versions: self.version_min..=self.version_max,
            }
            .into());
        }
        Ok(version)
    }
}
