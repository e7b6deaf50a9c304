//! What every cold store must do, tested on all of them.

use std::sync::Arc;

use bytes::Bytes;
use kv::{
    Checkpoint, ColdStore, FjallCold, Lsn, MemoryCold, Operation, Table, Term, TreeCold,
    cold::{fjall::FjallOptions, tree::TreePart},
};
use rt::{
    Device,
    memory::{MemoryDevice, SeededEntropy},
};

/// A cold store that can be closed and opened again.
trait Subject {
    fn open(&mut self) -> Arc<dyn ColdStore>;
}

struct Memory(MemoryCold);

impl Subject for Memory {
    fn open(&mut self) -> Arc<dyn ColdStore> {
        self.0 = self.0.crash();
        Arc::new(self.0.clone())
    }
}

struct Fjall(tempfile::TempDir);

impl Subject for Fjall {
    fn open(&mut self) -> Arc<dyn ColdStore> {
        let options = FjallOptions { cache_bytes: 1 << 20, write_buffer_bytes: 1 << 20 };
        Arc::new(FjallCold::open(self.0.path(), options).unwrap())
    }
}

/// A tree on a device in memory; its jobs are executed by a thread, or where they are waited for.
struct Tree {
    device: MemoryDevice,
    threads: bool,
    is_made: bool,
}

impl Tree {
    const BYTES: u64 = 16 << 20;

    fn new(threads: bool) -> Self {
        Self { device: MemoryDevice::new(), threads, is_made: false }
    }
}

impl Subject for Tree {
    fn open(&mut self) -> Arc<dyn ColdStore> {
        self.device = self.device.crash();
        let device: Arc<dyn Device> = Arc::new(self.device.clone());
        let part = TreePart {
            at_once: device.clone(),
            device: device.clone(),
            file: "tree".to_owned(),
            offset: 4096,
            bytes: Self::BYTES,
        };
        if !std::mem::replace(&mut self.is_made, true) {
            // Devices in memory need no waiting.
            let made = async {
                device.truncate("tree", 4096 + Self::BYTES).await?;
                TreeCold::create(&part, 4096, 3).await
            };
            futures_ready(made).unwrap();
        }
        let tree = TreeCold::open(&part, 1 << 20).unwrap();
        match self.threads {
            true => Arc::new(tree.with_threads().unwrap()),
            false => Arc::new(tree),
        }
    }
}

/// The outcome of what does not wait.
fn futures_ready<T>(future: impl Future<Output = T>) -> T {
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    match std::pin::pin!(future).poll(&mut context) {
        std::task::Poll::Ready(outcome) => outcome,
        std::task::Poll::Pending => panic!("it waits"),
    }
}

fn subjects() -> Vec<Box<dyn Subject>> {
    vec![
        Box::new(Memory(MemoryCold::new())),
        Box::new(Fjall(tempfile::tempdir().unwrap())),
        Box::new(Tree::new(false)),
        Box::new(Tree::new(true)),
    ]
}

fn put(table: u8, key: &[u8], value: &[u8]) -> Operation {
    Operation::Put(Table(table), Bytes::copy_from_slice(key), Bytes::copy_from_slice(value))
}

fn keys(cold: &dyn ColdStore, table: u8, from: &[u8], to: Option<&[u8]>) -> Vec<Vec<u8>> {
    let mut keys = Vec::new();
    cold.scan(Table(table), from, to, &mut |key, _| {
        keys.push(key.to_vec());
        true
    })
    .unwrap();
    keys
}

#[tokio::test]
async fn writes_are_seen_at_once_and_deletes_remove() {
    for mut subject in subjects() {
        let cold = subject.open();
        cold.write(vec![put(1, b"a", b"1"), put(1, b"b", b"2"), put(255, b"b", b"3")]).await.unwrap();
        assert_eq!(cold.get(Table(1), b"b").unwrap().unwrap(), "2");
        assert_eq!(cold.get(Table(255), b"b").unwrap().unwrap(), "3");
        assert_eq!(cold.get(Table(2), b"b").unwrap(), None);
        let gone = vec![Operation::Delete(Table(1), Bytes::from_static(b"b")), put(1, b"c", b"")];
        cold.write(gone).await.unwrap();
        assert_eq!(cold.get(Table(1), b"b").unwrap(), None);
        assert_eq!(cold.get(Table(1), b"c").unwrap().unwrap(), "");
    }
}

#[tokio::test]
async fn scans_keep_to_their_table_and_range() {
    for mut subject in subjects() {
        let cold = subject.open();
        let last = [0xff; 8];
        cold.write(vec![put(1, b"", b""), put(1, b"a", b""), put(1, b"b", b""), put(1, &last, b"")]).await.unwrap();
        cold.write(vec![put(2, b"a", b""), put(255, b"a", b""), put(255, &last, b"")]).await.unwrap();
        assert_eq!(keys(&*cold, 1, b"", None), [&b""[..], b"a", b"b", &last]);
        assert_eq!(keys(&*cold, 1, b"a", Some(b"b")), [b"a"]);
        assert_eq!(keys(&*cold, 1, b"b", Some(b"a")), Vec::<Vec<u8>>::new());
        assert_eq!(keys(&*cold, 1, b"a\0", None), [&b"b"[..], &last]);
        assert_eq!(keys(&*cold, 255, b"", None), [&b"a"[..], &last]);
        assert_eq!(keys(&*cold, 0, b"", None), Vec::<Vec<u8>>::new());
        let mut count = 0;
        let mut visit = |_: &[u8], _: &[u8]| {
            count += 1;
            count < 2
        };
        cold.scan(Table(1), b"", None, &mut visit).unwrap();
        assert_eq!(count, 2, "a visit that returns false is the last");
    }
}

