//! The interface between a target and this crate: the server half of a call, without sessions or
//! networks.

use std::sync::Arc;

use bytes::Bytes;
use rt::{BoxFuture, Instant, frame::class};
use types::{ClientId, FsError, FsResult, Slot, Xid};

use crate::{
    auth::Role,
    message::{ClientReply, ClientRequest, Reply, ReplyExtension, Request, RequestExtension, session::feature},
    service::Parked,
};

/// One request, admitted by its session and its service, to be executed exactly once.
#[derive(Clone, Debug)]
pub struct Call {
    /// The client that sent the request.
    pub client: ClientId,
    /// Slot of the client's session; with `xid` it names the request permanently.
    pub slot: Slot,
    /// Transaction number within the slot.
    pub xid: Xid,
    /// Identifies the user's request from the mount to the last server's log; 0: none.
    pub trace: u64,
    /// How urgent it is ([`class`]).
    pub class: u8,
    /// What both sides of its connection support ([`feature`]).
    pub features: u64,
    /// The extension of the request.
    pub extension: RequestExtension,
    /// What to do.
    pub request: Request,
    /// Bulk data of the request.
    pub bulk: Bytes,
}

impl Call {
    /// A call of this build whose request has an empty extension.
    pub fn plain(client: ClientId, slot: Slot, xid: Xid, request: Request, bulk: Bytes) -> Self {
        let extension = RequestExtension::default();
        let (class, features) = (class::NORMAL, feature::ALL);
        Self { client, slot, xid, trace: 0, class, features, extension, request, bulk }
    }
}

/// The outcome of a [`Call`].
#[derive(Clone, Debug)]
pub struct Answer {
    /// Reply or error.
    pub reply: FsResult<Reply>,
    /// Bulk data of the reply; empty with an error.
    pub bulk: Bytes,
    /// The extension of the reply; empty with an error.
    pub extension: ReplyExtension,
    /// The request was not executed and is not answered, because the target stops: its client sends
    /// it to the next start of the target.
    pub is_withheld: bool,
}

impl Answer {
    /// See [`Answer::is_withheld`].
    pub fn withheld() -> Self {
        Self { is_withheld: true, ..Self::new(Err(FsError::NoDevice)) }
    }

    /// An answer without bulk data.
    pub fn new(reply: FsResult<Reply>) -> Self {
        Self::with_bulk(reply, Bytes::new())
    }

    /// An answer with bulk data and an empty extension.
    pub fn with_bulk(reply: FsResult<Reply>, bulk: Bytes) -> Self {
        Self { reply, bulk, extension: ReplyExtension::default(), is_withheld: false }
    }
}

impl From<FsResult<Reply>> for Answer {
    fn from(reply: FsResult<Reply>) -> Self {
        Self::new(reply)
    }
}

/// Answers the callbacks of a target: implemented by what keeps state for its client.
pub trait CallbackHandler: Send + Sync {
    /// Executes one callback, once. Answers soon: what it asks for is done by other requests.
    fn call_back(&self, request: ClientRequest) -> BoxFuture<'static, FsResult<ClientReply>>;
}

/// The answers of a client that keeps nothing.
#[derive(Clone, Copy, Debug, Default)]
pub struct KeepsNothing;

impl CallbackHandler for KeepsNothing {
    fn call_back(&self, request: ClientRequest) -> BoxFuture<'static, FsResult<ClientReply>> {
        let reply = match request {
            ClientRequest::Ping => Ok(ClientReply::Done),
            // A target that asks for a lock that this client does not have forgets it.
            ClientRequest::Blocking(_)
            | ClientRequest::Completion(_)
            | ClientRequest::Glimpse(_)
            | ClientRequest::LockCompleted(_)
            | ClientRequest::AskAgain(_) => Err(FsError::NotFound),
        };
        Box::pin(std::future::ready(reply))
    }
}

/// The clients of a target, as the server that serves it reaches them.
pub trait Clients: Send + Sync {
    /// Makes a request to a client and waits for its answer, as long as its session exists.
    /// [`FsError::Evicted`]: it has none, or it ended; [`FsError::Busy`]: the client owes too many
    /// answers.
    fn call_back(&self, client: ClientId, request: ClientRequest) -> BoxFuture<'static, FsResult<ClientReply>>;

    /// Ends a client's session as if its lease had expired. False if there is none.
    fn evict(&self, client: ClientId) -> BoxFuture<'static, bool>;

    /// Host and process of a client with a session, for logs.
    fn name(&self, client: ClientId) -> Option<String> {
        let _ = client;
        None
    }

    /// When the client's lease runs out unless it is renewed: from then on the client serves
    /// nothing under it. `None`: there is nothing to wait for.
    fn lease_end(&self, client: ClientId) -> Option<Instant>;

