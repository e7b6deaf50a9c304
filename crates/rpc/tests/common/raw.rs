//! A client made by hand, frame by frame.

use bytes::Bytes;
use rpc::{
    codec::{self, opcode},
    message::{Request, session::Connect},
};
use rt::{Address, Connection, Frame, FrameHeader, Seams};
use types::Generation;

use super::{CLIENT, TARGET};

/// A client made by hand.
pub struct Raw {
    pub connection: Connection,
}

impl Raw {
    pub async fn connect(seams: &Seams, address: &Address) -> Self {
        Self { connection: seams.transport.connect(address).await.unwrap() }
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

    pub async fn hello(&mut self, change: impl FnOnce(&mut Connect)) -> Frame {
        let mut connect = Connect {
            version_min: 1,
            version_max: 1,
            features: 0,
            target: TARGET.to_owned(),
            client: CLIENT,
            client_name: "raw".to_owned(),
            connection: Generation(1),
            resume: false,
            incarnation: 0,
        };
        change(&mut connect);
        let header = FrameHeader { opcode: opcode::CONNECT.0, ..FrameHeader::default() };
        self.send(header, codec::encode(&connect).unwrap()).await;
        self.receive().await.expect("an answer to Connect")
    }

    pub fn header(&self, slot: u16, xid: u64, request: &Request) -> FrameHeader {
        FrameHeader { version: 1, opcode: opcode::of(request).0, slot, xid, connection: 1, ..FrameHeader::default() }
    }

    pub async fn request(&self, slot: u16, xid: u64, request: &Request) {
        self.send(self.header(slot, xid, request), codec::encode_request(request).unwrap()).await;
    }
}
