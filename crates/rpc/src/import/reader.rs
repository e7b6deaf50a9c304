//! Reads the replies of one connection.
//!
//! A task of its own, on the core whose tasks wait for the replies ([`Follow`]): it moves by ending
//! on one core and starting on another, and takes the receiving half along, so there is one reader
//! at any time and no reply is read twice or lost.
//!
//! Life cycle: begins with its connection, ends with it, and says why. The driver may abandon the
//! connection before, by closing it. What is read then still answers requests of this connection,
//! as long as there is no newer one.

use std::sync::Arc;

use rt::{BoxFuture, FrameHeader, Receiver, Sender};
use tokio::sync::oneshot;
use types::Generation;

use super::{core::Received, driver::End, follow::Follow, handle::Hook, inner::Inner};
use crate::{
    cost,
    handler::CallbackHandler,
    message::{ClientRequest, session::frame_flag},
};

/// See the module documentation.
pub(super) struct Reader {
    inner: Arc<Inner>,
    /// For answers to callbacks.
    sender: Arc<dyn Sender>,
    receiver: Box<dyn Receiver>,
    generation: Generation,
    follow: Follow,
    /// Told why the connection ended; closed if the driver turned away from it.
    ended: oneshot::Sender<End>,
}

/// What ends the reading on one core.
enum Stop {
    /// The connection has ended.
    End(End),
    /// The driver does not listen any more.
    Abandoned,
    /// The replies are for tasks of another core.
    Move(usize),
}

impl Reader {
    /// Starts to read on the present core; the receiver is told why the connection ended. It is
    /// closed without a word if the core stops.
    pub(super) fn start(
        inner: &Arc<Inner>,
        sender: &Arc<dyn Sender>,
        receiver: Box<dyn Receiver>,
        generation: Generation,
    ) -> oneshot::Receiver<End> {
        let (ended, end) = oneshot::channel();
        let home = inner.seams.spawn.here();
        let (inner, sender, follow) = (inner.clone(), sender.clone(), Follow::new(home));
        Self { inner, sender, receiver, generation, follow, ended }.begin(home);
        end
    }

    fn begin(self, core: usize) {
        let spawn = self.inner.seams.spawn.clone();
        let work: BoxFuture<'static, ()> = Box::pin(self.run());
        spawn.spawn_on(core, "replies", work);
    }

    async fn run(mut self) {
        let stop = loop {
            let received = tokio::select! {
                biased;
                received = self.receiver.receive() => received,
                () = self.ended.closed() => break Stop::Abandoned,
            };
            let frame = match received {
                Ok(Some(frame)) => frame,
                Ok(None) => break Stop::End(End::lost("closed by the server")),
                Err(error) => break Stop::End(error.into()),
            };
            cost::spend_on_frame_in(&self.inner.seams.cpu, &frame).await;
            if let Some(stop) = self.on_frame(frame) {
                break stop;
            }
        };
        match stop {
            Stop::End(end) => {
                // A driver that turned away needs no reason.
                let _ = self.ended.send(end);
            }
            Stop::Abandoned => {}
            Stop::Move(core) => {
                self.receiver.leave_core();
                self.begin(core);
            }
        }
    }

    fn on_frame(&mut self, frame: rt::Frame) -> Option<Stop> {
        let inner = &*self.inner;
        let refused = frame.header.flags & (frame_flag::BUSY | frame_flag::EXPIRED) != 0;
        // Random numbers are a system call.
        let jitter = if refused { inner.seams.entropy.next_u64() } else { 0 };
        let now = inner.now();
        let received = {
            let core = &mut inner.guarded.lock().core;
            if core.generation != self.generation {
                return Some(Stop::Abandoned);
            }
            core.receive(now, frame, jitter)
        };
        match received {
            Received::Nothing => None,
            Received::Earlier => {
                inner.resend.notify_one();
                None
            }
            Received::Complete(completion) => {
                let follower = completion.caller_core.and_then(|core| self.follow.reply_for(core));
                inner.complete(completion);
                follower.map(Stop::Move)
            }
            // Its caller hears of it with all others.
            Received::Evicted => Some(Stop::End(End::Evicted)),
            Received::Callback(header, request) => {
                let work = answer_callback(self.inner.clone(), self.sender.clone(), header, request);
                inner.seams.spawn.spawn("callback", Box::pin(work));
                None
            }
            Received::Answer(frame) => {
                let sender = self.sender.clone();
                let send = async move {
                    // If the connection is gone, the target asks again.
                    let _ = sender.send(frame).await;
                };
                inner.seams.spawn.spawn("callback", Box::pin(send));
                None
            }
            Received::Garbage(reason) => Some(Stop::End(End::lost(reason))),
        }
    }
}

/// Executes a callback and answers it. In a task of its own: replies are read whatever it waits
/// for.
async fn answer_callback(inner: Arc<Inner>, sender: Arc<dyn Sender>, header: FrameHeader, request: ClientRequest) {
    let result = Hook(inner.recovery.clone()).call_back(request).await;
    let answer = inner.guarded.lock().core.call_back_done(header, &result);
    if let Err(error) = sender.send(answer).await {
        tracing::debug!(target = %inner.target, %error, "cannot answer a callback; the target will ask again");
    }
}

impl Inner {
    /// A call is over: its slot is free, its caller is told.
    fn complete(&self, completion: super::core::Completion) {
        self.slot_freed(completion.purpose);
        completion.deliver();
    }
}
