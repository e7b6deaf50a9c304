//! The store's promises, one by one, on devices in memory.

use crate::common;

use common::{Host, contents, put};
use kv::{Batch, Error, Lsn, Table, inspect::Finding, journal::logged::LoggedOperation};
use rt::{Device, memory::Unflushed};

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

/// Else a record of 2 KB in which 20 bytes change would take 2 KB of the journal each time.
#[tokio::test]
async fn the_journal_has_what_changes_in_a_value() {
    let mut host = Host::new();
    let mut store = host.open().await;
    let mut value = vec![7; 2000];
    for round in 0..3 {
        for number in 0..5 {
            value[100 * number] += 1;
            let lsn = store.apply(put(1, b"key", &value)).unwrap();
            store.written(lsn).await.unwrap();
        }
        // What is made of patches is replayed as it was applied, and patched again.
        if round == 0 {
            host.crash();
            drop(store);
            let batches;
            (store, batches) = host.replay().await.unwrap();
            assert_eq!(batches.last(), Some(&(Lsn(5), put(1, b"key", &value))));
        } else {
            store.checkpoint().await.unwrap();
        }
    }
    assert_eq!(store.get(T, b"key").unwrap().unwrap(), value);
    let mut is_whole = Vec::new();
    let mut visit = |finding| {
        if let Finding::Record { operations: Ok(operations), .. } = finding {
            is_whole.extend(operations.iter().map(|one| matches!(one, LoggedOperation::Whole(_))));
        }
        true
    };
    kv::inspect::journal(&host.device, &mut visit).await.unwrap();
    let first: Vec<usize> = (0..is_whole.len()).filter(|number| is_whole[*number]).collect();
    assert_eq!((is_whole.len(), first), (15, vec![0, 10]), "once after each checkpoint");
    // Not after one that a key is removed in between.
    let mut batch = Batch::default();
    batch.put(T, &b"key"[..], vec![8; 2000]);
    batch.delete(T, &b"key"[..]);
    batch.put(T, &b"key"[..], vec![9; 2000]);
    batch.put(T, &b"key"[..], vec![9; 2001]);
    let lsn = store.apply(batch).unwrap();
    store.durable(lsn).await.unwrap();
    host.power_loss(1, Unflushed::Lost);
    drop(store);
    let store = host.open().await;
    assert_eq!(store.get(T, b"key").unwrap().unwrap(), [9; 2001][..]);
}

/// Ten times more records than memory: every answer is as if everything were there.
#[tokio::test]
async fn a_store_larger_than_its_memory_answers_the_same() {
    let mut host = Host::new();
    host.config.memory_bytes = 100 << 10;
    host.config.dirty_bytes = 40 << 10;
    let store = host.open().await;
    let mut model = common::Model::new();
    for number in 0..5000u32 {
        // Out of order, overwritten and removed, in two tables.
        let key = (number.wrapping_mul(2_654_435_761) % 3000).to_be_bytes();
        let table = 1 + (number % 2) as u8;
        let mut batch = Batch::default();
        if number % 7 == 6 {
            batch.delete(Table(table), key.to_vec());
            model.remove(&(table, key.to_vec()));
        } else {
            batch.put(Table(table), key.to_vec(), vec![number as u8; 100]);
            model.insert((table, key.to_vec()), vec![number as u8; 100]);
        }
        let lsn = store.apply(batch).unwrap();
        store.written(lsn).await.unwrap();
    }
    let statistics = store.statistics();
    assert!(!statistics.resident);
    assert!(model.len() > 2000, "far more than the memory holds: {}", model.len());
    assert_eq!(contents(&store), model);
    for table in 1..=2u8 {
        for number in 0..3000u32 {
            let key = number.to_be_bytes().to_vec();
            let value = store.get(Table(table), &key).unwrap();
            assert_eq!(value.as_deref(), model.get(&(table, key)).map(Vec::as_slice));
        }
        let (from, to) = (500u32.to_be_bytes(), 1500u32.to_be_bytes());
        let mut seen = 0;
        let mut visit = |key: &[u8], _: &bytes::Bytes| {
            assert!(key >= &from[..] && key < &to[..]);
            seen += 1;
            true
        };
        store.scan(Table(table), &from, Some(&to), &mut visit).unwrap();
        let range = (table, from.to_vec())..(table, to.to_vec());
        assert_eq!(seen, model.range(range).count());
    }
    let statistics = store.statistics();
    assert!(statistics.cold_reads > 1000);
    assert!(statistics.memory_bytes <= (100 << 10) + (40 << 10), "{statistics:?}");
    store.close().await.unwrap();
    drop(store);
    host.crash();
    assert_eq!(contents(&host.open().await), model);
}

