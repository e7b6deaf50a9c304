//! The client half: a view of one target.

use std::{fmt, sync::Arc, time::Duration};

use bytes::Bytes;
use rt::{Address, BoxFuture, Seams};
use types::{ClientId, FsError, FsResult};

use crate::{
    histogram::Histogram,
    message::{Reply, Request, session::Connected},
    server::Server,
};

/// Where a target is.
#[derive(Clone)]
pub enum Endpoint {
    /// In this process: handlers are awaited directly.
    Local(Arc<Server>),
    /// Over the network.
    Remote(Address),
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Endpoint::Local(_) => f.write_str("0@lo"),
            Endpoint::Remote(address) => address.fmt(f),
        }
    }
}

/// Settings of an [`Import`].
#[derive(Clone, Debug)]
pub struct ImportOptions {
    /// How long a caller waits for a server that gives no sign of life (the `timeout` parameter).
    pub patience: Duration,
    /// A request without a reply for this long is sent again; doubles with each repetition.
    pub resend: Duration,
    /// How long one attempt to connect may take.
    pub connect_timeout: Duration,
    /// Pause after the first failed attempt to connect; doubles with each further one.
    pub backoff_min: Duration,
    /// Longest pause between attempts to connect.
    pub backoff_max: Duration,
    /// Requests outstanding at once (`max_rpcs_in_flight`); bounded by the slots the server grants.
    pub rpcs_in_flight_max: u16,
    /// Feature bits this side supports.
    pub features: u64,
}

impl Default for ImportOptions {
    fn default() -> Self {
        Self {
            patience: Duration::from_secs(100),
            resend: Duration::from_secs(5),
            connect_timeout: Duration::from_secs(5),
            backoff_min: Duration::from_millis(50),
            backoff_max: Duration::from_secs(5),
            rpcs_in_flight_max: 64,
            features: 0,
        }
    }
}

/// States of an import; `Display` gives Lustre's words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ImportState {
    /// Not connected yet.
    New,
    /// Connecting, for the first time or again.
    Connecting,
    /// The connection broke; pausing before the next attempt.
    Disconnected,
    /// Connected to a restarted server; reclaiming.
    Recover,
    /// Working.
    Full,
    /// The server evicted this client; opening a new session.
    Evicted,
    /// Closed by its owner.
    Closed,
}

impl fmt::Display for ImportState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            ImportState::New => "NEW",
            ImportState::Connecting => "CONNECTING",
            ImportState::Disconnected => "DISCONN",
            ImportState::Recover => "RECOVER",
            ImportState::Full => "FULL",
            ImportState::Evicted => "EVICTED",
            ImportState::Closed => "CLOSED",
        })
    }
}

/// Figures of one kind of request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpcodeStatistics {
    /// Name of the request, as `mdt_create`.
    pub name: &'static str,
    /// Calls completed.
    pub calls: u64,
    /// Of these, with an error.
    pub errors: u64,
    /// Time from call to reply.
    pub time: Histogram,
}

/// Figures of an import.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ImportStatistics {
    /// Per kind of request, in order of opcodes.
    pub opcodes: Vec<OpcodeStatistics>,
    /// Requests outstanding now.
    pub in_flight: usize,
    /// Requests sent again.
    pub resent: u64,
    /// Successful connections, the first included.
    pub connections: u64,
    /// Evictions suffered.
    pub evictions: u64,
}

/// Told by an import when the server lost its memory of this client.
pub trait Recovery: Send + Sync {
    /// The server restarted: claim again what was open there. Calls through `import` (or its clones) pass the gate
    /// that holds all others back until this returns. An error closes the connection and everything is tried again,
    /// except [`FsError::Evicted`], which is an eviction.
    fn recover(&self, import: &Import, connected: &Connected) -> BoxFuture<'_, FsResult<()>>;

    /// The server evicted this client: everything that was open there is lost. Comes before any call of the new session.
    fn evicted(&self) {}
}

/// A client's view of one target. Cheap to clone; the last clone dropped closes it without a farewell.
#[derive(Clone)]
pub struct Import {
    target: Arc<str>,
}

impl Import {
    /// Begins to connect.
    pub fn new(
        _seams: Seams,
        target: &str,
        _endpoint: Endpoint,
        _client: ClientId,
        _client_name: &str,
        _options: ImportOptions,
        _recovery: Option<Arc<dyn Recovery>>,
    ) -> Import {
        Import { target: target.into() }
    }

    /// Name of the target.
    pub fn target(&self) -> &str {
        &self.target
    }

    /// Sends a request and waits for its reply.
    ///
    /// Errors of its own: [`FsError::Unreachable`] without a sign of life from the server for the patience;
    /// [`FsError::Evicted`] if the session was lost while the request was outstanding (whether it took effect is
    /// unknown); [`FsError::Protocol`] if the server refuses this client's version.
    pub async fn call(&self, request: Request, bulk: Bytes) -> FsResult<(Reply, Bytes)> {
        self.call_traced(request, bulk, 0).await
    }

    /// As [`Import::call`], with the trace number of the user's request.
    pub async fn call_traced(&self, _request: Request, _bulk: Bytes, _trace: u64) -> FsResult<(Reply, Bytes)> {
        Err(FsError::NotSupported)
    }

    /// The target is served elsewhere now: reconnects there.
    pub fn set_address(&self, _endpoint: Endpoint) {}

    /// Changes the number of requests that may be outstanding at once.
    pub fn set_max_rpcs_in_flight(&self, _count: u16) {}

    /// Changes how long callers wait for a silent server.
    pub fn set_patience(&self, _patience: Duration) {}

    /// Present state.
    pub fn state(&self) -> ImportState {
        ImportState::New
    }

    /// Figures up to now.
    pub fn statistics(&self) -> ImportStatistics {
        ImportStatistics::default()
    }

    /// Ends the session and the connection.
    pub async fn close(&self) {}
}
