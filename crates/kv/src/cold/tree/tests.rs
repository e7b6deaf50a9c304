//! The tree against a map, and what its device may do to it. What every cold store must do:
//! `kv/tests/cold_contract.rs`; with a journal, and power losses: `kv/tests/crashes.rs`.

use std::{collections::BTreeMap, sync::Arc};

use bytes::Bytes;
use proptest::prelude::*;
use rt::{
    Device,
    memory::{MemoryDevice, SeededEntropy, Unflushed},
};

use super::*;
use crate::batch::{Lsn, Term};

const NODE: usize = 4096;
const FILE: &str = "d";

struct Place {
    device: MemoryDevice,
    bytes: u64,
}

impl Place {
    fn new(nodes: u64) -> Place {
        let place = Place { device: MemoryDevice::new(), bytes: nodes * NODE as u64 };
        wait(place.device.truncate(FILE, place.bytes)).unwrap();
        wait(TreeCold::create(&place.part(), NODE, 77)).unwrap();
        place
    }

    fn part(&self) -> TreePart {
        let device: Arc<dyn Device> = Arc::new(self.device.clone());
        TreePart { at_once: device.clone(), device, file: FILE.to_owned(), offset: 0, bytes: self.bytes }
    }

    fn open(&self) -> TreeCold {
        TreeCold::open(&self.part(), 64 << 10).unwrap()
    }
}

fn put(key: &[u8], value: Vec<u8>) -> Operation {
    Operation::Put(Table(1), Bytes::copy_from_slice(key), value.into())
}

fn delete(key: &[u8]) -> Operation {
    Operation::Delete(Table(1), Bytes::copy_from_slice(key))
}

fn checkpoint(number: u64) -> Checkpoint {
    Checkpoint { store: 9, lsn: Lsn(number), term: Term(0) }
}

type Model = BTreeMap<Vec<u8>, Vec<u8>>;

fn contents(tree: &TreeCold) -> Model {
    let mut found = Model::new();
    tree.scan(Table(1), &[], None, &mut |key, value| {
        assert!(found.insert(key.to_vec(), value.to_vec()).is_none());
        true
    })
    .unwrap();
    found
}

/// A key of few or very many bytes, and a value that may be longer than a node.
fn step() -> impl Strategy<Value = Vec<(u16, Option<usize>)>> {
    let size = prop_oneof![6 => 0..300usize, 2 => 300..1600usize, 1 => 1600..20_000usize];
    proptest::collection::vec((0..400u16, proptest::option::weighted(0.7, size)), 1..40)
}

fn key(number: u16) -> Vec<u8> {
    let mut key = number.wrapping_mul(40_503).to_be_bytes().to_vec();
    key.resize(2 + if number.is_multiple_of(37) { 900 } else { usize::from(number % 30) }, 3);
    key
}

/// The operations of a step, sorted, and what they leave.
fn perform(step: &[(u16, Option<usize>)], model: &mut Model, counter: &mut u8) -> Vec<Operation> {
    let mut operations = BTreeMap::new();
    for (number, size) in step {
        let key = key(*number);
        *counter = counter.wrapping_add(1);
        let operation = match size {
            Some(size) => {
                model.insert(key.clone(), vec![*counter; *size]);
                put(&key, vec![*counter; *size])
            }
            None => {
                model.remove(&key);
                delete(&key)
            }
        };
        operations.insert(key, operation);
    }
    operations.into_values().collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    /// After a power loss the tree is what it was after the last commit.
    #[test]
    fn a_tree_is_a_map_that_commits_make_durable(
        steps in proptest::collection::vec((step(), 0..8u8), 1..40),
        seed in any::<u64>(),
    ) {
        let entropy = SeededEntropy::new(seed);
        let mut place = Place::new(1200);
        let mut tree = place.open();
        let (mut model, mut committed, mut number, mut counter) = (Model::new(), Model::new(), 0, 0);
        for (step, then) in steps {
            wait(tree.write(perform(&step, &mut model, &mut counter))).unwrap();
            let all: Vec<u16> = step.iter().map(|(number, _)| *number).collect();
            for number in all {
                let found = tree.get(Table(1), &key(number)).unwrap();
                prop_assert_eq!(found.as_deref(), model.get(&key(number)).map(|value| &value[..]));
            }
            match then {
                0 | 1 => {
                    number += 1;
                    wait(tree.commit(checkpoint(number))).unwrap();
                    committed = model.clone();
                }
                2 => {
                    let unflushed = [Unflushed::Lost, Unflushed::KeptOrLost, Unflushed::Torn][seed as usize % 3];
                    place.device = place.device.power_loss(&entropy, unflushed);
                    tree = place.open();
                    prop_assert_eq!(contents(&tree), committed.clone());
                    prop_assert_eq!(tree.checkpoint().unwrap(), (number > 0).then(|| checkpoint(number)));
                    model = committed.clone();
                }
                _ => {}
            }
            prop_assert_eq!(&contents(&tree), &model);
        }
    }
}