/// Under a load that never pauses, checkpoints come by themselves and the journal stays within its
/// segments.
#[tokio::test]
async fn the_journal_is_used_again_and_again() {
    let host = Host::new();
    let store = host.open().await;
    let bytes_max = host.config.segment_bytes * u64::from(host.config.segments_max);
    let mut journaled = 0;
    let mut last = Lsn(0);
    while journaled < 4 * bytes_max {
        // Each is another value: the journal has them whole.
        let value = [(journaled / 8000) as u8; 8000];
        last = store.apply(put(1, &(journaled % 1000).to_be_bytes(), &value)).unwrap();
        store.written(last).await.unwrap();
        journaled += 8000;
    }
    let statistics = store.statistics();
    assert!(statistics.checkpoint > Lsn(0) && statistics.checkpoint < last);
    let files = host.device.list("journal.").await.unwrap();
    assert!(files.len() <= host.config.segments_max as usize, "{files:?}");
    assert_eq!(store.checkpoint().await.unwrap(), last);
    assert_eq!(store.statistics().dirty_bytes, 0);
}

/// Without anybody waiting, batches become durable within the commit interval and are checkpointed
/// in time.
#[tokio::test]
async fn a_segment_that_was_prepared_in_vain_is_not_prepared_again() {
    let mut host = Host::new();
    host.config.zero_segments = true;
    let store = host.open().await;
    let lsn = store.apply(put(1, b"a", b"1")).unwrap();
    store.durable(lsn).await.unwrap();
    while store.statistics().segments_ready == 0 {
        tokio::task::yield_now().await;
    }
    store.close().await.unwrap();
    drop(store);
    let store = host.open().await;
    assert_eq!(store.statistics().segments_ready, 1, "no task of the store has run yet");
    drop(store);
    // Cut short by a loss of power: it was not prepared in full.
    let blank = host.device.length("journal.1").await.unwrap().unwrap();
    host.device.truncate("journal.1", blank - 4096).await.unwrap();
    let store = host.open().await;
    assert_eq!(store.statistics().segments_ready, 0);
}

#[tokio::test]
async fn an_idle_store_flushes_and_checkpoints_by_itself() {
    let mut host = Host::new();
    host.config.commit_interval = std::time::Duration::from_millis(1);
    host.config.checkpoint_interval = std::time::Duration::from_millis(2);
    let store = host.open().await;
    let lsn = store.apply(put(1, b"a", b"1")).unwrap();
    assert_eq!(store.statistics().durable, Lsn(0));
    while store.statistics().durable < lsn || store.statistics().checkpoint < lsn {
        tokio::time::sleep(std::time::Duration::from_millis(1)).await;
    }
    host.power_loss(3, Unflushed::Lost);
    drop(store);
    let (store, batches) = host.replay().await.unwrap();
    assert_eq!((batches.len(), contents(&store).len()), (0, 1));
}

/// The owner's hook runs before anything of the checkpoint is in the cold store; if it fails,
/// nothing is.
#[tokio::test]
async fn the_hook_comes_before_the_checkpoint() {
    use kv::ColdStore;
    let mut host = Host::new();
    let cold = host.cold.clone();
    let fail = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(true));
    let calls = std::sync::Arc::new(parking_lot::Mutex::new(Vec::new()));
    let (fail_hook, calls_hook) = (fail.clone(), calls.clone());
    host.config.before_checkpoint = Some(std::sync::Arc::new(move |lsn| {
        assert_eq!(cold.get(T, b"a").unwrap(), None);
        calls_hook.lock().push(lsn);
        let failing = fail_hook.load(std::sync::atomic::Ordering::SeqCst);
        Box::pin(async move { if failing { Err(std::io::Error::other("not now")) } else { Ok(()) } })
    }));
    let store = host.open().await;
    store.apply(put(1, b"a", b"1")).unwrap();
    assert!(matches!(store.checkpoint().await, Err(Error::Hook { .. })));
    assert_eq!(host.cold.checkpoint().unwrap().unwrap().lsn, Lsn(0));
    fail.store(false, std::sync::atomic::Ordering::SeqCst);
    assert_eq!(store.checkpoint().await.unwrap(), Lsn(1));
    assert_eq!(*calls.lock(), [Lsn(1), Lsn(1)]);
    assert_eq!(host.cold.get(T, b"a").unwrap().unwrap(), "1");
}

