//! The contract of `rt::Transport`, run over every implementation.

use std::{future::poll_fn, io::ErrorKind, pin::pin, sync::Arc, task::Poll, time::Duration};

use bytes::Bytes;
use rt::{
    Address, Connection, Frame, FrameHeader, Listener, Sender, Transport,
    buffer::BufferPool,
    fault::FaultyTransport,
    frame::class,
    memory::{self, MemoryTransport},
    real::{Cores, TcpOptions, TcpTransport},
};
use types::limits::{BODY_BYTES_MAX, BULK_BYTES_MAX};

/// The implementations, and an address where each lets one listen.
fn subjects() -> Vec<(&'static str, Arc<dyn Transport>, &'static str)> {
    let faulty = FaultyTransport::new(&memory::seams(&MemoryTransport::new(), 1));
    vec![
        ("faulty, without faults", Arc::new(faulty), "node:0"),
        ("memory", Arc::new(MemoryTransport::new()), "node:0"),
        ("tcp", Arc::new(TcpTransport::new(TcpOptions::default(), BufferPool::new(64 << 20))), "127.0.0.1:0"),
    ]
}

/// Both sides of one connection, and its listener.
struct Pair {
    here: Connection,
    there: Connection,
    listener: Box<dyn Listener>,
}

async fn pair(transport: &Arc<dyn Transport>, address: &str) -> Pair {
    let mut listener = transport.listen(&Address::from(address)).await.unwrap();
    let here = transport.connect(&listener.address()).await.unwrap();
    let there = listener.accept().await.unwrap();
    Pair { here, there, listener }
}

/// Runs one clause over all implementations, in one thread and with both ends on cores of their
/// own.
fn check<F: Future<Output = ()> + Send + 'static>(clause: impl Fn(Arc<dyn Transport>, &'static str) -> F) {
    for (name, transport, address) in subjects() {
        eprintln!("transport: {name}, one thread");
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(clause(transport, address));
    }
    for (name, transport, address) in subjects() {
        eprintln!("transport: {name}, from outside the cores");
        let cores = Cores::start(2).unwrap();
        cores.block_on(clause(transport, address));
        cores.shutdown();
    }
}

fn frame(xid: u64, body: &[u8], bulk: Bytes) -> Frame {
    Frame::new(FrameHeader { xid, version: 1, ..Default::default() }, Bytes::copy_from_slice(body), bulk).unwrap()
}

/// Bulk data that differ from place to place.
fn pattern(bytes: usize, seed: u64) -> Bytes {
    (0..bytes).map(|at| (at as u64 / 7 * 31 + seed) as u8).collect::<Vec<u8>>().into()
}

#[test]
fn frames_of_all_sizes_arrive_whole_and_in_order() {
    check(|transport, address| async move {
        let Pair { here, mut there, .. } = pair(&transport, address).await;
        let bulks = [0, 1, 4095, 4096, 4097, 65_536, 0, 1 << 20, 5, BULK_BYTES_MAX, 0, 100_000];
        let bodies = [0, 1, 63, 64, 65, 4096, 70_000, 3, BODY_BYTES_MAX, 0, 100, 200];
        let frames: Vec<Frame> = (0..48)
            .map(|number| {
                let (body, bulk) = (bodies[number * 5 % bodies.len()], bulks[number * 7 % bulks.len()]);
                frame(number as u64, &pattern(body, 1), pattern(bulk, number as u64))
            })
            .collect();
        let sent = frames.clone();
        let sender = here.sender.clone();
        let sending = tokio::spawn(async move {
            for frame in sent {
                sender.send(frame).await.unwrap();
            }
        });
        for expected in frames {
            let received = there.receiver.receive().await.unwrap().expect("not the end yet");
            assert!(received == expected, "frame {} differs", expected.header.xid);
        }
        sending.await.unwrap();
    });
}

#[test]
fn both_directions_and_many_callers_share_a_connection() {
    check(|transport, address| async move {
        let Pair { mut here, mut there, .. } = pair(&transport, address).await;
        let echo = tokio::spawn(async move {
            while let Some(frame) = there.receiver.receive().await.unwrap() {
                there.sender.send(frame).await.unwrap();
            }
        });
        let callers: Vec<_> = (0..8u64)
            .map(|caller| {
                let sender = here.sender.clone();
                tokio::spawn(async move {
                    for number in 0..100u64 {
                        sender.send(frame(caller << 32 | number, b"ping", Bytes::new())).await.unwrap();
                    }
                })
            })
            .collect();
        let mut next = [0; 8];
        for _ in 0..800 {
            let xid = here.receiver.receive().await.unwrap().unwrap().header.xid;
            let caller = (xid >> 32) as usize;
            assert_eq!(xid & 0xffff_ffff, next[caller], "each caller's frames stay in order");
            next[caller] += 1;
        }
        for caller in callers {
            caller.await.unwrap();
        }
        here.sender.close();
        echo.await.unwrap();
    });
}

