//! Removing very large objects: no step of it holds the store's mutex for long.
//!
//! Objects here have records, and no data.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use blocks::Geometry;
use kv::{Loading, Operation, inspect::Finding, journal::logged::LoggedOperation};

use super::{
    device::{InProgress, Unplaced},
    device_space::{BlockChanges, DeviceSpace, RELEASED_MAX},
    test_store::{OBJECT, TestStore, quiet},
    transaction::device::RUN_BYTES,
};
use crate::{
    Engine, OstOptions,
    chunk_record::CHUNK_BLOCKS,
    store::ObjectStore,
    tables::{BITMAPS, CHUNKS},
};

/// Bytes of a batch that removes a part of an object on a device: `change::DEVICE_PART_BYTES`.
const PART_BYTES: u64 = 16 << 10;
const PIECE: u64 = 256;
const TIB: u64 = 1 << 40;

/// An object of 1 TiB in a million pieces, as many free ones between them: what a commit makes free
/// with the mutex held is a thousand of them, whether they are discarded or not.
#[test]
fn an_object_of_1_tib_becomes_free_in_steps_of_bounded_size() {
    let in_batch = PART_BYTES / RUN_BYTES as u64;
    // More than the queue of discards has room for.
    for (bytes, discards) in [(TIB, false), (TIB / 8, true)] {
        let pieces = bytes / 4096 / PIECE;
        let geometry = Geometry::new(2 * pieces * PIECE).unwrap();
        let mut space = DeviceSpace::open(geometry, &BTreeMap::new(), 0).unwrap();
        let batches = (0..pieces).step_by(in_batch as usize).map(|first| first..pieces.min(first + in_batch));
        let mut last = 0;
        for (is_freed, batch) in
            [false, true].into_iter().flat_map(|freed| batches.clone().map(move |one| (freed, one)))
        {
            let mut changes = BlockChanges::default();
            for block in batch.flat_map(|piece| 2 * piece * PIECE..(2 * piece + 1) * PIECE) {
                if is_freed {
                    changes.free(block)
                } else {
                    changes.claim(block)
                };
            }
            last += 1;
            space.applied(changes, last).unwrap();
        }
        assert_eq!((space.counts().retired, space.counts().free), (bytes / 4096, bytes / 4096));
        let (mut steps, mut before) = (0, bytes / 4096);
        loop {
            let is_done = space.durable(last, discards).unwrap();
            let retired = space.counts().retired;
            assert!(before - retired <= RELEASED_MAX as u64 * PIECE, "{} blocks at once", before - retired);
            (steps, before) = (steps + 1, retired);
            if is_done {
                break;
            }
        }
        assert_eq!((before, steps), (0, pieces.div_ceil(RELEASED_MAX as u64)));
        // What waits for its discard, and is not to be discarded any more.
        let (mut steps, mut before) = (0, space.counts().discards.waiting);
        assert_eq!(before > 0, discards);
        while space.has_released().unwrap() {
            let waiting = space.counts().discards.waiting;
            assert!(before - waiting <= RELEASED_MAX as u64 * PIECE, "{} blocks at once", before - waiting);
            (steps, before) = (steps + 1, waiting);
        }
        assert_eq!((before, steps > 60), (0, discards));
        assert_eq!(space.counts().free, 2 * pieces * PIECE);
    }
}