/// Deleting what fills a tree needs no space, and gives back all of it.
#[test]
fn a_full_tree_takes_removals_and_has_its_space_again() {
    let place = Place::new(100);
    let tree = place.open();
    let empty = tree.space().bytes_available;
    for round in 0..3 {
        let mut count = 0u32;
        loop {
            let operations = (0..20).map(|more| put(&(count + more).to_be_bytes(), vec![round; 300])).collect();
            match wait(tree.write(operations)) {
                Ok(()) => count += 20,
                Err(error) => {
                    assert_eq!(error.kind(), io::ErrorKind::StorageFull, "{error}");
                    break;
                }
            }
        }
        assert!(count > 600, "three quarters of the room: {count}");
        assert!(tree.space().bytes_available <= 8 * NODE as u64, "{:?}", tree.space());
        // In an order that empties no node before the end.
        for start in 0..97 {
            let operations = (start..count + 20).step_by(97).map(|number| delete(&number.to_be_bytes())).collect();
            wait(tree.write(operations)).unwrap();
        }
        wait(tree.commit(checkpoint(u64::from(round) + 1))).unwrap();
        assert_eq!((contents(&tree).len(), tree.space().bytes_available), (0, empty));
    }
}

#[test]
fn growing_keys_fill_their_nodes_and_removals_join_them() {
    let place = Place::new(1000);
    let tree = place.open();
    let used = |tree: &TreeCold| 1000 - tree.space().bytes_available / NODE as u64;
    for start in (0..10_000u32).step_by(50) {
        let operations = (start..start + 50).map(|number| put(&number.to_be_bytes(), vec![1; 100])).collect();
        wait(tree.write(operations)).unwrap();
    }
    let full = used(&tree);
    // 35 entries of 112 bytes in a node.
    assert!(full <= 320, "{full}");
    wait(tree.commit(checkpoint(1))).unwrap();
    for start in (0..10_000u32).step_by(500) {
        let operations =
            (start..start + 500).filter(|number| number % 10 > 0).map(|number| delete(&number.to_be_bytes()));
        wait(tree.write(operations.collect())).unwrap();
    }
    wait(tree.commit(checkpoint(2))).unwrap();
    assert_eq!(contents(&tree).len(), 1000);
    assert!(used(&tree) <= full / 3, "{} of {full}", used(&tree));
}

/// Of a device that returns what was never written, everything is an error or right.
#[test]
fn damage_is_an_error_that_names_the_node() {
    let place = Place::new(200);
    let tree = place.open();
    let operations = (0..1000u32).map(|number| put(&number.to_be_bytes(), vec![number as u8; 100]));
    wait(tree.write(operations.chain([put(b"\xff", vec![5; 9000])]).collect())).unwrap();
    wait(tree.commit(checkpoint(1))).unwrap();
    drop(tree);
    let (mut refused, mut wrong) = (0, 0);
    for number in 2..50u64 {
        place.device.flip_bit(FILE, number * NODE as u64 + 1000, 3);
        match TreeCold::open(&place.part(), 0) {
            Err(error) => {
                assert!(error.to_string().contains("is damaged"), "{error}");
                refused += 1;
            }
            Ok(tree) => {
                let mut seen = 0;
                let scanned = tree.scan(Table(1), &[], None, &mut |key, value| {
                    seen += 1;
                    match key.try_into().map(u32::from_be_bytes) {
                        Ok(number) => assert!(value.len() == 100 && value.iter().all(|byte| *byte == number as u8)),
                        Err(_) => assert!(value.len() == 9000 && value.iter().all(|byte| *byte == 5)),
                    }
                    true
                });
                wrong += usize::from(scanned.is_err());
                assert!(scanned.is_err() || seen == 1001);
            }
        }
        place.device.flip_bit(FILE, number * NODE as u64 + 1000, 3);
    }
    assert!(refused > 0 && wrong > 20, "{refused} {wrong}");
    assert_eq!(contents(&place.open()).len(), 1001);
    // Both places of the root.
    for at in [100, 4096 + 100] {
        place.device.flip_bit(FILE, at, 0);
    }
    assert!(TreeCold::open(&place.part(), 0).is_err());
}

