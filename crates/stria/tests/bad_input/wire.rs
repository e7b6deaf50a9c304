//! Peers that do not speak the protocol, or stop in the middle: they lose their connection, and
//! others are not affected.

use std::{
    fs,
    io::{ErrorKind, Read, Write},
    net::TcpStream,
    time::Duration,
};

use bytes::Bytes;
use rpc::{
    Keyring, Principal, Role,
    auth::Handshake,
    codec::{
        self,
        opcode::{self, Opcode},
    },
    message::{
        OstRequest, Request, ost,
        session::{Connect, VERSION_MAX},
    },
    server::BYTES_IN_WORK_MAX,
};
use rt::{Frame, FrameHeader, frame::HEADER_BYTES, transport::QUEUED_BYTES_MAX};
use types::{InodeNumber, ObjectId, limits};

use crate::{
    common::{TIMEOUT, wait_for},
    site::{Site, timed},
};

const SERVER: &str = "10.77.0.1:988";

fn connect(site: &Site) -> TcpStream {
    let stream = site.host.within(|| TcpStream::connect(SERVER)).unwrap();
    stream.set_read_timeout(Some(TIMEOUT)).unwrap();
    stream.set_write_timeout(Some(TIMEOUT)).unwrap();
    stream
}

fn frame(header: FrameHeader, body: &[u8], bulk: &[u8]) -> Vec<u8> {
    let frame = Frame::new(header, Bytes::copy_from_slice(body), Bytes::copy_from_slice(bulk)).unwrap();
    [&frame.header.encode()[..], &frame.body, &frame.bulk].concat()
}

/// What a client says first.
fn connect_message(target: &str, principal: &Principal) -> Connect {
    Connect { features: u64::MAX, ..Connect::of_test(target, principal) }
}

fn connect_frame(target: &str, client: u64) -> Vec<u8> {
    let connect = connect_message(target, &Principal::of_test(client, Role::Client));
    greeting_frame(opcode::CONNECT, &codec::encode(&connect).unwrap())
}

/// A message of the handshake.
fn greeting_frame(opcode: Opcode, body: &[u8]) -> Vec<u8> {
    frame(FrameHeader { opcode: opcode.0, connection: 1, ..FrameHeader::default() }, body, &[])
}

/// Opens a session with the site's key of clients.
fn open_session(site: &Site, stream: &mut TcpStream, target: &str, client: u64) {
    let text = fs::read_to_string(site.place("mgs").join("client.key")).unwrap();
    let key = text.lines().find_map(|line| line.strip_prefix("stria-client-key-1 stria ")).unwrap();
    let principal = Principal::of_test(client, Role::Client).with_keys(Keyring::client(key.parse().unwrap()));
    let handshake = Handshake::begin(&principal, connect_message(target, &principal)).unwrap();
    stream.write_all(&greeting_frame(opcode::CONNECT, &handshake.connect())).unwrap();
    let (header, challenge) = receive_frame(stream).unwrap();
    assert_eq!(header.flags, 1, "no error");
    stream.write_all(&greeting_frame(opcode::PROVE, &handshake.answer(&challenge).unwrap())).unwrap();
    assert_eq!(receive(stream).unwrap().flags, 1, "the session is open");
}

fn request_frame(request: &Request, slot: u16, xid: u64) -> Vec<u8> {
    let opcode = opcode::of(request).0;
    let header = FrameHeader { version: VERSION_MAX, opcode, slot, xid, connection: 1, ..FrameHeader::default() };
    frame(header, &codec::encode_request(&Default::default(), request).unwrap().bytes, &[])
}

fn read(bytes: u32) -> Request {
    let object = ObjectId::new(InodeNumber(0x100), 0);
    Request::Ost(OstRequest::Read(ost::Read { object, offset: 0, bytes, layout_generation: 0 }))
}

/// The next frame's header; its contents are skipped.
fn receive(stream: &mut TcpStream) -> std::io::Result<FrameHeader> {
    receive_frame(stream).map(|(header, _)| header)
}

/// The next frame's header, and all that follows it.
fn receive_frame(stream: &mut TcpStream) -> std::io::Result<(FrameHeader, Vec<u8>)> {
    let mut header = [0; HEADER_BYTES];
    stream.read_exact(&mut header)?;
    let header = FrameHeader::decode(&header)?;
    let mut rest = vec![0; (header.body_bytes + header.bulk_bytes) as usize];
    stream.read_exact(&mut rest)?;
    Ok((header, rest))
}

/// Reads until the server hangs up.
#[track_caller]
fn expect_hang_up(mut stream: TcpStream, what: &str) {
    let mut rest = Vec::new();
    match stream.read_to_end(&mut rest) {
        Ok(_) => {}
        Err(error) => assert_eq!(error.kind(), ErrorKind::ConnectionReset, "{what}: {error}"),
    }
}

/// The file system works, and promptly.
#[track_caller]
fn expect_service(site: &Site, name: &str) {
    let ((), took) = timed(|| {
        fs::write(site.path(name), vec![9; 3 << 20]).unwrap();
        assert_eq!(fs::read(site.path(name)).unwrap(), vec![9; 3 << 20]);
        fs::remove_file(site.path(name)).unwrap();
    });
    assert!(took < Duration::from_secs(20), "others wait: {took:?}");
}

