//! A device that fills up, from any cause, and has space again.

use crate::common;

use std::time::Duration;

use common::{Host, contents};
use kv::{Batch, Config, Error, Store, Table};

const T: Table = Table(1);
const RESERVE: u64 = 8 << 20;
const AMPLE_BYTES: u64 = 1 << 30;

fn put(number: u32, bytes: usize) -> Batch {
    let mut batch = Batch::default();
    batch.put(T, number.to_be_bytes().to_vec(), vec![number as u8; bytes]);
    batch
}

fn removal(number: u32) -> Batch {
    let mut batch = Batch::default();
    batch.delete(T, number.to_be_bytes().to_vec());
    batch
}

fn host() -> Host {
    let mut host = Host::new();
    let commit_interval = Duration::from_millis(5);
    host.config = Config { device_reserve_bytes: RESERVE, commit_interval, ..Config::small() };
    host.device.set_capacity(AMPLE_BYTES);
    host
}

/// Applies until it is refused, which must happen for lack of space; the number of batches applied.
async fn fill(store: &Store, first: u32, bytes: usize) -> u32 {
    for number in first.. {
        let lsn = loop {
            match store.apply(put(number, bytes)) {
                Ok(lsn) => break lsn,
                Err(Error::Overloaded) => store.ready().await.unwrap(),
                Err(Error::NoSpace) => return number - first,
                Err(error) => panic!("{error}"),
            }
        };
        store.written(lsn).await.unwrap();
    }
    unreachable!("the device is full at some time")
}

/// Applies one batch as soon as there is space again.
async fn apply_in_the_end(store: &Store, batch: impl Fn() -> Batch) {
    for _ in 0..10_000 {
        match store.apply(batch()) {
            Ok(lsn) => return store.durable(lsn).await.unwrap(),
            Err(Error::NoSpace) => tokio::time::sleep(Duration::from_millis(1)).await,
            Err(error) => panic!("{error}"),
        }
    }
    panic!("there is no space again");
}

#[tokio::test]
async fn below_the_reserve_only_removals_are_taken_and_space_that_returns_is_used() {
    let host = host();
    let store = host.open().await;
    for number in 0..200 {
        let lsn = store.apply(put(number, 1000)).unwrap();
        store.durable(lsn).await.unwrap();
    }
    for round in 0..3u32 {
        // Somebody else fills the device, but for less than the reserve.
        host.device.set_capacity(RESERVE);
        let first = 1000 * (round + 1);
        let applied = fill(&store, first, 100).await;
        assert!(applied < 1000, "the device was asked within a commit interval or two, not after {applied} batches");
        for number in 10 * round..10 * (round + 1) {
            let lsn = store.apply_reserved(removal(number)).expect("removals are taken");
            store.durable(lsn).await.unwrap();
        }
        store.checkpoint().await.expect("the reserve has room for a checkpoint");
        assert!(matches!(store.apply(put(7, 1)), Err(Error::NoSpace)), "still full");
        host.device.set_capacity(AMPLE_BYTES);
        apply_in_the_end(&store, || put(first - 1, 1)).await;
    }
    assert!(store.failure().is_none());
    let before = contents(&store);
    assert!((0..30u32).all(|number| !before.contains_key(&(1, number.to_be_bytes().to_vec()))));
    store.close().await.unwrap();
    assert_eq!(contents(&host.open().await), before);
}

/// Without room for a checkpoint none is begun: the cold store might not get up again.
#[tokio::test]
async fn a_device_without_free_space_is_left_alone_until_it_has_some() {
    let mut host = host();
    host.config.segments_max = 4;
    let store = host.open().await;
    let lsn = store.apply(put(1, 1000)).unwrap();
    store.durable(lsn).await.unwrap();
    host.device.set_capacity(0);
    host.cold.fail_writes(Some(std::io::ErrorKind::Other));
    assert!(matches!(store.checkpoint().await, Err(Error::NoSpace)), "the cold store was not asked");
    host.cold.fail_writes(None);
    fill(&store, 100, 1000).await;
    // Removals continue as long as the journal has room, and then end cleanly as well.
    let mut removed = 0;
    let error = loop {
        match store.apply_reserved(removal(removed)) {
            Ok(lsn) => store.written(lsn).await.unwrap(),
            Err(error) => break error,
        }
        removed += 1;
        assert!(removed < 1_000_000, "the journal is full at some time");
    };
    assert!(matches!(error, Error::NoSpace), "{error}");
    assert!(removed > 100);
    let before = contents(&store);
    host.device.set_capacity(AMPLE_BYTES);
    apply_in_the_end(&store, || put(5, 5)).await;
    store.checkpoint().await.unwrap();
    assert_eq!(contents(&store).len(), before.len() + 1);
    assert!(store.failure().is_none());
}

#[tokio::test]
async fn a_store_that_does_not_look_after_its_device_does_not_refuse() {
    let mut host = host();
    host.config.device_reserve_bytes = 0;
    let store = host.open().await;
    host.device.set_capacity(0);
    for number in 0..50 {
        let lsn = store.apply(put(number, 100)).unwrap();
        store.durable(lsn).await.unwrap();
    }
    assert_eq!(store.device_reserve(), 0);
}