    /// Completes when nobody waits for the answers of requests of this client that run: it connects
    /// again, which waits for their end, its session ends, or it has been silent for longer than
    /// its lease. Never where connections are not known.
    fn left(&self, client: ClientId) -> BoxFuture<'static, ()> {
        let _ = client;
        Box::pin(std::future::pending())
    }

    /// Completes when the server serves this target no more: no client reaches it then.
    fn stopped(&self) -> BoxFuture<'static, ()>;

    /// A request of this service waits for clients: it counts as none of the service's threads
    /// until the answer is dropped. `None` where nothing is counted.
    fn park(&self, service: &'static str) -> Option<Parked>;
}

/// Milestones of a client's session. Events of one client arrive one after the other; each is
/// awaited before the session continues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SessionEvent {
    /// A session begins; the client's first request comes after this.
    Opened {
        /// The client.
        client: ClientId,
        /// It continues a session of an earlier start of this server, and will reclaim what it had
        /// open there.
        resumed: bool,
        /// The client lives in the server's process, and ends with it.
        in_process: bool,
        /// What the client is.
        role: Role,
    },
    /// The lease expired (or an administrator asked): nothing of this client may stay open or
    /// locked.
    Evicted(ClientId),
    /// The client ended its session.
    Closed(ClientId),
}

impl std::fmt::Display for SessionEvent {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            SessionEvent::Opened { .. } => "opened",
            SessionEvent::Evicted(_) => "evicted",
            SessionEvent::Closed(_) => "closed by the client",
        })
    }
}

/// A target's request handler: implemented by the MDT, the OST and the MGS.
pub trait Handler: Send + Sync + 'static {
    /// Executes one request. The future is never dropped before it completes, except with the whole
    /// process. It may hold up what its client sends next: whatever it waits for besides this
    /// target's devices and earlier requests, it waits for no longer than a time of its own, and
    /// answers so that the client asks again.
    fn handle(self: Arc<Self>, call: Call) -> BoxFuture<'static, Answer>;

    /// Name of the service (queue and service threads) that executes this request.
    fn service(&self, request: &Request) -> &'static str;

    /// The last mutation this target made durable (or wrote) for a slot, and its reply; consulted
    /// when a session of an earlier start of this server is continued. `None` if there is none, or
    /// if nothing here needs it because every request is idempotent.
    fn persistent_reply(&self, client: ClientId, slot: Slot) -> Option<(Xid, Reply)>;

    /// The last mutation of a slot, if its reply is kept but is not all: the handler itself answers
    /// repetitions of it, once more and without a second effect. Consulted as
    /// [`Handler::persistent_reply`] is, where that knows nothing.
    fn answers_repetition(&self, client: ClientId, slot: Slot) -> Option<Xid> {
        let _ = (client, slot);
        None
    }

    /// Whether a client with this id may begin a session. If not, it is told that it was evicted.
    fn may_begin(&self, client: ClientId) -> bool {
        let _ = client;
        true
    }

    /// Whether this client may continue a session from before this server's start. A target that
    /// keeps its sessions on disk says no for those it does not find: the client is then told that
    /// it was evicted, and does not repeat requests whose replies were forgotten with the session.
    fn may_resume(&self, client: ClientId) -> bool {
        let _ = client;
        true
    }

    /// Whether [`Handler::persistent_reply`] knows the last change of a session also after its
    /// lease ran out, and nothing else was kept for it: then its client may continue with it, so
    /// that what it asks again has no second effect.
    fn stores_replies_of_sessions_that_ended(&self) -> bool {
        false
    }

    /// [`Connected::era`]: the same for the whole life of the handler. A target that acknowledges
    /// nothing before it is durable says 0.
    ///
    /// [`Connected::era`]: crate::message::session::Connected::era
    fn era(&self) -> u64 {
        0
    }

    /// A request or session event of this target panics: what the target has in memory may be half
    /// changed, so from now on it must change nothing on its devices. It is asked nothing more, and
    /// its answers to what still runs are dropped. Called in the panicking thread before anything
    /// is unwound: must not take a lock, wait, or panic.
    fn halt(&self) {}

    /// Served from now on by a server that reaches its clients like this.
    fn served(&self, clients: Arc<dyn Clients>) {
        let _ = clients;
    }

    /// The client has begun a new connection: what it was granted through earlier ones is not in
    /// use any more. Called when the connection begins, while requests of earlier ones may still
    /// run, and before the first request of this one, when they have ended; connections of a client
    /// begin one after the other. Must not wait, nor ask [`Clients`] about this client.
    fn connection_begun(&self, client: ClientId) {
        let _ = client;
    }

    /// The session of a client has begun to end, with this event to follow once its running
    /// requests have: what others wait for must not wait for these. Must not wait.
    fn session_ending(&self, event: SessionEvent) {
        let _ = event;
    }

    /// Told of each milestone of a session.
    fn session_event(self: Arc<Self>, event: SessionEvent) -> BoxFuture<'static, ()>;
}
