//! One call: the request, and its result.

use std::fmt::{self, Write};

use bytes::Bytes;
use rt::Spawn;
use tokio::sync::oneshot;
use types::{FsError, FsResult, Generation, LockHandle, ProtocolError};

use crate::{
    codec::opcode::Family,
    message::{
        MdtReply, MdtRequest, MgsReply, MgsRequest, OstReply, OstRequest, Reply, ReplyExtension, Request,
        kind::RequestRow, lock::Enqueue, mdt::Close,
    },
};

/// A request that has replies of one type.
pub trait Ask: Send {
    /// Its replies.
    type Reply: Send;

    /// What is known of it.
    fn row(&self) -> RequestRow<'_>;

    /// The request as a target of this family understands it.
    fn addressed_to(self, family: Option<Family>) -> Request;

    /// The reply to it; an error if the target answered something else.
    fn reply(reply: Reply) -> FsResult<Self::Reply>;
}

impl Ask for Request {
    type Reply = Reply;

    fn row(&self) -> RequestRow<'_> {
        self.row()
    }

    fn addressed_to(self, _: Option<Family>) -> Request {
        self
    }

    fn reply(reply: Reply) -> FsResult<Reply> {
        Ok(reply)
    }
}

impl Ask for MdtRequest {
    type Reply = MdtReply;

    fn row(&self) -> RequestRow<'_> {
        self.row()
    }

    fn addressed_to(self, _: Option<Family>) -> Request {
        Request::Mdt(self)
    }

    fn reply(reply: Reply) -> FsResult<MdtReply> {
        match reply {
            Reply::Mdt(reply) => Ok(reply),
            other => Err(unexpected(other)),
        }
    }
}

/// An MDT is asked too, for data on it.
impl Ask for OstRequest {
    type Reply = OstReply;

    fn row(&self) -> RequestRow<'_> {
        self.row()
    }

    fn addressed_to(self, family: Option<Family>) -> Request {
        match family {
            Some(Family::Mdt) if self.row().changed_object().is_some() => Request::Mdt(MdtRequest::ChangeData(self)),
            Some(Family::Mdt) => Request::Mdt(MdtRequest::ReadData(self)),
            Some(Family::Ost | Family::Mgs) | None => Request::Ost(self),
        }
    }

    fn reply(reply: Reply) -> FsResult<OstReply> {
        match reply {
            Reply::Ost(reply) | Reply::Mdt(MdtReply::Data(reply)) => Ok(reply),
            other => Err(unexpected(other)),
        }
    }
}

impl Ask for MgsRequest {
    type Reply = MgsReply;

    fn row(&self) -> RequestRow<'_> {
        self.row()
    }

    fn addressed_to(self, _: Option<Family>) -> Request {
        Request::Mgs(self)
    }

    fn reply(reply: Reply) -> FsResult<MgsReply> {
        match reply {
            Reply::Mgs(reply) => Ok(reply),
            other => Err(unexpected(other)),
        }
    }
}

/// What a reply of the wrong kind becomes: its kind, without what it contains.
pub fn unexpected(reply: impl fmt::Debug) -> FsError {
    let mut kind = Kind(String::new());
    // Ends with an error after the name of the variant.
    let _ = write!(kind, "{reply:?}");
    ProtocolError::UnexpectedReply(kind.0).into()
}

/// Takes the name at the beginning of what is written, and nothing after it.
struct Kind(String);

impl fmt::Write for Kind {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let name = text.split(|letter: char| !letter.is_alphanumeric()).next().unwrap_or_default();
        self.0.push_str(name);
        if name.len() == text.len() { Ok(()) } else { Err(fmt::Error) }
    }
}

/// A request, and how to call with it. A request alone is a question without anything else.
#[derive(Debug)]
pub struct Question<'a, R> {
    /// The request.
    pub request: R,
    /// Bulk data, at most [`types::limits::BULK_BYTES_MAX`] bytes.
    pub bulk: Bytes,
    /// Where the outcome is left of a request that may have been, or be, executed although its
    /// caller was told that the server does not answer.
    pub late_outcome: Option<&'a mut Option<LateOutcome>>,
    /// A lock that the caller would like to have with the reply.
    pub wanted: Option<Enqueue>,
    /// Locks that are given back with the request, at most
    /// [`types::limits::LOCKS_PER_MESSAGE_MAX`].
    pub cancels: Vec<LockHandle>,
    /// Opens that end with the request, at most [`types::limits::CLOSES_PER_MESSAGE_MAX`].
    pub closes: Vec<Close>,
}

impl<R: Ask> From<R> for Question<'_, R> {
    fn from(request: R) -> Self {
        Self { request, bulk: Bytes::new(), late_outcome: None, wanted: None, cancels: Vec::new(), closes: Vec::new() }
    }
}

impl<'a, R: Ask> Question<'a, R> {
    /// With bulk data.
    pub fn with_bulk(request: R, bulk: Bytes) -> Self {
        Self { request, bulk, late_outcome: None, wanted: None, cancels: Vec::new(), closes: Vec::new() }
    }

    /// With interest in the outcome of the request.
    pub fn with_late_outcome(request: R, late_outcome: &'a mut Option<LateOutcome>) -> Self {
        Self {
            request,
            bulk: Bytes::new(),
            late_outcome: Some(late_outcome),
            wanted: None,
            cancels: Vec::new(),
            closes: Vec::new(),
        }
    }
}

/// What a call brought back.
#[derive(Clone, Debug, PartialEq)]
pub struct Answered<R = Reply> {
    /// The reply.
    pub reply: R,
    /// Bulk data that came with it.
    pub bulk: Bytes,
    /// What came with it.
    pub extension: ReplyExtension,
    /// [`era`] of the connection through which it came. What the reply acknowledges survived the
    /// power losses up to then; it may not survive the next one.
    ///
    /// [`era`]: crate::message::session::Connected::era
    pub era: u64,
    /// The connection through which the request was sent first. If the reply came through another
    /// one, locks granted with it ended with this one.
    pub connection: Generation,
}

/// Outcome of a call, as it reaches the caller.
pub(super) type CallResult = FsResult<Answered>;

/// The receiver of the result of a call.
pub(super) type Caller = oneshot::Sender<CallResult>;

/// What becomes of a request whose caller was told that the server does not answer.
#[derive(Debug)]
pub struct LateOutcome(pub(super) oneshot::Receiver<CallResult>);

impl LateOutcome {
    /// Waits until the request is no longer in flight: its answer, if the server gave one after
    /// all; `None`: it was executed or never will be, and it is unknown which.
    pub async fn known(self) -> Option<FsResult<Answered>> {
        self.0.await.ok()
    }

    /// The same, for the next in line: `first` is done as soon as it is known.
    pub fn after(self, spawn: &dyn Spawn, first: impl FnOnce() + Send + 'static) -> Self {
        let (tell, told) = oneshot::channel();
        let work = async move {
            let known = self.0.await;
            first();
            if let Ok(known) = known {
                // The next in line may have lost interest.
                let _ = tell.send(known);
            }
        };
        spawn.spawn("late outcome", Box::pin(work));
        Self(told)
    }
}
