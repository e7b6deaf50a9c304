//! Messages that open and maintain a session. They are handled by the rpc crate itself, before any
//! target sees them.

use serde::{Deserialize, Serialize};
use types::{ClientId, Generation, limits::URGENT_SLOTS_MAX};

use crate::auth::{Nonce, Proof, Role, Secret, Ticket};

/// Oldest protocol version this build speaks.
pub const VERSION_MIN: u16 = 2;
/// Newest protocol version this build speaks.
pub const VERSION_MAX: u16 = 2;

/// Fewest slots a session can have: the control slot, one for requests, one for urgent requests.
pub const SLOTS_MIN: u16 = 3;

/// How many of so many slots are for urgent requests.
pub fn urgent_slots(slots: u16) -> u16 {
    (slots / 8).clamp(1, URGENT_SLOTS_MAX)
}

/// Bits of [`rt::FrameHeader::flags`].
pub mod frame_flag {
    /// The frame is a reply.
    pub const REPLY: u16 = 1;
    /// The body is an encoded error.
    pub const ERROR: u16 = 2;
    /// With `REPLY`, without a body: the request arrived and is being executed; the reply will
    /// follow.
    pub const RUNNING: u16 = 4;
    /// With `REPLY`, without a body: the service's queue is full; the request was not executed,
    /// send it again later.
    pub const BUSY: u16 = 8;
    /// With `REPLY`, without a body: the request arrived after its deadline. It was not executed
    /// and never will be; a client that still wants it sends it under the slot's next xid.
    pub const EXPIRED: u16 = 16;
    /// A request of the target to its client ([`ClientRequest`](crate::message::ClientRequest)), or
    /// with `REPLY`, the client's answer.
    pub const CALLBACK: u16 = 32;
    /// The request was sent before, and may have been executed.
    pub const RESENT: u16 = 64;
    /// The request was acknowledged before, by a target that has lost power since, and is made
    /// again.
    pub const REPLAY: u16 = 128;
}

/// Bits of [`Connect::features`].
pub mod feature {
    /// Replies carry the time of the target's clock, and requests the time on that clock at which
    /// their callers give up.
    pub const DEADLINES: u64 = 1;
    /// A client may claim locks of earlier connections, by the versions of their inodes
    /// ([`ClaimLocks`](crate::message::mdt::ClaimLocks)).
    pub const LOCK_CLAIMS: u64 = 2;
    /// A client may tell of accesses after it made them
    /// ([`NoteAccesses`](crate::message::MdtRequest::NoteAccesses)).
    pub const LATE_ACCESSES: u64 = 4;
    /// The caller knows that a name may lead to another MDT
    /// ([`Remote`](crate::message::MdtReply::Remote)), and asks again what depends on one that is
    /// not there ([`FsError::AwaitsMdt`](types::FsError::AwaitsMdt)).
    pub const SEVERAL_MDTS: u64 = 8;
    /// Closes may come along with any request
    /// ([`closes`](crate::message::RequestExtension::closes)).
    pub const CLOSES_BESIDE: u64 = 16;
    /// The caller knows that names of a directory may be in its shards
    /// ([`Striped`](crate::message::MdtReply::Striped)).
    pub const STRIPED_DIRECTORIES: u64 = 32;
    /// The caller understands what is said of an inode on another MDT once it is decided
    /// ([`Decided`](crate::message::MdtReply::Decided)).
    pub const DECIDED_INODES: u64 = 64;
    /// The caller knows that a name may still be in a striped directory itself
    /// ([`Striped`](crate::message::MdtReply::Striped) without shards).
    pub const MOVING_NAMES: u64 = 128;
    /// The MDT can give inodes to other MDTs ([`Given`](crate::message::MdtReply::Given)).
    pub const MOVING_INODES: u64 = 256;
    /// The caller knows that names may go back from the shards to their directory
    /// ([`ReturningNames`](crate::message::MdtReply::ReturningNames)). (256 has another use.)
    pub const RETURNING_NAMES: u64 = 512;
    /// The MDT can give striped directories to other MDTs
    /// ([`GiveStriped`](crate::message::mdt_peer::Part::GiveStriped)), and spread a directory over
    /// one other MDT alone.
    pub const MOVING_STRIPED: u64 = 1024;
    /// The caller knows that a directory may have several shards on one MDT.
    pub const OVERSTRIPED_DIRECTORIES: u64 = 2048;
    /// The MDT can repair contradictions with other MDTs
    /// ([`RepairName`](crate::message::MdtRequest::RepairName)).
    pub const NAME_REPAIRS: u64 = 4096;