#[tokio::test]
async fn commits_are_found_again() {
    for mut subject in subjects() {
        let cold = subject.open();
        assert_eq!(cold.checkpoint().unwrap(), None);
        cold.write(vec![put(1, b"a", b"1")]).await.unwrap();
        let checkpoint = Checkpoint { store: 7, lsn: Lsn(9), term: Term(0) };
        cold.commit(checkpoint).await.unwrap();
        assert_eq!(cold.checkpoint().unwrap(), Some(checkpoint));
        drop(cold);
        let cold = subject.open();
        assert_eq!(cold.checkpoint().unwrap(), Some(checkpoint));
        assert_eq!(cold.get(Table(1), b"a").unwrap().unwrap(), "1");
    }
}

/// Others that still have the handle: a store of which somebody keeps a reference must not keep its
/// directory.
#[tokio::test]
async fn a_closed_store_can_be_opened_again_at_once() {
    for mut subject in subjects() {
        let closed = subject.open();
        let written = closed.write(vec![put(1, b"a", b"1")]);
        closed.close().await;
        written.await.expect("what was asked for before is done first");
        closed.close().await;
        let cold = subject.open();
        assert_eq!(cold.get(Table(1), b"a").unwrap().unwrap(), "1");
        assert!(closed.get(Table(1), b"a").is_err(), "the old handle is dead");
        assert!(closed.write(vec![put(1, b"a", b"2")]).await.is_err());
        assert!(closed.commit(Checkpoint { store: 1, lsn: Lsn(1), term: Term(0) }).await.is_err());
        drop(closed);
        assert_eq!(cold.get(Table(1), b"a").unwrap().unwrap(), "1");
        cold.close().await;
    }
}

/// A future that nobody polls any more does not stop the writes after it.
#[tokio::test]
async fn an_abandoned_write_is_harmless() {
    for mut subject in subjects() {
        let cold = subject.open();
        drop(cold.write(vec![put(1, b"a", b"1")]));
        cold.write(vec![put(1, b"a", b"2")]).await.unwrap();
        assert_eq!(cold.get(Table(1), b"a").unwrap().unwrap(), "2");
    }
}

#[tokio::test]
async fn many_records_stay_in_order() {
    for mut subject in subjects() {
        let cold = subject.open();
        let total = 20_000u32;
        // In an order that is not that of the keys: 7919 is prime to 20000.
        let numbers: Vec<u32> = (0..total).map(|number| number.wrapping_mul(7919) % total).collect();
        for chunk in numbers.chunks(500) {
            let mut operations: Vec<_> = chunk.iter().map(|number| put(1, &number.to_be_bytes(), &[1; 200])).collect();
            operations.sort_by(|one, other| one.key().cmp(other.key()));
            cold.write(operations).await.unwrap();
        }
        cold.commit(Checkpoint { store: 1, lsn: Lsn(1), term: Term(0) }).await.unwrap();
        drop(cold);
        let cold = subject.open();
        let expected: Vec<Vec<u8>> = (0..total).map(|number| number.to_be_bytes().to_vec()).collect();
        assert_eq!(keys(&*cold, 1, b"", None), expected);
    }
}

#[tokio::test]
async fn power_loss_of_the_memory_store_keeps_a_prefix_behind_the_commit() {
    let mut survivors = Vec::new();
    for seed in 0..50 {
        let cold = MemoryCold::new();
        cold.write(vec![put(1, b"a", b"1")]).await.unwrap();
        cold.commit(Checkpoint { store: 1, lsn: Lsn(1), term: Term(0) }).await.unwrap();
        for number in 0..4u8 {
            cold.write(vec![put(2, &[number], b"")]).await.unwrap();
        }
        let after = cold.power_loss(&SeededEntropy::new(seed));
        assert!(cold.get(Table(1), b"a").is_err(), "the old handle is dead");
        assert_eq!(after.get(Table(1), b"a").unwrap().unwrap(), "1");
        let kept = keys(&after, 2, b"", None);
        assert_eq!(kept, (0..kept.len() as u8).map(|number| vec![number]).collect::<Vec<_>>());
        survivors.push(kept.len());
    }
    assert!((0..=4).all(|count| survivors.contains(&count)), "every prefix happens: {survivors:?}");
}

#[tokio::test]
async fn a_copy_is_read_without_touching_the_original() {
    let directory = tempfile::tempdir().unwrap();
    let scratch = tempfile::tempdir().unwrap();
    let options = FjallOptions { cache_bytes: 1 << 20, write_buffer_bytes: 1 << 20 };
    let cold = FjallCold::open(directory.path(), options).unwrap();
    cold.write(vec![put(1, b"a", b"1")]).await.unwrap();
    cold.commit(Checkpoint { store: 1, lsn: Lsn(1), term: Term(0) }).await.unwrap();
    drop(cold);
    let before = digest(directory.path());
    let copy = FjallCold::open_copy(directory.path(), scratch.path(), options).unwrap();
    assert_eq!(copy.get(Table(1), b"a").unwrap().unwrap(), "1");
    copy.write(vec![put(1, b"a", b"2")]).await.unwrap();
    drop(copy);
    assert_eq!(digest(directory.path()), before);
    assert!(FjallCold::open_copy(&directory.path().join("none"), scratch.path(), options).is_err());
}

/// Names and contents of all files below a directory.
fn digest(directory: &std::path::Path) -> Vec<(std::path::PathBuf, Vec<u8>)> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            files.extend(digest(&path));
        } else {
            files.push((path.clone(), std::fs::read(&path).unwrap()));
        }
    }
    files.sort();
    files
}
