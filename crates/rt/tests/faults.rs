//! The wrappers cause the requested faults, and no others.

use std::{io::ErrorKind, sync::Arc, time::Duration};

use bytes::Bytes;
use rt::{
    Address, Connection, Device, Frame, FrameHeader, Listener, Transport,
    fault::{DeviceFaults, FaultyDevice, FaultyTransport, NetworkRules, PPM},
    memory::{self, MemoryDevice, MemoryTransport, SeededEntropy},
};

fn run<F: Future<Output = ()>>(test: F) {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(test);
}

fn frame(xid: u64) -> Frame {
    Frame::new(FrameHeader { xid, ..Default::default() }, Bytes::from_static(b"body"), Bytes::new()).unwrap()
}

async fn network() -> (FaultyTransport, Box<dyn Listener>, Connection, Connection) {
    let transport = FaultyTransport::new(&memory::seams(&MemoryTransport::new(), 3));
    let mut listener = transport.listen(&Address::from("node:0")).await.unwrap();
    let here = transport.connect(&listener.address()).await.unwrap();
    let there = listener.accept().await.unwrap();
    (transport, listener, here, there)
}

/// Sends `count` frames under `rules`, and a last one without faults; the numbers that arrive
/// before that.
async fn arrivals(rules: NetworkRules, count: u64) -> (Vec<u64>, FaultyTransport) {
    let (transport, _listener, here, mut there) = network().await;
    transport.set_rules(rules);
    for number in 0..count {
        here.sender.send(frame(number)).await.unwrap();
    }
    // After everything that may be delayed.
    transport.set_rules(NetworkRules {
        delay_ppm: PPM,
        delay_min: Duration::from_millis(50),
        delay_max: Duration::from_millis(50),
        ..Default::default()
    });
    here.sender.send(frame(u64::MAX)).await.unwrap();
    let mut arrived = Vec::new();
    loop {
        match there.receiver.receive().await.unwrap().unwrap().header.xid {
            u64::MAX => return (arrived, transport),
            number => arrived.push(number),
        }
    }
}

#[test]
fn lost_frames_are_missing_and_counted() {
    run(async {
        let (arrived, transport) = arrivals(NetworkRules { loss_ppm: 300_000, ..Default::default() }, 1000).await;
        assert!(arrived.is_sorted_by(|a, b| a < b));
        assert!((600..800).contains(&arrived.len()));
        assert_eq!(transport.statistics().lost, 1000 - arrived.len() as u64);
    });
}

#[test]
fn duplicated_frames_arrive_twice() {
    run(async {
        let (mut arrived, transport) = arrivals(NetworkRules { duplicate_ppm: PPM, ..Default::default() }, 100).await;
        assert_eq!((arrived.len(), transport.statistics().duplicated), (200, 100));
        arrived.dedup();
        assert_eq!(arrived, (0..100).collect::<Vec<_>>());
    });
}

#[test]
fn delayed_frames_keep_their_order_unless_reordering_is_allowed() {
    run(async {
        let delays = NetworkRules {
            delay_ppm: 500_000,
            delay_min: Duration::from_micros(1),
            delay_max: Duration::from_millis(20),
            ..Default::default()
        };
        let (arrived, transport) = arrivals(delays.clone(), 200).await;
        assert_eq!(arrived, (0..200).collect::<Vec<_>>());
        assert!(transport.statistics().delayed > 50);
        let (mut arrived, _) = arrivals(NetworkRules { reorder: true, ..delays }, 200).await;
        assert!(!arrived.is_sorted());
        arrived.sort();
        assert_eq!(arrived, (0..200).collect::<Vec<_>>());
    });
}

#[test]
fn a_cut_swallows_everything_until_it_heals() {
    run(async {
        let (transport, listener, here, mut there) = network().await;
        here.sender.send(frame(1)).await.unwrap();
        transport.cut(&listener.address());
        here.sender.send(frame(2)).await.unwrap();
        let refused = transport.connect(&listener.address()).await.map(drop).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::TimedOut);
        // The first frame was on its way when the cable was pulled.
        let attempt = tokio::time::timeout(Duration::from_millis(1), there.receiver.receive()).await;
        assert!(attempt.is_err(), "nothing arrives");
        transport.heal(&listener.address());
        here.sender.send(frame(3)).await.unwrap();
        assert_eq!(there.receiver.receive().await.unwrap().unwrap().header.xid, 3);
        assert_eq!(transport.statistics().lost, 2);
    });
}