/// A store with an object of so many chunks, of whose places every second block is used, or all.
async fn store_with_object(chunks: u64, every: u64) -> TestStore {
    let blocks = (chunks * CHUNK_BLOCKS * every + (1 << 16)).next_multiple_of(1 << 15);
    let options = OstOptions { audits: false, ..quiet() };
    let test = TestStore::with_engine(Engine::on_device(blocks), options).await;
    let (store, loading) = (test.store(), &mut Loading::default());
    for chunk in 0..chunks {
        let (first, size) = (chunk * CHUNK_BLOCKS, (chunk + 1) * CHUNK_BLOCKS * 4096);
        let mut in_progress = InProgress::new(store);
        let wanted = first * every..(first + CHUNK_BLOCKS) * every;
        let unplaced = Unplaced { object: OBJECT, blocks: wanted, size, after: None };
        let places = store.allocate_on_device(loading, &unplaced, &mut in_progress).await.unwrap();
        let used = || places.iter().copied().step_by(every as usize);
        let change = |transaction: &mut super::Transaction<'_>| {
            transaction.extend_size(size);
            (first..).zip(used()).try_for_each(|(block, address)| transaction.put_on_device(block, 7, address))
        };
        let applied = store.update(loading, OBJECT, change).await.unwrap();
        in_progress.recorded(used());
        store.written(applied).await.unwrap();
    }
    store.commit().await.unwrap();
    test
}

/// Chunks and pieces of bitmaps that each batch of a removal changes, by the journal.
async fn steps_of_removal(test: &TestStore) -> Vec<(usize, usize)> {
    let mut steps = Vec::new();
    let mut visit = |finding| {
        if let Finding::Record { operations: Ok(operations), .. } = finding {
            let is_removed =
                |one: &LoggedOperation| matches!(one, LoggedOperation::Whole(Operation::Delete(CHUNKS, _)));
            let removed = operations.iter().filter(|one| is_removed(one)).count();
            let changed = operations.iter().filter(|one| one.table() == BITMAPS).count();
            steps.extend((removed > 0).then_some((removed, changed)));
        }
        true
    };
    kv::inspect::journal(&test.journal, &mut visit).await.unwrap();
    steps
}

#[tokio::test]
async fn a_large_object_is_removed_in_steps_of_bounded_size() {
    for (chunks, every, chunks_max) in [(600, 1, 256), (12, 2, 1)] {
        let test = store_with_object(chunks, every).await;
        test.store().destroy(&[OBJECT]).await.unwrap();
        let steps = steps_of_removal(&test).await;
        let removed: usize = steps.iter().map(|(removed, _)| removed).sum();
        assert_eq!(removed as u64, chunks, "{steps:?}");
        assert!(steps.iter().all(|(removed, pieces)| *removed <= chunks_max && *pieces <= 256), "{steps:?}");
        test.store().commit().await.unwrap();
        let counts = test.store().volatile.lock().device.as_ref().unwrap().counts();
        assert_eq!((counts.free, counts.retired), (counts.blocks - 2, 0), "labels have two blocks");
    }
}

/// Prints for how long another thread waits for the mutex while large objects are removed: the
/// figures in docs/decisions/0048. `cargo test --release -p stria-oss --lib -- --ignored
/// --nocapture large_removal`
#[tokio::test]
#[ignore = "a measurement"]
async fn how_long_a_removal_keeps_others_from_the_mutex() {
    for (chunks, every, what) in [(1 << 16, 1, "64 GiB in one piece"), (1 << 10, 2, "1 GiB, each block by itself")] {
        let test = store_with_object(chunks, every).await;
        let ended = Arc::new(AtomicBool::new(false));
        let (ost, is_ended) = (test.ost.clone(), ended.clone());
        let waits = std::thread::spawn(move || {
            let (mut longest, mut all) = (Duration::ZERO, Vec::new());
            while !is_ended.load(Ordering::Relaxed) {
                let begun = Instant::now();
                drop(ost.directory.volatile.lock());
                longest = longest.max(begun.elapsed());
                all.push(begun.elapsed());
                std::thread::sleep(Duration::from_micros(50));
            }
            all.sort_unstable();
            (longest, all[all.len() * 99 / 100])
        });
        let begun = Instant::now();
        test.store().destroy(&[OBJECT]).await.unwrap();
        let removed = begun.elapsed();
        test.store().commit().await.unwrap();
        let all = begun.elapsed();
        ended.store(true, Ordering::Relaxed);
        let (longest, most) = waits.join().unwrap();
        println!("{what}: removed in {removed:?}, free after {all:?}; others wait {longest:?} at most, 99% {most:?}");
    }
}
