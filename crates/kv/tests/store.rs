//! The store's promises, one by one, on devices in memory.

mod common;

use common::{Host, contents, put};
use kv::{Batch, Error, Lsn, Table};
use rt::memory::Unflushed;

const T: Table = Table(1);

#[tokio::test]
async fn what_is_applied_is_read_back_in_order() {
    let host = Host::new();
    let store = host.open().await;
    for key in ["b", "a", "c"] {
        store.apply(put(1, key.as_bytes(), key.as_bytes())).unwrap();
    }
    let mut batch = Batch::default();
    batch.delete(T, &b"b"[..]);
    batch.put(Table(2), &b"b"[..], &b"other table"[..]);
    assert_eq!(store.apply(batch).unwrap(), Lsn(4));
    assert_eq!(store.get(T, b"a").unwrap().unwrap(), "a");
    assert_eq!(store.get(T, b"b").unwrap(), None);
    let mut seen = Vec::new();
    let mut visit = |key: &[u8], _: &bytes::Bytes| {
        seen.push(key.to_vec());
        true
    };
    store.scan(T, b"", None, &mut visit).unwrap();
    assert_eq!(seen, [b"a", b"c"]);
    store.close().await.unwrap();
    assert!(matches!(store.apply(put(1, b"x", b"x")), Err(Error::Closed)));
}

#[tokio::test]
async fn written_survives_the_process_and_durable_survives_power_loss() {
    let mut host = Host::new();
    let store = host.open().await;
    let lsn = store.apply(put(1, b"durable", b"1")).unwrap();
    store.durable(lsn).await.unwrap();
    let lsn = store.apply(put(1, b"written", b"1")).unwrap();
    store.written(lsn).await.unwrap();
    store.apply(put(1, b"neither", b"1")).unwrap();
    host.crash();
    drop(store);
    let (store, batches) = host.replay().await.unwrap();
    assert_eq!(batches.len(), 2);
    assert_eq!(store.get(T, b"written").unwrap().unwrap(), "1");
    assert_eq!(store.get(T, b"neither").unwrap(), None);
    let lsn = store.apply(put(1, b"later", b"1")).unwrap();
    store.written(lsn).await.unwrap();
    host.power_loss(1, Unflushed::Lost);
    drop(store);
    let store = host.open().await;
    assert_eq!(contents(&store).len(), 2, "what was recovered once is durable");
}

#[tokio::test]
async fn a_closed_store_replays_nothing_and_has_everything() {
    let mut host = Host::new();
    let store = host.open().await;
    for number in 0..1000u32 {
        store.apply(put(1, &number.to_be_bytes(), &[7; 100])).unwrap();
    }
    store.close().await.unwrap();
    let before = contents(&store);
    drop(store);
    host.power_loss(2, Unflushed::Torn);
    let (store, batches) = host.replay().await.unwrap();
    assert_eq!(batches, []);
    assert_eq!(contents(&store), before);
    assert_eq!(before.len(), 1000);
    assert_eq!(store.last(), Lsn(1000));
}
