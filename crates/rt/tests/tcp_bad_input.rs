//! What TCP does with peers that do not speak the protocol.

use std::{
    io::{ErrorKind, Read, Write},
    net::TcpStream,
};

use bytes::Bytes;
use rt::{
    Address, Connection, Entropy, Frame, FrameHeader, Listener, Transport,
    buffer::BufferPool,
    memory::SeededEntropy,
    real::{Cores, TcpOptions, TcpTransport},
};
use types::limits::{BODY_BYTES_MAX, BULK_BYTES_MAX};

/// A listener on a core, which raw streams connect to.
struct Server {
    cores: Cores,
    listener: Box<dyn Listener>,
}

impl Server {
    fn start() -> Self {
        let cores = Cores::start(1).unwrap();
        let transport = TcpTransport::new(TcpOptions::default(), BufferPool::new(16 << 20));
        let listener = cores.block_on(transport.listen(&Address::from("127.0.0.1:0"))).unwrap();
        Self { cores, listener }
    }

    /// A raw stream and the server's side of it.
    fn connect(&mut self) -> (TcpStream, Connection) {
        let stream = TcpStream::connect(&*self.listener.address().0).unwrap();
        let connection = self.cores.block_on(self.listener.accept()).unwrap();
        (stream, connection)
    }

    /// What the server makes of `bytes` followed by the end of the stream: frames, and how it
    /// ended.
    fn feed(&mut self, bytes: &[u8]) -> (usize, Result<(), ErrorKind>) {
        let (mut stream, mut connection) = self.connect();
        // The server may hang up before it has read everything.
        let _ = stream.write_all(bytes);
        let _ = stream.shutdown(std::net::Shutdown::Write);
        self.cores.block_on(async {
            let mut frames = 0;
            loop {
                match connection.receiver.receive().await {
                    Ok(Some(_)) => frames += 1,
                    Ok(None) => return (frames, Ok(())),
                    Err(error) => return (frames, Err(error.kind())),
                }
            }
        })
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.cores.shutdown();
    }
}

fn wire(frame: &Frame) -> Vec<u8> {
    [&frame.header.encode()[..], &frame.body, &frame.bulk].concat()
}

fn sample(bulk_bytes: usize) -> Frame {
    Frame::new(FrameHeader::default(), Bytes::from_static(b"a body"), vec![5; bulk_bytes].into()).unwrap()
}

#[test]
fn garbage_is_refused_and_the_next_peer_is_served() {
    let mut server = Server::start();
    assert_eq!(
        server.feed(b"GET / HTTP/1.1\r\nHost: stria\r\nAccept: */*\r\nUser-Agent: curl/8.0 and more\r\n\r\n").1,
        Err(ErrorKind::InvalidData)
    );
    let garbage_behind = [wire(&sample(0)), vec![0x5a; 64]].concat();
    assert_eq!(server.feed(&garbage_behind), (1, Err(ErrorKind::InvalidData)));
    assert_eq!(server.feed(&wire(&sample(10_000))), (1, Ok(())));
}

#[test]
fn oversized_frames_are_refused_by_their_header() {
    let mut server = Server::start();
    let body = FrameHeader { body_bytes: BODY_BYTES_MAX as u32 + 1, ..Default::default() };
    let bulk = FrameHeader { bulk_bytes: BULK_BYTES_MAX as u32 + 1, ..Default::default() };
    for header in [body, bulk] {
        assert_eq!(server.feed(&header.encode()), (0, Err(ErrorKind::InvalidData)));
    }
}

#[test]
fn a_frame_that_breaks_off_is_an_error_wherever_it_does() {
    let mut server = Server::start();
    let whole = wire(&sample(5000));
    for end in [1, 63, 64, 65, 69, 70, 71, 4000, whole.len() - 1] {
        assert_eq!(server.feed(&whole[..end]), (0, Err(ErrorKind::UnexpectedEof)), "{end} bytes");
    }
    assert_eq!(server.feed(&[]), (0, Ok(())));
    assert_eq!(server.feed(&[whole.clone(), whole].concat()), (2, Ok(())));
}

#[test]
fn an_erring_connection_is_closed() {
    let mut server = Server::start();
    let (mut stream, mut connection) = server.connect();
    stream.write_all(&[0x5a; 64]).unwrap();
    let result = server.cores.block_on(connection.receiver.receive());
    assert_eq!(result.unwrap_err().kind(), ErrorKind::InvalidData);
    assert!(server.cores.block_on(connection.receiver.receive()).is_err(), "an error is permanent");
    assert!(server.cores.block_on(connection.sender.send(sample(0))).is_err());
    assert_eq!(stream.read(&mut [0; 10]).unwrap_or(0), 0, "the peer sees the end");
}

#[test]
fn frames_in_small_pieces_are_put_together() {
    let mut server = Server::start();
    let (mut stream, mut connection) = server.connect();
    let frames = [sample(0), sample(100), sample(9000)];
    let bytes: Vec<u8> = frames.iter().flat_map(wire).collect();
    let writer = std::thread::spawn(move || {
        stream.set_nodelay(true).unwrap();
        for piece in bytes.chunks(7) {
            stream.write_all(piece).unwrap();
        }
    });
    for frame in frames {
        assert!(server.cores.block_on(connection.receiver.receive()).unwrap().unwrap() == frame);
    }
    assert!(server.cores.block_on(connection.receiver.receive()).unwrap().is_none());
    writer.join().unwrap();
}

/// Random streams, and valid ones with one byte changed: never a panic, never a frame that was not
/// sent.
#[test]
fn random_streams_end_in_errors() {
    let mut server = Server::start();
    let entropy = SeededEntropy::new(42);
    for _ in 0..100 {
        let bytes: Vec<u8> = (0..entropy.below(3000)).map(|_| entropy.next_u64() as u8).collect();
        let (frames, result) = server.feed(&bytes);
        assert_eq!((frames, result.is_ok()), (0, bytes.is_empty()));
    }
    let good = wire(&sample(0));
    for at in 0..good.len() {
        let mut bytes = good.clone();
        bytes[at] ^= 1 << entropy.below(8);
        assert_eq!(server.feed(&bytes).0, 0, "byte {at}");
    }
}
