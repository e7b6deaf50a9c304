//! How large requests are, and how many of them may be under way: what is set of a connection.

use crate::support;

use rpc::{Mode, message::mgs::TargetRole};
use support::{READ_WRITE, create, read, real::RealCluster, script::STRIPE, write};
use types::{MdtIndex, OstIndex, limits::BULK_BYTES_MAX};

use client::FileSystem;

const MDT: TargetRole = TargetRole::Mdt(MdtIndex(0));

/// How often this client asked its OSTs this.
fn calls(fs: &FileSystem, name: &str) -> u64 {
    let opcodes = fs.connections().into_iter().flat_map(|(_, _, statistics)| statistics.opcodes);
    opcodes.filter(|opcode| opcode.name == name).map(|opcode| opcode.calls).sum()
}

#[tokio::test]
async fn requests_have_no_more_data_than_they_may() {
    let cluster = RealCluster::new(STRIPE, 2).await;
    let fs = cluster.mount().await;
    let [one, other] = [0, 1].map(|index| TargetRole::Ost(OstIndex(index)));
    assert_eq!([one, other].map(|role| fs.bulk_bytes_max(role)), [BULK_BYTES_MAX; 2]);
    let file = create(&fs, "file", READ_WRITE).await;
    let data: Vec<u8> = (0..4 * STRIPE).map(|index| (index / 1000) as u8).collect();
    let counts = async |offset: u64| {
        let before = (calls(&fs, "ost_write"), calls(&fs, "ost_read"));
        write(&fs, &file, offset, &data).await;
        assert_eq!(read(&fs, &file, offset, data.len()).await, data);
        (calls(&fs, "ost_write") - before.0, calls(&fs, "ost_read") - before.1)
    };
    assert_eq!(counts(0).await, (2, 2), "one to each OST");
    fs.set_bulk_bytes_max(one, STRIPE as usize / 2);
    assert_eq!(counts(0).await, (5, 5), "four of half a stripe, and one");
    fs.set_bulk_bytes_max(other, 1);
    assert_eq!(fs.bulk_bytes_max(other), 4096, "a block at least");
    assert_eq!(counts(0).await, (36, 36), "one for each of 32 blocks");
    // Blocks are not divided: the first OST has two stripes from 100 on, so the last 100 bytes are
    // a request of their own.
    assert_eq!(counts(4 * STRIPE + 100).await, (5 + 32, 5 + 32));
    for role in [one, other] {
        fs.set_bulk_bytes_max(role, usize::MAX);
    }
    assert_eq!(counts(0).await, (2, 2));
    fs.close(file, None).await.unwrap();
}

#[tokio::test]
async fn changes_in_flight_are_fewer_than_requests() {
    let cluster = RealCluster::new(STRIPE, 1).await;
    let fs = cluster.mount().await;
    assert_eq!((fs.rpcs_in_flight_max(MDT), fs.changes_in_flight_max(MdtIndex(0))), (Some(64), Some(63)));
    fs.set_changes_in_flight_max(MdtIndex(0), 20);
    fs.set_rpcs_in_flight_max(MDT, 30);
    assert_eq!(fs.changes_in_flight_max(MdtIndex(0)), Some(20));
    for (requests, changes) in [(20, 19), (64, 19), (1, 1)] {
        fs.set_rpcs_in_flight_max(MDT, requests);
        assert_eq!(fs.changes_in_flight_max(MdtIndex(0)), Some(changes), "{requests}");
    }
    assert_eq!(fs.changes_in_flight_max(MdtIndex(7)), None);
    for number in 0..4 {
        let file = create(&fs, &format!("file{number}"), READ_WRITE).await;
        fs.close(file, None).await.unwrap();
    }
}

/// Another incarnation of a mount connects again to all targets.
#[tokio::test]
async fn what_is_set_of_a_connection_outlasts_an_eviction() {
    let cluster = RealCluster::new(STRIPE, 1).await;
    let fs = cluster.mount().await;
    let ost = TargetRole::Ost(OstIndex(0));
    fs.set_bulk_bytes_max(ost, 8192);
    fs.set_rpcs_in_flight_max(MDT, 9);
    fs.set_changes_in_flight_max(MdtIndex(0), 3);
    fs.set_tuner(MDT, true);
    fs.set_tuner(ost, true);
    fs.set_rpcs_in_flight_max(ost, 5);
    let former = fs.client_id();
    cluster.evict(former).await;
    // It learns of that with its next request.
    while fs.client_id() == former {
        let _ = fs.statfs().await;
    }
    assert_eq!(fs.bulk_bytes_max(ost), 8192);
    assert_eq!((fs.rpcs_in_flight_limit(MDT), fs.changes_in_flight_max(MdtIndex(0))), (Some(9), Some(3)));
    assert_eq!(fs.rpcs_in_flight_max(ost), Some(5));
    let modes = [MDT, ost].map(|role| fs.tuning(role).map(|tuning| tuning.mode()));
    assert_eq!(modes, [Some(Mode::On), Some(Mode::ByHand)]);
}
