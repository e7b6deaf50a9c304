//! Where a target is, how long to wait for it, and the state of the import.

use std::{fmt, sync::Arc, time::Duration};

use rt::Addresses;

use crate::{
    message::session::{VERSION_MAX, VERSION_MIN, feature},
    server::Server,
};

/// Where a target is.
#[derive(Clone)]
pub enum Endpoint {
    /// In this process: handlers are awaited directly.
    Local(Arc<Server>),
    /// Over the network, at one of these addresses.
    Remote(Addresses),
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Endpoint::Local(_) => f.write_str("0@lo"),
            Endpoint::Remote(addresses) => addresses.fmt(f),
        }
    }
}

impl Endpoint {
    /// Places to be tried.
    pub(super) fn places(&self) -> usize {
        match self {
            Endpoint::Local(_) => 1,
            Endpoint::Remote(addresses) => addresses.len(),
        }
    }

    /// The place whose turn it is, for people.
    pub(super) fn place(&self, turn: usize) -> String {
        match self {
            Endpoint::Local(_) => self.to_string(),
            Endpoint::Remote(addresses) => addresses.at(turn).to_string(),
        }
    }
}

/// Settings of an [`Import`](super::Import).
#[derive(Clone, Debug)]
pub struct ImportOptions {
    /// How long a caller waits for a server that gives no sign of life (the `timeout` parameter).
    pub timeout: Duration,
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
    /// A tuner chooses how many are outstanding, up to this number.
    pub tunes: bool,
    /// Oldest protocol version this side speaks.
    pub version_min: u16,
    /// Newest protocol version this side speaks.
    pub version_max: u16,
    /// Feature bits this side supports.
    pub features: u64,
}

impl Default for ImportOptions {
    fn default() -> Self {
        Self {
            timeout: Duration::from_secs(100),
            resend: Duration::from_secs(5),
            connect_timeout: Duration::from_secs(5),
            backoff_min: Duration::from_millis(50),
            backoff_max: Duration::from_secs(5),
            rpcs_in_flight_max: 64,
            tunes: false,
            version_min: VERSION_MIN,
            version_max: VERSION_MAX,
            features: feature::ALL,
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
    /// Not connected; pausing before the next attempt.
    Disconnected,
    /// Connected to a restarted server; reclaiming.
    Recover,
    /// Working.
    Full,
    /// The server evicted this client; a new session follows.
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
