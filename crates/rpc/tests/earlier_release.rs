//! The last release before generation 2 (protocol version 1) against this one: what its program
//! sent and answered over TCP, recorded byte by byte. It spoke first to the MGS: it never came
//! further.

use std::{
    io::{Read, Write},
    net::{TcpListener, TcpStream},
    sync::Arc,
    thread,
};

use rpc::{
    Endpoint, Keyring, Principal, Role, Server, ServerOptions, codec, codec::opcode, message::session::frame_flag,
};
use rt::{
    Address, FrameHeader, Seams,
    buffer::BufferPool,
    frame::HEADER_BYTES,
    memory::{self, MemoryTransport},
    real::{TcpOptions, TcpTransport},
};
use types::{FsError, ProtocolError};

use crate::common::{LONG_LEASE, quick, read};

const MGS: &str = "MGS";

/// `Connect` of `stria mount` of that release: name `vm:26449`, no claim of a key.
const ITS_CONNECT: &str = "\
    5354524900000100000000001e00000000000000301b542c0100000000000000\
    01000000000000000000000000000000000000000000000000000000bc9ddbd8\
    1d010101034d47539cafc0f69c9ab5d0f10108766d3a3236343439010000";
/// What its `stria serve` answered to `Connect` of generation 2, from `vm:26654`.
const ITS_ANSWER: &str = "\
    5354524900000100030000003d00000000000000213ef0130100000000000000\
    01000000000000009b354725020000000000000000000000000000007eecbc55\
    243b766d3a323636353420737065616b732070726f746f636f6c207665727369\
    6f6e73203220746f20322c204d475320737065616b73203120746f2031";

fn bytes(digits: &str) -> Vec<u8> {
    (0..digits.len()).step_by(2).map(|at| u8::from_str_radix(&digits[at..at + 2], 16).unwrap()).collect()
}

fn seams() -> Seams {
    let transport = TcpTransport::new(TcpOptions::default(), BufferPool::new(1 << 24));
    Seams { transport: Arc::new(transport), ..memory::seams(&MemoryTransport::new(), 1) }
}

/// A frame of either generation.
fn receive(stream: &mut TcpStream) -> (FrameHeader, Vec<u8>) {
    let mut header = [0; HEADER_BYTES];
    stream.read_exact(&mut header).unwrap();
    let header = FrameHeader::decode(&header).unwrap();
    let mut body = vec![0; header.body_bytes as usize];
    stream.read_exact(&mut body).unwrap();
    (header, body)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn its_client_is_told_which_versions_do_not_match() {
    let server = Server::new(seams(), ServerOptions::new(Keyring::of_test()));
    server.add_target(MGS, crate::common::Counter::new(&Arc::default()), LONG_LEASE);
    let address = server.listen(&Address::from("127.0.0.1:0")).await.unwrap().to_string();
    let answer = tokio::task::spawn_blocking(move || {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.write_all(&bytes(ITS_CONNECT)).unwrap();
        let answer = receive(&mut stream);
        assert_eq!(stream.read(&mut [0]).unwrap(), 0, "then the server hangs up");
        answer
    });
    let (header, body) = answer.await.unwrap();
    assert_eq!((header.opcode, header.flags), (opcode::CONNECT.0, frame_flag::REPLY | frame_flag::ERROR));
    // That release shows this text as it comes.
    let error: FsError = codec::decode(&body).unwrap();
    assert_eq!(error, ProtocolError::Told(refusal("vm:26449", 1, 2)).into());
    assert!(server.sessions(MGS).is_empty());
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn its_server_is_named_as_the_cause() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = Address::from(listener.local_addr().unwrap().to_string().as_str());
    let posing = thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let (header, _) = receive(&mut stream);
        stream.write_all(&bytes(ITS_ANSWER)).unwrap();
        header
    });
    let seams = seams();
    let principal = Principal::of_test(1, Role::Client);
    let import = rpc::Import::new(seams, MGS, Endpoint::Remote(address.into()), principal, quick(), None);
    let said = "protocol error: vm:26654 speaks protocol versions 2 to 2, MGS speaks 1 to 1";
    assert_eq!(import.refusal().await.to_string(), said, "in the words of that release");
    assert_eq!(crate::common::call(&import, read()).await.unwrap_err().to_string(), said, "and so is each call");
    assert_eq!(posing.join().unwrap().opcode, opcode::CONNECT.0);
}

fn refusal(client: &str, its: u16, ours: u16) -> String {
    format!(
        "{client} speaks version {its} of the protocol, {MGS} speaks version {ours}; use the same release of StriaFS on \
         all hosts"
    )
}
