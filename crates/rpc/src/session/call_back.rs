//! The way of one callback: from a target to its client, and the answer back.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use rt::{Clock, Frame, FrameHeader, Sender, frame::class};
use tokio::sync::oneshot;
use types::FsError;

use super::{SessionCell, callbacks::CallbackResult};
use crate::{
    codec::{self, opcode},
    handler::CallbackHandler,
    message::{ClientRequest, session::frame_flag},
};

/// A callback without an answer for so long is sent again.
const RESEND: Duration = Duration::from_secs(5);

/// How a client is reached at present.
#[derive(Clone)]
pub enum CallbackPath {
    /// It is not.
    None,
    /// Through its connection.
    Remote(Arc<dyn Sender>),
    /// In this process.
    Local(Arc<dyn CallbackHandler>),
}

impl CallbackPath {
    /// Ends the connection, if it is one.
    pub(super) fn close(self) {
        match self {
            CallbackPath::Remote(sender) => sender.close(),
            CallbackPath::None | CallbackPath::Local(_) => {}
        }
    }
}

impl SessionCell {
    /// Makes a request to the client and waits for the answer, as long as the session exists.
    /// [`FsError::Evicted`]: the session ended; [`FsError::Busy`]: the client owes too many
    /// answers. Must not be dropped before: a callback that is not repeated may stay without an
    /// answer, and its slot in use.
    pub async fn call_back(&self, clock: &dyn Clock, request: ClientRequest) -> CallbackResult {
        let body = codec::encode(&request)?;
        let (waiter, mut answer) = oneshot::channel();
        let (slot, xid) = self.begin_callback(waiter)?;
        let (mut flags, mut sent_on, mut again) = (frame_flag::CALLBACK, None, clock.now());
        loop {
            let mut changed = std::pin::pin!(self.changed());
            changed.as_mut().enable();
            let (connection, path) = self.path();
            let is_due = sent_on != Some(connection.generation) || again <= clock.now();
            match path {
                CallbackPath::Local(handler) => {
                    let result = handler.call_back(request.clone()).await;
                    self.callback_answered(slot, xid, result);
                }
                CallbackPath::Remote(sender) if is_due => {
                    let header = FrameHeader {
                        version: connection.version,
                        opcode: opcode::of_callback(&request).0,
                        flags,
                        slot: slot.0,
                        xid: xid.0,
                        connection: connection.generation.0,
                        class: class::URGENT,
                        ..FrameHeader::default()
                    };
                    let frame = Frame::new(header, body.clone(), Bytes::new()).expect("a callback is small");
                    if let Err(error) = sender.send(frame).await {
                        tracing::debug!(client = %self.client, %error, "cannot send a callback; it will be sent again");
                    }
                    flags |= frame_flag::RESENT;
                    (sent_on, again) = (Some(connection.generation), clock.now() + RESEND);
                }
                CallbackPath::Remote(_) => {}
                CallbackPath::None => again = clock.now() + RESEND,
            }
            tokio::select! {
                biased;
                answered = &mut answer => return answered.unwrap_or(Err(FsError::Evicted)),
                // Perhaps another connection, or the end of the session.
                () = changed => {}
                () = clock.sleep_until(again) => {}
            }
        }
    }
}
