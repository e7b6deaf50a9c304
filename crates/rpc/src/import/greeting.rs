//! The client's half of the handshake that opens a connection (module [`auth`](crate::auth)).

use bytes::Bytes;
use rt::{Frame, FrameHeader, Instant, Receiver, Sender, clock, frame::class};
use types::ProtocolError;

use super::{
    driver::{End, refused},
    inner::Inner,
    trouble::Cause,
};
use crate::{
    auth::{Handshake, Ticket},
    codec::{
        self,
        opcode::{self, Opcode},
    },
    message::session::{Connect, Connected, SLOTS_MIN, frame_flag},
};

/// A connection without a session yet.
pub(super) struct Greeting<'i> {
    inner: &'i Inner,
    sender: &'i dyn Sender,
    deadline: Instant,
}

impl<'i> Greeting<'i> {
    /// On a new connection; gives up at `deadline`.
    pub(super) fn new(inner: &'i Inner, sender: &'i dyn Sender, deadline: Instant) -> Self {
        Self { inner, sender, deadline }
    }

    /// Opens a session, or continues that of `ticket`. With the answer comes the target's clock, in
    /// nanoseconds.
    pub(super) async fn greet(
        &self,
        receiver: &mut dyn Receiver,
        connect: Connect,
        ticket: Option<Ticket>,
    ) -> Result<(Connected, u64), End> {
        let generation = connect.connection.0;
        let resumes = connect.resume;
        let handshake = Handshake::begin(&self.inner.principal, connect).map_err(End::Refused)?.with_ticket(ticket);
        let unproven = |end: End| before_proof(end, resumes);
        let challenge = self.ask(receiver, opcode::CONNECT, generation, handshake.connect()).await.map_err(unproven)?;
        let prove = handshake.answer(&challenge.body).map_err(refused).map_err(unproven)?;
        let answer = self.ask(receiver, opcode::PROVE, generation, prove).await?;
        let connected = accept(codec::decode(&answer.body).map_err(garbage)?)?;
        Ok((connected, answer.header.deadline_ns))
    }

    /// Sends one message of the handshake, repeatedly in case it gets lost, and waits for its
    /// answer.
    async fn ask(
        &self,
        receiver: &mut dyn Receiver,
        opcode: Opcode,
        generation: u64,
        body: Bytes,
    ) -> Result<Frame, End> {
        // Urgent, as callbacks are, so that none arrives before the answer that opens the session.
        let class = class::URGENT;
        let header =
            FrameHeader { opcode: opcode.0, xid: generation, connection: generation, class, ..FrameHeader::default() };
        let frame = Frame::new(header, body, Bytes::new()).expect("an encoded message is within the limits");
        let clock = &*self.inner.seams.clock;
        let late = || End::Lost(Cause::NoAnswer);
        let mut receive = receiver.receive();
        loop {
            clock::timeout_at(clock, self.deadline, self.sender.send(frame.clone())).await.ok_or_else(late)??;
            let again = self.deadline.min(self.inner.now() + self.inner.options.resend);
            while let Some(received) = clock::timeout_at(clock, again, receive.as_mut()).await {
                let answer = received?.ok_or_else(|| End::lost("closed by the server"))?;
                drop(receive);
                receive = receiver.receive();
                if answer.header.opcode != opcode.0 || answer.header.xid != generation {
                    continue;
                }
                if answer.header.flags & frame_flag::ERROR != 0 {
                    return Err(refused(codec::decode(&answer.body).map_err(garbage)?));
                }
                return Ok(answer);
            }
            if self.inner.now() >= self.deadline {
                return Err(late());
            }
        }
    }
}

/// What the end of a handshake means before the server has proved its key. A process that answers
/// at the server's address may say anything, so it cannot take from a client what it has: one that
/// has a session waits for the server that gave it.
fn before_proof(end: End, resumes: bool) -> End {
    match end {
        End::Evicted => End::lost("an unauthenticated server claims that the session has ended"),
        End::Refused(error) if resumes => End::lost(format!("unauthenticated server: {error}")),
        other => other,
    }
}

fn garbage(error: codec::MessageDecodeError) -> End {
    End::lost(format!("the server's answer to the handshake: {error}"))
}

/// Refuses an answer that leaves no slot to call in: calls would wait for one forever.
fn accept(connected: Connected) -> Result<Connected, End> {
    match connected.slots {
        SLOTS_MIN.. if connected.urgent_slots > 0 => Ok(connected),
        granted => Err(End::Refused(ProtocolError::Slots { granted, needed: SLOTS_MIN }.into())),
    }
}