/// The real thing: a local directory, fjall, and a store that is opened again.
#[tokio::test]
async fn files_and_fjall_keep_a_store() {
    use rt::real::{Execution, IoThreads, LocalDirectory};
    let directory = tempfile::tempdir().unwrap();
    let open = || async {
        let threads = std::sync::Arc::new(IoThreads::new("io", 1).unwrap());
        let device = LocalDirectory::open(directory.path().join("tables"), Execution::Inline, threads).unwrap();
        let options = kv::cold::fjall::FjallOptions { cache_bytes: 1 << 20, write_buffer_bytes: 1 << 20 };
        let cold = kv::FjallCold::open(&directory.path().join("cold"), options).unwrap();
        let config = kv::Config { memory_bytes: 50 << 10, ..kv::Config::small() };
        let (device, cold) = (std::sync::Arc::new(device), std::sync::Arc::new(cold));
        kv::Store::open(common::test_seams(), device, cold, config, &mut |_, _| {}).await.unwrap()
    };
    let store = open().await;
    for number in 0..2000u32 {
        let lsn = store.apply(put(1, &number.to_be_bytes(), &[number as u8; 100])).unwrap();
        store.written(lsn).await.unwrap();
    }
    store.close().await.unwrap();
    // Another task that still has it.
    let closed = store;
    let store = open().await;
    assert!(closed.scan(T, &[], None, &mut |_, _| true).is_err(), "its tables are another one's now");
    store.apply(put(1, b"after", b"")).unwrap();
    let lsn = store.apply(put(1, &0u32.to_be_bytes(), b"changed")).unwrap();
    store.durable(lsn).await.unwrap();
    let before = contents(&store);
    assert_eq!(before.len(), 2001);
    assert!(!store.statistics().resident);
    // Dropped as a crash would do it; its tasks must be gone before fjall can be opened again.
    drop(store);
    for _ in 0..10 {
        tokio::task::yield_now().await;
    }
    let store = open().await;
    assert_eq!(contents(&store), before);
    store.close().await.unwrap();
}

/// Batches as large as a segment allows, without waiting for any, need nothing but `ready` after a
/// refusal.
#[tokio::test]
async fn overloaded_users_wait_for_space_and_go_on() {
    let mut host = Host::new();
    host.config.segment_bytes = 160 << 10;
    host.config.segments_max = 3;
    let store = host.open().await;
    let mut refused = 0;
    for number in 0..100u32 {
        let batch = || put(1, &number.to_be_bytes(), &vec![1; kv::VALUE_BYTES_MAX]);
        while let Err(error) = store.apply(batch()) {
            assert!(matches!(error, Error::Overloaded), "{error}");
            refused += 1;
            store.ready().await.unwrap();
        }
    }
    assert!(refused > 10);
    assert_eq!(store.last(), Lsn(100));
    assert_eq!(contents(&store).len(), 100);
}

/// What a panic left half done must not reach the journal or the cold store.
#[tokio::test]
async fn a_halted_store_writes_nothing_more() {
    let mut host = Host::new();
    let store = host.open().await;
    let lsn = store.apply(put(1, b"before", b"1")).unwrap();
    store.written(lsn).await.unwrap();
    let lsn = store.apply(put(1, b"applied", b"1")).unwrap();
    store.halt();
    assert!(matches!(store.apply(put(1, b"after", b"1")), Err(Error::Poisoned { .. })));
    assert!(matches!(store.written(lsn).await, Err(Error::Poisoned { .. })));
    assert!(matches!(store.durable(lsn).await, Err(Error::Poisoned { .. })));
    assert!(store.close().await.is_err());
    drop(store);
    host.crash();
    let store = host.open().await;
    assert_eq!(store.get(T, b"before").unwrap().unwrap(), "1");
    assert_eq!((store.get(T, b"applied").unwrap(), store.get(T, b"after").unwrap()), (None, None));
}