/// What the nodes of a place hold.
fn nodes(place: &Place) -> Vec<u8> {
    wait(place.device.read(FILE, 2 * NODE as u64, vec![0; place.bytes as usize - 2 * NODE])).unwrap().0
}

/// The device has lost all writes of nodes since then, and says nothing.
fn lose_writes(place: &Place, before: Vec<u8>) {
    wait(place.device.write(FILE, 2 * NODE as u64, vec![before.into()])).unwrap();
}

/// The tree's only value, from the device.
fn reopened(place: &Place) -> io::Result<Option<Bytes>> {
    TreeCold::open(&place.part(), 0).and_then(|tree| tree.get(Table(1), b"a"))
}

/// What was at the place of a node before has the same number and the same commit, if a crash or a
/// change before was within the same commit.
#[test]
fn lost_writes_are_errors_whatever_was_there_before() {
    for is_crashed in [false, true] {
        let place = Place::new(10);
        let mut tree = place.open();
        let mut before = Vec::new();
        for number in 0..100 {
            if is_crashed {
                // The process dies before it commits.
                tree = place.open();
            }
            before = nodes(&place);
            wait(tree.write(vec![put(b"a", vec![number; 10])])).unwrap();
        }
        lose_writes(&place, before);
        wait(tree.commit(checkpoint(1))).unwrap();
        let found = reopened(&place);
        assert!(found.as_ref().is_err_and(|error| error.to_string().contains("is damaged")), "{found:?}");
    }
}

#[test]
fn impossible_sizes_make_no_tree() {
    let place = Place::new(10);
    for (nodes, node_bytes) in [(10, 0), (10, 5000), (3, NODE), (10, 128 << 10)] {
        let part = TreePart { bytes: nodes * NODE as u64, ..place.part() };
        assert!(wait(TreeCold::create(&part, node_bytes, 1)).is_err(), "{nodes} {node_bytes}");
    }
}

#[test]
fn after_a_failure_nothing_is_written() {
    let place = Place::new(50);
    let tree = place.open();
    wait(tree.write(vec![put(b"a", vec![1])])).unwrap();
    // The device is another process's now.
    let other = Place { device: place.device.crash(), bytes: place.bytes };
    assert!(wait(tree.commit(checkpoint(1))).is_err());
    let refused = wait(tree.write(vec![put(b"b", vec![1])])).unwrap_err();
    assert!(refused.to_string().contains("an earlier change of the tables failed"), "{refused}");
    assert_eq!(contents(&other.open()), Model::new());
}

#[test]
fn threads_execute_jobs_in_their_order() {
    let place = Place::new(200);
    let tree = place.open().with_threads().unwrap();
    let jobs: Vec<_> = (0..100u8).map(|number| tree.write(vec![put(b"a", vec![number])])).collect();
    let committed = tree.commit(checkpoint(1));
    let (sender, receiver) = std::sync::mpsc::channel();
    wait(committed).unwrap();
    jobs.into_iter().for_each(|job| wait(job).unwrap());
    assert_eq!(contents(&tree), Model::from([(b"a".to_vec(), vec![99])]));
    tree.run_blocking(Box::new(move || sender.send(()).unwrap()));
    receiver.recv().unwrap();
    wait(tree.close());
    assert!(wait(tree.write(vec![put(b"b", vec![1])])).is_err());
}
