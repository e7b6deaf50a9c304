use std::time::{Duration, Instant};

use super::*;
use crate::batch::{Lsn, Term};

const T: Table = Table(1);
const KEYS: u32 = 64;

fn key(number: u32) -> Bytes {
    number.to_be_bytes().to_vec().into()
}

async fn open(directory: &Path) -> FjallCold {
    let options = FjallOptions { cache_bytes: 1 << 20, write_buffer_bytes: 256 << 10 };
    let cold = FjallCold::open(directory, options).unwrap();
    cold.commit(Checkpoint { store: 1, lsn: Lsn(0), term: Term(0) }).await.unwrap();
    cold
}

/// Waits for fjall's background work.
fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !condition() {
        assert!(begin.elapsed() < Duration::from_secs(60), "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Files of tables, and how many tables there are.
fn tables(cold: &FjallCold) -> (usize, usize) {
    let keyspaces = cold.shared.keyspaces().unwrap();
    let files = std::fs::read_dir(keyspaces.data.path().join("tables")).unwrap().count();
    (files, keyspaces.data.table_count())
}

/// Writes the same keys over and over: each buffer makes a table that overlaps all others, until
/// they are merged.
async fn overwrite_until_merged(cold: &FjallCold) {
    const ROUNDS: u8 = 12;
    for round in 0..ROUNDS {
        let puts = (0..KEYS).map(|number| Operation::Put(T, key(number), vec![round; 8 << 10].into()));
        cold.write(puts.collect()).await.unwrap();
        assert!(cold.shared.flush_buffers().unwrap());
    }
    eventually("merges", || tables(cold).1 < usize::from(ROUNDS));
}

/// fjall itself keeps them until a buffer is full the next time, which on a full device is never.
#[tokio::test]
async fn tables_that_a_compaction_replaced_go_although_nothing_is_written_any_more() {
    let directory = tempfile::tempdir().unwrap();
    let cold = open(directory.path()).await;
    overwrite_until_merged(&cold).await;
    eventually("no files but those of the present tables", || {
        let (files, tables) = tables(&cold);
        files == tables
    });
    for number in 0..KEYS {
        assert_eq!(cold.get(T, &key(number)).unwrap().unwrap(), vec![11; 8 << 10]);
    }
}

/// What it began with stays for it, although the store has dropped that.
#[tokio::test]
async fn a_scan_goes_on_while_its_tables_are_replaced() {
    let directory = tempfile::tempdir().unwrap();
    let cold = open(directory.path()).await;
    overwrite_until_merged(&cold).await;
    let mut seen = 0;
    cold.scan(T, &[], None, &mut |_, value| {
        if seen == 0 {
            let others = || {
                tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(overwrite_until_merged(&cold))
            };
            std::thread::scope(|scope| scope.spawn(others).join().unwrap());
        }
        seen += 1;
        value == vec![value[0]; 8 << 10]
    })
    .unwrap();
    assert_eq!(seen, KEYS);
    eventually("no files but those of the present tables", || {
        let (files, tables) = tables(&cold);
        files == tables
    });
}

/// What a failed sync left in the page cache as clean would never be written, and a checkpoint that
/// rests on it be believed.
#[tokio::test]
async fn journals_are_written_again_whenever_fjall_is_opened() {
    let directory = tempfile::tempdir().unwrap();
    let cold = open(directory.path()).await;
    cold.write((0..KEYS).map(|number| Operation::Put(T, key(number), vec![7; 1000].into())).collect()).await.unwrap();
    cold.commit(Checkpoint { store: 1, lsn: Lsn(9), term: Term(3) }).await.unwrap();
    let long_ago = std::time::SystemTime::UNIX_EPOCH;
    let journals = || {
        let files = std::fs::read_dir(directory.path()).unwrap().map(|entry| entry.unwrap().path());
        files.filter(|path| path.extension().is_some_and(|extension| extension == "jnl")).collect::<Vec<_>>()
    };
    let age = || {
        for path in journals() {
            std::fs::File::options().append(true).open(path).unwrap().set_modified(long_ago).unwrap();
        }
    };
    let rewritten = || journals().iter().all(|path| std::fs::metadata(path).unwrap().modified().unwrap() > long_ago);
    assert!(!journals().is_empty());
    let taken =
        |path: &std::path::PathBuf| std::os::unix::fs::MetadataExt::blocks(&std::fs::metadata(path).unwrap()) * 512;
    assert!(journals().iter().map(taken).sum::<u64>() < 1 << 20, "a new one has what was written to it, no zeros");
    drop(cold);
    age();
    assert!(!rewritten());
    let cold = FjallCold::open(directory.path(), FjallOptions::default()).unwrap();
    assert!(rewritten());
    for number in 0..KEYS {
        assert_eq!(cold.get(T, &key(number)).unwrap().unwrap(), vec![7; 1000]);
    }
    assert_eq!(cold.checkpoint().unwrap(), Some(Checkpoint { store: 1, lsn: Lsn(9), term: Term(3) }));
}