    /// All that this build supports.
    pub const ALL: u64 = DEADLINES
        | LOCK_CLAIMS
        | LATE_ACCESSES
        | SEVERAL_MDTS
        | CLOSES_BESIDE
        | STRIPED_DIRECTORIES
        | DECIDED_INODES
        | MOVING_NAMES
        | MOVING_INODES
        | RETURNING_NAMES
        | MOVING_STRIPED
        | OVERSTRIPED_DIRECTORIES
        | NAME_REPAIRS;
}

/// First message of a connection: names the target and the client. The answer is a [`Challenge`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Connect {
    /// Oldest protocol version this side speaks.
    pub version_min: u16,
    /// Newest protocol version this side speaks.
    pub version_max: u16,
    /// Feature bits this side supports.
    pub features: u64,
    /// The requested target, such as `stria-OST0003`, or `MGS`.
    pub target: String,
    /// The client that connects.
    pub client: ClientId,
    /// The client's host and process, for people (`ctl`, logs).
    pub client_name: String,
    /// Grows with each connection of this client to this target; requests of older connections are
    /// dropped.
    pub connection: Generation,
    /// True when the client believes it has a session here that should be continued; it shows the
    /// session's ticket in [`Prove`].
    pub resume: bool,
    /// With `resume`: incarnation of the server that the session was opened at, so that a lost
    /// answer to an earlier attempt cannot hide a restart or an eviction. Else 0.
    #[serde(default)]
    pub incarnation: u64,
    /// What the client is.
    #[serde(default)]
    pub role: Role,
    /// Name of the client's host.
    #[serde(default)]
    pub node: String,
    /// How the client is going to prove its role; `None` in version 1, which proves nothing.
    #[serde(default)]
    pub claim: Option<Claim>,
}

#[cfg(any(test, feature = "testing"))]
impl Connect {
    /// What a client made by hand in a test says first to a target: on its first connection, with
    /// the versions and no features of this side. The random number is always the same.
    pub fn of_test(target: &str, principal: &crate::Principal) -> Self {
        Self {
            version_min: VERSION_MIN,
            version_max: VERSION_MAX,
            features: 0,
            target: target.to_owned(),
            client: principal.client(),
            client_name: "test".to_owned(),
            connection: Generation(1),
            resume: false,
            incarnation: 0,
            role: principal.role(),
            node: "host".to_owned(),
            claim: Some(Claim::Key { nonce: [1; 32] }),
        }
    }
}

/// How a client is going to prove what it is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Claim {
    /// By the key of its role.
    Key {
        /// The client's random number of this connection.
        nonce: Nonce,
    },
}

/// Answer to [`Connect`]: the server proves itself and asks for the client's proof.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Challenge {
    /// Protocol version that both sides use from here on.
    pub version: u16,
    /// What the client must show.
    pub demand: Demand,
}

/// What a server asks for; of the kind that the client's [`Claim`] is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Demand {
    /// The proof of the role's key.
    Key {
        /// The server's random number of this connection.
        nonce: Nonce,
        /// The server's proof of the same key.
        proof: Proof,
    },
}

/// Second message of a connection: proves what [`Connect`] claimed. The answer is [`Connected`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Prove {
    /// What the server asked for.
    pub evidence: Evidence,
    /// The secret whose hash is the client's id.
    pub secret: Secret,
    /// With [`Connect::resume`]: what the client got with the session.
    #[serde(default)]
    pub ticket: Option<Ticket>,
}

/// What a client shows; of the kind that the server's [`Demand`] is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Evidence {
    /// The proof of the role's key.
    Key {
        /// Over all that both sides said before.
        proof: Proof,
    },
}

/// Answer to [`Prove`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Connected {
    /// Protocol version both sides use from here on.
    pub version: u16,
    /// Features both sides support.
    pub features: u64,
    /// Random number of this start of the target: differs after every restart, so that the client
    /// knows to reclaim.
    pub incarnation: u64,
    /// Whether the server still had this client's session (volatile state intact).
    pub resumed: bool,
    /// Slots the client may use: 0..slots; at least [`SLOTS_MIN`].
    pub slots: u16,
    /// The session is evicted unless a request arrives at least this often, in milliseconds.
    pub lease_ms: u32,
    /// How often the target has started after its host had ended with changes that were not
    /// durable. If this grew since a change was acknowledged, and nothing made the change durable
    /// before, it may be gone.
    #[serde(default)]
    pub era: u64,
    /// Of the slots, the last so many are for urgent requests; at least one.
    #[serde(default)]
    pub urgent_slots: u16,
    /// What the client shows to continue this session.
    #[serde(default)]
    pub ticket: Option<Ticket>,
}
