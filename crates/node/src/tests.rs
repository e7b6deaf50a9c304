//! The life cycle of a whole process, within the process of the test.

use kv::{FjallCold, cold::fjall::FjallOptions};

use super::*;

/// A client holds the way to the targets of its process, and with it the targets.
#[test]
fn a_stopped_process_has_let_go_of_its_directories_although_somebody_has_its_client() {
    let place = tempfile::tempdir().unwrap();
    let options = NodeOptions::up(place.path().join("data"), 1, 1);
    options.format_missing().unwrap();
    let cores = Cores::start(2).unwrap();
    let mut clients = Vec::new();
    for _ in 0..2 {
        let node = cores.block_on(Node::start(cores.clone(), options.clone())).unwrap();
        clients.push(cores.block_on(node.mount_client()).unwrap());
        cores.block_on(node.stop()).unwrap();
        for target in &options.targets {
            DirectoryLock::take(&target.dir).unwrap();
            FjallCold::open(&target.dir.join("cold"), FjallOptions::default()).unwrap();
        }
    }
    cores.shutdown();
}

/// The first process had no address of its own, the second one has.
#[test]
fn targets_that_went_are_missed_wherever_their_process_was() {
    let target = |index: u16, address: &str| MapTarget {
        role: TargetRole::Ost(OstIndex(index)),
        uuid: String::new(),
        addresses: address.split(',').map(str::to_owned).collect(),
        state: TargetState::Active,
    };
    let here = ["host:7000".to_owned(), "host-ib:7000".to_owned()];
    let targets = vec![
        target(0, "host:7000"),
        target(1, "host-ib:7000,old:7000"),
        target(2, LOCAL_ADDRESS),
        target(3, "other:7000"),
    ];
    let map = ClusterMap { version: 1, fsname: "stria".to_owned(), targets, parameters: Vec::new(), pools: Vec::new() };
    let own = BTreeSet::from([TargetRole::Ost(OstIndex(0))]);
    assert_eq!(missing_targets(&map, &own, &here), ["stria-OST0001", "stria-OST0002"]);
}
