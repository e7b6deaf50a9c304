//! A client made by hand, frame by frame.

use bytes::Bytes;
use rpc::{
    Principal, Role,
    auth::{Handshake, Ticket},
    codec::{
        self,
        opcode::{self, Opcode},
    },
    message::{
        Request,
        session::{Connect, frame_flag},
    },
};
use rt::{Address, Connection, Frame, FrameHeader, Seams};

use super::{TARGET, principal};

/// The first message of a client made by hand.
pub fn connect(principal: &Principal) -> Connect {
    Connect { role: Role::Client, ..Connect::of_test(TARGET, principal) }
}

/// A client made by hand.
pub struct Raw {
    pub connection: Connection,
    /// Shown with the proof.
    pub ticket: Option<Ticket>,
}

impl Raw {
    pub async fn connect(seams: &Seams, address: &Address) -> Self {
        Self { connection: seams.transport.connect(address).await.unwrap(), ticket: None }
    }

    pub async fn send(&self, header: FrameHeader, body: Bytes) {
        self.send_with(header, body, Bytes::new()).await;
    }

    pub async fn send_with(&self, header: FrameHeader, body: Bytes, bulk: Bytes) {
        self.connection.sender.send(Frame::new(header, body, bulk).unwrap()).await.unwrap();
    }

    pub async fn receive(&mut self) -> Option<Frame> {
        self.connection.receiver.receive().await.unwrap()
    }

    /// Opens a session as the first client.
    pub async fn hello(&mut self, change: impl FnOnce(&mut Connect)) -> Frame {
        self.hello_as(1, change).await
    }

    /// Opens a session as the n-th client.
    pub async fn hello_as(&mut self, number: u64, change: impl FnOnce(&mut Connect)) -> Frame {
        let principal = principal(number);
        let mut connect = connect(&principal);
        change(&mut connect);
        self.greet(&principal, connect).await
    }

    /// Both messages of the handshake; the answer to the second, or to the first if that is an
    /// error.
    pub async fn greet(&mut self, principal: &Principal, connect: Connect) -> Frame {
        let handshake = Handshake::begin(principal, connect).unwrap().with_ticket(self.ticket);
        let answer = self.ask(opcode::CONNECT, handshake.connect()).await;
        if answer.header.flags & frame_flag::ERROR != 0 {
            return answer;
        }
        let prove = handshake.answer(&answer.body).expect("the server proves its key");
        self.ask(opcode::PROVE, prove).await
    }

    /// Sends a message of the handshake and receives its answer.
    pub async fn ask(&mut self, opcode: Opcode, body: Bytes) -> Frame {
        self.send(FrameHeader { opcode: opcode.0, ..FrameHeader::default() }, body).await;
        self.receive().await.expect("an answer of the handshake")
    }

    pub fn header(&self, slot: u16, xid: u64, request: &Request) -> FrameHeader {
        FrameHeader { version: 2, opcode: opcode::of(request).0, slot, xid, connection: 1, ..FrameHeader::default() }
    }

    pub async fn request(&self, slot: u16, xid: u64, request: &Request) {
        self.send(self.header(slot, xid, request), codec::encode_request(&Default::default(), request).unwrap().bytes)
            .await;
    }
}