#[test]
fn the_end_of_a_connection_is_not_seen_through_a_cut() {
    run(async {
        let (transport, listener, here, mut there) = network().await;
        transport.cut(&listener.address());
        drop(here);
        let waiting = tokio::spawn(async move { there.receiver.receive().await });
        for _ in 0..100 {
            tokio::task::yield_now().await;
        }
        assert!(!waiting.is_finished());
        transport.heal(&listener.address());
        assert!(waiting.await.unwrap().unwrap().is_none());
    });
}

#[test]
fn a_reset_ends_connections_and_lets_new_ones_in() {
    run(async {
        let (transport, mut listener, mut here, mut there) = network().await;
        transport.reset(&listener.address());
        assert!(here.receiver.receive().await.unwrap().is_none());
        assert!(there.receiver.receive().await.unwrap().is_none());
        assert!(here.sender.send(frame(1)).await.is_err());
        let again = transport.connect(&listener.address()).await.unwrap();
        let mut there = listener.accept().await.unwrap();
        again.sender.send(frame(2)).await.unwrap();
        assert_eq!(there.receiver.receive().await.unwrap().unwrap().header.xid, 2);
    });
}

fn device() -> (FaultyDevice, DeviceFaults) {
    let device = FaultyDevice::new(Arc::new(MemoryDevice::new()), Arc::new(SeededEntropy::new(9)));
    let faults = device.faults();
    (device, faults)
}

fn data(bytes: &'static [u8]) -> Vec<Bytes> {
    vec![Bytes::from_static(bytes)]
}

#[test]
fn the_chosen_write_fails_half_done_and_the_chosen_flush_fails() {
    run(async {
        let (device, faults) = device();
        faults.fail_write(2, ErrorKind::Other);
        device.write("a", 0, data(b"first")).await.unwrap();
        let halves = vec![Bytes::from_static(b"SE"), Bytes::from_static(b"COND")];
        assert_eq!(device.write("a", 0, halves).await.unwrap_err().kind(), ErrorKind::Other);
        assert_eq!(device.read("a", 0, vec![0; 5]).await.unwrap().0, b"SECst");
        device.write("a", 0, data(b"third")).await.unwrap();
        faults.fail_flush(1, ErrorKind::TimedOut);
        assert_eq!(device.flush("a").await.unwrap_err().kind(), ErrorKind::TimedOut);
        device.flush("a").await.unwrap();
        assert_eq!((faults.writes(), faults.flushes()), (3, 2));
    });
}

#[test]
fn full_and_read_only_devices_still_read() {
    run(async {
        let (device, faults) = device();
        device.write("a", 0, data(b"data")).await.unwrap();
        faults.set_full(true);
        assert_eq!(device.write("a", 0, data(b"x")).await.unwrap_err().kind(), ErrorKind::StorageFull);
        assert_eq!(device.allocate("a", 0, 1).await.unwrap_err().kind(), ErrorKind::StorageFull);
        assert_eq!(device.space().await.unwrap().bytes_available, 0);
        device.truncate("a", 2).await.expect("giving space back is possible");
        faults.set_full(false);
        faults.set_quota_used_up(true);
        assert_eq!(device.write("a", 0, data(b"x")).await.unwrap_err().kind(), ErrorKind::QuotaExceeded);
        assert_ne!(device.space().await.unwrap().bytes_available, 0, "a quota does not show");
        faults.set_quota_used_up(false);
        faults.set_read_only(true);
        for result in [
            device.write("a", 0, data(b"x")).await,
            device.truncate("a", 0).await,
            device.punch("a", 0, 1).await,
            device.allocate("a", 0, 1).await,
            device.remove("a").await,
        ] {
            assert_eq!(result.unwrap_err().kind(), ErrorKind::ReadOnlyFilesystem);
        }
        assert_eq!(device.read("a", 0, vec![0; 10]).await.unwrap(), (b"da\0\0\0\0\0\0\0\0".to_vec(), 2));
    });
}

#[test]
fn flipped_bits_are_one_per_read_and_leave_the_device_alone() {
    run(async {
        let (device, faults) = device();
        device.write("a", 0, data(&[0; 64])).await.unwrap();
        faults.set_bit_flips(PPM);
        for _ in 0..20 {
            let (read, _) = device.read("a", 0, vec![0; 100]).await.unwrap();
            assert_eq!(read.iter().map(|byte| byte.count_ones()).sum::<u32>(), 1);
            assert!(read[64..].iter().all(|byte| *byte == 0));
        }
        assert_eq!(faults.bits_flipped(), 20);
        faults.set_bit_flips(0);
        assert_eq!(device.read("a", 0, vec![0; 64]).await.unwrap().0, [0; 64]);
    });
}