#[test]
fn what_was_sent_before_a_close_is_received() {
    check(|transport, address| async move {
        let Pair { mut here, mut there, .. } = pair(&transport, address).await;
        for number in 0..10 {
            here.sender.send(frame(number, b"last words", pattern(100_000, number))).await.unwrap();
        }
        here.sender.close();
        let refused = here.sender.send(frame(10, b"", Bytes::new())).await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::BrokenPipe);
        assert!(here.receiver.receive().await.unwrap().is_none(), "a close ends both directions");
        for number in 0..10 {
            assert_eq!(there.receiver.receive().await.unwrap().unwrap().header.xid, number);
        }
        assert!(there.receiver.receive().await.unwrap().is_none());
        here.sender.close();
    });
}

#[test]
fn dropping_either_half_ends_the_connection() {
    check(|transport, address| async move {
        let Pair { here, mut there, .. } = pair(&transport, address).await;
        here.sender.send(frame(1, b"x", Bytes::new())).await.unwrap();
        let Connection { sender, receiver, .. } = here;
        drop(sender);
        assert_eq!(there.receiver.receive().await.unwrap().unwrap().header.xid, 1);
        assert!(there.receiver.receive().await.unwrap().is_none());
        drop((receiver, there));

        let Pair { here, mut there, .. } = pair(&transport, address).await;
        let Connection { sender, receiver, .. } = here;
        drop(receiver);
        assert!(there.receiver.receive().await.unwrap().is_none());
        assert!(sender.send(frame(1, b"x", Bytes::new())).await.is_err());
    });
}

#[test]
fn a_sender_learns_that_its_peer_is_gone() {
    check(|transport, address| async move {
        let Pair { mut here, there, .. } = pair(&transport, address).await;
        drop(there);
        assert!(!matches!(here.receiver.receive().await, Ok(Some(_))));
        // TCP may accept a frame or more before it learns.
        while here.sender.send(frame(1, b"x", Bytes::new())).await.is_ok() {
            tokio::task::yield_now().await;
        }
    });
}

#[test]
fn a_receive_that_is_given_up_loses_nothing() {
    check(|transport, address| async move {
        let Pair { here, mut there, .. } = pair(&transport, address).await;
        let sender = here.sender.clone();
        let sending = tokio::spawn(async move {
            for number in 0..20 {
                sender.send(frame(number, b"body", pattern(300_000, number))).await.unwrap();
            }
        });
        for number in 0..20 {
            let received = loop {
                let attempt = {
                    let mut attempt = pin!(there.receiver.receive());
                    std::future::poll_fn(|context| std::task::Poll::Ready(attempt.as_mut().poll(context))).await
                };
                match attempt {
                    std::task::Poll::Ready(result) => break result.unwrap().unwrap(),
                    std::task::Poll::Pending => tokio::task::yield_now().await,
                }
            };
            assert_eq!(received.header.xid, number);
            assert!(received.bulk == pattern(300_000, number));
        }
        sending.await.unwrap();
    });
}

#[test]
fn a_peer_that_does_not_read_stops_its_own_sender_only() {
    check(|transport, address| async move {
        const FRAMES: u64 = 128;
        let Pair { here, mut there, mut listener } = pair(&transport, address).await;
        let megabyte = pattern(1 << 20, 1);
        let sender = here.sender.clone();
        let bulk = megabyte.clone();
        let sending = tokio::spawn(async move {
            for number in 0..FRAMES {
                sender.send(frame(number, b"", bulk.clone())).await.unwrap();
            }
        });
        // Meanwhile another connection works.
        let mut other = transport.connect(&listener.address()).await.unwrap();
        let mut other_there = listener.accept().await.unwrap();
        for number in 0..200 {
            other.sender.send(frame(number, b"ping", Bytes::new())).await.unwrap();
            let request = other_there.receiver.receive().await.unwrap().unwrap();
            other_there.sender.send(request).await.unwrap();
            assert_eq!(other.receiver.receive().await.unwrap().unwrap().header.xid, number);
        }
        assert!(!sending.is_finished(), "128 MiB exceed the bound and all buffers of the network");
        for number in 0..FRAMES {
            let received = there.receiver.receive().await.unwrap().unwrap();
            assert_eq!(received.header.xid, number);
            assert!(received.bulk == megabyte);
        }
        sending.await.unwrap();
    });
}

/// Queues frames of a megabyte, numbered from 0, until there is room for no more; returns how many.
async fn fill(sender: &dyn Sender) -> u64 {
    let megabyte = pattern(1 << 20, 1);
    for number in 0.. {
        let mut sending = sender.send(frame(number, b"", megabyte.clone()));
        // Those that write may be about to.
        let is_full = async {
            for _ in 0..100 {
                let poll = poll_fn(|context| Poll::Ready(sending.as_mut().poll(context))).await;
                match poll {
                    Poll::Ready(sent) => return sent.map(|()| false).unwrap(),
                    Poll::Pending => tokio::task::yield_now().await,
                }
            }
            true
        };
        if is_full.await {
            return number;
        }
    }
    unreachable!("a bound ends it")
}