#[test]
fn garbage_ends_its_own_connection_only() {
    let site = Site::running(1);
    let mut wrong_checksum = connect_frame("MGS", 5);
    wrong_checksum[20] ^= 1;
    let mut wrong_body = connect_frame("MGS", 5);
    *wrong_body.last_mut().unwrap() ^= 1;
    let mut oversized = FrameHeader { opcode: opcode::CONNECT.0, ..FrameHeader::default() };
    oversized.body_bytes = limits::BODY_BYTES_MAX as u32 + 1;
    let mut oversized_bulk = oversized;
    (oversized_bulk.body_bytes, oversized_bulk.bulk_bytes) = (0, u32::MAX);
    let unknown_opcode =
        FrameHeader { version: VERSION_MAX, opcode: 0x02ff, connection: 1, xid: 1, ..Default::default() };
    let wrong_slot = request_frame(&read(1), u16::MAX, 1);
    for (what, bytes) in [
        ("text", b"GET / HTTP/1.1\r\nHost: stria\r\n\r\n".to_vec()),
        ("zeros", vec![0; 4096]),
        ("noise", crate::large_contents()),
        ("a damaged header", wrong_checksum),
        ("a damaged body", wrong_body),
        ("an oversized body", oversized.encode().to_vec()),
        ("oversized bulk data", oversized_bulk.encode().to_vec()),
        ("a request before Connect", request_frame(&read(1), 0, 1)),
        ("a slot that was not granted", wrong_slot),
        ("an opcode of another family", request_frame(&opcode::Family::Mdt.ping(), 0, 1)),
        (
            "nonsense as Connect",
            frame(FrameHeader { opcode: opcode::CONNECT.0, ..Default::default() }, b"\xff\xff\xff", &[]),
        ),
        ("a client with another key", connect_frame("stria-OST0000", 6)),
        ("a frame cut off", connect_frame("MGS", 7)[..70].to_vec()),
        ("an unknown request", frame(unknown_opcode, &[], &[])),
    ] {
        let mut stream = connect(&site);
        if ["a slot that was not granted", "an opcode of another family", "an unknown request"].contains(&what) {
            open_session(&site, &mut stream, "stria-OST0000", 77);
        }
        // The server may hang up before it has read everything.
        let _ = stream.write_all(&bytes);
        if ["a frame cut off", "an unknown request", "an opcode of another family", "a client with another key"]
            .contains(&what)
        {
            // These leave a connection that could continue.
            let _ = stream.shutdown(std::net::Shutdown::Write);
        }
        expect_hang_up(stream, what);
        expect_service(&site, "probe");
    }
    let log = site.log();
    assert!(
        log.contains("connection closed because of invalid input") && log.contains("not a StriaFS client or server"),
        "{log}"
    );
    site.expect_clean();
}

#[test]
fn a_client_that_stops_reading_holds_up_nobody_and_little_memory() {
    let site = Site::running(1);
    let path = site.file_on("large", 0);
    fs::write(&path, crate::large_contents().repeat(4)).unwrap();
    let inode = wait_for("the object", TIMEOUT, || object_of(&site));
    let before = site.daemon_memory();
    let mut streams = Vec::new();
    for client in 0..4 {
        let mut stream = connect(&site);
        open_session(&site, &mut stream, "stria-OST0000", 1000 + client);
        // As many reads as the session has slots, without ever looking at a reply.
        let object = ObjectId::new(InodeNumber(inode), 0);
        let request = Request::Ost(OstRequest::Read(ost::Read {
            object,
            offset: 0,
            bytes: limits::BULK_BYTES_MAX as u32,
            layout_generation: 0,
        }));
        stream.set_nonblocking(true).unwrap();
        for slot in 0..limits::SESSION_SLOTS_MAX {
            // Blocked is as good: the server reads no more from it.
            if stream.write(&request_frame(&request, slot, 1)).is_err() {
                break;
            }
        }
        streams.push(stream);
    }
    for number in 0..5 {
        expect_service(&site, &format!("probe{number}"));
    }
    // What a connection may have in work, and what the transport queues, bounds what its unread
    // replies take.
    let bound = (streams.len() * (BYTES_IN_WORK_MAX + QUEUED_BYTES_MAX)) as u64;
    let grown = site.daemon_memory().saturating_sub(before);
    assert!(grown < bound * 5 / 4, "{} MiB for clients that do not read", grown >> 20);
    drop(streams);
    expect_service(&site, "probe");
    site.expect_clean();
}

/// The inode of the one object that has a host file.
fn object_of(site: &Site) -> Option<u64> {
    let directories = fs::read_dir(site.place("ost0/objects")).ok()?;
    directories.flatten().find_map(|directory| {
        let name = fs::read_dir(directory.path()).ok()?.flatten().next()?.file_name();
        u64::from_str_radix(name.to_str()?.split('.').next()?, 16).ok()
    })
}

#[test]
fn many_silent_connections_hold_up_nobody_and_are_closed() {
    let site = Site::running(1);
    let mut streams: Vec<TcpStream> = (0..500).map(|_| connect(&site)).collect();
    for stream in streams.iter_mut().step_by(2) {
        // Looks like a frame, as far as it goes.
        stream.write_all(b"STRIA").unwrap();
    }
    expect_service(&site, "probe");
    for stream in streams {
        expect_hang_up(stream, "silence");
    }
    assert!(site.log().contains("no session in time"));
    expect_service(&site, "probe");
}