#[test]
fn urgent_frames_leave_before_queued_others_and_in_their_order() {
    check(|transport, address| async move {
        let Pair { here, mut there, .. } = pair(&transport, address).await;
        let others = fill(&*here.sender).await;
        for number in 0..3 {
            let header = FrameHeader { xid: others + number, class: class::URGENT, ..Default::default() };
            let urgent = Frame::new(header, Bytes::from_static(b"now"), Bytes::new()).unwrap();
            let sending = tokio::time::timeout(Duration::from_secs(30), here.sender.send(urgent));
            sending.await.expect("it does not wait for the room that others take").unwrap();
        }
        let mut arrived = Vec::new();
        for _ in 0..others + 3 {
            arrived.push(there.receiver.receive().await.unwrap().unwrap().header.xid);
        }
        let (urgent, rest): (Vec<u64>, Vec<u64>) = arrived.iter().partition(|xid| **xid >= others);
        assert_eq!(urgent, [others, others + 1, others + 2], "urgent ones in their order");
        assert!(rest.iter().copied().eq(0..others), "all others in theirs");
        // The sockets of TCP have taken some of the others before.
        let passed = others as usize - arrived.iter().position(|xid| *xid == others).unwrap();
        assert!(passed >= 3, "passed {passed} of {others} queued frames");
    });
}

#[test]
fn closing_frees_a_sender_that_waits_for_space() {
    check(|transport, address| async move {
        let Pair { here, there, .. } = pair(&transport, address).await;
        let bulk = pattern(BULK_BYTES_MAX, 1);
        let sender = here.sender.clone();
        let sending = tokio::spawn(async move { while sender.send(frame(1, b"", bulk.clone())).await.is_ok() {} });
        for _ in 0..100 {
            tokio::task::yield_now().await;
        }
        here.sender.close();
        tokio::time::timeout(Duration::from_secs(30), sending).await.expect("the waiting send ended").unwrap();
        drop(there);
    });
}

#[test]
fn addresses_are_chosen_taken_and_freed() {
    check(|transport, address| async move {
        let mut first = transport.listen(&Address::from(address)).await.unwrap();
        let second = transport.listen(&Address::from(address)).await.unwrap();
        assert_ne!(first.address(), second.address());
        assert!(!first.address().0.ends_with(":0"));
        let taken = transport.listen(&first.address()).await.map(drop).unwrap_err();
        assert_eq!(taken.kind(), ErrorKind::AddrInUse);
        let freed = second.address();
        drop(second);
        let refused = transport.connect(&freed).await.map(drop).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
        transport.listen(&freed).await.map(drop).expect("free again");
        let here = transport.connect(&first.address()).await.unwrap();
        let there = first.accept().await.unwrap();
        assert_eq!(here.peer, first.address().to_string());
        assert!(!there.peer.is_empty());
    });
}

#[test]
fn frames_with_false_lengths_are_not_sent() {
    check(|transport, address| async move {
        let Pair { here, mut there, .. } = pair(&transport, address).await;
        let mut false_frame = frame(1, b"body", Bytes::new());
        false_frame.body = Bytes::from_static(b"other length");
        let refused = here.sender.send(false_frame).await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::InvalidInput);
        here.sender.send(frame(2, b"good", Bytes::new())).await.expect("the connection still works");
        assert_eq!(there.receiver.receive().await.unwrap().unwrap().header.xid, 2);
    });
}

#[test]
fn a_body_that_does_not_match_its_checksum_is_an_error() {
    check(|transport, address| async move {
        let Pair { here, mut there, .. } = pair(&transport, address).await;
        let mut damaged = frame(1, b"body", Bytes::new());
        damaged.body = Bytes::from_static(b"bodY");
        here.sender.send(damaged).await.unwrap();
        assert_eq!(there.receiver.receive().await.unwrap_err().kind(), ErrorKind::InvalidData);
    });
}

#[test]
fn a_frame_beyond_the_receivers_limit_is_an_error_and_one_at_it_arrives() {
    check(|transport, address| async move {
        for (body, bulk) in [(4097, 0), (0, 4097), (2049, 2048)] {
            let Pair { here, mut there, .. } = pair(&transport, address).await;
            there.receiver.limit(4096);
            here.sender.send(frame(1, &vec![1; 4096 - bulk.min(4096)], pattern(bulk.min(4096), 1))).await.unwrap();
            assert_eq!(there.receiver.receive().await.unwrap().unwrap().header.xid, 1);
            here.sender.send(frame(2, &vec![1; body], pattern(bulk, 2))).await.unwrap();
            assert_eq!(there.receiver.receive().await.unwrap_err().kind(), ErrorKind::InvalidData, "{body} {bulk}");
        }
    });
}
